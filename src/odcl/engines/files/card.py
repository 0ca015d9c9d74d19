"""The task card: TOML in a fixed layout, with a sentence beside each entry, and back to a task.

What is read is checked entry by entry: a card may come from anyone, by e-mail.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from odcl.clustering.spec import BY_RULE, WITH_K, ClustererSpec, clusterer_spec
from odcl.declared import HasDefaults, Label, Positive, from_json
from odcl.engines.files.task import (
    CAREFUL,
    FORMAT,
    MOST_PARAMETERS,
    Feature,
    Missing,
    Task,
    Values,
)
from odcl.errors import show
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.privacy import Privacy
from odcl.risk.losses import loss_from_json, loss_to_json
from odcl.risk.risk import Risk

MOST_DEPTH = 32  # of lists in lists, before TOML's reader sees them
# Fields of a method that stand among the limits, are settled by the card, or follow from others.
ELSEWHERE = {"short_terms", "smallest_group", "standardize", "privacy", "fallback", "curves"}

# -- what a card may say ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Target(HasDefaults):
    column: Label
    classes: Values | None = None


@dataclass(frozen=True)
class _Risk(HasDefaults):
    loss: Label
    l2: float = 0.0
    intercept: bool = True
    delta: float | None = None

    def to_risk(self, n_classes: int) -> Risk:
        words: dict[str, Any] = {"name": self.loss}
        if self.delta is not None:
            words["delta"] = self.delta
        if self.loss == "multinomial":
            if n_classes > MOST_PARAMETERS:
                raise ValueError(f"{n_classes} classes are more than {MOST_PARAMETERS}")
            words["n_classes"] = n_classes
        return Risk(loss_from_json(words), self.l2, self.intercept)


@dataclass(frozen=True)
class _Curves(HasDefaults):
    curves: bool | tuple[Label, ...] = False
    periodic: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Limits(HasDefaults):
    missing: Missing = "error"
    short_terms: bool = CAREFUL.short_terms
    smallest_cell: Positive = 5
    minimum_rows: Positive = 5
    minimum_group: Positive = CAREFUL.smallest_group


@dataclass(frozen=True)
class _Privacy(HasDefaults):
    epsilon: float
    delta: float
    row_norm: float | None = None
    target_range: tuple[float, float] | None = None


@dataclass(frozen=True)
class _Keys(HasDefaults):
    coordinator: tuple[str, ...] = ()
    sites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Card(HasDefaults):
    format: int
    name: Label
    target: _Target
    feature: tuple[Feature, ...]
    risk: _Risk
    leaves: Mapping[str, bool]
    round: Positive = 1
    method: Mapping[str, Any] = field(default_factory=dict)
    limits: _Limits = field(default_factory=_Limits)
    privacy: _Privacy | None = None
    keys: _Keys = field(default_factory=_Keys)


# -- from a card -----------------------------------------------------------------------------------


def read_card(content: bytes) -> Task:
    """The task of a card; a ValueError says what is wrong with which entry."""
    values = _parse_toml(content)
    number = values.get("format", FORMAT)
    if type(number) is int and number != FORMAT:
        newer = "newer" if number > FORMAT else "other"
        raise ValueError(
            f"it has format {number}, and this odcl reads {FORMAT}: use a {newer} version"
        )
    card: _Card = from_json(_Card, _without_old_entries(values))
    limits, classes, keys = card.limits, card.target.classes, card.keys
    bent = {k: v for k, v in card.method.items() if k in ("curves", "periodic")}
    words = {k: v for k, v in card.method.items() if k not in bent}
    curves: _Curves = from_json(_Curves, bent, "method")
    task = Task(
        card.name,
        card.feature,
        card.target.column,
        card.risk.to_risk(len(classes or ())),
        classes,
        _method_of(words, limits, card.privacy),
        card.round,
        limits.missing,
        limits.smallest_cell,
        limits.minimum_rows,
        tuple(map(str.lower, keys.coordinator)),
        {site: tuple(map(str.lower, own)) for site, own in keys.sites.items()},
        curves.curves,
        curves.periodic,
    )
    _check_leaves(task, card.leaves)
    return task


def _without_old_entries(values: dict[str, Any]) -> dict[str, Any]:
    """A card's tables without what earlier versions wrote and other entries tell."""
    features, limits = values.get("feature"), values.get("limits")
    for one in features if isinstance(features, list) else []:
        if isinstance(one, dict) and one.get("type") == (
            "category" if "levels" in one else "number"
        ):
            del one["type"]
    if isinstance(limits, dict) and limits.get("dtype") == "float64":
        del limits["dtype"]
    return values


def _method_of(words: Mapping[str, Any], limits: _Limits, privacy: _Privacy | None) -> Method:
    """The method; its settings that limit what may leave stand among the limits."""
    guarantee = None if privacy is None else Privacy(**vars(privacy))
    known = {f.name for f in fields(Method)} - ELSEWHERE
    for name in words:
        if name not in known:
            raise ValueError(f"method.{name} is not known")
    own = dict(words)
    if "clusterer" in own:
        own["clusterer"] = _clusterer_of(own["clusterer"])
    own |= {"short_terms": limits.short_terms, "smallest_group": limits.minimum_group}
    return Method(**own, privacy=guarantee)


def _check_leaves(task: Task, allowed: Mapping[str, bool]) -> None:
    """What may leave is what the method needs, neither more nor less, and all agree to it."""
    for name in allowed:
        if name not in Uploads.parts():
            raise ValueError(f"leaves.{name} is no field of an upload: make the card anew")
    for name in task.leaves:
        if not allowed.get(name, False):
            raise ValueError(f"the method needs {name!r}, which [leaves] does not allow")
    for name, value in allowed.items():
        if value and name not in task.leaves:
            raise ValueError(f"leaves.{name} is allowed, and the method does not need it")


def _parse_toml(content: bytes) -> dict[str, Any]:
    """The tables of a card."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    if max(_depths(text), default=0) > MOST_DEPTH:
        raise ValueError(f"it is nested more than {MOST_DEPTH} deep")
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError, OverflowError) as error:
        raise ValueError(f"it is no TOML: {error}") from None


def _depths(text: str) -> Iterator[int]:
    """How deep brackets lie, line by line; those in texts count as well, and hardly matter."""
    depth = 0
    for sign in text:
        if sign in "[{":
            depth += 1
            yield depth
        elif sign in "]}":
            depth = max(depth - 1, 0)


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
        *_method_lines(task),
        "",
        "[leaves]  # what leaves a site, for each of its users; rows never leave",
        *([f"# Bends are among the features: {task.bends}"] if task.bends else []),
        *(line for name, tells in task.leaves.items() for line in ("# " + tells, f"{name} = true")),
        "",
        *_privacy_lines(task.method.privacy),
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
        return [*head, levels, other]
    return [*head, entry("shift", one.shift), entry("scale", one.scale)]


def _risk_lines(risk: Risk) -> list[str]:
    words = loss_to_json(risk.loss)
    more = [entry("delta", words["delta"])] if "delta" in words else []
    return [
        entry("loss", words["name"]),
        *more,
        entry("l2", risk.l2),
        entry("intercept", risk.intercept),
    ]


_COMMENTS = {"robust": "among six sites or more a bad upload cannot spoil others' models"}


def _method_lines(task: Task) -> list[str]:
    lines, method = [], task.method
    for one in (f for f in fields(Method) if f.name not in ELSEWHERE):
        value = getattr(method, one.name)
        value = _clusterer_word(value) if one.name == "clusterer" else value
        comment = _COMMENTS.get(one.name, "") if value else ""
        lines.append(entry(one.name, "none" if value is None else value, comment))
    lines.append(entry("curves", task.curves, "numbers that may act in curves: true (all with a"))
    lines.append(
        "#                              shift and a scale) or a list of names; false: lines"
    )
    return lines + [entry("periodic", task.periodic)] * bool(task.periodic)


def _privacy_lines(privacy: Privacy | None) -> list[str]:
    if privacy is None:
        return []
    bounds = {"row_norm": privacy.row_norm, "target_range": privacy.target_range}
    return [
        "[privacy]  # noise hides any row of a user: see `odcl inspect`. Bounds are public, and so",
        "#            are the features' shift and scale above: never read off anybody's rows",
        entry("epsilon", privacy.epsilon),
        entry("delta", privacy.delta),
        *(entry(name, value) for name, value in bounds.items() if value is not None),
        "",
    ]


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
        entry("minimum_group", task.method.smallest_group, "distinct sites that a group needs"),
    ]


def _key_lines(task: Task) -> list[str]:
    if not task.signed:
        return [
            "# No keys: files are not signed, and can be changed on their way. For signatures:",
            "# `odcl site keys` at every site, then `odcl task keys` here.",
        ]
    return [
        "[keys]  # public keys, as `odcl site keys` wrote them; two while one is being replaced",
        entry("coordinator", task.coordinator),
        "",
        "[keys.sites]",
        *(entry(site, own) for site, own in sorted(task.sites.items())),
    ]


# -- TOML ------------------------------------------------------------------------------------------


def _value(value: Any) -> str:
    """A text, number, truth value, list or flat table as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value if isinstance(value, int) else float(value))  # NumPy's too
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items())} }}"
    return f"[{', '.join(map(_value, value))}]"


def entry(name: str, value: Any, comment: str = "") -> str:
    """One line; ``comment`` behind it."""
    line = f"{_key(name)} = {_value(value)}"
    return f"{line:<28} # {comment}" if comment else line


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "_").replace("_", "a").isalnum()
    return name if bare else _value(name)


def _clusterer_word(spec: ClustererSpec) -> Any:
    """As people write it: ``"auto"``, ``"kmeans:4"``; a table where there is no such word."""
    counts = [value for _, value in spec.params if type(value) is int]
    words = [*BY_RULE, *counts, *(f"{m}:{k}" for m in ("auto", *WITH_K) for k in counts)]
    return next((word for word in words if clusterer_spec(word) == spec), spec.to_json())


def _clusterer_of(word: Any) -> ClustererSpec:
    if isinstance(word, dict):
        return ClustererSpec.from_json(word)
    if not isinstance(word, str | int) or isinstance(word, bool):
        raise ValueError(f"method.clusterer is {show(word)}, and no rule")
    return clusterer_spec(word)
