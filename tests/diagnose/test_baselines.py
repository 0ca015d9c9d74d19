"""The groups and models of the paper's baselines are judged as they are."""

from __future__ import annotations

import pytest
from numpy.testing import assert_array_equal

from odcl.paper.baselines import run as baseline
from tests.diagnose.cases import CASES
from tests.helpers import squared_error


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ifca-r", "One shot is enough with other groups: 3 in place of these 2."),
        ("naive", "One shot is enough with other groups: 3 in place of one model for all."),
        ("fedavg", "One shot is enough with other groups: 3 in place of one model for all."),
        ("local", "One shot is enough with other groups: 3 in place of one model per user."),
        ("odcl-km++", "One shot is enough."),
        ("all-for-all", "One shot is enough."),
        ("cluster-oracle", "One shot is enough."),
    ],
)
def test_a_baselines_own_groups_and_models_are_judged(name, sentence):
    f = CASES["clear groups"].federation(100)
    result = baseline(name, f)
    d = result.diagnose(f, resamples=1)
    assert_array_equal(d.labels, result.labels)
    assert d.verdict.sentence == sentence
    assert f"found by {name}" in str(d)
    # Its error, as the truth has it: coordinates are weighed otherwise, and this is one draw.
    true = squared_error(result.models, f.optima) / squared_error(result.local.theta, f.optima)
    assert 0.5 < d.errors.used / true < 2
