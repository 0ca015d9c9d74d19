"""One file out: a site's users are fitted, and their uploads leave in one file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from odcl.artifact.arrays import expect, is_count
from odcl.engines.arrivals import expect_users, from_wire
from odcl.engines.files.envelope import (
    Envelope,
    Refused,
    envelope_bytes,
    naming_file,
    read_envelope,
    refusing,
    write_envelope,
)
from odcl.engines.files.keys import SigningKey, read_key
from odcl.engines.files.names import check_site
from odcl.engines.files.site import Leaving, SiteTable, may_leave, read_site
from odcl.engines.files.task import Task
from odcl.engines.files.toml import is_text
from odcl.exchange.upload import Uploads

ENDING = ".upload"
_WORDS = ("users", "withheld")


@dataclass(frozen=True, eq=False)
class SiteUpload:
    """What a site sends: the bytes of its file, and what they say."""

    task: Task
    site: str
    content: bytes
    uploads: Uploads
    table: SiteTable
    leaving: Leaving

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        write_envelope(path, self.content)


def fit_site(
    task: Task | str | os.PathLike[str],
    data: Any,
    *,
    site: str,
    user: str | None = None,
    key: SigningKey | str | os.PathLike[str] | None = None,
    created: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> SiteUpload:
    """Fit a site's users on its own rows (Algorithm 1, step 1) and put their uploads into a file.

    ``task`` is the task or its card, ``data`` the site's table, a path or a frame; ``user`` names
    the column of users if the site holds several; ``key`` is the site's private key, where the
    card asks for signatures. ``created`` is the time, now unless given.
    """
    task = task if isinstance(task, Task) else Task.read(task)
    key = own_key(task, check_site(site), key)
    table = read_site(task, data, user)
    leaving = may_leave(table)
    uploads = _fitted(task, leaving, progress)
    words = {"users": len(uploads), "withheld": leaving.withheld}
    arrays = uploads.to_arrays()
    time = created or datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    content = envelope_bytes("upload", task, site, arrays, words, created=time, key=key)
    return SiteUpload(task, site, content, uploads, table, leaving)


def _fitted(task: Task, leaving: Leaving, progress: Callable[[int], None] | None) -> Uploads:
    if (
        len(leaving.users) == 0
    ):  # nobody may send anything: the groups are for the site all the same
        return task.agreed.probe.take(np.zeros(0, dtype=np.intp))
    return task.uploads_of(leaving.rows, progress)


def own_key(
    task: Task, who: str, key: SigningKey | str | os.PathLike[str] | None
) -> SigningKey | None:
    """The key to sign with: one that the card lists, or None where it asks for no signatures."""
    if key is not None and not isinstance(key, SigningKey):
        key = read_key(key)
    if not task.signed:
        return key
    if key is None:
        raise ValueError(f"The card asks for signatures: {who} needs its private key to sign.")
    listed = task.coordinator if who == "the coordinator" else task.sites.get(who, ())
    if key.public not in listed:
        raise ValueError(
            f"The card lists another key for {who} than the one given (or none): its public key is "
            f"{key.public}."
        )
    return key


# -- reading ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReadUpload:
    """An upload of a file, checked against the task."""

    file: Envelope
    uploads: Uploads

    @property
    def site(self) -> str:
        return self.file.site


def open_upload(task: Task, path: str | os.PathLike[str]) -> ReadUpload:
    """Read an upload that may come from anyone; :class:`Refused` says why it is not taken."""
    file = read_envelope(path, "upload")
    file.check_task(task)
    check_words(file)
    if task.signed:
        if file.site not in task.sites:
            raise Refused(f"the card lists no site {file.site!r}")
        file.check_signature(task.sites[file.site], file.site)
    return ReadUpload(file, _unpacked(task, file))


def _unpacked(task: Task, file: Envelope) -> Uploads:
    """The uploads of a site's users, whose ids are (site, 0), (site, 1), ..."""
    with refusing():
        n = file.words["users"]
        expect_users(n)
        ids = np.empty(n, dtype=object)
        ids[:] = [(file.site, i) for i in range(n)]
        return from_wire(task.agreed, ids, file.arrays(task.agreed.specs, users=n))


def read_upload(task: Task, path: str | os.PathLike[str]) -> ReadUpload:
    """The same for one file: a ValueError names it."""
    with naming_file(path):
        return open_upload(task, path)


def check_words(file: Envelope) -> None:
    """The words of an upload: how many users, and what is withheld."""
    with refusing():
        expect(tuple(file.words) == _WORDS and is_count(file.words["users"]), "it has other words")
        withheld = file.words["withheld"]
        expect(isinstance(withheld, dict), "it does not say what is withheld")
        expect(tuple(withheld) == ("levels", "classes", "users"), "what is withheld is not said")
        for name in ("levels", "classes"):
            named = withheld[name]
            texts = isinstance(named, list) and all(is_text(v) for v in named)
            expect(texts, f"the {name} withheld are no texts")
        expect(is_count(withheld["users"]), "it does not say how many users are withheld")
