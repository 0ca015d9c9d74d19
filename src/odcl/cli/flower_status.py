"""``odcl flower status``: what a deployment is doing."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from odcl.cli import parser as opt

_ABOUT = """\
Say what of a deployment is running: SuperLink, nodes, runs."""

_EXAMPLES = """\
examples:
  odcl flower status trial"""


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "flower status", "DIR", _ABOUT, _EXAMPLES)
    return opt.deployment(parser)


def run(options: Namespace) -> None:
    from odcl.engines.flower.deployment import Deployment
    from odcl.report.text import table

    found = Deployment.read(options.dir)
    answers, running = found.answers(), found.processes()
    online = set(found.online()) if answers else set()
    rows = []
    for name, process in found.known.items():
        is_well = answers if name == "superlink" else name in online
        state = "connected" if is_well else "not connected"
        rows.append((name, str(process.pid), state if process in running else "ended"))
    print(table(("process", "pid", "state"), rows))
    if answers:
        print()
        runs = [(str(run.run_id), run.status, run.details) for run in found.runs()]
        print(table(("run", "status", "details"), runs) if runs else "No runs yet.")
