"""Made worlds of wide users whose groups are known."""

from __future__ import annotations

import numpy as np
from scipy.linalg import helmert

from odcl.data.federation import Federation
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk
from odcl.wide.moments import FOLDS, ClassMoments, WideGroups


def risk_of(n_classes, *, intercept=True):
    return Risk("logistic" if n_classes == 2 else Multinomial(n_classes), intercept=intercept)


class World:
    """Rows N(means of the user's group and class, 1) with the true discriminant as its scores.

    Users have their own class means where ``differ`` is positive.
    """

    def __init__(self, n_groups, n_classes, d, *, differ=0.0, apart=0.5, alike=True, seed=0):
        self.rng = np.random.default_rng(seed)
        self.means = apart * self.rng.standard_normal((n_groups, n_classes, d))
        self.differ, self.alike = differ, alike

    @property
    def groups(self):
        K, C, d = self.means.shape
        slopes = self.means.swapaxes(1, 2)
        scores = np.concatenate([slopes, -(self.means**2).sum(axis=2)[:, None] / 2], axis=1)
        each = np.broadcast_to(scores, (1 + FOLDS, *scores.shape))
        return WideGroups(
            weights=np.full(K, 1 / K),
            scores=each,
            shares=np.full((K, C), 1 / C),
            concentration=50.0,
            unit=np.ones(d),
            alike=self.alike,
        )

    def users(self, group, n, n_new=200):
        """A federation and as many new rows of each user, (m, n_new, d) and (m, n_new)."""
        C, d = self.means.shape[1:]
        rows, labels, new, their = [], [], [], []
        for k in group:
            own = self.means[k] + self.differ * self.rng.standard_normal((C, d))
            y = self.rng.permutation(np.arange(n) % C)
            later = self.rng.integers(C, size=n_new)
            rows.append(own[y] + self.rng.standard_normal((n, d)))
            new.append(own[later] + self.rng.standard_normal((n_new, d)))
            labels.append(y)
            their.append(later)
        ids = np.repeat(np.arange(len(group)), n)
        federation = Federation.from_arrays(np.concatenate(rows), np.concatenate(labels), ids)
        return federation, np.array(new), np.array(their)


def moments_of(X, y, users, n_classes):
    """Class moments of rows with every contrast of a user's rows of a class among its draws."""
    ids = np.unique(users)
    counts = np.zeros((len(ids), n_classes))
    means = np.zeros((len(ids), n_classes, X.shape[1]))
    draws, owner, of = [np.zeros((0, X.shape[1]))], [], []
    for i, user in enumerate(ids):
        for c in range(n_classes):
            own = X[(users == user) & (y == c)]
            if not len(own):
                continue
            counts[i, c], means[i, c] = len(own), own.mean(axis=0)
            if len(own) > 1:
                draws.append(helmert(len(own)) @ own)
                owner += [i] * (len(own) - 1)
                of += [c] * (len(own) - 1)
    told = np.vstack(draws), np.array(owner, np.intp), np.array(of, np.intp)
    return ClassMoments(ids, counts, means, *told, X.shape[1])


def grouped_rows(seed, group, n, *, n_classes=3, d=120, length=3.0, apart=0.0, roll=0, differ=0.0):
    """Rows of users in groups, whose class means are ``apart`` and whose labels are rolled."""
    rng = np.random.default_rng(seed)
    group = np.asarray(group)
    sizes = np.broadcast_to(n, len(group))
    users = np.repeat(np.arange(len(group)), sizes)
    kind = rng.integers(n_classes, size=len(users))
    centers = length / np.sqrt(d) * rng.standard_normal((n_classes, d))
    off = apart / np.sqrt(d) * rng.standard_normal((group.max() + 1, n_classes, d))
    own = differ / np.sqrt(d) * rng.standard_normal((len(group), 1, d))
    mu = (centers + off[group] + own)[users, kind]
    X = mu + rng.standard_normal(mu.shape)
    return X, (kind + roll * group[users]) % n_classes, users
