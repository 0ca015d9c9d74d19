"""Mixtures that may be the best: where fits of K groups in each shape begin, and how they grow.

Everything is deterministic and independent of the order of users: starts are read off the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.mixed.em import MixtureFit, charge, fit_mixture
from odcl.mixed.mixture import (
    BLIND_FLOOR,
    UNSEEN,
    Centers,
    MixtureMoments,
    Noise,
    Quadratics,
    Spread,
    center_step,
    group_sums,
    misfits,
    moments,
    responsibilities,
)
from odcl.mixed.scoring import bound_slopes
from odcl.mixed.select import (
    PATIENCE,
    ROUGHLY,
    SHAPES,
    SHARED,
    center_prior,
    doubted,
    evidence,
    is_simple,
    leading,
    refit,
)
from odcl.mixed.starts import (
    LEFT,
    clear_number,
    divided,
    halves,
    hidden_groups,
    inside,
    kmeans_seeds,
    lloyds,
    posterior_means,
    splits,
    usual_metric,
    whitening,
)

FAILURES = 2  # numbers of groups in a row without improvement after which a shape is given up
# Many groups far from one another may look like one center with a wide T until all are there: when
# every shape is given up, larger K are looked at with T = 0, up to groups of two users.
LOOKED_AT = frozenset([*range(2, 13), 14, 16, 18, 20, 23, 26, 30, 34, 38, 43, 48])
ABOUT = 1.5  # times what a step of T promises, a fit may gain
MANY = 4  # numbers of groups that are worth a fit that may save them
CLIMBED = 3  # groups up to which all numbers are looked at, one by one
SWEEPS = 4  # of each start, before the best is converged


def candidates(
    q: Quadratics,
    noise: Noise,
    s2: Floats,
    max_groups: int,
    spread: str | None,
    sure: float = 0.0,
) -> list[MixtureFit]:
    """Fits of one group and more in every shape, each as far as it may still be the best.

    Of users drawn from many: within ``sure`` standard deviations of their sum.
    """
    shapes = SHAPES if spread is None else (spread,)
    singles = one_group(q, noise, s2, shapes)
    fits = [fit for shape, fit in singles.items() if shape in shapes]
    simple = min((singles[shape] for shape in ("scalar", "diag") if shape in singles), key=evidence)
    prior = center_prior(simple)
    if prior is None or len(q) < 3:
        return fits
    most = min(max_groups, len(q) - 1)
    climb = _Climb(q, spread, singles, simple, prior, fits, most)
    for k in range(climb.at_once(), most + 1):
        if not climb.given_up:
            climb.grow(k)
        elif 2 * k <= len(q):
            climb.jump(k)
    fits = climb.fits
    fits += _as_scalars(q, climb.diagonal, fits, sure)
    if spread is None and _go_together(q, fits, singles):
        fits += _together(q, singles["full"], prior, max_groups, leading(fits))
    return fits


class _Climb:
    """Fits of ever more groups, in two chains: users of a group alike, and not ("wide").

    T = 0 costs next to nothing. Of others, the fit that has led so far begins. Groups with a full T
    come last, where one center asks for them.
    """

    def __init__(
        self,
        q: Quadratics,
        spread: str | None,
        singles: dict[str, MixtureFit],
        simple: MixtureFit,
        prior: Floats,
        fits: list[MixtureFit],
        most: int,
    ) -> None:
        self.q, self.spread, self.singles, self.simple = q, spread, singles, simple
        self.prior, self.fits, self.most = prior, fits, most
        self.theta = posterior_means(q, simple)
        self.points = self.theta @ usual_metric(q, simple)
        self.seeds = enumerate(kmeans_seeds(self.points), 2)
        shapes = SHAPES if spread is None else (spread,)
        self.wide = ("scalar", "diag") if spread is None else shapes
        leads = {shape: singles[shape] for shape in ("zero",) if shape in shapes}
        if "zero" not in self.wide:
            leads["wide"] = _best_wide([singles[shape] for shape in self.wide])
        self._begin(leads)
        self.diagonal = list[MixtureFit]()  # that a multiple of I may do as well as
        self.alike = False  # was a diagonal T closed everywhere?
        self.floors: dict[int, float] | None = None

    def _begin(self, leads: dict[str, MixtureFit]) -> None:
        self.leads, self.failures = leads, dict.fromkeys(leads, 0)
        self.least = {chain: evidence(fit) for chain, fit in leads.items()}

    @property
    def given_up(self) -> bool:
        return all(count >= FAILURES for count in self.failures.values())

    def at_once(self) -> int:
        """Fit groups that lie clearly apart; the number of groups to go on with."""
        if "zero" not in self.leads:
            return 2
        clear = clear_number(self.points, min(self.most, len(self.q) // 2))
        if clear <= CLIMBED:
            return 2
        bar, wide = min(map(evidence, self.fits)), "wide" in self.leads
        found = _at_once(self.q, self.simple, self.points, clear, self.prior, bar, wide=wide)
        if not found:
            return 2
        self._begin({"zero": found[0]})
        self.fits += found
        return clear + 1

    def jump(self, k: int) -> None:
        """Look at ``k`` groups alike inside, and begin anew from there where they are better."""
        best = min(map(evidence, self.fits))
        if self.floors is None:
            rest = range(k, self.most + 1)
            self.floors = _floors(self.q, self.simple, self.points, self.prior, rest, best)
        if self.floors.get(k, np.inf) >= best:
            return
        starts = lloyds(self.points, self.seeds, k)
        same = _alike(self.q, self.simple, starts, self.prior, beat=best)
        if evidence(same) >= best:
            return
        leads = dict(self.leads)
        if "zero" in leads:
            leads["zero"] = same
            self.fits.append(same)
        if "wide" in leads:
            found = [_reopened(self.q, same, self.singles[shape]) for shape in self.wide]
            leads["wide"] = _best_wide(found)
            self.fits += found
        self._begin(leads)

    def grow(self, k: int) -> None:
        """Fits of ``k`` groups in the chains that are not given up."""
        tried = lloyds(self.points, self.seeds, k)
        for chain in self.leads:
            if self.failures[chain] < FAILURES:
                tried.append(self._follow(chain, tried))

    def _follow(self, chain: str, tried: list[Floats]) -> Floats:
        """One group more in a chain; the responsibilities, where other fits may begin."""
        q, lead, bar = self.q, self.leads[chain], self.least[chain]
        if chain == "zero" and "wide" in self.leads:  # in the end a wide T, closed, can do as much
            bar = min(bar, evidence(self.leads["wide"]))
        hidden = None
        if chain == "wide" and self.spread in (None, "diag"):
            also = [halves(self.theta)] if lead.n_groups == 1 else []
            hidden = hidden_groups(lead.spread, self.simple.spread, self.theta, tried + also)
        own = self.spread is None and lead.spread.shape == "diag"
        fit = grow(q, lead, tried, self.prior, bar + own * _cheaper(q, lead), hidden)
        found = [fit]
        if self.spread is None and chain == "wide":
            found = _beside(q, fit, leading(self.fits), self.alike)
            own = fit.spread.shape == "diag"
            self.alike = self.alike or (own and not found[0].spread.matrix.any())
            self.diagonal += [fit] * (own and not self.alike)
        self.fits += found
        first = min(found, key=evidence)
        self.failures[chain] = self.failures[chain] + 1 if evidence(first) >= bar else 0
        self.least[chain] = min(self.least[chain], evidence(first))
        self.leads[chain] = fit if chain == "zero" else _best_wide(found)
        if first.spread.shape == "zero" and evidence(first) < self.least.get("zero", -np.inf):
            self.leads["zero"], self.least["zero"] = first, evidence(first)
            self.failures["zero"] = 0
        return fit.responsibilities


def _at_once(
    q: Quadratics,
    one: MixtureFit,
    points: Floats,
    k: int,
    prior: Floats,
    beat: float,
    *,
    wide: bool,
) -> list[MixtureFit]:
    """Fits of ``k`` groups and of one fewer, where users of these k differ only by noise.

    None where they differ, or where fewer groups or those before do better: then numbers of groups
    are looked at one by one.
    """
    seeds = enumerate(kmeans_seeds(points), 2)
    fewer, starts = lloyds(points, seeds, k - 1), lloyds(points, seeds, k)
    same = _alike(q, one, starts, prior, beat)
    if evidence(same) >= beat:
        return []
    beside = [_alike(q, same, fewer, prior, evidence(same))]
    if wide:
        left = replace(one.spread, matrix=LEFT * one.spread.matrix)
        beside += [refit(q, beside[0], left, beat=evidence(same)), *opened(q, same)]
    return [] if min(map(evidence, beside)) < evidence(same) else [same, *beside]


def _go_together(q: Quadratics, fits: list[MixtureFit], singles: dict[str, MixtureFit]) -> bool:
    """Does one center show that coefficients go together, and users differ inside the best fit?

    Its likelihood gains by chance one half for each pair of coefficients: it is to gain twice that.
    """
    if "full" not in singles or not min(fits, key=evidence).spread.matrix.any():
        return False
    one, full = min(singles["scalar"], singles["diag"], key=evidence), singles["full"]
    n_open = int((full.spread.open & full.spread.lines).sum())
    gain = evidence(one) - evidence(full) + _dearer(q, one, full.spread)
    return gain >= n_open * (n_open - 1)


def _together(
    q: Quadratics, one: MixtureFit, prior: Floats, max_groups: int, beat: float
) -> list[MixtureFit]:
    """Fits of two groups and more that share a full T; ``one`` is the center that has it now.

    That takes groups for differences that go together. In units of it users of hidden groups fall
    apart along some direction, whatever the correlations: there they are divided. Groups must
    ``beat`` an evidence as well; as others grow out of them, they are given time to show.
    """
    T = one.spread
    own = np.ix_(T.open & T.lines, T.open & T.lines)
    theta = posterior_means(q, one)[:, T.open & T.lines]
    into, back = whitening(theta)
    grown = back @ _root(into @ T.matrix[own] @ into.T)
    labels, found, least = np.zeros(len(q), np.intp), list[MixtureFit](), np.inf
    stop = replace(ROUGHLY, evidence=min(evidence(one) + one.common, beat), hope=1.0)
    for k in range(2, max_groups + 1):
        labels = divided(theta, labels)
        if labels.max() + 1 < k:
            break
        matrix = T.matrix.copy()
        matrix[own] = grown @ np.cov(into @ inside(theta, labels).T) @ grown.T
        spread, r = replace(T, matrix=matrix), np.eye(k)[labels]
        found.append(fit_mixture(q, r, spread, one.noise, one.s2, prior, stop=stop))
        if doubted(q, found[-1]) >= least:
            break
        least = doubted(q, found[-1])
        labels = np.unique(found[-1].responsibilities.argmax(axis=1), return_inverse=True)[1]
    return found


def _root(S: Floats) -> Floats:
    values, vectors = np.linalg.eigh(S)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


def _best_wide(fits: list[MixtureFit]) -> MixtureFit:
    """The best fit with a T inside groups."""
    return min((fit for fit in fits if fit.spread.shape != "zero"), key=evidence)


def _beside(q: Quadratics, fit: MixtureFit, beat: float, alike: bool) -> list[MixtureFit]:
    """A fit, and what it shows with T closed where that is better, or diagonal where it may be.

    Closed, it is to ``beat`` an evidence. Where a diagonal T is closed everywhere, users
    are ``alike``: further groups go on from a scalar one, and do not become diagonal again.
    """
    if fit.spread.shape == "diag":
        best = min(fit, closed(q, fit, min(beat, evidence(fit))), key=evidence)
        return [best] if best.spread.matrix.any() else [best, _as_scalar(q, fit, np.inf)]
    found = [fit, closed(q, fit, min(beat, evidence(fit)))]
    if not alike and diagonal_may_win(q, fit):
        diag = refit(q, fit, replace(fit.spread, shape="diag"))
        found.append(min(diag, closed(q, diag, evidence(diag)), key=evidence))
    return found


def _as_scalars(
    q: Quadratics, diagonal: list[MixtureFit], fits: list[MixtureFit], sure: float
) -> list[MixtureFit]:
    """Fits with a diagonal T with a multiple of I instead, where these may be the best."""
    found = list[MixtureFit]()
    for fit in sorted(diagonal, key=evidence):
        first = min((one for one in [*fits, *found] if is_simple(one)), key=evidence)
        bar = evidence(first)
        if sure:  # and of many users charges are next to nothing
            sd = 2 * np.sqrt(len(q)) * float((first.levels - fit.levels).std())
            bar += sure * sd + evidence(fit) + 2 * fit.log_likelihood
        if evidence(fit) - _cheaper(q, fit) >= bar:
            continue
        found.append(_as_scalar(q, fit, bar))
        found.append(closed(q, found[-1], bar))
    return found


def _as_scalar(q: Quadratics, fit: MixtureFit, beat: float) -> MixtureFit:
    """A fit with a diagonal T again with a multiple of I."""
    T, own, values = fit.spread, fit.spread.may & fit.spread.lines, np.diag(fit.spread.matrix)
    told = fit.told * own
    values = np.where(T.lines, own * (told @ values) / max(told.sum(), 1e-300), values)
    return refit(q, fit, replace(T, shape="scalar", matrix=np.diag(values), open=T.may), beat=beat)


def _cheaper(q: Quadratics, fit: MixtureFit) -> float:
    """How much more evidence than a fit with a diagonal T has, one with a multiple of I may have.

    It fits no better than a T that is open everywhere, nor that by more than about log m an entry.
    """
    T = fit.spread
    shut = int((T.may & T.lines & ~T.open).sum())
    return shut * float(np.log(len(q))) - _dearer(q, fit, replace(T, shape="scalar", open=T.may))


def score(q: Quadratics, fit: MixtureFit, some: Bools) -> tuple[Floats, Floats]:
    """Slopes of the bound in ``some`` of the entries of T's diagonal, and their information."""
    m, T = moments(q, fit.spread, fit.s2), replace(fit.spread, shape="diag", open=some)
    stack = Centers.of(fit.centers, fit.covariances)
    slopes = bound_slopes(q, m, T, fit.responsibilities, stack)
    told = 0.5 * (np.diagonal(m.W, axis1=1, axis2=2) ** 2).sum(axis=0)
    return 0.5 * np.diag(slopes.omega - slopes.H), np.maximum(told, 1e-300)


def opened(q: Quadratics, fit: MixtureFit) -> list[MixtureFit]:
    """Fits with a T that is open where all users show that they differ.

    By the score of T_jj = 0, with the limit of :func:`closed`.
    """
    T = fit.spread
    shut = T.may & T.lines & ~T.matrix.any(axis=0)
    if not shut.any():
        return []
    slope, told = score(q, fit, shut)
    size, enough = np.where(shut & (slope > 0), slope / told, 0.0), np.log(len(q))
    differ = size**2 * told >= enough
    fits = []
    if differ.any():
        wide = replace(T, shape="diag", matrix=T.matrix + np.diag(size * differ))
        fits.append(closed(q, refit(q, fit, replace(wide, open=T.open | differ))))
    all_told = told[shut].sum()
    t = slope[shut].sum() / all_told
    if not T.matrix.any() and t > 0 and t**2 * all_told >= enough:
        wide = replace(T, shape="scalar", matrix=t * np.diag(shut * 1.0), open=T.may)
        fits.append(refit(q, fit, wide))
    return fits


def diagonal_may_win(q: Quadratics, fit: MixtureFit) -> bool:
    """May a diagonal T have more evidence than the multiple of I of a fit, with as many groups?

    By the best step of each entry, which foretells what a fit gains by a tenth or two, or by its
    end: an entry that is closed is not charged for.
    """
    every, m = fit.spread.may & fit.spread.lines, len(q)
    slope, told = (values[every] for values in score(q, fit, every))
    t = np.diag(fit.spread.matrix)[every]
    gain = np.maximum(ABOUT * slope**2 / told, np.log(m) - 2 * slope * t - told * t**2)
    return bool(gain.sum() > _dearer(q, fit, replace(fit.spread, shape="diag")))


def _dearer(q: Quadratics, fit: MixtureFit, T: Spread) -> float:
    """How much more another T is charged for than that of a fit."""
    mine, other = (charge(one, fit.n_groups, fit.prior, len(q)) for one in (fit.spread, T))
    return other - mine


def given_number(
    q: Quadratics, noise: Noise, s2: Floats, k: int, shapes: Sequence[str], few: Ints
) -> list[MixtureFit]:
    """Fits of ``k`` groups in the shapes asked for, from K-means of the users' posterior means.

    One center's T, where fits begin and how far centers lie apart, is that of ``few`` users.
    """
    if k == 1:
        singles = one_group(q, noise, s2, shapes)
        return [fit for shape, fit in singles.items() if shape in shapes]
    singles = one_group(q[few], noise, s2[few], [shape for shape in shapes if shape != "zero"])
    simple = singles["scalar"]
    if not q.dof.any():
        s2 = np.full(len(q), simple.s2.mean())
    simple = replace(simple, s2=s2, spread=replace(simple.spread, shape="full"))
    prior, points = center_prior(simple), posterior_means(q, simple) @ usual_metric(q, simple)
    if prior is None:  # users look all the same: centers lie as far apart as one user can see
        size = q.dim * len(q) / max(np.trace(q.A.sum(axis=0)), 1e-300)
        prior = size * np.diag(np.where(q.alike.may & q.alike.lines, 1.0, SHARED))
    tried = lloyds(points, enumerate(kmeans_seeds(points), 2), k)
    alike = _alike(q, simple, tried, prior)
    fits = [_reopened(q, alike, singles[shape]) for shape in shapes if shape in singles]
    return [alike] * ("zero" in shapes) + fits


def _floors(
    q: Quadratics, fit: MixtureFit, points: Floats, prior: Floats, some: range, beat: float
) -> dict[int, float]:
    """The evidence to expect, at best, of groups alike inside, by their number; those that may win.

    Fewer groups fit no better than the most that may win, and cost less.
    """
    looked = [k for k in some if k in LOOKED_AT and 2 * k <= len(q)]
    reach = _within_reach(q, fit, prior, np.array(looked))
    floors = {k: floor for k, floor in zip(looked, reach.tolist(), strict=True) if floor < beat}
    if len(floors) < MANY:
        return floors
    top = max(floors)
    starts, bar = lloyds(points, enumerate(kmeans_seeds(points), 2), top), beat + floors[top]
    most = _alike(q, fit, starts, prior, bar - min(floors.values()))
    gap = evidence(most) - floors[top]
    return {k: floor + gap for k, floor in floors.items()}


def _within_reach(q: Quadratics, fit: MixtureFit, prior: Floats, k: Ints) -> Floats:
    """The evidence to expect of k groups of like size, if their users differ only by noise; (n,).

    Every user then fits as well as its own least squares, save for one degree of freedom per
    parameter that it sees; k centers give some of these back, and cost log |I + B M_k| each.
    """
    values, vectors = q.eigen
    seen = values > UNSEEN * np.maximum(values[:, -1:], 1e-300)
    along = (vectors.transpose(0, 2, 1) @ q.b[..., None])[..., 0] ** 2
    own = (q.uu - (np.where(seen, along, 0.0) / np.where(seen, values, 1.0)).sum(axis=1)) / fit.s2
    level = own.sum() + seen.sum() - 2 * fit.noise.log_prior(fit.s2)
    if q.noisy:
        level += (q.rows * np.log(2 * np.pi * fit.s2)).sum()
    told = np.tensordot(1 / fit.s2, q.A, axes=1) @ prior / k[:, None, None]
    price = k * (np.linalg.slogdet(np.eye(q.dim) + told)[1] - q.dim) + (k - 1) * np.log(len(q))
    return level + price + 2 * len(q) * np.log(k) + charge(q.alike, 1, prior, len(q))


def _reopened(q: Quadratics, alike: MixtureFit, single: MixtureFit) -> MixtureFit:
    """Groups found with T = 0, with the little that is left of a single center's T."""
    if not single.spread.matrix.any():
        return replace(alike, spread=single.spread)
    return refit(q, alike, replace(single.spread, matrix=LEFT * single.spread.matrix))


def one_group(
    q: Quadratics, noise: Noise, s2: Floats, shapes: Sequence[str] = SHAPES
) -> dict[str, MixtureFit]:
    """The linear mixed model in every shape; "full" also inside the coordinates that diag opens.

    A shape that is asked for alone is not closed anywhere; "scalar" is always there.
    """
    everyone = np.ones((len(q), 1))
    single = partial(fit_mixture, stop=replace(ROUGHLY, sweeps=500))
    fits: dict[str, MixtureFit] = {}
    if "zero" in shapes or not q.dof.any():
        fits["zero"] = single(q, everyone, q.alike, noise, s2)
    s2 = s2 if q.dof.any() else fits["zero"].s2
    every = q.alike.may
    lines = q.alike.lines
    told = np.trace(q.A.sum(axis=0)[lines][:, lines]) / lines.sum()
    size = 0.1 * q.rows.sum() / max(told, 1e-300)
    start = np.diag(size * every if q.bends is None else size * every / q.bends.rough)
    for shape in ("scalar", "diag"):
        if shape == "diag" and not {"diag", "full"} & {*shapes}:
            continue
        T = Spread(shape, start, every, 0, q.fixed, q.bends)
        fits[shape] = single(q, everyone, T, noise, s2)
        if fits[shape].spread.matrix.any():
            start, s2 = fits[shape].spread.matrix, fits[shape].s2
    tried = [(every, start)]
    if len(shapes) > 1:
        diag = fits["diag"]
        fits["diag"] = min(diag, closed(q, diag, evidence(diag)), key=evidence)
        chosen = fits["diag"].spread
        tried += [(chosen.open, chosen.matrix)] * (not chosen.open.all())
    full: list[MixtureFit] = []
    for opened, matrix in tried if "full" in shapes else []:
        own = opened & lines
        if own.sum() > 1:
            if full:  # from where all of them are open it is not far
                matrix = full[0].spread.matrix * np.outer(opened, opened)
            floor = np.diag(own * 1e-3 * np.trace(matrix[lines][:, lines]) / own.sum())
            seen = np.linalg.eigvalsh(q.A[:, own][:, :, own].sum(axis=0))
            unseen = int((seen <= UNSEEN * seen[-1]).sum())
            T = Spread("full", matrix + floor, opened, unseen, q.fixed, q.bends)
            # Where nobody has rows to spare it creeps; if it is to win, that shows by then.
            stop = replace(ROUGHLY, sweeps=3 * PATIENCE)
            full.append(fit_mixture(q, everyone, T, noise, s2, stop=stop))
    if not q.dof.any() and "diag" in fits:  # every row explained by differences: T is not known
        full = [fit for fit in full if fit.s2.max() > 1.01 * BLIND_FLOOR]
    if full:
        fits["full"] = min(full, key=evidence)
    return fits


def closed(q: Quadratics, fit: MixtureFit, beat: float = np.inf) -> MixtureFit:
    """The fit again with T closed where it is not significant; the same if it is everywhere.

    t_j^2 sum W_jj^2 / 2 is the Wald statistic of t_j (of a scalar t, with |W|^2); below log m a
    coordinate does not pay for itself. It is given up where it will not ``beat`` an evidence.
    """
    T, values = fit.spread, np.diag(fit.spread.matrix)
    opened = T.open & (~T.lines | (values**2 * 0.5 * fit.told >= np.log(len(q))))
    if (opened == T.open).all():
        return fit
    if opened.any():
        closed = replace(T, shape="diag", matrix=np.diag(values * opened), open=opened)
        if T.shape == "diag" and _dearer(q, fit, closed) >= 0:  # and it fits no better
            return fit
        return refit(q, fit, closed, beat=beat)
    return refit(q, fit, q.alike, beat=beat)


def grow(
    q: Quadratics,
    fewer: MixtureFit,
    starts: list[Floats],
    prior: Floats,
    beat: float,
    hidden: tuple[Spread, Floats] | None = None,
) -> MixtureFit:
    """A fit with one group more: the best of all starts after four sweeps, then converged.

    One start is also tried with a T of its own, see :func:`hidden_groups`.
    """
    m = moments(q, fewer.spread, fewer.s2)
    more = [s for s in starts if s.shape[1] == fewer.n_groups + 1] + splits(m, fewer)
    best = _Start.best(q, m, fewer.spread, more, prior)
    if hidden is not None:
        T, groups = hidden
        tight = _Start.best(q, moments(q, T, fewer.s2), T, [groups], prior)
        best = max(best, tight, key=attrgetter("level"))
    return best.converged(q, fewer, prior, beat)


def _alike(
    q: Quadratics, fit: MixtureFit, starts: list[Floats], prior: Floats, beat: float = np.inf
) -> MixtureFit:
    """Groups whose users differ only by noise."""
    start = _Start.best(q, moments(q, q.alike, fit.s2), q.alike, starts, prior)
    return start.converged(q, fit, prior, beat)


class _Start(NamedTuple):
    """Where a fit begins, after four sweeps at a T."""

    m: MixtureMoments  # at T and the noise
    spread: Spread
    responsibilities: Floats
    level: float  # of the bound

    @classmethod
    def best(
        cls, q: Quadratics, m: MixtureMoments, T: Spread, starts: list[Floats], prior: Floats
    ) -> _Start:
        """Of several, whose bound is highest."""
        r = np.stack(starts)
        for _ in range(SWEEPS):
            weights = r.mean(axis=1)
            centers = center_step(*group_sums(m, r), prior, anchor=q.anchor)
            r, total = responsibilities(misfits(m, centers), weights)
        levels = total.sum(axis=1) - centers.price
        first = int(np.argmax(levels))
        return cls(m, T, r[first], float(levels[first]))

    def converged(
        self, q: Quadratics, fit: MixtureFit, prior: Floats, beat: float = np.inf
    ) -> MixtureFit:
        """The fit that begins here, with the noise of another."""
        stop, r = replace(ROUGHLY, evidence=beat), self.responsibilities
        return fit_mixture(q, r, self.spread, fit.noise, fit.s2, prior, m=self.m, stop=stop)
