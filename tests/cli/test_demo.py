"""`odcl demo` shows what the tool does, on a table that can be fitted afterwards."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from odcl.cli.paper import TABLES


def test_demo_prints_groups_errors_and_bytes_and_its_table_can_be_fitted(command):
    said = command("demo")
    assert (said.code, said.err) == (0, "")
    assert len(re.findall(r"^group \d+ +10 +1,000 ", said.out, flags=re.MULTILINE)) == 10
    assert "They are the true ones." in said.out
    found = re.findall(
        r"^(local|naive|paper|oracle|odcl).*? {2,}([\d.]+) +", said.out, re.MULTILINE
    )
    errors = {name: float(error) for name, error in found}
    assert errors["odcl"] <= errors["oracle"] < errors["local"] < errors["naive"]
    assert re.search(r"1 round: each user sent [\d.]+ kB and received [\d.]+ kB\.", said.out)
    assert sorted(path.name for path in Path("demo").iterdir()) == sorted(TABLES)
    line = re.search(r"A table to try: odcl (.*)", said.out)
    said = command(*shlex.split(line[1]))
    assert said.code == 0
    assert "60 users" in said.out
    assert "3 groups found" in said.out


def test_a_second_demo_is_refused_before_its_work(command, monkeypatch):
    Path("demo").mkdir()
    monkeypatch.setattr("odcl.cli.paper.demo_result", None)
    said = command("demo")
    assert said.code == 2
    assert "demo exists already" in said.err
