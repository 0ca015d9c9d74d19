"""Sites to try federations by file on: small tables, a task, and their uploads in a folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from odcl import Method, Risk
from odcl.engines.files import Feature, Task, fit_site
from odcl.engines.files.keys import make_keys, read_key

NAMES = ("north", "south", "east", "west", "hill", "lake", "mill", "dale")


def frames(n_sites=6, n=24, *, seed=0, classes=False) -> dict[str, pd.DataFrame]:
    """A table per site, in two groups by turns: a, b, a category c and the target y."""
    rng = np.random.default_rng(seed)
    models = np.array([[3.0, -2.0, 1.0], [-3.0, 2.0, 8.0]])
    found = {}
    for i, site in enumerate(NAMES[:n_sites]):
        X = rng.normal(size=(n, 2))
        c = rng.permutation(np.arange(n) % 2)
        model = models[i % 2]
        z = X @ model[:2] + model[2] + 0.5 * c
        y = z + 0.5 * rng.normal(size=n)
        if classes:
            y = np.where(rng.random(n) < 1 / (1 + np.exp(-(z - model[2]))), "yes", "no")
        found[site] = pd.DataFrame(
            {"a": X[:, 0], "b": X[:, 1], "c": np.array(["p", "q"])[c], "y": y}
        )
    return found


def task(*, minimum_group=1, short_terms=False, **changes) -> Task:
    """The task of these tables: squared loss, no limits that they do not meet."""
    features = (Feature("a"), Feature("b"), Feature("c", ("p", "q")))
    method = Method(short_terms=short_terms, smallest_group=minimum_group)
    plain = Task("stay", features, "y", Risk("squared", 0.0, True), method=method, minimum_rows=1)
    return replace(plain, **changes)


def class_task(**changes) -> Task:
    return task(
        risk=Risk("logistic", 0.01, True), classes=("no", "yes"), smallest_cell=1, **changes
    )


def time(second=0) -> str:
    return f"2026-01-31T12:00:{second:02d}.000000Z"


def send(given: Task, tables, folder: Path, *, keys=None, created=None) -> Path:
    """The uploads of sites, in a folder."""
    folder.mkdir(exist_ok=True)
    for site, frame in tables.items():
        key = None if keys is None else keys[site]
        sent = fit_site(given, frame, site=site, key=key, created=created or time())
        sent.write(folder / f"{site}.upload")
    return folder


def with_keys(given: Task, sites, folder: Path):
    """The task with keys of these sites and of the coordinator, and their private keys."""
    keys = {}
    for who in ("coordinator", *sites):
        private, _ = make_keys(who, folder)
        keys[who] = read_key(private)
        given = given.with_keys(who, keys[who].public)
    return given, keys


def header_of(content: bytes) -> tuple[dict, bytes]:
    """The header of a file as JSON, and the numbers behind it."""
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def file_of(header: dict, numbers: bytes) -> bytes:
    """A file with another header."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + numbers
