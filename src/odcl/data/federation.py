"""The users' data: one X, one y and offsets, so that a million users are three arrays.

And whose row is it: ids of any kind in one canonical order, from arguments or a column of X.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.errors import InputError, Row


@dataclass(frozen=True, eq=False)
class Federation:
    """Rows of many users, held user by user.

    User ``i`` owns the rows ``offsets[i]:offsets[i + 1]``. Users stand in canonical order (see
    :func:`group_rows`), rows inside a user in the order in which they came.
    """

    X: Floats  # (n_rows, n_features)
    y: Array  # (n_rows,)
    offsets: Ints  # (n_users + 1,)
    users: Array  # (n_users,), the users' ids
    weight: Floats | None = None  # (n_rows,), how often a row counts; None: once each

    def __repr__(self) -> str:
        n, p = self.X.shape
        return f"<{type(self).__name__}: {self.n_users:,} users, {n:,} rows, {p:,} features>"

    @classmethod
    def from_arrays(cls, X: Any, y: Any, users: Any, *, weight: Any = None) -> Federation:
        """Sort rows by user. ``users`` names the owner of each row: any mix of ids."""
        X = np.ascontiguousarray(X, dtype=np.float64)
        y = np.asarray(y)
        if X.ndim != 2:
            raise ValueError(f"X must be a matrix of rows and features, got {X.ndim} dimension(s).")
        ids, codes = group_rows(owner_ids(users))
        if not len(X) == len(y) == len(codes):
            raise ValueError(
                f"X has {len(X)} rows, y {len(y)} and users {len(codes)}: each row needs all three."
            )
        if weight is not None:
            weight = np.asarray(weight, dtype=np.float64)
            if weight.shape != codes.shape:
                raise ValueError(
                    f"weight has shape {weight.shape}, and {len(codes)} rows need one number each."
                )
            if not (np.isfinite(weight) & (weight >= 0)).all():
                raise ValueError("Weights must be one finite number >= 0 per row.")
        if len(X) == 0 or (weight is not None and not weight.any()):
            raise ValueError("There are no rows: a federation needs at least one.")
        federation = cls.from_codes(X, y, ids, codes, weight=weight)
        if weight is None or weight.all():
            return federation
        assert federation.weight is not None
        return federation.select_rows(federation.weight > 0)  # zero times is not there

    @classmethod
    def from_codes(
        cls, X: Floats, y: Array, ids: Array, codes: Ints, *, weight: Floats | None = None
    ) -> Federation:
        """Sort rows by user where :func:`group_rows` has been at work: ids in canonical order, and
        the position of each row's among them."""
        order = row_order(codes)
        if order is not None:
            X, y = X[order], y[order]
            weight = None if weight is None else weight[order]
        return cls(X, y, _offsets(np.bincount(codes, minlength=len(ids))), ids, weight)

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_features(self) -> int:
        return int(self.X.shape[1])

    @property
    def n_rows(self) -> Ints:
        """Rows of each user, (n_users,)."""
        return np.diff(self.offsets)

    @property
    def n_samples(self) -> Floats:
        """Weight of each user's rows, (n_users,): the number of rows unless weights were given."""
        if self.weight is None:
            return self.n_rows.astype(np.float64)
        return np.add.reduceat(self.weight, self.offsets[:-1])

    @property
    def row_user(self) -> Ints:
        """Position of each row's owner in ``users``, (n_rows,)."""
        return np.repeat(np.arange(self.n_users), self.n_rows)

    def rows(self, user: int) -> slice:
        return slice(int(self.offsets[user]), int(self.offsets[user + 1]))

    def __iter__(self) -> Iterator[tuple[Any, Floats, Array]]:
        """(id, X, y) of one user after another."""
        for i, user in enumerate(self.users.tolist()):
            rows = self.rows(i)
            yield user, self.X[rows], self.y[rows]

    def take(self, users: Ints) -> Federation:
        """The federation of some users, by position; canonical order is the caller's to keep."""
        rows, offsets = self.rows_of(users), _offsets(self.n_rows[users])
        weight = None if self.weight is None else self.weight[rows]
        return Federation(self.X[rows], self.y[rows], offsets, self.users[users], weight)

    def rows_of(self, users: Ints) -> Ints:
        """Positions of some users' rows, user by user."""
        starts, counts = self.offsets[:-1][users], self.n_rows[users]
        offsets = _offsets(counts)
        return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts)

    def part(self, start: int, stop: int) -> Federation:
        """Users next to each other, without a copy of their rows."""
        first, last = self.offsets[start], self.offsets[min(stop, self.n_users)]
        weight = None if self.weight is None else self.weight[first:last]
        offsets = self.offsets[start : stop + 1] - first
        return Federation(
            self.X[first:last], self.y[first:last], offsets, self.users[start:stop], weight
        )

    def some_users(self, most: int) -> Ints:
        """Positions of at most ``most`` users, drawn by their ids, in canonical order."""
        if self.n_users <= most:
            return np.arange(self.n_users)
        return np.sort(np.argpartition(id_keys(self.users), most)[:most])

    def select_rows(self, mask: Bools) -> Federation:
        """The rows where ``mask`` (n_rows,) is true; users without any are left out."""
        counts = np.add.reduceat(mask, self.offsets[:-1], dtype=np.intp)
        weight = None if self.weight is None else self.weight[mask]
        users = self.users[counts > 0]
        return Federation(self.X[mask], self.y[mask], _offsets(counts[counts > 0]), users, weight)

    def drawn_rows(self, user: int, size: int, rng: np.random.Generator) -> Ints:
        """Rows of a user, drawn with replacement and in proportion to their weight, (size,)."""
        rows = self.rows(user)
        if self.weight is None:
            return rng.integers(rows.start, rows.stop, size=size)
        share = self.weight[rows] / self.weight[rows].sum()
        return rows.start + rng.choice(len(share), size=size, p=share)

    def with_X(self, X: Floats) -> Federation:
        return replace(self, X=X)

    def with_y(self, y: Array) -> Federation:
        return replace(self, y=y)


def _offsets(counts: Ints) -> Ints:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)


_FEW_ROWS = 100_000  # that are sorted at once in any way


def row_order(codes: Ints) -> Ints | None:
    """Rows in the order of a federation, by user; None where they stand so already."""
    if not (codes[1:] < codes[:-1]).any():
        return None
    if len(codes) < _FEW_ROWS:
        return np.argsort(codes, kind="stable")
    from scipy import sparse

    # Users are few beside rows: to count them first is four times as fast as to sort. A matrix with
    # one entry per row, in its user's column, taken column by column.
    n = len(codes)
    one = np.ones(n, np.bool_)
    by_row = sparse.csr_array((one, codes, np.arange(n + 1)), shape=(n, int(codes.max()) + 1))
    return by_row.tocsc().indices.astype(np.intp)


def group_rows(users: Any) -> tuple[Array, Ints]:
    """Ids in canonical order and the position of each row's id among them.

    Numbers come before text, text before the missing id (None, NaN, a null of a frame), so that
    any mix of ids has one order wherever it is sorted.
    """
    array = as_ids(users)
    if array.dtype.kind in "iub":
        return distinct_integers(array)
    # Ids repeat: a dict over all rows and a sort of the few is 3 times as fast as np.unique.
    seen: dict[Any, int] = {}
    rows = array.tolist()
    first_seen = np.fromiter((seen.setdefault(u, len(seen)) for u in rows), np.intp, len(rows))
    ordered = sorted(seen) if array.dtype.kind == "U" else sorted(seen, key=_id_order)
    rank = np.empty(len(ordered), dtype=np.intp)
    rank[[seen[u] for u in ordered]] = np.arange(len(ordered))
    ids = _objects(ordered) if array.dtype == object else np.array(ordered, dtype=array.dtype)
    return ids, rank[first_seen]


def distinct_integers(values: Array) -> tuple[Array, Ints]:
    """Distinct integers in order, and the position of each value among them.

    Ids mostly fill a range: then a table of it does what would else take a sort of all rows.
    """
    if values.dtype.kind == "i" and len(values) > _FEW_ROWS:
        low, high = int(values.min()), int(values.max())
        if high - low < 4 * len(values):
            at = values - values.dtype.type(low)
            there = np.zeros(high - low + 1, np.bool_)
            there[at] = True
            ids = np.flatnonzero(there).astype(values.dtype) + values.dtype.type(low)
            return ids, (np.cumsum(there) - 1)[at]
    ids, codes = np.unique(values, return_inverse=True)
    return ids, codes.reshape(-1).astype(np.intp)


def as_ids(users: Any) -> Array:
    """Ids as a typed array where all are numbers or all are text, else as plain objects."""
    array = _id_array(users)
    if array.ndim != 1:
        raise ValueError(f"users must be one id per row, got an array of shape {array.shape}.")
    if array.dtype.kind in "iubU":
        return array
    plain = array.tolist()
    if set(map(type, plain)) != {str}:
        plain = [_plain(u) for u in plain]
    kinds = set(map(type, plain))
    if any(kind.__hash__ is None for kind in kinds):
        raise ValueError(
            "users must be one id per row: a number, a text or None, not a collection."
        )
    if bool in kinds and kinds & {int, float}:  # True is 1: one id, whichever comes first
        plain = [int(u) if isinstance(u, bool) else u for u in plain]
        kinds = set(map(type, plain))
    if kinds == {int}:
        fits = min(plain) >= -(2**63) and max(plain) < 2**63
        return np.array(plain, dtype=np.int64) if fits else _objects(plain)
    if kinds == {str} and not any(u.endswith("\0") for u in plain):
        return np.array(plain, dtype=str)
    return _objects(plain)


def id_keys(ids: Array) -> Array:
    """A number per id, as if drawn by chance: the same for an id wherever it stands, (n,) uint64.

    Numbers and their texts have the same key. Whole columns are done at once: ids by the million
    are not looked at one by one.
    """
    if ids.dtype.kind == "O":  # a site and a number: a user of a federation
        ids = np.array([" ".join(map(str, i)) if isinstance(i, tuple) else str(i) for i in ids])
    texts = np.ascontiguousarray(ids if ids.dtype.kind == "U" else ids.astype(str))
    letters = texts.view(np.uint32).reshape(len(texts), texts.dtype.itemsize // 4)
    key = np.full(len(texts), 0xCBF29CE484222325, np.uint64)  # FNV-1a over the letters
    for letter in letters.T:  # the ends of shorter ids are zeros
        there = letter > 0
        key[there] = (key[there] ^ letter[there]) * np.uint64(0x100000001B3)
    return stirred(key)


def stirred(key: Array) -> Array:
    """Integers (uint64) whose bits all depend on all bits of the keys: SplitMix64's last step."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        key = (key ^ (key >> np.uint64(shift))) * np.uint64(factor)
    return key ^ (key >> np.uint64(31))


def joined_ids(*parts: Array) -> Array:
    """Ids one after the other: a number stays a number beside texts."""
    if {part.dtype.kind for part in parts} in ({"i"}, {"U"}):
        return np.concatenate(parts)
    return as_ids(_objects([user for part in parts for user in part.tolist()]))


def owner_ids(users: Any) -> Array:
    """Ids of the rows' owners. Rows without an id are refused: they may belong to many users."""
    ids = as_ids(users)
    missing = [] if ids.dtype != object else [r for r, u in enumerate(ids.tolist()) if u is None]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(ids)} rows have no user id (the first is row "
            f"{missing[0] + 1}), and no model can be theirs: leave these rows out, or give them an "
            "id."
        )
    return ids


def _id_array(users: Any) -> Array:
    """Ids of any container as an array, each as it was.

    Integers beside a null become floats in ``to_numpy``, which round from 2^53 on: such a column
    is taken value by value.
    """
    if isinstance(users, np.ndarray):
        return users
    if hasattr(users, "to_pylist"):  # Arrow
        return _objects(users.to_pylist())
    array = users.to_numpy() if hasattr(users, "to_numpy") else _objects(users)
    if array.dtype.kind == "f" and hasattr(users, "to_list"):
        return _objects(users.to_list())
    return np.asarray(array)


def _plain(user: Any) -> Any:
    """One id as a Python value: whole floats are integers, every kind of missing is None."""
    # pandas' NA comes first: it refuses to say whether it differs from itself.
    if user is None or type(user).__name__ in {"NAType", "NaTType"} or user != user:
        return None
    if isinstance(user, float) and user.is_integer():
        return int(user)
    if isinstance(user, np.generic):
        return _plain(user.item())
    return user


def _objects(values: Any) -> Array:
    values = list(values)
    return np.fromiter(values, dtype=object, count=len(values))  # a tuple stays one id


def _id_order(user: Any) -> tuple[int, Any, str, str]:
    if isinstance(user, int | float):
        return 0, user, "", ""
    if user is None:
        return 2, 0, "", ""
    return 1, 0, str(user), type(user).__name__


def user_rng(seed: int, user: Any) -> np.random.Generator:
    """Stream of one user: the same in a loop, in a pool, or on a remote node.

    It is derived from the seed and the user's own id, never from a position in a batch.
    """
    text = f"{type(_plain(user)).__name__}:{_plain(user)}".encode()
    key = np.frombuffer(hashlib.sha256(text).digest()[:16], dtype=np.uint32)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=tuple(map(int, key))))


MOST_SIZE = 1e70


def check_owners(users: Any, n_rows: int) -> Array:
    """Ids of the rows' owners, one per row and none missing."""
    if isinstance(users, str | bytes) or not hasattr(users, "__len__"):
        raise ValueError(
            f"users={users!r} is one id, and every row needs its own: pass as many ids as rows. A "
            "column of X is named in the constructor, ODCLRegressor(users='store')."
        )
    ids = owner_ids(users)
    if len(ids) != n_rows:
        raise ValueError(
            f"X has {n_rows} rows and users {len(ids)} ids, and every row needs its owner: pass as "
            "many ids as rows."
        )
    return ids


def positions(known: Array, ids: Array) -> Ints:
    """Position of each id among the known ones, -1 for those never seen, (len(ids),).

    Python looks at each distinct id once.
    """
    distinct, codes = group_rows(ids)
    sortable = known.dtype.kind in "iU" and known.dtype.kind == distinct.dtype.kind
    if len(known) and sortable and (known[:-1] < known[1:]).all():
        at = np.searchsorted(known, distinct).clip(max=len(known) - 1)
        return np.where(known[at] == distinct, at, -1)[codes]
    place = {user: i for i, user in enumerate(known.tolist())}
    return np.array([place.get(user, -1) for user in distinct.tolist()], dtype=np.intp)[codes]


def check_size(y: Array, name: str = "y", rows: Ints | None = None) -> None:
    """Refuse a target whose fourth power, a variance squared, is beyond floating point.

    ``rows`` are the numbers of the rows as the reader counts them, from 1 if not given.
    """
    if not len(y):
        return
    size = np.abs(y)
    at = int(size.argmax())
    row = at + 1 if rows is None else int(rows[at])
    error = target_size_error(float(size[at]), Row(row), name)
    if error is not None:
        raise error


def target_size_error(size: float, row: Row, name: str) -> InputError | None:
    """The error for a target whose largest value is ``size``, in ``row``; None: it can be used."""
    if size == 0 or 1 / MOST_SIZE < size < MOST_SIZE:
        return None
    return InputError(
        *(f"{name} reaches {size:g} in ", row),
        ", and its squares are beyond what a computer counts with: express it in another unit, or "
        "correct the row.",
    )


# -- rows held out: drawn from a user's own stream, by the rows' contents --------------------------

# Odd numbers whose bits are without a pattern (those of sqrt 2 and sqrt 3): a multiplicative hash.
_MIX, _STIR = np.uint64(0x6A09E667F3BCC909), np.uint64(0xBB67AE8584CAA73B)


def content_order(federation: Federation, time: Floats | None = None) -> Ints:
    """Rows user by user, inside a user by ``time`` and a hash of their contents: positions.

    Only rows that are equal in every number can tie, and it does not matter which comes first.
    """
    key = np.zeros(len(federation.y), dtype=np.uint64)
    columns = [*federation.X.T, federation.y.astype(np.float64)]
    if federation.weight is not None:
        columns.append(federation.weight)
    for column in columns:
        bits = (column + 0.0).view(np.uint64)  # -0.0 is 0.0
        key = (key ^ bits) * _MIX
        key ^= key >> np.uint64(29)
        key *= _STIR
    keys = (key, federation.row_user) if time is None else (key, time, federation.row_user)
    return np.lexsort(keys)


def folds(federation: Federation, n_folds: int, seed: int) -> Ints:
    """Fold of each row, (n_rows,): every user's rows dealt out evenly."""
    fold: Ints = np.empty(len(federation.y), dtype=np.intp)
    order = content_order(federation)
    for i, user in enumerate(federation.users):
        rows = order[federation.rows(i)]
        fold[rows] = user_rng(seed, user).permutation(np.arange(len(rows)) % n_folds)
    return fold


def hold_out(
    federation: Federation, share: float, seed: int, *, time: Floats | None = None
) -> Bools:
    """Rows to hold out, (n_rows,): a share of each user's, its last ones where ``time`` is given.

    A user always keeps at least one row to learn from. Without ``time`` (n_rows,) they are drawn
    from the user's own stream.
    """
    out = np.zeros(len(federation.y), dtype=bool)
    order = content_order(federation, time)
    for i, user in enumerate(federation.users):
        rows = order[federation.rows(i)]
        count = min(max(round(share * len(rows)), 1), len(rows) - 1)
        last = rows[::-1] if time is not None else rows[user_rng(seed, user).permutation(len(rows))]
        out[last[:count]] = True
    return out
