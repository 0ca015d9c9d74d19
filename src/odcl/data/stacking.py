"""Files of a folder as one table: the columns in use must be the same, each of one type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from odcl.data.columns import as_names
from odcl.errors import InputError, Setting, listing


@dataclass(frozen=True)
class InUse:
    """The columns of a table that count: whether files agree in others does not matter."""

    fixed: tuple[str, ...]  # in a role that has to be filled: the user, the target
    features: tuple[str, ...] | None = None  # None: all columns but those to drop
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        fixed: Iterable[str],
        features: Iterable[str] | None,
        drop: Iterable[str],
        categorical: Iterable[str],
    ) -> InUse:
        """From names as callers give them: one, or several."""
        asked = None if features is None else as_names(features)
        return cls(tuple(fixed), asked, as_names(drop), as_names(categorical))

    def __contains__(self, name: str) -> bool:
        if name in self.fixed or name in self.categorical:
            return True
        return name not in self.drop if self.features is None else name in self.features

    def spares(self, names: Iterable[str]) -> bool:
        """May all of them be dropped?"""
        return self.features is None and not set(names).intersection(self.fixed)

    @property
    def named(self) -> tuple[str, ...]:
        """The columns that somebody named, and that must be there."""
        return (*self.fixed, *(self.features or ()), *self.drop, *self.categorical)


def all_names(schemas: Iterable[pa.Schema]) -> list[str]:
    """The columns that any of the files has."""
    return list(dict.fromkeys(name for schema in schemas for name in schema.names))


def mixed_columns(schemas: Sequence[pa.Schema]) -> list[str]:
    """Columns that are text, a date or a truth value in one table and something else in another."""
    kinds: dict[str, set[str]] = {}
    for schema in schemas:
        for field in schema:
            number = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
            kind = "number" if number else str(field.type)
            kinds.setdefault(field.name, set()).update({kind} - {"null"})
    return [name for name, seen in kinds.items() if len(seen) > 1]


def common_schema(
    schemas: Sequence[pa.Schema],
    files: Sequence[str],
    columns: InUse | None = None,
) -> pa.Schema:
    """The columns of tables that are stacked, in the order of the first: each in one type.

    Only ``columns`` count, by default all.
    """
    names = [name for name in all_names(schemas) if columns is None or name in columns]
    held = [frozenset(schema.names).intersection(names) for schema in schemas]
    usual = Counter(held).most_common(1)[0][0]
    for own, file in zip(held, files, strict=True):
        if own != usual:
            lacks, extra = ([n for n in names if n in odd] for odd in (usual - own, own - usual))
            odd = {"lacks": lacks, "adds": extra}
            found = " and ".join(f"{word} {listing(names)}" for word, names in odd.items() if names)
            raise InputError(
                f"{file} {found}, compared with {files[held.index(usual)]}: the files of a folder "
                "need the same columns. ",
                *_advice([*lacks, *extra], columns),
            )
    fields = []
    for name in names:
        own_types = [schema.field(name).type for schema in schemas]
        common = _common_type(own_types)
        if common is None:
            raise _types_differ(name, own_types, files, columns)
        fields.append(pa.field(name, common))
    return pa.schema(fields)


def _advice(odd: list[str], columns: InUse | None) -> tuple[str | Setting, ...]:
    if columns is None or not columns.spares(odd):
        return ("Mend the file.",)
    what = "column" if len(odd) == 1 else "columns"
    return (f"Mend the file, or do without the {what}: ", Setting("drop", odd), ".")


def _common_type(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """The type that holds the values of all of them; None: there is none."""
    distinct = dict.fromkeys(types)
    try:
        each = [pa.schema([pa.field("", kind)]) for kind in distinct]
        return pa.unify_schemas(each, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def _types_differ(
    name: str, types: Sequence[pa.DataType], files: Sequence[str], columns: InUse | None
) -> InputError:
    """Names the files whose type does not go with that of most, or all of them."""

    def with_it(kind: pa.DataType) -> list[bool]:
        return [_common_type([kind, other]) is not None for other in types]

    told = [kind for kind in dict.fromkeys(types) if not pa.types.is_null(kind)]
    fits = max(map(with_it, told), key=sum)
    unclear = all(fits) or 2 * sum(fits) <= len(fits)  # who is odd
    where: dict[str, list[str]] = {}
    for kind, file, good in zip(types, files, fits, strict=True):
        if not good or unclear:
            where.setdefault(str(kind), []).append(file)
    odd = ", ".join(f"{kind} in {_some(own)}" for kind, own in where.items())
    usual = dict.fromkeys(str(kind) for kind, good in zip(types, fits, strict=True) if good)
    rest = "" if unclear else f", and {' or '.join(usual)} in the other files"
    return InputError(
        f"Column {name!r} is {odd}{rest}: the files of a folder need the same types. ",
        *_advice([name], columns),
    )


def _some(files: Sequence[str]) -> str:
    more = len(files) - 3
    return f"{', '.join(files[:3])}{f' and {more} more' * (more > 0)}"
