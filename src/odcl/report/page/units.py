"""Models in the table's units: names of their numbers, values and standard errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcl._typing import Bools, Floats
from odcl.data.scaling import Scaling
from odcl.local.predict import in_table_units
from odcl.mixed.differences import LEVEL
from odcl.risk.risk import Risk

CHUNK = 4096  # users whose matrices are in memory at one time


@dataclass(frozen=True, eq=False)
class TableUnits:
    """Names of a model's numbers in the table's units, and the matrix that takes it there."""

    names: list[str]
    matrix: Floats  # (dim, p)
    effect: Floats  # (p,): what a number is multiplied with to be in units of the target
    extra: Bools  # (p,): the intercept, where the level says the same

    @classmethod
    def of(
        cls,
        risk: Risk,
        scaling: Scaling,
        names: Sequence[str],
        classes: Sequence[str] = (),
        *,
        centered: bool,
    ) -> TableUnits:
        """Features in use, the level at average features (``centered``), and the intercept.

        The level is what the model expects of a row with the features' averages; the intercept,
        of one whose features are zero, which may be far from every row.
        """
        dim, found = risk.dim(len(scaling.used)), list(names)
        coef, intercept = in_table_units(np.eye(dim), risk, scaling)
        labels = [f" [{label}]" for label in classes] if coef.ndim == 3 else [""]
        if coef.ndim == 3:
            coef = coef.swapaxes(1, 2)
        else:
            coef, intercept = coef[:, :, None], intercept[:, None]
        parts, effect = [coef[:, scaling.used]], list(scaling.scale)
        if risk.intercept and centered:
            level = intercept + np.einsum("dfc,f->dc", parts[0], scaling.shift)
            parts.append(level[:, None])
            found.append(LEVEL)
            effect.append(1.0)
        if risk.intercept:
            parts.append(intercept[:, None])
            found.append("(intercept)")
            effect.append(1.0)
        matrix = np.concatenate(parts, axis=1)  # (dim, numbers, classes)
        extra = np.zeros(matrix.shape[1:], dtype=np.bool_)
        extra[-1] = risk.intercept and centered
        return cls(
            [f"{name}{label}" for name in found for label in labels],
            matrix.reshape(dim, -1),
            np.repeat(np.array(effect), len(labels)),
            extra.reshape(-1),
        )

    def models(self, theta: Floats) -> Floats:
        return theta @ self.matrix

    def errors(self, cov: Floats) -> Floats:
        """Standard errors of models of these covariances, (n, dim, dim)."""
        parts = [
            ((cov[at : at + CHUNK] @ self.matrix) * self.matrix).sum(axis=1)
            for at in range(0, len(cov), CHUNK)
        ]
        variance = np.concatenate(parts) if parts else np.zeros((0, self.matrix.shape[1]))
        with np.errstate(invalid="ignore"):
            return np.sqrt(np.where(variance >= 0, variance, np.nan))
