"""Data terms: all that squared loss needs of a user's rows, in a form that does not cancel.

A user's term is its number of rows, the means of [X y], and the triangular factor R of the centered
rows, R'R = sum over rows of w (row - mean)(row - mean)'. Raw sums X'X, X'y, y'y would
lose everything for a target of 1e9 + noise; means and factors lose nothing, and merge exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import row_order
from odcl.mixed.marginal import stack_size
from odcl.mixed.mixture import Quadratics, by_row
from odcl.risk.risk import Factor

if TYPE_CHECKING:
    from odcl.mixed.layout import Coordinates

DEPENDENT = (
    1e-6  # what is left of a column's square given others, below which squares are not formed
)
LONG = 256  # numbers of rows side by side
CHUNK = 200_000  # numbers of a stack of rows that stay near the processor
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
    w = None if weights is None else np.asarray(weights, np.float64)
    if w is not None and not (w > 0).all():
        seen = w > 0
        X, y, users, w = X[seen], y[seen], users[seen], w[seen]
    width = X.shape[1] + 1
    total, mean = np.zeros(n_users), np.zeros((n_users, width))
    factor = np.zeros((n_users, width, width))
    for who, index in by_size(users, n_users, most=CHUNK // width):
        block = np.empty((*index.shape, width))
        block[..., :-1], block[..., -1] = stacked_rows(X, index), stacked_rows(y, index)
        weight = np.ones((1, 1, index.shape[1])) if w is None else w[index][:, None]
        total[who] = weight[:, 0].sum(axis=1)
        for _ in range(2):  # the second pass takes out what rounding left of a mean of 1e9
            sums = np.matmul(weight, block)[:, 0] / total[who][:, None]
            mean[who] += sums
            subtract_rows(block, sums)
        if w is not None:
            block *= np.sqrt(weight[:, 0, :, None])
        factor[who] = triangle(block)
    return DataTerms(total, mean, factor)


def subtract_rows(block: Floats, row: Floats) -> None:
    """Take a row (users, width) off all rows of a user's (users, rows, width), in place.

    NumPy's loop over a short row costs more than the arithmetic: some rows go side by side.
    """
    n, rows, width = block.shape
    k = max(k for k in range(1, max(LONG // width, 1) + 1) if rows % k == 0)
    together = block.reshape(n, rows // k, k * width)
    together -= np.tile(row, k)[:, None]


def by_size(users: Ints, n_users: int, most: int = 2**62) -> list[tuple[Ints, Ints]]:
    """Users with equally many rows, and their rows' positions (users, rows): one stack each.

    A stack has at most ``most`` rows, or one user.
    """
    order = row_order(users)
    order = np.arange(len(users)) if order is None else order
    counts = np.bincount(users, minlength=n_users)
    starts = np.concatenate([[0], np.cumsum(counts)])[:-1]
    stacks = []
    for n in np.unique(counts[counts > 0]):
        alike = np.flatnonzero(counts == n)
        step = min(max(most // int(n), 1), len(alike))
        for first in range(0, len(alike), step):
            who = alike[first : first + step]
            stacks.append((who, order[starts[who][:, None] + np.arange(n)]))
    return stacks


def stacked_rows(values: Floats, index: Ints) -> Floats:
    """values[index]: of neighbours in the table, which most stacks hold, without a copy."""
    first = int(index[0, 0])
    if index[-1, -1] - first + 1 == index.size and (np.diff(index.ravel()) == 1).all():
        return values[first : first + index.size].reshape(*index.shape, *values.shape[1:])
    return values[index]


def triangle(a: Floats) -> Floats:
    """The upper triangular factor R of each matrix of a stack, R'R = a'a.

    From a'a itself where its columns are far from dependent on one another (what is left of one
    given those before it is more than 1e-6 of it, so that R is exact to 1e-10), else from a.
    """
    rows, width = a.shape[-2:]
    if rows < width:
        factor = np.zeros((len(a), width, width))
        factor[:, :rows] = np.linalg.qr(a, mode="r")
        return factor
    factor, sure = _cholesky(a.transpose(0, 2, 1) @ a)
    if not sure.all():
        factor[~sure] = np.linalg.qr(a[~sure], mode="r")
    return factor


def _cholesky(A: Floats) -> tuple[Floats, Bools]:
    """Upper factors of a stack of positive semi-definite A, and which of them can be relied on."""
    L = np.zeros_like(A)
    try:
        L[:] = np.linalg.cholesky(A)
    except np.linalg.LinAlgError:
        for i in range(len(A)):  # one by one, so that nobody's numbers depend on others'
            with suppress(np.linalg.LinAlgError):
                L[i] = np.linalg.cholesky(A[i])
    size, left = (np.diagonal(m, axis1=1, axis2=2) for m in (A, L))
    sure: Bools = np.asarray((left**2 > DEPENDENT * size).all(axis=1))
    return L.transpose(0, 2, 1), sure


def merge(terms: DataTerms) -> DataTerms:
    """One term for all rows of all ``terms``; see :func:`merge_by_user`."""
    return merge_by_user(terms, np.zeros(len(terms), np.intp), 1)


def merge_by_user(terms: DataTerms, users: Ints, n_users: int) -> DataTerms:
    """One term per user from ``terms`` of some of its rows each; ``users`` says whose they are.

        mean = sum w_i mean_i / w,   R'R = sum R_i'R_i + sum w_i (mean_i - mean)(mean_i - mean)'

    These are Chan's formulas on factors instead of sums: the factor comes from one
    triangularization of the stacked R_i and sqrt(w_i) (mean_i - mean).
    """
    width = terms.mean.shape[1]
    total, mean = np.zeros(n_users), np.zeros((n_users, width))
    factor = np.zeros((n_users, width, width))
    for who, index in by_size(users, n_users, most=max(CHUNK // width**2, 1)):
        rows, means = terms.rows[index], terms.mean[index]
        weight = rows.sum(axis=1)
        share = rows / np.where(weight > 0, weight, 1.0)[:, None]
        anchor = np.take_along_axis(means, share.argmax(axis=1)[:, None, None], axis=1)
        own = anchor + share[:, None] @ (means - anchor)
        between = np.sqrt(rows)[..., None] * (means - own)
        stack = stacked_rows(terms.factor, index).reshape(len(who), -1, width)
        total[who], mean[who] = weight, own[:, 0]
        factor[who] = triangle(np.concatenate([stack, between], axis=1))
    return DataTerms(total, mean, factor)


@dataclass(frozen=True, eq=False)
class Levels:
    """All levels of declared factors: the references' columns follow the ``n_features`` others.

    They are constant + x @ weights; the models of all levels become models of the features by the
    transpose, as x_all'theta = x'(theta + weights theta_references) + constant'theta_references.
    """

    constant: Floats  # (n_factors,)
    weights: Floats  # (n_features, n_factors)

    @staticmethod
    def of(factors: Sequence[Factor], n_features: int) -> Levels:
        weights = np.zeros((n_features, len(factors)))
        for f, factor in enumerate(factors):
            if max(factor.columns) >= n_features:
                raise ValueError(
                    f"A factor has column {max(factor.columns)}, and there are {n_features} "
                    "features, counted from 0."
                )
            weights[list(factor.columns), f] = factor.weights
        return Levels(np.array([factor.constant for factor in factors]), weights)

    @property
    def expansion(self) -> Floats:
        """(1 + n_features + n_factors, 1 + n_features): [1, x] -> [1, x, references]."""
        p = len(self.weights)
        last = np.concatenate([self.constant[None], self.weights]).T
        return np.vstack([np.eye(1 + p), last])

    def rows(self, X: Floats) -> Floats:
        """Rows with the references' columns; a row's numbers do not depend on the others."""
        if not len(self.constant):
            return X
        return np.column_stack([X, self.constant + by_row(X, self.weights)])

    def terms(self, terms: DataTerms) -> DataTerms:
        """Data terms with the references' columns before the target's."""
        if not len(self.constant):
            return terms
        R = terms.factor
        new = np.ascontiguousarray(R[..., :-1]) @ self.weights
        mean = np.column_stack([self.rows(terms.mean[:, :-1]), terms.mean[:, -1]])
        return DataTerms(terms.rows, mean, np.concatenate([R[..., :-1], new, R[..., -1:]], axis=2))


def quadratics(terms: DataTerms, coordinates: Coordinates, *, pure: bool = True) -> Quadratics:
    """Every user's A = Z'Z, b = Z'u and uu in canonical coordinates, u relative to the pooled fit.

    They are sums of squares of the root [sqrt(w) (z_mean, u_mean); (R_z, R_u)], in which the
    reference was subtracted before anything was squared. Without ``pure``, the users' own least
    squares, which tell their own noise, are left out.
    """
    n, dim = len(terms), coordinates.dim
    A, b, uu = np.empty((n, dim, dim)), np.empty((n, dim)), np.empty(n)
    dof, error = np.zeros(n), np.zeros(n)
    step = stack_size(dim)
    all_kept = len(coordinates.kept) == coordinates.n_features and not coordinates.factors
    every = coordinates.intercept and all_kept and coordinates.common is None
    for first in range(0, n, step):
        part = slice(first, first + step)
        root, u = _root(terms[part], coordinates)
        back = root.transpose(0, 2, 1)
        np.matmul(back, root, out=A[part])
        b[part], uu[part] = (back @ u)[..., 0], (u**2).sum(axis=(1, 2))
        if pure:
            told = A[part], b[part]
            if coordinates.common is not None:
                own = coordinates.common == 0
                u = u - root @ coordinates.common[:, None]
                root = np.ascontiguousarray(root[..., own])
                back = root.transpose(0, 2, 1)
                told = back @ root, (back @ u)[..., 0]
            rank, error[part] = _pure_error(root, u, *told, terms.rows[part], triangular=every)
            dof[part] = terms.rows[part] - rank
    level, bends = coordinates.intercept, coordinates.bends
    return Quadratics(A, b, uu, terms.rows, dof, error, level=level, bends=bends)


def _root(terms: DataTerms, at: Coordinates) -> tuple[Floats, Floats]:
    """The roots [Z u] of a stack of users: (users, p + 2, dim) and (users, p + 2, 1)."""
    terms = at.levels.terms(terms)
    lead = np.sqrt(terms.rows)[:, None]
    slopes = at.reference[int(at.intercept) :]
    z_mean = (terms.mean[:, at.kept] - at.shift) / at.scale
    u_mean = (terms.mean[:, -1:] - at.target_shift) / at.target_scale - by_row(
        z_mean, slopes[:, None]
    )
    R_z = np.ascontiguousarray(terms.factor[:, :, at.kept]) / at.scale  # one layout: same bits
    R_u = terms.factor[:, :, -1] / at.target_scale - R_z @ slopes
    root = np.zeros((len(terms), 1 + R_z.shape[1], at.dim))
    root[:, :1, int(at.intercept) :] = (lead * z_mean)[:, None]
    root[:, 1:, int(at.intercept) :] = R_z
    if at.intercept:
        root[:, 0, 0] = lead[:, 0]
    return root, np.concatenate([lead * u_mean, R_u], axis=1)[..., None]


def _pure_error(
    root: Floats, u: Floats, A: Floats, b: Floats, rows: Floats, *, triangular: bool
) -> tuple[Ints, Floats]:
    """Rank of each user's rows, and the residual sum of squares of its own least squares.

    Of a ``triangular`` root (but for its first row, which is the intercept's), the last entry of u
    is what the columns cannot explain.
    """
    rank, rest = np.full(len(root), root.shape[2]), np.zeros_like(u)
    sure = _cholesky(A)[1]
    if triangular:
        rest[:, -1] = u[:, -1]
    elif sure.any():
        rest[sure] = u[sure] - root[sure] @ np.linalg.solve(A[sure], b[sure][..., None])
    if not sure.all():
        left, singular, _ = np.linalg.svd(root[~sure], full_matrices=False)
        seen = singular > RANK * np.maximum(singular[:, :1], 1e-300)
        rank[~sure] = seen.sum(axis=1)
        along = np.where(seen[..., None], left.transpose(0, 2, 1) @ u[~sure], 0.0)
        rest[~sure] = u[~sure] - left @ along
    rank = np.minimum(rank, rows)
    return rank, np.where(rows > rank, (rest**2).sum(axis=(1, 2)), 0.0)
