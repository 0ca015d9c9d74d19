"""The result: whole, read by the command line, resumed after a fault, open to who comes late."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

pytest.importorskip("flwr", reason="Flower is not installed here: it has its own environment")

from odcl import Method, ODCLClassifier, ODCLRegressor, Risk, fit
from odcl.engines.files.task import Feature, Task
from odcl.engines.flower import ODCL
from odcl.engines.flower import strategy as strategies
from tests.engines.flower.world import MODELS, federation, grid_of, models_of, parts_of
from tests.helpers import files_below

ROWS = federation("squared")
PARTS = parts_of(ROWS, 4)
METHODS = {
    "mixed": Method(),
    "two groups": Method(2),
    "paper": Method.paper(n_clusters=2),
    "weighed": Method("kmeans:2", combine="samples"),
}


def table_of(rows, **names):
    columns = {f"x{j}": rows.X[:, j] for j in range(rows.n_features)}
    frame = pd.DataFrame({"user": rows.users[rows.row_user], **columns, "y": rows.y})
    return frame.rename(columns=names)


# -- what is written -------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_the_result_holds_users_groups_and_models(method, tmp_path):
    how = METHODS[method]
    ODCL("squared", how, result_dir=tmp_path / "run").start(grid_of(PARTS))
    result, model = fit(ROWS, "squared", how), ODCLRegressor.load(tmp_path / "run")
    assert model.users_.tolist() == ROWS.users.tolist()
    assert_array_equal(model.labels_, result.step.labels)
    assert_array_equal(model.cluster_theta_, result.centers)
    known = result.models if how.clusterer.uses_terms else result.step.models
    assert_array_equal(model.theta_, known)
    frame = table_of(ROWS)
    z = np.einsum("ij,ij->i", ROWS.X, known[ROWS.row_user])
    assert_allclose(model.predict(frame), z, rtol=1e-12)
    assert [p.name for p in tmp_path.iterdir() if p.name[0] != "."] == ["run"]  # nothing is left


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("method", ["mixed", "paper"])
def test_the_command_line_takes_the_result(loss, method, tmp_path, command):
    def shell(*words):
        said = command(*words)
        assert said.code == 0, said.err
        return said.out

    rows = federation(loss)
    classes = None if loss == "squared" else (-1, 1)
    run = tmp_path / "run"
    settings = {"features": ["age", "dose", "load"], "user": "ward", "target": "stay"}
    strategy = ODCL(loss, METHODS[method], result_dir=run, classes=classes, **settings)
    strategy.start(grid_of(parts_of(rows, 4)))
    names = {"user": "ward", "x0": "age", "x1": "dose", "x2": "load", "y": "stay"}
    table_of(rows, **names).to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "new.csv").write_text(
        table_of(rows, **names).replace({"u00": "new"}).query("ward == 'new'").to_csv(index=False)
    )
    lines = shell("predict", run, tmp_path / "table.csv").splitlines()
    assert lines[0].startswith("ward,row,prediction")
    assert len(lines) == 1 + len(rows.y)
    kind = ODCLRegressor if loss == "squared" else ODCLClassifier
    expected = kind.load(run).predict(table_of(rows, **names))
    assert_allclose([float(line.split(",")[2]) for line in lines[1:]], expected, rtol=1e-6)
    assert shell("assign", run, tmp_path / "new.csv").splitlines()[1].startswith("new,0,")
    assert shell("diagnose", run).splitlines()[0].endswith((".", "?"))
    shell("assign", run, tmp_path / "new.csv", "--add")
    assert (run / "assignment.csv").read_text().splitlines()[-1].startswith("new,0,30")


def test_a_card_gives_columns_categories_and_scales(tmp_path):
    rng = np.random.default_rng(0)
    task = Task(
        "stay",
        (Feature("age", None, 50.0, 10.0), Feature("ward", ("a", "b", "c"))),
        "days",
        Risk("squared", 0.0, True),
        method=Method(),
        minimum_rows=1,
    )
    frames = {}
    for i, site in enumerate(("north", "south", "east", "west")):
        age, ward = rng.normal(50, 10, 40), rng.choice(["a", "b", "c"], 40)
        days = (1 - 2 * (i % 2)) * age + (ward == "b") + rng.normal(size=40)
        frames[site] = pd.DataFrame({"age": age, "ward": ward, "days": days})

    from odcl.engines.files.site import read_site

    nodes = []
    for site, frame in frames.items():
        rows = read_site(task, frame).rows
        nodes.append({site: (rows.X, rows.y)})
    got = {}
    ODCL.from_task(task, result_dir=tmp_path / "run").start(grid_of(nodes, got))
    whole = pd.concat([frame.assign(site=site) for site, frame in frames.items()])
    model = ODCLRegressor.load(tmp_path / "run")
    assert model.feature_names_ == ["age", "ward=b", "ward=c"]
    z = model.predict(whole)
    assert np.std(whole.days - z) < 1.3
    site = frames["north"]
    x = np.column_stack(
        [(site.age - 50) / 10, site.ward == "b", site.ward == "c", site.age * 0 + 1]
    )
    assert_allclose(z[:40], x.astype(float) @ got["north"][0], rtol=1e-9)


def test_a_smallest_group_counts_nodes_and_not_their_users(tmp_path):
    """Twelve users at two nodes are two parties; each at its own node, twelve."""
    method = Method(smallest_group=3)
    with pytest.raises(ValueError, match="2 parties uploaded, and no group may have fewer than 3"):
        ODCL("squared", method).start(grid_of(parts_of(ROWS, 2)))
    strategy = ODCL("squared", method)
    strategy.start(grid_of(parts_of(ROWS, 12)))
    assert strategy.outcome.step.n_clusters == 2


def test_who_took_no_part_is_named_with_its_node_and_the_reason(tmp_path):
    X = ROWS.X.copy()
    first = ROWS.users[0]
    X[ROWS.row_user == 0, 0] *= 300
    parts = parts_of(replace(ROWS, X=X), 4)
    ODCL(result_dir=tmp_path / "run").start(grid_of(parts))
    words = json.loads((tmp_path / "run" / "nodes.json").read_text())
    (one,) = words["outliers"]
    assert first in words["nodes"][one["node"]]["users"]
    assert (one["user"], one["set_aside"], one["column"]) == (first, True, "x0")
    assert "another unit" in one["text"]


def test_what_became_of_each_node_is_beside_the_model(tmp_path):
    grid = grid_of(PARTS)
    first, second, *_ = sorted(grid.online)
    grid.online[first].spoil = lambda m: m if m.metadata.message_type == "evaluate" else None
    grid.online[second].spoil = lambda m: m if m.metadata.message_type == "train" else None
    strategy = ODCL(result_dir=tmp_path / "run", timeout=0.2)
    strategy.start(grid)
    words = json.loads((tmp_path / "run" / "nodes.json").read_text())
    assert {int(n): one["confirmed"] for n, one in words["nodes"].items()} == {
        n: n != second for n in grid.online if n != first
    }
    assert words["set_aside"][0]["node"] == f"node {first}"
    assert words["undelivered"][0]["node"] == f"node {second}"
    assert words["bytes"]["odcl"]["up"] == int(strategy.outcome.uploads.n_bytes.sum())
    assert words["bytes"]["FedAvg"]["rounds"] == 100
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["users"], report["nodes"], report["groups"]) == (9, 3, 2)


def test_a_result_is_replaced_only_with_force(tmp_path):
    run = tmp_path / "run"
    ODCL(result_dir=run).start(grid_of(PARTS))
    before = files_below(run)
    with pytest.raises(ValueError, match="exists already"):
        ODCL(result_dir=run).start(grid_of(PARTS))
    assert files_below(run) == before
    ODCL("squared", "paper", result_dir=run, force=True).start(grid_of(PARTS))
    assert files_below(run) != before


def test_node_ids_are_in_no_file_but_that_of_nodes(tmp_path):
    for seed in (0, 1):
        ODCL(result_dir=tmp_path / f"run{seed}").start(grid_of(PARTS, seed=seed))
    one, two = (files_below(tmp_path / f"run{seed}") for seed in (0, 1))
    assert {name for name in one if one[name] != two[name]} <= {"nodes.json", "manifest.json"}


# -- a run that was interrupted --------------------------------------------------------------------


class Killed(BaseException):
    pass


def killed(*args, **kwargs):
    raise Killed


def test_a_run_goes_on_from_what_had_arrived(tmp_path, monkeypatch):
    """Killed after the uploads came: nobody is asked again, and models are the same."""
    run, got = tmp_path / "run", {}
    grid = grid_of(PARTS, got)
    with monkeypatch.context() as patch:
        patch.setattr(strategies, "server_step", killed)
        with pytest.raises(Killed):
            ODCL(result_dir=run).start(grid)
    assert not run.exists()
    assert len(list((tmp_path / "run.arrived").rglob("*.upload"))) == 4
    assert got == {}
    strategy = ODCL(result_dir=run)
    strategy.start(grid)
    assert [node.asked for node in grid.online.values()] == [["train", "evaluate"]] * 4
    assert_array_equal(models_of(got, ROWS.users), fit(ROWS, "squared", Method(robust=True)).models)
    assert not (tmp_path / "run.arrived").exists()


def test_only_nodes_that_were_not_heard_are_asked_again(tmp_path):
    """Too few at first: those that arrived stay, and the rest is asked in the next run."""
    run, got = tmp_path / "run", {}
    grid = grid_of(PARTS, got)
    silent = sorted(grid.online)[:2]
    for node in silent:
        grid.online[node].spoil = lambda message: None
    with pytest.raises(ValueError, match="2 replies can be taken, and 4 are needed"):
        ODCL(result_dir=run, min_replies=4, timeout=0.2).start(grid)
    for node in silent:
        grid.online[node].spoil = None
    ODCL(result_dir=run, min_replies=4, timeout=0.2).start(grid)
    for number, node in grid.online.items():
        assert node.asked.count("train") == 1 + (number in silent)
    assert_array_equal(models_of(got, ROWS.users), fit(ROWS, "squared", Method(robust=True)).models)


def test_uploads_count_even_if_their_node_is_gone(tmp_path, monkeypatch):
    run, got = tmp_path / "run", {}
    grid = grid_of(PARTS, got)
    with monkeypatch.context() as patch:
        patch.setattr(strategies, "server_step", killed)
        with pytest.raises(Killed):
            ODCL(result_dir=run).start(grid)
    gone = sorted(grid.online)[0]
    users = PARTS[grid.online[gone].config["partition-id"]].users
    del grid.online[gone]
    strategy = ODCL(result_dir=run)
    strategy.start(grid)
    assert len(strategy.outcome.uploads) == 12
    assert strategy.outcome.undelivered[0].reason == "it was not connected any more"
    here = ROWS.users[~np.isin(ROWS.users, users)]
    whole = fit(ROWS, "squared", Method(robust=True))
    assert_array_equal(models_of(got, here), whole.models[~np.isin(ROWS.users, users)])


def test_nodes_with_other_ids_take_the_place_of_their_earlier_uploads(tmp_path, monkeypatch):
    """A simulation has new node ids in every run: users tell who was heard."""
    run, got = tmp_path / "run", {}
    with monkeypatch.context() as patch:
        patch.setattr(strategies, "server_step", killed)
        with pytest.raises(Killed):
            ODCL(result_dir=run).start(grid_of(PARTS, seed=0))
    strategy = ODCL(result_dir=run)
    strategy.start(grid_of(PARTS, got, seed=1))
    assert strategy.outcome.set_aside == ()
    assert len(strategy.outcome.nodes) == 4
    assert_array_equal(models_of(got, ROWS.users), fit(ROWS, "squared", Method(robust=True)).models)


def test_a_simulation_with_another_number_of_nodes_counts_every_user_once(tmp_path, monkeypatch):
    run, got = tmp_path / "run", {}
    with monkeypatch.context() as patch:
        patch.setattr(strategies, "server_step", killed)
        with pytest.raises(Killed):
            ODCL(result_dir=run).start(grid_of(PARTS, seed=0))
    ODCL(result_dir=run).start(grid_of(parts_of(ROWS, 3), got, seed=1))
    assert_array_equal(models_of(got, ROWS.users), fit(ROWS, "squared", Method(robust=True)).models)


def test_what_is_set_aside_leaves_the_disk_and_its_node_is_asked_again(tmp_path):
    """Two nodes with one table fail a run; with a table each, the next one is good."""
    run, got = tmp_path / "run", {}
    right = grid_of(PARTS, got).online
    wrong = grid_of([PARTS[0], PARTS[0], *PARTS[2:]], got)
    with pytest.raises(ValueError, match="2 replies can be taken, and 4 are needed"):
        ODCL(result_dir=run, min_replies=4).start(wrong)
    assert len(list((tmp_path / "run.arrived").rglob("*.upload"))) == 2
    wrong.online = right
    ODCL(result_dir=run, min_replies=4).start(wrong)
    asked = {one.config["partition-id"]: one.asked.count("train") for one in right.values()}
    assert asked == {0: 1, 1: 1, 2: 0, 3: 0}
    assert_array_equal(models_of(got, ROWS.users), fit(ROWS, "squared", Method(robust=True)).models)


def test_uploads_of_another_task_are_not_taken(tmp_path, monkeypatch):
    run = tmp_path / "run"
    grid = grid_of(PARTS)
    with monkeypatch.context() as patch:
        patch.setattr(strategies, "server_step", killed)
        with pytest.raises(Killed):
            ODCL(result_dir=run).start(grid)
    ODCL("squared", "paper", result_dir=run).start(grid)
    assert all(node.asked.count("train") == 2 for node in grid.online.values())
    assert len(list((tmp_path / "run.arrived").rglob("*.upload"))) == 4  # the first task's own


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b[:-9] + b"x" * 9])
def test_a_damaged_file_is_asked_for_again(damage, tmp_path, monkeypatch):
    run, got = tmp_path / "run", {}
    grid = grid_of(PARTS, got)
    with monkeypatch.context() as patch:
        patch.setattr(strategies, "server_step", killed)
        with pytest.raises(Killed):
            ODCL(result_dir=run).start(grid)
    path = sorted((tmp_path / "run.arrived").rglob("*.upload"))[0]
    path.write_bytes(damage(path.read_bytes()))
    ODCL(result_dir=run).start(grid)
    assert sum(node.asked.count("train") for node in grid.online.values()) == 5
    assert_array_equal(models_of(got, ROWS.users), fit(ROWS, "squared", Method(robust=True)).models)


# -- who comes late --------------------------------------------------------------------------------


def late_run(method, tmp_path, loss="squared"):
    """A run of three of four nodes, and the grid with the fourth after it."""
    rows = federation(loss)
    parts, got = parts_of(rows, 4), {}
    grid = grid_of(parts, got)
    *first, last = sorted(grid.online)
    there = {n: grid.online[n] for n in first}
    whole, grid.online = grid.online, there
    ODCL(loss, method, result_dir=tmp_path / "run").start(grid)
    grid.online = whole
    late = parts[whole[last].config["partition-id"]]
    return rows, grid, last, late, got


@pytest.mark.parametrize("loss", ["squared", "logistic"])
@pytest.mark.parametrize("method", METHODS)
def test_a_late_node_gets_its_models_and_nobody_else_changes(method, loss, tmp_path):
    rows, grid, last, late, got = late_run(METHODS[method], tmp_path, loss)
    run = tmp_path / "run"
    kind = ODCLRegressor if loss == "squared" else ODCLClassifier
    before, had = kind.load(run), dict(got)
    asked = {n: len(node.asked) for n, node in grid.online.items() if n != last}
    strategy = ODCL.from_result(run)
    strategy.start(grid)
    assert {n: len(grid.online[n].asked) for n in asked} == asked
    for user, found in had.items():
        assert got[user] is found
    after = kind.load(run)
    m = len(before.users_)
    assert after.users_.tolist() == [*before.users_.tolist(), *late.users.tolist()]
    for name in ("theta_", "labels_", "n_rows_"):
        assert_array_equal(getattr(after, name)[:m], getattr(before, name))
    assert_array_equal(after.cluster_theta_, before.cluster_theta_)
    truth = {0: before.labels_[0], 1: before.labels_[1]}  # groups by turns
    first = before.users_.tolist()[:2]
    assert [int(u[1:]) % 2 for u in first] == [0, 1]
    for user in late.users.tolist():
        model, label, found = got[user]
        assert label == truth[int(user[1:]) % 2]
        assert found.late.all()
        own = rows.take(np.flatnonzero(rows.users == user))
        if loss == "squared":
            assert np.std(own.y - own.X @ model) < 0.6
        elif METHODS[method].clusterer.uses_terms:  # K-means takes separable users for a group
            assert model @ MODELS[int(user[1:]) % 2] > 0
    words = json.loads((run / "nodes.json").read_text())
    assert words["late"] == late.users.tolist()
    assert words["nodes"][str(last)]["confirmed"]


def test_late_users_of_mixed_groups_get_what_assign_gives(tmp_path):
    _, grid, _, late, got = late_run(Method(), tmp_path)
    model = ODCLRegressor.load(tmp_path / "run")
    ODCL.from_result(tmp_path / "run").start(grid)
    for user, X, y in late:
        found = model.assign(X, y)
        assert_array_equal(got[user][0], found.theta)
        assert got[user][1] == found.label


@pytest.mark.parametrize("method", METHODS)
def test_a_node_that_missed_its_download_gets_the_same_models_later(method, tmp_path):
    run, got = tmp_path / "run", {}
    grid = grid_of(PARTS, got)
    lost = sorted(grid.online)[1]
    grid.online[lost].spoil = lambda m: m if m.metadata.message_type == "train" else None
    grid.online[lost].forgets = True
    ODCL("squared", METHODS[method], result_dir=run, timeout=0.2).start(grid)
    got.clear()
    grid.online[lost].spoil = None
    before = ODCLRegressor.load(run)
    ODCL.from_result(run).start(grid)
    users = PARTS[grid.online[lost].config["partition-id"]].users
    whole = fit(ROWS, "squared", METHODS[method])
    at = np.flatnonzero(np.isin(whole.users, users))
    assert sorted(got) == sorted(users.tolist())
    assert_array_equal(models_of(got, whole.users[at]), whole.models[at])
    assert_array_equal(ODCLRegressor.load(run).theta_, before.theta_)
    words = json.loads((run / "nodes.json").read_text())
    assert all(one["confirmed"] for one in words["nodes"].values())
    assert words["undelivered"] == []


def test_a_node_with_known_and_new_users_gets_both(tmp_path):
    run, got = tmp_path / "run", {}
    some = ROWS.take(np.arange(10))
    ODCL(result_dir=run).start(grid_of(parts_of(some, 3)))
    both = ROWS.take(np.array([0, 3, 10, 11]))
    ODCL.from_result(run).start(grid_of([both], got, seed=5))
    whole = fit(some, "squared", Method(robust=True))
    assert_array_equal(models_of(got, whole.users[[0, 3]]), whole.models[[0, 3]])
    assert got["u10"][2].late.tolist() == [False, False, True, True]
    assert json.loads((run / "nodes.json").read_text())["late"] == ["u10", "u11"]


def test_known_users_with_other_rows_are_set_aside(tmp_path):
    run = tmp_path / "run"
    grid = grid_of(PARTS)
    lost = next(n for n, one in grid.online.items() if one.config["partition-id"] == 0)
    grid.online[lost].spoil = lambda m: m if m.metadata.message_type == "train" else None
    ODCL(result_dir=run, timeout=0.2).start(grid)
    before = files_below(run)
    other = federation("squared", seed=1).take(np.array([0]))
    grid.online = {lost: next(iter(grid_of([other]).online.values()))}
    with pytest.raises(ValueError, match="0 replies can be taken from late nodes") as error:
        ODCL.from_result(run).start(grid)
    assert "user 'u00' is in the result with other rows" in error.value.__notes__[0]
    assert files_below(run) == before


def test_a_late_user_is_not_taken_for_another_nodes_of_the_same_name(tmp_path):
    run, got = tmp_path / "run", {}
    some = ROWS.take(np.arange(10))
    ODCL(result_dir=run).start(grid_of(parts_of(some, 3)))
    late = replace(ROWS.take(np.array([0, 11])), users=np.array(["u00", "u01"]))
    grid = grid_of([late], got, seed=5)
    (node,) = grid.online
    ODCL.from_result(run).start(grid)
    whole = fit(some, "squared", Method(robust=True))
    assert_array_equal(got["u00"][0], whole.models[0])  # the same numbers: the same user
    assert got["u00"][2].late.tolist() == [False, True]
    assert json.loads((run / "nodes.json").read_text())["late"] == [{"tuple": [node, "u01"]}]
    assert len(ODCLRegressor.load(run).users_) == 11


def test_where_nobody_is_late_nothing_happens(tmp_path):
    run = tmp_path / "run"
    grid = grid_of(PARTS)
    ODCL(result_dir=run).start(grid)
    before = files_below(run)
    ODCL.from_result(run, wait=0).start(grid)
    assert files_below(run) == before


def test_a_model_of_one_table_has_no_late_nodes(tmp_path):
    ODCLRegressor(users="user").fit(table_of(ROWS).drop(columns="y"), ROWS.y).save(tmp_path / "m")
    with pytest.raises(ValueError, match="is no result of a run on Flower"):
        ODCL.from_result(tmp_path / "m")
