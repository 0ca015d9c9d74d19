"""The numbers of a model: in a fit's own coordinates, and as users have them.

Canonical coordinates depend on no column's unit, origin or copies; a mixture of squared loss lives
in them, relative to the pooled fit. Gaussian terms have the intercept first, one block per logit,
and the last class for reference; they come in their users' own units. A user's model is flat: one
row per feature, the intercept last, outputs side by side. :func:`model_map` takes the numbers of
any mixture to those of a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.mixed.mixture import Bends, by_row
from odcl.mixed.terms import RANK, DataTerms, Levels, merge
from odcl.risk.risk import Curve, Factor, Risk

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
    curves: tuple[Curve, ...] = ()
    common: Floats | None = None  # (dim,), bends that all users share, 0 elsewhere

    @property
    def dim(self) -> int:
        return len(self.reference)

    @cached_property
    def bends(self) -> Bends | None:
        """Which coordinates are bends of a curve; None: none of them."""
        inputs = len(self.kept) + int(self.intercept)
        of, rough = np.full(inputs, -1), np.ones(inputs)
        for i, curve in enumerate(self.curves):
            from odcl.data.curves import roughness

            for j, size in zip(curve.columns, roughness(curve), strict=True):
                at = np.flatnonzero(self.kept == j) + int(self.intercept)
                of[at], rough[at] = i, size
        D = self.dim // inputs  # logits, one after the other
        return Bends(np.tile(of, D), np.tile(rough, D)) if (of >= 0).any() else None

    @property
    def opened(self) -> tuple[Curve, ...]:
        """The curves that have bends here."""
        return () if self.bends is None else tuple(self.curves[i] for i in self.bends.curves)

    def of_curves(self, opened: Bools, common: Floats | None = None) -> Coordinates:
        """Without the bends of curves that are not ``opened`` (n_curves,)."""
        if self.bends is None:
            return self
        stay = (self.bends.of < 0) | opened[self.bends.of]
        columns = stay[int(self.intercept) : int(self.intercept) + len(self.kept)]
        return replace(
            self,
            kept=self.kept[columns],
            shift=self.shift[columns],
            scale=self.scale[columns],
            reference=self.reference[stay],
            common=None if common is None or not common[stay].any() else common[stay],
        )

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
    curves: Sequence[Curve] = (),
) -> Coordinates:
    """Canonical coordinates: factors with all levels, centered by the intercept, scaled, and
    constants and copies dropped. Bends of ``curves`` keep their units; the pooled fit has none.

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
    bent = np.isin(columns, [j for curve in curves for j in curve.columns])
    scale = np.where(bent, 1.0, scale)
    at = _pooled(factor, weight, mean, columns, shift, scale, intercept, ~bent)
    own = len(levels.weights)
    return replace(at, n_features=own, factors=tuple(factors), curves=tuple(curves))


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
    lines: Bools,
) -> Coordinates:
    """Coordinates whose reference is the pooled least squares and whose noise is about one.

    The reference is zero but for the columns that are ``lines``.
    """
    root, target = factor[:, kept] / scale, factor[:, -1]
    origin = mean[-1] if intercept else 0.0
    if not intercept:
        root = np.vstack([np.sqrt(weight) * mean[kept] / scale, root])
        target = np.concatenate([[np.sqrt(weight) * mean[-1]], target])
    slopes = np.zeros(len(kept))
    if lines.any():
        slopes[lines] = np.linalg.lstsq(root[:, lines], target, rcond=RANK)[0]
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


def gaussian_coordinates(
    mean: Floats,
    sd: Floats,
    risk: Risk,
    factors: tuple[Factor, ...] = (),
    curves: tuple[Curve, ...] = (),
) -> Coordinates:
    """Coordinates of Gaussian terms, from moments of all columns: those of ``factors`` are last.

    Bends of ``curves`` keep their units.
    """
    reference, n_features = np.zeros(risk.dim(len(mean))), len(mean) - len(factors)
    scale = units(mean, sd)
    scale[[j for curve in curves for j in curve.columns]] = 1.0
    columns = np.arange(len(mean)), mean, scale
    return Coordinates(risk.intercept, *columns, 0.0, 1.0, reference, n_features, factors, curves)


def units(mean: Floats, sd: Floats) -> Floats:
    """Units of columns: their standard deviations, or one where a column does not vary."""
    return np.where(sd > CONSTANT * np.abs(mean), sd, 1.0)


def from_own_units(mean: Floats, sd: Floats, at: Coordinates, n_outputs: int = 1) -> Floats:
    """P_i with A = P_i A_i P_i' and b = P_i b_i in common coordinates, (n_users, dim, D inputs).

    Users' terms have z_i = [1, (x - mean_i) / unit_i] (no 1, and no mean, without an intercept), of
    features alone: z = P z_i. ``mean`` and ``sd`` (n_users, n_columns) are those of all columns.
    """
    p, lead = at.n_features, int(at.intercept)
    columns = np.hstack([np.eye(p), at.levels.weights])[:, at.kept] / at.scale
    P = np.zeros((len(mean), lead + len(at.scale), lead + p))
    P[:, lead:, lead:] = (units(mean, sd)[:, :p, None] * columns).transpose(0, 2, 1)
    if lead:
        P[:, 0, 0] = 1.0
        P[:, 1:, 0] = (mean[:, at.kept] - at.shift) / at.scale
    return P if n_outputs == 1 else np.asarray(np.kron(np.eye(n_outputs), P), np.float64)


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
    zero = at.levels.rows(np.zeros((1, at.n_features)))  # the table's units as a user's own
    change = change @ from_own_units(zero, np.ones_like(zero), at, risk.n_outputs)[0].T
    return np.zeros(len(change)), change
