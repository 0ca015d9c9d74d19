"""Clusters of users' models that come in chunks: found on a sample, combined over everybody.

Every user joins the nearest center of the sample (of a mixture with known noise: the likeliest),
and clusters are combined from sums over all users.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.clustering.labels import nearest_center, number_by_first_user
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.server.combine import ClusterSums, average_by_cluster, cluster_sums
from odcl.server.dispersion import (
    NoisePrior,
    covariances,
    dispersion_prior,
    evidence_tau2,
    noise_traces,
    pooled_dispersion,
)
from odcl.server.step import Groups, count_text, find_groups

if TYPE_CHECKING:
    from odcl.server.stream import Chunks, Placed, StreamedStep, Survey, Tally


@dataclass(frozen=True, eq=False)
class Cloud:
    """A mixture with known noise, for users who were not among those it was found on.

    r_ik is proportional to share_k exp(-|z_i - z_k|^2 / (2 (v_i + tau2))), z in units of the noise.
    """

    shares: Floats  # (K,)
    forward: Floats | None  # (dim, rank): distances are between rows of theta @ forward
    tau2: float
    scale: float  # of the noise given

    @classmethod
    def of(cls, result: Any, uploads: Uploads, phi: Floats | None) -> Cloud:
        """From the mixture of a sample."""
        cloud = cls(result.responsibilities.mean(axis=0), result.forward, result.tau2, 1.0)
        given = cloud.noise(uploads, phi)
        known: Bools = np.isfinite(given) & np.isfinite(result.noise_units) & (given > 0)
        scale = np.median(result.noise_units[known] / given[known]) if known.any() else 1.0
        return replace(cloud, scale=float(scale))

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

    def units(self, a: Floats, origin: Floats) -> Floats:
        return a - origin if self.forward is None else (a - origin) @ self.forward


@dataclass(frozen=True, eq=False)
class ModelPlaces:
    """The cluster of every user, from its model."""

    centers: Floats  # (K, dim), of the sample
    cloud: Cloud | None
    prior: NoisePrior | None  # of the users' noise scales
    total: ClusterSums | None = None  # where users are told their cluster without themselves

    def take(self, clusters: Ints) -> ModelPlaces:
        cloud = self.cloud
        if cloud is not None:
            shares = cloud.shares[clusters]
            cloud = replace(cloud, shares=shares / shares.sum())
        return replace(self, centers=self.centers[clusters], cloud=cloud)

    def place(self, uploads: Uploads) -> Placed:
        from odcl.server.stream import Placed

        phi, sure = pooled_dispersion(uploads, self.prior), None
        if self.cloud is None:
            labels = nearest_center(uploads.models, self.centers)
        else:
            labels, r = self._likeliest(uploads, phi)
            sure = r[np.arange(len(r)), labels]
        others = None if self.total is None else self.total.without(uploads, labels)
        return Placed(labels, sure, phi, others)

    def _likeliest(self, uploads: Uploads, phi: Floats | None) -> tuple[Ints, Floats]:
        """Labels and probabilities."""
        cloud, origin = self.cloud, self.centers[0]
        assert cloud is not None
        points, centers = (cloud.units(a, origin) for a in (uploads.models, self.centers))
        v = cloud.scale * cloud.noise(uploads, phi)
        square = ((points[:, None] - centers) ** 2).sum(axis=2)
        with np.errstate(divide="ignore"):
            joint = np.log(cloud.shares) - square / (2 * (v + cloud.tau2))[:, None]
        r = np.exp(joint - joint.max(axis=1, keepdims=True))
        r /= r.sum(axis=1, keepdims=True)
        return np.where(np.isinf(v), square.argmin(axis=1), r.argmax(axis=1)), r


def _sums(uploads: Uploads, places: ModelPlaces, how: str) -> ClusterSums:
    labels = places.place(uploads).labels
    return cluster_sums(uploads, labels, how, len(places.centers))


def stream_models(chunks: Chunks, looked: Survey, method: Method, seed: int) -> StreamedStep:
    """Clusters by the method's clusterer on a sample; everybody joins, and is combined."""
    from odcl.server.stream import StreamedStep, added, tally

    like = looked.sample
    order = like.canonical_order()
    like = like.take(order)
    prior, phi = dispersion_prior(like), pooled_dispersion(like)
    groups = find_groups(like, phi, replace(method, smallest_group=1), seed, None)
    places = _places(like, groups, phi, prior)

    def counted(places: ModelPlaces) -> Tally:
        return added(chunks, partial(tally, places=places, n_groups=len(places.centers)))

    counts = counted(places)
    found, kept = len(places.centers), np.flatnonzero(counts.sizes >= max(method.smallest_group, 1))
    if len(kept) < found:
        kept = kept if len(kept) else np.array([int(counts.sizes.argmax())])
        places = places.take(kept)
        counts = counted(places)
    places, sizes, rows = (
        places.take(counts.order),
        counts.sizes[counts.order],
        counts.rows[counts.order],
    )
    total: ClusterSums = added(chunks, partial(_sums, places=places, how=method.combine))
    labels = places.place(like).labels
    tau2 = evidence_tau2(like, number_by_first_user(labels), _first(total.centers, labels), phi)
    reason = groups.reason
    if groups.mixture is not None and reason == groups.mixture.reason:
        reason = groups.mixture.reason_for(tau2)
    if len(places.centers) < found:
        least = f"{count_text(len(places.centers))} of at least {method.smallest_group} users left"
        reason = f"{least} of {found} found."
    if method.refit == "cv" or (tau2 is None and method.refit == "evidence"):
        places = replace(places, total=total)
    return StreamedStep(
        *(looked.n_users, sizes, rows, total.centers, groups.rule, reason, total.told, places),
        tau2,
        method.refit,
        passes=3 + (len(kept) < found),
        sampled=len(like),
        weighed=groups.weighed if len(places.centers) == found else None,
        weighed_by=like.users,
    )


def _first(centers: Floats, labels: Ints) -> Floats:
    """The centers of the labels that are there, in the order of their first user."""
    return centers[labels[np.sort(np.unique(labels, return_index=True)[1])]]


def _places(
    like: Uploads, groups: Groups, phi: Floats | None, prior: NoisePrior | None
) -> ModelPlaces:
    result = groups.mixture
    if result is None:
        return ModelPlaces(average_by_cluster(like.models, groups.labels), None, prior)
    cloud = Cloud.of(result, like, phi)
    return ModelPlaces(result.centers, cloud, prior)
