"""How users of a group still differ: in numbers by coefficient, and in words.

The words are the same in a fit, its reason, its diagnosis and a round's report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Floats
from odcl.errors import number
from odcl.risk.risk import Risk

if TYPE_CHECKING:
    from odcl.mixed.posterior import Mixture

LEVEL = "(level)"  # the prediction for average features
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
    """:func:`differences` by name: the level, features in use by their units, then factors.

    ``features`` are the columns' names and the scale that each was divided by.
    """
    sd, slopes, effects = differences(mixture, risk)
    levels = {j for factor in risk.factors for j in factor.columns}
    found = {LEVEL: sd} if risk.intercept else {}
    for j, (name, unit) in enumerate(features.items()):
        if j in mixture.coordinates.kept and j not in levels:
            found[name] = float(slopes[j] / unit)
    pairs = zip(risk.factors, effects.tolist(), strict=True)
    return found | {factor.name: effect for factor, effect in pairs}


@dataclass(frozen=True)
class Shared:
    """A column that does not vary within users: all of them share its coefficient."""

    name: str
    coefficient: float | None  # in the table's units; None of a category or of several classes
    error: float = 0.0  # its standard error

    def __str__(self) -> str:
        text = f"{self.name} is the same within all or nearly all users: one coefficient for all"
        if self.coefficient is None:
            return f"{text}."
        low, high = (self.coefficient + z * self.error for z in (-1.645, 1.645))
        return f"{text}, {number(self.coefficient)} (90 %: {number(low)} to {number(high)})."


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
    lines = [differences_text(own, len(mixture.weights)), *map(str, shared[:MOST])]
    if len(shared) > MOST:
        lines.append(f"So are {len(shared) - MOST} more columns.")
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
    same = ["the level" if name == LEVEL else name for name, sd in differences.items() if sd == 0]
    if not same:
        return f"{text}."
    verb = "is" if len(same) == 1 else "are"
    return f"{text}; {_listed(same)} {verb} the same for all of them."


def differing(differences: Mapping[str, float]) -> str:
    """The coefficients that differ, the level first: 'the level (standard deviation 12) and b'."""
    vary = sorted(
        ((name, sd) for name, sd in differences.items() if sd > 0), key=lambda it: it[0] != LEVEL
    )
    return _listed(
        f"{'the level' if name == LEVEL else name} ({'standard deviation ' * (i == 0)}{number(sd)})"
        for i, (name, sd) in enumerate(vary)
    )


def _listed(some: Iterable[str]) -> str:
    words = list(some)
    if len(words) > MOST:
        words = [*words[:MOST], f"{len(words) - MOST} more"]
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
