"""``odcl predict``: each row of a table by its own user's model."""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import check_out_file, say, watched
from odcl.cli.fit import engine_of

if TYPE_CHECKING:
    from odcl.runs.predict import PredictOptions

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
    engine = engine_of(options)
    if engine.name == "dask" or engine.scheduler or "://" in str(options.table):
        _in_pieces(options)
    else:
        _in_memory(options)


def _options(options: Namespace) -> PredictOptions:
    """How the options want rows to be predicted."""
    from odcl.runs.predict import PredictOptions

    unknown, unseen = options.unknown or "error", options.unseen or "error"
    return PredictOptions(unknown, unseen, options.missing, options.interval, str(options.run))


def _in_memory(options: Namespace) -> None:
    """One answer, to a file or to stdout; a long table goes a piece at a time, in and out."""
    from odcl.data.tables import piecewise
    from odcl.errors import count
    from odcl.runs.folder import open_run
    from odcl.runs.predict import predict

    check_out_file(options, run=options.run, table=options.table)
    run = open_run(options.run)
    with ExitStack() as stack:
        if options.out is not None or not sys.stdout.isatty():  # or the bar would cross the rows
            stack.enter_context(watched(options)).stage("predicting")
        write = stack.enter_context(piecewise(options.out, sys.stdout.buffer))
        found = predict(run, options.table, _options(options), write)
    for text in found.notices:
        say(text, options)
    if options.out is not None:
        say(f"{count(found.rows, 'row')} written to {options.out}", options)


def _in_pieces(options: Namespace) -> None:
    """A folder of Parquet files."""
    from odcl.data.tables import is_csv, is_parquet
    from odcl.errors import count
    from odcl.runs.folder import open_run
    from odcl.runs.pieces import predict_in_pieces

    if options.out is None:
        raise opt.UsageError("--engine dask writes a folder: name it with --out.", "odcl predict")
    if is_csv(options.out) or is_parquet(options.out):
        text = f"--engine dask writes a folder of Parquet files, and {options.out} names one file"
        raise opt.UsageError(f"{text}: name a folder, such as predictions.", "odcl predict")
    tell = partial(say, options=options)
    with watched(options) as progress:
        found = predict_in_pieces(
            *(open_run(options.run), options.table, _options(options)),
            *(engine_of(options), options.out),
            force=options.force,
            shown=progress,
            say=tell,
        )
    for text in found.notices:
        tell(text)
    tell(f"{count(found.rows, 'row')} written to {count(found.files, 'file')} in {options.out}")
