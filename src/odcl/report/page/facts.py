"""What a report shows, as values: gathered from a fit, turned into pictures and JSON.

Users are in the order of the page. Arrays go into the page as numbers of 32 bits: seven digits,
and no more than four are ever shown.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.scaling import Scaling
from odcl.local.predict import by_class
from odcl.mixed.differences import LEVEL
from odcl.risk.risk import Risk

Row = Sequence[str]


@dataclass(frozen=True)
class Table:
    """A table of a section: the first column names the rows."""

    header: Row
    rows: Sequence[Row]
    left: Sequence[int] = ()  # columns of words, beside the first
    strong: int | None = None  # the row that is ours


@dataclass(frozen=True)
class Section:
    """Words and tables under a title."""

    name: str  # its place in the page, and in links to it
    title: str
    words: Sequence[str] = ()
    tables: Sequence[Table] = ()
    lists: Sequence[str] = ()
    code: str = ""  # a command to copy


@dataclass(frozen=True, eq=False)
class Users:
    """Who is on the page: all users, or those that fit in it."""

    word: str  # the column that names them
    ids: Sequence[str]
    group: Ints  # (n,), -1: in none
    rows: Ints
    sure: Floats  # NaN where the method does not tell
    number: Ints  # (n,), what they are called on anonymous pages
    total: int  # of the fit
    listed: str = "assignment.csv"  # where in the run all of them are

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class UserMap:
    """Every user as a point, in two directions that show the groups."""

    xy: Floats  # (n, 2)
    cov: Floats | None  # (n, 3): variances along and across, and their covariance
    centers: Floats  # (K, 2)
    frame: tuple[float, float, float, float]  # left, right, bottom, top
    axes: tuple[str, str]
    about: str  # what a point is, in a sentence
    outside: int  # users beyond the frame
    density: Ints | None = None  # (ny, nx): users of each cell, where there are too many for points


@dataclass(frozen=True, eq=False)
class Gains:
    """The score of every user on its held-out rows, alone and with odcl; NaN: none held out."""

    metric: str
    larger: bool  # is better
    own: Floats  # (n,)
    ours: Floats  # (n,)
    words: str  # who gained

    @property
    def gain(self) -> Floats:
        return self.ours - self.own if self.larger else self.own - self.ours


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Models in the table's units, with standard errors; NaN where they are not known."""

    names: Sequence[str]
    group: Floats  # (K, p)
    group_se: Floats  # (K, p)
    apart: Floats  # (p,), how far groups differ, in units of the target
    extra: Bools  # (p,), said elsewhere already: in tables, not in pictures
    users: Sequence[int]  # coefficients that the page has of every user
    user: Floats  # (n, len(users))
    user_se: Floats
    own: Floats
    own_se: Floats
    about: str

    @property
    def sure(self) -> bool:
        """Is anything known of how surely groups' models are known?"""
        return bool(np.isfinite(self.group_se).any())


@dataclass(frozen=True, eq=False)
class CurveFacts:
    """What a column that acts in a curve adds to predictions, relative to its average."""

    name: str
    x: Floats  # (points,)
    common: Floats  # (points,), of what all have in common
    low: Floats  # (points,), of its 90 % band
    high: Floats
    rows: Floats  # (points, b): times a user's numbers its curve
    own: Floats  # (n, b)
    alike: bool  # is it the same for all?
    adds_to: str = "the prediction"  # or its log-odds, its log-rate


@dataclass(frozen=True)
class PixelImages:
    """Addresses of pictures, where columns are pixels: of the first groups, of users (or none)."""

    groups: Sequence[str]
    users: Sequence[str]
    about: str


@dataclass(frozen=True, eq=False)
class Option:
    """One alternative: how many groups, of what kind, and who would be where."""

    groups: int
    words: str
    score: float
    labels: Array | None  # (n,) of 16 bits, as the chosen groups where they overlap; -1 not known


@dataclass(frozen=True, eq=False)
class Options:
    """What was weighed."""

    measure: str
    about: str
    options: Sequence[Option]
    chosen: int | None

    def to_json(self) -> dict[str, Any]:
        """What the page's script needs to know."""
        told = [for_script(one, "groups words labels") for one in self.options]
        return {"chosen": self.chosen, "list": told}


@dataclass(frozen=True, eq=False)
class Held:
    """Held-out rows: those of user i are start[i] to start[i + 1]."""

    start: Ints  # (n + 1,)
    seen: Floats
    own: Floats
    ours: Floats
    classes: Sequence[str] | None  # of codes


@dataclass(frozen=True, eq=False)
class MoreRows:
    """What so many times as many rows would change, by user."""

    times: Sequence[float]
    width: Floats  # (n, len(times)), of the intervals of its coefficients, now 1
    wrong: Floats  # (n, len(times)), chance that such rows put it in a wrong group
    weight: Floats  # (n, len(times)), of its own rows in its model, from 0 to 1

    def to_json(self) -> dict[str, Any]:
        """What the page's script needs to know: more rows than now."""
        later = [i for i, times in enumerate(self.times) if times >= 1]
        parts = {name: packed(getattr(self, name)[:, later]) for name in ("width", "wrong")}
        weight = packed(self.weight[:, later]) if self.weight.any() else None
        return {"times": [self.times[i] for i in later], **parts, "weight": weight}


@dataclass(frozen=True, eq=False)
class FitFacts:
    """The whole page of a fit."""

    title: str
    verdict: Sequence[str]  # sentences, the first is the headline
    target: str
    users: Users
    groups: Sequence[tuple[int, int]]  # users and rows of each, of all of the fit
    map: UserMap
    coefficients: Coefficients
    sections: Sequence[Section]
    gains: Gains | None = None
    options: Options | None = None
    held: Held | None = None
    more: MoreRows | None = None
    images: PixelImages | None = None
    curves: Sequence[CurveFacts] = ()
    shares: Sequence[tuple[str, float]] = ()  # of the predictions' variance
    anonymous: bool = False
    note: str = ""  # on users who are not on the page

    def to_json(self) -> dict[str, Any]:
        """What the page's script needs to know."""
        u, c, density = self.users, self.coefficients, self.map.density
        some, nx = list(c.users), 0 if density is None else density.shape[1]
        return {
            "anonymous": self.anonymous,
            "target": self.target,
            **for_script(u, "word ids group sure number total"),
            "rows": packed(u.rows, "int32"),
            "groups": for_script(self.groups),
            "map": {
                **for_script(self.map, "xy cov frame"),
                "density": None if density is None else {"nx": nx, "counts": for_script(density)},
            },
            "names": [c.names[j] for j in some],
            "unnamed": int((~c.extra).sum()) - len(some),
            "centers": packed(c.group[:, some]),
            "centers_se": packed(c.group_se[:, some]),
            **for_script(c, "user user_se own own_se"),
            "images": None if self.images is None else list(self.images.users),
            "curves": [for_script(curve, "name x rows own") for curve in self.curves],
            "gains": for_script(self.gains, "metric larger own ours"),
            "options": None if self.options is None else self.options.to_json(),
            "held": for_script(self.held, "start seen own ours classes"),
            "more": None if self.more is None else self.more.to_json(),
        }


def packed(values: Array, dtype: str = "float32") -> str:
    """An array as Base64 of little-endian numbers, row by row."""
    with np.errstate(over="ignore"):
        small = np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(small.tobytes()).decode("ascii")


def for_script(value: Any, names: str = "") -> Any:
    """A value as the page's script reads it: arrays packed, numbers short; or some of its fields.

    ``names`` are those of the fields; None stays None.
    """
    if names and value is not None:
        return {name: for_script(getattr(value, name)) for name in names.split()}
    if isinstance(value, np.ndarray):
        whole = "int16" if value.dtype == np.int16 else "int32"
        return packed(value, whole if value.dtype.kind == "i" else "float32")
    if isinstance(value, list | tuple):
        return [for_script(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


# -- models in the table's units -------------------------------------------------------------------


CHUNK = 4096  # users whose matrices are in memory at one time


@dataclass(frozen=True, eq=False)
class TableUnits:
    """Names of a model's numbers in the table's units, and what takes a model there."""

    names: list[str]
    effect: Floats  # (p,): what a number is multiplied with to be in units of the target
    extra: Bools  # (p,): the intercept, where the level says the same
    matrix: sparse.csr_array  # (dim, p)

    @classmethod
    def of(
        cls,
        risk: Risk,
        scaling: Scaling,
        names: Sequence[str],
        classes: Sequence[str] = (),
        *,
        centered: bool,
        mean: Floats,
    ) -> TableUnits:
        """Features in use, the level at average features (``centered``), and the intercept.

        The level is what the model expects of a row with the features' averages, bends among them
        (``mean`` of all columns); the intercept, of one whose features are zero, which may be far
        from every row. Bends are no slopes, and have no names here; neither have periodic columns,
        which have no line.
        """
        n, inputs = len(scaling.used), risk.n_inputs(scaling.width)
        waves = [curve.of for curve in scaling.curves if curve.period is not None]
        lines = np.setdiff1d(np.arange(n), waves)
        rows = sparse.diags_array(1 / scaling.scale, shape=(n, inputs), format="csr")[lines]
        found, effect = [names[j] for j in lines], scaling.scale[lines].tolist()
        if risk.intercept:
            level, zero = np.zeros((2, inputs))
            level[-1] = zero[-1] = 1.0
            level[n:-1], zero[:n] = mean[n:], -scaling.shift / scaling.scale
            own = np.stack([level, zero] if centered else [zero])
            rows = sparse.vstack([rows, sparse.csr_array(own)])
            found += [*[LEVEL] * centered, "(intercept)"]
            effect += [1.0] * len(own)
        turn = by_class(risk)
        labels = [f" [{label}]" for label in classes] if len(turn) > 1 else [""]
        extra = np.zeros((len(found), len(labels)), dtype=np.bool_)
        extra[-1] = risk.intercept and centered
        return cls(
            [f"{name}{label}" for name in found for label in labels],
            np.repeat(np.array(effect), len(labels)),
            extra.reshape(-1),
            sparse.csr_array(sparse.kron(rows.T, sparse.csr_array(turn.T))),
        )

    def take(self, some: Ints) -> TableUnits:
        """Some of the numbers."""
        names, own = [self.names[j] for j in some], self.matrix[:, some]
        return TableUnits(names, self.effect[some], self.extra[some], own)

    def models(self, theta: Floats) -> Floats:
        """The numbers of models (n, dim), as (n, p)."""
        return np.asarray(theta @ self.matrix)

    def errors(self, cov: Floats) -> Floats:
        """Standard errors of models of these covariances, (n, dim, dim)."""
        J, variance = self.matrix.toarray(), np.empty((len(cov), len(self.names)))
        for at in range(0, len(cov), CHUNK):
            variance[at : at + CHUNK] = ((cov[at : at + CHUNK] @ J) * J).sum(axis=1)
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.where(variance >= 0, variance, np.nan))
