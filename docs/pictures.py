"""The pictures of the site, drawn by the build from the library's own fits.

Each function gives a figure; ``{picture} name`` puts it into a page. The tables are those of the
tutorials, read off their pages, so that a picture cannot show another one than its page.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from odcl import ODCLClassifier, ODCLRegressor, compare
from odcl.data.synthetic import store_tables
from odcl.paper.experiments.pages import COLOURS, MARKERS, figure
from odcl.report.text import NAMES
from odcl.runs.page_models import view

DOCS = Path(__file__).parent
BLUE, ORANGE, GREEN = COLOURS[:3]


def _panels(n: int, width: float = 9.0, height: float = 3.6, **more: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height), layout="constrained")
    return fig, fig.subplots(1, n, squeeze=False, **more)[0]


def first_code(page: str) -> dict[str, Any]:
    """The names that a page's first block of code makes: its table."""
    code = (DOCS / page).read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    kept = [
        line for line in code.splitlines() if not line.startswith("print") and "to_csv" not in line
    ]
    exec("\n".join(kept), names)
    return names


# -- the first page --------------------------------------------------------------------------------


def three_worlds() -> Any:
    """Users' own models, and where odcl takes them."""
    rng = np.random.default_rng(4)
    fig, axes = _panels(3, height=3.0, sharex=True, sharey=True)
    triangle = np.array([[-2.2, -1.3], [2.2, -1.3], [0.0, 2.3]])
    pair = np.array([[-2.0, -0.6], [2.0, 0.6]])
    worlds = (("hidden groups", triangle, 0.0), ("gradual differences", triangle[:1] * 0, 1.1))
    for ax, (title, centers, spread) in zip(axes, (*worlds, ("both", pair, 0.7)), strict=True):
        group = np.arange(45) % len(centers)
        truth = centers[group] + spread * rng.normal(size=(45, 2))
        own = truth + 0.75 * rng.normal(size=(45, 2))
        kept = spread**2 / (spread**2 + 0.75**2)
        given = centers[group] + kept * (own - centers[group])
        for k, center in enumerate(centers):
            here = group == k
            ax.plot(
                *np.stack([own[here], given[here]]).transpose(2, 0, 1), color=COLOURS[k], lw=0.7
            )
            ax.scatter(*own[here].T, s=14, color=COLOURS[k], marker=MARKERS[k], alpha=0.6, lw=0)
            ax.scatter(*center, s=90, marker="+", color="black", zorder=3)
        ax.set(title=title, xticks=[], yticks=[], xlim=(-4.6, 4.6), ylim=(-3.6, 4.0))
        ax.spines[:].set_visible(False)
    return fig


# -- start -----------------------------------------------------------------------------------------


@cache
def homes() -> tuple[pd.DataFrame, ODCLRegressor]:
    table = pd.read_csv(DOCS / "tables" / "homes.csv")
    return table, ODCLRegressor(users="county").fit(
        table.drop(columns="log_radon"), table["log_radon"]
    )


def homes_shrink() -> Any:
    """Each county's own level and the one it is given."""
    table, model = homes()
    # The level is that of a home in the basement, by the common effect of the floor.
    own = table["log_radon"] - model.group_coef_[0, 0] * table["ground_floor"]
    means = own.groupby(table["county"]).mean().loc[list(model.users_)].to_numpy()
    given, size = model.intercept_, 6 + 2.2 * model.n_rows_
    fig, (ax,) = _panels(1, height=2.8)
    both = np.array([np.ones(len(means)), np.zeros(len(means))])
    ax.plot(np.array([means, given]), both, color=BLUE, lw=0.5, alpha=0.5)
    ax.scatter(means, both[0], s=size, color=BLUE, alpha=0.5, lw=0)
    ax.scatter(given, both[1], s=size, color=ORANGE, alpha=0.6, lw=0)
    ax.set(ylim=(-0.5, 1.5), xlabel="log radon of a basement", yticks=[1, 0])
    ax.set_yticklabels(["the county's homes alone", "with odcl"])
    ax.spines["left"].set_visible(False)
    return fig


# -- stores ----------------------------------------------------------------------------------------


@cache
def stores() -> tuple[pd.DataFrame, ODCLRegressor]:
    table = pd.DataFrame(store_tables(0)[0])
    return table, ODCLRegressor(users="store").fit(table.drop(columns="sales"), table["sales"])


def stores_map() -> Any:
    """Every store's own model, the groups, and what each method is worth."""
    table, model = stores()
    fig, (left, right) = figure(width=10)
    result = model.result_
    _draw_models(left, result.local.theta, result.centers, result.labels)
    compared = compare(model, table.drop(columns="sales"), table["sales"])
    names = [NAMES.get(name, name) for name in compared.scores]
    errors = [float(values.mean()) for values in compared.scores.values()]
    positions = np.arange(len(names))[::-1]
    right.barh(positions, errors, color=BLUE, height=0.6)
    for x, y in zip(errors, positions, strict=True):
        right.annotate(f" {x:.3g}", (x, y), va="center", fontsize=9)
    right.set_yticks(positions, names)
    right.set(xlabel="error on days held out (RMSE, mean store)")
    right.margins(x=0.25)
    right.spines[["top", "right"]].set_visible(False)
    return fig


def _draw_models(ax: Any, theta: Any, centers: Any, labels: Any) -> None:
    """Users' own models on the two directions in which the groups' models differ most."""
    plane, origin = view(theta, centers), centers.mean(axis=0)
    points, middle = (theta - origin) @ plane.T, (centers - origin) @ plane.T
    for k, center in enumerate(middle):
        style = {"s": 16, "alpha": 0.65, "linewidths": 0, "marker": MARKERS[k], "c": COLOURS[k]}
        ax.scatter(*points[labels == k].T, **style)
        ax.annotate(f"{k}", center, (5, 4), textcoords="offset points", fontsize=9, zorder=4)
    ax.scatter(*middle.T, s=60, marker="+", color="black", zorder=3, label="a group's model")
    ax.set(xlabel="direction 1", ylabel="direction 2")
    ax.set_title(f"Users' local models, {len(centers)} groups")
    ax.legend(loc="best", frameon=False, fontsize=9, handletextpad=0.2)


def stores_groups() -> Any:
    """Coefficients of the groups with intervals."""
    table, model = stores()
    names = model.feature_names_
    fig, (ax,) = _panels(1, height=3.2)
    widths = _group_errors(table, model)
    for k, (coef, error) in enumerate(zip(model.group_coef_, widths, strict=True)):
        y = np.arange(len(names))[::-1] + 0.22 * (1 - k)
        style = {"color": COLOURS[k], "marker": MARKERS[k], "ms": 6, "lw": 0, "elinewidth": 1.6}
        ax.errorbar(coef, y, xerr=1.96 * error, label=f"group {k}", **style)
    ax.axvline(0, color="black", lw=0.6)
    ax.set(yticks=np.arange(len(names))[::-1], xlabel="sales per unit of the column")
    ax.set_yticklabels(names)
    ax.legend()
    return fig


def _group_errors(table: pd.DataFrame, model: ODCLRegressor) -> list[Any]:
    """Standard errors of least squares on each group's rows: what its members share."""
    group = dict(zip(model.users_, model.labels_, strict=True))
    labels = table["store"].map(group).to_numpy()
    found = []
    for k in range(model.n_clusters_):
        rows = table[labels == k]
        X = np.column_stack([np.ones(len(rows)), rows[list(model.feature_names_)]]).astype(float)
        y = rows["sales"].to_numpy()
        residual = y - X @ np.linalg.lstsq(X, y, rcond=None)[0]
        variance = residual @ residual / (len(y) - X.shape[1])
        found.append(np.sqrt(variance * np.diag(np.linalg.inv(X.T @ X)))[1:])
    return found


# -- schools ---------------------------------------------------------------------------------------


def schools_lines() -> Any:
    """Each school's line alone, and with the others."""
    table = first_code("tutorials/schools.md")["pupils"]
    X, y = table.drop(columns="score"), table["score"]
    model = ODCLRegressor(users="school").fit(X, y)
    fig, axes = _panels(2, height=3.8, sharey=True)
    books = np.array([-1.5, 1.5])
    local = model.result_.local.theta  # standardised: back to the table's units by hand
    scaling = model.scaling_
    slope = local[:, 0] / scaling.scale[0]
    level = local[:, -1] + local[:, 0] * (0 - scaling.shift[0]) / scaling.scale[0]
    level = level + local[:, 1] * (2.5 - scaling.shift[1]) / scaling.scale[1]
    own = level[:, None] + slope[:, None] * books
    given = (model.intercept_ + 2.5 * model.coef_[:, 1])[:, None] + model.coef_[:, :1] * books
    titles = ("each school alone", "with odcl")
    for ax, lines, colour, title in zip(axes, (own, given), (BLUE, ORANGE), titles, strict=True):
        ax.plot(books, lines.T, color=colour, lw=0.8, alpha=0.6)
        ax.set(title=title, xlabel="books at home (standardised)", ylim=(30, 80))
    axes[0].set_ylabel("score with 2.5 hours of homework")
    return fig


# -- curves ----------------------------------------------------------------------------------------


def cars_curves() -> Any:
    """What two columns add to predictions, common to all makers and of each."""
    table = pd.read_csv(DOCS / "tables" / "cars.csv")
    model = ODCLRegressor(users="make").fit(table.drop(columns="city_mpg"), table["city_mpg"])
    fig, axes = _panels(2, height=3.8, sharey=True)
    units = {"weight": "pounds", "horsepower": "horsepower"}
    for ax, (name, unit) in zip(axes, units.items(), strict=True):
        for make in model.users_:
            own, seen = model.curve(name, user=make), table.loc[table["make"] == make, name]
            inside = own["x"].between(seen.min(), seen.max())  # where the maker has cars
            ax.plot(own["x"][inside], own["value"][inside], color=BLUE, lw=0.7, alpha=0.6)
        common = model.curve(name)
        ax.fill_between(common["x"], common["low"], common["high"], color=ORANGE, alpha=0.2, lw=0)
        ax.plot(common["x"], common["value"], color=ORANGE, lw=2.5)
        ax.set(title=name, xlabel=unit, ylim=(-14, 16))
    axes[0].set_ylabel("miles per gallon")
    return fig


# -- households ------------------------------------------------------------------------------------


def households_groups() -> Any:
    """Probability of a yes, group by group."""
    table = first_code("tutorials/households.md")["asked"]
    X, y = table.drop(columns="answer"), table["answer"]
    model = ODCLClassifier(users="household", categorical=["day"]).fit(X, y)
    fig, axes = _panels(2, height=3.2, sharey=True)
    middle = {"discount": 25.0, "delay": 3.0}
    ranges = {"discount": np.linspace(0, 50, 60), "delay": np.linspace(0, 6, 60)}
    units = {"discount": "discount, per cent", "delay": "delay, hours"}
    place = {name: i for i, name in enumerate(model.feature_names_)}
    coef = model.group_coef_.reshape(model.n_clusters_, -1)
    for ax, (name, values) in zip(axes, ranges.items(), strict=True):
        for k in range(model.n_clusters_):
            z = model.group_intercept_.reshape(-1)[k] + coef[k, place[name]] * values
            z = z + sum(coef[k, place[other]] * v for other, v in middle.items() if other != name)
            style = {"color": COLOURS[k], "lw": 2.2, "ls": ("-", "--")[k % 2]}
            ax.plot(values, 1 / (1 + np.exp(-z)), label=f"group {k}", **style)
        ax.set(xlabel=units[name], ylim=(0, 1))
    axes[0].set_ylabel("probability of a yes")
    axes[0].legend()
    return fig


# -- the paper -------------------------------------------------------------------------------------


def _mean_error(name: str, n: int) -> float:
    from odcl import baselines, linear_federation

    federations = [linear_federation(100, n, seed=seed) for seed in range(3)]
    return float(np.mean([baselines.run(name, one).nmse() for one in federations]))


def rows_needed() -> Any:
    """Error against rows per user, for a few methods."""
    rows = (15, 20, 25, 35, 50, 75, 100, 200, 400)
    names = {
        "local": "each user alone",
        "odcl-km++": "K-means++, K given (the paper)",
        "odcl": "odcl, K not given",
        "cluster-oracle": "one fit per true cluster",
    }
    fig, (ax,) = _panels(1, width=8, height=3.8)
    for k, (name, label) in enumerate(names.items()):
        errors = [_mean_error(name, n) for n in rows]
        style = {"color": COLOURS[k], "marker": MARKERS[k], "ls": ("-", "--", "-", ":")[k], "ms": 4}
        ax.plot(rows, errors, label=label, **style)
    ax.set(xscale="log", yscale="log", xlabel="rows per user", ylabel="error of the users' models")
    ax.set_xticks(rows, [str(n) for n in rows])
    ax.minorticks_off()
    ax.legend()
    return fig


def clusterpath() -> Any:
    """The path of a few points in four groups: its levels, and its tree."""
    from scipy.cluster.hierarchy import dendrogram
    from sklearn.datasets import make_blobs

    import odcl

    points, _ = make_blobs(60, 5, centers=4, cluster_std=0.5, random_state=1)
    path = odcl.clusterpath(points)
    counts = [level.n_clusters for level in path.plateaus]
    starts = [level.start for level in path.plateaus]
    fig, (steps, tree) = figure(width=11.0, height=4.2)
    steps.stairs(counts, [*starts, 1.2 * starts[-1]], baseline=None, lw=2.5)
    steps.set(title="The clusterpath", yscale="log", xlabel="lambda", ylabel="clusters")
    ticks = (1, 2, 3, 4, 5, 10, 20, 50)
    steps.set_yticks(ticks, map(str, ticks), minor=False)
    dendrogram(path.linkage, ax=tree, color_threshold=0)
    tree.tick_params(axis="x", labelsize=6)
    tree.set(title="Who meets whom (60 points)", ylabel="lambda")
    return fig


# -- drawings --------------------------------------------------------------------------------------


def _box(x: float, y: float, w: float, h: float, lines: list[str], colour: str = "") -> str:
    """A box with centred lines; those that start with a backtick are set as code."""
    look = f'stroke="{colour or "currentColor"}" stroke-width="{2 if colour else 1}"'
    fill = f'fill="{colour}" fill-opacity="0.12"' if colour else 'fill="none"'
    made = [f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" {fill} {look}/>']
    top = y + h / 2 - 9 * (len(lines) - 1) + 5
    for i, line in enumerate(lines):
        font = ' font-family="monospace"' if line.startswith("`") else ""
        text = line.strip("`").replace("<", "&lt;")
        place = f'x="{x + w / 2}" y="{top + 18 * i}" text-anchor="middle"'
        made.append(f"<text {place}{font}>{text}</text>")
    return "".join(made)


def _arrow(x1: float, y1: float, x2: float, y2: float, word: str = "") -> str:
    across = y1 == y2
    tip = (
        f"{x2},{y2} {x2 - 8},{y2 - 4} {x2 - 8},{y2 + 4}"
        if across and x2 > x1
        else f"{x2},{y2} {x2 + 8},{y2 - 4} {x2 + 8},{y2 + 4}"
        if across
        else f"{x2},{y2} {x2 - 4},{y2 - 8} {x2 + 4},{y2 - 8}"
    )
    place = (
        f'x="{(x1 + x2) / 2}" y="{y1 - 6}" text-anchor="middle"'
        if across
        else f'x="{x1 + 8}" y="{(y1 + y2) / 2 + 4}"'
    )
    return (
        f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="currentColor"/>'
        f'<polygon points="{tip}" fill="currentColor"/><text {place}>{word}</text>'
    )


def _svg(width: int, height: int, parts: list[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'style="max-width:{width}px" font-family="sans-serif" font-size="13" '
        f'fill="currentColor">{"".join(parts)}</svg>'
    )


def which_method() -> str:
    """Questions from top to bottom; whoever says no five times has the default."""
    ladder = {
        "the paper to the letter?": "`Method.paper()`|`--paper`",
        "the number of groups known?": "`clusterer=4`|`--clusters 4`",
        "no groups by assumption,|only gradual differences?": (
            '`clusterer="auto:1"`|`--clusters auto:1`'
        ),
        "groups far apart, and a|proof of them wanted?": '`clusterer="convex"`|`--clusters convex`',
        "users with few rows must not|be guessed at?": (
            "`Method(short_terms=False)`|`--no-short-terms`"
        ),
    }
    parts: list[str] = []
    step = 82
    for i, (question, answer) in enumerate(ladder.items()):
        y = 10 + step * i
        parts.append(_box(10, y, 250, 52, question.split("|")))
        parts.append(_box(360, y, 270, 52, answer.split("|"), BLUE))
        parts += [_arrow(260, y + 26, 360, y + 26, "yes"), _arrow(135, y + 52, 135, y + step, "no")]
    y = 10 + step * len(ladder)
    default = ["the default: groups, differences, or both", "`Method()`"]
    parts.append(_box(10, y, 620, 52, default, GREEN))
    return _svg(640, y + 62, parts)


def one_file_out() -> str:
    """Three sites and a coordinator."""
    parts = [_box(250, 90, 140, 90, ["coordinator", "a folder of files"], GREEN)]
    for i, site in enumerate(("north", "east", "south")):
        y = 10 + 90 * i
        parts.append(_box(10, y, 120, 70, [site, "its rows"], BLUE))
        parts.append(_box(510, y, 120, 70, [site, "its models"], BLUE))
        aim = 110 + 25 * i
        for x1, y1, x2, y2, word in (
            (130, y + 35, 250, aim, "upload"),
            (390, aim, 510, y + 35, "download"),
        ):
            lift = 8 if y1 == y2 else 18  # above a line that slants
            middle = f'x="{(x1 + x2) / 2}" y="{(y1 + y2) / 2 - lift}" text-anchor="middle"'
            parts.append(
                f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="currentColor"/>'
                f'<circle cx="{x2}" cy="{y2}" r="3"/><text {middle}>{word}</text>'
            )
    return _svg(640, 270, parts)
