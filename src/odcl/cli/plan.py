"""``odcl plan``: how many rows per user, before there are data."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from odcl.cli import parser as opt
from odcl.cli.console import watched
from odcl.cli.fit import settings_of

if TYPE_CHECKING:
    from odcl.plan import Scenario

LOSSES = ("squared", "logistic", "poisson", "huber", "multinomial")

PLAN = opt.Command(
    "[options]",
    """\
Tell how many rows per user are needed to find the hidden groups.

Simulates the round: users' models are drawn around the groups' models with the
noise that n rows leave, and the default method searches for the groups. No data
are needed; a small table (--pilot) makes the plan about your own users,
including how they differ inside groups. Without options it is the paper's
linear set-up. Beside it stands the paper's threshold, which is safe for the
worst possible federation and therefore astronomical.

examples:
  odcl plan
  odcl plan --users 60 --clusters 3 --dim 8 --separation 1.5 --noise 2
  odcl plan --pilot sales.csv --user store --target sales --users 500""",
    {
        "the federation": {
            "--users M": "number of users [default: 100, or the pilot's]",
            "--clusters K": (opt.positive, "number of hidden groups [default: 10]"),
            "--dim D": (opt.positive, "parameters of a model [default: 20]"),
            "--separation D": (
                opt.above_0,
                "smallest distance between two groups' models [default: as in the paper's linear "
                "set-up, for 1, 4 or 10 groups]",
            ),
            "--noise S": "standard deviation of the target around its model, squared loss only "
            "[default: 1]",
            "--spread TAU": "how far users of a group differ: standard deviation of each parameter "
            "[default: 0]",
            "--loss NAME": (
                opt.one_of(LOSSES),
                "squared, logistic or poisson; huber and multinomial with a pilot [default: "
                "squared, or what the pilot's target is]",
            ),
        },
        "from a pilot": {
            "--pilot TABLE": "table whose groups, rows and noise are taken instead [default: none]",
            **opt.table_columns(),
            **opt.CURVES,
            **opt.missing(opt.MISSING[0]),
        },
        "the goal": {
            "--probability P": opt.defaulting(
                opt.number(lambda value: 0.5 <= value <= 0.99, "from 0.5 to 0.99"),
                0.95,
                "of finding exactly the true groups, from 0.5 to 0.99",
            ),
            "--epsilon E": "also say how many rows private uploads with this epsilon need "
            "[default: none]",
        },
        "options": {**opt.SEED, **opt.QUIET},
    },
)


def run_plan(options: Namespace) -> None:
    from odcl.plan import plan
    from odcl.privacy import Privacy

    with watched(options) as progress:
        progress.stage("setting the scene")
        scene = scenario_of(options)
        goal = {"target": options.probability, "seed": options.seed}
        made = plan(scene, **goal, progress=progress.stage)
    print(made)
    if options.epsilon is not None:
        print(Privacy(epsilon=options.epsilon).pays(scene.dim))


# -- the scenario ----------------------------------------------------------------------------------


def scenario_of(options: Namespace) -> Scenario:
    """The federation that the options describe."""
    from odcl.plan import scenario

    if options.pilot is not None:
        return _pilot(options)
    why = "is about columns of a pilot: say --pilot TABLE."
    opt.refuse(options, PLAN.groups["from a pilot"], why, but=["--missing"])
    given = {
        "n_users": options.users,
        "n_clusters": options.clusters,
        "dim": options.dim,
        "loss": options.loss,
        "separation": options.separation,
        "noise": options.noise,
        "tau": options.spread,
    }
    return scenario(**{name: value for name, value in given.items() if value is not None})


def _pilot(options: Namespace) -> Scenario:
    from odcl.plan import from_pilot
    from odcl.runs.fit import fit, open_source

    if options.user is None or options.target is None:
        raise opt.UsageError("--pilot needs --user and --target, columns of it.", "odcl plan")
    why = "is read off the pilot: leave it out, or plan without --pilot."
    opt.refuse(options, PLAN.groups["the federation"], why, but=["--users", "--loss"])
    source, names = open_source(options.pilot, None)
    settings = settings_of(options, names)
    run = fit(source, settings, command=("odcl", *options.arguments), keep_rows=True)
    units = run.model.fitted_.units
    return from_pilot(run.model.result_, run.rows, n_users=options.users, features=units)
