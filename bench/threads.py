"""Default BLAS threads against one: nothing should take longer because more cores are there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from bench.tables import at_most, progress, table
from bench.worlds import grouped_rows, sensor_rows
from odcl import MixedGroups, ODCLClassifier, ODCLRegressor, fit
from odcl.data.federation import Federation
from odcl.risk.risk import Risk
from odcl.runs.fit import compare

NOTE = """Seconds on the clock with as many BLAS threads as cores over those with one, least of some
rounds in turns. Meant for a quiet machine: others' work makes the first of them larger."""
TARGET = 1.2


def run(*, quick: bool, data: Path) -> None:
    lines = []
    for name, work in _calls(quick).items():
        progress(name)
        many, one = _in_turns(work, 3 if quick else 5)
        ratio = many / one
        lines.append((name, f"{one:.4f}", f"{ratio:.2f}", at_most(ratio, TARGET)))
    header = ("", "one thread, s", "default / one", f"<= {TARGET}")
    table(f"9. Threads: {os.cpu_count()} cores", header, lines, NOTE)


def _in_turns(work: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Least seconds with all threads, and with one."""
    seconds: dict[int, list[float]] = {os.cpu_count() or 1: [], 1: []}
    if len(seconds) == 1:
        return 1.0, 1.0
    for _ in range(rounds):
        for threads, found in seconds.items():
            with threadpool_limits(threads, user_api="blas"):
                start = time.perf_counter()
                work()
                found.append(time.perf_counter() - start)
    many, one = (min(found) for found in seconds.values())
    return many, one


def _calls(quick: bool) -> dict[str, Callable[[], Any]]:
    X, y, users = grouped_rows("squared", 300 if quick else 1000, 200, 20)
    small = grouped_rows("squared", 100, 100, 20)
    votes = grouped_rows("logistic", 100, 100, 10)
    sensors, wide = sensor_rows(4, 90, 84, 6), sensor_rows(6, 150 if quick else 600, 300, 4)
    federation = Federation.from_arrays(X, y, users)
    model = ODCLRegressor().fit(*small)
    by_models = ODCLRegressor(clusterer="kmeans:4").fit(*small)
    classes = ODCLClassifier().fit(*votes)
    given = MixedGroups(n_groups=4, spread="zero")
    own = slice(0, 100)
    new = small[0][own], small[1][own]
    return {
        "fit, groups given": lambda: ODCLRegressor(clusterer=given).fit(X, y, users),
        "fit, auto": lambda: ODCLRegressor().fit(*small),
        "fit, kmeans:4": lambda: ODCLRegressor(clusterer="kmeans:4").fit(X, y, users),
        "fit, convex": lambda: ODCLRegressor(clusterer="convex").fit(*small),
        "fit, huber": lambda: ODCLRegressor(loss="huber").fit(*small),
        "fit, logistic": lambda: ODCLClassifier().fit(*votes),
        "fit, six classes": lambda: ODCLClassifier().fit(*sensors),
        "fit, 300 features": lambda: ODCLRegressor(clusterer="kmeans:2").fit(*wide),
        "fit, 300 features, four classes": lambda: ODCLClassifier().fit(*wide),
        "odcl.fit": lambda: fit(federation, Risk("squared", intercept=True)),
        "predict": lambda: model.predict(small[0], users=small[2]),
        "predict_proba": lambda: classes.predict_proba(votes[0], users=votes[2]),
        "assign": lambda: model.assign(*new),
        "assign, kmeans": lambda: by_models.assign(*new),
        "assign, logistic": lambda: classes.assign(votes[0][own], votes[1][own]),
        "update_user": lambda: model.update_user(3, *new, again=True),
        "diagnose": lambda: model.diagnose(resamples=5),
        "compare": lambda: compare(ODCLRegressor(), *small),
    }
