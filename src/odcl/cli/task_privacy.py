"""Private uploads on a new task card: the guarantee, and the public ranges it rests on."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from odcl.cli import parser as opt
from odcl.cli.task_columns import NAME

if TYPE_CHECKING:
    from odcl.engines.files.task import Feature
    from odcl.privacy.guarantee import Privacy


def privacy_of(options: Namespace) -> Privacy | None:
    """The guarantee that the options ask for; None: none."""
    from odcl.privacy.guarantee import Privacy

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
    return Privacy(options.epsilon, target_range=reach)


def _range(option: str, text: str) -> tuple[float, float]:
    low, _, high = text.partition(":")
    try:
        ends = float(low), float(high)
    except ValueError:
        raise opt.UsageError(f"--{option} {text!r} is not LOW:HIGH.", NAME) from None
    if not ends[0] < ends[1]:
        raise opt.UsageError(f"--{option} {text!r} ends where it begins, or before.", NAME)
    return ends


def in_ranges(features: tuple[Feature, ...], options: Namespace) -> tuple[Feature, ...]:
    """Features in units of their public ranges: the middle is 0, a quarter of the range is 1."""
    ranges = {}
    for text in options.range:
        name, _, ends = text.partition("=")
        ranges[name] = _range("range", ends)
    known = {one.name for one in features if one.levels is None}
    if strange := [name for name in ranges if name not in known]:
        raise opt.UsageError(f"--range {strange[0]!r} is no feature that is a number.", NAME)
    bare = sorted(known - ranges.keys())
    if options.epsilon is not None and bare:
        raise opt.UsageError(
            f"With --epsilon the units of {', '.join(bare)} must be public, and are never read off "
            f"rows: say --range {bare[0]}=LOW:HIGH.",
            NAME,
        )
    found = []
    for one in features:
        low, high = ranges.get(one.name, (-2.0, 2.0))
        middle = 0.0 if options.no_intercept else (low + high) / 2
        new = replace(one, shift=middle, scale=(high - low) / 4)
        found.append(new if one.name in ranges else one)
    return tuple(found)
