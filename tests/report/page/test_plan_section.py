"""What a page says about more rows: only what they would change."""

from __future__ import annotations

from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from odcl import ODCLRegressor
from tests.helpers import people

INTERVALS = "intervals of a user's coefficients"


def plan_of(path):
    html = unescape(Path(path).read_text())
    start = html.index("Plan: what more rows would change")
    return html[start : html.index("Privacy: what leaves a user")]


def fitted(frame):
    model = ODCLRegressor(random_state=0)
    return model.fit(frame[["a", "b", "c"]], frame.y, users=frame.user)


@pytest.fixture
def all_alike():
    """24 users with one model, and noise."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(24 * 20, 3))
    y = X @ [2.0, -1.0, 0.5] + rng.normal(size=len(X))
    users = np.repeat([f"u{i}" for i in range(24)], 20)
    return pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, user=users)


def test_where_users_differ_by_noise_no_interval_is_said_to_stay_as_it_is(tmp_path):
    model = fitted(people(n_users=20))
    assert model.n_clusters_ == 2
    assert not model.mixture_.inside.any()
    model.report(tmp_path / "page.html")
    plan = plan_of(tmp_path / "page.html")
    assert INTERVALS not in plan
    assert "100 %" not in plan
    assert "a user's model is its group's" in plan
    assert "more rows of all users would narrow the intervals" in plan
    assert "chance of a wrong group" in plan


def test_where_all_users_are_alike_the_plan_is_a_sentence(tmp_path, all_alike):
    model = fitted(all_alike)
    assert model.n_clusters_ == 1
    assert not model.mixture_.inside.any()
    model.report(tmp_path / "page.html")
    plan = plan_of(tmp_path / "page.html")
    assert "all of them have one model" in plan
    assert "<table" not in plan


def test_more_rows_of_all_users_do_narrow_a_groups_intervals_and_one_users_little():
    """What the sentence claims, by fits with four times the rows of everybody, and of one user."""

    def width(frame):
        model = fitted(frame)
        assert not model.mixture_.inside.any()
        one = model.labels_[model.users_.tolist().index("u0")]
        return np.sqrt(np.diag(model.mixture_.covariances[one]))

    few, many = people(n_users=20), people(n_users=20, n=56)
    now, all_more = width(few), width(many)
    one_more = width(pd.concat([few[few.user != "u0"], many[many.user == "u0"]]))
    assert np.median(all_more / now) == pytest.approx(0.5, abs=0.1)
    assert np.median(one_more / now) > 0.8


def test_where_users_differ_intervals_are_in_the_table(tmp_path, all_alike):
    level = np.repeat(np.random.default_rng(1).normal(size=24), 20)
    model = fitted(all_alike.assign(y=all_alike.y + level))
    assert model.mixture_.inside.any()
    model.report(tmp_path / "page.html")
    plan = plan_of(tmp_path / "page.html")
    assert INTERVALS in plan
    assert "weight of own rows" in plan
    assert "differ only by noise" not in plan
