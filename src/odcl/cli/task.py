"""``odcl task``: the card that all sites agree on, and whether a site's table fits it."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import check_file_place, say
from odcl.cli.task_columns import (
    NAME,
    columns_of,
    curves_named,
    loss_like,
    privacy_of,
    table_of,
)
from odcl.files import check_replace

if TYPE_CHECKING:
    from odcl.risk.risk import Risk

# -- new -------------------------------------------------------------------------------------------

LOSSES = tuple(name for name in opt.LOSSES if name != "auto")

NEW = opt.Command(
    "(--features A,B | --like TABLE) --target Y --out F ...",
    """\
Write the task card of a federation by file.

The card says which columns are what, what is minimised, how groups are found,
and what may leave a site. It is a text that people read, edit (limits such as
minimum_group stand on it) and agree on before anything is computed; every file
of the task carries its digest.

examples:
  odcl task new --features age,bmi --target outcome --loss logistic \\
      --classes no,yes --out task.toml
  odcl task new --features age,ward --category ward=a,b --other ward \\
      --target stay --out task.toml
  odcl task new --like visits.csv --user ward --target stay --curves --out t""",
    {
        "options": {
            "--features COLUMNS": "columns to predict from: a,b,c [default: all columns of the "
            "table of --like]",
            "--target COLUMN": "to predict (required)",
            "--category NAME=A,B": "a column that holds categories, with its levels, the "
            "reference first; once per column",
            "--range NAME=LOW:HIGH": "public range of a number: its units, where rows are "
            "private [default: none]",
            "--other COLUMNS": "categories whose levels that are not listed count as `other`, a "
            "level of its own [default: a site's table is refused]",
            "--curves COLUMNS": {
                "nargs": "?",
                "const": True,
                "help": "features that may act in curves, a,b,c; alone: all numbers with a shift "
                "and a scale [default: lines only]",
            },
            "--periodic COLUMN=P": "columns that begin anew, with their periods: "
            "hour=24,month=12 [default: none]",
            "--out FILE": "the card to write (required)",
            "--loss NAME": (
                opt.one_of(LOSSES),
                "squared (numbers), huber (numbers with outliers), poisson (counts), logistic or "
                "multinomial (classes) [default: squared, or what --like's target is]",
            ),
            "--delta NUMBER": "residual, in the target's units, from which Huber's loss is "
            "linear; with --epsilon, the guarantee's delta [default: none; 1e-6 with --epsilon]",
            "--classes LIST": "the target's classes, a,b,c [default: 0,1 for logistic]",
            "--like TABLE": "one site's table, or a public one: features, categories and "
            "classes are read off it; so are shifts and scales, medians and quartiles rounded "
            "to two digits [default: shift 0, scale 1; squared loss needs no others]",
            "--user COLUMN": "column of --like's users, which is no feature [default: none]",
            "--l2 PENALTY": "penalty on coefficients [default: 0; for classes 0.01]",
            "--clusters K": "as in `odcl fit` [default: auto]",
            "--epsilon NUMBER": "private uploads: noise hides any row; bounds are the features' "
            "shift and scale [default: none, sums are exact]",
            "--target-range LOW:HIGH": "public range of a target that is a number, with "
            "--epsilon [default: none]",
            **opt.FORCE_FILE,
            **opt.QUIET,
        }
    },
)


def run_new(options: Namespace) -> None:
    from odcl.engines.files.task import CAREFUL, Task
    from odcl.method import Method

    out: Path = options.out
    check_file_place(out)
    check_replace(out, options.force)
    table = table_of(options)
    loss = options.loss or loss_like(table, options)
    features, classes = columns_of(options, loss, table)
    private = privacy_of(options)  # whose uploads are not screened
    how = {"privacy": private, "robust": private is None, "clusterer": options.clusters}
    task = Task(
        options.target,
        features,
        options.target,
        _risk(options, loss, classes),
        classes,
        Method.of(CAREFUL, **how),
        curves=curves_named(options, features, table),
        periodic=opt.periods(options.periodic, (), NAME),
    )
    task.write(out)
    print(f"Task card: {shlex.quote(str(out))}, digest {task.digest[:16]}")
    print("Read it, edit it, and send the same file to every site. What leaves a site per user:")
    for name, tells in task.leaves.items():
        print(f"  {name}: {tells}")
    if not task.resolved.clusterer.uses_terms and table is None:
        say("every scale is 1: edit them on the card if a feature's spread is far from 1", options)
    for text in task.curve_notes():
        say(text, options)
    if table is not None and not task.curves and task.resolved.clusterer.uses_terms and not private:
        say("lines only: with --curves columns of numbers may act in curves", options)
    if options.like is not None:
        say(
            f"shifts, scales and levels are those of {options.like}: check that they hold for all "
            "sites",
            options,
        )


def _risk(options: Namespace, loss: str, classes: tuple[Any, ...] | None) -> Risk:
    from odcl.risk.losses import loss_from_json
    from odcl.risk.risk import Risk

    words: dict[str, Any] = {"name": loss}
    if loss == "huber":
        if options.delta is None:
            raise opt.UsageError("--loss huber needs --delta, about 1.345 noise deviations.", NAME)
        words["delta"] = options.delta
    elif options.delta is not None and options.epsilon is None:
        raise opt.UsageError("--delta is for --loss huber, or needs --epsilon.", NAME)
    if loss == "multinomial":
        words["n_classes"] = len(classes or ())
    l2 = options.l2 if options.l2 is not None else 0.0 if classes is None else 0.01
    return Risk(loss_from_json(words), l2, True)


# -- check -----------------------------------------------------------------------------------------

CHECK = opt.Command(
    "CARD [TABLE] [options]",
    """\
Tell whether a card can be used, and whether a site's table fits it.

Nothing is fitted and nothing is written: columns that are missing or of
another type, categories and classes that the card does not list, cells and
users too small to leave are named.

examples:
  odcl task check task.toml
  odcl task check task.toml visits.csv --user ward""",
    {
        "arguments": {"card": "the task card", "table?": opt.TABLE_HELP},
        "options": {
            "--user COLUMN": "column that names the user of each row, if the site holds several "
            "[default: one user]",
            **opt.QUIET,
        },
    },
)


def run_check(options: Namespace) -> None:
    from odcl.engines.files.task import Task
    from odcl.errors import count

    task = Task.read(options.card)
    signed = "not signed: it lists no keys"
    if task.signed:
        signed = f"signed by {len(task.sites)} sites, digest of the keys {task.keys_digest[:16]}"
    print(f"{options.card}: task {task.name!r}, round {task.round}, digest {task.digest[:16]}.")
    size = f"{count(len(task.columns), 'column')}, {count(task.dim, 'parameter')}"
    size += f", {task.risk.loss.name} loss"
    bends = f" ({task.bends} are bends)" if task.bends else ""
    print(f"{size}{bends}. Files are {signed}.")
    if task.method.smallest_group < 3:
        say(
            f"minimum_group = {task.method.smallest_group}: in a group of two each site can work "
            "out the other's term from its download; from 3 on it takes two that share theirs",
            options,
        )
    if options.table is not None:
        _check(task, options)
        return
    for text in task.curve_notes():
        say(text, options)


def _check(task: Any, options: Namespace) -> None:
    from odcl.data.notices import about_values
    from odcl.engines.files.site import range_notes, read_site, release, waste_note
    from odcl.errors import count

    site = read_site(task, options.table, options.user)
    released = release(site)
    rows = site.rows
    print(f"{options.table} fits: {count(len(rows.y), 'row')}, {count(rows.n_users, 'user')}.")
    sent = count(len(released.users), "user")
    print(f"{sent} with {count(len(released.rows.y), 'row')} would enter the upload.")
    told = about_values(site.schema, site.counts, task.missing)
    for text in (*told, *released.sentences(task.smallest_cell)):
        print(f"{text[0].upper()}{text[1:]}.")
    told = [*task.curve_notes(rows.n_rows), *range_notes(site), waste_note(task, rows.n_rows)]
    for text in filter(None, told):
        say(text, options)


# -- keys ------------------------------------------------------------------------------------------

KEYS = opt.Command(
    "CARD KEY ... [options]",
    """\
Put public keys onto a task card: files must be signed from then on.

A site that is listed already gets one key more: files signed with either are
taken until the old one is deleted from the card. The digest of the task stays
the same, so that uploads made before stay good.

examples:
  odcl task keys task.toml coordinator.pub north.pub south.pub""",
    {
        "arguments": {
            "card": "the task card, written anew",
            "key+": "public keys (.pub), as `odcl site keys` wrote them",
        },
        "options": opt.QUIET,
    },
)


def run_keys(options: Namespace) -> None:
    from odcl.engines.files.keys import COORDINATOR, read_public
    from odcl.engines.files.task import Task

    task = Task.read(options.card)
    found = [read_public(path) for path in options.key]
    added = []
    for site, key in sorted(found, key=lambda pair: pair[0] != COORDINATOR):
        before = task.coordinator if site == COORDINATOR else task.sites.get(site, ())
        try:
            task = task.with_keys(site, key)
        except ValueError as error:
            raise ValueError(f"The key {key} of {site} cannot be added: {error}.") from None
        if key not in before:
            more = " beside another, which is good until it is deleted from the card"
            added.append(f"added for {site}: {key}{more if before else ''}")
    task.write(options.card)
    for text in added:
        print(text)
    n = len(task.sites)
    print(f"{options.card} lists keys of {n} site{'s' * (n != 1)} and of the coordinator.")
