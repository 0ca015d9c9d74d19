"""Messages between users and server: declared fields, each with its shape and what it tells.

A field declared here is taken along, checked, counted and explained everywhere; there is no second
place that lists them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import joined_ids

if TYPE_CHECKING:
    from odcl.artifact.arrays import ArraySpec
    from odcl.wide.moments import GroupModels


@dataclass(frozen=True)
class Part:
    """One field of a message as one user sends or receives it."""

    tells: str  # of the user, in plain words
    shape: tuple[str, ...] = ()  # () is a number; ("dim", "dim") is symmetric: a triangle is sent
    triangular: bool = False  # the matrix is a triangle itself
    dtype: str = "float64"  # as a file holds it
    signed: bool = False  # may a symmetric matrix have negative eigenvalues? noise gives it some

    @property
    def matrix(self) -> bool:
        """Is it a matrix, or several of them: do the last two sizes go by the same name?"""
        return len(self.shape) > 1 and self.shape[-1] == self.shape[-2]

    @property
    def padded(self) -> bool:
        """Do batches of users differ in its size, and end in zeros where they are put together?"""
        return "rank" in self.shape


def part(
    tells: str,
    *shape: str,
    optional: bool = True,
    triangular: bool = False,
    dtype: str = "float64",
    signed: bool = False,
) -> Any:
    """Declare a field of a message."""
    default = None if optional else MISSING
    declared = Part(tells, shape, triangular, dtype, signed)
    return field(default=default, metadata={"part": declared})


@dataclass(frozen=True, eq=False)
class Message:
    """What one or many users send or receive, one row per user."""

    users: Array  # (n_users,), ids

    @classmethod
    @cache
    def parts(cls) -> Mapping[str, Part]:
        """The declared fields by name."""
        declared = ((f.name, f.metadata.get("part")) for f in fields(cls))
        return {name: part for name, part in declared if part is not None}

    @property
    def present(self) -> dict[str, Array]:
        """The fields that are there, by name."""
        found = ((name, getattr(self, name)) for name in self.parts())
        return {name: np.asarray(values) for name, values in found if values is not None}

    def __len__(self) -> int:
        return len(self.users)

    def __getitem__(self, user: int) -> Self:
        """The message of one user, by position."""
        return self.take(np.array([range(len(self))[user]]))

    def __iter__(self) -> Iterator[Self]:
        return (self[i] for i in range(len(self)))

    def take(self, order: Ints | Bools) -> Self:
        """The messages of some users, by position."""
        at = np.asarray(order)
        if at.dtype == np.bool_:  # [False, True] is not the positions 0 and 1
            at = np.flatnonzero(at)
        if np.array_equal(at, np.arange(len(self))):
            return self
        own = {name: a[at] for name, a in self.present.items()}
        return replace(self, users=self.users[at], **own)

    def part(self, start: int, stop: int) -> Self:
        """The messages of users next to each other, without a copy."""
        own = {name: a[start:stop] for name, a in self.present.items()}
        return replace(self, users=self.users[start:stop], **own)

    # -- arrays as a file holds them: symmetric matrices as triangles ------------------------

    def to_arrays(self) -> dict[str, Array]:
        arrays = {}
        for name, values in self.present.items():
            if self.parts()[name].matrix:
                values = triangles(values)
            arrays[name] = values
        return arrays

    @classmethod
    def array_shapes(cls, sizes: Mapping[str, int]) -> dict[str, tuple[int | str, ...]]:
        """Shapes of the arrays that :meth:`to_arrays` may give; ``sizes`` of the words in them."""
        shapes: dict[str, tuple[int | str, ...]] = {}
        for name, part in cls.parts().items():
            numbers = [sizes.get(word, word) for word in part.shape]  # a word: as many as there are
            shapes[name] = ("users", *numbers)
            if part.matrix:
                shapes[name] = ("users", *numbers[:-2], n_numbers(2 * (sizes[part.shape[-1]],)))
        return shapes

    @classmethod
    def specs(cls, sizes: Mapping[str, int]) -> dict[str, ArraySpec]:
        """What the arrays that :meth:`to_arrays` may give have to be in a file."""
        from odcl.artifact.arrays import ArraySpec

        parts = cls.parts()
        return {
            name: ArraySpec(shape, (parts[name].dtype,), optional=True)
            for name, shape in cls.array_shapes(sizes).items()
        }

    @classmethod
    def from_arrays(cls, users: Array, arrays: Mapping[str, Array]) -> Self:
        """The way back; shapes were checked against :meth:`array_shapes`."""
        values: dict[str, Any] = {}
        for name, array in arrays.items():
            if cls.parts()[name].matrix:
                array = from_triangles(array, symmetric=not cls.parts()[name].triangular)
            values[name] = array
        missing = {f.name for f in fields(cls) if f.default is MISSING} - {"users", *values}
        if missing:
            raise ValueError(f"{', '.join(sorted(missing))} is not there")
        return cls(users, **values)

    def joined(self, *others: Self) -> Self:
        """These messages and others of the same fields, one after the other."""
        more = [other.present for other in others]
        rows = {
            name: self.stacked(name, [a, *(one[name] for one in more)])
            for name, a in self.present.items()
        }
        return replace(self, users=joined_ids(self.users, *(o.users for o in others)), **rows)

    @classmethod
    def stacked(cls, name: str, arrays: Sequence[Array]) -> Array:
        """A field of several messages, one after the other."""
        if cls.parts()[name].padded:
            size = max(array.shape[1] for array in arrays)
            room = [(0, 0), (0, size), (0, 0)]
            arrays = [np.pad(array, room)[:, :size] for array in arrays]
        return np.concatenate(arrays)

    def replaced(self, at: Ints, other: Self) -> Self:
        """The messages with other ones for the users at these positions."""
        rows = {}
        for name, a in self.present.items():
            both = self.stacked(name, [a, other.present[name]])
            rows[name] = both[: len(a)]
            rows[name][at] = both[len(a) :]
        return replace(self, **rows)

    def kept_back(self, name: str) -> Bools:
        """Users whose message holds nothing under this name, (n_users,): none, as a rule."""
        return np.zeros(len(self), dtype=bool)

    @property
    def n_bytes(self) -> Ints:
        """Bytes of each user's message, (n_users,)."""
        total = np.zeros(len(self), dtype=np.intp)
        for name, each in self.field_bytes.items():
            total += each * ~self.kept_back(name)
        return total

    @property
    def field_bytes(self) -> dict[str, int]:
        """Bytes of each field of one user's message: 8 per number, or as many as its type has."""
        found = {}
        for name, values in self.part(0, 1).to_arrays().items():
            found[name] = math.prod(values.shape[1:]) * np.dtype(self.parts()[name].dtype).itemsize
        return found

    def refuse_non_finite(self, name: str, values: Floats) -> None:
        """One number that is not finite would spread to a whole group: name its user."""
        flat = values.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(flat @ flat):  # the quick look; squares may overflow, numbers not
                return
        bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
        if bad.any():
            raise ValueError(
                f"{int(bad.sum())} of {len(self)} uploads have a {name} that is not finite "
                f"(first: user {self.users[bad].tolist()[0]!r}); averaging would spread it to the "
                "whole group. Leave these users out, or mend their local fit."
            )


@dataclass(frozen=True, eq=False)
class Downloads(Message):
    """The downloads of one or many users, one row per user."""

    model: Floats = part("the model of the user's group", "dim", optional=False)
    group: Ints = part("the number of the user's group", optional=False, dtype="int64")
    group_size: Ints = part("how many users are in that group", optional=False, dtype="int64")
    probability: Floats | None = part("how surely the user belongs to it")
    fold: Ints | None = part(
        "the fifth of the users that it is in: models without it judge its own rows", dtype="int64"
    )
    own_curvature: Floats | None = part(
        "what the groups took from the user's own private upload, which its rows replace",
        *("dim", "dim"),
    )
    own_slope: Floats | None = part("the same, of its slope", "dim")
    mixture: GroupModels | None = None  # of mixed groups, the same for everybody

    @property
    def n_bytes(self) -> Ints:
        shared = 0 if self.mixture is None else self.mixture.n_numbers
        return super().n_bytes + 8 * shared


def triangles(matrices: Array) -> Array:
    """The upper triangles of matrices, row by row, (..., n * (n + 1) / 2)."""
    rows, columns = np.triu_indices(matrices.shape[-1])
    found: Array = matrices[..., rows, columns]
    return found


def from_triangles(numbers: Array, *, symmetric: bool = True) -> Array:
    """The way back, to symmetric matrices or to triangular ones, (..., n, n)."""
    side = int(np.sqrt(2 * numbers.shape[-1]))
    rows, columns = np.triu_indices(side)
    square = np.zeros((*numbers.shape[:-1], side, side))
    square[..., rows, columns] = numbers
    if symmetric:
        square[..., columns, rows] = numbers
    return square


def n_numbers(shape: Sequence[int]) -> int:
    """Numbers that a field of this shape sends: a symmetric matrix goes as its triangle."""
    if len(shape) == 2 and shape[0] == shape[1]:
        return shape[0] * (shape[0] + 1) // 2
    return int(np.prod(shape, dtype=np.intp))


def message_bytes(*shapes: Sequence[int]) -> int:
    """Bytes of a message with fields of these shapes: 8 per number."""
    return 8 * sum(map(n_numbers, shapes))


# -- what crosses the wire, round by round ---------------------------------------------------------


Shapes = tuple[tuple[int, ...], ...]  # of a message's fields: () is a number, (dim,) a model


@dataclass(frozen=True)
class Exchange:
    """What each of ``n_users`` sends and receives in one round, as the shapes of the fields.

    Several models are several shapes, ``((dim,),) * n_models``.
    """

    n_users: int
    sends: Shapes = ()
    receives: Shapes = ()
    delivers: bool = False  # what the last round made goes out once more, after it

    def over(self, n_rounds: int) -> Ledger:
        """The bytes of ``n_rounds`` such rounds."""
        up = np.full(n_rounds, self.n_users * message_bytes(*self.sends), dtype=np.intp)
        down = self.n_users * message_bytes(*self.receives)
        return Ledger(up, np.full(n_rounds, down, dtype=np.intp), down * self.delivers)


def fedavg_exchange(n_users: int, dim: int) -> Exchange:
    """A round of FedAvg: a model each way, and beside it the sample size that weighs it."""
    return Exchange(n_users, sends=((dim,), ()), receives=((dim,),), delivers=True)


def ifca_exchange(n_users: int, dim: int, n_models: int) -> Exchange:
    """A round of IFCA: K models come, one vector goes, with the number of its model if K > 1."""
    sends: Shapes = ((dim,), ()) if n_models > 1 else ((dim,),)
    return Exchange(n_users, sends=sends, receives=n_models * ((dim,),), delivers=True)


COMPARED_ROUNDS = 100  # of FedAvg and IFCA, beside the bytes of one round


def iterated_ledgers(n_users: int, dim: int, n_models: int) -> dict[str, Ledger]:
    """What methods of many rounds would send for the same task: every user is a client."""
    others = {
        "FedAvg": fedavg_exchange(n_users, dim),
        "IFCA": ifca_exchange(n_users, dim, n_models),
    }
    return {name: one.over(COMPARED_ROUNDS) for name, one in others.items()}


@dataclass(frozen=True, eq=False)
class Ledger:
    """Bytes that all users together sent and received in each round."""

    up: Ints  # (n_rounds,)
    down: Ints  # (n_rounds,)
    delivery: int = 0  # of the last download, by which users get what the rounds made

    @classmethod
    def of(cls, uploads: Message, downloads: Message) -> Ledger:
        """One round of these messages."""
        up, down = (np.array([int(m.n_bytes.sum())], dtype=np.intp) for m in (uploads, downloads))
        return cls(up, down)

    def to_json(self) -> dict[str, int]:
        return {"rounds": self.n_rounds, "up": self.total_up, "down": self.total_down}

    @property
    def n_rounds(self) -> int:
        return len(self.up)

    @property
    def total_up(self) -> int:
        return int(self.up.sum())

    @property
    def total_down(self) -> int:
        return int(self.down.sum()) + self.delivery
