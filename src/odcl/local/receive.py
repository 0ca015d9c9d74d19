"""The user's last step: from its own rows, its own upload and its download to its model.

With mixed groups its posterior mean, from its rows and the groups; where groups are of models it
takes its group's, as in the paper. No communication: still one round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.message import Downloads
from odcl.exchange.upload import Uploads
from odcl.mixed.posterior import Mixture
from odcl.risk.risk import Risk
from odcl.threads import one_thread

if TYPE_CHECKING:
    from odcl.wide.moments import WideGroups


@dataclass(frozen=True, eq=False)
class Received:
    """The users' final models, and how surely they are known."""

    models: Floats  # (n_users, dim)
    how: str  # in words
    covariance: Floats | None = None  # (n_users, dim, dim), of the models, where it is known
    noise: Floats | None = None  # (n_users,), variance of the target around the model
    dof: Floats | None = None  # (n_users,), degrees of freedom behind it
    # Where a user's own rows say more of its group than what it sent did:
    group: Ints | None = None  # (n_users,), the likeliest
    sure: Floats | None = None  # (n_users,), its probability


def receive(federation: Federation, risk: Risk, uploads: Uploads, downloads: Downloads) -> Received:
    """Every user's last step. A user's model depends on its own rows and messages alone."""
    groups = downloads.mixture
    if groups is None:
        return Received(downloads.model, "the group's model")
    from odcl.local.terms import last_step

    with one_thread(federation.n_features):
        if not isinstance(groups, Mixture):
            shares = _shares(downloads, groups.weights)
            return wide_step(federation, risk, groups, shares, downloads.fold)[0]
        if groups.beyond is not None:
            from odcl.local.private import private_last_step

            return private_last_step(federation, risk, groups, downloads)
        return last_step(federation, risk, groups, uploads)


def _shares(downloads: Downloads, weights: Floats) -> Floats:
    """Probabilities of groups, (n_users, K): beside its own, a user may be in any by its size."""
    sure = np.ones(len(downloads)) if downloads.probability is None else downloads.probability
    shares = np.tile(weights, (len(downloads), 1))
    at = np.arange(len(downloads)), downloads.group
    shares[at] = 0.0
    total = shares.sum(axis=1)
    shares *= ((1 - sure) / np.where(total > 0, total, 1.0))[:, None]
    shares[at] = sure
    return shares


def wide_step(
    federation: Federation,
    risk: Risk,
    groups: WideGroups,
    shares: Floats | None = None,
    fold: Ints | None = None,
) -> tuple[Received, Floats]:
    """Wide users' last step, and their shares in the groups by their own rows, (n_users, K).

    New users have neither ``shares``, those that the server found, nor a ``fold``.
    """
    from odcl.wide.last_step import wide_last_step
    from odcl.wide.squared_step import wide_last_step_squared

    step = wide_last_step if risk.loss.classification else wide_last_step_squared
    if shares is None:
        shares = np.tile(groups.weights, (federation.n_users, 1))
    found = step(federation, risk, groups, shares, fold)
    how = "groups' models and own fits, weighed on own rows held out"
    dof = None if found.noise is None else federation.n_samples + 1.0
    own = found.models, how, None, found.noise, dof
    return Received(*own, group=found.group, sure=found.sure), found.shares
