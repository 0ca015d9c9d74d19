"""Ward's merge tree of weighted points, and its cuts."""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from odcl._typing import Bools, Floats, Ints


def ward_merges(points: Floats, weights: Floats) -> Ints:
    """All merges of Ward's method in order of cost, as a tree of edges between points.

        cost(A, B) = w_A w_B / (w_A + w_B) * ||mean_A - mean_B||^2

    is what merging A and B adds to the weighted sum of squares inside clusters. With weights
    1 / (variance of a point) the sum of squares is in noise units: a noisy point far out is cheap
    to merge, which scipy's unweighted linkage cannot say. ``points`` is (n, dim), the answer
    (n - 1, 2): joining its first n - K rows leaves K clusters (``cut``).

    Nearest-neighbour chains (Murtagh 1983): O(n^2) time and memory, about 1 s at n = 2000.
    Costs are Lance-Williams updates, so the dimension counts only once, in ``cdist``.
    """
    n = len(points)
    weight = weights.astype(np.float64)
    cost = cdist(points, points, "sqeuclidean")
    cost *= weight[:, None] * weight / (weight[:, None] + weight)
    if not np.isfinite(cost.max()):  # a chain of neighbours would never end
        raise ValueError(
            "Distances between the points, in units of their noise, are beyond what numbers can "
            "hold. Divide the points by a constant, and their noise by the square of it."
        )
    np.fill_diagonal(cost, np.inf)
    alive = np.ones(n, dtype=bool)
    edges, heights, chain = np.empty((n - 1, 2), dtype=np.intp), np.empty(n - 1), [0]
    for step in range(n - 1):
        a, b = _mutual_neighbours(cost, chain, alive)
        edges[step], heights[step] = (a, b), cost[a, b]
        _merge(cost, weight, alive, a, b)
    # A cluster lives in the row of one of its own points, so the edges of the cheapest merges
    # connect exactly the clusters they made. Ward's costs never decrease up the tree.
    return edges[np.argsort(heights, kind="stable")]


def cut(edges: Ints, n_clusters: int) -> Ints:
    """Labels (n,) of the points when the merge tree is cut into ``n_clusters``."""
    n = len(edges) + 1
    kept = edges[: n - n_clusters]
    graph = coo_array((np.ones(len(kept)), (kept[:, 0], kept[:, 1])), shape=(n, n))
    return np.asarray(connected_components(graph, directed=False)[1], dtype=np.intp)


def _mutual_neighbours(cost: Floats, chain: list[int], alive: Bools) -> tuple[int, int]:
    """Follow nearest neighbours until two point at each other; take them off the chain."""
    if not chain:
        chain.append(int(np.argmax(alive)))
    while True:
        a = chain[-1]
        b = int(np.argmin(cost[a]))
        if len(chain) > 1 and cost[a, chain[-2]] <= cost[a, b]:  # a tie ends the chain
            return chain.pop(), chain.pop()
        chain.append(b)


def _merge(cost: Floats, weight: Floats, alive: Bools, a: int, b: int) -> None:
    """Put cluster a into the row of cluster b: Lance-Williams for the weighted Ward cost."""
    total = weight[a] + weight[b] + weight
    row = (weight[a] + weight) * cost[a] + (weight[b] + weight) * cost[b] - weight * cost[a, b]
    row /= total
    row[[a, b]] = np.inf
    row[~alive] = np.inf
    cost[b], cost[:, b] = row, row
    cost[a], cost[:, a] = np.inf, np.inf
    weight[b] += weight[a]
    alive[a] = False
