"""Uploads that arrive, as arrays of float64, everything checked.

Files and Flower nodes send the same arrays, and are believed no more than these checks allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from odcl._typing import Array, Floats
from odcl.artifact.arrays import ArraySpec, expect, is_count
from odcl.data.federation import Federation, as_ids
from odcl.errors import ended, printable
from odcl.exchange.upload import Uploads
from odcl.local.fit import LocalModels, fit_users
from odcl.local.terms import n_classes
from odcl.method import Method
from odcl.risk.risk import Risk

MOST_ROWS = 10**12  # of a user
MOST_USERS = 10**7  # of a site or node
MOST_SIZE = 1e60  # of a number: its fourth power is still one
# Eigenvalues that rounding makes of zero, as a share of the largest.
_ROUNDING = 1e-9
_MAY_BE_INFINITE = ("dispersion", "inverse_trace")


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

    def fit(self, rows: Federation, progress: Any = None) -> LocalModels:
        """Step 1 of Algorithm 1 for some users."""
        method = self.method
        return fit_users(
            rows,
            self.risk,
            method.sends,
            terms=method.clusterer.uses_terms,
            short_terms=method.short_terms,
            progress=progress,
        )

    @cached_property
    def probe(self) -> Uploads:
        """The upload of a user with rows enough: which fields are sent does not depend on rows."""
        n = self.dim + 3
        X: Floats = np.random.default_rng(0).normal(size=(n, self.n_features))
        y = np.arange(n) % n_classes(self.risk)
        rows = Federation(X, y.astype(np.float64), np.array([0, n]), np.zeros(1, dtype=int))
        return self.fit(rows).uploads

    @cached_property
    def specs(self) -> dict[str, ArraySpec]:
        """What the arrays of an upload have to be."""
        return {
            name: ArraySpec(
                ("users", *array.shape[1:]),
                (array.dtype.name,),
                finite=name not in _MAY_BE_INFINITE,
            )
            for name, array in self.probe.to_arrays().items()
        }


def expect_users(n: Any) -> None:
    """Refuse a number of users that is none."""
    expect(is_count(n) and n <= MOST_USERS, f"it says that it has {n!r} users")


def from_wire(agreed: Agreed, ids: Array, arrays: Mapping[str, Array]) -> Uploads:
    """The uploads of these users; types and shapes of ``arrays`` are those of ``agreed.specs``.

    What would spoil other users' models is a ValueError.
    """
    uploads = replace(Uploads.from_arrays(ids, arrays), risk=agreed.risk)
    _check(uploads, agreed.minimum_rows)
    return uploads


def _check(uploads: Uploads, least: int) -> None:
    """What no honest fit can have given."""
    n = uploads.n_samples
    expect(bool(np.isfinite(n).all()), "a user has a number of rows that is not finite")
    for bad in n[(n < least) | (n > MOST_ROWS) | (n != np.floor(n))].tolist():
        raise ValueError(f"a user has {bad:g} rows, and {least} to {MOST_ROWS:.0e} are possible")
    for name, values in uploads.present.items():
        size = np.abs(values[np.isfinite(values)])
        expect(bool((size < MOST_SIZE).all()), f"{name} holds numbers beyond {MOST_SIZE:g}")
        if name in _MAY_BE_INFINITE:
            expect(bool((values >= 0).all()), f"{name} is negative or no number")
    if len(uploads):
        uploads.check()
    for name, matrix in uploads.present.items():
        part = Uploads.parts()[name]
        if part.matrix and not part.triangular:
            values = np.linalg.eigvalsh(matrix)
            definite = values[..., 0] >= -_ROUNDING * np.maximum(values[..., -1], 0.0)
            expect(bool(definite.all()), f"{name} is not positive semidefinite")


def joined(parts: Sequence[Uploads]) -> Uploads:
    """Uploads of the same fields as one message, one after the other."""
    fields: dict[str, Any] = {
        name: np.concatenate([part.present[name] for part in parts]) for name in parts[0].present
    }
    users = as_ids([user for part in parts for user in part.users.tolist()])
    return replace(parts[0], users=users, **fields)


# How far an upload made of the same rows again may be from the one that was sent: another machine
# rounds differently.
SAME = 1e-6


def difference(again: Uploads, sent: Uploads) -> str:
    """The field in which two uploads of the same users differ by more than rounding; "": none."""
    for name in again.present if len(again) else ():
        values, there = (_unsigned(name, one.present[name]) for one in (again, sent))
        finite = np.isfinite(values)
        gap = np.abs(values[finite] - there[finite]).max(initial=0.0)
        size = np.abs(values[finite]).max(initial=0.0)
        if not gap <= SAME * size or (finite != np.isfinite(there)).any():
            return name
    return ""


def _unsigned(name: str, values: Array) -> Array:
    """A field as it is whatever the order of rows: that of a triangle decides on its signs."""
    if not Uploads.parts()[name].triangular:
        return values
    return np.swapaxes(values, -1, -2) @ values


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
    """Nodes of Flower's that are not taken, by number, for people."""
    return tuple(SetAside(f"node {node}", reason) for node, reason in sorted(why.items()))


@contextmanager
def naming_set_aside(set_aside: Iterable[SetAside]) -> Iterator[None]:
    """Where too little is left for a round, its refusal says what was set aside, and why."""
    try:
        yield
    except ValueError as error:
        for one in set_aside:
            error.add_note(str(one))
        raise
