"""Tables to try: stores in three hidden groups, and what comes later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def store_tables(seed: int) -> tuple[dict[str, Any], ...]:
    """Tables to try: 60 stores in three hidden groups, 12 to 40 days each, and what comes later.

    Later come days without sales, stores that are new, and a week of stores that are known.
    """
    rng = np.random.default_rng(seed)
    stores = _days(rng, np.arange(60), lambda: int(rng.integers(12, 41)))
    new_days = _days(rng, np.arange(60), lambda: 3)
    del new_days["sales"]
    return (
        stores,
        new_days,
        _days(rng, np.arange(60, 64), lambda: 6),
        _days(rng, np.arange(5), lambda: 7),
    )


def _days(rng: Any, stores: Any, n_days: Callable[[], int]) -> dict[str, Any]:
    """Days of these stores, whose group is their number modulo 3."""
    effects = np.array(  # price, promotion, temperature, weekend, rain, level
        [
            [-18.0, 30.0, 0.5, -25.0, 5.0, 330.0],  # in the city
            [-9.0, 55.0, 1.0, 40.0, -10.0, 220.0],  # in the suburbs
            [-4.0, 10.0, 6.0, 30.0, -45.0, 120.0],  # at the sea
        ]
    )
    parts = []
    for store in stores.tolist():
        n = n_days()
        columns = {
            "store": np.repeat(f"store-{store + 1:02d}", n),
            "price": rng.normal(10, 1.5, n).round(2),
            "promotion": (rng.random(n) < 0.3).astype(int),
            "temperature": rng.normal(18, 7, n).round(1),
            "weekend": (rng.random(n) < 2 / 7).astype(int),
            "rain": (rng.random(n) < 0.35).astype(int),
        }
        features = np.column_stack([*list(columns.values())[1:], np.ones(n)]).astype(float)
        noise = rng.normal(0, 30, n)
        columns["sales"] = (features @ effects[store % 3] + noise).round(1)
        parts.append(columns)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
