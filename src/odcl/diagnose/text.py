"""The diagnosis in words, for people who have not read the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from odcl.diagnose.verdict import short
from odcl.report.text import count, shown_id, table

if TYPE_CHECKING:
    from odcl.diagnose.diagnosis import Diagnosis

_METHODS = {
    "noise": "the noise mixture",
    "scaled-noise": "the noise mixture",
    "shared-variance": "the noise mixture",
}
GUARANTEE_USERS = 5_000  # Eq. (13) takes distances between all users of a group
MOST_NAMED = 5  # users or groups named one by one
_SOURCES = {
    "curvature": "from each user's rows",
    "trace": "from each user's rows, as one number",
    "spread": "read off the spread inside groups: the users sent nothing about it",
}


def report(d: Diagnosis) -> str:
    """The verdict first, then what it rests on."""
    parts = [f"{d.verdict.sentence}\n{d.verdict.reason}", _measures(d), _border(d), _users(d)]
    return "\n\n".join(part for part in parts if part)


def _measures(d: Diagnosis) -> str:
    rows = [*_sizes(d), *_noise(d)]
    if d.sighted:
        rows += [*([] if _alone(d) else _groups(d)), *_errors(d)]
    return table(("what was measured", "", "what it means"), rows, left=(1, 2))


def _alone(d: Diagnosis) -> bool:
    """Is every user in a group of its own? Then there is nothing to say about groups."""
    return 1 < d.n_clusters == d.n_users


def _sizes(d: Diagnosis) -> list[tuple[str, str, str]]:
    n = d.n_samples
    groups = ("users, groups judged", f"{d.n_users:,}, {d.n_clusters:,}", _visible(d))
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
    """Which groups these are, and what the users' noise says to their number."""
    named = _METHODS.get(d.method, d.method)
    if not d.sighted:
        return f"found by {named}; nothing can be said of them"
    if d.n_visible == d.n_clusters:
        return f"found by {named}: as many as {_witness(d)} shows"
    shown = "no groups" if d.n_visible == 1 else count(d.n_visible, "group")
    return f"found by {named}; {_witness(d)} shows {shown}"


def _witness(d: Diagnosis) -> str:
    return "their spread" if d.noise.source == "spread" else "the users' noise"


def _noise(d: Diagnosis) -> list[tuple[str, str, str]]:
    known = d.noise.variance[d.noise.known]
    if len(known) == 0:
        return [("noise of a user's model", "unknown", "no user has more rows than parameters")]
    size = float(np.sqrt(d.dim * np.median(known)))
    if not d.sighted and d.noise.source == "spread":
        return [("noise of a user's model", "unknown", "too few rows to tell")]
    rows = [("noise of a user's model", f"{size:.3g}", f"distance from its truth, {_source(d)}")]
    if d.noise.source != "spread" and d.sighted:
        meaning = "users of a group are alike as far as can be seen"
        if d.tau2 > 0:
            meaning = "times their noise: users of a group really differ"
        shown = short(float(np.sqrt(d.own))) if d.tau2 > 0 else "0"
        rows.append(("difference inside groups", shown, meaning))
    return rows


def _source(d: Diagnosis) -> str:
    return _SOURCES[d.noise.source]


def _groups(d: Diagnosis) -> list[tuple[str, str, str]]:
    rows = []
    if d.distance is not None:
        near = d.distance
        value = f"{near.value:.3g} ({near.low:.3g} - {near.high:.3g})"
        pair = f"between groups {near.pair[0]} and {near.pair[1]}, with its 95 % interval"
        rows.append(("smallest distance of groups", value, pair))
        pair = f"between groups {near.noise_pair[0]} and {near.noise_pair[1]}: 4 are well apart"
        rows.append(("... in noise of a user's model", short(near.in_noise), pair))
    if d.separation is not None:
        s = d.separation
        needs = f"the paper asks for {s.alpha_cc:.3g} (convex) or {s.alpha_km:.3g} (K-means)"
        proven = d.n_users <= GUARANTEE_USERS and bool(s.guaranteed)
        sure = f"{' and '.join(s.guaranteed)} guaranteed" if proven else needs
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


def _errors(d: Diagnosis) -> list[tuple[str, str, str]]:
    e = d.errors
    assert e is not None
    other = d.n_visible != d.n_clusters
    one = e.used if d.n_clusters == 1 and other else e.one
    if d.n_visible == 1:  # what is left to one model for all is its noise
        one += d.visible_error
    rows = [("error of one model for all", short(one), "1 is the error of a user's own model")]
    if _alone(d):
        rows.append(("error of these models", short(e.used), "every user its own"))
    elif d.n_clusters > 1:
        rows.append(("error of its group's model", short(e.used), "as this result has it"))
        rows.append(("... by precision combining", short(e.precision), "users weighed by rows"))
        if d.tau2 > 0:
            rows.append(("... and refit at the user", short(e.drawn), "drawn to the group's"))
    if other and d.n_visible > 1:
        what = f"the {d.n_visible} groups that {_witness(d)} shows, by precision combining"
        rows.append(("error with other groups", short(d.visible_error), what))
    return rows


def _border(d: Diagnosis) -> str:
    """Users near a border: where they are, how surely, and where else they may belong."""
    if not d.sighted or _alone(d) or not len(d.border):
        return ""
    rows = [
        (
            shown_id(user),
            f"group {d.labels[i]}",
            f"{d.places.elsewhere[i]:.0%}",
            f"group {d.places.rival[i]}",
        )
        for i, user in zip(d.border[:MOST_NAMED], d.users[d.border].tolist(), strict=False)
    ]
    header = ("users near a border", "are in", "chance that it is another", "most likely")
    more = len(d.border) - len(rows)
    return table(header, rows) + (f"\n... and {more:,} more" if more else "")


def _users(d: Diagnosis) -> str:
    lines = []
    if d.sighted and not _alone(d):
        lines += _strangers(d)
    blind = int((~d.noise.known).sum())
    if blind and (d.sighted or d.noise.source != "spread"):
        lines.append(f"{count(blind, 'user')} with too few rows to tell how noisy their model is")
    return "\n".join(lines)


def _strangers(d: Diagnosis) -> list[str]:
    lines = []
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
    return lines


def _listing(some: list[str], total: int) -> str:
    return ", ".join(some) + (", ..." if total > len(some) else "")
