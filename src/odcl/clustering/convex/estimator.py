"""Convex clustering (Eq. 12): the clustering of ODCL-CC, exact and with its own proof.

    minimise over u:  1/2 sum_i |a_i - u_i|^2 + lam sum_{i<j} |u_i - u_j|

Points whose rows of u coincide are one cluster; the number of clusters falls from the number of
points at lam = 0 to one, and clusters never split on the way. :func:`convex_cluster` solves it at
one lambda; :class:`ConvexClustering` makes it a scikit-learn estimator and chooses lambda.
"""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, Self

import numpy as np
from scipy.spatial import cKDTree
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning

from odcl._typing import Floats, Ints
from odcl.clustering.convex.newton import MassPoints, Pairs
from odcl.clustering.convex.solve import solve
from odcl.clustering.labels import as_points, check_count, validated
from odcl.threads import one_thread

# A direction holds all points of a line if they are this close to it, relative to their spread:
# some hundreds of roundings.
ON_A_LINE = 1e-13
# Forces below this share of the largest coordinate drown in its rounding.
RESOLVED = 1e-12
LARGEST = 1e150  # the largest number whose square is safe to add up


@dataclass(frozen=True, eq=False)
class ConvexResult:
    """Convex clustering at one lambda. Clusters are numbered by their first point."""

    labels: Ints  # (n_points,)
    centers: Floats  # (n_clusters, dim), the distinct rows of u in Eq. (12)
    lam: float
    objective: float  # Eq. (12) at u
    gap: float  # bound on objective - minimum
    certified: bool  # the clusters are proven to be those of the exact minimiser
    n_iter: int  # Newton steps

    @property
    def n_clusters(self) -> int:
        return len(self.centers)

    @property
    def u(self) -> Floats:
        """The minimiser of Eq. (12), (n_points, dim)."""
        return self.centers[self.labels]


def convex_cluster(a: Any, lam: float, *, max_iter: int = 1000) -> ConvexResult:
    """Exact convex clustering of ``a``, (n_points, dim), with uniform weights at ``lam`` >= 0.

    ``certified`` says that the clusters are proven: every cluster by a flow that holds it
    together, all pairs of clusters by balls around their rows of u that do not touch (sums being
    those of floating point). If ``max_iter`` Newton steps do not suffice it is False, with a
    warning that states the gap reached. Clusters can be proven before u is accurate to the last
    digit; ``gap`` says how accurate it is.
    """
    a, lam = as_points(a), check_lam(lam)
    check_count("max_iter", max_iter, "Newton steps after which the search ends uncertified")
    ready = prepare(a)
    with one_thread():
        done = solve(ready.groups, lam * ready.scale, None, max_iter)
    labels = done.labels[ready.owner]
    order = np.argsort(np.unique(labels, return_index=True)[1])  # clusters by their first point
    labels = np.argsort(order)[labels]
    centers = a.mean(axis=0) + ready.there(done.u)[order]
    off = a - centers[labels]
    penalty = Pairs(done.groups.n, done.u, 0.0).value if done.n_clusters > 1 else 0.0
    objective = 0.5 * float(np.einsum("ij,ij->", off, off)) + lam * penalty / ready.scale
    # No objective is known better than it can be summed.
    gap = max(done.gap / ready.scale / ready.scale, float(np.finfo(np.float64).eps) * objective)
    certified = done.certified and ready.resolves(lam)
    if not certified:
        why = "lam is probably very close to a merge, move it a little"
        if done.n_iter >= max_iter:
            why = f"raise max_iter={max_iter}"
        if not ready.resolves(lam):
            why = (
                "rounding decides at this lam, so far apart are the points: leave out the farthest"
            )
        warnings.warn(
            f"Convex clustering at lam={lam:.6g} stopped after {done.n_iter} Newton steps with an "
            f"objective within {gap:.2g} of the minimum (relative {gap / objective:.1g}) and "
            f"{done.n_clusters} clusters that are not proven to be those of the minimiser ({why}).",
            ConvergenceWarning,
            stacklevel=2,
        )
    return ConvexResult(labels, centers, lam, objective, gap, certified, done.n_iter)


@dataclass(frozen=True, eq=False)
class Prepared:
    """Different points as groups around their mean, in units of about their spread."""

    groups: MassPoints
    owner: Ints  # (n_points,), the group of each row
    scale: float  # a power of two: lambda times it is lambda in the groups' units
    basis: Floats | None  # (1, dim), the direction of the line that holds all points, if one does

    def there(self, u: Floats) -> Floats:
        """Rows of u in the points' own coordinates around their mean."""
        return (u if self.basis is None else u @ self.basis) / self.scale

    def resolves(self, lam: float) -> bool:
        """Whether the digits of the points say anything about forces as small as ``lam``."""
        a = self.groups.a
        far = float(np.abs(a).max())
        if len(a) < 2 or lam == 0 or lam * self.scale >= RESOLVED * far:
            return True
        near = float(cKDTree(a).query(a, k=2)[0][:, 1].min())
        return near >= 1e3 * RESOLVED * far  # all points are far from meeting


def prepare(a: Floats) -> Prepared:
    """What the solver works on: nothing is lost by it.

    Equal rows are fused at every lambda: they become one group, with their number as its mass.
    The spread is brought to about one by a power of two, so that squares stay in range.
    """
    points, owner = _different(a)
    mass = np.bincount(owner).astype(np.float64)
    off = points - a.mean(axis=0)
    far = float(np.abs(off).max())
    if not far < LARGEST:
        raise ValueError(
            f"The points lie {far:.1g} from their mean, and squares of such numbers are no longer "
            "numbers. Divide them (and lam) by a constant."
        )
    scale = float(np.ldexp(1.0, min(1000, -int(np.floor(np.log2(far)))))) if far > 0 else 1.0
    off = off * scale
    basis = _line(off)
    return Prepared(MassPoints(off if basis is None else off @ basis.T, mass), owner, scale, basis)


def _different(a: Floats) -> tuple[Floats, Ints]:
    """Different rows, and which of them each row equals; in most data one column can tell."""
    values, first, owner = np.unique(a[:, 0], return_index=True, return_inverse=True)
    if len(values) < len(a) and a.shape[1] > 1:
        _, first, owner = np.unique(a, axis=0, return_index=True, return_inverse=True)
    return a[first], owner.reshape(-1)


def _line(off: Floats) -> Floats | None:
    """The direction, (1, dim), of a line that holds all points, if there is one.

    They are as near to it as rounding lets them be, and far nearer than to each other.
    """
    if off.shape[1] == 1:
        return None
    length = np.sqrt(np.einsum("ij,ij->i", off, off))
    far = length.max()
    if far == 0:
        return None
    direction = off[length.argmax()][None] / far
    place = off @ direction.T
    away = off - place * direction
    gaps = np.diff(np.sort(place[:, 0]))
    near = min(far, float(gaps.min())) if len(gaps) else far
    if np.sqrt(np.einsum("ij,ij->i", away, away).max()) > min(ON_A_LINE * far, 1e-6 * near):
        return None
    return direction


def check_lam(lam: Any) -> float:
    if not isinstance(lam, Real) or isinstance(lam, bool) or not 0 <= float(lam) < np.inf:
        raise ValueError(
            f"lam={lam!r} must be a finite number of at least 0 (or 'auto'): it weighs the pull "
            "between points, 0 leaves every point alone, and large values give one cluster. "
            "odcl.clusterpath(X) shows which values matter."
        )
    return float(lam)


@dataclass(eq=False, repr=False)  # an __init__ that only stores
class ConvexClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Convex clustering (Eq. 12): the clustering of ODCL-CC. Needs no number of clusters.

    Parameters
    ----------
    lam : float or "auto"
        The penalty of Eq. (12). "auto" chooses a level of the clusterpath by ``select``.
    select : "auto", "plateau", "silhouette" or "grid"
        Rule for ``lam="auto"`` (:mod:`~odcl.clustering.convex.choose_lam`). "grid" is the paper's
        procedure. "auto" takes the silhouette, and warns where the longest plateau disagrees.
    weights : None, "knn" or a symmetric matrix
        None: uniform weights, the paper's; exact, proven, with a path. "knn": Gaussian weights on
        the graph of ``n_neighbors`` nearest neighbours; or any non-negative symmetric matrix,
        sparse or dense, (n_users, n_users). Both need a number for ``lam``.
    n_neighbors : int
        Neighbours of ``weights="knn"``.
    max_iter : int
        Newton steps after which the search ends with a warning and ``certified_ = False``.

    Attributes
    ----------
    labels_ : (n_users,), clusters numbered by their first user
    cluster_centers_ : (n_clusters_, dim), the distinct rows of u in Eq. (12). They are drawn
        towards each other; the means of the clusters are what ODCL averages.
    n_clusters_ : int
    lam_ : float, the lambda used
    certified_ : bool, the clusters are proven to be those of the exact minimiser
    gap_ : float, bound on the error of the objective
    objective_ : float
    n_iter_ : int, Newton steps
    choice_ : ChoiceOfLam, how lambda was chosen, with the path; None if ``lam`` was a number
    """

    lam: float | str = "auto"
    _: KW_ONLY
    select: str = "auto"
    weights: Any = None
    n_neighbors: int = 10
    max_iter: int = 1000

    def fit(self, X: Any, y: Any = None) -> Self:
        """Cluster the rows of ``X``, (n_users, dim)."""
        a = validated(self, X)
        self.choice_: Any = None
        lam = self.lam
        if self.weights is None and isinstance(lam, str) and lam == "auto":
            from odcl.clustering.convex.choose_lam import check_rule, choose_lam
            from odcl.clustering.convex.clusterpath import clusterpath

            check_rule(self.select)
            self.choice_ = choose_lam(clusterpath(a), self.select)
            lam = self.choice_.lam
        if self.weights is None:
            result = convex_cluster(a, check_lam(lam), max_iter=self.max_iter)
        else:
            result = self._weighted(a)
        self.labels_, self.cluster_centers_ = result.labels, result.centers
        self.n_clusters_ = result.n_clusters
        self.lam_ = result.lam
        self.certified_, self.gap_, self.objective_ = result.certified, result.gap, result.objective
        self.n_iter_ = max(1, result.n_iter)
        return self

    def _weighted(self, a: Floats) -> ConvexResult:
        from odcl.clustering.convex.weighted import gaussian_knn_weights, weighted_convex

        if isinstance(self.lam, str):
            raise ValueError(
                f"lam={self.lam!r} needs uniform weights: with weights clusters may split again as "
                "lambda grows, and there is no path to choose from. Give lam as a number, or "
                "weights=None."
            )
        weights = self.weights
        if isinstance(weights, str):
            if weights != "knn":
                raise ValueError(f"weights={weights!r} must be None, 'knn' or a symmetric matrix.")
            weights = gaussian_knn_weights(a, self.n_neighbors)
        with one_thread():
            return weighted_convex(a, check_lam(self.lam), weights, max_iter=self.max_iter)
