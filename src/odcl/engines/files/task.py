"""The task: what all sites have agreed on, once, before anything is computed.

``task.toml`` is the card that people read, edit and sign off. Its digest is in every file of the
task, so that nothing of another task, or of a card that was changed, is taken for one of this.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Floats
from odcl.artifact.arrays import MOST_CLASSES, json_bytes
from odcl.data.columns import MOST_KEYS
from odcl.data.federation import Federation
from odcl.data.scaling import Scaling
from odcl.data.source import task_of
from odcl.engines.files import card as cards
from odcl.engines.files.card import CardError, Entries, entry
from odcl.errors import show
from odcl.exchange.upload import Uploads
from odcl.files import atomic_path, read_regular
from odcl.local.fit import fit_users
from odcl.method import Method
from odcl.risk.losses import Multinomial, loss_from_json, loss_to_json
from odcl.risk.risk import Risk

FORMAT = 1
DTYPES = ("float64", "float32", "float16")
MISSING = ("error", "drop", "mean")
COORDINATOR = "coordinator"
SITE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
KEY = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Feature:
    """One column to predict from: a number with its public scaling, or a category."""

    name: str
    levels: tuple[Any, ...] | None = None  # of a category, the reference first
    shift: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.levels is not None and _are_keys(self.levels, 1):
            first, *others = self.levels
            object.__setattr__(self, "levels", (first, *sorted(others)))

    @property
    def width(self) -> int:
        """Design columns that it takes."""
        return 1 if self.levels is None else len(self.levels) - 1


@dataclass(frozen=True)
class Task:
    """One round of one federation: columns, risk, method, what may leave, limits and keys."""

    name: str
    features: tuple[Feature, ...]
    target: str
    risk: Risk = field(default_factory=lambda: Risk("squared", 0.0, True))
    classes: tuple[Any, ...] | None = None  # of the target, in order; None: it is a number
    method: Method = field(default_factory=Method)
    round: int = 1
    missing: str = "error"  # rows that lack a value: stop, leave out, or fill in the shift
    short_terms: bool = False  # may terms of users with fewer rows than parameters leave?
    smallest_cell: int = 5  # a level or class seen fewer times at a user is withheld
    minimum_rows: int = 1  # users with fewer rows send nothing
    minimum_group: int = 3  # distinct sites that a group needs
    dtype: str = "float64"  # of matrices in uploads
    coordinator: tuple[str, ...] = ()  # public keys
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # public keys

    def __post_init__(self) -> None:
        _check(self)

    # -- what follows --------------------------------------------------------------------------

    @property
    def signed(self) -> bool:
        """Does the card ask for signatures?"""
        return bool(self.coordinator or self.sites)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the design columns."""
        names: list[str] = []
        for one in self.features:
            levels = one.levels
            names += [one.name] if levels is None else [f"{one.name}={v}" for v in levels[1:]]
        return tuple(names)

    @property
    def dim(self) -> int:
        """How many numbers a model has."""
        return self.risk.dim(len(self.columns))

    @property
    def kind(self) -> str:
        """What the target is: "regression", "classification" or "count"."""
        return task_of(self.risk.loss.name)

    @cached_property
    def resolved(self) -> Method:
        """The method as it will be, for this risk and size of models."""
        return self.method.resolved(self.risk, self.dim)

    @cached_property
    def scaling(self) -> Scaling:
        """From the table's units to those that models are fitted in."""
        shift = [x for one in self.features for x in [one.shift] * one.width]
        scale = [x for one in self.features for x in [one.scale] * one.width]
        p = len(shift)
        return Scaling(np.array(shift), np.array(scale), np.arange(p), p)

    @cached_property
    def leaves(self) -> dict[str, str]:
        """The fields that leave a user, each with what it tells."""
        parts = Uploads.parts()
        return {name: parts[name].tells for name in self.uploads_of(probe(self)).present}

    def uploads_of(self, federation: Federation, progress: Any = None) -> Uploads:
        """Step 1 of Algorithm 1 for a site's users, whose rows are scaled."""
        method = self.resolved
        local = fit_users(
            federation,
            self.risk,
            method.sends,
            terms=method.clusterer.uses_terms,
            progress=progress,
        )
        return local.uploads

    # -- the digest ----------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that is agreed on. Keys are not in it: they may be replaced."""
        return hashlib.sha256(json_bytes(_agreed(self))).hexdigest()

    @property
    def stamp(self) -> dict[str, Any]:
        """What files of the task say of it."""
        return {"name": self.name, "round": self.round, "sha256": self.digest}

    # -- the card ------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Task:
        """Read a card; a ValueError names it, and what is wrong with which entry."""
        content = read_regular(path, most=cards.MOST_BYTES)
        try:
            return cls.from_toml(content)
        except CardError as error:
            raise ValueError(f"{path} is not a task card that can be used: {error}.") from None

    @classmethod
    def from_toml(cls, content: bytes) -> Task:
        try:
            return _task_of(cards.parse_card(content))
        except CardError:
            raise
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise CardError(str(error).rstrip(".")) from None

    def to_toml(self) -> str:
        """The card in its fixed layout, with what each entry means."""
        return "\n".join(_lines(self)) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the card: whole or not at all."""
        with atomic_path(path) as place:
            place.write_text(self.to_toml(), encoding="utf-8")

    def with_keys(self, site: str, *keys: str) -> Task:
        """The same card with more public keys of a site, or of the coordinator."""
        if site == COORDINATOR:
            return replace(self, coordinator=tuple(dict.fromkeys([*self.coordinator, *keys])))
        own = tuple(dict.fromkeys([*self.sites.get(site, ()), *keys]))
        return replace(self, sites={**self.sites, site: own})


def check_site(site: Any) -> str:
    """Refuse a name that could lead out of a folder or be mistaken for another."""
    if not isinstance(site, str) or not SITE.fullmatch(site):
        raise ValueError(
            f"{show(site)} cannot be the name of a site: use letters, digits, - and _, up to 64 of "
            "them, a letter or digit first."
        )
    if site == COORDINATOR:
        raise ValueError(f"{site!r} is the coordinator's name: give the site another one.")
    return site


# -- what a task must be -----------------------------------------------------------------------


def _check(task: Task) -> None:
    names = [one.name for one in task.features]
    if not names:
        raise CardError("no feature is named, and a model needs at least one")
    for name in (task.name, task.target, *names):
        if not cards.is_text(name):
            raise CardError(f"{show(name)} is no name")
    double = next((n for n in names if names.count(n) > 1 or n == task.target), None)
    if double is not None:
        raise CardError(f"column {double!r} stands in it twice")
    for one in task.features:
        _check_feature(one, task.risk.intercept)
    if len(set(task.columns)) < len(task.columns) or not task.columns:
        raise CardError("two design columns have one name (a level and a column), or there is none")
    _check_classes(task)
    if task.missing not in MISSING or task.dtype not in DTYPES:
        raise CardError(f"missing is one of {', '.join(MISSING)}, dtype of {', '.join(DTYPES)}")
    for name in ("round", "smallest_cell", "minimum_rows", "minimum_group"):
        if not cards.is_whole(getattr(task, name)) or getattr(task, name) < 1:
            raise CardError(f"{name} is {getattr(task, name)!r}, and not a whole number from 1 on")
    for site, own in {COORDINATOR: task.coordinator, **task.sites}.items():
        if site != COORDINATOR:
            check_site(site)
        if not all(isinstance(key, str) and KEY.fullmatch(key) for key in own):
            raise CardError(f"a key of {site!r} is not 64 hexadecimal digits, as `site keys` wrote")
    if task.sites and not task.coordinator:
        raise CardError(
            "sites have keys and the coordinator has none: downloads must be signed too"
        )
    folded = [site.casefold() for site in task.sites]
    if len(set(folded)) < len(folded):
        raise CardError("two sites differ in capital letters only: rename one")


def _check_feature(one: Feature, intercept: bool) -> None:
    if not (cards.is_number(one.shift) and cards.is_number(one.scale) and one.scale > 1e-300):
        raise CardError(f"feature {one.name!r} needs a finite shift and a scale above 0")
    if one.levels is not None:
        if not _are_keys(one.levels, 2):
            raise CardError(f"the levels of {one.name!r} are not two or more different values")
        if (one.shift, one.scale) != (0, 1):
            raise CardError(f"{one.name!r} is a category, and has no shift or scale")
    if one.shift != 0 and not intercept:
        raise CardError(
            f"{one.name!r} is shifted, and without an intercept nothing makes up for it"
        )


def _check_classes(task: Task) -> None:
    n = None if task.classes is None else len(task.classes)
    if task.kind != "classification" and n is None:
        return
    if task.kind != "classification":
        raise CardError(f"the target has classes, and the {task.risk.loss.name} loss takes numbers")
    if n is None or not _are_keys(task.classes, 2) or n > MOST_CLASSES:
        raise CardError("the target's classes are not listed: classes = [...], two or more")
    if list(task.classes or ()) != sorted(task.classes or ()):
        raise CardError(f"the classes are not in order: write {sorted(task.classes or ())}")
    wanted = task.risk.loss.n_classes if isinstance(task.risk.loss, Multinomial) else 2
    if n != wanted:
        raise CardError(
            f"the {task.risk.loss.name} loss is for {wanted} classes, and {n} are listed"
        )


def _are_keys(values: Any, least: int) -> bool:
    if not isinstance(values, tuple) or not least <= len(values) <= MOST_KEYS:
        return False
    types = {type(value) for value in values}
    if not any(types <= kinds for kinds in ({str}, {bool}, {int, float})):
        return False
    plain = all(cards.is_text(v) if isinstance(v, str) else abs(v) < 2**53 for v in values)
    return plain and len(set(values)) == len(values)


def probe(task: Task) -> Federation:
    """One user with rows enough, for which fields leave does not depend on the rows."""
    n, p = task.dim + 3, len(task.columns)
    X: Floats = np.random.default_rng(0).normal(size=(n, p))
    y = np.arange(n) % (1 if task.classes is None else len(task.classes))
    return Federation(X, y.astype(np.float64), np.array([0, n]), np.zeros(1, dtype=int))


def _agreed(task: Task) -> dict[str, Any]:
    """All but the keys, as JSON."""
    plain = ("name", "target", "round", "missing", "short_terms", "smallest_cell", "minimum_rows")
    return {
        "format": FORMAT,
        **{name: getattr(task, name) for name in (*plain, "minimum_group", "dtype")},
        "features": [
            [one.name, None if one.levels is None else list(one.levels), one.shift, one.scale]
            for one in task.features
        ],
        "classes": None if task.classes is None else list(task.classes),
        "risk": task.risk.to_json(),
        "method": task.method.to_json(),
    }


# -- from a card -------------------------------------------------------------------------------


def _task_of(values: dict[str, Any]) -> Task:
    top = Entries(values, "")
    form = top.take("format", cards.is_whole, f"the format of the card, {FORMAT}")
    if form != FORMAT:
        newer = "newer" if form > FORMAT else "other"
        raise CardError(
            f"it has format {form}, and this odcl reads {FORMAT}: use a {newer} version"
        )
    name, number = top.text("name"), top.count("round", 1, 1)
    target = Entries(top.take("target", _is_table, "the table of the target"), "target")
    column, classes = target.text("column"), target.take("classes", _is_list, "a list", None)
    target.done()
    listed = top.take("feature", _is_list, "one [[feature]] after the other")
    features = tuple(_feature_of(one) for one in listed)
    risk = _risk_of(Entries(top.take("risk", _is_table, "a table"), "risk"), classes)
    method = _method_of(Entries(top.take("method", _is_table, "a table", {}), "method"))
    limits = Entries(top.take("limits", _is_table, "a table", {}), "limits")
    taken = {
        "missing": limits.one_of("missing", MISSING, "error"),
        "short_terms": limits.truth("short_terms", False),
        "dtype": limits.one_of("dtype", DTYPES, "float64"),
        "smallest_cell": limits.count("smallest_cell", 1, 5),
        "minimum_rows": limits.count("minimum_rows", 1, 1),
        "minimum_group": limits.count("minimum_group", 1, 3),
    }
    limits.done()
    allowed = Entries(top.take("leaves", _is_table, "a table"), "leaves").rest()
    keys = _keys_of(top.take("keys", _is_table, "a table", {}))
    top.done()
    listed_classes = None if classes is None else tuple(classes)
    task = Task(name, features, column, risk, listed_classes, method, number, **taken, **keys)
    _check_leaves(task, allowed)
    return task


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 10**5


def _feature_of(values: Any) -> Feature:
    one = Entries(values, "feature")
    name, kind = one.text("name"), one.one_of("type", ("number", "category"), "number")
    if kind == "category":
        feature = Feature(name, tuple(one.take("levels", _is_list, "a list of the levels")))
    else:
        feature = Feature(
            name, None, float(one.number("shift", 0.0)), float(one.number("scale", 1.0))
        )
    one.done()
    return feature


def _risk_of(table: Entries, classes: list[Any] | None) -> Risk:
    name, l2 = table.text("loss"), table.number("l2", 0.0)
    intercept = table.truth("intercept", True)
    words = {"name": name}
    if name == "huber":
        words["delta"] = table.number("delta")
    if name == "multinomial":
        words["n_classes"] = len(classes or ())
    table.done()
    return Risk(loss_from_json(words), l2, intercept)


def _method_of(table: Entries) -> Method:
    known = {f.name for f in fields(Method)}
    words = table.rest()
    for name in words:
        if name not in known:
            raise CardError(f"{table.named(name)} is not known to a method")
    if "clusterer" in words:
        words["clusterer"] = cards.clusterer_of(words["clusterer"])
    return Method(**words)


def _keys_of(values: Any) -> dict[str, Any]:
    table = Entries(values, "keys")
    own = _key_list(table.take("coordinator", _is_list, "a list of keys", []))
    sites = Entries(table.take("sites", _is_table, "a table", {}), "keys.sites").rest()
    table.done()
    for site, listed in sites.items():
        if not _is_list(listed) or not listed:
            raise CardError(f"the keys of {site!r} are {show(listed)}, and no list of keys")
    return {"coordinator": own, "sites": {site: _key_list(v) for site, v in sites.items()}}


def _key_list(values: list[Any]) -> tuple[str, ...]:
    return tuple(value.lower() if isinstance(value, str) else value for value in values)


def _check_leaves(task: Task, allowed: dict[str, Any]) -> None:
    """What may leave is what the method needs, neither more nor less, and all agree to it."""
    parts = Uploads.parts()
    for name, value in allowed.items():
        if name not in parts:
            raise CardError(f"{name!r} in [leaves] is no field of an upload")
        if not isinstance(value, bool):
            raise CardError(f"{name!r} in [leaves] is {show(value)}, and not true or false")
    needed = task.leaves
    for name in needed:
        if not allowed.get(name, False):
            raise CardError(f"the method needs {name!r}, which [leaves] does not allow")
    more = [name for name, value in allowed.items() if value and name not in needed]
    if more:
        raise CardError(f"{more[0]!r} in [leaves] is allowed, and the method does not need it")


# -- to a card ---------------------------------------------------------------------------------


def _lines(task: Task) -> list[str]:
    return [
        "# Task card of a federation by file: agreed by all sites, once, before anything leaves.",
        "# Every file of the task carries the digest of this card (all of it but the keys), and a",
        "# file of another card is refused. Change something, and it is another task.",
        "",
        entry("format", FORMAT),
        entry("name", task.name),
        entry("round", task.round, "a new round of the same task has the next number"),
        "",
        "[target]",
        entry("column", task.target),
        *([] if task.classes is None else [entry("classes", task.classes)]),
        *(line for one in task.features for line in _feature_lines(one)),
        "",
        "[risk]  # what every user minimises",
        *_risk_lines(task.risk),
        "",
        "[method]  # how groups are found, combined and used",
        *_method_lines(task.method),
        "",
        "[leaves]  # what leaves a site, for each of its users; rows never leave",
        *(line for name, tells in task.leaves.items() for line in ("# " + tells, f"{name} = true")),
        "",
        "[limits]",
        *_limit_lines(task),
        "",
        *_key_lines(task),
    ]


def _feature_lines(one: Feature) -> list[str]:
    head = ["", "[[feature]]", entry("name", one.name)]
    if one.levels is not None:
        levels = entry("levels", one.levels, "the first is the reference")
        return [*head, entry("type", "category"), levels]
    scaling = [entry("shift", one.shift), entry("scale", one.scale)]
    return [*head, entry("type", "number"), *scaling]


def _risk_lines(risk: Risk) -> list[str]:
    words = loss_to_json(risk.loss)
    more = [entry("delta", words["delta"])] if "delta" in words else []
    return [
        entry("loss", words["name"]),
        *more,
        entry("l2", risk.l2),
        entry("intercept", risk.intercept),
    ]


def _method_lines(method: Method) -> list[str]:
    lines = []
    for one in fields(Method):
        value = getattr(method, one.name)
        value = cards.clusterer_word(value) if one.name == "clusterer" else value
        lines.append(entry(one.name, "none" if value is None else value))
    return lines


def _limit_lines(task: Task) -> list[str]:
    return [
        entry("missing", task.missing, "rows that lack a value: error, drop, or mean (the shift)"),
        entry(
            "short_terms", task.short_terms, "may terms of users with fewer rows than parameters"
        ),
        "#                              leave? They give away the span of those rows.",
        entry(
            "smallest_cell", task.smallest_cell, "rows of a level or class seen fewer times at a"
        ),
        "#                              user are withheld",
        entry("minimum_rows", task.minimum_rows, "users with fewer rows send nothing"),
        entry("minimum_group", task.minimum_group, "distinct sites that a group needs"),
        entry("dtype", task.dtype, "of the triangles in an upload: float64, float32 or float16"),
    ]


def _key_lines(task: Task) -> list[str]:
    if not task.signed:
        return [
            "# No keys: files are not signed, and whoever carries them can change them. For",
            "# signatures: `odcl site keys` at every site, then `odcl task keys` here.",
        ]
    return [
        "[keys]  # public keys, as `odcl site keys` wrote them; two while one is being replaced",
        entry("coordinator", task.coordinator),
        "",
        "[keys.sites]",
        *(entry(site, own) for site, own in sorted(task.sites.items())),
    ]


def read_card(path: str | os.PathLike[str]) -> tuple[Task, Path]:
    """The task, and where its card lies."""
    return Task.read(path), Path(path)
