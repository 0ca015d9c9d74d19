"""The report of a fit in a real browser: clicks and what they change, numbers and the run's."""

from __future__ import annotations

import base64
import itertools
import re

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment

from odcl import ODCLRegressor
from odcl.artifact.folder import open_artifact
from odcl.errors import number as people
from odcl.report.page import svg
from odcl.runs.evidence import read_evidence
from odcl.runs.page_models import own_models
from tests.report.page.browser import DOWN, ENTER, ESCAPE, RIGHT, facts_of, number, unpacked

THREE_DIGITS = {"rtol": 6e-3, "atol": 1e-9}


@pytest.fixture(scope="module")
def run(stores):
    """The run's model, and what speaks for it."""
    model = ODCLRegressor.load(stores / "run")
    with open_artifact(stores / "run", kind="model") as stored:
        return model, read_evidence(stored, len(model.users_))


@pytest.fixture
def page(browser, stores):
    return browser.open(stores / "run" / "report.html")


def place_of(page_file, user, *, picture="map"):
    """Where a user's point lies in a picture."""
    facts = facts_of(page_file)
    at = facts["ids"].index(user)
    frame = svg.Frame(*facts["map"]["frame"])
    x, y = unpacked(facts["map"]["xy"]).reshape(-1, 2)[at]
    return frame.x(float(x)), frame.y(float(y))


def find(page, user):
    page.run("document.getElementById('find').value = ''")
    page.write("#find", user + ENTER)


def test_nothing_goes_wrong_and_nothing_is_loaded(page):
    assert page.problems() == []
    loaded = page.run("return performance.getEntriesByType('resource').length")
    assert loaded == 0


def test_the_headline_says_groups_differences_and_worth(page, run):
    model, evidence = run
    mean = {name: value for name, value, *_ in evidence.comparison.rows()}
    words = page.text("h1")
    assert words.startswith(f"{model.n_clusters_} groups among 60 users; users of a group differ")
    assert f"RMSE {mean['odcl']:.3g}" in words
    assert f"{1 - mean['odcl'] / mean['local']:.0%} below the {mean['local']:.3g}" in words


def test_hovering_names_a_user_and_clicking_selects_it_everywhere(page, stores):
    x, y = place_of(stores / "run" / "report.html", "store-12")
    page.hover_at("#map canvas", x, y)
    assert page.text("#map .tip").startswith("store-12: group 2")
    page.click_at("#map canvas", x, y)
    assert page.text("#state") == "Selected: store-12, group 2"
    assert page.text("#user-title") == "One user: store-12"
    assert page.text(".picked-row td") == "store-12"
    names = [one.text for one in page.all(".picked-name")]
    assert names == ["store-12", "store-12"]  # on the map and among the gains
    assert len(page.all("#map .ellipse")) == 1
    assert len(page.all("#coef .rule")) == len(page.all("#coef .strip")) > 3
    page.click("#clear")
    assert page.text("#state") == "No user selected."
    assert not page.all(".picked-row, .ellipse, .picked-name")


def test_the_ellipse_lies_around_the_point_and_is_as_wide_as_the_user_is_unsure(page, stores):
    facts = facts_of(stores / "run" / "report.html")
    at = facts["ids"].index("store-12")
    a, b, c = unpacked(facts["map"]["cov"]).reshape(-1, 3)[at].tolist()
    frame = svg.Frame(*facts["map"]["frame"])
    scale = np.array([frame.x(1) - frame.x(0), frame.y(1) - frame.y(0)])
    axes = np.sqrt(np.linalg.eigvalsh(np.array([[a, c], [c, b]]) * np.outer(scale, scale)))
    find(page, "store-12")
    ellipse = page.one("#map .ellipse")
    shown = [float(ellipse.get_attribute(name)) for name in ("ry", "rx")]
    assert_allclose(shown, 2.4477 * axes, atol=0.06)
    where = re.findall(r"[-\d.]+", ellipse.get_attribute("transform"))[:2]
    x, y = place_of(stores / "run" / "report.html", "store-12")
    assert_allclose([float(v) for v in where], [x, y], atol=0.06)


def test_a_user_is_found_by_its_name_with_the_keyboard_alone(page):
    page.write("#find", "STORE-1")
    assert len(page.all("#found li")) == 8
    page.write("#find", DOWN + DOWN + ENTER)
    assert page.text("#state").startswith("Selected: store-12")
    page.run("document.activeElement.blur()")
    page.write("#map", RIGHT)
    assert not page.text("#state").startswith("Selected: store-12")
    page.write("#map", ESCAPE)
    assert page.text("#state") == "No user selected."
    page.write("#find", "nobody")
    assert page.run("return document.getElementById('live').textContent") == (
        "No user is called store-12nobody."
    )


def test_groups_of_every_option_have_the_colours_of_the_groups_they_share_most_users_with(
    stores, run
):
    """So that whoever looks through the options sees the same users in the same colours."""
    facts, (model, evidence) = facts_of(stores / "run" / "report.html"), run
    group = unpacked(facts["group"], "<i4")
    compared = 0
    for shown, one in zip(facts["options"]["list"], evidence.weighed.options, strict=True):
        if shown["labels"] is None:
            continue
        colours = unpacked(shown["labels"], "<i2").astype(int)
        pairs = [list(zip(*both, strict=True)) for both in ((colours, one.labels), (colours,))]
        assert len({*pairs[0]}) == len({*pairs[1]})  # the same users together
        shared = np.zeros((one.n_groups, model.n_clusters_), dtype=int)
        np.add.at(shared, (one.labels, group), 1)
        rows, columns = linear_sum_assignment(shared, maximize=True)
        assert (colours == group).sum() == shared[rows, columns].sum()
        compared += one.n_groups > 1
    assert compared > 2


def test_the_slider_of_more_rows_starts_with_those_there_are(stores):
    times = facts_of(stores / "run" / "report.html")["more"]["times"]
    assert times[0] == 1
    assert times == sorted(times)
    assert len(times) > 2


def test_filtering_by_group_leaves_its_users_alone(page, run):
    model, _ = run
    before = page.pixels("#map canvas")
    page.click("input.filter[value='0']")
    assert {row[1] for row in page.rows("#assignment")} == {"1", "2"}
    assert f"{int((model.labels_ != 0).sum())} users" in page.text("#page")
    assert page.pixels("#map canvas") != before
    page.click("#all-groups")
    assert "60 users" in page.text("#page")
    assert page.pixels("#map canvas") == before


def test_the_table_has_the_numbers_of_the_run_and_sorts_by_all_of_them(page, run):
    model, evidence = run
    scores = evidence.comparison.scores
    own, ours = (dict(zip(model.users_, scores[name], strict=True)) for name in ("local", "odcl"))
    place = {user: i for i, user in enumerate(model.users_)}
    seen = []
    for turn in range(3):
        for user, group, rows, sure, alone, with_odcl, gain in page.rows("#assignment"):
            at = place[user]
            assert (int(group), int(rows)) == (model.labels_[at], model.n_rows_[at])
            assert abs(number(sure) - 100 * model.probability_[at]) <= 0.051
            assert_allclose(number(alone), own[user], **THREE_DIGITS)
            assert_allclose(number(with_odcl), ours[user], **THREE_DIGITS)
            assert_allclose(number(gain), own[user] - ours[user], **THREE_DIGITS)
            seen.append(user)
        if turn < 2:
            page.click("#next")
    assert sorted(seen) == sorted(model.users_.tolist())
    page.click("#assignment th:nth-child(7) button")
    page.click("#assignment th:nth-child(7) button")
    gains = [number(row[6]) for row in page.rows("#assignment")]
    assert gains == sorted(gains, reverse=True)
    assert page.one("#assignment th:nth-child(7)").get_attribute("aria-sort") == "descending"


def test_the_saved_table_is_that_of_the_page(page, run, tmp_path):
    model, evidence = run
    page.click("input.filter[value='1']")
    page.tell("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.click("#save")
    wait = page.run  # the browser writes the file on its own time
    for _ in range(100):
        if list(tmp_path.glob("*.csv")):
            break
        wait("return new Promise(done => setTimeout(done, 50))")
    frame = pd.read_csv(next(tmp_path.glob("*.csv")))
    kept = model.labels_ != 1
    assert sorted(frame["store"]) == sorted(model.users_[kept].tolist())
    frame = frame.set_index("store").loc[model.users_[kept]]
    assert (frame["group"] == model.labels_[kept]).all()
    assert_allclose(frame["how surely"], model.probability_[kept], rtol=1e-6)
    assert_allclose(frame["RMSE with odcl"], evidence.comparison.scores["odcl"][kept], rtol=1e-6)


def test_the_slider_colours_the_map_by_each_alternative(page, run, stores):
    _, evidence = run
    weighed = evidence.weighed
    chosen = page.pixels("#map canvas")
    slide = "const s = arguments[0]; s.value = arguments[1]; s.dispatchEvent(new Event('input'))"
    colours = {}
    for at, one in enumerate(weighed.options):
        page.run(slide, page.one("#option"), at)
        words = page.text("#option-words")
        assert words.startswith("no groups" if one.n_groups == 1 else f"{one.n_groups} groups")
        gap = one.score - weighed.options[weighed.chosen].score
        if at != weighed.chosen:
            assert f"evidence {people(gap)} worse" in words
        colours[at] = page.pixels("#map canvas")
        assert page.one("#options .option.now").get_attribute("data-i") == str(at)
        assert page.one("#option").get_attribute("aria-valuetext") == words
    assert colours[weighed.chosen] == chosen
    assert all(colours[i] != chosen for i, one in enumerate(weighed.options) if one.n_groups != 3)


def test_many_users_tell_their_usual_noise_as_everybody_does(run, monkeypatch):
    """Of all users the two ways are one; some users' own noise still leans on all, where few."""
    model, _ = run
    everybody = np.arange(len(model.users_))
    theta, cov = own_models(model.fitted_, everybody)
    few = own_models(model.fitted_, everybody[:3])[1]
    assert_allclose(few, cov[:3], rtol=1e-12)
    monkeypatch.setattr("odcl.runs.page_models.ENOUGH", 3)
    many = own_models(model.fitted_, everybody)
    assert_allclose(many[0], theta, rtol=1e-12)
    assert_allclose(many[1], cov, rtol=1e-12)
    assert not np.allclose(own_models(model.fitted_, everybody[:3])[1], few, rtol=1e-6)


@pytest.mark.parametrize("user", ["store-05", "store-58"])
def test_a_users_page_has_its_numbers(page, run, stores, user):
    model, evidence = run
    at = int(np.flatnonzero(model.users_ == user)[0])
    find(page, user)
    own, cov = own_models(model.fitted_, np.array([at]))
    shown = {row[0]: row[1:] for row in page.rows("#user-coefficients")}
    assert set(shown) == {*model.feature_names_, "(level)"}
    for j, name in enumerate(model.feature_names_):
        unit = model.scaling_.scale[j]
        group = model.labels_[at]
        expected = (
            (own[0, j] / unit, np.sqrt(cov[0, j, j]) / unit),
            (model.group_coef_[group, j], None),
            (model.coef_[at, j], np.sqrt(model.covariance_[at, j, j]) / unit),
        )
        for text, (value, error) in zip(shown[name], expected, strict=True):
            mine, half = text.split(" ± ")
            assert_allclose(number(mine), value, rtol=6e-3, atol=0.06 * number(half))
            if error is not None:
                assert_allclose(number(half), 1.959964 * error, rtol=0.06)
    held = evidence.comparison.held
    mine = held.owner == at
    columns = np.array([[number(cell) for cell in row] for row in page.rows("#user-held")])
    expected = [held.seen[mine], held.predicted["local"][mine], held.predicted["odcl"][mine]]
    assert_allclose(columns.T, np.array(expected), **THREE_DIGITS)
    words = dict(
        zip(
            (one.text for one in page.all("#user dl dt")),
            (one.text for one in page.all("#user dl dd")),
            strict=True,
        )
    )
    assert (words["group"], words["rows"]) == (str(model.labels_[at]), str(model.n_rows_[at]))
    assert abs(number(words["how surely"]) - 100 * model.probability_[at]) <= 0.051


def test_groups_stand_side_by_side_in_the_tables_units(page, run):
    model, _ = run
    rows = {row[0]: row[1:] for row in page.rows("#coefficients")}
    for j, name in enumerate(model.feature_names_):
        for cell, value in zip(rows[name], model.group_coef_[:, j], strict=True):
            shown, half = map(number, cell.split(" ± "))
            assert_allclose(shown, value, rtol=6e-3, atol=0.06 * half)
    assert_allclose(
        [number(cell) for cell in rows["(intercept)"]], model.group_intercept_, **THREE_DIGITS
    )
    level = model.group_intercept_ + model.group_coef_ @ model.scaling_.shift
    assert_allclose([number(cell) for cell in rows["(level)"]], level, **THREE_DIGITS)
    effect = np.ptp(model.group_coef_, axis=0) * model.scaling_.scale
    order = [name for name in rows if name in model.feature_names_]
    assert order == [model.feature_names_[j] for j in np.argsort(-effect)]


def test_sections_say_what_the_run_says(page, run, stores):
    model, evidence = run
    table = {row[0]: row[1:] for row in page.rows("#worth")}
    for name, words in (("odcl", "odcl"), ("local", "one model per user (ridge)")):
        scores = evidence.comparison.scores[name]
        expected = [scores.mean(), np.median(scores), scores.max()]
        assert_allclose([number(cell) for cell in table[words]], expected, rtol=2e-3)
    found = model.diagnose()
    assert found.verdict.sentence in page.text("#diagnosis")
    assert found.verdict.reason in page.text("#diagnosis")
    sent = {row[0]: row[2] for row in page.rows("#privacy")}  # closed curves are not kept
    assert int(sent["in all"].replace(",", "")) == evidence.bytes_up // len(model.users_)
    origin = {row[0]: row[1] for row in page.rows("#provenance")}
    assert origin["SHA-256 of the table"] == evidence.table["sha256"]
    assert origin["seed"] == "0"
    again = "odcl fit stores.csv --user store --target sales --out run -q"
    assert page.text("#provenance pre") == again


def test_what_is_read_is_the_artifact_and_not_the_model(stores, tmp_path):
    """A page made of the folder alone, later, is the page that was written with it."""
    from odcl.runs.folder import page_of_run

    assert page_of_run(stores / "run") == (stores / "run" / "report.html").read_bytes()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1600])
def test_it_fits_the_screen_and_words_stand_out(browser, stores, theme, width):
    browser.size(width, 900)
    browser.theme(theme)
    page = browser.open(stores / "run" / "report.html")
    find(page, "store-12")
    assert page.run("return document.documentElement.scrollWidth") <= width
    contrast = page.run(CONTRAST)
    assert min(contrast.values()) >= 4.5, contrast
    marks = page.run(MARKS)
    assert min(marks.values()) >= 3, marks
    pictures = page.run(
        "return [...document.querySelectorAll('.plot > svg, .plot > canvas')]"
        ".map(e => e.getBoundingClientRect().width)"
    )
    assert min(pictures) > 100


LUMINANCE = """
const light = (text) => {
  const c = text.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
    .map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * c[0] + .7152 * c[1] + .0722 * c[2];
};
const against = (a, b) => {
  const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
  return (x + .05) / (y + .05);
};
const card = getComputedStyle(document.querySelector('.card')).backgroundColor;
"""
CONTRAST = f"""{LUMINANCE}
const found = {{}};
for (const what of ['h1', '.lead', '.note', '.about', 'td', 'th', 'td button', '#state', 'a']) {{
  const one = document.querySelector(what);
  found[what] = against(getComputedStyle(one).color, card);
}}
for (const what of ['.tick', '.label', '.hint', '.name', '.picked-name']) {{
  found[what] = against(getComputedStyle(document.querySelector(what)).fill, card);
}}
return found;"""
MARKS = f"""{LUMINANCE}
const found = {{}};
for (let k = 0; k < 7; k += 1) {{
  const probe = document.createElement('i');
  probe.style.color = `var(--g${{k}})`;
  document.body.append(probe);
  found[k] = against(getComputedStyle(probe).color, card);
}}
return found;"""


def test_everything_has_a_name_for_those_who_do_not_see_it(page):
    """Controls have labels, pictures have words, headings go down by one, ids are there once."""
    find(page, "store-12")
    unnamed = page.run(
        """return [...document.querySelectorAll('input, button, svg[role=img], .plot[tabindex]')]
        .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length))
        .map(e => e.outerHTML)"""
    )
    assert unnamed == []
    levels = page.run("return [...document.querySelectorAll('h1,h2,h3')].map(e => +e.tagName[1])")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    ids = page.run("return [...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    shapes = page.run(
        "return [...document.querySelectorAll('.chips use')].map(e => e.getAttribute('href'))"
    )
    assert len(set(shapes)) == 3  # a group is told by its shape where colours are not


def test_without_a_script_words_and_pictures_are_there(browser, stores):
    browser.open(stores / "run" / "report.html", script=False)
    tree = browser.tell("Accessibility.getFullAXTree")["nodes"]
    names = {node["name"]["value"] for node in tree if node.get("name")}
    assert any(name.startswith("3 groups among 60 users") for name in names)
    assert any(name.startswith("Map of 60 users") for name in names)
    html = (stores / "run" / "report.html").read_text()
    points = re.search(r'<g class="points">(.*?)</g>', html, re.S)[1]
    assert points.count("<use") == 60
    assert {"store-01", "store-60"} <= names  # the table of users is there as well
    assert "Find store" not in " ".join(names)  # what needs a script is not


def test_it_prints_on_a_few_sheets_with_every_picture(page):
    pdf = page.tell("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.7)
    content = base64.b64decode(pdf["data"])
    sheets = len(re.findall(rb"/Type\s*/Page[^s]", content))
    assert 3 <= sheets <= 12
