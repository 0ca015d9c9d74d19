"""Processes of a deployment: started under a mark, found again by it, and ended to the last one.

Flower's programs start further ones in sessions of their own, so that neither a process group nor
the tree of parents finds them all. Every process started here therefore carries a mark in its
environment, 128 random bits that its children inherit: who carries it belongs to the deployment,
and nobody else does.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "ODCL_FLOWER_MARK"
_PROC = Path("/proc")
_POLL = 0.05  # seconds between two looks


@dataclass(frozen=True)
class Process:
    """A process by its number and its start: numbers are given again, the pair is not."""

    pid: int
    started: str

    @property
    def runs(self) -> bool:
        """Is it still this process, and not yet dead?"""
        return _started(self.pid) == self.started


def new_mark() -> str:
    return secrets.token_hex(16)


def start(
    command: Sequence[str | os.PathLike[str]], mark: str, environment: Mapping[str, str], log: Path
) -> Process:
    """Start a program in a session of its own, its output in a log that only its owner reads."""
    with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as stream:
        child = subprocess.Popen(
            list(command),
            env={**environment, MARK: mark},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    return Process(child.pid, _started(child.pid) or "")


def belonging(mark: str, known: Sequence[Process] = ()) -> list[Process]:
    """Every running process that carries the mark.

    Where there is no /proc to look through, only those of ``known`` are looked at: their numbers
    come from a file and may be somebody else's by now, so they need the mark as well.
    """
    names = [entry.name for entry in _PROC.iterdir()] if _PROC.is_dir() else []
    pids = [int(name) for name in names if name.isdecimal()] or [one.pid for one in known]
    found = [Process(pid, _started(pid) or "") for pid in pids]
    return [one for one in found if one.started and _carries(one.pid, mark)]


def end(mark: str, known: Sequence[Process] = (), *, grace: float = 5.0) -> int:
    """End all that carries the mark: politely, then by force. How many were there?

    The known ones, who look after the others, are asked first; whoever is left is asked, too, and
    killed when ``grace`` seconds are over. Returns when none is left.
    """
    everyone = dict.fromkeys(belonging(mark, known))

    def left() -> list[Process]:
        """Those still there. A process on its way out has lost its mark before it is gone."""
        everyone.update(dict.fromkeys(belonging(mark, known)))
        return [one for one in everyone if one.runs]

    deadline = time.monotonic() + grace
    for which in ([one for one in known if one in everyone], list(everyone)):
        _signal(which, signal.SIGTERM)
        wait_until(lambda: not left(), (deadline - time.monotonic()) / 2)
    while some := left():
        _signal(some, signal.SIGKILL)
        wait_until(lambda: not left(), 1.0)
    return len(everyone)


def wait_until(holds: Callable[[], bool], seconds: float) -> bool:
    """Look until something holds, for so many seconds at most. Does it?"""
    deadline = time.monotonic() + seconds
    while not (now := holds()) and time.monotonic() < deadline:
        time.sleep(_POLL)
    return now


def _signal(processes: Sequence[Process], what: signal.Signals) -> None:
    for one in processes:
        with suppress(ProcessLookupError, PermissionError):
            if one.runs:
                os.kill(one.pid, what)


def _carries(pid: int, mark: str) -> bool:
    """Does a process have the mark in its environment? Nobody can read that of somebody else's."""
    wanted = f"{MARK}={mark}"
    if not _PROC.is_dir():
        told = subprocess.run(
            ["ps", "eww", "-o", "command=", "-p", str(pid)], capture_output=True, text=True
        ).stdout
        return wanted in told.split()
    with suppress(OSError):
        return wanted.encode() in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def _started(pid: int) -> str | None:
    """When a process started, in its system's own words; None if it is dead or a zombie."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # our own child that ended: let it go
    if not _PROC.is_dir():
        words = subprocess.run(
            ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True
        ).stdout.split(maxsplit=1)
        return words[1].strip() if len(words) == 2 and not words[0].startswith("Z") else None
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # a program's name may hold anything, and spaces
    return None if fields[0] in "ZX" else fields[19]
