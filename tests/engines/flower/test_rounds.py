"""IFCA and rounds inside groups over Flower: those of one process, and faults on the way."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from flwr.app import Message

from odcl import Method, Risk
from odcl.clustering.kmeans.kmeanspp import KMeansPP
from odcl.engines.flower import IFCA, ODCL, Request, read_bare
from odcl.engines.flower.messages import array_record, content
from odcl.engines.flower.request import ids_to_text
from odcl.engines.flower.rounds import Round
from odcl.paper.baselines import cluster_oracle, ifca, one_shot
from odcl.risk.losses import Multinomial
from tests.engines.flower.world import federation, grid_of, models_of, parts_of

LIMITS = {"min_replies": 2, "wait": 0.2, "timeout": 0.3}
CASES = {
    "option I": ("squared", {}),
    "option I, a step": ("squared", {"step_size": 0.2}),
    "option II": ("squared", {"average": "models", "local_steps": 3}),
    "logistic": (Risk("logistic", 0.01, True), {}),
    "logistic, option II": (Risk("logistic", 0.01, True), {"average": "models", "step_size": 0.3}),
    "multinomial": (Risk(Multinomial(3), 0.01, True), {}),
    "poisson": (Risk("poisson", 0.01, True), {"step_size": 0.01}),
}


def run_ifca(rows, risk="squared", *, rounds=8, grid=None, n_nodes=4, **settings):
    got = {}
    grid = grid_of(parts_of(rows, n_nodes), got) if grid is None else grid
    told = {"n_features": rows.n_features, "seed": 3, **LIMITS, **settings}
    strategy = IFCA(risk, 2, **told)
    strategy.start(grid, num_rounds=rounds)
    return strategy.outcome, got


@pytest.mark.parametrize("case", CASES)
def test_ifca_gives_the_models_of_one_process(case):
    risk, how = CASES[case]
    rows = federation(risk)
    out, got = run_ifca(rows, risk, **how)
    whole = risk if isinstance(risk, Risk) else Risk(risk)
    same = ifca(rows, n_clusters=2, risk=whole, rounds=8, seed=3, **how)
    # A node sees its own users only: products of other shapes may round in another way.
    assert_allclose(models_of(got, same.users), same.models, rtol=1e-10, atol=1e-12)
    assert_allclose(out.risk, same.history.risk, rtol=1e-10)
    assert out.step_size == pytest.approx(same.options["step_size"], rel=1e-12)
    chosen = out.labels.tolist()
    assert [got[user][1] for user in out.users.tolist()] == chosen
    assert len(set(chosen)) == same.n_clusters
    assert_array_equal(out.models, models_of(got, out.users))


def test_ifca_of_one_user_per_node_is_the_same_whatever_the_nodes_ids():
    rows = federation()
    each = []
    for seed in (0, 1):
        got = {}
        grid = grid_of(parts_of(rows, 12), got, seed=seed)
        run_ifca(rows, grid=grid)
        each.append(models_of(got, rows.users))
    assert_array_equal(*each)


def test_ifca_starts_from_the_models_that_it_is_given():
    rows, start = federation(), np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    _, got = run_ifca(rows, initial=start, rounds=3)
    same = ifca(rows, n_clusters=2, start=start, rounds=3)
    assert_allclose(models_of(got, rows.users), same.models, rtol=1e-12)


def test_ifca_counts_the_bytes_of_every_round():
    """K models come and a model goes, with its number and its risk; L goes along once."""
    m, K, dim = 12, 2, 3
    out, _ = run_ifca(federation(), rounds=4)
    up = np.full(4, 8 * m * (dim + 2))
    up[0] += 8 * m
    assert_array_equal(out.ledger.up, up)
    assert out.ledger.total_down == 8 * m * K * dim * (4 + 1)


def test_option_two_pays_for_the_question_that_finds_its_step():
    m, K, dim = 12, 2, 3
    out, _ = run_ifca(federation(), rounds=3, average="models")
    assert out.ledger.total_up == 8 * m * (3 * (dim + 2) + 3)  # a choice, its risk and L, once
    assert out.ledger.total_down == 8 * m * K * dim * (3 + 1 + 1)


def damage(kind):
    """What a node does to its answers from the third message on."""
    seen = []

    def spoil(reply):
        seen.append(1)
        if len(seen) < 3 or reply.has_error():
            return reply
        if kind == "silent":
            return None
        record = reply.content["arrays"]
        arrays = {name: one.numpy().copy() for name, one in record.items()}
        if kind == "NaN":
            arrays["replies"][0, 0] = np.nan
        elif kind == "shape":
            arrays["replies"] = arrays["replies"][:, :-1]
        elif kind == "a model that is not there":
            arrays["labels"][0] = 7
        elif kind == "another round":
            reply.content["config"]["number"] = 1
        elif kind == "another task":
            reply.content["config"]["task"] = "0" * 64
        elif kind == "huge":
            arrays["replies"][0, 0] = 1e70
        reply.content["arrays"] = array_record(arrays)
        return reply

    return spoil


REASONS = {
    "silent": "did not answer",
    "NaN": "replies",
    "shape": "replies",
    "a model that is not there": "model that is not there",
    "another round": "another round",
    "another task": "another task",
    "huge": "beyond",
}


@pytest.mark.parametrize("kind", REASONS)
def test_a_node_that_fails_in_a_round_is_set_aside_and_the_others_go_on(kind):
    rows = federation()
    grid = grid_of(parts_of(rows, 4), {})
    node = sorted(grid.online)[1]
    grid.online[node].spoil = damage(kind)
    out, _ = run_ifca(rows, grid=grid, rounds=6)
    assert [one.name for one in out.set_aside] == [f"node {node}"]
    assert REASONS[kind] in out.set_aside[0].reason
    assert len(out.users) == 9
    assert grid.online[node].asked == ["train.rounds"] * 3  # and never again


def test_a_node_that_connects_after_the_first_round_takes_part_from_the_next():
    rows = federation()
    grid = grid_of(parts_of(rows, 4), {})
    number = sorted(grid.online)[-1]
    late = grid.online.pop(number)
    grid.appear = {3: {number: late}}  # the first look waits for nodes, the second asks them
    out, _ = run_ifca(rows, grid=grid, rounds=4)
    assert late.asked == ["train.rounds"] * 3 + ["evaluate.rounds"]
    assert len(out.users) == 12


@pytest.mark.parametrize(
    ("arrays", "words", "why"),
    [
        ({"labels": np.array([0, 1, 2])}, {}, "a model that is not there"),
        ({"labels": np.array([0, -1, 1])}, {}, "a model that is not there"),
        ({"labels": np.array([0, 1, 1])}, {"users": '["x", "y", "z"]'}, "for other users"),
        ({"models": np.zeros((0, 3))}, {}, "it holds no model"),
        ({"models": np.full((2, 3), np.nan)}, {}, "not finite"),
        ({}, {"round": "{}"}, "round"),
        ({}, {"round": Round(1).words().replace("gradients", "sums")}, "average"),
        ({}, {"task": "0" * 64}, "the digest is not that of the request"),
    ],
)
def test_a_node_refuses_questions_that_cannot_be_meant(arrays, words, why):
    grid = grid_of(parts_of(federation(), 4), {})
    (number, node), *_ = grid.online.items()
    users = parts_of(federation(), 4)[node.config["partition-id"]].users
    request = Request(method=Method.paper(2), name="ifca")
    said = {**request.config(), "round": Round(1).words(), "users": ids_to_text(users), **words}
    records = content({"models": np.zeros((2, 3)), **arrays}, said)
    reply = node.answer(number, Message(records, number, "train.rounds"))
    assert reply.has_error()
    assert why in reply.error.reason


def test_too_few_answers_fail_the_run_and_name_who_was_set_aside():
    rows = federation()
    grid = grid_of(parts_of(rows, 4), {})
    for node in sorted(grid.online)[1:]:
        grid.online[node].spoil = damage("NaN")
    with pytest.raises(ValueError, match="1 reply can be taken in round 3") as caught:
        run_ifca(rows, grid=grid)
    assert len(caught.value.__notes__) == 3


def test_no_nodes_fail_the_run_within_the_wait():
    with pytest.raises(ValueError, match=r"0 nodes connected within 0\.2 s"):
        run_ifca(federation(), grid=grid_of([], {}))


def test_one_table_on_two_nodes_is_set_aside_and_the_others_go_on():
    rows = federation()
    parts = parts_of(rows, 4)
    out, _ = run_ifca(rows, grid=grid_of([*parts, parts[0]], {}))
    assert len(out.set_aside) == 2
    assert "the same numbers" in out.set_aside[0].reason
    assert len(out.users) == 9


def test_users_of_the_same_name_take_part_in_rounds_each_as_its_nodes_own():
    rows = federation()
    wards = [replace(part, users=np.arange(3)) for part in parts_of(rows, 4)]
    plain, _ = run_ifca(rows)
    out, _ = run_ifca(rows, grid=grid_of(wards))
    assert len(set(out.users.tolist())) == 12
    assert out.set_aside == ()
    assert_allclose(np.sort(out.models, axis=0), np.sort(plain.models, axis=0), rtol=1e-9)
    inside = refined(rows, 3, grid=grid_of(wards))
    assert inside.refined.set_aside == inside.undelivered == ()
    assert inside.refined.n_rounds == 3
    assert len(inside.uploads) == 12


def test_models_that_run_away_end_the_rounds_with_the_last_that_were_numbers():
    out, _ = run_ifca(federation(), step_size=1e12, rounds=50)
    assert out.diverged
    assert out.n_rounds < 50
    assert np.isfinite(out.centers).all()


def test_ifca_writes_its_result_whole_and_reads_it_back(tmp_path):
    rows = federation()
    out, got = run_ifca(rows, result_dir=tmp_path / "run")
    found = read_bare(tmp_path / "run")
    assert_array_equal(found.users, rows.users)
    assert_array_equal(found.centers[found.labels], models_of(got, rows.users))
    assert_array_equal(found.model("u03"), got["u03"][0])
    nodes = json.loads((tmp_path / "run" / "nodes.json").read_text())
    assert nodes["rounds"] == 8
    assert nodes["bytes"]["up"] == out.ledger.total_up
    with pytest.raises(ValueError, match="took no part"):
        found.model("nobody")
    again = grid_of(parts_of(rows, 4), {})
    with pytest.raises(ValueError, match="exists already"):
        run_ifca(rows, result_dir=tmp_path / "run", grid=again)
    assert not any(node.asked for node in again.online.values())  # refused before the work


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"average": "means"}, "neither 'gradients' nor 'models'"),
        ({"local_steps": 5}, "one gradient"),
        ({"initial": "best"}, "not one of random, zeros"),
        ({"n_features": None}, "n_features"),
        ({"initial": np.zeros((3, 3))}, "2 models"),
        ({"timeout": 0}, "seconds"),
    ],
)
def test_settings_that_cannot_be_are_refused_at_once(settings, words):
    with pytest.raises(ValueError, match=words):
        IFCA("squared", 2, **{"n_features": 3, **settings})


# -- rounds inside groups --------------------------------------------------------------------------


def refined(rows, rounds, grid=None, got=None, risk="squared", method=None, **settings):
    method = Method.paper(2) if method is None else method
    strategy = ODCL(risk, method, refine_rounds=rounds, **LIMITS, **settings)
    strategy.start(grid_of(parts_of(rows, 4), got) if grid is None else grid)
    return strategy.outcome


# How smooth a Poisson risk is depends on the ball, which all nodes must measure alike.
@pytest.mark.parametrize(
    "risk", ["squared", Risk("logistic", 0.01, True), Risk("poisson", 0.01, True)], ids=str
)
def test_rounds_inside_groups_are_those_of_one_process(risk):
    rows, got = federation(risk), {}
    whole = risk if isinstance(risk, Risk) else Risk(risk)
    out = refined(rows, 5, got=got, risk=risk)
    same = one_shot(rows, clusterer=KMeansPP, n_clusters=2, risk=whole, refine_rounds=5)
    assert_allclose(models_of(got, rows.users), same.models, rtol=1e-11, atol=1e-13)
    assert_array_equal(out.step.labels, same.labels)
    assert out.ledger.n_rounds == 6
    # Each round a model each way, a risk beside it, and once how smooth that is.
    once = refined(rows, 0, risk=risk).ledger
    dim = whole.dim(3)
    assert out.ledger.total_up == once.total_up + 8 * 12 * (5 * (dim + 1) + 1)
    assert out.ledger.total_down == once.total_down + 8 * 12 * 5 * dim


def test_ten_rounds_inside_groups_reach_the_cluster_oracle():
    rows, got = federation(n=8), {}
    oracle = cluster_oracle(rows, groups=np.arange(12) % 2).models
    refined(rows, 0, got=got)
    before = np.abs(models_of(got, rows.users) - oracle).max()
    refined(rows, 10, got=got)
    assert np.abs(models_of(got, rows.users) - oracle).max() < 0.05 * before


def test_a_node_that_fails_between_rounds_still_has_its_groups_model():
    rows, got = federation(), {}
    grid = grid_of(parts_of(rows, 4), got)
    node = sorted(grid.online)[0]
    seen = []

    def spoil(reply):  # its upload, one round, then silence until the delivery
        seen.append(reply)
        return None if len(seen) == 3 else reply

    grid.online[node].spoil = spoil
    out = refined(rows, 4, grid=grid)
    assert [one.name for one in out.refined.set_aside] == [f"node {node}"]
    assert out.refined.n_rounds == 4
    assert not out.undelivered
    assert_array_equal(models_of(got, rows.users), out.step.models)


def test_a_node_that_answers_to_another_groups_model_is_set_aside():
    rows = federation()
    grid = grid_of(parts_of(rows, 3), {})  # nodes with users of both groups
    node = sorted(grid.online)[0]

    def spoil(reply):
        record = reply.content.array_records.get("arrays")
        if record is not None and "replies" in record:
            arrays = {name: one.numpy().copy() for name, one in record.items()}
            arrays["labels"] = 1 - arrays["labels"]
            reply.content["arrays"] = array_record(arrays)
        return reply

    grid.online[node].spoil = spoil
    out = refined(rows, 2, grid=grid)
    assert "other models than its users' own" in out.refined.set_aside[0].reason
    assert out.refined.n_rounds == 2


def test_rounds_end_early_where_too_few_answer_and_the_one_shot_is_kept():
    rows, got = federation(), {}
    grid = grid_of(parts_of(rows, 4), got)
    for node in sorted(grid.online)[1:]:
        seen = []
        grid.online[node].spoil = lambda reply, seen=seen: (
            seen.append(1),
            None if len(seen) == 2 else reply,
        )[1]
    out = refined(rows, 4, grid=grid)
    assert out.refined.n_rounds == 0
    assert_array_equal(out.step.models, refined(rows, 0).step.models)


def test_mixed_groups_are_not_refined():
    with pytest.raises(ValueError, match="pooled fit already"):
        refined(federation(), 3, method=Method())
