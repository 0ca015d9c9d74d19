"""Step 1 alone: all users' local models at once, against a loop over users."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression

from bench.tables import at_least, in_turns, progress, table
from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.local.fit import fit_users
from odcl.risk.risk import Risk

HEADER = (
    "users x rows x features",
    "ours s",
    "loop s",
    "ratio",
    "target",
    "",
    "difference",
    "gradients",
)
NOTE = """CPU seconds, one thread, least of the rounds, in turns. 'difference' is the largest one
between the two in any coefficient, over the largest coefficient; 'gradients' are the largest norms
of a user's gradient, ours and the loop's: what is left of it is the difference. Where the loop ran
over a part of the users, its time is scaled to all of them."""

Fit = Callable[[Floats, Floats], Floats]  # one user's rows and targets -> model
SIDE, CHANNELS = 32, 3


def run(*, quick: bool, data: Path) -> None:
    rounds = 2 if quick else 5
    rows = [*_narrow(200 if quick else 1000, rounds), *_wide(data, quick)]
    table("1. Local solve", HEADER, rows, NOTE)


def equal_users(X: Floats, y: Floats, n: int) -> Federation:
    m = len(y) // n
    return Federation(X, y, np.arange(m + 1) * n, np.arange(m))


def _narrow(m: int, rounds: int) -> list[tuple]:
    n, p = 200, 20
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m * n, p))
    z = np.matmul(X.reshape(m, n, p), rng.standard_normal((m, p, 1))).ravel()
    linear = equal_users(X, z + rng.standard_normal(m * n), n)
    classes = equal_users(X, np.where(rng.random(m * n) < 1 / (1 + np.exp(-z)), 1.0, -1.0), n)
    size = f"{m:,} x {n} x {p}"
    return [
        _line(f"squared, numpy lstsq, {size}", linear, Risk(), _lstsq, 5, rounds),
        _line(
            f"squared, LinearRegression, {size}", linear, Risk(intercept=True), _linear, 30, rounds
        ),
        _line(
            f"logistic l2=1e-2, LogisticRegression, {size}",
            classes,
            Risk("logistic", 1e-2, intercept=True),
            _logistic(1e-2, True),
            12,
            min(rounds, 2),
        ),
        _line(
            f"logistic l2=1e-4, no intercept, {size}",
            classes,
            Risk("logistic", 1e-4),
            _logistic(1e-4, False),
            12,
            min(rounds, 2),
        ),
    ]


def _wide(data: Path, quick: bool) -> list[tuple]:
    """Table 2 of the paper: few images per user, l2 = 1e-5, no intercept."""
    m, n, l2 = 100, 40, 1e-5
    some, rounds = (5, 1) if quick else (20, 4)
    X, y, what = two_classes(data, m * n)
    order = np.random.default_rng(0).permutation(m * n)  # each user has both classes
    images = equal_users(X[order], y[order], n)
    rng = np.random.default_rng(1)
    G = rng.standard_normal(X.shape)
    normal = equal_users(G, np.where(G @ rng.standard_normal(X.shape[1]) > 0, 1.0, -1.0), n)
    size = f"{m} x {n} x {X.shape[1]:,}"
    risk, solve = Risk("logistic", l2), _logistic(l2, False)
    return [
        _line(
            f"logistic l2=1e-5, {what}, {size}",
            images,
            risk,
            solve,
            50,
            rounds,
            some,
        ),
        _line(
            f"logistic l2=1e-5, normal features, {size}",
            normal,
            risk,
            solve,
            None,
            rounds,
            some,
        ),
    ]


def _line(
    name: str,
    federation: Federation,
    risk: Risk,
    fit: Fit,
    target: float | None,
    rounds: int,
    some: int | None = None,
) -> tuple:
    """Ours on all users against the loop on ``some`` of them (default: all)."""
    progress(name)
    some = some or federation.n_users

    def ours() -> Floats:
        return fit_users(federation, risk).theta

    def loop() -> Floats:
        return np.stack(
            [fit(federation.X[r], federation.y[r]) for r in map(federation.rows, range(some))]
        )

    ours()  # warm
    mine, theirs, a, b = in_turns(ours, loop, rounds)
    theirs *= federation.n_users / some
    ratio = theirs / mine
    gap = float(np.abs(a[:some] - b).max() / np.abs(b).max())
    slopes = " / ".join(f"{_steepest(federation, risk, t):.0e}" for t in (a[:some], b))
    goal = ("-", "") if target is None else (f">= {target}", at_least(ratio, target))
    return name, f"{mine:.3f}", f"{theirs:.2f}", f"{ratio:.1f}", *goal, f"{gap:.0e}", slopes


def _steepest(federation: Federation, risk: Risk, theta: Floats) -> float:
    """Largest norm of a user's gradient."""
    y = risk.loss.encode(federation.y)
    users = ((federation.rows(i), t) for i, t in enumerate(theta))
    return max(float(np.linalg.norm(risk.gradient(t, federation.X[r], y[r]))) for r, t in users)


def _lstsq(X: Floats, y: Floats) -> Floats:
    return np.linalg.lstsq(X, y, rcond=None)[0]


def _linear(X: Floats, y: Floats) -> Floats:
    model = LinearRegression().fit(X, y)
    return np.append(model.coef_, model.intercept_)


def _logistic(l2: float, intercept: bool) -> Fit:
    def fit(X: Floats, y: Floats) -> Floats:
        model = LogisticRegression(
            C=1 / (len(y) * l2), tol=1e-8, max_iter=100_000, fit_intercept=intercept
        ).fit(X, y)
        return np.append(model.coef_[0], model.intercept_) if intercept else model.coef_[0]

    return fit


# -- images: the real files where they are, stand-ins where not ------------------------------------


def two_classes(folder: Path, n: int) -> tuple[Floats, Floats, str]:
    """n images of 3,072 pixels in [0, 1], labels -1 and +1, and what they are."""
    path = folder / "cifar10-two-classes" / "train.bin"
    if path.exists():
        raw = np.fromfile(path, dtype=np.uint8).reshape(-1, 1 + CHANNELS * SIDE**2)[:n]
        return raw[:, 1:] / 255.0, np.where(raw[:, 0] == 1, 1.0, -1.0), "CIFAR10 pixels / 255"
    return *natural_images(n, np.random.default_rng(0)), "synthetic images with a 1/f spectrum"


def natural_images(n: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Images whose amplitude falls as 1/f, as that of photographs does, and labels -1 and +1."""
    f = np.hypot(np.fft.fftfreq(SIDE)[:, None], np.fft.fftfreq(SIDE))
    amplitude = 1 / np.maximum(f, 1 / SIDE)
    white = rng.standard_normal((n, CHANNELS, SIDE, SIDE))
    white = 0.9 * white[:, :1] + 0.4 * white  # channels of a photograph are much alike
    images = np.fft.ifft2(np.fft.fft2(white) * amplitude).real
    images = np.clip(0.5 + 0.25 * images / images.std(), 0, 1).reshape(n, -1)
    z = (images - images.mean(axis=0)) @ images[0]
    y = np.where(rng.random(n) < 1 / (1 + np.exp(-2 * z / z.std())), 1.0, -1.0)
    return images, y
