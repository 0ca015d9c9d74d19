"""How many groups, and how users differ inside them: the (K, shape of T) of best evidence.

Everything is deterministic and independent of the order of users: starts are read off the data,
samples are drawn by user id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from odcl._typing import Array
from odcl.mixed.candidates import candidates, given_number
from odcl.mixed.em import MixtureFit, Stopping, Weighed, fit_mixture, with_noise_freedom
from odcl.mixed.few import found_among_few, sample_by_id
from odcl.mixed.mixture import Quadratics, pure_noise
from odcl.mixed.select import (
    SHAPES,
    SHARED,
    Admissible,
    admitted,
    choose,
    reduced,
    refit,
    weighed,
    with_tails,
)
from odcl.mixed.streaming_em import STILL
from odcl.threads import one_thread

FEW = 300  # users that tell where fits of given K begin


def search(
    q: Quadratics,
    ids: Sequence[str] | Array | None = None,
    *,
    max_groups: int = 50,
    n_groups: int | None = None,
    spread: str | None = None,
    admissible: Admissible | None = None,
) -> MixtureFit:
    """The mixture of best evidence.

    ``n_groups`` and ``spread`` (one of :data:`SHAPES`) say what is known; the rest is searched for.
    Only fits that are ``admissible`` are given back: others lose their smallest group and converge
    again.
    """
    with one_thread():
        q = replace(q, many=_many(n_groups, spread))
        best = _search(q, ids, max_groups, n_groups, spread, admissible)
        found = _polish(q, _with_curves(q, best), admissible)
        return replace(found, groups_forbidden=best.groups_forbidden, weighed=best.weighed)


def search_sample(
    q: Quadratics,
    ids: Array,
    *,
    max_groups: int = 50,
    n_groups: int | None = None,
    spread: str | None = None,
) -> MixtureFit:
    """The mixture of best evidence for a sample, roughly converged: all users are to follow.

    A group of share p is absent from a sample of n users with probability (1 - p)^n.
    """
    with one_thread():
        q = replace(q, many=_many(n_groups, spread))
        best = _search(q, ids, max_groups, n_groups, spread)
        if q.beside is None:
            return best
        wide = _with_curves(q, best)
        return replace(refit(q, wide, wide.spread), weighed=best.weighed)


def _with_curves(q: Quadratics, fit: MixtureFit) -> MixtureFit:
    """Where a fit of lines beside common curves begins that is to know the curves as well."""
    if q.beside is None or q.bends is None:
        return fit
    lines = np.ix_(q.bends.lines, q.bends.lines)
    T, opened = np.zeros((q.dim, q.dim)), np.zeros(q.dim, np.bool_)
    T[lines], opened[q.bends.lines] = fit.spread.matrix, fit.spread.open
    spread, prior = replace(q.alike, shape=fit.spread.shape, matrix=T, open=opened), None
    if fit.prior is not None:
        prior = SHARED * float(np.diag(fit.prior).mean()) * np.eye(q.dim)
        prior[lines] = fit.prior
    return replace(fit, spread=replace(spread, unseen=fit.spread.unseen), prior=prior)


def _many(n_groups: int | None, spread: str | None) -> bool:
    """Will T be tried at many multiples of I?"""
    return n_groups is None or spread in (None, "scalar")


def _check(n_groups: int | None, spread: str | None) -> None:
    if n_groups is not None and n_groups < 1:
        raise ValueError(f"n_groups={n_groups!r} is not a number of groups from 1 on.")
    if spread is not None and spread not in SHAPES:
        raise ValueError(
            f"spread={spread!r} is not one of {', '.join(map(repr, SHAPES))}: how users of a group "
            "differ. Leave it out, and it is chosen by evidence."
        )


def _polish(q: Quadratics, fit: MixtureFit, admissible: Admissible | None) -> MixtureFit:
    r, prior = fit.responsibilities, fit.prior
    stop = Stopping(movement=STILL)
    fit = fit_mixture(q, r, fit.spread, fit.noise, fit.s2, prior, stop=stop)
    if admissible is not None:
        fit = reduced(q, fit, admissible, Stopping())
    return with_tails(q, with_noise_freedom(q, fit))


def _search(
    q: Quadratics,
    ids: Sequence[str] | Array | None,
    max_groups: int,
    n_groups: int | None,
    spread: str | None,
    admissible: Admissible | None = None,
) -> MixtureFit:
    _check(n_groups, spread)
    if q.beside is not None:
        q = replace(q.beside, many=q.many)
    noise, s2 = pure_noise(q)
    names = np.arange(len(q)) if ids is None else ids
    also: tuple[Weighed, ...] = ()
    if n_groups is None:
        few = found_among_few(q, names, noise, s2, max_groups, spread)
        fits = few.fits if few else candidates(q, noise, s2, max_groups, spread)
        also = few.others if few else ()
    else:
        shapes = SHAPES if spread is None else (spread,)
        fits = given_number(q, noise, s2, min(n_groups, len(q)), shapes, sample_by_id(names, FEW))
    best, forbidden = choose(q, fits), False
    if admissible is not None and not all(map(admissible, fits)):
        forbidden = not admissible(best)
        fits = admitted(q, fits, admissible) if forbidden else [*filter(admissible, fits)]
        best = choose(q, fits) if forbidden else best
    return replace(best, groups_forbidden=forbidden, weighed=(*weighed(fits), *also))
