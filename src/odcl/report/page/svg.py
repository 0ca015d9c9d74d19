"""Pictures as SVG: what the page shows without a script and in print, and what scripts draw on.

Every picture carries its own frame in data attributes, so that a script puts points where these
put them. Groups have a colour and a shape, and their number is written beside: colour alone says
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from odcl._typing import Floats
from odcl.errors import number
from odcl.report.page import Markup, el, joined
from odcl.report.page.facts import (
    Coefficients,
    CurveFacts,
    FitFacts,
    Gains,
    Options,
    UserMap,
    Users,
)

N_COLOURS, N_SHAPES = 7, 8
WIDTH, HEIGHT = 400, 316
LEFT, RIGHT, TOP, BOTTOM = 54, 392, 12, 268  # of the frame that points lie in
MOST_DRAWN = 2_000  # points of a picture without a script
MOST_NAMED = 12  # groups whose number stands at their model
MOST_CROSSES = 30  # groups whose model is marked on the map
MOST_GROUPS = 8  # in the picture of coefficients
MOST_THIN = 40  # users whose curves are drawn
Z95 = 1.959964
_R = 3.4
SHAPES = (
    f"M{_R},0A{_R},{_R} 0 1 1 -{_R},0A{_R},{_R} 0 1 1 {_R},0Z",  # circle
    "M-3,-3H3V3H-3Z",  # square
    "M0,-4.2L3.9,2.8H-3.9Z",  # triangle
    "M0,-4.4L4.4,0L0,4.4L-4.4,0Z",  # diamond
    "M0,4.2L3.9,-2.8H-3.9Z",  # triangle, pointing down
    "M-1.3,-4H1.3V-1.3H4V1.3H1.3V4H-1.3V1.3H-4V-1.3H-1.3Z",  # plus
    "M-4,-2.2L-2.2,-4L0,-1.8L2.2,-4L4,-2.2L1.8,0L4,2.2L2.2,4L0,1.8L-2.2,4L-4,2.2L-1.8,0Z",  # cross
    "M0,-4.6L1.3,-1.4L4.6,-1.4L2,0.8L3,4.2L0,2.2L-3,4.2L-2,0.8L-4.6,-1.4L-1.3,-1.4Z",  # star
)


def symbols() -> Markup:
    """The shapes, once for all pictures."""
    shapes = [el("path", id=f"s{k}", d=path) for k, path in enumerate(SHAPES)]
    return el("svg", el("defs", *shapes), class_="symbols", aria_hidden="true", width=0, height=0)


def style_of(group: int) -> tuple[int, int]:
    """Colour and shape of a group: 56 groups before two look alike."""
    return (N_COLOURS - 1, 0) if group < 0 else (group % N_COLOURS, group % N_SHAPES)


def mark(group: int, x: float, y: float, **more: object) -> Markup:
    colour, shape = style_of(group)
    colour_class = f"c{colour}" if group >= 0 else "none"
    return el("use", href=f"#s{shape}", class_=colour_class, x=_at(x), y=_at(y), **more)


def swatch(group: int) -> Markup:
    """The sign of a group, beside its name."""
    inside = mark(group, 0, 0)
    return el("svg", inside, viewBox="-6 -6 12 12", class_="swatch", aria_hidden="true")


def _at(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")


def ticks(low: float, high: float, most: int = 5) -> list[tuple[float, str]]:
    """Round numbers inside an interval, each with its text: no two have the same."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return [(low, number(low))] if math.isfinite(low) else []
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    found = [step * k for k in range(first, first + 3 * most)]
    some = [0.0 if abs(v) < step / 1e6 else v for v in found if v <= high + 1e-9 * step]
    years = low >= 1500 and high <= 2100 and step >= 1  # 1980 is not 1,980
    return [(v, f"{v:.0f}" if years else number(v, step=step)) for v in some]


class Frame:
    """From numbers to places in a picture."""

    def __init__(self, x0: float, x1: float, y0: float, y1: float) -> None:
        self.x0, self.x1, self.y0, self.y1 = x0, x1, y0, y1

    def x(self, value: float) -> float:
        return LEFT + (value - self.x0) / (self.x1 - self.x0) * (RIGHT - LEFT)

    def y(self, value: float) -> float:
        return BOTTOM - (value - self.y0) / (self.y1 - self.y0) * (BOTTOM - TOP)

    def axes(self, x_label: str, y_label: str, *, x_ticks: bool = True) -> Markup:
        """Grid, numbers and names of both axes."""
        parts = []
        for v, text in ticks(self.y0, self.y1):
            y = self.y(v)
            parts.append(el("line", x1=LEFT, x2=RIGHT, y1=_at(y), y2=_at(y), class_="grid"))
            parts.append(el("text", text, x=LEFT - 6, y=_at(y + 3.5), class_="tick end"))
        for v, text in ticks(self.x0, self.x1, 6) if x_ticks else ():
            x = self.x(v)
            parts.append(el("line", x1=_at(x), x2=_at(x), y1=TOP, y2=BOTTOM, class_="grid"))
            parts.append(el("text", text, x=_at(x), y=BOTTOM + 15, class_="tick mid"))
        middle_x, middle_y = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
        parts.append(el("text", x_label, x=middle_x, y=HEIGHT - 12, class_="label mid"))
        turned = f"translate(11 {middle_y:g}) rotate(-90)"
        parts.append(el("text", y_label, transform=turned, class_="label mid"))
        return el("g", *parts, class_="axes", aria_hidden="true")


def picture(
    name: str, title: str, *inside: Markup, height: float = HEIGHT, **data: object
) -> Markup:
    return el(
        "svg",
        el("title", title),
        *inside,
        id=f"{name}-svg",
        viewBox=f"0 0 {WIDTH} {height:g}",
        role="img",
        aria_label=title,
        **data,
    )


def _some(n: int) -> list[int]:
    return np.linspace(0, n - 1, min(n, MOST_DRAWN)).astype(int).tolist() if n else []


# -- the map ---------------------------------------------------------------------------------------


def map_picture(facts: FitFacts) -> Markup:
    """Users as points, groups' models as crosses with their number."""
    m, users = facts.map, facts.users
    frame = Frame(*m.frame)
    shown = users.total if m.density is not None else len(users)
    title = (
        f"Map of {shown:,} users in {len(facts.groups)} "
        f"group{'s' * (len(facts.groups) != 1)}; every user's numbers are in the table of users."
    )
    points = _density(m, frame) if m.density is not None else _points(m, users, frame)
    return picture(
        "map",
        title,
        frame.axes(short(m.axes[0], 54), short(m.axes[1], 42)),
        el("g", *points, class_="points"),
        _centers(m.centers, frame),
    )


def _points(m: UserMap, users: Users, frame: Frame) -> list[Markup]:
    found = []
    for i in _some(len(users)):
        x, y = m.xy[i]
        if frame.x0 <= x <= frame.x1 and frame.y0 <= y <= frame.y1:
            found.append(mark(int(users.group[i]), frame.x(x), frame.y(y)))
    return found


def _density(m: UserMap, frame: Frame) -> list[Markup]:
    assert m.density is not None
    ny, nx = m.density.shape
    wide, high = (RIGHT - LEFT) / nx, (BOTTOM - TOP) / ny
    most = max(int(m.density.max()), 1)
    found = []
    for row, column in np.argwhere(m.density > 0).tolist():
        shade = 0.15 + 0.85 * math.log1p(int(m.density[row, column])) / math.log1p(most)
        place = {"x": _at(LEFT + column * wide), "y": _at(BOTTOM - (row + 1) * high)}
        size = {"width": _at(wide + 0.2), "height": _at(high + 0.2)}
        found.append(el("rect", class_="cell", fill_opacity=f"{shade:.2f}", **place, **size))
    return found


def _centers(centers: Floats, frame: Frame) -> Markup:
    parts = []
    for k, (cx, cy) in enumerate(centers.tolist() if len(centers) <= MOST_CROSSES else []):
        x, y = frame.x(cx), frame.y(cy)
        parts.append(el("path", d=f"M{_at(x - 5)},{_at(y)}h10M{_at(x)},{_at(y - 5)}v10"))
        if 1 < len(centers) <= MOST_NAMED:
            parts.append(el("text", f"{k}", x=_at(x + 7), y=_at(y - 6), class_="name"))
    return el("g", *parts, class_="centers above", aria_hidden="true")


def short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# -- the gain --------------------------------------------------------------------------------------


def gain_frame(gains: Gains) -> tuple[Frame, int]:
    """The frame of the gains, and how many users lie beyond it."""
    values = gains.gain[np.isfinite(gains.gain)]
    if not len(values):
        return Frame(0, 1, -1, 1), 0
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    inner, outer = np.percentile(values, [2, 98])
    wide = max(outer - inner, 1e-300)
    if high - low > 5 * wide and len(values) > 20:
        low, high = max(low, min(inner - wide, 0)), min(high, max(outer + wide, 0))
    room = 0.08 * max(high - low, 1e-12)
    low, high = low - room, high + room
    beyond = int(((values < low) | (values > high)).sum())
    return Frame(-0.5, len(values) - 0.5, low, high), beyond


def gain_picture(gains: Gains, users: Users) -> Markup:
    """Every user from the worst off to the best, alone against odcl."""
    frame, _ = gain_frame(gains)
    known = np.flatnonzero(np.isfinite(gains.gain))
    order = known[np.argsort(gains.gain[known], kind="stable")]
    unit = "share of rows" if gains.metric == "accuracy" else gains.metric
    title = f"Gain of {len(order):,} users over a model of their own. {gains.words}"
    zero = frame.y(0)
    parts = [el("line", x1=LEFT, x2=RIGHT, y1=_at(zero), y2=_at(zero), class_="zero")]
    points = []
    for rank in _some(len(order)):
        i = int(order[rank])
        y = min(max(float(gains.gain[i]), frame.y0), frame.y1)
        points.append(mark(int(users.group[i]), frame.x(rank), frame.y(y)))
    names = []
    ends = [("worst", 0, LEFT + 10, "name"), ("best", -1, RIGHT - 10, "name end")]
    for word, rank, x, kind in ends if len(order) > 1 else ():
        user, y = int(order[rank]), float(gains.gain[order[rank]])
        y = min(max(frame.y(min(max(y, frame.y0), frame.y1)), TOP + 10), BOTTOM - 4)
        text = f"{word}: {short(users.ids[user], 24)}"
        names.append(el("text", text, x=x, y=_at(y + 3), class_=kind))
    words = [
        el("text", "above: better with odcl", x=LEFT + 6, y=TOP + 12, class_="hint"),
        el("text", "below: worse", x=RIGHT - 6, y=BOTTOM - 6, class_="hint end"),
    ]
    return picture(
        "gain",
        title,
        frame.axes("users, from the worst off to the best", f"gain in {unit}", x_ticks=False),
        *parts,
        el("g", *points, class_="points"),
        el("g", *words, *names, class_="above", aria_hidden="true"),
        data_y0=frame.y0,
        data_y1=frame.y1,
        data_n=len(order),
    )


# -- groups side by side ---------------------------------------------------------------------------

NAME_ROOM = 112  # for the name of a coefficient
ROW_TOP = 8


def coefficient_picture(c: Coefficients, sizes: Sequence[int]) -> Markup:
    """One strip per coefficient, each with its own scale: the groups' values and intervals."""
    groups = sorted(np.argsort(-np.array(sizes), kind="stable")[:MOST_GROUPS].tolist())
    step = 11 if len(groups) <= 4 else 8
    strip = step * len(groups) + (26 if len(groups) > 1 else 33)
    rows = [j for j in c.users if not c.extra[j]][: max(2, (HEIGHT - ROW_TOP) // strip)]
    parts = [_strip(c, j, groups, ROW_TOP + at * strip, step, strip) for at, j in enumerate(rows)]
    title = (
        f"Coefficients of {len(groups)} group{'s' * (len(groups) != 1)}"
        f"{' with 95 % intervals' * c.sure}, in the table's units; the numbers are in the table of "
        "coefficients."
    )
    return picture("coef", title, *parts, height=max(ROW_TOP + strip * len(rows), 120))


def _middle(c: Coefficients, j: int) -> tuple[float, float]:
    """Between which nine of ten users lie in a coefficient."""
    own = c.user[:, list(c.users).index(j)]
    known = own[np.isfinite(own)]
    low, high = np.percentile(known, [5, 95]) if len(known) else (np.inf, -np.inf)
    return float(low), float(high)


def _strip(
    c: Coefficients, j: int, groups: Sequence[int], top: float, step: float, strip: float
) -> Markup:
    values = c.group[groups, j]
    half = np.nan_to_num(Z95 * c.group_se[groups, j])
    inner, outer = _middle(c, j)  # of the users, who are shown in it when they are selected
    low, high = min(float((values - half).min()), inner), max(float((values + half).max()), outer)
    if low < 0 < high or abs(low + high) < 2 * (high - low):
        low, high = min(low, 0.0), max(high, 0.0)
    room = 0.06 * max(high - low, 1e-9 * abs(high), 1e-12)
    low, high = low - room, high + room
    left, right = NAME_ROOM, WIDTH - 16

    def x(value: float) -> float:
        return left + (value - low) / (high - low) * (right - left)

    base = top + strip - 18
    at_name = {"x": NAME_ROOM - 10, "y": _at((top + base) / 2 + 4), "class_": "label end"}
    parts = [el("text", short(c.names[j], 20), **at_name)]
    if len(c.names[j]) > 20:
        parts.append(el("title", c.names[j]))
    for v, text in ticks(low, high, 4):
        kind = "zero" if v == 0 else "grid"
        parts.append(el("line", x1=_at(x(v)), x2=_at(x(v)), y1=_at(top), y2=_at(base), class_=kind))
        parts.append(el("text", text, x=_at(x(v)), y=_at(base + 11), class_="tick mid"))

    def line(start: float, end: float, y: float, kind: str) -> Markup:
        return el("line", class_=kind, x1=_at(x(start)), x2=_at(x(end)), y1=_at(y), y2=_at(y))

    if len(groups) == 1 and np.isfinite(inner):  # how far users lie from what holds for all
        parts.append(line(inner, outer, base - 4, "range"))
    for at, k in enumerate(groups):
        y = top + step * (at + 0.5) + 2
        value, wide = float(c.group[k, j]), float(Z95 * c.group_se[k, j])
        if math.isfinite(wide):
            parts.append(line(value - wide, value + wide, y, f"bar c{style_of(k)[0]}"))
        parts.append(mark(k, x(value), y))
    data = {
        "data_j": list(c.users).index(j),
        "data_low": low,
        "data_high": high,
        "data_top": top,
        "data_base": base,
    }
    return el("g", *parts, class_="strip", **data)


# -- what was weighed ------------------------------------------------------------------------------


def options_picture(found: Options) -> Markup:
    """Every alternative as a bar, the taller the better; how many groups stands below each row."""
    scores = np.array([one.score for one in found.options])
    known = scores[np.isfinite(scores)]
    n = len(scores)
    low = float(known.min())
    small = found.measure in ("evidence", "elbow")
    # Evidence differs by hundreds, and a few make the choice: gaps are drawn as their logarithm.
    gaps = np.log1p(scores - low) if small else scores - low
    span = max(float(gaps[np.isfinite(gaps)].max()), 1e-12)
    height, left, right, top, bottom = 122, 8, WIDTH - 8, 8, 86
    parts = []
    wide = (right - left) / max(n, 1)
    for i, gap in enumerate(gaps.tolist()):
        share = gap / span if math.isfinite(gap) else 1.0
        tall = (share if not small else 1 - share) * (bottom - top - 6) + 6
        kind = "option chosen" if i == found.chosen else "option"
        place = {"x": _at(left + i * wide + wide * 0.15), "y": _at(bottom - tall)}
        size = {"width": _at(wide * 0.7), "height": _at(tall)}
        about = el("title", found.options[i].words)
        parts.append(el("rect", about, class_=kind, data_i=i, **place, **size))
    counts = [one.groups for one in found.options]
    last = 0.0
    for k in sorted(set(counts)):  # bars of one number of groups stand side by side
        middle = left + (counts.index(k) + 0.5 * counts.count(k)) * wide
        if middle - last >= 16:
            parts.append(el("text", f"{k}", class_="tick mid", x=_at(middle), y=bottom + 14))
            last = middle
    parts.append(el("text", "number of groups", x=WIDTH / 2, y=height - 4, class_="label mid"))
    title = "; ".join(f"{one.words}" for one in found.options[:6])
    return picture("options", f"What was weighed: {title}", joined(parts), height=height)


# -- what columns do to predictions ----------------------------------------------------------------


def curve_figure(at: int, c: CurveFacts) -> tuple[Markup, str]:
    """A curve with its band and some users' own, and what is to be said of it."""
    some = np.linspace(0, len(c.own) - 1, min(len(c.own), MOST_THIN)).astype(int)
    thin = np.empty((0, len(c.x))) if c.alike else c.own[some] @ c.rows.T
    every = np.vstack([c.low, c.high, thin])
    low, high = float(np.nanmin(every)), float(np.nanmax(every))
    room = 0.05 * max(high - low, 1e-12)
    frame = Frame(float(c.x[0]), float(c.x[-1]), low - room, high + room)

    def path(x: Floats, y: Floats, kind: str) -> Markup:
        places = zip(map(frame.x, x.tolist()), map(frame.y, y.tolist()), strict=True)
        return el("path", d="M" + "L".join(f"{u:.1f},{v:.1f}" for u, v in places), class_=kind)

    lines = [path(c.x, y, "thin") for y in thin]
    lines.append(path(np.append(c.x, c.x[::-1]), np.append(c.low, c.high[::-1]), "band"))
    lines.append(path(c.x, c.common, "theirs thick"))
    axes = frame.axes(short(c.name, 54), short(f"added to {c.adds_to}", 54))
    about = (
        f"What it adds to {c.adds_to}, relative to its average. The thick line is what all users "
        f"have in common, with its 90 % band{'; thin lines are users' * (len(thin) > 0)}."
    )
    title = f"The curve of {c.name}. {about}"
    shown = picture(f"curve{at}", title, axes, *lines, data_y0=frame.y0, data_y1=frame.y1)
    return shown, about


def share_figure(shares: Sequence[tuple[str, float]]) -> tuple[Markup, str]:
    """Shares as bars, and what they are."""
    left, step, parts = 1.5 * NAME_ROOM, 24, list[Markup]()
    wide = (WIDTH - 60 - left) / max(abs(share) for _, share in shares)
    for at, (name, share) in enumerate(shares):
        y, size = ROW_TOP + step * at, wide * abs(share)
        box = {"x": left, "y": y, "width": f"{size:.1f}", "height": step - 8}
        parts += [
            el("text", short(name, 26), x=left - 8, y=y + 12, class_="label end"),
            el("rect", class_="option chosen" if share > 0 else "option", **box),
            el("text", f"{100 * share:.3g} %", x=f"{left + size + 5:.1f}", y=y + 12, class_="tick"),
        ]
    title = "; ".join(f"{name}: {100 * share:.3g} %" for name, share in shares)
    about = (
        "Shares of the variance of all predictions. Columns carry what all users have in common; a "
        "share below zero works against the others."
    )
    return picture("shares", title, *parts, height=ROW_TOP + step * len(shares)), about
