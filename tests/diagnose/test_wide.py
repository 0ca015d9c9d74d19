"""Models with more parameters than users' noise could be told in: what is said of them is true."""

import numpy as np
import pytest

from odcl import ODCLClassifier, ODCLRegressor
from odcl.diagnose.verdict import of_wide_groups
from odcl.evaluate import Comparison
from tests.wide.worlds import World


def told(world, group, n=20):
    federation = world.users(group, n, n_new=1)[0]
    model = ODCLClassifier()
    return model.fit(federation.X, federation.y.astype(int), users=federation.row_user)


def test_groups_are_judged_by_how_surely_users_belong():
    group = np.arange(24) % 3
    model = told(World(3, 3, 60), group)
    found = model.diagnose()
    assert found.verdict.advice == "one-shot"
    assert "Users held out confirm 3 groups, and hardly any of 24" in found.verdict.reason
    assert "not how sure these are" not in str(found)
    sure = model.fitted_.users.probability
    np.testing.assert_allclose(found.membership.elsewhere, 1 - sure)
    columns = found.columns()
    assert set(columns["remark"]) == {""}
    assert {len(column) for column in columns.values()} == {24}


def test_a_user_whose_rows_say_little_is_near_a_border():
    model = told(World(2, 2, 60, seed=1), np.arange(20) % 2)
    users = model.fitted_.users
    users.probability[3] = 0.6
    found = model.diagnose()
    assert found.border.tolist() == [3]
    assert found.columns()["remark"][3] == "near a border"
    assert found.membership.rival[3] == 1 - users.group[3]
    assert "40%" in str(found)


def test_users_who_do_not_differ_have_one_model():
    found = told(World(1, 2, 60, seed=2), np.zeros(20, int)).diagnose()
    assert found.verdict.advice == "one-model"
    assert "differ only by noise" in found.verdict.reason


def test_numbers_of_wide_models_are_judged_too():
    rng = np.random.default_rng(0)
    X, owner = rng.standard_normal((1200, 120)), np.repeat(np.arange(20), 60)
    y = (X * (-1.0) ** owner[:, None])[:, :60].sum(axis=1) + rng.standard_normal(1200)
    found = ODCLRegressor().fit(X, y, users=owner).diagnose()
    assert found.verdict.advice == "one-shot"
    assert "for 121 parameters" in str(found)


def compared(**scores):
    rows = {name: np.full(40, value) for name, value in scores.items()}
    return Comparison("accuracy", rows, 400, 40)


@pytest.mark.parametrize(
    ("scores", "advice", "said"),
    [
        ({"local": 0.7, "pooled": 0.6, "odcl": 0.9}, "one-shot", "0.9 with odcl and accuracy 0.7"),
        ({"local": 0.9, "pooled": 0.6, "odcl": 0.8}, "local", "0.8 with odcl and accuracy 0.9"),
        ({"local": 0.7, "pooled": 0.9, "odcl": 0.8}, "unknown", "with another method"),
    ],
)
def test_rows_held_out_decide_where_something_else_is_better(scores, advice, said):
    how = {"alike": False, "asked": False, "moved": None}
    verdict = of_wide_groups(3, 40, 2.2, **how, held=compared(**scores))
    assert verdict.advice == advice
    assert said in verdict.reason
    assert "about 2 of 40 users would be in a wrong one. Users of a group still" in verdict.reason


def test_groups_that_were_asked_for_are_not_said_to_be_confirmed():
    how = {"alike": True, "moved": None, "held": None}
    for k in (1, 3):
        reason = of_wide_groups(k, 40, 0.0, asked=True, **how).reason
        assert "asked for" in reason
        assert "held out" not in reason
