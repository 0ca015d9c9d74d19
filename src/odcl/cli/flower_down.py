"""``odcl flower down``: end a deployment."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from odcl.cli import parser as opt

_ABOUT = """\
End every process of a deployment that `odcl flower up` started, and no other.

Logs, results and models in DIR stay."""

_EXAMPLES = """\
examples:
  odcl flower down trial"""


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "flower down", "DIR", _ABOUT, _EXAMPLES)
    return opt.deployment(parser)


def run(options: Namespace) -> None:
    from odcl.engines.flower.deployment import Deployment
    from odcl.report.text import count

    n = Deployment.read(options.dir).down()
    print(f"{count(n, 'process')} ended." if n else "Nothing was running.")
