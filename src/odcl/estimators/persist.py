"""Fitted models on disk: ``models.safetensors`` for the numbers, ``model.json`` for the rest."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from odcl import __version__
from odcl._typing import Array
from odcl.data.federation import as_ids
from odcl.data.scaling import Scaling
from odcl.estimators.saved_words import (
    classes_from_json,
    classes_to_json,
    expect,
    id_from_json,
    id_to_json,
    is_count,
    is_size,
    loss_from_json,
    loss_to_json,
    number_to_json,
    setting_from_json,
    setting_to_json,
)
from odcl.estimators.settings import check_values
from odcl.files import atomic_folder
from odcl.server.assign import Groups

FORMAT = 1
NUMBERS, WORDS = "models.safetensors", "model.json"
_WORDS = (
    "estimator",
    "params",
    "loss",
    "users",
    "has_users",
    "tau2",
    "groups",
    "n_features",
    "feature_names",
    "classes",
    "rule",
    "reason",
)
_SIZES = ("tau2", "spread", "phi", "phi_dof")  # numbers of Groups
_WHOLE = ("I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "BOOL")


# -- writing -------------------------------------------------------------------------------------


def save_estimator(model: Any, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a fitted estimator as a folder that appears whole or not at all."""
    folder = Path(path)
    if folder.exists() and not force:
        raise ValueError(
            f"{path} exists already, and its contents would be replaced: say force=True, or name a "
            "new folder."
        )
    if folder.is_dir() and not (folder / WORDS).is_file() and any(folder.iterdir()):
        raise ValueError(
            f"{path} holds other files and no model, and force=True would remove them all: name a "
            "new folder."
        )
    with atomic_folder(path, force=force) as place:
        write_estimator(model, place)


def write_estimator(model: Any, folder: Path) -> None:
    """Write both files of an estimator into an existing folder."""
    from safetensors.numpy import save_file

    scaling, groups = model.scaling_, model.groups_
    arrays = {
        "theta": model.theta_,
        "labels": np.asarray(model.labels_, dtype=np.int64),
        "cluster_theta": model.cluster_theta_,
        "cluster_means": model.cluster_means_,
        "pooled_theta": model.pooled_theta_,
        "shift": scaling.shift,
        "scale": scaling.scale,
        "used": np.isin(np.arange(scaling.n_features), scaling.used),
        "members": np.asarray(groups.members, dtype=np.int64),
        "samples": groups.samples,
        "pull": groups.pull,
    }
    typed = model.users_.dtype.kind in "iub"
    if typed:
        arrays["users"] = model.users_
    classes = getattr(model, "classes_", None)
    names = getattr(model, "feature_names_in_", None)
    words = {
        "format": FORMAT,
        "version": __version__,
        "estimator": type(model).__name__,
        "params": {k: setting_to_json(v) for k, v in model.get_params(deep=False).items()},
        "loss": loss_to_json(model.loss_),
        "users": None if typed else [id_to_json(u) for u in model.users_.tolist()],
        "has_users": bool(model.has_users_),
        "tau2": model.tau2_,
        "groups": {name: number_to_json(getattr(groups, name)) for name in _SIZES},
        "n_features": int(model.n_features_in_),
        "feature_names": None if names is None else names.tolist(),
        "classes": None if classes is None else classes_to_json(classes),
        "rule": model.rule_,
        "reason": model.reason_,
    }
    text = json.dumps(words, indent=1, allow_nan=False)
    kept = {k: np.ascontiguousarray(v) for k, v in arrays.items() if v is not None}
    (folder / WORDS).write_text(text, encoding="utf-8")
    save_file(kept, folder / NUMBERS)
    shutil.copymode(folder / WORDS, folder / NUMBERS)  # as readable as the words beside it


# -- reading -------------------------------------------------------------------------------------


def read_words(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON part of a saved model, its kind checked."""
    file = Path(path) / WORDS
    if not file.is_file():
        raise ValueError(
            f"{path} is not a saved model: it has no {WORDS}. Name the folder of a fit."
        )
    try:
        words = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged ({error}): fit or copy the model again.") from None
    if not isinstance(words, dict) or "format" not in words:
        raise ValueError(f"{file} is not a saved model: it does not say its format.")
    if words["format"] != FORMAT:
        raise ValueError(
            f"{file} has format {words['format']!r}, and this version of odcl reads {FORMAT}: it "
            f"was written by odcl {words.get('version')!r}. Use that one, or fit again."
        )
    missing = [name for name in _WORDS if name not in words]
    if missing:
        raise _damaged(file, f"it has no {', '.join(missing)}")
    return words


def load_estimator(cls: Any, path: str | os.PathLike[str]) -> Any:
    """Rebuild an estimator from its folder. Nothing is executed and nothing unpickled.

    What comes back predicts, assigns and adds users, bit for bit as before. It lacks ``result_``
    (the users' local models), and settings that were objects (a clusterer, a solver, a
    RandomState) are text: they do not matter until the next ``fit``, which needs them again.
    Sizes are checked before numbers are read, so that no file takes more memory than it has bytes.
    """
    words = read_words(path)
    if words["estimator"] != cls.__name__:
        raise ValueError(f"{path} holds an {words['estimator']!r}: load it with that class.")
    with _named(Path(path) / WORDS):
        model = _from_words(cls, words)
        sizes = _sizes_of_groups(words)
    with _named(Path(path) / NUMBERS):
        arrays = _read_numbers(Path(path) / NUMBERS, model)
        _check_values(arrays)
    _fill(model, arrays, sizes)
    return model


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Whatever is wrong with a file's contents becomes a ValueError that names the file."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file} cannot be read ({error}): fit or copy the model again.") from None
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise _damaged(file, str(error)) from None


def _damaged(file: Path, why: str) -> ValueError:
    return ValueError(f"{file} is damaged or was changed ({why}): fit or copy the model again.")


def _from_words(cls: Any, words: dict[str, Any]) -> Any:
    """An estimator with everything that is not an array; ``users_`` is None where ids are one."""
    names = set(cls().get_params(deep=False))
    expect(set(words["params"]) == names, "the settings are not those of " + cls.__name__)
    classes = None if words["classes"] is None else classes_from_json(words["classes"])
    expect(is_classifier(cls()) == (classes is not None), "a regressor with classes, or no classes")
    n_classes = None if classes is None else len(classes)
    loss = loss_from_json(words["loss"], n_classes)
    model = cls(**{k: setting_from_json(v, n_classes) for k, v in words["params"].items()})
    check_values(model)
    model.loss_ = loss
    if classes is not None:
        model.classes_ = classes
    model.has_users_, model.tau2_ = words["has_users"], words["tau2"]
    expect(isinstance(model.has_users_, bool), "has_users is neither true nor false")
    expect(model.tau2_ is None or is_size(model.tau2_), f"tau2 is {model.tau2_!r}")
    model.rule_, model.reason_ = str(words["rule"]), str(words["reason"])
    model.n_features_in_, found = words["n_features"], words["feature_names"]
    expect(is_count(model.n_features_in_), f"n_features is {model.n_features_in_!r}")
    if found is not None:
        expect(isinstance(found, list), "feature_names is not a list")
        expect(len(found) == model.n_features_in_, f"{len(found)} names of features")
        expect(all(isinstance(name, str) for name in found), "a feature's name is not text")
        model.feature_names_in_ = np.array(found, dtype=object)
    model.users_ = None
    if words["users"] is not None:
        expect(isinstance(words["users"], list), "users is not a list")
        model.users_ = as_ids([id_from_json(user) for user in words["users"]])
        expect(len(model.users_) == len(words["users"]), "an id is not one value")
    return model


def _sizes_of_groups(words: dict[str, Any]) -> dict[str, float]:
    sizes = {name: float(words["groups"][name]) for name in _SIZES}
    for name, value in sizes.items():
        known = name in ("tau2", "spread")  # the noise scale may be NaN, its worth infinite
        expect(is_size(value) if known else not value < 0, f"{name} of the groups is {value!r}")
    return sizes


def _read_numbers(file: Path, model: Any) -> dict[str, Array]:
    """The arrays, each after its type and shape were found to fit the others and the words."""
    from safetensors import safe_open

    n_features = model.n_features_in_ - (model.users is not None)
    with safe_open(file, framework="numpy") as tensors:
        names = set(tensors.keys())

        def shape(name: str) -> tuple[int, ...]:
            expect(name in names, f"{name} is not there")
            return tuple(tensors.get_slice(name).get_shape())

        def read(name: str, size: tuple[int, ...], kinds: tuple[str, ...] = ("F64",)) -> Array:
            expect(shape(name) == size, f"{name} has shape {shape(name)}, not {size}")
            kind = str(tensors.get_slice(name).get_dtype())
            expect(kind in kinds, f"{name} has type {kind}")
            return tensors.get_tensor(name)

        used = read("used", (n_features,), ("BOOL",))
        p = int(used.sum())
        dim = model.loss_.dim(p, bool(model.fit_intercept))
        ids = model.users_
        m, k = int(np.prod(shape("labels"))), int(np.prod(shape("members")))
        expect(m > 0 and k > 0, "there are no users or no groups")
        arrays = {
            "used": used,
            "users": read("users", (m,), _WHOLE) if ids is None else ids,
            "labels": read("labels", (m,), ("I64",)),
            "theta": read("theta", (m, dim)),
            "cluster_theta": read("cluster_theta", (k, dim)),
            "cluster_means": read("cluster_means", (k, p)),
            "members": read("members", (k,), ("I64",)),
            "samples": read("samples", (k,)),
            "pull": read("pull", (k,)),
            "shift": read("shift", (p,)),
            "scale": read("scale", (p,)),
        }
        if "pooled_theta" in names:
            arrays["pooled_theta"] = read("pooled_theta", (dim,))
    return arrays


def _check_values(arrays: dict[str, Array]) -> None:
    for name, array in arrays.items():
        finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
        expect(finite, f"{name} holds numbers that are not finite")
    ids, labels, k = arrays["users"], arrays["labels"], len(arrays["members"])
    expect(len(ids) == len(labels), f"{len(ids)} users and {len(labels)} labels")
    expect(len(set(ids.tolist())) == len(ids), "a user is there twice")
    expect(bool((labels >= -1).all() and (labels < k).all()), f"a label is beyond the {k} groups")
    for name in ("scale", "members", "samples"):
        expect(bool((arrays[name] > 0).all()), f"{name} holds numbers that are not positive")
    expect(bool((arrays["pull"] >= 0).all()), "pull holds negative numbers")


def _fill(model: Any, arrays: dict[str, Array], sizes: dict[str, float]) -> None:
    model.users_, model.labels_ = arrays["users"], arrays["labels"].astype(np.intp, copy=False)
    model.theta_, model.cluster_theta_ = arrays["theta"], arrays["cluster_theta"]
    model.n_clusters_ = len(model.cluster_theta_)
    model.cluster_means_, model.pooled_theta_ = arrays["cluster_means"], arrays.get("pooled_theta")
    used = arrays["used"]
    model.scaling_ = Scaling(arrays["shift"], arrays["scale"], np.flatnonzero(used), len(used))
    model.groups_ = Groups(
        centers=model.cluster_theta_,
        members=arrays["members"],
        samples=arrays["samples"],
        pull=arrays["pull"],
        **sizes,
    )
