"""Curves against lines, K not given: worlds without bends, worlds with them, and time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from bench import curve_worlds as worlds
from bench.curve_worlds import DRAWS, World
from bench.pieces import make_pieces, watched
from bench.tables import in_turns, progress, table
from bench.worlds import grouped_rows
from odcl import ODCLClassifier, ODCLRegressor
from odcl._typing import Floats

STRAIGHT_NOTE = """Seeds in turn have 1 to 5 features, and no groups or three. 'closed': seeds on
which no column bends; 'differs': then the largest difference of predictions from those of lines.
RMSE of new targets (0/1: of log-odds), curves over lines, geometric mean and worst seed;
'distance': of predictions from the truth, curves over lines."""
BENT_NOTE = """Distance of predictions from the truth on new rows (RMSE; 0/1: of log-odds) over the
sd of the noise, mean over seeds; of the bell the RMSE of new targets, noise 8. 'open': seeds on
which a column bends. 'K': seeds with the right number of groups, curves and lines. '/': curves
over lines; 'worst': the same of the worst user, geometric mean. 'covers': new targets inside
intervals of 90 %. New users are judged by what is common to all. Rivals: LightGBM where it is
installed, else HistGradientBoosting, the user a category; ridge of splines and user dummies;
MixedLM (REML, random slopes). 'best': of lines and rivals, within 1 %."""
SIZES = ((60, 20), (200, 10), (20, 50))
HAS_CURVES = "curves" in ODCLRegressor().get_params()
LINES_ONLY = "\nThis version has lines only: 'curves' is the same fit as 'lines'."


def estimator(kind: Any, *, curves: Any, **settings: Any) -> Any:
    """An estimator with curves or lines; settings it does not know yet are left out."""
    settings["curves"] = curves
    return kind(**{name: settings[name] for name in settings.keys() & kind().get_params().keys()})


def verdict(met: Any) -> str:
    """Whether a target of curves is met; without curves, none is measured."""
    return "no curves" if not HAS_CURVES else "met" if met else "NOT MET"


def run(*, quick: bool, data: Path, users: int | None = None, scale: bool = False) -> None:
    seeds = range(3 if quick else 20)
    print("" if HAS_CURVES else LINES_ONLY)
    lines = [_straight(size, draw, "squared", seeds) for size in SIZES for draw in DRAWS]
    lines.append(_straight((60, 60), "normal", "logistic", seeds))
    header = ("", "closed", "differs", "RMSE / lines", "worst seed", "distance", "wanted", "")
    table("12a. No bends: curves over lines", header, lines, STRAIGHT_NOTE)
    header = ("", "open", "K", "curves", "lines", "/", "worst", "covers", *RIVALS, "wanted", "")
    table("12b. Bends", header, [_bent(*b, seeds) for b in BOARD], BENT_NOTE)
    _time(quick)
    if scale:
        _pieces(users or 1_000_000)


class Fit(NamedTuple):
    """One fit of one world."""

    n_groups: int
    closed: bool
    guess: Floats  # of the new rows' predictors
    covers: float  # NaN for classes


def _fitted(w: World, curves: Any) -> Fit:
    kind = ODCLClassifier if w.loss == "logistic" else ODCLRegressor
    model = estimator(kind, curves=curves, periodic=w.periodic if curves else None)
    model.fit(w.X, w.y, users=w.users)
    closed = not any("~" in str(name) for name in model.coefficients().columns)
    if w.loss == "logistic":
        guess, covers = model.decision_function(w.X_new, users=w.owners), np.nan
    else:
        guess = model.predict(w.X_new, users=w.owners)
        low, high = model.predict_interval(w.X_new, 0.9, users=w.owners)
        y = w.truth + w.noise * np.random.default_rng(0).standard_normal(len(w.truth))
        covers = float(np.mean((low <= y) & (y <= high)))
    return Fit(model.n_clusters_, closed, guess, covers)


def _distance(w: World, guess: Floats) -> float:
    return float(np.sqrt(np.mean((guess - w.truth) ** 2))) / w.noise


def _geometric(ratios: Any) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def _straight(size: tuple[int, int], draw: str, loss: str, seeds: range) -> tuple[str, ...]:
    name = f"{size[0]} x {size[1]}, {draw}" + (", yes/no" if loss == "logistic" else "")
    progress(f"no bends: {name}")
    n, differs, errors, far = len(seeds), [], [], []
    for seed in seeds:
        w = worlds.straight(seed, *size, draw, loss)
        curves, lines = (_fitted(w, on) for on in ("auto", False))
        near, base, noise = _distance(w, curves.guess), _distance(w, lines.guess), loss == "squared"
        errors.append(np.sqrt((noise + near**2) / (noise + base**2)))
        far.append(near / base)
        if curves.closed:
            differs.append(np.abs(curves.guess - lines.guess).max())
    closed, most, mean = len(differs), max(differs, default=0.0), _geometric(errors)
    met = closed >= 0.95 * n and most <= 1e-8 and mean <= 1.01
    return (
        *(name, f"{closed}/{n}", f"{most:.0e}", f"{mean:.4f}", f"{max(errors):.3f}"),
        *(f"{_geometric(far):.3f}", "95%, 1e-8, 1.01", verdict(met)),
    )


RIVALS = {"boosting": worlds.boosting, "splines": worlds.splines, "MixedLM": worlds.mixed_lm}
Make = Callable[[int], World]
YES_NO = partial(worlds.bent, kind="common", n_rows=150, loss="logistic")
# Name, world, and the wanted distance (None: that of the best of lines and rivals).
BOARD: tuple[tuple[str, Make, float | None], ...] = (
    ("three groups, a common bend", partial(worlds.bent, kind="common"), 0.15),
    ("three groups, a common bend, yes/no", YES_NO, None),
    ("groups bend differently", partial(worlds.bent, kind="by group", n_rows=40), None),
    ("a bell", worlds.bell, 8.5),
    ("users bend differently", partial(worlds.bent, kind="by user", n_rows=40), None),
    ("constant within users, bent", worlds.constant, None),
    ("constant within users, new users", partial(worlds.constant, newcomers=True), None),
    ("three groups, a constant region", partial(worlds.bent, kind="region"), None),
    ("1 to 300 rows, tails", partial(worlds.bent, kind="tails"), None),
    ("log-normal prices", worlds.prices, None),
    ("log-normal prices, wide", partial(worlds.prices, sd=1.5), None),
    ("log-normal prices, far values", partial(worlds.prices, far=50.0), None),
    ("hours, periodic", partial(worlds.hourly, periodic={"hour": 24}), None),
    ("hours, not said to be periodic", worlds.hourly, None),
)


def _bent(name: str, make: Make, goal: float | None, seeds: range) -> tuple[str, ...]:
    progress(name)
    found, worst, covers, right, n = [], [], [], np.zeros(3, int), len(seeds)
    for w in map(make, seeds):
        fits = [_fitted(w, on) for on in ("auto", False)]
        right += [not fits[0].closed, *(one.n_groups == w.n_groups for one in fits)]
        covers.append(fits[0].covers)
        each = [pd.Series((f.guess - w.truth) ** 2).groupby(w.owners).mean().max() for f in fits]
        worst.append((each[0] / each[1]) ** 0.5)
        guesses = [one.guess for one in fits]
        guesses += [rival(w) for rival in RIVALS.values() if w.loss == "squared"]
        found.append([_distance(w, guess) for guess in guesses])
    values = np.mean(found, axis=0)
    if w.noise != 1:
        values = w.noise * np.sqrt(1 + np.mean(np.square(found), axis=0))
    curves, lines, *others = values
    met = curves <= (goal or 1.01 * min(lines, *others, np.inf)) and right[1] >= 0.95 * n
    return (
        *(name, f"{right[0]}/{n}", f"{right[1]}, {right[2]} of {n}", f"{curves:.3g}"),
        *(f"{lines:.3g}", f"{curves / lines:.2f}", f"{_geometric(worst):.2f}"),
        "-" if np.isnan(covers[0]) or w.owners[0] < 0 else f"{np.mean(covers):.3f}",
        *([f"{v:.3g}" for v in others] or ["-"] * len(RIVALS)),
        *(f"<= {goal:g}, K 95%" if goal else "<= best, K 95%", verdict(met)),
    )


def _time(quick: bool) -> None:
    shape, lines = (200, 50, 5) if quick else (1000, 200, 5), []
    X, y, users = grouped_rows("squared", *shape, n_groups=3)
    for name, height in (("no bends", 0.0), ("one bend", 0.7)):
        progress(f"time: {name}")
        bent = y + height * worlds.BENDS[1](X[:, 0])
        curved, straight = (
            partial(estimator(ODCLRegressor, curves=on).fit, X, bent, users)
            for on in ("auto", False)
        )
        mine, base, *_ = in_turns(curved, straight, 3)
        full, ratio = f"{' x '.join(map(str, shape))}, three groups, {name}", mine / base
        lines.append((full, f"{base:.2f}", f"{ratio:.2f}", "<= 2", verdict(ratio <= 2)))
    header = ("", "lines, s", "curves / lines", "wanted", "")
    table("12c. CPU seconds of ODCLRegressor.fit, least of 3 in turns", header, lines)


def _pieces(users: int) -> None:
    plain = ("--no-curves",) if HAS_CURVES else ()
    with tempfile.TemporaryDirectory(prefix="odcl-bench-") as place:
        folder = Path(place)
        progress(f"a table of {users:,} users")
        make_pieces(folder / "table", users, rows=20, bend=worlds.BENDS[1])
        words = ("fit", "table", "--user", "store", "--target", "sales", "--engine", "dask")
        words += ("--holdout", "0", "--out")
        found = {"lines": watched((*words, "lines", *plain), folder)}
        found["curves"] = watched((*words, "curves"), folder)
    header = ("", "wall s", "CPU s", "GB", "disk GB", "us CPU per user")
    lines = [(what, *one.cells(users)) for what, one in found.items()]
    title = f"12d. {users:,} users x 20 x 5, three groups, one bend, odcl fit --engine dask"
    table(title, header, lines)
    ratio = found["curves"].cpu / found["lines"].cpu
    print(f"CPU seconds, curves over lines: {ratio:.2f}, {verdict(ratio <= 4)} (<= 4).")
    print(f"Peak memory: {verdict(found['curves'].peak <= 6)} (<= 6 GB).")
