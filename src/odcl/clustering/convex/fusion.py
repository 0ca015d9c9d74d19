"""When rows of convex clustering coincide: thresholds, certificates, Eq. (13) (uniform weights).

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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial.distance import cdist, pdist

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import as_points, number_by_first_user, sum_by_cluster

if TYPE_CHECKING:
    from odcl.clustering.convex.newton import MassPoints, Pairs

# Rounding of a distance of two rows, relative to the rows.
SLACK = 1e-13
ROWS = 512  # rows of a block of distances


def pair_threshold(groups: MassPoints) -> float:
    """Where two groups meet, exactly: |a_0 - a_1| / (n_0 + n_1)."""
    return float(np.linalg.norm(groups.a[0] - groups.a[1]) / groups.mass)


def fused_at(groups: MassPoints, lam: float) -> bool:
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


def fused_from_flow(groups: MassPoints, pairs: Pairs) -> float:
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


def not_fused_below(groups: MassPoints) -> float:
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


# -- given clusters: the interval of Eq. (13) ------------------------------------------------------


@dataclass(frozen=True)
class RecoveryInterval:
    """The lambdas of Eq. (13): low <= lam < high, where there are any.

    Outside of it the clusters may be found as well: the interval is sufficient, not necessary.
    With one cluster there is nothing to keep apart and ``high`` is infinite.
    """

    low: float  # max over clusters of diameter / size
    high: float  # min over pairs of |mu_k - mu_l| / (2 m - |C_k| - |C_l|)

    @property
    def empty(self) -> bool:
        return not self.low < self.high

    @property
    def middle(self) -> float:
        """Half-way between the ends; twice ``low`` if there is no upper end."""
        if self.empty:
            raise ValueError(
                f"The interval of Eq. (13) is empty: it would have to start at {self.low:.4g} and "
                f"end below {self.high:.4g}. No lambda is guaranteed to give these clusters; the "
                "exact path may still hold them (odcl.clusterpath)."
            )
        return 2 * self.low if np.isinf(self.high) else 0.5 * (self.low + self.high)

    def __contains__(self, lam: float) -> bool:
        return self.low <= lam < self.high


def recovery_interval(X: Any, labels: Array) -> RecoveryInterval:
    """Eq. (13): the lambdas for which convex clustering of ``X`` provably gives ``labels``.

        max_k max_{i,j in C_k} |a_i - a_j| / |C_k|  <=  lam
            <  min_{k != l} |mu_k - mu_l| / (2 m - |C_k| - |C_l|)

    ``X`` is (n_users, dim), ``labels`` (n_users,). The footnote of Lemma 1 states the left end
    with the largest distance from the mean; its proof needs twice that, and lambdas in between
    can fail (-1, 1, 99, 101 at lam = .99 gives four clusters). Here is the display.
    """
    a, labels = as_points(X), np.asarray(labels)
    if labels.shape != (len(a),):
        raise ValueError(
            f"X has shape {a.shape} and labels {labels.shape}: give one row and one label per "
            "user, (n_users, dim) and (n_users,)."
        )
    labels = number_by_first_user(labels)
    sizes = np.bincount(labels)
    m, n_clusters = len(a), len(sizes)
    low = float(max(diameter(a[labels == k]) / sizes[k] for k in range(n_clusters)))
    high = np.inf
    if n_clusters > 1:
        means = sum_by_cluster(a, labels) / sizes[:, None]
        first, second = np.triu_indices(n_clusters, 1)
        high = float((pdist(means) / (2 * m - sizes[first] - sizes[second])).min())
    return RecoveryInterval(low, high)


def oracle_lambda(X: Any, true_labels: Array, *, seed: int = 0) -> float:
    """The truth-tuned lambda of the paper's experiments: no method, a yardstick.

    It is computed from the *true* clusters, known in simulations only: uniform on the interval of
    Eq. (13), or its upper end where the interval is empty (Appendix D.1).
    """
    interval = recovery_interval(X, true_labels)
    if interval.empty:
        return interval.high
    if np.isinf(interval.high):
        return interval.middle
    return float(np.random.default_rng(seed).uniform(interval.low, interval.high))
