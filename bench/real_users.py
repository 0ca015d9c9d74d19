"""Users made of real images by a stated rule: accuracy on unseen rows of the user's own task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.images import digits, mnist
from bench.tables import progress, table
from odcl import Method, ODCLClassifier
from odcl._typing import Array, Floats, Ints

PAIRS = (3, 8), (1, 7), (4, 9)
RULE = """Users: for each of the digit pairs 3-8, 1-7, 4-9 some who label the second digit 1 and as
many who label it 0 (six true groups); n_i log-uniform on the range given, drawn without replacement
from two thirds of the pair's images; tested on up to 300 images of the other third. Accuracy: mean
over users and of the worst user, each mean over splits +- standard error; K found, mean."""
VARIANTS = {
    "paper (silhouette, mean, no refit)": Method.paper(),
    "odcl, default (refit='evidence')": Method(),
    "refit='cv'": Method(refit="cv"),
    "refit=None": Method(refit=None),
    "combine='mean', refit=None": Method(combine="mean", refit=None),
    "combine='samples', refit=None": Method(combine="samples", refit=None),
    "combine='mean'": Method(combine="mean"),
    "combine='samples'": Method(combine="samples"),
}
# With more than 100 parameters, with and without the refit.
WIDE = {
    "paper (silhouette, mean, no refit)": Method.paper(),
    "odcl, default": Method(),
    "samples, refit='cv'": Method(combine="samples", refit="cv"),
    "samples, refit=None": Method(combine="samples", refit=None),
    "samples, K=6, refit=None": Method(6, combine="samples", refit=None),
}


def run(*, quick: bool, data: Path) -> None:
    splits = 2 if quick else 5
    small, large = mnist(data, 7), mnist(data, 14)
    cases = [("digits 8x8", digits(), 10, 60, 5, VARIANTS)]
    if not quick:
        cases.append(("digits 8x8", digits(), 60, 120, 3, VARIANTS))
    if small is not None and large is not None:
        cases += [
            ("MNIST 7x7", small, 10, 60, 5, VARIANTS),
            ("MNIST 7x7", small, 40, 300, 5, VARIANTS),
            ("MNIST 14x14", large, 40, 300, 5, WIDE),
        ]
    for name, source, low, high, per, variants in cases[: 1 if quick else None]:
        title = f"4. {name}, n_i {low}-{high}, {per} users per group"
        rows = _measure(title, source, (low, high, per), variants, splits)
        header = (f"{splits} splits", "mean", "+-", "worst user", "+-", "K")
        table(title, header, rows, RULE if name.startswith("digits") and low == 10 else "")


@dataclass(frozen=True, eq=False)
class Users:
    """Training rows with their owners, and each user's test rows and labels."""

    X: Floats
    y: Ints
    owner: Ints
    tests: list[tuple[Floats, Array]]


def make_users(source: tuple[Floats, Ints], low: int, high: int, per: int, seed: int) -> Users:
    X, y = source
    rng = np.random.default_rng(seed)
    rows, labels, tests = [], [], []
    for a, b in PAIRS:
        index = rng.permutation(np.flatnonzero((y == a) | (y == b)))
        third = len(index) // 3
        test, pool = index[:third][:300], index[third:]
        for flipped in (False, True):
            for _ in range(per):
                n = int(np.exp(rng.uniform(np.log(low), np.log(high))))
                mine = rng.choice(pool, n, replace=False)
                rows.append(mine)
                labels.append((y[mine] == b) ^ flipped)
                tests.append((X[test], (y[test] == b) ^ flipped))
    owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    return Users(X[np.concatenate(rows)], np.concatenate(labels).astype(int), owner, tests)


def _accuracies(users: Users, predict: Callable[[int, Floats], Array]) -> Floats:
    return np.array([(predict(u, X) == y).mean() for u, (X, y) in enumerate(users.tests)])


def _one_split(users: Users, variants: dict[str, Method]) -> dict[str, tuple]:
    """(mean, worst, K) of every method on one split."""
    found: dict[str, tuple] = {}

    def note(name: str, model: ODCLClassifier, k: int, *, own: bool = True) -> None:
        def predict(user: int, X: Floats) -> Array:
            return model.predict(X, users=np.full(len(X), user) if own else None)

        accuracy = _accuracies(users, predict)
        found[name] = accuracy.mean(), accuracy.min(), k

    # As many groups as users: everybody keeps its local model.
    n_users = len(users.tests)
    local = _fit(users, Method(n_users, combine="mean", refit=None))
    note("local", local, n_users)
    everybody = ODCLClassifier(random_state=0).fit(users.X, users.y)
    note("one model for all", everybody, 1, own=False)
    for name, method in variants.items():
        model = _fit(users, method)
        note(name, model, model.n_clusters_)
    return found


def _fit(users: Users, method: Method) -> ODCLClassifier:
    return ODCLClassifier(method=method, random_state=0).fit(users.X, users.y, users=users.owner)


def _measure(
    title: str,
    source: tuple[Floats, Ints],
    sizes: tuple[int, int, int],
    variants: dict[str, Method],
    splits: int,
) -> list[tuple]:
    runs: dict[str, list[tuple]] = {}
    for seed in range(splits):
        progress(f"{title}, split {seed + 1} of {splits}")
        for name, found in _one_split(make_users(source, *sizes, seed), variants).items():
            runs.setdefault(name, []).append(found)
    lines = {name: np.array(values, dtype=float) for name, values in runs.items()}
    return [_row(name, values) for name, values in lines.items()]


def _row(name: str, values: Floats) -> tuple:
    """``values`` (splits, 3): mean and worst accuracy, K."""
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    cells = (f"{mean[0]:.3f}", f"{error[0]:.3f}", f"{mean[1]:.3f}", f"{error[1]:.3f}")
    return name, *cells, f"{mean[2]:.1f}"
