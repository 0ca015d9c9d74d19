"""The numbers of a model: in a fit's own coordinates, and as users have them.

Canonical coordinates depend on no column's unit, origin or copies; a mixture of squared loss lives
in them, relative to the pooled fit. Gaussian terms have the intercept first, one block per logit,
and the last class for reference. A user's model is flat: one row per feature, the intercept last,
outputs side by side. :func:`model_map` takes the numbers of any mixture to those of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Floats, Ints
from odcl.mixed.mixture import by_row
from odcl.mixed.terms import RANK, DataTerms, Levels, merge
from odcl.risk.risk import Factor, Risk

if TYPE_CHECKING:
    from odcl.mixed.posterior import Mixture

CONSTANT = 1e-12  # a column whose deviation is below this share of its mean does not vary
DUPLICATE = 1e-10  # two standardized columns nearer than this are one column


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Canonical coordinates of a federation, read off its summed terms.

    A design row is z = [1, (x_kept - shift) / scale] (no 1 without an intercept), and the target
    is (y - target_shift) / target_scale - z'reference: users are seen relative to the pooled fit.
    What is estimated in z does not depend on the units, the origin or the copies of a feature, nor
    on which level of a declared factor is its reference: all of them are among the columns x.
    """

    intercept: bool
    kept: Ints  # (q,), the columns in use: features and, after them, references of factors
    shift: Floats  # (q,)
    scale: Floats  # (q,)
    target_shift: float
    target_scale: float
    reference: Floats  # (dim,), the pooled fit
    n_features: int
    factors: tuple[Factor, ...] = ()

    @property
    def dim(self) -> int:
        return len(self.reference)

    @cached_property
    def levels(self) -> Levels:
        return Levels.of(self.factors, self.n_features)

    def design(self, X: Floats) -> Floats:
        """The design rows of ``X`` (rows, n_features), as (rows, dim)."""
        z = (self.levels.rows(X)[:, self.kept] - self.shift) / self.scale
        return np.column_stack([np.ones(len(z)), z]) if self.intercept else z

    def target(self, y: Floats, z: Floats) -> Floats:
        relative = by_row(z, self.reference[:, None])[:, 0]
        return (y - self.target_shift) / self.target_scale - relative

    def raw(self) -> tuple[Floats, Floats]:
        """(offset, map): [coefficients, intercept] in the table's units are offset + map @ theta.

        Dropped features have the coefficient zero; the map also carries covariances.
        """
        p, q = self.n_features, len(self.kept)
        slopes = np.arange(q) + int(self.intercept)
        change = np.zeros((1 + p + len(self.factors), self.dim))  # [intercept, all columns]
        change[1 + self.kept, slopes] = self.target_scale / self.scale
        change[0, slopes] = -self.target_scale * self.shift / self.scale
        if self.intercept:
            change[0, 0] = self.target_scale
        change = np.roll(self.levels.expansion.T @ change, -1, axis=0)
        offset = change @ self.reference
        offset[p] += self.target_shift
        return offset, change


def coordinates(
    terms: DataTerms,
    usual: DataTerms | None = None,
    *,
    intercept: bool = True,
    factors: Sequence[Factor] = (),
) -> Coordinates:
    """Canonical coordinates: factors with all levels, centered by the intercept, scaled, and
    constants and copies dropped.

    Which columns there are is told by all ``terms``; units, origins and the pooled fit by those of
    ``usual`` users, where these are others: nobody sets everybody's units by a mistake.
    """
    levels = Levels.of(factors, terms.mean.shape[1] - 1)
    total = merge(levels.terms(terms))
    weight, mean, factor = max(float(total.rows[0]), 1e-300), total.mean[0], total.factor[0]
    p = len(mean) - 1
    root = factor[:, :p]
    if not intercept:  # nothing takes the mean out, so the mean is part of the column
        root = np.vstack([np.sqrt(weight) * mean[:p], root])
    norm = np.linalg.norm(root, axis=0)
    size = np.abs(mean[:p]) * np.sqrt(weight)
    if factors:  # a reference's column is as exact as the columns that it is the rest of
        own = len(levels.weights)
        parts = (norm[:own] + size[:own]) @ np.abs(levels.weights)
        size[own:] = np.abs(levels.constant) * np.sqrt(weight) + parts
    flat = norm <= (CONSTANT * size if intercept else 0.0)
    unit = root / np.where(flat, 1.0, norm)
    near = DUPLICATE + 1e-14 * size / np.where(flat, 1.0, norm)
    kept: list[int] = []
    for j in np.flatnonzero(~flat).tolist():
        if not _is_copy(unit, j, kept, near):
            kept.append(j)
    shift = mean[kept] if intercept else np.zeros(len(kept))
    scale = norm[kept] / np.sqrt(weight)
    columns = np.array(kept, np.intp)
    if usual is not None:
        total = merge(levels.terms(usual))
        weight, mean, factor = max(float(total.rows[0]), 1e-300), total.mean[0], total.factor[0]
        square = (factor[:, kept] ** 2).sum(axis=0) / weight + (mean[kept] ** 2) * (not intercept)
        varies = square > (CONSTANT * mean[kept]) ** 2
        shift = np.where(varies, mean[kept], shift) if intercept else shift
        scale = np.where(varies, np.sqrt(square), scale)
    at = _pooled(factor, weight, mean, columns, shift, scale, intercept)
    return replace(at, n_features=len(levels.weights), factors=tuple(factors))


def _is_copy(unit: Floats, j: int, kept: list[int], near: Floats) -> bool:
    """Is a kept column the column ``j`` up to shift, scale and sign?"""
    sign = np.where(unit[:, kept].T @ unit[:, j] < 0, -1.0, 1.0)
    gap = np.linalg.norm(unit[:, kept] * sign - unit[:, [j]], axis=0)
    return bool((gap <= np.maximum(near[kept], near[j])).any())


def _pooled(
    factor: Floats,
    weight: float,
    mean: Floats,
    kept: Ints,
    shift: Floats,
    scale: Floats,
    intercept: bool,
) -> Coordinates:
    """Coordinates whose reference is the pooled least squares and whose noise is about one."""
    root, target = factor[:, kept] / scale, factor[:, -1]
    origin = mean[-1] if intercept else 0.0
    if not intercept:
        root = np.vstack([np.sqrt(weight) * mean[kept] / scale, root])
        target = np.concatenate([[np.sqrt(weight) * mean[-1]], target])
    slopes = np.linalg.lstsq(root, target, rcond=RANK)[0] if len(kept) else np.zeros(0)
    spread = np.linalg.norm(target)
    unit = np.linalg.norm(target - root @ slopes)
    # A target that the features explain to the last digit has no noise to be measured by.
    if unit <= 1e-12 * spread or unit <= CONSTANT * abs(origin) * np.sqrt(weight):
        unit = spread if spread > CONSTANT * abs(origin) * np.sqrt(weight) else np.sqrt(weight)
    unit = unit / np.sqrt(weight)
    reference = np.concatenate([[0.0], slopes]) if intercept else slopes
    p = len(mean) - 1
    return Coordinates(intercept, kept, shift, scale, origin, unit, reference / unit, p)


# -- from a mixture to models ---------------------------------------------------------------------


def plain_coordinates(n_features: int, risk: Risk) -> Coordinates:
    """Columns as they are: those of Gaussian terms, whose scales were agreed beforehand."""
    n_columns = n_features + len(risk.factors)
    zeros, ones, dim = np.zeros(n_columns), np.ones(n_columns), risk.dim(n_columns)
    columns, reference = np.arange(n_columns), np.zeros(dim)
    return Coordinates(
        *(risk.intercept, columns, zeros, ones, 0.0, 1.0, reference, n_features),
        factors=risk.factors,
    )


def squared_map(at: Coordinates) -> tuple[Floats, Floats]:
    """(offset, map): a model of squared loss is offset + map @ theta."""
    offset, change = at.raw()
    return (offset, change) if at.intercept else (offset[:-1], change[:-1])


def gaussian_map(n_features: int, intercept: bool, basis: Floats | None) -> Floats:
    """The matrix that takes a term's numbers to a model; ``basis`` (n_classes, n_classes - 1)."""
    inputs = n_features + intercept
    order = np.roll(np.arange(inputs), -1) if intercept else np.arange(inputs)
    place = np.eye(inputs)[order]
    turn = np.ones((1, 1)) if basis is None else basis[:-1]
    # From (logit, input) to (input, output).
    return np.einsum("ij,lo->iolj", place, turn).reshape(inputs * turn.shape[1], -1)


def gaussian_expansion(n_features: int, risk: Risk) -> Floats:
    """The matrix that takes a term of the features to one of all levels, logit by logit."""
    if not risk.factors:
        return np.eye(risk.dim(n_features))
    all_levels = np.kron(np.eye(risk.n_outputs), Levels.of(risk.factors, n_features).expansion)
    return np.asarray(all_levels, np.float64)


def reference_logits(z: Floats, S: Floats, basis: Floats | None) -> tuple[Floats, Floats]:
    """Outputs of a model, (n, q), and their covariances as logits against the last class."""
    if basis is None:
        return z, S
    against = basis[:-1] - basis[-1]
    return by_row(z, against.T), against @ S @ against.T


def without_rows(mixture: Mixture, risk: Risk) -> tuple[Floats, Floats]:
    """Models of users without rows, and covariances: one in each group, last one in any of them."""
    offset, change = model_map(mixture, risk)
    c, shares, V = mixture.centers, mixture.weights, mixture.inside + mixture.covariances
    away = c - shares @ c
    anywhere = np.tensordot(shares, V, axes=1) + (away.T * shares) @ away
    models, V = np.vstack([c, shares @ c]), np.concatenate([V, anywhere[None]])
    return offset + models @ change.T, change @ V @ change.T


def model_spread(mixture: Mixture, risk: Risk) -> Floats:
    """How users of a group differ, as a covariance of their models, (dim, dim)."""
    change = model_map(mixture, risk)[1]
    return change @ mixture.inside @ change.T


def model_map(mixture: Mixture, risk: Risk) -> tuple[Floats, Floats]:
    """(offset, map): a user's model is offset + map @ theta, theta in the mixture's coordinates."""
    if risk.loss.has_data_terms:
        return squared_map(mixture.coordinates)
    at = mixture.coordinates
    change = gaussian_map(at.n_features, at.intercept, getattr(risk.loss, "basis", None))
    change = change @ gaussian_expansion(at.n_features, risk).T
    return np.zeros(len(change)), change
