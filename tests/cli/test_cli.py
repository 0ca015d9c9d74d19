"""The command line keeps its promises: what it prints, what it writes, what it refuses."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import ODCLClassifier, ODCLRegressor, __version__
from odcl.cli import main as cli
from odcl.cli import option_values, options
from odcl.data.tables import read_table

ROLES = ("--user", "user", "--target", "y")
PLAIN = (*ROLES, "--holdout", "0")  # without the comparison, which most promises do not touch
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def odcl(capsys):
    """Run a command in this process."""

    def run(*words) -> Said:
        capsys.readouterr()
        try:
            code = cli.run_command([str(word) for word in words])
        except SystemExit as left:  # --help, --version
            code = left.code
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch, request):
    """Every test works in a folder of its own, and draws only if it says so."""
    monkeypatch.chdir(tmp_path)
    if "draws" not in request.fixturenames:
        monkeypatch.setattr("odcl.cli.rundir._draw", lambda run, path: True)


@pytest.fixture
def draws():
    """A test that asks for this one draws its pictures."""


def people(n_users=8, n=14, seed=0) -> pd.DataFrame:
    """Users u0, u1, ... in two groups, three features, little noise."""
    rng = np.random.default_rng(seed)
    models = np.array([[3.0, -2.0, 1.0, 0.0], [-3.0, 2.0, 4.0, 10.0]])
    owner = np.repeat(np.arange(n_users), n)
    X = rng.normal(size=(len(owner), 3))
    y = (X * models[owner % 2, :3]).sum(axis=1) + models[owner % 2, 3]
    y += 0.5 * rng.normal(size=len(owner))
    ids = [f"u{i}" for i in owner]
    return pd.DataFrame({"user": ids, "a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y})


def classes(n_classes=2, **more) -> pd.DataFrame:
    frame = people(**more)
    noisy = frame.y + np.random.default_rng(1).normal(0, 3, len(frame))
    names = ["low", "mid", "top"][:n_classes] if n_classes > 2 else ["no", "yes"]
    return frame.assign(y=pd.qcut(noisy, n_classes, labels=names).astype(str))


def save(frame: pd.DataFrame, name="table.csv") -> Path:
    frame.to_csv(name, index=False)
    return Path(name)


def rows_of(frame: pd.DataFrame) -> np.ndarray:
    """The features as the command sees them: a matrix, row by row in memory."""
    return np.ascontiguousarray(frame[["a", "b", "c"]])


def files(folder=".") -> dict[str, bytes]:
    """Every file below a folder, hidden ones included."""
    root = Path(folder)
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def command(*words, **more) -> subprocess.Popen:
    """The command as a process of its own."""
    given = [sys.executable, "-m", "odcl", *map(str, words)]
    return subprocess.Popen(
        given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
    )


# -- help and start --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "demo", "fit", "predict", "assign"])
def test_help_explains_every_option_within_80_columns(odcl, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = odcl(*name.split(), "--help")
    assert (said.code, said.err) == (0, "")
    assert max(map(len, said.out.splitlines())) <= 80
    assert said.out.startswith(f"usage: odcl {name}".strip())
    _, commands = options._parsers()
    for action in commands[name]._actions if name else ():
        if action.dest != "help":
            shown = action.option_strings[-1] if action.option_strings else action.metavar
            assert shown in said.out
            assert action.help
            needs_default = action.option_strings and action.nargs != 0 and not action.required
            is_list = action.dest in ("drop", "categorical")
            assert not needs_default or is_list or "[default: " in action.help


def test_the_commands_and_a_first_example_stand_in_the_help(odcl):
    text = odcl("--help").out
    assert all(f"    {name} " in text for name in cli.COMMANDS)
    assert "odcl fit sales.csv --user store --target sales --out run" in text


def test_the_examples_in_the_help_can_be_parsed():
    texts = (options._START, options._FIT_EXAMPLES, options._PREDICT_EXAMPLES)
    for text in (*texts, options._ASSIGN_EXAMPLES):
        lines = re.findall(r"^  odcl (.*)$", text.replace("\\\n", ""), flags=re.MULTILINE)
        assert lines
        for line in lines:
            options.parse(shlex.split(re.split(r"[|&]", line)[0]))


def test_version(odcl):
    assert odcl("--version") == Said(0, f"odcl {__version__}\n", "")


def test_help_and_import_load_nothing_heavy():
    heavy = ["numpy", "scipy", "sklearn", "pyarrow", "matplotlib", "pandas", "rich", "typer"]
    for lines in (
        "import odcl",
        "from odcl.cli.main import parse\ntry: parse(['fit', '--help'])",
    ):
        if "parse" in lines:
            lines += "\nexcept SystemExit: pass"
        tell = f"\nprint('@', [name for name in {heavy} if name in sys.modules])"
        done = subprocess.run(
            [sys.executable, "-c", f"import sys\n{lines}{tell}"], capture_output=True, text=True
        )
        assert done.stdout.splitlines()[-1] == "@ []", done


def test_the_choices_of_the_options_are_those_of_the_library():
    from odcl.data.encoding import MISSING, UNSEEN

    from odcl.estimators.settings import _NAMES
    from odcl.risk.losses import as_loss
    from odcl.server.combine import COMBINERS

    assert set(option_values.COMBINE) == set(COMBINERS)
    assert (option_values.MISSING, option_values.UNSEEN) == (MISSING, UNSEEN)
    assert _NAMES["curvature"] == option_values.CURVATURE
    assert _NAMES["unknown"] == option_values.UNKNOWN
    for loss in option_values.LOSSES[1:]:
        assert as_loss(loss, np.array([0, 1])).name == loss


USAGE = [
    ((), "name a command: demo, fit, predict, assign"),
    (("ft",), "no command: 'ft'"),
    (("fit",), "required: TABLE, --user, --target, --out"),
    (("fit", "t.csv", *ROLES), "required: --out"),
    (("fit", "t.csv", "--user"), "--user: expected one argument"),
    (("fit", "t.csv", *ROLES, "--out", "r", "--los", "x"), "did you mean '--loss'?"),
    (("fit", "t.csv", *ROLES, "--out", "r", "--drop", "a", "b"), "columns are written a,b,c"),
    (("predict", "r"), "required: TABLE"),
    (("predict", "r", "t.csv", "--unknown", "neerest"), "did you mean 'nearest'?"),
    (("predict", "r", "t.csv", "--unseen", "x"), "none of error, reference"),
]
VALUES = [
    ("--loss", "logistc", "none of auto, squared, huber, poisson, logistic, multinomial"),
    ("--loss", "logistc", "did you mean 'logistic'?"),
    ("--combine", "median", "none of precision, mean, samples, shrink"),
    ("--refit", "never", "none of evidence, cv, none, a number >= 0"),
    ("--refit", "-1", "none of evidence, cv, none, a number >= 0"),
    ("--refit", "nan", "none of evidence, cv, none, a number >= 0"),
    ("--clusters", "few", "none of auto, convex, elbow, silhouette, a number"),
    ("--clusters", "0", "none of auto, convex, elbow, silhouette, a number"),
    ("--clusters", "spectral:0", "spectral:K"),
    ("--clusters", "dbscan:3", "gradient:K"),
    ("--missing", "guess", "none of error, drop, mean"),
    ("--curvature", "half", "none of auto, full, diagonal, none"),
    ("--holdout", "1", "share of the rows, from 0 to below 1"),
    ("--holdout", "20%", "share of the rows, from 0 to below 1"),
    ("--l2", "-1", "number >= 0"),
    ("--seed", "-1", "whole number from 0"),
    ("--jobs", "0", "one a core"),
]


@pytest.mark.parametrize(("words", "told"), USAGE)
def test_a_usage_error_is_one_line_with_a_way_to_the_help(odcl, words, told):
    said = odcl(*words)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert re.fullmatch(r"odcl: .*[.?] See odcl( \w+)? --help\.\n", said.err)


@pytest.mark.parametrize(("option", "value", "told"), VALUES)
def test_a_value_that_an_option_does_not_know_is_refused_with_the_choices(
    odcl, option, value, told
):
    said = odcl("fit", "t.csv", *ROLES, "--out", "r", option, value)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"odcl: {option}: {value!r} ")
    assert told in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--paper", "--combine", "samples"),
        ("--paper", "--refit", "cv"),
        ("--combine", "shrink", "--clusters", "3"),
    ],
)
def test_options_that_contradict_each_other_are_refused(odcl, words):
    said = odcl("fit", save(people()), *PLAIN, "--out", "r", *words)
    assert said.code == 2
    assert "leave one of them out" in said.err


# -- demo ------------------------------------------------------------------------------------------


def test_demo_prints_groups_errors_and_bytes_and_its_table_can_be_fitted(odcl, draws):
    said = odcl("demo")
    assert (said.code, said.err) == (0, "")
    assert len(re.findall(r"^group \d+ +10 +1,000 ", said.out, flags=re.MULTILINE)) == 10
    assert "They are the true ones." in said.out
    found = re.findall(
        r"^(local|naive|paper|oracle|odcl).*? {2,}([\d.]+) +", said.out, re.MULTILINE
    )
    errors = {name: float(error) for name, error in found}
    assert errors["odcl"] <= errors["oracle"] < errors["local"] < errors["naive"]
    assert re.search(r"1 round: each user sent [\d.]+ kB and received 160 bytes\.", said.out)
    assert Path("odcl-demo/demo.png").read_bytes().startswith(b"\x89PNG")
    line = re.search(r"A table to try: odcl (.*)", said.out)
    said = odcl(*shlex.split(line[1]))
    assert said.code == 0
    assert "60 users" in said.out
    assert "3 groups found" in said.out
    assert Path("run/picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_demo_is_refused_before_its_work(odcl, monkeypatch):
    Path("odcl-demo").mkdir()
    monkeypatch.setattr("odcl.cli.demo.demo_result", None)
    said = odcl("demo")
    assert said.code == 2
    assert "odcl-demo exists already" in said.err


# -- fit -------------------------------------------------------------------------------------------


def test_fit_writes_models_assignment_and_a_closing_table(odcl):
    frame = people()
    said = odcl("fit", save(frame), *ROLES, "--out", "run")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("8 users, 112 rows, 3 features, squared loss, 1 round. 2 groups")
    names = ("one model per user", "one model for all", "the paper's setting", "odcl")
    rows = {n: re.search(rf"^{n} +([\d.]+) +([\d.]+) +([\d.]+)$", said.out, re.M) for n in names}
    report = json.loads(Path("run/report.json").read_text())
    for name, entry in zip(names, report["comparison"]["table"], strict=True):
        numbers = [entry["mean"], entry["median"], entry["worst"]]
        assert_allclose([float(x) for x in rows[name].groups()], numbers, rtol=5e-3)
    assert report["comparison"]["rows_held_out"] == 8 * 3
    assert report["settings"]["fit_intercept"] is True
    expected = {"models.safetensors", "model.json", "uploads.safetensors", "schema.json"}
    expected |= {"report.json"}
    assert set(files("run")) == expected | {"assignment.csv", "groups.csv"}
    assignment = pd.read_csv("run/assignment.csv")
    assert assignment.user.tolist() == [f"u{i}" for i in range(8)]
    assert assignment.group.tolist() == [0, 1] * 4
    assert assignment["rows"].tolist() == [14] * 8
    groups = pd.read_csv("run/groups.csv")
    assert_allclose(groups[["a", "b", "c"]], [[3, -2, 1], [-3, 2, 4]], atol=0.3)


def test_the_command_fits_what_the_estimator_fits(odcl):
    frame = people()
    odcl("fit", save(frame), *PLAIN, "--out", "run", "--refit", "cv", "--seed", "3")
    model = ODCLRegressor(refit="cv", random_state=3)
    model.fit(rows_of(frame), frame.y.to_numpy(), users=frame.user)
    loaded = ODCLRegressor.load("run")
    assert_array_equal(loaded.models_, model.models_)
    assert_array_equal(loaded.users_, model.users_)


@pytest.mark.parametrize(
    ("words", "setting", "value"),
    [
        (("--combine", "samples"), "combine", "samples"),
        (("--refit", "none"), "refit", None),
        (("--refit", "0"), "refit", 0.0),
        (("--clusters", "3"), "clusterer", 3),
        (("--clusters", "convex"), "clusterer", "convex"),
        (("--clusters", "spectral:2"), "clusterer", "spectral:2"),
        (("--clusters", "gradient:2"), "clusterer", "gradient:2"),
        (("--no-standardize",), "standardize", False),
        (("--no-intercept",), "fit_intercept", False),
        (("--curvature", "diagonal"), "curvature", "diagonal"),
        (("--l2", "0.5"), "l2", 0.5),
        (("--loss", "huber"), "loss", "huber"),
        (("--jobs", "2"), "n_jobs", 2),
    ],
)
def test_an_option_reaches_the_estimator_and_the_report(odcl, words, setting, value):
    assert odcl("fit", save(people()), *PLAIN, "--out", "run", *words).code == 0
    assert json.loads(Path("run/report.json").read_text())["settings"][setting] == value
    kept = ODCLRegressor.load("run").get_params()[setting]
    if setting == "clusterer" and ":" in str(value):
        assert {"spectral": "SpectralKMeans", "gradient": "GradientClustering"}[value[:-2]] in kept
    else:
        assert kept == value


def test_the_papers_setting_is_reported_as_what_it_is(odcl):
    said = odcl("fit", save(people()), *ROLES, "--out", "run", "--paper", "--clusters", "2")
    assert said.code == 0
    assert not re.search(r"^odcl ", said.out, flags=re.MULTILINE)
    report = json.loads(Path("run/report.json").read_text())
    kept = {k: report["settings"][k] for k in ("method", "combine", "refit", "standardize")}
    assert kept == {"method": "paper", "combine": "mean", "refit": None, "standardize": False}
    assert [row["method"] for row in report["comparison"]["table"]] == ["local", "pooled", "paper"]


def test_columns_are_named_one_by_one_or_with_commas_and_may_hold_commas(odcl):
    frame = people().rename(columns={"a": "size, cm", "b": "größe b", "user": "the user"})
    frame["size"], frame["note"] = 1.5, "text"
    roles = ("--user", "the user", "--target", "y", "--holdout", "0", "--out", "run", "--force")

    def features(*words):
        assert odcl("fit", save(frame), *roles, *words).code == 0
        return json.loads(Path("run/schema.json").read_text())["features"]

    assert features("--features", "size, cm", "--features", "c,größe b") == [
        "size, cm",
        "c",
        "größe b",
    ]
    assert features("--drop", "note, size") == ["size, cm", "größe b", "c"]
    assert features("--drop", "size, cm", "--categorical", "note")[:2] == ["größe b", "c"]


def test_a_category_with_a_comma_in_its_name_leaves_a_number_a_number(odcl):
    frame = people().assign(**{"a,b": np.tile(["x", "y"], 56)})
    assert odcl("fit", save(frame), *PLAIN, "--categorical", "a,b", "--out", "run").code == 0
    schema = json.loads(Path("run/schema.json").read_text())
    assert list(schema["levels"]) == ["a,b"]
    assert {"a", "b"} <= set(schema["fill"])


@pytest.mark.parametrize("kind", [".csv", ".csv.gz", ".tsv", ".parquet", "folder"])
def test_tables_of_every_kind_give_the_same_fit(odcl, kind):
    frame = people()
    odcl("fit", save(frame), *PLAIN, "--out", "run")
    path = Path(f"other{kind}")
    if kind == "folder":
        path.mkdir()
        frame[:50].to_csv(path / "1.csv", index=False)
        frame[50:].to_parquet(path / "2.parquet", index=False)
    elif kind == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if kind == ".tsv" else ",")
    assert odcl("fit", path, *PLAIN, "--out", "other").code == 0
    assert files("other")["models.safetensors"] == files("run")["models.safetensors"]


@pytest.mark.parametrize(
    ("target", "words", "loss"),
    [
        (lambda y: y, (), "squared"),
        (lambda y: y > y.median(), (), "logistic"),
        (lambda y: np.where(y > y.median(), "ja", "nein"), (), "logistic"),
        (lambda y: pd.qcut(y, 3, labels=["lo", "mid", "hi"]).astype(str), (), "multinomial"),
        (lambda y: pd.qcut(y, 3, labels=[0, 1, 2]).astype(int), (), "squared"),
        (lambda y: pd.qcut(y, 3, labels=[0, 1, 2]).astype(int), "logistic", "multinomial"),
        (lambda y: (y - y.min()).round().astype(int), "poisson", "poisson"),
    ],
    ids=["number", "bool", "text", "three", "integers", "classes", "counts"],
)
def test_the_target_decides_on_the_loss_unless_one_is_named(odcl, target, words, loss):
    frame = people()
    frame["y"] = target(frame.y)
    words = ("--loss", words) if words else ()
    said = odcl("fit", save(frame), *PLAIN, *words, "--out", "run")
    assert said.code == 0
    assert f" {loss} loss" in said.out
    predicted = odcl("predict", "run", "table.csv")
    assert predicted.code == 0
    if loss in ("logistic", "multinomial"):
        rows = pd.read_csv("table.csv").y.astype(str).str.lower()
        guess = [line.split(",")[2] for line in predicted.out.splitlines()[1:]]
        assert np.mean(np.array(guess) == rows.to_numpy()) > 0.7
        assert predicted.out.splitlines()[0].count("p(") == rows.nunique()


# -- refused ---------------------------------------------------------------------------------------

STORES = people()


def changed(column, row, value):
    frame = STORES.copy()
    frame[column] = frame[column].astype(object)
    frame.loc[row, column] = value
    return frame


REFUSED = {
    "missing column": (STORES, ("--drop", "z"), "'z' is not in the table"),
    "near column": (STORES.rename(columns={"a": "price"}), ("--drop", "Pirce"), "mean 'price'?"),
    "empty table": (STORES[:0], (), "a table needs a line of column names, then rows"),
    "text": (
        changed("b", 4, "abc"),
        (),
        "'b' holds text where numbers are needed: row 5 has 'abc'",
    ),
    "text options": (changed("b", 4, "abc"), (), "--categorical b to use it as categories, or --"),
    "slip": (changed("y", 9, "abc"), (), "'y' holds text where numbers are needed: row 10 has"),
    "missing": (changed("c", 7, None), (), "'c' has no value in row 8"),
    "missing options": (changed("c", 7, None), (), "--missing drop (leave these rows out), --miss"),
    "infinite": (changed("a", 2, "inf"), (), "'a' is infinite in row 3"),
    "one user": (STORES[:14], (), "The table has one user, and groups need several"),
    "few users": (STORES[:28], ("--clusters", "3"), "has 2 users and 3 groups were asked for"),
    "few for K-means": (STORES[:28], ("--clusters", "kmeans:9"), "2 users and 9 groups"),
    "no classes": (STORES, ("--loss", "logistic"), "112 distinct values"),
    "names": (STORES.assign(y=[f"n{i}" for i in range(112)]), (), "labels that are not classes"),
    "one class": (STORES.assign(y="yes"), (), "needs two classes or more"),
    "negative counts": (STORES, ("--loss", "poisson"), "counts are 0, 1, 2, ..."),
    "huge target": (STORES.assign(y=STORES.y * 1e200), (), "express it in another unit"),
    "no feature": (STORES[["user", "y"]], (), "No feature is left"),
}


@pytest.mark.parametrize(("frame", "words", "told"), REFUSED.values(), ids=REFUSED)
def test_a_table_that_cannot_be_fitted_is_refused_in_one_line(odcl, frame, words, told):
    said = odcl("fit", save(frame), *ROLES, *words, "--out", "run")
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert re.fullmatch(r"odcl: [^\n]+\n", said.err)
    assert list(files()) == ["table.csv"]


def test_a_user_column_that_is_not_there_is_refused_with_the_nearest(odcl):
    said = odcl("fit", save(STORES), "--user", "usr", "--target", "y", "--out", "run")
    assert said.code == 2
    assert "Column 'usr' is not in the table; did you mean 'user'?" in said.err


@pytest.mark.parametrize(
    ("out", "words", "told"),
    [
        ("old", (), "old exists already"),
        ("none/run", ("--force",), "there is no folder none"),
        ("table.csv", ("--force",), "table.csv is a file"),
        ("thesis", ("--force",), "holds what odcl did not write (such as 'chapter.txt')"),
        (".", ("--force",), "the folder you work in"),
    ],
)
def test_an_output_folder_is_refused_before_the_work(odcl, monkeypatch, out, words, told):
    save(people())
    Path("old").mkdir()
    Path("thesis").mkdir()
    Path("thesis/chapter.txt").write_text("years of work")
    monkeypatch.setattr("odcl.cli.run.read_source", None)
    before = files()
    said = odcl("fit", "table.csv", *PLAIN, "--out", out, *words)
    assert said.code == 2
    assert told in said.err
    assert files() == before


def test_force_replaces_a_run_as_a_whole(odcl):
    save(people())
    odcl("fit", "table.csv", *PLAIN, "--out", "run", "--seed", "1")
    shutil.copy("run/model.json", "run/picture.png")  # a file of ours that the new run lacks
    said = odcl("fit", "table.csv", *PLAIN, "--out", "run", "--paper", "--force")
    assert said.code == 0
    assert "picture.png" not in files("run")
    assert ODCLRegressor.load("run").method == "paper"
    assert [name for name in os.listdir() if name.startswith(".")] == []


# -- accepted, with a notice -----------------------------------------------------------------------


def one_class(frame):
    rng = np.random.default_rng(0)
    frame = frame.assign(y=np.where(frame.a + rng.normal(size=len(frame)) > 0, "yes", "no"))
    frame.loc[frame.user.isin(["u1", "u2"]), "y"] = "yes"
    return frame


TAKEN = {
    "one row": (
        lambda f: pd.concat([f, f[:1].assign(user="solo"), f[1:2].assign(user="duo")]),
        ["2 users with a single row"],
    ),
    "one class": (one_class, ["2 users with a single class"]),
    "constant": (
        lambda f: f.assign(k=1.0, zero=0, only="same"),
        ["3 constant columns (k, zero, only)"],
    ),
    "repeated": (
        lambda f: pd.concat([f, f[:3], f[:3], f[20:21].assign(user="u5")]),
        ["6 rows repeat another row of the same user"],
    ),
    "repeated once": (lambda f: pd.concat([f, f[:1]]), ["1 row repeats another row of the same"]),
    "scales": (
        lambda f: f.assign(a=f.a * 1e12, b=f.b * 1e-12),
        ["2 columns at an extreme scale (a, b), brought to a common scale"],
    ),
    "no id": (
        lambda f: f.assign(user=f.user.where(f.user != "u3")),
        ["14 rows without a user's id, taken as one user"],
    ),
    "dropped": (
        lambda f: f.assign(a=f.a.where(f.index != 4), y=f.y.where(f.index > 2)),
        ["4 rows left out for want of a value"],
    ),
    "two values": (
        lambda f: f.assign(y=(f.y > 5).astype(int)),
        ["'y' has two values: for classes say --loss logistic"],
    ),
    "nothing": (lambda f: f, []),
}


@pytest.mark.parametrize(("change", "told"), TAKEN.values(), ids=TAKEN)
def test_what_is_odd_is_fitted_all_the_same_and_counted(odcl, change, told):
    frame = change(people())
    words = ("--categorical", "only") if "only" in frame else ()
    words += ("--missing", "drop") if frame.isna().drop(columns="user").any(axis=None) else ()
    said = odcl("fit", save(frame), *PLAIN, *words, "--out", "run")
    assert said.code == 0
    lines = said.err.splitlines()
    assert len(lines) == len(told)
    for line, text in zip(lines, told, strict=True):
        assert line.startswith(f"odcl: {text}")
    assert json.loads(Path("run/report.json").read_text())["notices"] == [x[6:] for x in lines]
    missing = ("--missing", "drop") if "drop" in words else ()
    assert odcl("predict", "run", "table.csv", *missing).code == 0


def test_missing_values_are_filled_in_and_counted(odcl):
    frame = people()
    frame.loc[[3, 50], "a"] = np.nan
    frame.loc[8, "b"] = np.nan
    said = odcl("fit", save(frame), *PLAIN, "--missing", "mean", "--out", "run")
    assert said.err == "odcl: 3 missing values filled in (a: 2, b: 1)\n"


def test_quiet_says_nothing_but_errors(odcl):
    frame = pd.concat([people(), people()[:3]]).assign(k=1)
    said = odcl("fit", save(frame), *PLAIN, "--out", "run", "--quiet")
    assert (said.code, said.err) == (0, "")
    assert "2 groups" in said.out
    assert odcl("predict", "run", "table.csv", "--out", "p.csv", "-q") == Said(0, "", "")
    assert odcl("fit", "table.csv", *PLAIN, "--out", "run", "--quiet").err.count("\n") == 1


def test_all_users_with_one_row_are_fitted_without_a_comparison(odcl):
    frame = people(n_users=30, n=1)
    said = odcl("fit", save(frame), *ROLES, "--out", "run")
    assert said.code == 0
    assert "odcl: no comparison: every user has a single row" in said.err
    assert "held-out" not in said.out


def test_a_class_with_one_row_is_never_held_out_as_a_whole(odcl):
    for row in range(5):  # with half of the rows held out, some are
        frame = people(n_users=4, n=5).assign(y="no")
        frame.loc[row, "y"] = "yes"
        words = ("--holdout", "0.5", "--out", "run", "--force")
        assert odcl("fit", save(frame), *ROLES, *words).code == 0


def test_two_users_are_enough(odcl):
    assert odcl("fit", save(people(n_users=2)), *ROLES, "--out", "run").code == 0
    assert odcl("fit", "table.csv", *ROLES, "--paper", "--out", "other").code == 0


def test_a_warning_becomes_a_notice_of_one_line(odcl, monkeypatch):
    def warn(*_, **__):
        warnings.warn("two\nlines", UserWarning, stacklevel=2)
        warnings.warn("overflow encountered in matmul", RuntimeWarning, stacklevel=1)
        raise ValueError("and an error")

    monkeypatch.setattr("odcl.cli.run.read_source", warn)
    said = odcl("fit", save(people()), *PLAIN, "--out", "run")
    assert said.err == "odcl: two lines\nodcl: and an error\n"


# -- ids and names ---------------------------------------------------------------------------------

IDS = {
    "text": ["u0", "u1", "u2", "u3"],
    "integers": [3, 1, 20, 100],
    "leading zeros": ["007", "7", "07", "0"],
    "mixed": ["7", "u7", "7.5", None],
    "odd text": ["a,b", 'say "no"', "two\nlines", "Zürich 北京"],
    "large": [2**53, 2**53 + 1, 2**60, 5],
}


@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_ids_of_every_kind_come_back_as_they_were(odcl, ids, kind):
    frame = people(n_users=4)
    owner = frame.user.str[1:].astype(int)
    given = pd.Series(ids, dtype=object if None in ids else None)
    frame["user"] = given[owner].to_numpy()
    path = save(frame) if kind == "csv" else Path("table.parquet")
    frame.to_parquet("table.parquet")
    assert odcl("fit", path, *PLAIN, "--out", "run").code == 0
    assigned = read_table("run/assignment.csv", text=("user",))["user"].to_pylist()
    assert sorted(map(str, assigned)) == sorted(map(str, ids))
    said = odcl("predict", "run", path, "--out", f"p.{kind}")
    assert said.code == 0
    predicted = read_table(f"p.{kind}", text=("user",))["user"].to_pylist()
    assert predicted == [None if pd.isna(u) else u for u in frame.user.tolist()]


def test_columns_called_as_ours_keep_their_names_and_ours_give_way(odcl):
    frame = people().rename(columns={"user": "group", "a": "users", "b": "rows", "c": "row"})
    roles = ("--user", "group", "--target", "y", "--holdout", "0")
    assert odcl("fit", save(frame), *roles, "--out", "run").code == 0
    assignment = pd.read_csv("run/assignment.csv")
    assert assignment.columns.tolist()[:3] == ["group", "odcl_group", "rows"]
    assert assignment.group.tolist() == [f"u{i}" for i in range(8)]
    groups = pd.read_csv("run/groups.csv")
    assert groups.columns[:2].tolist() == ["group", "odcl_users"]
    assert_allclose(groups[["users", "rows", "row"]], [[3, -2, 1], [-3, 2, 4]], atol=0.3)
    newcomer = frame[frame.group == "u0"].assign(group="new")
    assert odcl("assign", "run", save(newcomer, "new.csv"), "--add").code == 0
    assert pd.read_csv("run/assignment.csv").tail(1).to_numpy().tolist()[0][:3] == ["new", 0, 14]
    frame = people().rename(columns={"user": "row", "a": "prediction"})
    odcl("fit", save(frame), "--user", "row", "--target", "y", "--out", "run2", "--holdout", "0")
    header = odcl("predict", "run2", "table.csv").out.splitlines()[0]
    assert header == "row,odcl_row,prediction"


# -- what comes out --------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_output_and_the_same_files(odcl):
    save(classes(3))
    first = odcl("fit", "table.csv", *ROLES, "--out", "run", "--seed", "5")
    before = files("run")
    second = odcl("fit", "table.csv", *ROLES, "--out", "run", "--seed", "5", "--force")
    assert first == second
    assert files("run") == before
    other = odcl("fit", "table.csv", *ROLES, "--out", "run", "--seed", "6", "--force")
    assert other.out != first.out


def test_a_pipe_gets_neither_colours_nor_control_characters(odcl):
    frame = people(n_users=3)
    frame["user"] = frame.user.map({"u0": "\x1b[31mred", "u1": "bell\a", "u2": "u2" * 40})
    save(frame)
    for words in (("fit", "table.csv", *ROLES, "--out", "run"), ("fit", "--help")):
        said = odcl(*words)
        assert not CONTROL.search(said.out + said.err)
        assert max(map(len, said.out.splitlines())) < 200


@pytest.mark.parametrize("factor", [1e6, 1e-6, 2.0**40])
def test_the_unit_of_a_column_changes_neither_groups_nor_predictions(odcl, factor):
    """Features are standardised first; powers of two change not even a bit of the models."""
    frame = people(seed=4)
    odcl("fit", save(frame), *PLAIN, "--out", "run")
    odcl("fit", save(frame.assign(b=frame.b * factor), "scaled.csv"), *PLAIN, "--out", "scaled")
    assert files("run")["assignment.csv"] == files("scaled")["assignment.csv"]
    odcl("predict", "run", "table.csv", "--out", "p.csv")
    odcl("predict", "scaled", "scaled.csv", "--out", "q.csv")
    p, q = (read_table(name).to_pandas() for name in ("p.csv", "q.csv"))
    # The sums that give means and scales are rounded in other places: some hundreds of ulps.
    assert_allclose(p.prediction, q.prediction, rtol=1e-12, atol=1e-12)


def test_predict_gives_exactly_what_the_loaded_estimator_gives(odcl):
    frame = people()
    odcl("fit", save(frame), *PLAIN, "--out", "run")
    expected = ODCLRegressor.load("run").predict(rows_of(frame), users=frame.user)
    said = odcl("predict", "run", "table.csv")
    assert said.err == ""
    Path("stdout.csv").write_text(said.out)
    for name in ("p.csv", "p.parquet", "p.tsv"):
        told = odcl("predict", "run", "table.csv", "--out", name)
        assert told == Said(0, "", f"odcl: 112 rows written to {name}\n")
    for name in ("stdout.csv", "p.csv", "p.parquet", "p.tsv"):
        answer = read_table(name)
        assert answer.column_names == ["user", "row", "prediction"]
        assert_array_equal(answer["prediction"].to_numpy(), expected)
        assert answer["row"].to_pylist() == list(range(1, 113))
    assert Path("p.csv").read_text() == said.out


def test_probabilities_are_those_of_the_loaded_classifier(odcl):
    frame = classes(3)
    odcl("fit", save(frame), *PLAIN, "--out", "run")
    model = ODCLClassifier.load("run")
    odcl("predict", "run", "table.csv", "--out", "p.csv")
    answer = read_table("p.csv")
    assert answer.column_names[3:] == ["p(low)", "p(mid)", "p(top)"]
    p = np.column_stack([answer[name].to_numpy() for name in answer.column_names[3:]])
    assert_array_equal(p, model.predict_proba(rows_of(frame), users=frame.user))
    names = np.array(["low", "mid", "top"])
    assert_array_equal(answer["prediction"].to_pylist(), names[p.argmax(axis=1)])


def test_predict_needs_no_target_and_ignores_order_and_other_columns(odcl):
    frame = people()
    odcl("fit", save(frame), *PLAIN, "--out", "run")
    expected = odcl("predict", "run", "table.csv")
    frame = frame.drop(columns="y").assign(extra="x")[["c", "extra", "user", "b", "a"]]
    assert odcl("predict", "run", save(frame, "other.csv")) == expected


def test_a_run_can_be_moved(odcl):
    odcl("fit", save(people()), *PLAIN, "--out", "run")
    expected = odcl("predict", "run", "table.csv")
    Path("elsewhere").mkdir()
    shutil.move("run", "elsewhere/moved")
    assert odcl("predict", "elsewhere/moved", "table.csv") == expected


def test_a_user_that_was_not_in_the_fit_is_refused_with_the_options(odcl):
    frame = people()
    odcl("fit", save(frame[frame.user != "u6"]), *PLAIN, "--out", "run")
    save(frame, "all.csv")
    said = odcl("predict", "run", "all.csv")
    assert (said.code, said.out) == (2, "")
    assert "1 of 8 users was not in the fit (such as 'u6')" in said.err
    for option in ("--unknown pooled", "--unknown nearest", "odcl assign run TABLE --add"):
        assert option in said.err
    known = odcl("predict", "run", "table.csv").out.splitlines()
    for how, model in (("pooled", "one model for all"), ("nearest", "the nearest group's model")):
        said = odcl("predict", "run", "all.csv", "--unknown", how)
        assert said.err == f"odcl: 1 user not in the fit, predicted by {model}\n"
        lines = said.out.splitlines()
        assert lines[: 6 * 14 + 1] == known[: 6 * 14 + 1]
        assert len(lines) == 8 * 14 + 1


def test_a_category_that_was_not_in_the_fit_is_refused_or_read_as_the_commonest(odcl):
    frame = people().assign(town=np.tile(["Ulm", "Ulm", "Bonn", "Köln"], 28))
    odcl("fit", save(frame), *PLAIN, "--categorical", "town", "--out", "run")
    frame.loc[frame.index < 5, "town"] = "Rom"
    save(frame, "new.csv")
    said = odcl("predict", "run", "new.csv")
    assert said.code == 2
    assert "'town' has level 'Rom' in row 1" in said.err
    assert "--unseen reference" in said.err
    said = odcl("predict", "run", "new.csv", "--unseen", "reference")
    assert said.err == "odcl: 5 rows with a new level of 'town', read as 'Ulm'\n"
    frame.loc[frame.index < 5, "town"] = "Ulm"
    assert odcl("predict", "run", save(frame, "ulm.csv")).out == said.out


def test_missing_values_at_prediction_are_refused_dropped_or_filled(odcl):
    frame = people()
    odcl("fit", save(frame), *PLAIN, "--out", "run")
    frame.loc[4, "a"] = np.nan
    save(frame, "gap.csv")
    said = odcl("predict", "run", "gap.csv")
    assert said.code == 2
    assert "'a' has no value in row 5" in said.err
    assert "--drop" not in said.err
    dropped = odcl("predict", "run", "gap.csv", "--missing", "drop")
    assert dropped.err == "odcl: 1 row left out for want of a value\n"
    rows = [int(line.split(",")[1]) for line in dropped.out.splitlines()[1:]]
    assert rows == [i for i in range(1, 113) if i != 5]
    assert odcl("predict", "run", "gap.csv", "--missing", "mean").err.endswith("in (a: 1)\n")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("predict", "nowhere", "table.csv"), "nowhere is not a saved model"),
        (("predict", "empty", "table.csv"), "empty is not a saved model"),
        (("predict", "run", "nothing.csv"), "no file or folder nothing.csv"),
        (("predict", "run", "tabel.csv"), "did you mean 'table.csv'?"),
        (("predict", "run", "table.csv", "--out", "p.xlsx"), "must end in one of .csv"),
        (("assign", "run", "table.csv", "--out", "p.txt", "--add"), "must end in one of .csv"),
        (("predict", "run", "table.csv", "--out", "no/p.csv"), "there is no folder no"),
        (("predict", "run", "table.csv", "--out", "./table.csv"), "where table.csv is read from"),
        (("assign", "run", "table.csv", "--out", "run/groups.csv"), "a file of the run itself"),
        (("assign", "run", "without.csv"), "'y' is not in the table"),
        (("predict", "damaged", "table.csv"), "schema.json is damaged"),
    ],
)
def test_a_run_or_table_that_cannot_be_used_is_refused_in_one_line(odcl, words, told):
    save(people().drop(columns="y"), "without.csv")
    odcl("fit", save(people()), *PLAIN, "--out", "run")
    Path("empty").mkdir()
    shutil.copytree("run", "damaged")
    Path("damaged/schema.json").write_text("{")
    before = files()
    said = odcl(*words)
    assert (said.code, said.out) == (2, "")
    assert told in said.err
    assert said.err.count("\n") == 1
    assert files() == before


# -- assign ----------------------------------------------------------------------------------------


def test_assign_finds_the_groups_of_new_users(odcl):
    odcl("fit", save(people()), *PLAIN, "--out", "run")
    before = files("run")
    new = people(n_users=6, seed=9).assign(user=lambda f: "new-" + f.user)
    said = odcl("assign", "run", save(new, "new.csv"), "--out", "groups.csv")
    assert said.err == "odcl: 6 rows written to groups.csv\n"
    answer = pd.read_csv("groups.csv")
    columns = ["user", "group", "probability", "distance", "rows", "verdict"]
    assert answer.columns.tolist() == columns
    assert answer.group.tolist() == [0, 1] * 3
    assert (answer.probability > 0.99).all()
    assert (answer.verdict == "joins").all()
    strange = people(n_users=1, seed=2).assign(user="strange", y=lambda f: 50 * f.a - 80)
    said = odcl("assign", "run", save(strange, "strange.csv"))
    assert said.out.splitlines()[1].startswith("strange,-1,")
    assert said.out.endswith("none of these\n")
    assert files("run") == before


def test_assign_add_makes_predict_know_the_users(odcl):
    frame = people()
    odcl("fit", save(frame), *PLAIN, "--out", "run")
    Path("run/notes").mkdir()
    Path("run/notes/mine.txt").write_text("kept")
    new = people(n_users=3, seed=9).assign(user=lambda f: "new-" + f.user)
    save(new, "new.csv")
    model = ODCLRegressor.load("run")
    for user, rows in new.groupby("user"):
        model.add_user(user, rows_of(rows), rows.y.to_numpy())
    assert odcl("assign", "run", "new.csv", "--add").code == 0
    assert Path("run/notes/mine.txt").read_text() == "kept"
    assert pd.read_csv("run/assignment.csv").user.tolist() == model.users_.tolist()
    assert pd.read_csv("run/assignment.csv").group.tolist() == model.labels_.tolist()
    odcl("predict", "run", "new.csv", "--out", "p.parquet")
    expected = model.predict(rows_of(new), users=new.user)
    assert_array_equal(read_table("p.parquet")["prediction"].to_numpy(), expected)
    said = odcl("assign", "run", "new.csv", "--add")
    assert said.code == 2
    assert "3 users of the table were in run before (such as 'new-u0')" in said.err


# -- things that go wrong --------------------------------------------------------------------------


def full_disk(*_args, **_more):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "writer",
    [
        "safetensors.numpy.save_file",
        "odcl.cli.rundir._write_json",
        "odcl.cli.rundir.write_table",
        "odcl.cli.rundir._draw",
        "os.fsync",
        "os.rename",
    ],
)
def test_a_full_disk_leaves_the_old_run_whole_and_no_litter(odcl, monkeypatch, writer):
    save(people())
    odcl("fit", "table.csv", *PLAIN, "--out", "run")
    before = files()
    with monkeypatch.context() as patch:
        patch.setattr(writer, full_disk)
        said = odcl("fit", "table.csv", *PLAIN, "--paper", "--out", "run", "--force")
        assert said.code == 1
        assert re.fullmatch(r"odcl: run(/\S+)?: No space left on device\.\n", said.err)
        fresh = odcl("fit", "table.csv", *PLAIN, "--out", "fresh")
        assert (fresh.code, fresh.out) == (1, "")
    assert files() == before
    assert os.listdir() == ["run", "table.csv"] or os.listdir() == ["table.csv", "run"]


@pytest.mark.parametrize(
    "words",
    [("predict", "run", "table.csv", "--out", "p.csv"), ("assign", "run", "n.csv", "--add")],
)
def test_a_full_disk_leaves_predictions_and_runs_as_they_were(odcl, monkeypatch, words):
    odcl("fit", save(people()), *PLAIN, "--out", "run")
    save(people(n_users=1).assign(user="new"), "n.csv")
    Path("p.csv").write_text("old")
    before = files()
    monkeypatch.setattr("os.fsync", full_disk)
    said = odcl(*words)
    assert said.code == 1
    assert re.fullmatch(r"odcl: (p\.csv|run/\S+): No space left on device\.\n", said.err)
    assert files() == before


def test_a_file_that_cannot_be_written_is_named(odcl, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", "secret/table.csv")

    monkeypatch.setattr("odcl.cli.run.read_table", denied)
    said = odcl("fit", save(people()), *PLAIN, "--out", "run")
    assert (said.code, said.err) == (1, "odcl: secret/table.csv: Permission denied.\n")


SLOW = """
import sys, time, odcl.cli.{module} as module
def slow(*_, **__):
    print("now", flush=True)
    time.sleep(60)
module.{name} = slow
sys.argv = ["odcl", *sys.argv[1:]]
from odcl.cli.main import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize(
    ("place", "number", "code"),
    [
        (("run", "accepted"), signal.SIGINT, 130),  # after a fit
        (("rundir", "_draw"), signal.SIGINT, 130),  # while the files are written
        (("rundir", "_draw"), signal.SIGTERM, 143),
    ],
)
def test_an_interrupt_leaves_the_old_run_whole_and_no_litter(odcl, place, number, code):
    odcl("fit", save(people()), *PLAIN, "--out", "run")
    before = files()
    script = SLOW.format(module=place[0], name=place[1])
    words = ["fit", "table.csv", *PLAIN, "--paper", "--out", "run", "--force"]
    process = subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "now\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == code
    assert err == ("odcl: interrupted.\n" if number == signal.SIGINT else "")
    assert files() == before
    assert sorted(os.listdir()) == ["run", "table.csv"]


@pytest.mark.skipif(os.name != "posix", reason="pipes")
def test_a_reader_who_has_seen_enough_ends_the_command_in_silence(odcl):
    frame = pd.concat([people()] * 60)
    odcl("fit", save(people()), *PLAIN, "--out", "run")
    process = command("predict", "run", save(frame, "long.csv"))
    assert process.stdout.readline() == "user,row,prediction\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_a_full_disk_behind_stdout_is_a_failure(buffered):
    environment = {**os.environ, "PYTHONUNBUFFERED": buffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "odcl", "fit", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
    assert (done.returncode, done.stderr) == (1, "odcl: No space left on device.\n")


# -- a terminal ------------------------------------------------------------------------------------


def test_a_terminal_sees_a_bar_on_stderr_and_the_same_results(odcl, monkeypatch):
    save(people())
    piped = odcl("fit", "table.csv", *ROLES, "--out", "run")
    monkeypatch.setenv("TERM", "xterm")
    terminal = sys.stderr
    monkeypatch.setattr(type(terminal), "isatty", lambda stream: stream is terminal)
    watched = odcl("fit", "table.csv", *ROLES, "--out", "run", "--force")
    assert watched.out == piped.out
    assert "writing" in watched.err
    assert "\x1b[" in watched.err
    quiet = odcl("fit", "table.csv", *ROLES, "--out", "run", "--force", "--quiet")
    assert (quiet.out, quiet.err) == (piped.out, "")


def test_every_local_model_moves_the_bar():
    from odcl.cli.run import fit_source, read_source

    from odcl.report.progress import Silent

    class Counted(Silent):
        stages, users = [], 0

        def stage(self, text, n_users=None):
            self.stages.append(text)

        def advance(self, n_users):
            self.users += n_users

    path, none = save(people()), {"features": [], "drop": [], "categorical": []}
    source = read_source(path, user="user", target="y", missing="error", loss="auto", **none)
    seen = Counted()
    settings = {"clusterer": "auto", "method": "default"}
    fit_source(source, holdout=0.2, seed=0, settings=settings, progress=seen)
    assert seen.stages == ["comparing on held-out rows", "fitting all rows"]
    assert seen.users == 3 * 8  # ours and the paper's on the rows kept, ours on all rows


def test_without_matplotlib_a_notice_says_how_to_get_the_picture(odcl, draws, monkeypatch):
    monkeypatch.setattr("odcl.report.pictures.available", lambda: False)
    said = odcl("fit", save(people()), *PLAIN, "--out", "run")
    assert said.code == 0
    assert said.err == "odcl: no picture, for want of matplotlib: pip install 'odcl[plot]'\n"
    assert "Picture" not in said.out
    assert "picture.png" not in files("run")
