"""The coordinator's report of a round by file: sites, groups, what was set aside, bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from odcl.declared import to_json
from odcl.engines.files.combine import COMPARED_ROUNDS, CombinedRound
from odcl.mixed.differences import differences_text, named_differences
from odcl.report.text import count, in_bytes, table

MOST_SITES = 200  # listed one by one in the text; all are in the JSON


def round_text(combined: CombinedRound) -> str:
    """The report for people."""
    task, taken = combined.task, combined.taken
    users = sum(len(one.uploads) for one in taken.values())
    rows = int(sum(one.uploads.n_samples.sum() for one in taken.values()))
    size = f"{count(len(taken), 'site')}, {count(users, 'user')}, {count(rows, 'row')}"
    signed = "signed" if task.signed else "not signed: the card lists no keys"
    lines = [
        f"Round {task.round} of {task.name!r}: {size}, {task.risk.loss.name} loss. "
        f"Files are {signed}.",
        combined.step.reason,
        *_finding_lines(combined),
    ]
    lines += ["", _group_lines(combined), "", _site_lines(combined)]
    if combined.set_aside:
        lines += ["", f"Set aside: {count(len(combined.set_aside), 'file')}"]
        lines += [f"  {one.name}: {one.reason}" for one in combined.set_aside]
    return "\n".join([*lines, "", _byte_lines(combined)])


def group_differences(combined: CombinedRound) -> dict[str, float]:
    """How far users of a group differ in each coefficient, in the table's units; empty: unknown."""
    mixture, task = combined.step.mixture, combined.task
    if mixture is None:
        return {}
    features = dict(zip(task.columns, task.scaling.scale.tolist(), strict=True))
    return named_differences(mixture, task.risk, features)


def _finding_lines(combined: CombinedRound) -> list[str]:
    """How users of a group differ, and what to make of it; where users differ is said once."""
    found, diagnosis = group_differences(combined), combined.groups.diagnosis
    if not combined.told_where:
        return list(filter(None, [differences_text(found, combined.n_groups), diagnosis]))
    same = [name for name, sd in found.items() if not sd]
    return [f"{diagnosis} The same for all of them: {', '.join(same)}." if same else diagnosis]


def _group_lines(combined: CombinedRound) -> str:
    groups = combined.groups
    lines = [
        (f"group {k}", f"{groups.sites[k]:,}", f"{groups.sizes[k]:,}")
        for k in range(combined.n_groups)
    ]
    return table(("", "sites", "users"), lines)


def _site_lines(combined: CombinedRound) -> str:
    labels, lines = combined.site_groups, []
    for site, one in list(combined.taken.items())[:MOST_SITES]:
        where = ", ".join(map(str, np.unique(labels[site]).tolist())) or "-"
        up, down = combined.bytes_up[site], combined.bytes_down[site]
        rows = f"{int(one.uploads.n_samples.sum()):,}"
        lines.append((site, f"{len(one.uploads):,}", rows, where, in_bytes(up), in_bytes(down)))
    text = table(("site", "users", "rows", "groups", "sent", "receives"), lines)
    more = len(combined.taken) - MOST_SITES
    return text if more <= 0 else f"{text}\n... and {count(more, 'more site')} (all in report.json)"


def _byte_lines(combined: CombinedRound) -> str:
    ledgers = {"these files": combined.ledger, **combined.others}
    lines = [
        (name, f"{one.n_rounds:,}", in_bytes(one.total_up), in_bytes(one.total_down))
        for name, one in ledgers.items()
    ]
    models = f"{count(combined.n_groups, 'model')} for IFCA"
    rounds = f"numbers of 8 bytes in {COMPARED_ROUNDS} rounds"
    note = f"FedAvg and IFCA: {rounds}, {models}, every user a client."
    return f"{table(('bytes', 'rounds', 'up', 'down'), lines)}\n{note}"


def round_json(combined: CombinedRound) -> dict[str, Any]:
    """The report for programs."""
    labels, step = combined.site_groups, combined.step
    ledgers = {"files": combined.ledger, **combined.others}
    return {
        "task": to_json(combined.task.stamp),
        "signed": combined.task.signed,
        "rule": step.rule,
        "reason": step.reason,
        "diagnosis": combined.groups.diagnosis,
        "differences": group_differences(combined),
        "groups": [
            {"group": k, "sites": int(combined.groups.sites[k]), "users": int(n)}
            for k, n in enumerate(combined.groups.sizes.tolist())
        ],
        "sites": {
            site: {
                "users": len(one.uploads),
                "rows": int(one.uploads.n_samples.sum()),
                "groups": labels[site].tolist(),
                "withheld": to_json(one.words.withheld),
                "bytes_up": combined.bytes_up[site],
                "bytes_down": combined.bytes_down[site],
            }
            for site, one in combined.taken.items()
        },
        "set_aside": [{"file": one.name, "reason": one.reason} for one in combined.set_aside],
        "bytes": {
            name: {"rounds": one.n_rounds, "up": one.total_up, "down": one.total_down}
            for name, one in ledgers.items()
        },
    }
