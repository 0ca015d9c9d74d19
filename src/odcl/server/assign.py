"""A user that comes after the round: which group it belongs to, and its model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import chdtrc, fdtrc, softmax

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.upload import Uploads
from odcl.local.fit import LocalModels, Penalty, fit_users, solve_users
from odcl.local.receive import Received
from odcl.method import Method
from odcl.risk.loss import Loss
from odcl.risk.risk import Risk
from odcl.server.dispersion import most_likely_tau2, noise_prior

if TYPE_CHECKING:
    from odcl.server.step import ServerStep

# A distance that a member of the group would exceed in one case of ten thousand.
STRANGE = 1e-4
# Beyond this many directions the distance costs more than it tells: the likelihood decides alone.
MOST_DIRECTIONS = 500
# So many users' rows tell how noisy users are and how far those of a group differ.
LOOK_AT = 300
# Users who differ by less than this of their noise are refitted to the centre itself.
LARGE = 1e12


@dataclass(frozen=True, eq=False)
class Groups:
    """What a fit knows of its groups, for users who come later. In standardised units."""

    centers: Floats  # (n_clusters, dim)
    members: Ints  # (n_clusters,), users
    samples: Floats  # (n_clusters,), weight of their rows
    pull: Floats  # (n_clusters,), share of a user's l2 penalty that is left in the centre
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


def assign_rows(X: Floats, y: Floats, risk: Risk, groups: Groups, method: Method) -> Assignment:
    """Weigh the groups by how well their models explain the user's rows.

    The probabilities are those of the rows under theta ~ N(c_k, tau^2 I), by Laplace's method
    (with tau = 0: under c_k itself), times the groups' shares of users. Whether the likeliest
    group is credible is read off the slope of the rows' loss at its centre, not off the user's own
    model: no shrinkage in it, directions that the rows do not see have no voice, and one row or
    one class is enough.
    """
    newcomer, refit = _Newcomer(X, y, risk), method.refit
    free, separable = newcomer.alone(0.0)
    rows = _Rows.of(X, y, np.ones(len(y)), risk, free)
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
        pull = Penalty(np.full(k, strength), centers, free=False)
        return solve_users(copies, self.risk, pull).theta


def _noise_scale(rows: _Rows, groups: Groups, known: bool) -> tuple[float, float]:
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


def _evidence(rows: _Rows, groups: Groups, modes: Floats, phi: float) -> Floats:
    """Log-probability of the rows under each group, up to a constant, (n_clusters,)."""
    evidence = -np.array([rows.risk(mode) for mode in modes]) / phi
    if modes is groups.centers:
        return evidence
    evidence -= 0.5 * ((modes - groups.centers) ** 2).sum(axis=1) / groups.tau2
    bent = [np.log1p(groups.tau2 / phi * rows.view(mode).curvature).sum() for mode in modes]
    return evidence - 0.5 * np.array(bent)


def _distance(
    rows: _Rows, groups: Groups, label: int, phi: float, dof: float
) -> tuple[float, bool]:
    """Distance of the rows to a group, and whether a member would hardly ever be so far."""
    center = groups.centers[label]
    view = rows.view(center, pull=float(groups.pull[label]))
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

    def view(self, theta: Floats, *, pull: float = 0.0) -> View:
        """Slope and curvature at ``theta``, of the rows and of a share of the penalty.

        Where curvature hardly depends on the model it is taken at the user's own: from a far
        centre all rows of a Huber loss lie on its flat part.
        """
        z = self._z(theta)
        at = z if self.loss.curvature_varies else self._z(self.own)
        D = self.design if self.basis is None else self.design @ self.basis
        slope = D.T @ (self.loss.slope(z, self.y) * self.weight[:, None])
        if pull > 0 and self.pen.any():
            drawn = (pull * self.weight.sum() * self.pen * theta).reshape(-1, self.loss.n_outputs)
            slope = slope + (drawn if self.basis is None else self.basis.T @ drawn)
        curve = self.loss.curve(at, self.y) * self.weight[:, None, None]
        gram = np.einsum("np,nqr,ns->pqsr", D, curve, D, optimize=True)
        a, V = np.linalg.eigh(gram.reshape(self.dim, self.dim))
        seen = a > 1e-10 * max(float(a[-1]), 1e-300)
        return View((slope.ravel() @ V)[seen], a[seen])


# -- what the fit leaves behind ------------------------------------------------------------------


def groups_of(
    federation: Federation, risk: Risk, local: LocalModels, step: ServerStep, method: Method
) -> Groups:
    """The groups of a fit, with what some users' rows say of noise and of differences inside."""
    members, samples, pull = _sizes(local.uploads, step, method)
    some = np.unique(np.linspace(0, federation.n_users - 1, LOOK_AT).astype(int))
    if step.mixture is not None:  # which says it all
        some = some[:0]
    looks = [_look(federation, risk, local, step, i, pull) for i in some]
    phi, phi_dof = _noise([(phi, dof) for _, phi, dof, _ in looks], risk.loss.has_dispersion)
    tau2 = step.tau2
    spread = tau2 or 0.0
    views = [(view, size) for view, _, _, size in looks if view is not None and size > 1]
    if views and np.isfinite(phi):
        spread = max(spread, _spread(views, phi))
    return Groups(
        step.centers,
        members,
        samples,
        pull,
        spread if tau2 is None else tau2,
        spread,
        phi,
        phi_dof,
    )


def groups_of_uploads(uploads: Uploads, step: ServerStep, method: Method) -> Groups:
    """The groups as a server knows them that sees no rows: noise and differences as uploaded."""
    members, samples, pull = _sizes(uploads, step, method)
    told: list[tuple[float, float]] = []
    if uploads.dispersion is not None:
        dof = uploads.n_samples - uploads.dim
        sure = np.isfinite(uploads.dispersion)
        told = list(zip(uploads.dispersion[sure].tolist(), dof[sure].tolist(), strict=True))
    phi, phi_dof = _noise(told, uploads.has_dispersion)
    tau2 = step.tau2 or 0.0
    some = np.maximum(members, 1), np.maximum(samples, 1.0)  # a group may be nobody's likeliest
    return Groups(step.centers, *some, pull, tau2, tau2, phi, phi_dof)


def _sizes(uploads: Uploads, step: ServerStep, method: Method) -> tuple[Ints, Floats, Floats]:
    """Members and samples of each group, and the share of a user's penalty left in its centre."""
    labels, k = step.labels, step.n_clusters
    members = np.bincount(labels, minlength=k)
    samples = np.bincount(labels, weights=uploads.n_samples, minlength=k).astype(np.float64)
    # Precision combining counts the penalty once a group; means keep every user's whole.
    pull = np.ones(k)
    if method.combine == "precision" and uploads.curvature is not None:
        sent = uploads.sent.astype(float)
        pull = 1.0 / np.maximum(np.bincount(labels, weights=sent, minlength=k), 1.0)
    return members, samples, pull


def _noise(told: list[tuple[float, float]], free: bool) -> tuple[float, float]:
    """A typical noise scale and what it is worth, from users' own with degrees of freedom.

    ``free`` says whether the loss has a noise scale at all.
    """
    if not free:
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
    pull: Floats,
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
        view = rows.view(step.centers[label], pull=float(pull[label]))
    return view, phi, dof, int((step.labels == label).sum())


def _spread(views: list[tuple[View, int]], phi: float) -> float:
    """The tau^2 >= 0 of largest evidence for the users seen."""
    a = np.concatenate([view.curvature for view, _ in views]) / phi
    # In a group of g the centre has taken up 1 / g of each user's deviation.
    gap2 = np.concatenate([view.slope**2 * g / (g - 1.0) for view, g in views]) / phi**2
    return most_likely_tau2(a, gap2, price=0.0)
