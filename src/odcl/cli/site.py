"""Files of a federation: ``odcl site`` (keys, one file out, one back), ``inspect``, ``combine``."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import check_file_place, say, unsigned, watched
from odcl.files import check_replace

# -- keys ------------------------------------------------------------------------------------------

KEYS = opt.Command(
    "--site NAME --out FOLDER",
    """\
Make the keys with which a site, or the coordinator, signs its files.

SITE.key is private: it stays where it is, readable by its owner alone, and is
never overwritten. SITE.pub goes to the keeper of the task card.

examples:
  odcl site keys --site north --out keys
  odcl site keys --site coordinator --out keys""",
    {
        "options": {
            "--site NAME": "the site's name, or coordinator (required)",
            "--out FOLDER": "folder for the keys (required)",
            **opt.QUIET,
        }
    },
)


def run_keys(options: Namespace) -> None:
    from odcl.engines.files.keys import make_keys, read_public

    private, public = make_keys(options.site, options.out)
    print(f"Private key, stays here: {private}")
    print(f"Public key, goes onto the task card: {public}")
    print(read_public(public)[1])


# -- fit -------------------------------------------------------------------------------------------

FIT = opt.Command(
    "CARD TABLE --site NAME --out FILE [options]",
    """\
Fit a site's users on its own rows, and write the one file that leaves.

Rows stay here. `odcl inspect FILE` shows everything that the file holds before
anyone sends it.

examples:
  odcl site fit task.toml visits.csv --site north --out north.upload
  odcl site fit task.toml visits.csv --site north --user ward \\
      --key keys/north.key --out north.upload""",
    {
        "arguments": {"card": "the task card", "table": opt.TABLE_HELP},
        "options": {
            "--site NAME": "the site's name (required)",
            "--out FILE": "the upload, SITE.upload (required)",
            "--user COLUMN": "column that names the user of each row, if the site holds several "
            "[default: the site is one user]",
            "--key FILE": "the site's private key, where the card lists keys [default: none]",
            "--ledger FILE": "where the site notes what its private uploads have spent, and "
            "keeps them [default: site.ledger beside TABLE]",
            "--again": "spend again, where rows or card are not those of the private upload before",
            "--anyway": "send although most users have too few rows for a private upload to pay",
            "--late": "after a private round: send nothing of the rows, and place the users here",
            **opt.FORCE_FILE,
            **opt.QUIET,
        },
    },
)


def run_fit(options: Namespace) -> None:
    from odcl.data.notices import about_values
    from odcl.engines.files.keys import belongs_to, check_site
    from odcl.engines.files.site import ENDING, fit_site, range_notes, waste_note
    from odcl.engines.files.task import Task
    from odcl.engines.ledger import NAME
    from odcl.report.text import count, in_bytes

    out: Path = options.out
    if out.suffix != ENDING or not belongs_to(out.stem, check_site(options.site)):
        raise ValueError(
            f"{out} does not say whose upload it is: name it {options.site}{ENDING}, by which the "
            "coordinator knows it."
        )
    check_file_place(out)
    check_replace(out, options.force)
    task = Task.read(options.card)
    with watched(options) as shown:
        shown.stage("fitting")
        ledger = options.ledger or options.table.parent / NAME
        how = {"user": options.user, "key": options.key, "ledger": ledger, "again": options.again}
        how |= {"anyway": options.anyway, "late": options.late}
        sent = fit_site(task, options.table, site=options.site, **how)
        sent.write(out)
    told = about_values(sent.table.schema, sent.table.counts, task.missing)
    told += [*task.curve_notes(sent.released.rows.n_rows), *range_notes(sent.table)]
    for text in (*told, *sent.released.sentences(task.smallest_cell), *unsigned(task)):
        say(text, options)
    privacy, own = task.method.privacy, sent.table.rows.n_rows
    if privacy is not None and not options.late:
        if sent.kept:
            say(f"made before, and kept in {ledger}: the same file, nothing more is spent", options)
        elif note := waste_note(task, own):
            say(note, options)
        say(privacy.sentences[0], options)
    n, rows = len(sent.uploads), int(own[sent.released.users].sum())
    file, size = shlex.quote(str(out)), in_bytes(len(sent.content))
    print(f"{count(n, 'user')} of {options.site}, {count(rows, 'row')}: {size} in {file}")
    print(f"Next: odcl inspect {file}")


# -- receive ---------------------------------------------------------------------------------------

RECEIVE = opt.Command(
    "CARD UPLOAD DOWNLOAD TABLE --out MODEL [options]",
    """\
Verify a download, and make the site's models from it and its own rows.

Needs the card, the site's upload, its download, and the table that the upload
was made from. MODEL is a folder that `odcl predict` takes.

examples:
  odcl site receive task.toml north.upload north.download visits.csv --out model
  odcl predict model tomorrow.csv --out predictions.csv""",
    {
        "arguments": {
            "card": "the task card",
            "upload": "the file that the site sent",
            "download": "the file that came back",
            "table": "the table that the upload was made from",
        },
        "options": {
            "--out MODEL": "folder for the models (required)",
            **opt.FORCE,
            "--user COLUMN": "column that names the user of each row [default: the one that "
            "gives UPLOAD's users]",
            **opt.QUIET,
        },
    },
)


def run_receive(options: Namespace) -> None:
    from odcl.artifact.folder import check_artifact_place
    from odcl.data.notices import about_values
    from odcl.engines.files.last_step import receive
    from odcl.errors import count, show
    from odcl.report.by_file import groups_curves

    check_artifact_place(options.out, force=options.force)
    with watched(options) as shown:
        shown.stage("the last step")
        site = receive(
            options.card, options.upload, options.download, options.table, user=options.user
        )
        site.estimator().save(options.out, force=options.force)
    groups = site.download.groups
    print(f"{site.site}: {count(len(site.users), 'user')}. {groups.reason}")
    print(groups.diagnosis)
    if curves := groups_curves(groups, site.task):
        print(curves)
    print(_members(site))
    told = about_values(site.table.schema, site.table.counts, site.task.missing)
    for text in (*told, *unsigned(site.task), *site.outliers):
        say(text, options)
    if worse := site.worse_than_own:
        named = ", ".join(show(user) for user in worse[:3]) + ", ..." * (len(worse) > 3)
        who = f"{count(len(worse), 'user')} ({named})" if site.table.has_users else site.site
        say(
            f"{who}: the model fits the user's own rows worse than "
            "its own model does. Compare units, codes of missing values and the meaning of columns "
            "with the card, or use a model of its own rows alone",
            options,
        )
    if len(site.left_out):
        say(f"{count(len(site.left_out), 'user')} sent nothing, and have no model", options)
    out = shlex.quote(str(options.out))
    print(f"Models: {out}")
    print(f"Next: odcl predict {out} TABLE")


def _members(site: Any) -> str:
    """Where the site's users are."""
    import numpy as np

    from odcl.report.text import count

    sizes, sites = site.download.groups.sizes, site.download.groups.sites
    lines = []
    for k, n in zip(*np.unique(site.labels, return_counts=True), strict=True):
        if k < 0:
            lines.append(f"{count(int(n), 'user')} in none of the groups")
            continue
        whole = f"{count(int(sizes[k]), 'user')} at {count(int(sites[k]), 'site')}"
        lines.append(f"{count(int(n), 'user')} in group {k} ({whole} in all)")
    return "; ".join(lines) + "."


# -- odcl inspect ----------------------------------------------------------------------------------


INSPECT = opt.Command(
    "FILE [options]",
    """\
Show everything that a file of a federation holds, in plain words and numbers.

For uploads before anyone sends them, and for downloads when they come: each
field with what it tells and its size, what was withheld, and who signed it.

examples:
  odcl inspect north.upload
  odcl inspect north.upload --card task.toml --numbers""",
    {
        "arguments": {"file": "an upload or a download"},
        "options": {
            "--card CARD": "the task card, to see whose keys signed it [default: none]",
            "--numbers": "every number, one after the other",
            **opt.QUIET,
        },
    },
)


def run_inspect(options: Namespace) -> None:
    from odcl.engines.files.task import Task
    from odcl.report.by_file import inspect_file

    task = None if options.card is None else Task.read(options.card)
    print(inspect_file(options.file, task, every_number=options.numbers))


# -- odcl combine ----------------------------------------------------------------------------------


COMBINE = opt.Command(
    "CARD UPLOADS --out ROUND [options]",
    """\
Find the groups of a federation from its sites' uploads.

Reads all uploads of a folder, names and sets aside what it cannot take, and
writes a round: one download per site, which holds no other site's name, and a
report for the coordinator. Run it again with more uploads, and the round is
replaced as a whole.

examples:
  odcl combine task.toml uploads --out round
  odcl combine task.toml uploads --key keys/coordinator.key --out round
  odcl combine task.toml uploads --without north --out round""",
    {
        "arguments": {"card": "the task card", "uploads": "folder of the sites' uploads"},
        "options": {
            "--out ROUND": "folder of the round (required)",
            "--without SITE": "leave this site out, which has withdrawn; once per site",
            "--key FILE": "the coordinator's private key, where the card lists keys [default: "
            "none]",
            "--min-sites N": "fewest sites that make a round [default: 2]",
            **opt.QUIET,
        },
    },
)


def run_combine(options: Namespace) -> None:
    from odcl.engines.files.combine import combine_uploads

    with watched(options) as shown:
        combined = combine_uploads(
            options.card,
            options.uploads,
            out=options.out,
            key=options.key,
            min_sites=options.min_sites,
            without=options.without,
            progress=shown,
        )
    for text in (*map(str, combined.set_aside), *combined.notices):
        say(text, options)
    print(combined)
    out = shlex.quote(str(options.out))
    print(f"Report: {shlex.quote(str(options.out / 'report.html'))}")
    print(f"Downloads, one per site, and this report: {out}")
