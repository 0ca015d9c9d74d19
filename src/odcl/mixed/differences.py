"""How users of a group still differ: in numbers by coefficient, and in words.

The words are the same in a fit, its reason, its diagnosis and a round's report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.errors import number
from odcl.mixed.posterior import APART, Mixture
from odcl.risk.risk import Risk

LEVEL = "(level)"  # the prediction for average features
CURVE = "the curve of {}"  # beside its line
MOST = 6  # coefficients named one by one
DIFFER = {  # how users of a group differ, by the shape of their spread
    "zero": "only by noise",
    "scalar": "in all coefficients alike",
    "diag": "in each coefficient by itself",
    "full": "in several coefficients together",
}


def differences(mixture: Mixture, risk: Risk) -> tuple[float, Floats, Floats]:
    """Standard deviations inside a group: of the level at average features, of slopes, of factors.

    Slopes are (n_features,), in the units of the columns and the target that the mixture was fitted
    on; those of a factor's columns are 0, and its own number is the effect of its level on a row's
    target. Several outputs are averaged. 0 where users are the same.
    """
    at = mixture.coordinates
    variance = np.diag(mixture.inside).reshape(risk.n_outputs, -1).mean(axis=0)
    variance = variance * at.target_scale**2
    columns = np.zeros(at.n_features + len(at.factors))
    columns[at.kept] = variance[int(at.intercept) :]  # of standardized columns
    effects = np.zeros(len(at.factors))
    unit = np.ones(len(columns))
    unit[at.kept] = at.scale
    slopes = np.sqrt(columns)[: at.n_features] / unit[: at.n_features]
    for f, factor in enumerate(at.factors):
        own = list(factor.columns)
        effects[f] = np.sqrt(columns[own].sum() + columns[at.n_features + f])
        slopes[own] = 0.0
    return float(np.sqrt(variance[0])) if at.intercept else 0.0, slopes, effects


def named_differences(
    mixture: Mixture, risk: Risk, features: Mapping[str, float]
) -> dict[str, float]:
    """:func:`differences` by name: the level, features in use by their units, factors, curves.

    ``features`` are the columns' names and the scale that each was divided by. Curves that differ
    beyond their lines have their own number: how far they lie apart on a usual row.
    """
    sd, slopes, effects = differences(mixture, risk)
    levels = {j for factor in risk.factors for j in factor.columns}
    found = {LEVEL: sd} if risk.intercept else {}
    for j, (name, unit) in enumerate(features.items()):
        if j in mixture.coordinates.kept and j not in levels:
            found[name] = float(slopes[j] / unit)
    pairs = zip(risk.factors, effects.tolist(), strict=True)
    found |= {factor.name: effect for factor, effect in pairs}
    for curve in open_curves(mixture, risk, features):
        if curve.differs == "users":
            found[CURVE.format(curve.name)] = float(np.sqrt((slopes[[*curve.own]] ** 2).sum()))
    return found


@dataclass(frozen=True)
class OpenCurve:
    """A column that acts in a curve."""

    name: str
    own: tuple[int, ...]  # columns of its bends
    differs: str  # between whom: "users", "groups", or "" where it is the same for all
    sloped: bool  # are its lines different ones?


def open_curves(mixture: Mixture, risk: Risk, features: Iterable[str]) -> list[OpenCurve]:
    """The columns that act in curves; ``features`` are all columns' names."""
    at, names, found = mixture.coordinates, list(features), []
    T = np.diag(mixture.inside)
    usual = mixture.centers[mixture.weights > APART]
    apart: Bools = np.ptp(usual, axis=0) > 1e-12
    for curve in risk.curves:
        bent, line = (
            np.tile(np.append([False] * at.intercept, np.isin(at.kept, own)), risk.n_outputs)
            for own in (curve.columns, curve.of)
        )
        if bent.any():
            differs = "users" if T[bent].any() else "groups" if apart[bent].any() else ""
            sloped = bool(T[line].any() or apart[line].any())
            found.append(OpenCurve(names[curve.of], curve.columns, differs, sloped))
    return found


def curves_text(mixture: Mixture, risk: Risk, features: Iterable[str]) -> str:
    """Which columns act in a curve, and whose curves differ; empty: all act in lines."""
    parts, kinds = list[str](), dict[tuple[str, bool], list[str]]()
    for curve in open_curves(mixture, risk, features):
        kinds.setdefault((curve.differs, curve.sloped and not curve.differs), []).append(curve.name)
    for (differs, sloped), names in sorted(kinds.items()):
        one = len(names) == 1
        tail = f" that differ{'s' * one} between {differs}" if differs else ", the same for all"
        if sloped:
            tail = " whose bends are the same for all"
        verb = f" act{'s' * one}" * (not parts)
        parts.append(f"{listed(names)}{verb} in {'a curve' if one else 'curves'}{tail}")
    return f"{'; '.join(parts)}." if parts else ""


@dataclass(frozen=True)
class Shared:
    """A column that does not vary within users: all of them share its coefficient."""

    name: str
    coefficient: float | None  # in the table's units; None of a category or of several classes
    error: float = 0.0  # its standard error

    @property
    def interval(self) -> str:
        """The coefficient with its interval, in words; empty where it is not one number."""
        if self.coefficient is None:
            return ""
        low, high = (self.coefficient + z * self.error for z in (-1.645, 1.645))
        return f"{number(self.coefficient)} (90 %: {number(low)} to {number(high)})"


def shared_text(shared: Sequence[Shared]) -> str:
    """The columns that do not vary within users, with their coefficients; empty: there are none."""
    if not shared:
        return ""
    if len(shared) == 1:
        one = (
            f"{shared[0].name} is the same within all or nearly all users: one coefficient for all"
        )
        return f"{', '.join(filter(None, (one, shared[0].interval)))}."
    each = listed(f"{one.name} {one.interval}".rstrip() for one in shared)
    return f"The same within all or nearly all users, with one coefficient for all: {each}."


def shared_columns(mixture: Mixture, risk: Risk, features: Mapping[str, float]) -> list[Shared]:
    """The columns whose coefficients all users share; ``features`` as in named_differences."""
    from odcl.mixed.layout import model_map

    if mixture.spread.fixed is None:
        return []
    at, (offset, change) = mixture.coordinates, model_map(mixture, risk)
    fixed = mixture.spread.fixed[int(at.intercept) : int(at.intercept) + len(at.kept)]
    columns = set(at.kept[fixed].tolist())
    levels = {j for factor in risk.factors for j in factor.columns}
    found = []
    for j, (name, unit) in enumerate(features.items()):
        if j in columns and j not in levels:
            value = float(offset[j] + change[j] @ mixture.centers[0]) / unit
            error = float(np.sqrt(change[j] @ mixture.covariances[0] @ change[j])) / unit
            found.append(Shared(name, value, error) if risk.n_outputs == 1 else Shared(name, None))
    return found + [Shared(f.name, None) for f in risk.factors if columns & {*f.columns}]


def inside_text(mixture: Mixture | None, risk: Risk, features: Mapping[str, float]) -> str:
    """How users of a group still differ, and what all share; empty: nothing to say."""
    if mixture is None:
        return ""
    shared = shared_columns(mixture, risk, features)
    names = {one.name for one in shared}
    own = named_differences(mixture, risk, features)
    own = {name: sd for name, sd in own.items() if name not in names}
    curves = curves_text(mixture, risk, features)
    n_groups = int((mixture.weights > APART).sum())
    lines = (differences_text(own, n_groups), shared_text(shared), curves)
    return " ".join(filter(None, lines))


def differences_text(differences: Mapping[str, float], n_groups: int) -> str:
    """Which coefficients users of a group differ in, and by how much; empty: in none.

    ``differences`` are standard deviations in the table's units by name, 0 where users are the
    same.
    """
    where = differing(differences)
    if not where:
        return ""
    text = f"{'Users of a group still' if n_groups > 1 else 'Users'} differ in {where}"
    same = alike(differences)
    if not same:
        return f"{text}."
    verb = "is" if len(same) == 1 else "are"
    return f"{text}; {listed(same)} {verb} the same for all of them."


def alike(differences: Mapping[str, float]) -> list[str]:
    """The coefficients that do not differ; of a column whose curve differs nothing is said."""
    same = (n for n, sd in differences.items() if not sd and CURVE.format(n) not in differences)
    return ["the level" if name == LEVEL else name for name in same]


def differing(differences: Mapping[str, float]) -> str:
    """The coefficients that differ, the level first: 'the level (standard deviation 12) and b'."""
    vary = sorted(
        ((name, sd) for name, sd in differences.items() if sd > 0), key=lambda it: it[0] != LEVEL
    )
    return listed(
        f"{'the level' if name == LEVEL else name} ({'standard deviation ' * (i == 0)}{number(sd)})"
        for i, (name, sd) in enumerate(vary)
    )


def listed(some: Iterable[str]) -> str:
    words = list(some)
    if len(words) > MOST:
        words = [*words[:MOST], f"{len(words) - MOST} more"]
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
