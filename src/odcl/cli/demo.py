"""``odcl demo``: the paper's linear federation in seconds, and a table to try."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.cli import parser as opt
from odcl.cli.console import watched

if TYPE_CHECKING:
    from odcl._typing import Floats
    from odcl.data.synthetic import SyntheticFederation
    from odcl.engines.in_process import Result

DEMO = opt.Command(
    "[--out FOLDER] [options]",
    """\
Fit the paper's linear federation: 100 users in 10 hidden groups.

Prints the groups found, the error of the users' models beside that of local,
naive and oracle models, and the bytes sent in the one round. Saves tables to
try: stores.csv for `odcl fit`; then new_days.csv for `odcl predict`,
new_stores.csv for `odcl assign`, this_week.csv for `odcl update`.""",
    {
        "options": {
            "--out FOLDER": opt.defaulting(Path, "demo", "folder for the tables"),
            **opt.FORCE,
            **opt.SEED,
            **opt.QUIET,
        }
    },
    epilog="",
)


def run_demo(options: Namespace) -> None:
    from odcl.files import check_folder

    check_folder(options.out, force=options.force, own=TABLES)
    with watched(options) as progress:
        progress.stage("one round of 100 users")
        federation, result = demo_result(options.seed)
        errors = demo_errors(federation, result.models)
        progress.stage("writing")
        write_demo(options.out, seed=options.seed, force=options.force)
    print_round(federation, result, errors)
    table = shlex.quote(str(options.out / "stores.csv"))
    print(f"A table to try: odcl fit {table} --user store --target sales --out run")


def print_round(federation: SyntheticFederation, found: Result, errors: dict[str, float]) -> None:
    """Groups, errors and bytes of one round."""
    from odcl.report.text import aligned, group_table, in_bytes, table

    m, n = federation.n_users, federation.n_rows[0]
    print(f"{m} users with {n} rows each. {found.step.reason} {groups_right(federation, found)}")
    print()
    print(group_table(found.labels, federation.n_rows, federation.users))
    print()
    best = errors["oracle average (groups given)"]
    ratios = (f"{e / best:,.2f}" for e in errors.values())
    rows = list(zip(errors, aligned(list(errors.values())), ratios, strict=True))
    print(table(("error of the users' models (NMSE)", "error", "vs oracle average"), rows))
    print("Oracles were told the true groups; the naive average is one model for all.")
    print()
    up, down = in_bytes(found.bytes_up / m), in_bytes(found.bytes_down / m)
    print(f"1 round: each user sent {up} and received {down}.")


TABLES = ("stores.csv", "new_days.csv", "new_stores.csv", "this_week.csv")


def demo_result(seed: int) -> tuple[SyntheticFederation, Result]:
    """The federation of Section 5 (100 users, 10 hidden groups, n = 100), fitted in one round."""
    from odcl.data.synthetic import linear_federation
    from odcl.engines.in_process import fit

    federation = linear_federation(100, 100, n_clusters=10, seed=seed)
    return federation, fit(federation, seed=seed)


def write_demo(folder: Path, *, seed: int, force: bool) -> None:
    """The tables to try, whole or not at all."""
    from odcl.data.synthetic import store_tables
    from odcl.data.tables import write_table
    from odcl.files import atomic_folder

    with atomic_folder(folder, force=force, own=TABLES) as place:
        for name, table in zip(TABLES, store_tables(seed), strict=True):
            write_table(place / name, table)


def groups_right(federation: SyntheticFederation, result: Any) -> str:
    """How the groups found compare with the true ones, in a sentence."""
    assert federation.groups is not None
    pairs = {*zip(result.labels.tolist(), federation.groups.tolist(), strict=True)}
    n_true = len(set(federation.groups.tolist()))
    if len(pairs) == result.n_clusters == n_true:
        return "They are the true ones."
    return f"The true ones are {n_true}."


# How the paper's methods give users a model, by their names in `odcl.paper.baselines`.
BASELINES = {
    "local models": "local",
    "naive average": "naive",
    "paper (K-means++, K = 10 given, mean)": "odcl-km++",
    "oracle average (groups given)": "oracle-averaging",
    "oracle pooling (groups given)": "cluster-oracle",  # Eq. (3)
}


def demo_errors(federation: SyntheticFederation, own: Floats) -> dict[str, float]:
    """NMSE of each way to give users a model; ``own`` are those of one round, (n_users, dim)."""
    from odcl.evaluate.scores import nmse
    from odcl.paper.baselines import run as run_baseline

    models = {
        told: run_baseline(name, federation, n_clusters=10).models
        for told, name in BASELINES.items()
    }
    models["odcl (K not given)"] = own
    return {name: nmse(theta, federation.optima) for name, theta in models.items()}
