"""Mixed groups as words and arrays: in a download as in a saved model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from odcl._typing import Array
from odcl.artifact.arrays import ArraySpec, expect, is_size, number_from_json, number_to_json
from odcl.mixed.layout import Coordinates
from odcl.mixed.mixture import Noise, Spread
from odcl.mixed.posterior import Mixture
from odcl.risk.risk import Risk

SPECS = {
    "weights": ArraySpec(("groups",)),
    "centers": ArraySpec(("groups", "inside")),
    "covariances": ArraySpec(("groups", "triangle")),  # of each symmetric matrix, row by row
    "spread": ArraySpec(("triangle",)),
    "open": ArraySpec(("inside",), ("bool",)),
    "fixed": ArraySpec(("inside",), ("bool",), optional=True),
    "scales": ArraySpec(("scales",)),
    "shares": ArraySpec(("scales",)),
    "kept": ArraySpec(("kept",), ("int64",)),
    "shift": ArraySpec(("kept",)),
    "scale": ArraySpec(("kept",)),
    "reference": ArraySpec(("inside",)),
}

TELLS = {  # what each array says, to everybody alike
    "weights": "how large a share of the users each group has",
    "centers": "each group's model",
    "covariances": "how surely each group's model is known",
    "spread": "how users of a group differ, as a covariance",
    "open": "in which coefficients they differ",
    "fixed": "coefficients that all share, because their columns do not vary within users",
    "scales": "how much further some users may lie out",
    "shares": "and how many of them",
    "kept": "the columns in use",
    "shift": "the zero of each column: with squared loss its average over all users",
    "scale": "the unit of each column: with squared loss its spread over all users",
    "reference": "the model that the groups' are measured from",
}


def mixture_to_arrays(mixture: Mixture) -> tuple[dict[str, Any], dict[str, Array]]:
    """Words and arrays, from which :func:`mixture_from_arrays` makes the same again."""
    at, noise = mixture.coordinates, mixture.noise
    rows, columns = np.triu_indices(mixture.centers.shape[1])
    words = {
        "shape": mixture.spread.shape,
        "noise": [number_to_json(value) for value in (noise.nu, noise.s0, noise.dof)],
        "target": [at.target_shift, at.target_scale],
    }
    arrays: dict[str, Array] = {
        "weights": mixture.weights,
        "centers": mixture.centers,
        "covariances": mixture.covariances[:, rows, columns],
        "spread": mixture.spread.matrix[rows, columns],
        "open": mixture.spread.open,
        "scales": mixture.scales,
        "shares": mixture.shares,
        "kept": np.asarray(at.kept, dtype=np.int64),
        "shift": at.shift,
        "scale": at.scale,
        "reference": at.reference,
    }
    if mixture.spread.fixed is not None:
        arrays["fixed"] = mixture.spread.fixed
    return words, arrays


def mixture_from_arrays(
    words: Any, arrays: Mapping[str, Array], risk: Risk, n_features: int
) -> Mixture:
    """A mixture from words and arrays of :data:`SPECS`; a ValueError says what no fit can give."""
    shape, (origin, unit) = words["shape"], map(number_from_json, words["target"])
    nu, s0, dof = (number_from_json(value) for value in words["noise"])
    expect(shape in ("zero", "scalar", "diag", "full"), f"a spread of shape {shape!r}")
    expect(nu > 0 and s0 > 0 and dof > 0, f"a noise of {words['noise']}")
    expect(math.isfinite(origin) and is_size(unit), f"a target of {words['target']}")
    kept, most = arrays["kept"], n_features + len(risk.factors)
    expect(bool(((kept >= 0) & (kept < most)).all()), "a column is beyond the model's")
    expect(len(set(kept.tolist())) == len(kept), "a column is there twice")
    inside = risk_dim = risk.dim(most)
    if risk.loss.has_data_terms:
        inside = len(kept) + risk.intercept
    expect(arrays["centers"].shape[1] == inside <= risk_dim, "centers of another size")
    expect(len(arrays["centers"]) > 0, "no centers")
    for name in ("weights", "shares"):
        sums = (arrays[name] >= 0).all() and abs(arrays[name].sum() - 1) < 1e-9
        expect(bool(sums), f"{name} that are no probabilities")
    for name in ("scale", "scales"):
        expect(bool((arrays[name] > 0).all()), f"{name} holds numbers that are not positive")
    C, T = (_covariance(name, arrays[name], inside) for name in ("covariances", "spread"))
    columns = (kept, arrays["shift"], arrays["scale"])
    at = Coordinates(
        *(risk.intercept, *columns, origin, unit, arrays["reference"], n_features, ()),
        factors=risk.factors,
    )
    return Mixture(
        at,
        arrays["weights"],
        arrays["centers"],
        C,
        Spread(shape, T, arrays["open"], fixed=arrays.get("fixed")),
        arrays["scales"],
        arrays["shares"],
        Noise(nu, s0, dof),
    )


def _covariance(name: str, triangle: Array, dim: int) -> Array:
    """Symmetric matrices from their triangles, without a negative eigenvalue beyond rounding."""
    rows, columns = np.triu_indices(dim)
    expect(triangle.shape[-1] == len(rows), f"{name} of another size")
    matrix = np.empty((*triangle.shape[:-1], dim, dim))
    matrix[..., rows, columns] = matrix[..., columns, rows] = triangle
    values = np.linalg.eigvalsh(matrix)
    expect(bool((values >= -1e-9 * np.abs(values).max()).all()), f"{name} of no law")
    return matrix
