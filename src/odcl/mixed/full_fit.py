"""From the fit of a sample to that of all users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from odcl._typing import Floats
from odcl.mixed.em import Fit
from odcl.mixed.heavy_tails import with_tails
from odcl.mixed.mixture import Centers, Quadratics, misfits, responsibilities
from odcl.mixed.select import none_admissible
from odcl.mixed.streaming_em import (
    Parameters,
    PassSums,
    come_to_rest,
    e_step,
    in_stacks,
    own_noise,
    parameters_of,
    shares_of,
)


@dataclass(frozen=True, eq=False)
class Everybody:
    """A mixture found on a sample, at rest over all users."""

    parameters: Parameters
    scales: Floats  # (J,), see ``tails``: told by the sample
    shares: Floats  # (J,)
    centers: Centers  # with what they cost the evidence
    level: float  # the log-likelihood that they cost it of
    passes: int
    converged: bool


def everybody(
    sample: Quadratics,
    best: Fit,
    total: Callable[[Parameters], PassSums],
    allowed: Callable[[Parameters], bool],
) -> Everybody:
    """The mixture ``best`` of a sample, for all users, whom ``total`` sums over at every pass.

    Where groups are not ``allowed`` the smallest goes, until they are.
    """
    at, prior, passes = parameters_of(best), best.prior, 0
    while True:
        rest = come_to_rest(total, at, prior, like=sample)
        at, passes = rest.parameters, passes + rest.passes
        if allowed(at):
            break
        if at.n_groups == 1:
            raise none_admissible(int(rest.sums.slopes.n))
        at = at.take(np.delete(np.arange(at.n_groups), np.argmin(at.weights)))
        prior = prior if at.n_groups > 1 else None
    centers = rest.centers.sharing(sample.fixed)
    at = replace(at, centers=centers.c[0], covariances=centers.C[0])
    tailed = with_tails(sample, fit_of(sample, at, best))
    return Everybody(
        *(at, tailed.scales, tailed.shares, rest.centers, rest.sums.level, passes, rest.converged)
    )


def fit_of(q: Quadratics, at: Parameters, like: Fit) -> Fit:
    """What a mixture says of the users of ``q``, without tails; the rest is that of ``like``."""
    return replace(
        like,
        weights=at.weights,
        centers=at.centers,
        covariances=at.covariances,
        spread=at.spread,
        noise=at.noise,
        s2=own_noise(q, at),
        responsibilities=shares_of(q, at),
        scales=np.ones(1),
        shares=np.ones(1),
        tail_gain=0.0,
    )


def whole_fit(q: Quadratics, found: Everybody, best: Fit) -> Fit:
    """The fit of all users, where all of them are at hand: evidence included."""
    at, bare = found.parameters, replace(found.centers, C=np.zeros_like(found.centers.C))
    level = excess = 0.0
    for part in in_stacks(q):
        r, _, s2, m = e_step(part, at)
        misfit = misfits(m, bare)
        level += float(responsibilities(misfit, at.weights)[1].sum())
        if part.ceiling is not None:
            above = np.maximum(-0.5 * misfit[0] - (part.ceiling / s2)[:, None], 0.0)
            excess += float((r * above).sum())
    return replace(
        fit_of(q, at, best),
        bound=found.level - float(found.centers.price[0]),
        common=float(found.centers.common[0]),
        prior=best.prior if at.n_groups > 1 else None,
        log_likelihood=level,
        excess=excess,
        scales=found.scales,
        shares=found.shares,
        trace=(found.level,),
        converged=found.converged,
        curbed=at.n_groups < best.n_groups,
    )
