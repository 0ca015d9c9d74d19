"""What nodes are asked for: a risk, a method, a seed, and a digest of all that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from odcl._typing import Array
from odcl.artifact.arrays import (
    ArraySpec,
    expect,
    id_from_json,
    id_to_json,
    json_bytes,
    parse_json,
)
from odcl.data.federation import owner_ids
from odcl.data.scaling import Scaling
from odcl.declared import Count, Label, Positive, fields_from_json, fields_to_json
from odcl.engines.files.envelope import Refused, Stamp
from odcl.engines.wire import Agreed
from odcl.fitted.curves import check_curves, curves_of
from odcl.method import Method
from odcl.privacy import Privacy
from odcl.risk.risk import Risk, is_wide

FORMAT = 1
MOST_PARAMETERS, MOST_WIDE = 10_000, 100_000  # of a model; where users send moments
MOST_BARE = 20_000_000  # of a bare model: 160 MB of float64 per user
_DIGEST, _WORDS = "task", "odcl"  # keys of a ConfigRecord


@dataclass(frozen=True)
class Request:
    """What every node is asked for. Replies carry its digest, or they are refused.

    ``columns`` are the names of the features, where they are agreed on; rows are in the units that
    the nodes' ``load`` gives, so the method does not standardize. Bends of the risk's curves are no
    features: nodes add them.
    """

    risk: Risk = field(default_factory=Risk)
    method: Method = field(default_factory=Method)
    seed: Count = 0
    columns: tuple[str, ...] | None = None
    name: Label = "flower"
    round: Positive = 1
    bare: bool = False  # models of another kind than the risk's: n_features is their length

    def __post_init__(self) -> None:
        if self.method.curves:
            raise ValueError(
                "Method(curves=...) is for odcl.fit, which sees all rows. Nodes need to know the "
                'range of a column: say curves={"age": (50, 20)} beside the method.'
            )
        object.__setattr__(self, "method", replace(self.method, standardize=False))
        if self.method.privacy is not None:
            self._check_private(self.method.privacy)

    def _check_private(self, privacy: Privacy) -> None:
        """Refuse what private uploads do not cover, at the server and at every node."""
        if self.bare:
            raise ValueError("Bare models (risk=None) leave without noise: give a risk.")
        if self.columns is None:
            raise ValueError(
                "Private uploads need columns by name, whose public ranges all nodes agree on: say "
                "features=[...] as well, or take a task card with [privacy]."
            )
        privacy.refuse_uncovered(self.risk, len(self.columns))
        self.method.resolved(self.risk, self.risk.dim(len(self.columns)))

    @property
    def n_features(self) -> int | None:
        """How many features rows have, where that is agreed on."""
        if self.columns is not None:
            return len(self.columns)
        return min((j for curve in self.risk.curves for j in curve.columns), default=None)

    def agreed(self, n_features: int) -> Agreed:
        """The form of uploads of users with ``n_features`` features."""
        return _agreed(self, n_features)

    # -- words ---------------------------------------------------------------------------------

    @cached_property
    def words(self) -> str:
        """All of it as JSON."""
        first = {"format": FORMAT, "name": self.name, "round": self.round}
        return json_bytes({**first, **fields_to_json(self)}, indent=None).decode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the words."""
        return hashlib.sha256(self.words.encode()).hexdigest()

    @property
    def stamp(self) -> Stamp:
        """What files of the request say of it."""
        return Stamp(self.name, self.round, self.digest)

    def config(self) -> dict[str, str]:
        """Entries of a ConfigRecord, by which a node knows exactly what to send."""
        return {_WORDS: self.words, _DIGEST: self.digest}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Request:
        """What :meth:`config` wrote; a ValueError says what is wrong with other entries."""
        text = config.get(_WORDS)
        if not isinstance(text, str):
            raise ValueError(
                "The message holds no request of odcl: the server's strategy is another than ODCL."
            )
        words = parse_json(text.encode())
        if not isinstance(words, dict) or words.pop("format", None) != FORMAT:
            raise ValueError(
                f"The request has another format than {FORMAT}: install the same odcl everywhere."
            )
        found = fields_from_json(cls, words)
        expect(found.digest == config.get(_DIGEST), "the digest is not that of the request")
        return found

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse a reply to another request."""
        if config.get(_DIGEST) != self.digest:
            raise Refused("it answers another task than this one")


@lru_cache(maxsize=64)
def _agreed(request: Request, n_features: int) -> Agreed:
    if request.bare:
        expect(0 < n_features <= MOST_BARE, f"a model of {n_features} parameters")
        return BareAgreed(request.risk, request.method, n_features)
    width = n_features + sum(len(curve.columns) for curve in request.risk.curves)
    dim = request.risk.dim(width)
    wide = request.method.clusterer.uses_terms and is_wide(request.risk, width)
    expect(0 < dim <= (MOST_WIDE if wide else MOST_PARAMETERS), f"a model of {dim} parameters")
    return Agreed(request.risk, request.method.resolved(request.risk, dim), width)


@dataclass(frozen=True)
class BareAgreed(Agreed):
    """An upload is a model of ``n_features`` numbers and the number of rows behind it."""

    @property
    def dim(self) -> int:
        return self.n_features

    @cached_property
    def specs(self) -> dict[str, ArraySpec]:
        return {"n_samples": ArraySpec(("users",)), "theta": ArraySpec(("users", self.n_features))}


def expect_bare(method: Method, what: str) -> None:
    """Refuse a method that needs more of a user than its model and its number of rows."""
    if method.clusterer.uses_terms:
        raise Refused(
            f"{what} sends bare models, and {method.clusterer} looks at what rows say: let the "
            "server ask for Method.paper(n_clusters=K), or Method.paper() where K is not known."
        )


def bent_risk(
    risk: Risk,
    method: Method,
    columns: Sequence[str] | None,
    curves: Mapping[str, tuple[float, float]],
    periodic: Mapping[str, float],
) -> Risk:
    """The risk with ``curves`` of these columns, each with its shift and scale, and periods."""
    check_curves(list(curves), periodic)
    if columns is None:
        raise ValueError("Curves and periods are of columns by name: say features=[...] as well.")
    p, names = len(columns), list(columns)
    own = Scaling.none(p, risk.factors)
    shift, scale = np.zeros(p), np.ones(p)
    for name, unit in curves.items():
        if len(unit) != 2 or not (np.isfinite(unit).all() and unit[1] > 0):
            raise ValueError(
                f"curves[{name!r}] is {unit!r}, and not a typical value and a typical deviation: "
                '{"age": (50, 20)}.'
            )
        if name in names:
            shift[names.index(name)], scale[names.index(name)] = unit
    usual, bent = replace(own, shift=shift, scale=scale), list(curves)
    if not (found := curves_of(bent, periodic, method, risk, own, usual, names)):
        raise ValueError("There are too many columns for so many curves: name fewer.")
    return replace(risk, curves=found)


# -- ids of users ----------------------------------------------------------------------------------


def ids_to_text(users: Array) -> str:
    """Users' ids as JSON, so that they come back as they were."""
    return json.dumps([id_to_json(user) for user in users.tolist()])


def ids_from_text(text: Any) -> Array:
    """Read :func:`ids_to_text`; the text may come from anyone."""
    expect(isinstance(text, str), "it does not name its users")
    listed = parse_json(text.encode())
    expect(isinstance(listed, list) and len(listed) > 0, "it does not name its users")
    ids = owner_ids([id_from_json(user) for user in listed])
    expect(len(ids) == len(listed), "an id is not one value")
    expect(len(set(ids.tolist())) == len(ids), "it names a user twice")
    return ids
