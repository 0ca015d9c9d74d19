"""What the server knows about groups of wide users, the same for everybody."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from odcl._typing import Floats


@dataclass(frozen=True, eq=False)
class WideGroups:
    """K groups of users with C classes and d features.

    Scores are linear in a row's features and calibrated: with the log shares of the classes added,
    their softmax is the row's class probabilities. ``scores`` and ``expected`` hold one entry from
    all users, and one for each fold of users from the users outside it.
    """

    weights: Floats  # (K,), shares of the users
    scores: Floats  # (1 + FOLDS, K, d + 1, C), the intercept last, without class shares
    expected: Floats  # (1 + FOLDS, K, C, C), mean scores of the rows of each class
    shift: Floats  # (C, C), covariance of the users' common shift of scores; zeros: none
    noise: Floats  # (C, C), covariance of the scores of rows of one class
    shares: Floats  # (K, C), class shares in each group
    concentration: float  # how closely users follow them: alpha of a Dirichlet
    unit: Floats  # (d,), standard deviation of features within classes, at least the median
    alike: bool  # users of a group do not differ

    @property
    def n_numbers(self) -> int:
        return sum(np.size(getattr(self, field.name)) for field in fields(self))
