"""Groups found among few users, and confirmed on all of them.

A search fits some thirty mixtures, most of which lose by far however many users are asked. Few
users, drawn by id, say which ones might be the best for all N: n users like the others tell of the
evidence to expect from all,

    E(N) = -(N / n) (2 L(n) - p) - p + rest + P log(N / n),

with L(n) the likelihood of a fit of p numbers, p / 2 of it by fitting chance, ``rest`` what else
its evidence has, and P numbers that are charged for. It is off by chance, user by user. As long as
too many mixtures are within that of the best, twice as many users are drawn; then all users are
asked about those that are left, about a group that none of the few belongs to, and about
differences too small for few users to show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import chdtrc

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import as_ids, id_keys
from odcl.mixed.candidates import candidates, grow, one_group, opened
from odcl.mixed.em import MixtureFit, Weighed, fit_mixture
from odcl.mixed.mixture import (
    Centers,
    Noise,
    Quadratics,
    misfits,
    moments,
    responsibilities,
)
from odcl.mixed.select import ROUGHLY, SHAPES, center_prior, choose, evidence

FIRST = 100  # users who are drawn first; from three times as many on, few are asked at all
MOST = 4  # mixtures that all users are asked about
SURE = 2.0  # standard deviations of E(N) - E(N)' beyond which a mixture is given up
NEAR = 10.0  # in -2 log evidence: mixtures as near as that are not given up


@dataclass(frozen=True, eq=False)
class FewFound:
    """What few users found, fitted to all; and what was given up."""

    fits: list[MixtureFit]
    others: tuple[Weighed, ...]  # with E(N), and labels of the few


def sample_by_id(ids: Sequence[str] | Array, size: int) -> Ints:
    """The ``size`` users whose ids have the smallest keys, in the order of their keys."""
    return np.argsort(id_keys(as_ids([str(i) for i in ids])), kind="stable")[:size]


def found_among_few(
    q: Quadratics,
    ids: Sequence[str] | Array,
    noise: Noise,
    s2: Floats,
    max_groups: int,
    spread: str | None,
) -> FewFound | None:
    """None where users are few themselves, or where few of them do not tell."""
    n, size = len(q), FIRST
    while 3 * size <= n:
        few = sample_by_id(ids, size)
        some = replace(q[few], many=q.many)
        fits = candidates(some, noise, s2[few], max_groups, spread, SURE)
        leading = _leading(some, fits, n)
        if len(leading) <= MOST:
            found = _confirmed(q, leading, noise, s2, max_groups, spread)
            return FewFound(found, _given_up(fits, found, few, n))
        size *= 2
    return None


def _expected(fit: MixtureFit, n_users: int) -> float:
    """E(N) of a fit of n users, see above."""
    n, (k, dim) = len(fit.s2), fit.centers.shape
    n_open = int(fit.spread.open.sum())
    told = {"zero": 0, "scalar": 1, "diag": n_open, "full": n_open * (n_open + 1) // 2}
    # Variances cannot be negative: where there is nothing, half of them gain nothing by chance.
    p = k * dim + k - 1 + told[fit.spread.shape] / 2
    charged = k * dim * (k > 1) + k - 1 + told[fit.spread.shape]
    level = 2 * (fit.log_likelihood + fit.noise.log_prior(fit.s2) - fit.excess + fit.tail_gain)
    grown = charged * np.log(n_users / n) - n_users / n * (level - p) - p
    return float(fit.evidence + level + grown)


def _leading(q: Quadratics, fits: list[MixtureFit], n_users: int) -> list[MixtureFit]:
    """The best fits of each K and shape that may be the best of all users.

    Not those of more groups than few users speak for: all users are asked about one more anyway, or
    here, where users of a group differ. One center with a full T has the benefit of the doubt among
    few users, and may lose it.
    """
    n, chosen = len(q), [choose(q, fits)]
    others = [fit for fit in fits if _kind(fit)[:2] != (1, "full")]
    if _kind(chosen[0])[:2] == (1, "full") and others:
        chosen.append(choose(q, others))
    order = sorted([*fits, *chosen], key=lambda fit: _expected(fit, n_users))
    first, leading = order[0], {_kind(fit): fit for fit in chosen}
    least = _expected(first, n_users)
    most = max(fit.n_groups + bool(fit.spread.matrix.any()) for fit in chosen)
    for fit in order:
        if fit.n_groups > most:
            continue
        d = first.levels - fit.levels
        sd = 2 * n_users / n * np.sqrt((1 - n / n_users) * n) * float(d.std())
        if _expected(fit, n_users) - least <= max(SURE * sd, NEAR):
            leading.setdefault(_kind(fit), fit)
    return list(leading.values())


def _kind(fit: MixtureFit) -> tuple[int, str, bool]:
    """Fits of one kind converge to the same."""
    T = fit.spread
    return fit.n_groups, T.shape if T.matrix.any() else "zero", bool(T.open.all())


def _confirmed(
    q: Quadratics,
    leading: list[MixtureFit],
    noise: Noise,
    s2: Floats,
    max_groups: int,
    spread: str | None,
) -> list[MixtureFit]:
    """The fits of few users as fits of all, and what only all users show beside them."""
    several = [fit for fit in leading if fit.n_groups > 1]
    fits, alike, prior = list[MixtureFit](), list[MixtureFit](), None
    if len(several) < len(leading):
        shapes = SHAPES if spread is None else (spread,)
        one = one_group(q, noise, s2, shapes)
        fits = [fit for shape, fit in one.items() if shape in shapes]
        if "zero" in one and any(_kind(fit)[:2] == (1, "zero") for fit in leading):
            alike = [one["zero"]]
        prior = center_prior(min((one[s] for s in ("scalar", "diag") if s in one), key=evidence))
    else:  # B is that of all candidates, or their evidence could not be compared
        prior = _prior(_fitted_to_all(q, several[0], noise, s2, several[0].prior))
        prior = several[0].prior if prior is None else prior
    if prior is None:
        return fits
    fits += [_fitted_to_all(q, fit, noise, s2, prior) for fit in several]
    alike += [fit for fit in fits if fit.n_groups > 1 and not fit.spread.matrix.any()]
    most = min(max_groups, len(q) - 1)
    chain = [min(alike, key=evidence)] if alike else []
    if alike:
        chain += _grown(q, chain[0], prior, most)
    wide = [more for fit in chain for more in opened(q, fit)] if spread is None else []
    fits += [*chain[1:], *wide]
    best = choose(q, fits)
    wide = opened(q, best) if spread is None and best.spread.matrix.any() else []
    best = min([best, *wide], key=evidence)
    if best.spread.shape == "full" and spread is None:  # groups grow where T is simple
        simple = [fit for fit in fits if fit.spread.matrix.any() and fit.spread.shape != "full"]
        best = min(simple, key=evidence, default=best)
    more = _grown(q, best, prior, most) if _outside(q, best).sum() > 1 else []
    return [*fits, *wide, *more]


def _grown(q: Quadratics, fit: MixtureFit, prior: Floats, max_groups: int) -> list[MixtureFit]:
    """Fits with one group more, and one more, as long as they are better.

    Each begins with users who are in none of the groups, or with a group in two.
    """
    fits = [fit]
    while fits[-1].n_groups < max_groups:
        fit, outside, starts = fits[-1], _outside(q, fits[-1]), []
        if outside.sum() > 1:
            starts.append(np.column_stack([fit.responsibilities * ~outside[:, None], outside]))
        fits.append(grow(q, fit, starts, prior, beat=evidence(fit)))
        if evidence(fits[-1]) >= evidence(fit):
            break
    return fits[1:]


def _fitted_to_all(
    q: Quadratics, fit: MixtureFit, noise: Noise, s2: Floats, prior: Floats | None
) -> MixtureFit:
    if noise.common:
        s2 = np.full(len(q), fit.s2.mean())
    m = moments(q, fit.spread, s2)
    stack = Centers.of(fit.centers, fit.covariances)
    r = responsibilities(misfits(m, stack), fit.weights)[0][0]
    return fit_mixture(q, r, fit.spread, noise, s2, prior, m=m, stop=ROUGHLY)


def _prior(fit: MixtureFit) -> Floats | None:
    """B as :func:`center_prior` takes it from one center: with the T that this would have."""
    assert fit.prior is not None
    away, own = fit.centers - fit.weights @ fit.centers, fit.spread.may & fit.spread.lines
    wide = np.where(own, np.diag(fit.spread.matrix) + fit.weights @ away**2, 0.0)
    if np.ptp(np.diag(fit.prior)[own]) == 0:
        wide = np.where(own, wide[own].mean(), 0.0)
    return center_prior(replace(fit, spread=replace(fit.spread, matrix=np.diag(wide))))


def _outside(q: Quadratics, fit: MixtureFit) -> Bools:
    """Users who lie farther from every center than one of all would by chance, (n_users,)."""
    if not q.noisy:  # how well a Gaussian term fits at best is not known
        return np.zeros(len(q), np.bool_)
    m = moments(q, fit.spread, fit.s2)
    gap = misfits(m, Centers.of(fit.centers, fit.covariances))[0].min(axis=1) - m.base + m.e
    return np.asarray(chdtrc(np.maximum(q.rows - q.dof, 1.0), gap - q.pure / fit.s2) < 1 / len(q))


def _given_up(
    fits: list[MixtureFit], found: list[MixtureFit], few: Ints, n_users: int
) -> tuple[Weighed, ...]:
    """What few users gave up, as far behind as they say or as is to expect of all."""
    kept, least = {_kind(fit)[:2] for fit in found}, min(map(evidence, found))
    first = min(fits, key=evidence)
    best = dict[tuple[int, str], Weighed]()
    for fit in fits:
        (k, shape, _), expected = _kind(fit), _expected(fit, n_users) - _expected(first, n_users)
        value = least + max(expected, evidence(fit) - evidence(first))
        if (k, shape) not in kept and ((k, shape) not in best or value < best[k, shape].evidence):
            labels = np.full(n_users, -1, np.intp)
            labels[few] = fit.responsibilities.argmax(axis=1)
            best[k, shape] = Weighed(k, shape, value, labels)
    return tuple(best.values())
