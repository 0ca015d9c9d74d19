"""Weights for convex clustering: checked, or Gaussian on the graph of nearest neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

from odcl._typing import Bools, Floats
from odcl.clustering.checks import check_count


def gaussian_knn_weights(a: Floats, n_neighbors: int = 10) -> Any:
    """Gaussian weights on the graph of nearest neighbours: a sparse (n_points, n_points) csr_array.

        w_ij = exp(-|a_i - a_j|^2 / scale)  if i is among the n_neighbors nearest of j, or j of i

    with the median of |a_i - a_j|^2 over the edges between different points as the scale: the
    middle edge weighs exp(-1), whatever the unit of the points. Edges so long that the
    exponential is 0 are left out. The graph of well separated groups falls into parts, and parts
    never merge.
    """
    check_count("n_neighbors", n_neighbors, "each point is tied to that many nearest others")
    if len(a) == 1:
        return sparse.csr_array((1, 1))
    near = NearestNeighbors(n_neighbors=min(int(n_neighbors), len(a) - 1), algorithm="brute")
    # All distances, in chunks: 0.5 s for 10,000 points in dim 20, where trees take 2 to 3 s.
    graph = near.fit(a - a.mean(axis=0)).kneighbors_graph()
    pairs = sparse.triu(graph + graph.T, k=1, format="coo")  # each once
    tail, head = pairs.row, pairs.col
    d2 = ((a[tail] - a[head]) ** 2).sum(axis=1)  # subtract first: near points keep their digits
    w = np.exp(-d2 / (np.median(d2[d2 > 0]) if d2.any() else 1.0))
    graph = sparse.coo_array((w, (tail, head)), shape=graph.shape).tocsr()
    graph.eliminate_zeros()
    return graph + graph.T


def as_weights(weights: Any, n_points: int) -> Any:
    """The edges of a weight matrix, each once: a coo_array with row < col and positive entries.

    ``weights`` is (n_points, n_points), a dense array or any SciPy sparse matrix, symmetric,
    finite and not negative; the diagonal is ignored. Shape comes first, before anything is copied.
    """
    if not sparse.issparse(weights):
        weights = np.asarray(weights)
    if weights.shape != (n_points, n_points):
        raise ValueError(
            f"weights has shape {weights.shape}, but there are {n_points} points and each pair has "
            f"one weight. Give a matrix of shape ({n_points}, {n_points}), e.g. "
            "gaussian_knn_weights(a)."
        )
    w = sparse.csr_array(weights, dtype=np.float64).tocoo()
    off = w.row != w.col
    w = sparse.coo_array((w.data[off], (w.row[off], w.col[off])), shape=w.shape)
    w.sum_duplicates()
    _refuse(w, ~np.isfinite(w.data), "and the objective would not be finite either")
    _refuse(w, w.data < 0, "and a negative weight pushes two points apart without end")
    w = w.tocsr()
    skew = abs(w - w.T).tocoo()
    # exp(-phi d^2) computed twice may differ in the last digits; a real asymmetry is larger.
    bad = np.flatnonzero(skew.data > 1e-10 * (w.max() if w.nnz else 0.0))
    if len(bad):
        i, j = int(skew.row[bad[0]]), int(skew.col[bad[0]])
        raise ValueError(
            f"weights are not symmetric: [{i}, {j}] is {w[i, j]:g} and [{j}, {i}] is {w[j, i]:g} "
            f"({len(bad)} such entries), but the penalty has one weight per pair. Symmetrise "
            "them, e.g. by (w + w.T) / 2."
        )
    upper = sparse.triu((w + w.T) / 2, k=1, format="csr")
    upper.eliminate_zeros()
    return sparse.coo_array(upper)


def _refuse(w: Any, bad: Bools, why: str) -> None:
    at = np.flatnonzero(bad)
    if len(at):
        i, j, seen = w.row[at[0]], w.col[at[0]], w.data[at[0]]
        raise ValueError(
            f"weights[{i}, {j}] is {seen:g} ({len(at)} such entries), {why}. Weights are finite "
            "numbers from 0 on, 0 for a pair without a tie."
        )
