"""Private uploads from the shell: the card, the file, the ledger, and what people read."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from odcl.cli.main import run_command
from odcl.engines.ledger import SiteLedger
from tests.engines.files import world


@pytest.fixture
def sites(tmp_path):
    for site, frame in world.frames(4, 240).items():
        (tmp_path / site).mkdir()
        frame.to_csv(tmp_path / site / "rows.csv", index=False)
    card = "--features a,b,c --category c=p,q --target y --epsilon 2 --target-range=-12:20"
    ranges = ("--range", "a=-2:2", "--range", "b=-1:3", "--delta", "1e-7")
    run("task", "new", *card.split(), *ranges, "--out", "task.toml")
    return tmp_path


def run(*words, code=0):
    assert run_command(words) == code


def test_a_private_round_from_the_shell(sites, capsys):
    text = (sites / "task.toml").read_text()
    assert "[privacy]" in text
    assert "target_range = [-12.0, 20.0]" in text
    assert "shift = 1.0\nscale = 1.0" in text  # of b
    (sites / "in").mkdir()
    for site in world.NAMES[:4]:
        out = f"in/{site}.upload"
        run("site", "fit", "task.toml", f"{site}/rows.csv", "--site", site, "--out", out)
    told = capsys.readouterr()
    assert "(2, 1e-07)-differentially private" in told.err
    assert "cost more than it gives" not in told.err  # 240 rows, and it pays from 40 on
    assert (sites / "north" / "site.ledger").exists()
    run("inspect", "in/north.upload", "--card", "task.toml")
    told = capsys.readouterr().out
    assert "(2, 1e-07)-differentially private for one row" in told
    assert "Not covered" in told
    run("combine", "task.toml", "in", "--out", "round")
    page = next((sites / "round").rglob("*.html")).read_text()
    assert "differentially private" in page


def test_a_second_private_file_is_refused_until_it_is_meant(sites, capsys):
    fit = ["site", "fit", "task.toml", "north/rows.csv", "--site", "north", "--out"]
    run(*fit, "north.upload")
    first = (sites / "north.upload").read_bytes()
    run(*fit, "north-2.upload")
    assert (sites / "north-2.upload").read_bytes() == first
    assert "nothing more is spent" in capsys.readouterr().err
    table = sites / "north" / "rows.csv"
    table.write_text("\n".join(table.read_text().splitlines()[:-1]) + "\n")
    run(*fit, "north-3.upload", code=2)
    assert "--again" in capsys.readouterr().err
    run(*fit, "north-3.upload", "--again")
    assert (sites / "north-3.upload").exists()


def test_a_site_is_told_that_sending_is_likely_to_cost_more_before_anything_is_spent(sites, capsys):
    table, place = sites / "north" / "few.csv", sites / "north" / "site.ledger"
    pd.read_csv(sites / "north" / "rows.csv").head(30).to_csv(table, index=False)
    fit = ["site", "fit", "task.toml", str(table), "--site", "north", "--out", "north.upload"]
    words = "1 user of 1 with fewer than 40 rows: sending them at epsilon 2 is likely to cost more"
    run("task", "check", "task.toml", str(table))
    assert words in capsys.readouterr().err
    run(*fit, code=2)
    told = capsys.readouterr().err
    assert words in told
    assert "--late" in told
    assert not place.exists()
    assert not (sites / "north.upload").exists()
    run(*fit, "--anyway")
    assert words in capsys.readouterr().err
    assert len(SiteLedger.read(place).spent) == 1


def test_where_few_users_have_few_rows_all_are_sent_and_these_are_counted(sites, capsys):
    table = sites / "north" / "wards.csv"
    wards = np.repeat(["old", "new", "small"], [105, 105, 30])
    pd.read_csv(sites / "north" / "rows.csv").assign(ward=wards).to_csv(table, index=False)
    words = ("--user", "ward", "--site", "north", "--out", "north.upload")
    run("site", "fit", "task.toml", str(table), *words)
    told = capsys.readouterr().err
    assert "1 user of 3 with fewer than 40 rows: sending them at epsilon 2" in told
    assert (sites / "north.upload").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--epsilon 2 --target-range 0:1", "--range a=LOW:HIGH"),
        ("--epsilon 2 --range a=0:1", "target_range"),
        ("--epsilon 2 --range a=0", "LOW:HIGH"),
        ("--epsilon 2 --range a=1:0 --target-range 0:1", "ends where it begins"),
        ("--epsilon 2 --range z=0:1 --target-range 0:1", "no feature"),
        ("--target-range 0:1", "needs --epsilon"),
        ("--delta 1e-7", "needs --epsilon"),
        ("--epsilon 0.01 --range a=0:1 --target-range 0:1", "epsilon"),
        ("--epsilon 2 --range a=0:1 --target-range=-1:9 --loss poisson", "below 0"),
    ],
)
def test_a_card_without_public_bounds_is_refused_in_words(words, told, capsys):
    run("task", "new", "--features", "a", "--target", "y", *words.split(), "--out", "c", code=2)
    assert told in capsys.readouterr().err


def test_units_of_a_sites_own_table_are_not_public(sites, capsys):
    words = ["--like", "north/rows.csv", "--target", "y", "--epsilon", "2", "--target-range", "0:1"]
    run("task", "new", *words, "--range", "a=0:1", "--range", "b=0:1", "--out", "c", code=2)
    assert "off a site's rows" in capsys.readouterr().err


def test_a_plan_says_from_how_many_rows_on_privacy_pays(capsys):
    run("plan", "--users", "12", "--clusters", "1", "--dim", "3", "--epsilon", "2", "-q")
    assert "pay from 30 to 60 rows per user on" in capsys.readouterr().out


def test_a_late_site_spends_nothing(sites, capsys):
    (sites / "in").mkdir()
    for site in world.NAMES[:3]:
        out = f"in/{site}.upload"
        run("site", "fit", "task.toml", f"{site}/rows.csv", "--site", site, "--out", out)
    run("combine", "task.toml", "in", "--out", "round")
    site = world.NAMES[3]
    table, files = f"{site}/rows.csv", (f"{site}.upload", f"{site}.download")
    run("site", "fit", "task.toml", table, "--site", site, "--out", files[0], "--late")
    run("assign", "round", files[0], "--out", files[1])
    capsys.readouterr()
    run("site", "receive", "task.toml", *files, table, "--out", "model")
    assert f"{site}: 1 user. " in capsys.readouterr().out
    assert not (sites / site / "site.ledger").exists()


@pytest.mark.parametrize(("times", "told"), [(1, ""), (100, "far"), (0.001, "narrow")])
def test_a_target_far_from_the_cards_range_is_told_where_features_are(sites, capsys, times, told):
    table = sites / "north" / "rows.csv"
    frame = pd.read_csv(table)
    frame.assign(y=frame.y * times + 200 * times * (times > 1)).to_csv(table, index=False)
    usual = "(shift 4, scale 8 by target_range on the card): another unit?"
    words = {
        "": "",
        "far": f"odcl: y: half of the rows lie more than 8 scales from the shift {usual}\n",
        "narrow": f"scales {usual}\n",
    }[told]
    run("task", "check", "task.toml", str(table))
    checked = capsys.readouterr().err
    assert ("another unit" in checked) == bool(told)
    assert words in checked
    run("site", "fit", "task.toml", str(table), "--site", "north", "--out", "north.upload")
    assert words in capsys.readouterr().err
