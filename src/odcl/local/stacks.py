"""Users of unequal size as stacks of equal size, so that one call serves many users.

A user's rows are padded with empty rows to a size that depends on that user alone, never on the
batch, and every stacked operation (matmul, LAPACK) treats the users of a stack one by one. So a
user's numbers are bit for bit the same alone, in any batch and in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.data.federation import Federation

# Large enough to spread the cost of a call over many users, small enough for the caches to carry
# a stack from one pass of a Newton step to the next. Wide users (no more rows than features) are
# reduced to their rows at once: there, more of them in a stack saves calls.
_TALL_BYTES, _WIDE_BYTES = 1 << 21, 1 << 26


class PerUser:
    """A dataclass whose arrays have one entry per user along their first axis."""

    def take(self, pick: Ints | Bools) -> Self:
        """The same for some of the users."""

        def some(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value[pick]
            return value.take(pick) if isinstance(value, PerUser) else value

        return type(self)(**{name: some(value) for name, value in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Stack(PerUser):
    """Some users' rows: padded rows have ``present`` False, weight 0 and zeros in X."""

    users: Ints  # (b,), positions in the federation
    X: Floats  # (b, n, n_features)
    y: Floats  # (b, n)
    weight: Floats  # (b, n), sums to 1 per user
    present: Bools  # (b, n)
    even: bool  # do all rows of a user weigh the same?

    def design(self, intercept: bool) -> Floats:
        """X with the intercept's column, ones where a row is present: (b, n, n_inputs)."""
        if not intercept:
            return self.X
        return np.concatenate([self.X, self.present[..., None].astype(np.float64)], axis=2)


def padded_size(n: Ints) -> Ints:
    """Smallest multiple of 2^(floor(log2 n) - 5) that holds n rows: at most 3 % of padding."""
    n = np.maximum(n, 1)
    step = 2 ** np.maximum(np.floor(np.log2(n)).astype(np.intp) - 5, 0)
    return -(-n // step) * step


def stacks(federation: Federation, y: Floats, users: Ints | None = None) -> Iterator[Stack]:
    """Cut a federation into stacks of users with the same padded size."""
    users = np.arange(federation.n_users) if users is None else users
    sizes = padded_size(federation.n_rows[users])
    order = np.argsort(sizes, kind="stable")
    for size in np.unique(sizes):
        members = users[order[np.searchsorted(sizes[order], size) :][: int((sizes == size).sum())]]
        budget = _WIDE_BYTES if size <= federation.n_features else _TALL_BYTES
        length = max(1, budget // (8 * int(size) * max(federation.n_features, 1)))
        for start in range(0, len(members), length):
            yield _stack(federation, y, members[start : start + length], int(size))


def _stack(federation: Federation, y: Floats, users: Ints, size: int) -> Stack:
    counts = federation.n_rows[users]
    first = federation.offsets[users]
    p = federation.n_features
    whole = (counts == size).all()
    if whole and (np.diff(users) == 1).all():  # neighbours without padding: a view
        rows: slice | Ints = slice(int(first[0]), int(first[0]) + size * len(users))
    else:
        last = federation.offsets[users + 1] - 1
        rows = np.minimum(first[:, None] + np.arange(size), last[:, None]).ravel()
    present = np.arange(size) < counts[:, None]
    X = federation.X[rows].reshape(len(users), size, p)
    target = y[rows].reshape(len(users), size)
    if federation.weight is None:
        weight = present / counts[:, None].astype(np.float64)
    else:
        weight = federation.weight[rows].reshape(len(users), size) * present
        weight = weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
    if not present.all():
        X = X * present[..., None]
    return Stack(users, X, target, weight, present, federation.weight is None)
