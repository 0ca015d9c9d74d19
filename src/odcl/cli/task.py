"""``odcl task``: the card that all sites agree on, and whether a site's table fits it."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import check_file_place, check_replace, say

if TYPE_CHECKING:
    from odcl.engines.files.task import Feature
    from odcl.risk.risk import Risk

# -- new -------------------------------------------------------------------------------------------

_NEW = """\
Write the task card of a federation by file.

The card says which columns are what, what is minimised, how groups are found,
and what may leave a site. It is a text that people read, edit and agree on
before anything is computed; every file of the task carries its digest.

examples:
  odcl task new --features age,bmi --target outcome --loss logistic \\
      --classes no,yes --out task.toml
  odcl task new --features age,ward --category ward=a,b --other ward \\
      --target stay --out task.toml
  odcl task new --features age,bmi --target outcome --loss logistic \\
      --scale-from public.csv --out task.toml"""

LOSSES = tuple(name for name in opt.LOSSES if name != "auto")

NAME = "odcl task new"

_OPTIONS = {
    "--loss NAME": (
        opt.one_of(LOSSES),
        "squared (numbers), huber (numbers with outliers), poisson (counts), logistic or "
        "multinomial (classes) [default: squared]",
    ),
    "--delta NUMBER": (
        opt.above_0,
        "residual, in the target's units, from which Huber's loss is linear [default: none]",
    ),
    "--classes LIST": (str, "the target's classes, a,b,c [default: 0,1 for logistic]"),
    "--scale-from TABLE": (
        Path,
        "a public table with these columns: shifts, scales, categories and classes are read off it "
        "[default: shift 0, scale 1; squared loss needs no others]",
    ),
    "--name TEXT": (str, "what files call the task [default: the target]"),
    "--l2 NUMBER": (opt.at_least_0, "penalty on coefficients [default: 0; for classes 0.01]"),
    "--no-intercept": "fit no intercept",
    "--clusters K": (opt.clusters, "as in `odcl fit` [default: auto]"),
    "--missing HOW": (
        opt.one_of(opt.MISSING),
        "rows that lack a value: error, drop, or mean (fill in the shift, which --scale-from reads "
        "off its table) [default: error]",
    ),
    "--smallest-cell N": (
        opt.positive,
        "withhold levels and classes seen fewer times at a user [default: 5]",
    ),
    "--minimum-rows N": (opt.positive, "users with fewer rows send nothing [default: 5]"),
    "--minimum-group N": (opt.positive, "distinct sites that a group needs [default: 3]"),
    "--short-terms": "terms of users with fewer rows than parameters may leave; otherwise such "
    "users send the average of their rows",
}


def add_new(some: Any) -> opt.Parser:
    usage = "--features COLUMNS --target COLUMN --out FILE [options]"
    parser, group = opt.described(some, "task new", usage, _NEW)
    many: dict[str, Any] = {"metavar": "COLUMNS", "action": "append", "required": True}
    group.add_argument("--features", **many, help="columns to predict from: a,b,c (required)")
    group.add_argument("--target", metavar="COLUMN", required=True, help="to predict (required)")
    text = "a column that holds categories, with its levels, the reference first; once per column"
    group.add_argument("--category", metavar="NAME=A,B", action="append", default=[], help=text)
    many = {"metavar": "COLUMNS", "action": "append", "default": []}
    text = "categories whose levels that are not listed count as `other`, a level of its own"
    group.add_argument("--other", **many, help=f"{text} [default: a site's table is refused]")
    opt.path(group, "--out", "FILE", "the card to write (required)", required=True)
    opt.add_options(group, {**_OPTIONS, "--force": "replace FILE if it exists"})
    opt.quiet(group)
    return parser


def run_new(options: Namespace) -> None:
    from odcl.engines.files.task import CAREFUL, Task
    from odcl.method import Method

    out: Path = options.out
    check_file_place(out)
    check_replace(out, options.force)
    loss = options.loss or "squared"
    features, classes = _columns(options, loss)
    given = {
        "missing": options.missing,
        "smallest_cell": options.smallest_cell,
        "minimum_rows": options.minimum_rows,
    }
    held = {"short_terms": options.short_terms or None, "smallest_group": options.minimum_group}
    task = Task(
        options.name or options.target,
        features,
        options.target,
        _risk(options, loss, classes),
        classes,
        Method.of(CAREFUL, clusterer=options.clusters, **held),
        **{name: value for name, value in given.items() if value is not None},
    )
    task.write(out)
    print(f"Task card: {shlex.quote(str(out))}, digest {task.digest[:16]}")
    print("Read it, edit it, and send the same file to every site. What leaves a site per user:")
    for name, tells in task.leaves.items():
        print(f"  {name}: {tells}")
    if not task.risk.loss.has_data_terms and options.scale_from is None:
        say("every scale is 1: edit them on the card if a feature's spread is far from 1", options)


def _risk(options: Namespace, loss: str, classes: tuple[Any, ...] | None) -> Risk:
    from odcl.risk.losses import loss_from_json
    from odcl.risk.risk import Risk

    words: dict[str, Any] = {"name": loss}
    if loss == "huber":
        if options.delta is None:
            raise opt.UsageError("--loss huber needs --delta, about 1.345 noise deviations.", NAME)
        words["delta"] = options.delta
    if loss == "multinomial":
        words["n_classes"] = len(classes or ())
    l2 = options.l2 if options.l2 is not None else 0.0 if classes is None else 0.01
    return Risk(loss_from_json(words), l2, not options.no_intercept)


def _columns(options: Namespace, loss: str) -> tuple[tuple[Feature, ...], tuple[Any, ...] | None]:
    """The features and the classes, as options and the public table have them."""
    from odcl.data.source import task_of
    from odcl.engines.files.task import Feature

    levels = {}
    for text in options.category:
        name, sign, listed = text.partition("=")
        if not sign or not listed:
            raise opt.UsageError(f"--category {text!r} is not NAME=A,B.", NAME)
        levels[name] = _values(listed)
    names = opt.column_names(options.features, ())
    other = opt.column_names(options.other, ()) if options.other else ()
    for option, listed in (("category", levels), ("other", other)):
        strange = [name for name in listed if name not in names]
        if strange:
            raise opt.UsageError(f"--{option} {strange[0]!r} is no feature.", NAME)
    classes = None if options.classes is None else tuple(sorted(_values(options.classes)))
    classed = task_of(loss) == "classification"
    if options.scale_from is not None:
        return _public(options, names, levels, other, classes, classed)
    if classed and classes is None:
        if loss == "multinomial":
            raise opt.UsageError(
                "--classes a,b,c says what the target's classes are.", "odcl task new"
            )
        classes = (0, 1)
        say("classes 0 and 1: edit `classes` on the card if the target has other values", options)
    return tuple(Feature(name, levels.get(name), other=name in other) for name in names), classes


def _public(
    options: Namespace,
    names: tuple[str, ...],
    levels: dict[str, tuple[Any, ...]],
    other: tuple[str, ...],
    classes: tuple[Any, ...] | None,
    classed: bool,
) -> tuple[tuple[Feature, ...], tuple[Any, ...] | None]:
    """Shifts, scales, levels and classes of a public table; what was said by hand goes before."""
    import numpy as np

    from odcl.data.columns import classes_of, counted, is_text, keys, levels_of, numbers
    from odcl.data.roles import check_columns
    from odcl.data.scaling import RowColumns, Scaling
    from odcl.data.source import read_table
    from odcl.engines.files.task import Feature

    public = read_table(options.scale_from)
    check_columns(names, public.column_names)
    features = []
    for name in names:
        if name in levels or is_text(public[name].type):
            found = keys(public, name)
            own = levels.get(name) or levels_of(name, counted(found))
            features.append(Feature(name, own, other=name in other))
            continue
        values = numbers(public, name)
        values = values[~np.isnan(values)][:, None]
        scaling = Scaling.of(RowColumns(values), center=not options.no_intercept, standardize=True)
        if len(scaling.used) == 0:
            raise ValueError(f"Column {name!r} of {options.scale_from} does not vary: no scale.")
        features.append(Feature(name, None, float(scaling.shift[0]), float(scaling.scale[0])))
    if classed and classes is None:
        check_columns([options.target], public.column_names)
        found = keys(public, options.target)
        classes = classes_of(options.target, counted(found))
    return tuple(features), classes


def _values(text: str) -> tuple[Any, ...]:
    """Texts; whole numbers where all are."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    whole = all(word.lstrip("-").isdecimal() and str(int(word)) == word for word in words)
    return tuple(int(word) for word in words) if whole else tuple(words)


# -- check -----------------------------------------------------------------------------------------

_CHECK = """\
Tell whether a card can be used, and whether a site's table fits it.

Nothing is fitted and nothing is written: columns that are missing or of
another type, categories and classes that the card does not list, cells and
users too small to leave are named.

examples:
  odcl task check task.toml
  odcl task check task.toml visits.csv
  odcl task check task.toml visits.csv --user ward"""


def add_check(some: Any) -> opt.Parser:
    usage = "CARD [TABLE] [options]"
    arguments = {"card": "the task card", "table?": opt.TABLE_HELP}
    parser, group = opt.described(some, "task check", usage, _CHECK, arguments)
    text = "column that names the user of each row, if the site holds several [default: one user]"
    opt.add_options(group, {"--user COLUMN": (str, text)})
    opt.quiet(group)
    return parser


def run_check(options: Namespace) -> None:
    from odcl.engines.files.task import Task

    task = Task.read(options.card)
    signed = "not signed: it lists no keys"
    if task.signed:
        signed = f"signed by {len(task.sites)} sites, digest of the keys {task.keys_digest[:16]}"
    print(f"{options.card}: task {task.name!r}, round {task.round}, digest {task.digest[:16]}.")
    size = f"{len(task.columns)} columns, {task.dim} parameters, {task.risk.loss.name} loss"
    print(f"{size}. Files are {signed}.")
    if task.minimum_group < 3:
        say(
            f"minimum_group = {task.minimum_group}: in a group of two each site can work "
            "out the other's term from its download; from 3 on it takes two that share theirs",
            options,
        )
    if options.table is not None:
        _check(task, options)


def _check(task: Any, options: Namespace) -> None:
    from odcl.data.notices import about_values
    from odcl.engines.files.site import read_site, release
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
    for text in _scale_notes(task, rows):
        say(text, options)


def _scale_notes(task: Any, rows: Any) -> list[str]:
    """Losses that are not quadratic want features of about one spread at all sites."""
    if task.risk.loss.has_data_terms:
        return []
    spread = dict(zip(task.columns, rows.X.std(axis=0), strict=True))
    odd = [one.name for one in task.features if one.levels is None]
    odd = [name for name in odd if not 0.05 <= spread[name] <= 20]
    if not odd:
        return []
    return [
        f"{', '.join(odd)}: in the card's scale the spread is far from 1; agree on other scales"
    ]


# -- keys ------------------------------------------------------------------------------------------

_KEYS = """\
Put public keys onto a task card: files must be signed from then on.

A site that is listed already gets one key more: files signed with either are
taken until the old one is deleted from the card. The digest of the task stays
the same, so that uploads made before stay good.

examples:
  odcl task keys task.toml coordinator.pub north.pub south.pub"""


def add_keys(some: Any) -> opt.Parser:
    usage = "CARD KEY ... [options]"
    arguments = {
        "card": "the task card, written anew",
        "key+": "public keys (.pub), as `odcl site keys` wrote them",
    }
    parser, group = opt.described(some, "task keys", usage, _KEYS, arguments)
    opt.quiet(group)
    return parser


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
