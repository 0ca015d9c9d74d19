"""The task: what all sites have agreed on, once, before anything is computed.

``task.toml`` is the card that people read, edit and sign off. Its digest is in every file of the
task, so that nothing of another task, or of a card that was changed, is taken for one of this.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from odcl.artifact.arrays import json_bytes
from odcl.data.design import OTHER, are_keys
from odcl.data.federation import Federation
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.data.source import task_of
from odcl.engines.arrivals import Agreed
from odcl.engines.files import toml
from odcl.engines.files.names import COORDINATOR, KEY, check_site
from odcl.engines.files.toml import CardError
from odcl.errors import ended, listing, show
from odcl.exchange.upload import Uploads
from odcl.files import atomic_path, read_regular
from odcl.method import Method
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Factor, Risk

FORMAT = 1
MOST_PARAMETERS = 1_000  # a matrix of so many squared is what a site may have to send
MISSING = ("error", "drop", "mean")
# Terms of users with fewer rows than parameters stay, and a group needs three sites, until a card
# says otherwise.
CAREFUL = Method(short_terms=False, smallest_group=3, standardize=False)


@dataclass(frozen=True)
class Feature:
    """One column to predict from: a number with its public scaling, or a category."""

    name: str
    levels: tuple[Any, ...] | None = None  # of a category, the reference first
    shift: float = 0.0
    scale: float = 1.0
    other: bool = False  # a category: levels that are not listed count as "other", which is one

    def __post_init__(self) -> None:
        if self.levels is not None and _are_keys(self.levels, 1):
            levels = dict.fromkeys((*map(str, self.levels), OTHER) if self.other else self.levels)
            first, *others = levels
            object.__setattr__(self, "levels", (first, *sorted(others)))
        for name in ("shift", "scale"):  # 60 and 60.0 are one number on the card, and one digest
            if type(getattr(self, name)) is int:
                object.__setattr__(self, name, float(getattr(self, name)))

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
    method: Method = field(default_factory=lambda: CAREFUL)
    round: int = 1
    missing: str = "error"  # rows that lack a value: stop, leave out, or fill in the shift
    smallest_cell: int = 5  # a level or class seen fewer times at a user is withheld
    minimum_rows: int = 5  # users with fewer rows send nothing
    coordinator: tuple[str, ...] = ()  # public keys
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # public keys

    def __post_init__(self) -> None:
        _check(self)
        # Categories of three levels and more: their levels are treated alike.
        factors = _factors(self) if self.risk.intercept else ()
        risk = Risk(self.risk.loss, self.risk.l2, self.risk.intercept, factors)
        object.__setattr__(self, "risk", risk)
        # Columns are in the card's scale, and no other.
        object.__setattr__(self, "method", replace(self.method, standardize=False))

    # -- what follows --------------------------------------------------------------------------

    @property
    def signed(self) -> bool:
        """Does the card ask for signatures?"""
        return bool(self.coordinator or self.sites)

    @property
    def minimum_group(self) -> int:
        """Distinct sites that a group needs."""
        return self.method.smallest_group

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

    def schema(self, user: str, user_kind: str) -> TableSchema:
        """How tables are read whose column ``user`` names the users; "": a table is one user's."""
        return TableSchema(
            user=user,
            target=self.target,
            features=tuple(one.name for one in self.features),
            levels={one.name: one.levels for one in self.features if one.levels is not None},
            fill={one.name: one.shift for one in self.features if one.levels is None},
            missing=self.missing,
            task=self.kind,
            classes=self.classes,
            user_kind=user_kind,
            other=tuple(one.name for one in self.features if one.other),
        )

    @cached_property
    def leaves(self) -> dict[str, str]:
        """The fields that leave a user, each with what it tells."""
        parts = Uploads.parts()
        return {name: parts[name].tells for name in self.agreed.probe.present}

    @cached_property
    def agreed(self) -> Agreed:
        """What an upload of this task has to be."""
        return Agreed(self.risk, self.resolved, len(self.columns), self.minimum_rows)

    def uploads_of(self, federation: Federation, progress: Any = None) -> Uploads:
        """Step 1 of Algorithm 1 for a site's users, whose rows are scaled."""
        return self.agreed.uploads_of(federation, progress)

    # -- the digest ----------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that is agreed on. Keys are not in it: they may be replaced."""
        return hashlib.sha256(json_bytes(_agreed(self))).hexdigest()

    @property
    def keys_digest(self) -> str:
        """SHA-256 of the public keys, for people to compare by another way than the card came."""
        keys = {COORDINATOR: self.coordinator, **dict(sorted(self.sites.items()))}
        return hashlib.sha256(json_bytes({who: list(own) for who, own in keys.items()})).hexdigest()

    @property
    def stamp(self) -> dict[str, Any]:
        """What files of the task say of it."""
        return {"name": self.name, "round": self.round, "sha256": self.digest}

    # -- the card ------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Task:
        """Read a card; a ValueError names it, and what is wrong with which entry."""
        content = read_regular(path, most=toml.MOST_BYTES)
        try:
            return cls.from_toml(content)
        except CardError as error:
            why = ended(f"{path} is not a task card that can be used: {error}")
            raise ValueError(why) from None

    @classmethod
    def from_toml(cls, content: bytes) -> Task:
        from odcl.engines.files.card import task_of_card

        try:
            return task_of_card(toml.parse_toml(content))
        except CardError:
            raise
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise CardError(str(error).rstrip(".")) from None

    def to_toml(self) -> str:
        """The card in its fixed layout, with what each entry means."""
        from odcl.engines.files.card import card_lines

        return "\n".join(card_lines(self)) + "\n"

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


# -- what a task must be -----------------------------------------------------------------------


def _check(task: Task) -> None:
    names = [one.name for one in task.features]
    if not names:
        raise CardError("no feature is named, and a model needs at least one")
    for name in (task.name, task.target, *names):
        if not toml.is_text(name):
            raise CardError(f"{show(name)} is no name")
    often = Counter([task.target, *names])
    double = next((name for name in names if often[name] > 1), None)
    if double is not None:
        raise CardError(f"column {double!r} stands in it twice")
    for one in task.features:
        _check_feature(one, task.risk.intercept)
    if len(set(task.columns)) < len(task.columns) or not task.columns:
        raise CardError("two design columns have one name (a level and a column), or there is none")
    _check_classes(task)
    if task.dim > MOST_PARAMETERS:
        raise CardError(
            f"models would have {task.dim} parameters, and {MOST_PARAMETERS} are the most"
        )
    if task.missing not in MISSING:
        raise CardError(f"missing is one of {', '.join(MISSING)}")
    bare = [f.name for f in task.features if f.levels is None and (f.shift, f.scale) == (0, 1)]
    if task.missing == "mean" and bare:
        raise CardError(
            f"missing is mean, which fills in the shift, and none was agreed for {listing(bare)} "
            "(shift 0, scale 1): give a shift and a scale, or leave such rows out (drop)"
        )
    for name in ("round", "smallest_cell", "minimum_rows"):
        if not toml.is_whole(getattr(task, name)) or getattr(task, name) < 1:
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
    owners = Counter(key for own in (task.coordinator, *task.sites.values()) for key in set(own))
    if any(n > 1 for n in owners.values()):
        raise CardError("one key stands at two names: either could sign for the other")
    folded = [site.casefold() for site in task.sites]
    if len(set(folded)) < len(folded):
        raise CardError("two sites differ in capital letters only: rename one")


def _check_feature(one: Feature, intercept: bool) -> None:
    if not (toml.is_number(one.shift) and toml.is_number(one.scale) and one.scale > 1e-300):
        raise CardError(f"feature {one.name!r} needs a finite shift and a scale above 0")
    if one.levels is not None:
        if not _are_keys(one.levels, 2):
            raise CardError(f"the levels of {one.name!r} are not two or more different values")
        if (one.shift, one.scale) != (0, 1):
            raise CardError(f"{one.name!r} is a category, and has no shift or scale")
    elif one.other:
        raise CardError(f"{one.name!r} is a number, and only a category has levels to call other")
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
    if n is None or not _are_keys(task.classes, 2):
        raise CardError("the target's classes are not listed: classes = [...], two or more")
    if list(task.classes or ()) != sorted(task.classes or ()):
        raise CardError(f"the classes are not in order: write {sorted(task.classes or ())}")
    wanted = task.risk.loss.n_classes if isinstance(task.risk.loss, Multinomial) else 2
    if n != wanted:
        raise CardError(
            f"the {task.risk.loss.name} loss is for {wanted} classes, and {n} are listed"
        )


def _are_keys(values: Any, least: int) -> bool:
    """Levels or classes that a table can hold and a card can show."""
    shown = isinstance(values, tuple) and all(toml.is_text(str(v)) for v in values)
    return shown and are_keys(list(values), least)


def _factors(task: Task) -> list[Factor]:
    found, at = [], 0
    for one in task.features:
        if one.width > 1:
            found.append(Factor(tuple(range(at, at + one.width)), name=one.name))
        at += one.width
    return found


def _agreed(task: Task) -> dict[str, Any]:
    """All but the keys, as JSON."""
    plain = ("name", "target", "round", "missing", "smallest_cell", "minimum_rows")
    return {
        "format": FORMAT,
        **{name: getattr(task, name) for name in plain},
        "dtype": "float64",  # as cards once said: they keep the digest they had
        "features": [
            [one.name, None if one.levels is None else list(one.levels), one.shift, one.scale]
            + [OTHER] * one.other  # cards without it keep the digest they had
            for one in task.features
        ],
        "classes": None if task.classes is None else list(task.classes),
        "risk": task.risk.to_json(),
        "method": task.method.to_json(),
    }
