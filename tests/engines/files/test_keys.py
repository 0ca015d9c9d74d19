"""Keys: private ones stay private and are never overwritten."""

from __future__ import annotations

import os
import stat
import sys

import pytest

from odcl.engines.files.collect import collect
from odcl.engines.files.keys import is_signed_by, make_keys, read_key, read_public
from odcl.report.by_file import inspect_file
from tests.engines.files.world import frames, send, task, with_keys
from tests.helpers import files_below, full_disk, refusal


def test_a_pair_of_keys_signs_and_verifies(tmp_path):
    private, public = make_keys("north", tmp_path / "keys")
    key = read_key(private)
    assert read_public(public) == ("north", key.public)
    assert stat.S_IMODE(os.stat(private).st_mode) == 0o600
    signature = key.sign(b"term")
    assert signature == key.sign(b"term")  # the same content always has the same signature
    assert is_signed_by(key.public, signature, b"term")
    assert not is_signed_by(key.public, signature, b"terms")
    assert not is_signed_by("00" * 32, signature, b"term")
    assert "sign" not in repr(key).replace("SigningKey", "")


def test_keys_are_never_overwritten(tmp_path):
    make_keys("north", tmp_path)
    before = files_below(tmp_path)
    refusal(make_keys, "north", tmp_path, match="never overwritten")
    (tmp_path / "north.pub").unlink()
    refusal(make_keys, "north", tmp_path, match="north.key exists")
    assert files_below(tmp_path) == {"north.key": before["north.key"]}


def test_names_of_sites_lead_nowhere(tmp_path):
    for name in ("../north", "a/b", "", ".hidden", "a b", "é", "x" * 65):
        refusal(make_keys, name, tmp_path, match="cannot be the name of a site")
    assert files_below(tmp_path) == {}


def test_a_key_that_others_can_read_is_refused(tmp_path):
    private, public = make_keys("north", tmp_path)
    os.chmod(private, 0o644)
    refusal(read_key, private, match="chmod 600")
    refusal(read_key, public, match="not a private key")
    refusal(read_public, private, match="not a public key")


def test_without_cryptography_unsigned_files_work_and_signed_ones_say_what_is_missing(
    tmp_path, monkeypatch
):
    tables = frames(2)
    given, keys = with_keys(task(), tables, tmp_path / "keys")
    send(given, tables, tmp_path / "signed", keys=keys)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    plain = send(task(), tables, tmp_path / "plain")
    assert len(collect(task(), plain).uploads) == 2
    assert len(collect(task(), tmp_path / "signed").uploads) == 2  # the card lists no keys
    refusal(collect, given, tmp_path / "signed", match=r"pip install 'odcl\[keys\]'")
    assert "not checked" in inspect_file(tmp_path / "signed" / "north.upload")
    refusal(make_keys, "north", tmp_path / "more", match="need the package cryptography")


def test_a_full_disk_leaves_no_half_key(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match=r"No space.*north\.key"):
        make_keys("north", tmp_path)
    assert files_below(tmp_path) == {}
