"""People's tables with a user column: curves beside lines and beside what others would use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from bench.curves import HAS_CURVES, LINES_ONLY, estimator
from bench.tables import at_least, cpu_seconds, progress, table
from odcl import ODCLClassifier, ODCLRegressor
from odcl._typing import Bools, Floats

COVERED = 20  # splits: rows of a year go together, and three splits tell little of coverage
# Mean user's errors to reach; every table has the other targets.
GOALS = {"sumhes": 0.05, "cigar": 0.033, "diamonds": 0.128, "sleepstudy": 20, "gasoline": 0.0375}
NOTE = """A quarter of each user's rows is held out (splits 0, 1, 2). The error of a user is its
RMSE, or its log-loss where the target is 0/1; mean over users, averaged over the splits. 'best
peer': for the mean user, of all in peers.json (ridge, MixedLM, LightGBM, GPBoost, ...), measured on
the same splits; ratios below 1 are ahead of it. 'worst': the worst user's error, curves over lines.
'covers': held-out rows inside intervals of 90 %, mean of 20 splits (one is off by .01 to .06).
K of each split, curves. 'time': CPU seconds of a fit, curves over lines; 'MixedLM': of statsmodels'
MixedLM (REML, random slopes of every column) over ours with lines, first split. Targets: within 1 %
of the best peer, worst user 1.03, coverage .88 - .92, time 3, and the errors in brackets; those not
met are named."""


@dataclass(frozen=True)
class Outcome:
    """One split of one table."""

    mean: float
    worst: float
    covers: float  # NaN for classes
    n_groups: int
    seconds: float


def run(*, quick: bool, data: Path) -> None:
    place = data / "tables"
    if not (place / "peers.json").exists():
        print(f"\n5. Real tables: left out, {place / 'peers.json'} is not there")
        return
    peers: dict[str, dict[str, list[float]]] = json.loads((place / "peers.json").read_text())
    names = [name for name in peers if (place / f"{name}.csv").exists()]
    for name in sorted(peers.keys() - names):
        print(f"\n{name}: left out, {place / name}.csv is not there")
    names = names[: 3 if quick else None]
    print("" if HAS_CURVES else LINES_ONLY)
    outcome(place / f"{names[0]}.csv", 0)  # what is loaded on first use is no part of a fit
    header = (
        *("", "curves", "lines", "best peer", "curves / it", "lines / it", "worst", "covers"),
        *("K", "time", "MixedLM", ""),
    )
    lines = [_line(place / f"{name}.csv", peers[name], range(1 if quick else 3)) for name in names]
    table("5. Real tables, clusterer='auto'", header, lines, NOTE)
    for what, column in (("Curves", 4), ("Lines", 5)):
        ratios = [float(line[column]) for line in lines]
        ahead, near = (sum(r < most for r in ratios) for most in (1, 1.01))
        print(f"\n{what}: ahead of the best peer on {ahead} of {len(lines)}, within 1 % on {near}.")
    faster = float(np.exp(np.mean([np.log(float(line[10])) for line in lines])))
    met = at_least(faster, 20)
    print(f"Geometric mean of MixedLM's time over ours: {faster:.1f} (target: 20, {met}).")


def _line(path: Path, peers: dict[str, list[float]], seeds: range) -> tuple[Any, ...]:
    progress(path.stem)
    curves, lines = ([outcome(path, seed, on) for seed in seeds] for on in ("auto", False))
    best = min(peers.keys() - {"odcl 0.1.0"}, key=lambda name: peers[name][0])
    mean, far, covers, seconds = _means(curves)
    if len(seeds) > 1 and not np.isnan(covers):
        more = [outcome(path, seed).covers for seed in range(len(seeds), COVERED)]
        covers = float(np.mean([one.covers for one in curves] + more))
    base, base_far, _, base_seconds = _means(lines)
    goal = GOALS.get(path.stem, np.inf)
    missed = {
        "error": mean > goal,
        "peer": mean > 1.01 * peers[best][0],
        "worst": far > 1.03 * base_far,
        "covers": abs(covers - 0.9) > 0.02,
        "time": seconds > 3 * base_seconds,
    }
    wrong = ", ".join(name for name, yes in missed.items() if yes)
    return (
        *(path.stem, f"{mean:.4g}" + (f" ({goal:g})" if goal < np.inf else ""), f"{base:.4g}"),
        *(best, f"{mean / peers[best][0]:.3f}", f"{base / peers[best][0]:.3f}"),
        *(f"{far / base_far:.3f}", "-" if np.isnan(covers) else f"{covers:.3f}"),
        "/".join(str(o.n_groups) for o in curves),
        f"{seconds / base_seconds:.2f}",
        f"{_mixed_lm_seconds(path, seeds[0]) / lines[0].seconds:.1f}",
        f"NOT MET: {wrong}" if wrong else "met",
    )


def _means(found: list[Outcome]) -> list[float]:
    names = ("mean", "worst", "covers", "seconds")
    return [float(np.mean([getattr(one, name) for one in found])) for name in names]


def outcome(path: Path, seed: int, curves: str | bool = "auto") -> Outcome:
    """Fit what is left of every user's rows, and judge by the others."""
    frame = pd.read_csv(path, dtype={"user": str})
    X, y = frame.drop(columns="target"), frame["target"]
    held = held_out(frame["user"], seed)
    classes = set(y.unique()) <= {0, 1}
    kind = ODCLClassifier if classes else ODCLRegressor
    model = estimator(kind, curves=curves, users="user", clusterer="auto")
    seconds, _ = cpu_seconds(lambda: model.fit(X[~held], y[~held]))
    new, target = X[held], y[held].to_numpy()
    covers = np.nan
    if classes:
        p = np.clip(model.predict_proba(new)[:, 1], 1e-6, 1 - 1e-6)
        each = _by_user(-np.where(target == 1, np.log(p), np.log(1 - p)), new["user"])
    else:
        low, high = model.predict_interval(new, coverage=0.9)
        covers = float(np.mean((low <= target) & (target <= high)))
        each = np.sqrt(_by_user((model.predict(new) - target) ** 2, new["user"]))
    return Outcome(float(each.mean()), float(each.max()), covers, model.n_clusters_, seconds)


def _mixed_lm_seconds(path: Path, seed: int) -> float:
    """CPU seconds of MixedLM with random slopes on the same rows; categories as dummies."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    frame = pd.read_csv(path, dtype={"user": str})
    kept = frame[~held_out(frame["user"], seed)]
    X = pd.get_dummies(kept.drop(columns=["user", "target"]), drop_first=True).to_numpy(float)
    Z, y = np.column_stack([np.ones(len(X)), X]), kept["target"].to_numpy(float)
    model = MixedLM(y, Z, kept["user"].to_numpy(), exog_re=Z)
    return cpu_seconds(lambda: model.fit(reml=True))[0]


def held_out(users: Any, seed: int) -> Bools:
    """A quarter of each user's rows, at least one where it has two: the peers' splits."""
    rng = np.random.default_rng(seed)
    held = np.zeros(len(users), dtype=np.bool_)
    for _, rows in pd.Series(np.arange(len(users))).groupby(np.asarray(users)):
        k = round(0.25 * len(rows))
        held[rng.permutation(rows.to_numpy())[: max(k, 1) if len(rows) >= 2 else k]] = True
    return held


def _by_user(values: Floats, users: Any) -> Floats:
    return pd.Series(values).groupby(users.to_numpy()).mean().to_numpy()
