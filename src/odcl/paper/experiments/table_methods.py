"""The comparison of methods (the table of Section 1) with numbers in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.spatial.distance import pdist

from odcl.data.synthetic import linear_federation
from odcl.paper.experiments.definition import Experiment, ExperimentTask, Measurement
from odcl.paper.experiments.rows import Rows, Setting
from odcl.theory import table1


def settings(quick: bool) -> list[Setting]:
    """The paper's linear set-ups. D is of the optima of seed 0, to two digits."""
    found = []
    for K, n in ((10, 100), (10, 1000), (4, 400), (4, 600)):
        federation = linear_federation(K, 1, n_clusters=K, seed=0)
        assert federation.optima is not None
        D = float(np.round(pdist(federation.optima).min(), 2))
        found.append({"sizes": [100 // K] * K, "K": K, "m": 100, "D": D, "n": n})
    return found


def work(task: ExperimentTask, data: Path | None) -> Iterator[Measurement]:
    """Rounds of every method, from the formulas: nothing is drawn."""
    s = task.setting
    for row in table1(s["sizes"], D=s["D"], n=s["n"]):
        rounds = math.inf if row.rounds is None else row.rounds
        yield Measurement(row.method.lower(), "rounds", rounds, 0.0)


def evaluated(sizes: Sequence[int], D: float, n: int) -> str:
    """The table for clusters of these sizes, separation D and n samples per user."""
    m, K = sum(sizes), len(sizes)
    each = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    head = f"m = {m}, K = {K}, |C_k| = {each}, D = {D:g}, n = {n}"
    return f"## {head}\n\n{str(table1(sizes, D=D, n=n)).split(chr(10) * 2)[0]}"


def page(rows: Rows) -> list[str]:
    seen = {str(row.setting): row.setting for row in rows.rows}
    parts = [evaluated(s["sizes"], s["D"], s["n"]) for s in seen.values()]
    legend = str(table1([2, 2], D=1.0, n=3)).split("\n\n")[1]
    return ["The paper gives orders; here they have numbers, with constants of 1.", *parts, legend]


METHODS_TABLE = Experiment(
    "table-methods",
    "Comparison of methods: rounds and samples that the theory asks for",
    settings,
    page,
    work=work,
    runs=1,
    quick_runs=1,
)

EXPERIMENTS = {METHODS_TABLE.name: METHODS_TABLE}
