"""Parties: who stands behind several users, such as a hospital behind its wards.

From a group of two parties either can work out what the other sent. So where parties are named, a
group needs enough of them, and none may carry more than half of what is known of its center.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Floats, Ints
from odcl.exchange.upload import Uploads
from odcl.mixed.mixture import Moments

HALF = 0.5 * (1 + 1e-9)


@dataclass(frozen=True, eq=False)
class Parties:
    """Who stands behind each user."""

    users: Uploads  # in canonical order
    of: Ints  # (n_users,), numbers of the parties


def held_by_enough(m: Moments, r: Floats, party: Ints, weight: Floats, smallest: int) -> bool:
    """Has every center enough parties, and none with more than half of its information?

    ``r`` (n_users, K) are the users' groups. A party counts where at least half of its ``weight``
    (n_users,) lies. Its share of a center's information M_k = sum r W is
    tr(M_k^+ M_party) / rank, the mean over all directions.
    """
    n, n_groups = int(party.max()) + 1, r.shape[1]
    share = np.zeros((n, n_groups))
    np.add.at(share, party, weight[:, None] * r)
    total = share.sum(axis=1, keepdims=True)
    if (((share >= 0.5 * total) & (total > 0)).sum(axis=0) < smallest).any():
        return False
    W = m.W
    for k in range(n_groups):
        inverse = np.linalg.pinv(np.tensordot(r[:, k], W, axes=1), rcond=1e-10, hermitian=True)
        each = r[:, k] * (W.reshape(len(W), -1) @ inverse.ravel())
        own = np.bincount(party, weights=each, minlength=n)
        if own.max() > HALF * own.sum():
            return False
    return True


def party_sizes(labels: Ints, party: Ints, weight: Floats) -> Ints:
    """Distinct parties of each group; 0 where one has more than half of the group's weight."""
    table = np.zeros((int(labels.max()) + 1, int(party.max()) + 1))
    np.add.at(table, (labels, party), weight)
    sizes = (table > 0).sum(axis=1)
    ruled = table.max(axis=1) > HALF * table.sum(axis=1)
    return np.where(ruled, 0, sizes)
