"""The command line: parses, calls, prints. Results go to stdout, the rest to stderr."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli.options import parse
from odcl.cli.parser import UsageError
from odcl.errors import InputError, Setting

if TYPE_CHECKING:
    from odcl.cli.rundir import Answer


def demo(options: Namespace) -> None:
    from odcl.cli.demo import FILES, demo_errors, demo_result, write_demo
    from odcl.cli.rundir import check_place

    check_place(options.out, force=options.force, own=FILES)
    with _watched(options) as progress:
        progress.stage("one round of 100 users")
        federation, result = demo_result(options.seed)
        errors = demo_errors(federation, result)
        progress.stage("drawing")
        drawn = write_demo(options.out, result, errors, seed=options.seed, force=options.force)
    _print_demo(federation, result, errors)
    _print_picture(options.out / "demo.png", drawn, options)
    table = shlex.quote(str(options.out / "stores.csv"))
    print(f"A table to try: odcl fit {table} --user store --target sales --out run")


def _print_demo(federation: Any, result: Any, errors: dict[str, float]) -> None:
    from odcl.cli.demo import groups_right
    from odcl.report.text import aligned, group_table, in_bytes, table

    print(f"100 users with 100 rows each. {result.step.reason} {groups_right(federation, result)}")
    print()
    print(group_table(result.labels, result.local.n_rows, result.users))
    print()
    best = errors["oracle average (groups given)"]
    ratios = (f"{e / best:,.2f}" for e in errors.values())
    rows = list(zip(errors, aligned(list(errors.values())), ratios, strict=True))
    print(table(("error of the users' models (NMSE)", "error", "vs oracle average"), rows))
    print("Oracles were told the true groups; the naive average is one model for all.")
    print()
    up, down = in_bytes(result.bytes_up / 100), in_bytes(result.bytes_down / 100)
    print(f"1 round: each user sent {up} and received {down}.")


def fit(options: Namespace) -> None:
    from odcl.cli.run import fit_source, read_named
    from odcl.cli.rundir import check_place, write_run

    settings = _settings(options)
    check_place(options.out, force=options.force)
    with _watched(options) as progress:
        progress.stage("reading the table")
        source = read_named(options.table, options)
        run = fit_source(
            source,
            holdout=options.holdout,
            seed=options.seed,
            settings=settings,
            progress=progress,
        )
        progress.stage("writing")
        drawn = write_run(run, options.out, force=options.force)
    for text in run.notices:
        _notice(text, options)
    _print_run(run)
    _print_picture(options.out / "picture.png", drawn, options)
    out = shlex.quote(str(options.out))
    print(f"Models of all rows, groups, report: {out}")
    print(f"Next: odcl predict {out} TABLE")


def _settings(options: Namespace) -> dict[str, Any]:
    """Arguments of the estimator."""
    _check_together(options)
    refit = "evidence" if options.refit is None else options.refit
    settings: dict[str, Any] = {
        "clusterer": options.clusters,
        "combine": options.combine or "precision",
        "refit": None if refit == "none" else refit,
        "method": "default",
        "fit_intercept": not options.no_intercept,
        "standardize": not options.no_standardize,
        "curvature": options.curvature,
        "n_jobs": options.jobs,
    }
    if options.l2 is not None:
        settings["l2"] = options.l2
    if options.paper:
        settings |= {"method": "paper", "combine": "mean", "refit": None, "standardize": False}
    return settings


def _check_together(options: Namespace) -> None:
    """Refuse options that contradict each other: one of them would be passed over."""
    fixed = {"combine": "mean", "refit": "none"} if options.paper else {}
    for name, only in fixed.items():
        asked = getattr(options, name)
        if asked not in (None, only):
            text = f"--paper means --{name} {only}, and --{name} {asked} was asked for as well"
            raise UsageError(f"{text}: leave one of them out.", "odcl fit")
    if options.combine == "shrink" and options.clusters != "auto":
        text = "--combine shrink needs --clusters auto, which alone tells how far users of a group"
        raise UsageError(f"{text} differ: leave one of them out.", "odcl fit")


def _print_run(run: Any) -> None:
    from odcl.report.text import comparison_table, count, group_table, in_bytes, verdict

    result, m = run.model.result_, len(run.users)
    encoded = run.source.encoded
    size = f"{count(m, 'user')}, {count(len(encoded.codes), 'row')}"
    size += f", {count(encoded.X.shape[1], 'feature')}"
    print(f"{size}, {run.model.loss_.name} loss, 1 round. {result.step.reason}")
    print()
    print(group_table(result.labels, run.n_rows, run.users))
    if run.comparison is not None:
        print()
        print(comparison_table(run.comparison))
        if "odcl" in run.comparison.scores:
            print(verdict(run.comparison))
    print()
    up, down = in_bytes(result.bytes_up / m), in_bytes(result.bytes_down / m)
    print(f"In a federation each user would send {up} and receive {down}.")


def _print_picture(path: Path, drawn: bool, options: Namespace) -> None:
    if drawn:
        print(f"Picture: {shlex.quote(str(path))}")
    else:
        _notice("no picture, for want of matplotlib: pip install 'odcl[plot]'", options)


def predict(options: Namespace) -> None:
    from odcl.cli.rundir import predict_table

    _check_out(options)
    with _watched(options) as progress:
        progress.stage("predicting")
        answer = predict_table(
            options.run,
            options.table,
            unknown=options.unknown,
            unseen=options.unseen,
            missing=options.missing,
        )
    _write(answer, options)


def assign(options: Namespace) -> None:
    from odcl.cli.rundir import assign_table

    _check_out(options)
    with _watched(options) as progress:
        progress.stage("assigning")
        answer = assign_table(options.run, options.table, add=options.add, missing=options.missing)
    _write(answer, options)


def diagnose(options: Namespace) -> None:
    from odcl.cli.diagnose import check_users_file, diagnose_source
    from odcl.cli.rundir import Answer

    check_users_file(options)
    with _watched(options) as progress:
        progress.stage("reading the table")
        found = diagnose_source(options, progress)
    for text in found.notices:
        _notice(text, options)
    print(found.diagnosis)
    if options.out is not None:
        _write(Answer(found.columns()), options)


def plan(options: Namespace) -> None:
    from odcl.cli.plan import check_picture, scenario_of
    from odcl.plan import draw_plan
    from odcl.plan import plan as make_plan

    check_picture(options.out, force=options.force)
    with _watched(options) as progress:
        progress.stage("setting the scene")
        made = make_plan(
            scenario_of(options),
            target=options.probability,
            error=options.error,
            seed=options.seed,
            progress=progress.stage,
        )
        drawn = draw_plan(made, options.out)
    print(made)
    _print_picture(options.out, drawn, options)


def _check_out(options: Namespace) -> None:
    from odcl.cli.rundir import check_file

    if options.out is not None:
        check_file(options.out, run=options.run, table=options.table)


def _write(answer: Answer, options: Namespace) -> None:
    from odcl.data.tables import write_csv, write_table
    from odcl.report.text import count

    for text in answer.notices:
        _notice(text, options)
    if options.out is None:
        sys.stdout.flush()
        write_csv(sys.stdout.buffer, answer.columns)
        return
    write_table(options.out, answer.columns)
    n = len(next(iter(answer.columns.values())))
    _notice(f"{count(n, 'row')} written to {options.out}", options)


def reproduce(options: Namespace) -> None:
    from odcl.cli.reproduce import (
        load_methods,
        open_folder,
        other_rows,
        own_clusters,
        run_one,
        time_line,
        without_data,
    )
    from odcl.report.text import count

    experiments = own_clusters(options.name, options.sizes, options.separation, options.rows)
    added = load_methods(options.methods, experiments)
    lacking = without_data(experiments, options.data)
    if lacking and len(experiments) == 1:
        raise ValueError(lacking[options.name])
    open_folder(options.out, experiments, force=options.force)
    shared = {name: getattr(options, name) for name in ("runs", "jobs", "data", "quick", "seed")}
    failures: list[str] = []
    for one in experiments:
        if one.name in lacking:
            _notice(f"{one.name} is left out. {lacking[one.name]}", options)
            continue
        try:
            outcome = run_one(one, options.out, quiet=options.quiet, added=added, **shared)
        except KeyboardInterrupt:
            folder = shlex.quote(str(options.out))
            _notice(f"what is done is kept in {folder}: the same command goes on there", options)
            raise
        print(outcome.page)
        if outcome.experiment.draw is not None and len(outcome.files) == 1:
            _notice("no picture, for want of matplotlib: pip install 'odcl[plot]'", options)
        for line in (time_line(outcome), other_rows(outcome)):
            if line:
                _notice(line, options)
        failures += outcome.failures
    print(f"Rows, pages, figures: {shlex.quote(str(options.out))}")
    if failures:
        some = f"{count(len(failures), 'task')} of your own methods failed and have no rows"
        raise ValueError(f"{some}. {failures[0]}")


def _watched(options: Namespace) -> Any:
    from odcl.report.progress import watched

    return watched(options.quiet)


def _notice(text: str, options: Namespace) -> None:
    from odcl.report.progress import notice

    notice(text, options.quiet)


# -- the process -----------------------------------------------------------------------------------

COMMANDS = {
    "demo": demo,
    "fit": fit,
    "predict": predict,
    "assign": assign,
    "reproduce": reproduce,
    "diagnose": diagnose,
    "plan": plan,
}


def run_command(arguments: Sequence[str] | None = None) -> int:
    """One command: its exit code, and one line on stderr for what goes wrong."""
    from odcl.report.progress import notice, warnings_as_notices

    try:
        try:
            options = parse(arguments)
            with warnings_as_notices(options.quiet):
                COMMANDS[options.command](options)
        finally:  # --help leaves by SystemExit
            sys.stdout.flush()
    except UsageError as error:
        notice(f"{error} See {error.command} --help.")
        return 2
    except BrokenPipeError:  # the reader has seen enough
        return 141
    except ValueError as error:
        notice(error.in_words(_as_option) if isinstance(error, InputError) else str(error))
        return 2
    except KeyboardInterrupt:
        notice("interrupted.")
        return 130
    except MemoryError:
        notice("out of memory.")
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        notice(f"{where}{error.strerror or error}.")
        return 1
    return 0


_LOSS_OF = {"regression": "squared", "classification": "logistic", "count": "poisson"}


def _as_option(setting: Setting) -> str:
    """A setting that the library advises, as the command line takes it."""
    name, value = setting
    if name == "task":
        name, value = "loss", _LOSS_OF[value]
    if value is True:
        return f"--{name}"
    return f"--{name} {shlex.quote(','.join(value) if isinstance(value, list) else value)}"


def main() -> None:
    """Entry point of the command ``odcl``."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # files half-written are taken away
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")  # ids that it cannot show
    code = run_command()
    try:
        sys.stdout.flush()
    except OSError:  # a full disk, a closed pipe: Python would try once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
