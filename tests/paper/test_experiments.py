"""Small versions of the paper's figures and tables: their claims, their rows, their pages."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from odcl.cli import paper as command
from odcl.cli.main import run_command
from odcl.data.federation import Federation
from odcl.local.fit import solve_users
from odcl.paper.baselines import METHODS
from odcl.paper.experiments import NAMES, experiment, pages, tables
from odcl.paper.experiments.definition import (
    Bench,
    Experiment,
    Measurement,
    ResultRow,
    Rows,
    load_added,
    read_rows,
)
from odcl.paper.experiments.pages import meets
from odcl.paper.experiments.rounds import first_match, name_of, reached
from odcl.paper.experiments.runner import ROWS, Reproduced, reproduce
from odcl.paper.experiments.tables import evaluated
from odcl.paper.images import Images, image_federation, load_images
from odcl.risk.risk import Risk
from tests.helpers import SHARED_DATA

real_data = pytest.mark.skipif(not SHARED_DATA.is_dir(), reason="needs MNIST and CIFAR-10")

# name: settings that differ from the quick ones, and runs
SMALL = {
    "table-methods": ([{}], 1),
    "figure-mse": ([{"n": 50}, {"n": 100}, {"n": 500}, {"n": 1000}], 2),
    "table-rounds": ([{"K": 1}, {"K": 4}], 1),
    "figure-ifca": ([{"n": 600, "rounds": 300}], 1),
    "figure-clusterpath": ([{"n": 100}, {"n": 600}], 1),
    "figure-logistic": ([{"n": 300}, {"n": 3000}], 1),
    "table-accuracy": ([{"data": "mnist"}, {"data": "cifar10"}, {"data": "cifar10n"}], 1),
}


def small_experiment(name: str) -> tuple[Experiment, int]:
    changes, runs = SMALL[name]
    full = experiment(name)
    base = full.settings(True)
    settings = [{**base[i % len(base)], **change} for i, change in enumerate(changes)]
    return replace(full, settings=lambda quick: settings), runs


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """An experiment's small version: run once, its rows, page and figure looked through."""

    @lru_cache
    def make(name: str) -> Reproduced:
        own, runs = small_experiment(name)
        out = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tables, "images", made_up)
            found = reproduce(own, out, runs=runs, data=Path("made-up"))
        well_formed(found)
        return found

    return make


@lru_cache
def made_up(name: str, folder: Path) -> Images:
    """Two classes of noise about two faint patterns, smaller than the real ones."""
    rng = np.random.default_rng(len(name))
    shape = (14, 14) if name == "mnist" else (3, 8, 8)
    patterns = rng.integers(60, 120, size=(10, int(np.prod(shape))))
    parts = []
    for n in (2000, 200):
        y = rng.integers(0, 3, size=n)
        X = np.clip(patterns[y] + 60 * rng.standard_normal((n, patterns.shape[1])), 0, 255)
        parts += [X.astype(np.uint8), y]
    return Images(name, *parts, shape, folder)


# -- what the results must show --------------------------------------------------------------------


@pytest.mark.slow
def test_kmeans_is_oracle_averaging_and_convex_clustering_from_500_on(outcome):
    rows = outcome("figure-mse").rows
    for n in (50, 100, 500, 1000):
        assert meets(rows, "odcl-km++", n)
        assert meets(rows, "odcl-cc", n)  # clusterpath: earlier
        assert meets(rows, "odcl-cc-oracle", n) == (n >= 500)


def test_errors_fall_like_one_over_n_and_their_ratio_is_the_cluster_size(outcome):
    rows = outcome("figure-mse").rows
    for method in ("local", "oracle-averaging", "odcl-km++"):
        at = [rows.mean(method, "nmse", n=n) for n in (100, 1000)]
        assert -1.25 < np.log10(at[1] / at[0]) < -0.9
    for n in (50, 100, 500, 1000):
        local, oracle = (rows.mean(m, "nmse", n=n) for m in ("local", "oracle-averaging"))
        assert 7.5 < local / oracle < 13  # |C_k| = 10
        assert rows.mean("naive", "nmse", n=n) > 0.9
    pooled = rows.mean("cluster-oracle", "nmse", n=50)
    assert pooled < rows.mean("oracle-averaging", "nmse", n=50)
    assert_allclose(rows.mean("odcl", "nmse", n=50), pooled, rtol=0.05)


def test_ifca_needs_many_rounds_where_one_does(outcome):
    rows = outcome("table-rounds").rows
    for K, rival in ((1, "fedavg"), (4, "ifca-near")):
        assert rows.values("odcl-km++", "rounds", K=K) == [1]
        assert rows.values(rival, "rounds", K=K)[0] > 50
        assert reached(rows, rival, K) == [True]
        up = [rows.mean(m, "bytes_up", K=K) for m in (rival, "odcl-km++")]
        assert up[0] > 50 * up[1]


@pytest.mark.slow
def test_stochastic_steps_stall_above_one_round_and_full_gradients_do_not(outcome):
    rows = outcome("figure-ifca").rows
    one, pooled = (rows.mean(m, "nmse") for m in ("odcl-cc-oracle", "cluster-oracle"))
    assert_allclose(one, rows.mean("oracle-averaging", "nmse"), rtol=1e-6)
    for step in (0.1, 0.05):
        assert rows.mean(name_of(step, True), "nmse") > 2 * one
        assert_allclose(rows.mean(name_of(step, False), "nmse"), pooled, rtol=0.05)
        of_mean, each = first_match(rows, name_of(step, True), 600)
        assert np.isinf([of_mean, *each]).all()
    start = [rows.mean(name_of(s, False), "nmse", round=0) for s in (0.1, 0.05, 0.01)]
    assert_allclose(start, start[0])


@pytest.mark.slow
def test_clusterpath_finds_the_clusters_before_the_lambda_of_the_truth_does(outcome):
    rows = outcome("figure-clusterpath").rows
    found = {n: rows.mean("odcl-cc-oracle", "n_clusters", n=n) for n in (100, 600)}
    assert found == {100: 100, 600: 4}
    assert meets(rows, "odcl-cc-oracle", 600)
    assert meets(rows, "odcl-cc", 600)
    assert rows.mean("odcl-cc", "nmse", n=100) < rows.mean("odcl-cc-oracle", "nmse", n=100)


@pytest.mark.slow
def test_logistic_models_are_in_four_clusters(outcome):
    rows = outcome("figure-logistic").rows
    assert rows.mean("odcl-cc-oracle", "n_clusters", n=300) > 90
    assert rows.mean("odcl-cc-oracle", "n_clusters", n=3000) < 8
    assert rows.mean("odcl", "n_clusters", n=3000) == 4
    assert meets(rows, "odcl-km++", 3000)
    ratio = rows.mean("local", "nmse", n=3000) / rows.mean("oracle-averaging", "nmse", n=3000)
    assert 10 < ratio < 60  # |C_k| = 25


def test_every_method_of_the_accuracy_table_has_its_rows(outcome):
    rows = outcome("table-accuracy").rows
    names = {*tables.PAPER, *tables.OURS}
    for data in tables.SOURCES:
        assert set(rows.methods(data=data)) == names
        for name in names:
            assert 0 <= rows.mean(name, "accuracy", data=data) <= 1
        assert len(rows.of("user", data=data)) == 20
        each = [rows.values("local", "accuracy", data=data, user=u)[0] for u in range(20)]
        assert_allclose(np.mean(each), rows.mean("local", "accuracy", data=data))
        for name in ("odcl-km++", "odcl"):
            assert rows.mean(name, "rounds", data=data) == 1
    assert rows.mean("cluster-oracle", "accuracy", data="mnist") > 0.9


@real_data
def test_real_images_give_the_accuracies_of_the_paper_and_ours_go_past_it():
    """Section 5: MNIST .98, .83, .91; CIFAR10 local .70, ODCL-KM++ .76."""
    images = {name: load_images(name, SHARED_DATA, classes=(1, 2)) for name in ("mnist",)}
    images["cifar10"] = load_images("cifar10", SHARED_DATA, classes=(0, 1))
    found = {}
    for name, data in images.items():
        bench = Bench(image_federation(data, seed=0), Risk("logistic", l2=1e-5), seed=0)
        for method in ("local", "odcl-km++"):
            found[name, method] = bench.run(method).value("accuracy")
        ours = bench.run("odcl")
        found[name, "ours"] = ours.value("accuracy")
        assert ours.result.n_rounds == 1
        if name == "mnist":
            found[name, "oracle"] = bench.run("cluster-oracle").value("accuracy")
    assert_allclose(found["mnist", "oracle"], 0.98, atol=0.01)
    assert_allclose(found["mnist", "local"], 0.83, atol=0.01)
    assert_allclose(found["mnist", "odcl-km++"], 0.91, atol=0.01)
    assert_allclose(found["cifar10", "local"], 0.70, atol=0.01)
    assert_allclose(found["cifar10", "odcl-km++"], 0.76, atol=0.015)
    assert found["mnist", "ours"] > 0.95
    assert found["cifar10", "ours"] > 0.79


# -- the methods that the table adds ---------------------------------------------------------------


def two_classes(seed: int = 0) -> Federation:
    rng = np.random.default_rng(seed)
    y = np.tile([1.0, 1.0, -1.0, -1.0], 10)
    X = rng.standard_normal((40, 30)) * np.where(y > 0, 0.3, 1.5)[:, None] + 3.0 + 0.5 * y[:, None]
    return Federation(X, y, np.arange(11) * 4, np.arange(10))


def test_local_models_are_fitted_once_and_give_what_fitting_anew_gives():
    bench = Bench(two_classes(), Risk("logistic", l2=1e-3), seed=3)
    shared = bench.run("odcl-km++", n_clusters=2)
    anew = bench.run("odcl-km++", n_clusters=2, solver="exact")
    assert_allclose(shared.result.models, anew.result.models)
    assert shared.result.local.theta is bench.solver.solution.theta
    moved = two_classes(1)  # other rows
    other = bench.solver.solve_users(moved, shared.result.risk, seed=3)
    assert_allclose(other.theta, solve_users(moved, shared.result.risk).theta)
    assert not np.allclose(other.theta, shared.result.local.theta)


# -- rows and going on -----------------------------------------------------------------------------


def toy_work(task, data):
    rng = np.random.default_rng([task.seed, task.setting["n"]])
    yield Measurement("a", "nmse", rng.random(), 0.1, {"round": 1})
    yield Measurement("a", "nmse", rng.random(), 0.1)
    yield Measurement("b", "nmse", np.inf, 0.2)
    yield Measurement("b", "rounds", 3.0, 0.2)


def toy_settings(quick):
    return [{"n": n, "K": 2} for n in ((1,) if quick else (1, 2, 3))]


def toy_page(rows):
    return [f"| n |\n| --- |\n| {len(rows)} |"]


TOY = Experiment("toy", "Toy", toy_settings, toy_page, work=toy_work, runs=4)


def without_time(path: Path) -> list[dict]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    reproduce(TOY, out)
    return without_time(out / ROWS)


def test_a_row_says_where_it_comes_from(whole):
    assert len(whole) == 4 * 3 * 4
    assert whole[0] == {
        "experiment": "toy",
        "method": "a",
        "setting": {"n": 1, "K": 2, "round": 1},
        "run": 0,
        "seed": 0,
        "metric": "nmse",
        "value": np.random.default_rng([0, 1]).random(),
        "version": "0.1.0",
    }
    assert [row["value"] for row in whole if row["metric"] == "nmse" and row["method"] == "b"] == [
        None
    ] * 12  # JSON knows no infinity


@pytest.mark.parametrize("after", [1, 5, 11])
def test_an_interrupted_run_goes_on_and_gives_the_same_rows(tmp_path, whole, after):
    seen = []

    def interrupted(task, data):
        if len(seen) == after:
            raise KeyboardInterrupt
        seen.append(task)
        return toy_work(task, data)

    with pytest.raises(KeyboardInterrupt):
        reproduce(replace(TOY, work=interrupted), tmp_path)
    assert len(read_rows(tmp_path / ROWS)) == 4 * after
    outcome = reproduce(TOY, tmp_path)
    assert (outcome.n_tasks, outcome.n_new) == (12, 12 - after)
    assert without_time(tmp_path / ROWS) == whole


def test_rows_are_written_task_by_task_or_not_at_all(tmp_path, monkeypatch):
    """A disk that fails in the middle of a task's rows leaves those of the tasks before it."""
    reproduce(TOY, tmp_path, runs=1)
    before = (tmp_path / ROWS).read_bytes()

    def fails(self, text, **how):
        self.write_bytes(text.encode()[:-30])
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fails)
        with pytest.raises(OSError, match="no space"):
            reproduce(TOY, tmp_path, runs=2)
    assert (tmp_path / ROWS).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".jsonl"] == [ROWS]


def test_more_runs_and_another_experiment_keep_the_rows_there_are(tmp_path, whole):
    reproduce(TOY, tmp_path, runs=2)
    reproduce(replace(TOY, name="other"), tmp_path, runs=1)
    assert reproduce(TOY, tmp_path).n_new == 6
    rows = without_time(tmp_path / ROWS)
    assert [row for row in rows if row["experiment"] == "toy"] == whole
    assert reproduce(TOY, tmp_path, quick=True).n_new == 0  # the same federation, run before
    assert reproduce(TOY, tmp_path, runs=1, seed=7).n_new == 3


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    def work(task, data):
        with pytest.raises(ValueError, match="Another run writes"):
            reproduce(TOY, tmp_path)
        return toy_work(task, data)

    pytest.importorskip("fcntl")
    reproduce(replace(TOY, work=work), tmp_path, runs=1, quick=True)
    assert reproduce(TOY, tmp_path, runs=1, quick=True).n_new == 0


def test_processes_change_no_number(tmp_path):
    """Two at a time: the real methods, in other processes and on one BLAS thread each."""
    own = replace(
        experiment("table-rounds"),
        settings=lambda quick: [{"n": 50, "K": 1, "m": 20, "d": 20}],
    )
    for jobs in (1, 2):
        (tmp_path / str(jobs)).mkdir()
        reproduce(own, tmp_path / str(jobs), runs=2, jobs=jobs)
    assert without_time(tmp_path / "1" / ROWS) == without_time(tmp_path / "2" / ROWS)


def test_a_line_that_is_no_row_is_named(tmp_path):
    (tmp_path / ROWS).write_text('{"experiment": "toy"}\n')
    with pytest.raises(ValueError, match=r"Line 1 of .*rows\.jsonl"):
        reproduce(TOY, tmp_path)


def test_rows_are_found_by_setting_and_parts_only_when_asked_for():
    def row(run, value, **setting):
        return ResultRow("toy", "a", setting, run, run, "nmse", value, 0.0, "0")

    rows = Rows([row(1, 5.0, n=2), row(0, 4.0, n=2), row(0, 9.0, n=2, round=7), row(0, None, n=3)])
    assert rows.values("a", "nmse", n=2).tolist() == [4.0, 5.0]
    assert rows.values("a", "nmse", n=2, round=7).tolist() == [9.0]
    assert rows.values("a", "nmse", n=3).tolist() == [np.inf]
    assert rows.of("n") == [2, 3]
    assert np.isnan(rows.mean("b", "nmse"))


# -- pages and figures -----------------------------------------------------------------------------


def well_formed(found: Reproduced) -> None:
    """Rows of known metrics; Markdown tables that also read well as plain text; two pictures."""
    known = {"nmse", "accuracy", "n_clusters", "rounds", "bytes_up", "bytes_down"}
    assert {row.metric for row in found.rows.rows} <= known
    assert {row.experiment for row in found.rows.rows} == {found.experiment.name}
    assert all(row.seconds >= 0 for row in found.rows.rows)
    blocks = re.findall(r"(?:^\|.*\n?)+", found.page, flags=re.M)
    assert blocks
    for block in blocks:
        lines = block.strip().split("\n")
        cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
        assert len({len(line) for line in cells}) == 1
        assert len({len(line) for line in lines}) == 1
        assert all(re.fullmatch(r" -+:? ", cell) for cell in cells[1])
        assert len(lines) > 2
    assert "paper" in found.page
    assert "nan" not in found.page
    assert re.search(r"\d+ runs?, seeds? 0", found.page)
    assert found.files[0].read_text() == found.page
    if found.experiment.draw is not None and pages.can_draw():
        _, png, svg = found.files
        assert png.read_bytes().startswith(b"\x89PNG")
        assert "<svg" in svg.read_text()
        assert f"({png.name})" in found.page


def test_the_methods_table_is_that_of_the_theory_and_takes_any_clusters(outcome):
    rows = outcome("table-methods").rows
    assert rows.mean("odcl-cc", "rounds", K=10) == 1
    assert rows.mean("all-for-all", "rounds", K=10) > 100
    page = evaluated([30, 50, 20], 2.0, 200)
    assert "m = 100, K = 3" in page
    assert "20 to 50" in page


# -- the command -----------------------------------------------------------------------------------


def test_the_command_writes_the_folder_and_goes_on_in_it(tmp_path, capsys):
    out = tmp_path / "new" / "place"
    call = ["reproduce", "table-methods", "--quick", "--jobs", "1", "--out", str(out)]
    assert run_command(call) == 0
    said = capsys.readouterr()
    assert "| ALL-for-ALL" in said.out
    assert "4 tasks in" in said.err
    written = {"rows.jsonl", "table-methods.md"}
    assert {p.name for p in out.iterdir()} == written
    assert run_command(call) == 0
    assert "0 tasks in" in capsys.readouterr().err
    assert run_command([*call, "--force", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_the_command_refuses_what_it_cannot_do(tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("mine")
    assert run_command(["reproduce", "figure-9", "--out", str(tmp_path / "x")]) == 2
    assert "There are: table-methods, figure-mse" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
    assert run_command(["reproduce", "table-methods", "--out", str(tmp_path)]) == 2
    assert "'mine.txt'" in capsys.readouterr().err
    assert run_command(["reproduce", "table-methods", "--out", str(tmp_path / "mine.txt")]) == 2
    assert run_command(["reproduce", "table-methods", "--runs", "0"]) == 2
    place = ["--out", str(tmp_path / "y")]
    assert run_command(["reproduce", "table-accuracy", *place]) == 2
    assert "name a data folder" in capsys.readouterr().err
    assert run_command(["reproduce", "table-accuracy", "--data", "nowhere", *place]) == 2
    assert "There is no folder nowhere" in capsys.readouterr().err
    empty = tmp_path / "empty.py"
    empty.write_text("import odcl\n")
    methods = ["--methods", str(empty), *place]
    assert run_command(["reproduce", "figure-mse", *methods]) == 2
    assert "registers no method" in capsys.readouterr().err
    assert run_command(["reproduce", "table-rounds", *methods]) == 2
    assert "can join figure-mse" in capsys.readouterr().err
    empty.write_text("import no_such_package\n")
    assert run_command(["reproduce", "figure-mse", *methods]) == 2
    assert "No module named 'no_such_package'" in capsys.readouterr().err
    assert not (tmp_path / "y").exists()  # nothing was begun


def test_all_leaves_out_what_has_no_data(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "odcl.paper.experiments.NAMES",
        {"table-accuracy": "tables", "table-methods": "tables"},
    )
    call = ["reproduce", "all", "--quick", "--jobs", "1", "--out", str(tmp_path / "out")]
    assert run_command(call) == 0
    said = capsys.readouterr()
    assert "table-accuracy is left out" in said.err
    assert "| ALL-for-ALL" in said.out


def test_an_interruption_says_that_the_rows_are_kept(tmp_path, capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("odcl.paper.experiments.runner.reproduce", interrupted)
    assert run_command(["reproduce", "table-methods", "--out", str(tmp_path / "out")]) == 130
    assert "the same command goes on there" in capsys.readouterr().err


@pytest.fixture
def registry():
    """Methods registered in a test are forgotten after it."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


MINE = """
import odcl
from odcl import Method

def mine(federation, *, n_clusters, **call):
    return odcl.fit(federation, method=Method.paper(n_clusters), **call)

odcl.baselines.register("mine", mine, "n_clusters")
"""


def test_a_method_of_ones_own_joins_a_figure(tmp_path, registry):
    """One file and one line; its rows come beside those there are, and anew when it changes."""
    (tmp_path / "mine.py").write_text(MINE)
    full = experiment("figure-mse")
    own = replace(full, settings=lambda quick: full.settings(True)[:1])
    out = tmp_path / "out"
    out.mkdir()
    assert reproduce(own, out, runs=1).n_new == 1
    added = load_added(tmp_path / "mine.py")
    found = reproduce(own, out, runs=1, added=added, jobs=2)
    assert (found.n_tasks, found.n_new, found.n_other) == (2, 1, 0)
    assert meets(found.rows, "mine", 50)  # it is ODCL-KM++
    assert "odcl |" in found.page
    assert "mine |" in found.page
    METHODS.pop("mine")
    (tmp_path / "mine.py").write_text(MINE + "# another\n")
    again = reproduce(own, out, runs=1, added=load_added(tmp_path / "mine.py"))
    assert (again.n_new, again.n_other) == (1, len(full.metrics))
    without = reproduce(own, out, runs=1)
    assert without.n_new == 0
    assert "mine" not in without.page


def test_a_failing_method_of_ones_own_is_told_in_a_line_and_the_others_go_on(tmp_path, registry):
    (tmp_path / "bad.py").write_text(MINE.replace("    return", "    1 / 0\n    return"))
    full = experiment("figure-mse")
    own = replace(full, settings=lambda quick: full.settings(True)[:1])
    found = reproduce(own, tmp_path, runs=1, added=load_added(tmp_path / "bad.py"))
    (line,) = found.failures
    assert line.startswith("mine (line 6 of bad.py) failed on figure-mse")
    assert line.endswith("ZeroDivisionError: division by zero")
    assert meets(found.rows, "odcl-km++", 50)
    assert "mine" not in found.page


def test_force_forgets_the_rows_of_the_named_experiment_alone(tmp_path):
    reproduce(TOY, tmp_path, runs=1)
    other = replace(TOY, name="other")
    reproduce(other, tmp_path, runs=1)
    command.open_folder(tmp_path, [TOY], force=True)
    assert {row.experiment for row in read_rows(tmp_path / ROWS)} == {"other"}


def test_a_quick_page_says_that_it_is_none_of_the_papers(tmp_path):
    page = reproduce(replace(TOY, quick_runs=2), tmp_path, quick=True).page
    small = "n = 1 in place of 1, 2, 3; 2 runs by default in place of 4."
    assert f"**A quick look, not the paper's set-up**: {small}" in page
    assert "quick" not in reproduce(TOY, tmp_path).page


def test_rows_of_another_version_are_kept_and_counted(tmp_path):
    reproduce(TOY, tmp_path, runs=1)
    path = tmp_path / ROWS
    path.write_text(path.read_text().replace('"version": "0.1.0"', '"version": "0.0.9"'))
    again = reproduce(TOY, tmp_path, runs=1)
    assert (again.n_new, again.n_other) == (3, 12)
    assert any("12 rows of other versions" in line for line in command.about(again))
    assert len(read_rows(path)) == 24


def test_names_in_help_are_those_there_are(capsys):
    with pytest.raises(SystemExit):
        run_command(["reproduce", "--help"])
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES)
    assert "odcl.paper.experiments.tables" in sys.modules  # and each can be loaded
    assert [experiment(name).name for name in NAMES] == list(NAMES)


def test_force_never_deletes_rows_that_are_not_ours(tmp_path):
    foreign = tmp_path / "rows.jsonl"
    foreign.write_text('{"a": 1}\n')
    with pytest.raises(ValueError, match="is not a row of odcl's"):
        command.open_folder(tmp_path, [TOY], force=True)
    assert foreign.read_text() == '{"a": 1}\n'


def test_a_picture_is_saved_whole(tmp_path):
    fig, _ = pages.figure()
    pages.save(fig, tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert [p.name for p in tmp_path.iterdir()] == ["p.png"]
