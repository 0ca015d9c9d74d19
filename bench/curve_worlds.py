"""Worlds in which columns act in lines or in curves, and what people would fit to them instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import expit
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import RidgeCV
from sklearn.preprocessing import SplineTransformer

from odcl._typing import Floats, Ints

# Columns with mean 0 and variance 1, or near it: a t with three degrees of freedom has tails.
DRAWS: dict[str, Callable[[Any, tuple[int, int]], Floats]] = {
    "uniform": lambda rng, shape: rng.uniform(-(3**0.5), 3**0.5, shape),
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape) - 1,
    "heavy-tailed": lambda rng, shape: rng.standard_t(3, shape) / 3**0.5,
    "integer": lambda rng, shape: (rng.integers(1, 11, shape) - 5.5) / 2.87,
}
# What is left of each after the best line has a standard deviation of 1 under the standard normal.
BENDS: tuple[Callable[[Floats], Floats], ...] = (
    lambda x: (x**2 - 1) / 2**0.5,
    lambda x: np.sin(1.5 * x) / 0.507,
    lambda x: np.exp(-(x**2)) / 0.337,
    lambda x: np.abs(x) / 0.603,
)


class World(NamedTuple):
    """Rows to fit, and new rows with the true predictor of their owners (-1: a new user)."""

    X: pd.DataFrame
    y: Floats
    users: Ints
    X_new: pd.DataFrame
    truth: Floats
    owners: Ints
    n_groups: int = 1
    noise: float = 1.0
    loss: str = "squared"
    periodic: dict[str, int] | None = None


def _rows(sizes: Any, newcomers: bool = False) -> Ints:
    """Owners of rows to fit, then of 50 new ones per user, or per user of as many new users."""
    m = len(sizes)
    return np.repeat(np.r_[:m, np.arange(m) + m * newcomers], [*sizes, *[50] * m])


def _made(rng: Any, n_fit: int, users: Ints, X: dict[str, Floats], z: Any, **more: Any) -> World:
    """Add noise to the first ``n_fit`` predictors ``z``; the others are the truth of new rows."""
    frame, z, m = pd.DataFrame(X), np.asarray(z, float), 1 + users[:n_fit].max()
    y = z[:n_fit] + more.get("noise", 1.0) * rng.standard_normal(n_fit)
    if more.get("loss") == "logistic":
        y = (rng.random(n_fit) < expit(z[:n_fit])).astype(float)
    owners = np.where(users < m, users, -1)[n_fit:]
    return World(frame[:n_fit], y, users[:n_fit], frame[n_fit:], z[n_fit:], owners, **more)


def straight(seed: int, n_users: int, n_rows: int, draw: str, loss: str = "squared") -> World:
    """No bends: 1 to 5 features, even seeds without groups, odd ones with three."""
    rng, d, k = np.random.default_rng([1, seed]), 1 + seed % 5, 3 if seed % 2 else 1
    theta = rng.standard_normal((k, 1 + d))[rng.integers(0, k, n_users)]
    if k == 1:  # the level and every other slope differ
        theta = theta + 0.4 * rng.standard_normal(theta.shape) * (np.arange(1 + d) % 2 == 0)
    users = _rows([n_rows] * n_users)
    X = DRAWS[draw](rng, (d, len(users)))
    z = theta[users, 0] + (X * theta[users, 1:].T).sum(axis=0)
    columns = {f"x{j}": column for j, column in enumerate(X)}
    return _made(rng, n_users * n_rows, users, columns, z, n_groups=k, loss=loss)


def bent(seed: int, kind: str, n_rows: int = 20, loss: str = "squared") -> World:
    """60 users, the first of 3 features bends.

    "common": three groups and one bend; "by group": groups differ in their bends alone; "by user":
    no groups, users' bends differ; "region": three groups, no bend, and a column constant within
    users that does nothing; "tails": no groups, 1 to 300 rows, a column with tails and outliers,
    whose effect levels off.
    """
    rng, bend = np.random.default_rng([2, seed]), BENDS[seed % len(BENDS)]
    group, sizes = rng.permutation(np.arange(60) % 3), np.full(60, n_rows)
    k = 3 if kind in ("common", "by group", "region") else 1
    theta, height = rng.standard_normal((3, 4))[group], np.full(60, 0.7 * (kind == "common"))
    if kind == "by group":
        theta, height = np.tile(theta[:1], (60, 1)), group - 1.0
    elif k == 1:
        theta = theta[:1] + rng.standard_normal((60, 4)) * [0.5, 0.3, 0, 0]
        height = 0.7 * (1 + rng.standard_normal(60))
    if kind == "tails":
        sizes = np.clip(np.exp(rng.normal(2.7, 1.3, 60)), 1, 300).astype(int)
        sizes[:2], theta[:, 1], height, bend = (1, 300), 0, np.full(60, 2.0), np.tanh
    users = _rows(sizes)
    X = rng.standard_normal((3, len(users)))
    if kind == "tails":
        X[0] = rng.standard_t(2, len(users)) * np.where(rng.random(len(users)) < 0.01, 10, 1)
    z = theta[users, 0] + (X * theta[users, 1:].T).sum(axis=0) + height[users] * bend(X[0])
    columns = {f"x{j}": column for j, column in enumerate(X)}
    if kind == "region":
        columns["region"] = rng.integers(0, 2, 60)[users].astype(float)
    return _made(rng, sizes.sum(), users, columns, z, n_groups=k, loss=loss)


def bell(seed: int) -> World:
    """30 stores x 40 days: sales rise and fall with temperature, prices act in stores' own ways."""
    rng, users = np.random.default_rng([3, seed]), _rows([40] * 30)
    level, slope = 20 * rng.standard_normal(30), -6 + 3 * rng.standard_normal(30)
    warm, price = rng.uniform(-5, 35, len(users)), rng.standard_normal(len(users))
    promotion = rng.integers(0, 2, len(users)).astype(float)
    z = level[users] + 50 * np.exp(-(((warm - 15) / 7) ** 2) / 2) + slope[users] * price
    columns = {"temperature": warm, "price": price, "promotion": promotion}
    return _made(rng, 1200, users, columns, 100 + z + 10 * promotion, noise=8.0)


def constant(seed: int, newcomers: bool = False) -> World:
    """60 users x 20 rows: a column that is constant within users bends, beside random levels."""
    rng, users = np.random.default_rng([6, seed]), _rows([20] * 60, newcomers)
    size, level = rng.standard_normal(120), 0.5 * rng.standard_normal(120)
    level[60:] = 0  # a new user is judged by what is common
    x, bend = rng.standard_normal(len(users)), BENDS[seed % len(BENDS)]
    z = level[users] + bend(size[users]) + x
    return _made(rng, 1200, users, {"size": size[users], "x": x}, z)


def prices(seed: int, sd: float = 1.0, far: float = 1.0) -> World:
    """60 users x 30 rows with levels of their own: a log-normal column acts by its logarithm.

    Three values in 1,000 are ``far`` times as large.
    """
    rng, users = np.random.default_rng([9, seed]), _rows([30] * 60)
    level, x = 0.7 * rng.standard_normal(60), rng.standard_normal(len(users))
    price = np.exp(3 + sd * rng.standard_normal(len(users)))
    price = np.where(rng.random(len(users)) < 0.003, far * price, price)
    z = level[users] + (np.log(price) - 3) / sd + 0.5 * x
    return _made(rng, 1800, users, {"price": price, "x": x}, z)


def hourly(seed: int, periodic: dict[str, int] | None = None) -> World:
    """60 users x 40 rows: two waves over the hours of a day, each user with its own level."""
    rng, users = np.random.default_rng([8, seed]), _rows([40] * 60)
    level, phase = 0.5 * rng.standard_normal(60), rng.uniform(0, 2 * np.pi, 2)
    hour, x = rng.integers(0, 24, len(users)), rng.standard_normal(len(users))
    day = 2 * np.pi * hour / 24
    z = level[users] + np.sin(day + phase[0]) + 0.5 * np.sin(2 * day + phase[1]) + 0.5 * x
    return _made(rng, 2400, users, {"hour": hour, "x": x}, z, periodic=periodic)


def boosting(w: World) -> Floats:
    """LightGBM where it is installed, else scikit-learn's, with the user as a category."""
    X, new = w.X.assign(user=w.users), w.X_new.assign(user=np.where(w.owners < 0, np.nan, w.owners))
    try:
        from lightgbm import LGBMRegressor
    except ImportError:
        model = HistGradientBoostingRegressor(categorical_features=["user"], random_state=0)
        return model.fit(X, w.y).predict(new)
    model = LGBMRegressor(verbose=-1, n_jobs=1, random_state=0)
    return np.asarray(model.fit(X, w.y, categorical_feature=["user"]).predict(new))


def splines(w: World) -> Floats:
    """Splines of every column and a level per user, ridge with its penalty by leave-one-out."""
    bent = SplineTransformer(6, knots="quantile", extrapolation="linear")
    levels = np.eye(w.users.max() + 2)[:, :-1]  # the last, -1, has none
    Z = np.column_stack([bent.fit_transform(w.X), levels[w.users]])
    Z_new = np.column_stack([bent.transform(w.X_new), levels[w.owners]])
    return RidgeCV(10.0 ** np.arange(-4, 4)).fit(Z, w.y).predict(Z_new)


def mixed_lm(w: World) -> Floats:
    """Lines with random levels and slopes, by REML; a column constant within users has no slope."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    random = np.insert((w.X.groupby(w.users).nunique().max() > 1).to_numpy(), 0, True)
    mean, scale = w.X.mean(), w.X.std()
    Z, Z_new = (np.insert(((X - mean) / scale).to_numpy(), 0, 1, axis=1) for X in (w.X, w.X_new))
    found = MixedLM(w.y, Z, w.users, exog_re=Z[:, random]).fit(reml=True)
    own = np.array([*found.random_effects.values(), np.zeros(random.sum())])  # -1: a new user
    return Z_new @ found.fe_params + (Z_new[:, random] * own[w.owners]).sum(axis=1)
