"""Rows to measure speed on: groups of users, and sensors with many classes."""

from __future__ import annotations

from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints


def grouped_rows(
    loss: str, n_users: int, n_rows: int, n_features: int, *, n_groups: int = 4, seed: int = 0
) -> tuple[Floats, Floats, Ints]:
    """X, y and the rows' owners; users of a group share one model. ``loss``: squared, logistic."""
    rng = np.random.default_rng(seed)
    centers = rng.standard_normal((n_groups, n_features))
    users = np.repeat(np.arange(n_users), n_rows)
    X = rng.standard_normal((len(users), n_features))
    z = (X * centers[users % n_groups]).sum(axis=1)
    if loss == "logistic":
        return X, (z + rng.logistic(size=len(z)) > 0).astype(np.float64), users
    return X, z + rng.standard_normal(len(z)), users


def sensor_rows(
    n_users: int, n_rows: int, n_features: int, n_classes: int, *, seed: int = 0
) -> tuple[Floats, Array, Ints]:
    """Correlated features, twelve factors behind them, and classes that each user carries out in
    its own way."""
    rng: Any = np.random.default_rng(seed)
    mix, centers = rng.standard_normal((12, n_features)), 1.5 * rng.standard_normal((n_classes, 12))
    users = np.repeat(np.arange(n_users), n_rows)
    y = np.tile(np.arange(n_rows) % n_classes, n_users)
    ways = 0.7 * rng.standard_normal((n_users, n_classes, 12))
    factors = centers[y] + ways[users, y] + rng.standard_normal((len(y), 12))
    X = factors @ mix + 0.5 * rng.standard_normal((len(y), n_features))
    return X / X.std(axis=0), y, users
