"""Files of a folder as one table: the columns in use must be the same, each of one type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import pyarrow as pa

from odcl.errors import InputError, Setting, listing


def columns_in_use(
    names: Sequence[str],
    named: Collection[str],
    features: Iterable[str] | None,
    drop: Collection[str] = (),
) -> list[str]:
    """The columns that a fit looks at: those ``named`` in a role, and the features.

    Features default to all columns but those in ``drop``.
    """
    chosen = set(names).difference(drop) if features is None else set(features)
    return [name for name in names if name in named or name in chosen]


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
    columns: Collection[str] | None = None,
    spare: Collection[str] = (),
) -> pa.Schema:
    """The columns of tables that are stacked, in the order of the first: each in one type.

    Only ``columns`` count, by default all. An error advises to do without a column if it is among
    the ``spare`` ones.
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
                *_advice([*lacks, *extra], spare),
            )
    fields = []
    for name in names:
        own_types = [schema.field(name).type for schema in schemas]
        common = _common_type(own_types)
        if common is None:
            raise _types_differ(name, own_types, files, spare)
        fields.append(pa.field(name, common))
    return pa.schema(fields)


def _advice(columns: list[str], spare: Collection[str]) -> tuple[str | Setting, ...]:
    if not set(columns) <= set(spare):
        return ("Mend the file.",)
    what = "column" if len(columns) == 1 else "columns"
    return (f"Mend the file, or do without the {what}: ", Setting("drop", columns), ".")


def _common_type(types: Iterable[pa.DataType]) -> pa.DataType | None:
    """The type that holds the values of all of them; None: there is none."""
    distinct = dict.fromkeys(types)
    try:
        each = [pa.schema([pa.field("", kind)]) for kind in distinct]
        return pa.unify_schemas(each, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None


def _types_differ(
    name: str, types: Sequence[pa.DataType], files: Sequence[str], spare: Collection[str]
) -> InputError:
    """Names the files whose type does not go with that of most."""

    def with_it(kind: pa.DataType) -> list[bool]:
        return [_common_type([kind, other]) is not None for other in types]

    told = [kind for kind in dict.fromkeys(types) if not pa.types.is_null(kind)]
    fits = max(map(with_it, told), key=sum)
    where: dict[str, list[str]] = {}
    for kind, file, good in zip(types, files, fits, strict=True):
        if not good or all(fits):
            where.setdefault(str(kind), []).append(file)
    odd = ", ".join(f"{kind} in {listing(place, 3)}" for kind, place in where.items())
    usual = dict.fromkeys(str(kind) for kind, good in zip(types, fits, strict=True) if good)
    rest = "" if all(fits) else f", and {' or '.join(usual)} in the other files"
    return InputError(
        f"Column {name!r} is {odd}{rest}: the files of a folder need the same types. ",
        *_advice([name], spare),
    )
