"""One user's penalised fits side by side, in the span of its rows: cost is flat in the features.

Each fit is

    minimise  sum_j weight_j loss(offset_j + intercept + slopes u_j, y_j)
              + |intercept|^2 / (2 v_0) + |slopes|^2 / (2 v)

over scores of C classes, with weights, offsets and variances v_0, v of its own. In coordinates in
which the rows' columns are orthogonal, the Hessian at an average curvature is diagonal for every
fit: conjugate gradients preconditioned by it need 3 to 20 steps, and a step of all fits is two
products of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Array, Bools, Floats

FLAT = 1e-10  # directions in which rows vary by less than this share of the most are left out
MOST_STEPS = 300
# Nats above the minimum: below the first, curvature is that of the place; far beyond the second, of
# halfway to the data.
NEAR, FAR = 0.01, 10.0
ROUNDING = 1e-6  # relative rise of an objective that is rounding


@dataclass(frozen=True, eq=False)
class Span:
    """Rows in orthogonal coordinates, the intercept last: features' slopes are ``back`` b."""

    Z: Floats  # (n, r + 1)
    size: Floats  # (r + 1,), Z^T W Z is diagonal
    back: Floats  # (d, r), orthonormal columns in the scaled features
    center: Floats  # (d,), where the coordinates are zero

    @classmethod
    def of(cls, X: Floats, weight: Floats, scale: Floats, centred: bool) -> Span:
        """Of rows X (n, d) that count ``weight`` times (n,), in features divided by ``scale``."""
        n, d = X.shape
        center = weight @ X / weight.sum() if centred else np.zeros(d)
        u = (X - center) / scale
        if n > d:
            size, back = np.linalg.eigh((u * weight[:, None]).T @ u)
            size, back = _not_flat(size, back)
            Z = u @ back
        else:
            rows = u * np.sqrt(weight)[:, None]
            size, Q = _not_flat(*np.linalg.eigh(rows @ rows.T))
            back = rows.T @ (Q / np.sqrt(size))
            Z = Q * np.sqrt(size) / np.sqrt(weight)[:, None]
        Z = np.concatenate([Z, np.ones((n, 1))], axis=1)
        return cls(Z, np.append(size, weight.sum()), back / scale[:, None], center)

    def variances(self, intercept: Floats, slopes: Floats) -> Floats:
        """Prior variances in these coordinates, (fits, r + 1), from standard deviations."""
        each = np.repeat(slopes[:, None] ** 2, len(self.size), axis=1)
        each[:, -1] = intercept**2
        return each

    def coefficients(self, b: Floats) -> Floats:
        """Slopes of the features and the intercept, (d + 1, C), from coordinates b (C, r + 1)."""
        slopes = self.back @ b[:, :-1].T
        return np.concatenate([slopes, (b[:, -1] - self.center @ slopes)[None]])


def _not_flat(size: Floats, vectors: Floats) -> tuple[Floats, Floats]:
    kept = size > FLAT * max(size[-1], 1e-290)
    return size[kept], vectors[:, kept]


def fit_slopes(
    span: Span,
    own: Floats,
    weight: Floats,
    offset: Floats,
    variance: Floats,
    start: Array,
    tol: float,
    dtype: type = np.float64,
) -> Array:
    """The minimisers b, (t, C, r + 1), of t fits.

    ``own`` (C, n) is 1 for a row's class, ``weight`` (t, n) counts rows, ``offset`` (t, C, n) are
    the scores around which slopes of ``variance`` (t, r + 1) are drawn, and ``start`` is a guess.
    A fit ends when its objective, in nats, is about ``tol`` above its minimum. Fits that are only
    scored can do with numbers of half the length, ``dtype``.
    """
    spread = np.sqrt(variance)[:, None]
    each: list[Array] = [x.astype(dtype) for x in (own, weight[:, None], spread, offset, start)]
    state = _State.start(span, *each)
    found, at = np.zeros_like(state.a), np.arange(len(offset))
    for _ in range(MOST_STEPS):
        done = state.turn() <= 2 * tol
        if done.any():
            found[at[done]] = state.a[done]
            at, state = at[~done], state.take(~done)
            if not len(at):
                break
        state.advance()
    found[at] = state.a
    return each[2] * found


@dataclass(eq=False)
class _State:
    """Fits on their way, in units of the prior: conjugate gradients."""

    Z: Array  # (n, r + 1)
    Zt: Array  # (r + 1, n)
    size: Array  # (r + 1,)
    own: Array  # (C, n)
    weight: Array  # (t, 1, n)
    spread: Array  # (t, 1, r + 1)
    a: Array  # (t, C, r + 1), b / spread
    value: Array  # (t,), objective
    f: Array  # (t, C, n), scores
    p: Array  # (t, C, n), probabilities
    gradient: Array  # (t, C, r + 1), that of the step before until ``turn``
    fall: Array  # (t,), squared length of the gradient in the preconditioner's metric
    way: Array  # (t, C, r + 1), the direction

    @classmethod
    def start(
        cls, span: Span, own: Array, weight: Array, spread: Array, offset: Array, b: Array
    ) -> _State:
        Z, size = span.Z.astype(b.dtype), span.size.astype(b.dtype)
        Zt, nothing = np.ascontiguousarray(Z.T), np.zeros_like(b)
        a = np.divide(b, spread, out=nothing.copy(), where=spread > 0)
        f = offset + _times(spread * a, Zt)
        p, loss = _softmax(f, own)
        value = np.vecdot(weight[:, 0], loss) + _products(a, a) / 2
        fall = np.full(len(b), np.inf, b.dtype)
        return cls(Z, Zt, size, own, weight, spread, a, value, f, p, nothing, fall, nothing)

    def take(self, some: Bools) -> _State:
        """Some of the fits."""
        each = (self.weight, self.spread, self.a, self.value, self.f, self.p, self.gradient)
        return _State(
            self.Z, self.Zt, self.size, self.own, *(x[some] for x in (*each, self.fall, self.way))
        )

    def turn(self) -> Array:
        """Choose the next direction; about twice how far each fit is above its minimum, (t,)."""
        total = self.weight[:, 0].sum(axis=-1)
        wrong = self.p - self.own
        middle = self._on_the_way(wrong)
        bend = total - _products(self.weight * middle, middle)
        bend /= max(len(self.own) - 1, 1) * total
        wrong *= self.weight
        gradient = _times(wrong, self.Z)
        gradient *= self.spread
        gradient += self.a
        step = gradient / (1 + bend[:, None, None] * (self.size * self.spread**2))
        fall = _products(gradient, step)
        turned = (fall - _products(self.gradient, step)) / self.fall
        way = np.maximum(turned, 0)[:, None, None] * self.way
        way -= step
        uphill = _products(way, gradient) >= 0
        way[uphill] = -step[uphill]
        self.gradient, self.fall, self.way = gradient, fall, way
        return fall

    def advance(self) -> None:
        """A Newton step along the direction, or a shorter one that is sure to go down."""
        along = _times(self.spread * self.way, self.Zt)
        slope, curve0 = _products(self.gradient, self.way), _products(self.way, self.way)
        moved = along * self._on_the_way(None)
        squares = np.einsum("tcn,tcn->tn", moved, along) - moved.sum(axis=1) ** 2
        curve = np.vecdot(self.weight[:, 0], squares) + curve0
        length = -slope / curve
        new = self._moved(along, length)
        over: Bools = ~(new[0] <= self.value + ROUNDING * np.abs(self.value))
        if over.any():
            # No law of the classes has a larger variance than that of the two ends.
            most = np.vecdot(self.weight[:, 0], (along.max(axis=1) - along.min(axis=1)) ** 2 / 4)
            length = np.where(over, -slope / (most + curve0), length)
            new = self._moved(along, length)
        self.value, self.a, self.f, self.p = new

    def _on_the_way(self, wrong: Array | None) -> Array:
        """Probabilities whose curvature a step meets: far from the minimum, halfway to the data.

        Rows that are surely wrong have no curvature where they are, and all of it on their way.
        """
        if (self.fall < NEAR).all():
            return self.p
        wrong = self.p - self.own if wrong is None else wrong
        half = 0.5 - 0.5 / (1 + np.minimum(self.fall, 1e9) / FAR)
        return self.p - half[:, None, None] * wrong

    def _moved(self, along: Array, length: Array) -> tuple[Array, Array, Array, Array]:
        """Objective, coordinates, scores and probabilities after a step."""
        f = self.f + length[:, None, None] * along
        a = self.a + length[:, None, None] * self.way
        p, loss = _softmax(f, self.own)
        return np.vecdot(self.weight[:, 0], loss) + _products(a, a) / 2, a, f, p


def _softmax(f: Array, own: Array) -> tuple[Array, Array]:
    """Probabilities (t, C, n) and losses (t, n)."""
    top = f.max(axis=1)
    e = f - top[:, None]
    np.exp(e, out=e)
    total = e.sum(axis=1)
    e /= total[:, None]
    return e, top + np.log(total) - np.einsum("cn,tcn->tn", own, f)


def _products(a: Array, b: Array) -> Array:
    return np.vecdot(a.reshape(len(a), -1), b.reshape(len(b), -1))


def _times(a: Array, M: Array) -> Array:
    """a M for a (t, c, k) and M (k, l), as one product."""
    t, c, k = a.shape
    return (a.reshape(t * c, k) @ M).reshape(t, c, -1)
