"""Which facts lead to which verdict, without a fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from odcl.diagnose.measure import Errors
from odcl.diagnose.verdict import Facts, decide
from odcl.evaluate import Comparison

GROUPS = Facts(
    n_users=60,
    dim=8,
    n=40.0,
    k=3,
    judged=None,
    moved=0,
    errors=Errors(one=9.0, used=0.06, pooled=0.05, drawn=0.05),
    used=0.06,
    in_noise=12.0,
    misplaced=0.1,
    crowded=False,
    rows_needed=None,
    tau2=0.0,
    unsure=0.0,
    silent=False,
    curved=False,
    combine="mixed",
    where="",
)
ALIKE = replace(GROUPS, k=1, errors=Errors(0.0, 0.02, 0.02, 0.02))
SILENT = replace(GROUPS, silent=True, unsure=0.4)
FAR = replace(ALIKE, tau2=4.0, errors=Errors(one=0.5, used=0.5, pooled=0.1, drawn=0.4))

# Facts, the advice, and words of its sentence or reason.
CASES = {
    "groups": (GROUPS, "one-shot", "has 5% of the error of its own."),
    "users differ": (replace(GROUPS, tau2=0.25), "one-shot", "0.5 times their noise: the default"),
    "named": (replace(GROUPS, tau2=0.25, where="price"), "one-shot", "differ in price, by 0.5"),
    "served": (replace(GROUPS, judged=3, moved=1), "one-shot", "1 user elsewhere than in this"),
    "other": (replace(GROUPS, judged=2, used=5.0), "one-shot", "3 in place of these 2."),
    "as many": (replace(GROUPS, judged=3, moved=9, used=5.0), "one-shot", "for 9 of 60 users"),
    "one for all": (replace(GROUPS, judged=1, used=5.0), "one-shot", "of one model for all."),
    "alone": (replace(GROUPS, judged=60, used=1.0), "one-shot", "of one model per user."),
    "mean": (
        replace(GROUPS, combine="mean", errors=replace(GROUPS.errors, used=0.1)),
        *("default", "2.0 times the error of models of the groups' pooled rows"),
    ),
    "overlap": (
        replace(GROUPS, crowded=True, misplaced=7.0, rows_needed=93, in_noise=2.3),
        *(
            "collect",
            "about 7 of 60 users are in a wrong one, because the nearest two are only 2.3",
        ),
    ),
    "blurred": (  # users of a group lie as far apart as groups do, however many rows they have
        replace(GROUPS, crowded=True, misplaced=7.0, rows_needed=7_000, tau2=9.0),
        *("one-shot", "Rows would not set them apart, and it matters little: users of a group"),
    ),
    "no rows help": (replace(GROUPS, crowded=True, misplaced=7.0), "one-shot", "about 7 of 60"),
    "a common curve": (  # users at home would have lines
        replace(
            GROUPS,
            curves="curve of price",
            errors=replace(GROUPS.errors, drawn=0.9, used=0.9),
        ),
        *("one-shot", "of its own. A user's own model is here its lines beside the common curve"),
    ),
    "no gain": (
        replace(GROUPS, tau2=9.0, judged=2, errors=replace(GROUPS.errors, drawn=0.9)),
        *("local", "3 groups that the users' noise shows (this result has 2 groups) could add"),
    ),
    "alike": (ALIKE, "one-model", "Users differ by no more than the noise of their models;"),
    "alike, asked": (
        replace(ALIKE, judged=4),
        "one-model",
        "This result has 4 groups, and nothing",
    ),
    "a little": (replace(ALIKE, tau2=0.01), "one-model", "0.1 times their noise, without groups"),
    "gradual": (
        replace(ALIKE, tau2=0.5, where="price", combine="mixed"),
        *("mixed", "not in groups: each is given a model between its own and the others'."),
    ),
    "gradual, hidden": (
        replace(ALIKE, tau2=0.5, where="price", curved=True, n=20.0),
        *("mixed", "With 20 rows for 8 parameters groups would hardly show"),
    ),
    "own as good": (
        replace(ALIKE, tau2=50.0, where="price", errors=Errors(90.0, 0.9, 0.9, 0.95)),
        *("mixed", "a user's own model is nearly as good: such models have 95%"),
    ),
    "all different": (replace(FAR, errors=replace(FAR.errors, one=5.0)), "local", "no two of them"),
    "far, one serves": (FAR, "one-model", "one model for all still has 50%"),
    "too noisy": (replace(FAR, tau2=0.5), "collect", "too large to see which of them are alike"),
    "uncertain": (replace(ALIKE, curved=True, n=20.0), "unknown", "About 40 rows per user would."),
    "terms alike": (replace(SILENT, k=1), "one-model", "40% of the users cannot fit"),
    "terms gradual": (replace(SILENT, where="price", k=1), "mixed", "differ in price, one by one"),
    "terms overlap": (
        replace(SILENT, crowded=True, misplaced=7.0, n=10.0),
        *("collect", "show 3 groups, but about 7 of 60 users would be in a wrong one."),
    ),
    "terms": (replace(SILENT, where="price"), "one-shot", "still differ in price. Errors are not"),
}


@pytest.mark.parametrize("name", CASES)
def test_facts_lead_to_their_verdict_in_whole_sentences(name):
    facts, advice, words = CASES[name]
    found = decide(facts)
    assert found.advice == advice
    assert words in str(found)
    assert not {"{", "}"} & set(str(found))
    assert "  " not in str(found)
    assert str(found).endswith(".")
    assert found.rows is None or f"bout {found.rows:,} rows per user" in str(found)


def test_where_errors_are_not_estimated_held_out_rows_are_what_is_said():
    own = np.linspace(1, 2, 60)
    held = Comparison("RMSE", {"local": own, "odcl": own - 0.5}, 300, 60)
    found = decide(replace(SILENT, where="price", k=1), held)
    assert found.advice == "mixed"
    assert "the mean user has RMSE 1 with odcl and RMSE 1.5 with" in found.reason
    assert "not estimated" not in found.reason
