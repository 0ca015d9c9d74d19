"""Folds of users: whatever is chosen in a wide space is measured on users who did not choose it."""

from __future__ import annotations

import numpy as np

from odcl._typing import Array, Ints
from odcl.data.federation import id_keys

FOLDS = 5


def user_folds(users: Array) -> Ints:
    """Fold of each user, 0..FOLDS-1, (n_users,): by its id alone, whoever else is there."""
    return (id_keys(users) % np.uint64(FOLDS)).astype(np.intp)
