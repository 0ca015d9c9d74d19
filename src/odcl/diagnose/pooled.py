"""What users of a group say together: the model of their pooled rows, and how far they differ."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from scipy.optimize import minimize_scalar

from odcl._typing import Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.diagnose.own_models import OwnModels, solve_symmetric
from odcl.server.combine import average_by_cluster

# Enough numbers (users times dim) to pin one down to half a percent, from enough users to have seen
# every group; more would only cost time, and dim^3 of it a user.
_ENOUGH, _ENOUGH_USERS = 100_000, 2_000
# Share of the models' degrees of freedom that the rows determine, tr(A H^-1) / dim. Under this the
# users' quadratic models are no likelihood any more: on digits and MNIST users with as many rows as
# parameters (share .2 - .35) they miss that groups differ; where they hold it is .9 and more.
DETERMINED = 0.7


def pooled_models(users: OwnModels, labels: Ints) -> tuple[Floats, Floats]:
    """The models of each group's pooled rows, (n_clusters, dim), and (n_users, dim) without a user.

    They are the stationary points of the sums of the users' quadratic models, the penalty
    P = diag(l2) counted once per group. With A_i = H_i - n_i P the curvature of user i's data term
    at its own theta_i,

        (sum_i A_i + n-bar P) c = sum_i (W_i + n_i P) theta_i

    W_i = A_i where curvature does not depend on the model: for squared loss c is then exactly the
    group's pooled ridge regression (n-bar is the group's mean n_i). Elsewhere a user's gradient at
    c is an integral of its curvature from theta_i to c, and W_i is the trapezoid rule for it: the
    mean of A_i, at one end, and of n_i times the group's average curvature, for the other. This
    takes off the bias that A_i and theta_i share their noise (logistic users with large models are
    the flat ones). A user alone in its group is left its own model.
    """
    n, own = users.n_samples, _Sums.of_users(users)
    total = own.by_cluster(labels)
    means, blend = average_by_cluster(users.theta, labels, n), users.risk.loss.curvature_varies
    silent = (total.members == 0)[:, None]
    centers = np.where(silent, means, total.solve(users.penalty, blend))
    share = (n / sum_by_cluster(n, labels)[labels])[:, None]
    alone = share >= 1.0
    rest = (means[labels] - share * users.theta) / np.where(alone, 1.0, 1.0 - share)
    without = np.where(alone, users.theta, rest)
    able = np.flatnonzero(total.members[labels] - own.members > 0)  # somebody else tells
    for part in np.array_split(able, max(1, len(able) // 4096)):
        without[part] = total.minus(own, labels[part], part).solve(users.penalty, blend)
    return centers, without


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums over a set of users; one row per user or cluster.

    The users' own rows hold H_i itself, not A_i = H_i - n_i P: for a million users that copy
    would be the largest thing in memory. P is taken off the sums.
    """

    members: Floats  # whose rows say anything
    n: Floats
    H: Floats  # (., dim, dim)
    H_theta: Floats  # (., dim)
    n_theta: Floats  # (., dim)

    @classmethod
    def of_users(cls, users: OwnModels) -> _Sums:
        H, theta, told = users.curvature, users.theta, users.told.astype(float)
        n = users.n_samples * told
        return cls(told, n, H, np.matmul(H, theta[..., None])[..., 0], n[:, None] * theta)

    def by_cluster(self, labels: Ints) -> _Sums:
        return _Sums(*(sum_by_cluster(getattr(self, f.name), labels) for f in fields(self)))

    def minus(self, users: _Sums, clusters: Ints, part: Ints) -> _Sums:
        return _Sums(
            *(getattr(self, f.name)[clusters] - getattr(users, f.name)[part] for f in fields(self))
        )

    def solve(self, pen: Floats, blend: bool) -> Floats:
        """The stationary point, (., dim)."""
        n = np.maximum(self.n, 1e-300)[:, None]
        counted, once = pen * n, pen * n / np.maximum(self.members, 1.0)[:, None]
        right = self.H_theta
        A = self.H - counted[:, :, None] * np.eye(len(pen))
        if blend:
            average = np.matmul(A, (self.n_theta / n)[..., None])[..., 0]
            right = 0.5 * (right + pen * self.n_theta + average)
        return solve_symmetric(A + once[:, :, None] * np.eye(len(pen)), right)


def evidence_tau2(
    users: OwnModels, labels: Ints, centers: Floats, phi: Floats | None
) -> float | None:
    """How far users of a group differ, per coefficient: the tau^2 of largest evidence.

    User i's rows say of its model theta, to second order, -(theta' A_i theta - 2 b_i' theta) /
    (2 phi_i), with A_i = H_i - n_i P the curvature of its data term and b_i = H_i theta_i: the
    penalty, and directions that its rows do not see, have no voice. With theta ~ N(c, tau^2 I)
    integrated out, in the eigenvectors of A_i (eigenvalues a, and g the slope b_i - A_i c there),

        log Z = const + sum -1/2 log(1 + t a / phi) + t (g / phi)^2 / (2 (1 + t a / phi))

    None where this cannot be trusted: fewer than half of the users know their noise, or the penalty
    rather than the rows sets the models (see DETERMINED).
    """
    if phi is None:
        return None
    size = np.bincount(labels)[labels]
    able = users.knows_noise & users.told
    use = np.flatnonzero(able & (size > 1))
    if len(use) == 0 or able.sum() < 0.5 * len(able):
        return None
    use = use[:: -(-len(use) // max(_ENOUGH // users.dim, _ENOUGH_USERS))]
    H, n = users.curvature[use], users.n_samples[use]
    center = centers[labels[use]]
    pen = users.penalty
    # b - A c about the centre itself: both are large where targets are far from zero.
    slope = np.matmul(H, (users.theta[use] - center)[..., None])[..., 0] + n[:, None] * pen * center
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
