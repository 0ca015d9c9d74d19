"""What the command line understands. Nothing heavy is imported: help must come at once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from odcl import __version__
from odcl.cli.diagnose import add_diagnose
from odcl.cli.option_values import (
    COMBINE,
    CURVATURE,
    LOSSES,
    UNKNOWN,
    UNSEEN,
    at_least_0,
    clusters,
    jobs,
    one_of,
    refit,
    share,
)
from odcl.cli.parser import (
    TABLE_HELP,
    Parser,
    UsageError,
    command,
    force,
    missing,
    out_file,
    path,
    quiet,
    seed,
)
from odcl.cli.plan import add_plan
from odcl.cli.reproduce_options import add_reproduce
from odcl.errors import did_you_mean


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command and its options. ``--help`` and ``--version`` print and leave."""
    parser, commands = _parsers()
    options, unknown = parser.parse_known_args(arguments)
    if options.command is None and not unknown:
        raise UsageError(f"name a command: {', '.join(commands)}.", "odcl")
    if unknown:
        own = commands.get(options.command, parser)
        known = [name for name in own._option_string_actions if name.startswith("--")]
        if unknown[0].startswith("-"):
            near = did_you_mean(unknown[0].split("=")[0], known)
            raise UsageError(f"unknown option {unknown[0]!r}{near}", own.prog)
        text = f"one argument too many, {unknown[0]!r}: several columns are written a,b,c."
        raise UsageError(text, own.prog)
    return options


# -- the commands ----------------------------------------------------------------------------------

_ABOUT = """\
The right model for every user, after one round of communication.

A table has rows of many users: stores, sensors, patients, tenants. They belong
to hidden groups. odcl finds the groups and how many there are, and gives every
user its model."""

_START = """\
start here:
  odcl demo
  odcl fit sales.csv --user store --target sales --out run
  odcl predict run tomorrow.csv --out predictions.csv

`odcl COMMAND --help` explains a command. Results go to stdout, everything else
to stderr. Exit codes: 0 done, 1 failed (such as a full disk), 2 input or usage
that cannot be used, 130 interrupted."""


def _parsers() -> tuple[Parser, dict[str, Parser]]:
    parser = Parser("odcl", "odcl COMMAND ...", _ABOUT, _START)
    parser.add_argument("--version", action="version", version=f"odcl {__version__}")
    some = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=Parser
    )
    made = {name: add(some) for name, add in _COMMANDS.items()}
    return parser, made


_DEMO = """\
Fit the paper's linear federation: 100 users, 10 hidden groups, seconds.

Prints the groups found, the error of the users' models beside that of local,
naive and oracle models, and the bytes sent in the one round. Saves a picture,
and a table to try `odcl fit` on."""


def _demo(some: Any) -> Parser:
    parser = command(some, "demo", "[--out FOLDER] [options]", _DEMO, "")
    group = parser.add_argument_group("options")
    path(group, "--out", "FOLDER", "folder for the picture and the table", default="odcl-demo")
    force(group)
    seed(group)
    quiet(group)
    return parser


_FIT = """\
Find the hidden groups in a table, and fit a model for every user.

A user is whatever a column names: a store, a sensor, a patient. The closing
table compares, on rows held out of each user's data, one model per user, one
model for all, the paper's setting and odcl."""

_FIT_EXAMPLES = """\
examples:
  odcl fit sales.csv --user store --target sales --out run
  odcl fit visits.parquet --user patient --target ill --loss logistic \\
      --categorical ward,sex --drop date --missing mean --out run
  odcl fit sales.csv --user store --target sales --paper --out run-paper

RUN holds the models (models.safetensors, model.json), each user's group
(assignment.csv), each group's model in the table's units (groups.csv),
report.json, schema.json and picture.png. In Python:
ODCLRegressor.load("run").predict(X, users=ids), with X the columns of
groups.csv in their order; ODCLClassifier for classes."""


def _fit(some: Any) -> Parser:
    usage = "TABLE --user COLUMN --target COLUMN --out RUN [options]"
    parser = command(some, "fit", usage, _FIT, _FIT_EXAMPLES)
    _fit_table(parser.add_argument_group("the table"))
    _fit_method(parser.add_argument_group("the method (the defaults suit most tables)"))
    run = parser.add_argument_group("the run")
    path(run, "--out", "RUN", "folder for the results (required)", required=True)
    force(run)
    run.add_argument(
        "--holdout",
        metavar="SHARE",
        type=share,
        default=0.2,
        help="share of each user's rows kept back for the comparison; 0: no comparison. The models "
        "in RUN are fitted on all rows [default: %(default)s]",
    )
    seed(run)
    run.add_argument(
        "--jobs",
        metavar="N",
        type=jobs,
        default=1,
        help="threads for the local models; -1: one a core [default: %(default)s]",
    )
    quiet(run)
    return parser


def _fit_table(group: Any) -> None:
    group.add_argument("table", metavar="TABLE", type=Path, help=TABLE_HELP)
    group.add_argument(
        "--user",
        metavar="COLUMN",
        required=True,
        help="column that names the user of each row (required)",
    )
    group.add_argument(
        "--target", metavar="COLUMN", required=True, help="column to predict (required)"
    )
    many = {"metavar": "COLUMNS", "action": "append", "default": []}
    group.add_argument(
        "--features",
        **many,
        help="columns to predict from: a,b,c, or the option once a column [default: all others]",
    )
    group.add_argument("--drop", **many, help="columns to leave out")
    group.add_argument("--categorical", **many, help="columns that hold categories, not numbers")
    missing(group, "error")


def _fit_method(group: Any) -> None:
    group.add_argument(
        "--loss",
        type=one_of(LOSSES),
        default="auto",
        metavar="NAME",
        help="squared (numbers), huber (numbers with outliers), poisson (counts), logistic or "
        "multinomial (classes), or auto: classes for text and true/false, else squared "
        "[default: %(default)s]",
    )
    group.add_argument(
        "--clusters",
        type=clusters,
        default="auto",
        metavar="K",
        help="number of groups; auto: found from the users' own noise; convex: by convex "
        "clustering (the paper's ODCL-CC); elbow or silhouette: chosen for K-means++ by that "
        "rule; kmeans:K, spectral:K, gradient:K: K groups by that method "
        "[default: %(default)s]",
    )
    group.add_argument(
        "--combine",
        type=one_of(COMBINE),
        metavar="HOW",
        help="how a group's models become one: precision (by what each user's rows tell), mean "
        "(the paper), samples (by number of rows), shrink (mean of the mixture's posterior) "
        "[default: precision]",
    )
    group.add_argument(
        "--refit",
        type=refit,
        metavar="HOW",
        help="what a user makes of its group's model: evidence or cv (drawn to it as far as the "
        "data say), none (takes it), or a number (strength of the pull) [default: evidence]",
    )
    group.add_argument(
        "--l2",
        type=at_least_0,
        metavar="NUMBER",
        help="penalty on coefficients, in standardised units [default: 0; for classes 0.01]",
    )
    group.add_argument(
        "--curvature",
        type=one_of(CURVATURE),
        default="auto",
        metavar="WHAT",
        help="what users would send of their Hessian: full, diagonal, none; auto: full up to 100 "
        "parameters [default: %(default)s]",
    )
    group.add_argument("--no-intercept", action="store_true", help="fit no intercept")
    group.add_argument(
        "--no-standardize",
        action="store_true",
        help="leave features in their own units instead of a common scale",
    )
    group.add_argument(
        "--paper",
        action="store_true",
        help="the paper's setting: K-means++ (number by silhouette unless --clusters is given), "
        "plain mean, no refit, no standardisation",
    )


_PREDICT = "Predict each row of a table with its own user's model."

_PREDICT_EXAMPLES = """\
examples:
  odcl predict run tomorrow.csv --out predictions.parquet
  odcl predict run tomorrow.csv --unknown pooled | head

The table needs the user's column and the features of the fit, not the target;
other columns are ignored. For classes the answer has a probability of each."""


def _predict(some: Any) -> Parser:
    parser = command(some, "predict", "RUN TABLE [options]", _PREDICT, _PREDICT_EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("run", metavar="RUN", type=Path, help="folder that `odcl fit` wrote")
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
    missing(group, None)
    quiet(group)
    return parser


_ASSIGN = """\
Tell which group new users belong to, how surely, or that they fit none.

Answers one row a user: its group, the probability of that group among the
groups, its distance from it in units of noise (about 1 for a member), and
whether it joins or is none of these."""

_ASSIGN_EXAMPLES = """\
examples:
  odcl assign run new-stores.csv
  odcl assign run new-stores.csv --add && odcl predict run tomorrow.csv"""


def _assign(some: Any) -> Parser:
    parser = command(some, "assign", "RUN TABLE [options]", _ASSIGN, _ASSIGN_EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("run", metavar="RUN", type=Path, help="folder that `odcl fit` wrote")
    group.add_argument(
        "table", metavar="TABLE", type=Path, help="rows of the new users, with the target"
    )
    group = parser.add_argument_group("options")
    group.add_argument(
        "--add", action="store_true", help="remember the users in RUN: predict knows them then"
    )
    out_file(group)
    missing(group, None)
    quiet(group)
    return parser


_COMMANDS = {
    "demo": _demo,
    "fit": _fit,
    "predict": _predict,
    "assign": _assign,
    "reproduce": add_reproduce,
    "diagnose": add_diagnose,
    "plan": add_plan,
}
