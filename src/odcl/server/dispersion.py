"""What the uploads tell about noise: the users' covariances, and how far a group's users differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import chdtri, digamma, polygamma

from odcl._typing import Bools, Floats, Ints
from odcl.exchange.upload import Uploads
from odcl.risk.losses import Huber
from odcl.risk.risk import GAUSSIAN_WIDTHS, Risk

if TYPE_CHECKING:
    from odcl.mixed.posterior import Mixture

# Enough numbers (users times dim) to pin one down to half a percent, from enough users to have seen
# every group; more would only cost time, and dim^3 of it a user.
_ENOUGH, _ENOUGH_USERS = 100_000, 2_000
NoisePrior = tuple[float, float]  # a scale, and the degrees of freedom that it is worth
_CHUNK = 1024  # users whose curvature is turned around at one time
# Share of the models' degrees of freedom that the rows determine, tr(A H^-1) / dim. Under this the
# users' quadratic models are no likelihood any more: on digits and MNIST users with as many rows as
# parameters (share .2 - .35) they miss that groups differ; where they hold it is .9 and more.
DETERMINED = 0.7
DISPERSED = 1.5  # times as much as their law allows: deviances of small counts come near 1.2
HELD = 1e5  # times as much as its rows would say: the weight of a coefficient that all share
SINGULAR = 1e-10  # least eigenvalue, at unit diagonal, of rows that leave a direction unseen


def with_noise(uploads: Uploads, mixture: Mixture | None = None) -> Uploads:
    """Uploads whose data terms also say models, curvature and dispersion; others as they are.

    Squared loss: with the users' means and factors of [X y] the curvature is X'X + n P, and the
    model and what the target scatters around it are known exactly. Other losses: as the
    Gaussian term has them.
    Coefficients that all users of a ``mixture`` share are no user's to find: they are held at what
    they are there.
    """
    from odcl.server.combine import solve_symmetric

    risk = uploads.risk
    if risk is None or not uploads.has_terms or uploads.curvature is not None:
        return uploads
    n, dim = uploads.n_samples, uploads.dim
    phi = np.ones(len(n))
    if uploads.factor is not None:
        root, target = squared_term(uploads)
        H, b = root.transpose(0, 2, 1) @ root, root.transpose(0, 2, 1) @ target[..., None]
    else:
        from odcl.mixed.layout import gaussian_map

        assert uploads.gaussian_curvature is not None
        assert uploads.gaussian_slope is not None
        features = dim // risk.n_outputs - risk.intercept
        back = np.linalg.inv(
            gaussian_map(features, risk.intercept, getattr(risk.loss, "basis", None))
        )
        middle = len(GAUSSIAN_WIDTHS) // 2
        H = back.T @ uploads.gaussian_curvature[:, middle] @ back
        b = back.T @ uploads.gaussian_slope[:, middle, :, None]
    held, at = shared_coefficients(mixture, risk)
    free = dim - int(held.sum()) if len(held) else dim
    if free < dim:
        weight = HELD * (np.diagonal(H, axis1=1, axis2=2) + n[:, None]) * held
        H = H + weight[:, :, None] * np.eye(dim)
        b = b + (weight * at)[..., None]
    scale = 1 / np.sqrt(np.maximum(np.diagonal(H, axis1=1, axis2=2), 1e-300))
    least = np.linalg.eigvalsh(H * scale[:, :, None] * scale[:, None])[:, 0]
    H = H + n[:, None, None] * np.diag(uploads.penalty)
    theta = solve_symmetric(H, b[..., 0])
    if uploads.factor is not None:
        rest = target - (root @ theta[..., None])[..., 0]
        phi = (rest**2).sum(axis=1) / np.maximum(n - free, 1.0)
    if isinstance(risk.loss, Huber):  # few rows with outliers among them: their noise is not known
        phi[phi > (2 * risk.loss.delta) ** 2] = np.inf
    phi[(n <= free) | (least < SINGULAR)] = np.inf
    return replace(uploads, theta=theta, curvature=H, dispersion=phi)


def shared_coefficients(mixture: Mixture | None, risk: Risk) -> tuple[Bools, Floats]:
    """Which numbers of a model all users share, and what they are; empty: none of them."""
    from odcl.mixed.layout import model_map

    if mixture is None or mixture.spread.fixed is None:
        return np.zeros(0, np.bool_), np.zeros(0)
    at, fixed = mixture.coordinates, mixture.spread.fixed
    columns = at.kept[fixed[1 : 1 + len(at.kept)]]  # there is an intercept
    shared = np.isin(np.arange(at.n_features), columns)
    for f, factor in enumerate(risk.factors):
        shared[list(factor.columns)] |= at.n_features + f in columns
    offset, change = model_map(mixture, risk)
    held = np.repeat(np.append(shared, False), risk.n_outputs)
    return held, offset + change @ mixture.centers[0]


def squared_term(uploads: Uploads) -> tuple[Floats, Floats]:
    """A few rows (root, target) that say of a model what the user's rows do, for squared loss."""
    assert uploads.risk is not None
    assert uploads.means is not None
    assert uploads.factor is not None
    R, n = uploads.factor, np.sqrt(uploads.seen)[:, None]
    root = np.concatenate([(n * uploads.means)[:, None, :-1], R[:, :, :-1]], axis=1)
    target = np.concatenate([n * uploads.means[:, -1:], R[:, :, -1]], axis=1)
    if uploads.risk.intercept:
        ones = np.zeros((*root.shape[:2], 1))
        ones[:, 0] = n
        root = np.concatenate([root, ones], axis=2)
    return root, target


def pooled_dispersion(uploads: Uploads, prior: NoisePrior | None = None) -> Floats | None:
    """Each user's noise scale, drawn towards the federation's as far as the data say, (n_users,).

    A user's own phi_i rests on n_i - dim degrees of freedom and is noisy. Empirical Bayes
    (inverse-gamma prior, moments of log phi_i) measures how much users really differ in it: not
    at all gives the pooled value to everybody. Users who cannot tell get the prior's scale.
    None where nobody can tell. ``prior`` is that of other users, if not of these.
    """
    phi = uploads.dispersion
    if phi is None:
        return None
    if not uploads.has_dispersion:
        return np.ones(uploads.n_users)
    prior = dispersion_prior(uploads) if prior is None else prior
    if prior is None:
        return None
    scale, prior_dof = prior
    if np.isinf(prior_dof):
        return np.full(uploads.n_users, scale)
    known, dof = _known_scales(uploads)
    own = np.where(known, phi, 0.0)
    return (prior_dof * scale + dof * own) / (prior_dof + dof)


def dispersion_prior(uploads: Uploads) -> NoisePrior | None:
    """What the users' noise scales say of one another; None where nobody can tell."""
    if uploads.dispersion is None or not uploads.has_dispersion:
        return None
    known, dof = _known_scales(uploads)
    return noise_prior(uploads.dispersion[known], dof[known]) if known.any() else None


def _known_scales(uploads: Uploads) -> tuple[Bools, Floats]:
    phi = uploads.dispersion
    assert phi is not None
    known = np.isfinite(phi) & (phi > 0)
    return known, np.where(known, np.maximum(uploads.n_samples - uploads.dim, 1.0), 0.0)


def noise_prior(phi: Floats, dof: Floats) -> NoisePrior:
    """A typical noise scale, and the degrees of freedom that it is worth beside a user's own.

    Inverse-gamma prior by moments of log phi_i; where users do not differ in it, the pooled scale
    and infinity.
    """
    sizes, which = np.unique(dof, return_inverse=True)  # few: special functions are slow
    half = 0.5 * sizes
    offset = np.log(phi) + (np.log(half) - digamma(half))[which.reshape(-1)]
    excess = 0.0
    if len(phi) > 2:
        expected = float(np.bincount(which.reshape(-1)) @ polygamma(1, half)) / len(offset)
        excess = float(np.var(offset, ddof=1)) - expected
    if excess <= 0:
        return float((dof * phi).sum() / dof.sum()), np.inf
    prior_dof = 2.0 * _inverse_trigamma(excess)
    scale = float(np.exp(offset.mean() + digamma(prior_dof / 2) - np.log(prior_dof / 2)))
    return scale, prior_dof


def covariances(uploads: Uploads, phi: Floats | None) -> Floats | None:
    """cov(theta_i) = phi_i H_i^-1, (n_users, dim, dim); NaN-free, infinite where not known.

    ``phi`` is the :func:`pooled_dispersion`.
    """
    if phi is None or uploads.curvature is None:
        return None
    H, known = uploads.curvature, uploads.knows_noise & uploads.sent
    cov = np.empty(H.shape)
    for start in range(0, len(H), _CHUNK):  # in pieces that a core's cache holds
        part = slice(start, start + _CHUNK)
        able = known[part]
        if able.all():
            np.multiply(np.linalg.inv(H[part]), phi[part, None, None], out=cov[part])
        else:
            cov[part] = np.inf
            cov[part][able] = np.linalg.inv(H[part][able]) * phi[part][able, None, None]
    return cov


def noise_traces(uploads: Uploads, phi: Floats | None) -> Floats | None:
    """Trace of each user's covariance, infinite where it is not known; None if for everybody."""
    cov = covariances(uploads, phi)
    if cov is not None:
        known = uploads.knows_noise & uploads.sent
        return np.where(known, np.trace(cov, axis1=1, axis2=2), np.inf)
    if phi is not None and uploads.inverse_trace is not None:
        return np.where(uploads.knows_noise, phi * uploads.inverse_trace, np.inf)
    return None


def evidence_tau2(
    uploads: Uploads, labels: Ints, centers: Floats, phi: Floats | None
) -> float | None:
    """How far users of a group differ, per coefficient: the tau^2 of largest evidence.

    User i's rows say of its model theta, to second order, -(theta' A_i theta - 2 b_i' theta) /
    (2 phi_i), with A_i = H_i - n_i P the curvature of its data term and b_i = H_i theta_i: the
    penalty, and directions that its rows do not see, have no voice. With theta ~ N(c, tau^2 I)
    integrated out, in the eigenvectors of A_i (eigenvalues a, and g the slope b_i - A_i c there),

        log Z = const + sum -1/2 log(1 + t a / phi) + t (g / phi)^2 / (2 (1 + t a / phi))

    None where this cannot be trusted: fewer than half of the users sent their curvature and know
    their noise, or the penalty rather than the rows sets the models (see DETERMINED).
    """
    if phi is None or uploads.curvature is None:
        return None
    size = np.bincount(labels)[labels]
    able = uploads.knows_noise & uploads.sent
    use = np.flatnonzero(able & (size > 1))
    if len(use) == 0 or able.sum() < 0.5 * len(able):
        return None
    use = use[:: -(-len(use) // max(_ENOUGH // uploads.dim, _ENOUGH_USERS))]
    H, n = uploads.curvature[use], uploads.n_samples[use]
    center = centers[labels[use]]
    pen = uploads.penalty
    # b - A c about the centre itself: both are large where targets are far from zero.
    slope = (
        np.matmul(H, (uploads.models[use] - center)[..., None])[..., 0] + n[:, None] * pen * center
    )
    a, V = np.linalg.eigh(H - n[:, None, None] * np.diag(pen))
    a = np.maximum(a, 0.0)
    weight = n[:, None] * pen.max(initial=0.0)
    if np.mean(a / np.maximum(a + weight, 1e-300)) < DETERMINED:
        return None
    a = a / phi[use, None]
    # In a group of g the fitted centre has taken up 1 / g of each user's deviation.
    swell = np.sqrt(size[use] / (size[use] - 1.0))[:, None]
    gap = swell * np.matmul(V.transpose(0, 2, 1), slope[..., None])[..., 0] / phi[use, None]
    return most_likely_tau2(a, gap**2, price=np.log(len(a)))


def most_likely_tau2(a: Floats, gap2: Floats, *, price: float) -> float:
    """The t >= 0 that minimises -2 log Z = sum log(1 + t a) - t gap2 / (1 + t a) + const.

    ``gap2`` = (beta - a gamma)^2 are the squared slopes of the users' risks at their centre. Minus
    twice the log-evidence has to fall by ``price``, else 0 is the answer: log(n_users), that of one
    parameter in the BIC, because noise in the curvature alone pushes t up a little, which costs
    more than it gives.
    """

    def misfit(t: float) -> float:
        ta = t * a
        return float((np.log1p(ta) - t * gap2 / (1.0 + ta)).sum())

    typical = a[a > 0]
    if len(typical) == 0:
        return 0.0
    unit = 1.0 / float(np.median(typical))
    grid = np.geomspace(1e-6 * unit, 1e6 * unit, 37)
    best = int(np.argmin([misfit(t) for t in grid]))
    around = np.log(grid[[max(best - 1, 0), min(best + 1, len(grid) - 1)]])
    found = minimize_scalar(lambda x: misfit(np.exp(x)), bounds=around, method="bounded")
    return float(np.exp(found.x)) if found.fun + price < 0.0 else 0.0


def _inverse_trigamma(y: float) -> float:
    """x with trigamma(x) = y, by Newton on 1 / trigamma, which is nearly linear."""
    x = 0.5 + 1.0 / y
    for _ in range(50):
        value = float(polygamma(1, x))
        step = value * (1.0 - value / y) / float(polygamma(2, x))
        x += step
        if abs(step) < 1e-10 * x:
            break
    return x


def overdispersion(uploads: Uploads, least: float = 1.0) -> float:
    """How many times as much as the Poisson law allows the median user's counts scatter.

    The deviance of the user's own model, read off its Gaussian term, over the median of chi-squared
    with a degree of freedom per row beyond the parameters that it tells of. 1 below ``least``, for
    other losses, and where no user has rows to spare.
    """
    counts = uploads.risk is not None and uploads.risk.loss.name == "poisson"
    if not counts or uploads.gaussian_curvature is None or uploads.gaussian_slope is None:
        return 1.0
    assert uploads.gaussian_constant is not None
    assert uploads.gaussian_ceiling is not None
    widest = -1  # nearest to the user's own model
    A, b = uploads.gaussian_curvature[:, widest], uploads.gaussian_slope[:, widest, :, None]
    values = np.linalg.eigvalsh(A)
    spare = uploads.n_samples - (values > 1e-9 * values[:, -1:]).sum(axis=1)
    some = spare > 0
    fitted = (b * (np.linalg.pinv(A, 1e-9, hermitian=True) @ b)).sum(axis=(1, 2))
    deviance = 2 * uploads.gaussian_ceiling + uploads.gaussian_constant[:, widest] - fitted
    times = float(np.median(deviance[some] / chdtri(spare[some], 0.5))) if some.any() else 1.0
    return times if times >= least else 1.0
