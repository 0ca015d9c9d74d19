"""How far apart, how many samples, how many steps: the conditions of Theorems 1 to 3.

Conditions on n read n / log n > ratio: the functions give the ratio, :func:`smallest_n` the n.
:func:`separation` measures how far apart given models are. Where a display of the paper contradicts
its own proof we follow the proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import cdist

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import number_by_first_user, sum_by_cluster
from odcl.theory import check

if TYPE_CHECKING:
    from odcl.clustering.convex.fusion import RecoveryInterval

# -- separation that a clustering method asks for, alpha of Eq. (4) --------------------------------


def alpha_cc(n_users: int, smallest: int) -> float:
    """Separation that convex clustering needs, alpha_cc = 4 (m - |C_(K)|) / |C_(K)| (Lemma 1).

    It makes the interval of Eq. (13) non-empty. The footnote of Lemma 1 gives an interval whose
    left end is half of Eq. (13)'s; that one is wrong (points +-1 and 100 +- 1, lam = .99: four
    clusters), and alpha_cc does not rest on it. 1 <= smallest <= n_users; a second cluster leaves
    at most n_users / 2, and with smallest = n_users there is nothing to separate: 0.
    """
    m, size = check.users(n_users, smallest)
    return 4 * (m - size) / size


def alpha_center(n_users: int, smallest: int, c: float = 100) -> float:
    """Separation that implies Definition 3, 2 c sqrt(m) / sqrt(|C_(K)|) (Section 4.5).

    The text after Definition 3 has |C_(K)| without its root; the proof of Lemma 2 has the root,
    and Theorem 3's condition follows only with it. 1 <= smallest <= n_users, c > 0.
    """
    m, size = check.users(n_users, smallest)
    check.positive(c=c)
    return 2 * c * math.sqrt(m / size)


def alpha_km(n_users: int, smallest: int, c: float = 100) -> float:
    """Separation that spectral K-means needs, 2 + 2 c sqrt(m) / sqrt(|C_(K)|) (Lemma 2).

    The recovery theorem behind it is known for c >= 100 (its footnote); smaller c > 0 are
    accepted to see what they would buy. With c = 100 this is larger than alpha_cc until
    m > 2,503 |C_(K)|, whatever Section 4.2 says in orders of m.
    """
    return 2 + alpha_center(n_users, smallest, c)


# -- samples ---------------------------------------------------------------------------------------


def sample_ratio(alpha: float, M: float, D: float, *, gamma: float | None = None) -> float:
    """Right-hand side of Theorem 1's condition, n / log n > 16 M alpha^2 / D^2.

    ``alpha`` is the separation the clustering method needs, M that of
    :func:`~odcl.theory.constants.m_constant` (the largest over users), D > 0 the smallest distance
    between population optima. ``gamma`` gives Eq. (11), 4 M alpha^2 / (D - 2 gamma)^2 with
    0 < gamma < D/2; the theorem is the case gamma = D/4.
    """
    check.not_negative(alpha=alpha)
    check.positive(M=M, D=D)
    gamma = D / 4 if gamma is None else gamma
    why = "means of clusters are within gamma of the optima, and D - 2 gamma apart"
    check.between("gamma", gamma, 0, D / 2, f"0 < gamma < D/2 = {D / 2:g}", why)
    reach = alpha / (D - 2 * gamma)
    return 4 * M * reach * reach


def sample_ratio_cc(n_users: int, smallest: int, M: float, D: float) -> float:
    """ODCL-CC: n / log n > 256 M (m - |C_(K)|)^2 / (|C_(K)|^2 D^2) (Section 4.2, item 1)."""
    m, size = check.users(n_users, smallest)
    check.positive(M=M, D=D)
    return 256 * M * ((m - size) / size) ** 2 / D / D


def sample_ratio_km(n_users: int, smallest: int, M: float, D: float, c: float = 100) -> float:
    """ODCL-KM: n / log n > 64 M (sqrt|C_(K)| + c sqrt m)^2 / (|C_(K)| D^2) (Section 4.2, item 2).

    This display follows from Lemma 2. The sentence after it divides by |C_(K)|^2 and Table 1 has
    |C_(K)| + sqrt m: both lost a square root, and we follow neither.
    """
    m, size = check.users(n_users, smallest)
    check.positive(M=M, D=D, c=c)
    return 64 * M * (math.sqrt(size) + c * math.sqrt(m)) ** 2 / size / D / D


def sample_ratio_part_one(
    n_users: int, smallest: int, M_bar: float, D: float, c: float = 100
) -> float:
    """Theorem 3, Part I of spectral K-means: n / log n > 64 c^2 m M_bar / (D^2 |C_(K)|).

    ``M_bar`` is the mean of M_ik over users, where Theorem 1 takes the largest. Where the two are
    equal this is less than ODCL-KM's by 64 M (1 + 2 c sqrt(m / |C_(K)|)) / D^2; the remark that
    calls it c^2 M / D^2 misplaced c.
    """
    m, size = check.users(n_users, smallest)
    check.positive(M_bar=M_bar, D=D, c=c)
    return 64 * c**2 * m * M_bar / size / D / D


# -- from ratios to whole numbers ------------------------------------------------------------------


def smallest_n(ratio: float) -> int:
    """Smallest integer n >= 3 with n / log n > ratio (Theorem 1 asks both of n).

    n / log n falls up to e = 2.718 and grows from there, so that from 3 on a bisection is exact;
    the n = 2 that n / log n = 2.89 would allow is not in the theorem. ``ratio`` is 0 or larger, a
    right-hand side as above; up to 3 / log 3 = 2.73 the answer is 3.
    """
    check.not_negative(ratio=ratio)
    return _first(3, lambda n: _reaches(n, ratio, logs=1))


def smallest_T(ratio: float, *, least: int = 16) -> int:
    """Smallest integer T >= least with T / log log T >= ratio (Lemma 7 and Theorem 2).

    T / log log T grows from 5.83 on. The paper asks for T >= 15, but its proof replaces
    log(log(T) / delta) by (1 + log(1 / delta)) log log T, which needs log log T >= 1, that is
    T >= e^e = 15.15: we start at 16. ``least`` is 6 or larger, ``ratio`` 0 or larger.
    """
    check.not_negative(ratio=ratio)
    least = check.whole("least", least, least=6)
    return _first(least, lambda n: _reaches(n, ratio, logs=2))


def _first(least: int, holds: Callable[[int], bool]) -> int:
    """Smallest n >= least that holds, for a property that, once true, stays true."""
    high = least
    while not holds(high):
        high *= 2
    low = max(least, high // 2)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def _reaches(n: int, ratio: float, *, logs: int) -> bool:
    """Whether n exceeds ratio times log n, or log log n."""
    log = math.log(n)
    return n > ratio * (log if logs == 1 else math.log(log))


# -- inexact local models (Theorem 2) --------------------------------------------------------------


def largest_epsilon(alpha: float, D: float, xi: float) -> float:
    """Local accuracy below which Theorem 2 holds: epsilon < D^2 / (32 xi alpha^2).

    The remark after Theorem 2 prints 16 for 32; see :func:`sample_ratio_inexact` for why. ``xi`` is
    xi_F = max_k G_Fk / mu_Fk (tau_F in that remark is the same).
    """
    check.positive(D=D, xi=xi)
    check.between("alpha", alpha, 0, math.inf, "0 < alpha < inf", "it is the separation of Eq. (4)")
    return D**2 / (32 * xi * alpha**2)


def sample_ratio_inexact(alpha: float, M: float, D: float, *, epsilon: float, xi: float) -> float:
    """Right-hand side of Theorem 2's condition, n / log n > 4 M / (D^2 / (4 alpha^2) - 8 eps xi).

    Theorem 2 prints 4 eps xi and omits the proof. Lemma 7 adds eps G_F to F_k(theta) - F_k* (the S
    in it is G_F), strong convexity turns this into 2 eps G_F / mu_F of squared distance, and Eq.
    (7) into four times that: 8 eps xi. ``epsilon`` bounds a distance here,
    ||theta_i^T - theta-hat_i|| <= eps, and lies below :func:`largest_epsilon`; 0 is Theorem 1.
    """
    most = largest_epsilon(alpha, D, xi)
    why = (
        "beyond it no number of samples makes up for the error of the local solvers. Run more "
        "steps, see sgd_iterations"
    )
    check.between("epsilon", epsilon, 0, most, f"0 <= epsilon < {most:g}", why, closed="[")
    return sample_ratio(alpha, M, D) / (1 - epsilon / most)


def epsilon_that_keeps_the_rate(
    n: int, largest: int, *, alpha: float, D: float, xi: float
) -> float:
    """Below min(1 / (n |C_(1)|), largest_epsilon), Theorem 2 has Theorem 1's rate (its remark)."""
    size = check.whole("largest", largest)
    return min(1 / (check.samples(n) * size), largest_epsilon(alpha, D, xi))


def sgd_distance(T: int, *, gamma: float, mu: float, delta: float) -> float:
    """Bound on ||theta^T - theta-hat||^2 of SGD with steps 1 / (mu t), with 1 - delta (Lemma 6).

        12 Gamma^2 / (mu^2 T) + 8 Gamma (121 Gamma + 1) log(log(T) / delta) / T,  T >= 8

    As printed; the second term has no mu, so that the bound changes with the unit of the loss,
    which SGD does not. Treat T from it as an order of magnitude.
    """
    T = check.whole("T", T, least=8)
    check.positive(gamma=gamma, mu=mu)
    check.between("delta", delta, 0, 1 / math.e, "0 < delta < 1/e", "Lemma 6 asks for it")
    log = math.log(math.log(T) / delta)
    return (12 * gamma**2 / mu**2 + 8 * gamma * (121 * gamma + 1) * log) / T


def iteration_ratio(epsilon: float, *, gamma: float, mu: float, n: int) -> float:
    """Right-hand side of Theorem 2's condition on T / log log T, with delta = n^-3 in Lemma 7.

        (12 Gamma^2 / mu^2 + 8 Gamma (121 Gamma + 1) (1 + 3 log n)) / epsilon^2

    ``epsilon`` is a distance. ``mu`` is mu_f, the strong convexity of the users' own risks
    (Assumption 7), ``gamma`` Gamma = sigma + 2 L R + N. The second remark after Theorem 2 has
    6 L Gamma^2 / mu_l^2 + 4 L Gamma (...): left over from another version, not followed.
    """
    n = check.samples(n)
    check.positive(gamma=gamma, mu=mu, epsilon=epsilon)
    log = 1 + 3 * math.log(n)
    return (12 * gamma**2 / mu**2 + 8 * gamma * (121 * gamma + 1) * log) / epsilon**2


def mean_iterations(epsilon: float, *, gamma: float, mu: float) -> float:
    """Right-hand side of T >= 4 Gamma^2 / (mu_f^2 epsilon) (Theorem 2 and Lemma 8).

    Here ``epsilon`` is a *squared* distance, E||theta_i^T - theta-hat_i||^2 <= eps (Lemma 5); the
    paper uses one letter for both. The ``+ eps`` of Lemma 8 should be 2 eps (Young's inequality).
    """
    check.positive(gamma=gamma, mu=mu, epsilon=epsilon)
    return 4 * gamma**2 / (mu**2 * epsilon)


def sgd_iterations(epsilon: float, *, gamma: float, mu: float, n: int) -> int:
    """Smallest T that meets both conditions of Theorem 2, and T >= 16 (see ``smallest_T``)."""
    least = max(16, math.ceil(mean_iterations(epsilon, gamma=gamma, mu=mu)))
    return smallest_T(iteration_ratio(epsilon, gamma=gamma, mu=mu, n=n), least=least)


# -- separation of given models --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Separation:
    """Separation of models by a clustering; clusters are numbered by their first user."""

    theta: Floats  # (n_users, dim)
    labels: Ints  # (n_users,)
    sizes: Ints  # (n_clusters,)
    centers: Floats  # (n_clusters, dim), mu_k
    radius: float  # max ||mu_k - a_i||
    gap: float  # min ||mu_k - mu_l||
    center_separation: float  # largest c of Definition 3
    proximity: float  # largest c of Eq. (17)
    c: float  # the c that Lemma 2 and Theorem 3 are asked for

    def __repr__(self) -> str:
        return (
            f"<Separation: {len(self.labels)} users in {len(self.sizes)} clusters, alpha "
            f"{self.alpha:.3g}, center_separation {self.center_separation:.3g}, proximity "
            f"{self.proximity:.3g}>"
        )

    @property
    def alpha(self) -> float:
        """Eq. (4) holds for every alpha below gap / radius; inf if clusters are single points."""
        return self.gap / self.radius if self.radius > 0 else math.inf if self.gap > 0 else 0.0

    @cached_property
    def interval(self) -> RecoveryInterval:
        """Eq. (13): convex clustering returns this clustering for low <= lam < high.

        It takes distances between all users of a cluster, so it is computed when asked for.
        """
        from odcl.clustering.convex.fusion import recovery_interval

        return recovery_interval(self.theta, self.labels)

    @property
    def alpha_cc(self) -> float:
        """What Lemma 1 asks of alpha here."""
        return alpha_cc(len(self.labels), int(self.sizes.min()))

    @property
    def alpha_km(self) -> float:
        """What Lemma 2 asks of alpha here."""
        return alpha_km(len(self.labels), int(self.sizes.min()), self.c)

    @property
    def guaranteed(self) -> tuple[str, ...]:
        """Methods that the paper guarantees to return this clustering of these models.

        "ODCL-CC" where the interval of Eq. (13) is not empty, for lam in it; "ODCL-KM" where
        center separation and proximity hold with c, for K = the number of clusters. These are the
        conditions that Lemmas 1 and 2 derive from Eq. (4), and weaker than it.
        """
        cc = not self.interval.empty
        km = self.center_separation >= self.c and self.proximity >= self.c
        return ("ODCL-CC",) * cc + ("ODCL-KM",) * km

    @property
    def part_one_guaranteed(self) -> bool:
        """Whether Theorem 3 holds: Part I misplaces at most 128 / c^2 of a cluster."""
        return self.center_separation >= self.c


def separation(theta: Floats, labels: Array, *, c: float = 100) -> Separation:
    """Separation of models ``theta`` (n_users, dim) by the clustering ``labels`` (n_users,).

        alpha              min ||mu_k - mu_l|| / max ||mu_k - a_i||                    Eq. (4)
        center_separation  min ||mu_k - mu_l|| / (Delta_k + Delta_l)                   Definition 3
        proximity          min (||P - mu_l|| - ||P - mu_k||)
                               / ((|C_k|^-1/2 + |C_l|^-1/2) ||A - C||)                 Eq. (17)
        interval           [max diam(C_k) / |C_k|,
                            min ||mu_k - mu_l|| / (2m - |C_k| - |C_l|))                Eq. (13)

    with Delta_k = min(sqrt(K) ||A - C||, ||A - C||_F) / sqrt|C_k| and P the projection of a_i,
    i in C_k, on the line through mu_k and mu_l. The last line of Lemma 2's proof has |C_k| without
    its root; Eq. (17) is right. Two clusters or more, and c > 0.
    """
    try:
        theta = np.asarray(theta, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"theta, of type {type(theta).__name__}, cannot be read as numbers; the domain is a "
            "matrix (n_users, dim): one row per model. Give an array."
        ) from None
    seen = f"theta of shape {theta.shape}"
    check.inside(theta.ndim == 2, seen, "(n_users, dim)", "one row per model")
    numbers = bool(np.isfinite(theta).all())
    check.inside(numbers, "theta", "of finite numbers", "distances are needed")
    labels = np.asarray(labels)
    seen, domain = f"labels of shape {labels.shape}", f"({len(theta)},)"
    check.inside(labels.shape == (len(theta),), seen, domain, "one label per user")
    missing = labels.dtype.kind == "f" and not np.isfinite(labels).all()
    missing = missing or (labels.dtype.kind == "O" and any(v is None for v in labels.tolist()))
    check.inside(not missing, "labels", "one for each user", "some are None or not finite")
    below = int((labels < 0).sum()) if labels.dtype.kind in "if" else 0
    check.inside(below == 0, f"{below} labels below 0", "labels >= 0", "-1 means no cluster")
    check.positive(c=c)
    labels = number_by_first_user(labels)
    sizes = np.bincount(labels)
    why = "it is separated from nothing (Assumption 1)"
    check.inside(len(sizes) > 1, "one cluster", "K > 1", why)

    # Centred first: means of models far from zero would lose the digits in which they differ.
    a = theta - theta.mean(axis=0)
    centers = sum_by_cluster(a, labels) / sizes[:, None]
    off = a - centers[labels]
    between = cdist(centers, centers)
    np.fill_diagonal(between, np.inf)
    spread = min(math.sqrt(len(sizes)) * np.linalg.norm(off, 2), np.linalg.norm(off))
    return Separation(
        theta=theta,
        labels=labels,
        sizes=sizes,
        centers=centers + theta.mean(axis=0),
        radius=float(np.linalg.norm(off, axis=1).max()),
        gap=float(between.min()),
        center_separation=_least_ratio(between, _pairs(sizes) * spread),
        proximity=_proximity(off, centers, between, labels, sizes),
        c=float(c),
    )


def _proximity(off: Floats, centers: Floats, between: Floats, labels: Ints, sizes: Ints) -> float:
    """Largest c for which Eq. (17) holds at every user and every other cluster."""
    margin = np.full_like(between, np.inf)  # least ||P - mu_l|| - ||P - mu_k|| over i in C_k
    for k in range(len(sizes)):
        length = between[k]
        # Where the projection lies on the way from mu_k to mu_l. Centres that coincide span no
        # line: any point is as near to one as to the other.
        way = (centers - centers[k]) / np.where(length > 0, length, 1.0)[:, None]
        along = off[labels == k] @ way.T
        margin[k] = (np.abs(length - along) - np.abs(along)).min(axis=0)
    return _least_ratio(margin, _pairs(sizes) * np.linalg.norm(off, 2))


def _pairs(sizes: Ints) -> Floats:
    """1 / sqrt|C_k| + 1 / sqrt|C_l|, (n_clusters, n_clusters)."""
    root = 1 / np.sqrt(sizes)
    return np.asarray(root[:, None] + root)


def _least_ratio(wanted: Floats, scale: Floats) -> float:
    """min wanted / scale off the diagonal; without spread any c does where wanted > 0."""
    off = ~np.eye(len(wanted), dtype=bool)
    if scale[0, 1] > 0:
        return float((wanted[off] / scale[off]).min())
    return math.inf if wanted[off].min() > 0 else 0.0
