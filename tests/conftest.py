"""Fixtures for all tests; plain functions that tests share are in ``helpers.py``."""

from __future__ import annotations

import signal

import pytest

from odcl.cli.main import run_command
from tests.helpers import Said

# A shell that starts the tests in the background lets them ignore Ctrl-C, and with them every
# process that they start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def command(capsys, tmp_path, monkeypatch):
    """Run an odcl command in this process, in the test's own folder: command("fit", ...)."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Said:
        capsys.readouterr()
        try:
            code = run_command([str(word) for word in words])
        except SystemExit as left:  # --help, --version
            code = left.code
        return Said(code, *capsys.readouterr())

    return run
