"""Step 2 of Algorithm 1, the one place where clustering and combining happen.

check -> canonical order -> cluster -> combine -> :class:`ServerStep`. Every engine calls it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import nearest_center, number_by_first_user
from odcl.data.federation import group_rows
from odcl.errors import NotAdmissible
from odcl.exchange.download import Downloads, Refit
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.server.alternatives import Alternatives, of_choice, of_scores
from odcl.server.combine import average_by_cluster, combine_clusters
from odcl.server.dispersion import covariances, evidence_tau2, noise_traces, pooled_dispersion
from odcl.threads import one_thread

if TYPE_CHECKING:
    from odcl.mixed.posterior import Mixture


MODELS = 5_000  # users on whose models clusterers find groups; mixed groups have a SAMPLE of them


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
    dispersion: Floats | None = None  # (n_users,), the pooled noise scales
    others: Floats | None = None  # (n_users, dim), the cluster's model without the user itself
    refit: Refit = None  # the last step, as the method has it
    mixture: Mixture | None = None  # of mixed groups: shares, centres, how users differ, noise
    curbed: bool = False  # more groups were seen, and were not allowed
    weighed: Alternatives | None = None  # what the rule looked at beside; None: it does not tell

    @property
    def n_clusters(self) -> int:
        return len(self.centers)

    @cached_property
    def downloads(self) -> Downloads:
        """What each user is sent: no more than its last step needs."""
        evidence = self.refit == "evidence" and self.tau2 is not None
        return Downloads(
            self.users,
            self.models,
            self.labels,
            np.bincount(self.labels, minlength=self.n_clusters)[self.labels],
            self.probabilities,
            self.tau2 if evidence else None,
            self.dispersion if evidence else None,
            self.others,
            self.refit,
            self.mixture,
        )

    def fallen_back(self, why: str) -> ServerStep:
        """The same, with a word on why mixed groups were not for these users, if so."""
        told = f"{self.reason} Mixed groups gave way to it: {why}."
        return replace(self, reason=told) if why else self

    def take(self, order: Ints) -> ServerStep:
        """The same users in another order; clusters keep their numbers."""

        def pick(a: Any) -> Any:
            return None if a is None else a[order]

        return replace(
            self,
            users=self.users[order],
            labels=self.labels[order],
            models=self.models[order],
            probabilities=pick(self.probabilities),
            dispersion=pick(self.dispersion),
            others=pick(self.others),
            weighed=None if self.weighed is None else self.weighed.take(order),
        )


@dataclass(frozen=True, eq=False)
class Groups:
    """Clusters, before they are combined."""

    labels: Ints
    rule: str
    reason: str
    mixture: Any = None  # the MixtureResult, where a mixture decided
    weighed: Alternatives | None = None


def server_step(
    uploads: Uploads | Any,
    method: Method | None = None,
    *,
    seed: int = 0,
    parties: Array | None = None,
) -> ServerStep:
    """Cluster the uploads and combine each cluster (Algorithm 1, step 2).

    A pure function of the uploads, the method and the seed: shuffling the users changes nothing.
    ``uploads`` may be a plain matrix of models, as in the paper. ``parties`` (n_users,) names who
    stands behind each user: then the method's ``smallest_group`` counts distinct parties, and none
    may carry more than half of a group.
    """
    given = uploads if isinstance(uploads, Uploads) else Uploads.of(uploads)
    method = Method() if method is None else method
    case = given.risk if given.has_terms else None, given.dim, given.n_users
    why, method = method.falls_back(*case), method.resolved(*case)
    if parties is None and given.n_users > most_at_once(method):
        from odcl.server.stream import in_chunks, stream_step

        given.canonical_order()  # each user once
        found = stream_step(in_chunks(given), method, seed=seed)
        step = replace(found.step(given), weighed=found.alternatives(given.users))
        return step.fallen_back(why)
    given.check()
    order = given.canonical_order()
    party = None if parties is None else group_rows(parties)[1][order]
    with one_thread(given.dim):
        step = _step(given.take(order), method, seed, party).take(np.argsort(order))
    return replace(step, users=given.users).fallen_back(why)


def most_at_once(method: Method) -> int:
    """Users up to whom groups are found on all of them; above, on so many of them."""
    from odcl.mixed.search import SAMPLE

    return SAMPLE if method.clusterer.uses_terms else MODELS


def _step(uploads: Uploads, method: Method, seed: int, party: Ints | None) -> ServerStep:
    said = np.flatnonzero(uploads.seen > 0)
    speak = len(said if party is None else set(party[said].tolist()))
    who = "users" if party is None else "parties"
    refuse_too_few(speak, who, method.smallest_group)
    if method.clusterer.uses_terms:
        from odcl.server.mixed import mixed_step

        return mixed_step(uploads, method, party)
    phi = pooled_dispersion(uploads)
    groups = find_groups(uploads, phi, method, seed, party)
    labels, mixture = groups.labels, groups.mixture
    combined = combine_clusters(uploads, labels, method.combine, others=method.refit == "cv")
    tau2 = evidence_tau2(uploads, labels, combined.centers, phi)
    reason = groups.reason
    if mixture is not None and reason == mixture.reason:  # of what users' last step will know
        reason = mixture.reason_for(tau2)
    if tau2 is None and method.refit == "evidence":  # the last step will be cross-validated
        combined = combine_clusters(uploads, labels, method.combine, others=True)
    return ServerStep(
        uploads.users,
        labels,
        combined.centers,
        combined.centers[labels],
        groups.rule,
        reason,
        combined.how,
        None if mixture is None else mixture.probabilities,
        tau2,
        phi,
        combined.others,
        method.refit,
        weighed=groups.weighed,
    )


def refuse_too_few(speak: int, who: str, smallest: int) -> None:
    if 0 < speak < smallest:
        raise ValueError(
            f"{speak} {who} uploaded, and no group may have fewer than {smallest}: "
            f"wait for more {who}, or allow smaller groups (smallest_group)."
        )


def find_groups(
    uploads: Uploads, phi: Floats | None, method: Method, seed: int, party: Ints | None
) -> Groups:
    m, spec = uploads.n_users, method.clusterer
    fewest = 2 if spec.uses_covariance else 3  # users that a rule needs to choose K
    if m < fewest and isinstance(spec.n_clusters, str):
        return Groups(
            np.zeros(m, dtype=np.intp), "one group", f"{count_text(1)}: {m} user(s) in all."
        )
    clusterer = spec.build(seed)
    if spec.uses_covariance:
        found = _mixture(uploads, phi, clusterer)
    else:
        more = {"noise": noise_traces(uploads, phi)} if spec.uses_noise else {}
        clusterer.fit(uploads.models, **more)
        labels = np.asarray(clusterer.labels_)
        _check_labels(labels, m, spec.name)
        labels = number_by_first_user(labels)
        choice = getattr(clusterer, "choice_", None)
        reason = getattr(choice, "reason", None)
        reason = reason or f"{count_text(int(labels.max()) + 1)} by {spec.name}."
        found = Groups(labels, spec.name, reason, weighed=of_choice(choice, labels))
    kept = dissolve_small(uploads, found.labels, method.smallest_group, party)
    if kept is found.labels:
        return found
    who = "users" if party is None else "parties"
    reason = f"{count_text(int(kept.max()) + 1)} of at least {method.smallest_group} {who} left of "
    told = f"{reason}{int(found.labels.max()) + 1} found."
    return Groups(kept, found.rule, told, weighed=found.weighed)


def count_text(k: int) -> str:
    return f"{k} group{'s' * (k > 1)}"


def _mixture(uploads: Uploads, phi: Floats | None, clusterer: Any) -> Groups:
    """Fit the noise mixture on what the uploads tell of their noise."""
    cov = covariances(uploads, phi)
    noise = None if cov is not None else noise_traces(uploads, phi)
    clusterer.fit(uploads.models, noise=noise, covariance=cov)
    result = clusterer.result_
    weighed = of_scores("icl", result.scores, result.labels)
    return Groups(result.labels, result.rule, result.reason, result, weighed)


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
        from odcl.server.parties import party_sizes

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
