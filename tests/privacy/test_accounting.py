"""The accounting against integrals of the laws themselves, and the value that is agreed on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from odcl import Method, Privacy, Risk
from odcl.errors import InputError
from odcl.privacy import delta_of, mu_of
from odcl.privacy.looks import SHARES, noise_sd
from odcl.risk.losses import Huber, Multinomial
from odcl.risk.risk import Curve


def hockey_stick(epsilon, mu):
    """The delta of N(mu, 1) against N(0, 1), as an integral over outcomes."""
    edge = epsilon / mu + mu / 2
    value, _ = quad(lambda x: norm.pdf(x, mu) - np.exp(epsilon) * norm.pdf(x), edge, edge + 40)
    return value


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 8.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5])
def test_the_budget_spends_delta_and_no_more(epsilon, delta):
    mu = mu_of(epsilon, delta)
    assert delta_of(epsilon, mu) == pytest.approx(hockey_stick(epsilon, mu), rel=1e-6)
    assert 0.99 * delta < delta_of(epsilon, mu) < delta


def test_noise_on_a_grid_keeps_within_the_margin():
    """The smallest noise that is ever drawn, 100 parts, by its exact law: sums, not integrals."""
    for mu, moved in ((1.67, 167), (0.5, 50), (3.0, 310)):
        sd = noise_sd(moved, mu, 1.0)
        z = np.arange(-40 * sd, 40 * sd + 1)
        p = np.exp(-0.5 * (z / sd) ** 2)
        p /= p.sum()
        for epsilon in (0.5, 1.0, 2.0):
            lost = np.maximum(p[:-moved] - np.exp(epsilon) * p[moved:], 0.0).sum()
            assert lost <= delta_of(epsilon, moved / sd) * (1 + 1e-3)


@pytest.mark.parametrize("loss", SHARES)
def test_the_looks_share_out_the_whole_budget(loss):
    assert SHARES[loss].total == pytest.approx(1.0)


def test_a_method_with_privacy_goes_to_json_and_back():
    privacy = Privacy(1.5, 1e-7, row_norm=2, target_range=(0, 80), shift=[1, 2], scale=[3, 4])
    method = Method(privacy=privacy)
    again = Method.from_json(json.loads(json.dumps(method.to_json())))
    assert again == method
    assert again.privacy == privacy
    assert "privacy" not in Method().to_json()


@pytest.mark.parametrize(
    "wrong",
    [
        {"epsilon": 0},
        {"epsilon": float("nan")},
        {"delta": 0.5},
        {"row_norm": -1},
        {"target_range": (1, 1)},
        {"shift": (0,)},
        {"shift": (0,), "scale": (0,)},
    ],
    ids=str,
)
def test_a_guarantee_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="Privacy"):
        Privacy(**wrong)


def test_what_is_not_covered_is_refused_in_words():
    numbers, classes = Privacy(target_range=(0, 1)), Privacy()
    for privacy, risk, p, word in [
        (numbers, Risk(Huber()), 3, "huber"),
        (Privacy(target_range=(-1, 9)), Risk("poisson"), 3, "below 0"),
        (classes, Risk("poisson"), 3, "target_range"),
        (numbers, Risk(Multinomial(3)), 3, "target_range"),
        (numbers, Risk(), 200, "200 parameters"),
        (numbers, Risk(curves=(Curve(0, (3, 4, 5)),)), 6, "curves"),
        (classes, Risk(), 3, "target_range"),
        (numbers, Risk("logistic"), 3, "target_range"),
        (Privacy(target_range=(0, 1), shift=(0,), scale=(1,)), Risk(), 3, "3"),
    ]:
        with pytest.raises(InputError, match=word):
            privacy.refuse_uncovered(risk, p)


def test_models_never_leave_under_a_guarantee():
    for method in (
        Method("kmeans:3", privacy=Privacy()),
        Method(combine="samples", privacy=Privacy()),
    ):
        with pytest.raises(InputError, match="models would leave"):
            method.resolved(Risk("logistic"), 3, 10)
