"""A whole Flower deployment on this machine: SuperLink with TLS, SuperNodes with registered keys.

Everything lives in one folder: certificates, Flower's own home (FLWR_HOME), the SuperLink's
database, logs, and the state that says which processes belong to it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odcl.engines.flower import processes
from odcl.engines.flower.certs import Certificates, make_certificates
from odcl.engines.flower.processes import Process
from odcl.files import atomic_path

STATE = "state.json"
CONNECTION = "odcl"  # the SuperLink's name in Flower's own configuration
_STARTUP = 60.0  # seconds for the SuperLink to answer, on a busy machine
_CALL = 120.0  # seconds for one call of Flower's command line

# Flower and Ray call home unless they are told not to.
SILENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# One user is one small problem: several BLAS threads would only wait for each other, and add in
# another order.
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class DeploymentError(OSError):
    """A program of Flower's that did not do what it was started for: nothing in the input is."""


@dataclass(frozen=True)
class RunStatus:
    """A run, as Flower's SuperLink tells of it."""

    run_id: int
    status: str  # pending, starting, running, finished:completed, finished:failed, ...
    details: str

    @property
    def is_over(self) -> bool:
        return self.status.startswith("finished")

    @property
    def is_good(self) -> bool:
        return self.status == "finished:completed"


@dataclass
class Deployment:
    """A SuperLink and its SuperNodes on this machine, all of them under one mark.

    ``with Deployment.make(folder, sites) as deployment:`` leaves no process behind.
    """

    folder: Path
    mark: str
    port: int
    simulation: bool = False
    known: dict[str, Process] = field(default_factory=dict)  # superlink, and each node by its site
    registered: dict[str, str] = field(default_factory=dict)  # Flower's node id of each site

    @classmethod
    def make(
        cls, folder: str | os.PathLike[str], sites: Sequence[str] = (), *, simulation: bool = False
    ) -> Deployment:
        """A folder with certificates and a configuration; nothing runs yet.

        A ``simulation`` has neither sites nor keys: its SuperLink makes the nodes up.
        """
        place = Path(folder).resolve()
        place.mkdir(mode=0o700, exist_ok=True)
        made = cls(place, processes.new_mark(), free_port(), simulation)
        if not simulation:
            make_certificates(place / "certs", sites)
        made.logs.mkdir(mode=0o700)
        made._write_home(made.home)
        made.write_state()
        return made

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Deployment:
        """The deployment of a folder, running or not."""
        path = Path(folder).resolve() / STATE
        if not path.is_file():
            raise ValueError(
                f"{folder} holds no deployment ({STATE} is missing): `odcl flower up` makes one."
            )
        words = json.loads(path.read_text(encoding="utf-8"))
        known = {name: Process(**one) for name, one in words["processes"].items()}
        settings = words["mark"], words["port"], words["simulation"]
        return cls(path.parent, *settings, known, words["registered"])

    def write_state(self) -> None:
        """What ends this deployment: the mark, and number and start of each process."""
        listed = {name: vars(one) for name, one in self.known.items()}
        words = {
            "mark": self.mark,
            "port": self.port,
            "simulation": self.simulation,
            "processes": listed,
            "registered": self.registered,
        }
        with atomic_path(self.folder / STATE) as temporary:
            temporary.write_text(json.dumps(words, indent=1) + "\n", encoding="utf-8")

    # -- places ------------------------------------------------------------------------------------

    @property
    def certificates(self) -> Certificates:
        return Certificates(self.folder / "certs")

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # -- processes ---------------------------------------------------------------------------------

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again on its database, and wait until it answers."""
        command = [
            program("flower-superlink"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--database", str(self.folder / "superlink.db"), "--isolation", "subprocess"),
            "--disable-runtime-dependency-installation",
        ]
        if self.simulation:
            command += ["--insecure", "--simulation"]
        else:
            known = self.certificates
            command += ["--enable-supernode-auth", "--ssl-ca-certfile", str(known.authority)]
            command += ["--ssl-certfile", str(known.server), "--ssl-keyfile", str(known.server_key)]
        self._start("superlink", command, self.home)
        started = self.known["superlink"]
        processes.wait_until(lambda: not started.runs or self.answers(), _STARTUP)
        if not self.answers():
            raise DeploymentError(f"the SuperLink did not start: {self.tail('superlink')}")

    def answers(self) -> bool:
        """Does the SuperLink answer, and prove that it is ours?"""
        scheme, trust = "http", None
        if not self.simulation:
            scheme = "https"
            trust = ssl.create_default_context(cafile=str(self.certificates.authority))
        try:
            with urllib.request.urlopen(
                f"{scheme}://{self.address}/health", timeout=2, context=trust
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def register(self, site: str) -> None:
        """Let the SuperLink know a site's public key: only then may its node connect."""
        key = self.certificates.node_public(site)
        answer = self.call("supernode", "register", str(key), CONNECTION, "--name", site)
        self.registered[site] = str(answer["node-id"])
        self.write_state()

    def up(
        self, nodes: Mapping[str, Mapping[str, Any]], stage: Callable[[str], None] = lambda _: None
    ) -> None:
        """Start the SuperLink and a node per site, each with its config; wait until all are in."""
        stage("starting the SuperLink")
        self.start_superlink()
        stage("starting nodes")
        for site in nodes:
            self.register(site)
            self.start_node(site, nodes[site])
        stage("waiting for nodes")
        self.wait_online(nodes)

    def wait_online(self, sites: Iterable[str], seconds: float = 120.0) -> None:
        """Wait until the nodes of these sites are connected."""
        deadline, wanted = time.monotonic() + seconds, set(sites)
        while missing := wanted - set(self.online()):
            gone = [site for site in sorted(missing) if not self.known[site].runs]
            if gone or time.monotonic() > deadline:
                one = (gone or sorted(missing))[0]
                raise DeploymentError(f"node {one} is not connected: {self.tail(one)}")
            time.sleep(3.0)

    def start_node(self, site: str, config: Mapping[str, Any]) -> None:
        """Start a site's SuperNode, with a home and a port of its own."""
        home = self.home / site
        self._write_home(home)
        command = [
            program("flower-supernode"),
            *("--superlink", self.address, "--max-wait-time", "600"),
            *("--root-certificates", str(self.certificates.authority)),
            *("--auth-supernode-private-key", str(self.certificates.node_key(site))),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", toml_pairs(config)),
        ]
        self._start(site, command, home)

    def _start(self, name: str, command: Sequence[str], home: Path) -> None:
        log = self.logs / f"{name}.log"
        self.known[name] = processes.start(command, self.mark, self.environment(home), log)
        self.write_state()

    def processes(self) -> list[Process]:
        """Every process of this deployment that is running."""
        return processes.belonging(self.mark, list(self.known.values()))

    def down(self) -> int:
        """End every process of this deployment. How many were there?"""
        # The SuperLink last: nodes that lose it would try to reach it again.
        nodes = sorted(self.known.items(), key=lambda pair: pair[0] == "superlink")
        return processes.end(self.mark, [one for _, one in nodes])

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # -- what Flower's command line does -----------------------------------------------------------

    def call(self, *words: str) -> dict[str, Any]:
        """One command of ``flwr``, its answer as JSON."""
        done = self._flwr(*words, "--format", "json")
        try:
            answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {"success": False, "error-message": done.stderr.strip() or done.stdout.strip()}
        if done.returncode or not answer.get("success"):
            said = answer.get("error-message") or f"exit code {done.returncode}"
            raise DeploymentError(f"flwr {' '.join(words[:2])}: {said}")
        return answer

    def online(self) -> list[str]:
        """Sites whose nodes are connected."""
        nodes = self.call("supernode", "list", CONNECTION)["nodes"]
        there = {node["node-id"] for node in nodes if node["status"] == "online"}
        return sorted(site for site, node_id in self.registered.items() if node_id in there)

    def run(
        self, app: Path, config: Mapping[str, Any] | None = None, *, nodes: int | None = None
    ) -> int:
        """Start a run of an app folder. Its number."""
        words = ["run", str(app), CONNECTION]
        words += ["-c", toml_pairs(config)] if config else []
        words += ["--federation-config", f"num-supernodes={nodes}"] if nodes else []
        return int(self.call(*words)["run-id"])

    def status(self, run_id: int) -> RunStatus:
        (run,) = self.call("list", CONNECTION, "--run-id", str(run_id))["runs"]
        return _run_status(run)

    def runs(self) -> list[RunStatus]:
        """All runs, the newest first."""
        return [_run_status(run) for run in self.call("list", CONNECTION)["runs"]]

    def wait(self, run_id: int, seconds: float) -> RunStatus:
        """Look at a run until it is over, for so many seconds at most."""
        deadline = time.monotonic() + seconds
        while not (now := self.status(run_id)).is_over and time.monotonic() < deadline:
            time.sleep(3.0)
        return now

    def run_log(self, run_id: int) -> str:
        """What the run's ServerApp printed and logged."""
        return self._flwr("log", str(run_id), CONNECTION, "--show").stdout

    def _flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program("flwr"), *words],
            env={**self.environment(self.home), processes.MARK: self.mark},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CALL,
        )

    def tail(self, name: str, lines: int = 5) -> str:
        """Where a program's log is, and its last lines."""
        path = self.logs / f"{name}.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return f"{path} ends so: {' | '.join(text.splitlines()[-lines:])}"

    # -- Flower's settings -------------------------------------------------------------------------

    def environment(self, home: Path) -> dict[str, str]:
        """This process's environment, with Flower's programs found, silent, and at home here."""
        here = str(Path(sys.executable).parent)
        path = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        return {**kept, **SILENT, **ONE_THREAD, "PATH": path, "FLWR_HOME": str(home)}

    def _write_home(self, home: Path) -> None:
        """Flower's own home in the folder, where it knows one SuperLink: ours."""
        home.mkdir(mode=0o700, exist_ok=True)
        trust = "insecure = true"
        if not self.simulation:
            trust = f"root-certificates = {json.dumps(str(self.certificates.authority))}"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "{self.address}"\n{trust}\n',
            encoding="utf-8",
        )


def _run_status(words: Mapping[str, Any]) -> RunStatus:
    details = words["status-details"]
    return RunStatus(int(words["run-id"]), words["status"], "" if details == "N/A" else details)


def program(name: str) -> str:
    """Where a program of Flower's is: beside this Python, or on the PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise ValueError(f"{name} is not here, for Flower is missing: pip install 'odcl[flower]'.")
    return found


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def toml_pairs(config: Mapping[str, Any]) -> str:
    """Settings as Flower takes them on a command line: ``key="text" number=1 flag=true``."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
