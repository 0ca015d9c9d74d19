"""From the fit of a sample to that of all users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from odcl.mixed.em import Fit
from odcl.mixed.heavy_tails import with_tails
from odcl.mixed.mixture import Quadratics
from odcl.mixed.select import none_admissible
from odcl.mixed.streaming_em import (
    Parameters,
    PassSums,
    come_to_rest,
    own_noise,
    parameters_of,
    shares_of,
)


def fit_everybody(
    sample: Quadratics,
    best: Fit,
    total: Callable[[Parameters], PassSums],
    allowed: Callable[[Parameters], bool],
) -> tuple[Fit, int]:
    """The mixture ``best`` of a sample fitted to all users, and the number of passes over them.

    ``total`` sums over all users at every pass. Where groups are not ``allowed`` the smallest goes,
    until they are. Heavy tails are told by the sample, and so is what the fit says of users.
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
    fit = replace(
        best,
        weights=at.weights,
        centers=centers.c[0],
        covariances=centers.C[0],
        spread=at.spread,
        noise=at.noise,
        converged=rest.converged,
        scales=np.ones(1),
        shares=np.ones(1),
        tail_gain=0.0,
    )
    at = replace(at, centers=centers.c[0], covariances=centers.C[0])
    fit = replace(fit, s2=own_noise(sample, at), responsibilities=shares_of(sample, at))
    return with_tails(sample, fit), passes
