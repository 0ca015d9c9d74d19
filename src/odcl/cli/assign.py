"""``odcl assign``: which group new users belong to."""

from __future__ import annotations

import math
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import answer, check_file_place, check_replace, say

_ABOUT = """\
Tell which group new users belong to, how surely, or that they fit none.

Answers one row per user: its group, the probability of that group among the
groups, its distance from it in units of noise (about 1 for a member), and
whether it joins or is none of these. Where the run found no groups (users
differ gradually), all are in group 0, and "none of these" is a user far from
all others. From its first row on a user has a model: --add keeps it.

RUN may also be a round that `odcl combine` wrote, and TABLE the upload of a
site that comes late: then --out is its download, and no other site has to do
anything."""

_EXAMPLES = """\
examples:
  odcl assign run new-stores.csv
  odcl assign run new-stores.csv --add && odcl predict run tomorrow.csv
  odcl assign round late.upload --out late.download"""


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "assign", "RUN TABLE [options]", _ABOUT, _EXAMPLES)
    more = {
        "--add": "remember the users in RUN: predict knows them then",
        "--card CARD": (
            Path,
            "of a round: a newer card of the same task, which lists the late site's key "
            "[default: the round's own]",
        ),
        "--key FILE": (
            Path,
            "of a round: the coordinator's private key [default: none]",
        ),
    }
    opt.run_and_table(parser, "rows of the new users, with the target", more)
    return parser


def run(options: Namespace) -> None:
    from odcl.engines.files.round import is_round

    if is_round(options.run):
        _assign_site(options)
    elif options.card is not None or options.key is not None:
        raise ValueError(
            f"{options.run} holds no round, and only rounds have keys: leave --key out."
        )
    else:
        from odcl.runs.folder import assign_users

        work = partial(assign_users, options.run, options.table, options.missing, add=options.add)
        answer("assigning", work, options)


def _assign_site(options: Namespace) -> None:
    """A late site: the groups of its users, and its download."""
    from odcl.engines.files.combine import assign
    from odcl.report.text import count

    out: Path | None = options.out
    if options.add or options.missing:
        raise ValueError("A round has neither --add nor --missing: its sites send files.")
    if out is None:
        raise ValueError("The download of a late site is a file: say --out SITE.download.")
    check_file_place(out)
    check_replace(out, options.force)
    found = assign(options.run, options.table, key=options.key, task=options.card)
    found.write(out)
    for i, (label, none) in enumerate(
        zip(found.labels.tolist(), found.none_of_these.tolist(), strict=True)
    ):
        who = found.site if len(found.labels) == 1 else f"{found.site}, user {i + 1}"
        where = "none of these groups" if none else f"group {label}"
        sure = "" if none else f", probability {found.probability[i]:.2f}"
        far = found.distance[i]  # wide users have none
        away = "" if math.isnan(far) else f", distance {far:.2f} (about 1 for a member)"
        print(f"{who}: {where}{sure}{away}.")
    say(f"{count(len(found.labels), 'user')} placed, download written to {out}", options)
