"""``odcl flower simulate``: the paper's linear federation on Flower's simulation engine."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import watched

if TYPE_CHECKING:
    from odcl.data.synthetic import SyntheticFederation

_ABOUT = """\
Run the paper's linear federation on Flower's simulation engine.

Every node has one user. Prints what `odcl demo` prints, the time beside that of
the same work in one process, and the bytes beside those of FedAvg and IFCA for
the same error. A SuperLink of its own is started and ended; nothing calls home."""

_EXAMPLES = """\
examples:
  odcl flower simulate
  odcl flower simulate --nodes 1000"""

ROUNDS = 100  # that rivals may take
WITHIN = 1.05  # of our error counts as the same


def add(some: Any) -> opt.Parser:
    parser = opt.command(some, "flower simulate", "[--nodes N] [options]", _ABOUT, _EXAMPLES)
    group = parser.add_argument_group("options")
    text = "nodes, each with one user, in 10 hidden groups [default: %(default)s]"
    group.add_argument("--nodes", metavar="N", type=opt.positive, default=100, help=text)
    text = "seconds that each of the two rounds may take [default: %(default)s]"
    group.add_argument("--timeout", metavar="SECONDS", type=opt.above_0, default=600.0, help=text)
    opt.seed(group)
    opt.quiet(group)
    return parser


def run(options: Namespace) -> None:
    from odcl.cli.demo import demo_errors, print_round
    from odcl.data.synthetic import linear_federation
    from odcl.engines.flower.deployment import program
    from odcl.engines.flower.simulation import simulate
    from odcl.engines.in_process import fit

    program("flower-superlink")  # says what to install
    if options.nodes < 10:
        raise opt.UsageError("--nodes: 10 hidden groups need 10 nodes or more.", "odcl flower")
    federation = linear_federation(options.nodes, 100, n_clusters=10, seed=options.seed)
    with watched(options) as progress:
        progress.stage(f"one round of {options.nodes} simulated nodes")
        found = simulate(options.nodes, seed=options.seed, timeout=options.timeout)
        progress.stage("the same in one process")
        began = time.monotonic()
        alone = fit(federation, seed=options.seed)
        seconds = time.monotonic() - began
        errors = demo_errors(federation, found.models)
        progress.stage("FedAvg and IFCA")
        rivals = _bytes(federation, found, errors["odcl (K not given)"], options.seed)
    print_round(federation, found, found.reason, errors)
    print()
    _print_times(found, alone, seconds)
    print()
    print(rivals)
    print("IFCA near the truth starts from the true groups' own models, unit noise added.")


def _print_times(found: Any, alone: Any, seconds: float) -> None:
    """Is it the same, and what does the way through Flower cost?"""
    import numpy as np

    from odcl.report.text import table

    rows = [
        ("Flower, with start and end of its programs", f"{found.total:.1f}"),
        ("Flower, the round alone", f"{found.seconds:.1f}"),
        ("in one process", f"{seconds:.2f}"),
    ]
    print(table(("time for the same work", "seconds"), rows))
    off = np.abs(found.models - alone.models).max()
    same = "Models are the same in both, bit for bit."
    print(same if off == 0 else f"Models differ by up to {off:.1e}.")


def _bytes(federation: SyntheticFederation, found: Any, error: float, seed: int) -> str:
    """Rounds and bytes of FedAvg and IFCA until their users' models are as good."""
    from odcl.paper.baselines.same_error import Cost, cost_table, costs_to_error

    goal: dict[str, Any] = {"n_clusters": 10, "rounds": ROUNDS, "local_steps": (1,), "seed": seed}
    rivals = costs_to_error(federation, WITHIN * error, **goal)
    ours = Cost("odcl", error, 1, found.bytes_up, found.bytes_down)
    head = f"to within {WITHIN - 1:.0%} of odcl's error"
    return cost_table([ours, *rivals], federation.n_users, head)
