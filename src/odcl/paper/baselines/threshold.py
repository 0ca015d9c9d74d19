"""Two classes, few rows: users centre by their own mean, the server finds the threshold. Ours.

One round, and nothing public is needed. With far fewer rows than features an intercept that each
user fits is noise, and so is its mean over users; the clusters' class means are not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.kmeans.kmeanspp import KMeansPP
from odcl.clustering.labels import sum_by_cluster
from odcl.data.federation import Federation
from odcl.exchange.ledger import Exchange
from odcl.exchange.upload import Uploads
from odcl.paper.baselines.one_shot import less_mean, one_shot
from odcl.paper.baselines.options import passes_on
from odcl.paper.baselines.result import BaselineResult, as_baseline
from odcl.risk.losses import Logistic
from odcl.risk.risk import Risk


@dataclass(frozen=True, eq=False)
class ClassSums:
    """What users send beside their models: each class's sum, spread and number of rows."""

    count: Floats  # (2, n_users)
    total: Floats  # (2, n_users, n_features)
    squares: Floats  # (2, n_users), about the user's class mean, over all features

    @classmethod
    def of(cls, federation: Federation) -> ClassSums:
        y = Logistic().encode(federation.y)
        m, p = federation.n_users, federation.n_features
        count, squares, total = np.zeros((2, m)), np.zeros((2, m)), np.zeros((2, m, p))
        for i in range(m):
            rows = federation.rows(i)
            for c, own in enumerate((y[rows] > 0, y[rows] < 0)):
                X = federation.X[rows][own]
                count[c, i] = len(X)
                total[c, i] = X.sum(axis=0)
                squares[c, i] = ((X - X.mean(axis=0)) ** 2).sum() if len(X) else 0.0
        return cls(count, total, squares)


@passes_on(one_shot, "clusterer", "refit", "centred", "public_mean")
def with_own_thresholds(
    federation: Federation, *, n_clusters: int, risk: Risk = Risk("logistic"), **call: Any
) -> BaselineResult:
    """ODCL-KM++ on rows less their user's mean, with an intercept per cluster (logistic loss).

    The intercept puts the border between the cluster's class means, as many standard deviations
    from the one as from the other; a class's deviation is that of its users' rows about their own
    class means, all features together. With equal deviations it is the middle. Beside its model
    a user sends ``ClassSums``: with two rows per class, that is close to the rows themselves.
    """
    if risk.intercept or not isinstance(risk.loss, Logistic):
        raise ValueError(
            f"{risk}: the threshold between two classes takes the place of an intercept. Use "
            "Risk('logistic', intercept=False)."
        )
    moved, _ = less_mean(federation, "own")
    alone = one_shot(moved, clusterer=KMeansPP, n_clusters=n_clusters, risk=risk, **call)
    sums = ClassSums.of(federation)
    means = sums.total.sum(axis=0) / sums.count.sum(axis=0)[:, None]
    local = _with_intercept(alone.local.theta, means)
    centers = _with_intercept(alone.centers, borders(sums, alone.labels))
    models = centers[alone.labels]
    risk = replace(risk, intercept=True)
    uploads = Uploads(alone.users, local, alone.uploads.n_samples, risk=risk)
    p = federation.n_features
    per_class = ((p,), (), ())  # sum, spread, number of rows
    exchange = Exchange(federation.n_users, sends=2 * per_class, receives=((),))  # an intercept
    changed = replace(
        alone,
        risk=risk,
        local=replace(alone.local, uploads=uploads),
        step=replace(alone.step, centers=centers, models=models),
        received=replace(alone.received, models=models),
    )
    ledger = alone.history.ledger.with_first(exchange)
    return as_baseline(changed, "odcl-km++/own-threshold", ledger=ledger, given=alone.given)


def borders(sums: ClassSums, labels: Ints) -> Floats:
    """A point of each cluster's border, (n_clusters, n_features)."""
    count = np.stack([np.bincount(labels, weights=c) for c in sums.count])[..., None]
    mean = np.stack([sum_by_cluster(t, labels) for t in sums.total]) / np.maximum(count, 1.0)
    spare = np.maximum(sums.count - 1, 0)
    dof = np.stack([np.bincount(labels, weights=c) for c in spare])
    spread = np.stack([np.bincount(labels, weights=s) for s in sums.squares])
    sd = np.sqrt(spread / np.maximum(dof, 1.0))
    # Without two rows of a class in a cluster nothing is known of its spread: the middle.
    known = ((dof > 0) & (sd > 0)).all(axis=0)
    sd = np.where(known, sd, 1.0)[..., None]
    return (sd[1] * mean[0] + sd[0] * mean[1]) / (sd[0] + sd[1])


def _with_intercept(theta: Floats, border: Floats) -> Floats:
    """theta (x - border) as a model with an intercept."""
    return np.column_stack([theta, -(theta * border).sum(axis=1)])
