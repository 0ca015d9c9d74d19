"""``report.html``, the page of a fit: a function of the fit and of what speaks for it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

import numpy as np
from scipy.optimize import linear_sum_assignment

from odcl._typing import Floats, Ints
from odcl.errors import number
from odcl.evaluate import Comparison
from odcl.files import atomic_path, check_replace
from odcl.fitted.predict import averages
from odcl.fitted.value import Fitted
from odcl.mixed.differences import DIFFER
from odcl.mixed.posterior import APART
from odcl.report.page.facts import (
    Coefficients,
    FitFacts,
    Gains,
    Held,
    Option,
    Options,
    TableUnits,
    Users,
)
from odcl.report.page.sections import fit_page
from odcl.report.text import count, finding, shown_id, verdict
from odcl.risk.risk import most_parameters
from odcl.runs.evidence import MOST_ROWS, Evidence
from odcl.runs.page_models import (
    SLOPES,
    chosen_users,
    curve_facts,
    group_errors,
    more_rows,
    own_models,
    user_map,
)
from odcl.runs.page_sections import sections, share_facts, user_images
from odcl.runs.run import group_sizes
from odcl.server.result import MEASURES, Alternatives

MOST_USERS = 10_000  # on the page one by one; above that the map is a density
MOST_NUMBERS = 400_000  # of users' coefficients, with errors: 2.1 MB in the page
LONG, SHORT = 120, 48  # characters of an id; short where there are many users
MANY = 2_000
MOST_HELD = 60_000  # held-out rows on the page
FEWEST = 4  # coefficients that a user has on the page at least
DOZEN = 12  # ... and at most where models have more numbers than can be looked through


def fit_page_of(fitted: Fitted, evidence: Evidence, *, anonymous: bool = False) -> bytes:
    """The page of a fit."""
    return fit_page(fit_facts(fitted, evidence, anonymous=anonymous))


def write_page(path: str | os.PathLike[str], content: bytes, *, force: bool = False) -> None:
    """A page as a file, whole or not at all."""
    check_replace(path, force)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


# -- the facts of the page -------------------------------------------------------------------------


def user_numbers(fitted: Fitted) -> Ints:
    """What users are called on anonymous pages, (n_users,).

    The order is drawn from a digest of what users sent, which outsiders do not have: the rank of a
    name among all names does not show, and the same run gives the same numbers each time.
    """
    digest = hashlib.sha256(b"odcl anonymous")
    sent = {"theta": fitted.users.model} if fitted.uploads is None else fitted.uploads.to_arrays()
    for name in sorted(sent):
        digest.update(np.ascontiguousarray(sent[name]).tobytes())
    rng = np.random.default_rng(list(digest.digest()))
    number = np.empty(len(fitted.users.users), dtype=np.intp)
    number[rng.permutation(len(number))] = np.arange(1, len(number) + 1)
    return number


def _anonymous(fitted: Fitted, evidence: Evidence, number: Ints) -> tuple[Fitted, Evidence]:
    """The fit with numbers in place of names, and evidence that names nothing."""
    uploads = None if fitted.uploads is None else replace(fitted.uploads, users=number)
    fitted = replace(fitted, users=replace(fitted.users, users=number), uploads=uploads)
    table = {k: v for k, v in evidence.table.items() if k not in ("name", "sha256")}
    return fitted, replace(evidence, command=(), table=table, notices=())


def fit_facts(fitted: Fitted, evidence: Evidence, *, anonymous: bool = False) -> FitFacts:
    """Everything that the page of a fit shows."""
    number = user_numbers(fitted)
    if anonymous:
        fitted, evidence = _anonymous(fitted, evidence, number)
    comparison, total = evidence.comparison, len(fitted.users.users)
    own, ours = _scores(comparison, total)
    who = _who(fitted, evidence, ours - own, comparison)
    if anonymous:  # in the order of the numbers
        who = who[np.argsort(number[who], kind="stable")]
    classes = _class_names(fitted)
    centered = bool(fitted.method.standardize and fitted.scaling.shift.any())
    units = units_of(fitted, classes, centered=centered)
    if fitted.mixed is not None:  # columns that nobody's model has, such as a period without waves
        units = units.take(np.flatnonzero(units.models(fitted.centers).any(axis=0)))
    shown = user_map(fitted, who, units, most=MOST_USERS)
    more = more_rows(fitted, who, units)
    images = user_images(fitted, who[:0] if anonymous else who, classes)
    length = LONG if len(who) <= MANY else SHORT
    users = Users(
        _user_word(fitted),
        [f"user {n}" for n in number[who].tolist()]
        if anonymous
        else [shown_id(user, length) for user in fitted.users.users[who].tolist()],
        np.asarray(fitted.users.group[who]),
        np.asarray(fitted.users.rows[who]),
        np.asarray(fitted.users.probability[who]),
        number[who],
        fitted.n_users,
        "assignment.csv" if fitted.files is None else "users/",
    )
    gains, told = None, ""
    if comparison is not None:
        told, larger = verdict(comparison, shell=True), comparison.larger_is_better
        gains = Gains(comparison.metric, larger, own[who], ours[who], " ".join(told.splitlines()))
    aside = [] if anonymous else [f"{line[:1].upper()}{line[1:]}" for line in fitted.outlier_lines]
    sizes, rows = group_sizes(fitted)
    groups = list(zip(sizes.tolist(), rows.astype(int).tolist(), strict=True))
    return FitFacts(
        title=_title(fitted, evidence),
        verdict=[headline(fitted, comparison), *told.splitlines(), *aside],
        target=fitted.columns.target,
        users=users,
        groups=groups,
        map=shown,
        coefficients=coefficients(fitted, who, units),
        sections=sections(fitted, evidence, more, images, anonymous=anonymous),
        gains=gains,
        options=None if evidence.weighed is None else _options(evidence.weighed, fitted, who),
        held=_held(comparison, fitted, who),
        more=more,
        images=images,
        curves=curve_facts(fitted, who, classes),
        shares=share_facts(fitted),
        anonymous=anonymous,
        note=_note(fitted, len(who)),
    )


def _class_names(fitted: Fitted) -> list[str]:
    classes = fitted.columns.classes
    return [] if classes is None else [shown_id(label, 60) for label in classes.tolist()]


def _who(fitted: Fitted, evidence: Evidence, gain: Floats, comparison: Comparison | None) -> Ints:
    """Who is on the page: best, worst and least sure first, where not everybody can be."""
    first: list[Ints] = []
    total = len(fitted.users.users)
    if total <= MOST_USERS:
        return np.arange(total)
    if comparison is not None:
        order = np.argsort(np.nan_to_num(gain), kind="stable")
        first = [order[:200], order[-200:]]
    first.append(np.argsort(np.nan_to_num(fitted.users.probability, nan=1.0), kind="stable")[:400])
    seen = None
    if evidence.weighed is not None:
        kept = [one.labels for one in evidence.weighed.options if one.labels is not None]
        sampled = [labels for labels in kept if (labels < 0).any()]
        if sampled:
            seen = np.zeros(total, dtype=np.bool_)
            seen[: len(sampled[0])] = sampled[0] >= 0
    return chosen_users(total, MOST_USERS, first, seen)


def _user_word(fitted: Fitted) -> str:
    schema = fitted.schema
    return "user" if schema is None or not schema.user else str(schema.user)


def _title(fitted: Fitted, evidence: Evidence) -> str:
    target = fitted.columns.target or "the target"
    name = evidence.table.get("name")
    return f"{target} by {_user_word(fitted)}" + (f" ({name})" if name else "")


def headline(fitted: Fitted, comparison: Comparison | None) -> str:
    """How many groups, how users differ inside, and what it is worth: one sentence."""
    inside = None if fitted.mixed is None else fitted.differences
    groups, among = fitted.n_clusters, count(fitted.n_users, "user")
    if fitted.mixed is not None:  # a user apart is no group of users
        apart = fitted.mixed.weights <= APART
        groups, aside = groups - int(apart.sum()), int(group_sizes(fitted)[0][apart].sum())
        among += f", {aside:,} of them set apart" if aside else ""
    found = finding(groups, among, inside)
    if comparison is None:
        return f"{found}."
    mean = {name: value for name, value, *_ in comparison.rows()}
    ours, own = mean[comparison.ours], mean["local"]
    metric = comparison.metric
    worth = f"on held-out rows the mean user has {_score(metric, ours)}"
    if comparison.larger_is_better:
        worth += f", against {_score(metric, own)} with a model of its own"
    else:
        change = (own - ours) / own if own > 0 else 0.0
        far = f"{abs(change):.0%} {'below' if change >= 0 else 'above'} the {number(own)} of"
        worth += f", {far if number(own) != number(ours) else 'as with'} a model of its own"
    return f"{found}; {worth}."


def _score(metric: str, value: float) -> str:
    return f"{value:.1%} accuracy" if metric == "accuracy" else f"{metric} {number(value)}"


def _scores(comparison: Comparison | None, total: int) -> tuple[Floats, Floats]:
    """Every user's score alone and with odcl, (n_users,), NaN where none of its rows was held."""
    own, ours = np.full(total, np.nan), np.full(total, np.nan)
    if comparison is not None and comparison.held is not None:
        at = comparison.held.users
        own[at], ours[at] = comparison.scores["local"], comparison.scores[comparison.ours]
    return own, ours


def units_of(fitted: Fitted, classes: list[str], *, centered: bool) -> TableUnits:
    """The table's units; ``centered``: the level at average features is one of the numbers."""
    columns = fitted.risk, fitted.scaling, list(fitted.units), classes
    mean = averages(fitted.mixed, fitted.scaling.width)
    return TableUnits.of(*columns, centered=centered, mean=mean)


def coefficients(fitted: Fitted, who: Ints, units: TableUnits) -> Coefficients:
    """The models of the groups, and of the users ``who``."""
    group = units.models(fitted.centers)
    errors, about = group_errors(fitted, units)
    about += SLOPES * bool(fitted.curves)
    with np.errstate(invalid="ignore"):
        apart = np.ptp(group, axis=0) * units.effect
    if len(group) == 1 and len(fitted.users):  # no groups: where users differ most
        some = np.linspace(0, len(fitted.users) - 1, min(len(fitted.users), MANY)).astype(np.intp)
        apart = np.std(units.models(fitted.users.model[some]), axis=0) * units.effect
    apart = np.where(
        apart > 1e-9 * np.abs(group).max(axis=0) * units.effect, apart, 0.0
    )  # rounding
    order = np.argsort(-np.where(units.extra, -1.0, apart), kind="stable")
    most = max(FEWEST, MOST_NUMBERS // (4 * max(len(who), 1)))
    if fitted.centers.shape[1] > most_parameters(fitted.risk):
        most = DOZEN
    shown = [j for j in order[:most].tolist() if not units.extra[j]]
    part = units.take(np.array(shown, np.intp))
    own, own_cov = own_models(fitted, who)
    missing = np.full((len(who), len(shown)), np.nan)
    known = fitted.users.covariance
    return Coefficients(
        units.names,
        group,
        errors,
        apart,
        units.extra,
        shown,
        part.models(fitted.users.model[who]),
        missing if known is None else part.errors(known[who]),
        part.models(own),
        missing if own_cov is None else part.errors(own_cov),
        about,
    )


def _options(weighed: Alternatives, fitted: Fitted, who: Ints) -> Options:
    chosen = weighed.options[weighed.chosen] if weighed.chosen is not None else None
    best = chosen.score if chosen is not None else min(one.score for one in weighed.options)
    group, found = fitted.users.group, []
    for one in weighed.options:
        labels = None
        if one.labels is not None:
            whole = np.full(len(group), -1)
            whole[: len(one.labels)] = one.labels
            labels = group if one is chosen else _recoloured(whole, group)
            labels = labels[who].astype(np.int16)
        words = [count(one.n_groups, "group") if one.n_groups > 1 else "no groups"]
        if one.shape in DIFFER:
            inside = "users of a group" if one.n_groups > 1 else "users"
            words.append(f"{inside} differ {DIFFER[one.shape]}")
        words.append(_option_score(weighed.measure, one.score, best, one is chosen))
        found.append(Option(one.n_groups, "; ".join(words), one.score, labels))
    about = f"Scores are {MEASURES[weighed.measure]}."
    if weighed.measure == "evidence":
        about = (
            "The taller a bar, the better. Evidence is -2 log of the probability of the data: a "
            "difference of 10 is strong."
        )
        least = min(one.score for one in weighed.options)
        behind = chosen is not None and chosen.score > least + 1e-6
        if behind and fitted.mixed is None:
            about += " Where several are close, what groups lose on users held out decides."
        elif behind and fitted.n_clusters == 1:
            about += " Taller bars were not chosen where users' groups in them are in doubt."
        elif behind:
            about += (
                " One center with differences in several coefficients together can mimic groups, "
                "and has to be better by more than users' groups are in doubt."
            )
    kept = [one.labels for one in weighed.options if one.labels is not None and one is not chosen]
    seen = min((int((labels >= 0).sum()) for labels in kept), default=fitted.n_users)
    if seen < fitted.n_users:
        about += f" All were weighed on {seen:,} of {fitted.n_users:,} users"
        grey = any((labels < 0).any() for labels in kept)
        about += "; others are grey under all but the chosen one." if grey else "."
    return Options(weighed.measure, about, found, weighed.chosen)


def _option_score(measure: str, score: float, best: float, chosen: bool) -> str:
    if measure == "evidence":
        gap = score - best
        if chosen:
            return "chosen"
        return f"evidence {number(abs(gap))} {'worse' if gap >= 0 else 'better'}"
    name = {"silhouette": "mean silhouette", "elbow": "cost", "lambda": "from lambda"}[measure]
    return f"{'chosen, ' if chosen else ''}{name} {number(score)}"


def _recoloured(labels: Ints, chosen: Ints) -> Ints:
    """Groups of an alternative with the numbers of the chosen groups that they overlap most."""
    both = (labels >= 0) & (chosen >= 0)
    if not both.any():
        return labels
    k, n = int(labels.max()) + 1, int(chosen.max()) + 1
    together = np.zeros((k, n), dtype=np.intp)
    np.add.at(together, (labels[both], chosen[both]), 1)
    rows, columns = linear_sum_assignment(-together)
    new = np.full(k, -1)
    taken = together[rows, columns] > 0
    new[rows[taken]] = columns[taken]
    free = iter(range(n, n + k))
    for g in np.flatnonzero(new < 0):
        new[g] = next(free)
    return np.where(labels >= 0, new[np.maximum(labels, 0)], -1)


def _held(comparison: Comparison | None, fitted: Fitted, who: Ints) -> Held | None:
    if comparison is None or comparison.held is None:
        return None
    held = comparison.held
    first = np.searchsorted(held.owner, who)
    n = np.searchsorted(held.owner, who, side="right") - first
    n = np.minimum(n, min(MOST_ROWS, max(3, MOST_HELD // max(len(who), 1))))
    start = np.concatenate([[0], np.cumsum(n)])
    rows = np.repeat(first - start[:-1], n) + np.arange(start[-1])
    classes = _class_names(fitted) if comparison.metric == "accuracy" else None
    told = held.seen, held.predicted["local"], held.predicted[comparison.ours]
    seen, own, ours = (values[rows].astype(np.float64) for values in told)  # classes too
    return Held(start, seen, own, ours, classes)


def _note(fitted: Fitted, shown: int) -> str:
    """Who is on the page, where not everybody is."""
    total = fitted.n_users
    if shown == total:
        return ""
    if fitted.files is not None:
        return (
            f"{total:,} users were fitted, in pieces of their table. {shown:,} of them, drawn by "
            "their ids, are on this page, one by one and on the map; groups and their sizes are "
            "those of all users, whose models are in users/ of the run."
        )
    return (
        f"{shown:,} of {total:,} users are on this page one by one, the best, the worst and the "
        "least sure among them; the map and all tables of groups are of everybody, and "
        "assignment.csv in the run lists all."
    )
