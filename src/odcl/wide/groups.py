"""What the server knows about groups of wide users, the same for everybody."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from odcl._typing import Floats, Ints
from odcl.mixed.layout import without_rows
from odcl.mixed.posterior import Mixture
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk


@dataclass(frozen=True, eq=False)
class WideGroups:
    """K groups of users with C classes (one for numbers) and d features.

    Scores are linear in a row's features and calibrated: with the log shares of the classes added,
    their softmax is the row's class probabilities. ``scores`` has one entry from all users,
    and one for each fold of users from the users outside it.
    """

    weights: Floats  # (K,), shares of the users
    scores: Floats  # (1 + FOLDS, K, d + 1, C), the intercept last, without class shares
    shares: Floats  # (K, C), class shares in each group
    concentration: float  # how closely users follow them: alpha of a Dirichlet
    unit: Floats  # (d,), standard deviation of features within classes, at least the median
    alike: bool  # users of a group do not differ
    noise: Floats | None = None  # (K,), variance of a number around its group's model

    def models(self, risk: Risk) -> Floats:
        """The groups' models in the layout of all models, (K, dim), their class shares included."""
        scores = self.scores[0].copy()
        scores[:, -1] += np.log(self.shares)  # left out where there is no intercept
        return np.stack([in_layout(risk, one) for one in scores])

    def take(self, order: Ints) -> WideGroups:
        """The groups in another order."""
        own = self.weights[order], self.scores[:, order], self.shares[order]
        noise = None if self.noise is None else self.noise[order]
        return WideGroups(*own, self.concentration, self.unit, self.alike, noise)

    @property
    def n_numbers(self) -> int:
        return sum(np.size(getattr(self, field.name)) for field in fields(self))


# What the server finds from data terms, whatever the number of parameters.
GroupModels = Mixture | WideGroups


def mixed_only(groups: GroupModels | None) -> Mixture | None:
    """Groups of few parameters, which know how surely models are known; None: other ones."""
    return groups if isinstance(groups, Mixture) else None


def models_without_rows(groups: GroupModels, risk: Risk) -> tuple[Floats, Floats | None]:
    """Models of users without rows, one in each group and last one in any of them.

    Their covariances too, where they are known.
    """
    if isinstance(groups, Mixture):
        return without_rows(groups, risk)
    own = groups.models(risk)
    return np.vstack([own, groups.weights @ own]), None


def at_least_usual(sd: Floats) -> Floats:
    """Standard deviations, none below the median of those above zero."""
    return np.maximum(sd, np.median(sd[sd > 0]) if (sd > 0).any() else 1.0)


def in_layout(risk: Risk, scores: Floats) -> Floats:
    """Scores (d + 1, C), the intercept last, as the flat model of the risk, (dim,)."""
    inputs = scores if risk.intercept else scores[:-1]
    if not risk.loss.classification:
        return inputs[:, 0].copy()
    if isinstance(risk.loss, Multinomial):
        return (inputs @ risk.loss.basis).ravel()
    return np.asarray(inputs[:, 1] - inputs[:, 0])
