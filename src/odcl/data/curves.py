"""Columns that act in a curve: a few bends of a feature, as columns beside it.

The bends of a column are functions of its unit z alone, which everybody knows beforehand: natural
cubic splines on six knots, at equally spaced quantiles of the standard normal, without their
constant and their line. They are orthonormal under the standard normal and ordered by roughness,
the integral of their squared second derivative (Demmler and Reinsch). Beyond the outer knots a bend
goes on as a line. A periodic column has harmonics in place of bends, and no line.

A skewed column (prices, counts) bends in its logarithm: as if it were log-normal with the mean and
deviation that it has, counted from an origin a little beyond its shorter end. Its first bend is the
logarithm itself, without the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Floats
from odcl.risk.risk import Curve, Risk, most_parameters

if TYPE_CHECKING:
    from odcl.data.federation import Federation

KNOTS = np.array([-2.053749, -0.799501, -0.243007, 0.243007, 0.799501, 2.053749])
BENDS = np.array(  # the smoothest first, by their values at the knots
    [
        [2.3366795122, -0.2138250616, -0.769720536, -0.769720536, -0.2138250616, 2.3366795122],
        [-1.7357115058, 1.0994120651, 0.5043625227, -0.5043625227, -1.0994120651, 1.7357115058],
        [0.9452903267, -0.9004986139, 0.9367818163, 0.9367818163, -0.9004986139, 0.9452903267],
        [-0.3733901324, 0.1603763853, -1.4224536936, 1.4224536936, -0.1603763853, 0.3733901324],
    ]
)
ROUGHNESS = np.array([1.0, 5.562711, 22.163432, 101.622021])
LOGARITHM = np.array([1.0, *ROUGHNESS[:-1]])  # of a skewed column
SKEWED = 2.0  # times as far to the longer end; the shorter one is nearer than this, in deviations
LOWEST = 3.0  # units of the logarithm between the middle and the shorter end
HARMONICS = np.array([1.0, 1.0, 16.0, 16.0])  # roughness of cos and sin, once and twice a period
FEWEST = 2  # bends of a column, or it has none
DISTINCT = 3  # values of a column that cannot bend
_GLANCE = 1000  # rows that are looked at first
_BLOCK = 1 << 12  # rows that stay near the processor


def roughness(curve: Curve) -> Floats:
    """How rough each column of a curve is, the smoothest 1."""
    smooth = ROUGHNESS if curve.origin is None else LOGARITHM
    return (smooth if curve.period is None else HARMONICS)[: len(curve.columns)]


def with_bends(X: Floats, curves: Sequence[Curve]) -> Floats:
    """Rows of features with the columns of their curves; a row's numbers depend on no other's."""
    if not curves:
        return X
    out = np.empty((len(X), 1 + max(j for curve in curves for j in curve.columns)))
    for first in range(0, len(X), _BLOCK):
        part = slice(first, first + _BLOCK)
        out[part, : X.shape[1]] = X[part]
        for curve in curves:
            bends = _bends(X[part, curve.of].copy(), curve)
            for j, values in zip(curve.columns, bends, strict=False):
                out[part, j] = values
            if curve.period is not None:
                out[part, curve.of] = 0.0  # the line of a column that begins anew
    return out


def bent_rows(rows: Federation, curves: Sequence[Curve]) -> Federation:
    """Users' rows with the columns of these curves, unless they have them already."""
    lines = min((j for curve in curves for j in curve.columns), default=-1)
    return rows if rows.n_features != lines else rows.with_X(with_bends(rows.X, curves))


def _bends(x: Floats, curve: Curve) -> Iterator[Floats]:
    if curve.period is not None:
        angle = (x - curve.center) * (2 * np.pi / curve.period)
        for times in (1, 2):
            yield np.sqrt(2.0) * np.cos(times * angle)
            yield np.sqrt(2.0) * np.sin(times * angle)
        return
    z = (x - curve.center) / curve.unit
    n_bends = len(curve.columns)
    if curve.origin is not None:
        z, first = _logarithm(x, z, curve)
        n_bends -= 1
        yield first
    inside = np.clip(z, KNOTS[0], KNOTS[-1])
    steps = [np.maximum(inside - knot, 0.0) for knot in KNOTS[:-1]]
    cubes = [step * step * step for step in steps]
    ends = np.minimum(z - KNOTS[0], 0.0), np.maximum(z - KNOTS[-1], 0.0)
    for values in _weights()[:n_bends]:
        total = values[0] + values[1] * inside
        for weight, part in zip(values[2:], (*cubes, *ends), strict=True):
            total += weight * part
        yield total


def _logarithm(x: Floats, z: Floats, curve: Curve) -> tuple[Floats, Floats]:
    """A skewed column's logarithm as a standard normal, and what its line does not say of it.

    Of a log-normal x with coefficient of variation v, log x has the variance log(1 + v^2).
    """
    assert curve.origin is not None
    assert curve.ends is not None
    far = curve.center - curve.origin
    square = np.log1p((curve.unit / far) ** 2)
    size = np.sqrt(square)
    w = (np.log((np.clip(x, *curve.ends) - curve.origin) / far) + square / 2) / size
    shared = size / np.sqrt(np.expm1(square))  # correlation of a log-normal with its logarithm
    return w, (w - shared * np.sign(far) * z) / np.sqrt(1 - shared**2)


def along(x: Floats, curve: Curve) -> Floats:
    """Values in the units of a curve that is not periodic; of a skewed column, their logarithms."""
    z = (x - curve.center) / curve.unit
    return z if curve.origin is None else _logarithm(x, z, curve)[0]


def origin_of(center: float, unit: float, low: float, high: float) -> float | None:
    """Where the logarithm of a column with these ends begins; None: it is not skewed.

    From there the center is as many times as far as the shorter end as the longer end is as far as
    the center, unless the shorter end would lie far out in the logarithm: one value may be far off.
    """
    below, above = center - low, high - center
    if below > above:
        mirrored = origin_of(-center, unit, -high, -low)
        return None if mirrored is None else -mirrored
    if not 0 < below < SKEWED * unit or above <= SKEWED * below:
        return None
    square = np.log1p((unit / below) ** 2)
    least = below * np.exp(-square / 2 - LOWEST * np.sqrt(square))
    return float(low - max(below**2 / (above - below), least))


def misfit(x: Floats, curve: Curve, *, inside: bool = True) -> Floats:
    """How far a curve of R = 1 lies from the best that its bends can do, as variances at ``x``.

    Bends with the prior N(0, R / roughness) belong to a curve whose second derivative is white
    noise. Between the outer knots the bends are its least squares, under the standard normal;
    beyond them no slope is known for long. Without ``inside`` only that is told; a noise that is
    estimated has the rest.
    """
    if curve.period is not None:  # the third harmonic and all that follow
        return np.full(len(x), 2 * (np.pi**4 / 90 - 17 / 16) * inside)
    z = along(x, curve)
    grid, between, slope, size = _misfit()
    far = np.maximum(np.abs(z) - KNOTS[-1], 0.0)
    return inside * np.interp(z, grid, between) + slope * far**2 + size * far**3 / 3


@cache
def _misfit() -> tuple[Floats, Floats, float, float]:
    """A grid, variances there, of the slope at the outer knots, and of the white noise, of R = 1.

    White noise at u adds (z - u)+ to a curve: what is left of it when bends have done their best.
    Beyond the outer knots the slope is that of the spline through the curve at all knots, which
    knows nothing of the rows there.
    """
    from scipy.interpolate import CubicSpline

    z, step = np.linspace(2 * KNOTS[0], 2 * KNOTS[-1], 801, retstep=True)
    u, inside, weight = z[1:] - step / 2, slice(200, 601), np.exp(-(z**2) / 2)
    curve = Curve(0, tuple(range(1, 1 + len(BENDS))), 0.0, 1.0)
    own = np.column_stack([np.ones(len(z)), with_bends(z[:, None], [curve])])
    each = np.maximum(z[:, None] - u, 0.0)
    left = each - own @ ((own.T * weight) @ each) / weight.sum()
    u = u[200:600]  # from the first knot to the last
    ones = CubicSpline(KNOTS, np.eye(len(KNOTS)), bc_type="natural")
    size = float(((BENDS[0] @ ones(u, 2).T) ** 2).sum() * step)
    slope = ((1 - ones(KNOTS[-1], 1) @ np.maximum(KNOTS[:, None] - u, 0.0)) ** 2).sum()
    between = (left[inside] ** 2).sum(axis=1)
    return z[inside], size * step * between, float(size * step * slope), size


@cache
def _weights() -> Floats:
    """Each bend as constant, line, cubes that begin at the knots, and lines beyond both ends."""
    from scipy.interpolate import CubicSpline

    spline = CubicSpline(KNOTS, BENDS.T, bc_type="natural")
    jumps = np.diff(spline(KNOTS[:-1] + 1e-9, 3), axis=0, prepend=0.0) / 6
    low, high = spline(KNOTS[0], 1), spline(KNOTS[-1], 1)
    start = spline(KNOTS[0]) - low * KNOTS[0]
    return np.vstack([start, low, jumps, low, high]).T


def declared_curves(risk: Risk, n_columns: int, bent: Sequence[Curve]) -> tuple[Curve, ...]:
    """The curves ``bent``, still without columns, with columns that follow ``n_columns`` others.

    Four bends each, or as many as the number of parameters allows for; none where that is one.
    """
    most = most_parameters(risk)
    for each in range(len(BENDS), FEWEST - 1, -1):
        if risk.dim(n_columns + each * len(bent)) <= most:
            return numbered(bent, n_columns, each)
    return ()


def numbered(curves: Sequence[Curve], first: int, each: int | None = None) -> tuple[Curve, ...]:
    """The curves with columns that follow one another: ``each``, or as many as they have."""
    found = []
    for curve in curves:
        last = first + (len(curve.columns) if each is None else each)
        found.append(replace(curve, columns=tuple(range(first, last))))
        first = last
    return tuple(found)


def some_values(column: Floats) -> Floats:
    """The values of a column, or one more than are few."""
    some = np.unique(column[:_GLANCE])
    return (some if are_many(some) else np.unique(column))[: DISTINCT + 1]


def are_many(values: Floats) -> bool:
    """Are these more values than a line and bends can tell apart?"""
    return len(values) > DISTINCT
