"""The round: a folder with one download per site, the coordinator's report, and its state. It
appears whole, and is replaced as a whole.

A download is all that the last step of a site's own users needs, and no other site's name.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.artifact.arrays import ArraySpec, expect, is_count, json_bytes, parse_json
from odcl.artifact.folder import blaming
from odcl.declared import (
    OPTIONAL,
    Digest,
    Printable,
    fields_from_json,
    fields_to_json,
    from_json,
    to_json,
)
from odcl.engines.files.collect import ReadUpload, Version
from odcl.engines.files.envelope import (
    Envelope,
    Refused,
    Stamp,
    Time,
    envelope_bytes,
    naming_file,
    read_envelope,
    refusing,
)
from odcl.engines.files.keys import SigningKey
from odcl.engines.files.task import Task
from odcl.engines.wire import (
    LATE_SPECS,
    MIXTURE_SPECS,
    downloads_of,
    mixture_of,
    mixture_parts,
    plain,
)
from odcl.exchange.message import Downloads
from odcl.files import atomic_folder, interrupted, locked, naming, read_regular
from odcl.server.robust import Outlier
from odcl.wide.moments import GroupModels

if TYPE_CHECKING:
    from odcl.engines.files.combine import CombinedRound

ENDING = ".download"


@dataclass(frozen=True)
class GroupsWords:
    """What a file says of the groups beside its arrays."""

    rule: Printable
    reason: Printable
    diagnosis: Printable
    mixture: Any


@dataclass(frozen=True)
class DownloadWords(GroupsWords):
    """What a download says beside its arrays."""

    answers: Digest
    late: bool
    # Users by their position in the upload.
    outliers: tuple[Outlier, ...] = field(default=(), metadata=OPTIONAL)


@dataclass(frozen=True, eq=False)
class RoundGroups:
    """What all sites learn about the groups."""

    sizes: Ints  # (n_groups,), users whose likeliest group it is
    sites: Ints  # (n_groups,), sites with a user in it, more likely than not
    rule: str
    reason: str
    diagnosis: str
    mixture: GroupModels | None = None  # of mixed groups

    @cached_property
    def parts(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """As words and arrays of a file."""
        mixed, arrays = mixture_parts(self.mixture)
        words = to_json(GroupsWords(self.rule, self.reason, self.diagnosis, mixed))
        return words, {"sizes": plain(self.sizes), "sites": plain(self.sites), **arrays}


@dataclass(frozen=True, eq=False)
class SiteDownload:
    """What a site receives."""

    groups: RoundGroups
    downloads: Downloads  # of its users, in the order of its upload
    answers: str  # SHA-256 of the upload that it answers
    late: bool  # the site came after the round
    distance: Floats | None = None  # (n_users,), of late users: from their group, in noise units
    none_of_these: Bools | None = None  # (n_users,), of late users
    outliers: tuple[Outlier, ...] = ()  # of its users, by position


# -- writing ---------------------------------------------------------------------------------------


def download_bytes(task: Task, site: str, given: SiteDownload, key: SigningKey | None) -> bytes:
    words, shared = given.groups.parts
    own = given.downloads.to_arrays()
    arrays = shared | {name: plain(array) for name, array in own.items()}
    if given.distance is not None and given.none_of_these is not None:
        arrays |= {"distance": given.distance, "none_of_these": given.none_of_these}
    first = {"answers": given.answers, "late": given.late}
    if given.outliers:
        first["outliers"] = to_json(given.outliers)
    return envelope_bytes("download", task.stamp, site, arrays, first | words, key=key)


# -- reading ---------------------------------------------------------------------------------------

_GROUPS = {
    "sizes": ArraySpec(("groups",), ("int64",)),
    "sites": ArraySpec(("groups",), ("int64",)),
    **MIXTURE_SPECS,
}


def groups_specs(mixed: bool) -> dict[str, ArraySpec]:
    """What the arrays of groups have to be."""
    return {k: spec for k, spec in _GROUPS.items() if mixed or k not in MIXTURE_SPECS}


def groups_of(task: Task, words: GroupsWords, arrays: Mapping[str, Array]) -> RoundGroups:
    mixture = mixture_of(task.agreed, words.mixture, arrays)
    sizes, sites = arrays["sizes"], arrays["sites"]
    expect(len(sizes) > 0 and bool((sizes >= 0).all() and (sites >= 0).all()), "negative sizes")
    counts = sizes.astype(np.intp), sites.astype(np.intp)
    return RoundGroups(*counts, words.rule, words.reason, words.diagnosis, mixture)


def read_download(
    task: Task, path: str | os.PathLike[str], site: str, answers: str
) -> SiteDownload:
    """The download of this site's upload; a ValueError names the file and what is wrong with it."""
    with naming_file(path):
        file = read_envelope(path, "download")
        file.check_task(task.stamp)
        if task.signed:
            file.check_signature(task.coordinator, "the coordinator")
    with naming_file(path), refusing():
        if file.site != site:
            raise Refused(f"it is for {file.site!r}, and the upload is of {site!r}")
        given = _unpacked(task, file)
        if given.answers != answers:
            raise Refused("it answers another upload of this site than the one given")
        return given


def _unpacked(task: Task, file: Envelope) -> SiteDownload:
    words: DownloadWords = from_json(DownloadWords, file.words)
    mixed = task.resolved.clusterer.uses_terms
    expect((words.mixture is not None) == mixed, "its groups do not fit the card's method")
    specs = {**groups_specs(mixed), **Downloads.specs({"dim": task.dim})}
    arrays = file.arrays(specs | LATE_SPECS if words.late else specs)
    groups = groups_of(task, words, arrays)
    own = {name: arrays[name] for name in arrays.keys() - _GROUPS.keys()}
    distance, none = own.pop("distance", None), own.pop("none_of_these", None)
    users = np.arange(len(own["group"]))
    downloads = downloads_of(task.agreed, users, own, len(groups.sizes), groups.mixture)
    inside = all(is_count(one.user) and one.user < len(users) for one in words.outliers)
    expect(inside, "it names users of no upload")
    about = words.answers, words.late, distance, none, words.outliers
    return SiteDownload(groups, downloads, *about)


# -- the round's folder ----------------------------------------------------------------------------


FORMAT = 1
CARD, STATE, GROUPS = "task.toml", "round.json", "round.groups"
REPORT, TEXT, PAGE = "report.json", "report.txt", "report.html"
_MOST_BYTES = 2**26


@dataclass(frozen=True)
class RoundState:
    """What a round remembers from one combining to the next."""

    task: Stamp
    taken: Mapping[str, Version] = field(default_factory=dict)  # by site
    withdrawn: Mapping[str, Time] = field(default_factory=dict)  # site -> time of its last upload
    missing: Mapping[str, Version] = field(default_factory=dict)  # taken before, not there now
    files: Mapping[str, Digest] = field(default_factory=dict)  # that the round consists of

    @property
    def known(self) -> dict[str, Version]:
        """The newest upload of each site that was ever taken: no older one is."""
        return {**self.missing, **self.taken}

    def followed_by(
        self, uploads: Mapping[str, ReadUpload], withdrawn: Mapping[str, str]
    ) -> RoundState:
        """The state once these uploads are taken."""
        taken = {site: one.version for site, one in uploads.items()}
        gone = self.known.keys() - taken.keys() - withdrawn.keys()
        missing = {site: self.known[site] for site in gone}
        return RoundState(self.task, taken, withdrawn, missing)

    def to_bytes(self) -> bytes:
        """The file, which ends with a digest of all that stands before it."""
        own = {
            name: dict(sorted(value.items())) if name != "task" else value
            for name, value in fields_to_json(self).items()
        }
        words = {"format": FORMAT, "kind": "round", **own}
        digest = hashlib.sha256(json_bytes(words, indent=None)).hexdigest()
        return json_bytes(words | {"sha256": digest}, indent=None)


def is_round(folder: Path) -> bool:
    """Does a folder hold a round? One whose writer was killed while it changed places is back."""
    if interrupted(folder):
        with locked(folder):
            pass
    return (folder / STATE).is_file()


def read_state(folder: Path, task: Task) -> RoundState:
    """The state of the round in a folder; a new one where there is none yet."""
    if not folder.exists():
        return RoundState(task.stamp)
    if not (folder / STATE).is_file():
        raise ValueError(
            f"{folder} exists and holds no round: name a new folder, or that of a round."
        )
    state = _read(folder)
    if state.task != task.stamp:
        raise ValueError(
            f"{folder} holds round {state.task.round} of {state.task.name!r}, made with another "
            "card than this one: name another folder."
        )
    return state


def _read(folder: Path) -> RoundState:
    content = read_regular(folder / STATE, most=_MOST_BYTES)
    with blaming(folder / STATE):
        words = parse_json(content)
        expect(isinstance(words, dict) and words.get("format") == FORMAT, "it has another format")
        own = {name: words[name] for name in words.keys() - {"format", "kind", "sha256"}}
        state = fields_from_json(RoundState, own)
        expect(state.to_bytes() == content, "its digest is not that of its contents")
    return state


def read_round(folder: Path) -> tuple[Task, RoundGroups, RoundState]:
    """The card and the groups of a round, checked against its state."""
    if not is_round(folder):
        raise ValueError(f"{folder} holds no round: name the folder that `odcl combine` wrote.")
    state = _read(folder)
    for name in (CARD, GROUPS):
        content = read_regular(folder / name, most=_MOST_BYTES)
        if hashlib.sha256(content).hexdigest() != state.files.get(name):
            raise ValueError(f"{folder / name} was changed since the round was written.")
    task = Task.read(folder / CARD)
    if task.stamp != state.task:
        raise ValueError(f"{folder / CARD} is the card of another task than the round's.")
    with naming_file(folder / GROUPS), refusing():
        file = read_envelope(folder / GROUPS, "groups")
        file.check_task(task.stamp)
        words: GroupsWords = from_json(GroupsWords, file.words)
        mixed = task.resolved.clusterer.uses_terms
        groups = groups_of(task, words, file.arrays(groups_specs(mixed)))
    return task, groups, state


def write_round(
    folder: Path, state: RoundState, combined: CombinedRound, key: SigningKey | None
) -> CombinedRound:
    """Write a round, and count the bytes each site receives; the caller holds the lock.

    An old round goes with its own files and with no others: a folder that holds more is refused.
    """
    from odcl.report.by_file import round_json
    from odcl.runs.round_page import round_page

    task, sizes, files = combined.task, dict[str, int](), dict[str, str]()
    own = [STATE, *_read(folder).files] if folder.exists() else None
    with atomic_folder(folder, force=own is not None, own=own) as place:

        def write(name: str, content: bytes) -> None:
            with naming(folder / name, place / name), open(place / name, "xb") as stream:
                stream.write(content)
            files[name] = hashlib.sha256(content).hexdigest()

        for site, given in combined.downloads():
            content = download_bytes(task, site, given, key)
            write(f"{site}{ENDING}", content)
            sizes[site] = len(content)
        combined = replace(combined, bytes_down=sizes)
        words, arrays = combined.groups.parts
        write(CARD, task.to_toml().encode())
        write(GROUPS, envelope_bytes("groups", task.stamp, "", arrays, words, key=key))
        report = round_json(combined)
        write(REPORT, json_bytes(report, indent=None))
        write(PAGE, round_page(report, task, combined.groups))
        write(TEXT, f"{combined}\n".encode())
        write(STATE, replace(state, files=files).to_bytes())
    return combined
