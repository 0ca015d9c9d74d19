"""Groups that no few users can bend: concentrate, re-admit, and bound everybody's pull.

A user of a group has D^2 = z'(W + W C W)^+ z, z = w - W c, chi-squared with as many degrees of
freedom as directions it sees. Groups are fitted again to the most plausible users of each; whoever
is plausible by that fit takes part, and no user pulls a center by more than one at the edge of what
is common would. The search itself is not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import chdtrc, chdtri, expit, fdtrc

from odcl._typing import Bools, Floats, Ints
from odcl.mixed.em import MixtureFit, fit_mixture, with_noise_freedom
from odcl.mixed.mixture import (
    Quadratics,
    center_step,
    group_sums,
    misfits,
    moments,
    responsibilities,
)
from odcl.mixed.select import ROUGHLY, center_prior
from odcl.mixed.streaming_em import Parameters, parameters_of

QUIET = 0.1  # of the median user's residual variance, the least that may be believed
CAP = 1.25  # medians: no user counts more than that, or than is usual where users are uneven
UPPER = 0.75  # of the users are no larger than one who counts as a whole
UNEVEN = 2.0  # usual spreads of a logarithm that nearly all users lie within
FEWEST = 5  # users: with fewer it is unknown what is plausible
SMALL = 3  # users that a group needs to vouch for anybody
CORE = 0.75  # of each group, the most plausible, that it is fitted again to
STRANGE = 0.01  # users of an honest federation who would be set aside
# Where users differ by more than noise, some honest ones lie this many usual distances out: no law
# says that differences are normal.
VARIED = 4.0
ALIKE = 1e-4  # chance that an honest group is as alike as one that is set aside
SAME = 0.25  # and its distances are below this share of what noise alone makes
MANY = 0.35  # of the users: if more are implausible, it is the groups that are
BETWEEN = 0.1  # of the users, at most, who may hide groups from the search
TURNS = 3
EDGE = 0.8  # of honest users pull with all their weight
STEPS = 20
STILL = 1e-6
CROWD = 8  # users of a group that tell which way it spreads
CHANCE = 1.0  # times the spread that chance allows the widest of all ways in a group
HUBER, BEYOND = 1.345, 3.0  # along it: full pull up to here, none from there on
ASIDE = 4.0  # standard errors of a user, about, that a few who want to pass as members pull by
REACH = 1.5  # along the widest way, from where on users may be of the few
MOST_FEW = 0.4  # of a group
DRAWS = 10  # of users who differ as T says, to compare with
TRUST = 1.0  # log odds, before anything is seen, that users differ and no few pull one way
SPARE = 5  # rows beyond the parameters from which equal numbers are no chance
MOST_PAIRS = 5000  # users who are compared with each other
GONE = 1e-3  # chance of lying as far out as who pulls no more
FAR, LEAST = 30.0, 0.3  # an own model this many usual differences off, and the least of these
OPEN = 100.0  # prior variance of users' own models, in canonical coordinates
OWN = 4.0  # degrees of freedom of the usual noise beside a user's own, where noise is common
NOISE = (0.5, 4.0)  # times the usual variance that a user is judged by


def heard(q: Quadratics, limits: tuple[float, float] | None = None) -> Quadratics:
    """The terms without any that would drown all others out, by the :func:`usual_terms`.

    Residual variance that hardly anybody would have whose noise is the least that is believed is
    raised to it, and a term that curves more than is usual counts for less, as a whole.
    """
    least, most = usual_terms(q) if limits is None else limits
    if q.noisy and q.dof.any():
        chance = 1 - chdtrc(np.maximum(q.dof, 1), q.pure / max(least, 1e-300))
        more = np.where((q.dof > 0) & (chance < ALIKE), least * q.dof - q.pure, 0.0)
        q = replace(q, uu=q.uu + more, pure=q.pure + more) if more.any() else q
    share = np.minimum(1.0, most / np.maximum(_curved(q), 1e-300))
    if (share == 1).all():
        return q
    own = {name: getattr(q, name) * share for name in ("uu", "rows", "dof", "pure")}
    ceiling = None if q.ceiling is None else q.ceiling * share
    A, b = q.A * share[:, None, None], q.b * share[:, None]
    return replace(q, A=A, b=b, ceiling=ceiling, **own)


def usual_terms(q: Quadratics) -> tuple[float, float]:
    """The least residual variance that is believed, and the most that a term curves."""
    most = most_usual(_curved(q)[q.rows > 0]) if (q.rows > 0).any() else 0.0
    told = q.dof > 0
    if not q.noisy or not told.any():
        return 0.0, most
    return usual_noise(q) * max(usual_least(q.pure[told] / q.dof[told]), QUIET), most


def _curved(q: Quadratics) -> Floats:
    """The largest curvature of each term, in any direction."""
    return np.asarray(np.linalg.eigvalsh(q.A)[:, -1])


def most_usual(sizes: Floats) -> float:
    """The most that a user may count with: what some users in four exceed, or hardly anybody."""
    middle = float(np.median(sizes))
    usual = middle * max(CAP, 1 / usual_least(sizes))
    return max(usual, float(np.quantile(sizes, UPPER)))


def usual_least(sizes: Floats) -> float:
    """Two usual spreads of the logarithm below the median, as a share of it."""
    logs = np.log(np.maximum(sizes, 1e-300))
    return float(np.exp(-UNEVEN * 1.4826 * np.median(np.abs(logs - np.median(logs)))))


def usual_noise(q: Quadratics) -> float:
    """The median user's residual variance."""
    told = q.dof > 0
    if not q.noisy or not told.any():
        return 1.0
    return max(float(np.median(q.pure[told] / q.dof[told])), 1e-10)


@dataclass(frozen=True, eq=False)
class Judgement:
    """How plausible users are in the groups of a fit."""

    group: Ints  # (n_users,), the likeliest
    square: Floats  # (n_users,), D^2
    rank: Ints  # (n_users,), directions that the user sees
    tail: Floats  # (n_users,), chance that a member lies as far out
    pull: Floats  # (n_users,), share of its weight that it may pull with
    alike: Bools  # (n_users,), in a group whose users differ by less than noise
    stands_out: Ints  # (n_users,), the coordinate that is farthest off, where it was asked for
    white: Floats  # (n_users, dim), away from the center in units of what is usual
    usual: float  # what D^2 was divided by

    @property
    def distance(self) -> Floats:
        """In units of what is usual: about 1."""
        return np.sqrt(self.square / np.maximum(self.rank, 1))


def judged_noise(q: Quadratics, at: Parameters) -> tuple[Floats, Floats]:
    """Noise variances that users are judged by, and the degrees of freedom behind them."""
    noise = at.noise
    if not q.noisy:
        return np.full(len(q), noise.s0), np.full(len(q), np.inf)
    nu = OWN if noise.common else noise.nu
    s2 = np.maximum((nu * noise.s0 + q.pure) / (nu + q.dof), NOISE[0] * noise.s0)
    # A user who claims more noise than that counts for less by itself, where noise is its own.
    return (np.minimum(s2, NOISE[1] * noise.s0) if noise.common else s2), nu + q.dof


def judge(
    q: Quadratics, at: Parameters, *, usual: float | None = None, stands_out: bool = False
) -> Judgement:
    """Every user's distance from its likeliest group; ``usual`` is known where others tell it.

    A core's T is too small, and so is that of users who are no sample of a normal law: D^2 is
    brought to the median that it should have, if it is larger.
    """
    s2, dof = judged_noise(q, at)
    m = moments(q, at.spread, s2)
    group = responsibilities(misfits(m, at.stack), at.weights)[0][0].argmax(axis=1)
    W, c = m.W, at.centers[group]
    z = m.w - (W @ c[..., None])[..., 0]
    white, rank = whitened(z, W + W @ at.covariances[group] @ W)
    square, told = (white**2).sum(axis=1), rank > 0
    if usual is None:
        common = (square / chdtri(np.maximum(rank, 1), 0.5))[told]
        usual = max(float(np.median(common)) if told.any() else 1.0, 1.0)
    square, white = square / usual, white / np.sqrt(usual)
    tail = _tail(square, rank, dof)
    edge = chdtri(np.maximum(rank, 1), 1 - EDGE)
    pull = np.minimum(1.0, np.sqrt(edge / np.maximum(square, 1e-300)))
    pull = np.where(told, np.where(tail < GONE, 0.0, pull), 1.0)
    coordinate = np.zeros(len(q), np.intp)
    if stands_out:
        V = np.linalg.pinv(W, rcond=1e-10, hermitian=True)
        with np.errstate(over="ignore"):  # infinitely far off is far off
            off = (V @ z[..., None])[..., 0] ** 2
        known = np.diagonal(V + at.covariances[group], axis1=1, axis2=2)
        coordinate = (off / np.maximum(known, 1e-300)).argmax(axis=1)
    alike = _alike(q, at, s2, group) | _copies(q, white, rank)
    return Judgement(group, square, rank, tail, pull, alike, coordinate, white, usual)


def whitened(z: Floats, S: Floats) -> tuple[Floats, Ints]:
    """S^(-1/2) z in the directions that S sees, and how many there are, user by user."""
    values, vectors = np.linalg.eigh(S)
    seen = values > 1e-10 * np.maximum(values[:, -1:], 1e-300)
    along = (vectors.transpose(0, 2, 1) @ z[..., None])[..., 0]
    along = np.where(seen, along / np.sqrt(np.where(seen, values, 1.0)), 0.0)
    return (vectors @ along[..., None])[..., 0], seen.sum(axis=1)


def _tail(square: Floats, rank: Ints, dof: Floats) -> Floats:
    rank = np.maximum(rank, 1)
    known = np.isinf(dof)
    free = np.where(known, 1.0, dof)
    tail = np.where(known, chdtrc(rank, square), fdtrc(rank, free, square / rank))
    return np.asarray(tail)


def _alike(q: Quadratics, at: Parameters, s2: Floats, group: Ints) -> Bools:
    """Users of groups that differ by much less than their noise: one term, sent by many."""
    c = at.centers[group]
    A = q.A / s2[:, None, None]
    white, rank = whitened(q.b / s2[:, None] - (A @ c[..., None])[..., 0], A)
    square = (white**2).sum(axis=1)
    found = np.zeros(len(q), np.bool_)
    for k in range(at.n_groups):
        own = group == k
        free = rank[own].sum() - q.dim
        if own.sum() >= SMALL and free > 0:
            total = square[own].sum()
            found[own] = total < SAME * free and 1 - chdtrc(free, total) < ALIKE
    return found


def _copies(q: Quadratics, white: Floats, rank: Ints) -> Bools:
    """Users with rows to spare who are nearer to two others than any two honest users would be."""
    found = np.zeros(len(q), np.bool_)
    some = np.flatnonzero((rank >= SMALL) & (q.rows > rank + SPARE))
    if len(some) < SMALL or len(some) > MOST_PAIRS:
        return found
    u, chance = white[some], ALIKE / len(some) ** 2
    near = cdist(u, u, "sqeuclidean") / 2 < chdtri(rank[some], 1 - chance)
    found[some] = near.sum(axis=1) >= SMALL  # itself among them
    return found


@dataclass(frozen=True, eq=False)
class Believed:
    """A fit that few users cannot bend, and who took part in it."""

    fits: list[MixtureFit | None]  # of each candidate; None: there is none
    best: MixtureFit  # one of them
    fit: MixtureFit  # the same, its centers bounded
    kept: Bools  # (n_users,)
    judgement: Judgement  # of everybody
    core: Parameters  # of the most plausible users
    usual: float  # what D^2 around it is divided by


def believed(
    candidates: list[Quadratics], find: Callable[[Bools], list[MixtureFit | None]], even: Ints
) -> Believed:
    """The fit of users who are plausible by a fit of the most plausible ones.

    ``find`` gives the best fit of some users for each candidate; ``even`` are users whose medians
    say where own models may be.
    """
    start = near_models(candidates[0], even)
    fits, kept = _unmasked(candidates, find, start)
    for turn in range(TURNS):
        fits = find(kept) if turn else fits
        q, fit = best(candidates, fits)
        core, large = _core(q, fit, kept)
        found = judge(q, core)
        strange = found.tail * start.sum() < STRANGE
        if core.spread.matrix.any():
            strange &= found.distance > VARIED
        out = start & (strange | found.alike)
        if out.sum() > MANY * start.sum():
            out = start & found.alike
        new = start & ~out
        if (new == kept).all():
            break
        kept = new
    else:
        fits = find(kept)
        q, fit = best(candidates, fits)
        core, large = _core(q, fit, kept)
    if fit.spread.matrix.any():
        alike = _alike_inside(q[kept], fit)
        share, T = _share_of_spread(q[kept], fit, alike), fit.spread
        less = replace(fit, spread=replace(T, matrix=share * T.matrix))
        less = less if share > STRANGE else alike
        fits, fit = [less if one is fit else one for one in fits], less
        core, large = _core(q, fit, kept)
    last = bounded(q[kept], fit, core, large)
    verdict = judge(q, parameters_of(last), stands_out=True)
    verdict = replace(verdict, alike=found.alike)
    return Believed(fits, fit, last, kept, verdict, core, found.usual)


def best(
    candidates: list[Quadratics], fits: list[MixtureFit | None]
) -> tuple[Quadratics, MixtureFit]:
    """The fit of best evidence, and the terms it is of."""
    pairs = [(q, fit) for q, fit in zip(candidates, fits, strict=True) if fit is not None]
    return min(pairs, key=lambda pair: pair[1].evidence)


def _unmasked(
    candidates: list[Quadratics], find: Callable[[Bools], list[MixtureFit | None]], start: Bools
) -> tuple[list[MixtureFit | None], Bools]:
    """Fits of the users, less a few between groups who make these look like one wide group.

    The few are those who are implausible in the best fit of more groups; they are left out if the
    others have more groups without them, and the turns that follow judge them again.
    """
    fits = find(start)
    q, fit = best(candidates, fits)
    more = [one for one in fit.weighed if one.n_groups > fit.n_groups and one.labels.min() >= 0]
    prior = center_prior(fit) if fit.prior is None else fit.prior
    if not more or not fit.spread.matrix.any() or prior is None or q.beside is not None:
        return fits, start
    groups = min(more, key=lambda one: one.evidence)
    r = np.eye(groups.n_groups)[groups.labels]
    part = q[start]
    tight = fit_mixture(part, r, q.alike, fit.noise, fit.s2, prior, stop=ROUGHLY)
    large = np.flatnonzero(np.bincount(groups.labels) >= SMALL)
    if len(large) <= fit.n_groups:
        return fits, start
    between = judge(part, parameters_of(tight).take(large)).tail * len(part) < STRANGE
    if not 0 < between.sum() <= BETWEEN * len(part):
        return fits, start
    kept = start.copy()
    kept[start] = ~between
    others = find(kept)
    return (others, kept) if best(candidates, others)[1].n_groups > fit.n_groups else (fits, start)


def _core(q: Quadratics, fit: MixtureFit, kept: Bools) -> tuple[Parameters, Ints]:
    """The fit to the most plausible users of each group that is large enough, and these groups."""
    at = parameters_of(fit)
    found = judge(q, at)
    sizes = np.bincount(found.group[kept], minlength=fit.n_groups)
    large = np.flatnonzero(sizes >= SMALL)
    if not len(large):
        large = np.arange(fit.n_groups)
    if len(large) < fit.n_groups:
        at = at.take(large)
        found = judge(q, at)
    return _fitted(q[_nearest(found, kept, at.n_groups)], at, fit.prior), large


def _share_of_spread(q: Quadratics, fit: MixtureFit, alike: MixtureFit) -> float:
    """How likely T is, where else a few in each group would pull one way.

    They look like groups that vary, and others would be drawn to theirs by less. A second center
    for them earns more than it would if users differed as T says.
    """
    at = parameters_of(alike)
    at = replace(at, covariances=np.zeros_like(at.covariances))
    found, rng = judge(q, at, usual=1.0), np.random.default_rng(0)
    crowds = _crowds(found, fit.n_groups)
    if not crowds:  # no group is large enough to tell
        return 1.0
    values, vectors = np.linalg.eigh((q.A / alike.s2[:, None, None]).mean(axis=0))
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    S = np.eye(q.dim) + root @ fit.spread.matrix @ root
    reach = np.sqrt(chdtri(np.maximum(found.rank, 1), GONE))
    near = np.maximum(np.linalg.norm(found.white, axis=1) / reach, 1.0)[:, None]
    earned = 0.0
    for own in crowds:
        drawn = rng.multivariate_normal(np.zeros(q.dim), S, (DRAWS, len(own)))
        usual = float(np.mean([_few_apart(one) for one in drawn]))
        earned += _few_apart((found.white / near)[own]) - usual
    return float(expit((alike.evidence - fit.evidence) / 2 - earned + TRUST))


def _nearest(found: Judgement, kept: Bools, n_groups: int) -> Bools:
    """The most plausible users of each group."""
    core = np.zeros_like(kept)
    for k in range(n_groups):
        own = np.flatnonzero(kept & (found.group == k))
        order = np.argsort(-found.tail[own], kind="stable")
        core[own[order[: int(np.ceil(CORE * len(own)))]]] = True
    return core


def _fitted(q: Quadratics, at: Parameters, prior: Floats | None) -> Parameters:
    """The fit to these users that begins at ``at``."""
    noise, prior = at.noise, prior if at.n_groups > 1 else None
    s2 = np.full(len(q), noise.s0) if noise.common else judged_noise(q, at)[0]
    m = moments(q, at.spread, s2)
    r = responsibilities(misfits(m, at.stack), at.weights)[0][0]
    return parameters_of(fit_mixture(q, r, at.spread, noise, s2, prior, stop=ROUGHLY))


def _alike_inside(q: Quadratics, fit: MixtureFit) -> MixtureFit:
    """The fit with users of a group who differ only by noise."""
    r, prior = fit.responsibilities, fit.prior
    again = fit_mixture(q, r, q.alike, fit.noise, fit.s2, prior, stop=ROUGHLY)
    found = with_noise_freedom(q, again)
    return replace(found, groups_forbidden=fit.groups_forbidden, weighed=fit.weighed)


def bounded(q: Quadratics, fit: MixtureFit, core: Parameters, large: Ints) -> MixtureFit:
    """The fit with centers that users pull no more than one at the edge of its group would.

    It begins at the ``core`` of the ``large`` groups, by whose T users are judged: T itself, which
    says how users differ, is that of all who take part.
    """
    at, r = parameters_of(fit), fit.responsibilities
    centers, covariances = at.centers.copy(), at.covariances.copy()
    centers[large], covariances[large] = core.centers, core.covariances
    at = replace(at, centers=centers, covariances=covariances, spread=core.spread, noise=core.noise)
    m = moments(q, fit.spread, fit.s2)
    for _ in range(STEPS):
        found = judge(q, at)
        pull = (found.pull * _one_way(found, at.n_groups))[:, None]
        new = center_step(*group_sums(m, (r * pull)[None]), fit.prior, anchor=q.anchor)
        new = new.sharing(q.fixed)
        moved = np.abs(new.c[0] - at.centers).max()
        at = replace(at, centers=new.c[0], covariances=new.C[0])
        r = responsibilities(misfits(m, at.stack), fit.weights)[0][0]
        if moved < STILL:
            break
    return replace(fit, centers=at.centers, covariances=at.covariances, responsibilities=r)


def _one_way(found: Judgement, n_groups: int) -> Floats:
    """How much of its pull each user keeps along the way in which its group spreads the most.

    Some who all pull the same way hide among many coordinates, and not along that way: where a
    group spreads more than chance would have it, its users are weighed by the median there.
    """
    share = np.ones(len(found.white))
    for own in _crowds(found, n_groups):
        (u, weight), dim = (found.white[own], found.pull[own]), found.white.shape[1]
        values, vectors = np.linalg.eigh((u.T * weight) @ u / weight.sum())
        if values[-1] <= CHANCE * (1 + np.sqrt(dim / len(own))) ** 2:
            continue
        along = u @ vectors[:, -1]
        away = np.abs(along - np.median(along))
        share[own] = np.where(away > BEYOND, 0.0, np.minimum(1.0, HUBER / np.maximum(away, 1e-300)))
    return share


def _crowds(found: Judgement, n_groups: int) -> list[Ints]:
    """Users of each group that has enough of them."""
    groups = [np.flatnonzero((found.group == k) & (found.rank > 0)) for k in range(n_groups)]
    return [own for own in groups if len(own) >= CROWD]


def _few_apart(u: Floats) -> float:
    """What a second center for a few of a group's users earns, in log evidence.

    Users ``u`` (n, dim) are N(c, I), or else N(c + away, I), away ~ N(0, tau2 I).
    """
    n, dim = u.shape
    tau2, around = ASIDE**2 / dim, u - np.median(u, axis=0)
    along = around @ np.linalg.eigh(around.T @ around)[1][:, -1]
    # A free center costs half a log n per coordinate, and so does the share of the few.
    alone = -0.5 * (((u - u.mean(axis=0)) ** 2).sum() + (dim - 1) * np.log(n))
    gains = []
    for side in (along, -along):
        r = (side > REACH).astype(np.float64)
        for _ in range(STEPS):
            few = r.sum()
            share, rest = min((few + 0.5) / (n + 1), MOST_FEW), max(n - few, 1.0)
            c = (1 - r) @ u / rest
            away = r @ (u - c) / (few + 1 / tau2)
            squares = [((u - one) ** 2).sum(axis=1) for one in (c, c + away)]
            logs = np.log([1 - share, share])[:, None] - 0.5 * np.stack(squares)
            r = expit(logs[1] - logs[0])
        price = 0.5 * (away @ away / tau2 + dim * np.log((1 + tau2 * few) * rest))
        gains.append(float(np.logaddexp(*logs).sum() - price - alone))
    return max(gains)


def near_models(q: Quadratics, even: Ints) -> Bools:
    """Users whose own models lie where anybody's may, by medians over the users ``even``.

    It is a first look, before anything is fitted: nobody is judged by it who could be a group.
    """
    if len(even) < FEWEST:
        return np.ones(len(q), np.bool_)
    usual = usual_noise(q)
    own = np.linalg.inv(q.A / usual + np.eye(q.dim) / OPEN)
    theta = (own @ (q.b / usual)[..., None])[..., 0]
    variance = np.diagonal(own, axis1=1, axis2=2)
    middle = np.median(theta[even], axis=0)
    reach = 1.4826 * np.median(np.abs(theta[even] - middle), axis=0)
    most = FAR * np.sqrt(np.maximum(reach, LEAST) ** 2 + variance)
    return np.asarray((np.abs(theta - middle) <= most).all(axis=1))
