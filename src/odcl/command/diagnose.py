"""``odcl diagnose``: is one shot enough for this table, and if not, what is?"""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.command.option_values import (
    COMBINE,
    LOSSES,
    MISSING,
    at_least_0,
    clusters,
    one_of,
)

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis
    from odcl.report.progress import Silent

_ABOUT = """\
Tell whether one shot is enough for a table, and if not, what to do.

Fits the table as `odcl fit` does and looks at the users' models: how noisy
they are against the distances between groups, whether the groups would be
found again, who stands at a border or fits no group. Ends in one of: one shot
is enough; use precision combining; add refinement rounds; collect more rows;
there is no group structure, use one model; the groups are too fine, stay
local."""

_EXAMPLES = """\
examples:
  odcl diagnose sales.csv --user store --target sales
  odcl diagnose run sales.csv --out users.csv
  odcl diagnose sales.csv --user store --target sales --paper

A RUN is diagnosed with its own columns and settings. It holds no rows, so
name its table too, unless that lies in this folder or beside the run."""


def add_diagnose(some: Any) -> Any:
    """The command's options."""
    from odcl.command.options import (
        _TABLE_HELP,
        _command,
        _missing,
        _path,
        _quiet,
        _seed,
    )

    parser = _command(some, "diagnose", "RUN [TABLE] | TABLE [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    group.add_argument(
        "source", metavar="RUN|TABLE", type=Path, help="folder that `odcl fit` wrote, or a table"
    )
    group.add_argument("table", metavar="TABLE", type=Path, nargs="?", help=_TABLE_HELP)
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
    _path(more, "--out", "FILE", f"{about} [default: none]")
    _missing(more, None)
    _seed(more)
    _quiet(more)
    return parser


def check_users_file(options: Namespace) -> None:
    """Refuse an output file before the work."""
    from odcl.command.rundir import check_file

    if options.out is not None:
        check_file(options.out, run=options.source, table=options.table or options.source)


@dataclass(frozen=True, eq=False)
class Diagnosed:
    """The diagnosis and what is to be written and said besides."""

    diagnosis: Diagnosis
    user: str  # the column that names users
    notices: list[str]

    def columns(self) -> dict[str, Any]:
        """The table that ``--out`` writes."""
        from odcl.command.rundir import beside

        return beside({self.user: self.diagnosis.users}, self.diagnosis.table())


def diagnose_source(options: Namespace, progress: Silent) -> Diagnosed:
    """Fit what the options name, and diagnose it."""
    from odcl.estimators.persist import WORDS

    is_run = (options.source / WORDS).is_file()
    source, settings, notices = _of_run(options) if is_run else _of_table(options)
    from odcl.command.run import fit_source

    seed = settings.pop("seed", options.seed)
    run = fit_source(source, holdout=0, seed=seed, settings=settings, progress=progress)
    progress.stage("diagnosing")
    found = run.model.diagnose(seed=options.seed)
    return Diagnosed(found, source.schema.user, [*notices, *run.notices])


def _of_table(options: Namespace) -> tuple[Any, dict[str, Any], list[str]]:
    from odcl.command.options import UsageError
    from odcl.command.run import read_source

    if options.table is not None:
        text = f"{options.source} is not a run of `odcl fit`, so {options.table} is one too many."
        raise UsageError(text, "odcl diagnose")
    for name in ("user", "target"):
        if getattr(options, name) is None:
            raise UsageError(f"a table needs --{name}, a column of it.", "odcl diagnose")
    if options.paper and options.combine not in (None, "mean"):
        text = f"--paper means --combine mean, and --combine {options.combine} was asked for"
        raise UsageError(f"{text} as well: leave one of them out.", "odcl diagnose")
    source = read_source(
        options.source,
        user=options.user,
        target=options.target,
        features=options.features,
        drop=options.drop,
        categorical=options.categorical,
        missing=options.missing or MISSING[0],
        loss=options.loss or "auto",
    )
    settings: dict[str, Any] = {
        "clusterer": options.clusters or "auto",
        "combine": "mean" if options.paper else options.combine or "precision",
        "method": "paper" if options.paper else "default",
        "fit_intercept": not options.no_intercept,
    }
    if options.l2 is not None:
        settings["l2"] = options.l2
    return source, settings, []


# Settings of a run that a new fit takes over; the others are about the comparison.
_TAKEN = ("clusterer", "combine", "refit", "method", "fit_intercept", "standardize", "curvature")


def _of_run(options: Namespace) -> tuple[Any, dict[str, Any], list[str]]:
    """The run's table, read by its schema, and the run's settings."""
    from odcl.command.options import UsageError
    from odcl.command.run import Source
    from odcl.command.rundir import REPORT, open_run
    from odcl.data.tables import read_table

    for name in ("user", "target", "loss", "clusters", "combine", "l2"):
        if getattr(options, name) is not None:
            text = f"--{name} is part of the run {options.source}: leave it out."
            raise UsageError(text, "odcl diagnose")
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
    if path is None:
        path = _table_of(options.source, str(words.get("table", "")))
        notices.append(f"the rows are read from {path}")
    encoded = schema.encode(read_table(path, text=schema.text), missing=options.missing)
    known = set(model.users_.tolist())
    strange = sum(user not in known for user in encoded.ids.tolist())
    if strange or len(encoded.ids) < len(known):
        notices.append(
            f"{path} has {len(encoded.ids)} users, {strange} of them not in the run of "
            f"{len(known)}: the diagnosis is of the table, with the run's settings"
        )
    return Source(path.name, schema, encoded, model.loss_.name, False), settings, notices


def _table_of(run: Path, name: str) -> Path:
    """The table that a run was fitted on, in this folder or beside the run."""
    for place in (Path(name), run.absolute().parent / name):
        if name and place.exists():
            return place
    raise ValueError(
        f"{run} holds models and no rows, and its table ({name!r}) is neither here nor beside it: "
        f"say `odcl diagnose {run} TABLE`."
    )
