"""Step 2 of Algorithm 1, the one place where clustering and combining happen.

check -> canonical order -> cluster -> combine -> :class:`ServerStep`. Every engine calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import number_by_first_user
from odcl.exchange.upload import Uploads
from odcl.server.combine import COMBINERS, combine_clusters
from odcl.server.dispersion import covariances, evidence_tau2, pooled_dispersion

# For whom the clusters' models without each single user are worked out: cross-validation at the
# user needs them, the evidence only where it does not tell tau2.
Others = Literal["never", "always", "without tau2"]


SETTLE_TURNS = 20


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
    tau2: float | None = None  # how far users of a cluster differ (variance a coordinate)
    dispersion: Floats | None = None  # (n_users,), the pooled noise scales
    others: Floats | None = None  # (n_users, dim), the cluster's model without the user itself

    @property
    def n_clusters(self) -> int:
        return len(self.centers)

    @property
    def bytes_down(self) -> int:
        """Bytes that a user receives: its model."""
        return 8 * int(self.models.shape[1])


@dataclass(frozen=True, eq=False)
class _Groups:
    labels: Ints
    rule: str
    reason: str
    mixture: Any = None  # the MixtureResult, where a mixture decided


def server_step(
    uploads: Uploads | Any,
    clusterer: Any = "auto",
    combine: str = "mean",
    *,
    seed: int = 0,
    others: Others = "never",
) -> ServerStep:
    """Cluster the uploads and combine each cluster (Algorithm 1, step 2).

    A pure function of the uploads and the seed: shuffling the users changes nothing. ``clusterer``
    is ``"auto"`` (:class:`~odcl.NoiseMixture`), a number of clusters or ``"elbow"`` /
    ``"silhouette"`` (:class:`~odcl.KMeansPP`), ``"convex"`` (:class:`~odcl.ConvexClustering`), or
    any scikit-learn clusterer. ``combine`` is one of
    mean, samples, precision, shrink. ``others`` says when each user's cluster is also combined
    without that user. ``uploads`` may be a plain matrix of models.
    """
    given = uploads if isinstance(uploads, Uploads) else Uploads.of(uploads)
    if combine not in COMBINERS:
        raise ValueError(f"combine={combine!r} is not one of {', '.join(COMBINERS)}.")
    given.check()
    order = given.canonical_order()
    if (np.diff(order) == 1).all():
        return _step(given, clusterer, combine, seed, others)
    step = _step(given.take(order), clusterer, combine, seed, others)
    back = np.argsort(order)

    def unsort(a: Any) -> Any:
        return None if a is None else a[back]

    return replace(
        step,
        users=given.users,
        labels=step.labels[back],
        models=step.models[back],
        probabilities=unsort(step.probabilities),
        dispersion=unsort(step.dispersion),
        others=unsort(step.others),
    )


def _step(uploads: Uploads, clusterer: Any, combine: str, seed: int, others: Others) -> ServerStep:
    phi = pooled_dispersion(uploads)
    groups = _cluster(uploads, phi, clusterer, seed)
    labels, mixture = groups.labels, groups.mixture
    if combine == "shrink" and mixture is None:
        raise ValueError(
            "combine='shrink' needs to know how far users of a group differ, which "
            f"{groups.rule} does not tell. Use clusterer='auto' (NoiseMixture), or "
            "combine='precision'."
        )
    how = "precision" if combine == "shrink" else combine
    combined = combine_clusters(uploads, labels, how, others=others == "always")
    tau2 = evidence_tau2(uploads, labels, combined.centers, phi)
    if tau2 is None and mixture is not None and mixture.credible and mixture.rule == "noise":
        tau2 = mixture.tau2_mean
    if tau2 is None and others == "without tau2":
        combined = combine_clusters(uploads, labels, how, others=True)
    models, told = combined.centers[labels], combined.how
    if combine == "shrink":
        # The posterior mean of the mixture: c_(i) + tau2 / (tau2 + v_i) (theta_i - c_(i)).
        around = mixture.responsibilities @ mixture.centers
        models = around + mixture.own_weight[:, None] * (uploads.theta - around)
        told = "posterior mean of the mixture"
    return ServerStep(
        uploads.users,
        labels,
        combined.centers,
        models,
        groups.rule,
        groups.reason,
        told,
        None if mixture is None else mixture.probabilities,
        tau2,
        phi,
        combined.others,
    )


def _cluster(uploads: Uploads, phi: Floats | None, clusterer: Any, seed: int) -> _Groups:
    from odcl.clustering.convex.estimator import ConvexClustering
    from odcl.clustering.mixture.noise_mixture import NoiseMixture

    method = as_clusterer(clusterer)
    if hasattr(method, "random_state") and method.random_state is None:
        from sklearn.base import clone

        method = clone(method).set_params(random_state=seed)
    if isinstance(method, NoiseMixture):
        return _mixture(uploads, phi, method)
    if isinstance(method, ConvexClustering):
        method.fit(uploads.theta, noise=_noise_traces(uploads, phi))
    else:
        method.fit(uploads.theta)
    labels = np.asarray(method.labels_)
    name = type(method).__name__
    _check_labels(labels, uploads.n_users, name)
    labels = number_by_first_user(labels)
    k = int(labels.max()) + 1
    reason = getattr(getattr(method, "choice_", None), "reason", None)
    return _Groups(labels, name, reason or f"{k} cluster{'s' * (k > 1)} by {name}.")


def _noise_traces(uploads: Uploads, phi: Floats | None) -> Floats | None:
    """Trace of each user's covariance, infinite where it is not known; None if for everybody."""
    cov = covariances(uploads, phi)
    if cov is not None:
        known = uploads.founders & uploads.sent
        return np.where(known, np.trace(cov, axis1=1, axis2=2), np.inf)
    if phi is not None and uploads.noise is not None:
        return np.where(uploads.founders, phi * uploads.noise, np.inf)
    return None


def _mixture(uploads: Uploads, phi: Floats | None, method: Any) -> _Groups:
    """Fit the noise mixture on what the uploads tell of their noise."""
    cov = covariances(uploads, phi)
    noise = None
    founders = uploads.founders
    if cov is not None:
        founders = founders & uploads.sent
    elif phi is not None and uploads.noise is not None:
        noise = phi * uploads.noise
    if not founders.any():  # nobody can tell its noise: everybody founds, one variance for all
        cov, noise, founders = None, None, np.ones(uploads.n_users, dtype=bool)
    fitted = method.fit(uploads.theta, noise=noise, covariance=cov, founders=founders)
    result = fitted.result_
    labels = _settle(uploads, phi, number_by_first_user(result.labels), result.rule == "noise")
    return _Groups(labels, result.rule, result.reason, replace(result, labels=labels))


def _settle(uploads: Uploads, phi: Floats | None, labels: Ints, everybody: bool) -> Ints:
    """Users who sent their curvature join the group that explains their rows best.

    The mixture looks at models through one noise level a user. A user's data term knows more: it
    is long in directions that its rows hardly see, and silent on those they do not see at all.
    With curvature A_i = H_i - n_i P and linear term b_i = H_i theta_i, and users of a group
    differing by tau^2, minus its log-likelihood under group k is

        1/2 c_k' S_i A_i c_k - c_k' S_i b_i,      S_i = (phi_i I + tau^2 A_i)^-1.

    Groups' models and users' places are brought in line in turn, as in Lloyd's loop. Users who
    found no group always take part; the founders (``everybody``) where their noise is credible.
    """
    who = np.flatnonzero(uploads.sent & (everybody | ~uploads.founders))
    if not uploads.full or len(who) == 0 or labels.max() == 0:
        return labels
    tau2 = 0.0
    if phi is not None:
        centers = combine_clusters(uploads, labels, "precision").centers
        tau2 = evidence_tau2(uploads, labels, centers, phi) or 0.0
    for _ in range(SETTLE_TURNS):
        centers = combine_clusters(uploads, labels, "precision").centers
        moved = labels.copy()
        for part in np.array_split(who, max(1, len(who) // 32_768)):
            moved[part] = _misfit(uploads, phi, tau2, centers, part).argmin(axis=1)
        moved = number_by_first_user(moved)
        if (moved == labels).all():
            break
        labels = moved
    return labels


def _misfit(
    uploads: Uploads, phi: Floats | None, tau2: float, centers: Floats, part: Ints
) -> Floats:
    """Minus the log-likelihood of some users' rows under every group, (len(part), n_clusters)."""
    assert uploads.curvature is not None
    A, b = uploads.curvature[part], np.matmul(uploads.curvature[part], uploads.theta[part, :, None])
    if uploads.l2 is not None:
        A = A - uploads.n_samples[part, None, None] * np.diag(uploads.l2)
    if tau2 > 0 and phi is not None:
        S = phi[part, None, None] * np.eye(uploads.dim) + tau2 * A
        both = np.linalg.solve(S, np.concatenate([A, b], axis=2))
        A, b = both[..., :-1], both[..., -1:]
    curved = (np.matmul(A, centers.T) * centers.T).sum(axis=1)
    return 0.5 * curved - np.matmul(centers, b)[..., 0]


def as_clusterer(clusterer: Any) -> Any:
    """A clusterer by name or number, or itself."""
    from odcl.clustering.convex.estimator import ConvexClustering
    from odcl.clustering.kmeans.kmeanspp import KMeansPP
    from odcl.clustering.mixture.noise_mixture import NoiseMixture

    if isinstance(clusterer, str):
        if clusterer == "auto":
            return NoiseMixture()
        if clusterer == "convex":
            return ConvexClustering()
        if clusterer in ("elbow", "silhouette"):
            return KMeansPP(clusterer)
        raise ValueError(
            f"clusterer={clusterer!r} is not one of 'auto', 'convex', 'elbow', 'silhouette', a "
            "number of clusters, or an object with fit() and labels_."
        )
    if isinstance(clusterer, int | np.integer) and not isinstance(clusterer, bool):
        return KMeansPP(int(clusterer))
    if not hasattr(clusterer, "fit"):
        raise ValueError(
            f"clusterer={clusterer!r} has no fit(): give a clusterer such as KMeansPP."
        )
    return clusterer


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
