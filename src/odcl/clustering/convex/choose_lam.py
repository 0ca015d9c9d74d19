"""Which lambda: three rules that choose a level of the clusterpath (Appendices C and D.2; ours).

- plateau: the longest interval of lambda that gives the same clusters;
- silhouette: the level with the best mean silhouette;
- grid: the paper's procedure, a vote among ten lambdas.

One cluster and as many clusters as different points are trivial and never win, unless every point
comes in several copies: then these are what the groups look like. A path without another level says
that there is one cluster.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np

from odcl._typing import Ints
from odcl.clustering.convex.clusterpath import ClusterPath, Plateau
from odcl.clustering.convex.fusion import recovery_interval
from odcl.clustering.kmeans.kmeanspp import mean_silhouette, sampled_distances

RULES = ("auto", "plateau", "silhouette", "grid")
# Appendix D.2: both ends of the grid start here and move by this factor; then ten lambdas.
GRID_START, GRID_GROWTH, GRID_POINTS = 0.1, 1.25, 10
# With at least this many copies of every point, the level of all different points is one like
# any other; twofold data (the same table read twice) say nothing about groups.
COPIES = 3
# The last level has no end; lambda is put this far above its start, well clear of the merge.
ABOVE = 1.25


@dataclass(frozen=True, eq=False)
class ChoiceOfLam:
    """What the rules saw, what was chosen, and why."""

    rule: str  # the rule that decided
    lam: float
    n_clusters: int
    by_rule: dict[str, int]  # what each rule that was asked would choose: rule -> n_clusters
    reason: str  # one sentence
    path: ClusterPath


def choose_lam(path: ClusterPath, rule: str = "auto") -> ChoiceOfLam:
    """Choose a level of ``path`` by ``rule``.

    "auto" takes the silhouette: on the paper's set-up it found the true partition whenever that was
    a level of the path, unbalanced sizes (40/30/20/10) included, where the longest plateau never
    does. It asks the plateau too and warns if they disagree.
    """
    check_rule(rule)
    _, first, copies = np.unique(path.points, axis=0, return_index=True, return_counts=True)
    copied = int(copies.min()) >= COPIES
    inner = [p for p in path.plateaus if 1 < p.n_clusters < len(first) + copied]
    if not inner:
        return _one_cluster(path, rule)
    if rule == "grid":
        lam, why = _grid(path, len(first), copied)
        k = path.n_clusters(lam)
        return ChoiceOfLam("grid", lam, k, {"grid": k}, f"grid chose K = {k}: {why}.", path)
    found: dict[str, tuple[Plateau, str]] = {}
    if rule in ("auto", "plateau"):
        long = max(inner, key=lambda level: level.length)
        why = f"its plateau, {long.start:.3g} to {long.end:.3g}, is the longest of the path"
        found["plateau"] = long, why
    if rule in ("auto", "silhouette"):
        # A few copies of a point would raise the score of the cluster they form: each counts once.
        rows = np.arange(path.n_points) if copied else first
        found["silhouette"] = _best_silhouette(path, inner, rows)
    by_rule = {name: level.n_clusters for name, (level, _) in found.items()}
    decided = next(name for name in ("silhouette", "plateau") if name in found)
    level, why = found[decided]
    k = level.n_clusters
    reason = f"{decided} chose K = {k}: {why}."
    if rule == "auto" and by_rule.get("plateau") != by_rule.get("silhouette"):
        warnings.warn(
            f"The rules for lambda disagree: the longest plateau of the path has "
            f"{by_rule['plateau']} clusters, the best silhouette {by_rule['silhouette']}; "
            f"{reason} Groups of very different sizes do this, outliers, and points without "
            "groups. In Python odcl.clusterpath(X).plateaus are the levels; 'auto' in place of "
            "'convex' looks at what the users' rows say.",
            UserWarning,
            stacklevel=3,
        )
    return ChoiceOfLam(decided, _inside(level), k, by_rule, reason, path)


def check_rule(rule: str) -> None:
    if rule not in RULES:
        raise ValueError(f"select={rule!r} is not one of {', '.join(map(repr, RULES))}.")


def _one_cluster(path: ClusterPath, rule: str) -> ChoiceOfLam:
    last = path.plateaus[-1]
    k = last.n_clusters
    if path.n_points == 1 or len(path.merges) == 0 or path.merges[-1].high == 0:
        why = "all points are equal" if path.n_points > 1 else "there is one point"
    elif path.exact:
        why = f"the path has no level between {path.plateaus[0].n_clusters} clusters and one"
    else:
        why = f"the path, opened from lam = {path.opened_from:.3g} on, has no level of few clusters"
    reason = f"K = {k}: {why}."
    return ChoiceOfLam(rule, _inside(last), k, {rule: k}, reason, path)


def _inside(level: Plateau) -> float:
    """A lambda well inside a level."""
    return ABOVE * level.start if np.isinf(level.end) else 0.5 * (level.start + level.end)


def _best_silhouette(path: ClusterPath, inner: list[Plateau], rows: Ints) -> tuple[Plateau, str]:
    """The level with the best mean silhouette of some of the points."""
    sampled, distances = sampled_distances(path.points[rows], seed=0)
    some = rows[sampled]
    scores = [mean_silhouette(distances, path.labels(level.start)[some]) for level in inner]
    best = int(np.argmax(scores))
    why = f"its mean silhouette, {scores[best]:.3f}, is the best of {len(inner)} levels of the path"
    return inner[best], why


def _grid(path: ClusterPath, most: int, copied: bool) -> tuple[float, str]:
    """The paper's procedure: ten equidistant lambdas between K = m and K = 1, and a vote on K.

    ``most`` is m, the number of different points, which has a vote if these are ``copied``.

    Lambdas that verify Eq. (13) for the clusters they give vote if there are any, else all do;
    ties go to the larger lambda. Of the winner's lambdas the largest is taken.
    """
    few = many = GRID_START
    while path.n_clusters(few) > 1:
        few *= GRID_GROWTH
    while path.n_clusters(many) < most:
        many /= GRID_GROWTH
    grid = np.linspace(many, few, GRID_POINTS)
    labels = [path.labels(float(lam)) for lam in grid]
    count = np.array([int(one.max()) + 1 for one in labels])
    votes = (count > 1) & (count < most + copied)
    proven = votes & [
        lam in recovery_interval(path.points, one) for lam, one in zip(grid, labels, strict=True)
    ]
    if not votes.any():
        return float(
            grid[-1]
        ), f"none of {GRID_POINTS} lambdas gives more than one cluster and fewer than {most}"
    voting = proven if proven.any() else votes
    ballot = {int(k): int((count[voting] == k).sum()) for k in count[voting]}
    winner = max(ballot, key=lambda k: (ballot[k], grid[voting & (count == k)].max()))
    lam = float(grid[voting & (count == winner)].max())
    who = "lambdas that verify Eq. (13)" if proven.any() else "lambdas (none verifies Eq. (13))"
    return lam, f"{ballot[winner]} of {int(voting.sum())} {who} give it"
