"""Would the same users come together again, had they other rows?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from odcl._typing import Floats, Ints
from odcl.clustering.labels import nearest_center
from odcl.diagnose.noise import Noise


@dataclass(frozen=True)
class Stability:
    """What became of the partition in federations drawn from the fitted one."""

    kept: float  # share of users that keep their group, mean over resamples
    same: float  # share of resamples in which every user does
    resamples: int


def stability(
    means: Floats,
    centers: Floats,
    labels: Ints,
    noise: Noise,
    tau2: float,
    *,
    resamples: int,
    seed: int,
) -> Stability | None:
    """Draw every user's model again and cluster again, ``resamples`` times.

        theta_i ~ N(mean_i, C_i + tau2 I)

    ``means`` (n_users, dim) are the best guess of the users' optima: the models of the groups that
    their noise shows. K-means from ``centers``, the judged groups' models, in units of the average
    noise, so that these are estimated anew. None where nobody knows its noise; users who do not
    are left out.
    """
    rows = np.flatnonzero(noise.known)
    k, dim = centers.shape
    if len(rows) == 0:
        return None
    if k == 1:
        return Stability(1.0, 1.0, resamples)
    own, some = labels[rows], noise.take(rows)
    unit = np.linalg.cholesky(np.linalg.inv(some.mean(dim) + tau2 * np.eye(dim)))
    if some.matrices is None:
        roots = None
    else:
        roots = np.linalg.cholesky(some.matrices + tau2 * np.eye(dim))
    rng = np.random.default_rng(seed)
    kept, start = [], centers @ unit
    with threadpool_limits(1):
        for _ in range(resamples):
            e = rng.standard_normal((len(rows), dim))
            if roots is None:
                e *= np.sqrt(some.variance + tau2)[:, None]
            else:
                e = np.matmul(roots, e[..., None])[..., 0]
            points = (means[rows] + e) @ unit
            run = KMeans(k, init=start, n_init=1, max_iter=20).fit(points)
            kept.append(float(np.mean(nearest_center(points, run.cluster_centers_) == own)))
    return Stability(float(np.mean(kept)), float(np.mean(np.array(kept) == 1.0)), resamples)
