"""What a rule weighed before it decided on the groups: every number of groups with its score.

Kept for whoever wants to see why, and what another number would look like: nothing in a round
depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcl._typing import Bools, Ints
from odcl.mixed.em import Fit

# What the scores are: which way is better, and in words.
MEASURES = {
    "evidence": "-2 log evidence, small is good",
    "icl": "integrated likelihood (ICL), small is good",
    "silhouette": "mean silhouette, large is good",
    "elbow": "cost of K-means, which falls with every further group",
    "lambda": "lambda from which convex clustering has these groups",
}
MOST_LEVELS = 50  # of a clusterpath: those of the fewest groups


@dataclass(frozen=True, eq=False)
class Alternative:
    """One number of groups, for mixed groups with one shape of the differences inside."""

    n_groups: int
    score: float
    labels: Ints | None = None  # (n_users,), -1: not looked at; None: the rule did not keep them
    shape: str = ""  # "zero", "scalar", "diag" or "full"


@dataclass(frozen=True, eq=False)
class Alternatives:
    """What was weighed, by growing number of groups, and which of it was chosen."""

    measure: str  # a key of :data:`MEASURES`
    options: tuple[Alternative, ...]
    chosen: int | None  # position; None where the groups in hand are none of these

    def take(self, order: Ints) -> Alternatives:
        """The same with users in another order."""
        options = tuple(
            one if one.labels is None else replace(one, labels=one.labels[order])
            for one in self.options
        )
        return replace(self, options=options)

    def where(self, seen: Bools) -> Alternatives:
        """The same with labels of -1 where users were not looked at, as small numbers."""
        options = tuple(
            one
            if one.labels is None
            else replace(one, labels=np.where(seen, one.labels, -1).astype(np.int32))
            for one in self.options
        )
        return replace(self, options=options)


def of_fits(searches: Sequence[Fit], winner: Fit, labels: Ints) -> Alternatives:
    """Of mixed groups: the best fit of every K and shape in all searches.

    The winner has come to rest since, and stands for its K and shape with the groups in hand.
    """
    best: dict[tuple[int, str], Alternative] = {}
    for one in (one for fit in searches for one in fit.weighed):
        key = one.n_groups, one.shape
        if key not in best or one.evidence < best[key].score:
            best[key] = Alternative(one.n_groups, one.evidence, one.labels, one.shape)
    own = winner.n_groups, winner.spread.shape if winner.spread.matrix.any() else "zero"
    sampled = any((one.labels < 0).any() for fit in searches for one in fit.weighed)
    # Where a sample searched, evidence of all users is no number to put beside the sample's.
    score = best[own].score if sampled and own in best else winner.evidence
    if not sampled or own in best:
        best[own] = Alternative(own[0], score, labels, own[1])
    shapes = ("zero", "scalar", "diag", "full")
    keys = sorted(best, key=lambda key: (key[0], shapes.index(key[1])))
    chosen = keys.index(own) if own in best else None
    return Alternatives("evidence", tuple(best[key] for key in keys), chosen)


def of_scores(measure: str, scores: dict[int, float], labels: Ints) -> Alternatives | None:
    """Of a rule that kept one score per K."""
    if not scores:
        return None
    k = int(labels.max()) + 1
    options = tuple(
        Alternative(tried, score, labels if tried == k else None)
        for tried, score in sorted(scores.items())
    )
    return Alternatives(measure, options, _where(options, k))


def of_choice(choice: Any, labels: Ints) -> Alternatives | None:
    """Of K-means++ and its kin, which tried several K, or of the clusterpath; else None."""
    if choice is None:
        return None
    k = int(labels.max()) + 1
    if hasattr(choice, "path"):
        path = choice.path
        levels = sorted(path.plateaus, key=lambda level: level.n_clusters)[:MOST_LEVELS]
        options = tuple(
            Alternative(level.n_clusters, level.start, path.labels(n_clusters=level.n_clusters))
            for level in levels
        )
        return Alternatives("lambda", options, _where(options, k))
    options = tuple(
        Alternative(tried, score, choice.labels.get(tried))
        for tried, score in sorted(choice.scores.items())
    )
    return Alternatives(choice.rule, options, _where(options, k))


def _where(options: tuple[Alternative, ...], k: int) -> int | None:
    found = [i for i, one in enumerate(options) if one.n_groups == k]
    return found[0] if found else None
