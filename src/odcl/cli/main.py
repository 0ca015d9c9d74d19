"""The command line: parses, calls, prints. Results go to stdout, the rest to stderr."""

from __future__ import annotations

import argparse
import io
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from odcl import __version__
from odcl.cli.parser import Command, Parser, UsageError
from odcl.errors import InputError, Setting, did_you_mean

# The module of each command declares it (FIT) and does what it says (run_fit). It imports nothing
# heavy before that: help must come at once.
MODULES = {
    "demo": "paper",
    "fit": "fit",
    **dict.fromkeys(("report", "predict", "assign", "update", "diagnose"), "run"),
    "plan": "plan",
    "reproduce": "paper",
    **dict.fromkeys(("task new", "task check", "task keys"), "task"),
    **dict.fromkeys(("site keys", "site fit", "site receive", "inspect", "combine"), "site"),
    **dict.fromkeys(("flower new", "flower certs"), "flower"),
}
EVERY = tuple(MODULES)
COMMANDS = tuple(dict.fromkeys(name.split()[0] for name in EVERY))
FAMILIES = {
    "task": "Federation by file: the card that all sites agree on.",
    "site": "Federation by file, at a site: its keys, one file out, one file back.",
    "flower": "Federations that Flower runs: an app, keys, a deployment.",
}


# What people look for beside a command that reads exact rows.
PRIVATE = (
    ": models of one table are of its exact rows. Uploads are private by task card (odcl task new "
    "--epsilon) and on Flower."
)


def module_of(command: str) -> Any:
    return import_module(f"odcl.cli.{MODULES[command]}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command and its options. ``--help`` and ``--version`` print and leave."""
    given = sys.argv[1:] if arguments is None else arguments
    named = [name for name in COMMANDS if given and given[0] == name]
    parser, commands = _parsers(named or COMMANDS)
    options, unknown = parser.parse_known_args(arguments)
    if options.command is None and not unknown:
        raise UsageError(f"name a command: {', '.join(COMMANDS)}.", "odcl")
    if options.command in FAMILIES and not unknown:
        words = ", ".join(n.split()[1] for n in EVERY if n.startswith(f"{options.command} "))
        raise UsageError(f"name what to do: {words}.", f"odcl {options.command}")
    if unknown:
        own = commands.get(options.command, parser)
        known = [name for name in own._option_string_actions if name.startswith("--")]
        if unknown[0].startswith("-"):
            name = unknown[0].split("=")[0]
            near = PRIVATE if name == "--epsilon" else did_you_mean(name, known)
            raise UsageError(f"unknown option {unknown[0]!r}{near}", own.prog)
        text = f"one argument too many, {unknown[0]!r}: several columns are written a,b,c."
        raise UsageError(text, own.prog)
    options.arguments = list(given)  # the exact command, which runs keep
    return options


# -- the commands ----------------------------------------------------------------------------------

_ABOUT = """\
The right model for every user, after one round of communication.

A table has rows of many users: stores, sensors, patients, tenants. They belong
to hidden groups, or differ gradually, or both. odcl finds out which, says in
what they differ and by how much, and gives every user its model."""

_START = """\
start here:
  odcl demo
  odcl fit sales.csv --user store --target sales --out run
  odcl predict run tomorrow.csv --out predictions.csv

`odcl COMMAND --help` explains a command. Results go to stdout, everything else
to stderr. Exit codes: 0 done, 1 failed (such as a full disk), 2 input or usage
that cannot be used, 130 interrupted."""


def _parsers(commands: Sequence[str] = COMMANDS) -> tuple[Parser, dict[str, Parser]]:
    parser = Parser("odcl", "odcl COMMAND ...", _ABOUT, _START)
    parser.add_argument("--version", action="version", version=f"odcl {__version__}")
    some = parser.add_subparsers(
        dest="command", metavar="COMMAND", title="commands", parser_class=Parser
    )
    found: dict[str, Parser] = {}
    inner: dict[str, Any] = {"": some}  # where the commands of a family go
    for name in (one for one in EVERY if one.split()[0] in commands):
        family, _, word = name.rpartition(" ")
        if family not in inner:
            after = f"`odcl {family} WHAT --help` explains each."
            found[family] = Command("WHAT ...", FAMILIES[family], {}, after).parser(some, family)
            inner[family] = found[family].add_subparsers(
                dest="what", metavar="WHAT", title="what", parser_class=Parser
            )
        declared: Command = getattr(module_of(name), word.upper())
        found[name] = declared.parser(inner[family], name)
        found[name].set_defaults(command=name)
    return parser, found


# -- the process -----------------------------------------------------------------------------------


def run_command(arguments: Sequence[str] | None = None) -> int:
    """One command: its exit code, and one line on stderr for what goes wrong."""
    from odcl.cli.console import notice, warnings_as_notices

    try:
        try:
            options = parse(arguments)
            with warnings_as_notices(options.quiet):
                word = options.command.split()[-1]
                getattr(module_of(options.command), f"run_{word}")(options)
        finally:  # --help leaves by SystemExit
            sys.stdout.flush()
    except UsageError as error:
        notice(f"{error} See {error.command} --help.")
        return 2
    except BrokenPipeError:  # the reader has seen enough
        return 141
    except ValueError as error:
        _tell_notes(error)
        notice(_in_options(error, options.command) if isinstance(error, InputError) else str(error))
        return 2
    except KeyboardInterrupt:
        notice("interrupted.")
        return 130
    except MemoryError:
        notice("out of memory.")
        return 1
    except OSError as error:
        _tell_notes(error)
        where = f"{error.filename}: " if error.filename else ""
        notice(f"{where}{error.strerror or error}.")
        return 1
    return 0


def _tell_notes(error: Exception) -> None:
    """What was noted on the way to an error."""
    from odcl.cli.console import notice

    for text in getattr(error, "__notes__", ()):
        notice(text)


def _in_options(error: InputError, command: str) -> str:
    """An error in the words of a command, without advice that it has no option for."""
    known = _parsers((command.split()[0],))[1][command].format_help()
    return error.where(lambda one: _as_option(one).split()[0] in known).in_words(_as_option)


_LOSS_OF = {"regression": "squared", "classification": "logistic", "count": "poisson"}


def _as_option(setting: Setting) -> str:
    """A setting that the library advises, as the command line takes it."""
    name, value = setting
    if name == "task":
        name, value = "loss", _LOSS_OF[value]
    if name == "method":
        return f"--{value}"
    name = {"clusterer": "clusters"}.get(name, name).replace("_", "-")
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {shlex.quote(','.join(value) if isinstance(value, list) else str(value))}"


def main() -> None:
    """Entry point of the command ``odcl``."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # files half-written are taken away
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")  # ids that it cannot show
    if sys.stdout.isatty():
        from odcl.cli.console import Visible

        shown = Visible(sys.stdout)
        sys.stdout = io.TextIOWrapper(shown, "utf-8", "surrogateescape", line_buffering=True)
    code = run_command()
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, a closed pipe: Python would try once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
