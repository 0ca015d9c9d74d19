"""What needs no Flower: estimators and networks as users' models, requests, users' names."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import linear_model
from sklearn.ensemble import RandomForestRegressor

from odcl import Method, Risk, fit, linear_federation
from odcl.data.federation import Federation, as_ids
from odcl.engines import flower
from odcl.engines.flower import (
    EstimatorFit,
    ModuleFit,
    NodeData,
    Request,
    frozen_features,
    network_digest,
)
from odcl.engines.flower.fits import own_ids, same_tables, with_model, within_nodes
from odcl.engines.flower.networks import set_flat
from odcl.risk.losses import Multinomial
from tests.helpers import run_python


def federation():
    rng = np.random.default_rng(0)
    return Federation.from_arrays(rng.normal(size=(12, 3)), rng.normal(size=12), np.arange(12) % 3)


NEEDS_FLOWER = {"LateODCL", "ODCL", "make_client_app"}


def test_names_of_the_server_alone_need_flower():
    """The others load without it; these say what to install."""
    code = (
        "from odcl.engines import flower\n"
        "for name in flower.__all__:\n"
        "    try: getattr(flower, name)\n"
        "    except ImportError as error: print(name, error)\n"
    )
    lines = run_python(code)
    assert {line.split()[0] for line in lines} == NEEDS_FLOWER <= set(flower.__all__)
    assert all("pip install 'odcl[flower]'" in line for line in lines)


# -- requests and names ----------------------------------------------------------------------------


def test_a_request_comes_back_from_its_words_and_only_from_those():
    asked = Request(Risk(Multinomial(3), 0.1, True), Method.paper(2), 7, ("age", "dose"))
    words = asked.config()
    assert Request.from_config(words) == asked
    assert asked.method.standardize is False
    for changed, why in (
        ({"odcl": words["odcl"].replace('"seed": 7', '"seed": 8')}, "digest is not that"),
        ({"odcl": words["odcl"].replace('"seed": 7', '"seed": -1')}, "seed is -1"),
        ({"odcl": words["odcl"].replace('"format": 1', '"format": 2')}, "another format"),
        ({"odcl": "{"}, "Expecting|JSON"),
        ({"odcl": None}, "holds no request"),
    ):
        with pytest.raises(ValueError, match=why):
            Request.from_config({**words, **changed})


def test_users_are_their_nodes_own_where_names_meet():
    named = within_nodes({7: as_ids(["a", "b"]), 8: as_ids(["b", ("x", 1)])})
    assert named[7].tolist() == ["a", (7, "b")]
    assert named[8].tolist() == [(8, "b"), (8, ("x", 1))]
    assert own_ids(named[8]).tolist() == ["b", ("x", 1)]


def test_nodes_with_one_table_name_each_other():
    found = same_tables({1: "t", 2: "u", 3: "t", 4: "t"})
    assert found.keys() == {1, 3, 4}
    assert "the same numbers as node 1 and node 4" in found[3]


# -- scikit-learn ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n_classes", [2, 3])
def test_several_classes_come_back_from_their_basis(n_classes):
    """What a user fitted itself, set back, predicts as the fitted estimator does."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 3)), np.arange(90) % n_classes
    X[:, 0] += 2 * y
    risk = Risk(Multinomial(n_classes), intercept=True)
    estimator = linear_model.LogisticRegression(max_iter=500)
    theta = fit(Federation.from_arrays(X, y, np.zeros(90)), risk, Method.paper(1), solver=estimator)
    model = with_model(estimator, risk, theta.models[0])
    alone = linear_model.LogisticRegression(max_iter=500).fit(X, y)
    assert_allclose(model.predict_proba(X), alone.predict_proba(X), rtol=1e-9)


def test_what_has_no_linear_model_is_refused():
    with pytest.raises(ValueError, match=r"Ridge is a class.*EstimatorFit\(Ridge\(\.\.\.\)\)"):
        EstimatorFit(linear_model.Ridge)
    rows = linear_federation(2, 5, n_clusters=1, dim=2)
    agreed = Request(Risk("squared"), Method.paper(1)).agreed(2)
    with pytest.raises(ValueError, match=r"RandomForestRegressor has no coef_ .* such as Ridge"):
        EstimatorFit(RandomForestRegressor(n_estimators=2)).uploads(rows, agreed, seed=0)
    with pytest.raises(ValueError, match="str is no estimator"):
        EstimatorFit("Ridge")


# -- networks --------------------------------------------------------------------------------------


class Arrays:
    """A module as far as odcl looks at one: a linear model in single precision, with a counter."""

    def __init__(self, n=3):
        self.state = {
            "weight": np.zeros((1, n), dtype=np.float32),
            "half": np.zeros(2, dtype=np.float16),
            "seen": np.array(7, dtype=np.int64),
        }

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        assert state.keys() == self.state.keys()
        self.state = dict(state)


def train(module, X, y):
    """Ten steps of least squares from where the module is."""
    w = module.state["weight"][0].astype(np.float64)
    for _ in range(10):
        w = w - 0.1 * X.T @ (X @ w - y) / len(y)
    module.state = {**module.state, "weight": w[None].astype(np.float32)}
    module.state["seen"] = module.state["seen"] + 1


def test_a_module_without_numbers_or_with_too_many_is_refused(monkeypatch):
    empty = Arrays()
    empty.state = {"seen": empty.state["seen"]}
    with pytest.raises(ValueError, match="0 floating-point numbers"):
        ModuleFit(lambda: empty, train).n_parameters  # noqa: B018
    monkeypatch.setattr("odcl.engines.flower.networks.MOST_BARE", 4)
    with pytest.raises(ValueError, match="5 floating-point numbers"):
        ModuleFit(Arrays, train).n_parameters  # noqa: B018
    with pytest.raises(ValueError, match="no state of this module"):
        set_flat(Arrays(), np.zeros(4))


def test_frozen_features_take_all_that_load_may_give():
    X, y = np.arange(24.0).reshape(2, 3, 4), np.arange(2.0)  # two pictures of 3 x 4
    given = {
        "one user": (X, y),
        "held out": (X, y, X, y),
        "nothing held out": (X, y, X[:0], y[:0]),
        "by user": {"a": (X, y)},
        "federation": federation(),
        "node": NodeData(federation(), federation()),
    }
    load = frozen_features(lambda key: given[key], lambda rows: 2.0 * rows)
    assert load("one user")[0].shape == (2, 12)
    assert_array_equal(load("one user")[0], 2.0 * X.reshape(2, 12))
    assert_array_equal(load("held out")[2], 2.0 * X.reshape(2, 12))
    assert len(load("nothing held out")[2]) == 0
    assert_array_equal(load("by user")["a"][1], y)
    assert_array_equal(load("federation").X, 2.0 * federation().X)
    assert_array_equal(load("node").test.X, 2.0 * federation().X)


def test_the_digest_of_a_network_tells_networks_apart():
    one, two = Arrays(), Arrays()
    assert network_digest(one) == network_digest(two)
    two.state["half"] = np.array([0.0, 1.0], dtype=np.float16)
    assert network_digest(one) != network_digest(two)
    frozen_features(lambda context: None, one, sha256=network_digest(one))
    with pytest.raises(ValueError, match="cannot be compared"):
        frozen_features(lambda context: None, two, sha256=network_digest(one))


def test_a_fit_of_ones_own_sends_what_odcl_does_unless_it_says_otherwise():
    class Quiet(flower.Fit):
        """Its own only in name."""

    agreed = SimpleNamespace(fit=lambda rows: SimpleNamespace(uploads=("exact", rows)))
    assert Quiet().uploads("rows", agreed, seed=0) == ("exact", "rows")
