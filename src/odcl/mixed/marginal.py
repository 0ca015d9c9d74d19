"""Users' models integrated out: W = (I + At T)^-1 At, w = (I + At T)^-1 bt and log|I + At T|.

With T = R R', all of them follow from P = (I + R'At R)^-1, which is symmetric and no larger than I.
It is taken as Y'Y, where Y is the inverse of a Cholesky factor: half the work of solving with
I + At T, which is not symmetric, and its determinant comes with it. Users go in stacks that stay
near the processor: to ask the system for fresh memory takes longer than to fill it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Floats, Ints

NEAR = 2**16  # numbers of a stack of matrices: a megabyte
LEAST = 1e-15  # variances below this share of the largest are rounding
LEAF = 6  # triangles of this size are inverted row by row, all users at once


def stack_size(dim: int) -> int:
    """How many users' matrices stay near the processor."""
    return max(NEAR // max(dim, 1) ** 2, 1)


def marginals(A: Floats, b: Floats, T: Floats, s2: Floats) -> tuple[Floats, ...]:
    """W, w, ld = log|I + At T| and bt'T w of every user, for any symmetric T >= 0.

    ``A`` is (n_users, dim, dim), ``b`` (n_users, dim), ``s2`` (n_users,). A user's numbers are the
    same bit for bit alone and in any batch.
    """
    n, dim = b.shape
    root = Root.of(T)
    k, step = root.rank, min(stack_size(dim), max(n, 1))
    W, w, ld, drop = np.empty_like(A), np.empty_like(b), np.empty(n), np.empty(n)
    rooms = [np.empty((step, *shape)) for shape in ((k, dim + 1), (k, k), (k, k), (k, dim + 1))]
    rooms.append(np.empty((step, dim, dim + 1)))
    for first in range(0, n, step):
        part = slice(first, min(first + step, n))
        room = [space[: part.stop - first] for space in rooms]
        w[part], ld[part], drop[part] = _stack(A[part], b[part], root, s2[part], W[part], room)
    return W, w, ld, drop


def drops(A: Floats, b: Floats, T: Floats, s2: Floats) -> Floats:
    """[F f] of every user, W = At - F'F and w = bt - F'f, as (n_users, rank of T, dim + 1)."""
    n, dim = b.shape
    root = Root.of(T)
    right = np.empty((n, root.rank, dim + 1))
    system, Y = np.empty((2, n, root.rank, root.rank))
    root.prepare(A, b, s2, right, system)
    inverse_root(system, Y)
    return np.matmul(Y, right)


@dataclass(frozen=True, eq=False)
class Root:
    """T = R R'; R has a column for each direction that varies."""

    scale: Floats  # (rank,), the columns' lengths
    turn: Floats | None  # (dim, rank), their directions; None: coordinates as they are
    some: Ints | None  # (rank,), the coordinates that vary, where directions are; None: all of them
    whole: bool  # do all directions vary?

    @property
    def rank(self) -> int:
        return len(self.scale)

    @staticmethod
    def of(T: Floats) -> Root:
        values, turn = np.diagonal(T), None
        if np.count_nonzero(T) > np.count_nonzero(values):
            values, turn = np.linalg.eigh(T)
        vary = values > LEAST * values.max()
        whole = bool(vary.all())
        some = np.flatnonzero(vary) if turn is None and not whole else None
        return Root(np.sqrt(values[vary]), None if turn is None else turn[:, vary], some, whole)

    def prepare(self, A: Floats, b: Floats, s2: Floats, right: Floats, system: Floats) -> None:
        """Write R'[At bt] and I + R'At R of each user."""
        self.times(A, s2, right[..., :-1])
        self.times(b[..., None], s2, right[..., -1:])
        self.across(right[..., :-1], system)
        system.reshape(len(A), -1)[:, :: self.rank + 1] += 1.0

    def times(self, a: Floats, unit: Floats, out: Floats) -> None:
        """R'a of each matrix of a stack, over its ``unit`` (n,)."""
        scale = (self.scale / unit[:, None])[..., None]
        if self.some is not None:
            a = a[:, self.some]
        elif self.turn is not None:
            a = np.matmul(self.turn.T, a, out=out)
        np.multiply(a, scale, out=out)

    def across(self, a: Floats, out: Floats) -> None:
        """a R of each matrix of a stack."""
        if self.turn is None:
            np.multiply(a if self.some is None else a[..., self.some], self.scale, out=out)
        else:
            np.matmul(a, self.turn * self.scale, out=out)


def _stack(
    A: Floats, b: Floats, root: Root, s2: Floats, W: Floats, room: list[Floats]
) -> tuple[Floats, Floats, Floats]:
    """w, ld and bt'T w of one stack of users; W is written where it is to be.

    Where all directions vary nothing is subtracted: W = R'^-1 P R'At, exact for At T of any size.
    Where some do not, W = At - At R P R'At.
    """
    right, system, Y, half, both = room  # right is R'[At bt]
    root.prepare(A, b, s2, right, system)
    ld = inverse_root(system, Y)
    np.matmul(Y, right, out=half)
    drop = (half[..., -1] ** 2).sum(axis=1)
    if root.whole:
        np.matmul(Y.transpose(0, 2, 1), half, out=right)
        right *= 0.5 / root.scale[:, None]
        both = right if root.turn is None else np.matmul(root.turn, right, out=both)
        np.add(both[..., :-1], both[..., :-1].transpose(0, 2, 1), out=W)  # symmetric to the bit
        return 2 * both[..., -1], ld, drop
    np.matmul(half[..., :-1].transpose(0, 2, 1), half, out=both)
    w = b / s2[:, None] - both[..., -1]
    np.add(both[..., :-1], both[..., :-1].transpose(0, 2, 1), out=W)
    W *= -0.5
    W += np.divide(A, s2[:, None, None], out=both[..., :-1])
    return w, ld, drop


def inverse_root(S: Floats, Y: Floats) -> Floats:
    """Write Y with Y'Y = S^-1 for a stack of symmetric S >= I; log|S| is given back.

    Rounding of a huge S may take it below I: such a matrix goes by its eigenvalues.
    """
    try:
        L = np.asarray(np.linalg.cholesky(S), np.float64)
    except np.linalg.LinAlgError:
        return _one_by_one(S, Y)
    Y.fill(0.0)
    invert_lower(L, Y)
    return np.asarray(2 * np.log(np.diagonal(L, axis1=1, axis2=2)).sum(axis=1))


def _one_by_one(S: Floats, Y: Floats) -> Floats:
    """Matrix by matrix, where some have no factor: no user's numbers depend on others'."""
    ld = np.empty(len(S))
    for i in range(len(S)):
        one = slice(i, i + 1)
        try:
            np.linalg.cholesky(S[i])
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(S[i])
            values = np.maximum(values, 1.0)
            Y[i], ld[i] = (vectors / np.sqrt(values)).T, np.log(values).sum()
        else:
            ld[one] = inverse_root(S[one], Y[one])
    return ld


def invert_lower(L: Floats, Y: Floats) -> None:
    """Write the inverses of a stack of lower triangles into the lower triangles of ``Y``.

    First small triangles along the diagonal, then pairs of neighbours, of twice the size at every
    turn: [L 0; M N]^-1 = [L^-1 0; -N^-1 M L^-1 N^-1]. All pairs of one size are one product of
    stacks, which is quick. Both arrays are contiguous.
    """
    dim = L.shape[-1]
    count = dim // LEAF
    if count:
        leaves = 0, 0, count, LEAF, LEAF, LEAF
        _invert_leaves(_blocks(L, *leaves), _blocks(Y, *leaves))
    if dim % LEAF:
        last = count * LEAF
        _invert_leaves(L[:, last:, last:], Y[:, last:, last:])
    size = LEAF
    while size < dim:
        pairs = dim // (2 * size)
        last = 2 * size * pairs
        for at, count, rest in ((0, pairs, size), (last, 1, dim - last - size)):
            if count and rest > 0:
                first = _blocks(Y, at, at, count, size, size, size + rest)
                second = _blocks(Y, at + size, at + size, count, rest, rest, size + rest)
                across = _blocks(L, at + size, at, count, rest, size, size + rest)
                out = _blocks(Y, at + size, at, count, rest, size, size + rest)
                np.negative(second @ (across @ first), out=out)
        size *= 2


def _blocks(
    a: Floats, row: int, column: int, count: int, n_rows: int, n_columns: int, step: int
) -> Floats:
    """Blocks of a stack of matrices, ``step`` apart along the diagonal; a view (n, count, ., .)."""
    n, dim, _ = a.shape
    unit = a.itemsize
    return np.ndarray(
        (n, count, n_rows, n_columns),
        np.float64,
        a.data,
        (row * dim + column) * unit,
        (dim * dim * unit, step * (dim + 1) * unit, dim * unit, unit),
    )


def _invert_leaves(L: Floats, Y: Floats) -> None:
    """Invert small triangles (n, ..., ., .) row by row, all at once."""
    for i in range(L.shape[-1]):
        own = np.divide(1.0, L[..., i, i], out=Y[..., i, i])
        if i:
            row = L[..., i : i + 1, :i] @ Y[..., :i, :i]
            np.multiply(row[..., 0, :], -own[..., None], out=Y[..., i, :i])
