"""Predictions of a table in pieces: rows go to their users' models, answers come back in order.

ask      pieces  -> files    rows by the file in which their user's model is
answer   buckets -> files    predictions by the piece that asked
write    pieces  -> Parquet  as many files as pieces, rows in the order of the table
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from odcl._typing import Array
from odcl.data.address import Address
from odcl.data.federation import id_keys
from odcl.data.schema import TableSchema
from odcl.engines.dask.cluster import Cluster
from odcl.engines.dask.table import PiecedTable
from odcl.engines.pieces import PredictOptions, no_predictions, predicted
from odcl.exchange.buckets import UserFiles, part_name, receive, send
from odcl.fitted.value import Fitted

_AT, _FROM = "odcl_at", "odcl_from"  # which row of its piece, and which piece


@dataclass(frozen=True)
class Predicted:
    """What was written: files in the order of the table, and rows in them."""

    files: tuple[Address, ...]
    rows: int
    left_out: int  # rows that lack a value
    strangers: int = 0  # users who were not in the fit


@dataclass(frozen=True, eq=False)
class _Asked:
    """What tasks have in common."""

    fitted: Fitted  # of the groups, or of all users
    schema: TableSchema
    files: UserFiles | None
    options: PredictOptions
    work: Address
    out: Address
    n_pieces: int

    @property
    def columns(self) -> list[str]:
        return [self.schema.user, *self.schema.features]


def predict_pieces(
    fitted: Fitted,
    schema: TableSchema,
    table: PiecedTable,
    options: PredictOptions,
    cluster: Cluster,
    work: Address,
    out: Address,
    *,
    stage: Callable[..., None] | None = None,
    told: Callable[[int], None] | None = None,
) -> Predicted:
    """Predict every row of a table; ``out`` gets one Parquet file per piece."""
    say = stage or (lambda *_: None)
    light = replace(fitted, uploads=None)
    asked = _Asked(light, schema, fitted.files, options, work, out, table.n_pieces)
    pieces = table.pieces
    if asked.files is None:
        say("predicting", table.n_pieces, "pieces")
        found = cluster.run(_direct, pieces, asked, progress=told)
        strange = np.unique(np.concatenate([keys for _, keys in found]))
        return _sum((one for one, _ in found), len(strange))
    say("bringing rows to their users' models", table.n_pieces, "pieces")
    questions = cluster.run(_ask, pieces, asked, progress=told)
    n = len(asked.files.parts)
    say("predicting", n, "files of models")
    answers = cluster.run(_answer, range(n), asked, tuple(questions), progress=told)
    say("writing predictions", table.n_pieces, "pieces")
    own = tuple(file for file, _ in answers if file is not None)
    strangers = sum(n for _, n in answers)  # all rows of a user are in one bucket
    return _sum(cluster.run(_collect, pieces, asked, own, progress=told), strangers)


def _sum(found: Iterable[tuple[Address, int, int]], strangers: int) -> Predicted:
    files, rows, left_out = zip(*found, strict=True)
    return Predicted(files, sum(rows), sum(left_out), strangers)


def _ask(one: Any, asked: _Asked) -> Address:
    rows = one.read(asked.columns)
    with one.place.naming_rows():  # what cannot be used is refused here
        asked.schema.encode(
            rows,
            with_target=False,
            missing=asked.options.missing,
            unseen=asked.options.unseen,
            piece=True,
        )
    assert asked.files is not None
    targets = asked.files.buckets(rows, asked.schema.user)
    file = asked.work / f"ask-{one.number:05d}.arrow"
    at = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    send(rows.append_column(_AT, at), targets, len(asked.files.parts), file)
    return file


def _answer(
    bucket: int, asked: _Asked, questions: tuple[Address, ...]
) -> tuple[Address | None, int]:
    parts = []
    for number, file in enumerate(questions):
        rows = receive([file], bucket)
        if rows is not None:
            whose = pa.array(np.full(rows.num_rows, number, np.int32))
            parts.append(rows.append_column(_FROM, whose))
    if not parts:
        return None, 0
    rows = pa.concat_tables(parts)
    assert asked.files is not None
    fitted = asked.fitted.with_models(asked.files.read(bucket))
    answer = predicted(rows, fitted, asked.schema, asked.options)
    found = answer.to_arrow()
    at = rows.select([_AT, _FROM]).take(found["row"])
    found = found.set_column(0, "row", at[_AT])
    file = asked.work / f"answer-{bucket:05d}.arrow"
    send(found, at[_FROM].to_numpy().astype(np.intp), asked.n_pieces, file)
    return file, len(answer.strange)


def _collect(one: Any, asked: _Asked, answers: tuple[Address, ...]) -> tuple[Address, int, int]:
    found = receive(answers, one.number)
    users = one.read([asked.schema.user])
    if found is None:
        found = pa.table(no_predictions(asked.schema, asked.options))
    found = found.take(pc.sort_indices(found, sort_keys=[("row", "ascending")]))
    return _write(one, users, found, asked)


def _direct(one: Any, asked: _Asked) -> tuple[tuple[Address, int, int], Array]:
    rows = one.read(asked.columns)
    with one.place.naming_rows():
        found = predicted(rows, asked.fitted, asked.schema, asked.options)
    return _write(one, rows, found.to_arrow(), asked), id_keys(found.strange)


def _write(one: Any, rows: pa.Table, found: pa.Table, asked: _Asked) -> tuple[Address, int, int]:
    """The predictions of a piece beside their users, with the rows' places in the table."""
    place, user = one.place, asked.schema.user
    at = found["row"]
    source = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(len(at), np.int32)), pa.array([place.file])
    )
    columns: dict[str, Any] = {"file": source, "row": pc.add(at, place.first + 1)}
    columns |= {name: found[name] for name in found.column_names if name != "row"}
    own = {f"odcl_{name}" if name == user else name: values for name, values in columns.items()}
    file = asked.out / part_name(one.number)
    with file.writing() as stream:
        pq.write_table(pa.table({user: rows[user].take(at), **own}), stream)
    return file, len(at), rows.num_rows - len(at)
