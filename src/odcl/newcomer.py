"""A user that comes after the round: which group it belongs to, and its model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import softmax
from scipy.stats import chi2

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.local.exact import Penalty, solve_users
from odcl.local.fit import fit_users
from odcl.local.losses import Loss

# A distance that a member of the group would exceed in one case of ten thousand.
STRANGE = 1e-4


@dataclass(frozen=True, eq=False)
class Assignment:
    """Where a new user belongs.

    ``distance`` is to the nearest group in noise units: about 1 for a member, whatever the
    number of parameters; NaN where the user has too few rows to tell. ``none_of_these`` is True,
    and ``label`` -1, where no group is credible; the model is then the user's own.
    """

    label: int
    probability: float  # of that label among the groups
    probabilities: Floats  # (n_clusters,)
    distance: float
    none_of_these: bool
    theta: Floats  # (dim,), in standardised units
    model: Floats  # in the table's units

    def in_units(self, model: Floats) -> Assignment:
        return replace(self, model=model)


def assign_rows(
    X: Floats,
    y: Floats,
    loss: Loss,
    *,
    centers: Floats,
    sizes: Ints,
    tau2: float | None,
    l2: float,
    fit_intercept: bool,
) -> Assignment:
    """Weigh the groups by how well their models explain the user's rows.

    With more rows than parameters the user's own model tells the distance, in units of its noise
    and of how far users of a group differ: theta ~ N(c_k, C + tau^2 I). With fewer, the rows'
    likelihood under each group's model decides.
    """
    n, dim = len(y), centers.shape[1]
    one = Federation(X, y, np.array([0, n]), np.zeros(1, dtype=int))
    local = fit_users(one, loss, l2=l2, fit_intercept=fit_intercept, curvature="full")
    prior = np.log(np.maximum(sizes, 1) / np.maximum(sizes, 1).sum())
    assert local.dispersion is not None
    assert local.curvature is not None
    D = np.column_stack([X, np.ones(n)]) if fit_intercept else X
    z = np.matmul(D, centers.reshape(len(centers), -1, loss.n_outputs))
    risk = loss.value(z, y[None]).sum(axis=1)
    phi = float(local.dispersion[0])
    distance, known = np.nan, np.isfinite(phi) and phi > 0
    if known:
        spread = phi * np.linalg.inv(local.curvature[0]) + (tau2 or 0.0) * np.eye(dim)
        gap = local.theta[0] - centers
        squares = (gap * np.linalg.solve(spread, gap.T).T).sum(axis=1)
        weight = prior - 0.5 * squares
    else:
        # Too few rows for a noise scale of its own: the best group's fit sets it.
        phi = max(2.0 * float(risk.min()) / n, 1e-300) if loss.has_dispersion else 1.0
        weight = prior - risk / phi
    p = softmax(weight)
    label = int(np.argmax(p))
    strange = False
    if known:
        distance = float(np.sqrt(squares[label] / dim))
        strange = bool(chi2.sf(squares[label], dim) < STRANGE)
    if strange:
        theta = local.theta[0]
    elif tau2:
        penalty = Penalty(np.array([phi / (n * tau2)]), centers[label][None], free=False)
        theta = solve_users(one, y, loss, penalty, fit_intercept=fit_intercept).theta[0]
    else:
        theta = centers[label]
    return Assignment(-1 if strange else label, float(p[label]), p, distance, strange, theta, theta)
