"""``odcl plan``: how many rows per user, before there are data."""

from __future__ import annotations

import argparse
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.command.option_values import at_least_0, one_of

if TYPE_CHECKING:
    from odcl.plan import Plan, Scenario

LOSSES = ("squared", "logistic", "poisson", "huber", "multinomial")

_ABOUT = """\
Tell how many rows per user are needed to find the hidden groups.

Simulates the round: users' models are drawn around the groups' models with
the noise that so many rows leave, and clustered. No data are needed; a small
table (--pilot) makes it about your own. Without options it is the paper's
linear set-up. Beside it stands the paper's threshold, which is safe for the
worst federation imaginable and therefore astronomical."""

_EXAMPLES = """\
examples:
  odcl plan
  odcl plan --users 60 --clusters 3 --dim 8 --separation 1.5 --noise 2
  odcl plan --pilot sales.csv --user store --target sales --users 500"""


def add_plan(some: Any) -> Any:
    """The command's options."""
    from odcl.command.options import _command, _path, _quiet, _seed

    parser = _command(some, "plan", "[options]", _ABOUT, _EXAMPLES)
    _federation(parser.add_argument_group("the federation"))
    pilot = parser.add_argument_group("from a pilot")
    _path(
        pilot,
        "--pilot",
        "TABLE",
        "table whose groups, rows and noise are taken instead [default: none]",
    )
    pilot.add_argument(
        "--user", metavar="COLUMN", help="its column that names the user [default: none]"
    )
    pilot.add_argument("--target", metavar="COLUMN", help="its column to predict [default: none]")
    goal = parser.add_argument_group("the goal")
    goal.add_argument(
        "--probability",
        metavar="P",
        type=_probability,
        default=0.95,
        help="of finding exactly the true groups, from 0.5 to below 1 [default: %(default)s]",
    )
    goal.add_argument(
        "--error",
        metavar="E",
        type=_positive,
        help="relative squared error of the users' models to reach besides [default: none]",
    )
    more = parser.add_argument_group("options")
    _path(more, "--out", "FILE", "PNG file for the curve", default="odcl-plan.png")
    more.add_argument("--force", action="store_true", help="replace the file if it is there")
    _seed(more)
    _quiet(more)
    return parser


def _federation(group: Any) -> None:
    numbers = {
        "--users": (_count, "M", "number of users [default: 100, or the pilot's]"),
        "--clusters": (_count, "K", "number of hidden groups [default: 10]"),
        "--dim": (_count, "D", "parameters of a model [default: 20]"),
        "--separation": (
            _positive,
            "D",
            "smallest distance between two groups' models [default: as in the paper's linear "
            "set-up, for 4 or 10 groups]",
        ),
        "--noise": (
            _positive,
            "S",
            "standard deviation of the target around its model [default: 1]",
        ),
        "--spread": (
            at_least_0,
            "TAU",
            "how far users of a group differ, a parameter [default: 0]",
        ),
        "--active": (_count, "N", "features of a row that are not zero [default: 5]"),
    }
    for name, (kind, metavar, text) in numbers.items():
        group.add_argument(name, metavar=metavar, type=kind, help=text)
    group.add_argument(
        "--loss",
        metavar="NAME",
        type=one_of(LOSSES),
        help="squared, logistic or poisson; huber and multinomial with a pilot [default: squared]",
    )


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on.")
    return int(text)


def _positive(text: str) -> float:
    value = at_least_0(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number > 0.")
    return value


def _probability(text: str) -> float:
    value = at_least_0(text)
    if not 0.5 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0.5 to below 1.")
    return value


# -- the scenario ----------------------------------------------------------------------------------


def scenario_of(options: Namespace) -> Scenario:
    """The federation that the options describe."""
    from odcl.command.options import UsageError
    from odcl.plan import scenario

    if options.pilot is not None:
        return _pilot(options)
    for name in ("user", "target"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} names a column of a pilot: say --pilot TABLE.", "odcl plan")
    given = {
        "n_users": options.users,
        "n_clusters": options.clusters,
        "dim": options.dim,
        "loss": options.loss,
        "separation": options.separation,
        "noise": options.noise,
        "tau": options.spread,
        "active": options.active,
    }
    return scenario(**{name: value for name, value in given.items() if value is not None})


def _pilot(options: Namespace) -> Scenario:
    from odcl.command.options import UsageError
    from odcl.command.run import fit_source, read_source
    from odcl.plan import from_pilot
    from odcl.report.progress import Silent

    if options.user is None or options.target is None:
        raise UsageError("--pilot needs --user and --target, columns of it.", "odcl plan")
    for name in ("clusters", "dim", "separation", "noise", "spread", "active"):
        if getattr(options, name) is not None:
            text = f"--{name} is read off the pilot: leave it out, or plan without --pilot."
            raise UsageError(text, "odcl plan")
    source = read_source(
        options.pilot,
        user=options.user,
        target=options.target,
        features=[],
        drop=[],
        categorical=[],
        missing="error",
        loss=options.loss or "auto",
    )
    settings = {"clusterer": "auto", "method": "default"}
    run = fit_source(source, holdout=0, seed=options.seed, settings=settings, progress=Silent())
    federation, model = source.encoded.federation(), run.model
    return from_pilot(
        model.result_,
        federation.with_X(model.scaling_.apply(federation.X)),
        n_users=options.users,
        l2=float(model.l2),
        fit_intercept=bool(model.fit_intercept),
    )


# -- the answer ------------------------------------------------------------------------------------


def plan_text(plan: Plan) -> str:
    """What to collect, and the curve it was read off."""
    from odcl.plan import METHODS
    from odcl.report.text import table

    scene = plan.scene
    rows = [(METHODS[name], _shown(n)) for name, n in plan.smallest.items()]
    rows += [(f"the paper's threshold for {k}", _shown(n)) for k, n in plan.paper.items()]
    head = f"rows per user, true groups in {plan.target:.0%} of federations"
    parts = [f"{scene.words[0].upper()}{scene.words[1:]}.", table((head, "n"), rows)]
    if plan.wanted_error is not None:
        goal = f"rows per user, relative squared error {plan.wanted_error:g}"
        found = [(f"{name} of K-means++'s groups", _shown(n)) for name, n in plan.for_error.items()]
        parts.append(table((goal, "n"), found))
    parts += [_curve_table(plan), _meaning(plan)]
    return "\n\n".join(parts)


def _shown(n: int | None) -> str:
    return "not reached" if n is None else f"{n:,}" if n < 10**7 else f"{n:.1e}"


def _curve_table(plan: Plan) -> str:
    from odcl.report.text import table

    header = ("rows per user", "K-means++", "convex", "Eq. (13)", "local", "mean", "precision")
    rows = [
        (
            f"{p.n:,}",
            *(f"{p.recovery[name]:.2f}" for name in ("kmeans", "convex", "convex-13")),
            *(f"{p.error[name]:.2g}" for name in ("local", "mean", "precision")),
        )
        for p in plan.points
    ]
    return table(header, rows) + (
        "\nColumns 2 to 4: chance of exactly the true groups. Then the relative squared error of "
        "local models,\nand of the groups' models by mean and by precision combining."
    )


def _meaning(plan: Plan) -> str:
    n = plan.smallest["kmeans"]
    if plan.scene.n_clusters == 1:
        return "With one group there is nothing to find: every n does."
    if n is None:
        return (
            f"No n up to {plan.points[-1].n:,} is enough: the groups are too close together. Ask "
            "whether they matter, or use one model for all."
        )
    at = min((p for p in plan.points if p.n >= n), key=lambda p: p.n, default=plan.points[-1])
    gain = at.error["mean"] / max(at.error["precision"], 1e-300)
    text = f"Collect {n:,} rows per user, and one round finds the groups."
    if gain > 1.5:
        text += (
            f" There, precision combining has {1 / gain:.0%} of the mean's error: use it "
            "(combine='precision', the default)."
        )
    return text


def draw_plan(plan: Plan, path: Path) -> bool:
    """The curve as a picture. Is there one?"""
    from odcl.plan import METHODS
    from odcl.report import pictures

    if not pictures.available():
        return False
    fig, (left, right) = pictures.figure(width=11)
    n = [p.n for p in plan.points]
    for c, (name, words) in enumerate(METHODS.items()):
        style = {"color": pictures.COLOURS[c], "marker": pictures.MARKERS[c], "ms": 4}
        left.plot(n, [p.recovery[name] for p in plan.points], label=words, **style)
    left.axhline(plan.target, color="#555555", lw=0.8, ls=":")
    found = plan.smallest["kmeans"]
    if found is not None and plan.scene.n_clusters > 1:
        left.axvline(found, color=pictures.COLOURS[0], lw=0.8, ls="--")
        left.annotate(f" n = {found:,}", (found, 0.02), fontsize=9)
    left.set(ylim=(-0.03, 1.03), title="Chance of exactly the true groups", ylabel="probability")
    shown = {"local": "a user's own", "mean": "group's, mean", "precision": "group's, precision"}
    for c, (name, words) in enumerate(shown.items()):
        style = {"color": pictures.COLOURS[c + 3], "marker": pictures.MARKERS[c], "ms": 4}
        right.plot(n, [p.error[name] for p in plan.points], label=words, **style)
    right.set(title="Error of the users' models", ylabel="relative squared error", yscale="log")
    for ax in (left, right):
        ax.set(xlabel="rows per user", xscale="log")
        ax.legend(frameon=False, fontsize=8)
        ax.spines[["top", "right"]].set_visible(False)
    pictures.save(fig, path)
    return True


def check_picture(path: Path, *, force: bool) -> None:
    """Refuse a place for the picture before the work."""
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path} does not end in .png, and the curve is saved as PNG.")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{path} is a folder or lies in none: name a file.")
    if path.exists() and not force:
        raise ValueError(f"{path} exists already: say --force to replace it, or name another.")
