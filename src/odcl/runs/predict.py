"""Predictions of a run for a table: a piece at a time, in and out; a table in memory is one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from odcl.data.notices import about_strangers, about_values
from odcl.data.roles import check_columns
from odcl.data.schema import Encoded
from odcl.data.source import Piece, read_column_names, read_pieces, rows_of_files
from odcl.data.tables import beside
from odcl.engines.predict import Predictions, PredictOptions, predicted
from odcl.runs.folder import OpenRun

__all__ = ["PredictOptions", "Written", "predict"]


@dataclass(frozen=True)
class Written:
    """Predictions that were written."""

    rows: int
    notices: list[str]
    files: int = 1


def predict(
    run: OpenRun, table: Path, options: PredictOptions, write: Callable[[dict[str, Any]], object]
) -> Written:
    """Predict a table piece by piece; ``write`` takes the columns of each."""
    names = [name for name in (run.schema.user, *run.schema.features) if name]
    check_columns(names, read_column_names(table))
    total: Encoded | None = None
    strange, n_rows = set[Any](), 0
    for piece in read_pieces(table, names, text=run.schema.text):
        found = _of_piece(piece, run, options, table)
        columns = found.columns | {"row": found.columns["row"] + piece.before + 1}
        write(beside(run.owners(found.encoded.users), columns))
        n_rows += len(found.encoded.rows)
        strange.update(found.strange.tolist())
        total = found.encoded.counts(total)
    if not n_rows and piece.whole is not None:
        _of_piece(replace(piece, table=piece.whole), run, options, table)
    notices = []
    if total is not None:
        notices = about_values(run.schema, total, options.missing or run.schema.missing)
    return Written(n_rows, notices + about_strangers(len(strange)))


def _of_piece(piece: Piece, run: OpenRun, options: PredictOptions, table: Path) -> Predictions:
    """The predictions of a piece; errors about a table in memory are about all of its rows."""
    how = run.model.fitted_, run.schema, options
    if piece.whole is None:
        with piece.place.naming_rows():
            return predicted(piece.table, *how)
    with rows_of_files(table):
        if piece.table.num_rows == piece.whole.num_rows:
            return predicted(piece.whole, *how, piece=False)
        try:
            return predicted(piece.table, *how)
        except ValueError:
            predicted(piece.whole, *how, piece=False)
            raise
