"""The mixture with known noise: groups, their number and how far users of a group differ."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.cluster.hierarchy import fcluster, linkage
from sklearn.utils.estimator_checks import parametrize_with_checks

from odcl._typing import Floats, Ints
from odcl.clustering.labels import same_partition
from odcl.clustering.mixture.em import Cloud, MixtureParameters, between_users, em, sweep
from odcl.clustering.mixture.noise_mixture import MixtureResult, NoiseMixture, noise_mixture
from odcl.clustering.mixture.search import cut, ward_merges
from odcl.data.synthetic import linear_federation

pytestmark = pytest.mark.filterwarnings("error")


@dataclass(frozen=True, eq=False)
class Problem:
    """Local models with their covariances, and the truth."""

    theta: Floats
    covariance: Floats
    groups: Ints
    optima: Floats

    @property
    def noise(self) -> Floats:
        return np.trace(self.covariance, axis1=1, axis2=2)


def linear_problem(n_clusters, *, n, tau=0.0, sizes=None, seed=0) -> Problem:
    """Least squares at each of 100 users; the residual variance is pooled over all of them."""
    f = linear_federation(100, n, n_clusters=n_clusters, sizes=sizes, tau=tau, seed=seed)
    X, y = f.X.reshape(100, n, -1), f.y.reshape(100, n)
    gram = X.swapaxes(1, 2) @ X
    theta = np.linalg.solve(gram, X.swapaxes(1, 2) @ y[:, :, None])[:, :, 0]
    residual = y - (X @ theta[:, :, None])[:, :, 0]
    sigma2 = np.square(residual).sum() / (y.size - theta.size)
    return Problem(theta, sigma2 * np.linalg.inv(gram), f.groups, f.optima)


def logistic_problem(n_clusters, *, n, l2, seed, n_users=60, dim=10) -> Problem:
    """Penalised logistic regression by Newton's method; C_i = (n times the Hessian)^-1."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n_users) * n_clusters // n_users
    optima = rng.standard_normal((n_clusters, dim))[groups]
    X = rng.standard_normal((n_users, n, dim))
    y = rng.random((n_users, n)) < 1 / (1 + np.exp(-(X @ optima[:, :, None])[:, :, 0]))
    theta = np.zeros((n_users, dim))
    for _ in range(100):  # steps of at most 1 stay in Newton's range on these problems
        mean = 1 / (1 + np.exp(-(X @ theta[:, :, None])[:, :, 0]))
        gradient = (X.swapaxes(1, 2) @ (mean - y)[:, :, None])[:, :, 0] / n + l2 * theta
        weighted = X * (mean * (1 - mean))[:, :, None]
        hessian = weighted.swapaxes(1, 2) @ X / n + l2 * np.eye(dim)
        step = np.linalg.solve(hessian, gradient[:, :, None])[:, :, 0]
        theta -= step / np.maximum(1, np.linalg.norm(step, axis=1, keepdims=True))
    assert np.abs(gradient).max() < 1e-8
    return Problem(theta, np.linalg.inv(n * hessian), groups, optima)


def uneven_noise_problem(n_users=60, n_clusters=3, dim=4, *, apart=10.0, seed=0) -> Problem:
    """Points around far centres, with uneven and correlated noise."""
    rng = np.random.default_rng(seed)
    groups = np.arange(n_users) % n_clusters
    optima = apart * rng.standard_normal((n_clusters, dim))[groups]
    factor = rng.standard_normal((n_users, dim, 2 * dim)) * rng.uniform(0.1, 0.4, (n_users, 1, 1))
    error = factor @ rng.standard_normal((n_users, 2 * dim, 1))
    return Problem(optima + error[:, :, 0], factor @ factor.swapaxes(1, 2), groups, optima)


def own_weight(result: MixtureResult) -> Floats:
    """How much of its own deviation a user would keep: 0 is averaging in groups, 1 local."""
    return result.tau2 / (result.tau2 + result.noise_units)


def posterior_mean(result: MixtureResult, theta: Floats) -> Floats:
    centre = result.responsibilities @ result.centers
    return centre + own_weight(result)[:, None] * (theta - centre)


def error_ratio(result: MixtureResult, problem: Problem) -> float:
    """Squared error of the posterior mean against the better of local models and averaging."""
    means = [problem.theta[problem.groups == k].mean(axis=0) for k in np.unique(problem.groups)]
    rivals = [problem.theta, np.array(means)[problem.groups]]
    error = np.square(posterior_mean(result, problem.theta) - problem.optima).sum()
    return error / min(np.square(rival - problem.optima).sum() for rival in rivals)


SETUPS = {"K=10": (10, None), "K=4": (4, None), "K=1": (1, None), "uneven": (4, (70, 20, 7, 3))}


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize(("n", "tau"), [(50, 0.0), (50, 0.3), (100, 0.1), (400, 0.0), (400, 0.1)])
def test_linear_users_give_the_true_groups_and_lose_to_neither_rival(setup, n, tau):
    n_clusters, sizes = SETUPS[setup]
    problem = linear_problem(n_clusters, n=n, tau=tau, sizes=sizes, seed=11)
    result = noise_mixture(problem.theta, covariance=problem.covariance)
    assert (result.rule, result.converged) == ("noise", True)
    assert same_partition(result.labels, problem.groups)
    assert error_ratio(result, problem) <= (1.1 if n >= 100 else 1.15)


@pytest.mark.parametrize("tau", [0.1, 0.3])
def test_tau_is_found_also_in_groups_of_ten(tau):
    """The restricted likelihood: plain EM loses a tenth of the whole spread here."""
    problem = linear_problem(10, n=400, tau=tau, seed=5)
    result = noise_mixture(problem.theta, covariance=problem.covariance)
    assert_allclose(np.sqrt(result.tau2_mean), tau, rtol=0.1)
    assert_allclose(result.tau2 * np.trace(result.metric) / 20, result.tau2_mean, rtol=1e-12)


@pytest.mark.parametrize(("sizes", "tau"), [((70, 20, 7, 3), 0.03), (None, 0.1)])
def test_noise_long_in_one_direction_makes_no_group_of_its_own(sizes, tau):
    """User 31 lies five times further out than v_i allows, and not far by its whole covariance."""
    problem = linear_problem(4, n=50, tau=tau, sizes=sizes, seed=403)
    result = noise_mixture(problem.theta, covariance=problem.covariance)
    assert same_partition(result.labels, problem.groups)


@pytest.mark.parametrize("seed", range(4))
def test_one_group_without_differences_is_averaged(seed):
    """K = 1, tau = 0, n = 50: where a tau2 > 0 by chance costs most."""
    problem = linear_problem(1, n=50, seed=seed)
    result = noise_mixture(problem.theta, covariance=problem.covariance)
    assert error_ratio(result, problem) <= 1.15


@pytest.mark.parametrize("n_clusters", [1, 3])
@pytest.mark.parametrize(("n", "l2"), [(100, 1e-4), (200, 1e-2)])
def test_logistic_users_give_the_true_groups(n_clusters, n, l2):
    problem = logistic_problem(n_clusters, n=n, l2=l2, seed=7)
    result = noise_mixture(problem.theta, covariance=problem.covariance)
    assert same_partition(result.labels, problem.groups)


def test_the_trace_alone_is_enough_for_linear_models():
    problem = linear_problem(4, n=100, tau=0.1, sizes=(70, 20, 7, 3), seed=3)
    result = noise_mixture(problem.theta, noise=problem.noise)
    assert same_partition(result.labels, problem.groups)


ROTATION = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]


@pytest.mark.parametrize(
    ("map_", "shift"),
    [
        (np.diag([1e6, 1e-6, 1.0, 30.0]), 0.0),
        (ROTATION, 0.0),
        (np.eye(4), 1e3),
        (1e-9 * ROTATION, 0),
        (1e-153 * np.eye(4), 0),
        (1e140 * np.eye(4), 0),
    ],
    ids=["columns", "rotation", "shift", "tiny", "hardly there", "huge"],
)
def test_units_do_not_matter(map_, shift):
    problem = uneven_noise_problem()
    plain = noise_mixture(problem.theta, covariance=problem.covariance)
    theta, covariance = problem.theta @ map_.T + shift, map_ @ problem.covariance @ map_.T
    mapped = noise_mixture(theta, covariance=covariance)
    assert same_partition(plain.labels, problem.groups)
    assert_array_equal(mapped.labels, plain.labels)
    assert_allclose(mapped.tau2, plain.tau2, rtol=1e-6, atol=1e-9)
    assert mapped.reason == plain.reason
    assert_allclose(mapped.metric, map_ @ plain.metric @ map_.T, rtol=1e-6)
    back = (mapped.centers - shift) @ np.linalg.inv(map_).T
    assert_allclose(back, plain.centers, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("known", ["covariance", "noise", None])
@pytest.mark.parametrize("scale", [1e-153, 1e100, 1e140])
def test_numbers_whose_squares_vanish_or_overflow_are_rescaled(known, scale):
    problem = uneven_noise_problem()
    squared = {known: getattr(problem, known) * scale * scale} if known else {}
    plain = noise_mixture(problem.theta, **({known: getattr(problem, known)} if known else {}))
    scaled = noise_mixture(problem.theta * scale, **squared)
    assert_array_equal(scaled.labels, plain.labels)
    assert_allclose(scaled.centers, plain.centers * scale, rtol=1e-6)
    assert_allclose(scaled.tau2_mean, plain.tau2_mean * scale * scale, rtol=1e-6)


@pytest.mark.parametrize("known", ["covariance", "noise", None])
def test_numbers_without_squares_are_refused(known):
    """NaN in a distance once let the search run for ever."""
    problem = uneven_noise_problem()
    extra = {known: getattr(problem, known)} if known else {}
    with pytest.raises(ValueError, match="squares of such numbers"):
        noise_mixture(problem.theta * 1e153, **extra)


def test_noise_next_to_which_all_users_are_equal_is_refused():
    with pytest.raises(ValueError, match="Check the units of the noise"):
        noise_mixture(uneven_noise_problem().theta, noise=np.full(60, 1e300))


@pytest.mark.parametrize("shift", [1e6, 1e9])
@pytest.mark.parametrize("known", ["covariance", "noise", None])
def test_a_shift_of_all_users_costs_no_more_than_its_own_digits(known, shift):
    problem = linear_problem(4, n=100, tau=0.3, seed=3)
    extra = {known: getattr(problem, known)} if known else {}
    here = NoiseMixture(random_state=0).fit(problem.theta, **extra)
    there = NoiseMixture(random_state=0).fit(problem.theta + shift, **extra)
    assert_array_equal(there.labels_, here.labels_)
    assert_allclose(there.tau2_, here.tau2_, rtol=1e-5)
    assert_allclose(there.cluster_centers_ - shift, here.cluster_centers_, atol=1e-14 * shift)
    assert_array_equal(there.predict(problem.theta + shift), here.predict(problem.theta))


@pytest.mark.parametrize("known", ["covariance", "noise", None])
def test_order_of_users_does_not_matter(known):
    problem = uneven_noise_problem(apart=1.0)  # close enough for doubt
    order = np.random.default_rng(2).permutation(60)
    extra = {known: getattr(problem, known)} if known else {}
    plain = noise_mixture(problem.theta, **extra)
    mixed = noise_mixture(problem.theta[order], **{k: v[order] for k, v in extra.items()})
    assert same_partition(mixed.labels, plain.labels[order])
    assert_allclose(mixed.tau2, plain.tau2, rtol=1e-6, atol=1e-12)


def test_clusters_are_numbered_by_first_user_and_everything_follows():
    problem = uneven_noise_problem()
    result = noise_mixture(problem.theta, covariance=problem.covariance)
    assert_array_equal(result.labels, problem.groups)
    assert_allclose(result.responsibilities.sum(axis=1), 1)
    assert_array_equal(result.responsibilities.argmax(axis=1), result.labels)
    assert_array_equal(result.probabilities, result.responsibilities.max(axis=1))
    assert np.abs(result.centers[result.labels] - problem.optima).max() < 1.0
    assert min(result.scores, key=result.scores.get) == result.n_clusters == 3


@pytest.mark.parametrize("dim", [1, 5, 20])
@pytest.mark.parametrize("n_clusters", [1, 4])
def test_without_noise_a_shared_variance_is_fitted(dim, n_clusters):
    rng = np.random.default_rng(dim)
    groups = np.arange(100) % n_clusters
    theta = 12.0 * groups[:, None] / np.sqrt(dim) + rng.standard_normal((100, dim))
    result = noise_mixture(theta)
    assert result.rule == "shared-variance"
    assert same_partition(result.labels, groups)
    assert_allclose(result.noise_units, 1, rtol=0.3)
    assert_array_equal(own_weight(result), 0)  # all spread is read as noise: averaging


@pytest.mark.parametrize("dim", [200, 3072])
def test_thirty_users_in_many_dimensions(dim):
    """Two opposite means of a third of the noise are two groups; noise alone is one."""
    rng = np.random.default_rng(dim)
    groups, noise = np.arange(30) % 2, rng.standard_normal((30, dim))
    mean = rng.standard_normal(dim) / 3
    flipped = noise_mixture(noise + np.where(groups[:, None] == 0, mean, -mean))
    assert same_partition(flipped.labels, groups)
    assert noise_mixture(noise).n_clusters == 1


@pytest.mark.parametrize("n_users", [6, 12, 60])
@pytest.mark.parametrize("ratio", [1e1, 1e4])
def test_small_noise_does_not_make_every_user_a_group(n_users, ratio):
    """Users who differ, measured well, are one group with tau2 > 0 and stay with their models."""
    theta = np.random.default_rng(0).standard_normal((n_users, 10))
    result = noise_mixture(theta, noise=np.full(n_users, 10 / ratio))
    assert result.n_clusters == 1
    assert own_weight(result).min() > 0.8


def test_many_groups_are_found_without_a_bound():
    rng = np.random.default_rng(0)
    groups = np.arange(900) % 60
    theta = 6 * rng.standard_normal((60, 8))[groups] + rng.standard_normal((900, 8))
    for bound in ("auto", 80):
        result = noise_mixture(theta, noise=np.full(900, 8.0), max_clusters=bound)
        assert same_partition(result.labels, groups)
    assert noise_mixture(theta, noise=np.full(900, 8.0), max_clusters=5).n_clusters <= 5


def test_more_users_than_are_searched():
    """30,000 users: tree over small clusters of a sample, then EM on everybody."""
    rng = np.random.default_rng(0)
    groups = rng.integers(5, size=30_000)
    theta = 5 * rng.standard_normal((5, 6))[groups] + rng.standard_normal((30_000, 6))
    result = noise_mixture(theta, noise=np.full(30_000, 6.0), max_clusters=8)
    assert result.n_clusters == 5
    assert result.converged
    agreement = [np.bincount(groups[result.labels == k]).max() for k in range(5)]
    assert sum(agreement) > 0.98 * 30_000


@pytest.mark.parametrize("factor", [20, 1e4])
def test_overstated_noise_is_found_out(factor):
    problem = uneven_noise_problem()
    result = noise_mixture(problem.theta, covariance=factor * problem.covariance)
    assert result.rule == "scaled-noise"
    assert "noise given allows" in result.reason
    assert same_partition(result.labels, problem.groups)


def test_understated_noise_becomes_tau2():
    problem = uneven_noise_problem()
    result = noise_mixture(problem.theta, covariance=problem.covariance / 20)
    assert result.rule == "noise"
    assert_allclose(result.tau2, 19, rtol=0.3)
    assert same_partition(result.labels, problem.groups)


def test_the_reason_is_worded_from_groups_and_tau2():
    """Users of one group, each coordinate known up to 0.1, differ by 0.3: three times that."""
    theta = 0.3 * np.random.default_rng(0).standard_normal((200, 5))
    for extra in (
        {"noise": np.full(200, 5 * 0.01)},
        {"covariance": np.tile(0.01 * np.eye(5), (200, 1, 1))},
    ):
        result = noise_mixture(theta, **extra)
        assert result.reason == result.reason_for(result.tau2_mean)
        times = float(result.reason.split("about ")[1].split(" times")[0])
        assert_allclose(times, 3, rtol=0.1)
        assert "differ by about 2 times a user's noise" in result.reason_for(0.04)
        assert "differ only by noise" in result.reason_for(0.0)
        assert result.reason_for(None) == "1 group found by the mixture with known noise."
    assert noise_mixture(theta, n_clusters=2).reason.startswith("2 groups (2 asked for) found by")


def test_coordinates_without_noise_keep_their_differences():
    """Noise is floored there, and the unit of tau2 is the floor, not zero."""
    theta = np.random.default_rng(0).standard_normal((60, 3))
    result = noise_mixture(theta, covariance=np.zeros((60, 3, 3)))
    assert_allclose(result.tau2 * np.diag(result.metric), theta.var(axis=0), rtol=0.2)
    assert "differ by about" in result.reason


def test_users_of_unknown_noise_change_nothing_but_their_own_label():
    problem = uneven_noise_problem()
    theta = problem.theta.copy()
    theta[45:] += np.random.default_rng(0).standard_normal((15, 4))
    alone = noise_mixture(problem.theta[:45], covariance=problem.covariance[:45])
    covariance = problem.covariance.copy()
    covariance[45:] = np.inf
    result = noise_mixture(theta, covariance=covariance)
    assert_array_equal(result.centers, alone.centers)
    assert_array_equal(result.labels, problem.groups)
    assert (result.tau2, result.scores) == (alone.tau2, alone.scores)
    assert np.isinf(result.noise_units[45:]).all()


@pytest.mark.parametrize("n_known", [0, 3])
def test_noise_that_too_few_know_is_left_aside(n_known):
    problem = uneven_noise_problem()
    noise = np.where(np.arange(60) < n_known, problem.noise, np.inf)
    result = noise_mixture(problem.theta, noise=noise)
    assert result.rule == "shared-variance"
    assert ("Only 3 of 60 users have" if n_known else "None of 60 users has") in result.reason
    assert_array_equal(result.labels, problem.groups)


@pytest.mark.parametrize("known", ["covariance", "noise", None])
@pytest.mark.parametrize("n_users", [1, 2, 3])
def test_very_few_users(n_users, known):
    problem = uneven_noise_problem(n_users, 1)
    extra = {known: getattr(problem, known)} if known else {}
    result = noise_mixture(problem.theta, **extra)
    assert_array_equal(result.labels, 0)
    assert_allclose(result.centers[0], problem.theta.mean(axis=0), atol=3)


@pytest.mark.parametrize("noise", [None, 0.0, 1e-310, 1e-300, 1.0, 1e300])
def test_users_who_coincide_are_one_group(noise):
    extra = {} if noise is None else {"noise": np.full(20, noise)}
    result = noise_mixture(np.full((20, 3), 7.0), **extra)
    assert result.n_clusters == 1
    assert_allclose(result.centers, 7, rtol=1e-12)


@pytest.mark.parametrize("noise", [None, 0.0, 0.1])
def test_repeated_users_keep_their_groups(noise):
    groups = np.arange(30) % 3
    theta = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]])[groups]
    extra = {} if noise is None else {"noise": np.full(30, noise)}
    assert_array_equal(noise_mixture(theta, **extra).labels, groups)


def test_a_user_without_noise_is_floored():
    problem = uneven_noise_problem()
    noise = np.where(np.arange(60) == 0, 0.0, problem.noise)
    result = noise_mixture(problem.theta, noise=noise)
    assert_array_equal(result.labels, problem.groups)
    assert result.noise_units.min() > 0


@pytest.mark.parametrize("n_clusters", [1, 2, 3, 5])
def test_the_number_of_groups_can_be_given(n_clusters):
    problem = uneven_noise_problem()
    result = noise_mixture(problem.theta, covariance=problem.covariance, n_clusters=n_clusters)
    assert (result.rule, result.n_clusters) == ("given", n_clusters)


EYE = np.broadcast_to(np.eye(4), (60, 4, 4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"theta": np.full((60, 4), np.nan)}, "60 of 60 rows hold NaN"),
        ({"theta": np.ones(60)}, r"shape \(60,\)"),
        ({"noise": -np.ones(60)}, "negative or NaN noise"),
        ({"noise": np.ones(59)}, "one number"),
        ({"covariance": EYE[:, :3]}, r"\(60, 4, 4\)"),
        ({"covariance": EYE + np.eye(4, k=1)}, "not symmetric"),
        ({"covariance": -EYE}, "negative variance"),
        ({"n_clusters": 61}, "asked of 60 users"),
        ({"n_clusters": 0}, "n_clusters=0"),
        ({"max_clusters": "many"}, "max_clusters='many'"),
    ],
)
def test_errors_say_what_was_seen(change, message):
    with pytest.raises(ValueError, match=message):
        noise_mixture(**{"theta": uneven_noise_problem().theta, **change})


# --- the parts -------------------------------------------------------------------------------


def test_unweighted_ward_is_scipys():
    points = np.random.default_rng(0).standard_normal((40, 3))
    edges, tree = ward_merges(points, np.ones(40)), linkage(points, "ward")
    for k in (1, 2, 5, 39, 40):
        assert same_partition(cut(edges, k), fcluster(tree, k, "maxclust"))


def test_a_weight_in_ward_is_a_number_of_copies():
    rng = np.random.default_rng(0)
    points, copies = rng.standard_normal((15, 2)), rng.integers(1, 5, 15)
    edges, tree = ward_merges(points, copies), linkage(np.repeat(points, copies, axis=0), "ward")
    for k in (2, 4, 7):
        copied = fcluster(tree, k, "maxclust")
        assert same_partition(np.repeat(cut(edges, k), copies), copied)


def test_tau2_is_the_lowest_of_several_valleys():
    """Uneven noise gives two valleys; a fine grid knows which is lower."""
    rng = np.random.default_rng(3)
    noise = np.repeat([1e-4, 1.0], 50)
    spread = rng.chisquare(5, 100) * np.repeat([1e-4, 3.0], 50)
    degrees, bins = np.full(100, 5.0), np.repeat([0, 1], 50)
    grid = np.concatenate([[0.0], np.geomspace(1e-7, 10, 4000)])[:, None] + noise
    height = (5 * np.log(grid) + spread / grid).sum(axis=1)
    tau2 = between_users(noise, spread, degrees, bins, price=6.0)
    mine = (5 * np.log(noise + tau2) + spread / (noise + tau2)).sum()
    assert mine <= height.min() + 6.0  # the price of tau2 > 0


def test_em_climbs():
    problem = uneven_noise_problem(apart=0.4)
    cloud = Cloud(problem.theta, problem.noise / 4, 4)
    start = MixtureParameters(problem.theta[:3], np.ones(3), np.full(3, 1 / 3))
    logliks = [
        sweep(cloud, em(cloud, start, max_sweeps=2 * k, tol=0).mixture).loglik for k in range(1, 8)
    ]
    # Restricted likelihood for tau2, not likelihood: a step may cost a little, never a lot.
    assert np.diff(logliks).min() > -0.05 * abs(logliks[-1] - logliks[0]) - 1e-6


# --- the estimator ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([NoiseMixture(random_state=0), NoiseMixture(2)])
def test_scikit_learn_conventions(estimator, check):
    check(estimator)


def test_the_estimator_is_the_function():
    problem = uneven_noise_problem()
    estimator = NoiseMixture(random_state=4).fit(problem.theta, covariance=problem.covariance)
    result = noise_mixture(problem.theta, covariance=problem.covariance, seed=4)
    assert_array_equal(estimator.labels_, result.labels)
    assert_array_equal(estimator.cluster_centers_, result.centers)
    assert (estimator.n_clusters_, estimator.rule_) == (3, "noise")
    assert_array_equal(estimator.predict(problem.theta), result.labels)
