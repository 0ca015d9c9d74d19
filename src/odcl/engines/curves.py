"""Which columns may act in curves, as settings and the table, or the card, say."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from math import inf
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from odcl._typing import Bools, Floats
from odcl.data.curves import FEWEST, declared_curves, origin_of
from odcl.data.scaling import RowColumns, Scaling, TableMoments
from odcl.errors import InputError, count, did_you_mean, show
from odcl.method import Method
from odcl.risk.risk import Curve, Risk, is_wide, most_parameters


class ColumnValues(NamedTuple):
    """What curves need to know of the values of a table's columns, before these are scaled."""

    low: Floats  # (n_columns,)
    high: Floats  # (n_columns,)
    many: Bools  # (n_columns,), more than three values


def check_curves(curves: Any, periodic: Any) -> None:
    """Refuse settings of curves that no table can make good."""
    named = isinstance(curves, list | tuple) and all(isinstance(c, str | Integral) for c in curves)
    if not (named or isinstance(curves, bool) or curves == "auto"):
        raise ValueError(
            f"curves={curves!r} is not 'auto', True, False or a list of columns that may act in "
            "curves."
        )
    if periodic is None:
        return
    periods = [*periodic.values()] if isinstance(periodic, Mapping) else [None]
    if not all(isinstance(p, Real) and 0 < float(p) < inf for p in periods):
        raise ValueError(
            f"periodic={periodic!r} is no table of columns and their periods, as in "
            "{'hour': 24, 'month': 12}."
        )


def curves_of(
    asked: Any,
    periodic: Mapping[Any, float] | None,
    method: Method,
    risk: Risk,
    scaling: Scaling,
    usual: Scaling,
    names: Sequence[Any],
    *,
    columns: RowColumns | TableMoments | ColumnValues | None = None,
    n_users: int | None = None,
) -> tuple[Curve, ...]:
    """The curves of a fit, whose columns are scaled by ``scaling``; ``usual`` has usual units.

    ``names`` are those of all columns. "auto" takes columns of numbers with more than three values,
    where the method looks at data terms and short users send theirs; where nobody has seen the
    ``columns``, those ``asked`` for are named.
    """
    periods = dict(periodic or {})
    p = len(scaling.used)
    dim = risk.dim(p)
    able = method.clusterer.uses_terms and not method.resolved(risk, dim, n_users).fallback
    able = able and risk.intercept and not is_wide(risk, p)
    if asked is False or (asked == "auto" and not (able and method.short_terms)):
        asked = []  # users with fewer rows than a curve has columns would say next to nothing
    if not able and (asked or periods):
        why = "there are more than 100 parameters (40 of classes), or one user"
        if not method.clusterer.uses_terms:
            why = f"{method.clusterer} clusters models, which have lines only"
        elif not risk.intercept:
            why = "there is no intercept"
        raise InputError(f"Columns cannot act in curves or periods here, because {why}.")
    own = [names[j] for j in scaling.used]
    levels = {j for factor in scaling.factors for j in factor.columns}
    numbers = [j for j in range(p) if j not in levels]
    chosen = {_position(name, own, numbers): float(period) for name, period in periods.items()}
    by_values = isinstance(asked, str | bool)
    many = np.full(p, not by_values) if columns is None else columns.many[scaling.used]
    if by_values:
        bent = [j for j in numbers if many[j] or j in chosen]
    else:
        bent = sorted({_position(name, own, numbers) for name in asked} | set(chosen))
        if few := [j for j in bent if not (many[j] or j in chosen)]:
            raise InputError(
                f"{show(own[few[0]])} is to act in a curve, and has at most three values: leave it "
                "out, or name it as a category."
            )
    found = []
    for j in bent:
        shift, scale, at = scaling.shift[j], scaling.scale[j], scaling.used[j]
        period = chosen.get(j)
        center, unit = (usual.shift[j] - shift) / scale, usual.scale[j] / scale
        if period is not None:  # its origin is where the table has it
            center, unit, period = -shift / scale, 1.0, float(period / scale)
        middle, ends, origin = (float(center), float(unit)), None, None
        if columns is not None:
            low, high = ((end[at] - shift) / scale for end in (columns.low, columns.high))
            ends = float(low), float(high)
            origin = origin_of(*middle, *ends) if period is None else None
        found.append(Curve(j, (), *middle, period, ends, str(own[j]), origin))
    curves = declared_curves(risk, p, found)
    if found and not curves and columns is not None:  # a card says for itself that it has lines
        declared = [one for one in found if one.period is not None or not by_values]
        return _with_room(risk, p, declared, len(found))
    return curves


def _with_room(risk: Risk, p: int, declared: list[Curve], n_columns: int) -> tuple[Curve, ...]:
    """The curves that are declared, where there is no room to look at all columns' curves."""
    most = most_parameters(risk)
    room = (most - risk.dim(p)) // (FEWEST * risk.n_outputs)
    curves = declared_curves(risk, p, declared)
    if declared and not curves:
        raise InputError(
            f"{count(len(declared), 'column')} cannot act in curves or periods here: with "
            f"{FEWEST} bends each, {most} parameters are enough for {room}. Name fewer."
        )
    warnings.warn(
        f"{n_columns} columns are too many to find those that act in curves: {most} parameters "
        f"are enough for {room}. {'The rest' if declared else 'All'} act in lines: name those "
        "that may bend (curves).",
        stacklevel=2,
    )
    return curves


def _position(name: Any, names: list[Any], numbers: list[int]) -> int:
    known = [names[j] for j in numbers]
    if name in known:
        return numbers[known.index(name)]
    if isinstance(name, Integral) and int(name) in numbers:
        return int(name)
    near = did_you_mean(name, list(map(str, known))) if isinstance(name, str) else "."
    if any(str(one).startswith(f"{name}=") for one in names):
        raise InputError(f"{show(name)} is a category: a curve is of a column of numbers.")
    raise InputError(
        f"{show(name)} is to act in a curve, and is none of the columns of numbers that vary{near}"
    )
