"""Mixed groups in an artifact: the mixture, and how sure the users' models are."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from odcl._typing import Array
from odcl.artifact.arrays import (
    ArraySpec,
    expect,
    is_size,
    number_from_json,
    number_to_json,
)
from odcl.artifact.folder import (
    StoredArtifact,
)
from odcl.mixed.mixture import Spread
from odcl.mixed.noise import Noise
from odcl.mixed.posterior import Download as Mixture
from odcl.mixed.terms import Coordinates

MODEL, MIXTURE = "model.json", "mixture.safetensors"


def mixture_to_arrays(model: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """Words and arrays of mixed groups, and of how sure the users' models are."""
    mixture: Mixture = model.mixture_
    at, noise = mixture.coordinates, mixture.noise
    words = {
        "shape": mixture.spread.shape,
        "noise": [number_to_json(value) for value in (noise.nu, noise.s0, noise.dof)],
        "target": [at.target_shift, at.target_scale],
    }
    rows, columns = np.triu_indices(model.covariance_.shape[1])
    arrays: dict[str, Array] = {
        "weights": mixture.weights,
        "centers": mixture.centers,
        "covariances": mixture.covariances,
        "spread": mixture.spread.matrix,
        "open": mixture.spread.open,
        "scales": mixture.scales,
        "shares": mixture.shares,
        "kept": np.asarray(at.kept, dtype=np.int64),
        "shift": at.shift,
        "scale": at.scale,
        "reference": at.reference,
        "model_covariance": model.covariance_[:, rows, columns],
    }
    if model.noise_ is not None:
        arrays |= {"noise": model.noise_, "dof": model.dof_}
    return words, arrays


def read_mixture(model: Any, stored: StoredArtifact, words: dict[str, Any]) -> None:
    m, dim = model.theta_.shape
    specs = {
        "weights": ArraySpec(("groups",)),
        "centers": ArraySpec(("groups", "inside")),
        "covariances": ArraySpec(("groups", "inside", "inside")),
        "spread": ArraySpec(("inside", "inside")),
        "open": ArraySpec(("inside",), ("bool",)),
        "scales": ArraySpec(("scales",)),
        "shares": ArraySpec(("scales",)),
        "kept": ArraySpec(("kept",), ("int64",)),
        "shift": ArraySpec(("kept",)),
        "scale": ArraySpec(("kept",)),
        "reference": ArraySpec(("inside",)),
        "model_covariance": ArraySpec((m, dim * (dim + 1) // 2)),
        "noise": ArraySpec((m,), optional=True),
        "dof": ArraySpec((m,), optional=True, finite=False),
    }
    arrays = stored.arrays(MIXTURE, specs)
    p = len(model.scaling_.used)
    with stored.checking(MODEL):
        given = words["mixture"]
        shape, target = given["shape"], [number_from_json(value) for value in given["target"]]
        nu, s0, dof = (number_from_json(value) for value in given["noise"])
        expect(shape in ("zero", "scalar", "diag", "full"), f"a spread of shape {shape!r}")
        expect(nu > 0 and s0 > 0 and dof > 0, f"a noise of {given['noise']}")
        expect(math.isfinite(target[0]) and is_size(target[1]), f"a target of {target}")
    with stored.checking(MIXTURE):
        kept = arrays["kept"]
        most = p + len(model.risk_.factors)
        expect(bool(((kept >= 0) & (kept < most)).all()), "a column is beyond the model's")
        inside = risk_dim = model.risk_.dim(most)
        if model.risk_.loss.has_data_terms:
            inside = len(kept) + model.risk_.intercept
        expect(arrays["centers"].shape[1] == inside <= risk_dim, "centers of another size")
        expect(len(arrays["centers"]) == model.n_clusters_, "centers of other groups")
        for name in ("weights", "shares"):
            sums = (arrays[name] >= 0).all() and abs(arrays[name].sum() - 1) < 1e-9
            expect(bool(sums), f"{name} that are no probabilities")
        for name in ("scale", "scales", *({"noise", "dof"} & arrays.keys())):
            expect(bool((arrays[name] > 0).all()), f"{name} holds numbers that are not positive")
        told = model.risk_.loss.has_data_terms
        expect({"noise", "dof"} <= arrays.keys() if told else "noise" not in arrays, "no noise")
        for name in ("spread", "covariances"):
            _check_covariance(name, arrays[name])
    columns_at = (kept, arrays["shift"], arrays["scale"])
    at = Coordinates(
        *(model.risk_.intercept, *columns_at, target[0], target[1], arrays["reference"], p, ()),
        factors=model.risk_.factors,
    )
    model.mixture_ = Mixture(
        at,
        arrays["weights"],
        arrays["centers"],
        arrays["covariances"],
        Spread(shape, arrays["spread"], arrays["open"]),
        arrays["scales"],
        arrays["shares"],
        Noise(nu, s0, dof),
    )
    rows, columns = np.triu_indices(dim)
    model.covariance_ = np.empty((m, dim, dim))
    model.covariance_[:, rows, columns] = arrays["model_covariance"]
    model.covariance_[:, columns, rows] = arrays["model_covariance"]
    model.noise_, model.dof_ = arrays.get("noise"), arrays.get("dof")


def _check_covariance(name: str, matrix: Array) -> None:
    """Symmetric, and without a negative eigenvalue beyond rounding."""
    even = np.array_equal(matrix, np.swapaxes(matrix, -1, -2))
    values = np.linalg.eigvalsh(matrix)
    expect(even and bool((values >= -1e-9 * np.abs(values).max()).all()), f"{name} of no law")
