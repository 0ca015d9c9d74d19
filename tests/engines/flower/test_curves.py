"""Curves on Flower: nodes add bends to their rows, models are those of one process."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from odcl import Method, ODCLClassifier, ODCLRegressor, Risk, fit
from odcl.data.curves import with_bends
from odcl.data.federation import Federation
from odcl.engines.files.site import read_site
from odcl.engines.flower import ODCL, NodeData
from tests.engines.files.test_curves import card, hospitals, lines
from tests.engines.files.test_units import shape_of, wards
from tests.engines.flower.world import grid_of, models_of, parts_of
from tests.helpers import refusal

NAMES = ["age", "hour", "m"]
CURVES = {"curves": {"age": (50, 18)}, "periodic": {"hour": 24}}


def rows(classes=False):
    """All hospitals in the table's units."""
    table = pd.concat([f.assign(site=s) for s, f in hospitals(classes=classes).items()])
    X = np.column_stack([table.age, table.hour, table.sex == "m"]).astype(float)
    return Federation.from_arrays(
        X, (table.y == "yes").astype(float) if classes else table.y, table.site
    )


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_nodes_receive_the_models_of_one_process_with_the_same_knots(loss):
    risk, got = Risk(loss, 0.01, True), {}
    data = rows(classes=loss == "logistic")
    strategy = ODCL(risk, features=NAMES, **CURVES)
    strategy.start(grid_of(parts_of(data, 3), got))
    result = fit(data, strategy.request.risk, strategy.request.method)
    assert [curve.name for curve in strategy.request.risk.curves] == ["age", "hour"]
    assert result.models.shape == (12, 12)
    assert_array_equal(models_of(got, result.users), result.models)
    assert strategy.outcome.step.reason == result.step.reason


def test_nodes_that_read_their_tables_by_a_card_get_the_models_of_the_round_by_file():
    given, got, tables = card(), {}, hospitals()
    parts = [
        NodeData(read_site(given, f.assign(site=s), user="site").rows) for s, f in tables.items()
    ]
    strategy = ODCL.from_task(given)
    strategy.start(grid_of(parts, got))
    result = fit(lines(given, tables), given.risk, given.method)
    assert_array_equal(models_of(got, result.users), result.models)


def test_the_result_predicts_tables_with_curves_and_serves_late_nodes(tmp_path):
    data, got = rows(), {}
    first = data.take(np.arange(11))
    parts = [NodeData(one, one) for one in parts_of(first, 3)]
    strategy = ODCL(
        Risk("squared", 0.0, True), features=NAMES, result_dir=tmp_path / "out", **CURVES
    )
    answer = strategy.start(grid_of(parts, got))
    assert answer.evaluate_metrics_clientapp[1]["loss"] < 0.2
    model = ODCLRegressor.load(tmp_path / "out")
    frame = pd.DataFrame(first.X, columns=NAMES).assign(user=first.users[first.row_user])
    bent = np.c_[with_bends(first.X, strategy.request.risk.curves), np.ones(len(first.X))]
    own = models_of(got, first.users)[first.row_user]
    assert_allclose(model.predict(frame), (bent * own).sum(axis=1), rtol=1e-9)
    assert {"age~1", "hour~4"} <= set(model.coefficients())
    late = {}
    ODCL.from_result(tmp_path / "out").start(grid_of([data.take(np.arange(11, 12))], late, seed=9))
    theta = late["s11"][0]
    own = data.take(np.arange(11, 12))
    bent = np.c_[with_bends(own.X, strategy.request.risk.curves), np.ones(len(own.X))]
    assert (own.y - bent @ theta).std() < 0.6


def test_a_node_with_other_columns_is_set_aside_by_their_number():
    data = rows()
    parts = [*parts_of(data, 3), data.take(np.arange(2)).with_X(np.ones((160, 2)))]
    strategy = ODCL(Risk("squared", 0.0, True), features=NAMES, **CURVES)
    strategy.start(grid_of(parts))
    (one,) = strategy.outcome.set_aside
    assert "The rows have 2 features, and 3 are agreed on" in one.reason


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"curves": {"age": (50, 20)}}, "say features"),
        ({"features": NAMES, "curves": {"aeg": (50, 20)}}, "'aeg' is to act in a curve"),
        ({"features": NAMES, "curves": {"age": (50, 0)}}, "typical deviation"),
        ({"features": NAMES, "periodic": {"hour": -1}}, "their periods"),
        ({"features": NAMES, "curves": {"age": (50, 20)}, "risk": "squared"}, "no intercept"),
        ({"method": Method(curves=True)}, "is for odcl.fit"),
    ],
)
def test_curves_that_cannot_be_are_refused(settings, match):
    refusal(ODCL, **{"risk": Risk("squared", 0.0, True), **settings}, match=match)


def test_nodes_in_any_units_find_what_one_table_does():
    table, _ = wards("logistic", 0)
    rows = Federation.from_arrays(table[[*"abc"]].to_numpy(float), table.y, table.ward)
    strategy = ODCL(Risk("logistic", 0.0, True))
    strategy.start(grid_of(parts_of(rows, 7)))
    model = ODCLClassifier(users="ward", curves=False).fit(table.drop(columns="y"), table.y)
    assert shape_of(strategy.outcome.step.mixture) == shape_of(model.fitted_.mixture)
