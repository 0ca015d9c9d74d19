"""The user's last step: from its own rows, its own upload and its download to its model.

With mixed groups its posterior mean, from its rows and the groups; where groups are of models it
takes its group's, as in the paper. No communication: still one round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.risk.risk import Risk
from odcl.threads import one_thread


@dataclass(frozen=True, eq=False)
class Received:
    """The users' final models and how far each was drawn to its group's."""

    models: Floats  # (n_users, dim)
    strength: Floats  # (n_users,), lam_i: 0 is the local model, infinity the group's
    how: str  # in words
    covariance: Floats | None = None  # (n_users, dim, dim), of the models, where it is known
    noise: Floats | None = None  # (n_users,), variance of the target around the model
    dof: Floats | None = None  # (n_users,), degrees of freedom behind it
    # Where a user's own rows say more of its group than what it sent did:
    group: Ints | None = None  # (n_users,), the likeliest
    sure: Floats | None = None  # (n_users,), its probability


def receive(federation: Federation, risk: Risk, uploads: Uploads, downloads: Downloads) -> Received:
    """Every user's last step. A user's model depends on its own rows and messages alone."""
    if downloads.mixture is None:
        return Received(downloads.model, np.full(len(downloads), np.inf), "the group's model")
    from odcl.local.terms import last_step

    with one_thread(federation.n_features):
        return last_step(federation, risk, downloads.mixture, uploads)
