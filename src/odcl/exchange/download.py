"""What a user receives: all that its last step needs, and nothing that names another user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from odcl._typing import Floats, Ints
from odcl.exchange.message import Message, part

if TYPE_CHECKING:
    from odcl.wide.moments import GroupModels


@dataclass(frozen=True, eq=False)
class Downloads(Message):
    """The downloads of one or many users, one row per user."""

    model: Floats = part("the model of the user's group", "dim", optional=False)
    group: Ints = part("the number of the user's group", optional=False, dtype="int64")
    group_size: Ints = part("how many users are in that group", optional=False, dtype="int64")
    probability: Floats | None = part("how surely the user belongs to it")
    fold: Ints | None = part(
        "the fifth of the users that it is in: models without it judge its own rows", dtype="int64"
    )
    own_curvature: Floats | None = part(
        "what the groups took from the user's own private upload, which its rows replace",
        *("dim", "dim"),
    )
    own_slope: Floats | None = part("the same, of its slope", "dim")
    mixture: GroupModels | None = None  # of mixed groups, the same for everybody

    @property
    def n_bytes(self) -> Ints:
        shared = 0 if self.mixture is None else self.mixture.n_numbers
        return super().n_bytes + 8 * shared

    def summary(self) -> list[str]:
        """A sentence per user on where it stands."""
        sure = self.probability
        return [
            f"{user}: group {group}, {size} user{'s' * (size != 1)} in it"
            + ("" if sure is None else f", probability {sure[i]:.2f}")
            for i, (user, group, size) in enumerate(
                zip(self.users.tolist(), self.group.tolist(), self.group_size.tolist(), strict=True)
            )
        ]
