"""Which of a user's rows are held out: drawn from the user's own stream, by the rows' contents.

Rows are put in an order that depends on what they hold before anything is drawn, so that a
shuffled table has the same rows in the same folds.
"""

from __future__ import annotations

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.data.federation import Federation, user_rng

# Odd numbers whose bits are without a pattern (those of sqrt 2 and sqrt 3): a multiplicative hash.
_MIX, _STIR = np.uint64(0x6A09E667F3BCC909), np.uint64(0xBB67AE8584CAA73B)


def content_order(federation: Federation, time: Floats | None = None) -> Ints:
    """Rows user by user, inside a user by ``time`` and a hash of their contents: positions.

    Only rows that are equal in every number can tie, and it does not matter which comes first.
    """
    key = np.zeros(len(federation.y), dtype=np.uint64)
    columns = [*federation.X.T, federation.y.astype(np.float64)]
    if federation.weight is not None:
        columns.append(federation.weight)
    for column in columns:
        bits = (column + 0.0).view(np.uint64)  # -0.0 is 0.0
        key = (key ^ bits) * _MIX
        key ^= key >> np.uint64(29)
        key *= _STIR
    keys = (key, federation.row_user) if time is None else (key, time, federation.row_user)
    return np.lexsort(keys)


def folds(federation: Federation, n_folds: int, seed: int) -> Ints:
    """Fold of each row, (n_rows,): every user's rows dealt out evenly."""
    fold: Ints = np.empty(len(federation.y), dtype=np.intp)
    order = content_order(federation)
    for i, user in enumerate(federation.users):
        rows = order[federation.rows(i)]
        fold[rows] = user_rng(seed, user).permutation(np.arange(len(rows)) % n_folds)
    return fold


def hold_out(
    federation: Federation, share: float, seed: int, *, time: Floats | None = None
) -> Bools:
    """Rows to hold out, (n_rows,): a share of each user's, its last ones where ``time`` is given.

    A user always keeps at least one row to learn from. Without ``time`` (n_rows,) they are drawn
    from the user's own stream.
    """
    out = np.zeros(len(federation.y), dtype=bool)
    order = content_order(federation, time)
    for i, user in enumerate(federation.users):
        rows = order[federation.rows(i)]
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        last = rows[::-1] if time is not None else rows[user_rng(seed, user).permutation(len(rows))]
        out[last[:count]] = True
    return out
