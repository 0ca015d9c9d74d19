"""What is chosen in a wide space is measured on users who did not choose it.

In a thousand columns there is always a direction along which some users lie apart. So whatever is
learned (a whitening, directions, classifiers, a penalty) is learned once for each fold of users,
from the other folds, and looked at on that fold alone. A :class:`OutOfFold` comes from
:meth:`Folds.held_out` and from nowhere else: functions that decide something ask for one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Generic, TypeVar

import numpy as np

from odcl._typing import Bools, Ints
from odcl.wide.moments import ClassMoments

Learned = TypeVar("Learned")
Seen = TypeVar("Seen")


@dataclass(frozen=True, eq=False)
class OutOfFold(Generic[Seen]):
    """What each fold's users looked like to what was learned without them."""

    folds: Folds
    parts: tuple[Seen, ...]  # one for each fold that has users, or their sum


@dataclass(frozen=True, eq=False)
class Folds:
    """Users in folds, by their ids."""

    of: Ints  # (m,)

    @property
    def members(self) -> list[Bools]:
        """Users of each fold that has any."""
        return [self.of == f for f in np.unique(self.of)]

    def learned(
        self, data: ClassMoments, learn: Callable[[ClassMoments, Bools], Learned]
    ) -> list[Learned]:
        """``learn`` from the users outside each fold; it is told which these are."""
        return [learn(data.take(~some), ~some) for some in self.members]

    def held_out(
        self,
        data: ClassMoments,
        learned: list[Learned],
        look: Callable[[Learned, ClassMoments, Bools], Seen],
        *,
        added: bool = False,
    ) -> OutOfFold[Seen]:
        """Each fold's users, as what was learned without them sees them; ``added``: their sum."""
        pairs = zip(learned, self.members, strict=True)
        seen = (look(one, data.take(some), some) for one, some in pairs)
        return OutOfFold(self, (reduce(add, seen),) if added else tuple(seen))
