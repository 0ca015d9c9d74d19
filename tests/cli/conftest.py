"""Fixtures for the tests of the command line."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    """Every test works in its own folder."""
    monkeypatch.chdir(tmp_path)
