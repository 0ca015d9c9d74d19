"""A diagnosis, and whether models still hold, in words for people who have not read the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odcl.diagnose.diagnosis import Diagnosis
from odcl.diagnose.verdict import few, short
from odcl.errors import number
from odcl.report.text import count, shown_id, table

if TYPE_CHECKING:
    from odcl.diagnose.drift import Drift

GUARANTEE_USERS = 5_000  # Eq. (13) takes distances between all users of a group
MOST_NAMED = 5  # users or groups named one by one
MOST_MOVED = 10  # users who moved
Row = tuple[str, str, str]  # what was measured, its value, what it means


def diagnosis_text(d: Diagnosis) -> str:
    """The verdict first, then what it rests on."""
    p = diagnosis_parts(d)
    measures = table(p.measures_header, p.measures, left=(1, 2))
    border = table(p.border_header, p.border) if p.border else ""
    border += f"\n... and {p.more_at_border:,} more" if p.more_at_border else ""
    parts = [f"{d.verdict.sentence}\n{d.verdict.reason}", measures, border, "\n".join(p.users)]
    return "\n\n".join(part for part in parts if part)


@dataclass(frozen=True)
class DiagnosisParts:
    """What a diagnosis rests on, as tables for a terminal or a page."""

    measures: list[Row]
    border: list[tuple[str, str, str, str]]  # users near a border
    more_at_border: int
    users: list[str]  # sentences about users and groups that stand out
    measures_header = ("what was measured", "", "what it means")
    border_header = ("users near a border", "are in", "chance that it is another", "most likely")


def diagnosis_parts(d: Diagnosis) -> DiagnosisParts:
    """Measures, users near a border, and users who stand out."""
    rows, users = [*_sizes(d), *_noise(d)], list[str]()
    border, more = list[tuple[str, str, str, str]](), 0
    # With every user in a group of its own there is nothing to say about groups.
    alone = 1 < d.n_clusters == d.n_users
    if not alone:
        rows += _groups(d)
    if not alone:
        border, users = _border(d), _outliers(d) if d.informative else users
        more = len(d.border) - len(border)
    if d.informative:
        rows += _errors(d, alone)
    if d.apart is not None:
        named = _listing([shown_id(user) for user in d.apart.users.tolist()])
        who, are = count(len(d.apart.users), "user"), "is" if len(d.apart.users) == 1 else "are"
        why = "another unit, or a mistyped value?"
        odd = f"with columns unlike everybody else's {are} not judged ({why})"
        users = [f"{who} {odd}: {named}", *users]
    unknown = int((~d.noise.known).sum()) - len(d.noisy)
    if d.of_users:
        some = f"Diagnosed on {d.n_users:,} of {d.of_users:,} users, drawn by their ids."
        users = [some, *users]
    if unknown and d.informative:
        have = "has" if unknown == 1 else "have"
        users.append(
            f"{count(unknown, 'user')} {have} too few rows to estimate the uncertainty of a model"
        )
    if len(d.noisy):
        named = _listing([shown_id(user) for user in d.users[d.noisy].tolist()])
        are = (
            "is far noisier than others and is"
            if len(d.noisy) == 1
            else "are far noisier than others and are"
        )
        why = "another unit, or a mistyped target?"
        users.append(f"{count(len(d.noisy), 'user')} {are} not judged ({why}): {named}")
    return DiagnosisParts(rows, border, more, users)


def _sizes(d: Diagnosis) -> list[Row]:
    n, found = d.n_samples, f"found by {d.found_by}"
    if d.n_clusters == 1 and d.n_visible == 1:
        found = f"{d.found_by} found no groups"
    elif d.noise.source == "held out":
        found += "; users held out show " + (
            "no groups" if d.n_visible == 1 else count(d.n_visible, "group")
        )
    elif not d.informative:
        together = d.combine == "mixed"
        found += ", from all rows together" if together else "; how well is not known"
    elif d.n_visible == d.n_clusters:
        found += ": as many as the users' noise shows"
    else:
        shown = "no groups" if d.n_visible == 1 else count(d.n_visible, "group")
        found += f"; the users' noise shows {shown}"
    groups = ("users, groups judged", f"{d.n_users:,}, {d.n_clusters:,}", found)
    if d.noise.source == "none" and (n == 1).all():
        return [groups, ("rows per user", "unknown", "bare models were given")]
    shown = f"{np.median(n):,g}" if n.min() == n.max() else f"{n.min():,g} - {n.max():,g}"
    share = float(np.median(n)) / d.dim
    many = "plenty" if share >= 5 else "few" if share >= 2 else "too few to average models"
    if d.noise.source == "held out":
        return [groups, ("rows per user", shown, f"for {d.dim:,} parameters")]
    return [groups, ("rows per user", shown, f"{short(share)} per parameter ({d.dim}): {many}")]


def _noise(d: Diagnosis) -> list[Row]:
    if d.noise.source == "held out":
        return []
    what, known = "noise of a user's model", d.noise.variance[d.noise.known]
    if d.noise.source == "none":
        return [(what, "unknown", "users sent their models alone")]
    if not d.informative:
        return [(what, "unknown", "too few users have enough rows for a model of their own")]
    size = float(np.sqrt(d.dim * np.median(known)))
    scale = ", of standardized columns" if d.combine == "mixed" else ""
    noise = (what, number(size), f"typical distance of its coefficients from the truth{scale}")
    one = d.n_clusters == 1
    who = "users" if one else "users of a group"
    meaning = f"times their noise: {who} do differ" if d.tau2 > 0 else f"{who} look alike"
    what = "difference between users" if one else "difference inside groups"
    return [noise, (what, short(float(np.sqrt(d.tau2_in_noise))), meaning)]


def _groups(d: Diagnosis) -> list[Row]:
    rows = []
    told = d.noise.source == "held out" and np.isfinite(d.membership.elsewhere).any()
    if told and d.n_clusters > 1:
        wrong = few(d.misplaced)
        rows.append(("users in a wrong group", wrong, "expected, by how surely each is in its own"))
    if d.distance is not None:
        near = d.distance
        value = f"{number(near.value)} ({number(near.low)} - {number(near.high)})"
        first, second = d.named(np.array(near.pair))
        pair = f"between groups {first} and {second}, with its 95 % interval"
        rows.append(("smallest distance of groups", value, pair))
        first, second = d.named(np.array(near.noise_pair))
        pair = f"of a user's model, between groups {first} and {second}: 4 are well apart"
        rows.append(("... in standard deviations", short(near.in_noise), pair))
    if d.separation is not None:
        s = d.separation
        means = (
            f"the paper asks for {number(s.alpha_cc)} (convex) or {number(s.alpha_km)} (K-means)"
        )
        if d.n_users <= GUARANTEE_USERS and s.guaranteed:
            means = f"{' and '.join(s.guaranteed)} guaranteed"
        rows.append(("separation alpha", number(s.alpha), means))
    if d.stability is not None and d.n_clusters > 1:
        st = d.stability
        means = f"of users would keep their group with other rows; all in {st.same:.0%} of "
        rows.append(("stability", f"{st.kept:.1%}", f"{means}{st.resamples} redraws"))
    return rows


def _errors(d: Diagnosis, alone: bool) -> list[Row]:
    e = d.errors
    assert e is not None
    other = d.n_visible != d.n_clusters
    one = e.used if d.n_clusters == 1 and other else e.one
    if d.n_visible == 1:  # what is left to one model for all is its noise
        one += d.visible_error
    rows = [("error of one model for all", short(one), "in units of a local model's error")]
    drawn = d.combine == "mixed" and d.tau2 > 0  # every user's model is its own
    if alone:
        rows.append(("error of these models", short(e.used), "every user its own"))
    elif d.n_clusters == 1 and drawn:
        rows.append(("error of these models", short(e.used), "between its own and the others'"))
    elif d.n_clusters > 1 and drawn:
        rows.append(("error of its group's model", short(e.pooled), "without its own rows"))
        rows.append(("error of these models", short(e.used), "between its own and its group's"))
    elif d.n_clusters > 1:
        rows.append(("error of its group's model", short(e.used), "as this result has it"))
        rows.append(("... of its pooled rows", short(e.pooled), "users weighted by their rows"))
        if d.tau2 > 0:
            rows.append(("... and its own rows", short(e.drawn), "between its own and its group's"))
    if other and d.n_visible > 1:
        what = f"the {d.n_visible} groups that the users' noise shows, of pooled rows"
        rows.append(("error with other groups", short(d.visible_error), what))
    return rows


def _border(d: Diagnosis) -> list[tuple[str, str, str, str]]:
    """Users near a border: where they are, how surely, and where else they may belong."""
    some = d.border[:MOST_NAMED]
    at = d.membership
    own, rival = d.named(d.labels[some]), d.named(at.rival[some])
    columns = (d.users[some].tolist(), own, at.elsewhere[some], rival)
    return [
        (shown_id(user), f"group {own}", f"{chance:.0%}", f"group {rival}" if rival >= 0 else "-")
        for user, own, chance, rival in zip(*columns, strict=True)
    ]


def _outliers(d: Diagnosis) -> list[str]:
    """Users who fit no group, and groups too small to trust."""
    lines = []
    if len(d.outliers):
        named = _listing([shown_id(user) for user in d.users[d.outliers].tolist()])
        one = len(d.outliers) == 1
        where = f"{'fits' if one else 'fit'} no group"
        if d.n_clusters == 1:
            where = f"{'lies' if one else 'lie'} far from all others"
        lines.append(f"{count(len(d.outliers), 'user')} {where}: {named}")
    if len(d.too_small):
        named = _listing([f"group {k}" for k in d.named(d.too_small).tolist()])
        small = count(len(d.too_small), "group")
        lines.append(f"{small} of fewer than three users, too small to trust: {named}")
    return lines


def _listing(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")


# -- do the models still hold? ---------------------------------------------------------------------


def drift_text(d: Drift) -> str:
    """The verdict first, then what it rests on."""
    few, new = int(np.isnan(d.chance).sum()), d.strangers.tolist()
    seen = f"{count(int(d.rows.sum()), 'new row')} of {count(len(d.users), 'user')}"
    lines = [(name, f"{now:.4g}", f"{said:.4g}") for name, (now, said) in d.measures.items()]
    parts = [_drift_verdict(d), table((seen, "now", "as promised"), lines)]
    if len(d.moved):
        head = ("users who moved", "are in", "new rows", "off by", "by chance", "rows look like")
        where = {-1: "no group", **{k: f"group {k}" for k in range(len(d.groups))}}
        cells = zip(*(values[d.moved].tolist() for values in d.columns().values()), strict=True)
        moved = [
            (shown_id(user), where[group], rows, f"{off:+.3g}", f"{chance:.1g}", where[nearest])
            for user, group, rows, off, chance, nearest, _ in cells
        ]
        parts.append(table(head, moved[:MOST_MOVED]) + "\n..." * (len(moved) > MOST_MOVED))
    notes = [f"{count(few, 'user')} with too few new rows to tell"] if few else []
    if new:
        such = f"{count(len(new), 'user')} without a model (such as {shown_id(new[0])})"
        notes.append(f"{such}: `odcl assign --add` or add_user gives them one")
    if d.absent:
        notes.append(f"{count(d.absent, 'user')} with a model and no new rows")
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)


def _drift_verdict(d: Drift) -> str:
    if d.verdict == "holds":
        return "The models hold."
    if d.verdict == "update":
        return f"Update {count(len(d.moved), 'user')}; the other models hold."
    from odcl.diagnose.drift import NOISIER

    why = []
    for k in d.moved_groups:
        by = ", ".join(f"{name} by {size:+.3g}" for name, size in d.shifts[k].items())
        who = "all users" if len(d.groups) == 1 else f"group {k}"
        why.append(f"{who} moved{f' ({by})' * bool(by)}")
    if d.noise > NOISIER and not why:
        why.append(f"a typical user's rows scatter {d.noise:.2g} times as much as in the fit")
    if len(d.moved):
        why.append(f"{count(len(d.moved), 'user')} moved individually")
    return f"Refit: {'; '.join(why) or 'errors are larger than the models promise'}."
