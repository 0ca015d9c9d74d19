"""``odcl predict``: each row of a table by its own user's model."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import answer, check_out_file, say, watched

if TYPE_CHECKING:
    from odcl.data.schema import Encoded, TableSchema

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
    from odcl.data.pieces import is_long

    if is_long(options.table):
        _predict_long(options)
        return
    answer("predicting", _predicted, options)


def _predict_long(options: Namespace) -> None:
    """A table with many rows: a piece at a time in, and out, in bounded memory."""
    import sys

    from odcl.cli.run_folder import open_run
    from odcl.data.pieces import read_pieces
    from odcl.data.schema import check_columns
    from odcl.data.tables import read_column_names
    from odcl.data.write import piecewise
    from odcl.errors import InputError
    from odcl.report.text import about_strangers, about_values, count

    check_out_file(options, run=options.run, table=options.table)
    model, schema = open_run(options.run)
    names = [name for name in (schema.user, *schema.features) if name]
    check_columns(names, read_column_names(options.table))
    total: Encoded | None = None
    strange: set[Any] = set()
    written = 0
    with watched(options) as shown, piecewise(options.out, sys.stdout.buffer) as write:
        shown.stage("predicting")
        for piece in read_pieces(options.table, names, text=schema.text):
            try:
                found = _piece(model, schema, piece.table, options, piece=True)
            except InputError as error:
                raise error.of_file(piece.file, piece.first) from error
            found.columns["row"] += piece.before
            write(found.named)
            written += len(found.columns["row"])
            strange.update(found.strange)
            total = found.encoded.counts(total)
    if total is not None:
        for text in about_values(schema, total, options.missing or schema.missing):
            say(text, options)
    for text in about_strangers(len(strange)):
        say(text, options)
    if options.out is not None:
        say(f"{count(written, 'row')} written to {options.out}", options)


def _predicted(options: Namespace) -> tuple[dict[str, Any], list[str]]:
    """A prediction for each row of the table, and what is to be said about it."""
    from odcl.cli.run_folder import open_run
    from odcl.data.schema import check_columns
    from odcl.data.stacking import InUse
    from odcl.data.tables import read_column_names, read_table, rows_of_files
    from odcl.report.text import about_strangers, about_values

    model, schema = open_run(options.run)
    in_use = None
    if options.table.is_dir():  # files may differ in columns that are ignored
        in_use = InUse(tuple(filter(None, (schema.user, *schema.features))), ())
        check_columns(in_use.named, read_column_names(options.table))
    table = read_table(options.table, text=schema.text, columns=in_use)
    with rows_of_files(options.table):
        found = _piece(model, schema, table, options)
    notices = about_values(schema, found.encoded, options.missing or schema.missing)
    return found.named, [*notices, *about_strangers(len(found.strange))]


@dataclass(frozen=True, eq=False)
class _Found:
    """The predictions of some rows."""

    schema: TableSchema
    encoded: Encoded
    columns: dict[str, Any]
    strange: list[Any]  # users who were not in the fit

    @property
    def named(self) -> dict[str, Any]:
        """The columns as they are written, the users' first."""
        from odcl.cli.run_folder import owners
        from odcl.data.write import beside

        return beside(owners(self.schema, self.encoded.users), self.columns)


def _piece(
    model: Any, schema: TableSchema, table: Any, options: Namespace, *, piece: bool = False
) -> _Found:
    """A prediction for each row of a table, or of a piece of it."""
    from odcl.data.design import DesignRows
    from odcl.data.federation import positions

    missing, unknown = options.missing, options.unknown or "error"
    unseen, coverage = options.unseen or "error", options.interval
    encoded = schema.encode(table, with_target=False, unseen=unseen, missing=missing, piece=piece)
    if model.user_files_ is not None:  # a run of a table in pieces: users are read when needed
        from odcl.estimators.scattered import with_users_of

        model = with_users_of(model, encoded.ids)
    strange = encoded.ids[positions(model.users_, encoded.ids) < 0].tolist()
    if strange and unknown == "error":
        raise _unknown_users(strange, len(encoded.ids), options.run)
    model.set_params(unknown=unknown)
    users = encoded.users if schema.user else None  # None: all rows are one user's
    rows = DesignRows(encoded.X)
    columns: dict[str, Any] = {
        "row": encoded.rows + 1,
        "prediction": model.predict(rows, users=users),
    }
    if coverage is not None and schema.classes is not None:
        raise ValueError("An interval is for numbers, and this run predicts classes: leave it out.")
    if coverage is not None:
        low, high = model.predict_interval(rows, coverage, users=users)
        columns |= {"low": low, "high": high}
    if schema.classes is not None:
        p = model.predict_proba(rows, users=users)
        columns |= {f"p({_word(c)})": p[:, j] for j, c in enumerate(schema.classes)}
    return _Found(schema, encoded, columns, strange)


def _word(label: Any) -> str:
    """A class as the prediction's column writes it."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def _unknown_users(strange: list[Any], n_users: int, folder: Path) -> ValueError:
    from odcl.errors import show
    from odcl.report.text import count

    was = "was" if len(strange) == 1 else "were"
    return ValueError(
        f"{len(strange)} of {count(n_users, 'user')} {was} not in the fit (such as "
        f"{show(strange[0])}) and no model is theirs. Say --unknown pooled (predicted as an "
        f"average user), or first add them with `odcl assign {folder} TABLE --add`."
    )
