"""From the mixture's coordinates to models as users have them, and back to predictions.

A model of the house is flat: one row per feature, the intercept last, outputs side by side. The
mixture of squared loss is relative to its canonical coordinates; Gaussian terms have the intercept
first, one block per logit, and the last class for reference.
"""

from __future__ import annotations

import numpy as np

from odcl._typing import Floats
from odcl.mixed.coordinates import Coordinates
from odcl.mixed.mixture import by_row
from odcl.mixed.posterior import Mixture
from odcl.mixed.terms import Levels
from odcl.risk.risk import Risk


def plain_coordinates(n_features: int, risk: Risk) -> Coordinates:
    """Columns as they are: those of Gaussian terms, whose scales were agreed beforehand."""
    n_columns = n_features + len(risk.factors)
    zeros, ones, dim = np.zeros(n_columns), np.ones(n_columns), risk.dim(n_columns)
    columns, reference = np.arange(n_columns), np.zeros(dim)
    return Coordinates(
        *(risk.intercept, columns, zeros, ones, 0.0, 1.0, reference, n_features, ()),
        factors=risk.factors,
    )


def squared_map(at: Coordinates) -> tuple[Floats, Floats]:
    """(offset, map): a model of squared loss is offset + map @ theta."""
    offset, change = at.raw()
    return (offset, change) if at.intercept else (offset[:-1], change[:-1])


def gaussian_map(n_features: int, intercept: bool, basis: Floats | None) -> Floats:
    """The matrix that takes a term's numbers to a model; ``basis`` (n_classes, n_classes - 1)."""
    inputs = n_features + intercept
    order = np.roll(np.arange(inputs), -1) if intercept else np.arange(inputs)
    place = np.eye(inputs)[order]
    turn = np.ones((1, 1)) if basis is None else basis[:-1]
    # From (logit, input) to (input, output).
    return np.einsum("ij,lo->iolj", place, turn).reshape(inputs * turn.shape[1], -1)


def gaussian_expansion(n_features: int, risk: Risk) -> Floats:
    """The matrix that takes a term of the features to one of all levels, logit by logit."""
    if not risk.factors:
        return np.eye(risk.dim(n_features))
    all_levels = np.kron(np.eye(risk.n_outputs), Levels.of(risk.factors, n_features).expansion)
    return np.asarray(all_levels, np.float64)


def reference_logits(z: Floats, S: Floats, basis: Floats | None) -> tuple[Floats, Floats]:
    """Outputs of a model, (n, q), and their covariances as logits against the last class."""
    if basis is None:
        return z, S
    against = basis[:-1] - basis[-1]
    return by_row(z, against.T), against @ S @ against.T


def without_rows(mixture: Mixture, risk: Risk) -> tuple[Floats, Floats]:
    """Models of users without rows, and covariances: one in each group, last one in any of them."""
    offset, change = model_map(mixture, risk)
    c, shares, V = mixture.centers, mixture.weights, mixture.inside + mixture.covariances
    away = c - shares @ c
    anywhere = np.tensordot(shares, V, axes=1) + (away.T * shares) @ away
    models, V = np.vstack([c, shares @ c]), np.concatenate([V, anywhere[None]])
    return offset + models @ change.T, change @ V @ change.T


def model_spread(mixture: Mixture, risk: Risk) -> Floats:
    """How users of a group differ, as a covariance of their models, (dim, dim)."""
    change = model_map(mixture, risk)[1]
    return change @ mixture.inside @ change.T


def model_map(mixture: Mixture, risk: Risk) -> tuple[Floats, Floats]:
    """(offset, map): a user's model is offset + map @ theta, theta in the mixture's coordinates."""
    if risk.loss.has_data_terms:
        return squared_map(mixture.coordinates)
    at = mixture.coordinates
    change = gaussian_map(at.n_features, at.intercept, getattr(risk.loss, "basis", None))
    change = change @ gaussian_expansion(at.n_features, risk).T
    return np.zeros(len(change)), change
