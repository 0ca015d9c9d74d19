"""Replies that cannot be taken: each is set aside by node and reason, and the round goes on."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_array_equal

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

from odcl import Method, Risk, fit
from odcl.data.federation import Federation
from odcl.engines.flower import ODCL, make_client_app
from odcl.engines.flower import messages as looks
from odcl.engines.flower.messages import array_record
from odcl.engines.flower.strategy import Delivery
from tests.engines.flower.world import (
    SUPERLINK,
    Node,
    federation,
    grid_of,
    models_of,
    parts_of,
)

ROWS = federation("squared")
PARTS = parts_of(ROWS, 4)


def spoiled(change):
    """A node whose train replies are changed, and its downloads are not."""

    def spoil(message):
        if message.metadata.message_type != "train" or not message.has_content():
            return message
        return change(message)

    return spoil


def arrays_changed(**changes):
    """Other arrays in a reply; None takes one away."""

    def change(message):
        record = message.content["arrays"]
        arrays = {name: one.numpy().copy() for name, one in record.items()}
        for name, make in changes.items():
            arrays[name] = None if make is None else make(arrays.get(name))
        kept = {name: array for name, array in arrays.items() if array is not None}
        message.content["arrays"] = array_record(kept)
        return message

    return spoiled(change)


def words_changed(**changes):
    def change(message):
        words = {
            **message.content["config"],
            **{k.replace("_", "-"): v for k, v in changes.items()},
        }
        kept = {name: value for name, value in words.items() if value is not None}
        message.content["config"] = ConfigRecord(kept)
        return message

    return spoiled(change)


def raw(name, one):
    """A Flower array of one's own making."""

    def change(message):
        record = dict(message.content["arrays"].items())
        record[name] = one
        message.content["arrays"] = ArrayRecord(record)
        return message

    return spoiled(change)


def without(name):
    def change(message):
        del message.content[name]
        return message

    return spoiled(change)


def filled(value, at=0):
    def make(array):
        array.reshape(-1)[at] = value
        return array

    return make


def by_superlink(code):
    """An error that the SuperLink makes: it carries its own id as the source."""

    def spoil(message):
        if message.metadata.message_type != "train":
            return message
        request_id = message.metadata.reply_to_message_id
        made = Message(RecordDict(), SUPERLINK, "train")
        made.metadata.__dict__["_reply_to_message_id"] = request_id
        made.metadata.__dict__["_src_node_id"] = SUPERLINK
        made.__dict__["_content"], made.__dict__["_error"] = None, Error(code, "")
        return made

    return spoil


def npy(array, shape=None, dtype=None):
    """Bytes of an array whose header may say something else than its bytes do."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream,
        {
            "descr": dtype or np.lib.format.dtype_to_descr(array.dtype),
            "fortran_order": False,
            "shape": shape or array.shape,
        },
    )
    return stream.getvalue() + array.tobytes()


HUGE = (3, 10**12)
FAULTS = {
    "NaN": (arrays_changed(means=filled(np.nan)), "means holds numbers that are not finite"),
    "infinity": (arrays_changed(factor=filled(np.inf)), "factor holds numbers that are not finite"),
    "too large": (arrays_changed(means=filled(1e80)), "means holds numbers beyond 1e"),
    "shape": (arrays_changed(means=lambda a: a[:, :-1]), "means has shape"),
    "users": (arrays_changed(means=lambda a: a[:-1]), "means has shape"),
    "type": (arrays_changed(means=lambda a: a.astype(np.float32)), "means has type float32"),
    "field missing": (arrays_changed(factor=None), "factor is not there"),
    "field too many": (arrays_changed(theta=lambda a: np.zeros(3)), "theta should not be there"),
    "no rows": (arrays_changed(n_samples=filled(0.0)), "a user has 0 rows"),
    "negative rows": (arrays_changed(n_samples=filled(-5.0)), "a user has -5 rows"),
    "half a row": (arrays_changed(n_samples=filled(7.5)), "a user has 7.5 rows"),
    "endless rows": (arrays_changed(n_samples=filled(1e15)), "a user has 1e"),
    "no arrays": (without("arrays"), "no ArrayRecord 'arrays'"),
    "no words": (without("config"), "no ConfigRecord 'config'"),
    "another task": (words_changed(task="0" * 64), "it answers another task"),
    "no task": (words_changed(task=None), "it answers another task"),
    "no users": (words_changed(users=None), "it does not name its users"),
    "users of no kind": (words_changed(users="[[1], 2, 3]"), "an id is a list"),
    "a user twice": (words_changed(users='["a", "a", "b"]'), "it names a user twice"),
    "a user without id": (words_changed(users='[null, "a", "b"]'), "no user id"),
    "too few users": (words_changed(users='["a"]'), "has shape"),
    "broken words": (words_changed(users="{"), "its reply is malformed"),
    "no features": (words_changed(n_features=None), "how many features"),
    "others' features": (words_changed(n_features=7), "has shape"),
    "absurd features": (words_changed(n_features=10**9), "parameters"),
    "pickled": (
        raw("means", Array("object", (3, 4), "numpy.ndarray", b"")),
        "means has type object",
    ),
    "another serialization": (
        raw("means", Array("float64", (3, 4), "torch", b"")),
        "serialized as 'torch'",
    ),
    "no bytes": (
        raw("means", Array("float64", (3, 4), "numpy.ndarray", b"")),
        "its reply is malformed",
    ),
    "other bytes": (
        raw("means", Array("float64", (3, 4), "numpy.ndarray", npy(np.zeros((3, 3)), (3, 4)))),
        "means has other bytes than it says",
    ),
    "a lie about its shape": (
        raw("means", Array("float64", (3, 4), "numpy.ndarray", npy(np.zeros(3), HUGE))),
        "means holds another array than it says",
    ),
    "an object in its bytes": (
        raw("means", Array("float64", (3, 4), "numpy.ndarray", npy(np.zeros(12), (3, 4), "|O"))),
        "means holds another array than it says",
    ),
    "gone": (by_superlink(5), "the node is gone"),
    "died": (by_superlink(8), "its ClientApp died"),
    "unknown error": (by_superlink(77), "Flower reports error 77"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reply_that_cannot_be_taken_is_set_aside_with_the_reason(fault):
    """The rest of the round is as if the node were not there."""
    spoil, reason = FAULTS[fault]
    got = {}
    grid = grid_of(PARTS, got)
    bad = sorted(grid.online)[1]
    users = bad_users(grid, bad)
    grid.online[bad].spoil = spoil
    strategy = ODCL(min_replies=3)
    result = strategy.start(grid)
    (aside,) = strategy.outcome.set_aside
    assert aside.name == f"node {bad}"
    assert reason in aside.reason
    assert len(str(aside).splitlines()) == 1
    assert result.train_metrics_clientapp[1]["nodes-set-aside"] == 1
    others = ROWS.take(np.flatnonzero(~np.isin(ROWS.users, users)))
    rest = fit(others, method=Method(robust=True))
    assert_array_equal(models_of(got, rest.users), rest.models)
    assert not set(users) & set(got)
    assert grid.online[bad].asked == ["train"]


def bad_users(grid, node):
    """The users of a node."""
    return PARTS[grid.online[node].config["partition-id"]].users.tolist()


def test_a_node_that_raises_is_set_aside_and_what_it_said_stays_there():
    def load(context):
        raise RuntimeError("could not convert 'Mrs Smith' to a number")

    grid = grid_of(PARTS)
    grid.online[7] = Node(make_client_app(load))
    strategy = ODCL()
    strategy.start(grid)
    (aside,) = strategy.outcome.set_aside
    assert str(aside) == (
        "node 7 is set aside: its ClientApp raised an error (Refused: RuntimeError, which the "
        "node's log explains)."
    )


def test_what_a_node_says_moves_no_cursor():
    def app(message, context):
        raise RuntimeError("\x1b[2J" + "x" * 10_000)

    grid = grid_of(PARTS)
    grid.online[7] = Node(app)
    strategy = ODCL()
    strategy.start(grid)
    (aside,) = strategy.outcome.set_aside
    assert "\x1b" not in str(aside)
    assert len(str(aside)) < 500


def test_a_curvature_that_no_rows_have_is_set_aside():
    rows = federation("logistic")
    grid = grid_of(parts_of(rows, 4))
    bad = sorted(grid.online)[0]

    def negative(message):
        record = message.content["arrays"]
        arrays = {name: one.numpy() for name, one in record.items()}
        arrays["gaussian_curvature"] = -arrays["gaussian_curvature"]
        message.content["arrays"] = array_record(arrays)
        return message

    grid.online[bad].spoil = spoiled(negative)
    strategy = ODCL("logistic")
    strategy.start(grid)
    (aside,) = strategy.outcome.set_aside
    assert "gaussian_curvature is not positive semidefinite" in aside.reason


@pytest.fixture
def clock(monkeypatch):
    """Time that passes while the strategy sleeps, and not otherwise."""
    now = [0.0]
    monkeypatch.setattr(looks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(looks.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    return now


def test_a_silent_node_costs_the_timeout_and_no_more(clock):
    grid = grid_of(PARTS)
    bad = sorted(grid.online)[2]
    grid.online[bad].spoil = lambda message: None
    strategy = ODCL(timeout=40)
    strategy.start(grid)
    (aside,) = strategy.outcome.set_aside
    assert aside.reason == "it did not answer within 40 s"
    assert 40 <= clock[0] < 41


def test_a_node_that_is_silent_at_the_delivery_is_named_and_the_run_is_good(clock, tmp_path):
    grid = grid_of(PARTS)
    bad = sorted(grid.online)[2]
    grid.online[bad].spoil = lambda m: m if m.metadata.message_type == "train" else None
    strategy = ODCL(timeout=40, result_dir=tmp_path / "run")
    strategy.start(grid)
    assert len(strategy.outcome.nodes) == 4
    (lost,) = strategy.outcome.undelivered
    assert str(lost) == f"node {bad} is set aside: it did not answer within 40 s."
    assert (tmp_path / "run" / "model.json").exists()


def test_a_confirmation_of_something_else_does_not_count():
    grid = grid_of(PARTS)
    bad = sorted(grid.online)[2]

    def other(message):
        if message.metadata.message_type == "evaluate":
            message.content["config"]["task"] = "0" * 64
        return message

    grid.online[bad].spoil = other
    strategy = ODCL()
    strategy.start(grid)
    assert [one.name for one in strategy.outcome.undelivered] == [f"node {bad}"]


def test_fewer_replies_than_needed_fail_the_run_and_say_why():
    grid = grid_of(PARTS)
    first, second, *_ = sorted(grid.online)
    grid.online[first].spoil = FAULTS["NaN"][0]
    grid.online[second].spoil = FAULTS["another task"][0]
    with pytest.raises(ValueError, match="2 replies can be taken, and 3 are needed") as error:
        ODCL(min_replies=3).start(grid)
    notes = error.value.__notes__
    assert notes[0].startswith(f"node {first} is set aside: ")
    assert "it answers another task" in notes[1]
    assert all(node.asked == ["train"] for node in grid.online.values())


def test_the_wait_for_nodes_has_an_end(clock):
    grid = grid_of(PARTS[:1])
    with pytest.raises(ValueError, match=r"1 node connected within 25 s, and 2 replies"):
        ODCL(wait=25).start(grid)
    assert 25 <= clock[0] < 26


def test_the_round_begins_when_all_expected_nodes_are_there_or_the_wait_is_over(clock):
    whole = grid_of(PARTS).online
    grid = grid_of(PARTS[:0])
    names = sorted(whole)
    grid.appear = {3: {n: whole[n] for n in names[:2]}, 5: {n: whole[n] for n in names[2:]}}
    strategy = ODCL(nodes=4)
    strategy.start(grid)
    assert len(strategy.outcome.nodes) == 4
    clock[0] = 0.0
    some = grid_of(PARTS[:3])
    strategy = ODCL(nodes=4, wait=10)
    strategy.start(some)
    assert len(strategy.outcome.nodes) == 3
    assert 10 <= clock[0] < 11


def test_nodes_that_connect_while_the_round_is_open_are_asked_as_well(clock):
    whole = grid_of(PARTS).online
    *names, last = sorted(whole)
    grid = grid_of(PARTS[:0])
    grid.online = {n: whole[n] for n in names}
    grid.online[names[0]].spoil = lambda message: None  # so that it stays open
    grid.appear = {3: {last: whole[last]}}
    strategy = ODCL(timeout=5)
    strategy.start(grid)
    assert last in strategy.outcome.nodes


@pytest.mark.parametrize("names", ["the same", "others"])
def test_one_table_on_two_nodes_counts_for_neither_and_the_others_go_on(names):
    parts = parts_of(ROWS, 4)
    parts[1] = parts[0] if names == "the same" else replace(parts[0], users=np.array([*"xyz"]))
    strategy, grid = ODCL(), grid_of(parts)
    strategy.start(grid)
    first, second = [n for n, one in grid.online.items() if one.config["partition-id"] < 2]
    reasons = {one.name: one.reason for one in strategy.outcome.set_aside}
    assert reasons.keys() == {f"node {first}", f"node {second}"}
    assert f"the same numbers as node {second}" in reasons[f"node {first}"]
    assert strategy.outcome.uploads.users.tolist() == sorted(
        [*parts[2].users.tolist(), *parts[3].users.tolist()]
    )


def test_few_rows_of_coarse_columns_may_be_alike_by_chance():
    """A yes and a no: two users of two nodes, not one table twice."""
    X, y = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]), np.array([0.0, 1.0])
    strategy = ODCL()
    strategy.start(grid_of([*PARTS, {"a": (X, y)}, {"b": (X, y)}]))
    assert strategy.outcome.set_aside == ()
    assert len(strategy.outcome.uploads) == 14


WARDS = [replace(part, users=np.array(["W0", "W1", "W2"])) for part in PARTS]


@pytest.mark.parametrize("method", ["default", Method.paper(n_clusters=2)], ids=str)
def test_wards_of_the_same_name_on_every_node_are_users_of_their_own(method):
    got = {}
    grid = grid_of(WARDS)
    for number, node in grid.online.items():
        part = WARDS[node.config["partition-id"]]
        node.app = make_client_app(
            lambda _, part=part: part, on_model=lambda m, _, n=number: got.update({n: m})
        )
    strategy = ODCL("squared", method)
    strategy.start(grid)
    assert strategy.outcome.set_aside == strategy.outcome.undelivered == ()
    ids = np.empty(12, dtype=object)
    order = sorted(grid.online, key=str)
    ids[:] = [(node, f"W{i}") for node in order for i in range(3)]
    whole = [WARDS[grid.online[node].config["partition-id"]] for node in order]
    X, y = np.vstack([part.X for part in whole]), np.concatenate([part.y for part in whole])
    method = Method(robust=True) if method == "default" else method
    same = fit(Federation(X, y, np.arange(13) * 30, ids), "squared", method)
    assert_array_equal(np.concatenate([got[node].models for node in order]), same.models)
    assert all(found.users.tolist() == ["W0", "W1", "W2"] for found in got.values())


def test_no_node_can_name_another_ones_user():
    """The server's own name for a ward of another node, sent by a stranger, is the stranger's."""
    grid = grid_of([*WARDS[:3], *PARTS[3:]])
    victim = next(n for n, one in grid.online.items() if one.config["partition-id"] == 0)
    bad = next(n for n, one in grid.online.items() if one.config["partition-id"] == 3)
    stolen = f'[{{"tuple": [{victim}, "W0"]}}, "W0", "a"]'
    grid.online[bad].spoil = words_changed(users=stolen)
    strategy = ODCL()
    strategy.start(grid)
    assert strategy.outcome.set_aside == ()
    assert len(strategy.outcome.uploads) == 12
    assert [one.name for one in strategy.outcome.undelivered] == [f"node {bad}"]


def test_features_are_those_that_most_nodes_have_or_those_that_are_named():
    parts = parts_of(ROWS, 4)
    parts[0] = parts[0].with_X(np.column_stack([parts[0].X, np.ones(len(parts[0].y))]))
    strategy = ODCL()
    strategy.start(grid_of(parts))
    (aside,) = strategy.outcome.set_aside
    assert aside.reason == "it has 4 features, and most nodes have 3"
    strategy = ODCL(features=["a", "b", "c"])
    strategy.start(grid_of(parts))
    (aside,) = strategy.outcome.set_aside
    assert "The rows have 4 features, and 3 are agreed on: a, b, c." in aside.reason


@pytest.mark.parametrize(
    ("agreed", "word"),
    [({"risk": Risk("squared", 0.5)}, "risk"), ({"method": Method(short_terms=False)}, "method")],
)
def test_a_node_sends_nothing_that_it_did_not_agree_to(agreed, word):
    grid = grid_of(PARTS[:3])
    app = make_client_app(lambda context: PARTS[3], **agreed)
    grid.online[7] = Node(app)
    strategy = ODCL()
    strategy.start(grid)
    (aside,) = strategy.outcome.set_aside
    assert f"asks for the {word}" in aside.reason
    grid.online[7] = Node(
        make_client_app(lambda context: PARTS[3], risk="squared", method=Method())
    )
    strategy.start(grid)
    assert strategy.outcome.set_aside == ()


def test_a_node_refuses_downloads_that_are_not_its_own():
    """A download with other users, NaN, or a group that is not there makes no model."""
    strategy, grid, got = ODCL(), grid_of(PARTS), {}
    strategy.start(grid)
    fresh = grid_of(PARTS, got)
    (node_id, node), *_ = fresh.online.items()
    delivery = Delivery.of(strategy.outcome.step)
    users = PARTS[node.config["partition-id"]].users.tolist()
    ((_, arrays, words),) = delivery.by_node(strategy.request, {node_id: users})
    for changed, told, why in (
        ({}, {"users": '["x", "y", "z"]'}, "for other users"),
        ({"model": np.full_like(arrays["model"], np.nan)}, {}, "not finite"),
        ({"group": np.full_like(arrays["group"], 9)}, {}, "a group that is not there"),
        ({"mixture.weights": -arrays["mixture.weights"]}, {}, "no probabilities"),
        ({}, {"task": "0" * 64}, "the digest is not that of the request"),
        ({}, {"odcl": "none"}, "JSON|Expecting value"),
    ):
        records = RecordDict()
        records["arrays"] = array_record(arrays | changed)
        records["config"] = ConfigRecord({**words, **told})
        reply = node.answer(node_id, Message(records, node_id, "evaluate"))
        assert reply.has_error()
        with pytest.raises(AssertionError, match=why):
            raise AssertionError(reply.error.reason)
    assert got == {}


def test_settings_that_make_no_sense_are_refused():
    for wrong in (
        {"min_replies": 0},
        {"wait": -1},
        {"timeout": 0},
        {"features": ["a", "a"]},
        {"features": ["user"]},
        {"features": []},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong)).partition("_")[0] + "|column"):
            ODCL(**wrong)


def test_a_refused_run_leaves_nodes_alone(tmp_path):
    """A place that cannot be written to is refused before anybody computes."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    grid = grid_of(PARTS)
    with pytest.raises(ValueError, match="exists already"):
        ODCL(result_dir=tmp_path / "run").start(grid)
    assert all(node.asked == [] for node in grid.online.values())


def test_one_user_in_all_has_nobody_to_be_compared_with():
    alone = ROWS.take(np.array([0]))
    with pytest.raises(ValueError, match="Only one user sent an upload"):
        ODCL(min_replies=1).start(grid_of([alone]))


def test_load_may_give_rows_in_several_shapes():
    rows = parts_of(ROWS, 12)
    X, y = rows[0].X, rows[0].y
    for loaded, ids in (
        ((X, y), [0]),
        ((X[:20], y[:20], X[20:], y[20:]), [0]),
        ({"a": (X, y), 5: (X, y)}, [5, "a"]),
        (rows[0], ["u00"]),
    ):
        grid = grid_of([loaded, *rows[1:]])
        strategy = ODCL()
        strategy.start(grid)
        own = next(
            u
            for n, u in strategy.outcome.nodes.items()
            if grid.online[n].config == {"partition-id": 0}
        )
        assert list(own) == ids


@pytest.mark.parametrize(
    "loaded", [None, [1, 2], (1,), {}, {"a": 3}, (np.zeros((3, 2)), np.zeros(4))]
)
def test_a_load_that_gives_no_rows_says_what_it_should_give(loaded):
    grid = grid_of([loaded, *PARTS])
    strategy = ODCL()
    strategy.start(grid)
    (aside,) = strategy.outcome.set_aside
    assert "load(context) gave" in aside.reason or "has features of shape" in aside.reason


def test_ids_of_nodes_come_from_their_config():
    rows = parts_of(ROWS, 12)
    plain = [(part.X, part.y) for part in rows]
    grid = grid_of(plain)
    for i, node in enumerate(grid.online.values()):
        node.config = {"user": f"p{i:02d}", "site": "all the same", "partition-id": 3}
    strategy = ODCL()
    strategy.start(grid)
    assert strategy.outcome.uploads.users.tolist() == [f"p{i:02d}" for i in range(12)]
    nobody = grid_of(plain)
    first = next(iter(nobody.online.values()))
    first.config = {}
    strategy.start(nobody)
    (aside,) = strategy.outcome.set_aside
    assert "Nothing says who the user of this node is" in aside.reason
