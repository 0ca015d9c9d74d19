"""Fitted models on disk: ``models.safetensors`` for the numbers, ``model.json`` for the rest."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from odcl import __version__
from odcl._typing import Array
from odcl.data.federation import as_ids
from odcl.data.scaling import Scaling
from odcl.exchange.files import atomic_folder
from odcl.local.losses import Huber, Loss, Multinomial, as_loss

FORMAT = 1
NUMBERS, WORDS = "models.safetensors", "model.json"
_ARRAYS = ("theta_", "cluster_theta_", "labels_", "cluster_means_", "pooled_theta_")
_SIMPLE = (str, int, float, bool, type(None))


def save_estimator(model: Any, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a fitted estimator as a folder that appears whole or not at all."""
    with atomic_folder(path, force=force) as folder:
        write_estimator(model, folder)


def write_estimator(model: Any, folder: Path) -> None:
    """Write both files of an estimator into an existing folder."""
    from safetensors.numpy import save_file

    arrays = {name: getattr(model, name) for name in _ARRAYS}
    arrays |= {"shift": model.scaling_.shift, "scale": model.scaling_.scale}
    kept = {k: np.ascontiguousarray(v) for k, v in arrays.items() if v is not None}
    save_file(kept, folder / NUMBERS)
    step = getattr(getattr(model, "result_", None), "step", None)
    words = {
        "format": FORMAT,
        "version": __version__,
        "estimator": type(model).__name__,
        "params": {k: _storable(v) for k, v in model.get_params(deep=False).items()},
        "loss": _loss_to_json(model.loss_),
        "users": model.users_.tolist(),
        "has_users": model.has_users_,
        "tau2": model.tau2_,
        "n_features": int(model.n_features_in_),
        "feature_names": _listed(getattr(model, "feature_names_in_", None)),
        "classes": _listed(getattr(model, "classes_", None)),
        "rule": getattr(step, "rule", getattr(model, "rule_", None)),
        "reason": getattr(step, "reason", getattr(model, "reason_", None)),
    }
    (folder / WORDS).write_text(json.dumps(words, indent=1, allow_nan=True), encoding="utf-8")


def read_words(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON part of a saved model, checked."""
    file = Path(path) / WORDS
    if not file.is_file():
        raise ValueError(
            f"{path} is not a saved model: it has no {WORDS}. Name the folder of a fit."
        )
    try:
        words = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged ({error}): fit or copy the model again.") from None
    if not isinstance(words, dict) or words.get("format") != FORMAT:
        raise ValueError(f"{file} was written by another version of odcl and cannot be read.")
    return words


def load_estimator(cls: Any, path: str | os.PathLike[str]) -> Any:
    """Rebuild an estimator from its folder. Nothing is executed and nothing unpickled."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    words = read_words(path)
    if words["estimator"] != cls.__name__:
        raise ValueError(f"{path} holds an {words['estimator']}: load it with that class.")
    try:
        arrays = load_file(Path(path) / NUMBERS)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{Path(path) / NUMBERS} cannot be read ({error}).") from None
    model = cls(**{k: _restored(v) for k, v in words["params"].items()})
    model.loss_ = _loss_from_json(words["loss"])
    model.scaling_ = Scaling(arrays.pop("shift"), arrays.pop("scale"))
    for name in _ARRAYS:
        setattr(model, name, arrays.get(name))
    model.users_ = as_ids(words["users"])
    model.has_users_ = words["has_users"]
    model.tau2_ = words["tau2"]
    model.n_features_in_ = words["n_features"]
    model.n_clusters_ = len(model.cluster_theta_)
    model.rule_, model.reason_ = words["rule"], words["reason"]
    if words["feature_names"] is not None:
        model.feature_names_in_ = np.array(words["feature_names"], dtype=object)
    if words["classes"] is not None:
        model.classes_ = np.array(words["classes"])
    _check_shapes(model, path)
    return model


def _check_shapes(model: Any, path: Any) -> None:
    m, dim = len(model.users_), model.loss_.dim(len(model.scaling_.scale), model.fit_intercept)
    ok = model.theta_ is not None and model.theta_.shape == (m, dim)
    if not (ok and len(model.labels_) == m and model.cluster_theta_.shape[1] == dim):
        raise ValueError(
            f"The files in {path} do not belong together: fit or copy the model again."
        )


def _listed(values: Array | None) -> list[Any] | None:
    return None if values is None else np.asarray(values).tolist()


def _storable(value: Any) -> Any:
    """Simple settings as they are; objects (clusterers, solvers, losses) by their text."""
    if isinstance(value, _SIMPLE):
        return value
    if isinstance(value, np.generic):
        return value.item()
    return {"object": repr(value)}


def _restored(value: Any) -> Any:
    return value["object"] if isinstance(value, dict) else value


def _loss_to_json(loss: Loss) -> dict[str, Any]:
    words: dict[str, Any] = {"name": loss.name}
    if isinstance(loss, Huber):
        words["delta"] = loss.delta
    if isinstance(loss, Multinomial):
        words["n_classes"] = loss.n_classes
    return words


def _loss_from_json(words: dict[str, Any]) -> Loss:
    if words["name"] == "huber":
        return Huber(words["delta"])
    if words["name"] == "multinomial":
        return Multinomial(words["n_classes"])
    return as_loss(words["name"])
