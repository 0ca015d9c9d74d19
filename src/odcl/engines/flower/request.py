"""What nodes are asked for: a risk, a method, a seed and a digest of all that, as words."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from odcl._typing import Array
from odcl.artifact.arrays import (
    expect,
    id_from_json,
    id_to_json,
    is_count,
    json_bytes,
    parse_json,
)
from odcl.data.federation import owner_ids
from odcl.engines.arrivals import Agreed
from odcl.engines.files.envelope import Refused
from odcl.engines.flower.bare import MOST_BARE, BareAgreed
from odcl.method import Method
from odcl.risk.risk import Risk

FORMAT = 1
MOST_PARAMETERS = 10_000  # of a model
_DIGEST, _WORDS = "task", "odcl"  # keys of a ConfigRecord


@dataclass(frozen=True)
class Request:
    """What every node is asked for. Its digest is in all that is sent: nothing of another is taken.

    ``columns`` are the names of the features, where they are agreed on; rows are in the units that
    the nodes' ``load`` gives, so the method does not standardize.
    """

    risk: Risk = field(default_factory=Risk)
    method: Method = field(default_factory=Method)
    seed: int = 0
    columns: tuple[str, ...] | None = None
    name: str = "flower"
    round: int = 1
    bare: bool = False  # models of another kind than the risk's: n_features is their length

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", replace(self.method, standardize=False))
        object.__setattr__(self, "_agreed", {})

    # -- what follows --------------------------------------------------------------------------

    @property
    def n_features(self) -> int | None:
        """How many features rows have, where that is agreed on."""
        return None if self.columns is None else len(self.columns)

    def agreed(self, n_features: int) -> Agreed:
        """What an upload of users with so many features has to be."""
        known: dict[int, Agreed] = self.__dict__["_agreed"]
        if self.bare and n_features not in known:
            expect(0 < n_features <= MOST_BARE, f"a model of {n_features} parameters")
            known[n_features] = BareAgreed(self.risk, self.method, n_features)
        if n_features not in known:
            dim = self.risk.dim(n_features)
            expect(0 < dim <= MOST_PARAMETERS, f"a model of {dim} parameters")
            method = self.method.resolved(self.risk, dim)
            known[n_features] = Agreed(self.risk, method, n_features)
        return known[n_features]

    # -- words ---------------------------------------------------------------------------------

    @cached_property
    def words(self) -> str:
        """All of it as JSON."""
        return json_bytes(
            {
                "format": FORMAT,
                "name": self.name,
                "round": self.round,
                "risk": self.risk.to_json(),
                "method": self.method.to_json(),
                "seed": self.seed,
                "columns": None if self.columns is None else list(self.columns),
                "bare": self.bare,
            },
            indent=None,
        ).decode()

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the words."""
        return hashlib.sha256(self.words.encode()).hexdigest()

    @property
    def stamp(self) -> dict[str, Any]:
        """What files of the request say of it."""
        return {"name": self.name, "round": self.round, "sha256": self.digest}

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
        if not isinstance(words, dict) or words.get("format") != FORMAT:
            raise ValueError(
                f"The request has another format than {FORMAT}: install the same odcl everywhere."
            )
        columns, name, number = words["columns"], words["name"], words["round"]
        expect(columns is None or isinstance(columns, list), "columns are no list")
        expect(isinstance(name, str) and is_count(number), "no name, or no round")
        expect(is_count(words["seed"]), "the seed is no whole number from 0 on")
        expect(isinstance(words["bare"], bool), "it does not say what models are")
        found = cls(
            Risk.from_json(words["risk"]),
            Method.from_json(words["method"]),
            words["seed"],
            None if columns is None else tuple(map(str, columns)),
            name,
            number,
            words["bare"],
        )
        expect(found.digest == config.get(_DIGEST), "the digest is not that of the request")
        return found


def check_digest(request: Request, config: Mapping[str, Any]) -> None:
    """Refuse what answers another request."""
    if config.get(_DIGEST) != request.digest:
        raise Refused("it answers another task than this one")


# -- ids of users ----------------------------------------------------------------------------------


def ids_to_text(users: Array) -> str:
    """Users' ids as JSON, so that they come back as they were."""
    return json.dumps([id_to_json(user) for user in users.tolist()])


def ids_from_text(text: Any) -> Array:
    """The way back; ids may come from anyone."""
    expect(isinstance(text, str), "it does not name its users")
    listed = parse_json(text.encode())
    expect(isinstance(listed, list) and len(listed) > 0, "it does not name its users")
    ids = owner_ids([id_from_json(user) for user in listed])
    expect(len(ids) == len(listed), "an id is not one value")
    expect(len(set(ids.tolist())) == len(ids), "it names a user twice")
    return ids
