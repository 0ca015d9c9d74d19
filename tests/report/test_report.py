"""Reports count right, compare fairly and can be read: tables, notices and pictures."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from odcl.cli.demo import demo_errors, demo_result, groups_right
from odcl.data.federation import Federation
from odcl.data.stores import store_tables
from odcl.evaluate.scores import Comparison
from odcl.report import pictures
from odcl.report.progress import Bar
from odcl.report.text import (
    aligned,
    comparison_table,
    count,
    group_table,
    in_bytes,
    repeated_rows,
    shown_id,
    table,
    verdict,
)


def comparison(metric="RMSE", unit=1.0, **scores):
    scores = {name: np.array(values) for name, values in scores.items()}
    return Comparison(metric, scores, 20, len(next(iter(scores.values()))), unit)


# -- text ------------------------------------------------------------------------------------------


def test_the_closing_table_names_methods_and_aligns_its_numbers():
    text = comparison_table(comparison(local=[31.7, 63.5], pooled=[39.5, 85.8], odcl=[9.5, 9.5]))
    assert text.splitlines() == [
        "RMSE on 20 held-out rows (lower is better)  mean user  median user  worst user",
        "one model per user (ridge)                      47.60        47.60       63.50",
        "one model for all                               62.65        62.65       85.80",
        "odcl                                             9.50         9.50        9.50",
    ]
    assert "(higher is better)" in comparison_table(comparison("accuracy", odcl=[1.0]))


def test_the_verdict_counts_all_users():
    found = comparison(local=[1.0, 2.0, 3.0, 4.0], odcl=[0.5, 2.5, 3.0, 2.0])
    assert "2 of 4 users do better" in verdict(found)
    assert verdict(found).endswith("1 do worse, 1 the same.")


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.527, 12.293], ["0.527", "12.293"]),
        ([31.72, 63.47], ["31.7", "63.5"]),
        ([1234.5, 0.0], ["1234", "0"]),
        ([0.0, 0.0], ["0", "0"]),
        ([2.5e-16, 1e-3], ["2.5e-16", "0.001"]),
        ([3e12, 1.0], ["3e+12", "1"]),
        ([0.59, 115311501.8], ["0.59", "1.15e+08"]),
        ([np.inf, 1.0], ["inf", "1.00"]),
        ([np.nan], ["nan"]),
    ],
)
def test_numbers_of_any_size_can_be_read(values, shown):
    assert aligned(values) == shown


def test_columns_stand_under_their_names():
    text = table(("", "n", "such as"), [("a", 1, "x"), ("long", 1000, "yy")], left=(2,))
    assert text.splitlines() == ["         n  such as", "a        1  x", "long  1000  yy"]


def test_groups_are_listed_by_size_with_some_of_their_users():
    labels = np.array([0, 1, 1, 1, 1, 1, 2, 2])
    users = np.array([f"u{i}" for i in range(8)])
    lines = group_table(labels, np.arange(8), users).splitlines()
    assert lines[1].split() == ["group", "1", "5", "15", "u1,", "u2,", "u3,", "u4,", "..."]
    assert [line.split()[1] for line in lines[1:]] == ["1", "2", "0"]


def test_thousands_of_groups_are_summed_up_in_a_line():
    labels = np.arange(5000) // 2
    text = group_table(labels, np.ones(5000), labels)
    assert len(text.splitlines()) == 22
    assert text.endswith("... and 2,480 more groups of 4,960 users (all in groups.csv)")


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        (7, "7"),
        (None, "(no id)"),
        ("Zürich 北京", "Zürich 北京"),
        ("two\nlines", "two\\nlines"),
        ("\x1b[31m", "\\x1b[31m"),
        ("x" * 99, "x" * 21 + "..."),
    ],
)
def test_an_id_never_moves_the_cursor(user, shown):
    assert shown_id(user) == shown


def test_plurals_and_bytes():
    assert [count(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert count(2, "class") == "2 classes"
    shown = [in_bytes(n) for n in (48, 999, 1857.6, 2.5e6, 3e9, 4e13)]
    assert shown == ["48 bytes", "999 bytes", "1.86 kB", "2.5 MB", "3 GB", "4e+04 GB"]


# -- notices ---------------------------------------------------------------------------------------


def test_rows_repeat_only_within_a_user_and_not_by_chance():
    rng = np.random.default_rng(0)
    X, y, owner = rng.standard_normal((40, 2)), rng.standard_normal(40), np.repeat(range(10), 4)
    X[39], y[39] = X[0], y[0]  # the same of another user is no copy
    assert repeated_rows(Federation.from_arrays(X, y, owner)) == 0
    X[[1, 38]], y[[1, 38]] = X[[2, 37]], y[[2, 37]]
    X[[5, 6], 0] = 0.0, -0.0  # zeros are equal
    X[6, 1], y[6] = X[5, 1], y[5]
    assert repeated_rows(Federation.from_arrays(X, y, owner)) == 3
    answers = (rng.random((40, 2)) < 0.5).astype(float)  # rows of few values are often equal
    assert repeated_rows(Federation.from_arrays(answers, answers[:, 0], owner)) == 0


# -- progress --------------------------------------------------------------------------------------


def test_the_bar_counts_local_models_and_then_says_what_follows():
    class Recorded:
        total, done, text = None, 0, ""

        def add_task(self, text, **_):
            return 0

        def reset(self, task, *, total, description, visible):
            self.total, self.done, self.text = total, 0, description

        def advance(self, task, n):
            self.done += n

        def update(self, task, *, total, description):
            self.total, self.text = total, description

    seen = Recorded()
    bar = Bar(seen)
    bar.stage("fitting", 10)
    bar.advance(4)
    assert (seen.total, seen.done, seen.text) == (10, 4, "fitting: local models")
    bar.advance(6)
    assert (seen.total, seen.text) == (None, "fitting: finding groups")
    bar.stage("writing")
    assert (seen.total, seen.text) == (None, "writing")


# -- pictures --------------------------------------------------------------------------------------


def drawn(n_groups, dim, n_users=60, far=0):
    """A picture of users around their groups' models, with all its texts placed."""
    rng = np.random.default_rng(0)
    centers = 6 * rng.normal(size=(n_groups, dim))
    labels = np.arange(n_users) % n_groups
    theta = centers[labels] + rng.normal(size=(n_users, dim))
    theta[:far] *= 1e4
    fig, axes = pictures.figure()
    pictures.draw_models(axes[0], theta, centers, labels)
    score = np.abs(theta[:, 0]) + 0.1
    pictures.draw_users(axes[1], {"one model per user": 2 * score, "odcl": score}, "RMSE")
    fig.canvas.draw()
    return fig, axes


@pytest.mark.parametrize(
    ("n_groups", "dim", "n_users"),
    [(1, 4, 60), (2, 4, 60), (3, 2, 60), (30, 6, 300), (2, 1, 60), (1, 1, 5), (2, 3, 2)],
)
def test_every_text_of_a_picture_is_inside_it_and_beside_the_others(n_groups, dim, n_users):
    fig, (left, right) = drawn(n_groups, dim, n_users)
    box, (width, height) = fig.get_tightbbox(), fig.get_size_inches()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= width
    assert box.y1 <= height
    assert left.get_tightbbox().x1 <= right.get_tightbbox().x0
    assert all(ax.get_xlabel() and ax.get_ylabel() and ax.get_title() for ax in (left, right))


def test_long_names_of_bars_are_not_cut():
    fig, axes = pictures.figure(width=11)
    names = ["paper (K-means++, K = 10 given, mean)", "odcl"]
    pictures.draw_bars(axes[1], names, [0.5, 1e-6], label="error (lower is better)", log=True)
    fig.canvas.draw()
    box = fig.get_tightbbox()
    assert box.x0 >= 0
    assert box.x1 <= 11
    assert axes[0].get_tightbbox().x1 <= axes[1].get_tightbbox().x0


def test_directions_are_orthonormal_and_show_the_groups_first():
    rng = np.random.default_rng(0)
    centers = np.zeros((3, 8))
    centers[1, 4], centers[2, 6] = 50.0, 80.0
    labels = np.arange(90) % 3
    theta = centers[labels] + rng.normal(size=(90, 8))
    for n_groups in (1, 2, 3):
        plane = pictures.view(theta, centers[:n_groups])
        assert_allclose(plane @ plane.T, np.eye(2), atol=1e-12)
    assert_allclose(np.abs(pictures.view(theta, centers)[:, [4, 6]]).sum(), 2, atol=0.7)
    assert pictures.view(np.zeros((5, 3)), np.zeros((1, 3))).shape == (2, 3)


def test_thirty_groups_have_styles_of_their_own():
    styles = {(k % len(pictures.COLOURS), k % len(pictures.MARKERS)) for k in range(70)}
    assert len(styles) == 70


def test_thousands_of_groups_are_drawn_in_a_few_calls():
    _, axes = drawn(3000, 4, 6000)
    assert len(axes[0].collections) <= len(pictures.MARKERS) + 1
    assert len(axes[0].texts) == 0


def test_a_few_far_users_do_not_shrink_the_others_to_a_dot():
    _, axes = drawn(3, 4, far=1)
    assert np.ptp(axes[0].get_xlim()) < 200
    assert axes[0].get_legend().get_title().get_text() == "1 user outside the frame"
    _, axes = drawn(3, 4)
    assert axes[0].get_legend().get_title().get_text() == ""


def test_a_picture_is_saved_whole(tmp_path):
    fig, _ = drawn(2, 3)
    pictures.save(fig, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [p.name for p in tmp_path.iterdir()] == ["p.png"]


# -- the demo --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 3])
def test_the_demo_finds_the_true_groups_and_reaches_the_oracle(seed):
    federation, result = demo_result(seed)
    assert groups_right(federation, result) == "They are the true ones."
    errors = demo_errors(federation, result.models)
    assert errors["odcl (K not given)"] <= 1.001 * errors["oracle pooling (groups given)"]
    assert errors["odcl (K not given)"] < 0.2 * errors["local models"]
    assert errors["naive average"] > 0.5


def test_the_table_to_try_has_sixty_stores():
    columns = store_tables(0)[0]
    assert len(set(columns["store"])) == 60
    assert {len(values) for values in columns.values()} == {len(columns["sales"])}
