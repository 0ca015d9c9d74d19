"""A federation as one imagines it before there are data: groups, rows, noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import pdist
from scipy.stats import chi2, norm

from odcl._typing import Floats, Ints
from odcl.risk.loss import Loss
from odcl.risk.losses import as_loss

Draw = Callable[[np.random.Generator], Floats]  # (n_clusters, dim)
DrawRows = Callable[[int, int, np.random.Generator], Floats]  # cluster, count -> (count, inputs)
MOST_NUMBERS = 4_000_000  # users times dim^2: 10,000 users of 20 parameters
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
    pilot: PilotFacts | None = None  # where it was read off data

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
class PilotFacts:
    """What a plan has to say about the data that it was read off."""

    n: int  # rows of the median user
    even: bool  # have all users as many?
    n_users: int
    verdict: str  # what `odcl diagnose` says of the pilot, its first sentence
    warnings: tuple[str, ...]


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
    noise: float | None = None,
    active: int | None = None,
    sizes: Sequence[int] | None = None,
    tau: float = 0.0,
) -> Scenario:
    """A federation by its numbers; the defaults are the paper's linear set-up (Section 5).

    Rows have ``active`` (default 5, or dim) random features from N(0, 1) and zeros elsewhere.
    Without ``separation`` the groups' models are those of the paper's linear set-up, which exists
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
    counts = checked_sizes(_sizes(n_users, n_clusters, sizes), dim)
    active = min(5, dim) if active is None else active
    if not (dim >= 1 and 1 <= active <= dim):
        raise ValueError(f"active={active} features of dim={dim} cannot be non-zero: 1 to dim can.")
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
    draw, where = _centers(len(counts), dim, separation)
    row_norm = math.sqrt(chi2.ppf(0.999, active))
    slope = noise * norm.ppf(0.9995) if squared else None
    reach = None if kind.classification else math.inf
    words = (
        f"{int(counts.sum())} users in {len(counts)} group{'s' * (len(counts) > 1)}, "
        f"{dim} parameter{'s' * (dim > 1)}, {kind.name} loss, {where}; rows with {active} "
        "non-zero features from N(0, 1)"
    ) + (f", noise {noise:g}" if squared else "")
    words += f"; users of a group differ by {tau:g} a parameter" if tau > 0 else ""
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


def sparse_rows(count: int, dim: int, active: int, rng: np.random.Generator) -> Floats:
    """Rows of the paper's linear set-up, (count, dim): ``active`` entries N(0, 1), others 0."""
    if active == dim:
        return rng.standard_normal((count, dim))
    places = _places(count, dim, active, rng)
    X = np.zeros((count, dim))
    X[np.arange(count)[:, None], places] = rng.standard_normal((count, active))
    return X


def _places(count: int, dim: int, active: int, rng: np.random.Generator) -> Ints:
    """``active`` of ``dim`` places without replacement, (count, active)."""
    if active > 16:
        keys = rng.random((count, dim), dtype=np.float32)
        return keys.argpartition(active - 1, axis=1)[:, :active]
    # Floyd's way: a draw from 0..last, or last itself where the place drawn is taken.
    places = np.empty((count, active), dtype=np.intp)
    for j, last in enumerate(range(dim - active, dim)):
        drawn = rng.integers(last + 1, size=count)
        taken = (places[:, :j] == drawn[:, None]).any(axis=1)
        places[:, j] = np.where(taken, last, drawn)
    return places


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


def checked_sizes(counts: Ints, dim: int) -> Ints:
    """Refuse more than can be simulated in a few seconds."""
    if int(counts.sum()) * dim**2 > MOST_NUMBERS:
        most = MOST_NUMBERS // dim**2
        what = f"Plan with {most:,} users" if most >= len(counts) else "Plan with fewer parameters"
        raise ValueError(
            f"{int(counts.sum()):,} users of {dim:,} parameters are more than a plan simulates. "
            f"{what}: the n that is needed grows with the logarithm of the number of users, and in "
            "proportion to that of parameters."
        )
    return counts


def _centers(n_clusters: int, dim: int, separation: float | None) -> tuple[Draw, str]:
    from odcl.data.synthetic import LINEAR_INTERVALS

    if separation is None:
        lows = LINEAR_INTERVALS.get(n_clusters)
        if lows is None:
            *some, last = map(str, LINEAR_INTERVALS)
            known = f"{', '.join(some)} and {last}"
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
