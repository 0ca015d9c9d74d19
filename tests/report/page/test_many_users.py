"""Ten thousand users stay fluid; above that the map is a density, and the page keeps its size."""

from __future__ import annotations

import numpy as np
import pytest

from odcl import ODCLRegressor, compare
from odcl.runs import page as page_facts
from tests.report.page.browser import ENTER, facts_of


def many(n_users, n_features=3, n=4, seed=0):
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), n)
    X = rng.normal(size=(len(users), n_features))
    slopes = rng.normal(0, 3, (3, n_features))
    y = (X * slopes[users % 3]).sum(axis=1) + rng.normal(size=len(users))
    return X, y, users


@pytest.fixture(scope="module")
def ten_thousand(tmp_path_factory):
    """The page of 10,000 users with twelve features: the largest whose points are all drawn."""
    X, y, users = many(10_000, 12)
    model = ODCLRegressor(clusterer="auto:3").fit(X, y, users)
    file = tmp_path_factory.mktemp("many") / "page.html"
    model.report(file)
    return model, file


def test_the_page_of_10_000_users_is_under_5_mb(ten_thousand):
    _, file = ten_thousand
    assert file.stat().st_size < 5_000_000
    assert len(facts_of(file)["ids"]) == 10_000


def test_10_000_users_can_be_selected_filtered_and_sorted(ten_thousand, browser):
    model, file = ten_thousand
    page = browser.open(file)
    page.write("#find", "7654" + ENTER)
    assert page.text("#user-title") == "One user: 7654"
    if model.n_clusters_ > 1:
        page.click("input.filter[value='0']")
    page.click("#assignment th:nth-child(3) button")
    assert page.problems() == []


def test_more_users_than_can_be_told_apart_are_a_density(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(page_facts, "MOST_USERS", 60)
    X, y, users = many(150, n=8)
    model = ODCLRegressor().fit(X, y, users)
    model.report(tmp_path / "page.html", comparison=compare(ODCLRegressor(), X, y, users))
    facts = facts_of(tmp_path / "page.html")
    assert len(facts["ids"]) == 60
    assert facts["total"] == 150
    assert facts["map"]["density"] is not None
    page = browser.open(tmp_path / "page.html")
    assert "60 of 150 users are on this page one by one" in page.text("#users")
    page.write("#find", facts["ids"][7] + ENTER)
    assert len(page.all("#map .picked")) == 1  # the selected one on top
    assert page.problems() == []


def test_who_is_on_a_page_of_too_many_are_the_best_the_worst_and_the_least_sure(monkeypatch):
    monkeypatch.setattr(page_facts, "MOST_USERS", 1000)
    from odcl.runs.page_models import chosen_users

    gain = np.random.default_rng(0).normal(size=5000)
    order = np.argsort(gain)
    who = chosen_users(5000, 1000, [order[:200], order[-200:]])
    assert len(who) == 1000
    assert (np.diff(who) > 0).all()
    assert {*order[:200].tolist(), *order[-200:].tolist()} <= {*who.tolist()}
