"""``odcl predict``: each row of a table by its own user's model."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli.console import check_out_file, watched, write_answer
from odcl.cli.parser import (
    RUN_HELP,
    TABLE_HELP,
    UNKNOWN,
    UNSEEN,
    Parser,
    command,
    coverage,
    missing,
    one_of,
    out_file,
    quiet,
)

_ABOUT = "Predict each row of a table with its own user's model."

_EXAMPLES = """\
examples:
  odcl predict run tomorrow.csv --out predictions.parquet
  odcl predict run tomorrow.csv --unknown pooled | head

The table needs the user's column and the features of the fit, not the target;
other columns are ignored. For classes the answer has a probability of each."""


def add(some: Any) -> Parser:
    parser = command(some, "predict", "RUN TABLE [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("run", metavar="RUN", type=Path, help=RUN_HELP)
    group.add_argument("table", metavar="TABLE", type=Path, help=TABLE_HELP)
    group = parser.add_argument_group("options")
    out_file(group)
    group.add_argument(
        "--unknown",
        type=one_of(UNKNOWN),
        default="error",
        metavar="HOW",
        help="users that were not in the fit: error, pooled (one model for all) or nearest (the "
        "group with the most similar features) [default: %(default)s]",
    )
    group.add_argument(
        "--unseen",
        type=one_of(UNSEEN),
        default="error",
        metavar="HOW",
        help="categories that were not in the fit: error, or reference (count as the commonest) "
        "[default: %(default)s]",
    )
    group.add_argument(
        "--interval",
        type=coverage,
        metavar="P",
        help="also low and high: a new target lies between them with probability P [default: none]",
    )
    missing(group, None)
    quiet(group)
    return parser


def run(options: Namespace) -> None:
    check_out_file(options, run=options.run, table=options.table)
    with watched(options) as progress:
        progress.stage("predicting")
        columns, notices = predict_table(
            options.run,
            options.table,
            unknown=options.unknown,
            unseen=options.unseen,
            missing=options.missing,
            interval=options.interval,
        )
    write_answer(columns, notices, options)


def predict_table(
    folder: Path,
    path: Path,
    *,
    unknown: str,
    unseen: str,
    missing: str | None,
    interval: float | None = None,
) -> tuple[dict[str, Any], list[str]]:
    """A prediction for each row of the table, and what is to be said about it."""
    from odcl.cli.run_folder import open_run
    from odcl.data.ids import positions
    from odcl.data.tables import beside, read_table
    from odcl.report.notices import about_values
    from odcl.report.text import count

    model, schema = open_run(folder)
    table = read_table(path, text=schema.text)
    encoded = schema.encode(table, with_target=False, unseen=unseen, missing=missing)
    notices = about_values(schema, encoded, missing or schema.missing)
    strange = encoded.ids[positions(model.users_, encoded.ids) < 0].tolist()
    if strange and unknown == "error":
        raise _unknown_users(strange, len(encoded.ids), folder)
    if strange:
        how = {"pooled": "one model for all", "nearest": "the nearest group's model"}[unknown]
        notices.append(f"{count(len(strange), 'user')} not in the fit, predicted by {how}")
    model.set_params(unknown=unknown, users=None)
    users = encoded.users
    columns: dict[str, Any] = {
        "row": encoded.rows + 1,
        "prediction": model.predict(encoded.X, users=users),
    }
    if interval is not None and schema.classes is not None:
        raise ValueError("An interval is for numbers, and this run predicts classes: leave it out.")
    if interval is not None:
        low, high = model.predict_interval(encoded.X, users=users, coverage=interval)
        columns |= {"low": low, "high": high}
    if schema.classes is not None:
        p = model.predict_proba(encoded.X, users=users)
        columns |= {f"p({_word(c)})": p[:, j] for j, c in enumerate(schema.classes)}
    return beside({schema.user: users}, columns), notices


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
