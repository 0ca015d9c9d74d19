"""Users who come after the round, and last steps: which group each belongs to, and its model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import chdtrc, fdtrc, log_softmax, softmax, xlogy

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.labels import nearest_center
from odcl.data.federation import Federation
from odcl.errors import InputError, Setting
from odcl.exchange.message import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.local.receive import Received, receive, wide_step
from odcl.method import Method
from odcl.mixed.layout import from_own_units, gaussian_coordinates, model_map
from odcl.mixed.mixture import CAUTION, Centers, Noise, Quadratics, Spread, by_row, misfits, moments
from odcl.mixed.posterior import Mixture, posterior, with_noise_beyond
from odcl.mixed.terms import DataTerms, merge
from odcl.risk.loss import symmetric
from odcl.risk.risk import Risk
from odcl.server.columns import gaussian_columns, gaussian_parts, line_numbers
from odcl.server.mixed import user_quadratics
from odcl.server.result import ServerStep
from odcl.wide.moments import GroupModels, WideGroups

# A distance that a member of the group would exceed in one case of ten thousand.
STRANGE = 1e-4
FEW_ROWS = 5  # of a wide user: below, it cannot be told from a member
# Variances, in canonical coordinates, that the model of a user who fits no group may have.
WIDER = 10.0 ** np.arange(7)


@dataclass(frozen=True, eq=False)
class Assignment:
    """Where a new user belongs.

    ``distance`` is to its group in noise units: about 1 for a member, whatever the number of rows
    and parameters; NaN where nothing is known of the noise. ``none_of_these`` is True, and
    ``label`` -1, where no group is credible; the model is then the user's own.
    """

    label: int
    probability: float  # of the likeliest group, among the groups
    probabilities: Floats  # (n_clusters,)
    distance: float
    none_of_these: bool
    theta: Floats  # (dim,), in the units of the groups' models
    upload: Uploads  # what the user would have sent
    received: Received | None = None  # with mixed groups, how sure its model is
    coef: Floats | None = None  # in the table's units, where an estimator assigned
    intercept: Floats | None = None

    def __str__(self) -> str:
        n = int(self.upload.n_samples[0])
        rows = f"By {n:,} row{'s' * (n != 1)}, this user"
        if self.none_of_these:
            return f"{rows} fits none of the groups: it has a model of its own."
        sure = f" with probability {self.probability:.2f}" if self.probability < 0.995 else ""
        return f"{rows} belongs to group {self.label}{sure}."


def assign_mixed(
    X: Floats, y: Floats, risk: Risk, mixture: GroupModels, method: Method
) -> Assignment:
    """A new user's posterior over groups, and its model, from its first row on."""
    one = Federation(X, y, np.array([0, len(y)]), np.zeros(1, dtype=int))
    local = fit_users(one, risk, terms=True, short_terms=method.short_terms)
    upload = local.uploads
    if isinstance(mixture, WideGroups):
        return _assign_wide(one, risk, mixture, upload)
    found, around = _place(upload, mixture)
    nowhere = np.zeros((1, upload.dim)), np.zeros(1, int), np.ones(1, int)
    downloads = Downloads(upload.users, *nowhere, mixture=around)
    received = receive(one, risk, upload, downloads)
    return replace(found, theta=received.models[0], received=received)


def with_more_terms(old: Uploads, more: Uploads) -> Uploads:
    """One user's data term after other rows came on top: exact for squared loss."""
    n = old.n_samples + more.n_samples
    if any(u.observations is not None and u.observations[0] < u.n_samples[0] for u in (old, more)):
        raise InputError(
            f"User {old.users.tolist()[0]!r} keeps the data term of few rows to itself, so its old "
            "rows cannot be added to the new ones: give all its rows, old and new, and say ",
            *(Setting("all_rows", True), "."),
        )
    told: dict[str, Any] = {} if old.observations is None else {"observations": n}
    if old.factor is not None and old.means is not None:
        assert more.means is not None
        assert more.factor is not None
        both = merge(
            DataTerms(
                np.concatenate([old.n_samples, more.n_samples]),
                np.concatenate([old.means, more.means]),
                np.concatenate([old.factor, more.factor]),
            )
        )
        return replace(old, n_samples=n, means=both.mean, factor=both.factor, **told)
    told |= _merged_gaussians(old, more)
    return replace(old, n_samples=n, **told)


def _merged_gaussians(old: Uploads, more: Uploads) -> dict[str, Floats]:
    """The Gaussian terms of one user's old rows and of new ones, in the units of all of them."""
    both, risk = old.joined(more), old.risk
    assert risk is not None
    assert old.gaussian_ceiling is not None
    assert more.gaussian_ceiling is not None
    columns, p = gaussian_columns(both), both.dim // risk.n_outputs - risk.intercept
    mean, sd = columns.pooled(np.ones(2, np.bool_))
    at = gaussian_coordinates(mean[:p], sd[:p], risk)
    P = from_own_units(columns.mean[:, :p], columns.sd[:, :p], at, risk.n_outputs)[:, None]
    found = {"gaussian_means": mean[None], "gaussian_sds": sd[None]}
    found["gaussian_ceiling"] = old.gaussian_ceiling + more.gaussian_ceiling
    for lines in (False, True):
        A, b, constant = gaussian_parts(both, lines=lines)
        if A is None or b is None or constant is None:
            continue
        some = line_numbers(risk, p) if lines else np.arange(b.shape[-1])
        own, which = P[..., some[:, None], some], "gaussian_line_" if lines else "gaussian_"
        found[f"{which}curvature"] = (own @ A @ own.swapaxes(-1, -2)).sum(axis=0)[None]
        found[f"{which}slope"] = (own @ b[..., None])[..., 0].sum(axis=0)[None]
        found[f"{which}constant"] = constant.sum(axis=0)[None]
    return found


def _assign_wide(one: Federation, risk: Risk, groups: WideGroups, upload: Uploads) -> Assignment:
    """A new wide user: it fits no group whose scores say less of its rows than class shares do."""
    received, shares = wide_step(one, risk, groups)
    p = shares[0]
    label = int(p.argmax())
    strange = bool(_lost_beyond_chance(one, risk, groups, label) > -np.log(STRANGE))
    return Assignment(
        *(-1 if strange else label, float(p[label]), p, np.nan, strange),
        theta=received.models[0],
        upload=upload,
        received=received,
    )


def _lost_beyond_chance(one: Federation, risk: Risk, groups: WideGroups, label: int) -> float:
    """Nats that a group's model loses on a user's rows, less what its class shares or mean do."""
    X, y = one.X, risk.loss.encode(one.y)
    z = X @ groups.scores[0, label, :-1] + groups.scores[0, label, -1]
    if groups.noise is not None:
        apart, s2, n = y - z[:, 0], float(groups.noise[label]), len(y)
        if n < FEW_ROWS:  # hardly anything is known of its own scatter
            return 0.0
        spread = max(float(y.var()), 1e-300)
        return 0.5 * (n * apart.var() / s2 + n * np.log(s2) - n - n * np.log(spread))
    from odcl.wide.last_step import class_numbers

    z = log_softmax(z + np.log(groups.shares[label]), axis=1)
    classes = class_numbers(one, risk)
    counts = np.bincount(classes, minlength=z.shape[1])
    chance = float(xlogy(counts, counts / len(y)).sum())
    return chance - float(z[np.arange(len(y)), classes].sum())


def place_mixed(upload: Uploads, mixture: GroupModels) -> Assignment:
    """A user's place and model from its data term alone."""
    if isinstance(mixture, WideGroups):
        p = _wide_shares(upload, mixture)[0]
        label, around = int(p.argmax()), None
        found = Assignment(label, float(p[label]), p, np.nan, False, np.empty(0), upload)
    else:
        found, around = _place(upload, mixture)
    received = models_by_terms(upload, mixture, around)
    return replace(found, theta=received.models[0], received=received)


def _wide_shares(uploads: Uploads, groups: WideGroups) -> Floats:
    """Shares in the groups, by what each group's model loses on factors, or on class means."""
    from odcl.server.wide import thin_terms

    thin = thin_terms(uploads)
    if thin is not None:
        return thin.shares(groups)
    assert uploads.class_means is not None
    # Not by ``Placing``, which sees where rows lie as well: directions are not kept with a fit.
    means, own = uploads.class_means.astype(np.float64), np.arange(groups.shares.shape[1])
    p = np.empty((len(uploads), len(groups.weights)))
    for k, scores in enumerate(groups.scores[0]):
        z = log_softmax(means @ scores[:-1] + scores[-1] + np.log(groups.shares[k]), axis=2)
        p[:, k] = (uploads.told_rows * z[:, own, own]).sum(axis=1)
    return np.asarray(softmax(p + np.log(groups.weights), axis=1))


def models_by_terms(
    uploads: Uploads, mixture: GroupModels, around: Mixture | None = None
) -> Received:
    """Users' models from their data terms alone: all that a server can know of them.

    For squared loss they are the users' own; elsewhere a user's last step looks at its rows again.
    Of wide users they are their groups'.
    ``around`` is the mixture that they are drawn to, in the same coordinates, if another.
    """
    assert uploads.risk is not None
    if isinstance(mixture, WideGroups):
        label, how = _wide_shares(uploads, mixture).argmax(axis=1), "the groups' models"
        models = mixture.models(uploads.risk)[label]
        if mixture.noise is None:
            return Received(models, how)
        noise, dof = mixture.noise[label], uploads.n_samples + 1.0
        if mixture.level:
            from odcl.server.wide import thin_terms

            thin = thin_terms(uploads)
            assert thin is not None
            known = thin.rows / (thin.rows + noise / mixture.level)
            own = thin.means[:, -1] - (thin.means[:, :-1] * models[:, :-1]).sum(axis=1)
            models[:, -1] += known * (own - models[:, -1])
            noise = noise + mixture.level * (1 - known)
        return Received(models, how, None, noise, dof)
    (q,), at = user_quadratics(uploads, mixture)
    last = with_noise_beyond(q, posterior(q, mixture if around is None else around))
    offset, change = model_map(mixture, uploads.risk)
    return Received(
        offset + by_row(last.mean(), change.T),
        "posterior mean under every group, from the data terms",
        symmetric(change @ last.covariance() @ change.T),
        *((last.s2 * at.target_scale**2, last.dof) if q.noisy else ()),
    )


def _place(upload: Uploads, mixture: Mixture) -> tuple[Assignment, Mixture]:
    """Where one user belongs, still without a model, and the mixture that its last step takes."""
    (q,), _ = user_quadratics(upload, mixture)
    p = posterior(q, mixture).responsibilities[0]
    label = int(p.argmax())
    distance, strange = _distance(q, mixture, label)
    found = Assignment(
        *(-1 if strange else label, float(p[label]), p, distance, strange),
        theta=np.zeros(0),
        upload=upload,
    )
    return found, _wider(q, mixture, label) if strange else mixture


def _pure_noise(q: Quadratics, noise: Noise) -> tuple[Floats, float]:
    """A user's noise from its own pure error, whatever its group, and the degrees of freedom."""
    if noise.common or not q.noisy:
        return np.full(1, noise.s0), noise.dof
    return (noise.nu * noise.s0 + q.pure) / (noise.nu + q.dof), noise.nu / CAUTION + float(q.dof[0])


def _distance(q: Quadratics, mixture: Mixture, label: int) -> tuple[float, bool]:
    """Distance to a group in noise units, and whether a member would hardly ever be so far.

    The score of a member, z = w - W c, is noise of covariance W + W C W, C the center's own: its
    size in that metric is chi-squared, over the scales that members have.
    """
    s2, dof = _pure_noise(q, mixture.noise)
    # A user whose own rows scatter more than others' do is judged by its own scatter.
    own = q.pure / np.maximum(q.dof, 1.0) if q.noisy else s2
    s2 = np.where(q.dof > 0, np.maximum(s2, own), s2)
    tail, distance = 0.0, np.inf
    for scale, share in zip(mixture.scales, mixture.shares, strict=True):
        spread = replace(mixture.spread, matrix=scale * mixture.spread.matrix)
        m = moments(q, spread, s2)
        W, z = m.W[0], m.w[0] - m.W[0] @ mixture.centers[label]
        beyond, away = far_out(z, W + W @ mixture.covariances[label] @ W, dof)
        if np.isnan(away):
            return np.nan, False
        tail, distance = tail + share * beyond, min(distance, away)
    return distance, tail < STRANGE


def far_out(z: Floats, C: Floats, dof: float) -> tuple[float, float]:
    """Chance that N(0, C), its scale known by ``dof``, lies as far out as z, and z's distance.

    The distance is in units of what C explains, about 1; NaN where C is zero.
    """
    values, vectors = np.linalg.eigh(C)
    seen = values > 1e-10 * max(float(values[-1]), 1e-300)
    square, rank = float(((vectors.T @ z)[seen] ** 2 / values[seen]).sum()), int(seen.sum())
    if rank == 0:
        return np.nan, np.nan
    beyond = chdtrc(rank, square) if np.isinf(dof) else fdtrc(rank, dof, square / rank)
    return float(beyond), float(np.sqrt(square / rank))


def _wider(q: Quadratics, mixture: Mixture, label: int) -> Mixture:
    """For a user that fits no group: one center, the nearest, and the spread that it asks for."""
    s2, dim, bends = _pure_noise(q, mixture.noise)[0], q.dim, mixture.coordinates.bends
    unit = np.eye(dim) if bends is None else np.diag(1 / bends.rough)
    spreads = [
        Spread("full", mixture.spread.matrix + wide * unit, np.ones(dim, np.bool_))
        for wide in WIDER
    ]
    c, C = mixture.centers[[label]], mixture.covariances[[label]]
    costs = [misfits(moments(q, spread, s2), Centers.of(c, C)).sum() for spread in spreads]
    one = np.ones(1)
    spread = spreads[int(np.argmin(costs))]
    return replace(
        mixture, weights=one, centers=c, covariances=C, spread=spread, scales=one, shares=one
    )


# -- where groups are of models: the one that loses least on a user --------------------------------

LOOK_AT = 300  # users whose rows tell the noise around their groups' models


@dataclass(frozen=True, eq=False)
class GroupStatistics:
    """What a fit knows of its groups, for users who come later. In standardised units."""

    centers: Floats  # (n_clusters, dim)
    members: Ints  # (n_clusters,), users
    samples: Floats  # (n_clusters,), weight of their rows
    noise: float = np.nan  # scale of the targets around groups' models; NaN: not known, or none


def groups_of(federation: Federation, risk: Risk, step: ServerStep) -> GroupStatistics:
    """The groups of a fit, with the noise of some users' rows around their groups' models."""
    labels, noise = step.labels, np.nan
    if step.mixture is None and risk.loss.has_data_terms:
        some = np.unique(np.linspace(0, federation.n_users - 1, LOOK_AT).astype(int))
        rows, around = federation.take(some), step.centers[labels[some]][:, None]
        lost = sum(
            float(_losses(X, y, risk, center)[0])
            for (_, X, y), center in zip(rows, around, strict=True)
        )
        noise = 2.0 * lost / len(rows.y)
    return _sized(step, federation.n_samples, noise)


def groups_of_uploads(uploads: Uploads, step: ServerStep) -> GroupStatistics:
    """The groups as a server knows them that sees no rows."""
    found = _sized(step, uploads.n_samples)
    # A group may be nobody's likeliest.
    members, samples = np.maximum(found.members, 1), np.maximum(found.samples, 1.0)
    return replace(found, members=members, samples=samples)


def _sized(step: ServerStep, n_samples: Floats, noise: float = np.nan) -> GroupStatistics:
    members = np.bincount(step.labels, minlength=step.n_clusters)
    samples = np.bincount(step.labels, weights=n_samples, minlength=step.n_clusters)
    return GroupStatistics(step.centers, members, samples.astype(np.float64), noise)


def assign_rows(X: Floats, y: Floats, risk: Risk, groups: GroupStatistics) -> Assignment:
    """The group whose model loses least on the user's rows, which takes that model.

    Probabilities are those of the rows under the groups' models, exp(-loss / phi): phi is 1 for
    classes and counts, and for numbers the groups' pooled noise (where it is not known, that of
    these rows around the best group's model).
    """
    one = Federation(X, y, np.array([0, len(y)]), np.zeros(1, dtype=int))
    lost = _losses(X, y, risk, groups.centers)
    phi = 1.0
    if risk.loss.has_data_terms:
        phi = 2.0 * float(lost.min()) / len(y) if np.isnan(groups.noise) else groups.noise
    p = softmax(-(lost - lost.min()) / max(phi, 1e-300))
    label = int(lost.argmin())
    sent = fit_users(one, risk).uploads
    return Assignment(label, float(p[label]), p, np.nan, False, groups.centers[label], sent)


def place_upload(upload: Uploads, groups: GroupStatistics) -> Assignment:
    """Where a user belongs by its model alone: the nearest group, nobody knows how surely."""
    label = int(nearest_center(upload.models, groups.centers)[0])
    p = np.zeros(len(groups.centers))
    p[label] = 1.0
    return Assignment(label, np.nan, p, np.nan, False, groups.centers[label], upload)


def _losses(X: Floats, y: Floats, risk: Risk, models: Floats) -> Floats:
    """What each of the models loses on the rows in all, (n_models,)."""
    design = risk.design(X)
    each = (design @ theta.reshape(design.shape[1], -1) for theta in models)
    return np.array([float(risk.loss.value(z, y).sum()) for z in each])


# -- the last step at a site: users who took no part are placed first ------------------------------


@dataclass(frozen=True, eq=False)
class Placed:
    """Users where their last step has put them."""

    labels: Ints  # (n_users,), -1: none of the groups
    probability: Floats  # (n_users,), how surely they belong there
    received: Received


def last_step(
    rows: Federation,
    risk: Risk,
    method: Method,
    uploads: Uploads,
    downloads: Downloads,
    *,
    members: Bools | None = None,
) -> Placed:
    """Every user's model, from its own rows, upload and download.

    ``members`` (n_users,) are the users whose ``downloads`` these are, all unless given. With mixed
    groups, other users (who sent nothing, or came late) are placed in the groups by their rows.
    """
    if downloads.mixture is None:
        received = receive(rows, risk, uploads, downloads)
        sure = downloads.probability
        return Placed(downloads.group, np.ones(rows.n_users) if sure is None else sure, received)
    inside = np.ones(rows.n_users, dtype=bool) if members is None else members
    labels, sure = np.full(rows.n_users, -1), np.ones(rows.n_users)
    parts: list[tuple[Ints, Received]] = []
    if inside.any():
        who = np.flatnonzero(inside)
        labels[who] = downloads.group
        if downloads.probability is not None:
            sure[who] = downloads.probability
        mine = rows if inside.all() else rows.take(who)
        own = receive(mine, risk, uploads.take(who), downloads)
        if own.group is not None and own.sure is not None:
            labels[who], sure[who] = own.group, own.sure
        parts.append((who, own))
    for i in np.flatnonzero(~inside).tolist():
        part = rows.rows(i)
        y = risk.loss.encode(rows.y[part])
        found = assign_mixed(rows.X[part], y, risk, downloads.mixture, method)
        labels[i], sure[i] = found.label, found.probability
        assert found.received is not None
        parts.append((np.array([i]), found.received))
    return Placed(labels, sure, _in_order(parts))


def _in_order(parts: list[tuple[Ints, Received]]) -> Received:
    """The last steps of all users, put together in the order of users."""
    back = np.argsort(np.concatenate([who for who, _ in parts]))

    def stacked(name: str) -> Any:
        values = [getattr(received, name) for _, received in parts]
        return None if values[0] is None else np.concatenate(values)[back]

    names = ("covariance", "noise", "dof")
    how = parts[0][1].how
    return Received(stacked("models"), how, *(stacked(name) for name in names))
