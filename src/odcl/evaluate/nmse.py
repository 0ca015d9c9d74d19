"""The paper's measure of error where the users' true models are known (Section 5)."""

from __future__ import annotations

from typing import Any

import numpy as np

from odcl._typing import Floats


def nmse(models: Floats, optima: Any, n_outputs: int = 1) -> float:
    """Mean over users of ||model - optimum||^2 / ||optimum||^2 (Section 5).

    ``optima`` may lack the intercepts, which are then 0 (b = 0 in the paper).
    """
    known = whole_optima(optima, models.shape[1], n_outputs)
    gap = ((models - known) ** 2).sum(axis=1)
    return float(np.mean(gap / (known**2).sum(axis=1)))


def whole_optima(optima: Any, dim: int, n_outputs: int = 1) -> Floats:
    """Optima, (n_users, dim), with the intercept, one per output, 0 where they have none."""
    known = np.asarray(optima, dtype=np.float64)
    if known.ndim != 2 or known.shape[1] not in (dim, dim - n_outputs):
        raise ValueError(
            f"optima has shape {known.shape}, and the models have {dim} numbers each: give one row "
            "per user, with or without the intercept."
        )
    return np.column_stack([known, np.zeros((len(known), dim - known.shape[1]))])
