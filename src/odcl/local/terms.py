"""Mixed groups at the user: what its rows say (its data term), and its last step.

The term is exact for squared loss, that of pseudo-targets for Huber's, a Gaussian term for others.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Bools, Floats
from odcl.data.federation import Federation
from odcl.exchange.upload import Uploads
from odcl.local.fit import solve_users
from odcl.local.receive import Received
from odcl.mixed.layout import model_map, units
from odcl.mixed.marginal import stack_size
from odcl.mixed.mixture import Quadratics, by_row
from odcl.mixed.posterior import Mixture, Posterior, posterior, with_noise_beyond
from odcl.mixed.terms import (
    CHUNK,
    RANK,
    DataTerms,
    Levels,
    by_size,
    data_terms,
    merge,
    quadratics,
    stacked_rows,
    subtract_rows,
)
from odcl.risk.loss import symmetric
from odcl.risk.losses import Huber, Multinomial
from odcl.risk.risk import Risk, is_wide

if TYPE_CHECKING:
    from odcl.local.problem import Solution
    from odcl.mixed.gaussian import GaussianPosterior, PseudoTargets

NARROW = 0.5  # of the prior of lines is that of the smoothest bends, in Gaussian terms
PIECE = 8_192  # users who are taken together: what is in between fits into memory


def user_terms(federation: Federation, risk: Risk, *, short_terms: bool = True) -> dict[str, Array]:
    """The fields of an upload that hold the users' data terms.

    Without ``short_terms`` a user with fewer rows than parameters, whose term would span its rows,
    sends that of their average: for squared loss one observation y-bar ~ N(x-bar'theta, s2 / n),
    for others its targets as if each had come with x-bar. Whose rows are all the same would send
    the row with it, and sends nothing.
    """
    if is_wide(risk, federation.n_features):
        if isinstance(risk.loss, Huber):
            federation = federation.with_y(_pseudo_targets(federation, risk).y)
        from odcl.local.wide_terms import wide_terms

        return wide_terms(federation, risk, short_terms=short_terms)
    n, owner = federation.n_samples, federation.row_user
    short = np.full(len(n), not short_terms)
    short &= federation.n_rows < risk.dim(federation.n_features)
    silent = short & _one_row(federation) if short.any() else short
    observations = {} if short_terms else {"observations": np.where(short, ~silent, n)}
    if risk.loss.has_data_terms:
        huber = isinstance(risk.loss, Huber)
        y = _pseudo_targets(federation, risk).y if huber else risk.loss.encode(federation.y)
        found = _data_terms(federation, y)
        found.factor[short] = found.mean[silent] = 0.0
        return {"means": found.mean, "factor": found.factor, **observations}
    if short.any():
        means = data_terms(federation.X, n[owner], owner, len(n), federation.weight).mean[:, :-1]
        federation = federation.with_X(np.where(short[owner, None], means[owner], federation.X))
    sent = _gaussians_sent(federation, risk)
    if risk.curves:  # where all of them are closed, groups are those of lines
        lines = federation.with_X(federation.X[:, : risk.n_lines(federation.n_features)])
        own = _gaussians_sent(lines, risk.lines)
        names = ("curvature", "slope", "constant")
        sent |= {f"gaussian_line_{name}": own[f"gaussian_{name}"] for name in names}
    for values in sent.values():
        values[silent] = 0.0
    return sent | observations


def _gaussians_sent(federation: Federation, risk: Risk) -> dict[str, Floats]:
    """The users' Gaussian terms as they are sent."""
    widths, mean, sd = user_gaussians(federation, risk)
    A, b, constant = (np.stack([getattr(q, x) for q in widths], axis=1) for x in ("A", "b", "uu"))
    ceiling = widths[0].ceiling
    assert ceiling is not None
    # References of factors follow from the other columns: they are not sent.
    inputs, own = b.shape[-1] // risk.n_outputs, risk.n_inputs(federation.n_features)
    sent = np.flatnonzero(np.arange(b.shape[-1]) % inputs < own)
    if own < inputs:
        A, b = A[..., sent[:, None], sent], b[..., sent]
    return {
        "gaussian_curvature": A,
        "gaussian_slope": b,
        "gaussian_constant": constant,
        "gaussian_ceiling": ceiling,
        "gaussian_means": mean,
        "gaussian_sds": sd,
    }


def least_squares(uploads: Uploads) -> Solution:
    """The users' own models of squared loss from their data terms; shortest where many would do."""
    risk, n = uploads.risk, uploads.n_samples
    assert risk is not None
    assert uploads.factor is not None
    assert uploads.means is not None
    root, target = uploads.factor[..., :-1], uploads.factor[..., -1:]
    means, level = uploads.means[:, None, :-1], uploads.means[:, None, -1:]
    if not risk.intercept:
        lead = np.sqrt(n)[:, None, None]
        root = np.concatenate([root, lead * means], axis=1)
        target = np.concatenate([target, lead * level], axis=1)
    p = root.shape[-1]
    if risk.l2 > 0:
        pull = np.sqrt(n * risk.l2)[:, None, None] * np.eye(p)
        root = np.concatenate([root, pull], axis=1)
        target = np.concatenate([target, np.zeros((len(n), p, 1))], axis=1)
    theta = np.linalg.pinv(root, rcond=RANK) @ target
    rest = level - means @ theta
    models = np.concatenate([theta, rest], axis=1) if risk.intercept else theta
    every = np.ones(len(n), bool)
    from odcl.local.problem import Solution

    return Solution(models[..., 0], every, ~every)


def pooled_model(uploads: Uploads) -> Floats:
    """One model of squared loss for the rows of all users, (dim,), from their data terms."""
    assert uploads.factor is not None
    assert uploads.means is not None
    terms = DataTerms(uploads.n_samples, uploads.means, uploads.factor)
    parts = [merge(terms[i : i + PIECE]) for i in range(0, len(terms), PIECE)]  # in bounded memory
    each = ((getattr(part, f.name) for part in parts) for f in fields(DataTerms))
    total = merge(DataTerms(*(np.concatenate(tuple(values)) for values in each)))
    one = Uploads(np.zeros(1, np.intp), total.rows, risk=uploads.risk)
    return least_squares(replace(one, means=total.mean, factor=total.factor)).theta[0]


MANY = 5_000  # users: then one model for all rows is read off their data terms


def pooled_rows(rows: Federation, risk: Risk, uploads: Uploads) -> Floats:
    """One model for the rows of all users, (dim,), who sent ``uploads``; without bends."""
    from odcl.local.predict import one_for_all

    if risk.curves:
        n_lines = risk.n_lines(rows.n_features)
        line = one_for_all(rows.with_X(rows.X[:, :n_lines]), risk.lines)
        model = np.zeros((risk.n_inputs(rows.n_features), risk.n_outputs))
        keep = [*range(n_lines), *range(rows.n_features, len(model))]
        model[keep] = line.reshape(len(keep), -1)
        return model.ravel()
    told = uploads.observations is None and risk.loss.name == "squared"
    if rows.n_users > MANY and uploads.factor is not None and told:
        return pooled_model(uploads)
    return one_for_all(rows, risk)


def _one_row(federation: Federation) -> Bools:
    """Users whose rows are all the same, (n_users,)."""
    X, y, starts = federation.X, federation.y, federation.offsets[:-1]
    first = starts[federation.row_user]
    return ~np.logical_or.reduceat((X[first] != X).any(axis=1) | (y[first] != y), starts)


def _sent_terms(uploads: Uploads | None) -> DataTerms | None:
    """The users' data terms as they were sent, where that was the whole of them."""
    if uploads is None or uploads.factor is None or uploads.means is None:
        return None
    if uploads.observations is not None:
        return None
    return DataTerms(uploads.n_samples, uploads.means, uploads.factor)


def _data_terms(federation: Federation, y: Floats) -> DataTerms:
    owner, m = federation.row_user, federation.n_users
    return data_terms(federation.X, y, owner, m, federation.weight)


def _pseudo_targets(federation: Federation, risk: Risk) -> PseudoTargets:
    """Huber's loss: targets at the users' own fits, of lines."""
    from odcl.local.predict import linear_predictors
    from odcl.mixed.gaussian import FEW, pseudo_targets

    if risk.curves:
        federation = federation.with_X(federation.X[:, : risk.n_lines(federation.n_features)])
        risk = risk.lines
    assert isinstance(risk.loss, Huber)
    X, owner, y = federation.X, federation.row_user, risk.loss.encode(federation.y)
    z, dim = y, risk.n_inputs(X.shape[1])
    if (federation.n_samples >= FEW * dim).any():  # others keep their targets
        z = linear_predictors(X, solve_users(federation, risk).theta, owner, risk)[:, 0]
    m, weight = federation.n_users, federation.weight
    return pseudo_targets(z, y, owner, m, risk.loss.delta, dim, weight)


def user_gaussians(federation: Federation, risk: Risk) -> tuple[list[Quadratics], Floats, Floats]:
    """The users' Gaussian terms of every width, in their own units, and their columns' moments.

    A term is good where its prior has its mass, and nobody knows the others' units: so each user
    standardizes its columns, those of factors' references last, by its own mean and deviation.
    """
    from odcl.mixed.gaussian import gaussian_terms

    X = Levels.of(risk.factors, federation.n_features).rows(federation.X)
    owner = federation.row_user
    mean, sd = _own_moments(X, federation, center=risk.intercept)
    widths = gaussian_terms(
        risk.loss.name,
        X,
        gaussian_target(risk, federation.y),
        owner,
        federation.n_users,
        federation.weight,
        n_classes=n_classes(risk),
        intercept=risk.intercept,
        narrow=_narrow(risk, X.shape[1]),
        own=(mean, units(mean, sd)),
    )
    return widths, mean, sd


def _narrow(risk: Risk, n_columns: int) -> Floats | None:
    """How much narrower than those of lines the priors of bends are; None: there are none."""
    if not risk.curves:
        return None
    from odcl.data.curves import roughness

    narrow = np.ones(risk.n_inputs(n_columns))
    for curve in risk.curves:
        narrow[int(risk.intercept) + np.array(curve.columns)] = NARROW / np.sqrt(roughness(curve))
    return narrow


def _own_moments(X: Floats, federation: Federation, *, center: bool) -> tuple[Floats, Floats]:
    """Mean and standard deviation of every user's columns; zero and root mean square as they are.

    Sums are of distances from a user's first row: a column that does not vary has exactly none.
    """
    mean, square = np.zeros((2, federation.n_users, X.shape[1]))
    w = np.ones(len(X)) if federation.weight is None else federation.weight
    for who, index in by_size(federation.row_user, len(mean), most=CHUNK // X.shape[1]):
        block, share = np.array(stacked_rows(X, index)), w[index][:, None]
        share = share / share.sum(axis=2, keepdims=True)
        if center:
            first = block[:, 0].copy()
            subtract_rows(block, first)
            away = np.matmul(share, block)[:, 0]
            subtract_rows(block, away)
            mean[who] = first + away
        square[who] = np.matmul(share, np.square(block, out=block))[:, 0]
    return mean, np.sqrt(square)


def gaussian_target(risk: Risk, y: Array) -> Floats:
    """Targets as Gaussian terms take them: 0 and 1 for two classes."""
    encoded = risk.loss.encode(y)
    return (encoded > 0).astype(np.float64) if risk.loss.name == "logistic" else encoded


def n_classes(risk: Risk) -> int:
    return risk.loss.n_classes if isinstance(risk.loss, Multinomial) else 2


def last_step(
    federation: Federation, risk: Risk, mixture: Mixture, uploads: Uploads | None = None
) -> Received:
    """Mixed groups: the posterior of each user's model, from its own rows.

    What a user sent of its rows need not be worked out again, where it was all of them. Many users
    go one piece after another: what is in between would not fit into memory.
    """
    m = federation.n_users
    if m <= PIECE:
        return _last_step(federation, risk, mixture, uploads)
    whole: dict[str, Any] = {}
    for start in range(0, m, PIECE):
        stop = min(start + PIECE, m)
        sent = None if uploads is None else uploads.part(start, stop)
        part = _last_step(federation.part(start, stop), risk, mixture, sent)
        for f in fields(Received):
            value = getattr(part, f.name)
            if isinstance(value, np.ndarray):
                into = whole.setdefault(f.name, np.empty((m, *value.shape[1:]), value.dtype))
                into[start:stop] = value
    return replace(part, **whole)


def _last_step(
    federation: Federation, risk: Risk, mixture: Mixture, uploads: Uploads | None
) -> Received:
    m, rows = federation.n_users, federation.row_user
    how = "posterior mean under every group, from the user's own rows"
    offset, change = model_map(mixture, risk)
    told: dict[str, Any] = {}
    own: Posterior | GaussianPosterior
    if risk.loss.has_data_terms:
        at = mixture.coordinates
        if isinstance(risk.loss, Huber):
            found, own = _huber_step(federation, risk, risk.loss.delta, mixture)
        else:
            y = risk.loss.encode(federation.y)
            terms = _sent_terms(uploads) or _data_terms(federation, y)
            q = quadratics(terms, at)
            own = found = with_noise_beyond(q, posterior(q, mixture))
        told = {"noise": found.s2 * at.target_scale**2, "dof": found.dof}
    else:
        from odcl.mixed.gaussian import gaussian_posterior

        own = gaussian_posterior(
            risk.loss.name,
            federation.X,
            gaussian_target(risk, federation.y),
            rows,
            m,
            mixture,
            federation.weight,
            n_classes=n_classes(risk),
        )
    theta, V = own.mean(), own.covariance()
    covariance, step = np.empty((m, *change.shape[:1] * 2)), stack_size(len(change))
    for first in range(0, m, step):
        covariance[first : first + step] = symmetric(change @ V[first : first + step] @ change.T)
    models = offset + by_row(theta, change.T)
    if not isinstance(own, Posterior):
        r = own.responsibilities
        told |= {"group": r.argmax(axis=1), "sure": r.max(axis=1)}
    return Received(models, how, covariance, **told)


def _huber_step(
    federation: Federation, risk: Risk, delta: float, mixture: Mixture
) -> tuple[Posterior, GaussianPosterior]:
    """The posterior by pseudo-targets, which knows the noise, and that by Huber's loss."""
    from odcl.mixed.gaussian import huber_posterior

    at, pseudo = mixture.coordinates, _pseudo_targets(federation, risk)
    first = posterior(quadratics(_data_terms(federation, pseudo.y), at), mixture)
    # Few rows may be full of outliers: they are taken to be no noisier than most users' are.
    s2 = np.where(pseudo.few, np.minimum(first.s2, mixture.noise.s0), first.s2)
    first = replace(first, s2=s2)
    z = at.design(federation.X)
    u, rows = at.target(risk.loss.encode(federation.y), z), federation.row_user
    scaled = delta / at.target_scale
    return first, huber_posterior(z, u, rows, first, scaled, pseudo.share, federation.weight)
