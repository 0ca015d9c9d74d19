"""How well given models are separated by a given clustering, and who then recovers it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.spatial.distance import cdist

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import number_by_first_user, sum_by_cluster
from odcl.theory._domain import inside, positive
from odcl.theory.conditions import alpha_cc, alpha_center, alpha_km


class Interval(Protocol):
    """low <= lam < high, what :func:`odcl.clustering.convex.separation.recovery_interval` gives."""

    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def empty(self) -> bool: ...


@dataclass(frozen=True, eq=False)
class Separation:
    """Separation of models by a clustering; clusters are numbered by their first user."""

    theta: Floats  # (n_users, dim)
    labels: Ints  # (n_users,)
    sizes: Ints  # (n_clusters,)
    centers: Floats  # (n_clusters, dim), mu_k
    radius: float  # max ||mu_k - a_i||
    gap: float  # min ||mu_k - mu_l||
    center_separation: float  # largest c of Definition 3
    proximity: float  # largest c of Eq. (17)
    c: float  # the c that Lemma 2 and Theorem 3 are asked for

    def __repr__(self) -> str:
        return (
            f"<Separation: {len(self.labels)} users in {len(self.sizes)} clusters, alpha "
            f"{self.alpha:.3g}, center_separation {self.center_separation:.3g}, proximity "
            f"{self.proximity:.3g}>"
        )

    @property
    def alpha(self) -> float:
        """Eq. (4) holds for every alpha below gap / radius; inf if clusters are single points."""
        return self.gap / self.radius if self.radius > 0 else math.inf if self.gap > 0 else 0.0

    @cached_property
    def interval(self) -> Interval:
        """Eq. (13): convex clustering returns this clustering for low <= lam < high.

        It takes distances between all users of a cluster, so it is computed when asked for.
        """
        from odcl.clustering.convex.separation import recovery_interval

        return recovery_interval(self.theta, self.labels)

    @property
    def alpha_cc(self) -> float:
        """What Lemma 1 asks of alpha here."""
        return alpha_cc(int(self.sizes.sum()), int(self.sizes.min()))

    @property
    def alpha_km(self) -> float:
        """What Lemma 2 asks of alpha here."""
        return alpha_km(int(self.sizes.sum()), int(self.sizes.min()), self.c)

    @property
    def alpha_center(self) -> float:
        """The alpha that implies Definition 3 here."""
        return alpha_center(int(self.sizes.sum()), int(self.sizes.min()), self.c)

    @property
    def guaranteed(self) -> tuple[str, ...]:
        """Methods that the paper guarantees to return this clustering of these models.

        "ODCL-CC" where the interval of Eq. (13) is not empty, for lam in it; "ODCL-KM" where
        center separation and proximity hold with c, for K = the number of clusters. These are the
        conditions that Lemmas 1 and 2 derive from Eq. (4), and weaker than it.
        """
        cc = not self.interval.empty
        km = self.center_separation >= self.c and self.proximity >= self.c
        return (("ODCL-CC",) if cc else ()) + (("ODCL-KM",) if km else ())

    @property
    def part_one_guaranteed(self) -> bool:
        """Whether Theorem 3 holds: Part I misplaces at most 128 / c^2 of a cluster."""
        return self.center_separation >= self.c


def separation(theta: Floats, labels: Array, *, c: float = 100) -> Separation:
    """Separation of models ``theta`` (n_users, dim) by the clustering ``labels`` (n_users,).

        alpha              min ||mu_k - mu_l|| / max ||mu_k - a_i||                    Eq. (4)
        center_separation  min ||mu_k - mu_l|| / (Delta_k + Delta_l)                   Definition 3
        proximity          min (||P - mu_l|| - ||P - mu_k||)
                               / ((|C_k|^-1/2 + |C_l|^-1/2) ||A - C||)                 Eq. (17)
        interval           [max diam(C_k) / |C_k|,
                            min ||mu_k - mu_l|| / (2m - |C_k| - |C_l|))                Eq. (13)

    with Delta_k = min(sqrt(K) ||A - C||, ||A - C||_F) / sqrt|C_k| and P the projection of a_i,
    i in C_k, on the line through mu_k and mu_l. The last line of Lemma 2's proof has |C_k| without
    its root; Eq. (17) is right. Two clusters or more, and c > 0.
    """
    theta = _matrix(theta)
    inside(theta.ndim == 2, f"theta of shape {theta.shape}", "(n_users, dim)", "one row a model")
    inside(bool(np.isfinite(theta).all()), "theta", "of finite numbers", "distances are needed")
    labels = np.asarray(labels)
    seen, domain = f"labels of shape {labels.shape}", f"({len(theta)},)"
    inside(labels.shape == (len(theta),), seen, domain, "one label a user")
    missing = labels.dtype.kind == "f" and not np.isfinite(labels).all()
    missing = missing or (labels.dtype.kind == "O" and any(v is None for v in labels.tolist()))
    inside(not missing, "labels", "one for each user", "some are None or not finite")
    unassigned = int((labels < 0).sum()) if labels.dtype.kind in "if" else 0
    inside(unassigned == 0, f"{unassigned} labels below 0", "labels >= 0", "-1 means no cluster")
    positive("c", c, "it is the constant of Definition 3, shown to suffice from 100 on")
    labels = number_by_first_user(labels)
    sizes = np.bincount(labels)
    inside(len(sizes) > 1, "one cluster", "K > 1", "it is separated from nothing (Assumption 1)")

    # Centred first: means of models far from zero would lose the digits in which they differ.
    a = theta - theta.mean(axis=0)
    centers = sum_by_cluster(a, labels) / sizes[:, None]
    off = a - centers[labels]
    between = cdist(centers, centers)
    np.fill_diagonal(between, np.inf)
    return Separation(
        theta=theta,
        labels=labels,
        sizes=sizes,
        centers=centers + theta.mean(axis=0),
        radius=float(np.linalg.norm(off, axis=1).max()),
        gap=float(between.min()),
        center_separation=_center_separation(off, between, sizes),
        proximity=_proximity(off, centers, between, labels, sizes),
        c=float(c),
    )


def _matrix(theta: object) -> Floats:
    try:
        return np.asarray(theta, dtype=np.float64)
    except (TypeError, ValueError):
        raise TypeError(
            f"theta, of type {type(theta).__name__}, cannot be read as numbers; the domain is a "
            "matrix (n_users, dim): one row a model. Give an array."
        ) from None


def _center_separation(off: Floats, between: Floats, sizes: Ints) -> float:
    """Largest c with ||mu_k - mu_l|| >= c (Delta_k + Delta_l) for all k, l (Definition 3)."""
    spread = min(math.sqrt(len(sizes)) * np.linalg.norm(off, 2), np.linalg.norm(off))
    return _least_ratio(between, _pairs(sizes) * spread)


def _proximity(off: Floats, centers: Floats, between: Floats, labels: Ints, sizes: Ints) -> float:
    """Largest c for which Eq. (17) holds at every user and every other cluster."""
    margin = np.full_like(between, np.inf)  # least ||P - mu_l|| - ||P - mu_k|| over i in C_k
    for k in range(len(sizes)):
        length = between[k]
        # Where the projection lies on the way from mu_k to mu_l. Centres that coincide span no
        # line: any point is as near to one as to the other.
        way = (centers - centers[k]) / np.where(length > 0, length, 1.0)[:, None]
        along = off[labels == k] @ way.T
        margin[k] = (np.abs(length - along) - np.abs(along)).min(axis=0)
    return _least_ratio(margin, _pairs(sizes) * np.linalg.norm(off, 2))


def _pairs(sizes: Ints) -> Floats:
    """1 / sqrt|C_k| + 1 / sqrt|C_l|, (n_clusters, n_clusters)."""
    root = 1 / np.sqrt(sizes)
    return np.asarray(root[:, None] + root)


def _least_ratio(wanted: Floats, scale: Floats) -> float:
    """min wanted / scale off the diagonal; without spread any c does where wanted > 0."""
    off = ~np.eye(len(wanted), dtype=bool)
    if scale[0, 1] > 0:
        return float((wanted[off] / scale[off]).min())
    return math.inf if wanted[off].min() > 0 else 0.0
