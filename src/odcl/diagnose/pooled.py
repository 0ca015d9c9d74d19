"""What users of a group say together: the model of their pooled rows."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.diagnose.own_models import OwnModels, solve_symmetric
from odcl.server.combine import average_by_cluster


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
