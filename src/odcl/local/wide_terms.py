"""The data terms of wide users: moments of their rows, by class or with the target.

Scatter is sent as contrasts of rows: weighted sums whose weights are orthonormal and sum to zero.
n rows of covariance Sigma have n - 1 such contrasts, each of covariance Sigma, and all of them
together are the scatter of the rows. Which rows get which weights is decided by a hash of the rows
themselves, so that a term depends on neither the order of rows nor other users.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import Federation, stirred
from odcl.exchange.upload import MOST_RANK, n_draws
from odcl.mixed.terms import by_size, triangle
from odcl.risk.risk import Risk

CHUNK = 50_000  # numbers of rows that are taken together and stay near the processor


def wide_terms(federation: Federation, risk: Risk, *, short_terms: bool = True) -> dict[str, Array]:
    """The fields of an upload that hold the data terms of wide users."""
    terms = _class_terms if risk.loss.classification else _thin_terms
    return terms(federation, risk, short_terms)


def _class_terms(federation: Federation, risk: Risk, short_terms: bool) -> dict[str, Array]:
    """Counts, means and scatter of the users' rows by class.

    ``scatter`` has ``n_draws`` rows per user, shared evenly among its classes: all n_c - 1
    contrasts of a class where that many fit, else a few of them. ``scatter_class`` is -1 for rows
    that are not needed.

    With weights w a class counts sum w rows. Its rows are taken as independent and its contrasts
    scaled to their covariance, S (n_c - 1) / (sum w - sum w^2 / sum w) with S the weighted scatter.

    Without ``short_terms`` a class with one row (or equal ones) keeps its mean to itself and sends
    its count, and a class sends at most half of its contrasts, of two rows none: its rows cannot be
    worked out from them.
    """
    m, d, n_classes = federation.n_users, federation.n_features, risk.n_outputs + 1
    code = np.maximum(risk.loss.encode(federation.y), 0.0).astype(np.intp)
    code += n_classes * federation.row_user
    count = np.bincount(code, minlength=m * n_classes)
    free = np.maximum(count - 1, 0).reshape(m, n_classes)
    if not short_terms:
        free //= 2
    s = n_draws(n_classes, d)
    share = shared_out(free, s)
    first = (np.cumsum(share, axis=1) - share + s * np.arange(m)[:, None]).ravel()
    share = share.ravel()
    rows = np.zeros(m * n_classes)
    means = np.zeros((m * n_classes, d), np.float32)
    scatter, of = np.zeros((m * s, d), np.float32), np.full(m * s, -1, np.int16)
    for block in centered_rows(federation.X, federation.y, code, len(count), federation.weight):
        who = block.who
        rows[who] = block.total
        means[who] = block.mean if short_terms else np.where(block.same[:, None], 0.0, block.mean)
        for k in np.unique(share[who][share[who] > 0]):
            some = np.flatnonzero(share[who] == k)
            at = first[who[some], None] + np.arange(k)
            draws = block.unit(some)[:, None, None] * block.contrasts(some, k)
            scatter[at] = draws.astype(np.float32)
            of[at] = who[some, None] % n_classes
    sent: dict[str, Array] = {
        "class_rows": rows.reshape(m, n_classes),
        "class_means": means.reshape(m, n_classes, d),
        "scatter": scatter.reshape(m, s, d),
        "scatter_class": of.reshape(m, s),
    }
    if not short_terms:
        sent["observations"] = np.where(means.any(axis=1), rows, 0.0).reshape(m, -1).sum(axis=1)
    return sent


def _thin_terms(federation: Federation, risk: Risk, short_terms: bool) -> dict[str, Array]:
    """Means and a thin factor F of features and target, F'F = sum w (row - mean)(row - mean)'.

    Of users with more rows than ``MOST_RANK``, F is a sketch with this scatter as its expectation.
    Without ``short_terms`` so is that of a user with fewer rows than parameters: half of its
    contrasts. With two rows it sends their average, and with one row (or equal ones) nothing.
    """
    m, width = federation.n_users, federation.n_features + 1
    short = np.full(m, not short_terms)
    short &= federation.n_rows < risk.dim(federation.n_features)
    rank = np.minimum((federation.n_rows - 1) // (1 + short), min(width, MOST_RANK))
    told = np.where(short & (rank == 0), 1.0, federation.n_samples)
    means = np.zeros((m, width))
    factor = np.zeros((m, max(int(rank.max()), 1), width), np.float32)
    table = np.column_stack([federation.X, risk.loss.encode(federation.y)])
    for block in centered_rows(table, table[:, -1], federation.row_user, m, federation.weight):
        who, (_, n, _) = block.who, block.rows.shape
        silent = short[who] & block.same
        told[who[silent]] = 0.0
        means[who] = np.where(silent[:, None], 0.0, block.mean)
        k, every = int(rank[who[0]]), np.arange(len(who))  # the same for all who have n rows
        if k == width:
            factor[who, :k] = triangle(block.rows)
        elif k:
            factor[who, :k] = np.sqrt((n - 1) / k) * block.contrasts(every, k)
    sent: dict[str, Array] = {"means": means, "thin_factor": factor}
    return sent if short_terms else {**sent, "observations": told}


def shared_out(free: Ints, s: int) -> Ints:
    """``s`` draws shared among classes with at most ``free`` (n_users, n_classes) each.

    All get the same number where they can; what is left goes to the largest classes.
    """
    level = np.zeros(len(free), np.intp)
    for one in range(1, s + 1):
        level[np.minimum(free, one).sum(axis=1) <= s] = one
    share = np.minimum(free, level[:, None])
    rank = np.argsort(np.argsort(-free, axis=1, kind="stable"), axis=1)
    return share + ((rank < s - share.sum(axis=1)[:, None]) & (free > share))


@dataclass(frozen=True, eq=False)
class CenteredRows:
    """Groups of equally many rows each, (n_groups, n, width), with their means subtracted."""

    who: Ints  # (n_groups,), which groups
    rows: Floats  # (n_groups, n, width), times the roots of their weights
    root: Floats | None  # (n_groups, n), of the weights
    mean: Floats  # (n_groups, width)
    total: Floats  # (n_groups,), sums of the weights
    same: Bools  # (n_groups,), are all rows of the group equal?
    seed: Array  # (n_groups,), a hash of the rows

    def unit(self, some: Ints) -> Floats:
        """What makes contrasts of some groups have the covariance of a row, (len(some),)."""
        if self.root is None:
            return np.ones(len(some))
        w, total = self.root[some] ** 2, self.total[some]
        unit: Floats = np.sqrt((w.shape[1] - 1) / (total - (w**2).sum(axis=1) / total))
        return unit

    def contrasts(self, some: Ints, k: int) -> Floats:
        """``k`` contrasts of the rows of some groups, (len(some), k, width).

        The weights are cosines of the discrete transform, turned by a rotation that is drawn from
        the rows and not sent: rows cannot be read off contrasts with known weights.
        """
        n, rows = self.rows.shape[1], self.rows[some]
        if self.root is not None:  # a reflection takes the weights' roots to equal numbers
            root = self.root[some] / np.sqrt(self.total[some])[:, None]
            off = (root - 1 / np.sqrt(n))[..., None]
            size = np.maximum((off**2).sum(axis=1, keepdims=True), 1e-300)
            rows = rows + 2 * off * (rows.sum(axis=1, keepdims=True) / np.sqrt(n) / size)
        angle = np.pi / n * np.arange(1, k + 1)[:, None] * (np.arange(n) + 0.5)
        found = np.matmul(np.sqrt(2 / n) * np.cos(angle), rows)
        if k == 1:
            return found
        turn = np.linalg.qr(_normals(self.seed[some], k * k).reshape(-1, k, k))[0]
        return np.matmul(turn, found)


def centered_rows(
    X: Floats, y: Floats, code: Ints, n_groups: int, weight: Floats | None
) -> Iterator[CenteredRows]:
    """The rows group by group, in the order of their hash; ``code`` says whose each row is."""
    key = _row_keys(X, y, weight)
    order = np.lexsort((key, code))
    for who, index in by_size(code[order], n_groups, most=max(CHUNK // X.shape[1], 1)):
        at = order[index]
        rows = X[at]
        w = np.ones(at.shape) if weight is None else weight[at]
        total, mean = w.sum(axis=1), np.zeros((len(who), X.shape[1]))
        same = (rows == rows[:, :1]).all(axis=(1, 2))
        for _ in range(2):  # the second pass takes out what rounding left of a large mean
            step = np.matmul(w[:, None], rows)[:, 0] / total[:, None]
            mean += step
            rows -= step[:, None]
        root = None if weight is None else np.sqrt(w)
        if root is not None:
            rows *= root[..., None]
        seed = stirred(key[at].sum(axis=1, dtype=np.uint64))
        yield CenteredRows(who, rows, root, mean, total, same, seed)


def _row_keys(X: Floats, y: Array, weight: Floats | None) -> Array:
    """A hash of each row, (n_rows,) uint64."""
    d, key = X.shape[1], np.empty(len(X), np.uint64)
    odd = stirred(np.arange(1, d + 3, dtype=np.uint64)) | np.uint64(1)
    step = max(CHUNK // max(d, 1), 1)
    for first in range(0, len(X), step):
        some = slice(first, first + step)
        key[some] = _bits(X[some]) @ odd[:d]
    key += _bits(np.asarray(y, np.float64)) * odd[d]
    if weight is not None:
        key += _bits(weight) * odd[d + 1]
    return stirred(key)


def _bits(values: Floats) -> Array:
    """Numbers as integers; high bits are copied to low ones, which are zeros in simple numbers."""
    bits = (values + 0.0).view(np.uint64)  # -0 is 0
    return bits ^ (bits >> np.uint64(32))


def _normals(seed: Array, n: int) -> Floats:
    """n standard normal numbers from each seed, (len(seed), n)."""
    odd = np.uint64(0x9E3779B97F4A7C15) * np.arange(1, n + 1, dtype=np.uint64)
    drawn = stirred(seed[:, None] + odd) >> np.uint64(11)
    return np.asarray(ndtri((drawn + 0.5) * 2.0**-53), dtype=np.float64)
