"""Whether models still hold, in words."""

from __future__ import annotations

import numpy as np

from odcl.diagnose.drift import NOISIER, Drift
from odcl.report.text import count, shown_id, table

MOST_NAMED = 10


def drift_text(d: Drift) -> str:
    """The verdict first, then what it rests on."""
    few, new = int(np.isnan(d.chance).sum()), d.strangers.tolist()
    seen = f"{count(int(d.rows.sum()), 'new row')} of {count(len(d.users), 'user')}"
    lines = [(name, f"{now:.4g}", f"{said:.4g}") for name, (now, said) in d.measures.items()]
    parts = [_verdict(d), table((seen, "now", "as promised"), lines)]
    if len(d.moved):
        head = ("users who moved", "are in", "new rows", "off by", "by chance", "rows look like")
        where = {-1: "no group", **{k: f"group {k}" for k in range(len(d.groups))}}
        cells = zip(*(values[d.moved].tolist() for values in d.columns().values()), strict=True)
        moved = [
            (shown_id(user), where[group], rows, f"{off:+.3g}", f"{chance:.1g}", where[nearest])
            for user, group, rows, off, chance, nearest, _ in cells
        ]
        parts.append(table(head, moved[:MOST_NAMED]) + "\n..." * (len(moved) > MOST_NAMED))
    notes = [f"{count(few, 'user')} with too few new rows to tell"] if few else []
    if new:
        such = f"{count(len(new), 'user')} without a model (such as {shown_id(new[0])})"
        notes.append(f"{such}: `odcl assign --add`, or add_user, gives them one")
    if d.absent:
        notes.append(f"{count(d.absent, 'user')} with a model and no new rows")
    return "\n\n".join([*parts, "\n".join(notes)] if notes else parts)


def _verdict(d: Drift) -> str:
    if d.verdict == "holds":
        return "The models hold."
    if d.verdict == "update":
        return f"Update {count(len(d.moved), 'user')}; the other models hold."
    why = []
    for k in d.moved_groups:
        by = ", ".join(f"{name} by {size:+.3g}" for name, size in d.shifts[k].items())
        who = "all users" if len(d.groups) == 1 else f"group {k}"
        why.append(f"{who} moved{f' ({by})' * bool(by)}")
    if d.noise > NOISIER and not why:
        why.append(f"a typical user's rows scatter {d.noise:.2g} times as far as in the fit")
    if len(d.moved):
        why.append(f"{count(len(d.moved), 'user')} moved one by one")
    return f"Refit: {'; '.join(why) or 'errors are larger than the models promise'}."
