"""A federation before there are data, from its numbers or from a pilot: groups, rows, noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator
from scipy.spatial.distance import pdist
from scipy.stats import chi2, norm

from odcl._typing import Floats, Ints
from odcl.data.curves import bent_rows
from odcl.data.federation import Federation
from odcl.data.synthetic import LINEAR_INTERVALS
from odcl.errors import InputError, Setting
from odcl.fitted.curves import OpenColumns
from odcl.mixed.layout import model_spread
from odcl.risk.loss import Loss
from odcl.risk.losses import as_loss
from odcl.risk.risk import Risk, too_wide
from odcl.theory import problem_constants, sample_ratio_cc, sample_ratio_km, smallest_n
from odcl.wide.moments import mixed_only

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis
    from odcl.engines.in_process import Result

Draw = Callable[[Generator], Floats]  # (n_clusters, dim)
DrawRows = Callable[[int, int, Generator], Floats]  # cluster, count -> (count, inputs)
LEAST, MOST = 1e-50, 1e50  # noise, separation and tau: products of their ratios stay finite
KNOWN_LOSSES = ("squared", "logistic", "poisson")
MOST_BLIND = 0.25  # share of a pilot's users with no more rows than parameters
ACTIVE = 5  # non-zero features of a row in the paper's linear set-up
FEW = 3  # users that a pilot's group needs to be trusted


@dataclass(frozen=True, eq=False)
class Scenario:
    """What the simulation of uploads needs to know of a federation."""

    risk: Risk
    sizes: Ints  # (n_clusters,), users of each group
    dim: int  # parameters of a model
    dispersion: float  # phi: variance of the noise for squared loss, 1 for classes
    draw_centers: Draw
    draw_rows: DrawRows
    words: str  # the set-up in a sentence
    tau: float = 0.0  # how far users of a group differ, per coordinate
    pilot: PilotFacts | None = None  # whose rows are drawn from, group by group
    inside: Floats | None = None  # (dim, dim), covariance where it is not tau^2 times the unit

    @property
    def spread(self) -> Floats:
        """Covariance of the models of a group's users, (dim, dim)."""
        return self.tau**2 * np.eye(self.dim) if self.inside is None else self.inside

    @property
    def differ(self) -> str:
        """How far users of a group differ, in words; empty: not at all."""
        some, of = int((np.diag(self.spread) > 0).sum()), self.pilot.dim if self.pilot else self.dim
        if some < of and some:
            size = math.sqrt(np.trace(self.spread) / some)
            return f"differ in {some} of {of} parameters, by {size:.2g}"
        return f"differ by {self.tau:.2g} per parameter" if self.tau else ""

    @property
    def loss(self) -> Loss:
        return self.risk.loss

    @property
    def n_users(self) -> int:
        return int(self.sizes.sum())

    @property
    def n_clusters(self) -> int:
        return len(self.sizes)

    @property
    def least_rows(self) -> int:
        """The smallest n that is simulated: squared loss needs more rows than parameters."""
        return self.dim + 2

    @property
    def groups(self) -> Ints:
        """(n_users,): users of a group stand together."""
        return np.repeat(np.arange(self.n_clusters), self.sizes)

    def separation(self) -> float:
        """Smallest distance between two groups' models, D; the mean over a few draws."""
        if self.n_clusters == 1:
            return math.inf
        rng = np.random.default_rng(0)
        return float(np.mean([pdist(self.draw_centers(rng)).min() for _ in range(20)]))


@dataclass(frozen=True)
class PilotFacts:
    """What a plan has to say about the pilot behind it."""

    n: int  # rows of the median user
    dim: int  # parameters that a user's rows tell: fewer where users share some
    even: bool  # do all users have that many?
    enough: bool  # does `odcl diagnose` say that one shot is enough?
    verdict: str  # its first sentence
    warnings: tuple[str, ...]


def scenario(
    *,
    n_users: int = 100,
    n_clusters: int = 10,
    dim: int = 20,
    loss: str | Loss = "squared",
    separation: float | None = None,
    noise: float | None = None,
    tau: float = 0.0,
) -> Scenario:
    """A federation by its numbers; the defaults are the paper's linear set-up (Section 5).

    Rows have five random features (or dim, if fewer) from N(0, 1) and zeros elsewhere.
    Without ``separation`` the groups' models are as in the paper's linear set-up, which exists
    for 1, 4 and 10 groups; with it they are ``separation`` apart, all equally far from one another
    where dim allows (n_clusters <= dim + 1), on a cubic lattice otherwise. ``noise`` is the
    standard deviation of the target around its model (squared loss only; default 1). ``tau`` is
    how far users of a group differ, the standard deviation of each parameter.
    """
    kind = as_loss(loss)
    if kind.name not in KNOWN_LOSSES:
        raise ValueError(
            f"A plan for the {kind.name} loss has no rows to imagine. Say one of "
            f"{', '.join(KNOWN_LOSSES)}, or give a pilot table."
        )
    if dim < 1:
        raise ValueError(f"dim={dim} is the number of parameters of a model: say 1 or more.")
    if not 1 <= n_clusters <= n_users:
        raise ValueError(
            f"{n_users} users cannot form {n_clusters} groups: every group needs a user. Say fewer "
            "groups, or more users."
        )
    counts = shared_out(np.ones(n_clusters, dtype=np.intp), n_users)
    active = min(ACTIVE, dim)
    squared = kind.name == "squared"
    if noise is not None and not squared:
        raise ValueError(
            f"noise={noise!r} belongs to the squared loss: the {kind.name} loss says by itself how "
            "far targets are from their model. Leave it out."
        )
    noise = 1.0 if noise is None else noise
    if not 0 < noise < math.inf:
        raise ValueError(f"noise={noise!r} is a standard deviation of the target: say one > 0.")
    if not 0 <= tau < math.inf:
        raise ValueError(f"tau={tau!r} is how far users of a group differ: say a number >= 0.")
    if separation is not None and not 0 < separation < math.inf:
        raise ValueError(f"separation={separation!r} is a distance between models: say one > 0.")
    _check_unit(noise=noise, tau=tau, separation=separation or 0.0)
    draw, where = _centers(len(counts), dim, separation)
    words = (
        f"{int(counts.sum())} users in {len(counts)} group{'s' * (len(counts) > 1)}, "
        f"{dim} parameter{'s' * (dim > 1)}, {kind.name} loss, {where}; rows with {active} "
        "non-zero features from N(0, 1)"
    ) + (f", noise {noise:g}" if squared else "")
    words += f"; users of a group differ by {tau:g} per parameter" if tau > 0 else ""
    return Scenario(
        risk=Risk(kind),
        sizes=counts,
        dim=dim,
        dispersion=noise**2 if squared else 1.0,
        draw_centers=draw,
        draw_rows=lambda _, count, rng: sparse_rows(count, dim, active, rng),
        words=words,
        tau=tau,
    )


def sparse_rows(count: int, dim: int, active: int, rng: Generator) -> Floats:
    """Rows of the paper's linear set-up, (count, dim): ``active`` entries N(0, 1), others 0."""
    if active == dim:
        return rng.standard_normal((count, dim))
    # Floyd's algorithm: a draw from 0..last, or last itself where the feature drawn is taken.
    features = np.empty((count, active), dtype=np.intp)
    for j, last in enumerate(range(dim - active, dim)):
        drawn = rng.integers(last + 1, size=count)
        taken = (features[:, :j] == drawn[:, None]).any(axis=1)
        features[:, j] = np.where(taken, last, drawn)
    X = np.zeros((count, dim))
    X[np.arange(count)[:, None], features] = rng.standard_normal((count, active))
    return X


def _check_unit(**numbers: float) -> None:
    """Refuse numbers whose squares and products leave the range of floating point."""
    for name, value in numbers.items():
        if value != 0 and not LEAST <= value <= MOST:
            raise ValueError(
                f"{name}={value:.3g} is beyond what a plan can square and multiply, {LEAST:g} to "
                f"{MOST:g}. Measure the target in another unit: with noise, tau and separation "
                "divided by one number the plan is the same."
            )


def _centers(n_clusters: int, dim: int, separation: float | None) -> tuple[Draw, str]:
    if separation is None:
        lows = LINEAR_INTERVALS.get(n_clusters)
        if lows is None:
            *some, last = map(str, LINEAR_INTERVALS)
            known = f"{', '.join(some)} and {last}"
            raise InputError(
                f"The paper's linear set-up exists for {known} groups, not for {n_clusters}: say "
                "how far apart the groups' models are, such as ",
                *(Setting("separation", 1), "."),
            )
        low = np.array(lows)[:, None]
        return (lambda rng: low + rng.random((n_clusters, dim))), "models as in the paper"
    base = (simplex if n_clusters <= dim + 1 else lattice)(n_clusters, dim) * separation

    def draw(rng: Generator) -> Floats:
        turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        return base @ turn

    return draw, f"models {separation:g} apart"


def simplex(n_clusters: int, dim: int) -> Floats:
    """Points all at distance 1 from one another, around the origin, (n_clusters, dim).

    One point alone has norm 1.
    """
    if n_clusters == 1:
        return np.eye(1, dim)
    corners = np.eye(n_clusters) / math.sqrt(2.0)
    corners -= corners.mean(axis=0)
    _, _, axes = np.linalg.svd(corners)
    flat = corners @ axes[: n_clusters - 1].T
    return np.pad(flat, ((0, 0), (0, dim - n_clusters + 1)))


def lattice(n_clusters: int, dim: int) -> Floats:
    """Points of the cubic lattice nearest to its cube's corner, (n_clusters, dim), centered."""
    side = math.ceil(n_clusters ** (1 / dim) - 1e-9)
    used = min(dim, max(1, math.ceil(math.log(n_clusters, max(side, 2)))))
    grid = np.indices((side,) * used).reshape(used, -1).T.astype(np.float64)
    order = np.argsort((grid**2).sum(axis=1), kind="stable")[:n_clusters]
    return np.pad(grid[order] - grid[order].mean(axis=0), ((0, 0), (0, dim - used)))


def paper_thresholds(scene: Scenario) -> dict[str, int]:
    """The n that Theorem 1 asks for: "ODCL-KM" (c = 100) and "ODCL-CC"; {} where not known.

    Constants of Section 2 with bounds that hold for 999 of 1,000 rows and the radius of the
    largest of the groups' models. Worst cases multiply up: expect astronomical numbers.
    """
    if scene.pilot is not None or scene.n_clusters == 1:
        return {}
    rng = np.random.default_rng(0)
    radius = float(np.linalg.norm(scene.draw_centers(rng), axis=1).max())
    active = min(ACTIVE, scene.dim)
    row_norm, least = math.sqrt(chi2.ppf(0.999, active)), active / scene.dim
    squared = scene.loss.name == "squared"
    noise = math.sqrt(scene.dispersion) * norm.ppf(0.9995) if squared else None
    try:
        M = problem_constants(
            scene.loss,
            n_features=scene.dim,
            row_norm=max(row_norm, math.sqrt(scene.dim * least)),
            radius=max(radius, 1 / 6),
            least_eigenvalue=least,
            target=None if scene.loss.classification else radius * row_norm + (noise or 0.0),
            noise=noise,
        ).M
        numbers = scene.n_users, int(scene.sizes.min()), M, scene.separation()
        ratios = {"ODCL-KM": sample_ratio_km(*numbers), "ODCL-CC": sample_ratio_cc(*numbers)}
        return {name: smallest_n(ratio) for name, ratio in ratios.items() if ratio < 1e300}
    except (ValueError, OverflowError):  # such as Poisson rates beyond floating point
        return {}


# -- from a pilot ----------------------------------------------------------------------------------


def from_pilot(
    result: Result, federation: Federation, *, n_users: int | None = None, **how: Any
) -> Scenario:
    """The federation that a pilot suggests: its groups, its rows, its noise.

    ``federation`` holds the rows that ``result`` was fitted on. Groups keep their shares when
    ``n_users`` differs from the pilot's; rows are drawn from the rows of the group's users.
    How far users of a group differ (tau) is what ``result.diagnose()`` finds. A pilot that shows no
    groups, or has too few rows to show any, is refused; ``how`` is for its diagnosis.
    """
    if result.step.mixture is not None and mixed_only(result.step.mixture) is None:
        raise too_wide(result.risk, result.centers.shape[1], "Plans from a pilot")
    found = result.diagnose(resamples=1, **how)
    _check_pilot(found)
    labels, centers, risk = result.labels, result.centers, result.risk
    mixture = mixed_only(result.step.mixture)
    if mixture is None:
        raise ValueError(
            "A plan is made from a pilot of mixed groups, the default, and the groups of this one "
            f"were found by {result.method.clusterer}: fit the pilot again by odcl.Method()."
        )
    lines = min((j for curve in risk.curves for j in curve.columns), default=0)
    left = OpenColumns.of(mixture, risk, lines)
    if left is not None:  # bends that nobody has are no parameters
        risk, centers = left.risk, centers[:, left.numbers]
        mixture = replace(mixture, coordinates=left.coordinates)
    counts, dim = np.bincount(labels), centers.shape[1]
    if n_users is not None:
        counts = shared_out(counts, n_users)
    X = risk.design(bent_rows(federation, risk.curves).X)
    owner = labels[federation.row_user]
    own = [X[owner == k] for k in range(len(counts))]
    dispersion, tau = 1.0, math.sqrt(found.tau2)
    if risk.loss.has_dispersion:
        dispersion = mixture.noise.s0 * mixture.coordinates.target_scale**2
    _check_unit(noise=math.sqrt(dispersion), tau=tau, separation=float(pdist(centers).min()))
    scene = Scenario(
        risk=risk,
        sizes=counts,
        dim=dim,
        dispersion=dispersion,
        draw_centers=lambda _: centers,
        draw_rows=lambda k, count, rng: own[k][rng.integers(len(own[k]), size=count)],
        words=f"the pilot's {len(counts)} groups, {int(counts.sum())} users, {found.dim} "
        f"parameters, {risk.loss.name} loss, in standardised units; users of a group ",
        tau=tau,
        pilot=_pilot_facts(found),
        inside=model_spread(mixture, risk),
    )
    return replace(scene, words=scene.words + (scene.differ or "alike"))


def _check_pilot(found: Diagnosis) -> None:
    """Refuse a pilot from which nothing follows."""
    verdict = found.verdict
    blind = float(np.mean(found.n_samples <= found.dim))
    short = verdict.advice in ("collect", "unknown")
    if found.n_clusters > 1 and not (short and blind > MOST_BLIND):
        return
    what = (
        "Collect more rows for the pilot, or plan without one"
        if short
        else "If you expect groups all the same, plan without a pilot"
    )
    raise ValueError(
        "Nothing can be planned from this pilot, for a plan is about finding groups. Its diagnosis:"
        f" {verdict.sentence} {verdict.reason} {what}, from numbers: how many groups, how many "
        "parameters, how far apart."
    )


def _pilot_facts(found: Diagnosis) -> PilotFacts:
    """The pilot in numbers, and why the plan is not to be trusted."""
    n, verdict, warnings = found.n_samples, found.verdict, list[str]()
    if verdict.advice not in ("one-shot", "default"):
        warnings.append("The plan is for the groups that the pilot seems to have.")
    few = int((np.bincount(found.labels) < FEW).sum())
    if few:
        some = "1 group has" if few == 1 else f"{few} groups have"
        warnings.append(f"{some} fewer than {FEW} users in the pilot: their models are guesses.")
    return PilotFacts(
        n=round(float(np.median(n))),
        dim=found.dim,
        even=bool(n.min() == n.max()),
        enough=verdict.advice == "one-shot",
        verdict=verdict.sentence,
        warnings=tuple(warnings),
    )


def shared_out(counts: Ints, n_users: int) -> Ints:
    """Sizes with the same shares that add up to ``n_users``; no group is lost."""
    if n_users < len(counts):
        raise ValueError(f"{n_users} users cannot form the pilot's {len(counts)} groups.")
    edges = np.round(np.cumsum(counts) * n_users / counts.sum())
    found = np.maximum(np.diff(np.concatenate([[0], edges])), 1).astype(np.intp)
    found[found.argmax()] += n_users - found.sum()
    return found
