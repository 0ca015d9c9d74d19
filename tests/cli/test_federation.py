"""Federation by file from the shell: the whole story in separate folders, and each command."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from odcl.cli.main import run_command
from odcl.engines.files import Feature, Task
from tests.engines.files.world import frames, send, task
from tests.helpers import SHARED_DATA, save_csv

# -- the story -------------------------------------------------------------------------------------


def irises(seed=0):
    """Twelve growers with twelve irises each, four growers per species: rows known, and held out.

    The species differ in how the length of a petal follows the size of the sepals: a real relation,
    in which one line for all points the wrong way.
    """
    table = load_iris(as_frame=True).frame
    table.columns = ["sepal_length", "sepal_width", "petal_length", "petal_width", "species"]
    rng, sites = np.random.default_rng(seed), {}
    for species in range(3):
        rows = rng.permutation(np.flatnonzero(table.species == species))
        for j in range(4):
            own = table.iloc[rows[j::4]].drop(columns=["species", "petal_width"])
            later = np.arange(len(own)) % 4 == 0
            sites[f"grower-{species}{j}"] = own[~later], own[later]
    return sites


def odcl(folder: Path, command: str) -> str:
    """Run a command in a process of its own, in a folder of its own."""
    call = [sys.executable, "-m", "odcl", *command.split()]
    done = subprocess.run(call, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def forked(folder: Path, command: str) -> str:
    """The same without waiting for Python to start: a copy of this process goes to the folder."""
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
        sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))  # noqa: SIM115
        code = 1
        try:
            code = run_command(command.split())
        finally:
            sys.stdout.flush()
            os._exit(code)
    said = Path(folder) / "said.txt"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, said.read_text()
    text = said.read_text()
    said.unlink()
    return text


def rmse(y, prediction):
    return float(np.sqrt(np.mean((y - prediction) ** 2)))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_twelve_sites_share_nothing_but_files_and_each_gets_the_right_model(tmp_path):
    sites, office = irises(), tmp_path / "office"
    (office / "uploads").mkdir(parents=True)
    home = {site: tmp_path / site for site in sites}
    by = dict.fromkeys(sites, forked) | {"grower-00": odcl}
    for site, (known, later) in sites.items():
        home[site].mkdir()
        known.to_csv(home[site] / "flowers.csv", index=False)
        later.drop(columns="petal_length").to_csv(home[site] / "tomorrow.csv", index=False)
        by[site](home[site], f"site keys --site {site} --out keys")
        shutil.copy(home[site] / "keys" / f"{site}.pub", office)
    columns = "--features sepal_length,sepal_width --target petal_length"
    forked(office, f"task new {columns} --out task.toml")
    forked(office, "site keys --site coordinator --out keys")
    public = " ".join(f"{site}.pub" for site in sites)
    forked(office, f"task keys task.toml keys/coordinator.pub {public}")
    for site, place in home.items():
        shutil.copy(office / "task.toml", place)
        forked(place, "task check task.toml flowers.csv")
        fit = f"site fit task.toml flowers.csv --site {site} --key keys/{site}.key"
        by[site](place, f"{fit} --out {site}.upload")
        said = forked(place, f"inspect {site}.upload --card task.toml")
        assert "Signature: good" in said
        assert f" of {site}." in said
        shutil.copy(place / f"{site}.upload", office / "uploads")
    report = odcl(office, "combine task.toml uploads --key keys/coordinator.key --out round")
    assert "12 sites, 12 users" in report
    groups = json.loads((office / "round" / "report.json").read_text())["sites"]
    assert [groups[site]["groups"] for site in sorted(sites)] == [[0]] * 4 + [[1]] * 4 + [[2]] * 4
    for site, place in home.items():
        shutil.copy(office / "round" / f"{site}.download", place)
        receive = f"site receive task.toml {site}.upload {site}.download flowers.csv"
        by[site](place, f"{receive} --out model")
        by[site](place, "predict model tomorrow.csv --out predictions.csv")
    pooled = np.linalg.lstsq(*rows([known for known, _ in sites.values()]), rcond=None)[0]
    errors = {"odcl": [], "local": [], "pooled": []}
    for site, (known, later) in sites.items():
        X, y = rows([later])
        own = np.linalg.lstsq(*rows([known]), rcond=None)[0]
        ours = pd.read_csv(home[site] / "predictions.csv")["prediction"].to_numpy()
        for name, prediction in (("odcl", ours), ("local", X @ own), ("pooled", X @ pooled)):
            errors[name].append(rmse(y, prediction))
    mean = {name: np.mean(values) for name, values in errors.items()}
    assert mean["odcl"] < 0.85 * mean["local"]  # .23, .30 and .70 cm
    assert mean["odcl"] < 0.5 * mean["pooled"]


def rows(tables):
    table = pd.concat(tables)
    X = np.column_stack([table.sepal_length, table.sepal_width, np.ones(len(table))])
    return X, table.petal_length.to_numpy()


def test_sites_that_differ_gradually_are_no_groups_and_gain_all_the_same(command, tmp_path):
    path = SHARED_DATA / "tables" / "sleepstudy.csv"
    if not path.exists():
        pytest.skip("the tables lie beside the project")
    table = pd.read_csv(path)
    known = table.groupby("user").cumcount() % 2 == 0
    Path("uploads").mkdir()
    new = "task new --features Days --target target --out task.toml"
    assert command(*new.split()).code == 0
    for user, own in table[known].groupby("user"):
        own.drop(columns="user").to_csv(f"{user}.csv", index=False)
        fit = f"site fit task.toml {user}.csv --site s{user} --out uploads/s{user}.upload"
        assert command(*fit.split()).code == 0
    said = command("combine", "task.toml", "uploads", "--out", "round")
    assert said.out.count("No groups: users differ gradually.") == 1
    X = np.column_stack([table.Days, np.ones(len(table))])
    pooled = np.linalg.lstsq(X[known], table.target[known], rcond=None)[0]
    errors = {"odcl": [], "local": [], "pooled": []}
    for user, own in table.groupby("user"):
        names = [f"uploads/s{user}.upload", f"round/s{user}.download", f"{user}.csv"]
        assert command("site", "receive", "task.toml", *names, "--out", f"m{user}").code == 0
        mine, later = known[own.index], own[~known[own.index]]
        later[["Days"]].to_csv("later.csv", index=False)
        shown = command("predict", f"m{user}", "later.csv", "--out", "p.csv", "--force")
        assert shown.code == 0
        local = np.linalg.lstsq(X[own.index[mine]], own.target[mine], rcond=None)[0]
        Z = X[later.index]
        ours = pd.read_csv("p.csv")["prediction"]
        for name, prediction in (("odcl", ours), ("local", Z @ local), ("pooled", Z @ pooled)):
            errors[name].append(rmse(later.target.to_numpy(), np.asarray(prediction)))
    mean = {name: np.mean(values) for name, values in errors.items()}
    assert mean["odcl"] < min(mean["local"], mean["pooled"])


# -- the card --------------------------------------------------------------------------------------


def test_a_round_says_once_where_users_differ(command):
    """Wards differ in the level alone: age is the same for all of them."""
    rng = np.random.default_rng(0)
    Path("uploads").mkdir()
    command(*["task", "new", "--features", "age", "--target", "days", "--out", "task.toml"])
    for site in ("north", "east", "south"):
        ward = np.repeat(np.arange(8), 15)
        age = rng.normal(60, 15, len(ward))
        days = 2 * rng.normal(size=8)[ward] + 0.05 * age + rng.normal(size=len(ward))
        save_csv(pd.DataFrame({"ward": ward, "age": age, "days": days}), f"{site}.csv")
        names = f"task.toml {site}.csv --site {site} --user ward --out uploads/{site}.upload"
        assert command("site", "fit", *names.split()).code == 0
    said = command("combine", "task.toml", "uploads", "--out", "round").out
    assert said.count("sers differ in the level (standard deviation") == 1
    assert said.count("The same for all of them: age.") == 1


def test_a_new_card_says_what_leaves_and_is_not_overwritten(command):
    new = [
        "task",
        "new",
        "--features",
        "a,b,c",
        "--category",
        "c=p,q",
        "--target",
        "y",
        "--out",
        "task.toml",
    ]
    said = command(*new)
    assert said.code == 0
    assert "how many rows the user has" in said.out
    given = Task.read("task.toml")
    assert given.columns == ("a", "b", "c=q")
    assert (given.risk.loss.name, given.risk.l2, given.risk.intercept) == ("squared", 0, True)
    assert (given.method.smallest_group, given.method.short_terms) == (3, False)
    assert command(*new).err == (
        "odcl: task.toml exists already. Say --force to replace it, or name another.\n"
    )


def test_classes_without_names_are_0_and_1_and_scales_without_a_table_1(command):
    new = [
        "task",
        "new",
        "--features",
        "a",
        "--target",
        "y",
        "--loss",
        "logistic",
        "--out",
        "task.toml",
    ]
    said = command(*new)
    assert Task.read("task.toml").classes == (0, 1)
    assert "edit `classes` on the card" in said.err
    assert "every scale is 1" not in said.err  # units are found in the round
    said = command(*new, "--force", "--clusters", "kmeans:2")
    assert "every scale is 1" in said.err
    said = command(*new, "--force", "--classes", "yes,no")
    assert Task.read("task.toml").classes == ("no", "yes")
    assert "edit `classes`" not in said.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--loss multinomial", "--classes a,b,c says"),
        ("--loss huber", "--loss huber needs --delta"),
        ("--category z=1,2", "'z' is no feature"),
        ("--category a", "is not NAME=A,B"),
        ("--loss hinge", "'hinge' is none of"),
    ],
)
def test_a_card_that_makes_no_sense_is_not_written(command, words, message):
    said = command(*f"task new --features a --target y --out task.toml {words}".split())
    assert said.code == 2
    assert message in said.err
    assert not Path("task.toml").exists()


def test_check_names_what_does_not_fit_before_anything_is_computed(command):
    task(minimum_group=3).write("task.toml")
    table = frames(1)["north"]
    said = command("task", "check", "task.toml", save_csv(table))
    assert said.code == 0
    assert "table.csv fits: 24 rows, 1 user." in said.out
    assert "1 user with 24 rows would enter the upload." in said.out
    rare = table.assign(c=["q"] * 3 + ["p"] * 21)
    said = command("task", "check", "task.toml", save_csv(rare))
    assert "Withheld: rows of c=q, seen fewer than 5 times at a user (3 rows" in said.out
    for bad, message in (
        (table.drop(columns="b"), "Column 'b' is not in the table"),
        (table.assign(c="r"), "level 'r' in row 1"),
        (table.assign(a="many"), "Column 'a' holds text where numbers are needed"),
        (table.assign(a=[None, *table.a[1:]]), "Column 'a' has no value in row 1"),
        (table.assign(a=[None] * 24), "Column 'a' has no value in row 1"),
    ):
        said = command("task", "check", "task.toml", save_csv(bad))
        assert said.code == 2
        assert message in said.err
        assert "--" not in said.err  # the command has no such options: the card decides


def test_groups_of_two_are_warned_of(command):
    for least, warned in ((1, True), (2, True), (3, False)):
        task(minimum_group=least).write(f"task{least}.toml")
        said = command("task", "check", f"task{least}.toml")
        assert ("each site can work out the other's term" in said.err) == warned


def test_one_user_sends_and_two_send(command):
    task(minimum_rows=50).write("task.toml")
    said = command("task", "check", "task.toml", save_csv(frames(1)["north"]))
    assert "1 user sends nothing: fewer than 50 rows." in said.out


def test_keys_that_are_added_are_shown_with_their_names(command, tmp_path):
    """A file of a public key may name anyone: whoever keeps the card must see whom."""
    task().write("task.toml")
    for name, digit in (("coordinator", 0), ("north", 1)):
        (tmp_path / f"{name}.pub").write_text(f"{name} {str(digit) * 64}\n")
    said = command("task", "keys", "task.toml", "coordinator.pub", "north.pub")
    assert f"added for north: {'1' * 64}\n" in said.out
    (tmp_path / "south.pub").write_text(f"north {'2' * 64}\n")
    said = command("task", "keys", "task.toml", "south.pub")
    assert f"added for north: {'2' * 64} beside another" in said.out
    (tmp_path / "south.pub").write_text(f"south {'2' * 64}\n")
    said = command("task", "keys", "task.toml", "south.pub")
    assert said.code == 2
    assert "of south cannot be added: one key stands at two names" in said.err


def test_a_question_ends_with_its_mark(command, tmp_path):
    task().write("task.toml")
    card = tmp_path / "task.toml"
    card.write_text(card.read_text().replace("minimum_rows", "minimum_row"))
    said = command("task", "check", str(card))
    assert said.err.rstrip().endswith("did you mean 'minimum_rows'?")


# -- files -----------------------------------------------------------------------------------------


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """A card, six tables and six uploads where the test works."""
    monkeypatch.chdir(tmp_path)
    tables = frames()
    task().write("task.toml")
    for site, table in tables.items():
        save_csv(table, f"{site}.csv")
    send(task(), tables, Path("uploads"))
    return tables


def test_inspect_shows_every_field_and_who_signed(command, sent):
    said = command("inspect", "uploads/north.upload")
    assert said.code == 0
    assert "Upload of north, task 'stay', round 1" in said.out
    assert "Signature: none." in said.out
    for name, tells in task().leaves.items():
        assert f"  {name}: " in said.out
        assert tells[1:] in said.out
    assert "10 numbers from" in said.out
    assert "numbers from" not in command("inspect", "uploads/north.upload", "--numbers").out


def test_inspect_tells_of_a_download_in_words(command, sent):
    command("combine", "task.toml", "uploads", "--out", "round")
    said = command("inspect", "round/north.download")
    assert said.code == 0
    assert "Users of a group differ only by noise. Noise: variance" in said.out
    assert "The target is counted from" in said.out
    assert "[" not in said.out


def test_a_damaged_file_is_refused_in_one_line(command, sent):
    Path("uploads/north.upload").write_bytes(b"\0" * 100)
    said = command("inspect", "uploads/north.upload")
    assert said.code == 2
    assert said.err.startswith("odcl: uploads/north.upload is refused: it is damaged")
    assert len(said.err.splitlines()) == 1
    said = command("combine", "task.toml", "uploads", "--out", "round")
    assert said.code == 0
    assert "odcl: north.upload is set aside: it is damaged" in said.err
    assert "5 sites" in said.out


def test_bytes_are_those_of_the_files_beside_other_methods(command, sent):
    said = command("combine", "task.toml", "uploads", "--out", "round")
    told = json.loads(Path("round/report.json").read_text())["bytes"]
    up = sum(path.stat().st_size for path in Path("uploads").iterdir())
    down = sum(path.stat().st_size for path in Path("round").glob("*.download"))
    assert told["files"] == {"rounds": 1, "up": up, "down": down}
    assert told["FedAvg"] == {"rounds": 100, "up": 100 * 6 * 8 * 5, "down": 101 * 6 * 8 * 4}
    assert told["IFCA"] == {"rounds": 100, "up": 100 * 6 * 8 * 5, "down": 101 * 6 * 2 * 8 * 4}
    assert "in 100 rounds" in said.out


def test_an_upload_is_named_after_its_site(command, sent):
    fit = ["site", "fit", "task.toml", "north.csv", "--site", "north", "--out"]
    for name in ("south.upload", "northern.upload", "north.txt"):
        said = command(*fit, name)
        assert said.code == 2
        assert "name it north.upload" in said.err
    assert command(*fit, "north-2026.upload").code == 0


def test_several_users_of_a_site(command, sent):
    both = pd.concat([sent["north"].assign(ward="A"), sent["south"].assign(ward="B")])
    fit = "site fit task.toml both.csv --site both --user ward --out uploads/both.upload"
    save_csv(both, "both.csv")
    assert command(*fit.split()).code == 0
    assert command("combine", "task.toml", "uploads", "--out", "round").code == 0
    names = ("uploads/both.upload", "round/both.download", "both.csv")
    said = command("site", "receive", "task.toml", *names, "--user", "ward", "--out", "model")
    assert "both: 2 users" in said.out
    said = command("predict", "model", "both.csv")
    assert said.out.splitlines()[0] == "ward,row,prediction"
    assert "B" in said.out


def test_receive_finds_the_users_column_or_says_which_option_is_missing(command, sent):
    both = pd.concat([sent["north"].assign(ward="A"), sent["south"].assign(ward="B")])
    fit = "site fit task.toml both.csv --site both --user ward --out uploads/both.upload"
    save_csv(both, "both.csv")
    assert command(*fit.split()).code == 0
    assert command("combine", "task.toml", "uploads", "--out", "round").code == 0
    receive = ("site", "receive", "task.toml", "uploads/both.upload", "round/both.download")
    assert "both: 2 users" in command(*receive, "both.csv", "--out", "model").out
    assert "\nB,25," in command("predict", "model", "both.csv").out
    save_csv(both.assign(night=both.ward), "two.csv")
    said = command(*receive, "two.csv", "--out", "other")
    assert said.code == 2
    assert "The upload has 2 users, and in this table ward, night could each name them" in said.err
    assert "--user COLUMN" in said.err
    save_csv(both.drop(columns="ward"), "none.csv")
    assert "no column has 2 values" in command(*receive, "none.csv", "--out", "other").err


def test_a_word_that_the_card_does_not_list_counts_as_other_and_is_named_at_the_site(command, sent):
    names = "--features a,b,c --category c=p,q --target y"
    assert command(*f"task new {names} --other c --out other.toml".split()).code == 0
    card = Path("other.toml")
    card.write_text(re.sub(r"(minimum_\w+ = )\d", r"\g<1>1", card.read_text()))
    Path("sent").mkdir()
    for site, table in sent.items():
        new = table.replace({"c": {"q": "tent"}}) if site == "north" else table
        save_csv(new, f"{site}.csv")
        fit = f"site fit other.toml {site}.csv --site {site} --out sent/{site}.upload"
        said = command(*fit.split())
        assert ("12 rows with a new level of 'c' (tent), read as 'other'" in said.err) == (
            site == "north"
        )
    assert command(*["combine", "other.toml", "sent", "--out", "round"]).code == 0
    files = "other.toml sent/north.upload round/north.download north.csv"
    assert "'c' (tent), read" in command(*f"site receive {files} --out model".split()).err
    said = command("predict", "model", "north.csv")
    assert said.code == 0
    assert "12 rows with a new level of 'c' (tent), read as 'other'" in said.err
    assert "'c' (tent), read" in command(*["task", "check", "other.toml", "north.csv"]).out


def test_a_late_site_is_placed_by_assign(command, sent):
    Path("uploads/lake.upload").rename("lake.upload")
    assert command("combine", "task.toml", "uploads", "--out", "round").code == 0
    said = command("assign", "round", "lake.upload", "--out", "lake.download")
    assert said.code == 0
    assert said.out.startswith("lake: group 1, probability 1.00, distance ")
    names = ["lake.upload", "lake.download", "lake.csv", "--out", "model"]
    assert "1 user in group 1" in command("site", "receive", "task.toml", *names).out
    assert command("predict", "model", "lake.csv").code == 0
    assert (
        "exists already" in command("assign", "round", "lake.upload", "--out", "lake.download").err
    )
    assert "say --out" in command("assign", "round", "lake.upload").err
    said = command("assign", "round", "lake.upload", "--add", "--out", "x.download")
    assert "neither --add nor --missing" in said.err


def test_a_site_that_is_none_of_these(command, sent):
    save_csv(sent["lake"].assign(y=50 * sent["lake"].b), "odd.csv")
    fit = "site fit task.toml odd.csv --site odd --out odd.upload"
    assert command(*fit.split()).code == 0
    assert command("combine", "task.toml", "uploads", "--out", "round").code == 0
    said = command("assign", "round", "odd.upload", "--out", "odd.download")
    assert said.out.startswith("odd: none of these groups, distance ")


def test_a_model_of_a_federation_predicts_new_users_and_is_not_diagnosed(command, sent):
    assert command("combine", "task.toml", "uploads", "--out", "round").code == 0
    save_csv(sent["north"].assign(ward="A"), "wards.csv")
    fit = "site fit task.toml wards.csv --site north --user ward --out north.upload"
    assert command(*fit.split()).code == 0
    shutil.copy("north.upload", "uploads")
    assert command("combine", "task.toml", "uploads", "--out", "round").code == 0
    names = ("north.upload", "round/north.download", "wards.csv")
    said = command("site", "receive", "task.toml", *names, "--user", "ward", "--out", "model")
    assert said.code == 0
    save_csv(sent["north"].assign(ward="new"), "new.csv")
    said = command("predict", "model", "new.csv")
    assert said.code == 2
    assert "--unknown pooled" in said.err
    assert command("predict", "model", "new.csv", "--unknown", "pooled").code == 0
    said = command("diagnose", "model")
    assert said.code == 2
    assert "they were diagnosed in the round. It said: 2 groups" in said.err
    assert command("assign", "model", "new.csv").out.startswith("ward,group,")


def test_the_model_of_a_site_with_one_user_needs_no_column_of_users(command, sent):
    assert command("combine", "task.toml", "uploads", "--out", "round").code == 0
    names = ("uploads/north.upload", "round/north.download", "north.csv")
    assert command("site", "receive", "task.toml", *names, "--out", "model").code == 0
    assert command("predict", "model", "north.csv").out.startswith("row,prediction\n1,")
    assert command("assign", "model", "south.csv").out.startswith("group,probability,")
    assert command("update", "model", "north.csv", "--again").out.splitlines()[1] == "0,0,24,48"


@pytest.mark.skipif(os.name != "posix", reason="modes of files are POSIX's")
def test_keys_are_private(command):
    said = command("site", "keys", "--site", "north", "--out", "keys")
    assert said.code == 0
    assert os.stat("keys/north.key").st_mode & 0o077 == 0
    assert Path("keys/north.pub").read_text().split()[1] in said.out
    assert command("site", "keys", "--site", "north", "--out", "keys").code == 2
    assert command("site", "keys", "--site", "a/b", "--out", "keys").code == 2


def test_a_command_of_two_words_asks_for_the_second(command):
    assert "name what to do: keys, fit, receive" in command("site").err
    assert "See odcl task --help" in command("task").err
    assert (
        "unknown option '--ky'; did you mean '--key'?"
        in command("site", "fit", "a", "b", "--site", "c", "--out", "d", "--ky", "e").err
    )


def test_a_card_like_a_sites_table_has_rounded_units_and_curves_of_its_numbers(command):
    rng = np.random.default_rng(0)
    age, icu = rng.normal(58, 17, 200).round(), rng.integers(0, 2, 200)
    frame = pd.DataFrame({"ward": np.resize(["x", "y"], 200), "age": age, "icu": icu})
    frame["smoker"] = np.resize(["no", "no", "yes"], 200)
    frame["stay"] = age / 10 + rng.normal(size=200)
    save_csv(frame.assign(dose=1e6 * rng.normal(3, 0.02, 200)), "north.csv")
    new = ("task", "new", "--like", "north.csv", "--user", "ward", "--target", "stay")
    said = command(*new, "--curves", "--out", "task.toml")
    given = Task.read("task.toml")
    assert [one.name for one in given.features] == ["age", "icu", "smoker", "dose"]
    assert given.features[2].levels == ("no", "yes")
    assert given.curves == ("age", "dose")
    low, middle, high = np.quantile(age, [0.25, 0.5, 0.75])
    assert given.features[0].shift == round(middle)
    assert given.features[0].scale == round((high - low) / 1.349)
    assert given.features[3].scale % 1000 == 0
    assert abs(given.features[3].shift - 3e6) < 1e4
    assert "check that they hold for all sites" in said.err
    assert "13 parameters" in said.err
    command(*new, "--curves", "dose", "--periodic", "age=100", "--force", "--out", "task.toml")
    assert Task.read("task.toml").periodic == {"age": 100}
    command(*new, "--curves", "--periodic", "age=100", "--force", "--out", "task.toml")
    assert Task.read("task.toml").curves == ("dose",)  # age has waves in place of bends
    assert "lines only: with --curves" in command(*new, "--force", "--out", "task.toml").err
    save_csv(frame.assign(day="2024-01-31"), "north.csv")
    said = command(*new, "--force", "--out", "task.toml")
    assert "'day' holds dates" in said.err
    assert said.err.rstrip().endswith("(--category day=A,B), or leave it out (--features).")


def test_rows_in_another_unit_than_the_cards_are_named(command):
    frame = frames(1, 40)["north"]
    save_csv(frame.assign(a=1000 * frame.a + 5e4, b=frame.b / 1000), "north.csv")
    features = (
        Feature("a", None, 0.0, 2.0),
        Feature("b", None, 0.1, 1.0),
        Feature("c", ("p", "q")),
    )
    task(features=features, curves=True).write("task.toml")
    for words in (
        ("task", "check", "task.toml", "north.csv"),
        ("site", "fit", "task.toml", "north.csv", "--site", "north", "--out", "north.upload"),
    ):
        said = command(*words)
        assert "a: half of the rows lie more than 8 scales from the shift" in said.err
        assert "b: its spread is 0.00" in said.err


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--features", "a", "--user", "w"), "--user goes with --like"),
        ((), "--features or --like is needed"),
        (("--features", "a", "--periodic", "a=x"), "See odcl task new --help"),
    ],
)
def test_options_of_a_new_card_that_do_not_fit_are_refused(command, words, match):
    said = command("task", "new", *words, "--target", "y", "--out", "task.toml")
    assert said.code == 2
    assert match in said.err
