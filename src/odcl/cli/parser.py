"""A command's parser with our manners, and the options that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NoReturn

from odcl.cli.option_values import MISSING, one_of, seed_number


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
        text = message.removeprefix("argument ").replace("COMMAND: invalid choice", "no command")
        raise UsageError(text.rstrip(".?") + ("?" if text.endswith("?") else "."), self.prog)


def command(some: Any, name: str, usage: str, description: str, epilog: str) -> Parser:
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


# -- options that several commands have ------------------------------------------------------------

TABLE_HELP = "CSV or Parquet file (.csv, .csv.gz, .tsv, .parquet), or a folder of them"


def path(group: Any, name: str, metavar: str, help: str, **more: Any) -> None:
    shown = " [default: %(default)s]" if "default" in more else ""
    group.add_argument(name, metavar=metavar, type=Path, help=help + shown, **more)


def out_file(group: Any) -> None:
    path(group, "--out", "FILE", "CSV or Parquet file for the answer [default: CSV on stdout]")


def force(group: Any) -> None:
    group.add_argument(
        "--force", action="store_true", help="replace the folder if odcl wrote it before"
    )


def seed(group: Any) -> None:
    group.add_argument(
        "--seed",
        metavar="N",
        type=seed_number,
        default=0,
        help="seed of every random choice: same seed, same output [default: %(default)s]",
    )


def quiet(group: Any) -> None:
    group.add_argument(
        "-q", "--quiet", action="store_true", help="no progress and no notices on stderr"
    )


def missing(group: Any, default: str | None) -> None:
    group.add_argument(
        "--missing",
        type=one_of(MISSING),
        default=default,
        metavar="HOW",
        help="rows that lack a value: error (stop), drop (leave the row out) or mean (fill in the "
        f"column's mean, or its commonest category) [default: {default or 'as in the fit'}]",
    )
