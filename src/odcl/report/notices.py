"""What was accepted all the same, counted: one line per kind."""

from __future__ import annotations

from typing import Any

import numpy as np

from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.data.schema import Encoded, TableSchema
from odcl.errors import listing
from odcl.report.text import count

# A column whose values spread by more or less than this is worth a word.
_WIDE, _NARROW = 1e6, 1e-6


def accepted(
    schema: TableSchema, encoded: Encoded, federation: Federation, model: Any
) -> list[str]:
    """Everything odd about a table that the fit took as it is."""
    return [
        *about_values(schema, encoded, schema.missing),
        *_about_users(schema, federation, model),
        *_about_columns(schema, federation.X, model),
        *_about_repeats(federation),
    ]


def about_values(schema: TableSchema, encoded: Encoded, missing: str) -> list[str]:
    """Rows left out, values filled in, levels that the fit did not see."""
    lines = []
    if encoded.n_dropped:
        nameless = encoded.missing.get(schema.user, 0)
        lines.append(
            f"{count(encoded.n_dropped, 'row')} left out for want of a value"
            + (f", {nameless:,} of them without a user's id" if nameless else "")
        )
    roles = (schema.user, schema.target)
    filled = {name: n for name, n in encoded.missing.items() if name not in roles}
    if filled and missing == "mean":
        where = ", ".join(f"{name}: {n:,}" for name, n in filled.items())
        lines.append(f"{count(sum(filled.values()), 'missing value')} filled in ({where})")
    for name, n in encoded.unseen.items():
        level = schema.levels[name][0]
        lines.append(f"{count(n, 'row')} with a new level of {name!r}, read as {level!r}")
    return lines


def _about_users(schema: TableSchema, federation: Federation, model: Any) -> list[str]:
    lines = []
    single = int((federation.n_rows == 1).sum())
    if single:
        lines.append(f"{count(single, 'user')} with a single row")
    one_class = np.zeros(federation.n_users, dtype=bool)
    if schema.classes is not None:
        starts = federation.offsets[:-1]
        one_class = np.minimum.reduceat(federation.y, starts) == np.maximum.reduceat(
            federation.y, starts
        )
        if one_class.any():
            lines.append(f"{count(int(one_class.sum()), 'user')} with a single class")
    local = model.result_.local
    lost = int((local.prior & ~one_class).sum())
    if lost:
        what = "separable or short of a class" if schema.classes is not None else "no counts"
        lines.append(
            f"{count(lost, 'user')} without a finite model alone ({what}), given a small prior"
        )
    stopped = int((~local.converged).sum())
    if stopped:
        lines.append(f"{count(stopped, 'user')} whose local fit did not converge")
    return lines


def _about_columns(schema: TableSchema, X: Floats, model: Any) -> list[str]:
    """Constant columns, and columns at a scale that few tables have."""
    design = dict(zip(schema.columns, X.T, strict=True))
    numeric = {name: design[name] for name in schema.features if name not in schema.levels}
    spread = {name: float(np.ptp(column)) for name, column in numeric.items()}
    constant = [n for n in schema.features if spread.get(n, len(schema.levels.get(n, ())) - 1) == 0]
    lines = []
    if constant:
        lines.append(f"{count(len(constant), 'constant column')} ({listing(constant, 3)})")
    for j, k in model.scaling_.copies[:3]:
        lines.append(f"column {schema.columns[j]!r} left out: a copy of {schema.columns[k]!r}")
    more = len(model.scaling_.copies) - 3
    if more > 0:
        lines.append(f"{count(more, 'more column')} left out: copies of others")
    odd = [n for n, width in spread.items() if width > 0 and not _NARROW <= width <= _WIDE]
    if odd:
        standard = model.method_.standardize
        done = "brought to a common scale" if standard else "and nothing is standardised"
        lines.append(f"{count(len(odd), 'column')} at an extreme scale ({listing(odd, 3)}), {done}")
    return lines


def _about_repeats(federation: Federation) -> list[str]:
    n = repeated_rows(federation)
    verb = "repeats" if n == 1 else "repeat"
    return [f"{count(n, 'row')} {verb} another row of the same user"] if n else []


def repeated_rows(federation: Federation) -> int:
    """Rows equal to an earlier row of the same user, compared byte for byte."""
    owner = federation.row_user.astype(np.float64)
    rows = np.column_stack([federation.X, federation.y.astype(np.float64), owner])
    rows += 0.0  # -0.0 is 0.0
    keys = rows.view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1]))).ravel()
    return len(keys) - len(np.unique(keys))
