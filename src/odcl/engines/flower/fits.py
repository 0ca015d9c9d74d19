"""What a node computes: its users' uploads, and their models from the downloads.

:class:`RiskFit` is that of odcl's risks. Another model is another class with these three methods.
"""

from __future__ import annotations

from typing import Protocol

from odcl._typing import Bools, Floats, Ints
from odcl.data.federation import Federation, positions
from odcl.engines.arrivals import Agreed
from odcl.engines.deliveries import Placed, mixed_last_step, plain_last_step
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.local.predict import linear_predictors
from odcl.rounds.users import Answers, FederatedProblem, Work, answer


class Fit(Protocol):
    """A model that users fit on their own rows."""

    def uploads(self, rows: Federation, agreed: Agreed, *, seed: int) -> Uploads:
        """Step 1 of Algorithm 1: what each user sends."""
        ...

    def last_step(
        self,
        rows: Federation,
        agreed: Agreed,
        uploads: Uploads,
        downloads: Downloads,
        *,
        late: Bools,
        seed: int,
    ) -> Placed:
        """Each user's model, from its own rows, upload and download.

        ``late`` (n_users,): users who came after the round, and were placed in its groups.
        """
        ...

    def losses(
        self,
        test: Federation,
        train: Federation,
        agreed: Agreed,
        placed: Placed,
        downloads: Downloads,
    ) -> dict[str, float]:
        """The mean loss of rows held out by each model that a user could have: "loss" is its own
        after the last step, "loss-local" that of its rows alone, "loss-group" its group's."""
        ...


class RiskFit:
    """odcl's own: exact minimisers of the risk, and the last step of the method."""

    def uploads(self, rows: Federation, agreed: Agreed, *, seed: int) -> Uploads:
        return agreed.uploads_of(rows)

    def last_step(
        self,
        rows: Federation,
        agreed: Agreed,
        uploads: Uploads,
        downloads: Downloads,
        *,
        late: Bools,
        seed: int,
    ) -> Placed:
        if downloads.mixture is None:
            return plain_last_step(agreed, rows, uploads, downloads, seed=seed)
        return mixed_last_step(agreed, rows, uploads, downloads.take(~late), ~late)

    def losses(
        self,
        test: Federation,
        train: Federation,
        agreed: Agreed,
        placed: Placed,
        downloads: Downloads,
    ) -> dict[str, float]:
        alone = fit_users(train, agreed.risk, "none").theta
        each = {
            "loss": placed.received.models,
            "loss-local": alone,
            "loss-group": downloads.model,
        }
        return {name: self.loss(test, train, agreed, theta) for name, theta in each.items()}

    def loss(self, test: Federation, train: Federation, agreed: Agreed, theta: Floats) -> float:
        """Mean loss of rows, each by its user's model."""
        owner = positions(train.users, test.users)[test.row_user]
        known = owner >= 0
        if not known.any():
            return float("nan")
        risk = agreed.risk
        z = linear_predictors(test.X[known], theta, owner[known], risk)
        return float(risk.loss.value(z, risk.loss.encode(test.y)[known]).mean())

    # -- rounds --------------------------------------------------------------------------------

    def answer(
        self, rows: Federation, agreed: Agreed, models: Floats, labels: Ints | None, work: Work
    ) -> Answers:
        return answer(FederatedProblem(rows, agreed.risk, 0, None), models[None], work, labels)

    def smoothness(self, rows: Federation, agreed: Agreed, radius: float) -> Floats:
        return FederatedProblem(rows, agreed.risk, 0, None).smoothness(radius)
