"""What a new task card says of columns, from options or read off a table, and of privacy."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import say

if TYPE_CHECKING:
    from odcl.engines.files.task import Feature
    from odcl.privacy import Privacy

NAME = "odcl task new"


def table_of(options: Namespace) -> Any:
    """The table that the card is read off; None: there is none."""
    from odcl.data.roles import check_columns
    from odcl.data.source import read_table

    if options.like is None and (options.user is not None or not options.features):
        what = "--user goes with --like" if options.user else "--features or --like is needed"
        raise opt.UsageError(f"{what}.", NAME)
    if options.like is None:
        return None
    table = read_table(options.like)
    check_columns([options.target, *filter(None, [options.user])], table.column_names)
    return table


def loss_like(table: Any, options: Namespace) -> str:
    """The loss for a table's target."""
    from odcl.data.source import guess_loss

    if table is None:
        return "squared"
    loss = guess_loss(table, options.target)
    several = loss == "logistic" and len(table[options.target].drop_null().unique()) > 2
    return "multinomial" if several else loss


def columns_of(
    options: Namespace, loss: str, table: Any
) -> tuple[tuple[Feature, ...], tuple[Any, ...] | None]:
    """The features and the classes: what options do not say is read off the table, if any."""
    from odcl.data.columns import classes_of, counted, is_text, keys, levels_of
    from odcl.data.roles import check_columns
    from odcl.data.source import task_of
    from odcl.engines.files.task import Feature

    levels = _categories(options)
    names = opt.column_names(options.features, ()) or _all_columns(table, options, levels)
    other = opt.column_names(options.other, ())
    for option, listed in (("category", levels), ("other", other)):
        if strange := [name for name in listed if name not in names]:
            raise opt.UsageError(f"--{option} {strange[0]!r} is no feature.", NAME)
    if table is not None:
        check_columns(names, table.column_names)
        text = [name for name in names if name not in levels and is_text(table[name].type)]
        levels |= {name: levels_of(name, counted(keys(table, name))) for name in text}
    units = _ranges(options, [name for name in names if name not in levels])
    if table is not None:
        for name in (name for name in names if name not in (*levels, *units)):
            units[name] = _units(options, _known(table, name), name)
    classes = None if options.classes is None else tuple(sorted(_values(options.classes)))
    if task_of(loss) == "classification" and classes is None:
        if table is not None:
            classes = classes_of(options.target, counted(keys(table, options.target)))
        elif loss == "multinomial":
            raise opt.UsageError("--classes a,b,c says what the target's classes are.", NAME)
        else:
            classes = (0, 1)
            told = "classes 0 and 1: edit `classes` on the card if the target has other values"
            say(told, options)
    features = (
        Feature(name, levels.get(name), *units.get(name, (0.0, 1.0)), other=name in other)
        for name in names
    )
    return tuple(features), classes


def _categories(options: Namespace) -> dict[str, tuple[Any, ...]]:
    """The levels that options list."""
    found = {}
    for text in options.category:
        name, sign, listed = text.partition("=")
        if not sign or not listed:
            raise opt.UsageError(f"--category {text!r} is not NAME=A,B.", NAME)
        found[name] = _values(listed)
    return found


def _all_columns(table: Any, options: Namespace, levels: dict[str, Any]) -> tuple[str, ...]:
    """All columns but the target, the users and those that number the rows."""
    from odcl.data.roles import looks_at, settle

    taken = (options.target, options.user)
    names = tuple(name for name in table.column_names if name not in taken)
    return settle(names, tuple(levels), looks_at(table, names), asked=False)[0]


def _known(table: Any, name: str) -> Any:
    """The numbers of a column that are there."""
    import numpy as np

    from odcl.data.columns import numbers
    from odcl.errors import InputError

    try:
        values = numbers(table, name)
    except InputError as error:
        advice = f"List its levels (--category {name}=A,B), or leave it out (--features)."
        raise InputError(f"{error.seen} {advice}") from None
    return values[~np.isnan(values)]


def _units(options: Namespace, values: Any, name: str) -> tuple[float, float]:
    """Shift and scale of a column: its median, and its quartiles' distance, rounded."""
    import numpy as np

    from odcl.data.scaling import RowColumns, Scaling

    found = Scaling.of(RowColumns(values[:, None]), center=True, standardize=True)
    if len(found.used) == 0:
        say(f"{name} does not vary in {options.like}: it has no scale", options)
        return 0.0, 1.0
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    spread = (high - low) / 1.349 or found.scale[0]
    digits = 1 - int(np.floor(np.log10(spread)))
    return round(float(middle), digits), round(float(spread), digits)


def curves_named(options: Namespace, features: tuple[Feature, ...], table: Any) -> Any:
    """What may act in curves: of a table's columns, those with more than a few values."""
    from odcl.data.curves import are_many, some_values

    if options.curves is not True:
        return opt.column_names([*filter(None, [options.curves])], ()) or False
    if table is None:
        return True
    periods = opt.periods(options.periodic, (), NAME)
    own = [f.name for f in features if not (f.levels or f.is_bare or f.name in periods)]
    return tuple(name for name in own if are_many(some_values(_known(table, name)))) or False


def _values(text: str) -> tuple[Any, ...]:
    """Texts; whole numbers where all are."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    whole = all(word.lstrip("-").isdecimal() and str(int(word)) == word for word in words)
    return tuple(int(word) for word in words) if whole else tuple(words)


# -- private uploads: the guarantee, and the public ranges it rests on -----------------------------


def privacy_of(options: Namespace) -> Privacy | None:
    """The guarantee that the options ask for; None: none."""
    from odcl.privacy import Privacy

    if options.epsilon is None:
        if options.target_range is not None:
            raise opt.UsageError("--target-range needs --epsilon.", NAME)
        return None
    if options.like is not None:
        raise opt.UsageError(
            "--like reads units and levels off a site's rows, and with --epsilon they must be "
            "public: say --features, --range and --category.",
            NAME,
        )
    given = options.target_range
    reach = None if given is None else _range("target-range", given)
    own = options.delta is None or options.loss == "huber"  # whose delta is another
    delta = {} if own else {"delta": options.delta}
    return Privacy(options.epsilon, target_range=reach, **delta)


def _range(option: str, text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise opt.UsageError(f"--{option} {text!r} is not LOW:HIGH.", NAME) from None
    if not ends[0] < ends[1]:
        raise opt.UsageError(f"--{option} {text!r} ends where it begins, or before.", NAME)
    return ends


def _ranges(options: Namespace, numbers: list[str]) -> dict[str, tuple[float, float]]:
    """Shift and scale by public ranges: the middle is 0, a quarter of the range is 1."""
    found = {}
    for text in options.range:
        name, _, ends = text.partition("=")
        low, high = _range("range", ends)
        found[name] = (low + high) / 2, (high - low) / 4
    if strange := [name for name in found if name not in numbers]:
        raise opt.UsageError(f"--range {strange[0]!r} is no feature that is a number.", NAME)
    bare = sorted(set(numbers) - found.keys())
    if options.epsilon is not None and bare:
        raise opt.UsageError(
            f"With --epsilon the units of {', '.join(bare)} must be public, and are never read off "
            f"rows: say --range {bare[0]}=LOW:HIGH.",
            NAME,
        )
    return found
