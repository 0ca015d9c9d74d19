"""Newton's method for convex clustering with uniform weights, on groups with masses.

After groups of fused points are collapsed (mass n_k, mean a_k), Eq. (12) reads

    F(u) = 1/2 sum_k n_k |a_k - u_k|^2 + lam sum_{k<l} n_k n_l |u_k - u_l|.

Gradients are taken in the weighted inner product <x, y> = sum_k n_k <x_k, y_k> (the partial
derivative divided by n_k). F is strongly convex with modulus 1 in it, so that a gradient g proves

    |u - u*|_n <= |g|_n        and        F(u) - F(u*) <= |g|_n^2 / 2.

Distances are smoothed to rho = sqrt(r^2 + eps^2) while points may still meet, and plain (eps = 0)
once all groups are distinct.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dposv, dpotrf, dpotrs
from scipy.spatial.distance import cdist

from odcl._typing import Floats, Ints
from odcl.clustering.labels import sum_by_cluster

# Up to this many groups the two pair matrices are kept between products (16 s^2 bytes, 1.6 GB);
# beyond it they are worked out again each time. Either way a block of rows at a time.
KEPT = 10_000
BLOCK = 2**23  # numbers in a block of rows
# Groups whose Laplacian is factored together, as a preconditioner; groups are ordered by parts.
FACTORED = 2000
# A dense Hessian pays up to this order: its factorisation costs less than the products it saves.
DENSE = 240
MAX_CG = 300
MAX_NEWTON = 50


@dataclass(frozen=True, eq=False)
class MassPoints:
    """Collapsed points: means (s, dim) and masses (s,)."""

    a: Floats
    n: Floats

    @property
    def mass(self) -> float:
        return float(self.n.sum())

    def norm(self, x: Floats) -> float:
        """|x|_n = sqrt(sum_k n_k |x_k|^2)."""
        return float(np.sqrt(self.n @ np.einsum("ij,ij->i", x, x)))

    def mean(self, x: Floats) -> Floats:
        return self.n @ x / self.n.sum()

    def take(self, rows: Ints) -> MassPoints:
        return MassPoints(self.a[rows], self.n[rows])

    def collapse(self, labels: Ints) -> MassPoints:
        """One group for each label of 0..k-1: the mean of its own, and their mass."""
        n = np.bincount(labels, weights=self.n).astype(np.float64)
        return MassPoints(sum_by_cluster(self.n[:, None] * self.a, labels) / n[:, None], n)


class Pairs:
    """What the pairs of a point ``u`` say: the penalty, its gradient, products with its Hessian.

    The penalty is P(u) = sum_{k<l} n_k n_l rho_kl with rho = sqrt(|u_k - u_l|^2 + eps^2). With
    W_kl = n_l / rho_kl, gradient and Hessian (in the weighted inner product) are

        (grad P)_k   = sum_l W_kl (u_k - u_l)
        (hess P v)_k = sum_l W_kl (v_k - v_l) - W_kl / rho_kl^2 <u_k - u_l, v_k - v_l> (u_k - u_l).
    """

    def __init__(self, n: Floats, u: Floats, eps: float) -> None:
        self.n, self.eps = n, eps
        self.u = u - n @ u / n.sum()  # small numbers cancel less in the products below
        s = len(u)
        self.value = 0.0  # P(u)
        self.near = np.inf  # the least distance between two groups
        self.weight = np.empty(s)  # sum_l W_kl
        self.pull = np.empty_like(self.u)  # grad P, (s, dim)
        self._kept: list[tuple[slice, Floats]] = []
        self._inner: list[Floats] = []
        for rows, r in self._distances():
            self.near = min(self.near, float(r.min()))
            rho = self._smooth(r)
            # With eps = 0 groups that coincide have no gradient; the caller looks at ``near``.
            with np.errstate(divide="ignore", invalid="ignore"):
                W = n / rho
                self.weight[rows] = W.sum(axis=1)
                self.pull[rows] = self.weight[rows, None] * self.u[rows] - W @ self.u
            own = np.arange(rows.start, rows.stop)
            rho[own - rows.start, own] = 0.0
            self.value += 0.5 * float(n[rows] @ (rho @ n))
            if s <= KEPT:
                self._kept.append((rows, W))

    def _distances(self) -> Iterator[tuple[slice, Floats]]:
        """Blocks of rows of the distances, with infinity for a group and itself."""
        s = len(self.u)
        step = max(1, BLOCK // s)
        for start in range(0, s, step):
            rows = slice(start, min(start + step, s))
            r = cdist(self.u[rows], self.u)
            own = np.arange(rows.start, rows.stop)
            r[own - start, own] = np.inf
            yield rows, r

    def _smooth(self, r: Floats) -> Floats:
        if self.eps > 0:
            r *= r
            r += self.eps**2
            np.sqrt(r, out=r)
        return r

    def blocks(self) -> Iterator[tuple[slice, Floats, Floats]]:
        """Rows, W and W / rho^2 = W^3 / n^2, block by block."""
        if not self._kept:
            for rows, r in self._distances():
                W = self.n / self._smooth(r)
                yield rows, W, self._cubed(W)
            return
        if not self._inner:
            self._inner = [self._cubed(W) for _, W in self._kept]
        for (rows, W), inner in zip(self._kept, self._inner, strict=True):
            yield rows, W, inner

    def _cubed(self, W: Floats) -> Floats:
        inner = W / self.n
        inner *= inner
        inner *= W
        return inner

    def times(self, v: Floats) -> Floats:
        """The Hessian of P times ``v``, both (s, dim)."""
        u, dim = self.u, v.shape[1]
        uv = np.einsum("ij,ij->i", u, v)[:, None]
        one = np.ones_like(uv)
        # <u_k - u_l, v_k - v_l> in one product, and the sum over l in another
        left, right = np.hstack([u, v, uv, one]), np.hstack([-v, -u, one, uv])
        u1 = np.hstack([u, one])
        out = self.weight[:, None] * v
        for rows, W, inner in self.blocks():
            along = left[rows] @ right.T
            along *= inner
            summed = along @ u1
            out[rows] -= W @ v
            out[rows] += summed[:, :dim]
            out[rows] -= summed[:, dim:] * u[rows]
        return out


def smoothed(groups: MassPoints, lam: float, pairs: Pairs, u: Floats) -> tuple[float, Floats]:
    """F(u) and its gradient, (s, dim); ``pairs`` are those of ``u``."""
    off = u - groups.a
    return 0.5 * groups.norm(off) ** 2 + lam * pairs.value, off + lam * pairs.pull


@dataclass(frozen=True, eq=False)
class SmoothMinimum:
    """Where Newton's method stopped."""

    u: Floats  # (s, dim)
    pairs: Pairs  # of u
    value: float  # F(u), with the smoothed distances
    slope: float  # |gradient|_n
    n_iter: int


def minimise(
    groups: MassPoints,
    lam: float,
    u: Floats,
    *,
    eps: float,
    tol: float,
    max_iter: int = MAX_NEWTON,
    apart: float = 0.0,
    floor: float = 1e-2,
) -> SmoothMinimum:
    """Damped Newton from ``u`` until |gradient|_n <= ``tol``, or no further progress.

    Steps are found by conjugate gradients (see :func:`_newton_step`), their length by halving. With
    ``eps = 0`` it stops early as soon as two groups are closer than ``apart``: they are about to
    meet, where F has a kink.
    """
    pairs = Pairs(groups.n, u, eps)
    value, g = smoothed(groups, lam, pairs, u)
    slope = groups.norm(g)
    steps = 0
    while steps < max_iter:
        if slope <= tol or (eps == 0 and pairs.near <= apart):
            break
        steps += 1
        forcing = min(0.1, max(floor, slope / (groups.norm(u) + slope)))
        step = _newton_step(groups, lam, pairs, g, forcing)
        down = float(groups.n @ np.einsum("ij,ij->i", g, step))
        length = 1.0
        for _ in range(40):
            new_u = u + length * step
            new = Pairs(groups.n, new_u, eps)
            if eps == 0 and new.near == 0:
                length *= 0.5
                continue
            new_value, new_g = smoothed(groups, lam, new, new_u)
            along = float(groups.n @ np.einsum("ij,ij->i", new_g, step))
            # Near the minimum rounding hides the decrease; the slope along the step still tells.
            if new_value <= value + 1e-4 * length * down or abs(along) <= 0.5 * abs(down):
                break
            length *= 0.5
        else:
            break
        new_slope = groups.norm(new_g)
        stalled = new_slope > 0.9 * slope and new_value > value - 1e-15 * abs(value)
        if stalled and new_slope >= slope:
            break
        u, pairs, value, g, slope = new_u, new, new_value, new_g, new_slope
        if stalled:
            break
    return SmoothMinimum(u, pairs, value, slope, steps)


def _newton_step(groups: MassPoints, lam: float, pairs: Pairs, g: Floats, forcing: float) -> Floats:
    """The solution x of (I + lam hess P) x = -g, to a relative residual of ``forcing``.

    Conjugate gradients, preconditioned by the Laplacian of the pairs: with I - w w' replaced by
    its trace's share, (1 - 1/dim) I, the system falls apart into ``dim`` equal ones of order s,
    factored once. It holds fast what nearly coincides, which a diagonal cannot: four steps where
    that takes hundreds.
    """
    s, dim = g.shape
    if s * dim <= DENSE:
        A = _dense_hessian(groups.n, lam, pairs)
        b = -(groups.n[:, None] * g).reshape(-1)
        _, x, failed = dposv(A.T, b, lower=1, overwrite_a=1)
        if not failed:
            return x.reshape(s, dim)
    n = groups.n[:, None]

    def times(x: Floats) -> Floats:
        return n * (x + lam * pairs.times(x))

    return conjugate_gradients(
        times, _preconditioner(groups.n, lam, pairs), -n * g, forcing, MAX_CG
    )


def conjugate_gradients(
    times: Callable[[Floats], Floats],
    precondition: Callable[[Floats], Floats],
    right: Floats,
    rtol: float,
    max_steps: int,
) -> Floats:
    """x with times(x) = right, to ``rtol`` in the norm of the preconditioner."""
    x, residual = np.zeros_like(right), right.copy()
    scaled = precondition(residual)
    direction, size = scaled.copy(), float(np.vdot(residual, scaled))
    goal = rtol**2 * size
    for _ in range(max_steps):
        if size <= goal:
            break
        image = times(direction)
        curvature = float(np.vdot(direction, image))
        if curvature <= 0:  # only rounding is left
            break
        x += (size / curvature) * direction
        residual -= (size / curvature) * image
        scaled = precondition(residual)
        last, size = size, float(np.vdot(residual, scaled))
        direction *= size / last
        direction += scaled
    return x


def _preconditioner(n: Floats, lam: float, pairs: Pairs) -> Callable[[Floats], Floats]:
    """Solves with n + lam (1 - 1/dim) x (Laplacian of the pairs), by blocks of groups in order.

    The share of the trace that w w' takes from I is r^2 / (dim rho^2) = (1 - eps^2 / rho^2) / dim.
    """
    dim = pairs.u.shape[1]
    share = 1 - 1 / dim
    diagonal = n * (1 + lam * share * pairs.weight)
    factors = []
    for rows, W, inner in pairs.blocks():
        for start in range(rows.start, rows.stop, FACTORED):
            part = slice(start, min(start + FACTORED, rows.stop))
            here = slice(start - rows.start, part.stop - rows.start)
            L = W[here, part] * share
            if pairs.eps > 0:
                inside = pairs.eps**2 / dim * inner[here]
                L += inside[:, part]
                diagonal[part] += lam * n[part] * inside.sum(axis=1)
            L *= -lam * n[part, None]
            own = np.arange(len(L))
            L[own, own] = diagonal[part]
            factor, failed = dpotrf(L.T, lower=1, overwrite_a=1)
            factors.append((part, None if failed else factor))

    def solve(r: Floats) -> Floats:
        out = np.empty_like(r)
        for part, factor in factors:
            if factor is None:
                out[part] = r[part] / diagonal[part, None]
            else:
                out[part] = dpotrs(factor, r[part], lower=1)[0]
        return out

    return solve


def _dense_hessian(n: Floats, lam: float, pairs: Pairs) -> Floats:
    s, dim = pairs.u.shape
    _, W, inner = next(pairs.blocks())
    off = pairs.u[:, None] - pairs.u
    A = ((inner[:, :, None] * off)[..., None] * off[:, :, None, :]).transpose(0, 2, 1, 3).copy()
    i = np.arange(dim)
    A[:, i, :, i] -= W
    own = -A.sum(axis=2)  # (s, dim, dim)
    k = np.arange(s)
    A[k, :, k, :] += own
    A *= lam * n[:, None, None, None]
    A = A.reshape(s * dim, s * dim)
    A[np.diag_indices(s * dim)] += np.repeat(n, dim)
    return A
