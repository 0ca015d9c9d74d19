"""Clusters of the users' models: found on all users or on a sample, combined over everybody.

Where clusters are found on a sample, every user joins its nearest center (of a mixture with known
noise: the likeliest group), and clusters are combined from sums over all users.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.clustering.labels import nearest_center, number_by_first_user, sum_by_cluster
from odcl.errors import NotAdmissible
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.server.chunks import HALF, Chunks, Survey, added, tallied
from odcl.server.combine import ClusterSums, average_by_cluster, cluster_sums
from odcl.server.dispersion import (
    NoisePrior,
    covariances,
    dispersion_prior,
    evidence_tau2,
    noise_traces,
    pooled_dispersion,
)
from odcl.server.result import Alternatives, ServerStep, StreamedStep, of_choice, of_scores

if TYPE_CHECKING:
    from odcl.clustering.mixture.noise_mixture import MixtureResult


def model_step(
    looked: Survey, method: Method, seed: int, chunks: Chunks | None, party: Ints | None
) -> StreamedStep:
    """Clusters by the method's clusterer, each combined into one model.

    Without ``chunks`` all users are in the sample, in canonical order.
    """
    like = looked.sample
    phi = pooled_dispersion(like)
    if chunks is None:
        clusters = find_clusters(like, phi, method, seed, party)
        labels, k = clusters.labels, int(clusters.labels.max()) + 1
        rule, passes, reason = None, 1, clusters.reason
        total = cluster_sums(like, labels, method.combine, k)
        sizes, rows = np.bincount(labels), sum_by_cluster(like.n_samples, labels)
    else:
        clusters = find_clusters(like, phi, replace(method, smallest_group=1), seed, None)
        rule = _rule(like, clusters, phi)
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
            clusters = replace(clusters, mixture=None, weighed=None)
    tau2 = evidence_tau2(like, number_by_first_user(labels), _first(total.centers, labels), phi)
    if clusters.mixture is not None:
        reason = clusters.mixture.reason_for(tau2)
    # Where evidence cannot say how far users differ, the last step is cross-validated.
    others = method.refit == "cv" or (tau2 is None and method.refit == "evidence")
    step = ServerStep(
        like.users,
        labels,
        total.centers,
        total.centers[labels],
        clusters.rule,
        reason,
        total.told,
        None if clusters.mixture is None else clusters.mixture.probabilities,
        tau2,
        phi,
        total.without(like, labels) if others and chunks is None else None,
        method.refit,
        weighed=clusters.weighed,
    )
    if rule is not None and others:
        rule = replace(rule, total=total)
    return StreamedStep(step, looked.n_users, sizes, rows, rule, passes, total)


def _first(centers: Floats, labels: Ints) -> Floats:
    """The centers of the labels that are there, in the order of their first user."""
    return centers[labels[np.sort(np.unique(labels, return_index=True)[1])]]


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
    mixture: MixtureResult | None = None  # where a mixture decided
    weighed: Alternatives | None = None


def find_clusters(
    uploads: Uploads, phi: Floats | None, method: Method, seed: int, party: Ints | None
) -> Clusters:
    """Clusters of users in canonical order, those that are too small dissolved."""
    m, spec = uploads.n_users, method.clusterer
    fewest = 2 if spec.uses_covariance else 3  # users that a rule needs to choose K
    if m < fewest and isinstance(spec.n_clusters, str):
        return Clusters(
            np.zeros(m, dtype=np.intp), "one group", f"{count_text(1)}: {m} user(s) in all."
        )
    clusterer = spec.build(seed)
    if spec.uses_covariance:
        found = _noise_mixture(uploads, phi, clusterer)
    else:
        more = {"noise": noise_traces(uploads, phi)} if spec.uses_noise else {}
        clusterer.fit(uploads.models, **more)
        labels = np.asarray(clusterer.labels_)
        _check_labels(labels, m, spec.name)
        labels = number_by_first_user(labels)
        choice = getattr(clusterer, "choice_", None)
        reason = getattr(choice, "reason", None)
        reason = reason or f"{count_text(int(labels.max()) + 1)} by {spec.name}."
        found = Clusters(labels, spec.name, reason, weighed=of_choice(choice, labels))
    kept = dissolve_small(uploads, found.labels, method.smallest_group, party)
    if kept is found.labels:
        return found
    sizes = int(kept.max()) + 1, int(found.labels.max()) + 1
    who = "users" if party is None else "parties"
    reason = _left_text(*sizes, method.smallest_group, who)
    return Clusters(kept, found.rule, reason, weighed=found.weighed)


def _noise_mixture(uploads: Uploads, phi: Floats | None, clusterer: Any) -> Clusters:
    """Fit the noise mixture on what the uploads tell of their noise."""
    cov = covariances(uploads, phi)
    noise = None if cov is not None else noise_traces(uploads, phi)
    clusterer.fit(uploads.models, noise=noise, covariance=cov)
    result = clusterer.result_
    k = int(result.labels.max()) + 1
    weighed = of_scores("icl", result.scores, {k: result.labels}, k)
    return Clusters(result.labels, result.rule, result.reason, result, weighed)


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
class NoiseUnits:
    """A mixture with known noise, for users who were not among those it was found on.

    r_ik is proportional to share_k exp(-|z_i - z_k|^2 / (2 (v_i + tau2))), z in units of the noise.
    """

    shares: Floats  # (K,)
    forward: Floats | None  # (dim, rank): distances are between rows of theta @ forward
    tau2: float
    scale: float  # of the noise given

    @classmethod
    def of(cls, result: MixtureResult, uploads: Uploads, phi: Floats | None) -> NoiseUnits:
        """From the mixture of a sample."""
        units = cls(result.responsibilities.mean(axis=0), result.forward, result.tau2, 1.0)
        given = units.noise(uploads, phi)
        known: Bools = np.isfinite(given) & np.isfinite(result.noise_units) & (given > 0)
        scale = np.median(result.noise_units[known] / given[known]) if known.any() else 1.0
        return replace(units, scale=float(scale))

    def noise(self, uploads: Uploads, phi: Floats | None) -> Floats:
        """v_i = tr(C-bar^-1 C_i) / dim, infinite where it is not known, (n_users,)."""
        cov = covariances(uploads, phi)
        if cov is not None and self.forward is not None:
            flat = cov.reshape(len(cov), -1)
            known: Bools = np.asarray(np.isfinite(flat).all(axis=1))
            inverse = (self.forward @ self.forward.T).ravel()
            each = np.where(known[:, None], flat, 0.0) @ inverse / uploads.dim
            return np.where(known, each, np.inf)
        traces = noise_traces(uploads, phi)
        return np.ones(len(uploads)) if traces is None else traces / uploads.dim

    def likeliest(
        self, uploads: Uploads, centers: Floats, phi: Floats | None
    ) -> tuple[Ints, Floats]:
        """Labels and their probabilities, (n_users,) each."""
        points, at = (a - centers[0] for a in (uploads.models, centers))
        if self.forward is not None:
            points, at = points @ self.forward, at @ self.forward
        v = self.scale * self.noise(uploads, phi)
        square = ((points[:, None] - at) ** 2).sum(axis=2)
        with np.errstate(divide="ignore"):
            joint = np.log(self.shares) - square / (2 * (v + self.tau2))[:, None]
        r = np.exp(joint - joint.max(axis=1, keepdims=True))
        r /= r.sum(axis=1, keepdims=True)
        labels = np.where(np.isinf(v), square.argmin(axis=1), r.argmax(axis=1))
        return labels, r[np.arange(len(r)), labels]


@dataclass(frozen=True, eq=False)
class ModelRule:
    """The cluster of every user, from its model."""

    centers: Floats  # (K, dim), of the sample
    units: NoiseUnits | None  # of a mixture with known noise
    prior: NoisePrior | None  # of the users' noise scales
    total: ClusterSums | None = None  # where users are told their cluster without themselves

    def take(self, clusters: Ints) -> ModelRule:
        units = self.units
        if units is not None:
            shares = units.shares[clusters]
            units = replace(units, shares=shares / shares.sum())
        return replace(self, centers=self.centers[clusters], units=units)

    def labels(self, uploads: Uploads) -> Ints:
        return self._placed(uploads)[0]

    def place(self, uploads: Uploads, found: ServerStep) -> ServerStep:
        labels, sure, phi = self._placed(uploads)
        others = None if self.total is None else self.total.without(uploads, labels)
        return found.with_users(uploads.users, labels, sure, phi, others)

    def _placed(self, uploads: Uploads) -> tuple[Ints, Floats | None, Floats | None]:
        """Labels, their probabilities, and noise scales."""
        phi = pooled_dispersion(uploads, self.prior)
        if self.units is None:
            return nearest_center(uploads.models, self.centers), None, phi
        return *self.units.likeliest(uploads, self.centers, phi), phi


def _rule(like: Uploads, clusters: Clusters, phi: Floats | None) -> ModelRule:
    prior, result = dispersion_prior(like), clusters.mixture
    if result is None:
        return ModelRule(average_by_cluster(like.models, clusters.labels), None, prior)
    return ModelRule(result.centers, NoiseUnits.of(result, like, phi), prior)


def _sums(uploads: Uploads, rule: ModelRule, how: str) -> ClusterSums:
    return cluster_sums(uploads, rule.labels(uploads), how, len(rule.centers))
