"""Fits that several tests begin with: made once in a session, copied for each test."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from tests.helpers import files_below


@pytest.fixture(scope="session")
def kept_fits(tmp_path_factory):
    """What was printed and where the run is, by table and options."""
    return tmp_path_factory.mktemp("fits"), {}


@pytest.fixture
def fit_once(command, kept_fits):
    """``odcl fit`` where the fit is not what is tested: fit_once("table.csv", *words)."""
    place, known = kept_fits

    def fit(table, *words, out="run"):
        path = Path(table)
        files = files_below(path) if path.is_dir() else {path.name: path.read_bytes()}
        digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
        key = (digest, path.name, *map(str, words))
        if key not in known:
            said = command("fit", table, *words, "--out", out)
            assert said.code == 0, said.err
            known[key] = said, place / str(len(known))
            shutil.copytree(out, known[key][1])
        elif not Path(out).exists():
            shutil.copytree(known[key][1], out)
        return known[key][0]

    return fit
