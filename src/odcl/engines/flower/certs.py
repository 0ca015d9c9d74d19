"""Certificates and node keys of a Flower deployment, by the package cryptography.

A SuperLink proves who it is with a certificate that the deployment's own authority signed; each
SuperNode proves who it is with a key that the SuperLink's operator registered.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from odcl.engines.files.keys import write_new
from odcl.engines.files.names import check_site
from odcl.files import atomic_folder

LOOPBACK = ("localhost", "127.0.0.1", "::1")
FILES = ("ca.crt", "ca.key", "server.pem", "server.key", "nodes/")  # what stands in the folder
_PRIVATE, _PUBLIC = 0o600, 0o644


@dataclass(frozen=True)
class Certificates:
    """A folder that :func:`make_certificates` wrote."""

    folder: Path

    @property
    def authority(self) -> Path:
        """What every node needs to know the SuperLink by."""
        return self.folder / "ca.crt"

    @property
    def server(self) -> Path:
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        return self.folder / "server.key"

    def node_key(self, site: str) -> Path:
        """A site's private key: at the site alone."""
        return self.folder / "nodes" / f"{site}.key"

    def node_public(self, site: str) -> Path:
        """A site's public key: for whoever registers nodes."""
        return self.folder / "nodes" / f"{site}.pub"


def make_certificates(
    folder: str | os.PathLike[str],
    sites: Sequence[str],
    hosts: Sequence[str] = (),
    *,
    days: int = 365,
    keys_only: bool = False,
    force: bool = False,
) -> Certificates:
    """An authority, the SuperLink's certificate and one key per site, whole or not at all.

    ``hosts`` are names or addresses under which nodes reach the SuperLink; this machine's own
    (localhost) are always among them. ``days`` is how long the certificates hold. ``keys_only``
    makes node keys and nothing else, as a site does that keeps its private key to itself.
    """
    names = [check_site(site) for site in sites]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        why = f"{twice[0]!r} stands there twice" if twice else "none is named"
        raise ValueError(f"Every site needs a name of its own, and {why}: name them a,b,c.")
    alternatives = [_alternative(host) for host in dict.fromkeys((*LOOPBACK, *hosts))]
    with atomic_folder(folder, force=force, own=FILES) as place:
        place.chmod(0o700)
        made = Certificates(place)
        if not keys_only:
            _write_authority_and_server(made, alternatives, days)
        (place / "nodes").mkdir(mode=0o700)
        for name in names:
            _write_node(made, name)
    return Certificates(Path(folder))


def _write_authority_and_server(made: Certificates, alternatives: Sequence[Any], days: int) -> None:
    """A certificate authority of this deployment alone, and the SuperLink's certificate by it."""
    x509, ec, serialization, hashes = _cryptography()
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer, subject = _name("odcl Flower authority"), _name("odcl Flower SuperLink")
    authority = (
        _certificate(issuer, issuer, authority_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(
            x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA384())
    )
    purpose = x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH])
    known = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    server = (
        _certificate(subject, issuer, server_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(purpose, critical=False)
        .add_extension(known, critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    write_new(made.authority, authority.public_bytes(pem), _PUBLIC)
    write_new(made.server, server.public_bytes(pem), _PUBLIC)
    for path, key in ((made.folder / "ca.key", authority_key), (made.server_key, server_key)):
        write_new(path, _secret(key, serialization.PrivateFormat.PKCS8), _PRIVATE)


def _write_node(made: Certificates, site: str) -> None:
    """A pair of keys as Flower reads them: EC P-384, in OpenSSH's form."""
    _, ec, serialization, _ = _cryptography()
    key = ec.generate_private_key(ec.SECP384R1())
    write_new(made.node_key(site), _secret(key, serialization.PrivateFormat.OpenSSH), _PRIVATE)
    openssh = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public = key.public_key().public_bytes(*openssh)
    write_new(made.node_public(site), public + f" {site}\n".encode(), _PUBLIC)


def _secret(key: Any, form: Any) -> bytes:
    _, _, serialization, _ = _cryptography()
    return bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _certificate(subject: Any, issuer: Any, public: Any, days: int) -> Any:
    x509, _, _, _ = _cryptography()
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks of two machines differ
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common: str) -> Any:
    x509, _, _, _ = _cryptography()
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common)])


def _usage(**allowed: bool) -> Any:
    x509, _, _, _ = _cryptography()
    every = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
        *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in every})


def _alternative(host: str) -> Any:
    """A name or an address, as a certificate holds it."""
    x509, _, _, _ = _cryptography()
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.encode("ascii", "replace").decode().split(".")
    if not all(label.replace("-", "").isalnum() for label in labels) or len(host) > 253:
        raise ValueError(
            f"{host!r} is neither a host's name nor an address, and a certificate must hold the "
            "one by which nodes reach the SuperLink: give it without https:// and without a port."
        )
    return x509.DNSName(host)


def _cryptography() -> tuple[Any, Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ValueError(
            "Certificates and keys need the package cryptography: pip install 'odcl[keys]'."
        ) from None
    return x509, ec, serialization, hashes
