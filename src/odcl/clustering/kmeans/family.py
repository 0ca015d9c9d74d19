"""scikit-learn's manners, once for the K-means family: validate, choose K, delegate, keep."""

from __future__ import annotations

from abc import abstractmethod
from numbers import Integral
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from odcl._typing import Floats, Ints
from odcl.clustering.kmeans.choose_k import ChoiceOfK, choose_k
from odcl.clustering.labels import nearest_center

if TYPE_CHECKING:
    from odcl.clustering.kmeans.kmeanspp import KMeansResult


class KMeansFamily(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Base of KMeansPP, SpectralKMeans and GradientClustering; they differ in ``_cluster``."""

    n_clusters: int | str
    max_clusters: int
    random_state: Any

    @abstractmethod
    def _cluster(self, a: Floats, n_clusters: int, seed: int) -> KMeansResult:
        """The method itself, for a given number of clusters."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the rows of ``X``, (n_users, dim)."""
        a = self._points(X, reset=True)
        seed = as_seed(self.random_state)
        self.choice_: ChoiceOfK | None = None
        if isinstance(self.n_clusters, str):
            self.choice_, result = choose_k(
                a,
                self.n_clusters,
                lambda k: self._cluster(a, k, seed),
                max_clusters=self.max_clusters,
                seed=seed,
            )
        else:
            result = self._cluster(a, self.n_clusters, seed)
        self._keep(result)
        return self

    def predict(self, X: Any) -> Ints:
        """Label of the nearest centre of each row of ``X``; the lowest label wins a tie."""
        check_is_fitted(self)
        return nearest_center(self._points(X, reset=False), self.cluster_centers_)

    def _keep(self, result: KMeansResult) -> None:
        self.labels_ = result.labels
        self.cluster_centers_ = result.centers
        self.inertia_ = result.cost
        self.n_iter_ = result.n_iter
        self.n_clusters_ = len(result.centers)

    def _points(self, X: Any, *, reset: bool) -> Floats:
        a: Floats = validate_data(
            self, X, dtype=np.float64, order="C", ensure_all_finite=False, reset=reset
        )
        return finite_rows(a)


def finite_rows(a: Floats) -> Floats:
    """The rows, or an error that names the first one without a distance to the others."""
    bad = np.flatnonzero(~np.isfinite(a).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(a)} rows hold NaN or inf (the first is row {bad[0]}), and no "
            "distance to them is defined. Leave these users out, or fit them again: a local "
            "solver that diverged is the usual cause."
        )
    return a


def as_seed(random_state: Any) -> int:
    """A whole number from scikit-learn's ``random_state``.

    Every K that a rule tries starts from it, so a rule's answer is that of its K given as a number.
    """
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
