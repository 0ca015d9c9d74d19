"""What a verdict rests on is what the truth shows, and does not depend on what does not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import odcl
from odcl import Federation, KMeansPP, Method, Risk, linear_federation, server_step
from odcl.diagnose import diagnose_step
from odcl.local.fit import fit_users
from tests.diagnose.cases import CASES, Case
from tests.helpers import squared_error


def together(f, groups):
    """The rows of each group as one user's."""
    return Federation.from_arrays(f.X, f.y, groups[f.row_user])


@pytest.mark.parametrize(
    "name", ["one group", "clear groups", "uneven rows, plain mean", "users of a group differ"]
)
def test_expected_errors_are_those_that_the_truth_shows(name):
    """Ratios to the local models' error, median of three federations."""
    case, told, true = CASES[name], [], []
    for seed in range(150, 153):
        f = case.federation(seed)
        own = odcl.fit(f, method=Method(**case.method))
        d = own.diagnose(f, resamples=1)
        told.append((d.errors.used, d.errors.pooled, d.errors.one))
        pooled = fit_users(together(f, f.groups), Risk()).theta[f.groups]
        everybody = fit_users(together(f, 0 * f.groups), Risk()).theta[0 * f.groups]
        made = (own.models, pooled, everybody)
        true.append(
            [squared_error(m, f.optima) / squared_error(own.local.theta, f.optima) for m in made]
        )
    # With one group, the error of one model for all is the group's own: told as 0.
    compared = 2 if name == "one group" else 3
    assert_allclose(
        np.median(told, axis=0)[:compared], np.median(true, axis=0)[:compared], rtol=0.35
    )


CALIBRATION = {
    "squared": Case("", (30, 30, 30), 6, 1.25, 16),
    "users of a group differ": Case("", (45, 45), 4, 1.4, 40, tau=0.35, method={"clusterer": 2}),
    "logistic": Case("", (50, 50), 3, 1.4, 60, loss="logistic", l2=2e-2, method={"clusterer": 2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CALIBRATION)
def test_users_reported_with_probability_p_are_misplaced_that_often(name):
    """Among all users, and among those of a middling p, within 3 standard errors."""
    case = CALIBRATION[name]
    k = len(case.sizes)
    told, wrong = [], []
    for seed in range(200, 218):
        f = case.federation(seed)
        r = odcl.fit(f, case.risk, Method(**case.method))
        majority = [np.bincount(f.groups[r.labels == j]).argmax() for j in range(r.n_clusters)]
        if sorted(majority) != list(range(k)):  # other groups than the true ones: none to miss
            continue
        told.append(r.diagnose(resamples=1).membership.elsewhere)
        wrong.append(np.array(majority)[r.labels] != f.groups)
    p, w = np.concatenate(told), np.concatenate(wrong)
    assert len(told) >= 14
    assert calibrated(p, w)
    # It can fail: probabilities of half and of twice the size are found out.
    assert not calibrated(0.5 * p, w)
    assert not calibrated(np.minimum(2 * p, 1), w)


def calibrated(p: np.ndarray, wrong: np.ndarray) -> bool:
    """As many wrong as p says, among all users and among those of a middling p."""

    def off(some: np.ndarray) -> float:
        spread = np.sqrt((p[some] * (1 - p[some])).sum())
        return abs(wrong[some].sum() - p[some].sum()) / spread

    return off(p >= 0) < 3 and off((p > 0.05) & (p < 0.5)) < 3


@pytest.mark.parametrize("tau", [0.0, 0.2])
def test_members_are_at_distance_one_from_their_group_without_them(tau):
    """Mean square of n_users * dim standard normal numbers, in groups of five."""
    case = Case("", (5,) * 8, 8, 4, 40, tau=tau)
    told = [case.result(seed).diagnose(resamples=1).membership for seed in range(280, 283)]
    square = np.concatenate([p.distance for p in told]) ** 2
    assert abs(square.mean() - 1) < 4 * np.sqrt(2 / (len(square) * case.dim))
    assert np.mean(np.concatenate([p.tail for p in told]) < 0.1) == pytest.approx(0.1, abs=0.09)


def test_the_interval_of_D_holds_the_truth_nineteen_times_in_twenty():
    case = replace(CASES["clear groups"], sizes=(10, 10))
    found = [case.result(seed).diagnose(resamples=1).distance for seed in range(300, 320)]
    held = sum(d.low <= case.distance <= d.high for d in found)
    assert held >= 17  # 19 expected
    assert_allclose(np.mean([d.value for d in found]), case.distance, rtol=0.02)
    assert np.mean([d.high - d.low for d in found]) < 0.4 * case.distance


def test_a_user_of_no_group_is_named_and_nobody_else():
    f = CASES["clear groups"].federation(400)
    y = f.y.copy()
    rows = f.rows(7)
    y[rows] = f.X[rows] @ np.full(8, 9.0)  # a model like nobody's
    d = odcl.fit(replace(f, y=y)).diagnose()
    assert d.users[d.outliers].tolist() == [7]
    assert [d.labels[7]] == d.too_small.tolist()
    assert "1 user fits no group: 7" in str(d)


def test_a_user_far_from_the_group_it_was_put_into_is_named():
    f = CASES["clear groups"].federation(401)
    y, rows = f.y.copy(), f.rows(11)
    y[rows] += f.X[rows] @ np.full(8, 2.0)
    moved, method = replace(f, y=y), Method(KMeansPP(3))
    result = odcl.fit(moved, method=method)
    assert result.diagnose(moved).outliers.tolist() == [11]


def test_groups_of_two_are_too_small_to_trust():
    d = CASES["two groups of two"].result(402).diagnose()
    assert np.bincount(d.labels)[d.too_small].tolist() == [2, 2]


def test_stability_grows_with_the_rows_and_is_what_other_rows_would_do():
    """Against federations really drawn again, at an n where some users change their group."""
    case = CASES["groups that overlap"]
    kept = {}
    for n in (20, 30, 60):
        f = case.federation(500, n)
        r = odcl.fit(f, method=Method(KMeansPP(3)))
        kept[n] = r.diagnose(f, resamples=40).stability.kept
    assert kept[20] < kept[30] < kept[60]
    again = []
    for seed in range(500, 512):
        f = case.federation(seed, 30)
        labels = odcl.fit(f, method=Method(KMeansPP(3))).labels
        table = np.zeros((3, 3))
        np.add.at(table, (labels, f.groups), 1)
        again.append(table.max(axis=1).sum() / len(labels))
    assert_allclose(kept[30], np.mean(again), atol=0.04)


# -- what does not matter --------------------------------------------------------------------------


def test_the_order_of_users_does_not_matter():
    uploads = CASES["groups that overlap"].result(600).uploads
    order = np.random.default_rng(0).permutation(uploads.n_users)
    shuffled = uploads.take(order)
    one = diagnose_step(uploads, server_step(uploads), Method())
    two = diagnose_step(shuffled, server_step(shuffled), Method())
    assert one.verdict.advice == two.verdict.advice
    assert_allclose(
        one.membership.elsewhere[order], two.membership.elsewhere, rtol=1e-6, atol=1e-12
    )


@pytest.mark.parametrize("name", ["clear groups", "groups that overlap", "everybody different"])
def test_the_units_of_features_and_target_do_not_matter(name):
    f = CASES[name].federation(601)
    plain = odcl.fit(f).diagnose(resamples=1)
    other = odcl.fit(replace(f, X=f.X / 10, y=f.y * 3)).diagnose(resamples=1)
    assert plain.verdict.sentence == other.verdict.sentence
    assert_allclose(plain.membership.distance, other.membership.distance, rtol=1e-6)


@pytest.mark.parametrize("sizes", [(1,), (1, 1), (2, 1)])
def test_a_handful_of_users_is_diagnosed_all_the_same(sizes):
    d = Case("", sizes, 4, 3, 40).result(604, clusterer="auto").diagnose()
    assert str(d).startswith(d.verdict.sentence)


def test_no_resamples_are_refused():
    with pytest.raises(ValueError, match="resamples=0"):
        CASES["clear groups"].result(605).diagnose(resamples=0)


def test_the_nearest_groups_in_noise_do_not_depend_on_units():
    f = Case("", (20, 20, 20), 4, 3, 60).federation(3)
    plain = odcl.fit(f).diagnose()
    stretched = odcl.fit(f.with_X(f.X * np.array([1e-3, 1, 10, 1e3]))).diagnose()
    assert_allclose(stretched.distance.in_noise, plain.distance.in_noise, rtol=1e-6)
    assert stretched.distance.noise_pair == plain.distance.noise_pair


def test_more_groups_than_a_user_is_compared_with_are_diagnosed(monkeypatch):
    """Ten groups, of which a user sees the nearest six; users in parts have the same answer."""
    result = odcl.fit(linear_federation(150, 60, n_clusters=10, seed=606))
    d = result.diagnose(resamples=1)
    assert (d.verdict.advice, d.n_visible) == ("one-shot", 10)
    monkeypatch.setattr("odcl.diagnose.noise.PART", 7)
    assert_allclose(result.diagnose(resamples=1).membership.elsewhere, d.membership.elsewhere)
