"""Apps that ``flwr run`` takes: folders of a few files, kept beside this module as they are."""

from __future__ import annotations

import os
import re
from importlib.resources import files
from pathlib import Path

from odcl.files import atomic_folder

FILES = ("README.md", "client_app.py", "pyproject.toml", "server_app.py")
_NAME = "odcl-app"  # as the app's own pyproject.toml has it


def app_folder(name: str) -> Path:
    """An app of ours: "table" reads each node's own file, "paper" makes the paper's users up."""
    return Path(str(files("odcl.engines.flower") / "apps" / name))


def write_app(folder: str | os.PathLike[str], *, force: bool = False) -> Path:
    """A new app folder to start from, whole or not at all; the app is called as the folder is."""
    place = Path(folder)
    name = re.sub(r"[^a-z0-9]+", "-", place.resolve().name.lower()).strip("-") or _NAME
    with atomic_folder(place, force=force, own=(*FILES, "__pycache__")) as new:
        for file in FILES:
            text = (app_folder("table") / file).read_text(encoding="utf-8")
            if file == "pyproject.toml":
                text = text.replace(f'name = "{_NAME}"', f'name = "{name}"')
            (new / file).write_text(text, encoding="utf-8")
    return place
