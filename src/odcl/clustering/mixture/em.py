"""EM for a mixture of groups seen through noise of known size.

    z_i ~ sum_k pi_k N(c_k, s_i I),     s_i = scale * v_i + tau2

Two readings of the noise v_i: believed (``scale`` = 1 and tau2 >= 0 is fitted), or known up to a
factor (tau2 = 0 and ``scale`` is fitted); the second with all v_i = 1 is one shared variance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import brentq
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from odcl._typing import Floats, Ints

CHUNK_ENTRIES = 2_000_000  # of the (users, groups) matrices alive at one time: 16 MB each
NOISE_BINS = 1_000  # users with nearly the same v_i share one term in the fit of tau2
TAU_PRICE = 6.0  # times dispersion: what tau2 > 0 must gain in twice the log-likelihood


def noise_bins(noise: Floats) -> Ints:
    """(n,) number of the bin of each noise: by size, at most ``NOISE_BINS``, none empty."""
    distinct, inverse = np.unique(noise, return_inverse=True)
    width = -(-len(distinct) // NOISE_BINS)
    return np.asarray(inverse, dtype=np.intp).ravel() // width


@dataclass(frozen=True, eq=False)
class Axes:
    """Whole covariances A_i of the users' noise: A_i = vectors diag(values) vectors'."""

    values: Floats  # (n, dim), positive
    vectors: Floats  # (n, dim, dim), axes in columns

    def along(self, residual: Floats) -> Floats:
        """Residuals, (n, dim), along the axes of each user's noise."""
        return (self.vectors.swapaxes(1, 2) @ residual[:, :, None])[:, :, 0]


@dataclass(frozen=True, eq=False)
class Cloud:
    """The users as the mixture sees them.

    ``dim`` is the dimension that counts in the likelihood. ``points`` may have fewer columns:
    n points span at most n - 1 directions, and a rotation onto these keeps every distance.
    """

    points: Floats  # (n, rank)
    noise: Floats  # (n,), the v_i: positive and finite
    dim: int
    believed: bool = True  # v_i as they are and tau2 fitted; or tau2 = 0 and a factor fitted
    axes: Axes | None = None  # where known, the score uses them; EM itself needs only v_i

    def __len__(self) -> int:
        return len(self.points)

    def rows(self, index: Ints) -> Cloud:
        """The cloud of some of the users, without their axes."""
        return replace(self, points=self.points[index], noise=self.noise[index], axes=None)

    @cached_property
    def bins(self) -> Ints:
        """(n,) number of each user's bin of equal, or nearly equal, noise."""
        return noise_bins(self.noise)

    @cached_property
    def total(self) -> float:
        """Mean squared distance to the mean per coordinate: the size of the whole cloud."""
        return (
            float(np.square(self.points - self.points.mean(axis=0)).sum(axis=1).mean()) / self.dim
        )


@dataclass(frozen=True, eq=False)
class MixtureParameters:
    """Parameters. ``precision[k]`` is sum_i r_ik / s_i: c_k is known up to 1 / precision[k]."""

    centers: Floats  # (K, rank)
    precision: Floats  # (K,)
    shares: Floats  # (K,), the pi_k
    tau2: float = 0.0
    scale: float = 1.0

    def __len__(self) -> int:
        return len(self.centers)

    def variance(self, noise: Floats) -> Floats:
        """s_i of the model, (n,)."""
        return self.scale * noise + self.tau2


@dataclass(frozen=True, eq=False)
class NoiseMixtureFit:
    """A mixture at rest, with what decides between numbers of groups."""

    mixture: MixtureParameters
    labels: Ints  # (n,), the most likely group; ties go to the lower number
    score: float  # ICL: lower is better
    misfit: float  # mean of q_i / s_i per degree of freedom: 1 where noise and data agree
    degrees: float
    converged: bool


@dataclass(frozen=True, eq=False)
class Sweep:
    """One E-step over all users: sums over users, and what each user keeps."""

    mass: Floats  # (K,)     sum_i r_ik
    precision: Floats  # (K,)     sum_i r_ik / s_i
    pull: Floats  # (K, rank) sum_i r_ik z_i / s_i
    spread: Floats  # (n,)     q_i = sum_k r_ik ||z_i - c_k||^2
    freedom: Floats  # (n,)     1 - h_i, the part of q_i that the fitted centres have not used up
    labels: Ints  # (n,)
    loglik: float
    entropy: float


def responsibilities(cloud: Cloud, mixture: MixtureParameters) -> tuple[Floats, Floats, Floats]:
    """Probabilities r_ik (n, K), squared distances (n, K) and each user's log-likelihood (n,)."""
    variance = mixture.variance(cloud.noise)
    # cdist subtracts before it squares: in noise units groups may lie 1e8 apart, and the
    # expanded form would lose the distances inside them.
    squared = cdist(cloud.points, mixture.centers, "sqeuclidean")
    joint = squared / (-2 * variance[:, None])
    joint += np.log(np.maximum(mixture.shares, 1e-300))
    top = joint.max(axis=1)
    joint -= top[:, None]
    r = np.exp(joint, out=joint)
    total = r.sum(axis=1)
    r /= total[:, None]
    return r, squared, top + np.log(total) - cloud.dim / 2 * np.log(2 * np.pi * variance)


def sweep(cloud: Cloud, mixture: MixtureParameters) -> Sweep:
    """E-step in chunks of users: memory does not grow with users times groups."""
    n, n_groups = len(cloud), len(mixture)
    mass, precision = np.zeros(n_groups), np.zeros(n_groups)
    pull = np.zeros_like(mixture.centers)
    spread, freedom = np.empty(n), np.empty(n)
    labels = np.empty(n, dtype=np.intp)
    loglik = entropy = 0.0
    used = 1 / np.maximum(mixture.precision, np.finfo(float).tiny)
    step = max(1, CHUNK_ENTRIES // n_groups)
    for start in range(0, n, step):
        part = slice(start, min(start + step, n))
        piece = Cloud(cloud.points[part], cloud.noise[part], cloud.dim)
        r, squared, log_density = responsibilities(piece, mixture)
        weight = 1 / mixture.variance(piece.noise)
        labels[part] = r.argmax(axis=1)
        spread[part] = np.einsum("nk,nk->n", r, squared)
        freedom[part] = 1 - np.minimum(weight * (r @ used), 1)
        loglik += float(log_density.sum())
        entropy -= float((r * np.log(np.maximum(r, 1e-300))).sum())
        mass += r.sum(axis=0)
        r *= weight[:, None]
        precision += r.sum(axis=0)
        pull += r.T @ piece.points
    return Sweep(mass, precision, pull, spread, freedom, labels, loglik, entropy)


def em(
    cloud: Cloud,
    start: MixtureParameters,
    *,
    max_sweeps: int = 300,
    tol: float = 1e-6,
    fit_variance: bool = True,
) -> NoiseMixtureFit:
    """Centres and shares, then tau2 (or the scale), in turns, each after its own E-step.

    Taking turns (Meng and van Dyk 1997, AECM) needs one pass over the users each time and keeps no
    (n, K) matrix. Stops when a full turn moves the log-likelihood by less than ``tol`` per user.
    """
    mixture, before, converged = start, -np.inf, False
    for _ in range(max_sweeps // 2):
        if fit_variance:
            state = sweep(cloud, mixture)
            mixture = _with_variance(cloud, mixture, state.spread, state.freedom)
        state = sweep(cloud, mixture)
        converged = abs(state.loglik - before) <= tol * len(cloud)
        if converged:
            break
        before = state.loglik
        mixture = _with_centers(mixture, state)
    state = sweep(cloud, mixture)
    mixture = replace(mixture, precision=state.precision)
    loglik = state.loglik + shape_gain(cloud, mixture, state.labels, state.spread)
    score = icl(cloud, mixture, loglik, state.entropy)
    degrees = cloud.dim * float(state.freedom.sum())
    # With nearly every user its own group there is nothing to compare.
    misfit = 1.0
    if degrees >= 0.5 * cloud.dim:
        misfit = float((state.spread / mixture.variance(cloud.noise)).sum()) / degrees
    return NoiseMixtureFit(mixture, state.labels, score, misfit, degrees, converged)


def from_labels(cloud: Cloud, labels: Ints) -> tuple[MixtureParameters, float]:
    """Mixture of a hard partition, and its ICL (the entropy of a partition is zero).

    Centres weighted by 1 / s_i need tau2, and tau2 needs centres: two rounds, the first with the
    median noise as tau2. ``labels`` is (n,) holding 0..K-1, each at least once.
    """
    n, n_groups = len(cloud), int(labels.max()) + 1
    member = csr_array((np.ones(n), (labels, np.arange(n))), shape=(n_groups, n))
    mass = np.bincount(labels, minlength=n_groups).astype(np.float64)
    tau2, scale = (float(np.median(cloud.noise)), 1.0) if cloud.believed else (0.0, 1.0)
    for _ in range(2):
        weight = 1 / (scale * cloud.noise + tau2)
        precision = member @ weight
        centers = (member @ (weight[:, None] * cloud.points)) / precision[:, None]
        mixture = MixtureParameters(centers, precision, mass / n, tau2, scale)
        spread: Floats = np.square(cloud.points - centers[labels]).sum(axis=1)
        mixture = _with_variance(cloud, mixture, spread, 1 - weight / precision[labels])
        tau2, scale = mixture.tau2, mixture.scale
    variance = mixture.variance(cloud.noise)
    loglik = float(mass @ np.log(mass / n)) - 0.5 * float(
        (cloud.dim * np.log(2 * np.pi * variance) + spread / variance).sum()
    )
    mixture = replace(mixture, precision=member @ (1 / variance))
    return mixture, icl(cloud, mixture, loglik, 0.0)


def icl(cloud: Cloud, mixture: MixtureParameters, loglik: float, entropy: float) -> float:
    """Integrated classification likelihood (Biernacki et al. 2000), in the units of BIC.

        -2 loglik + 2 entropy + K log n + max(K dim log n, evidence)

    BIC prices a centre at dim log n, as if it were known beforehand up to one user's s_i. Where
    groups lie much further apart than s_i that is too cheap: with small noise every user would be
    its own group. ``center_evidence`` prices centres by the distance between them; the dearer
    of the two counts. Below seven users log n is taken as 2, or noise alone would pay for a split.
    """
    log_n = float(np.log(len(cloud)))
    price = max(log_n, 2.0)
    evidence = center_evidence(mixture, cloud) + cloud.dim * (price - log_n)
    n_groups = len(mixture)
    return (
        -2 * loglik + 2 * entropy + n_groups * price + max(n_groups * cloud.dim * price, evidence)
    )


def shape_gain(cloud: Cloud, mixture: MixtureParameters, labels: Ints, spread: Floats) -> float:
    """Log-likelihood of N(c_k, A_i + tau2 I) less that of N(c_k, s_i I), users in their groups.

    One number v_i cannot say that noise is long in a few directions; now and then such a user
    lies so far out that a group for it alone would pay. Its whole covariance explains it.
    """
    if cloud.axes is None:
        return 0.0
    along = cloud.axes.along(cloud.points - mixture.centers[labels])
    exact = mixture.variance(cloud.axes.values)
    round_ = mixture.variance(cloud.noise)
    gain = (cloud.dim * np.log(round_) + spread / round_).sum()
    return 0.5 * float(gain - (np.log(exact) + np.square(along) / exact).sum())


def center_evidence(mixture: MixtureParameters, cloud: Cloud) -> float:
    """Price of the centres when they are drawn from N(c_0, S I), S and c_0 unknown.

        sum_k [ dim log(1 + S P_k) + ||c_k - c_0||^2 / u_k ] + dim log(total sum_k 1/u_k)

    with P_k = precision[k] and u_k = S + 1/P_k is minus twice the log-likelihood with every c_k
    integrated out, less that at the fitted c_k. c_0 is known beforehand up to the size of the
    whole cloud, ``total``. Minimised over S >= 0, on a grid refined twice. Then one group whose
    users differ by tau2 = S and users who are all groups of their own score alike, as they
    should: they describe the same data. Their shares pi_k decide, for one group.
    """
    dim, total_size = cloud.dim, max(cloud.total, np.finfo(float).tiny)
    if len(mixture) == 1:
        return dim * float(np.log(total_size * mixture.precision[0]))
    precision = np.maximum(mixture.precision, 1e-12 * mixture.precision.max())
    centers = mixture.centers - np.average(mixture.centers, axis=0, weights=precision)
    squared = np.square(centers).sum(axis=1)

    def price(between: Floats) -> Floats:
        unit: Floats = 1 / (between[:, None] + 1 / precision)  # (grid, K)
        total = unit.sum(axis=1)
        gap = unit @ squared - np.square(unit @ centers).sum(axis=1) / total
        grown = np.log1p(between[:, None] * precision).sum(axis=1)
        priced: Floats = dim * (grown + np.log(total * total_size)) + np.maximum(gap, 0)
        return priced

    high = 4 * max(float(squared.max()) / dim, 1 / float(precision.max()))
    grid = np.geomspace(1e-3 / float(precision.max()), high, 48)
    for _ in range(2):
        at = int(price(grid).argmin())
        grid = np.geomspace(grid[max(at - 1, 0)], grid[min(at + 1, 47)], 48)
    return float(min(price(grid).min(), price(np.zeros(1))[0]))


def _with_centers(mixture: MixtureParameters, state: Sweep) -> MixtureParameters:
    """c_k = weighted mean of its users. A group that lost all its users stays where it was."""
    alive = state.precision > 1e-12 * state.precision.max()
    safe = np.where(alive, state.precision, 1.0)[:, None]
    centers = np.where(alive[:, None], state.pull / safe, mixture.centers)
    precision = np.where(alive, state.precision, mixture.precision)
    return replace(
        mixture, centers=centers, precision=precision, shares=state.mass / state.mass.sum()
    )


def _with_variance(
    cloud: Cloud, mixture: MixtureParameters, spread: Floats, freedom: Floats
) -> MixtureParameters:
    """The one free number of s_i, from q_i with its degrees of freedom.

    Fitted centres lie closer to their users than the true ones: E q_i = dim s_i (1 - h_i) with
    h_i = sum_k r_ik / (s_i P_k). Counting dim (1 - h_i) degrees of freedom (restricted
    likelihood) takes that bias away; without it tau2 is lost when groups are small.
    """
    if cloud.believed:
        tau2 = between_users(cloud.noise, spread, cloud.dim * freedom, cloud.bins, TAU_PRICE)
        return replace(mixture, tau2=tau2)
    degrees = max(cloud.dim * float(freedom.sum()), 1e-9)
    scale = float((spread / cloud.noise).sum()) / degrees
    # Users that coincide exactly would send the likelihood to infinity.
    floor = 1e-12 * cloud.total / float(cloud.noise.max())
    return replace(mixture, scale=max(scale, floor) or 1.0)


def between_users(
    noise: Floats, spread: Floats, degrees: Floats, bins: Ints, price: float
) -> float:
    """tau2 >= 0 that minimises sum_i [ a_i log(v_i + t) + q_i / (v_i + t) ], a_i = degrees.

    Stationary where sum_i [ a_i/(v_i + t) - q_i/(v_i + t)^2 ] = 0, which can have several roots
    when the v_i are uneven: a grid over all t that matter finds the lowest valley, Brent's
    method its bottom.

    Zero wins unless the valley is lower by ``price`` times the dispersion of q_i, which is
    above 1 when q_i varies more than its degrees of freedom say: tau2 > 0 by chance costs more
    than a small true tau2 taken as zero.
    """
    v = np.bincount(bins, noise) / np.bincount(bins)
    a, q = np.bincount(bins, degrees), np.bincount(bins, spread)
    # No root lies above the largest q_i / a_i; a user that is its own group has a_i = q_i = 0.
    high = float((q / np.maximum(a, 0.01 * a.max() + 1e-300)).max())
    low = 1e-4 * float(v.min())
    if high <= low or float(degrees.sum()) <= 0:
        return 0.0

    def slope(t: float) -> float:
        w = 1 / (v + t)
        return float(a @ w - q @ (w * w))

    grid = np.concatenate([[0.0], np.geomspace(low, high, 64)])
    s = v + grid[:, None]
    valley = np.log(s) @ a + (1 / s) @ q
    at = int(valley[1:].argmin()) + 1
    tau2 = float(grid[at])
    surplus = spread / (noise + tau2) - degrees  # mean 0, variance 2 degrees if isotropic
    dispersion = max(1.0, float(surplus @ surplus) / (2 * float(degrees.sum())))
    if valley[0] - valley[at] <= price * dispersion:
        return 0.0
    left, right = float(grid[at - 1]), float(grid[min(at + 1, 64)])
    if slope(left) < 0 < slope(right):
        return float(brentq(slope, left, right, xtol=1e-10 * right, rtol=1e-10))
    return tau2
