"""Curves in a federation by file: knots come from the card, models are those of one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Method, ODCLClassifier, ODCLRegressor, Risk, fit
from odcl.data.federation import Federation
from odcl.engines.files import Feature, Task, assign, combine_uploads, fit_site, receive
from odcl.report.by_file import inspect_file
from tests.engines.files.test_equality import by_file
from tests.engines.files.world import send
from tests.helpers import refusal

FEATURES = (Feature("age", None, 50.0, 18.0), Feature("hour"), Feature("sex", ("f", "m")))


def card(*, classes=False, short_terms=True, **changes) -> Task:
    risk = Risk("logistic" if classes else "squared", 0.01 * classes, True)
    given = Task(
        *("stay", FEATURES, "y", risk, ("no", "yes") if classes else None),
        Method(short_terms=short_terms),
        smallest_cell=1,
        curves=True,
        periodic={"hour": 24},
    )
    return replace(given, **changes)


def hospitals(n_sites=12, n=80, *, classes=False, bent=True, seed=0) -> dict[str, pd.DataFrame]:
    """Tables with a bell in age, a cosine of the hour, and levels of the sites' own."""
    rng, found = np.random.default_rng(seed), {}
    for i in range(n_sites):
        age, hour = rng.uniform(20, 90, n), rng.uniform(0, 24, n)
        sex = rng.permutation(np.arange(n) % 2)
        z = 0.5 * rng.normal() + 0.4 * sex + 0.01 * (age - 50)
        if bent:
            z = z + 2 * np.exp(-(((age - 55) / 12) ** 2)) + np.cos(hour * np.pi / 12) - 1
        y = z + 0.5 * rng.normal(size=n)
        if classes:
            y = np.where(rng.random(n) < 1 / (1 + np.exp(-2 * z)), "yes", "no")
        found[f"s{i:02d}"] = pd.DataFrame(
            {"age": age, "hour": hour, "sex": np.array(["f", "m"])[sex], "y": y}
        )
    return found


def lines(given, tables):
    """Rows of all tables in the card's scales, without bends."""
    table = pd.concat([frame.assign(site=site) for site, frame in tables.items()])
    X = np.column_stack([table.age, table.hour, table.sex == "m"]).astype(float)
    y = (table.y == "yes").astype(float) if given.classes else table.y
    return Federation.from_arrays((X - given.lines.shift) / given.lines.scale, y, table.site)


@pytest.mark.parametrize("short_terms", [True, False])
@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_files_with_curves_give_the_models_of_one_process_bit_for_bit(
    classes, short_terms, tmp_path
):
    given, tables = card(classes=classes, short_terms=short_terms), hospitals(classes=classes)
    models, combined, _ = by_file(given, tables, tmp_path)
    result = fit(lines(given, tables), given.risk, given.method)
    assert models.shape == (12, 3 + 8 + 1)
    assert [curve.name for curve in combined.step.mixture.coordinates.opened] == ["age", "hour"]
    assert_array_equal(combined.step.labels, result.labels)
    assert_array_equal(models, result.models)


@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_a_round_predicts_what_an_estimator_does_with_the_same_scales(classes, tmp_path):
    tables = hospitals(classes=classes)
    table = pd.concat([frame.assign(site=site) for site, frame in tables.items()])
    age = Feature("age", None, float(table.age.mean()), float(table.age.std(ddof=0)))
    given = card(classes=classes, features=(age, *FEATURES[1:]))
    got = by_file(given, tables, tmp_path)[2]
    kind, predict = (ODCLClassifier, "predict_proba") if classes else (ODCLRegressor, "predict")
    model = kind(users="site", curves=["age"], periodic={"hour": 24}).fit(
        table.drop(columns="y"), table.y
    )
    for site, one in got.items():
        there = getattr(one.estimator(), predict)(tables[site])
        here = getattr(model, predict)(table[table.site == site].drop(columns="y"))
        assert_allclose(there, here, rtol=1e-3, atol=1e-3)


def test_a_site_saves_predicts_draws_and_names_open_curves_alone(tmp_path):
    given, tables = card(), hospitals()
    got = by_file(given, tables, tmp_path)[2]
    model = got["s03"].estimator()
    model.save(tmp_path / "model")
    loaded = ODCLRegressor.load(tmp_path / "model")
    names = list(loaded.coefficients())
    assert {"age~1", "hour~4"} <= set(names)
    frame = tables["s03"]
    assert_array_equal(loaded.predict(frame), model.predict(frame))
    X = given.scaling.apply(np.column_stack([frame.age, frame.hour, frame.sex == "m"]) * 1.0)
    assert_allclose(model.predict(frame), np.c_[X, np.ones(len(X))] @ got["s03"].models[0])
    low, high = loaded.predict_interval(frame)
    assert ((low < frame.y) & (frame.y < high)).mean() > 0.8
    drawn = loaded.curve("age")
    assert drawn.x[drawn.value.argmax()] == pytest.approx(55, abs=5)
    assert loaded.curve("hour").x.tolist()[::99] == [0, 24]
    loaded.report(tmp_path / "site.html")
    page = (tmp_path / "site.html").read_text()
    assert "saw the rows of one site" in page
    assert "bends of columns that act in lines not counted" in page


def test_without_bends_a_round_with_curves_is_the_round_of_lines(tmp_path):
    tables = hospitals(bent=False)
    bent, straight = (
        by_file(given, tables, tmp_path / name)
        for name, given in (
            ("bent", card(periodic={})),
            ("straight", card(curves=False, periodic={})),
        )
        if (tmp_path / name).mkdir() is None
    )
    assert bent[1].step.reason == straight[1].step.reason
    for site, one in bent[2].items():
        mine, other = one.estimator(), straight[2][site].estimator()
        assert list(mine.coefficients()) == list(other.coefficients())
        assert_allclose(mine.predict(tables[site]), other.predict(tables[site]), rtol=1e-7)


def test_the_coordinators_page_draws_what_a_round_found(tmp_path):
    """Over the card's range and in the round's words; hour, whose wave is open, has no slope."""
    given, tables = card(), hospitals()
    by_file(given, tables, tmp_path)
    page = next(tmp_path.rglob("report.html")).read_text()
    assert "age and hour act in curves, the same for all." in page
    assert page.count('class="band"') == 2
    assert "The curve of hour" in page
    assert "it is the slope of its line" in page
    assert "thin lines are users" not in page
    (tmp_path / "lines").mkdir()
    by_file(card(curves=False, periodic={}), tables, tmp_path / "lines")
    page = next((tmp_path / "lines").rglob("report.html")).read_text()
    assert "curve" not in page.partition("<main")[2]


def test_late_sites_are_placed_beside_curves(tmp_path):
    given, tables = card(), hospitals()
    late = tables.pop("s11")
    sent = send(given, tables, tmp_path / "uploads")
    combine_uploads(given, sent, out=tmp_path / "round")
    upload = tmp_path / "s11.upload"
    fit_site(given, late, site="s11").write(upload)
    assign(tmp_path / "round", upload).write(tmp_path / "s11.download")
    got = receive(given, upload, tmp_path / "s11.download", late)
    residual = late.y - got.estimator().predict(late)
    assert residual.std() < 0.6


def test_files_say_that_they_hold_bends(tmp_path):
    given, tables = card(), hospitals(4)
    sent = send(given, tables, tmp_path / "uploads")
    assert "age~1" in inspect_file(sent / "s00.upload", given)
    assert "age~1" in given.to_toml()


def test_the_words_of_a_card_come_back(tmp_path):
    for given in (card(), card(curves=("age",)), card(curves=False), card(periodic={})):
        given.write(tmp_path / "card.toml")
        again = Task.read(tmp_path / "card.toml")
        assert again == given
        assert again.digest == given.digest


def test_a_card_of_lines_has_no_word_of_curves_in_its_digest():
    """The digest that it had before curves were there."""
    plain = Task("stay", (Feature("a", None, 1.0, 2.0),), "y")
    plain = replace(plain, method=replace(plain.method, robust=False))  # as cards were then
    assert plain.digest == "2bf23b4e673e52235411a2bc0c76f2a218cb5db227532e27b91a0d85bad99fb8"
    assert replace(plain, curves=True).digest != plain.digest
    knots = replace(plain, features=(Feature("a", None, 1.0, 3.0),))
    assert replace(knots, curves=True).digest != replace(plain, curves=True).digest


def test_a_feature_without_a_scale_has_a_line_and_the_card_says_so():
    given = card(curves=True, periodic={}, features=(Feature("hour"), *FEATURES[::2]))
    assert [curve.name for curve in given.risk.curves] == ["age"]
    assert "hour: lines only" in given.curve_notes()[0]
    assert card(curves=("age",), periodic={}).curve_notes() == []
    named = card(curves=("hour",), periodic={}, features=(Feature("hour"), *FEATURES[::2]))
    assert named.curve_notes()[0].startswith("hour: curves need a shift and a scale on the card")
    told = card(periodic={}, short_terms=False)
    assert "8 parameters" in told.curve_notes()[1]
    assert "2 users with fewer rows" in told.curve_notes(np.array([3, 7, 8]))[1]
    assert len(told.curve_notes(np.array([8, 9]))) == 1


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"curves": ("aeg",)}, "'aeg' is to act in a curve"),
        ({"curves": ("sex",)}, "'sex' is a category"),
        ({"curves": "age"}, "curves is 'age'"),
        ({"periodic": {"hour": 0.0}}, "their periods"),
        ({"periodic": {"sex": 2.0}}, "'sex' is a category"),
        ({"method": Method.paper(n_clusters=2)}, "clusters models, which have lines only"),
        ({"method": Method(curves=True)}, "curves of its own"),
    ],
)
def test_curves_that_cannot_be_are_refused(changes, match):
    refusal(card, match=match, **changes)
