"""Groups as words and arrays: in a download as in a saved model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from odcl._typing import Array
from odcl.artifact.arrays import ArraySpec, expect, is_size, number_from_json, number_to_json
from odcl.exchange.message import from_triangles, n_numbers, triangles
from odcl.mixed.layout import Coordinates
from odcl.mixed.mixture import Noise, Spread
from odcl.mixed.posterior import Mixture
from odcl.risk.risk import Risk, is_wide
from odcl.wide.moments import FOLDS, GroupModels, WideGroups

_MIXED = {
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
    "common": ArraySpec(("inside",), optional=True),
    "beyond": ArraySpec((2, "beyond"), optional=True),
}
_WIDE = {
    "weights": ArraySpec(("groups",)),
    "scores": ArraySpec(("parts", "groups", "inputs", "classes")),
    "class_shares": ArraySpec(("groups", "classes")),
    "unit": ArraySpec(("features",)),
    "group_noise": ArraySpec(("groups",), optional=True),
}
# Which of these are there is checked when groups are made of them.
SPECS = {name: replace(spec, optional=True) for name, spec in (_MIXED | _WIDE).items()}

TELLS = {  # what each array says, to everybody alike
    "weights": "how large a share of the users each group has",
    "centers": "each group's model",
    "covariances": "how surely each group's model is known",
    "spread": "how users of a group differ, as a covariance",
    "open": "in which coefficients they differ",
    "fixed": "coefficients that all share: of columns that do not vary within users, and of common "
    "curves",
    "scales": "how much further some users may lie out",
    "shares": "and how many of them",
    "kept": "the columns in use",
    "shift": "the zero of each column, its average over all users",
    "scale": "the unit of each column, its spread over all users",
    "reference": "the model that the groups' are measured from",
    "common": "the bends of the curves that all users share",
    "beyond": "how much more users may differ than was seen through noise, and how likely that is",
    "scores": "each group's class scores, of all users and without each fifth of the users",
    "class_shares": "how often each class occurs in each group",
    "unit": "how much each column varies within classes",
    "group_noise": "how far numbers lie from their group's model",
}


def mixture_to_arrays(mixture: GroupModels) -> tuple[dict[str, Any], dict[str, Array]]:
    """Words and arrays, from which :func:`mixture_from_arrays` makes the same again."""
    if isinstance(mixture, WideGroups):
        own = {name: getattr(mixture, name) for name in ("weights", "scores", "unit")}
        told = {"concentration": mixture.concentration, "alike": mixture.alike}
        told |= {"level": mixture.level} if mixture.level else {}
        own |= {"class_shares": mixture.shares}
        return told, own if mixture.noise is None else own | {"group_noise": mixture.noise}
    at, noise = mixture.coordinates, mixture.noise
    words = {
        "shape": mixture.spread.shape,
        "noise": [number_to_json(value) for value in (noise.nu, noise.s0, noise.dof)],
        "target": [at.target_shift, at.target_scale],
    }
    arrays = {
        **{name: getattr(mixture, name) for name in ("weights", "centers", "scales", "shares")},
        **{name: getattr(at, name) for name in ("shift", "scale", "reference", "common")},
        "covariances": triangles(mixture.covariances),
        "spread": triangles(mixture.spread.matrix),
        "open": mixture.spread.open,
        "fixed": mixture.spread.fixed,
        "kept": np.asarray(at.kept, dtype=np.int64),
        "beyond": mixture.beyond,
    }
    return words, {name: array for name, array in arrays.items() if array is not None}


def mixture_from_arrays(
    words: Any, arrays: Mapping[str, Array], risk: Risk, n_features: int
) -> GroupModels:
    """Groups from words and arrays of :data:`SPECS`; a ValueError says what no fit can give."""
    wide = "concentration" in words
    expect(wide == is_wide(risk, n_features), "groups of another size")
    needed = {name for name, spec in (_WIDE if wide else _MIXED).items() if not spec.optional}
    missing = needed - arrays.keys()
    expect(not missing, f"{', '.join(sorted(missing))} is not there")
    if wide:
        return _wide_groups(words, arrays, risk, n_features)
    shape, (origin, unit) = words["shape"], map(number_from_json, words["target"])
    nu, s0, dof = (number_from_json(value) for value in words["noise"])
    expect(shape in ("zero", "scalar", "diag", "full"), f"a spread of shape {shape!r}")
    expect(nu > 0 and s0 > 0 and dof > 0, f"a noise of {words['noise']}")
    expect(math.isfinite(origin) and is_size(unit), f"a target of {words['target']}")
    kept, most = arrays["kept"], n_features + len(risk.factors)
    expect(bool(((kept >= 0) & (kept < most)).all()), "a column is beyond the model's")
    expect(len(set(kept.tolist())) == len(kept), "a column is there twice")
    inside = risk.dim(len(kept))
    expect(arrays["centers"].shape[1] == inside, "centers of another size")
    expect(len(arrays["centers"]) > 0, "no centers")
    for name in ("weights", "shares"):
        expect(_are_shares(arrays[name]), f"{name} that are no probabilities")
    for name in ("scale", "scales"):
        expect(bool((arrays[name] > 0).all()), f"{name} holds numbers that are not positive")
    beyond = arrays.get("beyond")
    if beyond is not None:
        expect(bool((beyond >= 0).all()) and len(beyond[0]) > 1, "beyond holds numbers below zero")
        expect(_are_shares(beyond[1]), "beyond holds shares that are no probabilities")
    C, T = (_covariance(name, arrays[name], inside) for name in ("covariances", "spread"))
    columns = (kept, arrays["shift"], arrays["scale"])
    at = Coordinates(
        *(risk.intercept, *columns, origin, unit, arrays["reference"], n_features),
        factors=risk.factors,
        curves=risk.curves,
        common=arrays.get("common"),
    )
    return Mixture(
        at,
        arrays["weights"],
        arrays["centers"],
        C,
        Spread(shape, T, arrays["open"], fixed=arrays.get("fixed"), bends=at.bends),
        arrays["scales"],
        arrays["shares"],
        Noise(nu, s0, dof),
        beyond,
    )


def _wide_groups(
    words: Any, arrays: Mapping[str, Array], risk: Risk, n_features: int
) -> WideGroups:
    scores, shares, unit = arrays["scores"], arrays["class_shares"], arrays["unit"]
    k, numbers = len(arrays["weights"]), not risk.loss.classification
    classes, noise = 1 if numbers else risk.n_outputs + 1, arrays.get("group_noise")
    expect((noise is not None) == numbers, "noise belongs to numbers")
    expect(noise is None or bool((noise > 0).all()), "noise that is not positive")
    expect(k > 0 and _are_shares(arrays["weights"]), "weights that are no probabilities")
    expect(_are_shares(shares) and bool((shares > 0).all()), "class shares that are none")
    expect(scores.shape == (1 + FOLDS, k, n_features + 1, classes), "scores of another size")
    expect(unit.shape == (n_features,) and bool((unit > 0).all()), "units that are not positive")
    concentration = number_from_json(words["concentration"])
    expect(is_size(concentration) and concentration > 0, "a concentration that is not positive")
    expect(words["alike"] in (True, False), f"alike is {words['alike']!r}")
    level = number_from_json(words.get("level", 0.0))
    expect(is_size(level) and (numbers or not level), "a variance of levels that is none")
    own = concentration, unit, words["alike"], noise, level
    return WideGroups(arrays["weights"], scores, shares, *own)


def _are_shares(values: Array) -> bool:
    """Are they probabilities, along the last axis?"""
    return bool((values >= 0).all() and (np.abs(values.sum(axis=-1) - 1) < 1e-9).all())


def _covariance(name: str, triangle: Array, dim: int) -> Array:
    """Symmetric matrices from their triangles, without a negative eigenvalue beyond rounding."""
    expect(triangle.shape[-1] == n_numbers((dim, dim)), f"{name} of another size")
    matrix = from_triangles(triangle)
    values = np.linalg.eigvalsh(matrix)
    expect(bool((values >= -1e-9 * np.abs(values).max()).all()), f"{name} of no law")
    return matrix
