"""Checks that all clusterers share: numbers of things, finite rows, seeds."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

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


def as_seed(random_state: Any) -> int:
    """A whole number from scikit-learn's ``random_state``.

    Every K that a rule tries starts from it, so a rule's answer is that of its K given as a number.
    """
    if isinstance(random_state, Integral):
        return int(random_state)
    return int(check_random_state(random_state).randint(np.iinfo(np.int32).max))
