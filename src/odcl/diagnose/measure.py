"""What is measured of a partition of the users before anything is concluded from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.spatial.distance import pdist, squareform
from threadpoolctl import threadpool_limits

from odcl._typing import Array, Bools, Floats, Ints
from odcl.clustering.labels import nearest_center
from odcl.diagnose.noise import (
    GroupModels,
    Membership,
    ModelNoise,
    center_covariance,
    expected_wrong,
    membership,
    noise_unit,
    without_penalty,
)
from odcl.diagnose.own_models import OwnModels, pooled_models
from odcl.mixed.posterior import APART
from odcl.server.models import average_by_cluster
from odcl.server.result import ServerStep
from odcl.wide.moments import mixed_only

DIFFER = 3.0  # standard deviations of more than noise, before users of a group are said to differ
MISPLACED = 0.02  # share of users in a wrong group from which more rows come first
LEFT_WRONG = 0.05  # expected number of users in a wrong group that a wanted n may leave
MOST_SHRINK = 1e-6  # of the noise: no more than a million times the rows are considered


@dataclass(frozen=True)
class Distance:
    """Smallest distance between two groups' models, the paper's D, with its uncertainty."""

    value: float  # noise of the groups' models taken off
    low: float  # 95 % interval
    high: float
    pair: tuple[int, int]
    in_noise: float  # least distance of two groups in standard deviations of a user's model
    noise_pair: tuple[int, int]  # these two: not always the pair of the smallest distance


@dataclass(frozen=True)
class Errors:
    """Expected squared error of a user's model, in units of its local model's error."""

    one: float  # one model for all
    used: float  # its own, made from its group's as it was
    pooled: float  # its group's, of the pooled rows
    drawn: float  # drawn to that only as far as users are alike


@dataclass(frozen=True)
class Stability:
    """What became of the groups in federations drawn from the fitted one."""

    kept: float  # share of users that keep their group, mean over resamples
    same: float  # share of resamples in which every user does
    resamples: int


@dataclass(frozen=True, eq=False)
class MeasuredGroups:
    """A partition: its groups' models, how far apart they are, and how surely users belong."""

    users: OwnModels
    labels: Ints
    noise: ModelNoise
    spread: Floats  # (dim, dim), the covariance between users of a group
    groups: GroupModels
    membership: Membership
    errors: Errors

    @property
    def n_clusters(self) -> int:
        return len(self.groups.models)

    @property
    def misplaced(self) -> float:
        """Expected number of users in a wrong group."""
        return float(np.nansum(self.membership.elsewhere))

    @property
    def crowded(self) -> bool:
        """Do more rows come first, because too many users are in a wrong group?"""
        return self.misplaced > max(MISPLACED * len(self.labels), 1.0)

    @property
    def tau2(self) -> float:
        """Variance between users of a group, mean over coordinates."""
        return float(np.trace(self.spread)) / self.users.dim

    @property
    def tau2_in_noise(self) -> float:
        """The spread in units of a typical user's noise S, the median over users: tr T S^-1 / dim.

        S is the average noise, at the size of the median user's.
        """
        known, dim = self.noise.variance[self.noise.known], self.users.dim
        if not self.spread.any() or len(known) == 0:
            return 0.0
        S = self.noise.mean()
        size = float(np.trace(S)) / dim / float(np.median(known))
        return float((self.spread * np.linalg.inv(S)).sum()) / dim * size

    def error_of(self, models: Floats) -> float:
        """Error of the models (n_users, dim) that users have, if these are the true groups.

        Mean over users of |models_i - c_k|^2 / dim, coordinates weighed as in ``_errors``, and the
        error of c_k: pooling the rows is the best linear unbiased way, so that what another one
        adds does not correlate with it.
        """
        known, dim = self.noise.known, self.users.dim
        if not known.any():
            return self.errors.pooled
        gap = (models - self.groups.models[self.labels])[known]
        W = np.linalg.inv(self.noise.mean())
        return float(((gap @ W) * gap).sum(axis=1).mean()) / dim + self.errors.pooled

    @cached_property
    def distance(self) -> Distance | None:
        """D: the smallest distance between groups' models, noise taken off; its 95 % interval.

        d^2 = |c_k - c_l|^2 - tr V,    var(d^2) = 4 d' V d + 2 tr V^2,    V = V_k + V_l
        """
        models, noise, V = self.groups.models, self.noise, self.groups.covariance
        k = len(models)
        if k == 1 or not noise.known.any():
            return None
        first, second = np.triu_indices(k, 1)
        squared = np.square(models[first] - models[second]).sum(axis=1)
        near = np.argsort(squared)[:50]  # the smallest is among them, noise or not
        first, second = first[near], second[near]
        V = V[first] + V[second]
        values = squared[near] - np.trace(V, axis1=1, axis2=2)
        at = int(values.argmin())
        pair, V = (int(first[at]), int(second[at])), V[at]
        gap = (models[pair[0]] - models[pair[1]])[:, None]
        spread = np.sqrt(4 * (gap * (V @ gap)).sum() + 2 * np.square(V).sum())
        low, d, high = (float(max(values[at] + s * spread, 0.0) ** 0.5) for s in (-1.96, 0, 1.96))
        # In noise: least sqrt(d' S^-1 d), a distance in any units of features.
        root = np.linalg.cholesky(noise.mean() + self.spread)
        white = squareform(pdist(np.linalg.solve(root, models.T).T))
        np.fill_diagonal(white, np.inf)
        a, b = sorted(divmod(int(white.argmin()), k))
        return Distance(d, low, high, pair, float(white[a, b]), (a, b))

    def rows_needed(self, *, alike: bool = False) -> int | None:
        """Rows per user at which hardly a user would be in a wrong group; None: no number helps.

        The noise shrinks like 1 / (n - dim - 1), and the wanted n leaves ``LEFT_WRONG`` users
        wrong. Where users of a group differ so much that no n does, their difference may be groups
        that cannot be told apart yet: it is left out (``alike``).
        """
        T = np.zeros_like(self.spread) if alike else self.spread
        if self.n_clusters == 1 or not self.noise.known.any():
            return None

        def excess(log_shrink: float) -> float:
            shrink = float(np.exp(log_shrink))
            wrong = expected_wrong(self.noise, self.labels, self.groups, T, shrink)
            return float(np.log(wrong + 1e-12) - np.log(LEFT_WRONG))

        n = float(np.median(self.users.n_samples[self.noise.known]))
        if excess(0.0) <= 0:
            return round(n)
        if excess(np.log(MOST_SHRINK)) > 0:
            return self.rows_needed(alike=True) if T.any() else None
        shrink = float(np.exp(brentq(excess, np.log(MOST_SHRINK), 0.0, xtol=1e-3)))
        return rows_after(n, self.users.dim, shrink)


def rows_after(n: float, dim: int, shrink: float) -> int:
    """Rows at which the noise of n rows has shrunk to ``shrink`` of itself."""
    lost = dim + 1 if n > dim + 2 else 0
    return int(np.ceil(lost + (n - lost) / shrink))


def measure(
    users: OwnModels, labels: Ints, found: Floats | None, noise: ModelNoise, combine: str | None
) -> MeasuredGroups:
    """Measure the groups ``labels``, whose models were made by ``combine`` (None: otherwise).

    ``found`` is how users of a group differ, as the server has it; None: as the users' rows do.
    """
    centers, others = pooled_models(users, labels)
    theta, bare = without_penalty(users, noise)
    covariance = center_covariance(noise, labels, np.zeros((users.dim, users.dim)))
    groups = GroupModels(centers, others, covariance, np.bincount(labels))
    T = found
    if T is None:
        T = _tau2(users, theta, labels, bare, groups) * np.eye(users.dim)
    if T.any():
        groups = replace(groups, covariance=center_covariance(noise, labels, T))
    belong = membership(theta, labels, bare, groups, T)
    errors = _errors(users, labels, noise, groups, T, combine)
    return MeasuredGroups(users, labels, noise, T, groups, belong, errors)


def _tau2(
    users: OwnModels, theta: Floats, labels: Ints, noise: ModelNoise, groups: GroupModels
) -> float:
    """Variance between users of a group, per coefficient; 0 where noise explains how they differ.

    Squared distances from the group without the user, in units of S_i, the noise C_i and that of
    the group's own model, are chi-squared with dim degrees of freedom if users are alike. Beyond
    ``DIFFER`` standard deviations (that of the pooled noise scale included) they say how far users
    differ: a variance t adds t tr S_i^-1 to them, and the others' own mean differs a little, too.
    """
    rows = np.flatnonzero(noise.known & (groups.sizes[labels] > 1))
    if len(rows) == 0:
        return 0.0
    gap, seen = theta[rows] - groups.others[rows], groups.seen_without(labels[rows])
    square, _ = noise.take(rows).whiten(gap, seen, np.zeros_like(seen[0]))
    freedom = np.inf
    if users.risk.loss.has_dispersion:
        freedom = max(float((users.n_samples[rows] - users.dim).sum()), 1.0)
    spread = np.sqrt(2 / square.size / users.dim + 2 / freedom)
    if square.mean() / users.dim - 1 < DIFFER * spread:
        return 0.0
    unit = np.trace(np.linalg.inv(noise.covariance[rows] + seen), axis1=1, axis2=2)
    size = groups.sizes[labels[rows]]
    return float((square.mean() - users.dim) / (unit * size / (size - 1)).mean())


def _errors(
    users: OwnModels,
    labels: Ints,
    noise: ModelNoise,
    groups: GroupModels,
    T: Floats,
    combine: str | None,
) -> Errors:
    """Expected squared errors, coordinates weighed by the inverse of the average noise S.

    A local model then has error 1; a group's model the size of its covariance plus ``own``, that of
    T; one model for all its distance from the groups' models plus own. Drawing a user to its group
    leaves T - T (T + S)^-1 T, and J V J' of the covariance V of the group's model, with
    J = S (T + S)^-1.
    """
    dim, known = users.dim, noise.known
    if not known.any():
        return Errors(np.nan, np.nan, np.nan, np.nan)
    S = noise.mean()
    W: Floats = np.linalg.inv(S).astype(np.float64, copy=False)
    at = labels[known]

    def size(V: Floats, metric: Floats) -> float:
        return float(((V * metric).sum(axis=(1, 2)) / dim)[at].mean())

    own = float((T * W).sum()) / dim
    pooled = size(groups.covariance, W) + own
    taken: Floats = np.linalg.inv(T + S).astype(np.float64, copy=False)  # W J = (T + S)^-1
    kept = float((W * (T - T @ taken @ T)).sum()) / dim
    drawn = kept + size(groups.covariance, taken @ S @ taken)
    used = drawn if combine == "mixed" else pooled
    if combine in ("mean", "samples"):
        weights = np.ones(users.n_users) if combine == "mean" else users.n_samples
        used = size(center_covariance(noise, labels, T, weights=weights), W) + own
    together = np.zeros_like(labels)
    gap = groups.models - average_by_cluster(groups.models[labels], together, users.n_samples)
    one = float(((gap @ W) * gap).sum(axis=1)[at].mean()) / dim + own
    return Errors(one, used, pooled, drawn)


def stability(
    visible: MeasuredGroups, found: MeasuredGroups, *, resamples: int, seed: int
) -> Stability:
    """Would the same users be grouped together with other rows?

        theta_i ~ N(mean_i, C_i + T)

    is drawn and clustered ``resamples`` times. The means are the best guess of the users' optima:
    the models of the ``visible`` groups, those that the noise shows. K-means from the models of the
    groups ``found``, in units of the average noise, so that these are estimated anew. Users of
    unknown noise are left out.
    """
    centers, noise, T = found.groups.models, visible.noise, visible.spread
    k, dim = centers.shape
    if k == 1:
        return Stability(1.0, 1.0, resamples)
    from sklearn.cluster import KMeans

    rows = np.flatnonzero(noise.known)
    means, labels = visible.groups.models[visible.labels[rows]], found.labels[rows]
    unit, C = noise_unit(noise, T), noise.covariance[rows]
    roots = np.linalg.cholesky(C + T)
    rng = np.random.default_rng(seed)
    kept = np.zeros(resamples)
    with threadpool_limits(1):
        for i in range(resamples):
            e = rng.standard_normal((len(rows), dim, 1))
            points = (means + (roots @ e).reshape(len(rows), dim)) @ unit
            run = KMeans(k, init=centers @ unit, n_init=1, max_iter=20).fit(points)
            kept[i] = np.mean(nearest_center(points, run.cluster_centers_) == labels)
    return Stability(float(kept.mean()), float(np.mean(kept == 1.0)), resamples)


# -- users whose columns lie apart: in groups of their own, named and not judged -------------------


@dataclass(frozen=True, eq=False)
class Apart:
    """Users whose columns are unlike everybody else's, in groups of their own, and not judged."""

    at: Ints  # among all users
    users: Array
    groups: Ints
    rows: Floats

    def among(self, told: dict[str, Any]) -> dict[str, Any]:
        """What is told of the judged users, with theirs in between."""
        own: dict[str, Any] = {"user": self.users, "group": self.groups, "rows": self.rows}
        own |= {"rival": -1, "remark": "set apart"}
        at = self.at - np.arange(len(self.at))
        return {name: np.insert(told[name], at, own.get(name, np.nan)) for name in told}


def usual_users(step: ServerStep) -> Bools:
    """Users who are not in groups made for those whose columns lie apart, (n_users,)."""
    mixture = mixed_only(step.mixture)
    if mixture is None:
        return np.ones(len(step.labels), np.bool_)
    return np.asarray(mixture.weights > APART)[step.labels]


def of_some(step: ServerStep, some: Ints) -> tuple[ServerStep, Ints]:
    """The step of some users with the groups that they are in, and the numbers these had."""
    groups, labels = np.unique(step.labels[some], return_inverse=True)
    mixture = mixed_only(step.mixture)
    return replace(
        step.take(some),
        labels=labels,
        centers=step.centers[groups],
        mixture=None if mixture is None else mixture.take(groups),
    ), groups
