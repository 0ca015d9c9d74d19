"""What the command line understands. Nothing heavy is imported: help must come at once."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from odcl import __version__
from odcl.command.option_values import (
    COMBINE,
    CURVATURE,
    LOSSES,
    MISSING,
    UNKNOWN,
    UNSEEN,
    at_least_0,
    clusters,
    jobs,
    nearest,
    one_of,
    positive,
    refit,
    seed_number,
    share,
    sizes,
)


class UsageError(ValueError):
    """A command line that cannot be understood, and the command whose help explains it."""

    def __init__(self, message: str, command: str):
        super().__init__(message)
        self.command = command


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
            near = nearest(unknown[0].split("=")[0], known)
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


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    parser = _Parser("odcl", "odcl COMMAND ...", _ABOUT, _START)
    parser.add_argument("--version", action="version", version=f"odcl {__version__}")
    some = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=_Parser
    )
    made = {name: add(some) for name, add in _COMMANDS.items()}
    return parser, made


_DEMO = """\
Fit the paper's linear federation: 100 users, 10 hidden groups, seconds.

Prints the groups found, the error of the users' models beside that of local,
naive and oracle models, and the bytes sent in the one round. Saves a picture,
and a table to try `odcl fit` on."""


def _demo(some: Any) -> _Parser:
    parser = _command(some, "demo", "[--out FOLDER] [options]", _DEMO, "")
    group = parser.add_argument_group("options")
    _path(group, "--out", "FOLDER", "folder for the picture and the table", default="odcl-demo")
    _force(group)
    _seed(group)
    _quiet(group)
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


def _fit(some: Any) -> _Parser:
    usage = "TABLE --user COLUMN --target COLUMN --out RUN [options]"
    parser = _command(some, "fit", usage, _FIT, _FIT_EXAMPLES)
    _fit_table(parser.add_argument_group("the table"))
    _fit_method(parser.add_argument_group("the method (the defaults suit most tables)"))
    run = parser.add_argument_group("the run")
    _path(run, "--out", "RUN", "folder for the results (required)", required=True)
    _force(run)
    run.add_argument(
        "--holdout",
        metavar="SHARE",
        type=share,
        default=0.2,
        help="share of each user's rows kept back for the comparison; 0: no comparison. The models "
        "in RUN are fitted on all rows [default: %(default)s]",
    )
    _seed(run)
    run.add_argument(
        "--jobs",
        metavar="N",
        type=jobs,
        default=1,
        help="threads for the local models; -1: one a core [default: %(default)s]",
    )
    _quiet(run)
    return parser


def _fit_table(group: Any) -> None:
    group.add_argument("table", metavar="TABLE", type=Path, help=_TABLE_HELP)
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
    _missing(group, "error")


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


def _predict(some: Any) -> _Parser:
    parser = _command(some, "predict", "RUN TABLE [options]", _PREDICT, _PREDICT_EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("run", metavar="RUN", type=Path, help="folder that `odcl fit` wrote")
    group.add_argument("table", metavar="TABLE", type=Path, help=_TABLE_HELP)
    group = parser.add_argument_group("options")
    _out_file(group)
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
    _missing(group, None)
    _quiet(group)
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


def _assign(some: Any) -> _Parser:
    parser = _command(some, "assign", "RUN TABLE [options]", _ASSIGN, _ASSIGN_EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("run", metavar="RUN", type=Path, help="folder that `odcl fit` wrote")
    group.add_argument(
        "table", metavar="TABLE", type=Path, help="rows of the new users, with the target"
    )
    group = parser.add_argument_group("options")
    group.add_argument(
        "--add", action="store_true", help="remember the users in RUN: predict knows them then"
    )
    _out_file(group)
    _missing(group, None)
    _quiet(group)
    return parser


_REPRODUCE = """\
Make the paper's figures and tables again, beside its own numbers.

FOLDER gets rows.jsonl (every number with its seed, version and time), and for
each NAME a page NAME.md and a figure NAME.png and NAME.svg. An interrupted run
goes on where it stopped."""

_REPRODUCE_EXAMPLES = """\
NAME is all, or one of
  table-methods       rounds and samples that the theory asks for
  figure-mse          error against samples per user, linear models
  table-rounds        rounds until IFCA has the error of one round
  figure-ifca         IFCA round by round
  figure-clusterpath  convex clustering with and without the true lambda
  figure-inexact      error against steps of local SGD
  figure-logistic     logistic models: error and number of clusters
  table-accuracy      MNIST, CIFAR10 and noisy CIFAR10 (needs --data)

examples:
  odcl reproduce all --quick
  odcl reproduce figure-mse --runs 10 --jobs 2
  odcl reproduce table-accuracy --data data
  odcl reproduce figure-mse --methods mine.py
  odcl reproduce table-methods --sizes 40,30,20,10 --separation 2 --rows 500

DATA holds MNIST's four files (.gz or not) in DATA/mnist, and CIFAR-10 as it is
unpacked (cifar-10-batches-bin or cifar-10-batches-py), or train.bin and test.bin
of two classes in DATA/cifar10-two-classes. Nothing is downloaded.

mine.py registers methods: from odcl.baselines import register; register("mine",
FUNCTION, "n_clusters"). help(odcl.baselines.register) says what FUNCTION gets
and gives. They join figure-mse, figure-clusterpath, figure-logistic and
table-accuracy: their page, their figure and rows.jsonl."""


def _reproduce(some: Any) -> _Parser:
    usage = "NAME [options]"
    parser = _command(some, "reproduce", usage, _REPRODUCE, _REPRODUCE_EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument("name", metavar="NAME", help="all, or an experiment of the list below")
    group = parser.add_argument_group("options")
    group.add_argument(
        "--runs",
        metavar="N",
        type=positive,
        help="runs with seeds SEED, SEED + 1, ... [default: the paper's 10, or 20 for logistic]",
    )
    group.add_argument(
        "--jobs",
        metavar="N",
        type=jobs,
        default=-1,
        help="processes; -1: one a core [default: %(default)s]",
    )
    _path(group, "--data", "DATA", "folder with the images of table-accuracy")
    _path(group, "--out", "FOLDER", "folder for rows, pages and figures", default="reproduction")
    group.add_argument(
        "--sizes", metavar="N,N,...", type=sizes, help="for table-methods: users of each cluster"
    )
    group.add_argument(
        "--separation", metavar="D", type=at_least_0, help="for table-methods: between the optima"
    )
    group.add_argument(
        "--rows", metavar="N", type=positive, help="for table-methods: samples of a user"
    )
    _path(group, "--methods", "FILE", "Python file that registers methods of your own")
    group.add_argument(
        "--quick",
        action="store_true",
        help="smaller set-ups, one or two runs: a look, in seconds to a minute each",
    )
    group.add_argument(
        "--force", action="store_true", help="forget the rows in FOLDER and start again"
    )
    _seed(group)
    _quiet(group)
    return parser


def _diagnose(some: Any) -> _Parser:
    from odcl.command.diagnose import add_diagnose

    return add_diagnose(some)


def _plan(some: Any) -> _Parser:
    from odcl.command.plan import add_plan

    return add_plan(some)


_COMMANDS = {
    "demo": _demo,
    "fit": _fit,
    "predict": _predict,
    "assign": _assign,
    "reproduce": _reproduce,
    "diagnose": _diagnose,
    "plan": _plan,
}

# -- options that several commands have ------------------------------------------------------------

_TABLE_HELP = "CSV or Parquet file (.csv, .csv.gz, .tsv, .parquet), or a folder of them"


def _path(group: Any, name: str, metavar: str, help: str, **more: Any) -> None:
    shown = " [default: %(default)s]" if "default" in more else ""
    group.add_argument(name, metavar=metavar, type=Path, help=help + shown, **more)


def _out_file(group: Any) -> None:
    _path(group, "--out", "FILE", "CSV or Parquet file for the answer [default: CSV on stdout]")


def _force(group: Any) -> None:
    group.add_argument(
        "--force", action="store_true", help="replace the folder if odcl wrote it before"
    )


def _seed(group: Any) -> None:
    group.add_argument(
        "--seed",
        metavar="N",
        type=seed_number,
        default=0,
        help="seed of every random choice: same seed, same output [default: %(default)s]",
    )


def _quiet(group: Any) -> None:
    group.add_argument(
        "-q", "--quiet", action="store_true", help="no progress and no notices on stderr"
    )


def _missing(group: Any, default: str | None) -> None:
    group.add_argument(
        "--missing",
        type=one_of(MISSING),
        default=default,
        metavar="HOW",
        help="rows that lack a value: error (stop), drop (leave the row out) or mean (fill in the "
        f"column's mean, or its commonest category) [default: {default or 'as in the fit'}]",
    )


# -- argparse with our manners ---------------------------------------------------------------------


class _Help(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal up to 100 columns, texts as they were written."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=25)
        self._width = min(self._width, 100)

    def add_argument(self, action: argparse.Action) -> None:
        """argparse forgets how far commands are indented, and breaks the line of the longest."""
        super().add_argument(action)
        for command in self._iter_indented_subactions(action):
            length = len(self._format_action_invocation(command)) + self._current_indent
            self._action_max_length = max(self._action_max_length, length)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, raised and not printed."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str, **more: Any):
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=_Help,
            allow_abbrev=False,
            add_help=False,
            **more,
        )
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)

    def _print_message(self, message: str, file: Any = None) -> None:
        file.write(message)  # argparse's own passes over a full disk and a closed pipe

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ").replace("COMMAND: invalid choice", "no command")
        raise UsageError(text.rstrip(".?") + ("?" if text.endswith("?") else "."), self.prog)


def _command(some: Any, name: str, usage: str, description: str, epilog: str) -> _Parser:
    """A command; the first line of its description stands in ``odcl --help``."""
    short = description.splitlines()[0].rstrip(".")
    return some.add_parser(
        name,
        prog=f"odcl {name}",
        usage=f"odcl {name} {usage}",
        help=short,
        description=description,
        epilog=epilog,
    )
