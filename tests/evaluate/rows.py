"""Users with few rows and with many, and their rows in another order."""

from __future__ import annotations

import numpy as np

from odcl.data.federation import Federation


def federation(n_rows=(1, 2, 5, 40), seed=0):
    rng = np.random.default_rng(seed)
    owner = np.repeat([f"u{i}" for i in range(len(n_rows))], n_rows)
    X = rng.normal(size=(len(owner), 2))
    return Federation.from_arrays(X, X @ [1.0, 2.0] + rng.normal(size=len(owner)), owner)


def shuffled(data: Federation, seed=0) -> tuple[Federation, np.ndarray]:
    """The same rows in another order, and where each of them was: positions."""
    order = np.random.default_rng(seed).permutation(len(data.y))
    order = order[np.argsort(data.row_user[order], kind="stable")]
    owner = data.users[data.row_user[order]]
    return Federation.from_arrays(data.X[order], data.y[order], owner), order
