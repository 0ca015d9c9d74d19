"""Mixed groups by name: hidden groups and differences inside them, from the users' data terms."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.base import BaseEstimator


class MixedGroups(BaseEstimator):  # type: ignore[misc]
    """theta_i ~ sum_k pi_k N(c_k, T): groups, and how users of a group still differ.

    It looks at what each user's rows say (its data term), not at local models, so that users with
    one row, one class, a missing level or fewer rows than parameters take part like any other. The
    number of groups (at most ``max_groups``) and the shape of T are chosen by evidence, unless
    ``n_groups`` or ``spread`` says what they are: "zero" (users of a group share one model),
    "scalar" (they differ alike in every standardized coefficient), "diag" (in each by itself), or
    "full".
    """

    uses_terms: ClassVar[bool] = True

    def __init__(
        self, max_groups: int = 50, n_groups: int | None = None, spread: str | None = None
    ) -> None:
        self.max_groups = max_groups
        self.n_groups = n_groups
        self.spread = spread

    def fit(self, X: Any, y: Any = None) -> Any:
        raise ValueError(
            "MixedGroups looks at the users' data terms, and bare models have none: use "
            "NoiseMixture for models, or Method() with the users' rows."
        )
