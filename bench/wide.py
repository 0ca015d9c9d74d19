"""Wide users: images, sensors and embeddings, with more parameters than the users have rows.

The number of groups is never given. Beside the default: a penalised model per user, one for all,
one per true group, and the paper's K-means told the number of groups.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score

from bench.pieces import watched
from bench.tables import at_most, in_turns, progress, table
from bench.wide_rivals import logistic_by_group, ridge_by_group
from bench.wide_worlds import (
    World,
    alike_users,
    cifar_users,
    digit_users,
    embedding_users,
    mnist_users,
    rotated_users,
    sensor_users,
    squared_users,
    write_users,
)
from bench.worlds import sensor_rows
from odcl import Method, ODCLClassifier, ODCLRegressor
from odcl._typing import Floats

NOTE = """Accuracy on new rows, mean over users and worst user, and log-loss, all as means over
seeds. 'K': seeds with the right number of groups; 'ARI': adjusted Rand index of users' groups.
local, pooled, true groups: logistic regression of each user, of everybody, of each true group, its
penalty by three-fold cross-validation; paper: K-means of local models, K given. 'log-loss' in the
last column: not above that of local models."""
ALIKE_NOTE = """Made rows of three classes, 60 users who do not differ, with 20 rows each (or 1 to
100); MNIST: ten classes, 40 users with 30 rows."""
SQUARED_NOTE = """Mean squared error of noiseless targets over their variance: 60 users in 4 groups,
independent features, noise of sd .5 for a signal of 1. Ridge alone and in true groups: RidgeCV."""
SPEED_NOTE = """CPU seconds: of ODCLClassifier.fit over one LogisticRegression per user, in turns;
of a fit in a process of its own, with the peak memory of that process, rows included."""
PIECES_NOTE = """odcl fit --engine dask --holdout 0; 20 rows x 384 features per user, ten classes in
three label permutations, the rows of a user in different files."""
MOST_BYTES = 8 * 10**9  # of address space, for each process of a fit in pieces


class Board(NamedTuple):
    """A world, and what is wanted there."""

    name: str
    make: Callable[..., World]
    accuracy: float = 0.0
    worst: float = 0.0
    gap: float = 1.0  # largest distance to the accuracy of true groups
    above_local: bool = False  # is the worst user as good as the worst local model?
    groups: bool = True  # should their number be right?
    seeds: int = 5


def two_digits(seed: int) -> World:
    """Pairs of 8 x 8 digits in turn; half of the users call them the other way round."""
    return digit_users(seed, classes=((3, 8), (4, 9), (1, 7), (5, 6))[seed % 4])


IMAGES = (
    Board("MNIST 1/2, n=4", mnist_users, 0.98, 0.95, seeds=10),
    Board("MNIST 3/8, n=6", partial(mnist_users, classes=(3, 8), n_rows=6), 0.95, seeds=10),
    Board("MNIST 4/9, n=6", partial(mnist_users, classes=(4, 9), n_rows=6), 0.945, seeds=10),
    Board("CIFAR10, n=40", cifar_users, 0.81),
    Board("CIFAR10, 20 % flipped", partial(cifar_users, flip=0.2), 0.79),
    Board("rotated MNIST, pixels", rotated_users, gap=0.01),
    Board("rotated MNIST, 400 ReLU", partial(rotated_users, relu=400), gap=0.01),
)
MADE = (
    Board("embeddings, 50 x 384", embedding_users, 0.935),
    Board("digits, two labellings", digit_users, gap=0.01, above_local=True),
    Board("digits, one group", partial(digit_users, n_groups=1), gap=0.01, above_local=True),
    Board("two digits, two labellings", two_digits, 0.982, above_local=True),
    *(
        Board(f"sensors, n={n}", partial(sensor_users, n_rows=n), above_local=True, groups=False)
        for n in (10, 30, 90)
    ),
)


def run(*, quick: bool, data: Path, users: int | None = None, seeds: int | None = None) -> None:
    """All boards; those of images where their files are. ``users``: also so many in pieces."""
    asked = 1 if quick else seeds
    header = ("", "accuracy", "worst", "log-loss", "K", "ARI", "wanted", "")
    lines: list[tuple[str, ...]] = []
    lacking: dict[str, list[str]] = {}
    for board in IMAGES:
        make = partial(board.make, data=data)
        if reason := _lacking(make):
            lacking.setdefault(reason, []).append(board.name)
        else:
            lines += _board(board._replace(make=make), asked or board.seeds)
    for reason, names in lacking.items():
        print(f"Not measured: {'; '.join(names)}. {reason}")
    table("10a. Images", header, lines, NOTE)
    lines = [line for board in MADE for line in _board(board, asked or board.seeds)]
    table("10b. Embeddings, digits, sensors", header, lines, NOTE)
    lines = _alike_lines(data, range(2 if quick else 20))
    table("10c. No groups", ("", "K = 1", "wanted", ""), lines, ALIKE_NOTE)
    shapes = SHAPES[:2] if quick else SHAPES
    lines = [_squared_line(*shape, range(asked or 5)) for shape in shapes]
    header = ("d, n", "K", "default", "alone", "pooled", "true groups", "default / alone", "wanted")
    table("10d. Squared loss", (*header, ""), lines, SQUARED_NOTE)
    _speed(quick)
    if users:
        _pieces(users)


def _lacking(make: Callable[..., World]) -> str:
    """Why a world cannot be made: its images are not there. Empty: it can."""
    try:
        make(0)
    except ValueError as reason:
        return str(reason)
    return ""


# -- classes ---------------------------------------------------------------------------------------


class Scores(NamedTuple):
    accuracy: float
    worst: float
    loss: float
    right: float = math.nan  # was the number of groups right?
    ari: float = math.nan


def _board(board: Board, n_seeds: int) -> list[tuple[str, ...]]:
    found: dict[str, list[Scores]] = {}
    for seed in range(n_seeds):
        progress(f"wide: {board.name}, seed {seed}")
        for name, scores in measured(board.make(seed)).items():
            found.setdefault(name, []).append(scores)
    means = {name: Scores(*np.mean(scores, axis=0)) for name, scores in found.items()}
    lines = []
    for name, mean in means.items():
        wanted, failed = _wanted(board, means) if name == "default" else ("", [])
        verdict = "NOT MET: " + ", ".join(failed) if failed else "met" if wanted else ""
        groups = ("", "")
        if name in ("default", "paper, K given"):
            groups = f"{round(n_seeds * mean.right)} of {n_seeds}", f"{mean.ari:.2f}"
        cells = (f"{x:.3f}" for x in mean[:3])
        lines.append((f"{board.name}, {name}", *cells, *groups, wanted, verdict))
    return lines


def _wanted(board: Board, means: dict[str, Scores]) -> tuple[str, list[str]]:
    """What a board wants of the default in words, and what it failed."""
    ours, local = means["default"], means["local"]
    best = means.get("true groups", means["pooled"])
    # A log-loss is measured with some noise: a thousandth more is no more.
    checks = [("log-loss", ours.loss <= local.loss + 1e-3)]
    if board.groups:
        checks.append(("K", ours.right == 1))
    if board.accuracy:
        checks.append((f">= {board.accuracy:g}", ours.accuracy >= board.accuracy))
    if board.worst:
        checks.append((f"worst >= {board.worst:g}", ours.worst >= board.worst))
    if board.gap < 1:
        gap = f"true groups - {board.gap:g}"
        checks.append((gap, ours.accuracy >= best.accuracy - board.gap))
    if board.above_local:
        checks.append(("worst >= local", ours.worst >= local.worst))
    return ", ".join(name for name, _ in checks), [name for name, met in checks if not met]


def measured(world: World) -> dict[str, Scores]:
    """The default and its rivals on one world of classes."""
    n_groups, everybody = int(world.truth.max()) + 1, np.zeros_like(world.truth)
    found = {"default": _estimator(ODCLClassifier(), world)}
    rivals = {"local": np.arange(len(world.truth)), "pooled": everybody}
    if n_groups > 1:
        told = ODCLClassifier(method=Method.paper(n_clusters=n_groups))
        found["paper, K given"] = _estimator(told, world)
        rivals["true groups"] = world.truth
    for name, groups in rivals.items():
        found[name] = _scores(logistic_by_group(world, groups), world)
    return found


def _estimator(model: Any, world: World) -> Scores:
    model.fit(world.X, world.y, users=world.users)
    p = np.empty((len(world.y_new), len(model.classes_)))
    for start in range(0, len(p), 4000):  # rows at a time: images as float64 are large
        at = slice(start, start + 4000)
        p[at] = model.predict_proba(world.X_new[at], users=world.users_new[at])
    right = model.n_clusters_ == world.truth.max() + 1
    order = np.searchsorted(np.asarray(model.users_), np.arange(len(world.truth)))
    ari = adjusted_rand_score(world.truth, np.asarray(model.labels_)[order])
    return _scores(p, world)._replace(right=float(right), ari=float(ari))


def _scores(p: Floats, world: World) -> Scores:
    n = np.bincount(world.users_new)
    right = np.bincount(world.users_new, p.argmax(axis=1) == world.y_new) / n
    likely = np.clip(p[np.arange(len(p)), world.y_new], 1e-6, 1.0)
    return Scores(float(right.mean()), float(right.min()), float(-np.log(likely).mean()))


# -- no groups, squared loss -----------------------------------------------------------------------


def _alike_lines(data: Path, seeds: range) -> list[tuple[str, ...]]:
    kinds: dict[str, Callable[[int], World]] = {}
    for d in (200, 800):
        make = partial(alike_users, n_features=d, n_new=1)
        kinds[f"{d} features, normal"] = make
        kinds[f"{d} features, t4 noise"] = partial(make, t4=True)
        kinds[f"{d} features, 1 - 100 rows"] = partial(make, uneven=True)
    kinds["MNIST"] = partial(rotated_users, data=data, n_groups=1, n_rows=30, n_new=1)
    lines = []
    for name, made in kinds.items():
        progress(f"wide: no groups, {name}")
        if reason := _lacking(made):
            print(f"Not measured: {name}. {reason}")
            continue
        worlds = (made(seed) for seed in seeds)
        found = sum(ODCLClassifier().fit(w.X, w.y, w.users).n_clusters_ == 1 for w in worlds)
        verdict = "met" if found == len(seeds) else "NOT MET"
        lines.append((name, f"{found} of {len(seeds)}", "all", verdict))
    return lines


# Features, rows, and whether the groups can be known.
SHAPES = (
    (200, 20, False),
    (200, 100, True),
    (500, 50, False),
    (1000, 50, False),
    (1000, 200, True),
    (2000, 100, False),
)


def _squared_line(d: int, n: int, known: bool, seeds: range) -> tuple[str, ...]:
    progress(f"wide: squared loss, d={d}, n={n}")
    right, errors = 0, []
    for seed in seeds:
        world = squared_users(seed, n_features=d, n_rows=n)
        model = ODCLRegressor().fit(world.X, world.y, users=world.users)
        right += int(model.n_clusters_ == 4)
        guesses = [model.predict(world.X_new, users=world.users_new)]
        everybody = np.arange(len(world.truth))
        guesses += [
            ridge_by_group(world, groups) for groups in (everybody, 0 * everybody, world.truth)
        ]
        errors.append([np.mean((guess - world.y_new) ** 2) for guess in guesses])
    default, *others = np.mean(errors, axis=0) / np.mean(world.y_new**2)
    ratio = default / others[0]
    verdict = at_most(ratio, 1.05) if not known or right == len(seeds) else "NOT MET: K"
    return (
        *(f"{d}, {n}", f"{right} of {len(seeds)}", *(f"{x:.3f}" for x in (default, *others))),
        *(f"{ratio:.2f}", "<= 1.05" + (", K" if known else ""), verdict),
    )


# -- speed and memory ------------------------------------------------------------------------------


def _speed(quick: bool) -> None:
    n_users = 10 if quick else 30
    progress("wide: six classes")
    X, y, users = sensor_rows(n_users, 90, 84, 6)
    rows = [users == user for user in range(n_users)]

    def loop() -> list[Any]:
        return [LogisticRegression(max_iter=1000).fit(X[own], y[own]) for own in rows]

    fit, theirs, *_ = in_turns(lambda: ODCLClassifier().fit(X, y, users), loop, 1 if quick else 3)
    name, ratio = f"{n_users} x 90 x 84, six classes", fit / theirs
    lines = [(name, f"{fit:.2f}", f"{ratio:.1f}", "", "<= 2 loops", at_most(ratio, 2))]
    shape = (20, 40, 3072) if quick else (100, 40, 3072)
    progress("wide: 3,072 features")
    call = [sys.executable, "-m", "bench.wide", *map(str, shape)]
    done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
    seconds, peak = json.loads(done.stdout.splitlines()[-1])
    verdict = "met" if seconds <= 5 and peak < 1 else "NOT MET"
    name = f"{' x '.join(map(str, shape))}, two classes"
    lines.append((name, f"{seconds:.2f}", "", f"{peak:.2f}", "<= 5 s, < 1 GB", verdict))
    header = ("", "fit, s", "fit / loop", "peak GB", "wanted", "")
    table("10e. Speed of wide users", header, lines, SPEED_NOTE)


def _one_fit(n_users: int, n_rows: int, n_features: int) -> tuple[float, float]:
    """Seconds of a fit of two groups, who call two classes by each other's name, and peak GB."""
    world = alike_users(
        0, n_users=n_users, n_rows=n_rows, n_features=n_features, n_classes=2, n_new=0
    )
    start = time.process_time()
    ODCLClassifier().fit(world.X, (world.y + world.users) % 2, world.users)
    seconds = time.process_time() - start
    # Not ru_maxrss: a child starts with that of its parent.
    words = Path("/proc/self/status").read_text().split()
    return seconds, int(words[words.index("VmHWM:") + 1]) / 1e6


def _pieces(users: int) -> None:
    try:
        import distributed  # noqa: F401
    except ImportError:
        print("Wide users in pieces are not measured: pip install 'odcl[dask]'.")
        return
    sizes, found = (max(users // 10, 1), users), []
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="odcl-bench-") as place:
            progress(f"wide: a table of {size:,} users")
            write_users(Path(place) / "table", size)
            words = ("table", "--user", "user", "--target", "label", "--engine", "dask")
            progress("wide: fit in pieces")
            more = ("--holdout", "0", "--out", "run")
            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            # Children inherit it: what takes too much fails, and does not starve the machine.
            resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, hard))
            try:
                found.append(watched(("fit", *words, *more), Path(place)))
            except SystemExit as end:
                print(f"Wide users in pieces, {size:,} users: NOT MET. {end}")
                return
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    lines = [(f"{n:,} users", *one.cells(n)) for n, one in zip(sizes, found, strict=True)]
    header = ("", "wall s", "CPU s", "GB", "disk GB", "us CPU per user")
    table("10f. Wide users in pieces", header, lines, PIECES_NOTE)
    first, last = (one.cpu / n for one, n in zip(found, sizes, strict=True))
    flat = at_most(last / first, 1.5)
    print(f"CPU per user, many users over few: {last / first:.2f}, {flat} (<= 1.5).")
    print(f"Peak memory: {at_most(found[-1].peak, 6.0)} (<= 6 GB).")


if __name__ == "__main__":
    print(json.dumps(_one_fit(*map(int, sys.argv[1:]))))
