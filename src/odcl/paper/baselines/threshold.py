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
from odcl.local.receive import Refit
from odcl.paper.baselines.clustered import one_shot
from odcl.paper.baselines.result import BaselineResult
from odcl.risk.loss import Loss
from odcl.risk.losses import Logistic, as_loss


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

    @property
    def n_bytes(self) -> int:
        return self.count.nbytes + self.total.nbytes + self.squares.nbytes


def with_own_thresholds(
    federation: Federation,
    *,
    n_clusters: int,
    loss: str | Loss = "logistic",
    fit_intercept: bool = False,
    seed: int = 0,
    **call: Any,
) -> BaselineResult:
    """ODCL-KM++ on rows less their user's mean, with an intercept a cluster (logistic loss).

    The intercept puts the border between the cluster's class means, as many standard deviations
    from the one as from the other; a class's deviation is that of its users' rows about their own
    class means, all features together. With equal deviations it is the middle. Beside its model
    a user sends ``ClassSums``: with two rows a class, that is close to the rows themselves.
    """
    if fit_intercept or not isinstance(as_loss(loss, federation.y), Logistic):
        raise ValueError(
            f"loss={loss!r} with fit_intercept={fit_intercept}: the threshold between two classes "
            "takes the place of an intercept. Use loss='logistic', fit_intercept=False."
        )
    alone = one_shot(
        federation,
        clusterer=KMeansPP(n_clusters),
        centred="own",
        loss=loss,
        seed=seed,
        **call,
    )
    sums = ClassSums.of(federation)
    centers = _with_intercept(alone.centers, borders(sums, alone.labels))
    local = _with_intercept(
        alone.local.theta, sums.total.sum(axis=0) / sums.count.sum(axis=0)[:, None]
    )
    models = centers[alone.labels]
    step = replace(alone.step, centers=centers, models=models)
    assert alone.history is not None
    m, p = alone.local.theta.shape
    up = alone.history.bytes_up + sums.n_bytes - 8 * m * p  # class sums instead of the mean
    down = alone.history.bytes_down + 8 * m - 8 * m * p  # an intercept instead of the mean
    return replace(
        alone,
        local=replace(alone.local, theta=local, l2=np.append(alone.local.l2, 0.0)),
        step=step,
        refit=Refit(models, alone.refit.strength, "none"),
        history=replace(alone.history, bytes_up=up, bytes_down=down),
        settings={**alone.settings, "fit_intercept": True},
        shift=None,
        method="odcl-km++/own-threshold",
    )


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
