"""Groups that may be there: a farthest-point traversal, cut where its radius falls most."""

from __future__ import annotations

import numpy as np

from odcl._typing import Floats, Ints


def candidates(a: Floats, most: int = 64, jump: float = 2.0) -> Ints:
    """Labels of groups that may be fused: a traversal cut at its widest jump.

    All zeros if no jump is wider than ``jump``.
    """
    cuts = traversal(a, most, jump)
    return cuts[0] if cuts else np.zeros(len(a), dtype=np.intp)


def traversal(a: Floats, most: int, jump: float) -> list[Ints]:
    """Partitions of ``a`` by farthest-point traversal, the widest jump of the radius first.

    Each next pivot is the point farthest from all pivots so far, at distance r_k; points belong to
    their nearest pivot. A cut is before a k with r_{k-1} / r_k > ``jump``.
    """
    off = a - a.mean(axis=0)
    pivot = int(np.einsum("ij,ij->i", off, off).argmax())
    gap = np.full(len(a), np.inf)
    nearest = np.zeros(len(a), dtype=np.intp)
    radius: list[float] = []
    history: list[Ints] = []
    for k in range(min(most, len(a))):
        off = a - a[pivot]
        d2 = np.einsum("ij,ij->i", off, off)
        closer = d2 < gap
        nearest[closer] = k
        gap[closer] = d2[closer]
        history.append(nearest.copy())
        pivot = int(gap.argmax())
        radius.append(float(np.sqrt(gap[pivot])))
        if radius[-1] == 0 or _far_behind(radius):
            break
    jumps = np.array(radius[:-1]) / np.maximum(radius[1:], 1e-300)
    order = np.argsort(-jumps, kind="stable")
    return [history[k + 1] for k in order if jumps[k] > jump]


def _far_behind(radius: list[float]) -> bool:
    """A clear jump was met, and twice as many pivots since have brought none like it."""
    jumps = np.array(radius[:-1]) / np.array(radius[1:])
    return len(jumps) > 0 and jumps.max() > 3 and len(jumps) > 2 * int(jumps.argmax()) + 4
