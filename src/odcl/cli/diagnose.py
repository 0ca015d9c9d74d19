"""``odcl diagnose``: is one shot enough for this table, and if not, what is?"""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli.option_values import (
    COMBINE,
    LOSSES,
    at_least_0,
    clusters,
    one_of,
)
from odcl.cli.parser import TABLE_HELP, UsageError, command, missing, path, quiet, seed

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis
    from odcl.report.progress import Silent

_ABOUT = """\
Tell whether one shot is enough for a table, and if not, what to do.

Looks at the users' models, those of a run or of a table fitted as `odcl fit`
does: how noisy they are against the distances between groups, whether the
groups would be found again, who stands at a border or fits no group. Begins
with one of: one shot is enough; use precision combining; add refinement
rounds; collect more rows; there is no group structure, use one model; the
groups are too fine, stay local."""

_EXAMPLES = """\
examples:
  odcl diagnose sales.csv --user store --target sales
  odcl diagnose run --out users.csv
  odcl diagnose sales.csv --user store --target sales --paper

A RUN keeps what its users uploaded, and is diagnosed from that. With TABLE it
is fitted again on the table's rows, with its own columns and settings: for a
run of --paper, whose users send nothing about their noise, that tells more."""


def add_diagnose(some: Any) -> Any:
    """The command's options."""
    parser = command(some, "diagnose", "RUN [TABLE] | TABLE [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument(
        "source", metavar="RUN|TABLE", type=Path, help="folder that `odcl fit` wrote, or a table"
    )
    group.add_argument("table", metavar="TABLE", type=Path, nargs="?", help=TABLE_HELP)
    new = parser.add_argument_group("a table without a run")
    new.add_argument(
        "--user", metavar="COLUMN", help="column that names the user of each row [default: none]"
    )
    new.add_argument("--target", metavar="COLUMN", help="column to predict [default: none]")
    many: dict[str, Any] = {"metavar": "COLUMNS", "action": "append", "default": []}
    new.add_argument("--features", **many, help="columns to predict from [default: all others]")
    new.add_argument("--drop", **many, help="columns to leave out")
    new.add_argument("--categorical", **many, help="columns that hold categories, not numbers")
    methods = {
        "--loss": (one_of(LOSSES), "NAME", "as for odcl fit [default: auto]"),
        "--clusters": (clusters, "K", "as for odcl fit [default: auto]"),
        "--combine": (one_of(COMBINE), "HOW", "as for odcl fit [default: precision]"),
        "--l2": (at_least_0, "NUMBER", "as for odcl fit [default: 0; for classes 0.01]"),
    }
    for name, (kind, metavar, text) in methods.items():
        new.add_argument(name, metavar=metavar, type=kind, help=text)
    new.add_argument("--no-intercept", action="store_true", help="fit no intercept")
    new.add_argument("--paper", action="store_true", help="the paper's setting, as for odcl fit")
    more = parser.add_argument_group("options")
    about = "CSV or Parquet file with one row a user: group, chance of belonging elsewhere"
    path(more, "--out", "FILE", f"{about} [default: none]")
    more.add_argument("--force", action="store_true", help="replace FILE if it exists")
    missing(more, None)
    seed(more)
    quiet(more)
    return parser


def check_users_file(options: Namespace) -> None:
    """Refuse an output file before the work."""
    from odcl.cli.rundir import check_file

    if options.out is None:
        return
    check_file(options.out, run=options.source, table=options.table or options.source)
    if options.out.exists() and not options.force:
        text = f"{options.out} exists already: say --force to replace it, or name another."
        raise ValueError(text)


@dataclass(frozen=True, eq=False)
class Diagnosed:
    """The diagnosis and what is to be written and said besides."""

    diagnosis: Diagnosis
    user: str  # the column that names users
    notices: list[str]

    def columns(self) -> dict[str, Any]:
        """The table that ``--out`` writes."""
        from odcl.cli.rundir import beside

        columns = self.diagnosis.columns()
        return beside({self.user: columns.pop("user")}, columns)


def diagnose_source(options: Namespace, progress: Silent) -> Diagnosed:
    """Diagnose what the options name: a run from its uploads, or a table after a fit."""
    from odcl.estimators.persist import WORDS

    if not options.source.exists():
        raise ValueError(f"There is no file or folder {options.source}.")
    if not (options.source / WORDS).is_file():
        return _refitted(*_of_table(options), options, progress)
    _refuse_settings(options)
    if options.table is None:
        return _of_uploads(options, progress)
    return _refitted(*_of_run(options), options, progress)


def _of_uploads(options: Namespace, progress: Silent) -> Diagnosed:
    """A run as it is, from what its users sent."""
    from odcl.cli.rundir import open_run
    from odcl.cli.uploads import n_added, read_uploads
    from odcl.diagnose import diagnose_step

    model, schema = open_run(options.source)
    kept = read_uploads(options.source, model.users_)
    notices = []
    if n_added(model.labels_, kept):
        added = f"{n_added(model.labels_, kept)} users were added to the run after its fit"
        notices.append(f"{added}, which the diagnosis does not see")
    if kept.uploads.dispersion is None:
        notices.append(
            "the run's users sent nothing about their noise: `odcl diagnose "
            f"{options.source} TABLE` reads it off their rows, and tells more"
        )
    progress.stage("diagnosing")
    found = diagnose_step(kept.uploads, kept.step, combine=kept.combine, seed=options.seed)
    return Diagnosed(found, schema.user, notices)


def _refitted(
    source: Any,
    settings: dict[str, Any],
    notices: list[str],
    options: Namespace,
    progress: Silent,
) -> Diagnosed:
    """Fit rows and diagnose the fit; the rows tell the users' noise in the paper's setting too."""
    from odcl.cli.run import fit_source

    seed = settings.pop("seed", options.seed)
    run = fit_source(source, holdout=0, seed=seed, settings=settings, progress=progress)
    progress.stage("diagnosing")
    rows = source.encoded.federation()
    rows = rows.with_X(run.model.scaling_.apply(rows.X))
    found = run.model.result_.diagnose(rows, seed=options.seed)
    return Diagnosed(found, source.schema.user, [*notices, *run.notices])


def _of_table(options: Namespace) -> tuple[Any, dict[str, Any], list[str]]:
    from odcl.cli.run import read_named

    if options.table is not None:
        text = f"{options.source} is not a run of `odcl fit`, so {options.table} is one too many."
        raise UsageError(text, "odcl diagnose")
    for name in ("user", "target"):
        if getattr(options, name) is None:
            text = f"{options.source} is not a run of `odcl fit`, and a table needs --{name}"
            raise UsageError(f"{text}, a column of it.", "odcl diagnose")
    if options.paper and options.combine not in (None, "mean"):
        text = f"--paper means --combine mean, and --combine {options.combine} was asked for"
        raise UsageError(f"{text} as well: leave one of them out.", "odcl diagnose")
    source = read_named(options.source, options)
    settings: dict[str, Any] = {
        "clusterer": options.clusters or "auto",
        "combine": "mean" if options.paper else options.combine or "precision",
        "method": "paper" if options.paper else "default",
        "fit_intercept": not options.no_intercept,
    }
    if options.l2 is not None:
        settings["l2"] = options.l2
    return source, settings, []


def _refuse_settings(options: Namespace) -> None:
    """What is said of a table is settled in a run."""
    for name in ("user", "target", "loss", "clusters", "combine", "l2"):
        if getattr(options, name) is not None:
            text = f"--{name} is part of the run {options.source}: leave it out."
            raise UsageError(text, "odcl diagnose")
    for name in ("features", "drop", "categorical", "no_intercept", "paper"):
        if getattr(options, name):
            text = f"--{name.replace('_', '-')} is part of the run {options.source}: leave it out."
            raise UsageError(text, "odcl diagnose")


# Settings of a run that a new fit takes over; the others are about the comparison.
_TAKEN = ("clusterer", "combine", "refit", "method", "fit_intercept", "standardize", "curvature")


def _of_run(options: Namespace) -> tuple[Any, dict[str, Any], list[str]]:
    """The run's table, read by its schema, and the run's settings."""
    from odcl.cli.rundir import REPORT, open_run
    from odcl.data.source import Source
    from odcl.data.tables import read_table

    model, schema = open_run(options.source)
    try:
        words = json.loads((options.source / REPORT).read_text(encoding="utf-8"))
        asked = words["settings"]
        settings = {name: asked[name] for name in _TAKEN if name in asked}
        settings["seed"] = int(asked.get("seed", 0))
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = f"{options.source / REPORT} cannot be read ({error}): fit the run again."
        raise ValueError(text) from None
    settings["l2"] = float(model.l2)
    path, notices = options.table, []
    encoded = schema.encode(read_table(path, text=schema.text), missing=options.missing)
    known = set(model.users_.tolist())
    strange = sum(user not in known for user in encoded.ids.tolist())
    if strange or len(encoded.ids) < len(known):
        notices.append(
            f"{path} has {len(encoded.ids)} users, {strange} of them not in the run of "
            f"{len(known)}: the diagnosis is of the table, with the run's settings"
        )
    return Source(path.name, schema, encoded, model.loss_.name, False), settings, notices
