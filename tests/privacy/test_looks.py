"""What one row can move: searched adversarially, against what the accounting claims."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from odcl import Federation, Privacy, Risk
from odcl.errors import InputError
from odcl.privacy import BINS
from odcl.privacy.looks import SHARES, private_upload
from odcl.privacy.rows import FINE, GRID, BoundedRows
from odcl.risk.losses import Multinomial
from tests.privacy.test_noise import entropy_of

NUMBER = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.floats(-5, 5)
NORMS = st.floats(0.3, 10)
LOSSES = {
    "squared": ("squared", (-3.0, 5.0)),
    "logistic": ("logistic", None),
    "three classes": (Multinomial(3), None),
    "counts": ("poisson", (0.0, 9.0)),
}


def bounded(X, y, loss, norm, intercept=True):
    """Rows within bounds, of one user."""
    name, target = LOSSES[loss]
    risk = Risk(name, intercept=intercept)
    privacy = Privacy(row_norm=norm, target_range=target)
    rows = Federation.from_arrays(X, y, np.zeros(len(y), int))
    return BoundedRows(rows, privacy.bounds(risk, X.shape[1]), risk.loss)


def targets(y, loss):
    """Any numbers as targets of a loss."""
    if loss == "logistic":
        return np.where(y > 0, 1.0, -1.0)
    if loss == "three classes":
        return np.digitize(y, [-1.0, 1.0]).astype(float)
    return np.floor(np.abs(y)) if loss == "counts" else y


@st.composite
def tables(draw):
    """Rows of any size, one of them the one that is dropped, and a model of any size."""
    n, p = draw(st.integers(2, 5)), draw(st.integers(1, 4))
    X = np.array(draw(st.lists(NUMBER, min_size=n * p, max_size=n * p))).reshape(n, p)
    y = np.array(draw(st.lists(NUMBER, min_size=n, max_size=n)))
    theta = np.array(draw(st.lists(NUMBER, min_size=2 * p + 2, max_size=2 * p + 2)))
    return X, y, theta[None], draw(st.integers(0, n - 1)), draw(NORMS)


def moved(statistic, X, y, out, loss, norm):
    keep = np.arange(len(y)) != out
    whole, without = (bounded(X[at], y[at], loss, norm) for at in (slice(None), keep))
    return statistic(whole) - statistic(without)


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=200, deadline=None)
@given(tables(), st.floats(1e-3, 9))
def test_a_row_moves_sums_by_no_more_than_is_claimed(loss, table, most):
    X, y, theta, out, norm = table
    cap = np.array([most])
    theta = theta if loss == "three classes" else theta[:, : X.shape[1] + 1]
    move = (X, targets(y, loss), out, loss, norm)
    assert np.linalg.norm(moved(lambda rows: rows.gram(), *move)) <= GRID**2
    if loss != "squared":
        curvature = moved(lambda rows: rows.curvature(theta, cap)[0], *move)
        assert np.linalg.norm(curvature) <= GRID**2
    if SHARES[getattr(LOSSES[loss][0], "name", LOSSES[loss][0])].sizes:
        sizes = moved(lambda rows: rows.sizes(rows.residuals(theta)), *move)
        assert np.abs(sizes).sum() == 1
    for cut in (GRID * FINE, 3 * GRID * FINE // 8, 1):
        cuts = np.array([cut])
        score = moved(lambda rows, c=cuts: rows.score(theta, c, cap)[0], *move)
        assert np.linalg.norm(score) <= GRID**2


@pytest.mark.parametrize("loss", LOSSES)
def test_the_bounds_are_reached(loss):
    """A bound that no row comes near would be noise for nothing: the tests above could not fail."""
    X, y = np.array([[2.0], [0.0]]), targets(np.array([5.0, 1.0]), loss)
    theta = np.zeros((1, 4 if loss == "three classes" else 2))
    rows = (X, y, 0, loss, 5**0.5)  # as long as rows may be, and its residual is cut
    assert np.linalg.norm(moved(lambda rows: rows.gram(), *rows)) > 0.97 * GRID**2
    cap, cut = np.array([1.0]), np.array([GRID * FINE // 8])
    if loss in ("logistic", "counts"):  # at one half, and at a rate above the cap
        theta[0, 0] = 2.0 if loss == "counts" else 0.0
        curvature = moved(lambda rows: rows.curvature(theta, cap)[0], *rows)
        assert np.linalg.norm(curvature) > 0.97 * GRID**2
    if loss == "three classes":  # the model is sure of another class
        theta[0, 1], y[0] = 20.0, np.argmin(Multinomial(3).basis[:, 0])
    elif loss != "squared":
        theta[0] = -8.0
    score = moved(lambda rows: rows.score(theta, cut, cap)[0], *rows)
    assert np.linalg.norm(score) > 0.97 * GRID**2


@pytest.mark.parametrize("size", [1e150, 1e300, 1.7e308])
@pytest.mark.parametrize("loss", LOSSES)
def test_rows_of_any_size_count_and_stop_nothing(loss, size):
    X, y = (
        np.array([[size, -size], [0.5, -0.5], [1.0, 1.0]]),
        targets(np.array([1.0, -2.0, 0.0]), loss),
    )
    theta, cap, cut = (
        np.full((1, 6 if loss == "three classes" else 3), 1e6),
        np.ones(1),
        np.ones(1, int),
    )
    rows = (X, y, 0, loss, 3**0.5)
    for statistic in (
        lambda rows: rows.gram(),
        lambda rows: rows.score(theta, cut, cap)[0],
        lambda rows: rows.gram() if loss == "squared" else rows.curvature(theta, cap)[0],
    ):
        assert np.linalg.norm(moved(statistic, *rows)) <= GRID**2


def test_whole_numbers_stand_for_the_rows():
    """Within bounds, sums of the grid are those of the rows themselves, to the grid's accuracy."""
    rng = np.random.default_rng(0)
    X, theta = rng.normal(size=(500, 3)), np.array([[0.5, 0.4, -0.4, 0.3]])
    y = 1 + theta[0, 0] + X @ theta[0, 1:] + 0.1 * rng.normal(size=500)
    rows = bounded(X, y, "squared", 8.0)
    z = np.column_stack([np.ones(500), X])
    np.testing.assert_allclose(rows.gram()[0] * rows.unit**2, z.T @ z, atol=1.0)
    e = rows.residuals(theta) * rows.bounds.reach / (GRID * FINE)
    np.testing.assert_allclose(e, y - 1 - z @ theta[0], atol=0.02)


@pytest.mark.parametrize("loss", ["logistic", "three classes", "counts"])
def test_scores_and_curvatures_are_those_of_the_loss(loss):
    """Within bounds, they are minus the loss's own gradient and its Hessian."""
    rng = np.random.default_rng(1)
    X, D = rng.normal(size=(400, 2)), 2 if loss == "three classes" else 1
    theta = 0.3 * rng.normal(size=(1, 3 * D))
    y = targets(2 * rng.normal(size=400), loss)
    rows, cap = bounded(X, y, loss, 8.0), np.array([9.0])
    z, own = np.column_stack([np.ones(400), X]), rows.loss
    outputs, encoded = z @ theta.reshape(D, 3).T, own.encode(y)
    slope = np.einsum("no,ni->oi", own.slope(outputs, encoded), z).ravel()
    score, unit = rows.score(theta, np.array([GRID * FINE]), cap)
    np.testing.assert_allclose(score[0] * unit[0], -slope, atol=2.0)
    bend = np.einsum("nop,ni,nj->oipj", own.curve(outputs, encoded), z, z)
    A, unit = rows.curvature(theta, cap)
    np.testing.assert_allclose(A[0] * unit[0], bend.reshape(3 * D, 3 * D), atol=2.0)


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_an_attacker_who_knows_all_other_rows_gains_no_more_than_is_allowed(epsilon):
    """Membership of one row, by the likelihood ratio of real uploads, over many draws.

    No test of two worlds with mu has an AUC above Phi(mu / sqrt 2): the best linear attack on the
    curvature, the first score and the number of rows must stay below it, and come near to what
    their shares of the budget allow, or it would be no attack.
    """
    rng = np.random.default_rng(1)
    n, draws, risk = 40, 1500, Risk(intercept=True)
    privacy = Privacy(epsilon, 1e-5, target_range=(-4, 4))
    X, y = 0.3 * rng.normal(size=(n, 2)), rng.normal(size=n)
    X[0], y[0] = 3.0, 4.0  # the row in question stands out
    worlds = []
    for rows in (slice(None), slice(1, None)):
        m = len(X[rows])
        many = Federation.from_arrays(
            *(np.tile(X[rows], (draws, 1)), np.tile(y[rows], draws)),
            np.repeat(np.arange(draws), m),
        )
        worlds.append(private_upload(many, risk, privacy, entropy_of(3)))
    upper = np.triu_indices(3)
    A = [one["private_curvature"][:, upper[0], upper[1]] for one in worlds]
    exact = [bounded(X[rows], y[rows], "squared", 3**0.5) for rows in (slice(None), slice(1, None))]
    exact = exact[0].gram()[0] - exact[1].gram()[0]
    weight = exact[upper] * np.where(upper[0] == upper[1], 1.0, 2.0)  # noise there is half
    scores = [values @ weight for values in A]
    auc = (scores[0][:, None] > scores[1]).mean()
    allowed = ndtr(privacy.mu / np.sqrt(2))
    expected = ndtr(privacy.mu * np.sqrt(SHARES["squared"].curvature) / np.sqrt(2))
    assert auc < allowed
    assert auc == pytest.approx(expected, abs=0.03)
    # All that was sent, by a linear attacker who was taught on half of the draws.
    every = [_numbers(one) for one in worlds]
    half = draws // 2
    away = every[0][:half].mean(axis=0) - every[1][:half].mean(axis=0)
    C = np.cov(np.vstack([every[0][:half] - every[0][:half].mean(axis=0), every[1][:half]]).T)
    direction = np.linalg.lstsq(C, away, rcond=1e-8)[0]
    tested = [values[half:] @ direction for values in every]
    auc = (tested[0][:, None] > tested[1]).mean()
    assert auc < allowed + 0.02  # of chance: 750 draws


def _numbers(fields):
    return np.column_stack([np.reshape(values, (len(values), -1)) for values in fields.values()])


def test_weights_of_rows_are_refused():
    rows = Federation.from_arrays(np.ones((3, 1)), np.ones(3), [0, 0, 0], weight=[1, 2, 3])
    with pytest.raises(InputError, match="weights"):
        private_upload(rows, Risk(), Privacy(target_range=(0, 1)))


@pytest.mark.parametrize("n", [1, 2, 400])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_upload_is_finite_and_the_number_of_rows_is_noisy(loss, n):
    rng = np.random.default_rng(n)
    X, y = rng.normal(size=(n, 3)), targets(rng.normal(size=n), loss)
    rows = Federation.from_arrays(X, y, np.zeros(n, int))
    name, target = LOSSES[loss]
    privacy = Privacy(0.5, target_range=target)
    drawn = [private_upload(rows, Risk(name, intercept=True), privacy) for _ in range(8)]
    for one in drawn:
        assert all(np.isfinite(values).all() for values in one.values())
        assert one["n_samples"][0] >= 1
        assert one["n_samples"][0] == round(one["n_samples"][0])
    if n == 400:
        assert len({one["n_samples"][0] for one in drawn}) > 1
    assert (drawn[0].get("private_residuals", np.zeros((1, BINS))).shape) == (1, BINS)
