"""One file back: all that the last step of a site's own users needs, and no other site's name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.artifact.arrays import ArraySpec, expect
from odcl.declared import OPTIONAL, Count, Digest, Number, Printable, from_json, one_of, to_json
from odcl.engines.files.envelope import (
    Envelope,
    Refused,
    envelope_bytes,
    naming_file,
    read_envelope,
    refusing,
)
from odcl.engines.files.keys import SigningKey
from odcl.engines.files.task import Task
from odcl.engines.wire import (
    MIXTURE_SPECS,
    downloads_of,
    late_specs,
    mixture_of,
    mixture_parts,
    plain,
)
from odcl.exchange.download import Downloads
from odcl.server.robust import KINDS, Outlier
from odcl.wide.groups import GroupModels

ENDING = ".download"


@dataclass(frozen=True)
class GroupsWords:
    """What a file says of the groups beside its arrays."""

    rule: Printable
    reason: Printable
    diagnosis: Printable
    mixture: Any


@dataclass(frozen=True)
class OutlierWords:
    """An :class:`~odcl.server.robust.Outlier` among the site's users, by position."""

    user: Count
    kind: Annotated[str, one_of(KINDS)]
    column: int | None
    factor: Number


@dataclass(frozen=True)
class DownloadWords(GroupsWords):
    """What a download says beside its arrays."""

    answers: Digest
    late: bool
    outliers: tuple[OutlierWords, ...] = field(default=(), metadata=OPTIONAL)


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
        odd = [OutlierWords(o.user, o.kind, o.column, o.factor) for o in given.outliers]
        first["outliers"] = [to_json(one) for one in odd]
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
    arrays = file.arrays(specs | late_specs() if words.late else specs)
    groups = groups_of(task, words, arrays)
    own = {name: arrays[name] for name in arrays.keys() - _GROUPS.keys()}
    distance, none = own.pop("distance", None), own.pop("none_of_these", None)
    users = np.arange(len(own["group"]))
    downloads = downloads_of(task.agreed, users, own, len(groups.sizes), groups.mixture)
    expect(all(one.user < len(users) for one in words.outliers), "it names users of no upload")
    odd = tuple(Outlier(one.user, one.kind, one.column, one.factor) for one in words.outliers)
    return SiteDownload(groups, downloads, words.answers, words.late, distance, none, odd)
