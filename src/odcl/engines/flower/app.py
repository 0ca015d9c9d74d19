"""Apps that ``flwr run`` takes: folders of a few files, kept beside this module as they are."""

from __future__ import annotations

import json
import os
import re
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from odcl.files import atomic_folder

FILES = ("README.md", "pyproject.toml")
MODULES = ("client_app.py", "server_app.py")
_NAME = "odcl-app"  # as the app's own pyproject.toml has it


def app_folder(name: str) -> Path:
    """An app of ours: "table" reads each node's own file, "paper" makes the paper's users up."""
    return Path(str(files("odcl.engines.flower") / "apps" / name))


def write_app(folder: str | os.PathLike[str], *, force: bool = False) -> Path:
    """A new app folder to start from, whole or not at all; the app is called as the folder is.

    Its modules are a package of that name: nodes of a simulation may have another app's folder on
    their path, and modules of the same name there. The result's place is a whole path for the same
    reason: a run's working folder is the SuperLink's.
    """
    place = Path(folder)
    name = re.sub(r"[^a-z0-9]+", "-", place.resolve().name.lower()).strip("-") or _NAME
    package = package_of(name)
    result = json.dumps(str(place.resolve() / "result"))
    new_words = {
        f'name = "{_NAME}"': f'name = "{name}"',
        'packages = ["."]': f'packages = ["{package}"]',
        '"server_app:app"': f'"{package}.server_app:app"',
        '"client_app:app"': f'"{package}.client_app:app"',
        'result-dir = "result"': f"result-dir = {result}",
        "PACKAGE/": f"{package}/",
    }
    own = (*FILES, f"{package}/", "__pycache__/")
    with atomic_folder(place, force=force, own=own) as new:
        (new / package).mkdir()
        (new / package / "__init__.py").touch()
        for file in (*FILES, *MODULES):
            text = (app_folder("table") / file).read_text(encoding="utf-8")
            for old, now in new_words.items() if file in FILES else ():
                text = text.replace(old, now)
            (new / (package if file in MODULES else "") / file).write_text(text, encoding="utf-8")
    return place


def package_of(name: str) -> str:
    """The package of an app: its name as Python takes it, and no other package's."""
    stem = name.replace("-", "_")
    return f"odcl_{stem}" if stem != "odcl_app" else stem


def app_config(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """What the runs of an app are told, unless a run says otherwise."""
    words: Any = tomllib.loads((Path(folder) / "pyproject.toml").read_text(encoding="utf-8"))
    for name in ("tool", "flwr", "app", "config"):
        words = words.get(name, {})
    return dict(words)
