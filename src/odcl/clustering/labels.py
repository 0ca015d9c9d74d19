"""Labels of users: numbering, comparing, sums by cluster, and the nearest centre."""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.spatial.distance import cdist

from odcl._typing import Array, Floats, Ints


def number_by_first_user(labels: Array) -> Ints:
    """Rename labels so that clusters are numbered by their first user, without gaps.

    The cluster of user 0 is 0, the next cluster met is 1, and so on: two runs that found the
    same clusters under other names give the same array. ``labels`` and the answer are (n_users,).
    """
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse.reshape(-1)]


def same_partition(a: Array, b: Array) -> bool:
    """Whether two label arrays, each (n_users,), are equal up to renaming of labels."""
    return np.array_equal(number_by_first_user(a), number_by_first_user(b))


def members(labels: Ints) -> list[Ints]:
    """Positions of each of the labels 0..K-1, in ascending order."""
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])


def nearest_center(a: Floats, centers: Floats) -> Ints:
    """Label of the nearest centre of each point; the lowest label wins a tie.

    ``a`` is (n_points, dim), ``centers`` (n_clusters, dim), the answer (n_points,). Distances are
    taken by subtracting first (see cdist), so that a shift of the data costs no digits, and a
    point gets the same label alone as among others. Rows go in batches of 64 MB of distances.
    """
    batch = max(1, 2**23 // len(centers))
    labels = [
        cdist(a[start : start + batch], centers, "sqeuclidean").argmin(axis=1)
        for start in range(0, len(a), batch)
    ]
    return np.concatenate(labels).astype(np.intp)


def sum_by_cluster(values: Floats, labels: Ints) -> Floats:
    """Sum of the rows of each cluster, in the order of the users; any shape behind axis 0."""
    n_users, n_clusters = len(labels), int(labels.max()) + 1
    # One column per user: nothing is sorted, and the values are read once, in the users' order.
    members = sparse.csc_array(
        (np.ones(n_users), labels, np.arange(n_users + 1)), shape=(n_clusters, n_users)
    )
    total = members @ values.reshape(n_users, -1)
    return np.asarray(total).reshape(n_clusters, *values.shape[1:])
