"""The paper: ``odcl demo``, its linear federation in seconds and a table to try, and ``odcl
reproduce``, its figures and tables into a folder, from where a run stopped.
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import say, watched
from odcl.files import LITTER

if TYPE_CHECKING:
    from odcl._typing import Floats
    from odcl.data.synthetic import SyntheticFederation
    from odcl.engines.in_process import Result
    from odcl.paper.experiments.definition import Added, Experiment
    from odcl.paper.experiments.runner import Reproduced

# -- demo ------------------------------------------------------------------------------------------

DEMO = opt.Command(
    "[--out FOLDER] [options]",
    """\
Fit the paper's linear federation: 100 users in 10 hidden groups.

Prints the groups found, the error of the users' models beside that of local,
naive and oracle models, and the bytes sent in the one round. Saves tables to
try: stores.csv for `odcl fit`; then new_days.csv for `odcl predict`,
new_stores.csv for `odcl assign`, this_week.csv for `odcl update`.""",
    {
        "options": {
            "--out FOLDER": opt.defaulting(Path, "demo", "folder for the tables"),
            **opt.FORCE,
            **opt.SEED,
            **opt.QUIET,
        }
    },
    epilog="",
)


def run_demo(options: Namespace) -> None:
    from odcl.files import check_folder

    check_folder(options.out, force=options.force, own=TABLES)
    with watched(options) as progress:
        progress.stage("one round of 100 users")
        federation, result = demo_result(options.seed)
        errors = demo_errors(federation, result.models)
        progress.stage("writing")
        write_demo(options.out, seed=options.seed, force=options.force)
    print_round(federation, result, errors)
    table = shlex.quote(str(options.out / "stores.csv"))
    print(f"A table to try: odcl fit {table} --user store --target sales --out run")


def print_round(federation: SyntheticFederation, found: Result, errors: dict[str, float]) -> None:
    """Groups, errors and bytes of one round."""
    from odcl.report.text import aligned, group_table, in_bytes, table

    m, n = federation.n_users, federation.n_rows[0]
    print(f"{m} users with {n} rows each. {found.step.reason} {groups_right(federation, found)}")
    print()
    print(group_table(found.labels, federation.n_rows, federation.users))
    print()
    best = errors["oracle average (groups given)"]
    ratios = (f"{e / best:,.2f}" for e in errors.values())
    rows = list(zip(errors, aligned(list(errors.values())), ratios, strict=True))
    print(table(("error of the users' models (NMSE)", "error", "vs oracle average"), rows))
    print("Oracles were told the true groups; the naive average is one model for all.")
    print()
    up, down = in_bytes(found.bytes_up / m), in_bytes(found.bytes_down / m)
    print(f"1 round: each user sent {up} and received {down}.")


TABLES = ("stores.csv", "new_days.csv", "new_stores.csv", "this_week.csv")


def demo_result(seed: int) -> tuple[SyntheticFederation, Result]:
    """The federation of Section 5 (100 users, 10 hidden groups, n = 100), fitted in one round."""
    from odcl.data.synthetic import linear_federation
    from odcl.engines.in_process import fit

    federation = linear_federation(100, 100, n_clusters=10, seed=seed)
    return federation, fit(federation, seed=seed)


def write_demo(folder: Path, *, seed: int, force: bool) -> None:
    """The tables to try, whole or not at all."""
    from odcl.data.synthetic import store_tables
    from odcl.data.tables import write_table
    from odcl.files import atomic_folder

    with atomic_folder(folder, force=force, own=TABLES) as place:
        for name, table in zip(TABLES, store_tables(seed), strict=True):
            write_table(place / name, table)


def groups_right(federation: SyntheticFederation, result: Any) -> str:
    """How the groups found compare with the true ones, in a sentence."""
    assert federation.groups is not None
    pairs = {*zip(result.labels.tolist(), federation.groups.tolist(), strict=True)}
    n_true = len(set(federation.groups.tolist()))
    if len(pairs) == result.n_clusters == n_true:
        return "They are the true ones."
    return f"The true ones are {n_true}."


# How the paper's methods give users a model, by their names in `odcl.paper.baselines`.
BASELINES = {
    "local models": "local",
    "naive average": "naive",
    "paper (K-means++, K = 10 given, mean)": "odcl-km++",
    "oracle average (groups given)": "oracle-averaging",
    "oracle pooling (groups given)": "cluster-oracle",  # Eq. (3)
}


def demo_errors(federation: SyntheticFederation, own: Floats) -> dict[str, float]:
    """NMSE of each way to give users a model; ``own`` are those of one round, (n_users, dim)."""
    from odcl.evaluate import nmse
    from odcl.paper.baselines import run as run_baseline

    models = {
        told: run_baseline(name, federation, n_clusters=10).models
        for told, name in BASELINES.items()
    }
    models["odcl (K not given)"] = own
    return {name: nmse(theta, federation.optima) for name, theta in models.items()}


# -- reproduce -------------------------------------------------------------------------------------

REPRODUCE = opt.Command(
    "NAME [options]",
    """\
Make the paper's figures and tables again, beside its own numbers.

FOLDER gets rows.jsonl (every number with its seed, version and time), and for
each NAME a page NAME.md and, but for table-methods, a figure NAME.png and
NAME.svg. An interrupted run goes on where it stopped.""",
    {
        "arguments": {"name": (str, "all, or an experiment of the list below")},
        "options": {
            "--runs N": "runs with seeds SEED, SEED + 1, ... [default: the paper's 10, or 20 "
            "for logistic]",
            "--data DATA": "folder with the images of table-accuracy [default: none]",
            "--methods FILE": "Python file that registers methods of your own [default: none]",
            "--quick": "smaller set-ups, one or two runs: a look, in seconds to a minute each",
            "--force": "forget the rows of NAME in FOLDER and start again",
            "--out FOLDER": opt.defaulting(
                Path, "reproduction", "folder for rows, pages and figures"
            ),
            **opt.jobs(-1, "processes"),
            **opt.SEED,
            **opt.QUIET,
        },
    },
    epilog="""\
NAME is all, or one of
  table-methods       rounds and samples that the theory asks for
  figure-mse          error against samples per user, linear models
  table-rounds        rounds until IFCA has the error of one round
  figure-ifca         IFCA round by round
  figure-clusterpath  convex clustering with and without the true lambda
  figure-logistic     logistic models: error and number of clusters
  table-accuracy      MNIST, CIFAR10 and noisy CIFAR10 (needs --data)

examples:
  odcl reproduce all --quick
  odcl reproduce figure-mse --runs 10 --jobs 2
  odcl reproduce table-accuracy --data data
  odcl reproduce figure-mse --methods mine.py

DATA holds MNIST's four files (.gz or not) in DATA/mnist, and CIFAR-10's binary
version as it is unpacked (cifar-10-batches-bin), or train.bin and test.bin of
two classes in DATA/cifar10-two-classes. Nothing is downloaded.

mine.py registers methods: from odcl import baselines;
baselines.register("mine", FUNCTION, "n_clusters"). What FUNCTION gets and gives
says help(odcl.baselines.register). They join figure-mse, figure-clusterpath,
figure-logistic and table-accuracy: their page, their figure and rows.jsonl.""",
)


def run_reproduce(options: Namespace) -> None:
    from odcl.paper.experiments import NAMES, experiment
    from odcl.paper.experiments.runner import reproduce
    from odcl.report.text import count

    names = NAMES if options.name == "all" else (options.name,)
    experiments = [experiment(name) for name in names]
    added = load_methods(options.methods, experiments)
    lacking = without_data(experiments, options.data)
    if lacking and len(experiments) == 1:
        raise ValueError(lacking[options.name])
    open_folder(options.out, experiments, force=options.force)
    shared = {name: getattr(options, name) for name in ("runs", "jobs", "data", "quick", "seed")}
    failures: list[str] = []
    for one in experiments:
        if one.name in lacking:
            say(f"{one.name} is left out. {lacking[one.name]}", options)
            continue
        try:
            with watched(options) as progress:
                outcome = reproduce(one, options.out, added=added, progress=progress, **shared)
        except KeyboardInterrupt:
            folder = shlex.quote(str(options.out))
            say(f"what is done is kept in {folder}: the same command goes on there", options)
            raise
        print(outcome.page)
        if outcome.experiment.draw is not None and len(outcome.files) == 1:
            say("matplotlib is not installed: no picture (pip install 'odcl[plot]')", options)
        for line in about(outcome):
            say(line, options)
        failures += outcome.failures
    print(f"Rows, pages, figures: {shlex.quote(str(options.out))}")
    if failures:
        some = f"{count(len(failures), 'task')} of your own methods failed and have no rows"
        raise ValueError(f"{some}. {failures[0]}")


def load_methods(path: Path | None, experiments: Sequence[Experiment]) -> Added:
    """The methods that a file registers, for experiments that others can join."""
    from odcl.paper.experiments import NAMES, experiment
    from odcl.paper.experiments.definition import NONE_ADDED, load_added

    if path is None:
        return NONE_ADDED
    if not any(one.bench for one in experiments):
        open_to = ", ".join(name for name in NAMES if experiment(name).bench)
        raise ValueError(f"Methods of your own can join {open_to}, not {experiments[0].name}.")
    return load_added(path)


def without_data(experiments: Sequence[Experiment], data: Path | None) -> dict[str, str]:
    """Experiments whose files are not there, by name, and what to do."""
    from odcl.paper.experiments.definition import MissingData

    lacking = {}
    for one in experiments:
        try:
            one.check(data)
        except MissingData as error:
            lacking[one.name] = str(error)
    return lacking


def open_folder(out: Path, experiments: Sequence[Experiment], *, force: bool) -> None:
    """Make the folder, or go on in it; with ``force`` the experiments' rows are forgotten."""
    from odcl.paper.experiments.definition import lines_of, read_rows, write_lines
    from odcl.paper.experiments.runner import ROWS

    if out.exists() and not out.is_dir():
        raise ValueError(f"{out} is a file, and a folder is to be written: name another place.")
    out.mkdir(parents=True, exist_ok=True)
    there = [p.name for p in out.iterdir() if p.name not in LITTER]
    if there and ROWS not in there:
        raise ValueError(
            f"{out} holds what odcl did not write (such as {sorted(there)[0]!r}), and no {ROWS} to "
            "go on from: name a new folder."
        )
    if force and ROWS in there:
        names = {one.name for one in experiments}
        # A file of that name that is not ours cannot be read, and is never lost.
        kept = [r for r in read_rows(out / ROWS) if r.experiment not in names]
        write_lines(out / ROWS, lines_of(kept))
    (out / ROWS).touch()


def about(outcome: Reproduced) -> Iterator[str]:
    """How much was done and how long it took, and which rows are there and not used."""
    from odcl.paper.experiments.runner import ROWS
    from odcl.report.text import count

    old = outcome.n_tasks - outcome.n_new
    yield (
        f"{outcome.experiment.name}: {count(outcome.n_new, 'task')} in {outcome.seconds:.1f} s"
        + (f", {old} from before" if old else "")
        + f"; all rows hold {outcome.work_seconds:.1f} s of work."
    )
    if outcome.n_other:
        yield (
            f"{outcome.n_other} rows of other versions (of odcl, or of your file of methods) in "
            f"{ROWS} are kept and not used; --force forgets them."
        )
