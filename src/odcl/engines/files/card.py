"""The task card: TOML in a fixed layout, with a sentence beside each entry, and back to a task.

What is read is checked entry by entry: a card may come from anyone, by e-mail.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from odcl.engines.files import toml
from odcl.engines.files.task import (
    CAREFUL,
    FORMAT,
    MISSING,
    MOST_PARAMETERS,
    Feature,
    Task,
)
from odcl.engines.files.toml import CardError, Entries, entry
from odcl.errors import show
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.risk.losses import loss_from_json, loss_to_json
from odcl.risk.risk import Risk

# Settings of a method that stand among the limits; columns are in the card's scale.
ELSEWHERE = {"short_terms", "smallest_group", "standardize"}

# -- from a card -------------------------------------------------------------------------------


def task_of_card(values: dict[str, Any]) -> Task:
    """The task of a card's tables; a CardError says what is wrong with which entry."""
    top = Entries(values, "")
    form = top.take("format", toml.is_whole, f"the format of the card, {FORMAT}")
    if form != FORMAT:
        newer = "newer" if form > FORMAT else "other"
        raise CardError(
            f"it has format {form}, and this odcl reads {FORMAT}: use a {newer} version"
        )
    name, number = top.text("name"), top.count("round", 1, 1)
    target = Entries(top.take("target", _is_table, "the table of the target"), "target")
    column, classes = target.text("column"), target.take("classes", _is_list, "a list", None)
    target.done()
    listed = top.take("feature", _is_list, "one [[feature]] after the other")
    features = tuple(_feature_of(one) for one in listed)
    risk = _risk_of(Entries(top.take("risk", _is_table, "a table"), "risk"), classes)
    method = Entries(top.take("method", _is_table, "a table", {}), "method")
    limits = Entries(top.take("limits", _is_table, "a table", {}), "limits")
    taken = {
        "missing": limits.one_of("missing", MISSING, "error"),
        "smallest_cell": limits.count("smallest_cell", 1, 5),
        "minimum_rows": limits.count("minimum_rows", 1, 5),
    }
    held = {
        "short_terms": limits.truth("short_terms", CAREFUL.short_terms),
        "smallest_group": limits.count("minimum_group", 1, CAREFUL.smallest_group),
    }
    once = "float64, as all uploads are now: make a new card"  # cards of earlier versions say it
    limits.take("dtype", lambda value: value == "float64", once, "float64")
    limits.done()
    allowed = Entries(top.take("leaves", _is_table, "a table"), "leaves").rest()
    keys = _keys_of(top.take("keys", _is_table, "a table", {}))
    top.done()
    listed_classes = None if classes is None else tuple(classes)
    how = _method_of(method, held)
    task = Task(name, features, column, risk, listed_classes, how, number, **taken, **keys)
    _check_leaves(task, allowed)
    return task


def _is_table(value: Any) -> bool:
    return isinstance(value, dict)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 10**5


def _feature_of(values: Any) -> Feature:
    one = Entries(values, "feature")
    name, kind = one.text("name"), one.one_of("type", ("number", "category"), "number")
    if kind == "category":
        levels = tuple(one.take("levels", _is_list, "a list of the levels"))
        feature = Feature(name, levels, other=one.truth("other", False))
    else:
        feature = Feature(
            name, None, float(one.number("shift", 0.0)), float(one.number("scale", 1.0))
        )
    one.done()
    return feature


def _risk_of(table: Entries, classes: list[Any] | None) -> Risk:
    name, l2 = table.text("loss"), table.number("l2", 0.0)
    intercept = table.truth("intercept", True)
    words = {"name": name}
    if name == "huber":
        words["delta"] = table.number("delta")
    if name == "multinomial" and len(classes or ()) > MOST_PARAMETERS:
        raise CardError(f"{len(classes or ())} classes are more than {MOST_PARAMETERS}")
    if name == "multinomial":
        words["n_classes"] = len(classes or ())
    table.done()
    return Risk(loss_from_json(words), l2, intercept)


def _method_of(table: Entries, held: dict[str, Any]) -> Method:
    """The method; what limits what may leave stands among the limits."""
    known = {f.name for f in fields(Method)} - ELSEWHERE
    words = table.rest()
    for name in words:
        if name not in known:
            raise CardError(f"{table.named(name)} is not known to a method")
    if "clusterer" in words:
        words["clusterer"] = toml.clusterer_of(words["clusterer"])
    return Method(**words, **held)


def _keys_of(values: Any) -> dict[str, Any]:
    table = Entries(values, "keys")
    own = _key_list(table.take("coordinator", _is_list, "a list of keys", []))
    sites = Entries(table.take("sites", _is_table, "a table", {}), "keys.sites").rest()
    table.done()
    for site, listed in sites.items():
        if not _is_list(listed) or not listed:
            raise CardError(f"the keys of {site!r} are {show(listed)}, and no list of keys")
    return {"coordinator": own, "sites": {site: _key_list(v) for site, v in sites.items()}}


def _key_list(values: list[Any]) -> tuple[str, ...]:
    return tuple(value.lower() if isinstance(value, str) else value for value in values)


def _check_leaves(task: Task, allowed: dict[str, Any]) -> None:
    """What may leave is what the method needs, neither more nor less, and all agree to it."""
    parts = Uploads.parts()
    for name, value in allowed.items():
        if name not in parts:
            raise CardError(f"{name!r} in [leaves] is no field of an upload")
        if not isinstance(value, bool):
            raise CardError(f"{name!r} in [leaves] is {show(value)}, and not true or false")
    needed = task.leaves
    for name in needed:
        if not allowed.get(name, False):
            raise CardError(f"the method needs {name!r}, which [leaves] does not allow")
    more = [name for name, value in allowed.items() if value and name not in needed]
    if more:
        raise CardError(f"{more[0]!r} in [leaves] is allowed, and the method does not need it")


# -- to a card ---------------------------------------------------------------------------------


def card_lines(task: Task) -> list[str]:
    """The lines of a card."""
    return [
        "# Task card of a federation by file: agreed by all sites, once, before anything leaves.",
        "# Every file of the task carries the digest of this card (all of it but the keys), and a",
        "# file of another card is refused. Change something, and it is another task.",
        "",
        entry("format", FORMAT),
        entry("name", task.name),
        entry("round", task.round, "a new round of the same task has the next number"),
        "",
        "[target]",
        entry("column", task.target),
        *([] if task.classes is None else [entry("classes", task.classes)]),
        *(line for one in task.features for line in _feature_lines(one)),
        "",
        "[risk]  # what every user minimises",
        *_risk_lines(task.risk),
        "",
        "[method]  # how groups are found, combined and used",
        *_method_lines(task.method),
        "",
        "[leaves]  # what leaves a site, for each of its users; rows never leave",
        *(line for name, tells in task.leaves.items() for line in ("# " + tells, f"{name} = true")),
        "",
        "[limits]",
        *_limit_lines(task),
        "",
        *_key_lines(task),
    ]


def _feature_lines(one: Feature) -> list[str]:
    head = ["", "[[feature]]", entry("name", one.name)]
    if one.levels is not None:
        levels = entry("levels", one.levels, "the first is the reference")
        other = entry("other", one.other, 'do levels that are not listed count as "other"?')
        return [*head, entry("type", "category"), levels, other]
    scaling = [entry("shift", one.shift), entry("scale", one.scale)]
    return [*head, entry("type", "number"), *scaling]


def _risk_lines(risk: Risk) -> list[str]:
    words = loss_to_json(risk.loss)
    more = [entry("delta", words["delta"])] if "delta" in words else []
    return [
        entry("loss", words["name"]),
        *more,
        entry("l2", risk.l2),
        entry("intercept", risk.intercept),
    ]


def _method_lines(method: Method) -> list[str]:
    lines = []
    for one in (f for f in fields(Method) if f.name not in ELSEWHERE):
        value = getattr(method, one.name)
        value = toml.clusterer_word(value) if one.name == "clusterer" else value
        lines.append(entry(one.name, "none" if value is None else value))
    return lines


def _limit_lines(task: Task) -> list[str]:
    return [
        entry("missing", task.missing, "rows that lack a value: error, drop, or mean (the shift)"),
        entry("short_terms", task.method.short_terms, "may terms of users with fewer rows than"),
        "#                              parameters leave? They give away the span of the rows; if",
        "#                              not, such users send the average of theirs",
        entry(
            "smallest_cell", task.smallest_cell, "rows of a level seen fewer times at a user are"
        ),
        "#                              withheld, and users with a class seen fewer times",
        entry("minimum_rows", task.minimum_rows, "users with fewer rows send nothing"),
        entry("minimum_group", task.minimum_group, "distinct sites that a group needs"),
    ]


def _key_lines(task: Task) -> list[str]:
    if not task.signed:
        return [
            "# No keys: files are not signed, and whoever carries them can change them. For",
            "# signatures: `odcl site keys` at every site, then `odcl task keys` here.",
        ]
    return [
        "[keys]  # public keys, as `odcl site keys` wrote them; two while one is being replaced",
        entry("coordinator", task.coordinator),
        "",
        "[keys.sites]",
        *(entry(site, own) for site, own in sorted(task.sites.items())),
    ]
