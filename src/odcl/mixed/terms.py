"""Data terms: all that squared loss needs of a user's rows, in a form that does not cancel.

A user's term is its number of rows, the means of [X y], and the triangular factor R of the centered
rows, R'R = sum over rows of w (row - mean)(row - mean)'. Raw sums X'X, X'y, y'y would
lose everything for a target of 1e9 + noise; means and factors lose nothing, and merge exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.mixed.mixture import Quadratics, by_row

CONSTANT = 1e-12  # a column whose deviation is below this share of its mean does not vary
DUPLICATE = 1e-10  # two standardized columns nearer than this are one column
RANK = 1e-9  # singular values below this share of a user's largest are directions it did not see


@dataclass(frozen=True, eq=False)
class DataTerms:
    """The data terms of ``n_users`` users with ``p`` features each."""

    rows: Floats  # (n_users,), with weights their sum
    mean: Floats  # (n_users, p + 1), of the features and, last, the target
    factor: Floats  # (n_users, p + 1, p + 1), upper triangular

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, users: Array | slice) -> DataTerms:
        return DataTerms(self.rows[users], self.mean[users], self.factor[users])


def data_terms(
    X: Floats, y: Floats, users: Ints, n_users: int, weights: Floats | None = None
) -> DataTerms:
    """The term of every user from its rows; ``users`` holds 0..n_users-1 for each row.

    ``weights`` say how often a row counts: a row of weight two is two equal rows. A user's term is
    the same bit for bit alone and in any batch.
    """
    w = np.ones(len(y)) if weights is None else np.asarray(weights, np.float64)
    rows = np.column_stack([X, y]).astype(np.float64)
    seen = w > 0
    rows, w, users = rows[seen], w[seen], users[seen]
    width = rows.shape[1]
    total, mean = np.zeros(n_users), np.zeros((n_users, width))
    factor = np.zeros((n_users, width, width))
    for who, index in by_size(users, n_users):
        block, weight = rows[index], w[index][..., None]
        total[who] = weight[..., 0].sum(axis=1)
        scale = total[who][:, None]
        # The second pass takes out what rounding left in the mean of 1e9 + noise.
        first = (weight * block).sum(axis=1) / scale
        mean[who] = first + (weight * (block - first[:, None])).sum(axis=1) / scale
        factor[who] = _triangle(np.sqrt(weight) * (block - mean[who][:, None]))
    return DataTerms(total, mean, factor)


def by_size(users: Ints, n_users: int) -> list[tuple[Ints, Ints]]:
    """Users with equally many rows, and their rows' positions (users, rows): one stack each."""
    order = np.argsort(users, kind="stable")
    counts = np.bincount(users, minlength=n_users)
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    sizes = [np.flatnonzero(counts == n) for n in np.unique(counts[counts > 0])]
    return [(who, order[starts[who][:, None] + np.arange(counts[who[0]])]) for who in sizes]


def _triangle(a: Floats) -> Floats:
    """The upper triangular factor of each matrix of a stack, padded with zero rows to a square."""
    width = a.shape[-1]
    if a.shape[-2] < width:
        pad = np.zeros((*a.shape[:-2], width - a.shape[-2], width))
        a = np.concatenate([a, pad], axis=-2)
    factor: Floats = np.linalg.qr(a, mode="r")  # type: ignore[assignment]
    return factor


def merge(terms: DataTerms) -> DataTerms:
    """One term for all rows of all ``terms`` (Chan's formulas, on factors instead of sums).

        mean = sum w_i mean_i / w,   R'R = sum R_i'R_i + sum w_i (mean_i - mean)(mean_i - mean)'

    The factor comes from one triangularization of the stacked R_i and sqrt(w_i) (mean_i - mean).
    """
    weight = terms.rows.sum()
    share = terms.rows / weight if weight > 0 else np.zeros(len(terms))
    anchor = terms.mean[np.argmax(share)]
    mean = anchor + share @ (terms.mean - anchor)
    between = np.sqrt(terms.rows)[:, None] * (terms.mean - mean)
    stack = np.concatenate([terms.factor.reshape(-1, len(mean)), between])
    return DataTerms(np.array([weight]), mean[None], _triangle(stack)[None])


@dataclass(frozen=True, eq=False)
class Coordinates:
    """Canonical coordinates of a federation, read off its summed terms.

    A design row is z = [1, (x_kept - shift) / scale] (no 1 without an intercept), and the target
    is (y - target_shift) / target_scale - z'reference: users are seen relative to the pooled fit.
    What is estimated in z does not depend on the units, the origin or the copies of a feature.
    """

    intercept: bool
    kept: Ints  # (q,), the features in use
    shift: Floats  # (q,)
    scale: Floats  # (q,)
    target_shift: float
    target_scale: float
    reference: Floats  # (dim,), the pooled fit
    n_features: int
    dropped: tuple[tuple[str, str], ...]  # (feature, why)

    @property
    def dim(self) -> int:
        return len(self.reference)

    def design(self, X: Floats) -> Floats:
        """The design rows of ``X`` (rows, n_features), as (rows, dim)."""
        z = (X[:, self.kept] - self.shift) / self.scale
        return np.column_stack([np.ones(len(z)), z]) if self.intercept else z

    def target(self, y: Floats, z: Floats) -> Floats:
        relative = by_row(z, self.reference[:, None])[:, 0]
        return (y - self.target_shift) / self.target_scale - relative

    def prediction(self, relative: Floats, z: Floats) -> Floats:
        """The target in its own units, from what was predicted relative to the pooled fit."""
        return self.target_shift + self.target_scale * (relative + z @ self.reference)

    def raw(self) -> tuple[Floats, Floats]:
        """(offset, map): [coefficients, intercept] in the table's units are offset + map @ theta.

        Dropped features have the coefficient zero; the map also carries covariances.
        """
        p, q = self.n_features, len(self.kept)
        change = np.zeros((p + 1, self.dim))
        slopes = np.arange(q) + int(self.intercept)
        change[self.kept, slopes] = self.target_scale / self.scale
        change[p, slopes] = -self.target_scale * self.shift / self.scale
        if self.intercept:
            change[p, 0] = self.target_scale
        offset = change @ self.reference
        offset[p] += self.target_shift
        return offset, change


def coordinates(
    terms: DataTerms, *, intercept: bool = True, names: Sequence[str] | None = None
) -> Coordinates:
    """Canonical coordinates: centered by the intercept, scaled, constants and copies dropped."""
    total = merge(terms)
    weight, mean, factor = max(float(total.rows[0]), 1e-300), total.mean[0], total.factor[0]
    p = len(mean) - 1
    names = [f"feature {j}" for j in range(p)] if names is None else list(names)
    root = factor[:, :p]
    if not intercept:  # nothing takes the mean out, so the mean is part of the column
        root = np.vstack([np.sqrt(weight) * mean[:p], root])
    norm = np.linalg.norm(root, axis=0)
    size = np.abs(mean[:p]) * np.sqrt(weight)
    flat = norm <= (CONSTANT * size if intercept else 0.0)
    unit = root / np.where(flat, 1.0, norm)
    near = DUPLICATE + 1e-14 * size / np.where(flat, 1.0, norm)
    dropped = [(names[j], "constant") for j in np.flatnonzero(flat)]
    kept: list[int] = []
    for j in np.flatnonzero(~flat):
        twin = _twin(unit, int(j), kept, near)
        if twin is None:
            kept.append(int(j))
        else:
            dropped.append((names[j], f"a copy of {names[twin]}"))
    shift = mean[kept] if intercept else np.zeros(len(kept))
    scale = norm[kept] / np.sqrt(weight)
    return _pooled(factor, weight, mean, np.array(kept, np.intp), shift, scale, intercept, dropped)


def _twin(unit: Floats, j: int, kept: list[int], near: Floats) -> int | None:
    """The first kept column that is column ``j`` up to shift, scale and sign."""
    if not kept:
        return None
    sign = np.where(unit[:, kept].T @ unit[:, j] < 0, -1.0, 1.0)
    gap = np.linalg.norm(unit[:, kept] * sign - unit[:, [j]], axis=0)
    close = np.flatnonzero(gap <= np.maximum(near[kept], near[j]))
    return kept[close[0]] if len(close) else None


def _pooled(
    factor: Floats,
    weight: float,
    mean: Floats,
    kept: Ints,
    shift: Floats,
    scale: Floats,
    intercept: bool,
    dropped: list[tuple[str, str]],
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
    return Coordinates(
        intercept, kept, shift, scale, origin, unit, reference / unit, p, tuple(dropped)
    )


def quadratics(terms: DataTerms, coordinates: Coordinates) -> Quadratics:
    """Every user's A = Z'Z, b = Z'u and uu in canonical coordinates, u relative to the pooled fit.

    They are sums of squares of the root [sqrt(w) (z_mean, u_mean); (R_z, R_u)], in which the
    reference was subtracted before anything was squared.
    """
    at = coordinates
    lead = np.sqrt(terms.rows)[:, None]
    slopes = at.reference[int(at.intercept) :]
    z_mean = (terms.mean[:, at.kept] - at.shift) / at.scale
    u_mean = (terms.mean[:, -1:] - at.target_shift) / at.target_scale - by_row(
        z_mean, slopes[:, None]
    )
    R_z = np.ascontiguousarray(terms.factor[:, :, at.kept]) / at.scale  # one layout: same bits
    R_u = terms.factor[:, :, -1] / at.target_scale - R_z @ slopes
    u = np.concatenate([lead * u_mean, R_u], axis=1)[..., None]
    root = np.concatenate([(lead * z_mean)[:, None], R_z], axis=1)
    if at.intercept:
        ones = np.zeros((len(terms), root.shape[1], 1))
        ones[:, 0] = lead
        root = np.concatenate([ones, root], axis=2)
    rank, pure = _pure_error(root, u, terms.rows)
    A = root.transpose(0, 2, 1) @ root
    b = (root.transpose(0, 2, 1) @ u)[..., 0]
    return Quadratics(A, b, (u**2).sum(axis=(1, 2)), terms.rows, terms.rows - rank, pure)


def _pure_error(root: Floats, u: Floats, rows: Floats) -> tuple[Floats, Floats]:
    """Rank of each user's rows, and the residual sum of squares of its own least squares."""
    left, singular, _ = np.linalg.svd(root, full_matrices=False)
    seen = singular > RANK * np.maximum(singular[:, :1], 1e-300)
    rank = np.minimum(seen.sum(axis=1), rows)
    along = np.where(seen, (left.transpose(0, 2, 1) @ u)[..., 0], 0.0)
    rest = u[..., 0] - (left @ along[..., None])[..., 0]
    return rank, np.where(rows > rank, (rest**2).sum(axis=1), 0.0)
