"""A new app that ``flwr run`` takes, from the one in ``apps/table``."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path

from odcl.files import atomic_folder

_APP = "odcl-app"  # the name in the template's pyproject.toml


def app_folder() -> Path:
    """The app whose nodes read a table each."""
    return Path(str(files("odcl.engines.flower") / "apps" / "table"))


def write_app(folder: Path, *, force: bool = False) -> None:
    """Write a new app folder, whole or not at all; the app is called as the folder is.

    Its modules are a package of that name: nodes of a simulation may have another app's folder on
    their path, and modules of the same name there. The result's place is an absolute path for the
    same reason: a run's working folder is the SuperLink's.
    """
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-") or _APP
    package = "odcl_" + name.replace("-", "_").removeprefix("odcl_")
    result = json.dumps(str(folder.resolve() / "result"))
    values = {
        f'name = "{_APP}"': f'name = "{name}"',
        'packages = ["."]': f'packages = ["{package}"]',
        '"server_app:app"': f'"{package}.server_app:app"',
        '"client_app:app"': f'"{package}.client_app:app"',
        'result-dir = "result"': f"result-dir = {result}",
        "PACKAGE/": f"{package}/",
    }
    texts = ("README.md", "pyproject.toml", "deploy.sh")
    own = (*texts, f"{package}/", "__pycache__/")
    with atomic_folder(folder, force=force, own=own) as new:
        (new / package).mkdir()
        (new / package / "__init__.py").touch()
        for file in ("client_app.py", "server_app.py"):
            (new / package / file).write_bytes((app_folder() / file).read_bytes())
        for file in texts:
            text = (app_folder() / file).read_text(encoding="utf-8")
            for template, value in values.items():
                text = text.replace(template, value)
            (new / file).write_text(text, encoding="utf-8")
        (new / "deploy.sh").chmod(0o755)
