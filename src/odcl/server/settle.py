"""Groups as they are left: users join the group that explains their rows best, small ones go."""

from __future__ import annotations

import numpy as np

from odcl._typing import Floats, Ints
from odcl.clustering.labels import nearest_center, number_by_first_user
from odcl.exchange.upload import Uploads
from odcl.server.combine import average_by_cluster, combine_clusters
from odcl.server.dispersion import evidence_tau2

TURNS = 20


def settle(uploads: Uploads, phi: Floats | None, labels: Ints, everybody: bool) -> Ints:
    """Users who sent their curvature join the group that explains their rows best.

    The mixture looks at models through one noise level per user. A user's data term knows more: it
    is long in directions that its rows hardly see, and silent on those they do not see at all.
    With curvature A_i = H_i - n_i P and linear term b_i = H_i theta_i, and users of a group
    differing by tau^2, minus its log-likelihood under group k is

        1/2 c_k' S_i A_i c_k - c_k' S_i b_i,      S_i = (phi_i I + tau^2 A_i)^-1.

    Groups' models and users' places are brought in line in turn, as in Lloyd's loop. Users who
    cannot seed a group always take part; the others (``everybody``) where noise is credible.
    """
    who = np.flatnonzero(uploads.sent & (everybody | ~uploads.knows_noise))
    if not uploads.full or len(who) == 0 or labels.max() == 0:
        return labels
    tau2 = 0.0
    if phi is not None:
        centers = combine_clusters(uploads, labels, "precision").centers
        tau2 = evidence_tau2(uploads, labels, centers, phi) or 0.0
    for _ in range(TURNS):
        centers = combine_clusters(uploads, labels, "precision").centers
        moved = labels.copy()
        for part in np.array_split(who, max(1, len(who) // 32_768)):
            moved[part] = misfit(uploads, phi, tau2, centers, part).argmin(axis=1)
        moved = number_by_first_user(moved)
        if (moved == labels).all():
            break
        labels = moved
    return labels


def misfit(
    uploads: Uploads, phi: Floats | None, tau2: float, centers: Floats, part: Ints
) -> Floats:
    """Minus the log-likelihood of some users' rows under every group, (len(part), n_clusters)."""
    assert uploads.curvature is not None
    # About the groups' mean: far from zero, a difference of two costs would lose its digits.
    middle = centers.mean(axis=0)
    centers, theta = centers - middle, uploads.theta[part] - middle
    A, b = uploads.curvature[part], np.matmul(uploads.curvature[part], theta[..., None])
    if uploads.penalty.any():
        b = b + (uploads.n_samples[part, None] * uploads.penalty * middle)[..., None]
        A = A - uploads.n_samples[part, None, None] * np.diag(uploads.penalty)
    if tau2 > 0 and phi is not None:
        S = phi[part, None, None] * np.eye(uploads.dim) + tau2 * A
        both = np.linalg.solve(S, np.concatenate([A, b], axis=2))
        A, b = both[..., :-1], both[..., -1:]
    curved = (np.matmul(A, centers.T) * centers.T).sum(axis=1)
    return 0.5 * curved - np.matmul(centers, b)[..., 0]


def dissolve_small(uploads: Uploads, labels: Ints, smallest: int) -> Ints:
    """Users of groups with fewer than ``smallest`` members join the nearest of the others.

    The same array comes back where no group is too small. Where all are, everybody is one group.
    """
    sizes = np.bincount(labels)
    large = np.flatnonzero(sizes >= smallest)
    if len(large) == len(sizes):
        return labels
    if len(large) == 0:
        return np.zeros_like(labels)
    small = ~np.isin(labels, large)
    joined = labels.copy()
    centers = average_by_cluster(uploads.theta, labels)[large]
    joined[small] = large[nearest_center(uploads.theta[small], centers)]
    return number_by_first_user(joined)
