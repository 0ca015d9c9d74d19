"""What several test files need: points and users to try things on, references, files, processes.

Fixtures that several folders need are in ``conftest.py`` beside this file.
"""

from __future__ import annotations

import errno
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.spatial.distance import cdist, pdist

from odcl import ODCLClassifier, ODCLRegressor
from odcl.artifact.folder import MANIFEST, Entry, Manifest
from odcl.clustering.convex.weighted import as_weights
from odcl.data.federation import Federation
from odcl.risk.losses import Huber, Logistic, Multinomial, Poisson, Squared

# Real images, where they lie beside the project.
SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"

# -- losses ----------------------------------------------------------------------------------------

LOSS_NAMES = ["squared", "huber", "poisson", "logistic", "multinomial"]
LOSSES = [Squared(), Huber(), Logistic(), Multinomial(3), Poisson()]
every_loss = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)


def logistic_labels(z, rng):
    """Labels -1 and 1 of a logistic model with linear predictor ``z``."""
    return np.where(rng.random(len(z)) < 1 / (1 + np.exp(-z)), 1.0, -1.0)


def poisson_counts(z, rng):
    """Counts whose logarithm follows 0.3 ``z``, neither too small nor too large."""
    return rng.poisson(np.exp(np.clip(0.3 * z, -6, 3)))


# -- points to cluster -----------------------------------------------------------------------------


def blobs(n_points=30, dim=2, *, n_groups=3, apart=4.0, seed=0):
    """Points with unit noise around normal centers; point i is in group i modulo ``n_groups``."""
    rng = np.random.default_rng(seed)
    means = apart * rng.normal(size=(n_groups, dim))
    return means[np.arange(n_points) % n_groups] + rng.normal(size=(n_points, dim))


def any_points(seed, *, odd, most=14):
    """Fewer than ``most`` points in 1 to 4 dimensions: normal, heavy-tailed, or odd.

    ``odd`` is "grid" (close to a small grid) or "copies" (twice as many, with repetitions).
    """
    rng = np.random.default_rng(seed)
    shape = rng.integers(3, most), rng.integers(1, 5)
    kind = rng.integers(3)
    if kind == 0:
        return rng.normal(size=shape)
    if kind == 1:
        return rng.standard_t(1.5, size=shape)
    if odd == "grid":
        return rng.integers(-3, 4, size=shape) + 1e-3 * rng.normal(size=shape)
    return rng.normal(size=shape)[rng.integers(0, shape[0], size=2 * shape[0])]


def is_finer(fine, coarse):
    """Does every cluster of ``fine`` lie in one of ``coarse``?"""
    return len(set(zip(fine, coarse, strict=True))) == fine.max() + 1


# -- convex clustering, by its definition and by another solver ------------------------------------


def convex_objective(a, u, lam, w=None):
    """The objective of convex clustering at ``u``; without ``w`` every weight is 1."""
    if w is None:
        penalty = pdist(u).sum()
    else:
        w = w.toarray() if sparse.issparse(w) else np.asarray(w)
        penalty = (w * cdist(u, u)).sum() / 2
    return 0.5 * ((a - u) ** 2).sum() + lam * penalty


def convex_by_cvxpy(a, lam, w=None):
    """The minimiser of ``convex_objective`` by CLARABEL, as accurate as it gets."""
    cp = pytest.importorskip("cvxpy")
    u = cp.Variable(a.shape)
    if w is None:
        i, j = np.triu_indices(len(a), 1)
        penalty = cp.sum(cp.norm(u[i] - u[j], 2, axis=1))
    else:
        edges = as_weights(w, len(a))
        penalty = edges.data @ cp.norm(u[edges.row] - u[edges.col], 2, axis=1)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(a - u) + lam * penalty))
    accuracy = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "may be inaccurate": we ask for more than it has
        problem.solve(solver="CLARABEL", **accuracy)
    return np.asarray(u.value)


# -- users and their models ------------------------------------------------------------------------


def equal_users(X, y, n_users):
    """Users 0, 1, ... with equally many rows each, in the order of the rows."""
    offsets = np.arange(n_users + 1) * (len(y) // n_users)
    return Federation(X, y, offsets, np.arange(n_users))


def offsets_of(counts):
    """Where each user's rows begin and end, from how many they are."""
    return np.concatenate([[0], np.cumsum(counts)])


def squared_error(models, optima):
    """Squared distance of a model to its optimum, mean over users."""
    return float(np.square(models - optima).sum(axis=1).mean())


# -- estimators ------------------------------------------------------------------------------------

FRAME_COLUMNS = ["a", "b", "c", "d", "e"]


def train_and_test(n, seed=0):
    """Two masks of ``n`` rows, about half of them each."""
    held_out = np.random.default_rng(seed).random(n) < 0.5
    return ~held_out, held_out


def target_of_kind(loss, y):
    """A target of the kind that the named loss takes, made from the numbers ``y``."""
    rng = np.random.default_rng(3)
    return {
        "squared": y,
        "huber": y,
        "poisson": poisson_counts(y, rng),
        "logistic": np.where(y > 0, "yes", "no"),
        "multinomial": np.digitize(y, [-2.0, 2.0]),
    }[loss]


def estimator_for(loss, **settings):
    """The estimator that takes the named loss."""
    kind = ODCLClassifier if loss in ("logistic", "multinomial") else ODCLRegressor
    return kind(loss, random_state=0, **settings)


def response(model, X, users):
    """Numbers that move with the model: probabilities where there are classes."""
    if hasattr(model, "predict_proba"):
        return model.predict_proba(X, users=users)
    return model.predict(X, users=users)


# -- tables for the command line -------------------------------------------------------------------

ROLES = ("--user", "user", "--target", "y")
# Without the comparison on held-out rows, which most promises do not touch.
NO_HOLDOUT = (*ROLES, "--holdout", "0")


def people(n_users=8, n=14, seed=0) -> pd.DataFrame:
    """Users u0, u1, ... in two groups, features a, b, c, a target y with little noise."""
    rng = np.random.default_rng(seed)
    models = np.array([[3.0, -2.0, 1.0, 0.0], [-3.0, 2.0, 4.0, 10.0]])
    owner = np.repeat(np.arange(n_users), n)
    X = rng.normal(size=(len(owner), 3))
    y = (X * models[owner % 2, :3]).sum(axis=1) + models[owner % 2, 3]
    y += 0.5 * rng.normal(size=len(owner))
    ids = [f"u{i}" for i in owner]
    return pd.DataFrame({"user": ids, "a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "y": y})


def people_in_classes(n_classes=2, **more) -> pd.DataFrame:
    """The same people with a class in place of the number y."""
    frame = people(**more)
    noisy = frame.y + np.random.default_rng(1).normal(0, 3, len(frame))
    names = ["low", "mid", "top"][:n_classes] if n_classes > 2 else ["no", "yes"]
    return frame.assign(y=pd.qcut(noisy, n_classes, labels=names).astype(str))


def save_csv(frame: pd.DataFrame, name="table.csv") -> Path:
    """Write a frame where the test works, and say where that is."""
    frame.to_csv(name, index=False)
    return Path(name)


def features_of(frame: pd.DataFrame) -> np.ndarray:
    """The features of ``people`` as the command sees them: a matrix, row by row in memory."""
    return np.ascontiguousarray(frame[["a", "b", "c"]])


# -- files, memory and processes -------------------------------------------------------------------


class Said(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


def files_below(folder: str | Path = ".") -> dict[str, bytes]:
    """The content of every file below a folder, hidden ones included."""
    root = Path(folder)
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def full_disk(*_args: object, **_more: object) -> None:
    """Stands in for a function that writes, on a disk with no room left."""
    raise OSError(errno.ENOSPC, "No space left on device")


def refusal(function: Callable[..., Any], *args: Any, match: str | None = None, **options: Any):
    """The ValueError with which a call is refused, as text; it must be one line."""
    with pytest.raises(ValueError, match=match) as caught:
        function(*args, **options)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def peak_memory(work: Callable[[], Any]) -> tuple[Any, int]:
    """What a call gives back, and the most bytes it held at any time."""
    tracemalloc.start()
    try:
        result = work()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def run_python(code: str) -> list[str]:
    """Run code in a Python of its own, which must end well, and give the lines it prints."""
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def start_python(*words: object, **options: Any) -> subprocess.Popen[str]:
    """Start Python with these words, its output readable while it runs."""
    return subprocess.Popen(
        [sys.executable, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


def models_of(model, *, groups=False):
    """Coefficients and intercept side by side, (..., n_features + 1), of users or of groups."""
    coef = model.group_coef_ if groups else model.coef_
    if not model.fit_intercept:
        return coef
    intercept = model.group_intercept_ if groups else model.intercept_
    return np.concatenate([coef, intercept[..., None]], axis=-1)


def model_of(assignment):
    """Coefficients and intercept of an assigned user, shaped as a row of ``models_of``."""
    return np.concatenate([assignment.coef, np.expand_dims(assignment.intercept, -1)], axis=-1)


def with_columns(model, /, **columns):
    """A fitted estimator whose users have these columns in place of their own."""
    fitted = model.fitted_
    return model._hold(replace(fitted, users=replace(fitted.users, **columns)))


def seal(folder: Path) -> None:
    """A manifest for the files as they are: whoever changes a file can do that too."""
    names = [path.name for path in folder.iterdir() if path.name != MANIFEST]
    manifest = Manifest.of("model", {name: Entry.of(folder / name) for name in names})
    (folder / MANIFEST).write_bytes(manifest.to_bytes())
