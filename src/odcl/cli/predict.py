"""``odcl predict``: each row of a table by its own user's model."""

from __future__ import annotations

from argparse import Namespace
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import check_out_file, say, watched

if TYPE_CHECKING:
    from odcl.data.pieces import Piece
    from odcl.data.schema import Encoded, TableSchema
    from odcl.engines.partition.predict import Predictions, Wishes

_ABOUT = "Predict each row of a table with its own user's model."

_EXAMPLES = """\
examples:
  odcl predict run tomorrow.csv --out predictions.parquet
  odcl predict run tomorrow.csv --unknown pooled | head
  odcl predict run new/ --engine dask --out predictions/

The table needs the user's column and the features of the fit, not the target;
other columns are ignored. For classes the answer has a probability of each."""


_OPTIONS = {
    "--unknown HOW": (
        opt.one_of(opt.UNKNOWN),
        "users that were not in the fit: error, or pooled (predicted as an average user) "
        "[default: error]",
    ),
    "--unseen HOW": (
        opt.one_of(opt.UNSEEN),
        "categories that were not in the fit: error, or reference (count as the commonest) "
        "[default: error]",
    ),
    "--interval COVERAGE": (
        opt.coverage,
        "also low and high: a new target is between them with this probability [default: none]",
    ),
}


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "predict", "RUN TABLE [options]", _ABOUT, _EXAMPLES)
    opt.run_and_table(parser, opt.TABLE_HELP, _OPTIONS)
    opt.engine(parser)
    return parser


def run(options: Namespace) -> None:
    from odcl.cli import pieces

    if options.engine == "dask" or options.scheduler or "://" in str(options.table):
        pieces.predict(options)
        return
    _predict(options)


def _predict(options: Namespace) -> None:
    """A long table goes a piece at a time, in and out."""
    import sys

    from odcl.data.notices import about_strangers, about_values
    from odcl.data.pieces import read_pieces
    from odcl.data.roles import check_columns
    from odcl.data.tables import read_column_names
    from odcl.data.write import piecewise
    from odcl.errors import count
    from odcl.runs.folder import open_run

    check_out_file(options, run=options.run, table=options.table)
    model, schema = open_run(options.run)
    names = [name for name in (schema.user, *schema.features) if name]
    check_columns(names, read_column_names(options.table))
    total: Encoded | None = None
    wishes, strange, written = wishes_of(options), set[Any](), 0
    with ExitStack() as stack:
        if options.out is not None or not sys.stdout.isatty():  # or the bar would cross the rows
            stack.enter_context(watched(options)).stage("predicting")
        write = stack.enter_context(piecewise(options.out, sys.stdout.buffer))
        for piece in read_pieces(options.table, names, text=schema.text):
            found = _of_piece(piece, model, schema, wishes, options.table)
            write(_named(found, schema, piece.before))
            written += len(found.encoded.rows)
            strange.update(found.strange.tolist())
            total = found.encoded.counts(total)
        if not written and piece.whole is not None:
            _of_piece(replace(piece, table=piece.whole), model, schema, wishes, options.table)
    if total is not None:
        for text in about_values(schema, total, options.missing or schema.missing):
            say(text, options)
    for text in about_strangers(len(strange)):
        say(text, options)
    if options.out is not None:
        say(f"{count(written, 'row')} written to {options.out}", options)


def wishes_of(options: Namespace) -> Wishes:
    """How the options want rows to be predicted."""
    from odcl.engines.partition.predict import Wishes

    unknown, unseen = options.unknown or "error", options.unseen or "error"
    return Wishes(unknown, unseen, options.missing, options.interval, str(options.run))


def _of_piece(
    piece: Piece, model: Any, schema: TableSchema, wishes: Wishes, path: Path
) -> Predictions:
    """The predictions of a piece. What a table in memory is refused for is told of all its rows."""
    from odcl.data.tables import rows_of_files
    from odcl.engines.partition.predict import predicted
    from odcl.estimators.scattered import with_users_of

    how = partial(with_users_of, model), schema, wishes
    if piece.whole is None:
        with piece.place.naming_rows():
            return predicted(piece.table, *how)
    with rows_of_files(path):
        if piece.table.num_rows == piece.whole.num_rows:
            return predicted(piece.whole, *how, piece=False)
        try:
            return predicted(piece.table, *how)
        except ValueError:
            predicted(piece.whole, *how, piece=False)
            raise


def _named(found: Predictions, schema: TableSchema, before: int) -> dict[str, Any]:
    """The columns as they are written, the users' first; rows are counted over the whole table."""
    from odcl.data.write import beside
    from odcl.runs.folder import owners

    columns = found.columns | {"row": found.columns["row"] + before + 1}
    return beside(owners(schema, found.encoded.users), columns)
