"""Where fits of K groups begin: starts that are read off the users, with no chance in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.mixed.em import MixtureFit
from odcl.mixed.marginal import stack_size
from odcl.mixed.mixture import MixtureMoments, Quadratics, Spread, group_sums, moments

LEFT = 0.01  # of T, at least, inside groups that it hides
HIDDEN = 0.25  # of T, over all its entries, that groups leave which it may hide
FLAT = 1e-6  # of the largest variance: users do not differ in a direction that has less
CLEAR = 2.0  # times as far apart, squared, groups are as users of one group
TURNS = 10  # of the direction along which users are divided
ENOUGH = 300  # users that tell how well users are known


def splits(m: MixtureMoments, fit: MixtureFit, n_splits: int = 3) -> list[Floats]:
    """Each group split by the sign of its users' scores along their direction of most excess.

    The direction is the top eigenvector of Omega_k = sum r z z' relative to M_k = sum r W, the
    covariance the scores should have; groups are ranked by the score test of a spread along it.
    ``m`` are the moments of the fit.
    """
    shares, found = fit.responsibilities, []
    scores = m.w[..., None] - (m.W.reshape(-1, m.w.shape[1]) @ fit.centers.T).reshape(
        *m.w.shape, -1
    )
    sums = group_sums(m, shares[None])[0][0]
    may = fit.spread.may
    for k in range(fit.n_groups):
        r, z = shares[:, k], scores[..., k] * may
        if r.sum() < 1.5:  # one user cannot be split
            continue
        values, vectors = np.linalg.eigh(sums[k] * np.outer(may, may))
        seen = values > 1e-10 * max(values[-1], 1e-300)
        white = vectors[:, seen] / np.sqrt(values[seen])
        top, directions = np.linalg.eigh(white.T @ ((z * r[:, None]).T @ z) @ white)
        u = white @ directions[:, -1]
        along = m.inner(np.outer(u, u)[None])[:, 0]
        excess = (top[-1] - 1) / np.sqrt(2 * (r * along**2).sum())
        upper = (z @ u > 0).astype(float)
        split = np.delete(shares, k, axis=1)
        found.append((excess, np.column_stack([split, r * upper, r * (1 - upper)])))
    found.sort(key=lambda pair: -pair[0])
    return [split for _, split in found[:n_splits]]


def posterior_means(q: Quadratics, fit: MixtureFit) -> Floats:
    """The users' posterior means under one group, around its center.

    T z with (I + A T) z = b - A c.
    """
    T, step = fit.spread.matrix, stack_size(q.dim)
    theta = np.empty_like(q.b)
    for first in range(0, len(q), step):
        part = slice(first, first + step)
        A, s2 = q.A[part], fit.s2[part, None]
        slope = (q.b[part] - (A @ fit.centers[0][:, None])[..., 0]) / s2
        system = np.eye(q.dim) + A @ T / s2[..., None]
        theta[part] = np.linalg.solve(system, slope[..., None])[..., 0] @ T
    return theta


def usual_metric(q: Quadratics, fit: MixtureFit) -> Floats:
    """A square root of how well some users are known, (dim, dim): distances in units of doubt."""
    some = slice(None, None, -(-len(q) // ENOUGH))
    W = moments(q[some], fit.spread, fit.s2[some]).W
    values, vectors = np.linalg.eigh(W.mean(axis=0))
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def kmeans_seeds(points: Floats) -> Iterator[tuple[Floats, Floats]]:
    """For K = 2, 3, ... where two K-means without chance begin: farthest points, and main axes.

    Farthest points: each new seed is the user farthest from the seeds so far. Main axes: each new
    group is one half of the widest group so far, split across its longest axis.
    """
    seeds = [points[np.argmax((points**2).sum(axis=1))]]
    gap = ((points - seeds[0]) ** 2).sum(axis=1)
    groups, widths, means = [np.arange(len(points))], [np.inf], [points.mean(axis=0)]
    while True:
        seeds.append(points[np.argmax(gap)])
        gap = np.minimum(gap, ((points - seeds[-1]) ** 2).sum(axis=1))
        widest = int(np.argmax(widths))
        members, _ = groups.pop(widest), widths.pop(widest)
        away = points[members] - means.pop(widest)
        upper = away @ np.linalg.svd(away, full_matrices=False)[2][0] > 0
        for half in (members[upper], members[~upper]):
            groups.append(half if len(half) else members)
            inside = points[groups[-1]]
            means.append(inside.mean(axis=0))
            widths.append(float(((inside - means[-1]) ** 2).sum()) if len(half) else 0.0)
        yield np.stack(seeds), np.stack(means)


def clear_number(points: Floats, most: int) -> int:
    """How many groups lie so far apart that no user is nearly as far from its own; 0: none do.

    Each seed is the user farthest from the seeds so far: with one in every group the next is near.
    """
    far, gap, seed = list[float](), np.full(len(points), np.inf), (points**2).sum(axis=1).argmax()
    for _ in range(most):
        gap = np.minimum(gap, ((points - points[seed]) ** 2).sum(axis=1))
        seed = gap.argmax()
        far.append(float(gap[seed]))
    times = np.divide(far[:-1], np.maximum(far[1:], 1e-300))
    return int(times.argmax()) + 2 if times.max(initial=0.0) > CLEAR else 0


def halves(theta: Floats) -> Floats:
    """Hard responsibilities of the best 2-means in one coordinate, the one that these halve most.

    Groups that differ in one coefficient are lost among others in which users differ as much.
    """
    upper = max((cut(x) for x in theta.T), key=itemgetter(1))[0]
    return np.column_stack([~upper, upper]).astype(np.float64)


def cut(x: Floats) -> tuple[Bools, float]:
    """Who is above the best cut of numbers in two, and the share of their variance it explains."""
    n, away = len(x), x - x.sum() / len(x)
    order = np.argsort(away, kind="stable")
    below, size = np.cumsum(away[order])[:-1], np.arange(1, n)
    between = below**2 * (n / (size * (n - size)))
    last = int(between.argmax())
    upper = np.ones(n, np.bool_)
    upper[order[: last + 1]] = False
    return upper, float(between[last] / max(away @ away, 1e-300))


def lloyd(points: Floats, centers: Floats, sweeps: int = 10) -> Floats:
    """Hard responsibilities after a few sweeps of Lloyd's loop; empty groups stay put."""
    every, nearest = np.eye(len(centers)), np.full(len(points), -1)
    for _ in range(sweeps):
        distance = (centers**2).sum(axis=1) - 2 * points @ centers.T
        before, nearest = nearest, np.argmin(distance, axis=1)
        if (nearest == before).all():
            break
        r = every[nearest]
        size = r.sum(axis=0)[:, None]
        centers = np.where(size > 0, (r.T @ points) / np.maximum(size, 1), centers)
    return every[nearest]


def lloyds(points: Floats, seeds: Iterator[tuple[int, tuple[Floats, ...]]], k: int) -> list[Floats]:
    """Hard responsibilities of the K-means of k groups; ``seeds`` are numbered by their groups."""
    centers = next(centers for at, centers in seeds if at == k)
    return [lloyd(points, c) for c in centers]


def hidden_groups(
    T: Spread, single: Spread, theta: Floats, starts: list[Floats]
) -> tuple[Spread, Floats] | None:
    """A diagonal T by which groups may show that are hidden in a wider one, and these groups.

    ``theta`` are users' posterior means around one center: each entry of its T is what these
    groups, of K-means, leave of them there. None where that is not much less than T.
    """
    own, whole = np.diag(T.matrix), np.diag(single.matrix)
    some = T.lines & (own > 0) & (whole > 0)
    away = theta - theta.mean(axis=0)
    size = np.maximum((away**2).sum(axis=0), 1e-300)
    found, least = None, 0.0
    for r in starts:
        centers = r.T @ theta / np.maximum(r.sum(axis=0), 1.0)[:, None]
        left = np.maximum(((theta - r @ centers) ** 2).sum(axis=0) / size, LEFT)
        tight = np.where(some, np.minimum(own, left * whole), own)
        less = float(np.log(tight[some] / own[some]).sum())
        if less < least:
            found, least = (replace(T, shape="diag", matrix=np.diag(tight)), r), less
    return found if least < np.log(HIDDEN) else None


def divided(theta: Floats, labels: Ints) -> Ints:
    """The groups with one of them in two: by the least determinant of what they leave inside.

    That is the likelihood of groups with one covariance, and the same in all units.
    """
    away = inside(theta, labels)
    white = away @ whitening(away)[0].T
    best, least = labels, 0.0
    for k in range(labels.max() + 1):
        members = np.flatnonzero(labels == k)
        for u in np.eye(white.shape[1]) if len(members) > 3 else ():
            upper = _along(white[members], u)
            further = labels.copy()
            further[members[upper]] = labels.max() + 1
            rest = inside(white, further)
            left = rest.T @ rest / (len(rest) - 1) + FLAT * np.eye(len(u))
            level = float(np.linalg.slogdet(left)[1])
            if best is labels or level < least:
                best, least = further, level
    return best


def _along(points: Floats, u: Floats) -> Bools:
    """Who is above the best cut along ``u``, turned towards what the cut tells apart."""
    upper, total = np.zeros(len(points), np.bool_), points.sum(axis=0)
    for _ in range(TURNS):
        before, upper = upper, cut(points @ u)[0]
        if (before == upper).all():
            break
        above, size = upper @ points, upper.sum()
        u = above / size - (total - above) / (len(points) - size)
    return upper


def inside(theta: Floats, labels: Ints) -> Floats:
    """How far users are from the mean of their group."""
    r = np.eye(labels.max() + 1)[labels]
    return theta - (r @ (r.T @ theta / r.sum(axis=0)[:, None]))


def whitening(points: Floats) -> tuple[Floats, Floats]:
    """Into coordinates in which users are as far apart in all directions, and back."""
    values, vectors = np.linalg.eigh(np.cov(points.T))
    size = np.sqrt(np.maximum(values, FLAT * values[-1]))
    return (vectors / size).T, vectors * size
