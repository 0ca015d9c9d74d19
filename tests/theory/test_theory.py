"""Theory: two statements of the paper about one thing agree; conditions keep what they promise."""

from __future__ import annotations

import doctest
import inspect
import math
import re
import subprocess
import sys
from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from odcl import theory
from odcl.risk.losses import Huber, Logistic, Multinomial, Poisson, Squared
from odcl.risk.risk import Risk
from odcl.theory import (
    LocalRates,
    all_for_all_rounds,
    alpha_cc,
    alpha_center,
    alpha_km,
    averaging_terms,
    c_constant,
    epsilon_that_keeps_the_rate,
    erm_distance,
    error_floor,
    ifca_accuracy,
    ifca_rounds,
    inexact_terms,
    iteration_ratio,
    largest_epsilon,
    local_rates,
    m_constant,
    m_over_users,
    mean_iterations,
    misclustered,
    odcl_terms,
    part_one_terms,
    problem_constants,
    sample_ratio,
    sample_ratio_cc,
    sample_ratio_inexact,
    sample_ratio_km,
    sample_ratio_part_one,
    separation,
    sgd_distance,
    sgd_iterations,
    smallest_n,
    smallest_T,
    table1,
    worst_error_floor,
)

few = settings(max_examples=40, deadline=None)
CONSTANTS = {"L": 2.0, "mu": 0.5, "R": 3.0, "N": 1.5, "G": 4.0, "F_star": 0.7, "dim": 5}
RATES = {"L": 2.0, "mu": 0.5, "R": 3.0, "N": 1.5, "H": 0.8, "dim": 5}
SIZES = st.lists(st.integers(1, 50), min_size=2, max_size=6)
POSITIVE = st.floats(1e-2, 1e2)


# -- smallest integers ----------------------------------------------------------------------------


@pytest.mark.parametrize("ratio", [0, 1, 2.7, 2.73, 2.74, 2.88, 2.89, 3.0, 5.5, 20, 333.3, 2000.0])
def test_smallest_n_is_the_first_that_a_search_from_3_finds(ratio):
    n = 3
    while not n / math.log(n) > ratio:
        n += 1
    assert smallest_n(ratio) == n


def test_smallest_n_near_three_where_n_over_log_n_turns():
    """2 / log 2 = 2.89 is larger than 3 / log 3 = 2.73, and 2 = n < 3 is not in Theorem 1."""
    assert smallest_n(2.8) == 4
    assert smallest_n(2.73) == 3
    assert smallest_n(4 / math.log(4) + 1e-9) == 5  # 4 / log 4 is 2 / log 2


@pytest.mark.parametrize("ratio", [0.0, 15.0, 16.1, 40.0, 999.5, 5e4])
def test_smallest_T_is_the_first_that_a_search_from_16_finds(ratio):
    T = 16
    while not math.log(math.log(T)) * ratio <= T:
        T += 1
    assert smallest_T(ratio) == T
    assert smallest_T(ratio, least=T + 7) == T + 7


@few
@given(a=st.floats(0, 1e12), b=st.floats(0, 1e12))
def test_smallest_integers_grow_with_the_ratio(a, b):
    low, high = sorted([a, b])
    assert smallest_n(low) <= smallest_n(high)
    assert smallest_T(low) <= smallest_T(high)


def test_smallest_n_takes_any_finite_ratio():
    n = smallest_n(1e150)
    assert_allclose(n / math.log(n), 1e150, rtol=1e-12)


# -- separation that methods need -----------------------------------------------------------------


def test_general_bound_at_alpha_cc_is_the_odcl_cc_bound():
    """Theorem 1 at Lemma 1's alpha, and Section 4.2, item 1."""
    ratio = sample_ratio(alpha_cc(n_users=100, smallest=10), M=3.0, D=2.0)
    assert_allclose(ratio, 256 * 3.0 * 90**2 / (10**2 * 2.0**2))
    assert_allclose(ratio, sample_ratio_cc(100, 10, M=3.0, D=2.0))


@few
@given(sizes=SIZES, M=POSITIVE, D=POSITIVE, c=st.floats(1, 200))
def test_theorem_1_at_each_methods_alpha_is_its_own_display(sizes, M, D, c):
    m, small = sum(sizes), min(sizes)
    cc, km = sample_ratio(alpha_cc(m, small), M, D), sample_ratio(alpha_km(m, small, c), M, D)
    assert_allclose(cc, sample_ratio_cc(m, small, M, D), rtol=1e-12)  # Section 4.2, item 1
    assert_allclose(km, sample_ratio_km(m, small, M, D, c), rtol=1e-12)  # Section 4.2, item 2
    part_one = sample_ratio(alpha_center(m, small, c), M, D)
    assert_allclose(part_one, sample_ratio_part_one(m, small, M, D, c), rtol=1e-12)  # Theorem 3
    # The remark after Theorem 3 on what Part I saves, with c where it belongs.
    saved = 64 * M * (1 + 2 * c * math.sqrt(m / small)) / D**2
    assert_allclose(km - part_one, saved, rtol=1e-9)


def test_theorem_1_is_equation_11_at_a_quarter_of_D():
    assert sample_ratio(5.0, 2.0, 3.0, gamma=0.75) == sample_ratio(5.0, 2.0, 3.0)
    assert_allclose(sample_ratio(5.0, 2.0, 3.0, gamma=1e-12), 4 * 2.0 * 25 / 9)
    assert sample_ratio(5.0, 2.0, 3.0, gamma=1.4) > sample_ratio(5.0, 2.0, 3.0, gamma=1.0)


def test_lemma_2_asks_two_more_than_definition_3():
    assert_allclose(alpha_km(80, 5) - alpha_center(80, 5), 2, rtol=1e-12)
    assert_allclose(alpha_center(80, 5), 2 * 100 * 4)


def test_convex_clustering_asks_more_by_m_over_the_smallest_only_in_the_limit():
    """Section 4.2 compares orders; with c = 100 convex clustering asks less up to 2,503."""
    for c in (1.0, 100.0):
        m, small = 10**14, 10
        ratio = sample_ratio_cc(m, small, 1.0, 1.0) / sample_ratio_km(m, small, 1.0, 1.0, c)
        assert_allclose(ratio / (m / small), 4 / c**2, rtol=1e-5)
    assert alpha_cc(2502, 1) < alpha_km(2502, 1)
    assert alpha_cc(2504, 1) > alpha_km(2504, 1)


@few
@given(m=st.integers(4, 1000), data=st.data(), M=POSITIVE, D=POSITIVE)
def test_more_users_smaller_clusters_and_less_separation_need_more_samples(m, data, M, D):
    small = data.draw(st.integers(2, m // 2))
    for ratio in (sample_ratio_cc, sample_ratio_km, sample_ratio_part_one):
        at = ratio(m, small, M, D)
        assert ratio(m + 1, small, M, D) > at
        assert ratio(m, small - 1, M, D) > at
        assert ratio(m, small, M, 0.9 * D) > at
        assert ratio(m, small, 1.1 * M, D) > at


# -- constants ------------------------------------------------------------------------------------


@few
@given(
    n=st.integers(3, 10**6),
    L=st.floats(0.1, 100),
    condition=st.floats(1, 1e3),
    R=st.floats(1 / 6, 1e3),
    N=st.floats(0, 1e3),
    G=st.floats(0, 1e3),
    F_star=st.floats(0, 1e3),
    dim=st.integers(1, 1000),
)
def test_M_log_n_over_n_bounds_equation_8(n, L, condition, R, N, G, F_star, dim):
    """Appendix B.1: from Eq. (8) to Eq. (9), for every n >= 3 and R >= 1/6."""
    how = {"L": L, "mu": L / condition, "R": R, "N": N, "G": G, "F_star": F_star, "dim": dim}
    # At R = 1/6 and n = 3 some terms of the two sides are equal: rounding.
    assert erm_distance(n, **how) <= m_constant(**how) * math.log(n) / n * (1 + 1e-12)


def test_M_is_of_the_order_of_equation_8():
    """Large n: of the four terms the last vanishes, and constants come without their log n."""
    small = {"R": 1 / 6, "dim": 1, "N": 0.0, "G": 0.0, "F_star": 1e9}
    n = 10**100
    bound = erm_distance(n, L=1.0, mu=0.5, **small) / (math.log(n) / n)
    assert_allclose(bound / m_constant(L=1.0, mu=0.5, **small), 3 / (3 + math.log(2)), rtol=1e-2)


def test_C_is_what_appendix_B_writes_out_for_delta_and_epsilon_of_one_over_n_cubed():
    n, R, d = 50, 2.0, 7
    out = 2 * (math.log(2) + d * math.log(6 * R) + (d + 1) * 3 * math.log(n))
    assert_allclose(c_constant(n**-3, n**-3, R=R, dim=d), out)


@pytest.mark.parametrize("name", ["L", "R", "N", "G", "F_star", "dim"])
def test_M_grows_with_every_constant_and_falls_with_mu(name):
    at = m_constant(**CONSTANTS)
    assert m_constant(**{**CONSTANTS, name: 2 * CONSTANTS[name]}) > at
    assert m_constant(**{**CONSTANTS, "mu": 2 * CONSTANTS["mu"]}) < at


def test_M_is_the_sum_that_appendix_B_writes():
    log, d = math.log(2), 5
    cover = d * (math.log(18) + 3)
    first, second = 16 * 2 * 0.7 * (log + 3) / 0.25, 64 * 9 * 2 * (3 + log + cover) / 0.5
    third, fourth = 16 * 3 * 1.5 * (log + 3) / 0.5, (8 + 16 * 6 * (4 + log + cover)) / 0.5
    assert_allclose(m_constant(**CONSTANTS), first + second + third + fourth)


def test_M_does_not_change_with_the_unit_of_the_loss():
    scaled = {k: 7 * v if k in ("L", "mu", "N", "G", "F_star") else v for k, v in CONSTANTS.items()}
    assert_allclose(m_constant(**scaled), m_constant(**CONSTANTS))


def test_M_bar_is_the_mean_over_users_and_at_most_M():
    of = m_over_users([1.0, 5.0], [30, 10])
    assert (of.M, of.M_bar) == (5.0, 2.0)
    assert m_over_users([3.0, 3.0], [4, 9]).M_bar == 3.0


LOSSES = [Squared(), Huber(0.7), Huber(50.0), Logistic(), Multinomial(4), Poisson()]
BOUNDS = {"n_features": 3, "row_norm": 1.5, "radius": 1.2, "least_eigenvalue": 0.1}


def rows_at_the_bounds(loss, rng, n):
    """Rows with ||x|| <= 1.5 and targets up to 4, many of them at the bounds."""
    x = rng.normal(size=(n, 3))
    x *= 1.5 / np.linalg.norm(x, axis=1, keepdims=True) * rng.choice([0.3, 1.0], (n, 1))
    targets = {
        "squared": rng.choice([-4.0, 4.0, 0.3], n),
        "logistic": rng.choice([-1.0, 1.0], n),
        "multinomial": rng.integers(0, 4, n).astype(float),
        "poisson": rng.choice([0.0, 1.0, 4.0], n),
    }
    return x, targets.get(loss.name, targets["squared"])


@pytest.mark.parametrize("l2", [0.0, 0.4])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_constants_bound_gradients_and_hessians_of_every_row(loss, l2):
    """Assumptions 3, 5, 6 and 8 on rows and models at the bounds and inside them."""
    if loss.name == "huber" and loss.delta < 5 and l2 == 0:
        with pytest.raises(ValueError, match="mu = 0"):
            problem_constants(loss, **BOUNDS, target=4.0)
        return
    rng = np.random.default_rng(0)
    is_label = isinstance(loss, Logistic | Multinomial)
    of = problem_constants(loss, **BOUNDS, target=None if is_label else 4.0, l2=l2)
    X, y = rows_at_the_bounds(loss, rng, 60)
    risk = Risk(loss, l2)
    assert of.dim == risk.dim(3)
    models = rng.normal(size=(len(y), 2, of.dim))
    models *= 1.2 / np.linalg.norm(models, axis=2, keepdims=True)
    models[:, 1] *= rng.uniform(size=(len(y), 1))
    slack = 1 + 1e-12
    for x, target, (theta, other) in zip(X, y, models, strict=True):
        row = (x[None], np.array([target]))
        gradient = risk.gradient(theta, *row)
        assert np.linalg.norm(gradient) <= of.N * slack
        assert np.linalg.norm(gradient - l2 * theta) <= of.sigma / 2 * slack
        hessian = risk.hessian(theta, *row)
        assert np.linalg.norm(hessian, 2) <= of.L * slack
        change = np.linalg.norm(hessian - risk.hessian(other, *row), 2)
        assert change <= of.H * np.linalg.norm(theta - other) * slack + 1e-12
        assert risk.value(np.zeros(of.dim), *row) <= of.F_star * slack
    assert min(of.N, 2 * of.L * of.R) * slack >= of.G  # theta* is inside Theta
    mu = risk.constants(X, y, of.R).mu
    eigenvalue = np.linalg.eigvalsh(X.T @ X / len(X))[0]
    assert replace_eigenvalue(loss, of, eigenvalue, l2) <= mu * slack


def replace_eigenvalue(loss, of, eigenvalue, l2):
    """mu for these rows' own second moments."""
    how = {**BOUNDS, "least_eigenvalue": eigenvalue}
    return problem_constants(loss, **how, target=4.0, l2=l2).mu


def test_constants_of_one_row_are_attained():
    """No idle bounds: one feature of size B, the model at the end of its ball."""
    how = {"n_features": 1, "row_norm": 2.0, "radius": 1.5, "least_eigenvalue": 4.0}
    squared = problem_constants("squared", **how, target=1.0)
    assert (squared.L, squared.mu, squared.N, squared.H, squared.F_star) == (4, 4, 8, 0, 0.5)
    # The optimum at one end of the ball, the model at the other: a gradient of L times 2 R.
    assert problem_constants("squared", **how, target=99.0).G == 4 * 2 * 1.5
    logistic = problem_constants("logistic", **how)
    p = 1 / (1 + math.exp(-3.0))
    assert_allclose([logistic.L, logistic.mu], [1.0, 4 * p * (1 - p)])
    assert_allclose([logistic.N, logistic.F_star], [2 * p, math.log(2)])
    z = math.log((1 + 3**-0.5) / (1 - 3**-0.5))  # where the curvature changes fastest
    e = 1e-5
    rate = np.diff(Logistic().curve(np.array([[z - e], [z + e]]), np.ones(2)).ravel()) / (2 * e)
    assert_allclose(abs(rate[0]) * 8, logistic.H, rtol=1e-8)
    # Two classes with coefficients that sum to zero: the logistic loss, theta shorter by sqrt 2.
    two = problem_constants(Multinomial(2), **{**how, "radius": 1.5 / math.sqrt(2)})
    assert_allclose(two.H, logistic.H * math.sqrt(8))
    assert_allclose(two.L, 2 * logistic.L)
    assert_allclose(two.N, math.sqrt(2) * logistic.N)
    poisson = problem_constants("poisson", **how, target=3.0)
    assert_allclose([poisson.L, poisson.H], [4 * math.exp(3), 8 * math.exp(3)])


def test_known_noise_lowers_N_alone():
    loose = problem_constants("squared", **BOUNDS, target=4.0)
    tight = problem_constants("squared", **BOUNDS, target=4.0, noise=0.2)
    assert_allclose(tight.N, 0.3)
    assert replace(tight, N=loose.N) == loose
    assert tight.M < loose.M
    assert tight.gamma == tight.sigma + 2 * tight.L * tight.R + tight.N
    assert problem_constants("squared", **BOUNDS, target=4.0, noise=1e9) == loose


# -- Theorem 2 ------------------------------------------------------------------------------------


def test_exact_local_models_give_theorem_1():
    assert sample_ratio_inexact(9.0, 2.0, 4.0, epsilon=0.0, xi=3.0) == sample_ratio(9, 2, 4)


def test_the_admissible_epsilon_is_where_theorem_2_runs_out_of_samples():
    alpha, M, D, xi = 9.0, 2.0, 4.0, 3.0
    most = largest_epsilon(alpha, D, xi)
    assert_allclose(most, D**2 / (4 * 8 * xi * alpha**2))
    for share in (0.1, 0.5, 0.99):
        got = sample_ratio_inexact(alpha, M, D, epsilon=share * most, xi=xi)
        room = D**2 / (4 * alpha**2) - 8 * share * most * xi
        assert_allclose(got, 4 * M / room, rtol=1e-12)
    with pytest.raises(ValueError, match="no number of samples"):
        sample_ratio_inexact(alpha, M, D, epsilon=most, xi=xi)


def test_the_condition_of_theorem_2_separates_the_inexact_models():
    """Its proof, step by step: Lemma 7, strong convexity, Eq. (7), Eq. (6) with gamma = D/4."""
    alpha, M, D, xi, mu = 9.0, 2.0, 4.0, 3.0, 0.7
    epsilon = 0.6 * largest_epsilon(alpha, D, xi)

    def apart(n, epsilon):
        squared_distance = M * math.log(n) / n + 2 / mu * (epsilon * xi * mu)
        return alpha * 2 * math.sqrt(squared_distance) < D / 2

    n = smallest_n(sample_ratio_inexact(alpha, M, D, epsilon=epsilon, xi=xi))
    assert apart(n, epsilon)
    assert not apart(n - 1, epsilon)
    # What Theorem 2 prints stops short of this.
    printed = 4 * M / (D**2 / (4 * alpha**2) - 4 * epsilon * xi)
    assert not apart(smallest_n(printed), epsilon)


def test_an_epsilon_that_keeps_the_rate_adds_no_more_than_the_variance():
    how = {"alpha": 4.0, "D": 2.0, "xi": 1.0}
    epsilon = epsilon_that_keeps_the_rate(1000, 25, **how)
    assert epsilon == 1 / 25_000
    assert epsilon_that_keeps_the_rate(3, 1, **how) == largest_epsilon(**how)
    terms = inexact_terms([25, 5], n=1000, D=2.0, R=1.0, dim=3, decay=0.1, epsilon=epsilon)
    assert terms["solver"] <= 2 * terms["variance"]


@pytest.mark.parametrize("epsilon", [1e-3, 0.1, 1.0, 50.0, 1e6])
@pytest.mark.parametrize("gamma", [0.01, 3.0])
def test_after_T_steps_both_lemmas_put_the_local_model_within_epsilon(epsilon, gamma):
    """Lemma 6 with delta = n^-3: squared distance <= eps^2; Lemma 5: expectation <= eps."""
    mu, n = 0.5, 40
    T = sgd_iterations(epsilon, gamma=gamma, mu=mu, n=n)
    assert T >= 16
    assert sgd_distance(T, gamma=gamma, mu=mu, delta=n**-3.0) <= epsilon**2
    assert 4 * gamma**2 / (mu**2 * T) <= epsilon * (1 + 1e-12)
    ratio = iteration_ratio(epsilon, gamma=gamma, mu=mu, n=n)
    assert T / math.log(math.log(T)) >= ratio * (1 - 1e-12)
    if max(16, mean_iterations(epsilon, gamma=gamma, mu=mu) + 1) < T:
        assert (T - 1) / math.log(math.log(T - 1)) <= ratio * (1 + 1e-12)


def test_sgd_distance_is_lemma_6():
    bound = (12 * 4 / 0.25 + 8 * 2 * 243 * math.log(math.log(1000) / 0.05)) / 1000
    assert_allclose(sgd_distance(1000, gamma=2.0, mu=0.5, delta=0.05), bound)


def test_fifteen_steps_are_one_too_few():
    """The proof of Lemma 7 wants log log T >= 1."""
    assert math.log(math.log(15)) < 1 < math.log(math.log(16))
    gamma, mu, n = 3.0, 0.5, 40
    ratio = 15 / math.log(math.log(15))  # so that the paper's condition is just met by T = 15
    epsilon = math.sqrt(iteration_ratio(1.0, gamma=gamma, mu=mu, n=n) / ratio)
    assert sgd_distance(15, gamma=gamma, mu=mu, delta=n**-3.0) > epsilon**2
    assert sgd_iterations(epsilon, gamma=gamma, mu=mu, n=n) == 16


# -- Theorem 3 ------------------------------------------------------------------------------------


def test_at_c_100_the_numbers_are_those_of_the_remark():
    of = misclustered()
    assert 0.987 <= of.kept < 0.9875
    assert 0.0125 < of.foreign <= 0.013
    assert 1.6e-4 < worst_error_floor(1.0) <= 1.69e-4


@pytest.mark.parametrize("c", [12.0, 8 * math.sqrt(6), 100.0])
def test_parts_1_and_2_of_theorem_3_bound_its_fraction(c):
    """Users stolen and lost as parts 1 and 2 allow; both roads of the proof to epsilon_k."""
    of = misclustered(c)
    worst = of.foreign / (of.kept + of.foreign)
    assert_allclose(worst, of.foreign, rtol=1e-12)  # sharper than the paper's
    assert worst < of.fraction
    assert_allclose(of.fraction, of.foreign / of.kept)
    other_road = 256 / (c**2 + 128)
    assert_allclose(1 - of.kept / (1 + of.foreign), other_road)
    assert (of.fraction <= other_road * (1 + 1e-12)) == (c >= 8 * math.sqrt(6))


@few
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.1, 9)), min_size=1, max_size=5))
def test_no_error_floor_exceeds_the_worst(pairs):
    """The remark's chain: sum eps_kl^2 D_kl <= D_max (sum eps_kl)^2."""
    most = misclustered().fraction
    total = math.fsum(f for f, _ in pairs) or 1.0
    fractions, squared = [f / total * most for f, _ in pairs], [d for _, d in pairs]
    floor = error_floor(fractions, squared)
    assert 0 <= floor <= worst_error_floor(max(squared)) * (1 + 1e-12)
    terms = part_one_terms(50, 5, n=10**9, fractions=fractions, squared_distances=squared)
    assert terms["floor"] == floor
    assert floor == 0 or sum(terms.values()) == pytest.approx(floor + 1 / (5 * 10**9), rel=1e-6)


# -- bounds ---------------------------------------------------------------------------------------


def test_theorem_1_is_lemma_4_and_the_price_of_a_missed_clustering():
    one, two = local_rates(**RATES), local_rates(**{**RATES, "mu": 1.0})
    bound = odcl_terms([one, two], [20, 5], 1, n=400, D=2.0)
    for name, value in averaging_terms(two, n=400, size=5).items():
        assert bound[name] == value
    far = odcl_terms([one, two], [20, 5], 1, n=400, D=1e20)
    missed = {name: v for name, v in far.items() if name.startswith("missed")}
    assert max(missed, key=missed.get) == "missed_users"
    assert_allclose(missed["missed_users"], 9 * 25 / 400**3)
    # (R / D)^2 = 1e-39 in front of constants of at most 1e15: nothing is left of the others.
    assert sum(missed.values()) <= (1 + 1e-12) * missed["missed_users"]


def test_missed_terms_are_lemma_4_summed_by_chebyshev():
    """P(some mean is off by gamma) <= sum_k Lemma 4 / gamma^2, with mu_F, |C_(K)|, decay minima."""
    rates = local_rates(**RATES)
    bound = odcl_terms([rates, rates, rates], [8, 8, 8], 0, n=500, D=2.0)
    own = averaging_terms(rates, n=500, size=8)
    for name in own:
        assert_allclose(bound[f"missed_{name}"], 3 * (3.0 / 2.0) ** 2 * own[name], rtol=1e-12)
    rates = replace(rates, tau=0.0)  # which hides the other part of the rare event
    bound = odcl_terms([rates, rates, rates], [8, 8, 8], 0, n=500, D=2.0)
    assert_allclose(bound["missed_rare"], 3 * (3.0 / 2.0) ** 2 * bound["rare"], rtol=1e-12)


def test_the_smallest_cluster_rules_the_order_of_every_cluster():
    rates = [local_rates(**RATES)] * 2
    large = odcl_terms(rates, [1000, 2], 0, n=10**12, D=2.0)
    assert max(large, key=large.get) == "missed_variance"
    assert large["missed_variance"] > 100 * large["variance"]


@pytest.mark.parametrize("H", [0.0, 0.8])
def test_lemma_4_does_not_change_with_the_unit_of_the_loss(H):
    """L, mu, N and H all carry it; what Lemma 4 prints for nu does not pass."""
    how = {**RATES, "H": H}
    scaled = {k: 7 * v if k in ("L", "mu", "N", "H") else v for k, v in how.items()}
    one, other = local_rates(**how), local_rates(**scaled)
    for name in ("decay", "beta", "lam", "upsilon", "nu", "tau"):
        assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-12)
    printed = other.nu * other.mu**4 / (one.nu * one.mu**4)
    assert_allclose(printed, 7**4)


@pytest.mark.parametrize("dim", [1, 2, 50])
@pytest.mark.parametrize("N", [0.1, 1.5])
def test_rates_of_lemma_4_are_the_moments_of_appendix_E(dim, N):
    """Fourth moments times n^2 of P, Q, the gradient and the model; Sigma^-1 is 1 / mu at most."""
    L, mu, H, R, rho = 2.0, 0.5, 0.8, 3.0, 0.3
    of = local_rates(L=L, mu=mu, N=N, H=H, R=R, dim=dim, rho=rho, c1=1.3, c2=0.7)
    near = min(rho, rho * mu / (2 * H))
    events = (((1 - rho) * mu * near) ** 2 / (8 * 1.3 * N**2), (rho * mu) ** 2 / (8 * 0.7 * L**2))
    assert_allclose(of.decay, min(events))  # of E_1 and of E_2
    assert_allclose(of.beta, N**4 / ((1 - rho) * mu) ** 4 + dim * R**4 / min(events) ** 2)
    P, Q, gradient = (L * max(1, math.log(dim))) ** 4, H**4 * of.beta, N**4
    assert_allclose(of.upsilon, (math.sqrt(P * of.beta) + H**2 * of.beta) / mu**2)
    assert_allclose(of.lam, math.sqrt(gradient) * (math.sqrt(P) + math.sqrt(Q)) / mu**4)
    assert_allclose(of.nu, math.sqrt(of.beta) * (P + Q) / mu**4)
    second, third = math.sqrt(gradient * (P + Q)), math.sqrt(of.beta * (P**2 + Q**2))
    assert_allclose(of.tau, math.sqrt(gradient) / mu**2 + second / mu**4 + third / mu**4)


def test_nu_is_the_last_term_of_tau():
    """sqrt(beta L^8 + beta^3 H^8) and its parts' sum, in Lemma 4 and in the proof of tau."""
    rates = local_rates(**RATES)
    first = (rates.N / rates.mu) ** 2
    last = rates.tau - first
    assert rates.nu / math.sqrt(2) <= last
    assert last <= rates.nu + math.sqrt(2) * rates.lam


def test_beta_bounds_n_squared_times_the_probability_of_a_bad_sample():
    """Appendix E: N^4 / n^2 + d R^4 exp(-decay n) = O(beta / n^2), for every n."""
    rates = local_rates(**RATES)
    printed = (rates.N / (0.5 * rates.mu)) ** 4 + 5 * 3.0**4 / rates.decay
    n = np.geomspace(1, 1e8, 2000)
    rare = 5 * 3.0**4 * np.exp(-rates.decay * n) * n**2
    assert rare.max() <= rates.beta  # 4 / e^2 of it
    assert rare.max() > 10 * printed


@few
@given(n=st.integers(3, 10**6), sizes=SIZES, D=POSITIVE)
def test_terms_fall_with_n_and_never_grow_with_D(n, sizes, D):
    rates = [local_rates(**RATES)] * len(sizes)
    at = odcl_terms(rates, sizes, 0, n=n, D=D)
    more, farther = (
        odcl_terms(rates, sizes, 0, n=10 * n, D=D),
        odcl_terms(rates, sizes, 0, n=n, D=2 * D),
    )
    for name, value in at.items():
        assert more[name] < value or value == 0
        assert farther[name] <= value


def test_theorem_2_has_the_powers_of_theorem_1():
    """Ten times the samples: both bounds fall alike, term by term; epsilon's stays."""
    rates = [local_rates(**RATES)] * 2
    exact = [odcl_terms(rates, [7, 4], 0, n=n, D=2.0) for n in (100, 1000)]
    how = {"D": 2.0, "R": 3.0, "dim": 5, "decay": rates[0].decay, "epsilon": 1e-3}
    inexact = [inexact_terms([7, 4], n=n, **how) for n in (100, 1000)]
    for name, power in [("variance", 1), ("bias", 2), ("curvature", 2), ("third", 3)]:
        assert_allclose(exact[0][name] / exact[1][name], 10**power)
        assert_allclose(inexact[0][name] / inexact[1][name], 10**power)
    assert inexact[0]["solver"] == inexact[1]["solver"] == (2 * 9 / 4 + 1) * 1e-3
    assert (
        max(inexact[1], key=inexact[1].get) == "rare"
    )  # decay is 1e-6 of a sample: far from the limit


@few
@given(n=st.integers(3, 10**4), size=st.integers(1, 40), K=st.integers(2, 6), dim=st.integers(1, 9))
def test_theorem_2_without_solver_error_is_theorem_1_with_its_constants_hidden(n, size, K, dim):
    """All constants of Lemma 4 at 1, R = D = 1: what a missed clustering costs, up to K."""
    ones = dict.fromkeys(("N", "mu", "R", "beta", "lam", "upsilon", "nu", "tau"), 1.0)
    rates = LocalRates(**ones, dim=dim, decay=0.01)
    exact = odcl_terms([rates] * K, [size] * K, 0, n=n, D=1.0)
    inexact = inexact_terms([size] * K, n=n, D=1.0, R=1.0, dim=dim, decay=0.01, epsilon=0.0)
    assert inexact["solver"] == 0
    for name in ("variance", "bias", "curvature"):
        assert_allclose(exact[f"missed_{name}"], K * inexact[name])
    # m / n^3 with the K / n^3 of nu beside it; K times 1 / n in the rare event.
    third = exact["missed_third"] + exact["missed_users"]
    assert inexact["third"] <= third <= 2 * inexact["third"]
    assert inexact["rare"] <= exact["missed_rare"] * (1 + 1e-12)
    assert exact["missed_rare"] <= K * inexact["rare"] * (1 + 1e-12)


def test_theorem_3_without_misplaced_users_has_the_first_terms_of_theorem_2():
    """eps_kl = 0: no floor, and the variance and bias of exact recovery."""
    part_one = part_one_terms(12, 5, n=80, fractions=[0.0], squared_distances=[4.0])
    how = {"D": 2.0, "R": 3.0, "dim": 5, "decay": 0.1, "epsilon": 0.0}
    exact = inexact_terms([7, 5], n=80, **how)
    assert part_one["floor"] == 0
    assert (part_one["variance"], part_one["bias"]) == (exact["variance"], exact["bias"])


def test_the_accuracy_of_table_1_is_that_of_the_remark_after_theorem_2():
    how = {"alpha": 1.0, "D": 50.0, "xi": 1.0}
    epsilon = epsilon_that_keeps_the_rate(600, 25, **how)
    assert table1([25, 10], D=50.0, n=600) == table1([25, 10], D=50.0, n=600, epsilon=epsilon)


def test_rates_from_a_loss_go_into_lemma_4():
    of = problem_constants("logistic", **BOUNDS)
    rates = local_rates(L=of.L, mu=of.mu, N=of.N, H=of.H, R=of.R, dim=of.dim)
    assert all(value > 0 for value in astuple(rates))
    with pytest.raises(ValueError, match="exceed 1e308"):
        local_rates(L=of.L, mu=1e-60, N=of.N, H=of.H, R=of.R, dim=of.dim)


# -- communication and Table 1 --------------------------------------------------------------------


def test_ifca_rounds_of_the_text_and_of_table_1_are_one_order():
    """Section 4.3 at Table 1's accuracy is 4 kappa (m / C) times log of 4 Table 1's argument."""
    m, K, small, n, D = 100, 4, 20, 10**6, 5.0
    text = ifca_rounds(m, small, D=D, epsilon=ifca_accuracy(m, K, small, n), kappa=3.0)
    argument = D**2 * n * small**5 / (K**2 * m**4)
    assert_allclose(text, 4 * 3.0 * m / small * math.log(4 * argument))


def test_all_for_all_at_the_pooled_accuracy_takes_n_log_rounds():
    m, K, n = 100, 4, 60
    rounds = all_for_all_rounds(m, K, epsilon=K / (n * m), kappa=2.0, mu=0.5)
    assert_allclose(rounds, 2.0 / 0.5 * n * math.log(n * m / K))


@few
@given(sizes=SIZES, D=POSITIVE, M=POSITIVE, share=st.floats(0, 0.95))
def test_samples_of_table_1_are_theorems_1_and_2_up_to_their_constants(sizes, D, M, share):
    """ODCL-CC: 256 M; ODCL-KM, c = 1: 64 M. Inexact: xi takes up the rest of the constants."""
    m, small = sum(sizes), min(sizes)
    cc = 1 / table_sample(sizes, D, "ODCL-CC")
    km = 1 / table_sample(sizes, D, "ODCL-KM")
    assert_allclose(256 * M / cc, sample_ratio_cc(m, small, M, D), rtol=1e-9)
    assert_allclose(64 * M / km, sample_ratio_km(m, small, M, D, c=1), rtol=1e-9)
    for name, order, alpha, constant in [
        ("I-ODCL-CC", cc, alpha_cc(m, small), 64),
        ("I-ODCL-KM", km, alpha_km(m, small, c=1), 16),
    ]:
        epsilon = share * order
        ratio = sample_ratio_inexact(alpha, M, D, epsilon=epsilon, xi=1 / (8 * constant))
        table = table_sample(sizes, D, name, epsilon=epsilon)
        assert_allclose(ratio, 4 * constant * M * table, rtol=1e-9)


def table_sample(sizes, D, method, epsilon=0.0):
    """Samples of Table 1 without the |C_(1)| in its maximum: D so scaled that it does not matter.

    Both sides of the maximum are known to scale with D^-2 (epsilon with D^2), so that a D small
    enough shows the other side.
    """
    tiny = 1e-4
    rows = table1(sizes, D=D * tiny, n=10, epsilon=epsilon * tiny**2)
    samples = next(row.samples for row in rows if row.method == method)
    assert samples > max(sizes)
    return samples * tiny**2


def test_theory_is_loaded_without_the_report_and_prints_table_1_with_it():
    """Numbers do not depend on the words for them."""
    words = (
        "import sys, odcl; rows = odcl.theory.table1([25] * 4, D=3, n=600); "
        "print([name for name in sys.modules if name.startswith('odcl.report')]); print(rows)"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    before, header, *_ = done.stdout.splitlines()
    assert before == "[]"
    assert re.split(r" *\| *", header)[1:5] == [
        "method",
        "rounds",
        "their order",
        "samples per user",
    ]


def test_table_1_asks_for_what_the_paper_says_each_method_needs():
    rows = {row.method: row for row in table1([25] * 4, D=3.0, n=600)}
    assert list(rows) == ["IFCA", "ALL-for-ALL", "ODCL-KM", "ODCL-CC", "I-ODCL-KM", "I-ODCL-CC"]
    needs = {
        name: (r.needs_initialization, r.needs_clusters, r.needs_k, r.needs_separation)
        for name, r in rows.items()
    }
    assert needs["IFCA"] == (True, False, True, True)
    assert needs["ALL-for-ALL"] == (False, True, False, False)
    assert needs["ODCL-KM"] == needs["I-ODCL-KM"] == (False, False, True, False)
    assert needs["ODCL-CC"] == needs["I-ODCL-CC"] == (False, False, False, False)
    assert all(row.rounds == 1 for name, row in rows.items() if "ODCL" in name)
    assert rows["IFCA"].rounds > 1
    assert rows["ODCL-CC"].samples == 25  # n >= |C_(1)|: the clusters are far apart
    assert_allclose(rows["ALL-for-ALL"].samples, math.log(600 * 25))


def test_table_1_says_where_a_formula_says_nothing():
    rows = {row.method: row for row in table1([2, 98], D=0.1, n=3, epsilon=1.0)}
    assert rows["IFCA"].rounds is None
    assert rows["I-ODCL-CC"].samples is None
    assert rows["ODCL-CC"].samples == pytest.approx(98**2 / (4 * 0.01))
    assert rows["IFCA"].samples == pytest.approx(2 / 0.1**4)


def test_table_1_prints_as_markdown():
    rows = table1([25] * 4, D=3.0, n=600)
    lines = str(rows).splitlines()
    assert len({len(line) for line in lines[:8]}) == 1  # aligned, so that it reads as text too
    assert all(line.count("|") == 7 for line in lines[:8])
    for row, line in zip(rows, lines[2:8], strict=True):
        assert line.startswith(f"| {row.method} ")
        known = line.split("|")[-2].strip()
        assert (0 if known == "nothing" else len(known.split(","))) == sum(astuple(row)[5:])
    assert "hidden constants" in lines[-1]


def test_table_1_says_why_it_leaves_a_number_out():
    shown = str(table1([10] * 10, D=1, n=100))
    assert re.search(r"^\| IFCA +\| +- \|", shown, re.M)
    assert "Rounds '-': with so few samples" in shown


# -- separation of given models -------------------------------------------------------------------


def models_on_axes(rng, sizes, dim=3, spread=1.0, gap=10.0):
    """Models around centres on the axes, and their clustering."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    centers = gap * np.eye(len(sizes), dim)
    return centers[labels] + spread * rng.uniform(-1, 1, (len(labels), dim)), labels


def test_separation_of_four_points_by_hand():
    """-1, 1 | 99, 101: the counterexample to the footnote of Lemma 1."""
    of = separation(np.array([[-1.0], [1.0], [99.0], [101.0]]), np.array([0, 0, 1, 1]), c=5)
    assert (of.radius, of.gap, of.alpha) == (1.0, 100.0, 100.0)
    assert (of.interval.low, of.interval.high) == (
        1.0,
        25.0,
    )  # 2 / 2 and 100 / 4; the footnote begins at .5
    assert_allclose(of.center_separation, 100 / (2 / math.sqrt(2) * 2))  # ||A - C||_F = 2
    assert_allclose(of.proximity, 98 / (2 / math.sqrt(2) * 2))  # from 1: 99 - 1
    assert (of.alpha_cc, of.alpha_km) == (alpha_cc(4, 2), alpha_km(4, 2, c=5))
    assert of.guaranteed == ("ODCL-CC", "ODCL-KM")
    assert of.part_one_guaranteed
    between = replace(of, c=35.0)  # center separation 35.4, proximity 34.6
    assert between.guaranteed == ("ODCL-CC",)
    assert between.part_one_guaranteed
    assert not replace(of, c=36.0).part_one_guaranteed


def by_the_definitions(theta, labels):
    """alpha, center separation and proximity, read off the paper with loops."""
    ks = np.unique(labels)
    mu = {k: theta[labels == k].mean(axis=0) for k in ks}
    size = {k: (labels == k).sum() for k in ks}
    off = np.array([a - mu[k] for a, k in zip(theta, labels, strict=True)])
    operator, frobenius = np.linalg.norm(off, 2), np.linalg.norm(off)
    delta = {k: min(math.sqrt(len(ks)) * operator, frobenius) / math.sqrt(size[k]) for k in ks}
    pairs = [(k, l) for k in ks for l in ks if k != l]  # noqa: E741
    apart = {(k, l): np.linalg.norm(mu[k] - mu[l]) for k, l in pairs}  # noqa: E741
    proximity = math.inf
    for a, k in zip(theta, labels, strict=True):
        for l in ks[ks != k]:  # noqa: E741
            way = (mu[l] - mu[k]) / apart[k, l]
            P = mu[k] + ((a - mu[k]) @ way) * way
            margin = np.linalg.norm(P - mu[l]) - np.linalg.norm(P - mu[k])
            scale = (1 / math.sqrt(size[k]) + 1 / math.sqrt(size[l])) * operator
            proximity = min(proximity, margin / scale)
    return (
        min(apart.values()) / np.linalg.norm(off, axis=1).max(),
        min(apart[k, l] / (delta[k] + delta[l]) for k, l in pairs),  # noqa: E741
        proximity,
    )


@pytest.mark.parametrize("gap", [0.7, 3.0, 1e3])
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_separation_is_what_the_definitions_say(gap, shift):
    rng = np.random.default_rng(1)
    theta, labels = models_on_axes(rng, [5, 9, 2], dim=4, gap=gap)
    of = separation(theta + shift, labels)
    # A shift of 1e6 leaves ten digits of the models.
    expected = by_the_definitions(theta, labels)
    assert_allclose([of.alpha, of.center_separation, of.proximity], expected, rtol=1e-7)


def test_names_and_order_of_clusters_do_not_matter():
    rng = np.random.default_rng(2)
    theta, labels = models_on_axes(rng, [5, 9, 2])
    order = rng.permutation(16)
    one, other = separation(theta, labels), separation(theta[order], 7 - 3 * labels[order])
    for name in ("alpha", "center_separation", "proximity"):
        assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-12)
    assert_allclose(other.interval.low, one.interval.low, rtol=1e-12)
    assert_allclose(other.interval.high, one.interval.high, rtol=1e-12)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("c", [1.0, 10.0])
def test_equation_4_implies_what_lemmas_1_and_2_derive_from_it(seed, c):
    """alpha just above what a lemma asks for: its method is guaranteed, by the weaker condition."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, size=rng.integers(2, 5))
    theta, labels = models_on_axes(rng, sizes, dim=5, gap=1.0)
    for wanted, guaranteed in [
        (lambda of: of.alpha_cc, lambda of: "ODCL-CC" in of.guaranteed),
        (lambda of: of.alpha_km, lambda of: "ODCL-KM" in of.guaranteed),
        (
            lambda of: alpha_center(len(of.labels), int(of.sizes.min()), of.c),
            lambda of: of.part_one_guaranteed,
        ),
    ]:
        of = separation(theta, labels, c=c)
        if of.radius == 0:
            pytest.skip("all clusters are single users")
        # Shrink the clusters around their means until Eq. (4) holds with a little to spare.
        around = of.centers[np.unique(labels, return_inverse=True)[1]]
        shrunk = around + (theta - around) * of.alpha / wanted(of) / 1.001
        at = separation(shrunk, labels, c=c)
        assert at.alpha > wanted(at)
        assert guaranteed(at)


def test_clusters_that_overlap_guarantee_nothing():
    rng = np.random.default_rng(3)
    of = separation(rng.normal(size=(30, 2)), np.arange(30) % 3)
    assert of.alpha < 1
    assert of.guaranteed == ()
    assert not of.part_one_guaranteed


def test_clusters_without_spread_are_infinitely_separated():
    theta = np.array([[0.0], [0.0], [1.0], [1.0]])
    of = separation(theta, np.array([0, 0, 1, 1]))
    assert of.alpha == of.center_separation == of.proximity == math.inf
    assert of.guaranteed == ("ODCL-CC", "ODCL-KM")
    same = separation(np.zeros((4, 1)), np.array([0, 0, 1, 1]))
    assert same.alpha == same.center_separation == same.proximity == 0.0
    assert same.guaranteed == ()


def test_spectral_kmeans_and_part_one_keep_the_guarantee():
    """Lemma 2 and Theorem 3 on models that the functions here call guaranteed."""
    from odcl.clustering.kmeans.spectral import spectral_kmeans
    from odcl.clustering.labels import same_partition

    theta, labels = models_on_axes(np.random.default_rng(4), [12, 7, 5], spread=1e-3, gap=1.0)
    of = separation(theta, labels)
    assert "ODCL-KM" in of.guaranteed
    assert of.part_one_guaranteed
    for part_one_only in (False, True):
        found = spectral_kmeans(theta, 3, part_one_only=part_one_only, seed=0)
        assert same_partition(found.labels, labels)  # 128 / c^2 of 12 users is less than one


# -- domains --------------------------------------------------------------------------------------

OUTSIDE = [
    (lambda: smallest_n(-1.0), "ratio >= 0|0 <= ratio"),
    (lambda: smallest_n(math.inf), "0 <= ratio < inf"),
    (lambda: smallest_n(math.nan), "0 <= ratio < inf"),
    (lambda: smallest_T(5.0, least=5), "least >= 6"),
    (lambda: alpha_cc(10, 11), "1 <= smallest <= n_users = 10"),
    (lambda: alpha_cc(10, 0), "integers smallest >= 1"),
    (lambda: alpha_cc(10, 2.5), "integers smallest >= 1"),
    (lambda: alpha_km(0, 1), "integers n_users >= 1"),
    (lambda: alpha_km(10, 2, c=0), "0 < c < inf"),
    (lambda: alpha_center(10, 2, c=-1), "0 < c < inf"),
    (lambda: sample_ratio(2.0, 1.0, 0.0), "0 < D < inf"),
    (lambda: sample_ratio(2.0, 0.0, 1.0), "0 < M < inf"),
    (lambda: sample_ratio(-2.0, 1.0, 1.0), "0 <= alpha < inf"),
    (lambda: sample_ratio(2.0, 1.0, 1.0, gamma=0.5), "0 < gamma < D/2"),
    (lambda: sample_ratio_cc(10, 11, 1.0, 1.0), "smallest <= n_users"),
    (lambda: sample_ratio_km(10, 2, 1.0, -1.0), "0 < D < inf"),
    (lambda: sample_ratio_part_one(10, 2, math.nan, 1.0), "0 < M_bar < inf"),
    (lambda: sample_ratio_inexact(2.0, 1.0, 1.0, epsilon=-1.0, xi=1.0), "0 <= epsilon <"),
    (lambda: largest_epsilon(2.0, 1.0, 0.0), "0 < xi < inf"),
    (lambda: epsilon_that_keeps_the_rate(2, 5, alpha=2.0, D=1.0, xi=1.0), "integers n >= 3"),
    (lambda: iteration_ratio(0.1, gamma=1.0, mu=1.0, n=2), "integers n >= 3"),
    (lambda: iteration_ratio(0.0, gamma=1.0, mu=1.0, n=5), "0 < epsilon < inf"),
    (lambda: mean_iterations(1.0, gamma=1.0, mu=0.0), "0 < mu < inf"),
    (lambda: sgd_distance(7, gamma=1.0, mu=1.0, delta=0.1), "integers T >= 8"),
    (lambda: sgd_distance(8, gamma=1.0, mu=1.0, delta=0.4), "delta < 1/e"),
    (lambda: misclustered(11.3), "c > sqrt"),
    (lambda: error_floor([0.7, 0.7], [1.0, 1.0]), "sum <= 1"),
    (lambda: error_floor([0.1], [1.0, 1.0]), "of one per distance"),
    (lambda: worst_error_floor(0.0), "0 < D_max < inf"),
    (lambda: m_constant(**{**CONSTANTS, "mu": 3.0}), "mu <= L"),
    (lambda: m_constant(**{**CONSTANTS, "R": 0.1}), "1/6 <= R"),
    (lambda: m_constant(**{**CONSTANTS, "dim": 0}), "integers dim >= 1"),
    (lambda: m_constant(**{**CONSTANTS, "F_star": -1}), "0 <= F_star"),
    (lambda: erm_distance(2, **CONSTANTS), "integers n >= 3"),
    (lambda: c_constant(0.1, 0.5, R=1.0, dim=1), "delta < 1/2"),
    (lambda: c_constant(6.1, 0.1, R=1.0, dim=1), "epsilon <= 6 R"),
    (lambda: m_over_users([1.0], [3, 4]), "of one per cluster"),
    (lambda: m_over_users([1.0], [7]), "two or more clusters"),
    (lambda: problem_constants("squared", **BOUNDS), "target=None"),
    (lambda: problem_constants("logistic", **{**BOUNDS, "least_eigenvalue": 1}), "sum to E"),
    (lambda: problem_constants("logistic", **{**BOUNDS, "least_eigenvalue": 0}), "mu = 0"),
    (lambda: local_rates(**{**RATES, "H": math.inf}), "0 <= H < inf"),
    (lambda: local_rates(**RATES, rho=1.0), "0 < rho < 1"),
    (lambda: odcl_terms([local_rates(**RATES)] * 2, [3, 4], 0, n=2, D=1.0), "integers n >= 3"),
    (lambda: odcl_terms([local_rates(**RATES)] * 2, [3, 4], 2, n=9, D=1.0), "0 <= k < K = 2"),
    (lambda: odcl_terms([local_rates(**RATES)], [3, 4], 0, n=9, D=1.0), "of one per cluster"),
    (lambda: ifca_rounds(10, 2, D=1.0, epsilon=2.0), "epsilon < 2 D"),
    (lambda: ifca_rounds(10, 2, D=1.0, epsilon=1.0, kappa=0.5), "1 <= kappa"),
    (lambda: all_for_all_rounds(10, 11, epsilon=0.1), "n_clusters <= n_users"),
    (lambda: all_for_all_rounds(10, 2, epsilon=1.0), "0 < epsilon < 1"),
    (lambda: table1([10], D=1.0, n=10), "two or more clusters"),
    (lambda: table1([10, 0], D=1.0, n=10), "integers sizes >= 1"),
    (lambda: table1([10, 5], D=1.0, n=2), "integers n >= 3"),
    (lambda: separation(np.zeros((3, 2)), np.zeros(3)), "K > 1"),
    (lambda: separation(np.zeros((3, 2)), np.zeros(4)), "one label per user"),
    (lambda: separation(np.eye(3), np.array([0, 1, -1])), "-1 means no cluster"),
    (lambda: separation(np.zeros(3), np.arange(3)), "one row per model"),
    (lambda: separation(np.full((2, 1), np.nan), np.arange(2)), "finite"),
]


@pytest.mark.parametrize(("call", "domain"), OUTSIDE)
def test_outside_its_domain_a_formula_says_the_domain(call, domain):
    with pytest.raises(ValueError, match=domain):
        call()


# Arguments of every function that takes numbers, all of them inside their domains.
RATES_OF = [local_rates(**RATES)] * 2
SGD = {"gamma": 1.0, "mu": 1.0}
CALLS = {
    smallest_n: {"ratio": 5.0},
    smallest_T: {"ratio": 5.0, "least": 16},
    alpha_cc: {"n_users": 10, "smallest": 2},
    alpha_km: {"n_users": 10, "smallest": 2, "c": 100.0},
    alpha_center: {"n_users": 10, "smallest": 2, "c": 100.0},
    sample_ratio: {"alpha": 2.0, "M": 1.0, "D": 1.0, "gamma": 0.2},
    sample_ratio_cc: {"n_users": 10, "smallest": 2, "M": 1.0, "D": 1.0},
    sample_ratio_km: {"n_users": 10, "smallest": 2, "M": 1.0, "D": 1.0, "c": 100.0},
    sample_ratio_part_one: {"n_users": 10, "smallest": 2, "M_bar": 1.0, "D": 1.0, "c": 100.0},
    sample_ratio_inexact: {"alpha": 2.0, "M": 1.0, "D": 1.0, "epsilon": 1e-4, "xi": 1.0},
    largest_epsilon: {"alpha": 2.0, "D": 1.0, "xi": 1.0},
    epsilon_that_keeps_the_rate: {"n": 9, "largest": 5, "alpha": 2.0, "D": 1.0, "xi": 1.0},
    iteration_ratio: {"epsilon": 0.1, **SGD, "n": 9},
    mean_iterations: {"epsilon": 0.1, **SGD},
    sgd_iterations: {"epsilon": 0.1, **SGD, "n": 9},
    sgd_distance: {"T": 9, **SGD, "delta": 0.1},
    misclustered: {"c": 100.0},
    error_floor: {"fractions": [0.1], "squared_distances": [1.0]},
    worst_error_floor: {"D_max": 1.0, "c": 100.0},
    m_constant: CONSTANTS,
    erm_distance: {"n": 9, **CONSTANTS},
    c_constant: {"epsilon": 0.1, "delta": 0.1, "R": 1.0, "dim": 2},
    m_over_users: {"per_cluster": [1.0, 2.0], "sizes": [3, 4]},
    problem_constants: {"loss": "squared", **BOUNDS, "target": 4.0, "noise": 1.0, "l2": 0.1},
    local_rates: {**RATES, "rho": 0.5, "c1": 1.0, "c2": 1.0},
    averaging_terms: {"rates": RATES_OF[0], "n": 9, "size": 3},
    odcl_terms: {"rates": RATES_OF, "sizes": [3, 4], "k": 0, "n": 9, "D": 1.0},
    inexact_terms: {"sizes": [3, 4], "n": 9, "D": 1.0, "R": 1.0, "dim": 2, "decay": 1.0}
    | {"epsilon": 0.1},
    part_one_terms: {"n_users": 9, "smallest": 2, "n": 9, "fractions": [0.1]}
    | {"squared_distances": [1.0]},
    ifca_rounds: {"n_users": 10, "smallest": 2, "D": 1.0, "epsilon": 0.1, "kappa": 2.0},
    ifca_accuracy: {"n_users": 10, "n_clusters": 2, "smallest": 2, "n": 9},
    all_for_all_rounds: {"n_users": 10, "n_clusters": 2, "epsilon": 0.1, "kappa": 2.0, "mu": 1.0},
    table1: {"sizes": [3, 4], "D": 1.0, "n": 9, "epsilon": 0.1, "kappa": 2.0},
}
MAY_BE_NONE = ("gamma", "target", "noise", "epsilon")


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_what_is_not_a_number_is_refused_with_its_name_and_the_domain(call):
    """Text, None, True, a list, an array, a complex number: never a bare error from inside."""
    call(**CALLS[call])
    for name, value in CALLS[call].items():
        if name == "loss":
            continue
        is_list = isinstance(value, list)
        strange = ["x", None, 1j, True] + ([3.0] if is_list else [[1.0], np.ones(2), np.array("x")])
        for wrong in strange:
            if wrong is None and name in MAY_BE_NONE:
                continue
            with pytest.raises(TypeError, match=r"domain|local_rates") as error:
                call(**{**CALLS[call], name: wrong})
            assert name in str(error.value) or name == "rates"
        for wrong in () if is_list or name == "rates" else (math.nan, math.inf, -math.inf, 10**400):
            with pytest.raises(ValueError, match="domain"):
                call(**{**CALLS[call], name: wrong})


def test_numbers_of_numpy_are_numbers():
    assert alpha_km(np.int64(10), np.float64(2), c=np.float32(100)) == alpha_km(10, 2)
    assert table1(np.array([3, 4]), D=np.float64(1), n=np.int32(9)) == table1([3, 4], D=1, n=9)


@pytest.mark.parametrize(
    ("theta", "labels"),
    [
        ([["x"], ["y"]], [0, 1]),
        (None, [0, 1]),
        (np.eye(2), [0.0, math.nan]),
        (np.eye(2), [0, None]),
    ],
)
def test_models_and_labels_that_are_none_are_refused(theta, labels):
    with pytest.raises((TypeError, ValueError), match="domain"):
        separation(theta, labels)


# -- the page of the module -----------------------------------------------------------------------


def test_the_examples_of_the_module_run():
    failed, tried = doctest.testmod(theory)
    assert (failed, tried > 3) == (0, True)


def test_every_public_function_cites_its_place():
    place = re.compile(
        r"Theorem|Lemma|Section|Appendix|Assumption|Definition|Eq\. \(|Table 1|Algorithm"
    )
    for name in theory.__all__:
        if inspect.isfunction(getattr(theory, name)) and not name.startswith("smallest_"):
            assert place.search(getattr(theory, name).__doc__), name
