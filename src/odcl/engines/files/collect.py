"""Uploads that sites sent: one file, or a folder of them. What cannot be taken is set aside."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from odcl.declared import Digest, from_json
from odcl.engines.files.envelope import (
    Envelope,
    Refused,
    Time,
    naming_file,
    read_envelope,
    refusing,
)
from odcl.engines.files.keys import belongs_to
from odcl.engines.files.site import ENDING, UploadWords
from odcl.engines.files.task import Task
from odcl.engines.wire import SetAside, expect_users, from_wire
from odcl.exchange.upload import Uploads
from odcl.files import LITTER

AHEAD = timedelta(days=1)  # that a site's clock may be ahead of ours

# -- one upload ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ReadUpload:
    """An upload of a file, checked against the task."""

    file: Envelope
    words: UploadWords
    uploads: Uploads

    @property
    def site(self) -> str:
        return self.file.site

    @property
    def version(self) -> Version:
        return Version(str(self.file.created), self.file.sha256)


def open_upload(task: Task, path: str | os.PathLike[str] | bytes) -> ReadUpload:
    """Read an upload that may come from anyone; :class:`Refused` says why it is not taken."""
    file = read_envelope(path, "upload")
    file.check_task(task.stamp)
    with refusing():
        words = from_json(UploadWords, file.words)
    if task.signed:
        if file.site not in task.sites:
            raise Refused(f"the card lists no site {file.site!r}")
        file.check_signature(task.sites[file.site], file.site)
    with refusing():
        expect_users(words.users)
        ids = np.empty(words.users, dtype=object)
        ids[:] = [(file.site, i) for i in range(words.users)]
        arrays = file.arrays(task.agreed.specs, users=words.users)
        return ReadUpload(file, words, from_wire(task.agreed, ids, arrays))


def read_upload(task: Task, path: str | os.PathLike[str]) -> ReadUpload:
    """Read one upload; a ValueError names the file that is not taken."""
    with naming_file(path):
        return open_upload(task, path)


# -- a folder of uploads ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Collected:
    """The uploads of a folder: one per site, in the order of the sites' names."""

    uploads: Mapping[str, ReadUpload]
    set_aside: tuple[SetAside, ...]
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Version:
    """Which upload of a site it is."""

    created: Time
    sha256: Digest


def collect(
    task: Task,
    folder: str | os.PathLike[str],
    *,
    earlier: Mapping[str, Version] | None = None,
    withdrawn: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Collected:
    """Read all uploads of a folder; ``progress`` counts the files read.

    ``earlier`` are the uploads that this round took before, ``withdrawn`` the times of uploads
    whose sites have withdrawn: what is not newer does not come back.
    """
    aside, notices = list[SetAside](), list[str]()
    read: dict[str, list[tuple[str, ReadUpload]]] = {}
    for path in upload_files(folder):
        try:
            one = _taken(task, path)
            read.setdefault(one.site, []).append((path.name, one))
        except (Refused, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            aside.append(SetAside(path.name, why or "it cannot be read"))
        if progress is not None:
            progress(1)
    kept: dict[str, ReadUpload] = {}
    for site in sorted(read):
        found = _newest(read[site], aside, notices)
        if found is None:
            continue
        name, one = found
        why = _stale(one, (earlier or {}).get(site), (withdrawn or {}).get(site))
        if why is None:
            kept[site] = one
        else:
            aside.append(SetAside(name, why))
    _refuse_look_alikes(kept, aside)
    return Collected(kept, tuple(sorted(aside, key=lambda a: a.name)), tuple(notices))


def upload_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files of a folder by name; what begins with a dot is not looked at."""
    place = Path(folder)
    if not place.is_dir():
        raise ValueError(f"{folder} is not a folder: name the one that the uploads lie in.")
    found = [p for p in place.iterdir() if not p.name.startswith(".") and p.name not in LITTER]
    return sorted(found, key=lambda path: path.name)


def _taken(task: Task, path: Path) -> ReadUpload:
    if path.suffix != ENDING and not path.is_symlink():
        raise Refused(f"its name does not end in {ENDING}")
    one = open_upload(task, path)
    if not belongs_to(path.stem, one.site):
        raise Refused(f"it is the upload of {one.site!r} under another name: was it renamed?")
    latest = datetime.now(UTC) + AHEAD
    if one.file.created is not None and one.file.created > latest.strftime("%Y-%m-%dT%H:%M:%S"):
        raise Refused(f"it was made at {one.file.created}, which is still to come: set the clock")
    return one


def _newest(
    found: list[tuple[str, ReadUpload]], aside: list[SetAside], notices: list[str]
) -> tuple[str, ReadUpload] | None:
    """One upload per site: the newer one wins; of the same time none does."""
    by_digest = {one.file.sha256: (name, one) for name, one in reversed(found)}
    found = sorted(by_digest.values(), key=lambda pair: str(pair[1].file.created))
    if len(found) == 1:
        return found[0]
    (name, one), before = found[-1], found[:-1]
    if before[-1][1].file.created == one.file.created:
        for file, _ in found:
            why = f"{one.site} has several uploads of the same time, and none can be preferred"
            aside.append(SetAside(file, why))
        return None
    for file, _ in before:
        aside.append(SetAside(file, f"{name} is a newer upload of {one.site}"))
    notices.append(f"{one.site} has {len(found)} uploads: the newest, {name}, is taken")
    return name, one


def _stale(one: ReadUpload, taken: Version | None, gone: str | None) -> str | None:
    """Why an upload is out of date: it was replaced in this round, or its site has withdrawn."""
    created = str(one.file.created)
    if gone is not None and created <= gone:
        return f"{one.site} has withdrawn, and comes back only with a newer upload"
    if taken is None or one.file.sha256 == taken.sha256:
        return None
    if created <= taken.created:
        return f"the round has taken a newer upload of {one.site} before: this one is a replay"
    return None


def _refuse_look_alikes(kept: dict[str, ReadUpload], aside: list[SetAside]) -> None:
    """Set aside sites whose names differ in capital letters only: some disks mix up their files."""
    folded: dict[str, list[str]] = {}
    for site in kept:
        folded.setdefault(site.casefold(), []).append(site)
    for sites in folded.values():
        for site in sites if len(sites) > 1 else ():
            del kept[site]
            others = ", ".join(repr(s) for s in sites if s != site)
            aside.append(SetAside(f"{site}{ENDING}", f"{site!r} and {others} are too much alike"))
