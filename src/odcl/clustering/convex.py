"""Convex clustering (Eq. 12): the clustering of ODCL-CC, exact and with its own proof.

    minimise over u:  1/2 sum_i |a_i - u_i|^2 + lam sum_{i<j} |u_i - u_j|

Points whose rows of u coincide are one cluster; the number of clusters falls from the number of
points at lam = 0 to one, and clusters never split on the way. :func:`convex_cluster` solves it at
one lambda; :class:`ConvexClustering` gives it scikit-learn's manners and chooses lambda.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from odcl._typing import Array, Floats, Ints
from odcl.clustering._family import finite_rows
from odcl.clustering.choose_k import check_count
from odcl.clustering.convex_newton import Groups, Pairs
from odcl.clustering.convex_solve import solve
from odcl.clustering.labels import nearest, number_by_first_user

# A direction holds all points of a line if they are this close to it, relative to their spread:
# some hundreds of roundings.
ON_A_LINE = 1e-13


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


def convex_cluster(a: Floats, lam: float, *, max_iter: int = 1000) -> ConvexResult:
    """Exact convex clustering of ``a``, (n_points, dim), with uniform weights at ``lam`` >= 0.

    ``certified`` says that the clusters are proven: every cluster by a flow that holds it
    together, all pairs of clusters by balls around their rows of u that do not touch (sums being
    those of floating point). If ``max_iter`` Newton steps do not suffice it is False, with a
    warning that tells the gap reached.
    """
    lam = check_lam(lam)
    check_count("max_iter", max_iter, "Newton steps after which the search ends uncertified")
    points, groups, owner, basis = prepare(a)
    done = solve(groups, lam, None, max_iter)
    labels = done.labels[owner]
    first = np.unique(labels, return_index=True)[1]
    order = np.argsort(first)  # clusters by their first point
    rank = np.argsort(order)
    centers = a.mean(axis=0) + (done.u if basis is None else done.u @ basis)[order]
    labels = rank[labels]
    off = a - centers[labels]
    penalty = Pairs(done.groups.n, done.u, 0.0).value if done.n_clusters > 1 else 0.0
    objective = 0.5 * float(np.einsum("ij,ij->", off, off)) + lam * penalty
    if not done.certified:
        warnings.warn(
            f"Convex clustering at lam={lam:.6g} stopped after {done.n_iter} Newton steps with an "
            f"objective within {done.gap:.2g} of the minimum (relative {done.gap / objective:.1g}) "
            f"and {done.n_clusters} clusters that are each proven, but not proven to be different. "
            "lam is probably very close to a merge: move it a little, or raise max_iter.",
            ConvergenceWarning,
            stacklevel=2,
        )
    return ConvexResult(
        labels, centers, lam, objective, done.gap, done.certified, done.n_iter
    )  # fmt: skip


def prepare(a: Floats) -> tuple[Floats, Groups, Ints, Floats | None]:
    """Different points, as groups around the mean; the group of each row; a basis if on a line.

    Equal rows are fused at every lambda: they become one group, with their number as its mass.
    """
    points, owner = _different(a)
    mass = np.bincount(owner).astype(np.float64)
    off = points - a.mean(axis=0)
    basis = _line(off)
    return points, Groups(off if basis is None else off @ basis.T, mass), owner, basis


def _different(a: Floats) -> tuple[Floats, Ints]:
    """Different rows and the one that each row is equal to; one column tells in most data."""
    values, first, owner = np.unique(a[:, 0], return_index=True, return_inverse=True)
    if len(values) < len(a) and a.shape[1] > 1:
        _, first, owner = np.unique(a, axis=0, return_index=True, return_inverse=True)
    return a[first], owner.reshape(-1)


def _line(off: Floats) -> Floats | None:
    """The direction, (1, dim), of a line that holds all points, if there is one."""
    if off.shape[1] == 1:
        return None
    length = np.sqrt(np.einsum("ij,ij->i", off, off))
    far = length.max()
    if far == 0:
        return None
    direction = off[length.argmax()][None] / far
    away = off - (off @ direction.T) * direction
    if np.einsum("ij,ij->i", away, away).max() > (ON_A_LINE * far) ** 2:
        return None
    return direction


def check_lam(lam: Any) -> float:
    if isinstance(lam, bool | str) or not np.isscalar(lam) or not np.isfinite(lam) or lam < 0:
        raise ValueError(
            f"lam={lam!r} must be a finite number of at least 0 (or 'auto'): it weighs the pull "
            "between points, 0 leaves every point alone, and large values give one cluster. "
            "odcl.clusterpath(X) shows which values matter."
        )
    return float(lam)
