"""The files carry and compute nothing: what comes out is what one process gives."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from odcl import Method, ODCLRegressor, Risk, fit
from odcl.data.federation import Federation
from odcl.engines.files import Feature, Task, combine_uploads, fit_site, last_step, receive
from odcl.fitted.tails import Tails
from odcl.risk.risk import Factor
from tests.engines.files.world import class_task, frames, send, task
from tests.helpers import SHARED_DATA, files_below, refusal


def by_file(given, tables, folder, **options):
    """Every site's models by file, (n_users, dim) in the order of the sites, and the round."""
    send(given, tables, folder / "uploads")
    combined = combine_uploads(given, folder / "uploads", out=folder / "round", **options)
    got = {
        site: receive(
            given,
            folder / "uploads" / f"{site}.upload",
            folder / "round" / f"{site}.download",
            frame,
        )
        for site, frame in tables.items()
    }
    return np.vstack([got[site].models for site in sorted(got)]), combined, got


def in_process(given, tables):
    """The same rows and scales in one process."""
    parts = []
    for site, frame in tables.items():
        c = (frame["c"] == "q").astype(float)
        parts.append((np.column_stack([frame.a, frame.b, c]), frame.y.to_numpy(), [site] * len(c)))
    X, y = np.vstack([X for X, _, _ in parts]), np.concatenate([y for _, y, _ in parts])
    if given.classes is not None:
        y = (y == given.classes[1]).astype(float)
    users = np.concatenate([users for *_, users in parts])
    federation = Federation.from_arrays(given.scaling.apply(X), y, users)
    return fit(federation, given.risk, given.method)


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        (task(), False),
        (task(minimum_group=3), False),
        (task(risk=Risk("squared", 0.1, True), method=Method("silhouette")), False),
        (task(method=Method.paper(n_clusters=2)), False),
        (task(method=Method(2)), False),
        (class_task(), True),
    ],
    ids=["mixed", "three sites", "silhouette", "paper", "two groups", "logistic"],
)
def test_files_give_the_models_of_one_process_bit_for_bit(given, classes, tmp_path):
    tables = frames(classes=classes)
    models, combined, _ = by_file(given, tables, tmp_path)
    # The search goes through users by the keys of their names: here they are called as there.
    result = in_process(given, {str((site, 0)): frame for site, frame in tables.items()})
    assert_array_equal(combined.step.labels, result.labels)
    assert_array_equal(models, result.models)


def test_a_column_that_does_not_vary_within_sites_is_shared_there_as_here(tmp_path):
    given = task(smallest_cell=1)
    tables = {s: f.assign(b=0.3 * i) for i, (s, f) in enumerate(frames(8).items())}
    models, combined, _ = by_file(given, tables, tmp_path)
    result = in_process(given, tables)
    assert combined.groups.mixture.spread.fixed is not None
    assert_array_equal(models, result.models)


def test_scales_of_the_card_are_those_that_models_are_fitted_in(tmp_path):
    tables = frames(classes=True)
    scaled = (Feature("a", None, 0.3, 2.0), Feature("b"), Feature("c", ("p", "q")))
    given = class_task(features=scaled)
    models, _, _ = by_file(given, tables, tmp_path)
    assert_array_equal(models, in_process(given, tables).models)


@pytest.mark.parametrize("classes", [False, True])
def test_categories_of_three_levels_are_factors_there_as_here(classes, tmp_path):
    tables = frames(6, 36, classes=classes)
    tables = {s: f.assign(c=np.resize(["r", "p", "q"], len(f))) for s, f in tables.items()}
    features = (Feature("a"), Feature("c", ("q", "p", "r")))
    given = (class_task if classes else task)(features=features)
    models, _, _ = by_file(given, tables, tmp_path)
    table = pd.concat([f.assign(site=s) for s, f in tables.items()])
    X = np.column_stack([table.a, table.c == "p", table.c == "r"]).astype(float)
    y = (table.y == "yes").astype(float) if classes else table.y
    risk = Risk(given.risk.loss, given.risk.l2, True, factors=[Factor((1, 2), name="c")])
    result = fit(Federation.from_arrays(X, y, table.site), risk, given.method)
    assert given.risk == risk
    assert_array_equal(models, result.models)


def test_sites_with_several_users_are_the_same_federation(tmp_path):
    tables = frames(8)
    given = task()
    pairs = {"left": ("north", "south"), "right": ("west", "lake"), "far": ("hill",)}
    pairs["last"] = ("mill", "dale", "east")
    sent = tmp_path / "uploads"
    sent.mkdir()
    together = {
        site: pd.concat([tables[w].assign(ward=w) for w in wards]) for site, wards in pairs.items()
    }
    for site, frame in together.items():
        fit_site(given, frame, site=site, user="ward").write(sent / f"{site}.upload")
    combine_uploads(given, sent, out=tmp_path / "round")
    alone = in_process(given, {f"{s}{w}": tables[w] for s, wards in pairs.items() for w in wards})
    for site, frame in together.items():
        place = tmp_path / "round" / f"{site}.download"
        got = receive(given, sent / f"{site}.upload", place, frame, user="ward")
        assert got.users.tolist() == sorted(pairs[site])
        mine = [alone.users.tolist().index(f"{site}{ward}") for ward in got.users.tolist()]
        assert_array_equal(got.models, alone.models[mine])
        assert_array_equal(got.labels, alone.labels[mine])
        sizes = np.bincount(alone.labels)[alone.labels[mine]]
        assert_array_equal(got.download.downloads.group_size, sizes)


def test_the_order_of_files_and_rows_of_time_changes_no_byte_of_a_round(tmp_path):
    tables, given = frames(), task()
    send(given, tables, tmp_path / "one")
    send(given, dict(reversed(tables.items())), tmp_path / "two")
    for name in ("one", "two"):
        combine_uploads(given, tmp_path / name, out=tmp_path / f"round-{name}")
    assert files_below(tmp_path / "round-one") == files_below(tmp_path / "round-two")
    combine_uploads(given, tmp_path / "two", out=tmp_path / "round-one")  # again
    assert files_below(tmp_path / "round-one") == files_below(tmp_path / "round-two")


def test_the_saved_model_predicts_what_the_site_received(tmp_path):
    tables, given = frames(), task()
    _, _, got = by_file(given, tables, tmp_path)
    site = got["south"]
    model = site.estimator()
    model.save(tmp_path / "model")
    loaded = ODCLRegressor.load(tmp_path / "model")
    frame = tables["south"]
    X = np.column_stack([frame.a, frame.b, frame.c == "q", np.ones(len(frame))])
    np.testing.assert_allclose(loaded.predict(frame), X @ site.models[0], rtol=1e-12)
    assert_array_equal(loaded.predict(frame), model.predict(frame))
    assert loaded.n_clusters_ == 2
    low, high = loaded.predict_interval(frame)
    assert (low < high).all()
    refusal(loaded.diagnose, match="users of one site")


def test_intervals_of_a_site_follow_its_own_rows(tmp_path, monkeypatch):
    _, _, got = by_file(task(), frames(), tmp_path)
    site, asked = got["south"], []
    frame = frames()["south"]
    assumed = np.diff(site.estimator().predict_interval(frame), axis=0)

    def twice(rows, *rest):
        asked.append(rows)
        return Tails(2.0)

    monkeypatch.setattr(last_step, "tails_of", twice)
    model = site.estimator()
    assert (np.diff(model.predict_interval(frame), axis=0) > 1.8 * assumed).all()
    assert asked == [site.rows]


def test_a_site_model_knows_its_users_by_name(tmp_path):
    tables, given = frames(8), task()
    frame = pd.concat([tables[w].assign(ward=w) for w in ("mill", "dale")])
    others = {site: tables[site] for site in list(tables)[:6]}
    sent = send(given, others, tmp_path / "uploads")
    fit_site(given, frame, site="big", user="ward").write(sent / "big.upload")
    combine_uploads(given, sent, out=tmp_path / "round")
    got = receive(
        given, sent / "big.upload", tmp_path / "round" / "big.download", frame, user="ward"
    )
    model = got.estimator()
    prediction = model.predict(frame)
    for ward in ("mill", "dale"):
        own = frame.ward == ward
        assert np.abs(prediction[own] - frame.y[own]).std() < 1
    assert b"mill" not in (sent / "big.upload").read_bytes()  # names of users stay at the site


TABLES = ("cigar", "diamonds", "gasoline", "grunfeld", "males", "nlschools", "produc")
TABLES += ("sleepstudy", "sumhes", "verbagg")


@pytest.mark.parametrize("name", TABLES)
def test_real_users_as_sites_get_the_models_of_one_process(name, tmp_path):
    path = SHARED_DATA / "tables" / f"{name}.csv"
    if not path.exists():
        pytest.skip("the tables lie beside the project")
    table = pd.read_csv(path)
    ids = {user: f"s{i:03d}" for i, user in enumerate(sorted(table.user.unique())[:10])}
    table = table[table.user.isin(ids)]
    names = [c for c in table.columns if c not in ("user", "target")]
    classes = (0, 1) if table.target.isin([0, 1]).all() else None
    risk = Risk("squared" if classes is None else "logistic", 0.0, True)
    features = tuple(Feature(c, None, float(table[c].mean()), 1.5) for c in names)
    limits = {"minimum_rows": 1, "smallest_cell": 1}
    method = Method(short_terms=False)
    given = Task(name, features, "target", risk, classes, method, **limits)
    rows = {site: table[table.user == user] for user, site in ids.items()}
    models, _, _ = by_file(given, rows, tmp_path)
    X = given.scaling.apply(table[names].to_numpy(float))
    federation = Federation.from_arrays(X, table.target.to_numpy(float), table.user.map(ids))
    assert_array_equal(models, fit(federation, given.risk, given.method).models)


def test_how_surely_a_site_belongs_is_what_one_process_says(tmp_path):
    """Noisy tables of a few rows, in which nobody's group is certain."""
    rng, given = np.random.default_rng(3), task(smallest_cell=1, short_terms=True)
    tables = {s: f[:9].assign(y=f.y + 5 * rng.normal(size=len(f))) for s, f in frames(8).items()}
    got, result = by_file(given, tables, tmp_path)[2], in_process(given, tables)
    assert result.n_clusters == 2
    assert result.step.probabilities.min() < 1 - 1e-6
    for site, sure in zip(result.users.tolist(), result.step.probabilities, strict=True):
        assert got[site].probability.tolist() == [sure]
        assert got[site].estimator().probability_.tolist() == [sure]


def test_a_users_group_is_by_its_own_rows_there_as_here(tmp_path):
    """Classes: what a user sent says less of its group than its rows do."""
    given, tables = class_task(), frames(8, classes=True)
    got, result = by_file(given, tables, tmp_path)[2], in_process(given, tables)
    at = {site: i for i, site in enumerate(result.users.tolist())}
    for site, model in got.items():
        assert_array_equal(model.labels, result.labels[[at[site]]])
        assert_array_equal(model.probability, result.received.sure[[at[site]]])
    assert (result.received.sure != result.step.probabilities).any()
