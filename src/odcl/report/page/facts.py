"""What a report shows, as values: gathered from a saved artifact, turned into pictures and JSON.

Users are in the order of the page. Arrays go into the page as numbers of 32 bits: seven digits,
and no more than four are ever shown.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints

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
    labels: Ints | None  # (n,), colours as in the groups chosen where they overlap; -1 not known


@dataclass(frozen=True, eq=False)
class Options:
    """What was weighed."""

    measure: str
    about: str
    options: Sequence[Option]
    chosen: int | None


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
    anonymous: bool = False
    notes: Mapping[str, str] = field(default_factory=dict)  # below a picture, by its name

    def to_json(self) -> dict[str, Any]:
        """What the page's script needs to know."""
        u, c = self.users, self.coefficients
        words: dict[str, Any] = {
            "anonymous": self.anonymous,
            "target": self.target,
            "word": u.word,
            "ids": list(u.ids),
            "group": packed(u.group, "int32"),
            "rows": packed(u.rows, "int32"),
            "sure": packed(u.sure),
            "number": packed(u.number, "int32"),
            "total": u.total,
            "groups": [list(group) for group in self.groups],
            "map": {
                "xy": packed(self.map.xy),
                "cov": None if self.map.cov is None else packed(self.map.cov),
                "frame": [round_number(v) for v in self.map.frame],
                "density": None,
            },
            "names": [c.names[j] for j in c.users],
            "unnamed": int((~c.extra).sum()) - len(c.users),
            "centers": packed(c.group[:, list(c.users)]),
            "centers_se": packed(c.group_se[:, list(c.users)]),
            "user": packed(c.user),
            "user_se": packed(c.user_se),
            "own": packed(c.own),
            "own_se": packed(c.own_se),
            "images": None if self.images is None else list(self.images.users),
            "gains": None,
            "options": None,
            "held": None,
            "more": None,
        }
        if self.map.density is not None:
            nx = self.map.density.shape[1]
            words["map"]["density"] = {"nx": nx, "counts": packed(self.map.density, "int32")}
        if self.gains is not None:
            g = self.gains
            words["gains"] = {
                "metric": g.metric,
                "larger": g.larger,
                "own": packed(g.own),
                "ours": packed(g.ours),
            }
        if self.options is not None:
            words["options"] = {
                "chosen": self.options.chosen,
                "list": [
                    {
                        "groups": one.groups,
                        "words": one.words,
                        "labels": None if one.labels is None else _packed_labels(one.labels),
                    }
                    for one in self.options.options
                ],
            }
        if self.held is not None:
            h = self.held
            words["held"] = {
                "start": packed(h.start, "int32"),
                "seen": packed(h.seen),
                "own": packed(h.own),
                "ours": packed(h.ours),
                "classes": None if h.classes is None else list(h.classes),
            }
        if self.more is not None:
            later = [i for i, times in enumerate(self.more.times) if times >= 1]
            words["more"] = {
                "times": [self.more.times[i] for i in later],
                "width": packed(self.more.width[:, later]),
                "wrong": packed(self.more.wrong[:, later]),
                "weight": packed(self.more.weight[:, later]) if self.more.weight.any() else None,
            }
        return words


def _packed_labels(labels: Ints) -> dict[str, str]:
    """Groups as numbers of 8 or 16 bits, whichever they need."""
    size = "int8" if labels.max(initial=0) < 128 else "int16"
    return {size: packed(labels, size)}


def packed(values: Array, dtype: str = "float32") -> str:
    """An array as Base64 of little-endian numbers, row by row."""
    with np.errstate(over="ignore"):
        small = np.ascontiguousarray(values, dtype=np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(small.tobytes()).decode("ascii")


def round_number(value: float, digits: int = 6) -> float:
    """A number that takes little room in JSON."""
    return float(f"{float(value):.{digits}g}")
