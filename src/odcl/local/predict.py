"""Linear predictors of rows, each by the model of its own user."""

from __future__ import annotations

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.scaling import Scaling
from odcl.risk.risk import Risk

# Rows and their models in one chunk stay in a core's cache: three times as fast at 100 features
# as all at once, and a million rows need no copy of a million models.
_CHUNK_BYTES = 1 << 20


def linear_predictors(
    X: Floats, theta: Floats, where: Ints, risk: Risk, scaling: Scaling | None = None
) -> Floats:
    """z_j = x_j theta[where_j], (n_rows, n_outputs); with ``scaling``, X is in the table's units.

    One product per row: a row's number is the same alone and among others.
    """
    z = np.empty((len(X), risk.n_outputs))
    step = max(1, _CHUNK_BYTES // (8 * max(theta.shape[1], X.shape[1])))
    for start in range(0, len(X), step):
        part = slice(start, start + step)
        x = np.ascontiguousarray(X[part])  # the same bits for a frame, which lies by columns
        if scaling is not None:
            x = scaling.apply(x)
        x = risk.design(x)
        model = theta[where[part]].reshape(len(x), x.shape[1], risk.n_outputs)
        z[part] = np.matmul(x[:, None, :], model)[:, 0]
    return z


def predicted_targets(
    X: Floats, theta: Floats, where: Ints, risk: Risk, scaling: Scaling | None = None
) -> Array:
    """What each row's model expects of it, (n_rows,): a number, or the position of a class."""
    z = linear_predictors(X, theta, where, risk, scaling)
    mean = risk.loss.mean(z)
    if not risk.loss.classification:
        return mean[:, 0]
    return mean.argmax(axis=1) if mean.shape[1] > 1 else (z[:, 0] > 0).astype(np.intp)
