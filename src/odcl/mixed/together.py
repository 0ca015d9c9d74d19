"""Groups inside which coefficients go together: a full T, where one center shows that they do.

One center's full T takes groups for differences that go together, and groups with a diagonal T
take differences that go together for more groups. In units of that T, users of hidden groups fall
apart along some direction, whatever the correlations: there they are divided.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.mixed.em import MixtureFit, fit_mixture
from odcl.mixed.mixture import Quadratics
from odcl.mixed.select import ROUGHLY, doubted, evidence
from odcl.mixed.starts import halves, posterior_means

FLAT = 1e-6  # of the largest variance: users do not differ in a direction that has less
TURNS = 10  # of the direction along which users are divided


def groups_together(
    q: Quadratics, one: MixtureFit, prior: Floats, max_groups: int
) -> list[MixtureFit]:
    """Fits of two groups and more that share a full T; ``one`` is the center that has it now."""
    T = one.spread
    own = np.ix_(T.open & T.lines, T.open & T.lines)
    theta = posterior_means(q, one)[:, T.open & T.lines]
    into, back = _whitening(theta)
    grown = back @ _root(into @ T.matrix[own] @ into.T)
    labels, found, least = np.zeros(len(q), np.intp), list[MixtureFit](), np.inf
    stop = replace(ROUGHLY, evidence=evidence(one) + one.common)
    for k in range(2, max_groups + 1):
        labels = divided(theta, labels)
        if labels.max() + 1 < k:
            break
        matrix = T.matrix.copy()
        matrix[own] = grown @ np.cov(into @ _inside(theta, labels).T) @ grown.T
        spread, r = replace(T, matrix=matrix), np.eye(k)[labels]
        found.append(fit_mixture(q, r, spread, one.noise, one.s2, prior, stop=stop))
        if doubted(q, found[-1]) >= least:
            break
        least = doubted(q, found[-1])
        labels = np.unique(found[-1].responsibilities.argmax(axis=1), return_inverse=True)[1]
    return found


def divided(theta: Floats, labels: Ints) -> Ints:
    """The groups with one of them in two: by the least determinant of what they leave inside.

    That is the likelihood of groups with one covariance, and the same in all units.
    """
    away = _inside(theta, labels)
    white = away @ _whitening(away)[0].T
    best, least = labels, 0.0
    for k in range(labels.max() + 1):
        members = np.flatnonzero(labels == k)
        for u in np.eye(white.shape[1]) if len(members) > 3 else ():
            upper = _along(white[members], u)
            further = labels.copy()
            further[members[upper]] = labels.max() + 1
            left = np.cov(_inside(white, further).T) + FLAT * np.eye(len(u))
            level = float(np.linalg.slogdet(left)[1])
            if best is labels or level < least:
                best, least = further, level
    return best


def _along(points: Floats, u: Floats) -> Bools:
    """Who is above the best cut along ``u``, turned towards what the cut tells apart."""
    upper = np.zeros(len(points), np.bool_)
    for _ in range(TURNS):
        before, upper = upper, halves((points @ u)[:, None])[:, 0] == 0
        if (before == upper).all():
            break
        u = points[upper].mean(axis=0) - points[~upper].mean(axis=0)
    return upper


def _inside(theta: Floats, labels: Ints) -> Floats:
    """How far users are from the mean of their group."""
    r = np.eye(labels.max() + 1)[labels]
    return theta - (r @ (r.T @ theta / r.sum(axis=0)[:, None]))


def _whitening(points: Floats) -> tuple[Floats, Floats]:
    """Into coordinates in which users are as far apart in all directions, and back."""
    values, vectors = np.linalg.eigh(np.cov(points.T))
    size = np.sqrt(np.maximum(values, FLAT * values[-1]))
    return (vectors / size).T, vectors * size


def _root(S: Floats) -> Floats:
    values, vectors = np.linalg.eigh(S)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
