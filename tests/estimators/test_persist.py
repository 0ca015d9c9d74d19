"""Models on disk: the same after loading, whole or not at all, and no file is trusted."""

from __future__ import annotations

import builtins
import json
import os
import pickle
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from safetensors.numpy import load_file, save_file
from sklearn.base import clone
from sklearn.linear_model import Ridge

from odcl import (
    Huber,
    KMeansPP,
    Logistic,
    Multinomial,
    ODCLClassifier,
    ODCLRegressor,
    Squared,
    linear_federation,
)
from odcl.fitted.persist import MODEL, NUMBERS
from odcl.fitted.value import UserColumns
from tests.helpers import files_below, full_disk, model_of, seal

FITTED = ["theta_", "cluster_theta_", "labels_", "pooled_theta_", "n_rows_"]
FITTED += ["probability_", "coef_", "intercept_", "group_coef_", "group_intercept_"]
WORDED = ["n_clusters_", "n_features_in_", "tau2_", "rule_", "reason_"]


@pytest.fixture(scope="module")
def small_table():
    """12 users of 40 rows in 4 groups: X, y and the owners' positions."""
    federation = linear_federation(12, 40, n_clusters=4, dim=3, n_active=3, seed=1)
    return federation.X, federation.y, federation.row_user


def regressor(small_table, **settings):
    X, y, users = small_table
    settings = {"clusterer": 4, "random_state": 0} | settings
    return ODCLRegressor(**settings).fit(X, y, users=users)


def classifier(small_table, labels, **settings):
    X, y, users = small_table
    model = ODCLClassifier(clusterer=3, random_state=0, **settings)
    return model.fit(X, labels[np.digitize(y, [-1.0, 1.0][: len(labels) - 1])], users=users)


MODELS = {
    "squared": lambda t: regressor(t),
    "paper": lambda t: regressor(t, method="paper"),
    "pooled": lambda t: regressor(t, unknown="pooled", fit_intercept=False),
    "refusing": lambda t: regressor(t, unknown="error"),
    "huber": lambda t: regressor(t, loss="huber"),
    "a loss": lambda t: regressor(t, loss=Huber(2.5)),
    "poisson": lambda t: regressor((t[0], np.abs(t[1]).round(), t[2]), loss="poisson"),
    "a constant column": lambda t: regressor((np.insert(t[0], 1, 7.0, axis=1), t[1], t[2])),
    "text": lambda t: classifier(t, np.array(["no", "yes"])),
    "objects": lambda t: classifier(t, np.array(["no", "yes, certainly"], dtype=object)),
    "booleans": lambda t: classifier(t, np.array([False, True])),
    "integers": lambda t: classifier(t, np.array([-1, 1], dtype=np.int8), loss=Logistic()),
    "floats": lambda t: classifier(t, np.array([0.0, 2.0])),
    "three classes": lambda t: classifier(t, np.array(["a", "b", "c"]), unknown="pooled"),
    "multinomial": lambda t: classifier(t, np.array([10, 20, 2**40]), loss=Multinomial(3)),
}


def rows_for(model, small_table):
    X = small_table[0]
    return np.insert(X, 1, 7.0, axis=1) if model.n_features_in_ > X.shape[1] else X


@pytest.mark.parametrize("kind", MODELS)
def test_a_loaded_model_is_the_one_saved(small_table, kind, tmp_path):
    """Predictions, assignments and everything fitted, bit for bit and type for type."""
    model = MODELS[kind](small_table)
    model.save(tmp_path / "model")
    loaded = type(model).load(tmp_path / "model")
    X, users = rows_for(model, small_table), small_table[2]
    assert_array_equal(loaded.predict(X, users=users), model.predict(X, users=users))
    assert loaded.predict(X, users=users).dtype == model.predict(X, users=users).dtype
    if hasattr(model, "predict_proba"):
        p = model.predict_proba(X, users=users)
        assert_array_equal(loaded.predict_proba(X, users=users), p)
        assert loaded.classes_.dtype == model.classes_.dtype
    if model.unknown != "error":
        strangers = np.full(len(X), "nobody")
        assert_array_equal(loaded.predict(X, strangers), model.predict(X, strangers))
    for name in FITTED:
        assert_array_equal(getattr(loaded, name), getattr(model, name), err_msg=name)
    for name in WORDED:
        assert getattr(loaded, name) == getattr(model, name), name
    assert loaded.fitted_.has_users == model.fitted_.has_users
    settings = loaded.get_params()
    assert type(settings.pop("loss")) is type(model.loss)
    assert settings.items() <= model.get_params().items()
    y = model.predict(X[:30], users=users[:30])
    one, other = model.assign(X[:30], y), loaded.assign(X[:30], y)
    assert (one.label, one.distance, one.probability) == (
        other.label,
        other.distance,
        other.probability,
    )
    assert_array_equal(model_of(one), model_of(other))
    assert loaded.diagnose(resamples=1).verdict == model.diagnose(resamples=1).verdict


IDS = {
    "integers": lambda u: u,
    "small integers": lambda u: u.astype(np.int8),
    "unsigned": lambda u: u.astype(np.uint64) + np.uint64(2**63),
    "booleans": lambda u: u % 2 == 0,
    "text": lambda u: [f"Kiosk Nr. {i}\n\u00fc\U0001f600" for i in u],
    "text with nothing in it": lambda u: ["" if i == 0 else f"{i}\0" for i in u],
    "large integers": lambda u: [10**30 + int(i) for i in u],
    "floats": lambda u: u / 3,
    "infinite": lambda u: [float("-inf") if i == 0 else float(i) for i in u],
    "mixed": lambda u: [0.5 if i == 0 else f"s{i}" if i % 2 else int(i) for i in u],
    "tuples": lambda u: [("north", (int(i), None)) for i in u],
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_any_kind_come_back(small_table, kind, tmp_path):
    X, y, users = small_table
    ids = IDS[kind](users)
    model = ODCLRegressor(clusterer=2, random_state=0).fit(X, y, users=ids)
    model.save(tmp_path / "model")
    loaded = ODCLRegressor.load(tmp_path / "model")
    assert loaded.users_.tolist() == model.users_.tolist()
    assert list(map(type, loaded.users_.tolist())) == list(map(type, model.users_.tolist()))
    assert loaded.users_.dtype == model.users_.dtype
    assert_array_equal(loaded.predict(X, users=ids), model.predict(X, users=ids))


def test_added_users_and_users_without_a_group_come_back(small_table, tmp_path):
    model = regressor(small_table)
    X = small_table[0][:40]
    found = model.add_user("stranger", X, 1000.0 * X[:, 0])
    assert found.none_of_these
    model.save(tmp_path / "model")
    loaded = ODCLRegressor.load(tmp_path / "model")
    assert loaded.labels_[-1] == -1
    who = ["stranger"] * 40
    assert_array_equal(loaded.predict(X, users=who), model.predict(X, users=who))
    loaded.add_user("another", X, small_table[1][:40])
    assert len(loaded.predict(X, users=["another"] * 40)) == 40


def test_names_of_features_and_the_users_column_come_back(small_table, tmp_path):
    X, y, users = small_table
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(store=[f"s{u}" for u in users])
    model = ODCLRegressor(users="store", clusterer=4, random_state=0).fit(frame, y)
    model.save(tmp_path / "model")
    loaded = ODCLRegressor.load(tmp_path / "model")
    assert_array_equal(loaded.predict(frame), model.predict(frame))
    assert_array_equal(loaded.feature_names_in_, frame.columns)
    assert_array_equal(loaded.predict(frame[frame.columns[::-1]]), model.predict(frame))


def test_objects_come_back_as_text_and_are_needed_for_the_next_fit(small_table, tmp_path):
    X, y, users = small_table
    model = ODCLRegressor(
        Squared(), clusterer=KMeansPP(4), solver=Ridge(), random_state=np.random.RandomState(0)
    ).fit(X, y, users=users)
    model.save(tmp_path / "model")
    loaded = ODCLRegressor.load(tmp_path / "model")
    assert isinstance(loaded.loss, Squared)  # the library's own losses are no objects to fear
    assert (loaded.clusterer, loaded.solver) == ("KMeansPP(n_clusters=4)", "Ridge()")
    assert loaded.random_state == "RandomState"  # not its address in memory
    assert not hasattr(loaded, "result_")
    with pytest.raises(ValueError, match="clusterer="):
        clone(loaded).fit(X, y, users=users)
    again = loaded.set_params(clusterer=KMeansPP(4), solver="exact", random_state=0)
    assert again.fit(X, y, users=users).n_clusters_ == 4


def test_nothing_in_a_file_is_executed(small_table, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    regressor(small_table).save(folder)
    ODCLRegressor.load(folder)  # types of declared fields are evaluated once, from our own source
    words = json.loads((folder / MODEL).read_text())
    words["params"]["clusterer"] = {"object": "__import__('os').mkdir('executed')"}
    (folder / MODEL).write_text(json.dumps(words))
    seal(folder)

    def forbidden(*_args, **_settings):
        raise AssertionError("a file was executed")

    for module, name in ((pickle, "loads"), (pickle, "load"), (builtins, "eval"), (np, "load")):
        monkeypatch.setattr(module, name, forbidden)
    loaded = ODCLRegressor.load(folder)
    assert loaded.clusterer == "__import__('os').mkdir('executed')"


# -- whole or not at all ---------------------------------------------------------------------------


def test_an_existing_folder_is_replaced_only_by_force_and_only_if_it_is_a_model(
    small_table, tmp_path
):
    model, other = regressor(small_table), regressor(small_table, l2=1.0)
    model.save(tmp_path / "model")
    before = files_below(tmp_path)
    with pytest.raises(ValueError, match=r"exists already.*force=True"):
        other.save(tmp_path / "model")
    assert files_below(tmp_path) == before
    other.save(tmp_path / "model", force=True)
    assert ODCLRegressor.load(tmp_path / "model").l2 == 1.0
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    with pytest.raises(ValueError, match="holds what odcl did not write"):
        model.save(tmp_path / "letters", force=True)
    assert (tmp_path / "letters" / "a.txt").read_text() == "dear"


@pytest.mark.parametrize("force", [False, True])
def test_a_save_that_fails_leaves_nothing_behind(small_table, tmp_path, monkeypatch, force):
    model = regressor(small_table)
    if force:
        model.save(tmp_path / "model")
    before = files_below(tmp_path)

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        regressor(small_table, l2=1.0).save(tmp_path / "model", force=force)
    assert files_below(tmp_path) == before


def test_what_cannot_be_written_is_refused_before_anything_is(small_table, tmp_path):
    class Mine(Squared):
        pass

    X, y, users = small_table
    own_loss = regressor(small_table, loss=Mine())
    dates = [pd.Timestamp("2024-01-01") + pd.Timedelta(days=int(u)) for u in users]
    with_dates = ODCLRegressor(clusterer=2).fit(X, y, users=np.array(dates, dtype=object))
    for model, message in ((own_loss, "loss of your own"), (with_dates, "ids on disk are text")):
        with pytest.raises(ValueError, match=message):
            model.save(tmp_path / "model")
    assert files_below(tmp_path) == {}


def test_a_model_of_a_hundred_thousand_users_loads_quickly(small_table, tmp_path):
    model = regressor(small_table, clusterer="kmeans:4")
    m = 100_000
    users = UserColumns(
        users=np.array([f"store-{i:06d}" for i in range(m)]),
        group=np.zeros(m, dtype=int),
        probability=np.ones(m),
        rows=np.ones(m, dtype=int),
        model=np.random.default_rng(0).standard_normal((m, 4)),
    )
    model._hold(replace(model.fitted_, users=users, uploads=None))
    model.save(tmp_path / "model")
    start = time.perf_counter()
    loaded = ODCLRegressor.load(tmp_path / "model")
    assert time.perf_counter() - start < 3.0  # measured: 0.15 s
    assert_array_equal(loaded.users_, model.users_)


# -- files that were changed -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(small_table, tmp_path_factory):
    """Two folders of models, by class; copy before changing."""
    place = tmp_path_factory.mktemp("saved")
    X, y, users = small_table
    names = pd.DataFrame(X, columns=["a", "b", "c"])
    model = ODCLRegressor("huber", clusterer=4, unknown="pooled", random_state=0)
    model.fit(names, y, users=[f"s{u}" for u in users]).save(place / "ODCLRegressor")
    classifier(small_table, np.array(["a", "b", "c"])).save(place / "ODCLClassifier")
    return place


def copy_of(saved, kind, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    for file in (saved / kind).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def put(*path):
    """Set a value deep in the words: put("params", "l2", -1)."""
    *keys, last, value = path

    def change(words):
        place = words
        for key in keys:
            place = place[key]
        place[last] = value

    return change


def drop(name):
    return lambda words: words.pop(name)


WORDS_CHANGED = {
    "no users": (drop("users"), "users is missing"),
    "no method": (drop("method"), "method is missing"),
    "another estimator": (put("estimator", "Ridge"), "estimator is 'Ridge', and not one of"),
    "a setting missing": (lambda w: w.pop("params"), "params is missing"),
    "a setting too many": (put("params", "hook", "x"), "settings are not those of"),
    "settings that are a list": (put("params", [1, 2]), r"params is \[1, 2\], and not a table"),
    "a penalty below zero": (put("params", "l2", -1), "l2=-1"),
    "a penalty of text": (put("params", "l2", "x"), "l2='x'"),
    "an unknown method": (put("params", "method", "x"), "method='x'"),
    "an intercept of text": (put("params", "fit_intercept", "x"), "fit_intercept='x'"),
    "an intercept less": (put("params", "fit_intercept", False), "not that of its settings"),
    "another penalty": (put("risk", "l2", 1.0), "not that of its settings"),
    "a column of users": (put("params", "users", 0), "used has shape"),
    "a strange object": (put("params", "solver", {"thing": 1}), "object"),
    "an unknown loss": (put("risk", "loss", "name", "hinge"), "hinge"),
    "a loss of text": (put("risk", "loss", "x"), "'x' names no loss"),
    "a loss for classes": (
        put("risk", "loss", {"name": "logistic"}),
        "logistic loss and no classes",
    ),
    "no delta": (put("risk", "loss", {"name": "huber"}), "does not have the settings {}"),
    "a delta of zero": (put("risk", "loss", "delta", 0), "delta"),
    "an infinite delta": (put("risk", "loss", "delta", float("inf")), "Infinity is no JSON"),
    "a regressor with classes": (
        put("classes", {"dtype": "<U1", "values": ["a", "b"]}),
        "classes of no classifier",
    ),
    "a feature more": (put("n_features", 4), "3 names of 4 features"),
    "features of text": (put("n_features", "3"), "n_features is '3'"),
    "a name less": (put("feature_names", ["a", "b"]), "2 names of 3 features"),
    "a design of other columns": (
        put("design", {"features": ["a"], "levels": {"a": ["x", "y"]}, "fill": {}}),
        "its features are not those of its design",
    ),
    "a design without levels": (put("design", {"features": ["a"]}), "levels is missing"),
    "a factor beyond": (
        put("risk", "factors", [{"columns": [9], "weights": [1.0], "constant": 0.0, "name": ""}]),
        "a factor has column 9, beyond the model's",
    ),
    "a name of numbers": (put("feature_names", ["a", "b", 3]), "is 3, and not text"),
    "a user less": (lambda w: w["users"].pop(), "11 users and 12 labels"),
    "a user twice": (put("users", 1, "s0"), "a user is there twice"),
    "users of text": (put("users", "s0s1"), "ids are a list, or an array"),
    "a user that is a list": (put("users", 1, [1]), "an id is a list"),
    "a negative tau2": (put("tau2", -1.0), "tau2 is -1.0"),
    "a negative noise": (put("noise", -1.0), "the noise of the groups is -1.0"),
    "a noise of text": (put("noise", "x"), "damaged"),
    "has_users of text": (put("has_users", "yes"), "has_users is 'yes', and not true or false"),
}


@pytest.mark.parametrize("change", WORDS_CHANGED)
def test_changed_words_are_refused_by_the_name_of_their_file(saved, tmp_path, change):
    folder = copy_of(saved, "ODCLRegressor", tmp_path)
    words = json.loads((folder / MODEL).read_text())
    edit, message = WORDS_CHANGED[change]
    edit(words)
    (folder / MODEL).write_text(json.dumps(words))
    seal(folder)
    with pytest.raises(ValueError, match=message) as refused:
        ODCLRegressor.load(folder)
    assert str(folder) in str(refused.value)


CLASSES_CHANGED = {
    "none": (put("classes", None), "classes of no classifier, or none"),
    "one less": (put("classes", "values", ["a", "b"]), "multinomial loss and 2 classes"),
    "one twice": (put("classes", "values", ["a", "b", "b"]), "a class is there twice"),
    "one that is none": (put("classes", "values", ["a", "b", None]), "a class is no label"),
    "of another type": (put("classes", "dtype", "<i8"), "damaged"),
    "of a dangerous type": (put("classes", "dtype", "V8"), "classes of type"),
    "of no type": (put("classes", "dtype", "x"), "damaged"),
    "more than there are": (put("risk", "loss", "n_classes", 4), "multinomial loss and 3 classes"),
    "more than memory holds": (
        put("risk", "loss", "n_classes", 10**9),
        "does not have the settings",
    ),
    "a logistic loss": (put("risk", "loss", {"name": "logistic"}), "logistic loss and 3 classes"),
    "a loss in the settings": (
        put("params", "loss", {"loss": {"name": "multinomial", "n_classes": 10**9}}),
        "does not have the settings",
    ),
}


@pytest.mark.parametrize("change", CLASSES_CHANGED)
def test_changed_classes_are_refused(saved, tmp_path, change):
    folder = copy_of(saved, "ODCLClassifier", tmp_path)
    words = json.loads((folder / MODEL).read_text())
    edit, message = CLASSES_CHANGED[change]
    edit(words)
    (folder / MODEL).write_text(json.dumps(words))
    seal(folder)
    with pytest.raises(ValueError, match=message) as refused:
        ODCLClassifier.load(folder)
    assert str(folder / MODEL) in str(refused.value)


def test_a_type_of_a_billion_letters_takes_no_memory(saved, tmp_path):
    folder = copy_of(saved, "ODCLClassifier", tmp_path)
    words = json.loads((folder / MODEL).read_text())
    words["classes"]["dtype"] = "<U500000000"
    (folder / MODEL).write_text(json.dumps(words))
    seal(folder)
    assert ODCLClassifier.load(folder).classes_.dtype == "<U1"


def shaped(name, edit):
    def change(arrays):
        arrays[name] = np.ascontiguousarray(edit(arrays[name]))

    return change


def first(value):
    def edit(array):
        array = array.copy()
        array.flat[0] = value
        return array

    return edit


NUMBERS_CHANGED = {
    "an array missing": (lambda a: a.pop("model"), "model is not there"),
    "a user less": (shaped("model", lambda t: t[1:]), "model has shape"),
    "a coefficient less": (shaped("model", lambda t: t[:, 1:]), "cluster_theta has shape"),
    "models of half precision": (shaped("model", lambda t: t.astype(np.float16)), "type float16"),
    "a model that is NaN": (shaped("model", first(np.nan)), "model holds numbers that are not"),
    "an infinite centre": (shaped("cluster_theta", first(np.inf)), "cluster_theta holds numbers"),
    "a centre less": (shaped("cluster_theta", lambda c: c[1:]), "has shape"),
    "labels of floats": (shaped("group", lambda v: v.astype(float)), "group has type float64"),
    "a label too large": (shaped("group", first(4)), "a label is beyond the 4 groups"),
    "a label below none": (shaped("group", first(-2)), "a label is beyond the 4 groups"),
    "a matrix of labels": (shaped("group", lambda v: v[None]), "group has shape"),
    "a scale of zero": (shaped("scale", first(0.0)), "scale holds numbers that are not positive"),
    "an empty group": (shaped("members", first(0)), "members holds numbers"),
    "a group without rows": (shaped("samples", first(0.0)), "samples holds numbers"),
    "a column that is not there": (shaped("used", lambda u: np.append(u, True)), "used has shape"),
    "a column less": (shaped("used", first(False)), "models have 4 numbers, not 3"),
    "no groups": (shaped("members", lambda v: v[:0]), "members has shape"),
    "a pooled model too long": (shaped("pooled_theta", lambda t: np.tile(t, 2)), "pooled_theta"),
}


@pytest.mark.parametrize("change", NUMBERS_CHANGED)
def test_changed_numbers_are_refused_by_the_name_of_their_file(saved, tmp_path, change):
    folder = copy_of(saved, "ODCLRegressor", tmp_path)
    arrays = load_file(folder / NUMBERS)
    edit, message = NUMBERS_CHANGED[change]
    edit(arrays)
    save_file(arrays, folder / NUMBERS)
    seal(folder)
    with pytest.raises(ValueError, match=message) as refused:
        ODCLRegressor.load(folder)
    assert str(folder / NUMBERS) in str(refused.value)


@pytest.mark.parametrize("name", [MODEL, NUMBERS])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_file_cut_short_is_refused(saved, tmp_path, name, share):
    folder = copy_of(saved, "ODCLRegressor", tmp_path)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(ValueError, match="damaged or was changed") as refused:
        ODCLRegressor.load(folder)
    assert str(folder / name) in str(refused.value)
    if share < 0.9:  # what is cut off the words may be the end of the last line
        seal(folder)
        with pytest.raises(ValueError, match="damaged or was changed"):
            ODCLRegressor.load(folder)


FOREIGN = {
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
    "a pickle": pickle.dumps({"a": 1}),
    "deep brackets": b"[" * 100_000,
    "a list": b"[1, 2]",
    "a large header": (2**62).to_bytes(8, "little") + b"{}",
}


@pytest.mark.parametrize("name", [MODEL, NUMBERS])
@pytest.mark.parametrize("content", FOREIGN)
def test_a_foreign_file_is_refused(saved, tmp_path, name, content):
    folder = copy_of(saved, "ODCLRegressor", tmp_path)
    (folder / name).write_bytes(FOREIGN[content])
    for _ in range(2):
        with pytest.raises(ValueError, match=name):
            ODCLRegressor.load(folder)
        seal(folder)


def test_folders_that_hold_no_such_model_are_refused(saved, tmp_path):
    with pytest.raises(ValueError, match=r"holds an 'ODCLClassifier': load it with that class"):
        ODCLRegressor.load(saved / "ODCLClassifier")
    for place, why in ((tmp_path, "has no manifest"), (__file__, "is a file")):
        with pytest.raises(ValueError, match=why):
            ODCLRegressor.load(place)
    with pytest.raises(ValueError, match="There is no folder"):
        ODCLRegressor.load(tmp_path / "nowhere")
    folder = copy_of(saved, "ODCLRegressor", tmp_path)
    (folder / NUMBERS).unlink()
    with pytest.raises(
        ValueError, match=f"{NUMBERS} is damaged or was changed \\(it is missing\\)"
    ):
        ODCLRegressor.load(folder)
