"""What people are told: notices, who is set aside, and advice that a command can follow."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import odcl
from odcl.cli.main import run_command


@pytest.fixture
def table(tmp_path, monkeypatch):
    """24 stores x 20 rows; the target of store 3 is in another unit."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    store = np.repeat(np.arange(24), 20)
    frame = pd.DataFrame({"store": store, "price": rng.normal(size=480)})
    frame["kind"] = rng.choice(["a", "b"], 480)
    frame["sales"] = 2 * frame["price"] + rng.normal(size=480)
    frame.loc[store == 3, "sales"] *= 1000
    frame.to_csv("sales.csv", index=False)
    return frame


def test_who_is_set_aside_is_named_on_stderr_on_the_page_and_in_print(table, capsys):
    words = ("sales.csv", "--user", "store", "--target", "sales", "--holdout", "0")
    assert run_command(("fit", *words, "--robust", "--out", "run")) == 0
    said = "user 3 takes no part in others' models: sales varies"
    assert said in capsys.readouterr().err
    with open("run/report.html", encoding="utf-8") as page:
        assert "ser 3 takes no part in others&#x27; models: sales varies" in page.read()
    run = odcl.fit_table("sales.csv", user="store", target="sales", robust=True, holdout=0)
    assert said in str(run)
    assert "takes no part in others&#x27; models: sales" in run.report().decode()
    assert "models: sales varies" not in run.report(anonymous=True).decode()


def test_advice_is_left_out_where_a_command_has_no_option_for_it(table, capsys):
    words = ("sales.csv", "--user", "store", "--target", "sales", "--holdout", "0", "-q")
    assert run_command(("fit", *words, "--out", "run")) == 0
    table.assign(kind="z").to_csv("new.csv", index=False)
    assert run_command(("update", "run", "new.csv")) == 2
    said = capsys.readouterr().err
    assert "level 'z'" in said
    assert "--unseen" not in said
    assert "leave them out" in said
    assert run_command(("predict", "run", "new.csv", "--out", "p.csv")) == 2
    assert "--unseen reference" in capsys.readouterr().err
