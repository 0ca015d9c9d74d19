"""What a fit leaves beside its model, for the report: where it comes from, what was weighed, and
what it was worth on held-out rows. Two declared files of an artifact, checked when they are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np

from odcl import __version__
from odcl._typing import Array
from odcl.artifact.arrays import ArraySpec, array_file, json_bytes
from odcl.artifact.folder import Content, StoredArtifact
from odcl.declared import Count, Number, expect, from_json, one_of, to_json
from odcl.evaluate import Comparison, HeldOut
from odcl.fitted.value import Fitted
from odcl.server.result import MEASURES, Alternative, Alternatives

WORDS, NUMBERS = "evidence.json", "evidence.safetensors"
MOST_ROWS = 30  # held-out rows of one user that are kept
METRICS = ("accuracy", "RMSE", "deviance")


@dataclass(frozen=True, eq=False)
class Evidence:
    """Where a fit comes from, and what speaks for it."""

    version: str = __version__
    table: Mapping[str, Any] = field(default_factory=dict)  # name, sha256 and rows, where known
    command: Sequence[str] = ()  # the words of the shell that give it again
    later: Sequence[Sequence[str]] = ()  # ... and of commands that gave it more users or rows
    holdout: str = ""
    notices: Sequence[str] = ()
    bytes_up: int | None = None  # of all users together
    bytes_down: int | None = None
    weighed: Alternatives | None = None
    comparison: Comparison | None = None

    @classmethod
    def of(cls, fitted: Fitted, comparison: Comparison | None = None, **more: Any) -> Evidence:
        """The evidence of a fit; ``more`` are fields of it."""
        told = {name: getattr(fitted, name) for name in ("bytes_up", "bytes_down", "weighed")}
        return cls(comparison=comparison, **told, **more)


# -- the words of the file -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    name: str | None = None
    sha256: str | None = None
    rows: Count | None = None


@dataclass(frozen=True)
class _Option:
    groups: Count
    score: Number
    shape: str
    kept: bool  # are its labels among the arrays?


@dataclass(frozen=True)
class _Weighed:
    measure: Annotated[str, one_of(tuple(MEASURES))]
    options: tuple[_Option, ...]
    chosen: Count | None

    def __post_init__(self) -> None:
        expect(self.chosen is None or self.chosen < len(self.options), "the chosen is not there")


@dataclass(frozen=True)
class _Scored:
    metric: Annotated[str, one_of(METRICS)]
    methods: tuple[str, ...]
    ours: str
    rows: Count
    of_users: Count
    l2: Number
    unit: Number


@dataclass(frozen=True)
class _Words:
    """``evidence.json``: what :class:`Evidence` holds, but for arrays."""

    version: str
    table: _Table
    command: tuple[str, ...]
    later: tuple[tuple[str, ...], ...]
    holdout: str
    notices: tuple[str, ...]
    bytes_up: Count | None
    bytes_down: Count | None
    weighed: _Weighed | None
    comparison: _Scored | None


# -- writing ---------------------------------------------------------------------------------------


def evidence_files(found: Evidence) -> dict[str, Content]:
    """The two files."""
    arrays, weighed, scored, c = dict[str, Array](), None, None, found.comparison
    if found.weighed is not None:
        options = found.weighed.options
        own = [_Option(o.n_groups, o.score, o.shape, o.labels is not None) for o in options]
        weighed = _Weighed(found.weighed.measure, tuple(own), found.weighed.chosen)
        kept = [one.labels for one in options if one.labels is not None]
        arrays |= {"weighed_labels": np.array(kept, dtype=np.int32)} if kept else {}
    if c is not None and c.held is not None:
        about = (c.metric, tuple(c.scores), c.ours, c.n_rows, c.of_users)
        scored = _Scored(*about, float(c.l2), float(c.unit))
        arrays |= _comparison_arrays(c, c.held)
    parts = {"table": _Table(**found.table), "weighed": weighed, "comparison": scored}
    words = _Words(**{**vars(found), **parts})

    return {WORDS: json_bytes(to_json(words)), NUMBERS: array_file(arrays)}


def _comparison_arrays(c: Comparison, held: HeldOut) -> dict[str, Array]:
    # The first rows of every user: a report shows no more.
    at = np.arange(len(held.owner)) - np.searchsorted(held.owner, held.owner)
    few = at < MOST_ROWS
    return {
        "scored": held.users.astype(np.int64),
        "scores": np.stack(list(c.scores.values())),
        **({"log_loss": np.stack(list(c.log_loss.values()))} if c.log_loss else {}),
        "held_owner": held.owner[few].astype(np.int64),
        "held_seen": held.seen[few].astype(np.float64),
        "held_own": held.predicted["local"][few].astype(np.float64),
        "held_ours": held.predicted[c.ours][few].astype(np.float64),
    }


# -- reading ---------------------------------------------------------------------------------------

_SPECS = {
    "weighed_labels": ArraySpec(("options", "fitted"), ("int32",), optional=True),
    "scored": ArraySpec(("scored",), ("int64",), optional=True),
    "scores": ArraySpec(("methods", "scored"), optional=True, finite=False),
    "log_loss": ArraySpec(("methods", "scored"), optional=True),
    "held_owner": ArraySpec(("rows",), ("int64",), optional=True),
    **dict.fromkeys(
        ("held_seen", "held_own", "held_ours"), ArraySpec(("rows",), optional=True, finite=False)
    ),
}


def read_evidence(stored: StoredArtifact, n_users: int) -> Evidence:
    """What an artifact has of it; nothing, where it was written without.

    Users who were added later come after those of the fit, of whom the arrays are.
    """
    if WORDS not in stored or NUMBERS not in stored:
        return Evidence(version=stored.manifest.odcl)
    content, arrays = stored.words(WORDS), stored.arrays(NUMBERS, _SPECS)
    with stored.checking(WORDS):
        words: _Words = from_json(_Words, content)
        weighed, scored = words.weighed, words.comparison
        found = {
            "table": {name: told for name, told in vars(words.table).items() if told is not None},
            "weighed": None if weighed is None else _weighed(weighed, arrays, n_users),
            "comparison": None if scored is None else _comparison(scored, arrays, n_users),
        }
        return Evidence(**{**vars(words), **found})


def _weighed(words: _Weighed, arrays: Mapping[str, Array], n_users: int) -> Alternatives:
    labels, options = list(arrays.get("weighed_labels", ())), []
    expect(sum(one.kept for one in words.options) == len(labels), "other labels")
    for one in words.options:
        own = labels.pop(0).astype(np.intp) if one.kept else None
        if own is not None:
            fits = len(own) <= n_users and bool(((own >= -1) & (own < one.groups)).all())
            expect(fits, "groups of other users")
        options.append(Alternative(one.groups, float(one.score), own, one.shape))
    return Alternatives(words.measure, tuple(options), words.chosen)


def _comparison(words: _Scored, arrays: Mapping[str, Array], n_users: int) -> Comparison:
    methods, ours = words.methods, words.ours
    expect({"local", ours} <= {*methods} and "scores" in arrays, "no scores of its methods")
    scores, users, owner = arrays["scores"], arrays["scored"], arrays["held_owner"]
    expect(len(scores) == len(methods), "scores of other methods")
    for at in (users, owner):
        expect(bool(((at >= 0) & (at < n_users)).all() and (np.diff(at) >= 0).all()), "others")
    predicted = {"local": arrays["held_own"], ours: arrays["held_ours"]}
    log_loss = dict(zip(methods, arrays.get("log_loss", ()), strict="log_loss" in arrays))
    return Comparison(
        words.metric,
        dict(zip(methods, scores, strict=True)),
        *(words.rows, len(users), words.unit, ours, words.l2),
        HeldOut(users, owner, arrays["held_seen"], predicted),
        words.of_users,
        log_loss,
    )
