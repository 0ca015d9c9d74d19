"""Names of sites, and their signatures: an Ed25519 key per site and one of the coordinator.

The private key stays in its file (mode 600, never overwritten); the public one, 64 hexadecimal
digits, goes onto the task card.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from odcl.declared import matching
from odcl.errors import show
from odcl.files import naming, read_regular

COORDINATOR = "coordinator"
KEY = re.compile(r"[0-9a-f]{64}")
PublicKey = Annotated[str, matching(KEY.pattern, "64 hexadecimal digits, as `site keys` wrote")]
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
PRIVATE, PUBLIC = ".key", ".pub"
_MOST_BYTES = 2**12


def belongs_to(name: str, site: str) -> bool:
    """Is a file of this name, without its ending, one of this site? "north (1)" is north's."""
    return name.startswith(site) and not name.removeprefix(site)[:1].isalnum()


def check_site(site: Any) -> str:
    """Refuse a name that could lead out of a folder or be mistaken for another."""
    if not isinstance(site, str) or not _SITE.fullmatch(site):
        raise ValueError(
            f"{show(site)} cannot be the name of a site: use letters, digits, - and _, up to 64 of "
            "them, a letter or digit first."
        )
    if site == COORDINATOR:
        raise ValueError(f"{site!r} is the coordinator's name: give the site another one.")
    return site


@dataclass(frozen=True)
class SigningKey:
    """A private key, which signs."""

    public: str  # 64 hexadecimal digits
    _private: Any

    def sign(self, content: bytes) -> str:
        """The signature, 128 hexadecimal digits; the same content always has the same."""
        return bytes(self._private.sign(content)).hex()

    def __repr__(self) -> str:
        return f"<SigningKey {self.public}>"


def make_keys(site: str, folder: str | os.PathLike[str]) -> tuple[Path, Path]:
    """A new pair of keys of a site: ``SITE.key``, which stays, and ``SITE.pub``, which goes."""
    if site != COORDINATOR:
        check_site(site)
    ed25519, serialization = _cryptography()
    place = Path(folder)
    private, public = place / f"{site}{PRIVATE}", place / f"{site}{PUBLIC}"
    for file in (private, public):
        if os.path.lexists(file):
            raise ValueError(
                f"{file} exists already, and keys are never overwritten: without the old one "
                "nothing more could be signed. Name another folder."
            )
    place.mkdir(mode=0o700, exist_ok=True)
    key = ed25519.Ed25519PrivateKey.generate()
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_new(private, secret, 0o600)
    write_new(public, f"{site} {_hex(key, serialization)}\n".encode(), 0o644)
    return private, public


def write_new(file: Path, content: bytes, mode: int) -> None:
    """Write a file that must not be there: never readable by more people than it should be."""
    stream = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with naming(file, file), open(stream, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
    except BaseException:
        file.unlink()
        raise


def read_key(path: str | os.PathLike[str]) -> SigningKey:
    """The private key of a file that :func:`make_keys` wrote."""
    content = read_regular(path, most=_MOST_BYTES)
    ed25519, serialization = _cryptography()
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is not a private key that can be read ({error}).") from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise ValueError(f"{path} is not an Ed25519 key: make one with `odcl site keys`.")
    if os.name == "posix" and os.stat(path).st_mode & 0o077:
        raise ValueError(f"{path} can be read by others: say chmod 600 {path}.")
    return SigningKey(_hex(key, serialization), key)


def read_public(path: str | os.PathLike[str]) -> tuple[str, str]:
    """The site and its public key, of a file that :func:`make_keys` wrote."""
    words = read_regular(path, most=_MOST_BYTES).decode("ascii", "replace").split()
    if len(words) != 2 or not KEY.fullmatch(words[1]):
        raise ValueError(f"{path} is not a public key: it should hold a site and 64 digits.")
    return words[0] if words[0] == COORDINATOR else check_site(words[0]), words[1]


def is_signed_by(key: str, signature: str, content: bytes) -> bool:
    """Did the owner of this public key sign this content?"""
    ed25519, _ = _cryptography()
    from cryptography.exceptions import InvalidSignature

    try:
        public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signature), content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _hex(key: Any, serialization: Any) -> str:
    raw = serialization.Encoding.Raw, serialization.PublicFormat.Raw
    return bytes(key.public_key().public_bytes(*raw)).hex()


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ValueError(
            "Signatures need the package cryptography: pip install 'odcl[keys]'."
        ) from None
    return ed25519, serialization
