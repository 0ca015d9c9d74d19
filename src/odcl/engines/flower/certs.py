"""Certificates and node keys of a Flower deployment, by the package cryptography.

Flower brings no command that makes them. A SuperLink proves who it is with a certificate that the
deployment's own authority signed; each SuperNode with a key that was registered at the SuperLink.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from odcl.engines.files.keys import check_site, write_new
from odcl.files import atomic_folder

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec
except ImportError:
    raise ValueError(
        "Certificates and keys need the package cryptography: pip install 'odcl[keys]'."
    ) from None

LOOPBACK = ("localhost", "127.0.0.1", "::1")
FILES = ("ca.crt", "ca.key", "server.pem", "server.key", "nodes/")  # all that is in the folder
_PRIVATE, _PUBLIC = 0o600, 0o644  # modes
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def make_certificates(
    folder: str | os.PathLike[str],
    sites: Sequence[str],
    hosts: Sequence[str] = (),
    *,
    days: int = 365,
    keys_only: bool = False,
    force: bool = False,
) -> None:
    """Write an authority, the SuperLink's certificate and a key per site, whole or not at all.

    ``hosts`` are names or addresses under which nodes reach the SuperLink; this machine's own
    (localhost) are always among them. ``days`` is how long the certificates hold. ``keys_only``
    makes node keys alone, for a site that keeps its private key to itself.
    """
    names = [check_site(site) for site in sites]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or twice:
        why = f"{twice[0]!r} is named twice" if twice else "none is named"
        raise ValueError(f"Every site needs a name of its own, and {why}: name them a,b,c.")
    alternatives = [_alternative(host) for host in dict.fromkeys((*LOOPBACK, *hosts))]
    with atomic_folder(folder, force=force, own=FILES) as place:
        place.chmod(0o700)
        if not keys_only:
            _write_authority_and_server(place, alternatives, days)
        (place / "nodes").mkdir(mode=0o700)
        for name in names:
            _write_node(place / "nodes", name)


def _write_authority_and_server(
    place: Path, alternatives: Sequence[x509.GeneralName], days: int
) -> None:
    """A certificate authority of this deployment alone, and the SuperLink's certificate by it."""
    signing_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    public, now = signing_key.public_key(), datetime.now(UTC)
    issuer = _name("odcl Flower authority")

    def write(name: str, subject: Any, key: Any, critical: Sequence[Any], *others: Any) -> None:
        made = (
            x509.CertificateBuilder(issuer, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))  # clocks of two machines differ
            .not_valid_after(now + timedelta(days=days))
        )
        for extension in (*critical, *others):
            made = made.add_extension(extension, critical=extension in critical)
        signed = made.sign(signing_key, hashes.SHA384())
        write_new(place / name, signed.public_bytes(form.Encoding.PEM), _PUBLIC)

    signs = x509.BasicConstraints(ca=True, path_length=0), _usage("key_cert_sign", "crl_sign")
    serves = x509.BasicConstraints(ca=False, path_length=None), _usage("digital_signature")
    known = x509.SubjectKeyIdentifier.from_public_key(public)
    write("ca.crt", issuer, signing_key, signs, known)
    write(
        *("server.pem", _name("odcl Flower SuperLink"), server_key, serves),
        x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(public),
        x509.SubjectAlternativeName(alternatives),
    )
    for name, key in (("ca.key", signing_key), ("server.key", server_key)):
        write_new(place / name, _secret(key, form.PrivateFormat.PKCS8), _PRIVATE)


def _write_node(place: Path, site: str) -> None:
    """A pair of keys as Flower reads them: EC P-384, in OpenSSH's form."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    write_new(place / f"{site}.key", _secret(key, form.PrivateFormat.OpenSSH), _PRIVATE)
    write_new(place / f"{site}.pub", public + f" {site}\n".encode(), _PUBLIC)


def _secret(key: ec.EllipticCurvePrivateKey, layout: form.PrivateFormat) -> bytes:
    return key.private_bytes(form.Encoding.PEM, layout, form.NoEncryption())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common)])


def _usage(*allowed: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in allowed for name in _USAGES})


def _alternative(host: str) -> x509.GeneralName:
    """A name or an address, as a certificate holds it."""
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
