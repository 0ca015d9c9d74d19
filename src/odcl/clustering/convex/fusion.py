"""When rows of convex clustering coincide: thresholds and certificates (uniform weights).

Rows of a set V coincide in the minimiser of Eq. (12) at every lam for which there is a *flow*:
q_kl = -q_lk with |q_kl| <= lam and sum_l n_l q_kl = a_k - abar for all k in V. For such q and any
u, the rows of V alone satisfy

    1/2 sum n_k |a_k - u_k|^2 + lam sum n_k n_l |u_k - u_l|
        >= 1/2 sum n_k |a_k - u_k|^2 + sum_k n_k <a_k - abar, u_k>,

and the right-hand side is least, over u of a given mean, where all u_k are equal; the rest of the
points is pulled no harder when V is replaced by its mean. Whatever is outside V does not matter:
*fusion is local*. Each function here gives a lam from which on such a flow is known to exist, or
below which there is none. Sums are those of floating point: the slack that is given away (SLACK) is
far above their rounding and far below any tolerance in use.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

from odcl._typing import Floats, Ints
from odcl.clustering.convex.newton import Groups, Pairs

# Rounding of a distance of two rows, relative to the rows.
SLACK = 1e-13
ROWS = 512  # rows of a block of distances


def pair_threshold(groups: Groups) -> float:
    """Where two groups meet, exactly: |a_0 - a_1| / (n_0 + n_1)."""
    return float(np.linalg.norm(groups.a[0] - groups.a[1]) / groups.mass)


def fused_at(groups: Groups, lam: float) -> bool:
    """Whether diam <= lam N, the quick certificate: q_kl = (a_k - a_l) / N (compare Eq. (13)).

    Two rows can only be farther apart than lam N if their distances from the mean add up to more,
    so that most pairs are never looked at; none if 2 R <= lam N.
    """
    off = groups.a - groups.mean(groups.a)
    radius = np.sqrt(np.einsum("ij,ij->i", off, off))
    reach = lam * groups.mass
    order = np.argsort(-radius)
    off, radius = off[order], radius[order]
    outer = int(np.count_nonzero(radius > reach - radius[0]))
    for start in range(0, outer, ROWS):
        rows = slice(start, min(start + ROWS, outer))
        inner = int(np.count_nonzero(radius > reach - radius[start]))
        if inner and cdist(off[rows], off[:inner]).max() > reach:
            return False
    return True


def diameter(a: Floats) -> float:
    """The largest distance of two rows, in blocks of rows."""
    starts = range(0, len(a), ROWS)
    return float(max(cdist(a[start : start + ROWS], a[start:]).max() for start in starts))


def fused_from_flow(groups: Groups, pairs: Pairs) -> float:
    """The largest |q_kl| of the flow along ``pairs``, repaired to balance the rows exactly.

    With f the pull of the pairs, t = <a, f> / |f|^2 (weighted) and h = (a - abar - t f) / N,

        q_kl = t (u_k - u_l) / rho_kl + h_k - h_l

    balances every row whatever u is; the closer u is to the (smoothed) minimiser, the smaller is
    its largest |q_kl|. u = a needs no solve, and eps -> infinity gives the diameter's flow.
    """
    a = groups.a - groups.mean(groups.a)
    f = pairs.pull
    n = groups.n
    ff = n @ np.einsum("ij,ij->i", f, f)
    t = n @ np.einsum("ij,ij->i", a, f) / ff if ff > 0 else 0.0
    h = (a - t * f) / groups.mass
    hh = np.einsum("ij,ij->i", h, h)
    largest = 0.0
    uh = np.einsum("ij,ij->i", pairs.u, h)
    left = np.hstack([pairs.u, h])
    right = np.hstack([h, pairs.u])
    for rows, W, _ in pairs.blocks():
        invrho = W / n
        # |q|^2 = t^2 r^2/rho^2 + 2 t <u_k - u_l, h_k - h_l>/rho + |h_k - h_l|^2
        q2 = uh[rows, None] + uh - left[rows] @ right.T
        q2 *= 2 * t * invrho
        q2 += hh[rows, None] + hh - 2 * (h[rows] @ h.T)
        q2 += t * t
        if pairs.eps > 0:
            q2 -= (t * pairs.eps * invrho) ** 2
        own = np.arange(rows.start, rows.stop)
        q2[own - rows.start, own] = 0.0
        largest = max(largest, float(q2.max()))
    return float(np.sqrt(largest))


def not_fused_below(groups: Groups) -> float:
    """A lower bound of lam*(V) without a solve: the best of the direction a - abar and each single
    group against the rest, n_k |a_k - abar| / (n_k (N - n_k))."""
    off = groups.a - groups.mean(groups.a)
    single = np.sqrt(np.einsum("ij,ij->i", off, off)) / (groups.mass - groups.n)
    return float(single.max())


def traversal(a: Floats, most: int, jump: float) -> list[Ints]:
    """Partitions of ``a`` by farthest-point traversal, the widest jump of the radius first.

    Each next pivot is the point farthest from all pivots so far, at distance r_k; points belong to
    their nearest pivot. A cut is before a k with r_{k-1} / r_k > ``jump``.
    """
    off = a - a.mean(axis=0)
    pivot = int(np.einsum("ij,ij->i", off, off).argmax())
    gap = np.full(len(a), np.inf)
    nearest = np.zeros(len(a), dtype=np.intp)
    radius: list[float] = []
    history: list[Ints] = []
    for k in range(min(most, len(a))):
        off = a - a[pivot]
        d2 = np.einsum("ij,ij->i", off, off)
        closer = d2 < gap
        nearest[closer] = k
        gap[closer] = d2[closer]
        history.append(nearest.copy())
        pivot = int(gap.argmax())
        radius.append(float(np.sqrt(gap[pivot])))
        jumps = np.array(radius[:-1]) / np.maximum(radius[1:], 1e-300)
        clear = len(jumps) > 0 and jumps.max() > 3
        if radius[-1] == 0 or (clear and k > 2 * int(jumps.argmax()) + 4):
            break  # a clear jump, and twice as many pivots since have brought none like it
    order = np.argsort(-jumps, kind="stable")
    return [history[k + 1] for k in order if jumps[k] > jump]
