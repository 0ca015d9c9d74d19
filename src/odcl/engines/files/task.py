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
from typing import Annotated, Any, Literal

import numpy as np

from odcl._typing import Ints
from odcl.artifact.arrays import json_bytes
from odcl.data.design import OTHER, Design, are_keys
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.data.source import task_of
from odcl.declared import Check, HasDefaults, Label, Positive, check_fields, is_label, to_json
from odcl.engines.files.envelope import Stamp
from odcl.engines.files.keys import COORDINATOR, PublicKey, SigningKey, check_site, read_key
from odcl.engines.wire import Agreed
from odcl.errors import count, ended, listing
from odcl.exchange.upload import Uploads
from odcl.files import atomic_path, read_regular
from odcl.fitted.curves import check_curves, curves_of
from odcl.method import Method
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Factor, Risk, is_wide

FORMAT = 1
MOST_BYTES = 2**20  # of a card
MOST_PARAMETERS = 1_000  # a site may have to send a matrix of that many squared
MOST_WIDE = 10_000  # where sites send moments in place of matrices
Missing = Literal["error", "drop", "mean"]
Values = Annotated[tuple[Any, ...], Check("at most 100,000 values", lambda v: len(v) <= 10**5)]
Scale = Annotated[float, Check("a number above 0", lambda value: value > 1e-300)]
# Terms of users with fewer rows than parameters stay, a group needs three sites, and one bad upload
# hurts its sender alone, until a card says otherwise.
CAREFUL = Method(short_terms=False, smallest_group=3, standardize=False, robust=True)


@dataclass(frozen=True)
class Feature(HasDefaults):
    """One column to predict from: a number with its public scaling, or a category."""

    name: Label
    levels: Values | None = None  # of a category, the reference first
    shift: float = 0.0
    scale: Scale = 1.0
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

    @property
    def is_bare(self) -> bool:
        """Is it a number without an agreed shift and scale?"""
        return self.levels is None and (self.shift, self.scale) == (0, 1)


@dataclass(frozen=True)
class Task:
    """One round of one federation: columns, risk, method, what may leave, limits and keys."""

    name: Label
    features: tuple[Feature, ...]
    target: Label
    risk: Risk = field(default_factory=lambda: Risk("squared", 0.0, True))
    classes: tuple[Any, ...] | None = None  # of the target, in order; None: it is a number
    method: Method = field(default_factory=lambda: CAREFUL)
    round: Positive = 1
    missing: Missing = "error"  # rows that lack a value: stop, leave out, or fill in the shift
    smallest_cell: Positive = 5  # a level or class seen fewer times at a user is withheld
    minimum_rows: Positive = 5  # users with fewer rows send nothing
    coordinator: tuple[PublicKey, ...] = ()
    sites: Mapping[str, tuple[PublicKey, ...]] = field(default_factory=dict)
    # Features of numbers that may act in curves, by name; True: all with a shift and a scale.
    curves: bool | tuple[Label, ...] = False
    periodic: Mapping[Label, float] = field(default_factory=dict)  # features with their periods

    def __post_init__(self) -> None:
        _check(self)
        # Categories of three levels and more: their levels are treated alike.
        own = self.design.factors.items() if self.risk.intercept else ()
        factors = [Factor(columns, name=name) for name, columns in own if len(columns) > 1]
        risk = Risk(self.risk.loss, self.risk.l2, self.risk.intercept, factors)
        # Columns are in the card's scale, and no other.
        object.__setattr__(self, "method", replace(self.method, standardize=False))
        given = self.method, risk, self.lines, self.lines, self.columns
        curves = curves_of(self._named_curves, self.periodic, *given)
        object.__setattr__(self, "risk", replace(risk, curves=curves))
        privacy = self.method.privacy
        if privacy is not None:
            if privacy.scale:
                raise ValueError("privacy has units of its own: a card has its features' units")
            privacy.refuse_uncovered(self.risk, len(self.columns))
            # Limits that decide by rows would tell of them: noise hides every row as it is.
            for name in ("smallest_cell", "minimum_rows"):
                object.__setattr__(self, name, 1)

    # -- what follows --------------------------------------------------------------------------

    @property
    def signed(self) -> bool:
        """Does the card ask for signatures?"""
        return bool(self.coordinator or self.sites)

    @cached_property
    def design(self) -> Design:
        """How features become columns."""
        return Design(
            features=tuple(one.name for one in self.features),
            levels={one.name: one.levels for one in self.features if one.levels is not None},
            fill={one.name: one.shift for one in self.features if one.levels is None},
            other=tuple(one.name for one in self.features if one.other),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the design columns."""
        return self.design.columns

    @property
    def dim(self) -> int:
        """How many numbers a model has."""
        return self.risk.dim(self.scaling.width)

    @property
    def _named_curves(self) -> list[str]:
        if not isinstance(self.curves, bool):
            return list(self.curves)
        able = (f for f in self.features if self.curves and f.levels is None)
        return [one.name for one in able if not one.is_bare]

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
        """From the table's units to those that models are fitted in, with bends."""
        return replace(self.lines, curves=self.risk.curves)

    @cached_property
    def lines(self) -> Scaling:
        """The scaling of the design columns."""
        shift = [x for one in self.features for x in [one.shift] * one.width]
        scale = [x for one in self.features for x in [one.scale] * one.width]
        p = len(shift)
        return Scaling(np.array(shift), np.array(scale), np.arange(p), p)

    def schema(self, user: str, user_kind: str) -> TableSchema:
        """How tables are read whose column ``user`` names the users; "": a table is one user's."""
        design = self.design
        return TableSchema(
            user=user,
            target=self.target,
            features=design.features,
            levels=design.levels,
            fill=design.fill,
            missing=self.missing,
            task=self.kind,
            classes=self.classes,
            user_kind=user_kind,
            other=design.other,
        )

    @cached_property
    def leaves(self) -> dict[str, str]:
        """The fields that leave a user, each with what it tells."""
        parts = Uploads.parts()
        told = {name: parts[name].tells for name in self.agreed.probe.present}
        if self.method.privacy is not None:
            told["n_samples"] += ", with noise that hides any row"
        return told

    @cached_property
    def agreed(self) -> Agreed:
        """What an upload of this task has to be."""
        return Agreed(self.risk, self.resolved, self.scaling.width, self.minimum_rows)

    @property
    def bends(self) -> str:
        """Names of the bends that follow the columns: "age~1 to age~4"; empty: there are none."""
        return ", ".join(f"{c.bends[0]} to {c.bends[-1]}" for c in self.risk.curves)

    def curve_notes(self, n_rows: Ints | None = None) -> list[str]:
        """What people should know about the card's curves.

        With ``n_rows``, of each of a site's users, also how many of them have too few rows.
        """
        bare = [one.name for one in self.features if one.is_bare and one.name not in self.periodic]
        needed = "(a typical value and a typical deviation, as 50 and 20 for age)"
        told = []
        if bare and self.curves is True:
            told.append(
                f"{listing(bare)}: lines only, for curves need a shift and a scale on the card "
                f"{needed}"
            )
        if named := [name for name in bare if name in self._named_curves]:
            told.append(
                f"{listing(named)}: curves need a shift and a scale on the card {needed}. With "
                "shift 0 and scale 1 they bend between -2 and 2 only"
            )
        if (self._named_curves or self.periodic) and not self.risk.curves:
            told.append("too many columns for curves: lines only. Name fewer columns as curves")
        short = None if n_rows is None else int((n_rows < self.dim).sum())
        if self.risk.curves and not self.method.short_terms and short != 0:
            many = "users with" if short is None else f"{count(short, 'user')} with"
            told.append(
                f"with curves a model has {self.dim} parameters: {many} fewer rows "
                f"send{'s' * (short == 1)} only the average of the rows (short_terms = false)"
            )
        return told

    # -- the digest ----------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all that is agreed on. Keys are not in it: they may be replaced."""
        return hashlib.sha256(json_bytes(_agreed(self))).hexdigest()

    @property
    def keys_digest(self) -> str:
        """SHA-256 of the public keys, for people to compare over another channel."""
        keys = {COORDINATOR: self.coordinator, **dict(sorted(self.sites.items()))}
        return hashlib.sha256(json_bytes({who: list(own) for who, own in keys.items()})).hexdigest()

    @property
    def stamp(self) -> Stamp:
        """What files of the task say of it."""
        return Stamp(self.name, self.round, self.digest)

    # -- the card ------------------------------------------------------------------------------

    @classmethod
    def of(cls, task: Task | str | os.PathLike[str]) -> Task:
        """A task, or that of a card."""
        return task if isinstance(task, Task) else cls.read(task)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Task:
        """Read a card; a ValueError names it, and what is wrong with which entry."""
        from odcl.engines.files.card import read_card

        content = read_regular(path, most=MOST_BYTES)
        try:
            return read_card(content)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            why = ended(f"{path} is not a task card that can be used: {str(error).rstrip('.')}")
            raise ValueError(why) from None

    def to_toml(self) -> str:
        """The card in its fixed layout, with what each entry means."""
        from odcl.engines.files.card import card_lines

        return "\n".join(card_lines(self)) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the card: whole or not at all."""
        with atomic_path(path) as place:
            place.write_text(self.to_toml(), encoding="utf-8")

    def with_keys(self, site: str, *keys: str) -> Task:
        """The card with more public keys of a site, or of the coordinator."""
        if site == COORDINATOR:
            return replace(self, coordinator=tuple(dict.fromkeys([*self.coordinator, *keys])))
        own = tuple(dict.fromkeys([*self.sites.get(site, ()), *keys]))
        return replace(self, sites={**self.sites, site: own})

    def own_key(
        self, who: str, key: SigningKey | str | os.PathLike[str] | None
    ) -> SigningKey | None:
        """The key to sign with: one that the card lists, or None where it asks for no signature."""
        if key is not None and not isinstance(key, SigningKey):
            key = read_key(key)
        if not self.signed:
            return key
        name = "the coordinator" if who == COORDINATOR else who
        if key is None:
            raise ValueError(f"The card asks for signatures: {name} needs its private key to sign.")
        listed = self.coordinator if who == COORDINATOR else self.sites.get(who, ())
        if key.public not in listed:
            raise ValueError(
                f"The card lists another key for {name} than the one given (or none): its public "
                f"key is {key.public}."
            )
        return key


# -- what a task must be -----------------------------------------------------------------------


def _check(task: Task) -> None:
    check_fields(task)
    check_curves(task.curves, task.periodic)
    if task.method.curves:
        raise ValueError("Method(curves=...) is for odcl.fit, and a task has curves of its own")
    names = [one.name for one in task.features]
    if not names:
        raise ValueError("no feature is named, and a model needs at least one")
    often = Counter([task.target, *names])
    double = next((name for name in names if often[name] > 1), None)
    if double is not None:
        raise ValueError(f"column {double!r} stands in it twice")
    for one in task.features:
        _check_feature(one, task.risk.intercept)
    if len(set(task.columns)) < len(task.columns) or not task.columns:
        raise ValueError(
            "two design columns have one name (a level and a column), or none is there"
        )
    _check_classes(task)
    width = len(task.columns)
    wide = task.method.clusterer.uses_terms and is_wide(task.risk, width)
    dim, most = task.risk.dim(width), MOST_WIDE if wide else MOST_PARAMETERS
    if dim > most:
        raise ValueError(f"models would have {dim} parameters, and {most} are the most")
    bare = [f.name for f in task.features if f.is_bare]
    if task.missing == "mean" and bare:
        raise ValueError(
            f"missing is mean, which fills in the shift, and none was agreed for {listing(bare)} "
            "(shift 0, scale 1): give a shift and a scale, or leave such rows out (drop)"
        )
    for site in task.sites:
        check_site(site)
    if task.sites and not task.coordinator:
        raise ValueError(
            "sites have keys and the coordinator has none: downloads must be signed too"
        )
    owners = Counter(key for own in (task.coordinator, *task.sites.values()) for key in set(own))
    if any(n > 1 for n in owners.values()):
        raise ValueError("one key stands at two names: either could sign for the other")
    folded = [site.casefold() for site in task.sites]
    if len(set(folded)) < len(folded):
        raise ValueError("two sites differ in capital letters only: rename one")


def _check_feature(one: Feature, intercept: bool) -> None:
    check_fields(one)
    if one.levels is not None:
        if not _are_keys(one.levels, 2):
            raise ValueError(f"the levels of {one.name!r} are not two or more different values")
        if (one.shift, one.scale) != (0, 1):
            raise ValueError(f"{one.name!r} is a category, and has no shift or scale")
    elif one.other:
        raise ValueError(f"{one.name!r} is a number, and only a category has levels to call other")
    if one.shift != 0 and not intercept:
        raise ValueError(
            f"{one.name!r} is shifted, and without an intercept nothing makes up for it"
        )


def _check_classes(task: Task) -> None:
    n = None if task.classes is None else len(task.classes)
    if task.kind != "classification" and n is None:
        return
    if task.kind != "classification":
        raise ValueError(f"the target has classes, and {task.risk.loss.name} loss takes numbers")
    if n is None or not _are_keys(task.classes, 2):
        raise ValueError("the target's classes are not listed: classes = [...], two or more")
    if list(task.classes or ()) != sorted(task.classes or ()):
        raise ValueError(f"the classes are not in order: write {sorted(task.classes or ())}")
    wanted = task.risk.loss.n_classes if isinstance(task.risk.loss, Multinomial) else 2
    if n != wanted:
        raise ValueError(
            f"the {task.risk.loss.name} loss is for {wanted} classes, and {n} are listed"
        )


def _are_keys(values: Any, least: int) -> bool:
    """Levels or classes that a table can hold and a card can show."""
    shown = isinstance(values, tuple) and all(is_label(str(v)) for v in values)
    return shown and are_keys(list(values), least)


def _agreed(task: Task) -> dict[str, Any]:
    """All but the keys, as JSON."""
    plain = ("name", "target", "round", "missing", "smallest_cell", "minimum_rows")
    return {
        "format": FORMAT,
        **{name: getattr(task, name) for name in plain},
        "dtype": "float64",  # as cards once said: they keep the digest they had
        "features": [
            [one.name, to_json(one.levels), one.shift, one.scale]
            + [OTHER] * one.other  # cards without it keep the digest they had
            for one in task.features
        ],
        "classes": to_json(task.classes),
        "risk": task.risk.to_json(),
        "method": task.method.to_json(),
    }
