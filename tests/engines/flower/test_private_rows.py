"""Private uploads on Flower: what leaves a node depends on its rows through noise alone."""

from __future__ import annotations

import importlib.util
import json
import stat
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from flwr.app import Message
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Method, ODCLRegressor, Privacy, fit
from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table
from odcl.engines.flower import ODCL, EstimatorFit, Request, make_client_app
from odcl.engines.flower.result import UNTOLD
from odcl.engines.flower.template import app_folder
from odcl.engines.ledger import NAME, SiteLedger
from odcl.errors import InputError
from odcl.exchange.upload import PRIVATE_FIELDS
from odcl.privacy import epsilon_of, looks, mu_of
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk
from tests.engines.flower.test_app import client  # noqa: F401  a fixture
from tests.engines.flower.world import (
    FakeGrid,
    Node,
    app_config,
    federation,
    grid_of,
    models_of,
    parts_of,
)
from tests.privacy.test_noise import entropy_of

PRIVATE_UPLOAD = looks.private_upload
NAMES = ["a", "b", "c"]
ROWS = federation("squared", m=8, n=120)
PARTS = parts_of(ROWS, 4)
RISKS = {
    "squared": Risk("squared"),
    "logistic": Risk("logistic"),
    "multinomial": Risk(Multinomial(3)),
    "poisson": Risk("poisson"),
}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home for the nodes' ledgers, and noise that is the same every time."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    entropy = entropy_of(0)
    monkeypatch.setattr(looks, "private_upload", lambda *a: PRIVATE_UPLOAD(*a, entropy))
    return tmp_path / "home"


def method(epsilon=4.0, loss="squared", **more):
    ends = {"squared": (-12.0, 12.0), "poisson": (0.0, 60.0)}.get(loss)
    return Method(privacy=Privacy(epsilon, 1e-6, target_range=ends), robust=True, **more)


def strategy(how=None, risk="squared", **more):
    return ODCL(risk, how or method(), **{"features": NAMES, **more})


def plain(message: Message):
    """All that a reply says, as plain values; arrays as their bytes."""
    if message.has_error():
        return message.error.reason
    told = {}
    for name, record in message.content.items():
        values = {k: getattr(v, "data", v) for k, v in record.items()}
        told[name] = values
    return told


def overheard(grid):
    """Every reply of the grid's nodes, in order: what a wire, or a server, sees of them."""
    heard = []
    for node in grid.online.values():
        node.spoil = lambda reply: heard.append(plain(reply)) or reply
    return heard


def test_a_node_says_what_is_declared_and_nothing_else():
    """The whole of both messages: arrays with noise or of noise, ids, and what was agreed on."""
    grid = grid_of(PARTS[:2])
    heard = overheard(grid)
    chosen = strategy()
    chosen.start(grid)
    allowed = {"n_samples", *PRIVATE_FIELDS} - {"private_center"}  # which numbers have none
    for reply in heard[:2]:
        assert set(reply) == {"arrays", "config"}
        assert set(reply["arrays"]) == allowed
        words = reply["config"]
        assert set(words) == {"task", "users", "n-features", "late"}
        assert (words["task"], words["n-features"]) == (chosen.request.digest, 3)
    for reply in heard[2:]:
        assert reply == {"config": {"task": chosen.request.digest, "received": True}}


@pytest.mark.parametrize("loss", RISKS)
def test_without_what_has_noise_two_tables_leave_the_same_bytes(loss, monkeypatch, home):
    """Looks that give noise and nothing of the rows: all else that leaves is the same then.

    So no number, no reason and no answer depends on rows in another way than through the looks,
    whose sensitivities and noise are tested in tests/privacy.
    """
    told = []
    noisy, matrix = looks._Looks._noisy, looks._Looks._noisy_matrix
    monkeypatch.setattr(looks, "private_upload", lambda *a: PRIVATE_UPLOAD(*a, entropy_of(3)))

    def blind(self, values, moved, share):
        return noisy(self, np.zeros_like(values), moved, share)

    def blind_matrix(self, A, share):
        return matrix(self, np.zeros_like(A), share)

    monkeypatch.setattr(looks._Looks, "_noisy", blind)
    monkeypatch.setattr(looks._Looks, "_noisy_matrix", blind_matrix)
    for i, n in enumerate((40, 90)):  # other rows, and another number of them
        monkeypatch.setenv("FLWR_HOME", str(home / str(i)))
        grid = grid_of(parts_of(federation(RISKS[loss], m=4, n=n, seed=i), 2))
        heard = overheard(grid)
        strategy(method(loss=loss), RISKS[loss]).start(grid)
        told.append(heard)
    assert len(told[0]) == 4
    assert told[0] == told[1]


def test_noise_is_what_tells_two_tables_apart(monkeypatch, home):
    """The check above can fail: with looks that see, and no noise, one row more is seen."""
    monkeypatch.setattr(looks, "discrete_gaussian", lambda sd, size, entropy: np.zeros(size, int))
    told = []
    for i in range(2):
        monkeypatch.setenv("FLWR_HOME", str(home / str(i)))
        rows = PARTS[0].select_rows(np.arange(len(PARTS[0].y)) >= i)
        grid = grid_of([rows, PARTS[1]])
        heard = overheard(grid)
        strategy().start(grid)
        told.append(heard)
    (first, second), (same, other) = ([one.pop("arrays") for one in some[:2]] for some in told)
    assert (first == same) + (second == other) == 1
    assert told[0] == told[1]


def test_models_are_those_of_one_process(monkeypatch):
    """Bit for bit, with looks whose noise is left out, which is drawn node by node."""
    monkeypatch.setattr(looks, "discrete_gaussian", lambda sd, size, entropy: np.zeros(size, int))
    got, same = {}, fit(ROWS, Risk(), replace(method(), standardize=False))
    strategy().start(grid_of(PARTS, got))
    assert_array_equal(models_of(got, ROWS.users), same.models)


# -- the ledger ------------------------------------------------------------------------------------


def one_node(rows, **config):
    app = make_client_app(lambda context: rows)
    return Node(app, {"partition-id": 0, **config}, run_config={"names": "plain"})


def asked(node, request):
    """What a node says to a train message."""
    grid = FakeGrid({1: node})
    heard = overheard(grid)
    from odcl.engines.flower.messages import content, message_to

    grid.push_messages([message_to(1, "train", content(config=request.config()), 1.0)])
    return heard[0]


def asking(how=None, **more):
    return Request(Risk(), how or method(), columns=("a", "b", "c"), **more)


def test_an_upload_is_made_once_whatever_the_rows_are_by_then(home):
    first = asked(one_node(PARTS[0]), asking())
    place = home / f"0-{NAME}"
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    (spent,) = SiteLedger.read(place).spent
    assert (spent.card, spent.privacy) == (asking().digest, method().privacy)
    fewer = PARTS[0].select_rows(np.arange(len(PARTS[0].y)) > 0)
    assert asked(one_node(PARTS[0]), asking()) == first
    assert asked(one_node(fewer), asking()) == first
    assert len(SiteLedger.read(place).spent) == 1


def test_a_second_upload_is_refused_and_the_sum_stays_in_the_nodes_own_log(home, caplog):
    caplog.set_level("WARNING", logger="flwr")
    asked(one_node(PARTS[0]), asking())
    reason = asked(one_node(PARTS[0]), asking(seed=1))
    assert "more than it allows" in reason
    total = epsilon_of(2**0.5 * mu_of(4.0, 1e-6), 1e-6)
    assert f"epsilon would be {total:.3g}" in caplog.text
    assert f"{total:.3g}" not in reason
    assert str(home) not in reason
    assert len(SiteLedger.read(home / f"0-{NAME}").spent) == 1


def test_a_node_with_a_limit_adds_up_until_it_is_reached(tmp_path):
    place = tmp_path / "own" / "limits"
    node = one_node(PARTS[0], ledger=str(place), epsilon=6.0)
    for seed in range(2):
        assert "arrays" in asked(node, asking(method(4.0), seed=seed))
    assert "more than it allows" in asked(node, asking(method(4.0), seed=2))
    ledger = SiteLedger.read(place)
    assert len(ledger.spent) == 2
    assert ledger.epsilon(1e-6) <= 6.0 < ledger.epsilon(1e-6, method().privacy)
    large = one_node(PARTS[0], ledger=str(tmp_path / "other"), epsilon=2.0)
    assert "more than it allows" in asked(large, asking(method(4.0)))


def test_a_server_cannot_loosen_a_nodes_limit_by_another_delta(tmp_path):
    loose = Method(privacy=Privacy(4.0, 0.01, target_range=(-12, 12)))
    node = one_node(PARTS[0], ledger=str(tmp_path / "own"), epsilon=4.0)
    assert "more than it allows" in asked(node, asking(loose))


def test_a_node_with_a_limit_sends_nothing_exact():
    reason = asked(one_node(PARTS[0], epsilon=6.0), asking(Method()))
    assert "private uploads alone" in reason


def test_the_ledger_of_a_table_is_the_one_of_sites_that_send_files(tmp_path):
    (tmp_path / "north.csv").touch()
    asked(one_node(PARTS[0], data=str(tmp_path / "north.csv")), asking())
    assert len(SiteLedger.read(tmp_path / NAME).spent) == 1


@pytest.mark.parametrize(
    "bad",
    [
        lambda: 1 / 0,
        lambda: (np.full((5, 3), np.nan), np.zeros(5)),
        lambda: (np.zeros((5, 3)), np.full(5, -1.0)),  # is no count
        lambda: (np.zeros((5, 4)), np.zeros(5)),
    ],
    ids=["raises", "missing", "target", "columns"],
)
def test_of_rows_that_cannot_be_used_nothing_is_told_and_the_question_is_spent(bad, home):
    """Errors are answers too: a server could ask for losses that some targets do not fit."""
    request = Request(Risk("poisson"), method(loss="poisson"), columns=("a", "b", "c"))
    app = make_client_app(lambda context: bad())
    node = Node(app, {"partition-id": 0}, run_config={"names": "plain"})
    assert asked(node, request).endswith(
        "its rows cannot be used, for a reason that its own log has"
    )
    assert len(SiteLedger.read(home / f"0-{NAME}").spent) == 1
    other = one_node(PARTS[0])
    assert "more than it allows" in asked(other, asking())
    counts = federation("poisson", m=2, n=40)
    assert "arrays" in asked(one_node(counts), request)  # once the table is mended
    assert len(SiteLedger.read(home / f"0-{NAME}").spent) == 1


def test_rows_held_out_are_refused_for_other_rows_chose_them():
    part = PARTS[0].rows(0)
    X, y = PARTS[0].X[part], PARTS[0].y[part]
    app = make_client_app(lambda context: (X[:50], y[:50], X[50:], y[50:]))
    node = Node(app, {"partition-id": 0}, run_config={"names": "plain"})
    assert "Rows are held out" in asked(node, asking())


@pytest.mark.parametrize("where", ["last step", "on_model", "nothing"])
def test_the_answer_to_a_download_is_the_same_whatever_rows_do_to_it(where, monkeypatch):
    def failing(*_, **__):
        raise ValueError("5.5")

    grid = grid_of(PARTS[:2])
    if where == "last step":
        monkeypatch.setattr("odcl.engines.flower.fits.last_step", failing)
    if where == "on_model":
        for i, node in enumerate(grid.online.values()):
            node.app = make_client_app(lambda _, i=i: PARTS[i], on_model=failing)
    heard = overheard(grid)
    chosen = strategy()
    chosen.start(grid)
    assert heard[2:] == [{"config": {"task": chosen.request.digest, "received": True}}] * 2


# -- what cannot be private ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ODCL("squared", method()), "features="),
        (lambda: ODCL(None, replace(method(), clusterer="kmeans:2")), "Bare models"),
        (lambda: strategy(risk="huber"), "huber"),
        (lambda: strategy(replace(method(), clusterer="kmeans:2")), "clusters models"),
        (lambda: strategy(Method(privacy=Privacy())), "target_range"),
        (lambda: strategy(method(), features=["a", "b"], curves={"a": (0, 1)}), "curves"),
    ],
)
def test_what_the_guarantee_does_not_cover_is_refused_before_anybody_is_asked(make, why):
    with pytest.raises(ValueError, match=why):
        make()


def test_models_of_other_fits_do_not_leave_where_privacy_is_asked_for(home):
    from sklearn.linear_model import Ridge

    app = make_client_app(lambda context: PARTS[0], fit=EstimatorFit(Ridge()))
    node = Node(app, {"partition-id": 0}, run_config={"names": "plain"})
    assert "would send others" in asked(node, asking())
    assert not home.exists()


# -- the result ------------------------------------------------------------------------------------


def test_the_result_says_the_guarantee_and_takes_nothing_exact(tmp_path):
    from odcl.artifact.folder import open_artifact
    from odcl.fitted.persist import KIND, read_fitted
    from odcl.runs.evidence import Evidence
    from odcl.runs.page import fit_page_of

    run, chosen = tmp_path / "run", strategy(result_dir=tmp_path / "run")
    chosen.start(grid_of(PARTS))
    sentences = [*method().privacy.sentences, UNTOLD]
    nodes = json.loads((run / "nodes.json").read_text())
    assert nodes["guarantee"] == sentences
    assert [one["metrics"] for one in nodes["nodes"].values()] == [{}] * 4
    assert json.loads((run / "report.json").read_text())["notices"] == sentences
    with open_artifact(run, kind=KIND) as stored:
        fitted = read_fitted(stored)
    page = fit_page_of(fitted, Evidence.of(fitted)).decode()
    assert "(4, 1e-06)-differentially private" in page
    model = ODCLRegressor.load(run)
    assert_allclose(model.coef_[0], [2, -1, 1], atol=0.1)
    X, y = ROWS.X[:20], ROWS.y[:20]
    assert model.assign(X, y).label == 0
    for add in (model.add_user, model.update_user):
        with pytest.raises(InputError, match="without noise"):
            add("new" if add == model.add_user else "u00", X, y)
    for told in (model.importance, model.diagnose):
        with pytest.raises(ValueError, match=r"[Pp]rivate"):
            told()


@pytest.mark.parametrize("loss", ["logistic", "multinomial", "poisson"])
def test_runs_of_classes_and_counts_are_read_back(loss, tmp_path):
    chosen = strategy(method(8.0, loss), RISKS[loss], result_dir=tmp_path / "run")
    chosen.start(grid_of(parts_of(federation(RISKS[loss], m=8, n=200), 4)))
    from odcl.estimators.public import load_estimator

    model = load_estimator(tmp_path / "run")
    assert model.n_users_ == 8
    assert len(model.coefficients()) == 8 * (3 if loss == "multinomial" else 1)


def test_a_private_round_by_a_task_card(tmp_path):
    from odcl.engines.files.site import read_site
    from tests.engines.files import world
    from tests.engines.files.test_private import private_task

    task, tables, got = private_task(), world.frames(4, 300), {}
    nodes = {}
    for i, frame in enumerate(tables.values()):
        app = make_client_app(
            lambda _, frame=frame, i=i: replace(
                read_site(task, frame).rows, users=np.array([f"ward {i}"])
            ),
            on_model=lambda found, _, i=i: got.update({i: found.models[0]}),
        )
        nodes[i + 1] = Node(app, {"site": f"s{i}"}, run_config={"names": "plain"})
    chosen = ODCL.from_task(task, result_dir=tmp_path / "run")
    assert (chosen.request.name, chosen.request.round) == (task.name, task.round)
    chosen.start(FakeGrid(nodes))
    assert len(got) == 4
    table = tables["north"].assign(site="ward 0")
    predicted = ODCLRegressor.load(tmp_path / "run").predict(table)
    assert np.sqrt(np.mean((predicted - table[task.target]) ** 2)) < 1.0


# -- nodes that come after the round ---------------------------------------------------------------


def test_who_missed_its_download_gets_it_and_who_is_new_sends_nothing_of_its_rows(tmp_path, home):
    run, got = tmp_path / "run", {}
    everybody = grid_of(PARTS, got)
    numbers = list(everybody.online)
    grid = FakeGrid({n: everybody.online[n] for n in numbers[:3]})
    silent = grid.online[numbers[0]]
    silent.spoil = lambda reply: None if silent.asked[-1] == "evaluate" else reply
    strategy(result_dir=run, timeout=0.3).start(grid)
    expected = {user: got.pop(user)[0] for user in PARTS[0].users.tolist()}
    before = (run / "model.json").read_bytes()
    silent.spoil = None
    late = FakeGrid({n: everybody.online[n] for n in (numbers[0], numbers[3])})
    heard = overheard(late)
    ODCL.from_result(run).start(late)
    said = {one["config"]["late"]: set(one) for one in heard[:2]}
    assert said == {False: {"arrays", "config"}, True: {"config"}}
    assert heard[2:] == [{"config": {**heard[2]["config"], "received": True}}] * 2
    assert not (home / f"3-{NAME}").exists()
    for user, model in expected.items():  # what it missed, to the last bit
        assert_array_equal(got[user][0], model)
    for i, user in enumerate(PARTS[3].users.tolist()):
        assert got[user][1] == got["u01"][1]  # of its kind
        X, y = ROWS.X[ROWS.rows(3 + 4 * i)], ROWS.y[ROWS.rows(3 + 4 * i)]
        assert np.sqrt(np.mean((X @ got[user][0] - y) ** 2)) < 0.35
    assert (run / "model.json").read_bytes() == before
    nodes = json.loads((run / "nodes.json").read_text())["nodes"]
    assert all(one["confirmed"] for one in nodes.values())
    assert len(nodes) == 4
    again = FakeGrid({n: everybody.online[n] for n in numbers})
    ODCL.from_result(run, wait=0.1, min_replies=1, nodes=1).start(again)


def test_what_a_late_node_is_taken_for_does_not_count_among_what_was_sent(tmp_path):
    run = tmp_path / "run"
    strategy(result_dir=run).start(grid_of(PARTS[:3]))
    late = grid_of([PARTS[3]], seed=5)
    next(iter(late.online.values())).config["partition-id"] = 3
    ODCL.from_result(run).start(late)
    model = ODCLRegressor.load(run)
    assert sorted(model.users_.tolist()) == sorted(u for p in PARTS[:3] for u in p.users.tolist())
    assert len(model.uploads_) == 6


def test_late_nodes_whose_users_have_one_name_are_several(tmp_path):
    """They send nothing that could be told apart, and are not taken for one table twice."""
    run, got = tmp_path / "run", {}
    strategy(result_dir=run).start(grid_of(PARTS[:2]))
    late = FakeGrid({})
    for i in (2, 3):
        part = replace(PARTS[i], users=np.array(["w0", "w1"]))
        app = make_client_app(lambda _, p=part: p, on_model=lambda m, _, i=i: got.update({i: m}))
        late.online[i] = Node(app, {"partition-id": i})
    ODCL.from_result(run, nodes=2).start(late)
    assert sorted(got) == [2, 3]
    words = json.loads((run / "nodes.json").read_text())
    assert words["set_aside"] == []
    assert words["late"] == []


# -- the app to start from -------------------------------------------------------------------------

SAID = {
    "epsilon": 8.0,
    "ranges": "price=1:5,promotion=0:1,temperature=-5:35,weekend=0:1,rain=0:20",
    "target-range": "0:200",
}


@pytest.fixture(scope="module")
def server():
    spec = importlib.util.spec_from_file_location(
        "odcl_table_server", app_folder() / "server_app.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_apps_ranges_are_public_and_complete(server):
    config = {**app_config(), **SAID}
    privacy = server.method(config).privacy
    assert (privacy.shift[:2], privacy.scale[:2]) == ((3.0, 0.5), (1.0, 0.25))
    assert (privacy.epsilon, privacy.delta, privacy.target_range) == (8.0, 1e-6, (0.0, 200.0))
    with pytest.raises(ValueError, match="rain=LOWEST"):
        server.method({**config, "ranges": SAID["ranges"].replace(",rain=0:20", "")})
    with pytest.raises(ValueError, match="holdout"):
        server.method({**config, "holdout": 0.2})
    assert server.method(app_config()).privacy is None


def test_a_row_of_the_apps_table_that_lacks_a_value_is_left_out_and_not_told(
    server,
    client,  # noqa: F811
    tmp_path,
):
    stores = {name: np.asarray(column) for name, column in store_tables(0)[0].items()}
    owner, config = (
        np.unique(stores["store"], return_inverse=True)[1],
        {
            **app_config(),
            **SAID,
        },
    )
    nodes = {}
    for i in range(3):
        (tmp_path / str(i)).mkdir()
        table = {name: column[owner % 3 == i].tolist() for name, column in stores.items()}
        table["rain"][4] = None
        write_table(tmp_path / str(i) / "sales.csv", table)
        nodes[i + 1] = Node(client.app, {"data": str(tmp_path / str(i) / "sales.csv")})
        nodes[i + 1].run_config = config
    chosen = ODCL(
        Risk(intercept=True), server.method(config), features=config["features"].split(",")
    )
    chosen.start(FakeGrid(nodes))
    assert chosen.outcome.set_aside == chosen.outcome.undelivered == ()
    assert all((tmp_path / str(i) / NAME).exists() for i in range(3))
