"""Reports count right, compare fairly and can be read: tables and notices."""

from __future__ import annotations

import numpy as np
import pytest

from odcl.cli.paper import demo_errors, demo_result, groups_right
from odcl.data.synthetic import store_tables
from odcl.evaluate import Comparison
from odcl.report.text import (
    aligned,
    comparison_table,
    group_table,
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
    assert verdict(found).endswith("1 does worse, 1 the same.")


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
