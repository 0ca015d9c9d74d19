"""A Flower deployment on this machine: a thin layer over Flower's own programs.

``flower-superlink`` with TLS, a ``flower-supernode`` per site with a registered key, and ``flwr``
for registration, runs and logs. One folder holds certificates, Flower's home (FLWR_HOME), the
SuperLink's database and logs.

Flower's programs start further ones in sessions of their own, so that neither a process group nor
the tree of parents finds them all. Every process started here carries a mark in its environment,
128 random bits that its children inherit: processes with the mark belong to the deployment.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from odcl.engines.flower.certs import make_certificates

COMPLETED = "finished:completed"  # the status of a run that went well
CONNECTION = "odcl"  # the SuperLink's name in Flower's configuration
MARK = "ODCL_FLOWER_MARK"
_STARTUP = 60.0  # seconds for the SuperLink to answer, on a busy machine
_CALL = 120.0  # seconds for one call of `flwr`
_PROC = Path("/proc")

# Flower and Ray report their use unless told not to. One user is one small problem: several BLAS
# threads would only wait for each other, and add in another order.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}


class DeploymentError(OSError):
    """A program of Flower's failed; the input is not at fault."""


@dataclass
class Deployment:
    """A SuperLink and its SuperNodes on this machine.

    ``with Deployment.make(folder, sites) as deployment:`` leaves no process behind.
    """

    folder: Path
    mark: str
    port: int
    pids: dict[str, int] = field(default_factory=dict)  # of the superlink, and of nodes by site
    registered: dict[str, str] = field(default_factory=dict)  # Flower's node id of each site

    @classmethod
    def make(cls, folder: str | os.PathLike[str], sites: Sequence[str]) -> Deployment:
        """Write certificates and configuration; nothing runs yet."""
        place = Path(folder).resolve()
        place.mkdir(mode=0o700, exist_ok=True)
        made = cls(place, secrets.token_hex(16), free_port())
        make_certificates(made.certificates, sites)
        made.logs.mkdir(mode=0o700)
        made._write_home(made.home)
        return made

    # -- places ------------------------------------------------------------------------------------

    @property
    def certificates(self) -> Path:
        return self.folder / "certs"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # -- programs ----------------------------------------------------------------------------------

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

    def start_superlink(self) -> None:
        """Start the SuperLink, or start it again on its database, and wait until it answers."""
        certs = self.certificates
        self._start(
            "superlink",
            self.home,
            *("flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--database", str(self.folder / "superlink.db"), "--isolation", "subprocess"),
            *("--disable-runtime-dependency-installation", "--enable-supernode-auth"),
            *("--ssl-ca-certfile", str(certs / "ca.crt")),
            *("--ssl-certfile", str(certs / "server.pem")),
            *("--ssl-keyfile", str(certs / "server.key")),
        )
        wait_until(lambda: self.answers() or self.pids["superlink"] not in self.running(), _STARTUP)
        if not self.answers():
            raise DeploymentError(f"the SuperLink did not start: {self.tail('superlink')}")

    def start_node(self, site: str, config: Mapping[str, Any]) -> None:
        """Start a site's SuperNode, with a home and a port of its own."""
        home, certs = self.home / site, self.certificates
        self._write_home(home)
        self._start(
            site,
            home,
            *("flower-supernode", "--superlink", self.address, "--max-wait-time", "600"),
            *("--root-certificates", str(certs / "ca.crt")),
            *("--auth-supernode-private-key", str(certs / "nodes" / f"{site}.key")),
            *("--host", "127.0.0.1", "--port", str(free_port())),
            *("--node-config", toml_pairs(config)),
        )

    def _start(self, name: str, home: Path, command: str, *options: str) -> None:
        """Start a program in a session of its own; only its owner may read its log."""
        log = os.open(self.logs / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(log, "ab") as stream:
            child = subprocess.Popen(
                [program(command), *options],
                env=self.environment(home),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.pids[name] = child.pid

    def answers(self) -> bool:
        """Does the SuperLink answer, and prove by its certificate that it is this one?"""
        trust = ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        url = f"https://{self.address}/health"
        with suppress(OSError), urllib.request.urlopen(url, timeout=2, context=trust) as answer:
            return bool(answer.status == 200)
        return False

    def wait_online(self, sites: Iterable[str], seconds: float = 120.0) -> None:
        """Wait until the nodes of these sites are connected."""
        deadline, wanted = time.monotonic() + seconds, set(sites)
        while missing := sorted(wanted - set(self.online())):
            gone = [site for site in missing if self.pids[site] not in self.running()]
            if gone or time.monotonic() > deadline:
                one = (gone or missing)[0]
                raise DeploymentError(f"node {one} is not connected: {self.tail(one)}")
            time.sleep(3.0)

    def tail(self, name: str) -> str:
        """Where a program's log is, and its last lines."""
        path = self.logs / f"{name}.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return f"{path} ends with: {' | '.join(text.splitlines()[-5:])}"

    def running(self) -> set[int]:
        """Numbers of this deployment's processes that are running."""
        return running(self.mark)

    def down(self) -> int:
        """End every process of this deployment, and return how many there were."""
        return end(self.mark)

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    # -- what `flwr` does --------------------------------------------------------------------------

    def register(self, site: str) -> None:
        """Register a site's public key: without it, its node may not connect."""
        key = self.certificates / "nodes" / f"{site}.pub"
        answer = self.call("supernode", "register", str(key), CONNECTION, "--name", site)
        self.registered[site] = str(answer["node-id"])

    def online(self) -> list[str]:
        """Sites whose nodes are connected."""
        nodes = self.call("supernode", "list", CONNECTION)["nodes"]
        there = {node["node-id"] for node in nodes if node["status"] == "online"}
        return sorted(site for site, node_id in self.registered.items() if node_id in there)

    def run(self, app: Path, config: Mapping[str, Any] | None = None) -> int:
        """Start a run of an app folder, and return its number."""
        words = ["run", str(app), CONNECTION]
        words += ["-c", toml_pairs(config)] if config else []
        return int(self.call(*words)["run-id"])

    def runs(self) -> list[Any]:
        """All runs, the newest first, as `flwr list` describes them."""
        return list(self.call("list", CONNECTION)["runs"])

    def wait(self, run_id: int, seconds: float) -> dict[str, Any]:
        """A run once it is over, or after ``seconds``, as `flwr list` describes it."""
        deadline = time.monotonic() + seconds
        while True:
            (now,) = (run for run in self.runs() if run["run-id"] == str(run_id))
            if now["status"].startswith("finished") or time.monotonic() > deadline:
                return now
            time.sleep(3.0)

    def run_log(self, run_id: int) -> str:
        """What the run's ServerApp printed and logged, with sites in place of Flower's node ids."""
        log = self._flwr("log", str(run_id), CONNECTION, "--show").stdout
        for site, node_id in self.registered.items():
            log = log.replace(node_id, site)
        return log

    def call(self, *words: str) -> dict[str, Any]:
        """One command of ``flwr``, its answer as JSON."""
        done = self._flwr(*words, "--format", "json")
        try:
            answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        except ValueError:
            answer = {"error-message": done.stderr.strip() or done.stdout.strip()}
        if done.returncode or not answer.get("success"):
            why = answer.get("error-message") or f"exit code {done.returncode}"
            raise DeploymentError(f"flwr {' '.join(words[:2])}: {why}")
        return answer

    def _flwr(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program("flwr"), *words],
            env=self.environment(self.home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CALL,
        )

    # -- Flower's settings -------------------------------------------------------------------------

    def environment(self, home: Path) -> dict[str, str]:
        """This process's environment, with the mark, Flower's programs on the PATH, and a home."""
        here = str(Path(sys.executable).parent)
        path = os.pathsep.join([here, os.environ.get("PATH", os.defpath)])
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        return {**kept, **ENVIRONMENT, "PATH": path, "FLWR_HOME": str(home), MARK: self.mark}

    def _write_home(self, home: Path) -> None:
        """A home for Flower whose configuration knows this SuperLink alone."""
        home.mkdir(mode=0o700, exist_ok=True)
        authority = json.dumps(str(self.certificates / "ca.crt"))
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "{self.address}"\n'
            f"root-certificates = {authority}\n",
            encoding="utf-8",
        )


def program(name: str) -> str:
    """Path of one of Flower's programs: beside this Python, or on the PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise ValueError(f"{name} is not here, for Flower is missing: pip install 'odcl[flower]'.")
    return found


def free_port() -> int:
    """A port of this machine that is not in use."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def toml_pairs(config: Mapping[str, Any]) -> str:
    """Settings as Flower takes them on a command line: ``key="text" number=1 flag=true``."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())


# -- processes by their mark -----------------------------------------------------------------------


def running(mark: str) -> set[int]:
    """Numbers of the running processes that carry the mark; dead ones have no environment."""
    wanted = f"{MARK}={mark}"
    if not _PROC.is_dir():
        command = ["ps", "axeww", "-o", "pid=,command="]
        listed = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
        return {int(line.split()[0]) for line in listed if wanted in line.split()}
    found = set()
    for path in _PROC.glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended, or is another user's
            if wanted.encode() in path.read_bytes().split(b"\0"):
                found.add(int(path.parent.name))
    return found


def end(mark: str, *, grace: float = 5.0) -> int:
    """End all processes with the mark, by force after ``grace`` seconds; how many were there?"""
    seen: set[int] = set()
    how, seconds = signal.SIGTERM, grace
    while left := running(mark):
        seen |= left
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, how)
        wait_until(lambda: not running(mark), seconds)
        how, seconds = signal.SIGKILL, 1.0
    return len(seen)


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Wait until something holds, ``seconds`` at most. Does it?"""
    deadline = time.monotonic() + seconds
    while not (now := holds()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return now
