"""Certificates and node keys, checked by a TLS handshake and by the package that reads them."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from odcl.engines.flower import certs
from odcl.engines.flower.certs import FILES


def make_certificates(folder, *args, **options):
    """The folder of new certificates."""
    certs.make_certificates(folder, *args, **options)
    return folder


def modes(folder):
    """Permissions of everything in a folder, by its path in it."""
    found = {"": folder, **{str(path.relative_to(folder)): path for path in folder.rglob("*")}}
    return {name: stat.S_IMODE(os.stat(path).st_mode) for name, path in found.items()}


def shaken(made, name):
    """A handshake with a server of this certificate by a client that knows its authority."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(made / "server.pem", made / "server.key")
    client = ssl.create_default_context(cafile=str(made / "ca.crt"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10)
        theirs.settimeout(10)

        def answer():
            try:
                server.wrap_socket(theirs, server_side=True).close()
            except OSError:  # the client said no
                theirs.close()

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with client.wrap_socket(ours, server_hostname=name) as secure:
                return secure.version()
        finally:
            ours.close()
            thread.join(10)


@pytest.mark.parametrize(
    "name", ["localhost", "127.0.0.1", "::1", "flower.example.org", "10.0.0.7"]
)
def test_a_client_that_knows_the_authority_trusts_the_server_under_each_name(tmp_path, name):
    made = make_certificates(tmp_path / "c", ["north"], ["flower.example.org", "10.0.0.7"])
    assert shaken(made, name).startswith("TLS")


def test_a_server_under_another_name_or_authority_is_refused(tmp_path):
    made, other = (make_certificates(tmp_path / name, ["north"]) for name in "ab")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|not valid for"):
        shaken(made, "elsewhere.example.org")
    for name in ("server.pem", "server.key"):
        (made / name).write_bytes((other / name).read_bytes())
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(made, "localhost")


def test_the_server_cannot_sign_and_the_authority_is_no_server(tmp_path):
    made = make_certificates(tmp_path / "c", ["north"], days=30)
    server, authority = (
        x509.load_pem_x509_certificate((made / name).read_bytes())
        for name in ("server.pem", "ca.crt")
    )
    constraints = x509.BasicConstraints
    assert not server.extensions.get_extension_for_class(constraints).value.ca
    assert authority.extensions.get_extension_for_class(constraints).value.ca
    server.verify_directly_issued_by(authority)
    assert 29 <= (server.not_valid_after_utc - server.not_valid_before_utc).days <= 30


def test_node_keys_are_p384_in_openssh_form_and_belong_together(tmp_path):
    made = make_certificates(tmp_path / "c", ["north", "south"])
    for site in ("north", "south"):
        text = (made / "nodes" / f"{site}.key").read_bytes()
        assert text.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
        private = serialization.load_ssh_private_key(text, password=None)
        assert isinstance(private.curve, ec.SECP384R1)
        public = serialization.load_ssh_public_key((made / "nodes" / f"{site}.pub").read_bytes())
        assert private.public_key().public_numbers() == public.public_numbers()
    north, south = ((made / "nodes" / f"{site}.key").read_bytes() for site in ("north", "south"))
    assert north != south


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_private_files_are_readable_by_their_owner_alone(tmp_path):
    before = os.umask(0)
    try:
        make_certificates(tmp_path / "c", ["north"])
    finally:
        os.umask(before)
    found = modes(tmp_path / "c")
    assert {name for name, mode in found.items() if mode & 0o077} == {
        "ca.crt",
        "server.pem",
        "nodes/north.pub",
    }
    assert {found[name] for name in ("ca.key", "server.key", "nodes/north.key")} == {0o600}
    assert found[""] == found["nodes"] == 0o700


def test_nothing_is_overwritten_unless_forced_and_then_as_a_whole(tmp_path):
    made = make_certificates(tmp_path / "c", ["north"])
    before = (made / "ca.crt").read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        make_certificates(tmp_path / "c", ["north"])
    assert (made / "ca.crt").read_bytes() == before
    make_certificates(tmp_path / "c", ["south"], force=True)
    assert (made / "ca.crt").read_bytes() != before
    assert not (made / "nodes" / "north.key").exists()
    assert {path.name for path in made.iterdir()} == {name.strip("/") for name in FILES}


def test_a_failure_on_the_way_leaves_nothing(tmp_path, monkeypatch):
    def fail(made, site):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("odcl.engines.flower.certs._write_node", fail)
    with pytest.raises(OSError, match="No space"):
        make_certificates(tmp_path / "c", ["north"])
    assert list(tmp_path.iterdir()) == []


def test_a_site_that_makes_its_own_key_gets_no_certificates(tmp_path):
    make_certificates(tmp_path / "c", ["north"], keys_only=True)
    assert {path.name for path in (tmp_path / "c").rglob("*")} == {
        "nodes",
        "north.key",
        "north.pub",
    }


@pytest.mark.parametrize(
    ("sites", "hosts", "told"),
    [
        (["../north"], [], "cannot be the name of a site"),
        (["north", "north"], [], "twice"),
        ([], [], "none is named"),
        (["north"], ["https://flower.example.org"], "without https://"),
        (["north"], ["flower.example.org:9092"], "without a port"),
    ],
)
def test_names_that_cannot_be_used_are_refused_before_anything_is_written(
    tmp_path, sites, hosts, told
):
    with pytest.raises(ValueError, match=told):
        make_certificates(tmp_path / "c", sites, hosts)
    assert list(tmp_path.iterdir()) == []
