"""``odcl predict``: each row of a table by its own user's model."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import answer

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
        "users that were not in the fit: error, pooled (one model for all) or nearest (the "
        "group with the most similar features) [default: error]",
    ),
    "--unseen HOW": (
        opt.one_of(opt.UNSEEN),
        "categories that were not in the fit: error, or reference (count as the commonest) "
        "[default: error]",
    ),
    "--interval P": (
        opt.coverage,
        "also low and high: a new target lies between them with probability P [default: none]",
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
    answer("predicting", _predicted, options)


def _predicted(options: Namespace) -> tuple[dict[str, Any], list[str]]:
    """A prediction for each row of the table, and what is to be said about it."""
    from odcl.cli.run_folder import open_run, owners
    from odcl.data.design import DesignRows
    from odcl.data.federation import positions
    from odcl.data.tables import read_table
    from odcl.data.write import beside
    from odcl.report.text import about_values, count

    missing, unknown = options.missing, options.unknown or "error"
    unseen, interval = options.unseen or "error", options.interval
    model, schema = open_run(options.run)
    table = read_table(options.table, text=schema.text)
    encoded = schema.encode(table, with_target=False, unseen=unseen, missing=missing)
    notices = about_values(schema, encoded, missing or schema.missing)
    if model.user_files_ is not None:  # a run of a table in pieces: users are read when needed
        from odcl.estimators.scattered import with_users_of

        model = with_users_of(model, encoded.ids)
    strange = encoded.ids[positions(model.users_, encoded.ids) < 0].tolist()
    if strange and unknown == "error":
        raise _unknown_users(strange, len(encoded.ids), options.run)
    if strange:
        how = {"pooled": "one model for all", "nearest": "the nearest group's model"}[unknown]
        notices.append(f"{count(len(strange), 'user')} not in the fit, predicted by {how}")
    model.set_params(unknown=unknown)
    users = encoded.users if schema.user else None  # None: all rows are one user's
    rows = DesignRows(encoded.X)
    columns: dict[str, Any] = {
        "row": encoded.rows + 1,
        "prediction": model.predict(rows, users=users),
    }
    if interval is not None and schema.classes is not None:
        raise ValueError("An interval is for numbers, and this run predicts classes: leave it out.")
    if interval is not None:
        low, high = model.predict_interval(rows, users=users, coverage=interval)
        columns |= {"low": low, "high": high}
    if schema.classes is not None:
        p = model.predict_proba(rows, users=users)
        columns |= {f"p({_word(c)})": p[:, j] for j, c in enumerate(schema.classes)}
    return beside(owners(schema, users), columns), notices


def _word(label: Any) -> str:
    """A class as the prediction's column writes it."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def _unknown_users(strange: list[Any], n_users: int, folder: Path) -> ValueError:
    from odcl.errors import show
    from odcl.report.text import count

    was = "was" if len(strange) == 1 else "were"
    return ValueError(
        f"{len(strange)} of {count(n_users, 'user')} {was} not in the fit (such as "
        f"{show(strange[0])}) and no model is theirs. Say --unknown pooled (one model for all) or "
        "--unknown nearest (the group with the most similar features), or first add them with "
        f"`odcl assign {folder} TABLE --add`."
    )
