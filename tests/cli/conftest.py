"""Fixtures for the tests of the command line."""

from __future__ import annotations

import pytest

from tests.fits import fit_once as fit_once
from tests.fits import kept_fits as kept_fits


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """Every test works in its own folder."""
    monkeypatch.chdir(tmp_path)
