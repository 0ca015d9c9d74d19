"""Users who come after the round, where groups are clusters of models: by their rows, or uploads.

More rows of a known user: the old ones are gone, and their upload is a quadratic model of what they
say. For the squared loss that is everything, and the update equals a fit of all rows; elsewhere it
is second order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtrc, fdtrc, softmax

from odcl._typing import Floats, Ints
from odcl.clustering.labels import nearest_center
from odcl.data.federation import Federation
from odcl.errors import InputError, Setting
from odcl.exchange.download import Refit
from odcl.exchange.upload import Uploads
from odcl.local.fit import LocalModels, Penalty, fit_users, solve_users
from odcl.method import Method
from odcl.risk.loss import Loss
from odcl.risk.risk import Risk
from odcl.server.assign import STRANGE, Assignment
from odcl.server.combine import solve_symmetric
from odcl.server.dispersion import most_likely_tau2, noise_prior
from odcl.server.result import ServerStep, StreamedStep

# Beyond this many directions the distance costs more than it tells: the likelihood decides alone.
MOST_DIRECTIONS = 500
# Users whose rows are looked at for noise and for differences inside groups.
LOOK_AT = 300
# Users who differ by less than this of their noise are refitted to the centre itself.
LARGE = 1e12
MOST_STEPS = 50  # of Newton's method


@dataclass(frozen=True, eq=False)
class GroupStatistics:
    """What a fit knows of its groups, for users who come later. In standardised units."""

    centers: Floats  # (n_clusters, dim)
    members: Ints  # (n_clusters,), users
    samples: Floats  # (n_clusters,), weight of their rows
    penalty_share: Floats  # (n_clusters,), share of a user's l2 penalty that is left in the centre
    tau2: float  # how far users of a group differ, per coefficient, around the centre
    spread: float  # the same as the users' own rows show it: a newcomer may be as far
    phi: float  # noise scale of a typical user; NaN where nobody can tell
    phi_dof: float  # what it is worth beside a user's own, in degrees of freedom

    def drawn_up(self, own: float, dof: float) -> float:
        """A user's own noise scale of ``dof`` degrees of freedom, drawn up to the typical one."""
        common = self.phi * self.phi_dof if self.phi_dof else 0.0
        return max((common + dof * own) / (dof + self.phi_dof), own)

    def distance(
        self, label: int, view: View, gain: float, n: float, phi: float, dof: float
    ) -> tuple[float, bool]:
        """Distance to a group in noise units, and whether a member would hardly ever be so far.

        ``gain`` is the loss of the user's n rows that its own model saves.
        """
        r = len(view.slope)
        if dof == 0 or r == 0:
            return np.nan, False
        square = view.square(phi, n / float(self.samples[label]), self.spread)
        # Where a row that was nearly certain goes wrong, the slope has heavier tails than a normal
        # law; the likelihood ratio has not. Elsewhere the two agree.
        square *= min(1.0, max(2.0 * gain / phi, 0.0) / max(view.square(phi, 0.0, 0.0), 1e-300))
        tail = chdtrc(r, square) if np.isinf(dof) else fdtrc(r, dof, square / r)
        return float(np.sqrt(square / r)), bool(tail < STRANGE)


def assign_rows(
    X: Floats, y: Floats, risk: Risk, groups: GroupStatistics, method: Method
) -> Assignment:
    """Weigh the groups by how well their models explain the user's rows.

    The probabilities are those of the rows under theta ~ N(c_k, tau^2 I), by Laplace's method
    (with tau = 0: under c_k itself), times the groups' shares of users. Whether the likeliest
    group is credible is read off the slope of the rows' loss at its centre, not off the user's own
    model: no shrinkage in it, directions that the rows do not see have no voice, and one row or
    one class is enough.
    """
    newcomer, refit = _Newcomer(X, y, risk), method.refit
    unpenalised, separable = newcomer.alone(0.0)
    rows = _Rows.of(X, y, np.ones(len(y)), risk, unpenalised)
    phi, dof = _noise_scale(rows, groups, known=not separable)
    seen = rows.dim <= MOST_DIRECTIONS
    modes = groups.centers
    if seen and phi < LARGE * len(y) * groups.tau2:
        modes = newcomer.around(groups.centers, phi / (len(y) * groups.tau2))
    p = softmax(_evidence(rows, groups, modes, phi) + np.log(groups.members))
    label = int(np.argmax(p))
    distance, strange = _distance(rows, groups, label, phi, dof) if seen else (np.nan, False)
    if strange or refit == 0:
        theta = newcomer.alone(risk.l2)[0]
    elif refit is None or isinstance(refit, str):
        theta = (groups.centers if refit is None else modes)[label]
    else:
        theta = newcomer.around(groups.centers[[label]], float(refit))[0]
    sent = newcomer.upload(method)
    return Assignment(-1 if strange else label, float(p[label]), p, distance, strange, theta, sent)


@dataclass(frozen=True, eq=False)
class _Newcomer:
    """Fits of the new user's rows."""

    X: Floats
    y: Floats
    risk: Risk

    @property
    def rows(self) -> Federation:
        return Federation(self.X, self.y, np.array([0, len(self.y)]), np.zeros(1, dtype=int))

    def upload(self, method: Method) -> Uploads:
        return fit_users(self.rows, self.risk, method.sends).uploads

    def alone(self, l2: float) -> tuple[Floats, bool]:
        """The user's own model, and whether it has none without a prior."""
        local = fit_users(self.rows, replace(self.risk, l2=l2), "none")
        return local.theta[0], bool(local.prior[0])

    def around(self, centers: Floats, strength: float) -> Floats:
        """Its models drawn to each of the centers, (len(centers), dim): as many copies of it."""
        n, k = len(self.y), len(centers)
        copies = Federation(
            np.tile(self.X, (k, 1)), np.tile(self.y, k), np.arange(k + 1) * n, np.arange(k)
        )
        toward = Penalty(np.full(k, strength), centers, free=False)
        return solve_users(copies, self.risk, toward).theta


def _noise_scale(rows: _Rows, groups: GroupStatistics, known: bool) -> tuple[float, float]:
    """phi of a newcomer and its degrees of freedom: its own, drawn up to the federation's.

    Never down: a newcomer may be noisier than the others were, and is no stranger for it. Without
    degrees of freedom the best group's fit sets the scale, and no distance can be told.
    """
    if not rows.loss.has_dispersion:
        return 1.0, np.inf
    zero = rows.loss.value(np.zeros((len(rows.y), 1)), rows.y).mean()
    floor = max(1e-18 * float(zero), 1e-300)  # noise-free rows differ by rounding
    own, dof = rows.dispersion() if known else (0.0, 0.0)
    total = dof + groups.phi_dof
    if total == 0:
        risk = min(rows.risk(c) for c in groups.centers)
        return max(2.0 * risk / len(rows.y), floor), 0.0
    return max(groups.drawn_up(own, dof), floor), total


def _evidence(rows: _Rows, groups: GroupStatistics, modes: Floats, phi: float) -> Floats:
    """Log-probability of the rows under each group, up to a constant, (n_clusters,)."""
    evidence = -np.array([rows.risk(mode) for mode in modes]) / phi
    if modes is groups.centers:
        return evidence
    evidence -= 0.5 * ((modes - groups.centers) ** 2).sum(axis=1) / groups.tau2
    bent = [np.log1p(groups.tau2 / phi * rows.view(mode).curvature).sum() for mode in modes]
    return evidence - 0.5 * np.array(bent)


def _distance(
    rows: _Rows, groups: GroupStatistics, label: int, phi: float, dof: float
) -> tuple[float, bool]:
    """Distance of the rows to a group, and whether a member would hardly ever be so far."""
    center = groups.centers[label]
    view = rows.view(center, penalty_share=float(groups.penalty_share[label]))
    gain = rows.risk(center) - rows.risk(rows.own)
    return groups.distance(label, view, gain, len(rows.y), phi, dof)


# -- one user's rows -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class View:
    """The rows' loss from one centre: its slope and curvature there, eigenvector by eigenvector."""

    slope: Floats  # (r,), directions that the rows do not see are left out
    curvature: Floats  # (r,)

    def square(self, phi: float, more: float, spread: float) -> float:
        """Squared distance; chi-squared with r degrees of freedom for a member of the group.

        At the true model the slope is noise of variance phi a. The centre misses the truth by
        ``more`` times that, and users of a group differ by ``spread``, which adds spread a^2.
        """
        a = self.curvature
        return float((self.slope**2 / (phi * a * (1.0 + more) + spread * a**2)).sum())


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of one user, in coordinates that span them."""

    design: Floats  # (n, n_inputs)
    basis: Floats | None  # (n_inputs, n), orthonormal; None: more rows than inputs
    y: Floats  # (n,)
    weight: Floats  # (n,)
    loss: Loss
    own: Floats  # (dim,), the user's own model
    pen: Floats  # (dim,), diagonal of the penalty's Hessian

    @classmethod
    def of(cls, X: Floats, y: Floats, weight: Floats, risk: Risk, own: Floats) -> _Rows:
        D = risk.design(X)
        basis = np.linalg.qr(D.T)[0] if len(D) < D.shape[1] else None
        return cls(D, basis, y, weight, risk.loss, own, risk.penalty(X.shape[1]))

    @property
    def dim(self) -> int:
        return min(self.design.shape) * self.loss.n_outputs

    def _z(self, theta: Floats) -> Floats:
        return self.design @ theta.reshape(-1, self.loss.n_outputs)

    def risk(self, theta: Floats) -> float:
        return float(self.weight @ self.loss.value(self._z(theta), self.y))

    def dispersion(self) -> tuple[float, float]:
        """The user's own phi and its degrees of freedom; both 0 where it cannot tell."""
        dof = float(self.weight.sum()) - len(self.own)
        if dof <= 0:
            return 0.0, 0.0
        z, y, weight = self._z(self.own)[None], self.y[None], self.weight[None]
        return float(self.loss.dispersion(z, y, weight, np.array([dof]))[0]), dof

    def view(self, theta: Floats, *, penalty_share: float = 0.0) -> View:
        """Slope and curvature at ``theta``, of the rows and of a share of the penalty.

        Where curvature hardly depends on the model it is taken at the user's own: from a far
        centre all rows of a Huber loss lie on its flat part.
        """
        z = self._z(theta)
        at = z if self.loss.curvature_varies else self._z(self.own)
        D = self.design if self.basis is None else self.design @ self.basis
        slope = D.T @ (self.loss.slope(z, self.y) * self.weight[:, None])
        if penalty_share > 0 and self.pen.any():
            drawn = (penalty_share * self.weight.sum() * self.pen * theta).reshape(
                -1, self.loss.n_outputs
            )
            slope = slope + (drawn if self.basis is None else self.basis.T @ drawn)
        curve = self.loss.curve(at, self.y) * self.weight[:, None, None]
        gram = np.einsum("np,nqr,ns->pqsr", D, curve, D, optimize=True)
        a, V = np.linalg.eigh(gram.reshape(self.dim, self.dim))
        seen = a > 1e-10 * max(float(a[-1]), 1e-300)
        return View((slope.ravel() @ V)[seen], a[seen])


# -- what the fit leaves behind ------------------------------------------------------------------


def groups_of(
    federation: Federation, risk: Risk, local: LocalModels, step: ServerStep, method: Method
) -> GroupStatistics:
    """The groups of a fit, with what some users' rows say of noise and of differences inside."""
    members, samples, penalty_share = _sizes(local.uploads, step, method)
    some = np.unique(np.linspace(0, federation.n_users - 1, LOOK_AT).astype(int))
    if step.mixture is not None:  # which says it all
        some = some[:0]
    looks = [_look(federation, risk, local, step, i, penalty_share) for i in some]
    phi, phi_dof = _noise([(phi, dof) for _, phi, dof, _ in looks], risk.loss.has_dispersion)
    tau2 = step.tau2
    spread = tau2 or 0.0
    views = [(view, size) for view, _, _, size in looks if view is not None and size > 1]
    if views and np.isfinite(phi):
        spread = max(spread, _spread(views, phi))
    return GroupStatistics(
        step.centers,
        members,
        samples,
        penalty_share,
        spread if tau2 is None else tau2,
        spread,
        phi,
        phi_dof,
    )


def groups_of_uploads(uploads: Uploads, step: ServerStep, method: Method) -> GroupStatistics:
    """The groups as a server knows them that sees no rows: noise and differences as uploaded."""
    members, samples, penalty_share = _sizes(uploads, step, method)
    told: list[tuple[float, float]] = []
    if uploads.dispersion is not None:
        dof = uploads.n_samples - uploads.dim
        sure = np.isfinite(uploads.dispersion)
        told = list(zip(uploads.dispersion[sure].tolist(), dof[sure].tolist(), strict=True))
    phi, phi_dof = _noise(told, uploads.has_dispersion)
    tau2 = step.tau2 or 0.0
    some = np.maximum(members, 1), np.maximum(samples, 1.0)  # a group may be nobody's likeliest
    return GroupStatistics(step.centers, *some, penalty_share, tau2, tau2, phi, phi_dof)


def groups_of_stream(
    step: StreamedStep, some: Uploads, method: Method
) -> tuple[GroupStatistics, Floats]:
    """The clusters of all users, and one model for everybody, (dim,).

    The noise is that of ``some`` users. With ``precision`` and squared loss the one model is the
    ridge regression on all rows of users who sent their curvature.
    """
    assert step.sums is not None
    known = groups_of_uploads(some, step.step(some), method)
    penalty_share, sent = np.ones(len(step.sizes)), step.sums.precision
    if sent is not None:
        penalty_share = 1.0 / np.maximum(sent.members, 1.0)
    members, samples = np.maximum(step.sizes, 1), np.maximum(step.rows, 1.0)
    return replace(
        known, members=members, samples=samples, penalty_share=penalty_share
    ), step.sums.pooled


def _sizes(uploads: Uploads, step: ServerStep, method: Method) -> tuple[Ints, Floats, Floats]:
    """Members and samples of each group, and the share of a user's penalty left in its centre."""
    labels, k = step.labels, step.n_clusters
    members = np.bincount(labels, minlength=k)
    samples = np.bincount(labels, weights=uploads.n_samples, minlength=k).astype(np.float64)
    # Precision combining counts the penalty once a group; means keep every user's whole.
    penalty_share = np.ones(k)
    if method.combine == "precision" and uploads.curvature is not None:
        sent = uploads.sent.astype(float)
        penalty_share = 1.0 / np.maximum(np.bincount(labels, weights=sent, minlength=k), 1.0)
    return members, samples, penalty_share


def _noise(told: list[tuple[float, float]], has_scale: bool) -> tuple[float, float]:
    """A typical noise scale and what it is worth, from users' own with degrees of freedom.

    ``has_scale``: does the loss have a noise scale at all?
    """
    if not has_scale:
        return 1.0, np.inf
    known = [(phi, dof) for phi, dof in told if dof > 0 and phi > 0]
    if not known:
        return np.nan, 0.0
    phi, worth = noise_prior(*np.array(known).T)
    return float(phi), float(sum(dof for _, dof in known) if np.isinf(worth) else worth)


def _look(
    federation: Federation,
    risk: Risk,
    local: LocalModels,
    step: ServerStep,
    i: int,
    penalty_share: Floats,
) -> tuple[View | None, float, float, int]:
    """User i from its own centre, its noise scale with degrees of freedom, its group's size."""
    part, label = federation.rows(i), int(step.labels[i])
    y = risk.loss.encode(federation.y[part])
    weight = np.ones(len(y)) if federation.weight is None else federation.weight[part]
    own = local.theta[i]
    rows = _Rows.of(federation.X[part], y, weight, risk, own)
    phi, dof = rows.dispersion() if not local.prior[i] else (0.0, 0.0)
    view = None
    if rows.dim <= MOST_DIRECTIONS:
        view = rows.view(step.centers[label], penalty_share=float(penalty_share[label]))
    return view, phi, dof, int((step.labels == label).sum())


def _spread(views: list[tuple[View, int]], phi: float) -> float:
    """The tau^2 >= 0 of largest evidence for the users seen."""
    a = np.concatenate([view.curvature for view, _ in views]) / phi
    # In a group of g the centre has taken up 1 / g of each user's deviation.
    gap2 = np.concatenate([view.slope**2 * g / (g - 1.0) for view, g in views]) / phi**2
    return most_likely_tau2(a, gap2, price=0.0)


# -- more rows of a user, and users by their uploads alone ----------------------------------------


def with_more_rows(old: Uploads, X: Floats, y: Floats, risk: Risk) -> Uploads:
    """The upload of one user after rows (X, y), encoded targets, came on top of ``old``.

    With A_0 = H_0 - n_0 P the old rows' curvature and b_0 = H_0 theta_0 their linear term, theta is
    the minimiser of  sum loss(x theta, y) + 1/2 theta' (A_0 + n P) theta - b_0' theta.
    """
    if not old.sent[0]:
        raise InputError(
            f"User {old.users.tolist()[0]!r} sent no curvature, so its old rows cannot be added to "
            "the new ones: give all its rows, old and new, and say ",
            *(Setting("all_rows", True), "."),
        )
    assert old.curvature is not None
    n, pen, unpenalised = float(old.n_samples[0]) + len(y), old.penalty, replace(risk, l2=0.0)
    H, start = old.curvature[0], old.models[0]
    A, b = H - np.diag(old.n_samples[0] * pen), H @ start
    quadratic = A + np.diag(n * pen)

    def value(theta: Floats) -> float:
        rows = len(y) * unpenalised.value(theta, X, y)
        return rows + float(0.5 * theta @ quadratic @ theta - b @ theta)

    def slope(theta: Floats) -> Floats:
        return len(y) * unpenalised.gradient(theta, X, y) + quadratic @ theta - b

    def curvature(theta: Floats) -> Floats:
        return len(y) * unpenalised.hessian(theta, X, y) + quadratic

    theta = start
    for _ in range(MOST_STEPS):
        step = solve_symmetric(curvature(theta)[None], slope(theta)[None])[0]
        now, length = value(theta), 1.0
        while value(theta - length * step) > now and length > 1e-6:
            length /= 2  # a whole step may overshoot
        theta = theta - length * step
        if np.abs(step).max() <= 1e-10 * max(1.0, float(np.abs(theta).max())):
            break
    phi = _dispersion(old, X, y, theta, A, risk)
    return replace(
        old,
        theta=theta[None],
        n_samples=np.array([n]),
        curvature=curvature(theta)[None],
        dispersion=np.array([phi]),
    )


def _dispersion(old: Uploads, X: Floats, y: Floats, theta: Floats, A: Floats, risk: Risk) -> float:
    """Noise scale of all rows: old residuals, what the model has moved, and the new residuals."""
    loss = risk.loss
    if not loss.has_dispersion:
        return 1.0
    assert old.dispersion is not None
    n, start = float(old.n_samples[0]), old.models[0]
    known = bool(np.isfinite(old.dispersion[0])) and n > old.dim
    before = old.dispersion[0] * (n - old.dim) if known else 0.0
    moved = theta - start
    before += moved @ A @ moved - 2.0 * n * (old.penalty * start) @ moved  # the old model was drawn
    z = risk.design(X) @ theta.reshape(-1, risk.n_outputs)
    ones = np.ones((1, len(y)))
    added = loss.dispersion(z[None], y[None], ones, np.array([len(y)]))[0] * len(y)
    dof = n + len(y) - old.dim
    return float((before + added) / dof) if dof > 0 else np.inf


def place_of(
    upload: Uploads, groups: GroupStatistics, refit: Refit, was: int
) -> tuple[int, Floats, float]:
    """The group that explains an upload best, the user's model from the two, and how surely.

    What :func:`~odcl.server.assign.assign_rows` reads off rows, read off their quadratic model; for
    the squared loss it is the same. A user in no group (-1) has its own model. Where curvature
    varies the quadratic model cannot tell who is far from all groups: a user who ``was`` stays so.
    """
    assert upload.curvature is not None
    H, theta, n = upload.curvature[0], upload.models[0], float(upload.n_samples[0])
    pen = n * upload.penalty
    A = H - np.diag(pen)
    a, V = np.linalg.eigh(A)
    seen = a > 1e-10 * max(float(a[-1]), 1e-300)
    a, V = a[seen], V[:, seen]
    own_model = theta + V @ ((pen * theta) @ V / a)  # its own model without the penalty

    def loss_above(center: Floats) -> float:
        return float(0.5 * (a * ((center - own_model) @ V) ** 2).sum())

    phi, dof = 1.0, np.inf
    if upload.has_dispersion and upload.dispersion is not None:
        known = bool(np.isfinite(upload.dispersion[0])) and n > upload.dim
        dof = n - upload.dim if known else 0.0
        own = upload.dispersion[0] - 2.0 * loss_above(theta) / dof if known else 0.0
        phi = 2.0 * min(map(loss_above, groups.centers)) / n
        if dof + groups.phi_dof > 0:
            phi = groups.drawn_up(max(own, 0.0), dof)
        # Rows without noise differ by rounding.
        phi, dof = max(phi, 1e-18 * loss_above(0.0 * own_model) / n, 1e-300), dof + groups.phi_dof
    # The user's own model is N(c_k, phi A^-1 + tau^2 I), along the directions that its rows see.
    gap2 = ((groups.centers - own_model) @ V) ** 2
    p = softmax(np.log(groups.members) - 0.5 * gap2 @ (a / (phi + groups.tau2 * a)))
    label = int(np.argmax(p))
    center, none = groups.centers[label], was < 0 and upload.curvature_varies
    if not upload.curvature_varies and upload.dim <= MOST_DIRECTIONS:
        slope = A @ (center - own_model) + groups.penalty_share[label] * pen * center
        none = groups.distance(label, View(slope @ V, a), loss_above(center), n, phi, dof)[1]
    if none or refit == 0:
        return -1 if none else label, theta, float(p[label])
    strength = phi / groups.tau2 if groups.tau2 > 0 else np.inf
    if refit is None:
        strength = np.inf
    elif not isinstance(refit, str):
        strength = float(refit) * n
    if np.isinf(strength):
        return label, center, float(p[label])
    drawn = A + strength * np.eye(upload.dim)
    theta = solve_symmetric(drawn[None], (H @ theta + strength * center)[None])[0]
    return label, theta, float(p[label])


def place_upload(
    upload: Uploads, groups: GroupStatistics, refit: Refit, was: int = 0
) -> Assignment:
    """Where a user belongs by what it sent, without its rows.

    With a curvature by :func:`place_of`; a bare model goes to the nearest group, as in the paper,
    and nothing is known of how surely.
    """
    known = bool(upload.sent[0])
    if known:
        label, theta, sure = place_of(upload, groups, refit, was)
    else:
        label, sure = int(nearest_center(upload.models, groups.centers)[0]), np.nan
        theta = upload.models[0] if refit == 0 else groups.centers[label]
    p = np.zeros(len(groups.centers))
    p[max(label, 0)] = 1.0 if np.isnan(sure) else sure
    return Assignment(label, sure, p, np.nan, label < 0, theta, upload)
