"""Users with features of a frozen network, more than mixed groups can carry, on Flower."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from flwr.app import Message, RecordDict

from odcl import Method, ODCLClassifier, ODCLRegressor, Risk, fit
from odcl.data.federation import Federation
from odcl.engines.flower import ODCL, frozen_features, make_client_app
from odcl.engines.flower import messages as looks
from odcl.engines.flower.messages import array_record
from odcl.engines.wire import Agreed, from_wire
from odcl.risk.losses import Multinomial
from tests.engines.flower.world import FakeGrid, Node, models_of, parts_of

CASES = {
    "classes": (Risk(Multinomial(3), 0.01, True), "class_means", ODCLClassifier),
    "yes or no": (Risk("logistic", 0.01, True), "class_means", ODCLClassifier),
    "numbers": (Risk("squared", 0.01, True), "thin_factor", ODCLRegressor),
}
WIDTH = 120  # features that the network makes of three numbers
TURN = np.random.default_rng(1).normal(size=(3, WIDTH))


def network(X):
    return np.tanh(X @ TURN)


def raw_rows(risk, m=20, n=24):
    """Three numbers per row; users by turns in two groups, which name classes differently."""
    rng = np.random.default_rng(0)
    ids, kind = np.repeat([f"u{i:02d}" for i in range(m)], n), rng.integers(3, size=m * n)
    X = 2.0 * np.eye(3)[kind] + 0.5 * rng.normal(size=(m * n, 3))
    other = np.repeat(np.arange(m) % 2, n)
    y = np.where(other, (kind + 1) % 3, kind).astype(float)
    if risk.loss.name == "logistic":
        y = (y > 0).astype(float)
    elif risk.loss.name == "squared":
        y = X[:, 0] + np.where(other, -1.0, 1.0) * X[:, 1] + 0.1 * rng.normal(size=m * n)
    return Federation.from_arrays(X, y, ids)


def node_of(rows, got):
    def keep(found, context):
        got.update({user: (found.model(user),) for user in found.users.tolist()})

    return Node(make_client_app(frozen_features(lambda context: rows, network), on_model=keep))


@pytest.mark.parametrize("case", CASES)
def test_a_round_on_wide_features_gives_the_models_of_one_process(case, tmp_path):
    """The server sees wide terms; its folder is a model, and takes in a user who comes late."""
    risk, field, estimator = CASES[case]
    rows, got, folder = raw_rows(risk), {}, tmp_path / "run"
    early, late = rows.take(np.arange(19)), rows.take(np.array([19]))
    nodes = {1 + i: node_of(part, got) for i, part in enumerate(parts_of(early, 4))}
    strategy = ODCL(risk, min_replies=4, wait=0.2, timeout=5.0, result_dir=folder)
    strategy.start(FakeGrid(nodes))
    features = Federation(network(early.X), early.y, early.offsets, early.users)
    same = fit(features, risk, Method(standardize=False))
    assert field in strategy.outcome.uploads.present
    assert "theta" not in strategy.outcome.uploads.present
    assert_array_equal(models_of(got, early.users), same.models)
    assert_array_equal(same.labels, np.arange(19) % 2)

    nodes[9] = node_of(late, got)
    placed = ODCL.from_result(folder, wait=0.2)
    placed.start(FakeGrid(nodes))
    model = estimator.load(folder)
    assert placed.placed["u19"].label == 1
    assert model.labels_.tolist() == [*np.arange(19) % 2, 1]
    mine = model.score(network(late.X), late.y, users=np.repeat(["u19"], len(late.y)))
    other = model.score(network(late.X), late.y, users=np.repeat(["u00"], len(late.y)))
    assert mine > 0.8 > other


@pytest.mark.parametrize("risk", [Risk("logistic", 0.01), Risk("squared", 0.01, True)])
def test_uploads_of_wide_users_arrive_as_they_were_sent(risk):
    agreed, rng = Agreed(risk, Method(), 120), np.random.default_rng(0)
    X, y = rng.standard_normal((30, 120)), rng.integers(0, 2, 30).astype(float)
    sent = agreed.fit(Federation(X, y, np.array([0, 10, 30]), np.arange(2))).uploads
    content = RecordDict({looks.ARRAYS: array_record(sent.to_arrays())})
    message = Message(content, dst_node_id=1, message_type="train")
    found = from_wire(agreed, sent.users, looks.arrays_of(message, agreed.specs, users=2))
    assert found.present.keys() == sent.present.keys()
    for name, values in sent.present.items():
        assert found.present[name].dtype == values.dtype
        assert_array_equal(found.present[name], values)
