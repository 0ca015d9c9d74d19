"""``odcl.fit_table``: what the command does, in a line of Python, from files and frames."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import odcl
from odcl import Method, ODCLRegressor
from odcl.runs.folder import page_of_run
from tests.helpers import files_below, people, refusal, save_csv


def messy(n_users=24, n=15, seed=3):
    """Two groups of shops; rows shuffled, values missing, kinds that some shops never sell."""
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(n_users), n)
    kind = rng.choice(["bread", "cake", "rolls"], size=len(shop))
    kind[(shop < 6) & (kind == "cake")] = "bread"
    price = rng.normal(10, 2, len(shop))
    slope = np.where(shop % 2, -4.0, 3.0)
    sold = 100 + slope * price + 15 * (kind == "cake") + rng.normal(0, 2, len(shop))
    frame = pd.DataFrame({"shop": [f"shop {s}" for s in shop], "price": price, "kind": kind})
    frame["sold"] = sold
    frame.loc[rng.random(len(frame)) < 0.05, "price"] = np.nan
    frame.loc[rng.random(len(frame)) < 0.03, "kind"] = None
    return frame.sample(frac=1.0, random_state=seed).reset_index(drop=True)


ROLES = {"user": "shop", "target": "sold", "missing": "mean"}


@pytest.fixture(scope="module")
def run():
    return odcl.fit_table(messy(), **ROLES)


def test_a_messy_table_in_one_line(run):
    model = run.model
    assert model.n_clusters_ == 2
    assert (
        len({(int(u.split()[1]) % 2, g) for u, g in zip(model.users_, model.labels_, strict=True)})
        == 2
    )
    assert model.feature_names_ == ["price", "kind=cake", "kind=rolls"]
    filled = [text for text in run.notices if "missing values filled in" in text]
    assert len(filled) == 1
    assert run.comparison.n_users == 24
    lines = str(run).splitlines()
    told = [f"odcl: {text}" for text in run.notices]
    assert lines[: len(told)] == told  # as the command has them on stderr
    assert lines[len(told)].startswith(
        "24 users, 360 rows, 3 features, squared loss, 1 round. 2 groups"
    )
    assert "users do better than with a model of their own" in str(run)
    assert lines[-1].startswith("In a federation each user would send ")
    assert repr(run) == "<Run: 24 users, 360 rows, 2 groups>"


@pytest.mark.parametrize("kind", ["polars", "arrow", "csv", "parquet"])
def test_every_source_gives_the_same_run(run, kind, tmp_path):
    frame = messy()
    source = {"polars": pl.from_pandas, "arrow": pa.Table.from_pandas}.get(kind, lambda f: f)(frame)
    if kind in ("csv", "parquet"):
        source = tmp_path / f"table.{kind}"
        frame.to_csv(source, index=False) if kind == "csv" else frame.to_parquet(source)
    other = odcl.fit_table(source, **ROLES, holdout=0)
    assert_allclose(other.model.coef_, run.model.coef_, rtol=1e-12)
    assert other.comparison is None


def test_the_order_of_the_rows_does_not_matter(run):
    other = odcl.fit_table(messy().sort_values("price"), **ROLES, holdout=0)
    assert_allclose(other.model.coef_, run.model.coef_, rtol=1e-10)


def test_rows_with_gaps_can_be_left_out_or_refused():
    left = odcl.fit_table(messy(), **{**ROLES, "missing": "drop"}, holdout=0)
    assert any("left out" in text for text in left.notices)
    with pytest.raises(ValueError, match="missing"):
        odcl.fit_table(messy(), user="shop", target="sold")


def test_it_is_what_the_command_does(command):
    frame = people()
    path = save_csv(frame)
    said = command("fit", path, "--user", "user", "--target", "y", "--out", "run")
    run = odcl.fit_table(path, user="user", target="y", n_jobs=1)
    found, report, _ = said.out.partition("\nReport: run/report.html\n")
    assert run.text(shell=True) == found
    assert report
    run.save("mine")
    mine, theirs = files_below("mine"), files_below("run")
    assert set(mine) == set(theirs)
    for name in set(mine) - {"report.html", "evidence.json", "manifest.json"}:  # the command
        assert mine[name] == theirs[name], name
    assert_array_equal(ODCLRegressor.load("mine").theta_, run.model.theta_)


def test_the_page_of_a_run_is_that_of_its_folder(run, tmp_path):
    page = run.page()
    run.report(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_bytes() == page
    hidden = run.page(anonymous=True)
    with pytest.raises(ValueError, match=r"exists already\. Say force=True to replace it"):
        run.report(tmp_path / "page.html", anonymous=True)
    assert (tmp_path / "page.html").read_bytes() == page
    run.report(tmp_path / "page.html", anonymous=True, force=True)
    assert (tmp_path / "page.html").read_bytes() == hidden
    run.save(tmp_path / "run")
    assert (tmp_path / "run" / "report.html").read_bytes() == page
    assert page_of_run(tmp_path / "run") == page
    assert page_of_run(tmp_path / "run", anonymous=True) == hidden
    assert b"shop 7" in page
    assert b"shop 7" not in hidden


def test_an_anonymous_page_drops_notices_which_name_users(run):
    odd = replace(run.evidence, notices=("user 'shop 7': price is odd",))
    noticed = replace(run, evidence=odd)
    assert b"price is odd" in noticed.page()
    assert b"price is odd" not in noticed.page(anonymous=True)


def test_settings_are_those_of_the_command(tmp_path):
    frame = people().assign(day=np.tile(np.arange(14), 8), note="text")
    run = odcl.fit_table(
        frame,
        user="user",
        target="y",
        features=["a", "b"],
        method="paper",
        clusters=2,
        l2=0.1,
        intercept=False,
        holdout="last:0.3",
        time="day",
        seed=4,
    )
    assert run.model.feature_names_ == ["a", "b"]
    assert run.model.method_ == Method.paper(2)
    assert (run.model.l2, run.model.fit_intercept, run.model.random_state) == (0.1, False, 4)
    assert run.comparison.ours == "paper"
    run.save(tmp_path / "run")
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["holdout"] == "last:0.3"
    assert report["engine"] == "memory"
    with pytest.raises(ValueError, match="exists already"):
        run.save(tmp_path / "run")
    assert refusal(odcl.fit_table, frame, user="user", target="y", holdout="last") == (
        "holdout='last' and time='COLUMN' go together."
    )
    assert "'often' is neither a share" in refusal(
        odcl.fit_table, frame, user="user", target="y", holdout="often"
    )


def test_advice_is_for_python(run):
    frame = people(n=20).assign(y=lambda f: (f.y - f.y.min()).round())
    text = "\n".join(odcl.fit_table(frame, user="user", target="y", holdout=0).notices)
    assert "for counts say loss='poisson'" in text
    assert "--" not in f"{run}{text}"
    assert not Path("run").exists()


def test_values_that_hold_every_user_are_shown_in_a_line(run):
    for value in (run, run.comparison, run.model.fitted_):
        assert "user" in repr(value)
        assert len(repr(value)) < 120


def test_a_dask_frame_is_refused_with_what_to_say_instead():
    frames = pytest.importorskip("dask.dataframe", reason="tables in pieces: odcl[dask]")
    frame = frames.from_pandas(pd.DataFrame({"s": [1, 2], "x": [1.0, 2.0], "y": [1.0, 2.0]}))
    with pytest.raises(odcl.errors.InputError, match=r"ODCLRegressor\(users='store'\)"):
        odcl.fit_table(frame, user="s", target="y")


def test_curves_lie_where_the_estimator_has_them_though_a_user_is_in_another_unit():
    """Rows are scaled where they are; the usual units are read off them before."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(30), 40)
    x = rng.normal(18, 7, len(users))
    table = {"user": users, "x": x, "y": 3 * np.sin(x / 5) + rng.normal(0, 0.3, len(users))}
    table["x"] = np.where(users == 3, 1000 * x, x)
    run = odcl.fit_table(table, user="user", target="y", holdout=0)
    frame = pd.DataFrame(table)
    model = ODCLRegressor(users="user").fit(frame[["user", "x"]], frame["y"])
    assert run.model.risk_.curves == model.risk_.curves
    assert_array_equal(run.model.theta_, model.theta_)


def test_curves_of_a_table_with_categories_lie_where_its_values_do():
    """A run's rows are scaled where they are; what was seen of the columns is known before."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {"store": np.repeat(np.arange(30), 20), "kind": rng.choice(["a", "b"], 600)}
    )
    table["heat"] = rng.normal(18, 7, 600)
    table["sales"] = 40 * np.exp(-(((table.heat - 20) / 7) ** 2)) + rng.normal(0, 3, 600)
    run = odcl.fit_table(table, user="store", target="sales")
    ends = run.model.curve("heat", points=2)["x"]
    assert_allclose(ends, [table.heat.min(), table.heat.max()], rtol=1e-9)
    X, y = table.drop(columns="sales"), table["sales"]
    model = odcl.ODCLRegressor(users="store").fit(X, y)
    assert_allclose(model.curve("heat")["value"], run.model.curve("heat")["value"], atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no row lies beyond what was seen
        run.model.predict(X)
