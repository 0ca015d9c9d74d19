"""The command line: parses, calls, prints. Results go to stdout, the rest to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from odcl import __version__

app = typer.Typer(
    name="odcl",
    help="The right model for every user of a federation, after one round of communication.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Names = list[str] | None


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"odcl {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """The right model for every user of a federation, after one round of communication.

    Start with `odcl demo`, then `odcl fit TABLE --user COLUMN --target COLUMN --out RUN`.
    """


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notices.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output folder if it exists.")]
Seed = Annotated[int, typer.Option(help="Seed of every random choice.")]


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and a table to try.")] = Path(
        "odcl-demo"
    ),
    seed: Seed = 0,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """The paper's linear federation: 100 users, 10 hidden groups, one round, in seconds."""
    from odcl.demo import run_demo
    from odcl.report import pictures
    from odcl.report.text import group_table, megabytes, number, table

    with _stages(quiet) as stage:
        result, errors = run_demo(out, seed=seed, force=force, stage=stage)
    typer.echo(f"100 users with 100 rows each. {result.step.reason}")
    typer.echo("")
    typer.echo(group_table(result.labels, result.local.n_rows, result.users))
    typer.echo("")
    best = errors["oracle average (groups given)"]
    rows = [(name, number(e), f"{e / best:.2f}") for name, e in errors.items()]
    typer.echo(table(("error of the users' models (NMSE)", "error", "vs oracle average"), rows))
    typer.echo("")
    up, down = megabytes(result.bytes_up / 100), megabytes(result.bytes_down / 100)
    typer.echo(f"1 round; each user sent {up} and received {down}.")
    if pictures.available():
        typer.echo(f"Picture: {out / 'demo.png'}")
    else:
        _notice("no picture: pip install 'odcl[plot]'", quiet)
    typer.echo(
        f"A table to try: odcl fit {out / 'stores.csv'} --user store --target sales --out run"
    )


@app.command()
def fit(
    data: Annotated[
        Path, typer.Argument(metavar="TABLE", help="CSV or Parquet file, or a folder of them.")
    ],
    user: Annotated[str, typer.Option(help="Column that names the user (store, patient, ...).")],
    target: Annotated[str, typer.Option(help="Column to predict.")],
    out: Annotated[Path, typer.Option(help="Folder for the results (RUN).")],
    features: Annotated[
        Names, typer.Option(help="Columns to predict from; repeat or separate by commas. [all]")
    ] = None,
    drop: Annotated[Names, typer.Option(help="Columns to leave out.")] = None,
    categorical: Annotated[Names, typer.Option(help="Columns that hold categories.")] = None,
    missing: Annotated[
        str, typer.Option(help="Rows with missing values: error, drop, or mean (fill in).")
    ] = "error",
    loss: Annotated[
        str, typer.Option(help="squared, huber, poisson, logistic, multinomial, or auto.")
    ] = "auto",
    clusters: Annotated[
        str,
        typer.Option(
            help="auto (found from the users' noise), a number, elbow, silhouette, spectral:K or "
            "gradient:K."
        ),
    ] = "auto",
    combine: Annotated[
        str, typer.Option(help="How a group's models become one: precision, mean, samples, shrink.")
    ] = "precision",
    refit: Annotated[
        str, typer.Option(help="Refit at the user: evidence, cv, none, or a number (strength).")
    ] = "evidence",
    paper: Annotated[
        bool, typer.Option("--paper", help="The paper's setting: K-means++, mean, no refit.")
    ] = False,
    l2: Annotated[
        float | None, typer.Option(help="Penalty in standardised units. [0; 0.01 for classes]")
    ] = None,
    intercept: Annotated[bool, typer.Option(help="Fit an intercept.")] = True,
    standardize: Annotated[bool, typer.Option(help="Bring features to a common scale.")] = True,
    curvature: Annotated[
        str, typer.Option(help="What users send of their Hessian: auto, full, diagonal, none.")
    ] = "auto",
    holdout: Annotated[
        float, typer.Option(help="Share of each user's rows kept for the comparison; 0: none.")
    ] = 0.2,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(help="Threads for the local models.")] = 1,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Find the groups in a table of many users and fit a model for each user."""
    from odcl.data.encoding import TableSchema
    from odcl.data.tables import read_table
    from odcl.run import fit_table, guess_loss, task_of, write_run

    if not 0 <= holdout < 1:
        raise ValueError(f"--holdout is a share of the rows, from 0 to below 1; got {holdout:g}.")
    _check_free(out, force)
    groups = _names(categorical)
    with _stages(quiet) as stage:
        stage("reading the table")
        table = read_table(data, text=(user, *groups))
        kind = guess_loss(table, target) if loss == "auto" else loss
        schema = TableSchema.fit(
            table,
            user=user,
            target=target,
            features=_names(features) or None,
            drop=_names(drop),
            categorical=groups,
            missing=missing,
            task=task_of(kind),
        )
        settings: dict[str, Any] = {
            "clusterer": _clusterer(clusters),
            "combine": combine,
            "refit": _refit(refit),
            "method": "paper" if paper else "default",
            "fit_intercept": intercept,
            "standardize": standardize,
            "curvature": curvature,
            "n_jobs": jobs,
        }
        if l2 is not None:
            settings["l2"] = l2
        run = fit_table(
            table, schema, kind, holdout=holdout, seed=seed, settings=settings, stage=stage
        )
        stage("writing")
        write_run(
            run,
            out,
            force=force,
            settings=settings | {"loss": kind, "seed": seed, "table": data.name},
        )
    for text in run.notices:
        _notice(text, quiet)
    _print_run(run, out, kind)


def _print_run(run: Any, out: Path, loss: str) -> None:
    from odcl.report.text import comparison_table, group_table, megabytes, verdict

    result = run.model.result_
    m = len(run.encoded.ids)
    typer.echo(
        f"{m:,} users, {len(run.encoded.codes):,} rows, {run.encoded.X.shape[1]} features, {loss} "
        f"loss, 1 round. {result.step.reason}"
    )
    typer.echo("")
    typer.echo(group_table(result.labels, run.n_rows, run.encoded.ids))
    if run.comparison is not None:
        typer.echo("")
        typer.echo(comparison_table(run.comparison))
        if "odcl" in run.comparison.scores:
            typer.echo(verdict(run.comparison))
    typer.echo("")
    up, down = megabytes(result.bytes_up / m), megabytes(result.bytes_down / m)
    typer.echo(f"In a federation each user would send {up} and receive {down}.")
    typer.echo(f"Models (fitted on all rows), groups, users and a picture: {out}")


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `odcl fit` wrote.")],
    data: Annotated[Path, typer.Argument(metavar="TABLE", help="Rows to predict.")],
    out: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file; without it, CSV on stdout.")
    ] = None,
    unknown: Annotated[
        str, typer.Option(help="Users not in the fit: error, pooled (one model for all), nearest.")
    ] = "error",
    unseen: Annotated[
        str, typer.Option(help="Categories not in the fit: error, or reference (the commonest).")
    ] = "error",
    quiet: Quiet = False,
) -> None:
    """Predict each row with its user's model."""
    from odcl.run import predict_table

    with _stages(quiet) as stage:
        stage("predicting")
        columns = predict_table(run, data, unknown=unknown, unseen=unseen)
    _write(columns, out, quiet)


@app.command()
def assign(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `odcl fit` wrote.")],
    data: Annotated[
        Path, typer.Argument(metavar="TABLE", help="Rows of new users, with the target.")
    ],
    add: Annotated[
        bool, typer.Option("--add", help="Remember the users in RUN: predict knows them then.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="CSV or Parquet file; without it, CSV on stdout.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Which group new users belong to, how surely, or that they fit none."""
    from odcl.run import assign_table

    with _stages(quiet) as stage:
        stage("assigning")
        columns = assign_table(run, data, add=add)
    _write(columns, out, quiet)


# -- small parts -------------------------------------------------------------------------------


def _names(values: Names) -> tuple[str, ...]:
    """Repeated options and comma-separated lists alike."""
    parts = [part.strip() for value in values or [] for part in value.split(",")]
    return tuple(part for part in parts if part)


def _clusterer(text: str) -> Any:
    if text in ("auto", "elbow", "silhouette"):
        return text
    name, _, count = text.rpartition(":")
    if count.isdigit() and int(count) > 0:
        if name == "":
            return int(count)
        from odcl.clustering.gradient import GradientClustering
        from odcl.clustering.kmeans import KMeansPP
        from odcl.clustering.spectral_kmeans import SpectralKMeans

        known = {"kmeans": KMeansPP, "spectral": SpectralKMeans, "gradient": GradientClustering}
        if name in known:
            return known[name](int(count))
    raise ValueError(
        f"--clusters {text!r} is not one of auto, a number > 0, elbow, silhouette, spectral:K, "
        "gradient:K."
    )


def _refit(text: str) -> str | float | None:
    if text in ("evidence", "cv"):
        return text
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--refit {text!r} is not one of evidence, cv, none, or a number >= 0."
        ) from None


def _check_free(out: Path, force: bool) -> None:
    """Refuse an existing folder before the work, not after it."""
    if out.exists() and not force:
        raise ValueError(
            f"{out} exists already, and its contents would be replaced. Say --force to replace it, "
            "or name a new folder."
        )


def _write(columns: dict[str, Any], out: Path | None, quiet: bool) -> None:
    from odcl.data.tables import write_table

    if out is not None:
        write_table(out, columns)
        rows = len(next(iter(columns.values())))
        _notice(f"{rows:,} rows written to {out}", quiet)
        return
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    values = [v.tolist() if hasattr(v, "tolist") else list(v) for v in columns.values()]
    writer.writerows(zip(*values, strict=True))


def _notice(text: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(f"odcl: {text}", err=True)


@contextmanager
def _stages(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A progress line on stderr where a person is watching; nothing in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("")
        yield lambda text: progress.update(task, description=text)


def main() -> None:
    """Entry point: one line on stderr and an exit code for whatever goes wrong."""
    import click

    try:
        code = app(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        typer.echo("odcl: interrupted; nothing was written.", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except ValueError as error:
        typer.echo(f"odcl: {' '.join(str(error).split())}", err=True)
        sys.exit(2)
    except (OSError, MemoryError) as error:
        typer.echo(f"odcl: {error or 'out of memory'}; nothing was written.", err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
