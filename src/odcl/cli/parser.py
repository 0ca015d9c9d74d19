"""The command line's parser, the values that options may have, and options that several have."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from odcl.errors import did_you_mean
from odcl.runs.settings import HoldOut

LOSSES = ("auto", "squared", "huber", "poisson", "logistic", "multinomial")
MISSING = ("error", "drop", "mean")
UNKNOWN = ("error", "pooled")
UNSEEN = ("error", "reference")
RULES = ("auto", "convex", "elbow", "silhouette")
METHODS = ("auto", "kmeans", "spectral", "gradient")
T = TypeVar("T")
Options = Mapping[str, Any]  # as `_add` reads them, by name


class UsageError(ValueError):
    """A command line that cannot be understood, and the command whose help explains it."""

    def __init__(self, message: str, command: str):
        super().__init__(message)
        self.command = command


class Help(argparse.RawDescriptionHelpFormatter):
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


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, raised and not printed."""

    def __init__(self, prog: str, usage: str, description: str, epilog: str, **more: Any):
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=Help,
            allow_abbrev=False,
            add_help=False,
            **more,
        )
        self.add_argument("-h", "--help", action="help", help=argparse.SUPPRESS)

    def _print_message(self, message: str, file: Any = None) -> None:
        file.write(message)  # argparse's own passes over a full disk and a closed pipe

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ")
        for place in ("COMMAND", "WHAT"):
            text = text.replace(f"{place}: invalid choice", "no command")
        raise UsageError(text.rstrip(".?") + ("?" if text.endswith("?") else "."), self.prog)


@dataclass(frozen=True)
class Command:
    """A command: its options, and texts for its help.

    The first line of ``about`` stands in ``odcl --help``. Without an ``epilog`` it ends with
    examples and what follows them.
    """

    usage: str
    about: str
    groups: Mapping[str, Options]
    epilog: str | None = None

    def parser(self, commands: Any, name: str) -> Parser:
        """The command's parser, among those of other ``commands``."""
        about, epilog = self.about, self.epilog
        if epilog is None:
            about, _, examples = about.partition("\n\nexamples:\n")
            epilog = f"examples:\n{examples}"
        parser: Parser = commands.add_parser(
            name.split()[-1],
            prog=f"odcl {name}",
            usage=f"odcl {name} {self.usage}",
            help=about.splitlines()[0].rstrip("."),
            description=about,
            epilog=epilog,
        )
        for title, options in self.groups.items():
            group = parser.add_argument_group(title)
            for words, what in options.items():
                _add(group, words, what)
        return parser


def _add(group: Any, words: str, what: Any) -> None:
    """Add "--name METAVAR", "--flag" or "argument" ("argument?" and "argument+" as in patterns).

    ``what`` is a help text, (type, help), or what argparse takes by name. With a help text alone
    the metavar tells the type, and whether an option may be given several times; an option whose
    help ends with "(required)" is.
    """
    name, _, metavar = words.partition(" ")
    if isinstance(what, tuple):
        more = {"type": what[0], "help": what[1]}
    elif isinstance(what, dict):
        more = what
    else:
        more = {"help": what} | ({"type": KINDS[metavar]} if metavar in KINDS else {})
    if metavar:
        more = {"metavar": metavar, "required": more["help"].endswith("(required)"), **more}
        if metavar in REPEATED and "nargs" not in more:
            more = {"action": "append", "default": [], **more}
    elif name.startswith("-"):
        more = {"action": "store_true", **more}
    else:
        nargs = name[-1] if name[-1] in "?+" else None
        name = name.rstrip("?+")
        more = {"metavar": name.upper(), "type": Path, "nargs": nargs, **more}
    group.add_argument(*name.split("|"), **more)


def defaulting(kind: Any, default: Any, help: str) -> dict[str, Any]:
    """An option with a default, which the help shows."""
    return {"type": kind, "default": default, "help": f"{help} [default: %(default)s]"}


def refuse(options: argparse.Namespace, group: Options, why: str, but: Sequence[str] = ()) -> None:
    """Refuse options of a ``group`` that were given, ``but`` for some; ``why`` follows the name."""
    for name in (words.split()[0] for words in group):
        given = getattr(options, name.removeprefix("--").replace("-", "_"))
        if name not in but and given not in (None, False, []):
            raise UsageError(f"{name} {why}", f"odcl {options.command}")


# -- values of options -----------------------------------------------------------------------------


def column_names(values: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Columns named one by one or as ``a,b,c``; a name that holds a comma stands for itself."""
    names: list[str] = []
    for value in values:
        names += [value] if value in columns else _split(value)
    return tuple(dict.fromkeys(names))


def periods(
    values: Sequence[str], columns: Sequence[str], command: str = "odcl fit"
) -> dict[str, float]:
    """Columns that begin anew, ``hour=24`` or ``hour=24,month=12``, and their periods."""
    found = {}
    for value in values:
        for part in [value] if value.rpartition("=")[0] in columns else _split(value):
            name, _, period = part.rpartition("=")
            try:
                found[name.strip()] = above_0(period)
            except argparse.ArgumentTypeError:
                text = f"--periodic: {part!r} is not COLUMN=PERIOD, the period above 0: hour=24."
                raise UsageError(text, command) from None
    return found


def _split(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def value(
    read: Callable[[str], T | None], wrong: str, known: Sequence[str] = ()
) -> Callable[[str], T]:
    """What an option takes; ``read`` gives None or raises ValueError for text that is wrong."""

    def check(text: str) -> T:
        try:
            found = read(text)
        except ValueError:
            found = None
        if found is None:
            near = did_you_mean(text, known) if known else "."
            raise argparse.ArgumentTypeError(f"{text!r} is {wrong}{near}")
        return found

    return check


def one_of(known: tuple[str, ...]) -> Callable[[str], str]:
    return value(lambda text: text if text in known else None, f"none of {', '.join(known)}", known)


def number(holds: Callable[[float], bool], which: str) -> Callable[[str], float]:
    return value(lambda text: x if holds(x := float(text)) else None, f"not a number {which}")


def _whole(text: str, least: int, below: int = 2**63) -> int | None:
    return int(text) if text.isdecimal() and least <= int(text) < below else None


def _clusters(text: str) -> str | int | None:
    """A rule, a number, or ``method:number``."""
    method, colon, count = text.rpartition(":")
    if text in RULES or (count.isdecimal() and int(count) and (not colon or method in METHODS)):
        return int(text) if text.isdecimal() else text
    return None


_GROUPS = ", ".join([*RULES, "a number from 1 on", *(f"{method}:K" for method in METHODS)])

at_least_0 = number(lambda found: 0 <= found < math.inf, ">= 0")
above_0 = number(lambda found: 0 < found < math.inf, "> 0")
coverage = number(lambda found: 0 < found < 1, "above 0 and below 1")
positive = value(lambda text: _whole(text, 1), "not a whole number from 1 on")
seed_number = value(lambda text: _whole(text, 0, 2**32), "not a whole number from 0 to 2^32 - 1")
n_jobs = value(
    lambda text: -1 if text == "-1" else _whole(text, 1),
    "neither a number from 1 on nor -1 (one per core)",
)
clusters = value(_clusters, f"none of {_GROUPS}", RULES)
holdout = value(HoldOut.of, "neither a share of the rows, from 0 to below 1, nor last")

# What an option takes by its metavar, unless it says another type; else any text.
KINDS: dict[str, Any] = {
    "COVERAGE": coverage,
    "E": above_0,
    "K": clusters,
    "M": positive,
    "N": positive,
    "NUMBER": above_0,
    "PENALTY": at_least_0,
    "S": above_0,
    "TAU": at_least_0,
    **dict.fromkeys(("FILE", "FOLDER", "RUN", "TABLE", "CARD", "MODEL", "ROUND", "DATA"), Path),
}
# Options with these may be given several times.
REPEATED = ("COLUMNS", "COLUMN=P", "HOST", "NAME=A,B", "NAME=LOW:HIGH", "NAMES", "SITE")


def address(text: str) -> Path | str:
    """A path, or an address of fsspec, whose two slashes a path would not keep."""
    return text if "://" in text else Path(text)


# -- options that several commands have ------------------------------------------------------------

RUN_HELP = "folder that `odcl fit` or save() wrote"
TABLE_HELP = "CSV or Parquet file (.csv, .csv.gz, .tsv, .parquet), or a folder of them"


FORCE: Options = {"--force": "replace the folder if odcl wrote it before"}
FORCE_FILE: Options = {"--force": "replace FILE if it exists"}
QUIET: Options = {"-q|--quiet": "no progress and no notices on stderr"}
SEED: Options = {
    "--seed N": defaulting(seed_number, 0, "seed of every random choice: same seed, same output")
}
CURVES: Options = {
    "--curves COLUMNS": "columns that may act in curves: a,b,c, or the option once per column "
    "[default: numbers with more than three values]",
    "--periodic COLUMN=P": "columns that begin anew, with their periods: hour=24,month=12 "
    "[default: none]",
    "--no-curves": "lines only: uploads are smaller, and fewer users have fewer rows than "
    "parameters",
}
ENGINE: Options = {
    "--engine NAME": (
        one_of(("auto", "memory", "dask")),
        "memory, dask (a table in pieces, beyond memory or beyond one machine), or auto: dask for "
        "Parquet files that would fill a quarter of the memory [default: auto]",
    ),
    "--scheduler ADDRESS": "of a Dask cluster; its workers must reach the files [default: none]",
    "--workers N": "processes of a cluster on this machine [default: one per core]",
    "--work FOLDER": (
        address,
        "folder for files that are needed meanwhile, which all workers reach [default: beside "
        "--out]",
    ),
}


def table_columns(*, needed: bool = False) -> Options:
    """Options that say which columns of a table are what."""
    given = "(required)" if needed else "[default: none]"
    text = "columns to predict from: a,b,c, or the option once per column [default: all others]"
    return {
        "--user COLUMN": f"column that names the user of each row {given}",
        "--target COLUMN": f"column to predict {given}",
        "--features COLUMNS": text,
        "--drop COLUMNS": "columns to leave out",
        "--categorical COLUMNS": "columns of numbers that hold categories",
    }


def jobs(default: int, of: str) -> Options:
    return {"--jobs N": defaulting(n_jobs, default, f"{of}; -1: one per core")}


def missing(default: str | None) -> Options:
    text = (
        "rows that lack a value: error (stop), drop (leave the row out) or mean (fill in the "
        f"column's mean, or its commonest category) [default: {default or 'as in the fit'}]"
    )
    return {"--missing HOW": {"type": one_of(MISSING), "default": default, "help": text}}


# How rows that come after the fit are read.
LATER_ROWS: Options = {
    **missing(None),
    "--unseen HOW": (
        one_of(UNSEEN),
        "categories that were not in the fit: error, or reference (count as the commonest) "
        "[default: error]",
    ),
}


def run_and_table(table: str, options: Options) -> dict[str, Options]:
    """RUN and TABLE, and the options of a command that answers with a table."""
    out = (address, "CSV or Parquet file for the answer [default: CSV on stdout]")
    return {
        "arguments": {"run": RUN_HELP, "table": (address, table)},
        "options": {"--out FILE": out, **FORCE_FILE, **options, **LATER_ROWS, **QUIET},
    }
