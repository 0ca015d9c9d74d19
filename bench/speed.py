"""One machine: whole fits against a loop of scikit-learn, and estimators against the method."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression

from bench.tables import at_least, at_most, in_turns, progress, table
from bench.worlds import grouped_rows, sensor_rows
from odcl import Method, MixedGroups, ODCLClassifier, ODCLRegressor, fit
from odcl.data.federation import Federation
from odcl.risk.risk import Risk

OVER_NOTE = """CPU seconds of ODCLRegressor.fit(X, y, users) over those of odcl.fit on the same
rows, grouped beforehand, lines in both: checking, grouping and scaling, and nothing that only new
users need."""
LOOP_NOTE = """CPU seconds of one scikit-learn model per user (LinearRegression, LogisticRegression)
over those of the whole fit of lines with K and shape given, MixedGroups(n_groups=4, spread="zero"),
and those of the search (lines, else default settings) over the given fit's."""
MANY_NOTE = """CPU seconds of ODCLClassifier.fit over those of one LogisticRegression per user:
correlated features; each user weighs five strengths by five folds, thirty fits in all, which start
from one another."""
SIGHT_NOTE = """CPU seconds of fit(X, y, users) with nothing given, and of one scikit-learn model
per user, in turns; 'lines' is curves=False. The groups are in the rows: 4 of 1,000 users, 10 of
100."""
GIVEN = MixedGroups(n_groups=4, spread="zero")


def run(*, quick: bool, data: Path) -> None:
    rounds = 2 if quick else 4
    shapes = ((100, 100, 20),) if quick else ((1000, 200, 20), (100, 100, 20), (10000, 20, 10))
    lines = [line for shape in shapes for line in _over(shape, rounds)]
    header = ("", "odcl.fit, s", "estimator / odcl.fit", "<= 1.3")
    table("8a. What an estimator adds", header, lines, OVER_NOTE)
    size = (100, 200, 20) if quick else (1000, 200, 20)
    lines = [_loop(loss, size, rounds) for loss in ("squared", "logistic")]
    header = ("", "fit, s", "loop / fit", ">= 5", "search / fit", "<= 10")
    table("8b. A model per user in a loop", header, lines, LOOP_NOTE)
    header = ("", "fit, s", "loop / fit", "", "lines, s", "loop / lines")
    lines = [_sight(loss, size, k, rounds, goal) for loss, size, k, goal in _sights(quick)]
    table("8d. At first sight: nothing given", header, lines, SIGHT_NOTE)
    users = 6 if quick else 30
    lines = [_many(users, classes) for classes in (6, 30)]
    table("8c. Many parameters", ("", "fit, s", "fit / loop", "<= 3"), lines, MANY_NOTE)


def _over(shape: tuple[int, int, int], rounds: int) -> list[tuple[str, ...]]:
    X, y, users = grouped_rows("squared", *shape)
    federation, name = Federation.from_arrays(X, y, users), " x ".join(map(str, shape))
    lines = []
    kinds: dict[str, Any] = {"K and shape": GIVEN, "auto": "auto", "auto:4": "auto:4"}
    for words, clusterer in (kinds | {"kmeans:4": "kmeans:4"}).items():
        progress(f"{name}, {words}")
        method = Method.of("default", clusterer=clusterer)

        def whole(clusterer: Any = clusterer) -> Any:
            return ODCLRegressor(clusterer=clusterer, curves=False).fit(X, y, users)

        def alone(method: Method = method) -> Any:
            return fit(federation, Risk("squared", intercept=True), method)

        mine, bare, *_ = in_turns(whole, alone, rounds)
        ratio = mine / bare
        lines.append((f"{name}, {words}", f"{bare:.3f}", f"{ratio:.2f}", at_most(ratio, 1.3)))
    return lines


def _loop_over(kind: Callable[[], Any], X: Any, y: Any, n_users: int) -> Callable[[], Any]:
    parts = list(zip(np.split(X, n_users), np.split(y, n_users), strict=True))
    return lambda: [kind().fit(*part) for part in parts]


def _loop(loss: str, size: tuple[int, int, int], rounds: int) -> tuple[str, ...]:
    progress(f"loop, {loss}")
    X, y, users = grouped_rows(loss, *size)
    kind: Any = ODCLRegressor if loss == "squared" else ODCLClassifier
    loop = _loop_over(
        LinearRegression if loss == "squared" else LogisticRegression, X, y, len(X) // size[1]
    )
    asked = {"clusterer": GIVEN, "curves": False}
    given, theirs, *_ = in_turns(lambda: kind(**asked).fit(X, y, users), loop, rounds)
    searched, *_ = in_turns(lambda: kind(curves=False).fit(X, y, users), lambda: None, 1)
    ratio, more = theirs / given, searched / given
    return (
        *(f"{' x '.join(map(str, size))}, {loss}", f"{given:.3f}", f"{ratio:.2f}"),
        *(at_least(ratio, 5), f"{more:.1f}", at_most(more, 10)),
    )


def _sights(quick: bool) -> tuple[tuple[str, tuple[int, int, int], int, float], ...]:
    few = ("squared", (100, 50, 20), 10, 0.0)
    many = ("squared", (1000, 200, 20), 4, 3.0), ("logistic", (1000, 200, 20), 4, 0.0)
    return (few,) if quick else (few, *many)


def _sight(loss: str, size: tuple[int, int, int], k: int, rounds: int, goal: float) -> tuple:
    name = f"{' x '.join(map(str, size))}, {loss}"
    progress(f"first sight: {name}")
    X, y, users = grouped_rows(loss, *size, n_groups=k)
    kind: Any = ODCLRegressor if loss == "squared" else ODCLClassifier
    one = LinearRegression if loss == "squared" else LogisticRegression
    loop = _loop_over(one, X, y, size[0])
    mine, theirs, *_ = in_turns(lambda: kind().fit(X, y, users), loop, rounds)
    lines, *_ = in_turns(lambda: kind(curves=False).fit(X, y, users), lambda: None, rounds)
    met = f">= {goal:g} {at_least(theirs / mine, goal)}" if goal else ""
    cells = f"{mine:.3f}", f"{theirs / mine:.2f}", met, f"{lines:.3f}", f"{theirs / lines:.2f}"
    return name, *cells


def _many(n_users: int, n_classes: int) -> tuple[str, ...]:
    progress(f"{n_classes} classes")
    X, y, users = sensor_rows(n_users, 90, 84, n_classes)
    loop = _loop_over(lambda: LogisticRegression(max_iter=1000), X, y, n_users)
    mine, theirs, *_ = in_turns(lambda: ODCLClassifier().fit(X, y, users), loop, 1)
    name, ratio = f"{n_users} x 90 x 84, {n_classes} classes", mine / theirs
    return name, f"{mine:.2f}", f"{ratio:.1f}", at_most(ratio, 3)
