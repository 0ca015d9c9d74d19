"""Curves of a fit: which columns may act in them, as settings and the table, or the card, say; and
the fit without the columns of those that stayed closed, as if they had not been asked for.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.data.curves import FEWEST, declared_curves, numbered, origin_of
from odcl.data.scaling import RowColumns, Scaling, TableMoments
from odcl.errors import InputError, count, did_you_mean, show
from odcl.exchange.upload import Uploads
from odcl.fitted.value import Fitted, Newcomers
from odcl.method import Method
from odcl.mixed.layout import Coordinates
from odcl.mixed.posterior import Mixture
from odcl.mixed.terms import triangle
from odcl.risk.risk import Curve, Risk, is_wide, most_parameters
from odcl.server.columns import gaussian_parts
from odcl.server.mixed import MixedRule
from odcl.server.result import StreamedStep
from odcl.wide.moments import mixed_only


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


# -- curves that stayed closed ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OpenColumns:
    """The columns of a fit that are left when those of closed curves leave."""

    at: Coordinates
    risk: Risk  # with the open curves alone
    keep: Ints  # the columns, by position among all of them
    numbers: Ints  # the numbers of a model that belong to them

    @classmethod
    def of(cls, mixture: Mixture | None, risk: Risk, n_lines: int) -> OpenColumns | None:
        """None where no curve is closed; ``n_lines`` columns stand before the bends."""
        opened = () if mixture is None else mixture.coordinates.opened
        if mixture is None or len(opened) == len(risk.curves):
            return None
        at = mixture.coordinates
        keep = np.array([*range(n_lines), *(j for curve in opened for j in curve.columns)], np.intp)
        inputs = np.append(keep, risk.n_inputs(at.n_features) - 1)  # there is an intercept
        numbers = (inputs[:, None] * risk.n_outputs + np.arange(risk.n_outputs)).ravel()
        own = replace(risk, curves=numbered(opened, n_lines))
        return cls(at, own, keep, numbers)

    @cached_property
    def coordinates(self) -> Coordinates:
        """The fit's coordinates among fewer features; references of factors follow these."""
        at, keep = self.at, self.keep
        place = np.full(at.n_features + len(at.factors), -1)
        place[keep] = np.arange(len(keep))
        place[at.n_features :] = len(keep) + np.arange(len(at.factors))
        kept = place[at.kept]
        return replace(at, kept=kept, n_features=len(keep), curves=self.risk.curves)

    def step(self, step: StreamedStep) -> StreamedStep:
        """The server's step with models of these columns."""
        found, rule, some = step.found, step.rule, self.numbers
        mixture = mixed_only(found.mixture)
        assert mixture is not None
        if isinstance(rule, MixedRule):
            rule = replace(rule, coordinates=self.coordinates)
        found = replace(
            found,
            centers=found.centers[:, some],
            models=found.models[:, some],
            mixture=replace(mixture, coordinates=self.coordinates),
        )
        return replace(step, found=found, rule=rule)

    def uploads(self, sent: Uploads) -> Uploads:
        """What users sent of these columns: the rest of a term is dropped exactly."""
        keep, risk = self.keep, self.risk
        if sent.factor is not None and sent.means is not None:
            columns = np.append(keep, sent.means.shape[1] - 1)
            factor: Floats = triangle(np.ascontiguousarray(sent.factor[:, :, columns]))
            return replace(sent, risk=risk, means=sent.means[:, columns], factor=factor)
        of_lines = not risk.curves and sent.gaussian_line_curvature is not None
        A, b, constant = gaussian_parts(sent, lines=of_lines)
        assert A is not None
        assert b is not None
        n_features = self.at.n_features
        changed: dict[str, Any] = {}
        if of_lines:
            names = ("curvature", "slope", "constant")
            changed = {f"gaussian_line_{name}": None for name in names}
        else:
            inputs = b.shape[-1] // risk.n_outputs
            some = np.append(0, 1 + keep) + inputs * np.arange(risk.n_outputs)[:, None]
            A, b = A[..., some.ravel()[:, None], some.ravel()], b[..., some.ravel()]
        changed |= {"gaussian_curvature": A, "gaussian_slope": b, "gaussian_constant": constant}
        references = np.arange(n_features, n_features + len(risk.factors))
        for name in ("gaussian_means", "gaussian_sds"):
            changed[name] = getattr(sent, name)[:, np.append(keep, references)]
        return replace(sent, risk=risk, **changed)


def without_closed_curves(fitted: Fitted) -> Fitted:
    """The fit, whose models have no numbers for bends that nobody has."""
    mixture = fitted.mixed
    left = OpenColumns.of(mixture, fitted.risk, len(fitted.scaling.used))
    if left is None or mixture is None:
        return fitted
    some, users, known, sent = left.numbers, fitted.users, fitted.newcomers, fitted.uploads
    cov = users.covariance

    def newcomers() -> Newcomers:
        return Newcomers(
            lambda: replace(known.groups, centers=known.groups.centers[:, some]),
            lambda: known.pooled[some],
            lambda: known.tails,
        )

    return replace(
        fitted,
        risk=left.risk,
        scaling=replace(fitted.scaling, curves=left.risk.curves),
        centers=fitted.centers[:, some],
        mixture=replace(mixture, coordinates=left.coordinates),
        users=replace(
            users,
            model=np.ascontiguousarray(users.model[:, some]),
            covariance=None if cov is None else cov[:, some[:, None], some],
        ),
        uploads=None if sent is None else left.uploads(sent),
        newcomers=newcomers(),
    )
