"""What crosses the wire: one upload a user, and nothing else.

The fields of :class:`Uploads` are the privacy statement: a user's rows never leave it; these
numbers do. The byte count is read off the same type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import group_rows


@dataclass(frozen=True, eq=False)
class Uploads:
    """The uploads of all users, one row each.

    ``curvature`` is n_i times the Hessian of the user's penalised risk at ``theta``: full,
    (n_users, dim, dim), diagonal, (n_users, dim), or not sent. A user that keeps its curvature to
    itself has zeros there. ``dispersion`` is the noise scale phi_i with cov(theta_i) =
    phi_i H_i^-1; infinite means that the user cannot tell (no more rows than parameters, no
    finite minimiser): it joins a group that others form and founds none. ``noise`` is the trace
    of H_i^-1, sent where the full curvature is not.
    """

    users: Array  # (n_users,), ids
    theta: Floats  # (n_users, dim)
    n_samples: Floats  # (n_users,)
    curvature: Floats | None = None
    dispersion: Floats | None = None  # (n_users,)
    noise: Floats | None = None  # (n_users,)
    # Settings that everybody knows beforehand, not sent:
    l2: Floats | None = None  # (dim,), diagonal of the penalty's Hessian; None: zeros
    has_dispersion: bool = False  # is phi a free parameter of the loss?
    curvature_varies: bool = False  # does a user's curvature depend on the model it is taken at?

    @classmethod
    def of(cls, theta: Any) -> Uploads:
        """Bare models, as in the paper: users are 0..n_users-1 with one sample each."""
        theta = np.asarray(theta, dtype=np.float64)
        if theta.ndim != 2:
            raise ValueError(
                f"Models must be a matrix, one row a user; got {theta.ndim} dimension(s)."
            )
        m = len(theta)
        return cls(np.arange(m), theta, np.ones(m))

    @property
    def n_users(self) -> int:
        return len(self.theta)

    @property
    def dim(self) -> int:
        return int(self.theta.shape[1])

    @property
    def full(self) -> bool:
        return self.curvature is not None and self.curvature.ndim == 3

    @cached_property
    def sent(self) -> Bools:
        """Users whose curvature is there, (n_users,)."""
        if self.curvature is None:
            return np.zeros(self.n_users, dtype=bool)
        diagonal = np.diagonal(self.curvature, axis1=1, axis2=2) if self.full else self.curvature
        return np.any(diagonal != 0, axis=1)

    @property
    def founders(self) -> Bools:
        """Users that may found a group, (n_users,)."""
        if self.dispersion is None:
            return np.ones(self.n_users, dtype=bool)
        return np.isfinite(self.dispersion)

    @property
    def bytes_up(self) -> Ints:
        """Bytes that each user sends: 8 a number, a symmetric matrix as its triangle."""
        numbers = np.full(self.n_users, self.dim + 1)
        if self.curvature is not None:
            each = self.dim * (self.dim + 1) // 2 if self.full else self.dim
            numbers = numbers + each * self.sent
        numbers += (self.dispersion is not None) + (self.noise is not None)
        return 8 * numbers

    def take(self, order: Ints | Bools) -> Uploads:
        def pick(a: Any) -> Any:
            return None if a is None else a[order]

        return replace(
            self,
            users=self.users[order],
            theta=self.theta[order],
            n_samples=self.n_samples[order],
            curvature=pick(self.curvature),
            dispersion=pick(self.dispersion),
            noise=pick(self.noise),
        )

    def canonical_order(self) -> Ints:
        """Positions that put the users in canonical order (that of ``group_rows``)."""
        ids, codes = group_rows(self.users)
        if len(ids) < self.n_users:
            repeated = self.users[np.bincount(codes)[codes] > 1].tolist()[0]
            raise ValueError(
                f"User {repeated!r} uploaded more than once: each user has one model. Merge its "
                "rows, or give the uploads different ids."
            )
        return np.argsort(codes, kind="stable")

    def check(self) -> None:
        """Refuse what would spoil the other users' models, naming the user."""
        fields = {"theta": self.theta, "curvature": self.curvature}
        for name, values in fields.items():
            if values is None:
                continue
            flat = values.reshape(-1)
            if np.isfinite(flat @ flat):  # the quick look; squares may overflow, numbers not
                continue
            bad = ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
            if bad.any():
                first = self.users[bad].tolist()[0]
                raise ValueError(
                    f"{int(bad.sum())} of {self.n_users} uploads have a {name} that is not finite "
                    f"(first: user {first!r}); averaging would spread it to the whole group. Leave "
                    "these users out, or mend their local fit."
                )
        if not (np.isfinite(self.n_samples) & (self.n_samples > 0)).all():
            bad = ~(np.isfinite(self.n_samples) & (self.n_samples > 0))
            raise ValueError(
                f"User {self.users[bad].tolist()[0]!r} uploaded {self.n_samples[bad][0]:g} as its "
                "number of samples: every upload needs a number > 0."
            )
