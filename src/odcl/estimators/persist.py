"""Fitted estimators as artifacts: what ``save`` and ``odcl fit`` write, and ``load`` reads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from odcl._typing import Array
from odcl.artifact.arrays import (
    WHOLE,
    ArraySpec,
    classes_from_json,
    classes_to_json,
    expect,
    ids_from_json,
    ids_to_json,
    is_count,
    is_size,
    number_from_json,
    number_to_json,
)
from odcl.artifact.folder import (
    Artifact,
    Extra,
    StoredArtifact,
    open_artifact,
    update_artifact,
    write_artifact,
)
from odcl.data.design import Design
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.engines.dask.address import Address
from odcl.engines.dask.buckets import FOLDER, UserFiles
from odcl.estimators.for_newcomers import Known
from odcl.estimators.settings import check_settings
from odcl.exchange.upload import Uploads, upload_sizes
from odcl.method import Method
from odcl.risk.loss import Loss
from odcl.risk.losses import Logistic, Multinomial, loss_from_json, loss_to_json
from odcl.risk.risk import Risk
from odcl.server.assign_models import GroupStatistics

KIND = "model"
MODEL, NUMBERS = "model.json", "models.safetensors"
UPLOADS, SCHEMA = "uploads.safetensors", "schema.json"
MIXTURE = "mixture.safetensors"
USERS = f"{FOLDER}.json"  # the files of the folder beside it, where all users' models are
MOST_UPLOADS = 2**28  # bytes; larger uploads are not kept: a model should stay easy to copy
_FILES = (MODEL, NUMBERS, UPLOADS, SCHEMA)
_SIZES = ("tau2", "spread", "phi", "phi_dof")  # numbers of GroupStatistics


# -- writing -------------------------------------------------------------------------------------


def save_estimator(
    model: Any,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    extras: Mapping[str, Extra] | None = None,
) -> None:
    """Write a fitted estimator, and other files beside it, as a folder: whole or not at all."""
    write_artifact(path, _artifact(model, extras or {}), force=force)


def update_estimator(
    path: str | os.PathLike[str],
    change: Callable[[Any, StoredArtifact], Mapping[str, Extra]],
) -> None:
    """Read a model, change it and write it again while nobody else can.

    ``change`` gives back the other files that change with it.
    """

    def changed(stored: StoredArtifact) -> Artifact:
        model = read_estimator(None, stored)
        new = _artifact(model, change(model, stored))
        words = {name: content for name, content in new.words.items() if name != USERS}
        return replace(new, words=words, folders={})  # files of users stay as they are

    update_artifact(path, changed, kind=KIND)


def _artifact(model: Any, extras: Mapping[str, Extra]) -> Artifact:
    scaling, groups, uploads = model.scaling_, model.groups_, model.uploads_
    arrays = {
        "theta": model.theta_,
        "labels": np.asarray(model.labels_, dtype=np.int64),
        "rows": np.asarray(model.n_rows_, dtype=np.int64),
        "probability": model.probability_,
        "cluster_theta": model.cluster_theta_,
        "pooled_theta": model.pooled_theta_,
        "shift": scaling.shift,
        "scale": scaling.scale,
        "used": np.isin(np.arange(scaling.n_features), scaling.used),
        "members": np.asarray(groups.members, dtype=np.int64),
        "samples": groups.samples,
        "pull": groups.pull,
    }
    ids = ids_to_json(model.users_)
    if ids is None:
        arrays["users"] = model.users_
    classes = getattr(model, "classes_", None)
    names = getattr(model, "feature_names_in_", None)
    words: dict[str, Any] = {
        MODEL: {
            "estimator": type(model).__name__,
            "params": {k: _setting_to_json(v) for k, v in model.get_params(deep=False).items()},
            "risk": model.risk_.to_json(),
            "method": model.method_.to_json(described=True),
            "users": ids,
            "has_users": bool(model._has_users),
            "whole": bool(model._whole),
            "tau2": model.tau2_,
            "groups": {name: number_to_json(getattr(groups, name)) for name in _SIZES},
            "n_features": int(model.n_features_in_),
            "feature_names": None if names is None else names.tolist(),
            "design": None,  # a schema tells it
            "classes": None if classes is None else classes_to_json(classes),
            "target": model._target_name,
            "rule": model.rule_,
            "reason": model.reason_,
        }
    }
    if model._batches:
        words[MODEL]["batches"] = sorted(model._batches)
    if model.schema_ is not None:
        words[SCHEMA] = model.schema_.to_json()
    elif model.design_ is not None:
        words[MODEL]["design"] = model.design_.to_json()
    files: dict[str, Mapping[str, Array]] = {NUMBERS: arrays}
    if model.mixture_ is not None:
        from odcl.estimators.mixture_file import mixture_to_arrays

        words[MODEL]["mixture"], files[MIXTURE] = mixture_to_arrays(model)
    if uploads is not None and int(uploads.n_bytes.sum()) <= MOST_UPLOADS:
        files[UPLOADS] = uploads.to_arrays()
    folders: dict[str, Callable[[Path], object]] = {}
    if model.user_files_ is not None:
        words[USERS], own = model.user_files_.to_json(), model.user_files_
        folders[FOLDER] = own.bring
    return Artifact(KIND, words, files, extras, folders)


# -- reading -------------------------------------------------------------------------------------


def load_estimator(cls: Any, path: str | os.PathLike[str]) -> Any:
    """Rebuild an estimator from its folder; ``cls`` None takes the class that was written.

    Nothing is executed and nothing unpickled. What comes back predicts, assigns, adds and updates
    users and is diagnosed, bit for bit as before. It lacks ``result_``, and settings that were
    objects (a clusterer, a solver, a RandomState) are text: they do not matter until the next
    ``fit``, which needs them again.
    """
    with open_artifact(path, kind=KIND) as stored:
        return read_estimator(cls, stored)


def read_estimator(cls: Any, stored: StoredArtifact) -> Any:
    """The same from an artifact that is open."""
    from odcl.estimators.public import ODCLClassifier, ODCLRegressor

    stored.check([name for name in stored.names if name not in _FILES])
    words = stored.words(MODEL)
    known = {kind.__name__: kind for kind in (ODCLClassifier, ODCLRegressor)}
    if cls is not None and words.get("estimator") != cls.__name__:
        raise ValueError(
            f"{stored.folder} holds an {words.get('estimator')!r}: load it with that class."
        )
    with stored.checking(MODEL):
        expect(words.get("estimator") in known, f"{words.get('estimator')!r} is no estimator")
        kind = known[words["estimator"]]
        model = _from_words(kind, words)
        groups = {name: number_from_json(words["groups"][name]) for name in _SIZES}
        for name, value in groups.items():
            whole = name in ("tau2", "spread")  # the noise scale may be NaN, its worth infinite
            expect(is_size(value) if whole else not value < 0, f"{name} of the groups is {value!r}")
        listed, model._batches = words["users"], frozenset(map(str, words.get("batches", ())))
    model.schema_ = None
    if SCHEMA in stored:
        content = stored.words(SCHEMA)
        with stored.checking(SCHEMA):
            model.schema_ = TableSchema.from_json(content)
            model.design_ = model.schema_.design
    with stored.checking(MODEL):
        own = model.n_features_in_ - (model.users is not None)
        fits = model.design_ is None or len(model.design_.features) == own
        expect(fits, "its features are not those of its design")
    has_means = _fill(model, stored, listed, groups)
    model._whole = words.get("whole", has_means)  # older models of one site's users have no means
    model.mixture_ = model.covariance_ = model.noise_ = model.dof_ = None
    with stored.checking(MODEL):
        mixed = model.method_.clusterer.uses_terms
        fits = mixed == (MIXTURE in stored) == ("mixture" in words)
        expect(fits, f"a method of {model.method_.clusterer} and a mixture that is not its own")
    if mixed:
        from odcl.estimators.mixture_file import read_mixture

        read_mixture(model, stored, words)
    model.uploads_ = _read_uploads(model, stored) if UPLOADS in stored else None
    if USERS in stored:
        listed_users = stored.words(USERS)
        with stored.checking(USERS):
            folder = Address.of(stored.folder / FOLDER)
            model.user_files_ = UserFiles.from_json(listed_users, folder)
    return model


def _from_words(kind: Any, words: dict[str, Any]) -> Any:
    """An estimator with everything that is not an array."""
    names = set(kind().get_params(deep=False))
    named = {"missing", *words["params"]}  # which older models have not
    expect(named == names, "the settings are not those of " + kind.__name__)
    classes = None if words["classes"] is None else classes_from_json(words["classes"])
    expect(is_classifier(kind()) == (classes is not None), "classes of no classifier, or none")
    model = kind(**{k: _setting_from_json(v) for k, v in words["params"].items()})
    if model.unknown == "nearest":  # a choice that older versions had
        model.unknown = "pooled"
    text = isinstance(words["params"]["clusterer"], dict)  # an object, of which the words are left
    check_settings(model.set_params(clusterer="auto") if text else model)
    model.set_params(clusterer=_setting_from_json(words["params"]["clusterer"]))
    model.risk_, model.method_ = Risk.from_json(words["risk"]), Method.from_json(words["method"])
    same = (model.risk_.l2, model.risk_.intercept) == (model.l2, bool(model.fit_intercept))
    expect(same, "its l2 or intercept is not that of its settings")
    _check_classes(model.risk_.loss, None if classes is None else len(classes))
    if classes is not None:
        model.classes_ = classes
    model._has_users, model.tau2_ = words["has_users"], words["tau2"]
    expect(isinstance(model._has_users, bool), "has_users is neither true nor false")
    expect(model.tau2_ is None or is_size(model.tau2_), f"tau2 is {model.tau2_!r}")
    model.rule_, model.reason_ = str(words["rule"]), str(words["reason"])
    model._target_name = str(words["target"])
    model.n_features_in_, found = words["n_features"], words["feature_names"]
    expect(is_count(model.n_features_in_), f"n_features is {model.n_features_in_!r}")
    if found is not None:
        expect(isinstance(found, list), "feature_names is not a list")
        expect(len(found) == model.n_features_in_, f"{len(found)} names of features")
        expect(all(isinstance(name, str) for name in found), "a feature's name is not text")
        model.feature_names_in_ = np.array(found, dtype=object)
    model.design_ = None if words["design"] is None else Design.from_json(words["design"])
    return model


def _check_classes(loss: Loss, n_classes: int | None) -> None:
    fits = n_classes in ((2,) if isinstance(loss, Logistic) else (None,))
    if isinstance(loss, Multinomial):
        fits = n_classes == loss.n_classes
    expect(fits, f"a {loss.name} loss and {n_classes or 'no'} classes")


def _fill(model: Any, stored: StoredArtifact, listed: Any, groups: dict[str, float]) -> bool:
    p_all = model.n_features_in_ - (model.users is not None)
    if model.design_ is not None:
        p_all = len(model.design_.columns)
    whole, users = ("int64",), ("users",)
    specs = {
        "used": ArraySpec((p_all,), ("bool",)),
        "labels": ArraySpec(users, whole),
        "rows": ArraySpec(users, whole),
        "probability": ArraySpec(users, finite=False),
        "theta": ArraySpec(("users", "dim")),
        "cluster_theta": ArraySpec(("groups", "dim")),
        "cluster_means": ArraySpec(("groups", "features"), optional=True),
        "pooled_theta": ArraySpec(("dim",)),
        "members": ArraySpec(("groups",), whole),
        "samples": ArraySpec(("groups",)),
        "pull": ArraySpec(("groups",)),
        "shift": ArraySpec(("features",)),
        "scale": ArraySpec(("features",)),
    }
    if listed is None:
        specs["users"] = ArraySpec(users, WHOLE)
    arrays = stored.arrays(NUMBERS, specs)
    with stored.checking(NUMBERS):
        model.users_ = ids_from_json(listed, arrays.get("users"))
        labels, used, k = arrays["labels"], arrays["used"], len(arrays["members"])
        dim = model.risk_.dim(int(used.sum()))
        expect(len(labels) > 0 and k > 0, "there are no users or no groups")
        m, found = len(model.users_), arrays["theta"].shape[1]
        expect(m == len(labels), f"there are {m} users and {len(labels)} labels")
        expect(found == dim, f"models have {found} numbers, not {dim}")
        last = max((j for factor in model.risk_.factors for j in factor.columns), default=-1)
        expect(last < int(used.sum()), f"a factor has column {last}, beyond the model's")
        expect(len(arrays["scale"]) == int(used.sum()), "scales are not those of the columns used")
        inside = bool((labels >= -1).all() and (labels < k).all())
        expect(inside, f"a label is beyond the {k} groups")
        for name in ("scale", "members", "samples"):
            expect(bool((arrays[name] > 0).all()), f"{name} holds numbers that are not positive")
        expect(bool((arrays["pull"] >= 0).all()), "pull holds negative numbers")
    model.n_rows_, model.probability_ = arrays["rows"], arrays["probability"]
    model.labels_, model.n_clusters_ = labels.astype(np.intp, copy=False), k
    model.theta_, model.cluster_theta_ = arrays["theta"], arrays["cluster_theta"]
    model.scaling_ = Scaling(arrays["shift"], arrays["scale"], np.flatnonzero(used), len(used))
    members, samples, pull = (arrays[name] for name in ("members", "samples", "pull"))
    sizes = (groups[name] for name in _SIZES)
    around = GroupStatistics(model.cluster_theta_, members, samples, pull, *sizes)
    model._for_newcomers = Known(around, arrays["pooled_theta"])
    return "cluster_means" in arrays


def _read_uploads(model: Any, stored: StoredArtifact) -> Uploads:
    m, dim = model.theta_.shape
    shapes = Uploads.array_shapes("users", upload_sizes(model.risk_, dim))
    specs = {
        name: ArraySpec(shape, optional=True, finite=name not in ("dispersion", "inverse_trace"))
        for name, shape in shapes.items()
    }
    arrays = stored.arrays(UPLOADS, specs, users=m)
    with stored.checking(UPLOADS):
        uploads = Uploads.from_arrays(model.users_, arrays)
        uploads = replace(uploads, risk=model.risk_)
        uploads.check()
    return uploads


# -- settings ------------------------------------------------------------------------------------


def _setting_to_json(value: Any) -> Any:
    """Simple settings as they are, losses and methods as theirs; other objects as text."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Method):
        return {"method": value.to_json(described=True)}
    if isinstance(value, Loss):
        return {"loss": loss_to_json(value)}
    if value is None or isinstance(value, str | int | bool):
        return value
    if isinstance(value, list | tuple | np.ndarray):
        return [_setting_to_json(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return value
    text = repr(value)
    return {"object": type(value).__name__ if " at 0x" in text else text}


def _setting_from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_setting_from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    expect(len(value) == 1, f"a setting is {value!r}")
    if "loss" in value:
        return loss_from_json(value["loss"])
    return Method.from_json(value["method"]) if "method" in value else str(value["object"])
