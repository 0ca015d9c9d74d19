"""What a fit leaves beside its model, for the report: where it comes from, what was weighed, and
what it was worth on held-out rows. Two declared files of an artifact, checked when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from odcl import __version__
from odcl._typing import Array
from odcl.artifact.arrays import (
    ArraySpec,
    expect,
    is_count,
    json_bytes,
    number_from_json,
    number_to_json,
    write_arrays,
)
from odcl.artifact.folder import Extra, StoredArtifact
from odcl.evaluate.scores import Comparison, HeldOut
from odcl.fitted.value import Fitted
from odcl.server.result import MEASURES, Alternative, Alternatives

WORDS, NUMBERS = "evidence.json", "evidence.safetensors"
MOST_ROWS = 30  # held-out rows of one user that are kept
METRICS = ("accuracy", "RMSE", "deviance")
_FIELDS = ("odcl", "table", "command", "holdout", "notices", "bytes", "weighed", "comparison")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Where a fit comes from, and what speaks for it."""

    version: str = __version__
    table: Mapping[str, Any] = field(default_factory=dict)  # name, sha256 and rows, where known
    command: Sequence[str] = ()  # the words of the shell that give it again
    holdout: str = ""
    notices: Sequence[str] = ()
    bytes_up: int | None = None  # of all users together
    bytes_down: int | None = None
    weighed: Alternatives | None = None
    comparison: Comparison | None = None


# -- writing ---------------------------------------------------------------------------------------


def evidence_of(fitted: Fitted, comparison: Comparison | None = None, **more: Any) -> Evidence:
    """The evidence of a fit; ``more`` are fields of it."""
    return Evidence(
        bytes_up=fitted.bytes_up,
        bytes_down=fitted.bytes_down,
        weighed=fitted.weighed,
        comparison=comparison,
        **more,
    )


def evidence_files(found: Evidence) -> dict[str, Extra]:
    """The two files."""
    words: dict[str, Any] = {
        "odcl": found.version,
        "table": dict(found.table),
        "command": list(found.command),
        "holdout": found.holdout,
        "notices": list(found.notices),
        "bytes": [found.bytes_up, found.bytes_down],
        "weighed": None,
        "comparison": None,
    }
    arrays: dict[str, Array] = {}
    if found.weighed is not None:
        words["weighed"], labels = _weighed_parts(found.weighed)
        arrays |= {"weighed_labels": labels} if len(labels) else {}
    if found.comparison is not None and found.comparison.held is not None:
        words["comparison"], more = _comparison_parts(found.comparison, found.comparison.held)
        arrays |= more

    def write(path: Path) -> None:
        with open(path, "xb") as stream:
            write_arrays(stream, arrays)

    return {WORDS: json_bytes(words), NUMBERS: write}


def _weighed_parts(weighed: Alternatives) -> tuple[dict[str, Any], Array]:
    options = [
        {
            "groups": one.n_groups,
            "score": number_to_json(one.score),
            "shape": one.shape,
            "kept": one.labels is not None,
        }
        for one in weighed.options
    ]
    kept = [one.labels for one in weighed.options if one.labels is not None]
    labels = np.array(kept, dtype=np.int32) if kept else np.zeros((0, 0), dtype=np.int32)
    words = {"measure": weighed.measure, "options": options, "chosen": weighed.chosen}
    return words, labels


def _comparison_parts(c: Comparison, held: HeldOut) -> tuple[dict[str, Any], dict[str, Array]]:
    words = {
        "metric": c.metric,
        "methods": list(c.scores),
        "ours": c.ours,
        "rows": c.n_rows,
        "of_users": c.of_users,
        "l2": number_to_json(c.l2),
        "unit": number_to_json(c.unit),
    }
    # The first rows of every user: a report shows no more.
    at = np.arange(len(held.owner)) - np.searchsorted(held.owner, held.owner)
    few = at < MOST_ROWS
    arrays = {
        "scored": held.users.astype(np.int64),
        "scores": np.stack(list(c.scores.values())),
        **({"log_loss": np.stack(list(c.log_loss.values()))} if c.log_loss else {}),
        "held_owner": held.owner[few].astype(np.int64),
        "held_seen": held.seen[few].astype(np.float64),
        "held_own": held.predicted["local"][few].astype(np.float64),
        "held_ours": held.predicted[c.ours][few].astype(np.float64),
    }
    return words, arrays


# -- reading ---------------------------------------------------------------------------------------


def read_evidence(stored: StoredArtifact, n_users: int) -> Evidence:
    """What an artifact has of it; nothing, where it was written without.

    Users who were added later come after those of the fit, of whom the arrays are.
    """
    if WORDS not in stored or NUMBERS not in stored:
        return Evidence(version=stored.manifest.odcl)
    words = stored.words(WORDS, _FIELDS)
    specs = {
        "weighed_labels": ArraySpec(("options", "fitted"), ("int32",), optional=True),
        "scored": ArraySpec(("scored",), ("int64",), optional=True),
        "scores": ArraySpec(("methods", "scored"), optional=True, finite=False),
        "log_loss": ArraySpec(("methods", "scored"), optional=True),
        "held_owner": ArraySpec(("rows",), ("int64",), optional=True),
    }
    for name in ("held_seen", "held_own", "held_ours"):
        specs[name] = ArraySpec(("rows",), optional=True, finite=False)
    arrays = stored.arrays(NUMBERS, specs)
    with stored.checking(WORDS):
        texts = [*words["command"], *words["notices"], words["holdout"], words["odcl"]]
        expect(all(isinstance(text, str) for text in texts), "a word of it is not text")
        up, down = words["bytes"]
        expect(all(n is None or is_count(n) for n in (up, down)), f"bytes are {words['bytes']}")
        table = {k: words["table"].get(k) for k in ("name", "sha256", "rows", "features")}
        named = all(table[k] is None or isinstance(table[k], str) for k in ("name", "sha256"))
        sized = all(table[k] is None or is_count(table[k]) for k in ("rows", "features"))
        expect(named and sized, "the table is not named")
        return Evidence(
            version=words["odcl"],
            table={k: v for k, v in table.items() if v is not None},
            command=tuple(words["command"]),
            holdout=words["holdout"],
            notices=tuple(words["notices"]),
            bytes_up=up,
            bytes_down=down,
            weighed=_read_weighed(words["weighed"], arrays, n_users),
            comparison=_read_comparison(words["comparison"], arrays, n_users),
        )


def _read_weighed(words: Any, arrays: Mapping[str, Array], n_users: int) -> Alternatives | None:
    if words is None:
        return None
    expect(words["measure"] in MEASURES, f"{words['measure']!r} measures nothing known")
    chosen, options = words["chosen"], []
    labels = list(arrays.get("weighed_labels", ()))
    expect(sum(one["kept"] is True for one in words["options"]) == len(labels), "other labels")
    for one in words["options"]:
        expect(is_count(one["groups"]) and isinstance(one["shape"], str), "no number of groups")
        own = labels.pop(0) if one["kept"] else None
        if own is not None:
            fits = len(own) <= n_users and bool(((own >= -1) & (own < one["groups"])).all())
            expect(fits, "groups of other users")
            own = own.astype(np.intp)
        score = number_from_json(one["score"])
        options.append(Alternative(one["groups"], score, own, one["shape"]))
    inside = chosen is None or (type(chosen) is int and 0 <= chosen < len(options))
    expect(inside, f"the chosen one is {chosen!r}")
    return Alternatives(words["measure"], tuple(options), chosen)


def _read_comparison(words: Any, arrays: Mapping[str, Array], n_users: int) -> Comparison | None:
    if words is None:
        return None
    methods, ours = words["methods"], words["ours"]
    expect(words["metric"] in METRICS, f"{words['metric']!r} is no metric")
    expect(all(isinstance(name, str) for name in methods), "methods have no names")
    expect({"local", ours} <= {*methods} and "scores" in arrays, "no scores of its methods")
    scores, users, owner = arrays["scores"], arrays["scored"], arrays["held_owner"]
    expect(len(scores) == len(methods), "scores of other methods")
    for at in (users, owner):
        expect(bool(((at >= 0) & (at < n_users)).all() and (np.diff(at) >= 0).all()), "others")
    predicted = {"local": arrays["held_own"], ours: arrays["held_ours"]}
    held = HeldOut(users, owner, arrays["held_seen"], predicted)
    log_loss = dict(zip(methods, arrays.get("log_loss", ()), strict="log_loss" in arrays))
    return Comparison(
        words["metric"],
        dict(zip(methods, scores, strict=True)),
        words["rows"] if is_count(words["rows"]) else 0,
        len(users),
        number_from_json(words["unit"]),
        ours,
        number_from_json(words["l2"]),
        held,
        words["of_users"] if is_count(words.get("of_users")) else 0,
        log_loss,
    )
