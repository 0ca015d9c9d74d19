"""Hidden groups of users whose models come with their noise: no K and no lambda to choose.

    theta_i ~ sum_k pi_k N(c_k, C_i + tau2 C-bar)

A user's model is its group's centre, plus how much users of a group really differ (tau2), plus
estimation noise of known size. The number of groups, one group included, and tau2 are found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from odcl._typing import Floats, Ints
from odcl.clustering.labels import as_seed, nearest_center, number_by_first_user
from odcl.clustering.mixture.em import (
    CHUNK_ENTRIES,
    Axes,
    Cloud,
    MixtureParameters,
    responsibilities,
)
from odcl.clustering.mixture.search import Found, MaxClusters, find_groups, sharpen
from odcl.clustering.mixture.units import (
    Given,
    axes_in_order,
    check_inputs,
    check_numbers,
    in_range,
    units_of,
)

Reading = Literal["noise", "scaled-noise", "shared-variance"]  # of the noise that was given
HOW: dict[Reading, str] = {
    "noise": "by the mixture with known noise",
    "scaled-noise": "by the mixture with the noise scaled to fit",
    "shared-variance": "by the mixture with one variance for all users",
}

# Users who know their noise can stand for the federation if they are half of it, or a tenth and at
# least twenty: four of thirty users cannot show six groups.
FEWEST, HALF, LEAST_SHARE = 20, 0.5, 0.1
OVERSTATED = 0.5  # spread inside groups below half the claimed noise: the claim is not believed


@dataclass(frozen=True, eq=False)
class MixtureResult:
    """Groups, how far users inside a group differ, and how it was decided.

    ``tau2`` and ``noise_units`` are in whitened units, or those of ``theta`` squared where no
    covariance was given.
    """

    labels: Ints  # (n_users,), numbered by first user
    centers: Floats  # (n_clusters, dim), in the units of theta
    responsibilities: Floats  # (n_users, n_clusters), probability of each group
    probabilities: Floats  # (n_users,), of the own label
    tau2: float
    metric: Floats | None  # (dim, dim), C-bar, the unit of tau2; None for the unit matrix
    noise_units: Floats  # (n_users,), v_i; inf where nothing is known
    forward: Floats | None  # (dim, rank): distances are between rows of theta @ forward
    reading: Reading  # how the noise that was given entered
    asked: int | None  # the number of groups asked for; None if it was found
    overstated: float | None  # spread inside groups per noise given, where that was too large
    doubt: str  # why the noise given was left aside, or an empty string
    scores: dict[int, float]  # ICL of every K looked at; lower is better
    converged: bool

    @property
    def n_clusters(self) -> int:
        return len(self.centers)

    @property
    def rule(self) -> str:
        """What decided on the groups: the reading of the noise, or "given"."""
        return self.reading if self.asked is None else "given"

    @property
    def reason(self) -> str:
        """How the groups were found, in a sentence."""
        return self.reason_for(self.tau2_mean)

    def reason_for(self, tau2: float | None) -> str:
        """The sentence for a given tau2.

        ``tau2`` is the variance inside a group per coordinate, in the units of theta squared;
        None where it is not known.
        """
        groups = "1 group" if self.n_clusters == 1 else f"{self.n_clusters} groups"
        asked = "" if self.asked is None else f" ({self.asked} asked for)"
        found = f"{self.doubt}{groups}{asked} found {HOW[self.reading]}"
        if self.overstated is not None:
            share = f"{self.overstated:.2g} of what the noise given allows"
            return f"{found}: users of a group differ by {share}."
        if self.reading != "noise":
            return f"{found}: nothing is known of their noise."
        if tau2 is None:
            return f"{found}."
        known = self.noise_units[np.isfinite(self.noise_units)]
        times = np.sqrt(tau2 / self._unit / np.median(known))
        differ = f"by about {times:.2g} times a user's noise" if tau2 > 0 else "only by noise"
        return f"{found}: users of a group differ {differ}."

    @property
    def _unit(self) -> float:
        """Mean over coordinates of a variance of 1 in the units of tau2, in those of theta."""
        return 1.0 if self.metric is None else float(np.diag(self.metric).mean())

    @property
    def tau2_mean(self) -> float:
        """Variance inside a group, averaged over coordinates, in the units of theta squared."""
        return self.tau2 * self._unit


def noise_mixture(
    theta: ArrayLike,
    *,
    noise: ArrayLike | None = None,
    covariance: ArrayLike | None = None,
    n_clusters: int | Literal["auto"] = "auto",
    max_clusters: MaxClusters = "auto",
    seed: int = 0,
) -> MixtureResult:
    """Hidden groups of local models, K included: steps 2(i)-(ii) of Algorithm 1, our way.

    ``theta`` is (n_users, dim). How noisy it is comes as ``covariance`` (n_users, dim, dim), or
    as its trace ``noise`` (n_users,), or not at all: then one variance shared by all users is
    fitted. With covariances, distances are in units of their average (whitening), which makes
    the answer independent of the units of the features.

    Users whose noise is not known (infinite) are assigned to the groups that the others form, and
    change neither K nor centres nor tau2. ``max_clusters="auto"`` looks up to 20, and twice as far
    as long as the best K is near the end.
    """
    given, scale = in_range(check_inputs(theta, noise, covariance))
    doubt = _too_few(given)
    if doubt:
        given = Given(given.theta, None, None, np.ones(len(given.theta), dtype=bool))
    wanted = check_numbers(n_clusters, max_clusters, int(given.known.sum()))
    units = units_of(given)
    # Users by a fixed random projection of theta, then by noise: random draws meet the same user
    # in the same place however users were listed. Those equal in both are exchangeable.
    order = np.flatnonzero(given.known)
    direction = np.random.default_rng(0).standard_normal(given.theta.shape[1])
    along = (given.theta[order] - units.shift) @ direction
    order = order[np.lexsort((units.noise[order], along))]
    cloud = Cloud(units.points[order], units.noise[order], given.theta.shape[1], given.has_noise)
    axes_of = axes_in_order(given, units, order)
    choice = _decide(cloud, wanted, max_clusters, seed, axes_of)
    everybody = Cloud(units.points, choice.mixture.scale * units.noise, cloud.dim)
    shares, labels = _assign(everybody, choice.mixture)
    number = labels[np.sort(np.unique(labels, return_index=True)[1])]  # groups by first user
    labels, shares = number_by_first_user(labels), shares[:, number]
    centers = choice.mixture.centers[number]
    centers = centers if units.back is None else centers @ units.back
    metric, forward, unit = units.metric, units.forward, scale
    if metric is not None and forward is not None:  # whitened units know of no scale
        metric, forward, unit = metric / scale / scale, forward * scale, 1.0
    return MixtureResult(
        labels=labels,
        centers=(units.shift + centers) / scale,
        responsibilities=shares,
        probabilities=np.take_along_axis(shares, labels[:, None], axis=1)[:, 0],
        tau2=choice.mixture.tau2 / unit / unit,
        metric=metric,
        noise_units=everybody.noise / unit / unit,
        forward=forward,
        reading=choice.reading,
        asked=wanted,
        overstated=choice.overstated,
        doubt=doubt,
        scores=choice.found.scores,
        converged=choice.found.fit.converged,
    )


def _too_few(given: Given) -> str:
    """Why users who know their noise cannot stand for the federation, or an empty string."""
    n_users, n_known = len(given.theta), int(given.known.sum())
    if not given.has_noise or n_known >= max(min(FEWEST, HALF * n_users), LEAST_SHARE * n_users):
        return ""
    each = "have rows enough to tell how noisy their models are"
    if n_known < 2:
        each = "has rows enough to tell how noisy its model is"
    who = f"Only {n_known}" if n_known else "None"
    return f"{who} of {n_users} users {each}, so that this is left aside. "


@dataclass(frozen=True, eq=False)
class _Choice:
    """A search that was accepted, and under which reading of the noise."""

    found: Found
    reading: Reading
    overstated: float | None = None

    @cached_property
    def mixture(self) -> MixtureParameters:
        """Of the groups that are likeliest for at least one user."""
        mixture, kept = self.found.fit.mixture, np.unique(self.found.fit.labels)
        return replace(
            mixture,
            centers=mixture.centers[kept],
            precision=mixture.precision[kept],
            shares=mixture.shares[kept] / mixture.shares[kept].sum(),
        )


def _decide(
    cloud: Cloud,
    wanted: int | None,
    max_clusters: MaxClusters,
    seed: int,
    axes_of: Callable[[Ints], Axes] | None,
) -> _Choice:
    """Believe the noise; if the data contradict it, only its ratios between users.

    Noise that is too small shows as tau2 > 0 and does no harm to K. Noise that is too large hides
    groups, but it shows: users of a group lie closer together than it allows.
    """
    found = find_groups(cloud, wanted, max_clusters, seed, axes_of)
    if axes_of is not None:
        found = replace(found, fit=sharpen(cloud, found.fit, axes_of))
    if not cloud.believed:
        return _Choice(found, "shared-variance")
    ratio, error = found.fit.misfit, np.sqrt(2 / max(found.fit.degrees, 1.0))
    if not (ratio < OVERSTATED and ratio + 4 * error < 1):
        return _Choice(found, "noise")
    scaled = find_groups(replace(cloud, believed=False), wanted, max_clusters, seed)
    return _Choice(scaled, "scaled-noise", ratio)


def _assign(everybody: Cloud, mixture: MixtureParameters) -> tuple[Floats, Ints]:
    """Probabilities of the groups, (n_users, K), and labels: the likeliest, the lower on a tie.

    Where the noise is unknown (inf) the probabilities are the groups' shares, and the label is
    that of the nearest centre.
    """
    mixture = replace(mixture, scale=1.0)  # everybody.noise has it already
    r = np.empty((len(everybody), len(mixture)))
    step = max(1, CHUNK_ENTRIES // len(mixture))
    for start in range(0, len(r), step):
        part = np.arange(start, min(start + step, len(r)))
        r[part] = responsibilities(everybody.rows(part), mixture)[0]
    labels = r.argmax(axis=1)
    unknown = np.isinf(everybody.noise)
    if unknown.any():
        labels[unknown] = nearest_center(everybody.points[unknown], mixture.centers)
    return r, labels


class NoiseMixture(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Mixture of hidden groups with known noise; finds the number of groups itself.

    ``fit`` takes the models of the users as rows of X and, if known, how noisy they are:
    ``noise`` (n_users,) or ``covariance`` (n_users, dim, dim); see ``noise_mixture``.
    """

    uses_covariance: ClassVar[bool] = True

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = "auto",
        *,
        max_clusters: MaxClusters = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_clusters = max_clusters
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,
        y: None = None,
        noise: ArrayLike | None = None,
        covariance: ArrayLike | None = None,
    ) -> Self:
        """Find the groups of the rows of X; ``y`` is there for scikit-learn and not used."""
        X = validate_data(self, X, dtype=np.float64)
        self.result_ = result = noise_mixture(
            X,
            noise=noise,
            covariance=covariance,
            n_clusters=self.n_clusters,
            max_clusters=self.max_clusters,
            seed=as_seed(self.random_state),
        )
        self.labels_, self.cluster_centers_ = result.labels, result.centers
        self.n_clusters_, self.tau2_ = result.n_clusters, result.tau2
        self.probabilities_, self.scores_ = result.probabilities, result.scores
        self.rule_, self.reason_ = result.rule, result.reason
        return self

    def predict(self, X: ArrayLike) -> Ints:
        """Nearest centre in the units of the noise, (n,): what a user of unknown noise gets."""
        check_is_fitted(self)
        theta: Floats = validate_data(self, X, dtype=np.float64, reset=False)
        forward, origin = self.result_.forward, self.cluster_centers_[0]
        if forward is None:
            return nearest_center(theta, self.cluster_centers_)
        # Around one of the centres: far from the origin the products would lose the differences.
        return nearest_center(
            (theta - origin) @ forward, (self.cluster_centers_ - origin) @ forward
        )
