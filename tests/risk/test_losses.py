"""Losses tell value, gradient, Hessian, L and mu; what one of them says, the others confirm."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import approx_fprime
from scipy.special import softmax

from odcl.risk.loss import Loss
from odcl.risk.losses import Huber, Logistic, Multinomial, Poisson, Squared, as_loss
from odcl.risk.risk import Risk

LOSSES = [Squared(), Huber(0.7), Logistic(), Multinomial(4), Poisson()]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
every_setting = pytest.mark.parametrize(
    ("l2", "intercept", "weighted"),
    [(0.0, False, False), (0.3, False, True), (0.0, True, True), (0.3, True, False)],
)


def rows_for(loss: Loss, n=40, p=3, seed=0):
    """Features, encoded targets and weights of one user."""
    rng = np.random.default_rng(seed)
    X, z = rng.normal(size=(n, p)), rng.normal(size=n)
    raw = {
        "squared": z,
        "huber": 2 * z,
        "logistic": z > 0,
        "multinomial": rng.integers(0, getattr(loss, "n_classes", 2), n),
        "poisson": rng.poisson(np.exp(z)),
    }
    return X, loss.encode(raw[loss.name]), rng.uniform(0.2, 3.0, n)


def in_ball(dim, radius, rng):
    direction = rng.normal(size=dim)
    return direction / np.linalg.norm(direction) * radius * rng.uniform() ** (1 / dim)


@every_loss
@every_setting
def test_gradient_and_hessian_are_the_derivatives_of_the_risk(loss, l2, intercept, weighted):
    X, y, weight = rows_for(loss)
    rng = np.random.default_rng(1)
    risk = Risk(loss, l2, intercept)
    theta = 0.5 * rng.normal(size=risk.dim(3))
    rows = (X, y, weight if weighted else None)
    gradient = risk.gradient(theta, *rows)
    hessian = risk.hessian(theta, *rows)
    # Differences of step 1e-6: 1e-16 / 1e-6 of rounding, as much again of curvature. No row of
    # the Huber loss stands within a step of delta.
    by_value = approx_fprime(theta, lambda t: risk.value(t, *rows), 1e-7)
    by_gradient = approx_fprime(theta, lambda t: risk.gradient(t, *rows), 1e-7)
    assert_allclose(gradient, by_value, atol=2e-6)
    assert_allclose(hessian, by_gradient, atol=2e-6)
    assert_array_equal(hessian, hessian.T)


@every_loss
def test_weights_count_rows(loss):
    """Eq. (1) on a row of weight 3 is Eq. (1) on the row three times."""
    X, y, _ = rows_for(loss, n=12)
    weight = np.arange(12) % 3 + 1
    risk = Risk(loss, 0.1, intercept=True)
    theta = np.random.default_rng(2).normal(size=risk.dim(3))
    again = np.repeat(np.arange(12), weight)
    for method in (risk.value, risk.gradient, risk.hessian):
        once = method(theta, X, y, weight)
        repeated = method(theta, X[again], y[again])
        assert_allclose(once, repeated, rtol=1e-12, atol=1e-14)


@every_loss
def test_the_intercept_has_no_penalty(loss):
    X, y, _ = rows_for(loss)
    risks = (Risk(loss, l2, intercept=True) for l2 in (0.0, 5.0))
    without, with_l2 = (risk.gradient(np.ones(risk.dim(3)), X, y) for risk in risks)
    pull = (with_l2 - without).reshape(4, loss.n_outputs)
    assert_allclose(pull[:3], 5.0, rtol=1e-12)
    assert_array_equal(pull[3], 0.0)


@every_loss
@every_setting
@pytest.mark.parametrize("radius", [0.1, 1.0, 4.0])
def test_every_hessian_in_the_ball_lies_between_mu_and_L(loss, l2, intercept, weighted, radius):
    """Assumptions 3 and 7, over the ball of radius R."""
    X, y, weight = rows_for(loss)
    risk, weight = Risk(loss, l2, intercept), weight if weighted else None
    constants = risk.constants(X, y, radius, weight)
    assert 0 <= constants.mu <= constants.L
    rng = np.random.default_rng(3)
    for _ in range(20):
        theta = in_ball(risk.dim(3), radius, rng)
        values = np.linalg.eigvalsh(risk.hessian(theta, X, y, weight))
        assert values[0] >= constants.mu * (1 - 1e-12) - 1e-15
        assert values[-1] <= constants.L * (1 + 1e-12)


def test_constants_are_attained():
    """L and mu are no idle bounds: the squared loss has them everywhere, others at theta = 0."""
    for loss in LOSSES:
        X, y, _ = rows_for(loss)
        risk = Risk(loss, 0.2)
        values = np.linalg.eigvalsh(risk.hessian(np.zeros(risk.dim(3)), X, y))
        constants = risk.constants(X, y, 1e-9)
        if loss.name != "huber":  # whose rows beyond delta have no curvature
            assert_allclose(constants.mu, values[0], rtol=1e-6)
        if loss.name not in ("huber", "multinomial"):
            assert_allclose(constants.L, values[-1], rtol=1e-6)


@every_loss
def test_mu_is_zero_where_a_direction_is_flat(loss):
    X, y, _ = rows_for(loss)
    collinear = np.column_stack([X, X[:, 0]])
    assert Risk(loss).constants(collinear, y, 1.0).mu == 0.0
    assert Risk(loss, 0.1).constants(collinear, y, 1.0).mu == pytest.approx(0.1, rel=1e-9)
    assert Risk(loss, 0.1, intercept=True).constants(X, y, 1.0).mu >= 0.0


@every_loss
def test_far_out_everything_is_a_number(loss):
    """Line searches look far out: no overflow, and a smaller loss is a smaller number."""
    _, y, _ = rows_for(loss)
    for size in (30.0, 700.0, 1e6):
        for sign in (-1.0, 1.0):
            z = np.full((1, len(y), loss.n_outputs), sign * size)
            value = loss.value(z, y[None])
            assert not np.isnan(value).any()
            assert (value >= 0).all()
            assert np.isfinite(loss.slope(z, y[None])).all()
            assert np.isfinite(loss.curve(z, y[None])).all()
            least, most = loss.curve_bounds(y, np.full(len(y), size))
            assert (least <= most).all()
            assert np.isfinite(most).all()


def test_small_losses_keep_their_digits():
    """A tiny penalty is weighed against losses of exp(-40): 1 - (1 - exp(-40)) would be zero."""
    tiny = np.exp(-40.0)
    z = np.full((1, 1, 1), 40.0)
    assert_allclose(Logistic().value(z, np.ones((1, 1))), tiny, rtol=1e-12)
    assert_allclose(Logistic().terms(z, np.ones((1, 1)))[0], tiny, rtol=1e-12)
    # Two of three classes 40 behind the third.
    loss = Multinomial(3)
    z = np.array([[loss.basis.T @ [40.0, 0.0, 0.0]]])
    assert_allclose(loss.value(z, np.zeros((1, 1))), 2 * tiny, rtol=1e-12)
    slope = loss.slope(z, np.zeros((1, 1)))[0, 0] @ loss.basis.T
    assert_allclose(slope, [-2 * tiny, tiny, tiny], rtol=1e-12)
    assert np.linalg.eigvalsh(loss.curve(z, np.zeros((1, 1)))[0, 0])[0] > 0
    # A count of a million, a step of 1e-6 off its logarithm: half the deviance is y u^2 / 2.
    z = np.full((1, 1, 1), np.log(1e6) + 1e-6)
    assert_allclose(Poisson().value(z, np.full((1, 1), 1e6)), 0.5e-6, rtol=1e-5)


@every_loss
def test_newton_sees_the_loss_at_one_go(loss):
    _, y, _ = rows_for(loss)
    z = np.random.default_rng(4).normal(size=(2, len(y), loss.n_outputs))
    both = np.stack([y, y])
    value, slope, curve = loss.terms(z, both)
    assert_allclose(value, loss.value(z, both), rtol=1e-13, atol=1e-16)
    assert_allclose(slope, loss.slope(z, both), rtol=1e-13, atol=1e-16)
    atol = 1e-3 if loss.name == "huber" else 1e-16  # a trace for rows beyond delta
    assert_allclose(curve, loss.curve(z, both), rtol=1e-13, atol=atol)


def test_multinomial_coefficients_sum_to_zero_over_the_classes():
    loss = Multinomial(5)
    assert loss.n_outputs == 4
    assert_allclose(loss.basis.sum(axis=0), 0.0, atol=1e-15)
    assert_allclose(loss.basis.T @ loss.basis, np.eye(4), atol=1e-15)
    theta = np.random.default_rng(5).normal(size=(3, 4))
    coef = theta @ loss.basis.T
    assert_allclose(coef.sum(axis=1), 0.0, atol=1e-14)
    assert_allclose((coef**2).sum(), (theta**2).sum())  # so the penalty is on all classes
    X, y, _ = rows_for(loss)
    p = softmax(X @ coef, axis=1)
    assert_allclose(loss.mean(X @ theta), p, rtol=1e-12)
    cross_entropy = -np.log(p[np.arange(len(y)), y.astype(int)])
    assert_allclose(loss.value(X @ theta, y), cross_entropy, rtol=1e-10)


def test_two_classes_are_one_logistic_model():
    """Logits +-z/2 of two classes: the multinomial's theta is the logistic one over sqrt(2)."""
    X, y, _ = rows_for(Logistic())
    theta = np.random.default_rng(6).normal(size=3)
    multinomial = Risk(Multinomial(2)).value(theta / np.sqrt(2), X, (y + 1) / 2)
    assert_allclose(multinomial, Risk("logistic").value(theta, X, y), rtol=1e-13)


def test_huber_is_squared_inside_delta_and_bounded_beyond():
    loss = Huber(1.5)
    z, y = np.array([[0.5], [-1.5], [4.0], [-1e6]]), np.zeros(4)
    assert_allclose(loss.value(z, y)[:2], Squared().value(z, y)[:2])
    assert_allclose(loss.value(z, y)[2:], 1.5 * (np.abs(z[2:, 0]) - 0.75))
    assert_allclose(loss.slope(z, y)[:, 0], [0.5, -1.5, 1.5, -1.5])


def test_poisson_is_half_the_deviance():
    y = np.array([0.0, 1.0, 7.0])
    at_the_count = np.log(np.maximum(y, 1e-300))[:, None]
    assert_allclose(Poisson().value(at_the_count, y), 0.0, atol=1e-14)
    z = np.array([[0.3], [-1.0], [2.0]])
    mu = np.exp(z[:, 0])
    deviance = 2 * (np.where(y > 0, y * np.log(np.maximum(y, 1) / mu), 0.0) - (y - mu))
    assert_allclose(Poisson().value(z, y), deviance / 2)


@pytest.mark.parametrize(
    ("loss", "y", "says"),
    [
        (Squared(), [1.0, np.nan], "row 2 is not a finite number"),
        (Huber(), [np.inf, 1.0], "row 1 is not a finite number"),
        (Poisson(), [3, -1], "counts >= 0, got -1"),
        (Logistic(), [0, 1, 2], "labels 0/1 or -1/\\+1, got 0.0, 1.0, 2.0.*multinomial"),
        (Logistic(), ["a", "b"], "ODCLClassifier"),
        (Multinomial(3), [0, 3], "labels 0 to 2"),
        (Multinomial(3), [0.5, 1], "labels 0 to 2"),
        (Multinomial(3), ["a", "b"], "labels 0 to 2"),
    ],
)
def test_targets_that_make_no_sense_are_named(loss, y, says):
    with pytest.raises(ValueError, match=says):
        loss.encode(np.array(y))


def test_labels_may_be_written_in_any_of_the_usual_ways():
    for y in ([0, 1, 1], [-1, 1, 1], [False, True, True], [0.0, 1.0, 1.0]):
        assert_array_equal(Logistic().encode(np.array(y)), [-1.0, 1.0, 1.0])


def test_losses_by_name():
    assert [as_loss(name).name for name in ("squared", "logistic", "huber", "poisson")] == [
        "squared",
        "logistic",
        "huber",
        "poisson",
    ]
    assert as_loss("multinomial", np.array([0, 2, 1])).n_classes == 3
    assert as_loss(LOSSES[1]) is LOSSES[1]
    with pytest.raises(ValueError, match="not one of squared"):
        as_loss("hinge")
    with pytest.raises(ValueError, match="does not say how many classes"):
        as_loss("multinomial")
    with pytest.raises(ValueError, match="Number the labels"):
        as_loss("multinomial", np.array(["a", "b"]))
    with pytest.raises(ValueError, match="at least two classes"):
        as_loss("multinomial", np.zeros(3))
    with pytest.raises(ValueError, match="delta is where"):
        Huber(0.0)
