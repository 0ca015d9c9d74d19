"""How a cluster's models become one (Algorithm 1, step 2(iii)): means, plain or weighed by rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.exchange.upload import Uploads


def average_by_cluster(theta: Floats, labels: Ints, weights: Floats | None = None) -> Floats:
    """Average the local models inside each cluster (Algorithm 1, step 2(iii)).

        centers[k] = (1 / |C'_k|) * sum of theta[i] over i in C'_k

    Users count once each, whatever their sample size: the paper averages uniformly (Remark 10).
    ``weights`` (n_users,) make it a weighted mean. Shapes: theta (n_users, dim), labels
    (n_users,) holding 0..K'-1, answer (n_clusters, dim).
    """
    weights = np.ones(len(theta)) if weights is None else weights
    total = sum_by_cluster(weights, labels)
    return sum_by_cluster(theta * weights[:, None], labels) / total[:, None]


def user_weights(uploads: Uploads, how: str) -> Floats:
    """What users count in their cluster's mean, (n_users,): "mean" once each, "samples" by rows."""
    return np.ones(uploads.n_users) if how == "mean" else uploads.n_samples


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """Clusters as sums over their users; sums of parts of the users add up."""

    how: str  # "mean" or "samples"
    weight: Floats  # (n_clusters,)
    weighted: Floats  # (n_clusters, dim), sum w theta

    @classmethod
    def of(cls, uploads: Uploads, labels: Ints, how: str, n_clusters: int) -> ClusterSums:
        weights = user_weights(uploads, how)
        weighted = sum_by_cluster(uploads.models * weights[:, None], labels, n_clusters)
        return cls(how, sum_by_cluster(weights, labels, n_clusters), weighted)

    def __add__(self, other: ClusterSums) -> ClusterSums:
        weight, weighted = self.weight + other.weight, self.weighted + other.weighted
        return replace(self, weight=weight, weighted=weighted)

    @property
    def told(self) -> str:
        """What is done, in words."""
        return "plain mean" if self.how == "mean" else "mean weighted by sample size"

    @property
    def centers(self) -> Floats:
        """The clusters' models, (n_clusters, dim)."""
        return self.weighted / self.weight[:, None]

    @property
    def pooled(self) -> Floats:
        """One model for the users of all clusters, (dim,)."""
        return self.weighted.sum(axis=0) / self.weight.sum()
