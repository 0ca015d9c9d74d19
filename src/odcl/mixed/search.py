"""How many groups, and how users differ inside them: the (K, shape of T) of best evidence.

Everything is deterministic and independent of the order of users: starts are read off the data,
samples are drawn by user id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from odcl._typing import Floats, Ints
from odcl.errors import NotAdmissible
from odcl.mixed.em import Fit, fit_mixture
from odcl.mixed.mixture import (
    Centers,
    Quadratics,
    Spread,
    center_step,
    group_sums,
    misfits,
    moments,
    responsibilities,
)
from odcl.mixed.noise import Noise, pure_noise
from odcl.mixed.tails import with_tails

Admissible = Callable[[Fit], bool]

SHAPES = ("zero", "scalar", "diag", "full")
FAILURES = 2  # a shape is given up after so many K in a row that did not improve it
# Many groups far from one another may look like one center with a wide T until all are there: when
# every shape is given up, larger K are looked at with T = 0, up to groups of two users.
LOOKED_AT = frozenset([*range(2, 13), 14, 16, 18, 20, 23, 26, 30, 34, 38, 43, 48])
LEFT = 0.01  # of a single center's T, to begin with inside groups
SAMPLE = 2000  # users that search for K and shape; all take part in the last sweeps
ROUGH = 1e-2  # gain in the bound per sweep at which a candidate has converged well enough
FINE = 1e-8
SWEEPS = 4  # of each start, before the best is converged
PATIENCE = 30  # sweeps that a candidate may take; the winner takes all it needs


def search(
    q: Quadratics,
    ids: Sequence[str] | None = None,
    *,
    max_groups: int = 50,
    sample: int = SAMPLE,
    admissible: Admissible | None = None,
) -> Fit:
    """The mixture of best evidence, fitted to all users.

    With more than ``sample`` users K and shape are searched on a sample drawn by ``ids``: a group
    of share p is absent from it with probability (1 - p)^sample. Only fits that are ``admissible``
    are given back: others lose their smallest group and converge again.
    """
    if len(q) <= sample:
        best = _search(q, max_groups, admissible)
        return _polish(q, best, best.responsibilities, best.s2, admissible)
    names = [str(i) for i in range(len(q))] if ids is None else [str(i) for i in ids]
    who = sample_by_id(names, sample)
    best = _search(q[who], max_groups)  # what is admissible is a matter of all users
    noise, s2 = pure_noise(q)
    s2 = np.full(len(q), best.s2[0]) if noise.common else s2
    m = moments(q, best.spread, s2)
    stack = Centers.of(best.centers, best.covariances)
    r = responsibilities(misfits(m, stack), best.weights)[0][0]
    best, tol = replace(best, noise=noise), 1e-6 * len(q)
    return _polish(q, best, r, s2, admissible, tol=tol, max_sweeps=30)


def evidence(fit: Fit) -> float:
    return fit.evidence


def sample_by_id(ids: Sequence[str], size: int) -> Ints:
    """The ``size`` users whose ids have the smallest SHA-256, in the order of their digests."""
    digests = [hashlib.sha256(name.encode()).digest() for name in ids]
    return np.array(sorted(range(len(ids)), key=digests.__getitem__)[:size], np.intp)


def _polish(
    q: Quadratics,
    fit: Fit,
    r: Floats,
    s2: Floats,
    admissible: Admissible | None,
    *,
    tol: float = FINE,
    max_sweeps: int = 500,
) -> Fit:
    fit = fit_mixture(q, r, fit.spread, fit.noise, s2, fit.prior, tol=tol, max_sweeps=max_sweeps)
    if admissible is not None:
        fit = _reduced(q, fit, admissible, tol, max_sweeps)
    return with_tails(q, fit)


def _reduced(
    q: Quadratics, fit: Fit, admissible: Admissible, tol: float = ROUGH, sweeps: int = PATIENCE
) -> Fit:
    """The fit without its smallest groups, one by one, until it is admissible."""
    while not admissible(fit):
        if fit.n_groups == 1:
            raise _none_of(q)
        kept = np.delete(np.arange(fit.n_groups), np.argmin(fit.weights))
        stack = Centers.of(fit.centers[kept], fit.covariances[kept])
        m = moments(q, fit.spread, fit.s2)
        r = responsibilities(misfits(m, stack), fit.weights[kept] / fit.weights[kept].sum())[0][0]
        prior = fit.prior if len(kept) > 1 else None
        T = fit.spread
        fit = fit_mixture(q, r, T, fit.noise, fit.s2, prior, tol=tol, max_sweeps=sweeps)
    return fit


def _admitted(q: Quadratics, fits: list[Fit], admissible: Admissible) -> list[Fit]:
    """The admissible fits, and the best of the others in each shape without its small groups."""
    allowed = [fit for fit in fits if admissible(fit)]
    for shape in SHAPES:
        refused = [f for f in fits if f.spread.shape == shape and f.n_groups > 1]
        refused = [fit for fit in refused if not admissible(fit)]
        if refused:
            with suppress(NotAdmissible):  # another shape may have an admissible group
                allowed.append(_reduced(q, min(refused, key=evidence), admissible))
    if not allowed:
        raise _none_of(q)
    return allowed


def _none_of(q: Quadratics) -> NotAdmissible:
    return NotAdmissible(
        f"Not even one group of all {len(q)} users is admissible: wait for more users, or ask less "
        "of a group."
    )


def _search(q: Quadratics, max_groups: int, admissible: Admissible | None = None) -> Fit:
    noise, s2 = pure_noise(q)
    singles = one_group(q, noise, s2)
    fits = list(singles.values())
    simple = [singles["scalar"], singles["diag"]]
    prior = _center_prior(min(simple, key=evidence))
    if prior is None or len(q) < 3:
        return _choose(q, fits)
    starts = _kmeans_starts(_posterior_means(q, min(simple, key=evidence)))
    previous = {shape: singles[shape] for shape in ("scalar", "zero", "diag")}
    leading = {shape: evidence(fit) for shape, fit in previous.items()}
    failures = dict.fromkeys(previous, 0)
    for k in range(2, min(max_groups, len(q) - 1) + 1):
        tried = next(starts)
        if all(count >= FAILURES for count in failures.values()):
            if 2 * k > len(q) or k not in LOOKED_AT:
                continue
            alike = _best_start(q, Spread.zero(q.dim), simple[0], tried, prior)
            if evidence(alike) >= min(map(evidence, fits)):
                continue
            previous = {shape: _reopened(q, alike, singles[shape]) for shape in previous}
            leading = {shape: evidence(fit) for shape, fit in previous.items()}
            failures = dict.fromkeys(previous, 0)
            fits += [alike, *previous.values()]
            continue
        for shape in [shape for shape in previous if failures[shape] < FAILURES]:
            fit = _grow(q, previous[shape], tried, prior)
            tried.append(fit.responsibilities)
            if shape != "zero":
                fits.append(_close(q, fit))
                fit = min(fit, fits[-1], key=evidence) if shape == "diag" else fit
            fits.append(fit)
            behind = evidence(fit) >= leading[shape]
            if shape == "zero":  # what T = 0 can do in the end, a scalar T closed can do too
                behind = behind or evidence(fit) > evidence(previous["scalar"])
            failures[shape] = failures[shape] + 1 if behind else 0
            leading[shape] = min(leading[shape], evidence(fit))
            previous[shape] = fit
    return _choose(q, fits if admissible is None else _admitted(q, fits, admissible))


def _reopened(q: Quadratics, alike: Fit, single: Fit) -> Fit:
    """Groups found with T = 0, with the little that is left of a single center's T."""
    if not single.spread.matrix.any():
        return alike
    T = replace(single.spread, matrix=LEFT * single.spread.matrix)
    return fit_mixture(
        q,
        alike.responsibilities,
        T,
        alike.noise,
        alike.s2,
        alike.prior,
        tol=ROUGH,
        max_sweeps=PATIENCE,
    )


def one_group(q: Quadratics, noise: Noise, s2: Floats) -> dict[str, Fit]:
    """The linear mixed model in every shape; "full" also inside the coordinates that diag opens."""
    dim, everyone = q.dim, np.ones((len(q), 1))
    fits = {"zero": fit_mixture(q, everyone, Spread.zero(dim), noise, s2, tol=ROUGH)}
    s2 = s2 if q.dof.sum() > 0 else fits["zero"].s2
    every = np.ones(dim, np.bool_)
    start = np.eye(dim) * 0.1 * q.rows.sum() / max(np.trace(q.A.sum(axis=0)) / dim, 1e-300)
    for shape in ("scalar", "diag"):
        T = Spread(shape, start, every)
        fits[shape] = fit_mixture(q, everyone, T, noise, s2, tol=ROUGH)
        if fits[shape].spread.matrix.any():
            start, s2 = fits[shape].spread.matrix, fits[shape].s2
    whole = fits["diag"].spread.matrix
    fits["diag"] = min(fits["diag"], _close(q, fits["diag"]), key=evidence)
    chosen = fits["diag"].spread
    candidates: list[Fit] = []
    for opened, matrix in ((every, whole), (chosen.open, chosen.matrix)):
        if opened.sum() > 1 and not (candidates and opened.all()):
            floor = np.diag(opened * 1e-3 * np.trace(matrix) / opened.sum())
            full = Spread("full", matrix + floor, opened)
            candidates.append(fit_mixture(q, everyone, full, noise, s2, tol=ROUGH))
    if candidates:
        fits["full"] = min(candidates, key=evidence)
    return fits


def _close(q: Quadratics, fit: Fit) -> Fit:
    """The fit again with T closed where it is not significant; the same if it is everywhere.

    t_j^2 sum W_jj^2 / 2 is the Wald statistic of t_j (of a scalar t, with |W|^2); below log m a
    coordinate does not pay for itself.
    """
    T, W = fit.spread, moments(q, fit.spread, fit.s2).W
    values = np.diag(T.matrix)
    if T.shape == "scalar":
        info = np.full(q.dim, (W**2).sum())
    else:
        info = (np.diagonal(W, axis1=1, axis2=2) ** 2).sum(axis=0)
    opened = T.open & (values**2 * 0.5 * info >= np.log(len(q)))
    if (opened == T.open).all():
        return fit
    closed = Spread("diag", np.diag(values * opened), opened)
    return fit_mixture(
        q,
        fit.responsibilities,
        closed if opened.any() else Spread.zero(q.dim),
        fit.noise,
        fit.s2,
        fit.prior,
        tol=ROUGH,
        max_sweeps=PATIENCE,
    )


def _center_prior(fit: Fit) -> Floats | None:
    """B: the spread of users around one center, scalar or diagonal, with a floor; None if zero."""
    T = np.diag(fit.spread.matrix)
    return T + 1e-3 * T.mean() if T.any() else None


def _choose(q: Quadratics, fits: list[Fit]) -> Fit:
    """The fit of best evidence, tails allowed; one center with a full T needs a word more.

    One center has the benefit of the doubt: the flat prior of the common mean is not charged,
    which favors it by log |information| of that mean. A full T can mimic groups that lie along a
    line, so it gets that benefit only as far as users cannot be told apart (twice over).
    """
    kinds: dict[tuple[bool, bool], list[Fit]] = {}
    for fit in fits:
        kinds.setdefault((fit.n_groups == 1, fit.spread.shape == "full"), []).append(fit)
    best = {kind: with_tails(q, min(some, key=evidence)) for kind, some in kinds.items()}
    full = best.pop((True, True), None)
    simple = min(best.values(), key=evidence)
    if full is None:
        return simple
    lead = evidence(full) - evidence(simple)
    if simple.n_groups > 1:
        lead += full.common - simple.common - 4 * simple.entropy
    return full if lead < 0 else simple


def _grow(q: Quadratics, fewer: Fit, starts: list[Floats], prior: Floats) -> Fit:
    """A fit with one group more: the best of all starts after four sweeps, then converged."""
    m = moments(q, fewer.spread, fewer.s2)
    more = [s for s in starts if s.shape[1] == fewer.n_groups + 1] + _splits(m.W, m.w, fewer)
    return _best_start(q, fewer.spread, fewer, more, prior)


def _best_start(
    q: Quadratics, spread: Spread, noise: Fit, starts: list[Floats], prior: Floats
) -> Fit:
    """The best of all starts after four sweeps, then converged; the noise is that of a fit."""
    m, r = moments(q, spread, noise.s2), np.stack(starts)
    for _ in range(SWEEPS):
        weights = r.mean(axis=1)
        centers = center_step(*group_sums(m, r), prior, anchor=q.anchor)
        r, total = responsibilities(misfits(m, centers), weights)
    bounds = total.sum(axis=1) - centers.price
    first = r[int(np.argmax(bounds))]
    return fit_mixture(
        q, first, spread, noise.noise, noise.s2, prior, tol=ROUGH, max_sweeps=PATIENCE
    )


def _splits(W: Floats, w: Floats, fit: Fit, n_splits: int = 3) -> list[Floats]:
    """Each group split by the sign of its users' scores along their direction of most excess.

    The direction is the top eigenvector of Omega_k = sum r z z' relative to M_k = sum r W, the
    covariance the scores should have; groups are ranked by the score test of a spread along it.
    """
    splits = []
    for k in range(fit.n_groups):
        r = fit.responsibilities[:, k]
        if r.sum() < 1.5:  # one user cannot be split
            continue
        z = w - W @ fit.centers[k]
        M = np.tensordot(r, W, axes=1)
        values, vectors = np.linalg.eigh(M)
        seen = values > 1e-10 * max(values[-1], 1e-300)
        white = vectors[:, seen] / np.sqrt(values[seen])
        top, directions = np.linalg.eigh(white.T @ ((z * r[:, None]).T @ z) @ white)
        u = white @ directions[:, -1]
        excess = (top[-1] - 1) / np.sqrt(2 * (r * ((W @ u) @ u) ** 2).sum())
        upper = (z @ u > 0).astype(float)
        split = np.delete(fit.responsibilities, k, axis=1)
        splits.append((excess, np.column_stack([split, r * upper, r * (1 - upper)])))
    splits.sort(key=lambda pair: -pair[0])
    return [split for _, split in splits[:n_splits]]


def _posterior_means(q: Quadratics, fit: Fit) -> Floats:
    """The users' posterior means under one group, in the metric of their mean information."""
    m = moments(q, fit.spread, fit.s2)
    theta = (m.w - m.W @ fit.centers[0]) @ fit.spread.matrix
    values, vectors = np.linalg.eigh(m.W.mean(axis=0))
    return theta @ (vectors * np.sqrt(np.maximum(values, 0.0)))


def _kmeans_starts(points: Floats) -> Iterator[list[Floats]]:
    """For K = 2, 3, ... two K-means without chance: from farthest points, and from main axes.

    Farthest points: each new seed is the user farthest from the seeds so far. Main axes: each new
    group is one half of the widest group so far, split across its longest axis.
    """
    seeds = [points[np.argmax((points**2).sum(axis=1))]]
    gap = ((points - seeds[0]) ** 2).sum(axis=1)
    groups, widths = [np.arange(len(points))], [np.inf]
    while True:
        seeds.append(points[np.argmax(gap)])
        gap = np.minimum(gap, ((points - seeds[-1]) ** 2).sum(axis=1))
        widest = int(np.argmax(widths))
        members = groups.pop(widest)
        widths.pop(widest)
        away = points[members] - points[members].mean(axis=0)
        upper = away @ np.linalg.svd(away, full_matrices=False)[2][0] > 0
        for half in (members[upper], members[~upper]):
            groups.append(half if len(half) else members)
            inside = points[groups[-1]]
            widths.append(float(((inside - inside.mean(axis=0)) ** 2).sum()) if len(half) else 0.0)
        means = np.stack([points[group].mean(axis=0) for group in groups])
        yield [_lloyd(points, np.stack(seeds)), _lloyd(points, means)]


def _lloyd(points: Floats, centers: Floats, sweeps: int = 10) -> Floats:
    """Hard responsibilities after a few sweeps of Lloyd's loop; empty groups stay put."""
    K, square = len(centers), (points**2).sum(axis=1)
    for _ in range(sweeps):
        distance = square[:, None] - 2 * points @ centers.T + (centers**2).sum(axis=1)
        r = np.eye(K)[np.argmin(distance, axis=1)]
        size = r.sum(axis=0)[:, None]
        centers = np.where(size > 0, (r.T @ points) / np.maximum(size, 1), centers)
    return r
