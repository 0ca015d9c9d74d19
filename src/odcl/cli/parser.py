"""The command line's parser, the values that options may have, and options that several have."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from odcl.errors import did_you_mean
from odcl.runs.settings import HoldOut

LOSSES = ("auto", "squared", "huber", "poisson", "logistic", "multinomial")
COMBINE = ("mean", "samples")
MISSING = ("error", "drop", "mean")
UNKNOWN = ("error", "pooled")
UNSEEN = ("error", "reference")
RULES = ("auto", "convex", "elbow", "silhouette")
METHODS = ("auto", "kmeans", "spectral", "gradient")
T = TypeVar("T")


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


def command(
    some: Any, name: str, usage: str, description: str, epilog: str | None = None
) -> Parser:
    """A command; the first line of its description stands in ``odcl --help``.

    Without an ``epilog`` the description ends with examples and what follows them.
    """
    if epilog is None:
        description, _, examples = description.partition("\n\nexamples:\n")
        epilog = f"examples:\n{examples}"
    short = description.splitlines()[0].rstrip(".")
    return some.add_parser(
        name.split()[-1],
        prog=f"odcl {name}",
        usage=f"odcl {name} {usage}",
        help=short,
        description=description,
        epilog=epilog,
    )


# -- values of options -----------------------------------------------------------------------------


def described(
    some: Any, name: str, usage: str, about: str, arguments: Mapping[str, str] | None = None
) -> tuple[Parser, Any]:
    """A command's parser and its group of options.

    ``arguments`` are its paths, each with its help: "name", "name?" or "name+" (one or more).
    """
    parser = command(some, name, usage, about)
    if arguments:
        group = parser.add_argument_group("arguments")
        for one, text in arguments.items():
            name, nargs = one.rstrip("?+"), one[-1] if one[-1] in "?+" else None
            group.add_argument(name, metavar=name.upper(), type=Path, nargs=nargs, help=text)
    return parser, parser.add_argument_group("options")


def column_names(values: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    """Columns named one by one or as ``a,b,c``; a name that holds a comma stands for itself."""
    names: list[str] = []
    for value in values:
        names += [value] if value in columns else _split(value)
    return tuple(dict.fromkeys(names))


def named_columns(options: argparse.Namespace, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """What ``--features``, ``--drop`` and ``--categorical`` name."""
    given = (options.features, options.drop, options.categorical)
    return (column_names(names, columns) for names in given)


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


def address(text: str) -> Path | str:
    """A path, or an address of fsspec, whose two slashes a path would not keep."""
    return text if "://" in text else Path(text)


# -- options that several commands have ------------------------------------------------------------

RUN_HELP = "folder that `odcl fit` or save() wrote"
TABLE_HELP = "CSV or Parquet file (.csv, .csv.gz, .tsv, .parquet), or a folder of them"


def add_options(group: Any, options: Mapping[str, Any]) -> None:
    """Options as a table: "--name METAVAR" with its type and help, "--flag" with its help."""
    for words, what in options.items():
        if isinstance(what, str):
            group.add_argument(words, action="store_true", help=what)
        else:
            name, metavar = words.split()
            group.add_argument(name, metavar=metavar, type=what[0], help=what[1])


def path(group: Any, name: str, metavar: str, help: str, **more: Any) -> None:
    shown = " [default: %(default)s]" if "default" in more else ""
    group.add_argument(name, metavar=metavar, type=Path, help=help + shown, **more)


def table_columns(group: Any, *, required: bool = False) -> None:
    """Options that say which columns of a table are what."""
    told = "(required)" if required else "[default: none]"
    for name, what in {"user": "that names the user of each row", "target": "to predict"}.items():
        text = f"column {what} {told}"
        group.add_argument(f"--{name}", metavar="COLUMN", required=required, help=text)
    many: dict[str, Any] = {"metavar": "COLUMNS", "action": "append", "default": []}
    group.add_argument(
        "--features",
        **many,
        help="columns to predict from: a,b,c, or the option once per column [default: all others]",
    )
    group.add_argument("--drop", **many, help="columns to leave out")
    group.add_argument("--categorical", **many, help="columns of numbers that hold categories")


def curves(group: Any) -> None:
    """Options that say which columns may act in curves."""
    many: dict[str, Any] = {"action": "append", "default": []}
    group.add_argument(
        "--curves",
        metavar="COLUMNS",
        **many,
        help="columns that may act in curves: a,b,c, or the option once per column [default: "
        "numbers with more than three values]",
    )
    text = "columns that begin anew, with their periods: hour=24,month=12 [default: none]"
    group.add_argument("--periodic", metavar="COLUMN=P", **many, help=text)
    text = "lines only: uploads are smaller, and fewer users have fewer rows than parameters"
    add_options(group, {"--no-curves": text})


def run_and_table(parser: Parser, table: str, options: Mapping[str, Any]) -> None:
    """RUN and TABLE, and the options of a command that answers with a table."""
    group = parser.add_argument_group("arguments")
    group.add_argument("run", metavar="RUN", type=Path, help=RUN_HELP)
    group.add_argument("table", metavar="TABLE", type=address, help=table)
    group = parser.add_argument_group("options")
    out = (address, "CSV or Parquet file for the answer [default: CSV on stdout]")
    add_options(group, {"--out FILE": out, "--force": "replace FILE if it exists", **options})
    later_rows(group)
    quiet(group)


ENGINE = {
    "--engine NAME": (
        one_of(("auto", "memory", "dask")),
        "memory, dask (a table in pieces, beyond memory or beyond one machine), or auto: dask for "
        "Parquet files that would fill a quarter of the memory [default: auto]",
    ),
    "--scheduler ADDRESS": (
        str,
        "of a Dask cluster; its workers must reach the files [default: none]",
    ),
    "--workers N": (positive, "processes of a cluster on this machine [default: one per core]"),
    "--work FOLDER": (
        address,
        "folder for files that are needed meanwhile, which all workers reach [default: beside "
        "--out]",
    ),
    "--dashboard": "show where Dask's own pages on the work are",
}


def engine(parser: Parser) -> None:
    """Options of commands that work on tables in pieces."""
    add_options(parser.add_argument_group("beyond memory"), ENGINE)


def force(group: Any) -> None:
    add_options(group, {"--force": "replace the folder if odcl wrote it before"})


def seed(group: Any) -> None:
    group.add_argument(
        "--seed",
        metavar="N",
        type=seed_number,
        default=0,
        help="seed of every random choice: same seed, same output [default: %(default)s]",
    )


def quiet(group: Any) -> None:
    text = "no progress and no notices on stderr"
    group.add_argument("-q", "--quiet", action="store_true", help=text)


def jobs(group: Any, default: int, of: str) -> None:
    text = f"{of}; -1: one per core [default: %(default)s]"
    group.add_argument("--jobs", metavar="N", type=n_jobs, default=default, help=text)


def missing(group: Any, default: str | None) -> None:
    group.add_argument(
        "--missing",
        type=one_of(MISSING),
        default=default,
        metavar="HOW",
        help="rows that lack a value: error (stop), drop (leave the row out) or mean (fill in the "
        f"column's mean, or its commonest category) [default: {default or 'as in the fit'}]",
    )


def later_rows(group: Any) -> None:
    """How rows that come after the fit are read."""
    missing(group, None)
    text = (
        "categories that were not in the fit: error, or reference (count as the commonest) "
        "[default: error]"
    )
    add_options(group, {"--unseen HOW": (one_of(UNSEEN), text)})
