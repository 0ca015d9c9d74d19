"""One bad site of seven: the others' models stay, and the round names it and says why."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from odcl.engines.files import Feature, Task, combine_uploads, fit_site, receive
from odcl.engines.files.task import CAREFUL
from tests.engines.files.world import send, time

TASK = Task("sales", (Feature("x0"), Feature("x1")), "y")
TRUTH = np.array([1.0, -2.0])
SITES = [f"site-{i}" for i in range(7)]


def tables() -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    found = {}
    for site in SITES:
        X = rng.standard_normal((60, 2))
        y = 3 + X @ TRUTH + 0.5 * rng.standard_normal(60)
        found[site] = pd.DataFrame(X, columns=["x0", "x1"]).assign(y=y)
    return found


def _unit(table):
    table["x0"] *= 300


def _origin(table):
    table["x0"] += 100


def _code(table):
    table.loc[0, "y"] = 99999.0


def _huge(table):
    table["y"] *= 1e9


def _absurd(table):
    table["y"] += 1e55


WAYS = {"x0 * 300": _unit, "x0 + 100": _origin, "one 99999": _code, "y * 1e9": _huge}
WAYS["y + 1e55"] = _absurd


def errors(task: Task, rows: dict, folder) -> tuple[float, object]:
    """The honest sites' mean distance from the truth, and the round."""
    sent = send(task, rows, folder / "uploads")
    combined = combine_uploads(task, sent, out=folder / "round")
    away = []
    for site in [site for site in rows if site != "site-3"]:
        files = sent / f"{site}.upload", folder / "round" / f"{site}.download"
        away.append(np.abs(receive(task, *files, rows[site]).models[0][:2] - TRUTH).mean())
    return float(np.mean(away)), combined


@pytest.mark.parametrize("way", WAYS)
def test_one_bad_site_of_seven_hurts_itself_and_is_named(way, tmp_path):
    rows = tables()
    (tmp_path / "without").mkdir()
    alone = {site: rows[site] for site in SITES if site != "site-3"}
    best, clean = errors(TASK, alone, tmp_path / "without")
    assert clean.step.outliers == ()
    WAYS[way](rows["site-3"])
    got, combined = errors(TASK, rows, tmp_path)
    assert got < 1.1 * best
    assert {one.user[0] for one in combined.step.outliers} == {"site-3"}
    assert any("site-3 takes no part" in text for text in combined.notices)
    assert "site-3 takes no part" in str(combined)
    report = json.loads((tmp_path / "round" / "report.json").read_text())
    assert [one["user"] for one in report["outliers"]] == ["site-3"]
    assert "Uploads unlike all others" in (tmp_path / "round" / "report.html").read_text()
    # Nothing that other sites receive names it.
    assert b"site-3" not in (tmp_path / "round" / "site-0.download").read_bytes()


@pytest.mark.parametrize("way", ["x0 * 300", "y * 1e9", None])
def test_of_three_sites_nobody_is_set_aside_and_the_odd_one_is_told(way, tmp_path):
    rows = dict([*tables().items()][2:5])
    if way:
        WAYS[way](rows["site-3"])
    combined = combine_uploads(TASK, send(TASK, rows, tmp_path / "sent"), out=tmp_path / "round")
    told = [line for line in combined.notices if "everybody else's: another unit?" in line]
    assert len(told) == (way is not None)
    assert all(line.startswith(f"site 'site-3': {way[:2].strip()} varies") for line in told)


def test_a_site_whose_download_speaks_against_its_rows_is_told(tmp_path):
    rows = tables()
    _unit(rows["site-3"])
    sent = send(TASK, rows, tmp_path / "uploads")
    combine_uploads(TASK, sent, out=tmp_path / "round")
    told, aside = {}, {}
    for site in ("site-0", "site-3"):
        files = sent / f"{site}.upload", tmp_path / "round" / f"{site}.download"
        received = receive(TASK, *files, rows[site])
        told[site], aside[site] = len(received.worse_than_own), received.outliers
    assert told == {"site-0": 0, "site-3": 1}
    assert aside["site-0"] == ()
    (line,) = aside["site-3"]
    assert line.startswith("site-3 takes no part in others' models: ")


def test_a_site_is_told_by_name_which_of_its_users_took_no_part(tmp_path):
    """Seven sites with two wards each; the second ward of one has another unit."""
    every = tables()
    wards = {}
    for i, (site, rows) in enumerate(every.items()):
        half = np.arange(len(rows)) % 2
        wards[site] = rows.assign(ward=[f"ward {i}{'ab'[k]}" for k in half])
    bad = wards["site-3"]["ward"] == "ward 3b"
    part = wards["site-3"][bad].copy()
    _unit(part)
    wards["site-3"] = pd.concat([wards["site-3"][~bad], part])
    (tmp_path / "uploads").mkdir()
    for site, rows in wards.items():
        sent = fit_site(TASK, rows, site=site, user="ward", created=time())
        sent.write(tmp_path / "uploads" / f"{site}.upload")
    combine_uploads(TASK, tmp_path / "uploads", out=tmp_path / "round")
    files = tmp_path / "uploads" / "site-3.upload", tmp_path / "round" / "site-3.download"
    (line,) = receive(TASK, *files, wards["site-3"], user="ward").outliers
    assert line.startswith("user 'ward 3b' takes no part in others' models: ")


def test_new_cards_are_robust_and_earlier_ones_keep_what_they_said_and_their_digest(tmp_path):
    new = TASK.to_toml()
    assert "robust = true" in new
    earlier = "\n".join(line for line in new.splitlines() if not line.startswith("robust"))
    (tmp_path / "task.toml").write_text(earlier)
    read = Task.read(tmp_path / "task.toml")
    assert not read.method.robust
    assert read.digest == replace(TASK, method=replace(CAREFUL, robust=False)).digest
    assert read.digest != TASK.digest
