"""What the noise mixture is given, and the units in which it measures distances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.labels import as_points, check_count, check_noise
from odcl.clustering.mixture.em import Axes
from odcl.clustering.mixture.search import SEARCH_USERS

CHUNK_NUMBERS = 4_000_000  # of covariances touched at one time: 32 MB
AXES_COST = 2e10  # users times dim^3 for which axes of covariances are worth the time
NOISE_FLOOR = 1e-6  # times the median user's noise
LARGEST = 1e150  # the largest number in theta: squares of larger ones are not safe to add up
MOST_NOISE = 1e100  # times the users' spread (as a standard deviation)


@dataclass(frozen=True, eq=False)
class Given:
    """Checked inputs of ``noise_mixture``."""

    theta: Floats  # (n_users, dim)
    noise: Floats | None  # (n_users,)
    covariance: Floats | None  # (n_users, dim, dim)
    known: Bools  # (n_users,), whose noise is known: they form the groups

    @property
    def has_noise(self) -> bool:
        """Whether users said how noisy they are."""
        return self.noise is not None or self.covariance is not None


@dataclass(frozen=True, eq=False)
class Units:
    """Users in units of the noise.

        points = (theta - shift) @ forward,     theta = shift + points @ back

    ``forward`` is (dim, rank) and ``back`` (rank, dim), rank < dim where users span less;
    None stands for the identity, which with thousands of parameters is better not multiplied by.
    """

    points: Floats  # (n_users, rank)
    noise: Floats  # (n_users,), v_i: floored, inf where unknown, 1 where nobody said
    shift: Floats  # (dim,)
    forward: Floats | None
    back: Floats | None
    metric: Floats | None  # (dim, dim), C-bar; None for the unit matrix


def in_range(given: Given) -> tuple[Given, float]:
    """The users times a power of two, and that power: squares stay in the range of floats.

    The users' spread, or where they coincide their noise, comes near 1. No digit changes.
    """
    theta, known = given.theta, given.known
    if not known.any():
        return given, 1.0
    variances = np.zeros(1) if given.noise is None else given.noise[known]
    if given.covariance is not None:
        variances = np.diagonal(given.covariance, axis1=1, axis2=2)[known]
    top = float(np.sqrt(variances.max()))
    size = float(np.ptp(theta[known], axis=0).max()) or top
    if top > MOST_NOISE * size:
        raise ValueError(
            f"The noise given has standard deviations up to {top:.1g}, and the models differ by "
            f"{size:.1g}: next to such noise they are all equal. Check the units of the noise, and "
            "use inf where it is not known."
        )
    if size == 0:
        return given, 1.0
    scale = float(np.ldexp(1.0, int(min(-np.log2(size), 1000))))
    noise = None if given.noise is None else given.noise * scale * scale
    covariance = None if given.covariance is None else given.covariance * scale * scale
    return Given(theta * scale, noise, covariance, known), scale


def units_of(given: Given) -> Units:
    """Whiten by the average covariance of users who know it and turn onto the directions they span.

        z_i = C-bar^(-1/2) (theta_i - shift),     v_i = tr(C-bar^-1 C_i) / dim

    Without covariances C-bar = I and v_i = noise_i / dim. Where users are fewer than
    dimensions, a rotation onto their span keeps all distances between them and to their means.
    """
    theta, known = given.theta, given.known
    dim = theta.shape[1]
    shift = theta[known].mean(axis=0)
    points = theta - shift
    noise = np.ones(len(theta)) if given.noise is None else given.noise / dim
    forward = back = metric = None
    if given.covariance is not None:
        metric = _average(given.covariance, known)
        forward, back = _whitening(metric, points[known])
        metric = back.T @ back  # C-bar, but for coordinates without noise
        noise = _noise_units(given.covariance, forward @ forward.T)
        points = points @ forward
    if int(known.sum()) - 1 < dim:
        _, size, rows = np.linalg.svd(points[known], full_matrices=False)
        # Singular values this small are rounding; at least one direction stays.
        rows = rows[: max(1, int((size > 1e-13 * size[0]).sum()))]
        points = points @ rows.T
        forward = rows.T if forward is None else forward @ rows.T
        back = rows if back is None else rows @ back
    # Below 1e-6 of the median user's noise, or 1e-12 of the whole cloud, precision no longer
    # matters, and 1 / v_i would only overflow. Where all is zero any unit will do.
    whole = float(np.square(points[known]).mean())
    floor = max(NOISE_FLOOR * float(np.median(noise[known])), 1e-12 * whole) or 1.0
    return Units(points, np.maximum(noise, floor), shift, forward, back, metric)


def axes_in_order(given: Given, units: Units, order: Ints) -> Callable[[Ints], Axes] | None:
    """Whole whitened covariances of the users order[rows], as a function of rows.

    None where there are none, where finding their axes would take minutes (n dim^3), and where the
    users are fewer than dimensions: the directions were then chosen by the users themselves.
    """
    covariance, forward = given.covariance, units.forward
    if covariance is None or forward is None or forward.shape[1] < forward.shape[0]:
        return None
    if min(len(order), SEARCH_USERS) * float(len(forward)) ** 3 > AXES_COST:
        return None
    floor = NOISE_FLOOR * float(np.median(units.noise[order]))

    def axes_of(rows: Ints) -> Axes:
        values, vectors = np.linalg.eigh(forward.T @ covariance[order[rows]] @ forward)
        return Axes(np.maximum(values, floor), vectors)

    return axes_of


def _average(covariance: Floats, known: Bools) -> Floats:
    """C-bar, (dim, dim): mean over users who know it, without a copy of them all."""
    total = np.zeros(covariance.shape[1:])
    for part in _parts(covariance):
        total += covariance[part][known[part]].sum(axis=0)
    return total / int(known.sum())


def _whitening(metric: Floats, theta: Floats) -> tuple[Floats, Floats]:
    """W with W W' = C-bar^-1, and its inverse.

    Columns may be 1e12 apart in size, which squares in C-bar: it is brought to unit diagonal
    before its eigenvalues are taken, so that scaling a column changes no digit of the answer. A
    coordinate without noise is floored at 1e-6 of its spread over users.
    """
    width = np.sqrt(np.diag(metric))
    spread = theta.std(axis=0)
    width = np.maximum(width, np.where(spread > 0, 1e-6 * spread, np.where(width > 0, 0, 1.0)))
    values, vectors = np.linalg.eigh(metric / np.outer(width, width))
    root = np.sqrt(np.maximum(values, 1e-12 * max(float(values[-1]), 1e-12)))
    return vectors / root / width[:, None], root[:, None] * vectors.T * width


def _noise_units(covariance: Floats, inverse: Floats) -> Floats:
    """v_i = tr(C-bar^-1 C_i) / dim, (n_users,); inf where a covariance is not finite."""
    flat = covariance.reshape(len(covariance), -1)
    noise = np.empty(len(flat))
    for part in _parts(covariance):
        block = flat[part]
        known: Bools = np.asarray(np.isfinite(block).all(axis=1))
        noise[part] = np.where(known, np.where(known[:, None], block, 0) @ inverse.ravel(), np.inf)
    return noise / len(inverse)


def _parts(covariance: Floats) -> Iterator[slice]:
    step = max(1, CHUNK_NUMBERS // (covariance.shape[1] * covariance.shape[2]))
    return (slice(start, start + step) for start in range(0, len(covariance), step))


def check_inputs(
    theta: ArrayLike,
    noise: ArrayLike | None,
    covariance: ArrayLike | None,
) -> Given:
    """Arrays of the right shape and meaning, or an error that says what to do."""
    theta = as_points(theta)
    far = float(np.abs(theta).max())
    if far > LARGEST:
        raise ValueError(
            f"theta holds numbers up to {far:.1g}, and squares of such numbers are no longer "
            "numbers. Divide theta by a constant, and its noise by the square of it."
        )
    n_users, dim = theta.shape
    known = np.ones(n_users, dtype=bool)
    if noise is not None:
        noise = check_noise(noise, n_users)
        known &= np.isfinite(noise)
    if covariance is not None:
        covariance, finite = _checked_covariance(covariance, n_users, dim)
        known &= finite
    return Given(theta, noise, covariance, known)


def _checked_covariance(covariance: ArrayLike, n_users: int, dim: int) -> tuple[Floats, Bools]:
    """The covariances, not copied if they are float64 already, and which are finite."""
    values = np.asarray(covariance, dtype=np.float64)
    if values.shape != (n_users, dim, dim):
        raise ValueError(
            f"covariance has shape {values.shape}; it must be (n_users, dim, dim) = "
            f"{(n_users, dim, dim)}. If you have one number per user, the trace, pass it as noise."
        )
    finite = np.empty(n_users, dtype=bool)
    for part in _parts(values):
        block = values[part]
        finite[part] = np.isfinite(block).all(axis=(1, 2))
        block = block[finite[part]]
        variances = np.diagonal(block, axis1=1, axis2=2)
        n_negative = int((variances < 0).any(axis=1).sum())
        if n_negative:
            raise ValueError(
                f"{n_negative} users have a negative variance on the diagonal of covariance; a "
                "covariance is H^-1 with H positive definite. Check the sign of the Hessian."
            )
        # 1e-6 of the coordinates' own scales: inverses of ill-conditioned Hessians keep that.
        width = np.sqrt(variances)
        gap = np.abs(block - block.swapaxes(1, 2))
        if (gap > 1e-6 * width[:, :, None] * width[:, None, :]).any():
            raise ValueError(
                "covariance is not symmetric for at least one user, so it is not a covariance. "
                "Pass (C + C.T) / 2 if rounding made it so; otherwise check the axis order."
            )
    return values, finite


def check_numbers(n_clusters: object, max_clusters: object, n_known: int) -> int | None:
    """The number of groups asked for, or None for "auto"."""
    for name, value in (("n_clusters", n_clusters), ("max_clusters", max_clusters)):
        if not (isinstance(value, str) and value == "auto"):
            check_count(name, value, "'auto' leaves it to the data")
    if not isinstance(n_clusters, int | np.integer):
        return None
    if n_clusters > n_known:
        raise ValueError(
            f"n_clusters={n_clusters} groups are asked of {n_known} users who know their noise, "
            "and others cannot form one. Ask for fewer."
        )
    return int(n_clusters)
