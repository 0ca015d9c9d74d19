"""Methods are compared fairly: scores of each user on its own held-out rows."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl.evaluate import Comparison, compare
from odcl.risk.losses import Logistic, Poisson, Squared
from tests.evaluate.rows import federation


def test_scores_are_those_of_each_user_on_its_own_rows():
    """RMSE, accuracy and deviance, user by user, written out."""
    data = federation(n_rows=(1, 3, 6))
    out = np.array([False, True, False, True, True, False, True, True, False, True])
    owner = data.row_user
    guess = {"zero": lambda X, who: np.zeros(len(X)), "own": lambda X, who: who + 1.0}

    def by_hand(y, predicted, score):
        return [score(y[out & (owner == i)], predicted[owner[out] == i]) for i in (1, 2)]

    X = data.X[out]
    found = compare(data, out, guess, Squared())
    assert (found.metric, found.n_rows, found.n_users) == ("RMSE", 6, 2)
    assert found.held.users.tolist() == [1, 2]  # the first has no row held out
    assert_array_equal(found.held.owner, owner[out])
    assert_array_equal(found.held.seen, data.y[out])
    for name, method in guess.items():
        expected = by_hand(
            data.y, method(X, owner[out]), lambda y, p: np.sqrt(np.mean((y - p) ** 2))
        )
        assert_allclose(found.scores[name], expected)
    labels = data.with_y((data.y > 0).astype(float))
    shares = {"zero": lambda X, who: np.column_stack([1 - 0.1 * who, 0.1 * who])}
    found = compare(labels, out, shares, Logistic())
    assert (found.metric, found.by[1].metric) == ("accuracy", "log-loss")
    assert_allclose(
        found.scores["zero"], by_hand(labels.y, np.zeros(6), lambda y, p: (y == p).mean())
    )

    def surprise(y, p):
        return -np.mean(y * np.log(p) + (1 - y) * np.log(1 - p))

    expected = by_hand(labels.y, 0.1 * owner[out], surprise)
    assert_allclose(found.log_loss["zero"], expected)
    counts = data.with_y(np.arange(10.0))
    found = compare(counts, out, {"own": guess["own"]}, Poisson())
    assert found.metric == "deviance"

    def deviance(y, p):
        return np.mean(2 * (y * np.log(y / p) - y + p))

    assert_allclose(found.scores["own"], by_hand(counts.y, owner[out] + 1.0, deviance))


def test_one_far_row_does_not_make_all_users_equal():
    data = federation(n_rows=(10, 10, 10))
    y = data.y.copy()
    y[0] = 1e12
    out = np.arange(30) % 2 == 0
    methods = {"local": lambda X, who: np.zeros(len(X)), "odcl": lambda X, who: X @ [1.0, 2.0]}
    assert compare(data.with_y(y), out, methods, Squared()).better_off("odcl", "local")[0] == 2


def comparison(metric="RMSE", unit=1.0, **scores):
    scores = {name: np.array(values) for name, values in scores.items()}
    return Comparison(metric, scores, 20, len(next(iter(scores.values()))), unit)


def test_the_worst_user_has_the_largest_error_or_the_smallest_accuracy():
    errors = {"local": [1.0, 2.0, 6.0], "odcl": [1.0, 1.5, 2.0]}
    assert comparison(**errors).rows()[0] == ("local", 3.0, 2.0, 6.0)
    assert comparison("accuracy", **errors).rows()[0] == ("local", 3.0, 2.0, 1.0)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_who_is_better_off_does_not_depend_on_the_targets_unit(scale):
    local, ours = scale * np.array([1.0, 2.0, 3.0, 4.0]), scale * np.array([0.9, 2.0, 3.1, 3.0])
    found = comparison(unit=scale, local=local, odcl=ours)
    assert found.better_off("odcl", "local") == (2, 1)
    rounded = comparison(unit=scale, local=local, odcl=local * (1 + 1e-15))
    assert rounded.better_off("odcl", "local") == (0, 0)
    accuracy = comparison("accuracy", local=local / scale, odcl=ours / scale)
    assert accuracy.better_off("odcl", "local") == (1, 2)


AHEAD = "By RMSE 'one model for all' is 10% ahead of odcl"


@pytest.mark.parametrize(
    ("spread", "said"),
    [
        (0.01, "odcl is not the best here: one model for all has RMSE 0.9 on these rows, odcl 1,"),
        (0.9, f"{AHEAD}, no more than chance would give: with 8 users it may be luck."),
    ],
)
def test_of_a_line_that_is_ahead_it_is_said_whether_chance_explains_it(spread, said):
    luck = spread * np.tile([1.0, -1.0], 4)
    ours = np.ones(8)
    found = comparison(
        local=ours + 1, pooled=ours - 0.1 + luck, mixed=ours - 0.02 + luck, odcl=ours
    )
    lines = str(found).splitlines()
    assert lines[-1].startswith(said)
    assert len([line for line in lines if "ahead" in line or "not the best" in line]) == 1
    assert "ahead" not in str(comparison(local=ours + 1, pooled=ours - 0.02 + luck, odcl=ours))


def test_a_line_that_is_surely_ahead_is_named_behind_one_that_may_be_luck():
    ours, luck = np.ones(8), np.tile([0.9, -0.9], 4)
    found = comparison(local=ours + 1, pooled=ours - 0.3 + luck, mixed=ours - 0.2, odcl=ours)
    sure, lucky = str(found).splitlines()[-2:]
    assert "mixed model without groups has RMSE 0.8 on these rows" in sure
    assert "'one model for all' is 30% ahead" in lucky
