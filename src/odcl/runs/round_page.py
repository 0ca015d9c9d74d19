"""The coordinator's page of a round by file: sites in place of users.

It is made of the round's own report, its card and its groups, which the card's rules have shaped
(how small a group may be, what is withheld), and of nothing else: no upload is looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from odcl.fitted.value import Fitted, InputColumns, Newcomers, UserColumns
from odcl.mixed.differences import curves_text
from odcl.report.by_file import round_tables
from odcl.report.page import Markup, el, joined, page, svg
from odcl.report.page.facts import Section, Table
from odcl.report.page.sections import (
    coefficient_section,
    figure_block,
    group_figure,
    navigation,
    section_block,
)
from odcl.report.text import count, finding
from odcl.runs.page import coefficients, units_of
from odcl.runs.page_models import curve_facts
from odcl.server.assign import GroupStatistics
from odcl.wide.moments import mixed_only, models_without_rows

if TYPE_CHECKING:
    from odcl.engines.files.round import RoundGroups
    from odcl.engines.files.task import Task

MOST_SITES = 24  # in the picture; the table has all
ROW = 20


def round_page(words: dict[str, Any], task: Task, groups: RoundGroups) -> bytes:
    """The page of a round; ``words`` is its report as JSON."""
    named = f"Round {task.round} of {task.name}"
    found = [*_sections(words, task), _privacy(task), _provenance(words, task)]
    pictures, shown, bent = [_sites(words)], None, ""
    mixture = mixed_only(groups.mixture)
    if mixture is not None:  # which the round tells to everybody
        bent = curves_text(mixture, task.risk, task.columns)
        fitted, nobody = _fitted(task, groups), np.zeros(0, np.intp)
        classes = [str(label) for label in task.classes or ()]
        shown = coefficients(fitted, nobody, units_of(fitted, classes, centered=True))
        pictures.append(group_figure(shown, groups.sizes.tolist()))
        pictures += [
            figure_block(f"curve{at}", f"The curve of {one.name}", *svg.curve_figure(at, one))
            for at, one in enumerate(curve_facts(fitted, nobody, classes))
        ]
    places = [(one.name, one.title.split(":")[0]) for one in found]
    header = el(
        "header",
        el("p", f"odcl combine: {named}", class_="eyebrow"),
        el("h1", _headline(words)),
        el("p", f"{words['diagnosis']} {bent}".rstrip(), class_="lead"),
        navigation(places),
    )
    parts: list[Markup | None] = [el("div", *pictures, class_="three")]
    parts += [section_block(one) for one in found[:1]]
    if shown is not None:
        parts.append(coefficient_section(shown))
    parts += [section_block(one) for one in found[1:]]
    body = joined([header, el("main", *parts, id="main")])
    return page(named, body, svg.symbols())


def _fitted(task: Task, groups: RoundGroups) -> Fitted:
    """The groups as a fit without users."""
    assert groups.mixture is not None
    models, none = models_without_rows(groups.mixture, task.risk)[0], np.zeros(0, np.intp)
    known = GroupStatistics(models[:-1], groups.sizes, groups.sizes.astype(np.float64))
    return Fitted(
        InputColumns.of_schema(task.schema("", "str")),
        *(task.scaling, task.risk, task.resolved, groups.rule, groups.reason, models[:-1]),
        *(groups.mixture, None, Newcomers.of(known, models[-1])),
        *(UserColumns(none, none, models[:0, 0], none, models[:0]), None),
    )


def _headline(words: dict[str, Any]) -> str:
    """Groups, differences and sites in a sentence."""
    sites, k = words["sites"], len(words["groups"])
    users = sum(one["users"] for one in sites.values())
    among = f"{count(len(sites), 'site')} with {count(users, 'user')}"
    return f"{finding(k, among, words['differences'] or None)}."


def _sites(words: dict[str, Any]) -> Markup:
    """One bar per site: the share of its users in each group, named by number."""
    k, parts = len(words["groups"]), []
    left, right = svg.NAME_ROOM, svg.WIDTH - 40
    some = list(words["sites"].items())[:MOST_SITES]
    for at, (site, one) in enumerate(some):
        sizes = np.bincount(np.array(one["groups"], dtype=np.intp), minlength=k)
        top, x = 6 + at * ROW, float(left)
        parts.append(el("text", svg.short(site, 17), x=left - 8, y=top + 12, class_="label end"))
        for g in np.flatnonzero(sizes).tolist():
            wide = (right - left) * sizes[g] / max(int(sizes.sum()), 1)
            colour = svg.style_of(g)[0]
            told = el("title", f"{site}: {count(int(sizes[g]), 'user')} in group {g}")
            size = {"x": f"{x:.1f}", "y": top, "width": f"{max(wide - 1, 0.5):.1f}", "height": 15}
            parts.append(el("rect", told, class_=f"c{colour}", **size))
            if wide > 14:
                middle = {"x": f"{x + wide / 2:.1f}", "y": top + 12}
                parts.append(el("text", f"{g}", class_="on-bar mid", **middle))
            x += wide
        parts.append(el("text", f"{one['users']:,}", x=right + 6, y=top + 12, class_="tick"))
    title = "Which groups the users of each site are in; the table of sites has the numbers."
    picture = svg.picture("sites", title, *parts, height=12 + ROW * max(len(some), 1))
    more = len(words["sites"]) - len(some)
    note = f"{count(more, 'more site')} in the table." if more > 0 else ""
    about = "Bars: shares of a site's users by the number of their group; right: how many users."
    return figure_block("sites-picture", "Who is where", picture, about, note)


def _sections(words: dict[str, Any], task: Task) -> list[Section]:
    groups, sites, ledgers = round_tables(words)
    tables = [groups, sites] if words["groups"] else [sites]
    found = [Section("groups", "Groups and sites", (words["reason"],), tables)]
    if words["set_aside"]:
        rows = [(one["file"], one["reason"]) for one in words["set_aside"]]
        table = Table(("file", "why"), rows, (1,))
        found.append(Section("aside", "Set aside", (), (table,)))
    if words["outliers"]:
        rows = [(one["user"], one["text"].partition(": ")[2]) for one in words["outliers"]]
        table = Table(("site", "why"), rows, (1,))
        about = "These take no part in others' models; each is placed by what it sent itself."
        found.append(Section("outliers", "Uploads unlike all others", (about,), (table,)))
    about = (
        f"FedAvg and IFCA in {words['bytes']['FedAvg']['rounds']} rounds, with numbers of 8 bytes "
        "and every user a client."
    )
    found.append(Section("bytes", "Bytes", (about,), (ledgers,)))
    return found


def _privacy(task: Task) -> Section:
    rows = [(name.replace("_", " "), tells) for name, tells in task.leaves.items()]
    if task.method.privacy is not None:
        words = task.method.privacy.sentences
    else:
        words = (
            f"The card asks this of every user, and nothing else; a level or class seen fewer than "
            f"{task.smallest_cell} times at a user is withheld, users with fewer than "
            f"{task.minimum_rows} rows send nothing, and no group has fewer than "
            f"{task.method.smallest_group} sites.",
        )
    words = (
        *words,
        "This page names sites and counts their users. It holds no user's name, model or rows.",
    )
    table = Table(("sent", "what it tells"), rows, (1,))
    return Section("privacy", "Privacy: what left a user", words, (table,))


def _provenance(words: dict[str, Any], task: Task) -> Section:
    stamp = words["task"]
    rows = [
        ("task", f"{stamp['name']}, round {stamp['round']}"),
        ("SHA-256 of the card", str(stamp["sha256"])),
        ("files", "signed" if words["signed"] else "not signed: the card lists no keys"),
        ("loss", f"{task.risk.loss.name}, l2 {task.risk.l2:g}"),
        ("method", f"{task.resolved.clusterer}"),
        ("rule", str(words["rule"])),
    ]
    table, code = Table(("", ""), rows, (1,)), "odcl combine task.toml UPLOADS --out ROUND"
    return Section("provenance", "Where it comes from", (), (table,), code=code)
