"""Counts that scatter by more than their law allows, which looks like differences between users."""

from __future__ import annotations

import numpy as np
from scipy.special import chdtri

from odcl.exchange.upload import Uploads

DISPERSED = 1.5  # times as much as their law allows: deviances of small counts come near 1.2


def overdispersion(uploads: Uploads, least: float = 1.0) -> float:
    """How many times as much as the Poisson law allows the median user's counts scatter.

    The deviance of the user's own model, read off its Gaussian term, over the median of chi-squared
    with a degree of freedom per row beyond the parameters that it tells of. 1 below ``least``, for
    other losses, and where no user has rows to spare.
    """
    counts = uploads.risk is not None and uploads.risk.loss.name == "poisson"
    if not counts or uploads.gaussian_curvature is None or uploads.gaussian_slope is None:
        return 1.0
    assert uploads.gaussian_constant is not None
    assert uploads.gaussian_ceiling is not None
    widest = -1  # nearest to the user's own model
    A, b = uploads.gaussian_curvature[:, widest], uploads.gaussian_slope[:, widest, :, None]
    values = np.linalg.eigvalsh(A)
    spare = uploads.n_samples - (values > 1e-9 * values[:, -1:]).sum(axis=1)
    some = spare > 0
    fitted = (b * (np.linalg.pinv(A, 1e-9, hermitian=True) @ b)).sum(axis=(1, 2))
    deviance = 2 * uploads.gaussian_ceiling + uploads.gaussian_constant[:, widest] - fitted
    times = float(np.median(deviance[some] / chdtri(spare[some], 0.5))) if some.any() else 1.0
    return times if times >= least else 1.0
