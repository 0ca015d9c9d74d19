"""The ledger of a site or node, which stays there: private uploads, and what they have spent."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from odcl.data.federation import Federation
from odcl.declared import Digest, Label, Positive, fields_from_json, to_json
from odcl.errors import InputError, Setting
from odcl.files import atomic_path, read_regular
from odcl.privacy import Privacy, epsilon_of

NAME = "site.ledger"
MOST_BYTES = 2**30


@dataclass(frozen=True)
class Spent:
    """One private upload that was made."""

    task: Label
    round: Positive
    card: Digest
    rows: Digest  # of the rows it was made from; of a Flower node's name, whatever its rows
    privacy: Privacy
    created: Label
    upload: str = ""  # the file, in base64; "": none was made yet

    def sending(self, content: bytes) -> Spent:
        """With the file that was made."""
        return replace(self, upload=base64.b64encode(content).decode())

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.upload)

    def __str__(self) -> str:
        return f"task {self.task!r}, round {self.round}, {self.privacy} ({self.created[:10]})"


@dataclass(frozen=True)
class SiteLedger:
    """What a site has spent, oldest first.

    A file made again spends again, and the same rows behind two files give more away than behind
    one. So a private upload is made once and kept here, and given back when it is asked for again;
    any other is refused until the site confirms that it has seen the sum (``again``).
    """

    spent: tuple[Spent, ...] = ()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> SiteLedger:
        if not os.path.lexists(path):
            return cls()
        try:
            return fields_from_json(cls, json.loads(read_regular(path, most=MOST_BYTES)))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path} is no ledger that can be read, and nothing leaves until it is: {error}"
            ) from None

    def write(self, path: Path) -> None:
        """Readable by its owner alone: whole or not at all."""
        with atomic_path(path) as place:
            place.touch(mode=0o600)
            place.write_text(json.dumps(to_json(self), indent=1), encoding="utf-8")
            place.chmod(0o600)

    def kept(self, card: str, rows: str) -> Spent | None:
        """The upload of these rows by this card, if it was made already."""
        return next((one for one in self.spent if (one.card, one.rows) == (card, rows)), None)

    def noting(self, new: Spent) -> SiteLedger:
        """With one more, in place of an upload of the same card and rows that was not made yet."""
        same = (new.card, new.rows)
        others = [one for one in self.spent if one.upload or (one.card, one.rows) != same]
        return SiteLedger((*others, new))

    def epsilon(self, delta: float, *more: Privacy) -> float:
        """What all uploads together spend of a row that is in each of them."""
        each = [*(one.privacy for one in self.spent), *more]
        return epsilon_of(math.hypot(*(privacy.mu for privacy in each)), delta)

    def refuse_again(self, privacy: Privacy, path: str | os.PathLike[str]) -> None:
        """Refuse a further upload, with what it would come to."""
        if not self.spent:
            return
        total = self.epsilon(privacy.delta, privacy)
        raise InputError(
            f"{path} says that private uploads have left already: "
            f"{'; '.join(map(str, self.spent))}. With one more, whoever reads all of them can tell "
            f"more of a row that is in each: epsilon {total:.3g} at delta {privacy.delta:g}. If "
            "that is meant, say ",
            Setting("again", True),
            "; if no row is in both, name another ledger.",
        )


def rows_digest(rows: Federation) -> str:
    """SHA-256 of some users' rows, whatever their order."""
    table = np.column_stack([rows.row_user, rows.X, rows.y.astype(np.float64)])
    return hashlib.sha256(b"".join(sorted(row.tobytes() for row in table))).hexdigest()
