"""A federation as one imagines it before there are data: groups, rows, noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.spatial.distance import pdist
from scipy.stats import chi2, norm

from odcl._typing import Floats, Ints
from odcl.local.losses import Loss, as_loss

if TYPE_CHECKING:
    from odcl.data.federation import Federation
    from odcl.method import ODCLResult

Draw = Callable[[np.random.Generator], Floats]  # (n_clusters, dim)
DrawRows = Callable[[int, int, np.random.Generator], Floats]  # cluster, count -> (count, inputs)
MOST_USERS = 10_000
KNOWN_LOSSES = ("squared", "logistic", "poisson")


@dataclass(frozen=True, eq=False)
class Scenario:
    """What the simulation of uploads needs to know of a federation."""

    loss: Loss
    sizes: Ints  # (n_clusters,), users of each group
    dim: int  # parameters of a model
    dispersion: float  # phi: variance of the noise for squared loss, 1 for classes
    draw_centers: Draw
    draw_rows: DrawRows
    words: str  # the set-up in a sentence
    penalty: Floats | None = None  # (dim,), l2 of each parameter; None: none
    tau: float = 0.0  # how far users of a group differ, a coordinate
    rows_differ: bool = False  # do rows of different groups follow different laws?
    paper: PaperBounds | None = None  # what Theorem 1 needs besides

    @property
    def n_users(self) -> int:
        return int(self.sizes.sum())

    @property
    def n_clusters(self) -> int:
        return len(self.sizes)

    @property
    def groups(self) -> Ints:
        """(n_users,): users of a group stand together."""
        return np.repeat(np.arange(self.n_clusters), self.sizes)

    def separation(self, seed: int = 0) -> float:
        """Smallest distance between two groups' models, D; the mean over a few draws."""
        if self.n_clusters == 1:
            return math.inf
        rng = np.random.default_rng(seed)
        return float(np.mean([pdist(self.draw_centers(rng)).min() for _ in range(20)]))


@dataclass(frozen=True)
class PaperBounds:
    """Bounds on the data that the paper's constants ask for (Section 2)."""

    row_norm: float
    least_eigenvalue: float
    target: float | None  # on |y|, given a bound on |x theta|
    noise: float | None  # on the slope at the optimum


def scenario(
    *,
    n_users: int = 100,
    n_clusters: int = 10,
    dim: int = 20,
    loss: str | Loss = "squared",
    separation: float | None = None,
    noise: float = 1.0,
    active: int | None = None,
    sizes: Sequence[int] | None = None,
    tau: float = 0.0,
) -> Scenario:
    """A federation by its numbers; the defaults are the paper's linear set-up (Section 5).

    Rows have ``active`` (default 5, or dim) random features from N(0, 1) and zeros elsewhere.
    Without ``separation`` the groups' models are those of the paper's linear set-up, which exists
    for 4 and 10 groups; with it they are ``separation`` apart, all equally far from one another
    where dim allows (n_clusters <= dim + 1), on a cubic lattice otherwise. ``noise`` is the
    standard deviation of the target around its model (squared loss).
    """
    kind = as_loss(loss)
    if kind.name not in KNOWN_LOSSES:
        raise ValueError(
            f"A plan for the {kind.name} loss has no rows to imagine. Say one of "
            f"{', '.join(KNOWN_LOSSES)}, or give a pilot table."
        )
    counts = _checked(_sizes(n_users, n_clusters, sizes))
    active = min(5, dim) if active is None else active
    if not (dim >= 1 and 1 <= active <= dim):
        raise ValueError(f"active={active} features of dim={dim} cannot be non-zero: 1 to dim can.")
    if not noise > 0 or not tau >= 0:
        raise ValueError(f"noise={noise!r} must be > 0 and tau={tau!r} >= 0: they are sizes.")
    if separation is not None and not 0 < separation < math.inf:
        raise ValueError(f"separation={separation!r} is a distance between models: say one > 0.")
    draw, where = _centers(len(counts), dim, separation)
    squared = kind.name == "squared"
    row_norm = math.sqrt(chi2.ppf(0.999, active))
    slope = noise * norm.ppf(0.9995) if squared else None
    reach = None if kind.classification else math.inf
    words = (
        f"{int(counts.sum())} users in {len(counts)} group{'s' * (len(counts) > 1)}, "
        f"{dim} parameter{'s' * (dim > 1)}, {kind.name} loss, {where}; rows with {active} "
        "non-zero features from N(0, 1)"
    ) + (f", noise {noise:g}" if squared else "")
    return Scenario(
        loss=kind,
        sizes=counts,
        dim=dim,
        dispersion=noise**2 if squared else 1.0,
        draw_centers=draw,
        draw_rows=lambda _, count, rng: sparse_rows(count, dim, active, rng),
        words=words,
        tau=tau,
        paper=PaperBounds(row_norm, active / dim, reach, slope),
    )


def from_pilot(
    result: ODCLResult,
    federation: Federation,
    *,
    n_users: int | None = None,
    l2: float = 0.0,
    fit_intercept: bool = False,
) -> Scenario:
    """The federation that a pilot suggests: its groups, its rows, its noise.

    ``federation`` holds the rows that ``result`` was fitted on. Groups keep their shares when
    ``n_users`` is another number than the pilot's; rows are drawn from those of the group's users.
    """
    from odcl.local.losses import penalty

    labels, step = result.labels, result.step
    counts = np.bincount(labels)
    if n_users is not None:
        counts = _checked(_shared_out(counts, n_users))
    X = federation.X
    if fit_intercept:
        X = np.column_stack([X, np.ones(len(X))])
    owner = labels[federation.row_user]
    own = [X[owner == k] for k in range(len(counts))]
    phi = step.dispersion
    known = phi[np.isfinite(phi)] if phi is not None else np.ones(1)
    dim = result.centers.shape[1]
    pen = penalty(X.shape[1], result.loss.n_outputs, l2, fit_intercept)
    words = (
        f"the pilot's {len(counts)} group{'s' * (len(counts) > 1)}, {int(counts.sum())} users, "
        f"{dim} parameters, {result.loss.name} loss, in standardised units"
    )
    return Scenario(
        loss=result.loss,
        sizes=counts,
        dim=dim,
        dispersion=float(np.mean(known)) if len(known) else 1.0,
        draw_centers=lambda _: result.centers,
        draw_rows=lambda k, count, rng: own[k][rng.integers(len(own[k]), size=count)],
        words=words,
        penalty=pen if l2 > 0 else None,
        tau=math.sqrt(step.tau2 or 0.0),
        rows_differ=True,
    )


def sparse_rows(count: int, dim: int, active: int, rng: np.random.Generator) -> Floats:
    """Rows of the paper's linear set-up, (count, dim): ``active`` entries N(0, 1), others 0."""
    if active == dim:
        return rng.standard_normal((count, dim))
    places = rng.random((count, dim), dtype=np.float32).argpartition(active - 1, axis=1)[:, :active]
    X = np.zeros((count, dim))
    np.put_along_axis(X, places, rng.standard_normal((count, active)), axis=1)
    return X


def _sizes(n_users: int, n_clusters: int, sizes: Sequence[int] | None) -> Ints:
    if sizes is not None:
        counts = np.asarray(sizes, dtype=np.intp)
        if counts.ndim != 1 or len(counts) == 0 or counts.min() < 1:
            raise ValueError(f"sizes={list(sizes)} must be whole numbers >= 1, one a group.")
        return counts
    if not 1 <= n_clusters <= n_users:
        raise ValueError(
            f"{n_users} users cannot form {n_clusters} groups: every group needs a user. Say "
            "1 <= clusters <= users."
        )
    return np.bincount(np.arange(n_users) * n_clusters // n_users)


def _checked(counts: Ints) -> Ints:
    if counts.sum() > MOST_USERS:
        raise ValueError(
            f"{int(counts.sum()):,} users are more than a plan simulates. Plan with "
            f"{MOST_USERS:,}: the n that is needed grows with the logarithm of their number."
        )
    return counts


def _shared_out(counts: Ints, n_users: int) -> Ints:
    """Sizes with the same shares that add up to ``n_users``; no group is lost."""
    if n_users < len(counts):
        raise ValueError(f"{n_users} users cannot form the pilot's {len(counts)} groups.")
    edges = np.round(np.cumsum(counts) * n_users / counts.sum())
    found = np.maximum(np.diff(np.concatenate([[0], edges])), 1).astype(np.intp)
    found[found.argmax()] += n_users - found.sum()
    return found


def _centers(n_clusters: int, dim: int, separation: float | None) -> tuple[Draw, str]:
    from odcl.data.synthetic import _LINEAR_INTERVALS

    if separation is None:
        lows = _LINEAR_INTERVALS.get(n_clusters)
        if lows is None:
            known = ", ".join(str(k) for k in _LINEAR_INTERVALS)
            raise ValueError(
                f"The paper's linear set-up exists for {known} groups, not for {n_clusters}: say "
                "how far apart the groups' models are (separation)."
            )
        low = np.array(lows)[:, None]
        return (lambda rng: low + rng.random((n_clusters, dim))), "models as in the paper"
    base = (simplex if n_clusters <= dim + 1 else lattice)(n_clusters, dim) * separation

    def draw(rng: np.random.Generator) -> Floats:
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
    """Points of the cubic lattice nearest to its cube's corner, (n_clusters, dim), centred."""
    side = math.ceil(n_clusters ** (1 / dim) - 1e-9)
    used = min(dim, max(1, math.ceil(math.log(n_clusters, max(side, 2)))))
    grid = np.indices((side,) * used).reshape(used, -1).T.astype(np.float64)
    order = np.argsort((grid**2).sum(axis=1), kind="stable")[:n_clusters]
    return np.pad(grid[order] - grid[order].mean(axis=0), ((0, 0), (0, dim - used)))
