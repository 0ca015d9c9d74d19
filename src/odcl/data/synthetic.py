"""The paper's generators (linear: Section 5, Appendix D.2; logistic: D.1), and tables to try."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation

# Lower ends of the unit intervals from which each coordinate of a cluster's optimum is drawn.
LINEAR_INTERVALS: dict[int, tuple[float, ...]] = {
    1: (0.0,),  # not given in the paper; U[0, 1]
    4: (0.0, 1.0, -1.0, -2.0),  # Appendix D.2
    10: (1.0, 4.0, 7.0, 10.0, 13.0, -2.0, -5.0, -8.0, -11.0, -14.0),  # Section 5
}
_LOGISTIC_OPTIMA = np.array([[1.0, -1.0], [1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]])
# The paper's third matrix, [[1, 2], [2, 1]], has a negative eigenvalue. The sampler the paper
# used draws, in effect, from [[2, 1], [1, 2]]; so do we.
_LOGISTIC_COVARIANCES = np.array(
    [[[1, 0], [0, 1]], [[2, 1], [1, 2]], [[2, 1], [1, 2]], [[2, 0], [0, 2]]], dtype=np.float64
)


@dataclass(frozen=True, eq=False, repr=False)
class SyntheticFederation(Federation):
    """A federation that knows the truth: each user's group and population optimum."""

    groups: Ints | None = None  # (n_users,)
    optima: Floats | None = None  # (n_users, dim), theta-star_(i)


def linear_federation(
    n_users: int = 100,
    n_samples: int | Sequence[int] = 100,
    *,
    n_clusters: int = 10,
    dim: int = 20,
    sizes: Sequence[int] | None = None,
    n_active: int = 5,
    noise: float = 1.0,
    tau: float = 0.0,
    seed: int = 0,
) -> SyntheticFederation:
    """Linear regression of Section 5 (``n_clusters=10``) and Appendix D.2 (``n_clusters=4``).

    y = <x, u_k> + eps with eps ~ N(0, noise^2); each x has ``n_active`` random coordinates from
    N(0, 1) and zeros elsewhere; the coordinates of u_k are uniform on the cluster's unit
    interval. ``n_samples`` is one number or one per user; ``sizes`` gives the clusters' sizes
    (default: equal). ``tau`` > 0 lets users of a group differ: N(0, tau^2) per coordinate.
    """
    rng = np.random.default_rng(seed)
    lows = LINEAR_INTERVALS.get(n_clusters)
    if lows is None:
        known = ", ".join(map(str, LINEAR_INTERVALS))
        raise ValueError(
            f"The paper's linear set-up exists for {known} clusters, not for {n_clusters}."
        )
    centers = np.array(lows)[:, None] + rng.random((n_clusters, dim))
    groups, counts = _layout(n_users, n_samples, n_clusters, sizes)
    optima = centers[groups] + tau * rng.standard_normal((n_users, dim))

    n_rows = int(counts.sum())
    X = np.zeros((n_rows, dim))
    active = rng.random((n_rows, dim)).argpartition(min(n_active, dim) - 1, axis=1)[:, :n_active]
    np.put_along_axis(X, active, rng.standard_normal(active.shape), axis=1)
    y = np.einsum("nd,nd->n", X, np.repeat(optima, counts, axis=0))
    y += noise * rng.standard_normal(n_rows)
    return _federation(X, y, counts, groups, optima)


def logistic_federation(
    n_users: int = 100, n_samples: int | Sequence[int] = 1000, *, seed: int = 0
) -> SyntheticFederation:
    """Logistic regression of Appendix D.1: 4 clusters, 2 features, labels -1 and +1, b = 0.

    Rows are drawn fresh; the paper's pool of 100,000 rows per cluster would cap n at 4,000.
    """
    rng = np.random.default_rng(seed)
    groups, counts = _layout(n_users, n_samples, 4, None)
    row_group = np.repeat(groups, counts)
    factors = np.linalg.cholesky(_LOGISTIC_COVARIANCES)
    X = np.einsum("nij,nj->ni", factors[row_group], rng.standard_normal((len(row_group), 2)))
    z = np.einsum("nd,nd->n", X, _LOGISTIC_OPTIMA[row_group])
    y = np.where(rng.random(len(z)) < 1 / (1 + np.exp(-z)), 1.0, -1.0)
    return _federation(X, y, counts, groups, _LOGISTIC_OPTIMA[groups])


def _layout(
    n_users: int, n_samples: int | Sequence[int], n_clusters: int, sizes: Sequence[int] | None
) -> tuple[Ints, Ints]:
    """Group and number of rows of each user."""
    if sizes is None:
        groups = np.arange(n_users) * n_clusters // n_users
    elif len(sizes) != n_clusters or sum(sizes) != n_users:
        raise ValueError(
            f"sizes {list(sizes)} must be {n_clusters} numbers that add up to {n_users} users."
        )
    else:
        groups = np.repeat(np.arange(n_clusters), sizes)
    counts = np.broadcast_to(np.asarray(n_samples, dtype=np.intp), (n_users,)).copy()
    if n_users < 1 or counts.min() < 1:
        raise ValueError("A federation needs at least one user and one row per user.")
    return groups, counts


def _federation(
    X: Floats, y: Floats, counts: Ints, groups: Ints, optima: Floats
) -> SyntheticFederation:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    users = np.arange(len(counts))
    return SyntheticFederation(X, y, offsets, users, groups=groups, optima=optima)


# -- tables to try ---------------------------------------------------------------------------------


def store_tables(seed: int) -> tuple[dict[str, Any], ...]:
    """Tables to try: 60 stores in three hidden groups, 12 to 40 days each, and what comes later.

    Later come days without sales, stores that are new, and a week of stores that are known.
    """
    rng = np.random.default_rng(seed)
    stores = _days(rng, np.arange(60), lambda: int(rng.integers(12, 41)))
    new_days = _days(rng, np.arange(60), lambda: 3)
    del new_days["sales"]
    return (
        stores,
        new_days,
        _days(rng, np.arange(60, 64), lambda: 6),
        _days(rng, np.arange(5), lambda: 7),
    )


def _days(rng: Any, stores: Any, n_days: Callable[[], int]) -> dict[str, Any]:
    """Days of these stores, whose group is their number modulo 3."""
    effects = np.array(  # price, promotion, temperature, weekend, rain, level
        [
            [-18.0, 30.0, 0.5, -25.0, 5.0, 330.0],  # in the city
            [-9.0, 55.0, 1.0, 40.0, -10.0, 220.0],  # in the suburbs
            [-4.0, 10.0, 6.0, 30.0, -45.0, 120.0],  # at the sea
        ]
    )
    parts = []
    for store in stores.tolist():
        n = n_days()
        columns = {
            "store": np.repeat(f"store-{store + 1:02d}", n),
            "price": rng.normal(10, 1.5, n).round(2),
            "promotion": (rng.random(n) < 0.3).astype(int),
            "temperature": rng.normal(18, 7, n).round(1),
            "weekend": (rng.random(n) < 2 / 7).astype(int),
            "rain": (rng.random(n) < 0.35).astype(int),
        }
        features = np.column_stack([*list(columns.values())[1:], np.ones(n)]).astype(float)
        noise = rng.normal(0, 30, n)
        columns["sales"] = (features @ effects[store % 3] + noise).round(1)
        parts.append(columns)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
