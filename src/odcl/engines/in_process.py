"""Algorithm 1 on a page: local models, one upload each, clusters, one model per user."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation
from odcl.errors import count
from odcl.exchange.upload import Uploads
from odcl.local.fit import LocalModels, fit_users
from odcl.local.receive import Received, receive
from odcl.method import Method
from odcl.risk.risk import Curve, Risk
from odcl.server.result import ServerStep
from odcl.server.step import server_step

if TYPE_CHECKING:
    from odcl.data.scaling import Scaling
    from odcl.diagnose import Diagnosis
    from odcl.fitted.value import Fitted, InputColumns

log = logging.getLogger("odcl")
ENOUGH_ROWS = 20_000  # to see the bend of a column, if it is worth anything


@dataclass(frozen=True, eq=False)
class Result:
    """What one round gave: groups, one model per group, one model per user."""

    risk: Risk
    method: Method
    seed: int
    local: LocalModels  # step 1
    step: ServerStep  # step 2
    received: Received  # the users' last step
    solver: Any = "exact"
    optima: Floats | None = None  # (n_users, dim), where the truth is known

    @property
    def users(self) -> Array:
        return self.local.users

    @property
    def uploads(self) -> Uploads:
        return self.local.uploads

    @property
    def labels(self) -> Ints:
        """Each user's group: by its own rows, where these said more than what it sent."""
        return self.step.labels if self.received.group is None else self.received.group

    @property
    def centers(self) -> Floats:
        return self.step.centers

    @property
    def models(self) -> Floats:
        return self.received.models

    @property
    def n_clusters(self) -> int:
        return self.step.n_clusters

    @property
    def n_rounds(self) -> int:
        return 1

    @property
    def bytes_up(self) -> int:
        """Bytes that all users together sent."""
        return int(self.uploads.n_bytes.sum())

    @property
    def bytes_down(self) -> int:
        """Bytes that all users together received."""
        return int(self.step.downloads.n_bytes.sum())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def summary(self) -> str:
        """One line for a person: users, clusters, rounds, and the error where truth is known."""
        sizes = {"user": len(self.users), "cluster": self.n_clusters, "round": self.n_rounds}
        text = ", ".join(count(n, what) for what, n in sizes.items())
        if self.optima is not None:
            from odcl.evaluate import nmse

            each, q = (self.models, self.local.theta), self.risk.n_outputs
            mine, alone = (nmse(models, self.optima, q) for models in each)
            text += f", NMSE {mine:.2g} (local {alone:.2g})"
        prior = 0 if self.local.solved is None else int(self.local.prior.sum())
        if prior:
            text += f", {prior} without a finite local model (small prior)"
        return text

    def diagnose(
        self,
        federation: Federation | None = None,
        *,
        features: Mapping[str, float] | None = None,
        resamples: int = 20,
        seed: int = 0,
    ) -> Diagnosis:
        """Is one shot enough here? A verdict with its reason; ``print`` it for the report.

        Where users sent their models alone (the paper's setting), ``federation``, the one fitted
        here, has the rows that tell more. ``features``: names and scales of the columns.
        See :func:`odcl.diagnose.diagnose`.
        """
        from odcl.diagnose import diagnose

        if federation is not None:
            federation = _bent_rows(federation, self.risk.curves)
        return diagnose(self, federation, features=features, resamples=resamples, seed=seed)

    def fitted(
        self,
        rows: Federation,
        scaling: Scaling,
        columns: InputColumns,
        *,
        has_users: bool = True,
        settings: Mapping[str, Any],
    ) -> Fitted:
        """The fit as whatever comes after it reads it.

        ``rows`` of this round, in the units of ``scaling``, must not change afterwards.
        """
        from odcl.fitted.curves import without_closed_curves
        from odcl.fitted.tails import Tails, tails_of
        from odcl.fitted.value import Fitted, Newcomers, UserColumns
        from odcl.server.assign import groups_of

        step = self.step
        own = self.received, step.labels, step.probabilities
        last = self.received, step.mixture, step.outliers
        fitted = Fitted.of_step(
            step,
            columns,
            scaling,
            risk=self.risk,
            method=self.method,
            users=UserColumns.of(self.users, rows.n_rows, *own),
            uploads=self.uploads,
            newcomers=Newcomers(
                partial(groups_of, rows, self.risk, step),
                partial(_pooled, rows, self.risk, self.uploads, step),
                Tails if self.uploads.private else partial(tails_of, rows, self.risk, *last),
            ),
            has_users=has_users,
            weighed=step.weighed,
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            settings=settings,
        )
        return without_closed_curves(fitted)


def _bent_rows(rows: Federation, curves: tuple[Curve, ...]) -> Federation:
    if not curves:
        return rows
    from odcl.data.curves import bent_rows

    return bent_rows(rows, curves)


def _with_curves(risk: Risk, method: Method, rows: Federation) -> Risk:
    """The risk with the curves that the method asks for, in units of all rows."""
    if risk.curves or not method.curves:
        return risk
    from odcl.data.scaling import RowColumns, Scaling
    from odcl.fitted.curves import curves_of

    p, measured = rows.n_features, RowColumns(rows.X, rows.weight)
    own = Scaling.none(p, risk.factors)
    found = Scaling.of(measured, center=True, standardize=True)
    usual = replace(own, shift=own.shift.copy(), scale=own.scale.copy())
    usual.shift[found.used], usual.scale[found.used] = found.shift, found.scale
    given = method.curves, None, method, risk, own, usual, [f"x{j}" for j in range(p)]
    return replace(risk, curves=curves_of(*given, columns=measured, n_users=rows.n_users))


def curves_at_first_sight(
    sample: Callable[[], Federation], risk: Risk, n_rows: int, *, robust: bool = False
) -> tuple[Curve, ...]:
    """Those of the risk's curves that show in the rows of few users, some 20,000.

    A bend that does not show in these lowers no error by a thousandth. With fewer than three
    times as many rows, or users beyond the ``sample``, all curves remain to be looked for. Of
    squared loss a glance may tell that there are none: see :func:`~odcl.local.glance.may_bend`.
    """
    if n_rows < 3 * ENOUGH_ROWS:
        return risk.curves
    from odcl.data.curves import declared_curves
    from odcl.local.glance import may_bend
    from odcl.mixed.few import FIRST, sample_by_id
    from odcl.server.mixed import curves_that_show

    rows = sample()
    order = sample_by_id(rows.users, rows.n_users)
    told = np.cumsum(rows.n_rows[order])
    n = max(int(np.searchsorted(told, ENOUGH_ROWS)) + 1, FIRST)
    if n > rows.n_users or 3 * told[n - 1] > n_rows:
        return risk.curves
    few = rows.take(order[:n])
    plain = risk.loss.name == "squared" and few.weight is None
    if plain and not may_bend(few, risk.curves, ENOUGH_ROWS / 2):
        return ()
    few = _bent_rows(few, risk.curves)
    shown = curves_that_show(fit_users(few, risk, terms=True).uploads, robust=robust)
    bent = [curve for curve in risk.curves if curve.of in {one.of for one in shown}]
    return declared_curves(risk, rows.n_features, bent)  # with more bends, where there is room


def _pooled(rows: Federation, risk: Risk, uploads: Uploads, step: ServerStep) -> Floats:
    """One model for everybody, (dim,)."""
    from odcl.local.terms import pooled_rows
    from odcl.wide.moments import WideGroups, models_without_rows

    if isinstance(step.mixture, WideGroups):
        return models_without_rows(step.mixture, risk)[0][-1]
    return pooled_rows(rows, risk, uploads)


def fit(
    federation: Federation,
    risk: Risk | str | None = None,
    method: Method | str | None = None,
    *,
    seed: int = 0,
    solver: Any = "exact",
    n_jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Result:
    """One-shot distributed clustered learning (Algorithm 1).

    ``Risk()`` and ``Method()`` are the defaults, ``Method.paper(n_clusters=K)`` is the paper's;
    both may be given by name. Of ``Method(curves=True)``, and of a risk with curves, the rows have
    lines alone: bends are added here, and the result's ``risk`` says how. ``solver``: see
    :func:`~odcl.local.fit.fit_users`. ``progress`` gets the number of users fitted.
    """
    risk = risk if isinstance(risk, Risk) else Risk(risk or "squared")
    method = method if isinstance(method, Method) else Method.of(method or "default")
    optima = getattr(federation, "optima", None) if not (method.curves or risk.curves) else None
    risk = _with_curves(risk, method, federation)
    federation = _bent_rows(federation, risk.curves)
    rows, n_features = federation.X.shape
    method = method.resolved(risk, risk.dim(n_features), federation.n_users)
    log.info("fit: %d users, %d rows, %d features", federation.n_users, rows, n_features)
    local = fit_users(
        federation,
        risk,
        terms=method.clusterer.uses_terms,
        short_terms=method.short_terms,
        privacy=method.privacy,
        solver=solver,
        seed=seed,
        n_jobs=n_jobs,
        progress=progress,
    )  # step 1
    if local.solved is not None:
        log.info("local models: %d of %d converged", local.converged.sum(), federation.n_users)
    step = server_step(local.uploads, method, seed=seed)  # step 2
    log.info("server step: %s", step.reason)
    received = receive(federation, risk, local.uploads, step.downloads)
    log.info("last step: %s", received.how)
    return Result(risk, method, seed, local, step, received, solver, optima)
