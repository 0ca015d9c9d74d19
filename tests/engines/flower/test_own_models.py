"""People's own models on Flower: scikit-learn's estimators, and networks, real or made up."""

from __future__ import annotations

import ast
import json

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import linear_model
from sklearn.svm import LinearSVC

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from odcl import Method, Risk, fit
from odcl.data.federation import Federation
from odcl.engines.flower import (
    ODCL,
    EstimatorFit,
    ModuleFit,
    NodeData,
    frozen_features,
    make_client_app,
    network_digest,
    read_bare,
)
from odcl.engines.flower.networks import flat, set_flat
from odcl.server.models import average_by_cluster
from tests.engines.flower.test_without_flower import Arrays, train
from tests.engines.flower.world import FakeGrid, Node, federation, grid_of, models_of, parts_of

LIMITS = {"min_replies": 2, "wait": 0.2, "timeout": 5.0}
WEIGHED = Method("kmeans:2", combine="samples")


def run(rows, risk, method, fit_, got=None, **settings):
    got = {} if got is None else got
    strategy = ODCL(risk, method, **LIMITS, **settings)
    strategy.start(grid_of(parts_of(rows, 4), got, fit=fit_))
    return strategy.outcome, got


# -- scikit-learn ----------------------------------------------------------------------------------

REGRESSORS = [
    linear_model.Ridge(alpha=0.1),
    linear_model.Lasso(alpha=0.01),
    linear_model.HuberRegressor(),
    linear_model.SGDRegressor(),
]


@pytest.mark.parametrize("method", [Method.paper(2), WEIGHED], ids=["paper", "weighed"])
@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda e: type(e).__name__)
def test_estimators_give_the_models_of_one_process_bit_for_bit(estimator, method):
    rows, risk = federation(), Risk(intercept=True)
    out, got = run(rows, risk, method, EstimatorFit(estimator))
    same = fit(rows, risk, method, solver=estimator)
    assert_array_equal(models_of(got, rows.users), same.models)
    assert set(out.uploads.present) == {"n_samples", "theta"}


@pytest.mark.parametrize("estimator", REGRESSORS, ids=lambda e: type(e).__name__)
def test_the_download_is_set_into_a_fitted_clone(estimator):
    rows, risk, own = federation(), Risk(intercept=True), EstimatorFit(estimator)
    _, got = run(rows, risk, Method.paper(2), own)
    theta, _, found = got["u01"]
    model = own.fitted(found, "u01")
    assert type(model) is type(estimator)
    assert model is not estimator
    assert_allclose(model.coef_, theta[:3])
    assert_allclose(model.predict(rows.X[:9]), rows.X[:9] @ theta[:3] + theta[3], rtol=1e-12)
    assert not hasattr(estimator, "coef_")  # the one that was given is untouched


@pytest.mark.parametrize(
    "estimator",
    [linear_model.LogisticRegression(), LinearSVC(), linear_model.RidgeClassifier()],
    ids=lambda e: type(e).__name__,
)
def test_classifiers_predict_with_their_groups_model_under_any_names(estimator):
    risk = Risk("logistic", intercept=True)
    rows, own = federation(risk), EstimatorFit(estimator)
    _, got = run(rows, risk, Method.paper(2), own)
    theta, _, found = got["u02"]
    model = own.fitted(found, "u02", ["no", "yes"])
    positive = risk.design(rows.X) @ theta > 0
    assert_array_equal(model.predict(rows.X), np.where(positive, "yes", "no"))
    with pytest.raises(ValueError, match="3 classes"):
        own.fitted(found, "u02", ["a", "b", "c"])


def test_a_user_that_the_estimator_refuses_takes_part_all_the_same():
    risk = Risk("logistic", intercept=True)
    rows = federation(risk)
    y = np.where(rows.row_user == 4, 1.0, rows.y)  # one class only
    out, got = run(
        rows.with_y(y), risk, Method.paper(2), EstimatorFit(linear_model.LogisticRegression())
    )
    assert len(got) == 12
    assert not out.set_aside


def test_a_method_that_needs_more_than_bare_models_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="0 replies can be taken") as caught:
        run(federation(), Risk(), Method(), EstimatorFit(linear_model.Ridge(fit_intercept=False)))
    assert "Method.paper(n_clusters=K)" in "".join(caught.value.__notes__)


def test_held_out_rows_are_scored_by_the_agreed_loss():
    rows = federation()
    own = EstimatorFit(linear_model.Ridge(fit_intercept=False))
    nodes = {}
    for i, part in enumerate(parts_of(rows, 4)):
        data = NodeData(part, part)
        nodes[i + 1] = Node(make_client_app(lambda context, data=data: data, fit=own))
    strategy = ODCL(Risk(), Method.paper(2), **LIMITS)
    found = strategy.start(FakeGrid(nodes))
    z = (rows.X * strategy.outcome.step.models[rows.row_user]).sum(axis=1)
    loss = found.evaluate_metrics_clientapp[1]["loss"]
    assert loss == pytest.approx(0.5 * ((rows.y - z) ** 2).mean())


# -- networks: one made of arrays, which always runs -----------------------------------------------


def loss(module, X, y):
    return float(0.5 * ((X @ module.state["weight"][0] - y) ** 2).mean())


def trained(rows):
    """Each user's flat model after its training, (n_users, 5)."""
    theta = np.zeros((rows.n_users, 5))
    for i, (_, X, y) in enumerate(rows):
        module = Arrays()
        train(module, X, y)
        theta[i] = flat(module)
    return theta


def test_modules_are_averaged_by_group_and_types_restored(tmp_path):
    rows, own = federation(), ModuleFit(Arrays, train, loss)
    out, got = run(rows, None, Method.paper(2), own, result_dir=tmp_path / "run")
    labels = np.arange(12) % 2
    expected = average_by_cluster(trained(rows), labels)
    assert_array_equal(out.step.labels, labels)
    assert_array_equal(out.step.centers, expected)
    module = own.fitted(got["u03"][2], "u03")
    assert module.state["weight"].dtype == np.float32
    assert module.state["half"].dtype == np.float16
    assert module.state["weight"].shape == (1, 3)
    assert_array_equal(module.state["weight"][0], expected[1, :3].astype(np.float32))
    assert module.state["seen"] == 7  # whole numbers stay as they were built
    found = read_bare(tmp_path / "run")
    assert_array_equal(found.model("u03"), expected[1])
    with pytest.raises(ValueError, match="took no part"):
        found.model("nobody")
    nodes = json.loads((tmp_path / "run" / "nodes.json").read_text())
    assert nodes["bytes"]["odcl"]["up"] == 8 * 12 * (5 + 1)


def test_a_server_and_a_node_that_mean_different_models_say_so():
    for risk, own, words in [
        (None, None, "asks for bare models"),
        (Risk(), ModuleFit(Arrays, train), "risk must be None"),
    ]:
        with pytest.raises(ValueError, match="0 replies") as caught:
            run(federation(), risk, Method.paper(2), own)
        assert words in "".join(caught.value.__notes__)
    for method in (Method(), Method(2), Method("auto:3")):
        with pytest.raises(ValueError, match="sends bare models"):
            ODCL(None, method)


def test_features_of_a_frozen_map_are_full_data_terms():
    """A function of the rows, then odcl's own head: the same as fitting on what it gives."""
    rows, got = federation(), {}
    turn = np.random.default_rng(1).normal(size=(3, 4))

    def network(X):
        return np.tanh(X @ turn)[:, :, None]  # of any shape: flattened

    nodes = {}
    for i, part in enumerate(parts_of(rows, 4)):

        def keep(found, context):
            got.update({user: (found.model(user),) for user in found.users.tolist()})

        load = frozen_features(lambda context, part=part: part, network, batch_size=7)
        nodes[i + 1] = Node(make_client_app(load, on_model=keep))
    strategy = ODCL("squared", **LIMITS)
    strategy.start(FakeGrid(nodes))
    features = Federation(np.tanh(rows.X @ turn), rows.y, rows.offsets, rows.users)
    same = fit(features, "squared", Method(standardize=False, robust=True))
    assert "factor" in strategy.outcome.uploads.present
    # Batches of other sizes may round in another way before the map.
    assert_allclose(models_of(got, rows.users), same.models, rtol=1e-9)


def test_the_page_names_what_is_there():
    """Its examples compile, and every name that they import exists."""
    import odcl
    from odcl.engines import flower
    from tests.pages import DOCS, blocks

    examples = [
        b.text for b in blocks((DOCS / "flower-models.md").read_text()) if b.language == "py"
    ]
    assert len(examples) == 4
    homes = {"odcl": odcl, "odcl.engines.flower": flower}
    for example in examples:
        for line in ast.walk(ast.parse(example)):
            if isinstance(line, ast.ImportFrom) and line.module in homes:
                assert all(hasattr(homes[line.module], one.name) for one in line.names)


# -- networks of PyTorch ---------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed here: odcl needs none")


def perceptron(torch):
    from torch import nn

    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def torch_train(torch):
    def train(module, X, y):
        module.train()
        X, y = torch.as_tensor(X).float(), torch.as_tensor(y).float()
        steps = torch.optim.SGD(module.parameters(), lr=0.05)
        for _ in range(20):
            steps.zero_grad()
            ((module(X)[:, 0] - y) ** 2).mean().backward()
            steps.step()

    return train


def test_torch_modules_are_averaged_by_group(torch):
    rows, work = federation(), torch_train(torch)
    own = ModuleFit(lambda: perceptron(torch), work)
    before = torch.random.get_rng_state()
    out, got = run(rows, None, Method.paper(2), own, seed=5)
    assert torch.equal(torch.random.get_rng_state(), before)  # others' draws go on as they were
    theta = []
    for _, X, y in rows:
        torch.manual_seed(5)
        module = perceptron(torch)
        work(module, X, y)
        theta.append(flat(module))
    centers = average_by_cluster(np.array(theta), np.arange(12) % 2)
    assert_array_equal(out.step.labels, np.arange(12) % 2)
    assert_array_equal(out.step.centers, centers)
    module = own.fitted(got["u01"][2], "u01")
    assert {name: value.dtype for name, value in module.state_dict().items()} == {
        name: value.dtype for name, value in perceptron(torch).state_dict().items()
    }
    assert int(module.state_dict()["1.num_batches_tracked"]) == 0
    weight = module.state_dict()["0.weight"].numpy()
    assert_array_equal(weight.ravel(), centers[1, :24].astype(np.float32))


def test_half_precision_goes_and_comes_back_unchanged(torch):
    module = torch.nn.Linear(4, 3).to(torch.bfloat16)
    was = {name: value.clone() for name, value in module.state_dict().items()}
    set_flat(module, flat(module))
    for name, value in module.state_dict().items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value, was[name])


def test_a_frozen_torch_network_is_left_as_it_was(torch):
    rows = federation()
    network = perceptron(torch)[:3]
    assert network.training
    load = frozen_features(lambda context: rows, network, sha256=network_digest(network))
    was = network_digest(network)
    found = load(None)
    assert network.training
    assert network_digest(network) == was  # running means did not move
    network.eval()
    with torch.no_grad():
        same = network(torch.as_tensor(rows.X).float()).double().numpy()
    assert_allclose(found.X, same, rtol=1e-5, atol=1e-6)
    assert found.X.dtype == np.float64
