"""Models for a report, from what an artifact holds: in the table's units, on a map, with more rows.

All are functions of a loaded estimator and of positions of its users.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtr

from odcl._typing import Bools, Floats, Ints
from odcl.diagnose.own_models import covariances, has_own_models, pooled_dispersion, pooled_scales
from odcl.diagnose.own_models import own_models as models_of
from odcl.exchange.upload import Uploads
from odcl.fitted.predict import Effect, common_model
from odcl.fitted.value import Fitted
from odcl.mixed.differences import open_curves
from odcl.mixed.layout import model_map
from odcl.mixed.mixture import Quadratics, Spread, moments
from odcl.mixed.posterior import Mixture
from odcl.report.page.facts import CHUNK, CurveFacts, MoreRows, TableUnits, UserMap
from odcl.risk.risk import most_parameters
from odcl.runs.run import group_sizes
from odcl.server.mixed import user_quadratics

CELLS = (72, 48)  # of a map of more users than can be told apart
TIMES = (0.5, 1.0, 2.0, 4.0)  # as many rows
ENOUGH = 2_000  # users who tell by themselves what noise is usual
LOOKED_AT = 500  # users by whose models the directions of a map of wide users are found
POINTS, MOST_CURVES = 61, 12
Z90 = 1.645
SLOPES = " Of a column that acts in a curve it is the slope of its line."
FAR = 5.0  # a frame is cut where the whole would be so many times as wide


# -- users' own models -----------------------------------------------------------------------------


def own_models(fitted: Fitted, who: Ints) -> tuple[Floats, Floats | None]:
    """What users' own rows say alone: models, and covariances; NaN where they do not say it."""
    theta, sent = np.full((len(who), fitted.users.model.shape[1]), np.nan), fitted.uploads
    if sent is None:
        return theta, None
    if not has_own_models(sent):
        return theta if sent.theta is None else sent.theta[who], None
    own = models_of(sent.take(who))
    phi = pooled_dispersion(own) if len(who) >= ENOUGH else _noise_scales(sent, who)
    theta, known = own.theta.copy(), covariances(own, phi)
    theta[~own.knows_noise] = np.nan
    return theta, None if known is None else np.where(_whole(known)[:, None, None], known, np.nan)


def _noise_scales(sent: Uploads, who: Ints) -> Floats | None:
    """The noise scales of some users, pooled over everybody's; None: nobody tells."""
    m = len(sent)
    chunks = (np.arange(at, min(at + CHUNK, m)) for at in range(0, m, CHUNK))
    told = np.concatenate([models_of(sent.take(some)).dispersion for some in chunks])
    assert sent.risk is not None
    pooled = pooled_scales(told, sent.n_samples, sent.dim, sent.risk)
    return None if pooled is None else pooled[who]


def group_errors(fitted: Fitted, units: TableUnits) -> tuple[Floats, str]:
    """Standard errors of the groups' models, (K, p), and how they are known."""
    bars = "Bars are 95 % intervals."
    if fitted.mixed is not None:
        change = model_map(fitted.mixed, fitted.risk)[1]
        about = f"{bars} {fitted.newcomers.tails.text}".rstrip()
        return units.errors(change @ fitted.mixed.covariances @ change.T), about
    errors = np.full((fitted.n_clusters, len(units.names)), np.nan)
    theta = None if fitted.uploads is None else fitted.uploads.theta
    if theta is None:
        return errors, "How surely they are known is not told."
    for g, size in enumerate(group_sizes(fitted)[0].tolist()):
        own = theta[fitted.users.group == g]
        if len(own) > 1:
            errors[g] = units.models(own).std(axis=0, ddof=1) / np.sqrt(size)
    how = "Intervals are read off how users' own models scatter inside their group."
    return errors, f"{bars} {how}"


# -- the map ---------------------------------------------------------------------------------------


def user_map(fitted: Fitted, who: Ints, units: TableUnits, *, most: int) -> UserMap:
    """All users in two directions; those of ``who`` with their uncertainty.

    Of mixed groups a point is what the user's rows say when nothing is known of groups: the mean
    of its model under one normal distribution with the mean and the covariance of all users,
    noise included. Distances are in units of a typical user's noise. Of other methods it is the
    user's own model, as it was sent.
    """
    if fitted.centers.shape[1] > most_parameters(fitted.risk):
        return _wide_map(fitted, who, most)
    points, cov, metric, about = _points(fitted, who)
    root = np.linalg.cholesky(metric)
    origin = fitted.centers.mean(axis=0)
    white = np.linalg.solve(root, (points - origin).T).T
    centers = np.linalg.solve(root, (fitted.centers - origin).T).T
    if white.shape[1] == 1:
        xy = np.column_stack([white[:, 0], fitted.users.group + _spread_out(white[:, 0])])
        middle = np.column_stack([centers[:, 0], np.arange(len(centers))])
        turn = np.linalg.inv(root)
        flat = np.column_stack([cov[:, 0, 0] * turn[0, 0] ** 2, np.zeros((len(who), 2))])
        axes = ("the model's only number", "group")
        return _framed(xy, flat, middle, axes, about, who, most)
    plane = view(white[np.isfinite(white).all(axis=1)], centers)
    turn = np.linalg.solve(root.T, plane.T)  # (dim, 2)
    xy, middle = white @ plane.T, centers @ plane.T
    flat = turn.T @ cov @ turn
    axes = _axis(xy[:, 0], points, units, 0), _axis(xy[:, 1], points, units, 1)
    flat = np.column_stack([flat[:, 0, 0], flat[:, 1, 1], flat[:, 0, 1]])
    return _framed(xy, flat, middle, axes, about, who, most)


def _wide_map(fitted: Fitted, who: Ints, most: int) -> UserMap:
    """Of models with many numbers: in the directions in which groups' and users' models differ."""
    theta, groups = fitted.users.model, fitted.mixture
    about = "A point is a user's model"
    if groups is None and fitted.uploads is not None and fitted.uploads.theta is not None:
        theta, about = (
            fitted.uploads.theta,
            "A point is a user's own model, as its rows alone have it",
        )
    k, origin = len(fitted.centers), fitted.centers.mean(axis=0)
    some = np.linspace(0, len(theta) - 1, min(len(theta), LOOKED_AT)).astype(np.intp)
    plane = view(theta[some] - origin, fitted.centers - origin)
    xy, middle = (theta - origin) @ plane.T, (fitted.centers - origin) @ plane.T
    between, within = "in which groups differ most", "in which users differ most"
    axes = between if k > 1 else within, between if k > 2 else within
    named = f"direction 1, {axes[0]}", f"direction 2, {axes[1]}"
    nothing = np.full((len(who), 3), np.nan)
    return _framed(xy, nothing, middle, named, f"{about}.", who, most)


def view(theta: Floats, centers: Floats) -> Floats:
    """Two orthonormal directions, (2, dim): in which groups differ, then in which users do.

    The largest number of each is above zero.
    """
    between = _directions(centers)[: max(len(centers) - 1, 0)]
    within = theta - theta @ between[:2].T @ between[:2]
    plane = np.vstack([between, _directions(within), np.eye(2, theta.shape[1])])[:2]
    return plane * np.sign(plane[np.arange(2), np.abs(plane).argmax(axis=1)])[:, None]


def _directions(points: Floats) -> Floats:
    """Principal directions of points, without those in which they do not vary."""
    _, size, directions = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    return directions[size > 1e-9 * max(float(size[0]), 1e-300)]


def _points(fitted: Fitted, who: Ints) -> tuple[Floats, Floats, Floats, str]:
    """Points in the model's coordinates, covariances of those of ``who``, a unit of length."""
    (m, dim), sent = fitted.users.model.shape, fitted.uploads
    if fitted.mixed is not None and sent is not None and not sent.private:
        return _mixed_points(fitted, fitted.mixed, who)
    theta, cov, about = fitted.users.model, fitted.users.covariance, "A point is a user's model."
    if sent is not None and sent.theta is not None:
        theta, about = sent.theta, "A point is a user's own model, as its rows alone have it."
    cov = np.full((m, dim, dim), np.nan) if cov is None else cov
    labels = np.maximum(fitted.users.group, 0)
    some = np.flatnonzero(_whole(cov))
    some = some[:: -(-len(some) // CHUNK) or 1]  # enough for a median
    away = theta - fitted.centers[labels]
    within = np.median(cov[some], axis=0) if len(some) else away.T @ away / max(m, 1)
    return theta, cov[who], _positive(within), about


def _mixed_points(
    fitted: Fitted, mixture: Mixture, who: Ints
) -> tuple[Floats, Floats, Floats, str]:
    offset, change = model_map(mixture, fitted.risk)
    shares, c = mixture.weights, mixture.centers
    mean = shares @ c
    between = ((c - mean).T * shares) @ (c - mean) + np.tensordot(shares, mixture.covariances, 1)
    m = len(fitted.users.users)
    some = np.linspace(0, m - 1, min(m, CHUNK)).astype(np.intp)
    q, s2 = _quadratics(fitted, mixture, some)
    noise = _inverse((q.A / s2[:, None, None]).mean(axis=0))
    inside = mixture.inside + noise
    T = Spread("full", between + inside, np.ones(len(mean), np.bool_))
    points, cov = np.empty((m, len(offset))), np.empty((len(who), len(offset), len(offset)))
    place = np.full(m, -1)
    place[who] = np.arange(len(who))
    for at in range(0, m, CHUNK):
        part = np.arange(at, min(at + CHUNK, m))
        q, s2 = _quadratics(fitted, mixture, part)
        told = moments(q, T, s2)
        score = told.w - (told.W @ mean)
        points[part] = offset + (mean + score @ T.matrix) @ change.T
        own = part[place[part] >= 0]
        W = told.W[own - at]
        left = T.matrix - T.matrix @ W @ T.matrix
        cov[place[own]] = change @ left @ change.T
    about = (
        "A point is what a user's rows say of its model when nothing is known of groups; distances "
        "are in units of a typical user's noise."
    )
    return points, cov, _positive(change @ inside @ change.T), about


def _quadratics(fitted: Fitted, mixture: Mixture, who: Ints) -> tuple[Quadratics, Floats]:
    """The data terms of some users, and their noise, in the mixture's coordinates."""
    assert fitted.uploads is not None
    (q,), at = user_quadratics(fitted.uploads.take(who), mixture)
    if fitted.users.noise is None:
        return q, np.full(len(q), mixture.noise.s0)
    return q, fitted.users.noise[who] / at.target_scale**2


def _whole(values: Floats) -> Bools:
    """Users all of whose numbers are known."""
    return np.asarray(np.isfinite(values).reshape(len(values), -1).all(axis=1), dtype=np.bool_)


def _inverse(A: Floats) -> Floats:
    """Of a symmetric matrix, with directions that nobody sees as uncertain as the least seen."""
    values, vectors = np.linalg.eigh(A)
    values = np.maximum(values, 1e-6 * max(float(values[-1]), 1e-300))
    return (vectors / values) @ vectors.T


def _positive(A: Floats) -> Floats:
    """The matrix with a little more on its diagonal: it is to be a unit of length."""
    size = max(float(np.trace(A)) / len(A), 1e-300)
    return (A + A.T) / 2 + 1e-8 * size * np.eye(len(A))


def _spread_out(values: Floats) -> Floats:
    """Between -0.3 and 0.3, so that equal points lie side by side; the same each time."""
    rank = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return np.asarray(0.6 * ((rank * 0.618034) % 1.0 - 0.5), dtype=np.float64)


def _axis(along: Floats, points: Floats, units: TableUnits, j: int) -> str:
    """A direction by the coefficients that go with it: 'more promotion, less price'."""
    numbers = units.models(points)[:, ~units.extra]
    names = [name for name, extra in zip(units.names, units.extra, strict=True) if not extra]
    numbers, along = numbers - numbers.mean(axis=0), along - along.mean()
    size = np.sqrt((numbers**2).sum(axis=0) * (along @ along))
    with np.errstate(invalid="ignore", divide="ignore"):
        cosine = np.nan_to_num((along @ numbers) / size)
    strong = [k for k in np.argsort(-np.abs(cosine), kind="stable")[:2] if abs(cosine[k]) >= 0.5]
    told = [f"{'higher' if cosine[k] > 0 else 'lower'} {names[k]}" for k in strong]
    return f"direction {j + 1}" + (f": {', '.join(told)}" if told else "")


def _framed(
    xy: Floats,
    cov: Floats,
    centers: Floats,
    axes: tuple[str, str],
    about: str,
    who: Ints,
    most: int,
) -> UserMap:
    """Where to look: everything, or without a few users who would shrink all others to a dot."""
    everything = np.vstack([xy[np.isfinite(xy).all(axis=1)], centers])
    low, high = everything.min(axis=0), everything.max(axis=0)
    inner, outer = np.percentile(everything, [2, 98], axis=0)
    if (high - low > FAR * np.maximum(outer - inner, 1e-300)).any():
        room = 0.5 * (outer - inner)
        low = np.minimum(np.maximum(low, inner - room), centers.min(axis=0))
        high = np.maximum(np.minimum(high, outer + room), centers.max(axis=0))
    room = 0.07 * np.maximum(high - low, 1e-9 + 1e-9 * np.abs(high))
    low, high = low - room, high + room
    outside = int((~((xy >= low) & (xy <= high)).all(axis=1)).sum())
    density = None
    if len(xy) > most:
        nx, ny = CELLS
        found = np.histogram2d(
            xy[:, 1], xy[:, 0], bins=(ny, nx), range=((low[1], high[1]), (low[0], high[0]))
        )[0]
        density = found.astype(np.intp)
    frame = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    known = cov if np.isfinite(cov).any() else None
    return UserMap(xy[who], known, centers, frame, axes, about, outside, density)


# -- more rows -------------------------------------------------------------------------------------


def more_rows(fitted: Fitted, who: Ints, units: TableUnits) -> MoreRows | None:
    """What so many times as many rows like its own would change for each user, to second order.

    Of mixed groups only. Rows that are f times as many have f times the curvature A, which leaves
    of a model inside its group T - T W T, and of groups c and d the distance (c-d)'W(c-d) = r^2:
    such rows speak for the wrong one of the two with probability Phi(-r / 2).
    """
    mixture = fitted.mixed
    if mixture is None or fitted.uploads is None or fitted.uploads.private:
        return None
    change = model_map(mixture, fitted.risk)[1]
    J = np.asarray(change.T @ units.matrix[:, ~units.extra])
    T, c, C = mixture.inside, mixture.centers, mixture.covariances
    labels = fitted.users.group[who]
    inside = Spread("full", T, mixture.spread.open)
    shape = (len(who), len(TIMES))
    width, wrong, weight = np.empty(shape), np.empty(shape), np.empty(shape)
    own_T = np.diag(T)
    for at in range(0, len(who), CHUNK):
        part = slice(at, at + CHUNK)
        q, s2 = _quadratics(fitted, mixture, who[part])
        group = np.maximum(labels[part], 0)
        for f, times in enumerate(TIMES):
            more = replace(q, A=times * q.A, b=times * q.b, uu=times * q.uu)
            W = moments(more, inside, s2).W
            left = T - T @ W @ T if T.any() else np.zeros_like(W)
            through = np.eye(len(T)) - T @ W
            V = left + through @ C[group] @ through.transpose(0, 2, 1)
            variance = np.maximum(((V @ J) * J).sum(axis=1), 0.0)
            width[part, f] = np.sqrt(variance).mean(axis=1)
            gap = c[None] - c[group][:, None]
            square = np.maximum(((gap @ W) * gap).sum(axis=2), 0.0)
            chance = ndtr(-0.5 * np.sqrt(square))
            chance[np.arange(len(group)), group] = 0.0
            wrong[part, f] = np.minimum(chance.sum(axis=1), 1.0)
            open_ = own_T > 0
            spent = np.diagonal(left, axis1=1, axis2=2)[:, open_] / own_T[open_]
            weight[part, f] = 1 - spent.mean(axis=1) if open_.any() else 0.0
    now = TIMES.index(1.0)
    width = width / np.maximum(width[:, now : now + 1], 1e-300)
    return MoreRows(TIMES, width, wrong, weight)


# -- what columns do -------------------------------------------------------------------------------


def curve_facts(fitted: Fitted, who: Ints, classes: list[str]) -> list[CurveFacts]:
    """The open curves in the table's units, of what all have in common and of the users ``who``."""
    if fitted.mixed is None:
        return []
    theta, cov = common_model(fitted)
    adds_to = {"poisson": "the log-rate"}.get(fitted.risk.loss.name, "the prediction")
    if fitted.risk.loss.classification:
        adds_to = "the log-odds" + f" of {classes[-1]}" * (len(classes) == 2)
    models, found = fitted.users.model[who], list[CurveFacts]()
    shape = theta.size // fitted.risk.n_outputs, fitted.risk.n_outputs
    told = open_curves(fitted.mixed, fitted.risk, fitted.units)
    for curve, one in zip(fitted.curves, told, strict=True):
        effect = Effect.of(fitted, curve.of, POINTS)
        value, half = effect.values(theta)[0], Z90 * effect.errors(cov)
        own = models.reshape(len(who), *shape)[:, effect.own] @ effect.turn.T
        alike = not (one.differs or one.sloped)
        for k in range(value.shape[1]):
            name = f"{one.name} [{classes[k]}]" if value.shape[1] > 1 else one.name
            lines = value[:, k], value[:, k] - half[:, k], value[:, k] + half[:, k]
            arrays = *lines, effect.rows, own[..., k]
            found.append(CurveFacts(name, effect.x, *arrays, alike, adds_to))
    return found[:MOST_CURVES]


def chosen_users(n_users: int, most: int, first: Sequence[Ints], seen: Bools | None = None) -> Ints:
    """Positions of at most ``most`` users: those named ``first``, then evenly among the others."""
    if n_users <= most:
        return np.arange(n_users)
    kept = np.zeros(n_users, dtype=np.bool_)
    for some in first:
        kept[some[: max(most - int(kept.sum()), 0)]] = True
    pool = np.flatnonzero(~kept)
    if seen is not None and seen.any():  # whose groups are known in every alternative
        pool = pool[np.argsort(~seen[pool], kind="stable")]
        pool = pool[: max(most - int(kept.sum()), int(seen[pool].sum()))]
    left = most - int(kept.sum())
    if left > 0 and len(pool):
        kept[pool[np.linspace(0, len(pool) - 1, min(left, len(pool))).astype(np.intp)]] = True
    return np.flatnonzero(kept)
