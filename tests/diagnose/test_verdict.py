"""The verdict is true of federations whose truth is known."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import linear_sum_assignment
from sklearn.metrics.cluster import contingency_matrix

import odcl
from odcl import KMeansPP, Method, ODCLRegressor, Risk, Uploads, server_step
from odcl.clustering.labels import same_partition
from odcl.diagnose import diagnose_step
from odcl.diagnose.verdict import HIDDEN, rounded
from odcl.local.fit import fit_users
from tests.diagnose.cases import CASES, KMEANS, SEEDS, Case
from tests.helpers import squared_error


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_right_in_four_of_five_federations(name):
    case = CASES[name]
    found = Counter(case.diagnosed(seed, resamples=2).verdict.advice for seed in SEEDS)
    assert found[case.advice] >= 4, found


def test_groups_that_were_asked_for_give_way_to_those_that_the_noise_shows():
    case = CASES["clear groups"]
    f = case.federation(100)
    d = odcl.fit(f, method=Method(KMeansPP(2))).diagnose(f)
    assert (d.n_clusters, d.n_visible, d.verdict.advice) == (2, 3, "one-shot")
    assert "with other groups: 3 in place of these 2" in d.verdict.sentence
    assert same_partition(d.visible, f.groups)
    assert "found by KMeansPP; the users' noise shows 3 groups" in str(d)


class Given:
    """A clusterer that was told the groups."""

    def __init__(self, labels: np.ndarray) -> None:
        self.labels_ = labels

    def fit(self, X: np.ndarray) -> Given:
        return self


def test_a_user_in_a_group_where_it_cannot_be_is_seen():
    f = CASES["clear groups"].federation(100)
    labels = f.groups.copy()
    labels[0] = 1
    known = odcl.fit(f, method=Method(Given(labels))).diagnose(f, resamples=1)
    assert known.membership.elsewhere[0] > 0.99
    assert "1 of 60 users" in known.verdict.sentence


@pytest.mark.parametrize("theta", [False, True], ids=["a fit", "a matrix"])
def test_of_models_alone_the_separation_is_told_and_nothing_else(theta):
    """Eq. (4) needs no more than models and groups; how good the models are, nobody knows."""
    result = CASES["clear groups, the paper's method"].result(100)
    d = result.diagnose()
    if theta:
        bare = Uploads.of(result.local.theta)
        d = diagnose_step(bare, server_step(bare, Method.paper(3)))
        assert "bare models were given" in str(d)
    assert (d.verdict.advice, d.informative, d.n_clusters) == ("unknown", False, 3)
    assert "users sent models, and not how sure these are" in d.verdict.reason
    assert "odcl.compare" in d.verdict.reason
    assert (d.distance, d.stability, d.errors) == (None, None, None)
    assert d.separation.alpha > 4
    assert "separation alpha" in str(d)
    for word in ("stability", "error of", "border", "smallest distance"):
        assert word not in str(d).partition("\n\n")[2]
    assert np.isnan(d.columns()["elsewhere"]).all()


def test_a_diagnosis_is_short_in_a_list_and_a_frame_on_request():
    d = CASES["groups that overlap"].result(100).diagnose(resamples=1)
    assert repr(d) == f"<Diagnosis 'collect': 90 users, {d.n_clusters} groups>"
    frame = pd.DataFrame(d.columns())
    assert frame.user.tolist() == list(range(90))
    first = int(d.border[0])
    assert frame.remark[first] == "near a border"
    line = rf"{first} +group {d.labels[first]} +\d+% +group {frame.rival[first]}\n"
    assert re.search("users near a border +are in +chance that it is another +most likely", str(d))
    assert re.search(line, str(d))


def test_rows_of_another_federation_are_refused():
    case = CASES["clear groups"]
    result = case.result(100, **KMEANS)
    with pytest.raises(ValueError, match="fitted on"):
        result.diagnose(case.federation(101))
    with pytest.raises(ValueError, match="fitted on"):
        result.diagnose(replace(case, sizes=(20, 20)).federation(100))


def test_with_the_rows_it_asks_for_hardly_any_user_is_in_a_wrong_group():
    """With half of them, several are; 90 users each."""
    case = CASES["groups that overlap"]
    advised = [case.result(seed).diagnose(resamples=1).verdict.rows for seed in range(120, 123)]
    n = rounded(float(np.median(advised)))

    def misplaced(rows: int) -> float:
        """Mean share of users in a wrong group, groups matched as well as can be."""
        made = [case.federation(seed, rows) for seed in range(120, 128)]
        tables = [contingency_matrix(f.groups, odcl.fit(f, method=Method(3)).labels) for f in made]
        right = [t[linear_sum_assignment(t, maximize=True)].sum() / t.sum() for t in tables]
        return 1 - float(np.mean(right))

    assert misplaced(n) < 0.01
    assert misplaced(n // 2) > 0.02


@pytest.mark.parametrize(("tau", "advice"), [(0.0, "one-model"), (1.0, "mixed")])
def test_models_of_many_parameters_are_judged_by_their_users_rows(tau, advice):
    d = Case("", (20,), 120, 1, 400, tau=tau, method=KMEANS).diagnosed(603)
    assert (d.verdict.advice, d.informative, d.errors) == (advice, False, None)
    assert d.verdict.reason.startswith("No groups show on users held out.")
    assert "This is what the default finds" in d.verdict.reason
    assert "difference" not in str(d)
    assert "error of" not in str(d)


def related_features(rng, n_rows, dim, *, directions=6, rest=0.2):
    """Features such as embeddings: a few directions and a little of everything else."""
    mix = rng.standard_normal((directions, dim)) / np.sqrt(directions)
    X = rng.standard_normal((n_rows, directions)) @ mix
    return X + rest * rng.standard_normal(X.shape)


def test_held_out_rows_judge_models_of_many_parameters():
    """Here one model for all has 2.7 times the local error on new rows, by the number 0.05."""
    rng = np.random.default_rng(0)
    m, n, dim = 20, 300, 110
    owner = np.repeat(np.arange(m), n)
    X = related_features(rng, m * n, dim)
    theta = 3 / np.sqrt(dim) * rng.standard_normal(dim) + 0.1 * rng.standard_normal((m, dim))
    y = (X * theta[owner]).sum(axis=1) + rng.standard_normal(m * n)
    model = ODCLRegressor(clusterer="silhouette").fit(X, y, users=owner)
    d = model.diagnose()
    assert (d.verdict.advice, d.informative, d.errors) == ("unknown", False, None)
    assert "odcl.compare" in d.verdict.reason
    found = odcl.compare(ODCLRegressor(clusterer="silhouette"), X, y, users=owner)
    told = model.diagnose(comparison=found).verdict
    mean = {name: f"{value:.3g}" for name, value, *_ in found.rows()}
    assert f"RMSE {mean['asked']} with" in told.reason
    assert f"RMSE {mean['local']} with a model" in told.reason


@pytest.mark.parametrize("n", [10, 12])
def test_classes_with_few_rows_hide_groups_and_are_not_said_to_have_none(n):
    """Where nothing could be seen, that nothing is seen is no verdict."""
    case = Case("", (20, 20, 20), 5, 3, n, loss="logistic", l2=1e-2)
    for seed in range(700, 705):
        d = case.result(seed).diagnose(resamples=1)
        if d.n_clusters == 1 and d.verdict.advice == "unknown":
            assert "too uncertain to show groups" in d.verdict.reason
        elif d.n_clusters == 1:
            assert d.verdict.sentence == HIDDEN
            assert "groups would hardly show: there may be" in d.verdict.reason


def test_the_verdict_speaks_of_the_models_in_hand():
    """The error in the sentence is that of the table, whatever way the models were combined."""
    one = Case("", (60,), 8, 1, 40).result(5).diagnose()
    said = float(one.verdict.reason.split("one model for all has ")[1].split("%")[0])
    assert_allclose(said, 100 * (one.errors.one + one.visible_error), rtol=0.05)
    mean = Case("", (20, 20, 20), 8, 3, 60, method=KMEANS).diagnosed(5)
    assert mean.verdict.advice == "one-shot"
    said = float(mean.verdict.reason.split("from its group has ")[1].split("%")[0])
    assert_allclose(said, 100 * mean.errors.used, rtol=0.05)


def test_models_that_no_combiner_made_are_judged_as_they_are():
    """Whether they are what the method makes of the groups is seen, not believed."""
    f = CASES["clear groups"].federation(102)
    result = odcl.fit(f, method=Method(KMeansPP(3)))
    rng = np.random.default_rng(0)
    models = result.step.models + 0.1 * rng.standard_normal(result.step.models.shape)
    step = replace(result.step, models=models)
    terms = fit_users(f, Risk(), terms=True).uploads
    told = diagnose_step(terms, step, result.method, resamples=1)
    untold = diagnose_step(terms, step, resamples=1)
    assert told.verdict == untold.verdict
    assert told.verdict.advice == "default"
    assert "these models have" in told.verdict.reason
    true = squared_error(models, f.optima) / squared_error(result.local.theta, f.optima)
    assert_allclose(told.errors.used, true, rtol=0.3)


@pytest.mark.parametrize("n", [8, 9, 14])
def test_data_terms_say_more_than_models_of_hardly_more_rows_than_parameters(n):
    """Groups that models of so few rows cannot show, from what the rows say together."""
    case = Case("", (20, 20, 20), 7, 4, n)
    for seed in range(720, 724):
        result = case.result(seed)
        assert same_partition(result.labels, result_groups(case, seed))
        assert result.diagnose(resamples=1).verdict.advice == "one-shot"


def result_groups(case: Case, seed: int) -> np.ndarray:
    return case.federation(seed).groups
