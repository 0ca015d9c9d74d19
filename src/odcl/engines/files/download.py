"""One file back: all that the last step of a site's own users needs, and no other site's name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.artifact.arrays import ArraySpec, expect, is_size
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
from odcl.exchange.download import Downloads
from odcl.exchange.mixture import SPECS, mixture_from_arrays, mixture_to_arrays
from odcl.mixed.posterior import Download as Mixture

ENDING = ".download"
_MIXTURE = "mixture."
_WORDS = ("answers", "late", "rule", "reason", "diagnosis", "mixture")


@dataclass(frozen=True, eq=False)
class Groups:
    """What everybody is told of the groups."""

    sizes: Ints  # (n_groups,), users whose likeliest group it is
    sites: Ints  # (n_groups,), sites with at least half of their weight in it
    rule: str
    reason: str
    diagnosis: str
    mixture: Mixture | None = None  # of mixed groups

    @cached_property
    def parts(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """As words and arrays of a file."""
        words: dict[str, Any] = {
            "rule": self.rule,
            "reason": self.reason,
            "diagnosis": self.diagnosis,
            "mixture": None,
        }
        arrays = {"sizes": _plain(self.sizes), "sites": _plain(self.sites)}
        if self.mixture is not None:
            words["mixture"], mixed = mixture_to_arrays(self.mixture)
            arrays |= {_MIXTURE + name: array for name, array in mixed.items()}
        return words, arrays


@dataclass(frozen=True, eq=False)
class SiteDownload:
    """What a site receives."""

    groups: Groups
    downloads: Downloads  # of its users, in the order of its upload
    answers: str  # SHA-256 of the upload that it answers
    late: bool  # the site came after the round
    distance: Floats | None = None  # (n_users,), of late users: from their group, in noise units
    none_of_these: Bools | None = None  # (n_users,), of late users


# -- writing ---------------------------------------------------------------------------------------


def download_bytes(task: Task, site: str, given: SiteDownload, key: SigningKey | None) -> bytes:
    words, shared = given.groups.parts
    own = given.downloads.to_arrays()
    arrays = shared | {name: _plain(array) for name, array in own.items()}
    if given.distance is not None and given.none_of_these is not None:
        arrays |= {"distance": given.distance, "none_of_these": given.none_of_these}
    first = {"answers": given.answers, "late": given.late}
    return envelope_bytes("download", task, site, arrays, first | words, key=key)


def _plain(array: Array) -> Array:
    return array.astype(np.int64) if array.dtype.kind == "i" else array


# -- reading ---------------------------------------------------------------------------------------

_GROUPS = {
    "sizes": ArraySpec(("groups",), ("int64",)),
    "sites": ArraySpec(("groups",), ("int64",)),
    **{_MIXTURE + name: spec for name, spec in SPECS.items()},
}


def _specs(task: Task, mixed: bool, late: bool) -> dict[str, ArraySpec]:
    dim = task.dim
    own = {
        name: ArraySpec(
            shape,
            ("int64",) if name.startswith("group") else ("float64",),
            optional=True,
            finite=name != "dispersion",
        )
        for name, shape in Downloads.array_shapes("users", {"dim": dim}).items()
    }
    if late:
        own["distance"] = ArraySpec(("users",), finite=False)
        own["none_of_these"] = ArraySpec(("users",), ("bool",))
    return {**groups_specs(mixed), **own}


def groups_specs(mixed: bool) -> dict[str, ArraySpec]:
    """What the arrays of groups have to be."""
    return {k: spec for k, spec in _GROUPS.items() if mixed or not k.startswith(_MIXTURE)}


def groups_from_arrays(task: Task, words: Mapping[str, Any], arrays: Mapping[str, Array]) -> Groups:
    rule, reason, diagnosis = (words[name] for name in ("rule", "reason", "diagnosis"))
    texts = all(isinstance(t, str) and t.isprintable() for t in (rule, reason, diagnosis))
    expect(texts, "its words are no texts")
    mixture = None
    if words["mixture"] is not None:
        mixed = {name: arrays[_MIXTURE + name] for name in SPECS}
        mixture = mixture_from_arrays(words["mixture"], mixed, task.risk, len(task.columns))
        expect(len(mixture.centers) == len(arrays["sizes"]), "sizes of other groups")
    sizes, sites = arrays["sizes"], arrays["sites"]
    expect(len(sizes) > 0 and bool((sizes >= 0).all() and (sites >= 0).all()), "negative sizes")
    counts = sizes.astype(np.intp), sites.astype(np.intp)
    return Groups(*counts, rule, reason, diagnosis, mixture)


def read_download(
    task: Task, path: str | os.PathLike[str], site: str, answers: str
) -> SiteDownload:
    """The download of this site's upload; a ValueError names the file and what is wrong with it."""
    with naming_file(path):
        file = read_envelope(path, "download")
        file.check_task(task)
        if task.signed:
            file.check_signature(task.coordinator, "the coordinator")
    with naming_file(path), refusing():
        expect_site(file, site)
        given = _unpacked(task, file)
        if given.answers != answers:
            raise Refused("it answers another upload of this site than the one given")
        return given


def expect_site(file: Envelope, site: str) -> None:
    if file.site != site:
        raise Refused(f"it is for {file.site!r}, and the upload is of {site!r}")


def _unpacked(task: Task, file: Envelope) -> SiteDownload:
    words = file.words
    expect(tuple(words) == _WORDS and isinstance(words["late"], bool), "it has other words")
    expect(isinstance(words["answers"], str), "it does not say what it answers")
    mixed = task.resolved.clusterer.uses_terms
    expect((words["mixture"] is not None) == mixed, "its groups are not those of the card's method")
    arrays = file.arrays(_specs(task, mixed, words["late"]))
    groups = groups_from_arrays(task, words, arrays)
    own = {name: arrays[name] for name in arrays.keys() - _GROUPS.keys()}
    distance, none = own.pop("distance", None), own.pop("none_of_these", None)
    n = len(own["group"])
    downloads = Downloads.from_arrays(np.arange(n), own)
    downloads = _completed(downloads, task, groups.mixture)
    _check(downloads, len(groups.sizes))
    return SiteDownload(groups, downloads, words["answers"], words["late"], distance, none)


def _completed(downloads: Downloads, task: Task, mixture: Mixture | None) -> Downloads:
    """With what everybody knows: the last step, and the groups."""
    refit = "evidence" if mixture is not None else task.resolved.refit
    group = downloads.group.astype(np.intp)
    size = downloads.group_size.astype(np.intp)
    return replace(downloads, group=group, group_size=size, refit=refit, mixture=mixture)


def _check(downloads: Downloads, n_groups: int) -> None:
    inside = bool((downloads.group >= -1).all() and (downloads.group < n_groups).all())
    expect(inside and bool((downloads.group_size >= 0).all()), "a group that is not there")
    sure = downloads.probability
    expect(sure is None or bool(((sure >= 0) & (sure <= 1 + 1e-9)).all()), "no probabilities")
    expect(downloads.tau2 is None or is_size(downloads.tau2), "a spread that is none")
    phi = downloads.dispersion
    expect(phi is None or bool((phi >= 0).all()), "a negative noise")
