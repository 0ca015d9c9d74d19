"""``odcl site receive``: one file back, and the site's own last step."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any

from odcl.cli import parser as opt
from odcl.cli.console import say, unsigned, watched

_ABOUT = """\
Verify a download, and make the site's models from it and its own rows.

Needs the card, the site's upload, its download, and the table that the upload
was made from. MODEL is a folder that `odcl predict` takes."""

_EXAMPLES = """\
examples:
  odcl site receive task.toml north.upload north.download visits.csv --out model
  odcl predict model tomorrow.csv --out predictions.csv"""


def add(some: Any) -> opt.Parser:
    usage = "CARD UPLOAD DOWNLOAD TABLE --out MODEL [options]"
    parser = opt.command(some, "site receive", usage, _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("arguments")
    for name, text in {
        "card": "the task card",
        "upload": "the file that the site sent",
        "download": "the file that came back",
        "table": "the table that the upload was made from",
    }.items():
        group.add_argument(name, metavar=name.upper(), type=Path, help=text)
    group = parser.add_argument_group("options")
    opt.path(group, "--out", "MODEL", "folder for the models (required)", required=True)
    opt.force(group)
    text = "column that names the user of each row [default: the one that gives UPLOAD's users]"
    opt.add_options(group, {"--user COLUMN": (str, text)})
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    from odcl.artifact.folder import check_artifact_place
    from odcl.data.notices import about_values
    from odcl.engines.files.last_step import receive
    from odcl.errors import count

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
    print(_members(site))
    told = about_values(site.table.schema, site.table.counts, site.task.missing)
    for text in (*told, *unsigned(site.task)):
        say(text, options)
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
