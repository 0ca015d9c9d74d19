"""Mixed groups in an artifact: the mixture, and how sure the users' models are."""

from __future__ import annotations

from typing import Any

import numpy as np

from odcl._typing import Array
from odcl.artifact.arrays import ArraySpec, expect
from odcl.artifact.folder import StoredArtifact
from odcl.exchange import mixture as exchanged

MODEL, MIXTURE = "model.json", "mixture.safetensors"


def mixture_to_arrays(model: Any) -> tuple[dict[str, Any], dict[str, Array]]:
    """Words and arrays of mixed groups, and of how sure the users' models are."""
    words, arrays = exchanged.mixture_to_arrays(model.mixture_)
    rows, columns = np.triu_indices(model.covariance_.shape[1])
    arrays["model_covariance"] = model.covariance_[:, rows, columns]
    if model.noise_ is not None:
        arrays |= {"noise": model.noise_, "dof": model.dof_}
    return words, arrays


def read_mixture(model: Any, stored: StoredArtifact, words: dict[str, Any]) -> None:
    m, dim = model.theta_.shape
    specs = exchanged.SPECS | {
        "model_covariance": ArraySpec((m, dim * (dim + 1) // 2)),
        "noise": ArraySpec((m,), optional=True),
        "dof": ArraySpec((m,), optional=True, finite=False),
    }
    arrays = stored.arrays(MIXTURE, specs)
    p = len(model.scaling_.used)
    with stored.checking(MIXTURE):
        model.mixture_ = exchanged.mixture_from_arrays(words["mixture"], arrays, model.risk_, p)
        expect(len(arrays["centers"]) == model.n_clusters_, "centers of other groups")
        for name in {"noise", "dof"} & arrays.keys():
            expect(bool((arrays[name] > 0).all()), f"{name} holds numbers that are not positive")
        told = model.risk_.loss.has_data_terms
        expect({"noise", "dof"} <= arrays.keys() if told else "noise" not in arrays, "no noise")
    rows, columns = np.triu_indices(dim)
    model.covariance_ = np.empty((m, dim, dim))
    model.covariance_[:, rows, columns] = arrays["model_covariance"]
    model.covariance_[:, columns, rows] = arrays["model_covariance"]
    model.noise_, model.dof_ = arrays.get("noise"), arrays.get("dof")
