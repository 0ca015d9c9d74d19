"""The diagnosis in words, for people who have not read the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from odcl.diagnose.verdict import short
from odcl.report.text import count, shown_id, table

if TYPE_CHECKING:
    from odcl.diagnose.diagnosis import Diagnosis

MOST_NAMED = 5  # users or groups named one by one
_SOURCES = {
    "curvature": "from each user's rows",
    "trace": "from each user's rows, as one number",
    "spread": "read off the spread inside groups: the users sent nothing about it",
}


def report(d: Diagnosis) -> str:
    """The verdict first, then what it rests on."""
    parts = [f"{d.verdict.sentence}\n{d.verdict.reason}", _measures(d), _users(d)]
    return "\n\n".join(part for part in parts if part)


def _measures(d: Diagnosis) -> str:
    rows = [*_sizes(d), *_noise(d), *_groups(d), *_errors(d)]
    return table(("what was measured", "", "what it means"), rows, left=(1, 2))


def _sizes(d: Diagnosis) -> list[tuple[str, str, str]]:
    n = d.n_samples
    groups = ("users, groups", f"{d.n_users:,}, {d.n_clusters}", _visible(d))
    if d.noise.source == "spread" and (n == 1).all():
        return [groups, ("rows per user", "unknown", "bare models were given")]
    shown = f"{np.median(n):g}" if n.min() == n.max() else f"{n.min():g} - {n.max():g}"
    share = float(np.median(n)) / d.dim
    many = "plenty" if share >= 5 else "few" if share >= 2 else "too few to average models"
    return [
        groups,
        ("rows per user", shown, f"{share:.2g} per parameter ({d.dim}): {many}"),
    ]


def _visible(d: Diagnosis) -> str:
    if d.n_visible == d.n_clusters:
        return "as many groups as the users' noise shows"
    return f"the users' noise shows {count(d.n_visible, 'group')}"


def _noise(d: Diagnosis) -> list[tuple[str, str, str]]:
    known = d.noise.variance[d.noise.known]
    if len(known) == 0:
        return [("noise of a user's model", "unknown", "no user has more rows than parameters")]
    size = float(np.sqrt(d.dim * np.median(known)))
    rows = [("noise of a user's model", f"{size:.3g}", f"distance from its truth, {_source(d)}")]
    if d.noise.source != "spread":
        meaning = "users of a group are alike as far as can be seen"
        if d.tau2 > 0:
            times = short(float(np.sqrt(d.own)))
            meaning = f"users of a group really differ, by {times} times their noise"
        rows.append(("difference inside groups", f"{np.sqrt(d.dim * d.tau2):.3g}", meaning))
    return rows


def _source(d: Diagnosis) -> str:
    return _SOURCES[d.noise.source]


def _groups(d: Diagnosis) -> list[tuple[str, str, str]]:
    rows = []
    if d.distance is not None:
        near = d.distance
        pair = (
            f"groups {near.pair[0]} and {near.pair[1]}, {short(near.in_noise)} standard deviations"
        )
        value = f"{near.value:.3g} ({near.low:.3g} - {near.high:.3g})"
        rows.append(("smallest distance of groups", value, f"{pair} of a user's model apart"))
    if d.separation is not None:
        s = d.separation
        needs = f"the paper asks for {s.alpha_cc:.3g} (convex) or {s.alpha_km:.3g} (K-means)"
        sure = f"{' and '.join(s.guaranteed)} guaranteed" if _cheap(d) and s.guaranteed else needs
        rows.append(("separation alpha", f"{s.alpha:.3g}", sure))
    if d.stability is not None and d.n_clusters > 1:
        st = d.stability
        rows.append(
            (
                "stability",
                f"{st.kept:.1%}",
                f"of users keep their group had they other rows; all do in {st.same:.0%} of "
                f"{st.resamples} redraws",
            )
        )
    return rows


def _cheap(d: Diagnosis) -> bool:
    from odcl.diagnose.diagnosis import GUARANTEE_USERS

    return d.n_users <= GUARANTEE_USERS


def _errors(d: Diagnosis) -> list[tuple[str, str, str]]:
    e = d.errors
    rows = [("error of one model for all", short(e.one), "1 is the error of a user's own model")]
    if d.n_clusters > 1:
        rows.append(("error of its group's model", short(e.used), "as it was combined"))
        rows.append(("... by precision combining", short(e.precision), "users weighed by rows"))
        if d.tau2 > 0:
            rows.append(("... and refit at the user", short(e.drawn), "drawn to the group's"))
    return rows


def _users(d: Diagnosis) -> str:
    lines = []
    if len(d.border):
        some = [
            f"{shown_id(u)} ({d.places.elsewhere[i]:.0%}, group {d.places.rival[i]})"
            for i, u in zip(d.border[:MOST_NAMED], d.users[d.border].tolist(), strict=False)
        ]
        lines.append(
            f"{count(len(d.border), 'user')} near a border, with the chance of belonging to "
            f"another group: {_listing(some, len(d.border))}"
        )
    if len(d.strangers):
        some = [shown_id(u) for u in d.users[d.strangers[:MOST_NAMED]].tolist()]
        named = _listing(some, len(d.strangers))
        fits = "fits" if len(d.strangers) == 1 else "fit"
        lines.append(f"{count(len(d.strangers), 'user')} {fits} no group: {named}")
    if len(d.too_small):
        some = [f"group {k}" for k in d.too_small[:MOST_NAMED].tolist()]
        lines.append(
            f"{count(len(d.too_small), 'group')} of fewer than three users, too small to trust: "
            f"{_listing(some, len(d.too_small))}"
        )
    blind = int((~d.noise.known).sum())
    if blind:
        lines.append(f"{count(blind, 'user')} with too few rows to tell how noisy their model is")
    return "\n".join(lines)


def _listing(some: list[str], total: int) -> str:
    return ", ".join(some) + (", ..." if total > len(some) else "")
