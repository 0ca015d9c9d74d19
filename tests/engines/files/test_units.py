"""Columns in any units: a card without scales gives what the whole table gives in one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import odcl
from odcl import Method, ODCLClassifier, ODCLRegressor, Risk
from odcl.data.federation import Federation
from odcl.engines.files import Feature, Task, combine_uploads, fit_site, receive
from odcl.engines.files.task import CAREFUL
from odcl.local.fit import fit_users
from odcl.risk.losses import Logistic, Multinomial, Poisson
from odcl.server.assign import with_more_terms
from odcl.server.mixed import seen_quadratics, user_quadratics
from tests.engines.files.world import send

LOSSES = [Logistic(), Poisson(), Multinomial(3)]
UNITS, ORIGINS = np.array([1e-3, 1e3]), np.array([1000.0, -700.0])
losses = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)


def rows_of(loss, *, m=16, seed=0):
    """X, y and users in two groups, with 1 to 40 rows; a column is constant in some users."""
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(m), np.append([1, 2], rng.integers(15, 41, m - 2)))
    X = rng.standard_normal((len(users), 2)) + 0.5 * rng.standard_normal((m, 2))[users]
    X[users % 5 == 4, 1] = 0.4
    z = np.where(users % 2, 1, -1) * (X @ [1.2, -0.8]) + 0.3
    if loss.name == "poisson":
        return X, rng.poisson(np.exp(z)).astype(float), users
    scores = np.column_stack([z, np.zeros((len(z), loss.n_outputs))])
    return X, (scores + rng.gumbel(size=scores.shape)).argmax(axis=1).astype(float), users


def shape_of(mixture):
    spread = mixture.spread
    return len(mixture.weights), spread.shape, spread.open.tolist()


@losses
def test_a_card_without_scales_finds_and_predicts_what_one_process_does(loss, tmp_path):
    X, y, users = rows_of(loss)
    table = pd.DataFrame(X * UNITS + ORIGINS, columns=["a", "b"]).assign(y=y.astype(int))
    counts = loss.name == "poisson"
    lines = {"curves": False}  # as on a card without scales
    model = (ODCLRegressor("poisson", **lines) if counts else ODCLClassifier(**lines)).fit(
        table[["a", "b"]], table.y, users=users
    )
    given = Task(
        *("units", (Feature("a"), Feature("b")), "y", Risk(loss, 0.0, True)),
        method=Method(short_terms=True),
        classes=None if counts else tuple(range(loss.n_outputs + 1)),
        minimum_rows=1,
        smallest_cell=1,
    )
    tables = {f"s{i:02d}": table[users == i] for i in range(users.max() + 1)}
    sent = send(given, tables, tmp_path / "uploads")
    combined = combine_uploads(given, sent, out=tmp_path / "round")
    assert shape_of(combined.step.mixture) == shape_of(model.fitted_.mixture)
    assert_array_equal(combined.step.labels, model.labels_)
    assert combined.groups.diagnosis.split(".")[0] in str(model.diagnose(resamples=1).verdict)
    for i, (site, own) in enumerate(tables.items()):
        place = tmp_path / "round" / f"{site}.download"
        there = receive(given, sent / f"{site}.upload", place, own).estimator()
        rows, who = own[["a", "b"]], np.full(len(own), i)
        predict = "predict" if counts else "predict_proba"
        here = getattr(model, predict)(rows, users=who)
        assert_allclose(getattr(there, predict)(rows), here, rtol=1e-3, atol=1e-4)


@losses
@pytest.mark.parametrize("intercept", [True, False])
def test_units_and_origins_of_columns_change_nothing(loss, intercept):
    """Origins only beside an intercept; a factor's 0/1 columns have no units."""
    X, y, users = rows_of(loss)
    level = np.random.default_rng(1).integers(0, 3, len(X))
    levels = (level[:, None] == [1, 2]).astype(float)
    factors = [(2, 3)] if intercept else []

    def fitted(unit, origin):
        rows = np.column_stack([X * unit + origin * intercept, levels])
        result = odcl.fit(
            Federation.from_arrays(rows, y, users), Risk(loss, 0.0, intercept, factors)
        )
        D = np.column_stack([rows, np.ones(len(rows))]) if intercept else rows
        models = result.models.reshape(len(result.models), D.shape[1], -1)[users]
        return result, (D[..., None] * models).sum(axis=1)

    (one, z), (other, moved) = fitted(1.0, 0.0), fitted(UNITS, ORIGINS)
    assert shape_of(other.step.mixture) == shape_of(one.step.mixture)
    assert_array_equal(other.labels, one.labels)
    assert_allclose(moved, z, rtol=1e-5, atol=1e-5)


@losses
def test_new_rows_on_top_of_a_users_term_are_told_in_units_of_both(loss):
    """In common coordinates terms of the same user's rows add up."""
    X, y, users = rows_of(loss)
    risk, rows = Risk(loss, 0.0, True), np.column_stack([X * UNITS + ORIGINS])
    rows[users == 5] += 3 * UNITS
    sent = fit_users(Federation.from_arrays(rows, y, users), risk, terms=True).uploads
    at = user_quadratics(sent)[1]
    old, more = sent[4], replace(sent[5], users=sent.users[4:5])
    both = with_more_terms(old, more)
    for width in range(3):
        whole, first, then = (seen_quadratics(one, at, width) for one in (both, old, more))
        for name in ("A", "b", "uu", "ceiling"):
            parts = getattr(first, name) + getattr(then, name)
            assert_allclose(getattr(whole, name), parts, rtol=1e-9, atol=1e-9 * np.abs(parts).max())
    own = np.isin(users, [4, 5])
    assert_allclose(both.gaussian_means[0], rows[own].mean(axis=0), rtol=1e-14)
    assert_allclose(both.gaussian_sds[0], rows[own].std(axis=0), rtol=1e-9)


def wards(kind, seed):
    """21 wards of seven hospitals in units from 1e-3 to 1e3: levels of their own, or two groups."""
    rng = np.random.default_rng(seed)
    ward = np.repeat(np.arange(21), rng.integers(60, 140, 21))
    X = rng.normal(size=(len(ward), 3))
    X[:, 2] = X[:, 2] > 0
    level = 0.5 * rng.normal(size=21)[ward]
    z = X @ [0.8, -0.5, 0.4] + level
    if seed % 2:
        z = 0.4 * level + np.where(ward % 2, 1, -1) * (X[:, :2] @ [1.0, -0.7])
    unit, origin = 10 ** rng.uniform(-3, 3, 3), rng.uniform(-1000, 1000, 3)
    y = (rng.random(len(z)) < 1 / (1 + np.exp(-z))).astype(int)
    if kind == "poisson":
        y = rng.poisson(np.exp(0.6 * z + 0.3))
    table = pd.DataFrame(X * unit + origin, columns=[*"abc"]).assign(y=y, ward=ward)
    held = rng.random(len(table)) < 0.3
    return table[~held], table[held]


def log_loss(model, kind, rows):
    if kind == "poisson":
        mean = model.predict(rows.drop(columns="y"))
        return float(np.mean(mean - rows.y * np.log(mean)))
    sure = model.predict_proba(rows.drop(columns="y"))[np.arange(len(rows)), rows.y]
    return float(-np.log(sure).mean())


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 20))]
)
def test_wards_of_hospitals_in_any_units_are_what_they_are_in_one_table(kind, seed, tmp_path):
    """A card without scales or curves: the same groups and shape, log-loss within 1 %."""
    table, held = wards(kind, seed)
    counts = kind == "poisson"
    given = Task(
        *("stay", tuple(map(Feature, "abc")), "y", Risk(kind, 0.01 * (not counts), True)),
        None if counts else (0, 1),
        replace(CAREFUL, robust=False),  # as the estimator
    )
    settings = {"users": "ward", "curves": False}
    model = (ODCLRegressor(kind, **settings) if counts else ODCLClassifier(**settings)).fit(
        table.drop(columns="y"), table.y
    )
    sites = {f"s{i}": table[table.ward % 7 == i] for i in range(7)}
    (tmp_path / "sent").mkdir()
    for site, own in sites.items():
        sent = fit_site(given, own, site=site, user="ward")
        sent.write(tmp_path / "sent" / f"{site}.upload")
    combined = combine_uploads(given, tmp_path / "sent", out=tmp_path / "round")
    assert shape_of(combined.step.mixture) == shape_of(model.fitted_.mixture)
    both = np.zeros(2)
    for i, (site, own) in enumerate(sites.items()):
        places = tmp_path / "sent" / f"{site}.upload", tmp_path / "round" / f"{site}.download"
        there, rows = (
            receive(given, *places, own, user="ward").estimator(),
            held[held.ward % 7 == i],
        )
        both += [len(rows) * log_loss(one, kind, rows) for one in (there, model)]
    assert both[0] == pytest.approx(both[1], rel=0.01)


def test_a_round_of_numbers_far_from_zero_is_judged_as_the_table_is(tmp_path):
    X, _, users = rows_of(Logistic())
    y = np.where(users % 2, 1, -1) * (X @ [1.2, -0.8]) + np.random.default_rng(2).normal(
        size=len(X)
    )
    table = pd.DataFrame(X * UNITS + ORIGINS, columns=["a", "b"]).assign(y=y)
    tables = {f"s{i:02d}": table[users == i] for i in range(users.max() + 1)}
    given = Task(
        *("units", (Feature("a"), Feature("b")), "y", Risk("squared", 0.0, True)),
        method=Method(short_terms=True),
        minimum_rows=1,
    )
    combined = combine_uploads(given, send(given, tables, tmp_path / "sent"), out=tmp_path / "out")
    model = ODCLRegressor().fit(table[["a", "b"]], table.y, users=users)
    assert combined.groups.diagnosis == str(model.diagnose().verdict)
