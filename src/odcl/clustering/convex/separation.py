"""When convex clustering is guaranteed to find given clusters: the interval of Eq. (13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist

from odcl._typing import Array
from odcl.clustering.convex.fusion import diameter
from odcl.clustering.labels import as_points, number_by_first_user, sum_by_cluster


@dataclass(frozen=True)
class RecoveryInterval:
    """The lambdas of Eq. (13): low <= lam < high, where there are any.

    Outside of it the clusters may be found as well: the interval is sufficient, not necessary.
    With one cluster there is nothing to keep apart and ``high`` is infinite.
    """

    low: float  # max over clusters of diameter / size
    high: float  # min over pairs of |mu_k - mu_l| / (2 m - |C_k| - |C_l|)

    @property
    def empty(self) -> bool:
        return not self.low < self.high

    @property
    def middle(self) -> float:
        """Half-way between the ends; twice ``low`` if there is no upper end."""
        if self.empty:
            raise ValueError(
                f"The interval of Eq. (13) is empty: it would have to start at {self.low:.4g} and "
                f"end below {self.high:.4g}. No lambda is guaranteed to give these clusters; the "
                "exact path may still hold them (odcl.clusterpath)."
            )
        return 2 * self.low if np.isinf(self.high) else 0.5 * (self.low + self.high)

    def __contains__(self, lam: float) -> bool:
        return self.low <= lam < self.high


def recovery_interval(X: Any, labels: Array) -> RecoveryInterval:
    """Eq. (13): the lambdas for which convex clustering of ``X`` provably gives ``labels``.

        max_k max_{i,j in C_k} |a_i - a_j| / |C_k|  <=  lam
            <  min_{k != l} |mu_k - mu_l| / (2 m - |C_k| - |C_l|)

    ``X`` is (n_users, dim), ``labels`` (n_users,). The footnote of Lemma 1 states the left end
    with the largest distance from the mean; its proof needs twice that, and lambdas in between
    can fail (-1, 1, 99, 101 at lam = .99 gives four clusters). Here is the display.
    """
    a, labels = as_points(X), np.asarray(labels)
    if labels.shape != (len(a),):
        raise ValueError(
            f"X has shape {a.shape} and labels {labels.shape}: give one row and one label per "
            "user, (n_users, dim) and (n_users,)."
        )
    labels = number_by_first_user(labels)
    sizes = np.bincount(labels)
    m, n_clusters = len(a), len(sizes)
    low = float(max(diameter(a[labels == k]) / sizes[k] for k in range(n_clusters)))
    high = np.inf
    if n_clusters > 1:
        means = sum_by_cluster(a, labels) / sizes[:, None]
        first, second = np.triu_indices(n_clusters, 1)
        high = float((pdist(means) / (2 * m - sizes[first] - sizes[second])).min())
    return RecoveryInterval(low, high)


def oracle_lambda(X: Any, true_labels: Array, *, seed: int = 0) -> float:
    """The truth-tuned lambda of the paper's experiments: no method, a yardstick.

    It is computed from the *true* clusters, which nobody has: uniform on the interval of Eq. (13),
    or its upper end where the interval is empty (Appendix D.1).
    """
    interval = recovery_interval(X, true_labels)
    if interval.empty:
        return interval.high
    if np.isinf(interval.high):
        return interval.middle
    return float(np.random.default_rng(seed).uniform(interval.low, interval.high))
