"""Flower carries and computes nothing: what nodes receive is what one process gives."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from odcl import Method, Risk, fit
from odcl.data.federation import Federation
from odcl.engines.files.site import read_site
from odcl.engines.files.task import Feature, Task
from odcl.engines.flower import ODCL, NodeData
from odcl.engines.flower.fits import Fit
from odcl.risk.losses import Multinomial
from tests.engines.flower.world import federation, grid_of, models_of, parts_of
from tests.helpers import SHARED_DATA

CASES = {
    "mixed": ("squared", Method()),
    "ridge": (Risk("squared", 0.1, True), Method()),
    "short terms stay": (Risk("squared", 0.0, True), Method(short_terms=False)),
    "silhouette": ("squared", Method("silhouette")),
    "paper": ("squared", Method.paper()),
    "paper, K given": ("squared", Method.paper(n_clusters=2)),
    "convex": ("squared", Method("convex")),
    "two groups": ("squared", Method(2)),
    "weighed": ("squared", Method("kmeans:2", combine="samples")),
    "logistic": (Risk("logistic", 0.01, True), Method()),
    "logistic models": (Risk("logistic", 0.01, True), Method("silhouette")),
    "multinomial": (Risk(Multinomial(3), 0.01, True), Method()),
    "poisson": (Risk("poisson", 0.01, True), Method()),
    "huber": (Risk("huber", 0.0, True), Method()),
}


def run(rows, risk, method, *, n_nodes=4, node_seed=0, **settings):
    """The strategy after a run of these rows on so many nodes, and what nodes received."""
    got = {}
    strategy = ODCL(risk, method, **settings)
    strategy.start(grid_of(parts_of(rows, n_nodes), got, seed=node_seed))
    return strategy, got


@pytest.mark.parametrize("case", CASES)
def test_nodes_receive_the_models_of_one_process_bit_for_bit(case):
    risk, method = CASES[case]
    rows = federation(risk)
    strategy, got = run(rows, risk, method)
    result = fit(rows, risk, method)
    assert_array_equal(models_of(got, result.users), result.models)
    assert [got[user][1] for user in result.users.tolist()] == result.labels.tolist()
    assert_array_equal(strategy.outcome.step.labels, result.step.labels)
    assert strategy.outcome.step.reason == result.step.reason


@pytest.mark.parametrize("n_nodes", [1, 3, 12])
def test_how_users_are_spread_over_nodes_changes_nothing(n_nodes):
    rows = federation("squared")
    _, got = run(rows, "squared", "default", n_nodes=n_nodes, min_replies=1)
    assert_array_equal(models_of(got, rows.users), fit(rows, "squared", Method(robust=True)).models)


def test_node_ids_do_not_matter():
    """Groups are numbered by the users' own ids."""
    rows, method = federation("squared"), Method("kmeans:2")
    runs = [run(rows, "squared", method, node_seed=s)[1] for s in range(3)]
    for got in runs[1:]:
        assert_array_equal(models_of(got, rows.users), models_of(runs[0], rows.users))
        assert [got[u][1] for u in rows.users] == [runs[0][u][1] for u in rows.users]


def test_the_seed_reaches_users_and_server():
    rows, method = federation("squared"), Method("kmeans:2")
    for seed in (3, 4):
        _, got = run(rows, "squared", method, seed=seed)
        result = fit(rows, Risk("squared"), method, seed=seed)
        assert_array_equal(models_of(got, result.users), result.models)


@pytest.mark.parametrize("users", [np.arange(12), np.arange(12) * 10 - 3, "mixed"])
def test_ids_of_any_kind_come_back_as_they_were(users):
    rows = federation("squared")
    if isinstance(users, str):  # numbers on one node, text on another
        users = np.array([*range(6), *"abcdef"], dtype=object)
    rows = Federation.from_arrays(rows.X, rows.y, users[rows.row_user])
    strategy, got = run(rows, "squared", "default", n_nodes=2)
    assert strategy.outcome.uploads.users.tolist() == rows.users.tolist()
    assert_array_equal(models_of(got, rows.users), fit(rows, "squared", Method(robust=True)).models)


def test_a_node_that_forgot_what_it_sent_works_it_out_again():
    rows = federation("logistic")
    got = {}
    grid = grid_of(parts_of(rows, 4), got)
    for node in grid.online.values():
        node.forgets = True
    ODCL("logistic").start(grid)
    assert_array_equal(
        models_of(got, rows.users), fit(rows, "logistic", Method(robust=True)).models
    )


class CountedFit(Fit):
    calls = 0

    def uploads(self, rows, agreed, *, seed):
        CountedFit.calls += 1
        return super().uploads(rows, agreed, seed=seed)


def test_a_node_that_remembers_fits_once():
    CountedFit.calls = 0
    grid = grid_of(parts_of(federation("squared"), 4), fit=CountedFit())
    ODCL().start(grid)
    assert CountedFit.calls == 4


def test_losses_on_held_out_rows_are_those_of_the_models():
    rows, test = federation("squared"), federation("squared", seed=1)
    got = {}
    parts = [NodeData(a, b) for a, b in zip(parts_of(rows, 4), parts_of(test, 4), strict=True)]
    strategy = ODCL()
    result = strategy.start(grid_of(parts, got))
    metrics = result.evaluate_metrics_clientapp[1]
    ours = fit(rows, "squared", Method(robust=True))

    def loss(models):
        z = np.einsum("ij,ij->i", test.X, models[test.row_user])
        return 0.5 * np.mean((test.y - z) ** 2)

    np.testing.assert_allclose(metrics["loss"], loss(ours.models), rtol=1e-12)
    np.testing.assert_allclose(metrics["loss-local"], loss(ours.local.theta), rtol=1e-9)
    np.testing.assert_allclose(metrics["loss-group"], loss(ours.step.models), rtol=1e-12)
    assert metrics["loss"] < metrics["loss-local"]


@pytest.mark.parametrize("name", ["sleepstudy", "gasoline", "verbagg"])
def test_real_users_one_per_node_get_the_models_of_one_process(name):
    """People and countries, one node per user; categories, classes and scales by a task card."""
    path = SHARED_DATA / "tables" / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data/tables beside the project")
    table = pd.read_csv(path)
    table = table[table.user.isin(sorted(table.user.unique())[:25])]
    task = task_of(name, table)
    nodes = []
    for user, frame in table.groupby("user"):
        rows = read_site(task, frame.drop(columns="user")).rows
        nodes.append({user: (rows.X, rows.y)})
    users = np.concatenate([[u] * len(y) for one in nodes for u, (_, y) in one.items()])
    X, y = (np.concatenate([r[k] for one in nodes for r in one.values()]) for k in (0, 1))
    result = fit(Federation.from_arrays(X, y, users), task.risk, task.method)
    got = {}
    ODCL.from_task(task, user="user").start(grid_of(nodes, got))
    assert len(got) == len(nodes)
    assert_array_equal(models_of(got, result.users), result.models)


def task_of(name, table):
    """A card for a table of a user, a target, numbers and categories."""
    features = []
    for column in table.columns.drop(["user", "target"]):
        values = table[column]
        if values.dtype.kind in "if":
            features.append(Feature(column, None, float(values.mean()), float(values.std())))
        else:
            features.append(Feature(column, tuple(sorted(values.unique()))))
    classes = (0, 1) if table.target.isin([0, 1]).all() else None
    risk = Risk("squared" if classes is None else "logistic", 0.0, True)
    return Task(name, tuple(features), "target", risk, classes, Method(), minimum_rows=1)
