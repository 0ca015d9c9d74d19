"""Uploads and downloads on a wire: what was agreed on, arrays and back, and what is set aside.

They may come from anyone: engines that carry them, by file or over a network, write and read the
same arrays, and believe no more than these checks allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.artifact.arrays import ArraySpec, expect, is_count
from odcl.data.federation import Federation
from odcl.errors import ended, printable
from odcl.exchange.message import Downloads
from odcl.exchange.mixture import SPECS, mixture_from_arrays, mixture_to_arrays
from odcl.exchange.upload import Uploads, upload_sizes
from odcl.local.fit import LocalModels, fit_users
from odcl.local.terms import n_classes
from odcl.method import Method
from odcl.risk.risk import Risk, is_wide
from odcl.server.assign import Assignment
from odcl.wide.moments import FOLDS, GroupModels

MOST_ROWS = 10**12  # of a user
MOST_USERS = 10**7  # of a site or node
MOST_SIZE = 1e60  # of a number: its fourth power is still one
# Eigenvalues that rounding makes of zero, as a share of the largest.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Agreed:
    """What everyone agreed on before anything is sent: it says what an upload has to be."""

    risk: Risk
    method: Method  # resolved for the risk and the size of models
    n_features: int
    minimum_rows: int = 1  # of a user that sends something

    @property
    def dim(self) -> int:
        """How many numbers a model has."""
        return self.risk.dim(self.n_features)

    def fit(self, rows: Federation) -> LocalModels:
        """Step 1 of Algorithm 1 for some users."""
        method = self.method
        return fit_users(
            rows,
            self.risk,
            terms=method.clusterer.uses_terms,
            short_terms=method.short_terms,
            privacy=method.privacy,
        )

    @cached_property
    def probe(self) -> Uploads:
        """The upload of a user with rows enough: which fields are sent does not depend on rows."""
        wide = self.method.clusterer.uses_terms and is_wide(self.risk, self.n_features)
        n = 3 * n_classes(self.risk) if wide else self.dim + 3
        X: Floats = np.random.default_rng(0).normal(size=(n, self.n_features))
        y = np.arange(n) % n_classes(self.risk)
        rows = Federation(X, y.astype(np.float64), np.array([0, n]), np.zeros(1, dtype=int))
        return self.fit(rows).uploads

    def made_up(self, _: Any, n: int) -> dict[str, Array]:
        """Arrays that stand for ``n`` users who send nothing of their rows."""
        return self.probe.take(np.zeros(n, dtype=np.intp)).to_arrays()

    @cached_property
    def specs(self) -> dict[str, ArraySpec]:
        """What the arrays of an upload have to be."""
        specs = Uploads.specs(upload_sizes(self.risk, self.dim))
        return {name: replace(specs[name], optional=False) for name in self.probe.present}


def expect_users(n: Any) -> None:
    """Check that the user count is plausible."""
    expect(is_count(n) and n <= MOST_USERS, f"it says that it has {n!r} users")


def from_wire(agreed: Agreed, ids: Array, arrays: Mapping[str, Array]) -> Uploads:
    """The uploads in ``arrays``, whose types and shapes were checked against ``agreed.specs``.

    A ValueError refuses what would spoil other users' models.
    """
    uploads = replace(Uploads.from_arrays(ids, arrays), risk=agreed.risk)
    _check_uploads(uploads, agreed.minimum_rows)
    return uploads


def _check_uploads(uploads: Uploads, least: int) -> None:
    """Refuse what no honest fit gives."""
    n = uploads.n_samples
    expect(bool(np.isfinite(n).all()), "a user has a number of rows that is not finite")
    for bad in n[(n < least) | (n > MOST_ROWS) | (n != np.floor(n))].tolist():
        raise ValueError(f"a user has {bad:g} rows, and {least} to {MOST_ROWS:.0e} are possible")
    for name, values in uploads.present.items():
        size = float(np.abs(values[np.isfinite(values)]).max(initial=0.0))
        expect(size < MOST_SIZE, f"{name} holds numbers beyond {MOST_SIZE:g}")
    if len(uploads):
        uploads.check()
    for name, matrix in uploads.present.items():
        part = Uploads.parts()[name]
        if part.matrix and not (part.triangular or part.signed):
            values = np.linalg.eigvalsh(matrix)
            definite = values[..., 0] >= -_ROUNDING * np.maximum(values[..., -1], 0.0)
            expect(bool(definite.all()), f"{name} is not positive semidefinite")


# Relative difference up to which two uploads are of the same rows: machines round differently.
SAME = 1e-6
# Sums of rows that a hash of the rows chose: rounding may choose others.
DRAWN = {"scatter", "scatter_class", "thin_factor"}


def difference(again: Uploads, sent: Uploads) -> str:
    """The first field in which two uploads differ by more than rounding; "": none does."""
    for name in [name for name in again.present if name not in DRAWN] if len(again) else ():
        values, there = (_unsigned(name, one.present[name]) for one in (again, sent))
        finite = np.isfinite(values)
        gap = np.abs(values[finite] - there[finite]).max(initial=0.0)
        size = np.abs(values[finite]).max(initial=0.0)
        if not gap <= SAME * size or (finite != np.isfinite(there)).any():
            return name
    return ""


def _unsigned(name: str, values: Array) -> Array:
    """A field without the signs of a triangle, which the order of rows decides."""
    if not Uploads.parts()[name].triangular:
        return values
    return np.swapaxes(values, -1, -2) @ values


_MIXTURE = "mixture."

# -- downloads -------------------------------------------------------------------------------------


def mixture_parts(mixture: GroupModels | None) -> tuple[Any, dict[str, Array]]:
    """Mixed groups as words and arrays beside others; None and nothing where there are none."""
    if mixture is None:
        return None, {}
    words, arrays = mixture_to_arrays(mixture)
    return words, {_MIXTURE + name: array for name, array in arrays.items()}


def plain(array: Array) -> Array:
    """Whole numbers as every machine writes them."""
    return array.astype(np.int64) if array.dtype.kind == "i" else array


MIXTURE_SPECS = {_MIXTURE + name: spec for name, spec in SPECS.items()}


# What stands beside the downloads of users who came after the round.
LATE_SPECS = {
    "distance": ArraySpec(("users",), finite=False),
    "none_of_these": ArraySpec(("users",), ("bool",)),
}


def mixture_of(agreed: Agreed, words: Any, arrays: Mapping[str, Array]) -> GroupModels | None:
    """The mixed groups among words and arrays; None where the words are."""
    if words is None:
        return None
    mixed = {name: arrays[key] for name in SPECS if (key := _MIXTURE + name) in arrays}
    return mixture_from_arrays(words, mixed, agreed.risk, agreed.n_features)


def downloads_of(
    agreed: Agreed,
    users: Array,
    arrays: Mapping[str, Array],
    n_groups: int,
    mixture: GroupModels | None,
) -> Downloads:
    """Users' downloads with what everybody knows: the groups."""
    given = Downloads.from_arrays(users, arrays)
    group, size = given.group.astype(np.intp), given.group_size.astype(np.intp)
    given = replace(given, group=group, group_size=size, mixture=mixture)
    _check_downloads(given, n_groups)
    return given


def _check_downloads(downloads: Downloads, n_groups: int) -> None:
    inside = bool((downloads.group >= -1).all() and (downloads.group < n_groups).all())
    expect(
        inside and bool((downloads.group_size >= 0).all()), "a user is in a group that is not there"
    )
    sure = downloads.probability
    expect(
        sure is None or bool(((sure >= 0) & (sure <= 1 + 1e-9)).all()),
        "a probability is not between 0 and 1",
    )
    fold = downloads.fold
    expect(fold is None or bool(((fold >= 0) & (fold < FOLDS)).all()), "a fold is not there")


# -- users who come after the round ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LateUsers:
    """Users who came after the round: where each belongs, and what it receives."""

    found: list[Assignment]
    downloads: Downloads

    @classmethod
    def placed(cls, uploads: Uploads, mixture: GroupModels, sizes: Ints) -> LateUsers:
        """Users placed in mixed groups with ``sizes`` (n_groups,) users each."""
        from odcl.server.assign import place_mixed

        found = [place_mixed(one, mixture) for one in uploads]
        likeliest = np.array([int(one.probabilities.argmax()) for one in found], dtype=np.intp)
        models = np.array([one.theta for one in found]).reshape(len(found), uploads.dim)
        return cls.of(found, uploads, models, sizes[likeliest])

    @classmethod
    def of(
        cls, found: list[Assignment], uploads: Uploads, models: Floats, sizes: Ints
    ) -> LateUsers:
        """Users where they were placed, with the models and sizes of their groups."""
        labels = np.array([one.label for one in found], dtype=np.intp)
        sure = np.array([one.probability for one in found])
        told = None if np.isnan(sure).any() else sure
        return cls(found, Downloads(uploads.users, models, labels, sizes, told))

    @property
    def distance(self) -> Floats:
        """(n_users,), from the group in noise units: about 1 for a member."""
        return np.array([one.distance for one in self.found])

    @property
    def none_of_these(self) -> Bools:
        return np.array([one.none_of_these for one in self.found], dtype=bool)


# -- what is not taken -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SetAside:
    """A file or a node's reply that is not taken."""

    name: str
    reason: str

    def __post_init__(self) -> None:
        for name in ("name", "reason"):  # both may come from anyone
            object.__setattr__(self, name, printable(getattr(self, name)))

    def __str__(self) -> str:
        return ended(f"{self.name} is set aside: {self.reason}")


def nodes_aside(why: Mapping[int, str]) -> tuple[SetAside, ...]:
    """Flower's nodes that are set aside, by number."""
    return tuple(SetAside(f"node {node}", reason) for node, reason in sorted(why.items()))


@contextmanager
def naming_set_aside(set_aside: Iterable[SetAside]) -> Iterator[None]:
    """Add what was set aside, and why, to an error inside."""
    try:
        yield
    except ValueError as error:
        for one in set_aside:
            error.add_note(str(one))
        raise
