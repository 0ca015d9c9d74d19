"""Points and labels of users: checked, numbered, compared, summed by cluster."""

from __future__ import annotations

from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Floats, Ints

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


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
    from scipy.spatial.distance import cdist

    batch = max(1, 2**23 // len(centers))
    labels = [
        cdist(a[start : start + batch], centers, "sqeuclidean").argmin(axis=1)
        for start in range(0, len(a), batch)
    ]
    return np.concatenate(labels).astype(np.intp)


def sum_by_cluster(values: Floats, labels: Ints, n_clusters: int | None = None) -> Floats:
    """Sum of the rows of each cluster, in the order of the users; any shape behind axis 0."""
    n_users = len(labels)
    n_clusters = int(labels.max()) + 1 if n_clusters is None else n_clusters
    # One column per user: nothing is sorted, and the values are read once, in the users' order.
    from scipy import sparse

    members = sparse.csc_array(
        (np.ones(n_users), labels, np.arange(n_users + 1)), shape=(n_clusters, n_users)
    )
    total = members @ values.reshape(n_users, -1)
    return np.asarray(total).reshape(n_clusters, *values.shape[1:])


def check_count(name: str, value: Any, note: str, least: int = 1) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}: {note}.")


def finite_rows(a: Floats) -> Floats:
    """The rows, or an error that names the first one without a distance to the others."""
    bad = np.flatnonzero(~np.isfinite(a).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(a)} rows hold NaN or inf (the first is row {bad[0] + 1}), and no "
            "distance to them is defined. Leave these users out, or fit them again: a local "
            "solver that diverged is the usual cause."
        )
    return a


def validated(estimator: BaseEstimator, X: Any) -> Floats:
    """The rows that an estimator was given, checked by scikit-learn's rules and ours."""
    from sklearn.utils.validation import validate_data

    return finite_rows(
        validate_data(estimator, X, dtype=np.float64, order="C", ensure_all_finite=False)
    )


def as_points(X: Any) -> Floats:
    """Rows of numbers, (n_points, dim), or an error that says what was seen."""
    a = np.asarray(X, dtype=np.float64)
    if a.ndim != 2 or a.size == 0:
        raise ValueError(
            f"The points have shape {a.shape}: give one row per point, (n_points, dim); for "
            "numbers on a line that is X.reshape(-1, 1)."
        )
    return finite_rows(a)


def as_seed(random_state: Any) -> int:
    """A whole number from scikit-learn's ``random_state``.

    Every K that a rule tries starts from it, so a rule's answer is that of its K given as a number.
    """
    if isinstance(random_state, Integral):
        return int(random_state)
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
