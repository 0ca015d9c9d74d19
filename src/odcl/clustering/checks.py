"""Checks that all clusterers share: points, noise, counts, seeds."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from odcl._typing import Floats


def check_count(name: str, value: Any, note: str, least: int = 1) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}: {note}.")


def finite_rows(a: Floats) -> Floats:
    """The rows, or an error that names the first one without a distance to the others."""
    bad = np.flatnonzero(~np.isfinite(a).all(axis=1))
    if len(bad):
        raise ValueError(
            f"{len(bad)} of {len(a)} rows hold NaN or inf (the first is row {bad[0]}), and no "
            "distance to them is defined. Leave these users out, or fit them again: a local "
            "solver that diverged is the usual cause."
        )
    return a


def validated(estimator: Any, X: Any, *, reset: bool = True) -> Floats:
    """The rows that an estimator was given, checked by scikit-learn's rules and ours."""
    return finite_rows(
        validate_data(
            estimator, X, dtype=np.float64, order="C", ensure_all_finite=False, reset=reset
        )
    )


def as_points(X: Any) -> Floats:
    """Rows of numbers, (n_points, dim), or an error that says what was seen."""
    a = np.asarray(X, dtype=np.float64)
    if a.ndim != 2 or a.size == 0:
        raise ValueError(
            f"The points have shape {a.shape}: give one row per point, (n_points, dim); for "
            "numbers on a line that is X.reshape(-1, 1)."
        )
    return finite_rows(a)


def check_noise(noise: Any, n_users: int) -> Floats:
    """The trace of each user's covariance, (n_users,): from 0 on, infinite where not known."""
    given = np.asarray(noise, dtype=np.float64)
    if given.shape != (n_users,):
        raise ValueError(
            f"noise has shape {given.shape}; it must hold one number, the trace of the model's "
            f"covariance (dim times the variance per coordinate), for each of {n_users} users."
        )
    n_bad = int((np.isnan(given) | (given < 0)).sum())
    if n_bad:
        raise ValueError(
            f"{n_bad} of {n_users} users have negative or NaN noise; it is a sum of variances, the "
            "trace of the model's covariance. Use inf where it is not known."
        )
    return given


def as_seed(random_state: Any) -> int:
    """A whole number from scikit-learn's ``random_state``.

    Every K that a rule tries starts from it, so a rule's answer is that of its K given as a number.
    """
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
