"""What the server's step gives: groups, everybody's place in them, and what else was weighed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import positions
from odcl.exchange.message import Downloads
from odcl.exchange.upload import Uploads
from odcl.mixed.em import MixtureFit
from odcl.mixed.posterior import Mixture
from odcl.server.chunks import in_chunks

if TYPE_CHECKING:
    from odcl.server.models import ClusterSums
    from odcl.server.robust import Outlier
    from odcl.wide.moments import GroupModels

_PER_USER = ("users", "labels", "models", "probabilities", "own_curvature", "own_slope")


@dataclass(frozen=True, eq=False)
class ServerStep:
    """What the server found, in the order of the uploads it was given."""

    users: Array  # (n_users,)
    labels: Ints  # (n_users,), clusters numbered by their first user in canonical order
    centers: Floats  # (n_clusters, dim)
    models: Floats  # (n_users, dim), what each user is sent: Algorithm 1, step 2(iv)
    rule: str  # which rule decided on the clusters
    reason: str  # and why, in a sentence
    combined: str  # how clusters became models, in words
    probabilities: Floats | None = None  # (n_users,), of the own label, where the rule knows
    tau2: float | None = None  # how far users of a cluster differ (variance per coefficient)
    mixture: GroupModels | None = None  # of mixed groups: shares, centres, how users differ, noise
    groups_forbidden: bool = False  # more groups were seen, and were not allowed
    weighed: Alternatives | None = None  # what else the rule looked at; None: it does not tell
    # What private uploads were taken for, (n_users, dim, dim) and (n_users, dim).
    own_curvature: Floats | None = None
    own_slope: Floats | None = None
    outliers: tuple[Outlier, ...] = ()  # users who take no part in others' models, or count less

    @property
    def n_clusters(self) -> int:
        return len(self.centers)

    @cached_property
    def downloads(self) -> Downloads:
        """What each user is sent: no more than its last step needs."""
        return Downloads(
            self.users,
            self.models,
            self.labels,
            np.bincount(self.labels, minlength=self.n_clusters)[self.labels],
            self.probabilities,
            self._folds(),
            *(self.own_curvature, self.own_slope),
            self.mixture,
        )

    def _folds(self) -> Ints | None:
        if self.mixture is None or isinstance(self.mixture, Mixture):
            return None
        from odcl.wide.moments import user_folds

        return user_folds(self.users)

    def take(self, order: Ints) -> ServerStep:
        """Some of the users, by position; clusters keep their numbers."""
        own = ((name, getattr(self, name)) for name in _PER_USER)
        picked: dict[str, Any] = {name: None if a is None else a[order] for name, a in own}
        weighed = None if self.weighed is None else self.weighed.take(order)
        return replace(self, **picked, weighed=weighed)

    def with_users(
        self, users: Array, labels: Ints, probabilities: Floats | None = None
    ) -> ServerStep:
        """The same groups with other users placed in them."""
        return replace(
            self,
            users=users,
            labels=labels,
            models=self.centers[labels],
            probabilities=probabilities,
            weighed=None,
        )


class PlacingRule(Protocol):
    """A rule that says of every user, by its upload alone, where it belongs."""

    def labels(self, uploads: Uploads) -> Ints: ...

    def place(self, uploads: Uploads, found: ServerStep) -> ServerStep:
        """The groups that were found with the users of a chunk placed in them."""
        ...


@dataclass(frozen=True, eq=False)
class StreamedStep:
    """What the server found over chunks; a user's own part is read off its upload."""

    found: ServerStep  # with the users that groups were found on: all of them, or a sample
    n_users: int
    sizes: Ints  # (n_clusters,), users
    rows: Floats  # (n_clusters,), and their rows
    rule: PlacingRule | None = None  # where other users belong; None: all are in ``found``
    passes: int = 1  # over all users
    sums: ClusterSums | None = None  # of clusters of models: what they were combined from

    @property
    def sampled(self) -> int | None:
        """How many users groups were found on; None: all."""
        return None if self.rule is None else len(self.found.users)

    def alternatives(self, users: Array) -> Alternatives | None:
        """What was weighed, with labels of these users; -1: not looked at."""
        if self.found.weighed is None:
            return None
        return self.found.weighed.spread(positions(self.found.users, users))

    def place(self, uploads: Uploads) -> Downloads:
        """What the users of a chunk are sent: a pure function of their own uploads."""
        step = self.step(uploads)
        return replace(step.downloads, group_size=self.sizes[step.labels])

    def step(self, uploads: Uploads) -> ServerStep:
        """The server's step as the users of ``uploads`` see it."""
        if self.rule is None:
            return self.found.take(positions(self.found.users, uploads.users))
        parts = [self.rule.place(part, self.found) for part in in_chunks(uploads).read()]
        rows = {name: _in_a_row([getattr(p, name) for p in parts]) for name in _PER_USER[1:]}
        weighed = self.alternatives(uploads.users)
        return replace(parts[0], users=uploads.users, weighed=weighed, **rows)


def _in_a_row(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)


# -- what else was weighed -------------------------------------------------------------------------

# What the scores are: which way is better, and in words.
MEASURES = {
    "evidence": "-2 log evidence, small is good",
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
    """What was weighed, by growing number of groups, and which of it was chosen.

    It is kept to show why, and what another number of groups would look like: nothing in a round
    depends on it.
    """

    measure: str  # a key of :data:`MEASURES`
    options: tuple[Alternative, ...]
    chosen: int | None  # position; None where the groups in hand are none of these

    def take(self, order: Ints) -> Alternatives:
        """Some of the users, by position."""
        return self._with([None if a is None else a[order] for a in self._labels])

    def spread(self, at: Ints) -> Alternatives:
        """Labels of the users at these positions, as small numbers; -1: one not looked at."""
        picked = [None if a is None else a[np.maximum(at, 0)] for a in self._labels]
        seen = at >= 0
        return self._with(
            [None if a is None else np.where(seen, a, -1).astype(np.int32) for a in picked]
        )

    @property
    def _labels(self) -> list[Ints | None]:
        return [one.labels for one in self.options]

    def _with(self, labels: Sequence[Any]) -> Alternatives:
        pairs = zip(self.options, labels, strict=True)
        return replace(self, options=tuple(replace(one, labels=own) for one, own in pairs))


def of_fits(searches: Sequence[MixtureFit], winner: MixtureFit, labels: Ints) -> Alternatives:
    """Of mixed groups: the best fit of every K and shape in all searches.

    The winner has come to rest since, and stands for its K and shape with the groups in hand.
    """
    best: dict[tuple[int, str], Alternative] = {}
    for one in (one for fit in searches for one in fit.weighed):
        key = one.n_groups, one.shape
        if key not in best or one.evidence < best[key].score:
            best[key] = Alternative(one.n_groups, one.evidence, one.labels, one.shape)
    own = winner.n_groups, winner.spread.shape if winner.spread.matrix.any() else "zero"
    best[own] = Alternative(own[0], winner.evidence, labels, own[1])
    shapes = ("zero", "scalar", "diag", "full")
    keys = sorted(best, key=lambda key: (key[0], shapes.index(key[1])))
    return Alternatives("evidence", tuple(best[key] for key in keys), keys.index(own))


def of_scores(
    measure: str, scores: Mapping[int, float], labels: Mapping[int, Ints], k: int
) -> Alternatives | None:
    """Of a rule that kept a score for every number of groups, and labels of some; k were chosen."""
    options = tuple(
        Alternative(tried, score, labels.get(tried)) for tried, score in sorted(scores.items())
    )
    chosen = [i for i, one in enumerate(options) if one.n_groups == k]
    return Alternatives(measure, options, chosen[0] if chosen else None) if options else None


def of_choice(choice: Any, labels: Ints) -> Alternatives | None:
    """Of K-means++ and its kin, which tried several K, or of the clusterpath; else None."""
    if choice is None:
        return None
    k = int(labels.max()) + 1
    if not hasattr(choice, "path"):
        return of_scores(choice.rule, choice.scores, choice.labels, k)
    counts = {level.n_clusters: level.start for level in choice.path.plateaus}
    fewest = sorted(counts)[:MOST_LEVELS]
    tried = {n: choice.path.labels(n_clusters=n) for n in fewest}
    return of_scores("lambda", {n: counts[n] for n in fewest}, tried, k)
