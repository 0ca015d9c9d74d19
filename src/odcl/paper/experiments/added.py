"""Your own methods in the paper's figures: a Python file that registers them."""

from __future__ import annotations

import hashlib
import runpy
from dataclasses import dataclass
from pathlib import Path

from odcl import __version__


@dataclass(frozen=True)
class Added:
    """The methods that a file registers (:func:`odcl.baselines.register`)."""

    path: Path | None = None
    names: tuple[str, ...] = ()
    version: str = __version__  # with the file's fingerprint: another file, other rows

    def register(self) -> None:
        """Run the file, unless its methods are known in this process."""
        from odcl.paper.baselines import METHODS

        if self.path is not None and not set(self.names) <= set(METHODS):
            runpy.run_path(str(self.path))


NONE_ADDED = Added()


def load(path: Path) -> Added:
    """Run a file and see what it registers."""
    from odcl.paper.baselines import METHODS

    if not path.is_file():
        raise ValueError(f"There is no file {path}: name a Python file that registers methods.")
    fingerprint = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    before = set(METHODS)
    try:
        runpy.run_path(str(path.resolve()))
    except Exception as error:
        raise ValueError(
            f"{path} could not be run, and its methods are not known: "
            f"{type(error).__name__}: {error}"
        ) from error
    names = tuple(name for name in METHODS if name not in before)
    if not names:
        call = "odcl.baselines.register(NAME, FUNCTION)"
        raise ValueError(f"{path} registers no method. Call {call} in it.")
    return Added(path.resolve(), names, f"{__version__}+{fingerprint}")
