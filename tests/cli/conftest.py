"""Fixtures for the tests of the command line."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch, request):
    """Every test works in its own folder, and draws only if it says so."""
    monkeypatch.chdir(tmp_path)
    if "draws" not in request.fixturenames:
        monkeypatch.setattr("odcl.cli.run_folder._draw", lambda fitted, path: path.write_text("?"))


@pytest.fixture
def draws():
    """A test that asks for this one draws its pictures."""
