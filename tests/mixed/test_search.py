"""K and shape by evidence: groups where there are groups, none where users differ gradually."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import odcl
from odcl import Federation, linear_federation
from odcl.clustering.labels import same_partition
from odcl.mixed import candidates as growing
from odcl.mixed import search as module
from odcl.mixed import select as choosing
from odcl.mixed.candidates import candidates, closed, diagonal_may_win, one_group
from odcl.mixed.few import sample_by_id
from odcl.mixed.mixture import Quadratics, pure_noise
from odcl.mixed.posterior import mixture_of, posterior
from odcl.mixed.search import search
from odcl.mixed.starts import clear_number, divided, halves, kmeans_seeds, lloyd

from .predictions import coefficients, predict, predict_std
from .worlds import rows_of, seen


def paper(n_samples, *, n_clusters=4, tau=0.0, seed=0, sizes=None):
    fed = linear_federation(100, n_samples, n_clusters=n_clusters, tau=tau, seed=seed, sizes=sizes)
    users = np.repeat(np.arange(100), np.diff(fed.offsets))
    _, at, q = seen(fed.X, fed.y, users, intercept=False)
    return fed, at, q


def oracle_error(fed, users_groups, tau):
    """Error of the models when groups, T and noise are known and centers are fitted."""
    total = 0.0
    for k in np.unique(users_groups):
        mine = np.flatnonzero(users_groups == k)
        rows = [slice(fed.offsets[i], fed.offsets[i + 1]) for i in mine]
        A = [fed.X[r].T @ fed.X[r] for r in rows]
        b = [fed.X[r].T @ fed.y[r] for r in rows]
        back = [np.linalg.inv(np.eye(20) + tau**2 * a) for a in A]
        M = sum(a @ inv for a, inv in zip(A, back, strict=True))
        v = sum(inv.T @ x for x, inv in zip(b, back, strict=True))
        c = np.linalg.solve(M, v)
        for i, a, x, inv in zip(mine, A, b, back, strict=True):
            theta = c + tau**2 * inv.T @ (x - a @ c)
            total += ((theta - fed.optima[i]) ** 2).sum()
    return total


@pytest.mark.parametrize(
    ("n_samples", "n_clusters", "tau", "sizes"),
    [
        (15, 4, 0.0, None),
        (50, 4, 0.3, None),
        (50, 10, 0.0, None),
        (50, 10, 0.3, None),
        (100, 4, 0.1, (70, 20, 7, 3)),
        (50, 1, 0.0, None),
        (50, 1, 0.3, None),
    ],
)
def test_the_papers_worlds_are_found_and_fitted_like_an_oracle(n_samples, n_clusters, tau, sizes):
    fed, at, q = paper(n_samples, n_clusters=n_clusters, tau=tau, sizes=sizes, seed=11)
    fit = search(q)
    got = posterior(q, mixture_of(fit, at))
    assert same_partition(fit.responsibilities.argmax(axis=1), fed.groups)
    assert (fit.spread.shape == "zero") is (tau == 0)
    error = ((coefficients(got)[0][:, :-1] - fed.optima) ** 2).sum()
    assert error <= 1.1 * oracle_error(fed, fed.groups, tau)


def test_fifteen_rows_for_twenty_parameters_are_enough_for_the_papers_groups():
    """At least 8 of 10 is the promise: three failures of 6 have probability .1 under it."""
    exact = 0
    for seed in range(6):
        fed, _, q = paper(15, seed=seed + 50)
        exact += same_partition(search(q).responsibilities.argmax(axis=1), fed.groups)
    assert exact >= 4


@pytest.mark.parametrize("seed", [1002, 1004])
def test_groups_along_a_line_are_not_taken_for_one_center_with_a_full_spread(seed):
    """Ten groups whose centers lie near a line, users who differ, fewer rows than parameters."""
    fed, _, q = paper(15, n_clusters=10, tau=0.2, seed=seed)
    assert same_partition(search(q).responsibilities.argmax(axis=1), fed.groups)


def test_groups_that_users_cannot_be_told_to_belong_to_give_way_to_one_center():
    """Gradual differences along a line: four groups would win if nobody's doubt were counted."""
    rng = np.random.default_rng([0, 9, 5])
    line = rng.standard_normal(5)
    along = 1.5 * rng.choice([-1, 1], 60) + 0.5 * rng.standard_normal(60)
    theta = np.outer(along, line) + rng.standard_normal(5)
    _, _, q = seen(*rows_of(theta, 9, seed=0))
    one, groups = search(q, n_groups=1, spread="full"), search(q, n_groups=4, spread="zero")
    assert groups.entropy.sum() > 5
    assert groups.evidence + groups.common < one.evidence + one.common - 10
    found = search(q)
    assert (found.n_groups, found.spread.shape) == (1, "full")


@pytest.mark.parametrize("shape", ["zero", "scalar", "diag", "full"])
@pytest.mark.parametrize("n_groups", [1, 3])
def test_groups_and_shape_may_be_given(shape, n_groups):
    X, y, users = grouped(2)
    _, _, q = seen(X, y, users)
    fit = search(q, n_groups=n_groups, spread=shape)
    assert fit.n_groups == n_groups
    assert fit.spread.shape == shape
    assert search(q, spread=shape).spread.shape == shape
    assert search(q, n_groups=n_groups).n_groups == n_groups
    if n_groups == 3:
        assert same_partition(fit.responsibilities.argmax(axis=1), np.arange(24) % 3)


def test_groups_that_are_given_are_fitted_where_users_are_all_the_same():
    _, _, q = seen(*rows_of(np.ones((20, 3)), 8))
    assert search(q, n_groups=2).n_groups == 2
    assert search(q[np.arange(2)], n_groups=5).n_groups == 2


@pytest.mark.parametrize("wish", [{"n_groups": 0}, {"spread": "round"}])
def test_a_wish_that_cannot_be_met_is_refused(wish):
    _, _, q = seen(*grouped(0))
    with pytest.raises(ValueError, match=next(iter(wish))):
        search(q, **wish)


def test_blas_has_one_thread_while_groups_are_searched_for(monkeypatch):
    """Many small products wait for each other on more: ten times as long on two cores."""
    from threadpoolctl import threadpool_info

    _, _, q = seen(*grouped(0))
    during, find = [], module._search
    monkeypatch.setattr(module, "_search", lambda *a: during.append(threadpool_info()) or find(*a))
    search(q)
    blas = [pool["num_threads"] for pool in during[0] if pool["user_api"] == "blas"]
    assert set(blas) == {1}


def test_k_means_begins_with_one_user_of_every_group_far_apart():
    """Farthest points and main axes alike: seeds of K = 4 lie in four different corners."""
    rng = np.random.default_rng(0)
    corners = np.array([[9.0, 0.0], [-9.0, 1.0], [0.0, 9.0], [1.0, -9.0]])
    points = corners[np.arange(40) % 4] + 0.1 * rng.standard_normal((40, 2))
    for centers in next(islice(kmeans_seeds(points), 2, None)):
        near = ((centers[:, None] - corners) ** 2).sum(axis=2).argmin(axis=1)
        assert sorted(near) == [0, 1, 2, 3]
        assert same_partition(lloyd(points, centers).argmax(axis=1), np.arange(40) % 4)


def continuum(kind, seed, *, n_users=60, rows=30, dim=7):
    rng = np.random.default_rng([seed, 5])
    theta = np.tile(rng.standard_normal(dim), (n_users, 1))
    if kind == "random intercept":
        theta[:, 0] += rng.standard_normal(n_users)
    elif kind == "random slope":
        theta[:, 1] += rng.standard_normal(n_users)
    elif kind == "along a line":
        theta += np.outer(rng.uniform(-1.7, 1.7, n_users), rng.standard_normal(dim))
    elif kind == "two coefficients":
        theta[:, 2:4] += rng.standard_normal((n_users, 2))
    return rows_of(theta, rows, seed=seed)


@pytest.mark.parametrize(
    "kind", ["random intercept", "random slope", "along a line", "two coefficients", "one model"]
)
def test_users_who_differ_gradually_are_one_group(kind):
    """At least 19 of 20 is the promise: two failures of 8 have probability .06 under it."""
    fits = [search(seen(*continuum(kind, seed))[2]) for seed in range(8)]
    assert sum(fit.n_groups == 1 for fit in fits) >= 7


def test_the_spread_names_the_coefficients_that_differ():
    fit = search(seen(*continuum("two coefficients", 0))[2])
    assert_array_equal(np.flatnonzero(np.diag(fit.spread.matrix)), [2, 3])


def test_heavy_tails_get_scales_not_groups():
    rng = np.random.default_rng(0)
    theta = rng.standard_t(2, size=(150, 3))
    fit = search(seen(*rows_of(theta, 20))[2])
    assert fit.n_groups == 1
    assert fit.shares[fit.scales > 1].sum() > 0.05
    assert_allclose(fit.shares.sum(), 1)


def test_a_level_that_a_user_never_saw_is_no_group():
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(40), 14)
    level = (rng.integers(1, 8, len(users)) + users) % 8  # user i lacks level i mod 8
    X = np.eye(8)[level]
    y = X @ np.arange(8.0) + rng.standard_normal(len(users))
    _, at, q = seen(X, y, users)
    fit = search(q)
    assert fit.n_groups == 1
    got = predict(
        posterior(q, mixture_of(fit, at)), np.tile(np.eye(8), (40, 1)), users[::14].repeat(8)
    )
    assert_allclose(got.reshape(40, 8), np.tile(np.arange(8.0), (40, 1)), atol=0.6)


@pytest.mark.parametrize("rows", [1, 2])
def test_one_or_two_rows_per_user_are_ordinary(rows):
    rng = np.random.default_rng(0)
    fit = search(seen(*rows_of(np.tile(rng.standard_normal(4), (50, 1)), rows))[2])
    assert fit.n_groups == 1
    assert np.isfinite(fit.bound)


@pytest.mark.parametrize("n_users", [1, 2, 3])
def test_few_users_are_ordinary(n_users):
    rng = np.random.default_rng(0)
    fit = search(seen(*rows_of(rng.standard_normal((n_users, 2)), 5))[2])
    assert fit.n_groups == 1
    assert np.isfinite(fit.centers).all()


@pytest.mark.parametrize("target", ["constant", "exact", "copies"])
def test_targets_without_noise_are_ordinary(target):
    X, _, users = rows_of(np.zeros((12, 3)), 6)
    y = {"constant": np.full(72, 5.0), "exact": X[:, 0], "copies": 1.0 * (users % 2)}[target]
    _, at, q = seen(X, y, users)
    got = predict(posterior(q, mixture_of(search(q), at)), X, users)
    assert_allclose(got, y, atol=1e-3)


def grouped(seed):
    rng = np.random.default_rng(seed)
    theta = 2 * rng.standard_normal((3, 3))[np.arange(24) % 3]
    theta[:, 0] += 0.5 * rng.standard_normal(24)
    return rows_of(theta, rng.integers(2, 9, 24), seed=seed)


def predictions(X, y, users, new):
    _, at, q = seen(X, y, users)
    got = posterior(q, mixture_of(search(q), at))
    n_users = len(q)
    rows, who = np.tile(new, (n_users, 1)), np.repeat(np.arange(n_users), len(new))
    return predict(got, rows, who).reshape(n_users, len(new)), predict_std(got, rows, who)


@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 50),
    shift=st.floats(-100, 100),
    scale=st.sampled_from([1e-3, 0.3, 7.0, 1e4]),
    unit=st.sampled_from([1e-4, 1.0, 1e5]),
)
def test_predictions_do_not_depend_on_units_origins_copies_or_order(seed, shift, scale, unit):
    X, y, users = grouped(seed)
    new = np.random.default_rng(seed).standard_normal((3, 2))
    base, spread = predictions(X, y, users, new)
    rng = np.random.default_rng(seed + 1)

    def change(a):
        moved = np.column_stack([scale * a[:, 0] + shift, a[:, 1] - 3 * shift])
        return np.column_stack([moved, np.full(len(a), 0.1), 2 - moved[:, 0]])

    order, names = rng.permutation(len(y)), rng.permutation(24)
    changed, changed_spread = predictions(
        change(X)[order], unit * y[order] + 5 * unit, names[users[order]], change(new)
    )
    error = (changed[names] - 5 * unit) / unit - base
    assert np.abs(error).max() <= 1e-8 * np.abs(base).max()
    again = changed_spread.reshape(24, 3)[names].ravel() / unit
    assert_allclose(again, spread, rtol=1e-6)


def test_a_sample_is_drawn_by_id_whatever_the_order():
    ids = [f"store {i}" for i in range(100)]
    picked = {ids[i] for i in sample_by_id(ids, 20)}
    turned = ids[::-1]
    assert {turned[i] for i in sample_by_id(turned, 20)} == picked
    assert len(picked) == 20


def test_a_rare_group_is_absent_from_a_sample_as_often_as_it_should_be():
    """A group of share p is missed with probability (1 - p)^size; counts over 400 sets of ids."""
    n, rare, size = 1000, 20, 60
    missed = 0
    for federation in range(400):
        picked = sample_by_id([f"{federation}-{i}" for i in range(n)], size)
        missed += not (picked < rare).any()
    p = (1 - rare / n) ** size
    assert abs(missed / 400 - p) < 4 * np.sqrt(p * (1 - p) / 400)


def test_quadratics_of_some_users_are_a_part():
    _, _, q = seen(*grouped(0))
    part = q[np.array([3, 1])]
    assert isinstance(part, Quadratics)
    assert_array_equal(part.A, q.A[[3, 1]])


@pytest.mark.parametrize("n", [1, 3, 8, 12])
def test_users_with_fewer_rows_than_parameters_are_fitted_all_the_same(n):
    """Nobody has a row to spare, so that nothing but the model tells noise from differences."""
    for seed in range(3):
        result = odcl.fit(linear_federation(60, n, n_clusters=4, seed=seed))
        assert np.isfinite(result.models).all()
        assert result.step.rule == "mixed groups"


def test_many_groups_far_apart_are_found_though_fewer_of_them_help_nobody():
    """Eight groups of five, all at one distance: up to seven centers they look like a wide T."""
    rng = np.random.default_rng(0)
    groups, n, dim = np.repeat(np.arange(8), 5), 40, 8
    corners = 4 * (np.eye(8) - 1 / 8) / np.sqrt(2)
    for _ in range(3):
        turn = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
        theta = (corners @ turn)[groups]
        X = rng.standard_normal((len(groups) * n, dim))
        owner = np.repeat(np.arange(len(groups)), n)
        y = (X * theta[owner]).sum(axis=1) + rng.standard_normal(len(owner))
        result = odcl.fit(Federation.from_arrays(X, y, owner))
        assert same_partition(result.labels, groups)


def test_tails_are_tried_on_more_than_the_fit_that_leads_without_them(monkeypatch):
    theta = 3.0 * np.eye(3)[np.arange(24) % 3]
    _, _, q = seen(*rows_of(theta, 12, seed=1))
    found = candidates(q, *pure_noise(q), 50, None)
    fits = sorted((f for f in found if f.n_groups > 1), key=choosing.evidence)
    other = next(f for f in fits[1:] if f.spread.matrix.any())
    gain = other.evidence - fits[0].evidence + 1

    def tails(q, fit, beat=np.inf):
        return replace(fit, tail_gain=gain) if fit is other else fit

    assert choosing.choose(q, fits).n_groups == fits[0].n_groups
    monkeypatch.setattr(choosing, "with_tails", tails)
    assert choosing.choose(q, fits).tail_gain == gain


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("inside", "wins"),
    [
        ([0.5] * 15, False),
        ([0.9] + [0.2] * 4, True),  # one more than the others
        ([0.5, 0.5, 0.5, 0.0, 0.0], True),  # two not at all
    ],
)
def test_a_diagonal_is_fitted_where_it_may_win(inside, wins, seed):
    """What a step of T promises, beside the evidence of the fits themselves."""
    rng, p = np.random.default_rng(seed), len(inside)
    groups = np.arange(90) % 3
    theta = 2 * rng.standard_normal((3, p))[groups] + rng.standard_normal((90, p)) * inside
    _, _, q = seen(*rows_of(theta, 30, seed=seed))
    q = replace(q, many=True)
    scalar, diag = (search(q, n_groups=3, spread=shape) for shape in ("scalar", "diag"))
    assert (closed(q, diag).evidence < scalar.evidence) is wins
    assert diagonal_may_win(q, scalar) is wins


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_a_search_looks_at_a_multiple_of_the_identity_where_a_diagonal_leads(seed):
    """Centers lie apart in some coordinates more than in others, users of a group in all alike."""
    rng, p = np.random.default_rng(seed), 8
    groups = np.arange(60) % 3
    centers = rng.standard_normal((3, p)) * [6.0, 3.0, 1.0, 1.0, 0.3, 0.3, 0.3, 0.1]
    theta = centers[groups] + 0.4 * rng.standard_normal((60, p))
    _, _, q = seen(*rows_of(theta, 30, seed=seed))
    found = search(q)
    assert (found.n_groups, found.spread.shape) == (3, "scalar")
    assert same_partition(found.responsibilities.argmax(axis=1), groups)


def groups_in_one_slope(seed, *, gap=4.0, varied=1.0, n_users=30, rows=24, dim=3):
    """Two groups apart in the first slope; inside these users differ in all others."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(n_users), rows)
    X = rng.standard_normal((len(users), dim - 1))
    theta = rng.normal(0, varied, (n_users, dim))
    theta[:, 0] = gap * (np.arange(n_users) % 2)
    y = (X * theta[users, :-1]).sum(axis=1) + theta[users, -1]
    return X, y + 0.5 * rng.standard_normal(len(y)), users


@pytest.mark.parametrize("dim", [2, 3, 5])
@pytest.mark.parametrize("gap", [1.5, 4.0])
@pytest.mark.parametrize("seed", range(3))
def test_groups_in_one_coefficient_show_among_others_in_which_users_differ(dim, gap, seed):
    """One center's T has room for both groups, and K-means is led away by what else differs."""
    X, y, users = groups_in_one_slope(seed, gap=gap, dim=dim)
    fit = search(seen(X, y, users)[2])
    assert fit.n_groups == 2
    assert same_partition(fit.responsibilities.argmax(axis=1), np.arange(30) % 2)


def test_halves_are_those_of_the_coordinate_that_has_two_heaps():
    rng = np.random.default_rng(3)
    theta = rng.standard_normal((40, 4)) * [3.0, 1.0, 1.0, 0.0]
    theta[:, 2] = np.arange(40) % 2 + rng.normal(0, 0.05, 40)
    assert same_partition(halves(theta).argmax(axis=1), np.arange(40) % 2)


def going_together(seed, centers, n_users=60, noise=0.5):
    """Levels and one slope go together in all groups; theta and the group of every user."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n_users) % len(centers)
    theta = np.asarray(centers, float)[groups]
    level = rng.standard_normal(n_users)
    theta[:, 0] += level
    theta[:, 1] += 0.6 * level + rng.normal(0, 0.1, n_users)
    return rows_of(theta, 20, noise=noise, seed=seed), groups


@pytest.mark.parametrize("seed", range(3))
def test_groups_show_inside_which_coefficients_go_together(seed):
    """A diagonal T has room for levels or for slopes, and takes their line for many groups."""
    rows, groups = going_together(seed, [[0, 0, -1, 0.7], [0, 0, 0, -1], [0, 0, 1, 0.7]])
    fit = search(seen(*rows)[2])
    assert fit.spread.shape == "full"
    assert same_partition(fit.responsibilities.argmax(axis=1), groups)


@pytest.mark.parametrize("seed", range(3))
def test_coefficients_that_go_together_are_no_groups(seed):
    fit = search(seen(*going_together(seed, np.zeros((1, 4)))[0])[2])
    assert fit.n_groups == 1


@pytest.mark.parametrize("seed", range(5))
def test_users_are_divided_where_they_fall_apart_in_all_units(seed):
    rng = np.random.default_rng(seed)
    labels, groups = np.zeros(90, np.intp), np.arange(90) % 3
    theta = 9 * np.eye(4)[groups] + rng.standard_normal((90, 4))
    theta = theta @ rng.standard_normal((4, 4)) * [0.1, 1.0, 1.0, 10.0]
    for k in (2, 3):
        labels = divided(theta, labels)
        assert labels.max() == k - 1
    assert same_partition(labels, groups)


@pytest.mark.parametrize("seed", range(3))
def test_users_who_say_nothing_do_not_hide_groups(seed):
    """They belong nowhere in particular, and that is no doubt about the groups of others."""
    rng = np.random.default_rng(seed)
    groups = np.arange(240) % 3
    theta = 1.5 * rng.standard_normal((3, 5))[groups]
    _, _, q = seen(*rows_of(theta, 12, seed=seed))
    silent = rng.random(240) < 0.6
    parts = ("A", "b", "uu", "rows", "dof", "pure")
    zero = {name: getattr(q, name).copy() for name in parts}
    for values in zero.values():
        values[silent] = 0.0
    among = search(replace(q, **zero))
    alone = search(q[~silent])
    assert among.n_groups == alone.n_groups == 3
    found = among.responsibilities.argmax(axis=1)[~silent]
    assert same_partition(found, alone.responsibilities.argmax(axis=1))


@pytest.mark.parametrize(("n_users", "noise", "known"), [(12, 0.0, False), (40, 3.0, True)])
def test_a_full_spread_that_leaves_rows_no_noise_is_no_candidate(n_users, noise, known):
    """Each user has each of four years once: nobody's own rows tell noise from differences."""
    rng, users = np.random.default_rng(0), np.repeat(np.arange(n_users), 4)
    X, strength = np.tile(np.eye(4)[:, 1:], (n_users, 1)), rng.normal(0, 3, (n_users, 2))
    pattern = np.array([[1.0, 2.0, -1.0, 0.5], [0.3, -1.0, 1.0, 2.0]])
    y = (strength @ pattern).ravel() + noise * rng.standard_normal(4 * n_users)
    _, _, q = seen(X, y, users)
    assert not q.dof.any()
    assert ("full" in one_group(q, *pure_noise(q))) == known


def test_groups_that_lie_clearly_apart_are_counted_and_others_are_not():
    rng = np.random.default_rng(0)
    centers = 20 * rng.standard_normal((7, 4))
    points = centers[np.arange(70) % 7] + rng.standard_normal((70, 4))
    assert clear_number(points, 30) == 7
    assert clear_number(points[::-1] + 5.0, 30) == 7
    assert clear_number(rng.standard_normal((70, 4)), 30) <= growing.CLIMBED
    assert clear_number(np.zeros((5, 2)), 4) == 0


@pytest.mark.parametrize(("tau", "climbs"), [(0.0, False), (0.3, True)])
def test_clear_groups_are_fitted_at_once_where_users_differ_only_by_noise(monkeypatch, tau, climbs):
    """K, shape and evidence are those of a search that looks at every number of groups."""
    _, _, q = paper(50, n_clusters=10, tau=tau)
    at_once = search(q)
    numbers = {one.n_groups for one in at_once.weighed}
    assert (5 in numbers) is climbs
    assert {1, 9, 10, 11} <= numbers
    monkeypatch.setattr(growing, "clear_number", lambda points, most: 0)
    climbed = search(q)
    assert 5 in {one.n_groups for one in climbed.weighed}
    assert (at_once.n_groups, at_once.spread.shape) == (climbed.n_groups, climbed.spread.shape)
    assert_allclose(at_once.evidence, climbed.evidence, atol=1e-5)


def test_a_wrong_count_of_clear_groups_is_not_taken(monkeypatch):
    """One group too many, or too few, and K is found as if nobody had counted."""
    _, _, q = paper(50, n_clusters=10)
    for wrong in (8, 9, 11, 12):
        monkeypatch.setattr(growing, "clear_number", lambda points, most, k=wrong: k)
        assert search(q).n_groups == 10


def test_numbers_of_groups_are_left_out_where_the_most_groups_fit_too_badly():
    """Fewer groups fit no better: most numbers go where users differ gradually, true ones stay."""
    rng = np.random.default_rng(0)
    groups = 3 * rng.standard_normal((8, 3))[np.arange(80) % 8]
    for theta, gradual in ((rng.standard_normal((80, 3)), True), (groups, False)):
        _, _, q = seen(*rows_of(theta, 40))
        one = growing.one_group(q, *pure_noise(q))["diag"]
        points = growing.posterior_means(q, one) @ growing.usual_metric(q, one)
        prior, bar = choosing.center_prior(one), one.evidence
        floors = growing._floors(q, one, points, prior, range(2, 50), bar)
        before = np.array([*floors])
        before = before[growing._within_reach(q, one, prior, before) < bar]
        left = [k for k, floor in floors.items() if floor < bar]
        assert len(before) > 10
        if gradual:
            assert len(left) < len(before) / 2
        else:
            assert floors[8] <= search(q).evidence + 1e-6
