"""What a diagnosis holds, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.diagnose.facts import Distance, Errors, in_typical_noise
from odcl.diagnose.noise import Noise
from odcl.diagnose.places import Places
from odcl.diagnose.stability import Stability
from odcl.diagnose.verdict import Verdict

if TYPE_CHECKING:
    from odcl.theory import Separation

BORDER = 0.05  # probability of belonging elsewhere from which a user is named
STRANGE = 0.01  # chance that any member of a group is taken for a user of none
TRUSTED = 3  # users that a group needs: the model of a pair may be a coincidence


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """What the uploads of one round say about the groups that a result has.

    ``print(diagnosis)`` is the report, ``diagnosis.verdict`` the conclusion,
    ``diagnosis.columns()`` one row a user. Where too few users know their noise to say anything
    (``sighted`` is False), ``distance``, ``separation``, ``stability`` and ``errors`` are None.
    """

    verdict: Verdict
    method: str  # by which the judged groups were found
    users: Array  # (n_users,)
    labels: Ints  # (n_users,), the judged groups
    visible: Ints  # (n_users,), the groups that the users' noise shows
    n_samples: Floats  # (n_users,)
    dim: int
    noise: Noise
    tau2: float  # variance between users of a group, a coordinate
    distance: Distance | None  # D; None with one group
    separation: Separation | None  # alpha of Eq. (4) and what it guarantees; None with one group
    stability: Stability | None
    places: Places
    errors: Errors | None  # in units of the local models' error
    visible_error: float  # of the visible groups' models, precision combining; NaN: not known

    @property
    def n_users(self) -> int:
        return len(self.users)

    @property
    def n_clusters(self) -> int:
        return int(self.labels.max()) + 1

    @property
    def n_visible(self) -> int:
        """Groups that the users' noise shows."""
        return int(self.visible.max()) + 1

    @property
    def sighted(self) -> bool:
        """Do enough users know their noise for anything to be said about groups?"""
        return self.errors is not None

    @property
    def own(self) -> float:
        """Variance between users of a group in units of a typical user's noise."""
        return in_typical_noise(self.tau2, self.noise, self.dim)

    @property
    def misplaced(self) -> float:
        """Expected number of users in a wrong group."""
        return float(np.nansum(self.places.elsewhere))

    @property
    def border(self) -> Ints:
        """Users near a border, the least sure first: positions in ``users``."""
        chance = np.nan_to_num(self.places.elsewhere)
        some = np.flatnonzero(chance >= BORDER)
        return some[np.argsort(-chance[some], kind="stable")]

    @property
    def strangers(self) -> Ints:
        """Users who fit no group: alone in theirs, or too far from it. Positions in ``users``.

        Distances are judged where users sent their curvature: with one variance for all directions
        they have tails of no known law.
        """
        alone = np.bincount(self.labels)[self.labels] == 1
        far = np.nan_to_num(self.places.tail, nan=1.0) < STRANGE / max(self.n_users, 100)
        told = self.noise.source == "curvature"
        return np.flatnonzero((far & told) | (alone & (self.n_clusters > 1)))

    @property
    def too_small(self) -> Ints:
        """Groups of fewer than three users, whose models rest on a coincidence of one or two."""
        if self.n_clusters == 1:
            return np.zeros(0, dtype=np.intp)
        return np.flatnonzero(np.bincount(self.labels) < TRUSTED)

    def columns(self) -> dict[str, Any]:
        """One row a user, as columns: ``pandas.DataFrame(diagnosis.columns())``.

        user, group, rows; elsewhere: probability of belonging to another group; rival: the
        likeliest of the others (-1: there is none); distance: from the own group, in units of what
        its members' noise explains (about 1); remark. NaN for users of unknown noise.
        """
        remark = np.full(self.n_users, "", dtype=object)
        if self.sighted:
            remark[self.border] = "near a border"
            remark[self.strangers] = "fits no group"
        remark[~self.noise.known] = "noise unknown"
        return {
            "user": self.users,
            "group": self.labels,
            "rows": self.n_samples,
            "elsewhere": np.round(self.places.elsewhere, 6),
            "rival": self.places.rival,
            "distance": np.round(self.places.distance, 4),
            "remark": remark.astype(str),
        }

    def __repr__(self) -> str:
        size = f"{self.n_users} user{'s' * (self.n_users > 1)}"
        groups = f"{self.n_clusters} group{'s' * (self.n_clusters > 1)}"
        return f"<Diagnosis {self.verdict.advice!r}: {size}, {groups}>"

    def __str__(self) -> str:
        from odcl.diagnose.text import report

        return report(self)
