"""One user's penalised fits side by side, in the span of its rows: cost is flat in the features.

Each fit is

    minimise  sum_j weight_j loss(offset_j + intercept + slopes u_j, y_j)
              + |intercept|^2 / (2 v_0) + |slopes|^2 / (2 v)

over scores of C classes, with weights, offsets and variances v_0, v of its own. In coordinates in
which the rows' columns are orthogonal, the Hessian at an average curvature is diagonal for every
fit: conjugate gradients preconditioned by it need 3 to 20 steps, and a step of all a user's fits is
two products of matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints

FLAT = 1e-10  # directions in which rows vary by less than this share of the most are left out
MOST_STEPS = 300
STEP_OF_ROWS = 8  # users whose rows fill the same number of such steps are fitted side by side
# Nats above the minimum: below the first, curvature is that of the place; far beyond the second, of
# halfway to the data.
NEAR, FAR = 0.01, 10.0
ROUNDING = 1e-6  # relative rise of an objective that is rounding


@dataclass(frozen=True, eq=False)
class RowSpan:
    """Rows in orthogonal coordinates, the intercept last: features' slopes are ``back`` b."""

    Z: Floats  # (n, r + 1)
    size: Floats  # (r + 1,), Z^T W Z is diagonal
    back: Floats  # (d, r), orthonormal columns in the scaled features
    center: Floats  # (d,), where the coordinates are zero

    @classmethod
    def of(cls, X: Floats, weight: Floats, scale: Floats, centred: bool) -> RowSpan:
        """Of rows X (n, d) that count ``weight`` times (n,), in features divided by ``scale``."""
        n, d = X.shape
        center = weight @ X / weight.sum() if centred else np.zeros(d)
        u = (X - center) / scale
        if n > d:
            size, back = _flat_as_zero(*np.linalg.eigh((u * weight[:, None]).T @ u))
            Z = u @ back
        else:
            rows = u * np.sqrt(weight)[:, None]
            size, Q = _flat_as_zero(*np.linalg.eigh(rows @ rows.T))
            back = rows.T @ (Q / np.sqrt(np.where(size > 0, size, 1.0)))
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


def _flat_as_zero(size: Floats, vectors: Floats) -> tuple[Floats, Floats]:
    """Directions without variation are kept as zeros: the shape depends on the rows' alone."""
    there = size > FLAT * max(size[-1], 1e-290)
    return np.where(there, size, 0.0), vectors * there


def filled_up(n: Ints) -> Ints:
    """Numbers of rows, filled up to what users of about this size have in common."""
    return -(-n // STEP_OF_ROWS) * STEP_OF_ROWS


@dataclass(frozen=True, eq=False)
class Fits:
    """Fits of one user to be made, t of them."""

    span: RowSpan
    own: Floats  # (C, n), 1 for a row's class
    weight: Floats  # (t, n), how often rows count
    offset: Floats  # (t, C, n), scores around which slopes are drawn
    variance: Floats  # (t, r + 1), of the slopes and the intercept
    start: Array  # (t, C, r + 1), a guess

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and coordinates, filled up."""
        rows = int(filled_up(np.array(len(self.span.Z))))
        return rows, min(rows, len(self.span.center)) + 1


def fit_slopes(users: Sequence[Fits], tol: float, dtype: type = np.float64) -> list[Array]:
    """The minimisers b, (t, C, r + 1), for each of some users of one shape and as many classes.

    A fit ends when its objective, in nats, is about ``tol`` above its minimum. Fits that are only
    scored can do with numbers of half the length, ``dtype``. Users are fitted side by side, and
    each as if alone.
    """
    state = _State.start(users, dtype)
    spread, found = state.spread, np.zeros_like(state.a)
    at = np.arange(len(found))
    for _ in range(MOST_STEPS if len(at) else 0):
        done = state.turn() <= 2 * tol
        if done.any():
            found[at[done]] = state.a[done]
            at, state = at[~done], state.take(~done)
            if not len(at):
                break
        state.advance()
    found[at] = state.a
    each = np.split(spread * found, np.cumsum([len(user.start) for user in users])[:-1])
    ends = [user.span.Z.shape[1] - 1 for user in users]
    return [np.delete(b, np.s_[r:-1], axis=2) for b, r in zip(each, ends, strict=True)]


@dataclass(eq=False)
class _State:
    """Fits on their way, in units of the prior: conjugate gradients."""

    Z: Array  # (users, n, r + 1)
    Zt: Array  # (users, r + 1, n)
    owner: Ints  # (t,), whose fit it is
    size: Array  # (t, 1, r + 1)
    own: Array  # (t, C, n)
    weight: Array  # (t, 1, n)
    spread: Array  # (t, 1, r + 1)
    a: Array  # (t, C, r + 1), b / spread
    value: Array  # (t,), objective
    f: Array  # (t, C, n), scores
    p: Array  # (t, C, n), probabilities
    gradient: Array  # (t, C, r + 1), that of the step before until ``turn``
    fall: Array  # (t,), squared length of the gradient in the preconditioner's metric
    way: Array  # (t, C, r + 1), the direction
    slope: Array  # (t,), of the objective along it
    middle: Array  # (t, C, n), probabilities whose curvature the step meets

    @classmethod
    def start(cls, users: Sequence[Fits], dtype: type) -> _State:
        n, r = users[0].shape
        owner = np.repeat(np.arange(len(users)), [len(user.start) for user in users])

        def filled(arrays: list[Array], *shape: int, last: bool) -> Array:
            """Stacked, with zeros where a user has less; the last coordinate stays the last."""
            whole: Array = np.zeros((sum(map(len, arrays)), *shape), dtype)
            parts = np.split(whole, np.cumsum([len(x) for x in arrays])[:-1])
            for part, x in zip(parts, arrays, strict=True):
                if last:
                    part[..., : x.shape[-1] - 1], part[..., -1] = x[..., :-1], x[..., -1]
                else:
                    part[..., : x.shape[-1]] = x
            return whole

        classes = len(users[0].own)
        Zt: Array = np.zeros((len(users), r, n), dtype)
        for one, user in zip(Zt, users, strict=True):
            m, k = user.span.Z.shape
            one[: k - 1, :m], one[-1, :m] = user.span.Z[:, :-1].T, user.span.Z[:, -1]
        Z = np.ascontiguousarray(Zt.swapaxes(1, 2))
        size = filled([user.span.size[None] for user in users], r, last=True)[owner, None]
        own = filled([user.own[None] for user in users], classes, n, last=False)[owner]
        weight = filled([user.weight for user in users], n, last=False)[:, None]
        offset = filled([user.offset for user in users], classes, n, last=False)
        spread = np.sqrt(filled([user.variance for user in users], r, last=True))[:, None]
        b = filled([user.start for user in users], classes, r, last=True)
        nothing = np.zeros_like(b)
        a = np.divide(b, spread, out=nothing.copy(), where=spread > 0)
        f = offset + _times(spread * a, Zt, owner)
        p, loss = _softmax(f, own)
        value = np.vecdot(weight[:, 0], loss) + _products(a, a) / 2
        fall: Array = np.full(len(b), np.inf, dtype)
        each = (size, own, weight, spread, a, value, f, p, nothing, fall, nothing, value, p)
        return cls(Z, Zt, owner, *each)

    def take(self, some: Bools) -> _State:
        """Some of the fits."""
        each = (self.owner, self.size, self.own, self.weight, self.spread, self.a, self.value)
        more = (self.f, self.p, self.gradient, self.fall, self.way, self.slope, self.middle)
        return _State(self.Z, self.Zt, *(x[some] for x in (*each, *more)))

    def turn(self) -> Array:
        """Choose the next direction; about twice how far each fit is above its minimum, (t,)."""
        total = self.weight[:, 0].sum(axis=-1)
        wrong = self.p - self.own
        self.middle = self._on_the_way(wrong)
        bend = total - _products(self.weight * self.middle, self.middle)
        bend /= max(self.own.shape[1] - 1, 1) * total
        wrong *= self.weight
        gradient = _times(wrong, self.Z, self.owner)
        gradient *= self.spread
        gradient += self.a
        step = gradient / (1 + bend[:, None, None] * (self.size * self.spread**2))
        fall = _products(gradient, step)
        turned = (fall - _products(self.gradient, step)) / self.fall
        way = np.maximum(turned, 0)[:, None, None] * self.way
        way -= step
        slope = _products(way, gradient)
        uphill = slope >= 0
        way[uphill], slope[uphill] = -step[uphill], -fall[uphill]
        self.gradient, self.fall, self.way, self.slope = gradient, fall, way, slope
        return fall

    def advance(self) -> None:
        """A Newton step along the direction, or a shorter one that is sure to go down."""
        along = _times(self.spread * self.way, self.Zt, self.owner)
        slope, curve0 = self.slope, _products(self.way, self.way)
        moved = along * self.middle
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

    def _on_the_way(self, wrong: Array) -> Array:
        """Probabilities whose curvature a step meets: far from the minimum, halfway to the data.

        Rows that are surely wrong have no curvature where they are, and all of it on their way.
        """
        far = self.fall >= NEAR
        if not far.any():
            return self.p
        half = far * (0.5 - 0.5 / (1 + np.minimum(self.fall, 1e9) / FAR))
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
    return e, top + np.log(total) - np.einsum("tcn,tcn->tn", own, f)


def _products(a: Array, b: Array) -> Array:
    numbers = a.shape[1] * a.shape[2]
    return np.vecdot(a.reshape(-1, numbers), b.reshape(-1, numbers))


def _times(a: Array, M: Array, owner: Ints) -> Array:
    """a M for a (t, c, k) and each owner's M (k, l), as one product per owner."""
    t, c, k = a.shape
    found = np.empty((t, c, M.shape[2]), a.dtype)
    ends = np.searchsorted(owner, np.arange(len(M) + 1)).tolist()
    for u, (first, last) in enumerate(pairwise(ends)):
        if first < last:
            rows = a[first:last].reshape(-1, k)
            np.matmul(rows, M[u], out=found[first:last].reshape(-1, M.shape[2]))
    return found
