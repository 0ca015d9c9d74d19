"""Names of sites, and what a public key looks like."""

from __future__ import annotations

import re
from typing import Any

from odcl.errors import show

COORDINATOR = "coordinator"
KEY = re.compile(r"[0-9a-f]{64}")
_SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


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
