"""Made worlds of wide users whose groups are known."""

from __future__ import annotations

import numpy as np

from odcl.data.federation import Federation
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk
from odcl.wide.folds import FOLDS
from odcl.wide.groups import WideGroups


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
