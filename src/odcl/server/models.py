"""Clusters of the users' models: found on all users or on a sample, combined over everybody.

Where clusters are found on a sample, every user joins its nearest center, and clusters are combined
from sums over all users. Models become one (Algorithm 1, step 2(iii)) by means, plain or weighed by
rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import nearest_center, number_by_first_user, sum_by_cluster
from odcl.errors import NotAdmissible
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.server.chunks import HALF, Chunks, Survey, added, tallied
from odcl.server.result import Alternatives, ServerStep, StreamedStep, of_choice


def average_by_cluster(theta: Floats, labels: Ints, weights: Floats | None = None) -> Floats:
    """Average the local models inside each cluster (Algorithm 1, step 2(iii)).

        centers[k] = (1 / |C'_k|) * sum of theta[i] over i in C'_k

    Users count once each, whatever their sample size: the paper averages uniformly (Remark 10).
    ``weights`` (n_users,) make it a weighted mean. Shapes: theta (n_users, dim), labels
    (n_users,) holding 0..K'-1, answer (n_clusters, dim).
    """
    weights = np.ones(len(theta)) if weights is None else weights
    total = sum_by_cluster(weights, labels)
    return sum_by_cluster(theta * weights[:, None], labels) / total[:, None]


def user_weights(uploads: Uploads, how: str) -> Floats:
    """What users count in their cluster's mean, (n_users,): "mean" once each, "samples" by rows."""
    return np.ones(uploads.n_users) if how == "mean" else uploads.n_samples


@dataclass(frozen=True, eq=False)
class ClusterSums:
    """Clusters as sums over their users; sums of parts of the users add up."""

    how: str  # "mean" or "samples"
    weight: Floats  # (n_clusters,)
    weighted: Floats  # (n_clusters, dim), sum w theta

    @classmethod
    def of(cls, uploads: Uploads, labels: Ints, how: str, n_clusters: int) -> ClusterSums:
        weights = user_weights(uploads, how)
        weighted = sum_by_cluster(uploads.models * weights[:, None], labels, n_clusters)
        return cls(how, sum_by_cluster(weights, labels, n_clusters), weighted)

    def __add__(self, other: ClusterSums) -> ClusterSums:
        weight, weighted = self.weight + other.weight, self.weighted + other.weighted
        return replace(self, weight=weight, weighted=weighted)

    @property
    def told(self) -> str:
        """What is done, in words."""
        return "plain mean" if self.how == "mean" else "mean weighted by sample size"

    @property
    def centers(self) -> Floats:
        """The clusters' models, (n_clusters, dim)."""
        return self.weighted / self.weight[:, None]

    @property
    def pooled(self) -> Floats:
        """One model for the users of all clusters, (dim,)."""
        return self.weighted.sum(axis=0) / self.weight.sum()


# -- the step --------------------------------------------------------------------------------------


def model_step(
    looked: Survey, method: Method, seed: int, chunks: Chunks | None, party: Ints | None
) -> StreamedStep:
    """Clusters by the method's clusterer, each combined into one model.

    Without ``chunks`` all users are in the sample, in canonical order.
    """
    like = looked.sample
    if chunks is None:
        clusters = find_clusters(like, method, seed, party)
        labels, k = clusters.labels, int(clusters.labels.max()) + 1
        rule, passes, reason = None, 1, clusters.reason
        total = ClusterSums.of(like, labels, method.combine, k)
        sizes, rows = np.bincount(labels), sum_by_cluster(like.n_samples, labels)
    else:
        clusters = find_clusters(like, replace(method, smallest_group=1), seed, None)
        centers = average_by_cluster(like.models, clusters.labels)
        rule = ModelRule(centers)
        counts, found = tallied(chunks, rule, len(rule.centers)), len(rule.centers)
        kept = np.flatnonzero(counts.sizes >= max(method.smallest_group, 1))
        if len(kept) < found:
            rule = rule.take(kept if len(kept) else np.array([int(counts.sizes.argmax())]))
            counts = tallied(chunks, rule, len(rule.centers))
        rule, order = rule.take(counts.order), counts.order
        sizes, rows = counts.sizes[order], counts.rows[order]
        total = added(chunks, partial(_sums, rule=rule, how=method.combine))
        labels, passes, reason = rule.labels(like), 3 + (len(kept) < found), clusters.reason
        if len(sizes) < found:
            reason = _left_text(len(sizes), found, method.smallest_group, "users")
            clusters = replace(clusters, weighed=None)
    step = ServerStep(
        like.users,
        labels,
        total.centers,
        total.centers[labels],
        clusters.rule,
        reason,
        total.told,
        weighed=clusters.weighed,
    )
    return StreamedStep(step, looked.n_users, sizes, rows, rule, passes, total)


def _left_text(left: int, found: int, smallest: int, who: str) -> str:
    return f"{count_text(left)} of at least {smallest} {who} left of {found} found."


def count_text(k: int) -> str:
    return f"{k} group{'s' * (k > 1)}"


# -- finding clusters ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters, before they are combined."""

    labels: Ints
    rule: str
    reason: str
    weighed: Alternatives | None = None


def find_clusters(uploads: Uploads, method: Method, seed: int, party: Ints | None) -> Clusters:
    """Clusters of users in canonical order, those that are too small dissolved."""
    m, spec = uploads.n_users, method.clusterer
    if m < 3 and isinstance(spec.n_clusters, str):
        few = "there is one user" if m == 1 else f"{m} users are too few to tell groups apart"
        return Clusters(np.zeros(m, dtype=np.intp), "one group", f"{count_text(1)}: {few}.")
    clusterer = spec.build(seed)
    clusterer.fit(uploads.models)
    labels = np.asarray(clusterer.labels_)
    _check_labels(labels, m, spec.name)
    labels = number_by_first_user(labels)
    choice = getattr(clusterer, "choice_", None)
    reason = getattr(choice, "reason", None)
    reason = reason or f"{count_text(int(labels.max()) + 1)} by {spec.name}."
    found = Clusters(labels, spec.name, reason, of_choice(choice, labels))
    kept = dissolve_small(uploads, found.labels, method.smallest_group, party)
    if kept is found.labels:
        return found
    sizes = int(kept.max()) + 1, int(found.labels.max()) + 1
    who = "users" if party is None else "parties"
    reason = _left_text(*sizes, method.smallest_group, who)
    return Clusters(kept, found.rule, reason, weighed=found.weighed)


def _check_labels(labels: Array, n_users: int, name: str) -> None:
    if labels.shape != (n_users,):
        raise ValueError(f"{name} gave {labels.shape} labels for {n_users} users.")
    left_out = int((labels < 0).sum())
    if left_out:
        raise ValueError(
            f"{name} left {left_out} of {n_users} users without a cluster (label -1), and "
            "Algorithm 1 averages every user. Choose a method that assigns all points, e.g. "
            "KMeansPP(n_clusters=...)."
        )


def dissolve_small(
    uploads: Uploads, labels: Ints, smallest: int, party: Ints | None = None
) -> Ints:
    """Users of groups with fewer than ``smallest`` members join the nearest of the others.

    The same array comes back where no group is too small. Where all are, everybody is one group.
    With ``party`` (n_users,) members are distinct parties, none with more than half of a group.
    """
    sizes = np.bincount(labels)
    if party is not None and smallest > 1:
        sizes = party_sizes(labels, party, uploads.n_samples)
        if (party_sizes(np.zeros_like(labels), party, uploads.n_samples) == 0).any():
            raise NotAdmissible(
                "One party has more than half of all rows: the model of any group would tell what "
                "it sent. Wait for more parties."
            )
    large = np.flatnonzero(sizes >= smallest)
    if len(large) == len(sizes):
        return labels
    if len(large) == 0:
        return np.zeros_like(labels)
    small = ~np.isin(labels, large)
    joined = labels.copy()
    centers = average_by_cluster(uploads.models, labels)[large]
    joined[small] = large[nearest_center(uploads.models[small], centers)]
    return number_by_first_user(joined)


def party_sizes(labels: Ints, party: Ints, weight: Floats) -> Ints:
    """Distinct parties of each group; 0 where one has more than half of the group's weight."""
    table = np.zeros((int(labels.max()) + 1, int(party.max()) + 1))
    np.add.at(table, (labels, party), weight)
    sizes = (table > 0).sum(axis=1)
    ruled = table.max(axis=1) > HALF * table.sum(axis=1)
    return np.where(ruled, 0, sizes)


# -- users who were not in the sample --------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ModelRule:
    """The cluster of every user, from its model."""

    centers: Floats  # (K, dim), of the sample

    def take(self, clusters: Ints) -> ModelRule:
        return replace(self, centers=self.centers[clusters])

    def labels(self, uploads: Uploads) -> Ints:
        return nearest_center(uploads.models, self.centers)

    def place(self, uploads: Uploads, found: ServerStep) -> ServerStep:
        return found.with_users(uploads.users, self.labels(uploads))


def _sums(uploads: Uploads, rule: ModelRule, how: str) -> ClusterSums:
    return ClusterSums.of(uploads, rule.labels(uploads), how, len(rule.centers))
