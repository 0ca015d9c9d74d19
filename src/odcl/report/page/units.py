"""Models in the table's units: names of their numbers, values and standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.data.scaling import Scaling
from odcl.local.predict import by_class, in_table_units
from odcl.mixed.differences import LEVEL
from odcl.risk.risk import Risk

CHUNK = 4096  # users whose matrices are in memory at one time
NUMBERS = 4_000_000  # of models in the table's units at one time


@dataclass(frozen=True, eq=False)
class TableUnits:
    """Names of a model's numbers in the table's units, and how it gets there."""

    risk: Risk
    scaling: Scaling
    centered: bool
    names: list[str]
    effect: Floats  # (p,): what a number is multiplied with to be in units of the target
    extra: Bools  # (p,): the intercept, where the level says the same
    some: Ints | None = None  # (p,), which of all numbers; None: all
    bends: Floats | None = None  # averages of the bends, which belong to the level; None: zero

    @classmethod
    def of(
        cls,
        risk: Risk,
        scaling: Scaling,
        names: Sequence[str],
        classes: Sequence[str] = (),
        *,
        centered: bool,
        mean: Floats | None = None,
    ) -> TableUnits:
        """Features in use, the level at average features (``centered``), and the intercept.

        The level is what the model expects of a row with the features' averages, bends among them
        (``mean`` of all columns); the intercept, of one whose features are zero, which may be far
        from every row. Bends are no slopes, and have no names here; neither have periodic columns,
        which have no line.
        """
        several = in_table_units(np.zeros((1, risk.dim(scaling.width))), risk, scaling)[1]
        labels = [f" [{label}]" for label in classes] if several.ndim == 2 else [""]
        found, effect = list(names), list(scaling.scale)
        if risk.intercept:
            found += [*[LEVEL] * centered, "(intercept)"]
            effect += [1.0] * (1 + centered)
        extra = np.zeros((len(found), len(labels)), dtype=np.bool_)
        extra[-1] = risk.intercept and centered
        lines = np.ones_like(extra)
        lines[[curve.of for curve in scaling.curves if curve.period is not None]] = False
        every = cls(
            risk,
            scaling,
            centered,
            [f"{name}{label}" for name in found for label in labels],
            np.repeat(np.array(effect), len(labels)),
            extra.reshape(-1),
            bends=None if mean is None or not scaling.curves else mean[len(scaling.used) :],
        )
        return every if lines.all() else every.take(np.flatnonzero(lines))

    def take(self, some: Ints) -> TableUnits:
        """Some of the numbers."""
        names, own = [self.names[j] for j in some], some if self.some is None else self.some[some]
        return replace(
            self, names=names, effect=self.effect[some], extra=self.extra[some], some=own
        )

    def models(self, theta: Floats) -> Floats:
        """The numbers of models (n, dim), as (n, p)."""
        step = max(1, NUMBERS // max(theta.shape[1], 1))
        parts = [self._models(theta[at : at + step]) for at in range(0, len(theta), step)]
        return np.concatenate(parts) if parts else np.zeros((0, len(self.names)))

    def _models(self, theta: Floats) -> Floats:
        coef, intercept = in_table_units(theta, self.risk, self.scaling)
        if coef.ndim == 2:
            coef, intercept = coef[:, None], intercept[:, None]
        parts = [coef[..., self.scaling.used].swapaxes(1, 2)]  # (n, numbers, classes)
        if self.risk.intercept and self.centered:
            level = intercept + parts[0].swapaxes(1, 2) @ self.scaling.shift
            if self.bends is not None:
                model = theta.reshape(len(theta), -1, self.risk.n_outputs)
                bent = model[:, len(self.scaling.used) : self.scaling.width]
                level = level + self.bends @ bent @ by_class(self.risk).T
            parts.append(level[:, None])
        if self.risk.intercept:
            parts.append(intercept[:, None])
        found = np.concatenate(parts, axis=1).reshape(len(theta), -1)
        return found if self.some is None else found[:, self.some]

    @cached_property
    def matrix(self) -> Floats:
        """What takes a model there, (dim, p): of models of few numbers."""
        return self.models(np.eye(self.risk.dim(self.scaling.width)))

    def errors(self, cov: Floats) -> Floats:
        """Standard errors of models of these covariances, (n, dim, dim)."""
        parts = [
            ((cov[at : at + CHUNK] @ self.matrix) * self.matrix).sum(axis=1)
            for at in range(0, len(cov), CHUNK)
        ]
        variance = np.concatenate(parts) if parts else np.zeros((0, self.matrix.shape[1]))
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.where(variance >= 0, variance, np.nan))
