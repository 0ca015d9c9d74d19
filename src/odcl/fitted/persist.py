"""Fits as artifacts: what ``save`` and ``odcl fit`` write, and ``load`` reads."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from odcl._typing import Ints
from odcl.artifact.arrays import (
    WHOLE,
    ArraySpec,
    array_file,
    classes_from_json,
    classes_to_json,
    expect,
    id_from_json,
    id_to_json,
    ids_from_json,
    ids_to_json,
    json_bytes,
)
from odcl.artifact.folder import (
    Artifact,
    Content,
    StoredArtifact,
    update_artifact,
    write_artifact,
)
from odcl.data.design import Design
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.declared import Count, HasDefaults, Number, Size, from_json, one_of, to_json
from odcl.exchange import mixture as exchanged
from odcl.exchange.upload import Uploads, upload_sizes
from odcl.fitted.tails import Tails
from odcl.fitted.value import Fitted, InputColumns, Newcomers, UserColumns
from odcl.method import Method
from odcl.risk.loss import Loss
from odcl.risk.losses import Logistic, Multinomial, loss_from_json, loss_to_json
from odcl.risk.risk import Risk
from odcl.server.assign import GroupStatistics
from odcl.server.robust import Outlier
from odcl.wide.moments import GroupModels, WideGroups

KIND = "model"
MODEL, NUMBERS = "model.json", "models.safetensors"
UPLOADS, SCHEMA = "uploads.safetensors", "schema.json"
MIXTURE = "mixture.safetensors"
FOLDER = "users"
USERS = f"{FOLDER}.json"  # the files of the folder beside it, where all users' models are
MOST_UPLOADS = 2**28  # bytes; larger uploads are not kept: a model should stay easy to copy
ESTIMATORS = ("ODCLRegressor", "ODCLClassifier")
_FILES = (MODEL, NUMBERS, UPLOADS, SCHEMA)


@dataclass(frozen=True)
class _Model(HasDefaults):
    """``model.json``."""

    estimator: Annotated[str, one_of(ESTIMATORS)]
    params: Mapping[str, Any]
    risk: Risk
    method: Any  # clusterers that cannot be written are text in it
    users: Any  # ids; None: an array has them
    has_users: bool
    whole: bool
    tau2: Size | None
    noise: Number  # of the groups
    n_features: Count
    feature_names: tuple[str, ...] | None
    classes: Any
    target: str
    rule: str
    reason: str
    design: Design | None = None  # None: there is none, or a schema tells it
    mixture: Mapping[str, Any] | None = None
    tails: tuple[Number, Number] = Tails()
    outliers: tuple[Outlier, ...] = ()
    batches: tuple[str, ...] = ()
    added: Count = 0

    def __post_init__(self) -> None:
        scale, nu = self.tails
        expect(not self.noise < 0, f"the noise of the groups is {self.noise!r}")
        expect(0 < scale < math.inf and nu >= 1, f"tails are {self.tails}")


_USERS = {  # see UserColumns
    "group": ArraySpec(("users",), ("int32",)),
    "probability": ArraySpec(("users",), finite=False),
    "rows": ArraySpec(("users",), ("int64",)),
    "model": ArraySpec(("users", "dim")),
    "covariance": ArraySpec(("users", "triangle"), optional=True),
    "noise": ArraySpec(("users",), optional=True),
    "dof": ArraySpec(("users",), optional=True, finite=False),
}


# -- writing -------------------------------------------------------------------------------------


def save_fitted(
    fitted: Fitted,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    extras: Mapping[str, Content] | None = None,
) -> None:
    """Write a fit, and other files beside it, as a folder: whole or not at all."""
    write_artifact(path, _artifact(fitted, extras or {}), force=force)


def update_fitted(
    path: str | os.PathLike[str],
    change: Callable[[Fitted, StoredArtifact], tuple[Fitted, Mapping[str, Content]]],
) -> None:
    """Read a fit, change it and write it again under the folder's lock.

    ``change`` also gives back the other files that change with it.
    """

    def changed(stored: StoredArtifact) -> Artifact:
        fitted, extras = change(read_fitted(stored), stored)
        new = _artifact(fitted, extras)
        files = {name: content for name, content in new.files.items() if name != USERS}
        return Artifact(KIND, files)  # files of users stay as they are

    update_artifact(path, changed, kind=KIND)


def _artifact(fitted: Fitted, extras: Mapping[str, Content]) -> Artifact:
    scaling, groups, users = fitted.scaling, fitted.newcomers.groups, fitted.users
    columns, uploads = fitted.columns, fitted.uploads
    arrays = users.arrays() | {
        "cluster_theta": fitted.centers,
        "pooled_theta": fitted.newcomers.pooled,
        "shift": scaling.shift,
        "scale": scaling.scale,
        "used": np.isin(np.arange(scaling.n_features), scaling.used),
        "members": np.asarray(groups.members, dtype=np.int64),
        "samples": groups.samples,
    }
    ids = ids_to_json(users.users)
    if ids is None:
        arrays["users"] = users.users
    classes, files, mixture = columns.classes, dict[str, Content](), None
    if fitted.mixture is not None:
        mixture, own = exchanged.mixture_to_arrays(fitted.mixture)
        files[MIXTURE] = array_file(own)
    model = _Model(
        estimator=ESTIMATORS[classes is not None],
        params={name: _setting_to_json(v) for name, v in fitted.settings.items()},
        risk=fitted.risk,
        method=fitted.method.to_json(described=True),
        users=ids,
        has_users=fitted.has_users,
        whole=fitted.whole,
        tau2=fitted.tau2,
        noise=float(groups.noise),
        n_features=int(columns.n),
        feature_names=columns.names,
        classes=None if classes is None else classes_to_json(classes),
        target=columns.target,
        rule=fitted.rule,
        reason=fitted.reason,
        design=columns.design if columns.schema is None else None,
        mixture=mixture,
        tails=fitted.newcomers.tails,
        outliers=tuple(replace(one, user=id_to_json(one.user)) for one in fitted.outliers),
        batches=tuple(sorted(fitted.batches)),
        added=fitted.added,
    )
    files = {MODEL: json_bytes(to_json(model)), NUMBERS: array_file(arrays), **files}
    if columns.schema is not None:
        files[SCHEMA] = json_bytes(columns.schema.to_json())
    if uploads is not None and int(uploads.n_bytes.sum()) <= MOST_UPLOADS:
        files[UPLOADS] = array_file(uploads.to_arrays())
    folders: dict[str, Callable[[Path], object]] = {}
    if fitted.files is not None:
        files[USERS] = json_bytes(fitted.files.to_json())
        folders[FOLDER] = fitted.files.bring
    return Artifact(KIND, {**files, **extras}, folders)


# -- reading -------------------------------------------------------------------------------------


def read_fitted(stored: StoredArtifact) -> Fitted:
    """The fit of an artifact that is open. Nothing is executed and nothing unpickled.

    It predicts, assigns, adds and updates users and is diagnosed, bit for bit as before. Settings
    that were objects (a clusterer, a solver, a RandomState) are text.
    """
    stored.check([name for name in stored.names if name not in _FILES])
    words = stored.words(MODEL)
    with stored.checking(MODEL):
        model: _Model = from_json(_Model, words)
        settings = {name: _setting_from_json(v) for name, v in model.params.items()}
        method = Method.from_json(model.method)
        columns = _columns(model, settings.get("users"))
        mixed = method.clusterer.uses_terms
        fits = mixed == (MIXTURE in stored) == (model.mixture is not None)
        expect(fits, f"a method of {method.clusterer} and a mixture that is not its own")
    if SCHEMA in stored:
        content = stored.words(SCHEMA)
        with stored.checking(SCHEMA):
            schema = TableSchema.from_json(content)
            columns = replace(columns, schema=schema, design=schema.design)
    with stored.checking(MODEL):
        own = columns.n - (columns.user is not None)
        fits = columns.design is None or len(columns.design.features) == own
        expect(fits, "its features are not those of its design")
    users, scaling, newcomers = _read_numbers(stored, model, columns)
    mixture = None
    if model.mixture is not None:
        mixture = _read_mixture(stored, model, users)
        with stored.checking(MIXTURE):
            expect(len(mixture.weights) == len(newcomers.groups.centers), "centers of other groups")
    fitted = Fitted(
        columns,
        scaling,
        model.risk,
        method,
        model.rule,
        model.reason,
        newcomers.groups.centers,
        mixture,
        model.tau2,
        newcomers,
        users,
        _read_uploads(stored, users, model.risk) if UPLOADS in stored else None,
        has_users=model.has_users,
        whole=model.whole,
        batches=frozenset(model.batches),
        added=model.added,
        outliers=tuple(replace(one, user=id_from_json(one.user)) for one in model.outliers),
        settings=settings,
    )
    if USERS not in stored:
        return fitted
    from odcl.data.address import Address
    from odcl.exchange.buckets import UserFiles

    listed = stored.words(USERS)
    with stored.checking(USERS):
        files = UserFiles.from_json(listed, Address.of(stored.folder / FOLDER))
    return replace(fitted, files=files)


def _columns(model: _Model, user: Any) -> InputColumns:
    """The columns of X, and classes that the loss can have."""
    classes = None if model.classes is None else classes_from_json(model.classes)
    named = ESTIMATORS[classes is not None] == model.estimator
    expect(named, "classes of no classifier, or none")
    loss, n_classes = model.risk.loss, None if classes is None else len(classes)
    fits = n_classes in ((2,) if isinstance(loss, Logistic) else (None,))
    if isinstance(loss, Multinomial):
        fits = n_classes == loss.n_classes
    expect(fits, f"a {loss.name} loss and {n_classes or 'no'} classes")
    names = model.feature_names
    if names is not None:
        expect(len(names) == model.n_features, f"{len(names)} names of {model.n_features} features")
    return InputColumns(
        model.n_features, names, user, model.design, target=model.target, classes=classes
    )


def _read_numbers(
    stored: StoredArtifact, model: _Model, columns: InputColumns
) -> tuple[UserColumns, Scaling, Newcomers]:
    """Users, units and groups."""
    listed, risk = model.users, model.risk
    p_all = columns.n - (columns.user is not None)
    if columns.design is not None:
        p_all = len(columns.design.columns)
    whole = ("int64",)
    specs = _USERS | {
        "used": ArraySpec((p_all,), ("bool",)),
        "cluster_theta": ArraySpec(("groups", "dim")),
        "pooled_theta": ArraySpec(("dim",)),
        "members": ArraySpec(("groups",), whole),
        "samples": ArraySpec(("groups",)),
        "shift": ArraySpec(("features",)),
        "scale": ArraySpec(("features",)),
    }
    if listed is None:
        specs["users"] = ArraySpec(("users",), WHOLE)
    arrays = stored.arrays(NUMBERS, specs)
    with stored.checking(NUMBERS):
        ids = ids_from_json(listed, arrays.get("users"))
        labels, used, k = arrays["group"], arrays["used"], len(arrays["members"])
        bent = [j for curve in risk.curves for j in (curve.of, *curve.columns)]
        width = int(used.sum()) + sum(len(curve.columns) for curve in risk.curves)
        dim = risk.dim(width)
        expect(len(labels) > 0 and k > 0, "there are no users or no groups")
        m, found = len(ids), arrays["model"].shape[1]
        expect(m == len(labels), f"there are {m} users and {len(labels)} labels")
        expect(found == dim, f"models have {found} numbers, not {dim}")
        last = max((j for factor in risk.factors for j in factor.columns), default=-1)
        expect(last < int(used.sum()), f"a factor has column {last}, beyond the model's")
        expect(max(bent, default=-1) < width, "a curve has a column beyond the model's")
        expect(len(arrays["scale"]) == int(used.sum()), "scales are not those of the columns used")
        inside = bool((labels >= -1).all() and (labels < k).all())
        expect(inside, f"a label is beyond the {k} groups")
        for name in {"scale", "members", "samples", "noise", "dof"} & arrays.keys():
            expect(bool((arrays[name] > 0).all()), f"{name} holds numbers that are not positive")
        triangle = arrays.get("covariance")
        fits = triangle is None or triangle.shape[1] == dim * (dim + 1) // 2
        expect(fits, f"covariances are not those of models of {dim} numbers")
    own = UserColumns.from_arrays(ids, {n: arrays[n] for n in _USERS if n in arrays})
    members: Ints = arrays["members"].astype(np.intp, copy=False)
    groups = GroupStatistics(arrays["cluster_theta"], members, arrays["samples"], model.noise)
    newcomers = Newcomers.of(groups, arrays["pooled_theta"], Tails(*model.tails))
    units = arrays["shift"], arrays["scale"], np.flatnonzero(used), len(used)
    return own, Scaling(*units, curves=risk.curves), newcomers


def _read_mixture(stored: StoredArtifact, model: _Model, users: UserColumns) -> GroupModels:
    """Groups, which say how sure users' models are."""
    arrays, risk = stored.arrays(MIXTURE, exchanged.SPECS), model.risk
    p = (users.model.shape[1] // risk.n_outputs) - risk.intercept
    with stored.checking(MIXTURE):
        mixture = exchanged.mixture_from_arrays(model.mixture, arrays, risk, p)
    with stored.checking(NUMBERS):
        wide = isinstance(mixture, WideGroups)
        expect(wide or users.covariance is not None, "no covariances")
        told = [values is not None for values in (users.noise, users.dof)]
        expect(all(told) if risk.loss.has_data_terms else not told[0], "no noise")
    return mixture


def _read_uploads(stored: StoredArtifact, users: UserColumns, risk: Risk) -> Uploads:
    m, dim = users.model.shape
    arrays = stored.arrays(UPLOADS, Uploads.specs(upload_sizes(risk, dim)), users=m)
    with stored.checking(UPLOADS):
        uploads = replace(Uploads.from_arrays(users.users, arrays), risk=risk)
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
    if isinstance(value, Mapping):
        return {"table": _setting_to_json([*value.items()])}
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
    if "table" in value:
        return dict(value["table"])
    if "loss" in value:
        return loss_from_json(value["loss"])
    return Method.from_json(value["method"]) if "method" in value else str(value["object"])
