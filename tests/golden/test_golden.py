"""Results do not move unless somebody means it: ``python -m tests.golden`` writes them anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.cases import NAMES, result
from tests.helpers import SHARED_DATA

RESULTS = json.loads(Path(__file__).with_name("results.json").read_text())


def same(now: Any, before: Any, where: str) -> None:
    """Equal up to the rounding of another machine's linear algebra."""
    if isinstance(before, dict):
        assert set(now) == set(before), where
        for key in before:
            same(now[key], before[key], f"{where} / {key}")
    elif isinstance(before, list):
        assert len(now) == len(before), f"{where}: {now} was {before}"
        for i, (one, other) in enumerate(zip(now, before, strict=True)):
            same(one, other, f"{where}[{i}]")
    elif isinstance(before, float):
        assert now == pytest.approx(before, rel=1e-7, abs=1e-7, nan_ok=True), where
    else:
        assert now == before, where


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_that_were_kept(name, tmp_path):
    if name.startswith("real: ") and not (SHARED_DATA / "tables").exists():
        pytest.skip("the real tables are not beside the project")
    now = json.loads(json.dumps(result(name, tmp_path)))
    same(now, RESULTS[name], name)
