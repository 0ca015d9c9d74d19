"""Parts of the page in HTML: sections, tables, and the whole body of a fit's report."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from odcl.errors import number
from odcl.report.page import Markup, el, joined, page, svg
from odcl.report.page.facts import Coefficients, FitFacts, Section, Table
from odcl.report.text import count

MOST_STATIC = 100  # users listed without a script
MOST_LISTED = 1_000  # coefficients in their table
MOST_CHIPS = 56  # groups that can be filtered by


def fit_page(facts: FitFacts) -> bytes:
    """The report of a fit."""
    return page(facts.title, _body(facts), svg.symbols(), facts.to_json())


def section_block(one: Section, *more: Markup) -> Markup:
    """A section with its words, tables, lists and command."""
    parts: list[Markup] = [el("h2", one.title)]
    parts += [el("p", text) for text in one.words]
    parts += [table_block(table) for table in one.tables]
    if one.lists:
        parts.append(el("ul", *(el("li", text) for text in one.lists)))
    if one.code:
        parts.append(el("pre", el("code", one.code)))
    return el("section", *parts, *more, id=one.name, class_="block")


def table_block(table: Table) -> Markup:
    """A table; its first column names the rows."""

    def side(column: int) -> str | None:
        return "left" if column in table.left else None

    head = [el("th", text, scope="col", class_=side(i)) for i, text in enumerate(table.header)]
    rows = [
        el(
            "tr",
            *(el("td", text, class_=side(i)) for i, text in enumerate(row)),
            class_="strong" if at == table.strong else None,
        )
        for at, row in enumerate(table.rows)
    ]
    named = el("thead", el("tr", *head)) if any(table.header) else None
    return el("div", el("table", named, el("tbody", *rows)), class_="scroll")


def navigation(some: Iterable[tuple[str, str]]) -> Markup:
    links = [el("a", title, href=f"#{name}") for name, title in some]
    return el("nav", *links, class_="inside no-print", aria_label="Sections")


# -- the report of a fit ---------------------------------------------------------------------------


def _body(facts: FitFacts) -> Markup:
    places = [("users", "Users"), ("coefficients", "Coefficients")]
    if facts.options is not None:
        places.insert(0, ("alternatives", "Alternatives"))
    places += [(one.name, one.title.split(":")[0]) for one in facts.sections]
    header = el(
        "header",
        el("p", f"odcl report: {facts.title}", class_="eyebrow"),
        el("h1", facts.verdict[0], id="verdict"),
        *(el("p", text, class_="lead") for text in facts.verdict[1:]),
        navigation(places),
    )
    parts = [
        _tools(facts),
        el(
            "div",
            _map(facts),
            _gain(facts),
            group_figure(facts.coefficients, [n for n, _ in facts.groups]),
            class_="three",
        ),
        _effects(facts),
        _alternatives(facts),
        Markup(_USER),
        el(
            "div",
            *(_users(facts), coefficient_section(facts.coefficients, _images(facts))),
            *(section_block(one) for one in facts.sections),
            class_="columns",
        ),
    ]
    live = el("p", id="live", class_="hidden", role="status", aria_live="polite")
    return joined([header, el("main", *parts, live, id="main")])


_FIND = (
    '<input id="find" type="search" autocomplete="off" spellcheck="false" role="combobox" '
    'aria-expanded="false" aria-controls="found" aria-autocomplete="list">'
    '<ul id="found" class="found" role="listbox" aria-label="Users found" hidden></ul>'
)
_STATE = (
    '<p class="state"><span id="state">No user selected.</span> '
    '<button id="clear" type="button" disabled>Clear</button></p>'
)
# The page of one user, which the script fills and shows when one is selected.
_USER = (
    '<section class="block needs-script" id="user" hidden>'
    '<h2 id="user-title" tabindex="-1">One user</h2><div id="user-body"></div></section>'
)
_PAGER = (
    '<div class="pager needs-script"><button type="button" id="previous">Previous</button>'
    '<span id="page"></span><button type="button" id="next">Next</button>'
    '<button type="button" id="save">Save as CSV</button></div>'
)


def _tools(facts: FitFacts) -> Markup:
    """Search, groups, and who is selected: for the script."""
    label = el("label", f"Find {facts.users.word} ", for_="find")
    shown = range(min(len(facts.groups), MOST_CHIPS)) if len(facts.groups) > 1 else ()
    chips = [
        el(
            "label",
            el("input", type="checkbox", checked=True, value=k, class_="filter"),
            svg.swatch(k),
            f"group {k} ({facts.groups[k][0]:,})",
        )
        for k in shown
    ]
    if chips:
        chips.append(el("button", "all", id="all-groups", type="button"))
    groups = el("fieldset", el("legend", "Show"), *chips, class_="chips") if chips else None
    find = el("div", label, Markup(_FIND), class_="find")
    return el("div", find, groups, Markup(_STATE), class_="tools needs-script", id="tools")


def figure_block(name: str, title: str, picture: Markup | None, *notes: str) -> Markup:
    """A picture in its card, with its title and what is to be said of it."""
    inside = el("div", picture, class_="plot", id=name) if picture is not None else None
    lines = [el("p", text, class_="note") for text in notes if text]
    return el("figure", el("figcaption", el("h2", title)), inside, *lines, class_="card")


def _map(facts: FitFacts) -> Markup:
    outside = ""
    if facts.map.outside:
        far = "lies" if facts.map.outside == 1 else "lie"
        outside = f"{count(facts.map.outside, 'user')} {far} beyond the frame."
    crosses = "Crosses are the groups' models. " if len(facts.groups) > 1 else ""
    crosses = crosses if len(facts.groups) <= svg.MOST_CROSSES else ""
    what = "how sure its place is" if facts.map.cov is not None else "more of it"
    select = f"{crosses}Select a user to see {what}."
    if facts.map.density is not None:
        select = f"The stronger the colour, the more users. Select one to see {what}."
    title = "Who is like whom"
    return figure_block(
        "map", title, svg.map_picture(facts), f"{facts.map.about} {select}", outside
    )


def _gain(facts: FitFacts) -> Markup:
    title = "What each user gains"
    if facts.gains is None:
        why = "No rows were held out, so gains are not known."
        return figure_block("gain", title, None, why)
    _, beyond = svg.gain_frame(facts.gains)
    picture = svg.gain_picture(facts.gains, facts.users)
    metric = facts.gains.metric
    better = "higher" if facts.gains.larger else "lower"
    about = (
        f"{metric} on held-out rows, a model of its own against odcl's. Above the line a user's "
        f"{metric} is {better} with odcl."
    )
    note = ""
    if beyond:
        note = f"{count(beyond, 'user')} beyond the frame, drawn at its border."
    return figure_block("gain", title, picture, about, note)


def group_figure(c: Coefficients, sizes: list[int]) -> Markup:
    """The groups' coefficients side by side; groups of ``sizes`` users."""
    several = len(sizes) > 1
    title = "How the groups differ" if several else "What holds for everybody"
    legend = [
        el("span", svg.swatch(k), f" group {k}  ") for k in range(min(len(sizes), svg.MOST_GROUPS))
    ]
    order = "the largest difference first"
    wide = ""
    if not several and len(c.user):
        order, wide = "the most varied first", " The broad line is nine of ten users."
    return el(
        "figure",
        el("figcaption", el("h2", title)),
        el("div", svg.coefficient_picture(c, sizes), class_="plot", id="coef"),
        el("p", *legend, class_="note no-print") if several else None,
        el("p", f"In the table's units, {order}. {c.about}{wide}", class_="note"),
        class_="card",
    )


def _effects(facts: FitFacts) -> Markup | None:
    """Columns that act in a curve, and whose doing the variance of predictions is."""
    cards = [
        figure_block(f"curve{at}", f"The curve of {curve.name}", *svg.curve_figure(at, curve))
        for at, curve in enumerate(facts.curves)
    ]
    if facts.shares:
        title = "What predictions depend on"
        cards.append(figure_block("shares", title, *svg.share_figure(facts.shares)))
    return el("div", *cards, class_="three effects") if cards else None


def _alternatives(facts: FitFacts) -> Markup | None:
    found = facts.options
    if found is None or len(found.options) < 2:
        return None
    at = found.chosen or 0
    slider = el(
        "div",
        el("label", "Another alternative: the map is coloured by its groups", for_="option"),
        el(
            "input",
            id="option",
            type="range",
            min=0,
            max=len(found.options) - 1,
            step=1,
            value=at,
            aria_valuetext=found.options[at].words,
        ),
        el("output", found.options[at].words, id="option-words", for_="option"),
        el("p", id="option-note", class_="note"),
    )
    rows = [(f"{one.groups}", one.words) for one in found.options]
    table = table_block(Table(("groups", "what"), rows, (1,), found.chosen))
    return el(
        "section",
        el("h2", "What else was weighed"),
        el("p", found.about, class_="about"),
        el(
            "div",
            el("div", svg.options_picture(found), class_="plot", id="options"),
            slider,
            class_="slide needs-script",
        ),
        el("details", el("summary", f"All {len(rows)} alternatives"), table),
        class_="block",
        id="alternatives",
    )


def _users(facts: FitFacts) -> Markup:
    """The assignment: all that fit with a script, the first ones without."""
    users, gains = facts.users, facts.gains
    grouped = len(facts.groups) > 1
    sure = grouped and bool(np.isfinite(users.sure).any())
    header = [users.word, *["group"] * grouped, "rows", *["how surely"] * sure]
    if gains is not None:
        header += [f"{gains.metric} alone", f"{gains.metric} with odcl", "gain"]
    rows = []
    for i in range(min(len(users), MOST_STATIC)):
        group = f"{users.group[i]}" if users.group[i] >= 0 else "none"
        row = [users.ids[i], *[group] * grouped, f"{users.rows[i]:,}"]
        row += [_percent(users.sure[i])] * sure
        if gains is not None:
            numbers = (gains.own[i], gains.ours[i], gains.gain[i])
            row += [number(float(v)) if math.isfinite(v) else "" for v in numbers]
        rows.append(row)
    static = table_block(Table(header, rows))
    left = users.total - len(rows)
    more = f"... and {count(left, 'more user')} (all in {users.listed})" if left > 0 else None
    title = el("h2", f"{count(users.total, 'user')}")
    return el(
        "section",
        title,
        el("p", facts.note, class_="about") if facts.note else None,
        el("div", static, el("p", more) if more else None, class_="no-script"),
        el("div", id="table", class_="scroll needs-script"),
        Markup(_PAGER),
        class_="block long",
        id="users",
    )


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return ""
    return f"{100 * value:.1f} %" if value < 0.9995 else "100 %"


def _images(facts: FitFacts) -> Markup | None:
    """The groups as pictures, where columns are pixels."""
    if facts.images is None:
        return None
    several = len(facts.groups) > 1
    names = [f"group {g}" if several else "everybody" for g in range(len(facts.images.groups))]
    shown = [
        el("p", el("img", src=address, alt=f"Columns of {name} as pixels", class_="pixels"), name)
        for name, address in zip(names, facts.images.groups, strict=True)
    ]
    return el("div", el("p", facts.images.about, class_="about"), *shown)


def coefficient_section(c: Coefficients, images: Markup | None = None) -> Markup:
    """The groups' models as a table, with intervals."""
    k = len(c.group)
    shown = set(c.users)
    order = [*c.users, *(j for j in range(len(c.names)) if j not in shown)][:MOST_LISTED]
    header = ["coefficient", *(f"group {g}" for g in range(k))]
    if k == 1:
        header[1] = "everybody"
    rows = [[c.names[j], *(_interval(c, g, j) for g in range(k))] for j in order]
    about = (
        f"In the table's units{', with half the width of the 95 % interval' * c.sure}. (level) is "
        "the prediction for average features, (intercept) that for features of zero."
    )
    left = len(c.names) - len(rows)
    if left:
        about += f" The {len(rows)} that differ most; {left:,} more are in the run."
    table = table_block(Table(header, rows))
    block = table if len(rows) * k <= 400 else el("details", el("summary", "Show"), table)
    return el(
        "section",
        el("h2", "Coefficients" if k == 1 else "Coefficients of the groups"),
        images,
        el("p", about, class_="about"),
        block,
        class_="block long",
        id="coefficients",
    )


def _interval(c: Coefficients, g: int, j: int) -> str:
    value, error = float(c.group[g, j]), float(c.group_se[g, j])
    half = svg.Z95 * error
    known = f" ± {number(half, 2)}" if math.isfinite(half) else ""
    return f"{number(value, step=half)}{known}"
