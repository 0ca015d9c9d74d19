"""One step of T and the noise: derivatives of the bound, and Fisher scoring."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.mixed.marginal import stack_size
from odcl.mixed.mixture import BLIND_FLOOR, FLOOR, Centers, MixtureMoments, Quadratics, Spread


@dataclass(frozen=True, eq=False)
class Slopes:
    """Derivatives of the bound: in T, (Omega - H) / 2; in log s2_i, (rss_i - left_i) / 2."""

    omega: Floats  # (dim, dim), sum r z z' + sum W C W
    H: Floats  # (dim, dim), sum W
    rss: Floats  # (n_users,), expected residual sum of squares over s2
    left: Floats  # (n_users,), rows minus the parameters they are spent on
    misfit: Floats  # (n_users, K), as :func:`odcl.mixed.mixture.misfits` gives it

    def summed(self, q: Quadratics, m: MixtureMoments, spread: Spread) -> Summed:
        """What a step of T and of the common noise needs of all users together."""
        square = np.zeros_like(self.H)
        if spread.shape != "zero":
            square = np.einsum("ijk,ijk->jk", m.W, m.W)
        numbers = float(q.rows.sum()), float(self.rss.sum()), float(self.left.sum())
        return Summed(float(len(q)), *numbers, self.omega, self.H, square)


@dataclass(frozen=True, eq=False)
class Summed:
    """The slopes over all users; sums of parts of the users add up to it."""

    n: float  # users
    rows: float
    rss: float
    left: float
    omega: Floats  # (dim, dim)
    H: Floats  # (dim, dim)
    square: Floats  # (dim, dim), sum W_jl^2

    def __add__(self, other: Summed) -> Summed:
        return Summed(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


def bound_slopes(
    q: Quadratics, m: MixtureMoments, spread: Spread, r: Floats, centers: Centers
) -> Slopes:
    """With z_ik = w - W c_k and C_i = sum_k r_ik C_k, in the open coordinates of T,

    Omega = sum r z z' + sum W C_i W,  H = sum W,  rss_i = sum_k r (Q_ik - z'T z),
    left_i = n - tr W T - tr (W - W T W) C_i.

    Of a diagonal T only the diagonal of Omega is right, of a scalar one its trace.
    """
    n, dim = m.w.shape
    c, C = centers.c[0], centers.C[0].reshape(-1, dim * dim)
    K = len(c)
    inner = m.inner(np.concatenate([c[:, :, None] * c[:, None], centers.C[0]]))
    at_centers = inner[:, :K] - 2 * m.w @ c.T
    misfit = m.base[:, None] + at_centers + inner[:, K:]
    rss = m.e + (r * at_centers).sum(axis=1)
    left = q.rows - (r * inner[:, K:]).sum(axis=1)
    o = np.flatnonzero(spread.open)
    omega, H = np.zeros((dim, dim)), np.zeros((dim, dim))
    if len(o) == 0:
        return Slopes(omega, H, rss, left, misfit)
    keep = _open(spread)
    T = spread.matrix[keep]
    total = np.zeros_like(T)
    k, step = len(o), min(stack_size(dim), max(n, 1))
    rooms = [np.empty((step, dim * dim)), np.empty((step, k, dim))]
    if spread.shape == "full":
        rooms.append(np.empty((step, k, k)))
    for i in range(0, n, step):
        part = slice(i, min(i + step, n))
        room = [space[: part.stop - i] for space in rooms]
        users = m.W[part], m.w[part], r[part]
        through, spent, square = _through(*users, c, C, T, o, room)
        total += square
        rss[part] -= spent
        left[part] += through
    omega[keep], H[keep] = total, (np.ones(n) @ m.W.reshape(n, -1)).reshape(dim, dim)[keep]
    return Slopes(omega, H, rss, left, misfit)


def _open(spread: Spread) -> tuple[Any, ...]:
    """Where a matrix has its open coordinates."""
    every = slice(None), slice(None)
    return every if spread.open.all() else np.ix_(spread.open, spread.open)


def _through(
    W: Floats,
    w: Floats,
    r: Floats,
    c: Floats,
    C: Floats,
    T: Floats,
    o: Ints,
    room: list[Floats],
) -> tuple[Floats, Floats, Floats]:
    """Of a stack of users: tr W T W C_i - tr W T, sum_k r z'T z, and their part of Omega.

    Matrices are worked out in the ``room`` of the stack before; for a full T there is a third.
    """
    n, dim = w.shape
    K, k = len(c), len(o)
    W_o = W if k == dim else np.ascontiguousarray(W[:, o])
    z = w[:, o, None] - (W_o.reshape(-1, dim) @ c.T).reshape(n, k, K)
    C_i, WC, *WCW = room
    np.matmul(r, C, out=C_i)
    np.matmul(W_o, C_i.reshape(n, dim, dim), out=WC)
    if WCW:
        z = (z * np.sqrt(r)[:, None]).transpose(0, 2, 1).reshape(n * K, k)
        each = np.matmul(WC, W_o.transpose(0, 2, 1), out=WCW[0]).reshape(n, -1)
        own = W_o.reshape(n, -1) if k == dim else W_o[..., o].reshape(n, -1)
        through = each @ T.ravel() - own @ T.ravel()
        spent = ((z @ T) * z).reshape(n, -1).sum(axis=1)
        return through, spent, z.T @ z + each.sum(axis=0).reshape(k, k)
    t, each = T.diagonal(), np.einsum("ijk,ijk->ij", WC, W_o)
    square = np.matmul(z * z, r[..., None])[..., 0]
    through = (each - W.diagonal(axis1=1, axis2=2)[:, o]) @ t
    return through, square @ t, np.diag((square + each).sum(axis=0))


def noise_floor(pure: bool) -> float:
    """The least variance of the noise; ``pure``: does anybody have rows to spare?"""
    return FLOOR if pure else BLIND_FLOOR


def scoring_step(spread: Spread, total: Summed, joint: bool) -> tuple[Floats, float]:
    """T after one step of Fisher scoring, and, ``joint``, the factor of the common noise."""
    told = joint and total.left > 1e-10 * total.rows  # or the center alone fits every row exactly
    ratio = total.rss / total.left if told else 1.0
    if spread.shape == "zero":
        matrix = spread.matrix
    elif spread.shape == "full":
        matrix = _full_step(spread, total)
        if spread.bends is not None:
            matrix = matrix + np.diag(_diagonal_step(_of_bends(spread), total, False)[0])
    else:
        values, ratio = _diagonal_step(spread, total, joint)
        matrix = np.diag(values)
    return matrix, min(max(ratio, 0.1), 10.0)


def _diagonal_step(spread: Spread, total: Summed, joint: bool) -> tuple[Floats, float]:
    """Scoring for a scalar or diagonal T jointly with the common noise, subject to T >= 0.

    The quadratic model of the bound is maximized over T >= 0, by nonnegative least squares where
    its top lies elsewhere, so that closed coordinates open again by themselves.
    """
    pick, at = spread.parts, np.ones(spread.parts.shape[1] + 1)
    at[:-1] = part_amounts(spread)
    g, info = diagonal_slopes(spread, total, joint)
    unit = 1 / np.sqrt(np.maximum(info.diagonal(), 1e-300))
    # Where nobody has rows to spare, T and the noise are told apart by next to nothing.
    values, vectors = np.linalg.eigh(info * unit * unit[:, None])
    size = np.sqrt(np.maximum(values, 1e-10))
    root = size[:, None] * vectors.T
    goal = root @ (at / unit) + (vectors.T @ (g * unit)) / size
    new = vectors @ (goal / size)
    if (new < 0).any():
        from scipy.optimize import nnls

        new = nnls(root, goal)[0]
    new = new * unit
    return pick @ new[:-1], float(new[-1])


def diagonal_slopes(spread: Spread, total: Summed, joint: bool) -> tuple[Floats, Floats]:
    """Twice the slopes of the bound in the parts of a diagonal T and in log s2, and information.

    The information of (t, log s2) is half of sum W_jl^2, sum (W - W T W)_jj and
    sum (n - 2 tr W T + tr W T W T).
    """
    t, H, square = spread.matrix.diagonal(), total.H.diagonal(), total.square
    pick = spread.parts
    g, info = np.zeros(pick.shape[1] + 1), np.eye(pick.shape[1] + 1)
    g[:-1], info[:-1, :-1] = (total.omega.diagonal() - H) @ pick, pick.T @ square @ pick
    if joint:
        g[-1], spent = total.rss - total.left, square @ t
        info[:-1, -1] = info[-1, :-1] = (H - spent) @ pick
        info[-1, -1] = total.rows - 2 * H @ t + t @ spent
    return g, info


def part_amounts(spread: Spread) -> Floats:
    """How much of each part, which do not overlap, is in a diagonal T."""
    parts = spread.parts
    return np.asarray(spread.matrix.diagonal() @ parts / (parts**2).sum(axis=0))


def _of_bends(spread: Spread) -> Spread:
    """The part of a full T that is diagonal."""
    return replace(spread, shape="diag", open=spread.open & ~spread.lines)


def _full_step(spread: Spread, total: Summed) -> Floats:
    """T + a H^-1 (Omega - H) H^-1 with means, negative eigenvalues clipped in the metric of H.

    Clipping in other coordinates than H^1/2 T H^1/2 stalls on the boundary.
    """
    n, keep = total.n, _open(replace(spread, open=spread.open & spread.lines))
    H, omega = total.H[keep] / n, total.omega[keep] / n
    values, vectors = np.linalg.eigh(H)
    seen = values > 1e-10 * max(values[-1], 1e-300)
    half = vectors[:, seen] * np.sqrt(values[seen])
    back = vectors[:, seen] / np.sqrt(values[seen])
    length = min(1.0, float((H**2).sum() / (total.square[keep].sum() / n)))
    white = half.T @ spread.matrix[keep] @ half
    white = white + length * (back.T @ omega @ back - np.eye(seen.sum()))
    values, vectors = np.linalg.eigh((white + white.T) / 2)
    root = back @ (vectors * np.sqrt(np.maximum(values, 0.0)))
    T = np.zeros_like(spread.matrix)
    T[keep] = root @ root.T
    return T
