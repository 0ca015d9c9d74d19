"""Which fit it is to be: the one of best evidence among those that are admissible, tails allowed.

Heavy tails: a few users lie much farther from their center than the others. With probability p_j a
user's spread is lambda_j T, for lambda on a short grid around one. The probabilities are fitted
after everything else; they are kept where the evidence says so, and then users far out are shrunk
less, users near by more, and no group is needed to explain either.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from odcl._typing import Floats
from odcl.errors import NotAdmissible
from odcl.mixed.em import MixtureFit, Stopping, Weighed, fit_mixture
from odcl.mixed.mixture import (
    Centers,
    MixtureMoments,
    Quadratics,
    Spread,
    misfits,
    moments,
    responsibilities,
)

Admissible = Callable[[MixtureFit], bool]
SHAPES = ("zero", "scalar", "diag", "full")
# A candidate that is to be compared with others converges roughly; the winner takes all it needs.
PATIENCE = 30  # sweeps
ROUGHLY = Stopping(gain=1e-2, sweeps=PATIENCE, hope=1 / 3)
SHARED = 1e-8  # of B, for coefficients that all groups share
TAILED = 3  # candidates of one kind that are tried with tails


def evidence(fit: MixtureFit) -> float:
    return fit.evidence


def is_simple(fit: MixtureFit) -> bool:
    """Is it anything but one center with a full T, which needs a word more to be chosen?"""
    return fit.n_groups > 1 or fit.spread.shape != "full"


def leading(fits: list[MixtureFit]) -> float:
    """The best evidence so far of simple fits, see :func:`choose`."""
    return min(map(evidence, filter(is_simple, fits)), default=np.inf)


def doubted(q: Quadratics, fit: MixtureFit) -> float:
    """The evidence of groups beside one center with a full T; silent users doubt nothing."""
    return evidence(fit) + fit.common + 4 * float(fit.entropy[q.rows > 0].sum())


def choose(q: Quadratics, fits: list[MixtureFit]) -> MixtureFit:
    """The fit of best evidence, tails allowed; one center with a full T needs a word more.

    One center has the benefit of the doubt: the flat prior of the common mean is not charged,
    which favors it by log |information| of that mean. A full T can mimic groups that lie along a
    line, so it gets that benefit only as far as users cannot be told apart (twice over).
    """
    kinds: dict[tuple[bool, bool], list[MixtureFit]] = {}
    for fit in sorted(fits, key=evidence):
        kinds.setdefault((fit.n_groups == 1, fit.spread.shape == "full"), []).append(fit)
    # Tails may help another than the one that leads without them: a few of different K or shape.
    bar = leading(fits)
    best = {
        kind: min((with_tails(q, fit, bar) for fit in _different(some)), key=evidence)
        for kind, some in kinds.items()
        if kind != (True, True)
    }
    simple = min(best.values(), key=evidence, default=None)
    fulls = kinds.get((True, True), [])
    if simple is None or not fulls:
        return simple or min((with_tails(q, fit) for fit in fulls), key=evidence)
    doubt = evidence(simple) if simple.n_groups == 1 else doubted(q, simple)
    bars = (max(evidence(simple), doubt - fit.common) for fit in fulls)
    full = min(map(partial(with_tails, q), fulls, bars), key=evidence)
    if simple.n_groups == 1:
        return min(full, simple, key=evidence)
    if evidence(full) < evidence(simple):
        prior, stop = center_prior(full), evidence(full) + full.common
        wide = refit(q, simple, simple.spread, prior, stop)
        simple = min(simple, wide, key=partial(doubted, q))
    return full if evidence(full) + full.common < doubted(q, simple) else simple


def weighed(fits: list[MixtureFit]) -> tuple[Weighed, ...]:
    """The best fit of every K and shape, by growing K: what a reader may want to compare.

    Groups are numbered as they came: a page that shows them has to match them.
    """
    best: dict[tuple[int, str], MixtureFit] = {}
    for fit in sorted(fits, key=evidence, reverse=True):
        best[fit.n_groups, fit.spread.shape if fit.spread.matrix.any() else "zero"] = fit
    order = sorted(best, key=lambda it: (it[0], SHAPES.index(it[1])))
    return tuple(
        Weighed(k, shape, fit.evidence, fit.responsibilities.argmax(axis=1))
        for k, shape in order
        for fit in [best[k, shape]]
    )


def _different(fits: list[MixtureFit]) -> list[MixtureFit]:
    """The first fit of each K and shape that may have tails, and the first of all; a few."""
    first = {(fit.n_groups, fit.spread.shape): fit for fit in reversed(fits)}
    wide = [fit for fit in fits if fit.spread.matrix.any() and fit in first.values()]
    return [fits[0], *(fit for fit in wide[:TAILED] if fit is not fits[0])]


def admitted(q: Quadratics, fits: list[MixtureFit], admissible: Admissible) -> list[MixtureFit]:
    """The admissible fits, and the best of the others in each shape without its small groups."""
    allowed = [fit for fit in fits if admissible(fit)]
    for shape in SHAPES:
        refused = [f for f in fits if f.spread.shape == shape and f.n_groups > 1]
        refused = [fit for fit in refused if not admissible(fit)]
        if refused:
            with suppress(NotAdmissible):  # another shape may have an admissible group
                allowed.append(reduced(q, min(refused, key=evidence), admissible))
    if not allowed:
        raise none_admissible(len(q))
    return allowed


def reduced(
    q: Quadratics, fit: MixtureFit, admissible: Admissible, stop: Stopping = ROUGHLY
) -> MixtureFit:
    """The fit without its smallest groups, one by one, until it is admissible."""
    while not admissible(fit):
        if fit.n_groups == 1:
            raise none_admissible(len(q))
        kept = np.delete(np.arange(fit.n_groups), np.argmin(fit.weights))
        stack = Centers.of(fit.centers[kept], fit.covariances[kept])
        m = moments(q, fit.spread, fit.s2)
        r = responsibilities(misfits(m, stack), fit.weights[kept] / fit.weights[kept].sum())[0][0]
        prior = fit.prior if len(kept) > 1 else None
        fit = fit_mixture(q, r, fit.spread, fit.noise, fit.s2, prior, stop=stop)
    return fit


def none_admissible(n_users: int) -> NotAdmissible:
    return NotAdmissible(
        f"Not even one group of all {n_users} users is admissible: wait for more users, or ask "
        "less of a group."
    )


def refit(
    q: Quadratics,
    fit: MixtureFit,
    spread: Spread,
    prior: Floats | None = None,
    beat: float = np.inf,
) -> MixtureFit:
    """The groups of a fit with another T to start from (or B), roughly converged."""
    prior = fit.prior if prior is None else prior
    stop = replace(ROUGHLY, evidence=beat)
    return fit_mixture(q, fit.responsibilities, spread, fit.noise, fit.s2, prior, stop=stop)


def center_prior(fit: MixtureFit) -> Floats | None:
    """B: the spread of users around one center, with a floor; None if zero.

    Coefficients that all groups share have next to none: their common mean is what is estimated.
    Groups bend apart only where users do.
    """
    T, own = fit.spread.matrix, fit.spread.may & fit.spread.lines
    if not T.any():
        return None
    size = np.diag(T)[own].mean() if np.diag(T)[own].any() else np.diag(T).mean()
    return T + np.diag(np.where(own, 1e-3, SHARED) * size)


# -- heavy tails ----------------------------------------------------------------------------------


SCALES = np.array([0.25, 1.0, 4.0, 16.0])
STEPS = 300
GAP = 1e-2  # in the log-likelihood


def with_tails(q: Quadratics, fit: MixtureFit, beat: float = np.inf) -> MixtureFit:
    """The fit with scales of T and their probabilities, if they earn log m; else as it was.

    As it was, too, where it does not ``beat`` an evidence with them.
    """
    if not fit.spread.matrix.any():
        return fit
    spreads = [replace(fit.spread, matrix=scale * fit.spread.matrix) for scale in SCALES]
    levels = np.stack([_levels(moments(q, T, fit.s2), fit) for T in spreads], axis=1)
    plain = float(levels[:, SCALES == 1.0].sum())
    floor = plain + 0.5 * (np.log(len(q)) + max(fit.evidence - beat, 0.0))
    shares, level = _shares(levels, floor)
    if level <= floor:
        return fit
    return replace(fit, scales=SCALES, shares=shares, tail_gain=level - plain)


def _levels(m: MixtureMoments, fit: MixtureFit) -> Floats:
    """The log densities of all users under a fit at these moments, (n_users,)."""
    stack = Centers.of(fit.centers, fit.covariances)
    with np.errstate(divide="ignore"):
        logits = np.log(fit.weights) - 0.5 * misfits(m, stack)[0]
    return np.asarray(np.logaddexp.reduce(logits, axis=1))


def _shares(levels: Floats, floor: float) -> tuple[Floats, float]:
    """The probabilities of largest likelihood, by EM for mixture proportions, and that level.

    The level is concave: it lies below its maximum by at most m (max_j slope_j - 1). The loop ends
    when that is next to nothing, or when the maximum is known to be no higher than ``floor``.
    """
    top = levels.max(axis=1, keepdims=True)
    density = np.exp(levels - top)
    shares = np.full(levels.shape[1], 1 / levels.shape[1])
    for _ in range(STEPS):
        mixed = density @ shares
        level = float((top[:, 0] + np.log(mixed)).sum())
        slopes = (density / mixed[:, None]).mean(axis=0)
        gap = len(levels) * (slopes.max() - 1)
        if gap <= GAP or level + gap <= floor:
            break
        shares = shares * slopes
    return shares, level
