"""Algorithm 1 on a page: local models, one upload each, clusters, one model a user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl import __version__
from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation
from odcl.local.fit import Curvature, LocalModels, fit_users
from odcl.local.receive import Refit, refit_users
from odcl.risk.loss import Loss
from odcl.risk.losses import as_loss
from odcl.server.step import Others, ServerStep, server_step

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis


@dataclass(frozen=True, eq=False)
class ODCLResult:
    """What one round gave: groups, one model a group, one model a user."""

    local: LocalModels  # step 1
    step: ServerStep  # step 2
    refit: Refit  # ours: at the user, after the download
    loss: Loss
    settings: dict[str, Any] = field(default_factory=dict)
    optima: Floats | None = None  # (n_users, dim), where the truth is known

    @property
    def users(self) -> Array:
        return self.local.users

    @property
    def labels(self) -> Ints:
        return self.step.labels

    @property
    def centers(self) -> Floats:
        return self.step.centers

    @property
    def models(self) -> Floats:
        return self.refit.models

    @property
    def n_clusters(self) -> int:
        return self.step.n_clusters

    @property
    def n_rounds(self) -> int:
        return 1

    @property
    def bytes_up(self) -> int:
        """Bytes that all users together sent."""
        return int(self.local.uploads().bytes_up.sum())

    @property
    def bytes_down(self) -> int:
        """Bytes that all users together received."""
        return self.step.bytes_down * len(self.users)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.summary()}>"

    def summary(self) -> str:
        """One line for a person: users, clusters, rounds, and the error where truth is known."""
        k = self.n_clusters
        m = len(self.users)
        text = f"{m} user{'s' * (m > 1)}, {k} cluster{'s' * (k > 1)}, 1 round"
        if self.optima is not None:
            optima = whole_optima(self.optima, self.loss, self.models.shape[1])
            mine, alone = (nmse(t, optima) for t in (self.models, self.local.theta))
            text += f", NMSE {mine:.2g} (local {alone:.2g})"
        prior = int(self.local.prior.sum())
        if prior:
            text += f", {prior} without a finite local model (small prior)"
        return text

    def diagnose(
        self, federation: Federation | None = None, *, resamples: int = 20, seed: int = 0
    ) -> Diagnosis:
        """Is one shot enough here? A verdict with its reason; ``print`` it for the report.

        Where users sent nothing about their noise (the paper's setting), ``federation``, the one
        fitted here, lets it be read off their rows: see :func:`odcl.diagnose.diagnose`.
        """
        from odcl.diagnose import diagnose

        return diagnose(self, federation, resamples=resamples, seed=seed)


def whole_optima(optima: Any, loss: Loss, dim: int) -> Floats:
    """Optima, (n_users, dim), with the intercept 0 where they have none (b = 0 in the paper)."""
    known = np.asarray(optima, dtype=np.float64)
    if known.ndim != 2 or known.shape[1] not in (dim, dim - loss.n_outputs):
        raise ValueError(
            f"optima has shape {known.shape}, and the models have {dim} numbers each: give one row "
            "a user, with or without the intercept."
        )
    return np.column_stack([known, np.zeros((len(known), dim - known.shape[1]))])


def nmse(models: Floats, optima: Floats) -> float:
    """Mean over users of ||model - optimum||^2 / ||optimum||^2 (Section 5)."""
    gap = ((models - optima) ** 2).sum(axis=1)
    return float(np.mean(gap / (optima**2).sum(axis=1)))


def odcl(
    federation: Federation,
    *,
    loss: str | Loss = "squared",
    l2: float = 0.0,
    fit_intercept: bool = False,
    solver: Any = "exact",
    clusterer: Any = "auto",
    combine: str = "precision",
    refit: str | float | None = "evidence",
    curvature: Curvature = "auto",
    strict: bool = False,
    seed: int = 0,
    n_jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> ODCLResult:
    """One-shot distributed clustered learning (Algorithm 1).

    The defaults are ours: groups and their number from the users' own noise, precision combining,
    a refit at the user. ``clusterer=KMeansPP(K), combine="mean", refit=None`` is the paper.
    ``solver``, ``curvature``: see :func:`~odcl.local.fit.fit_users`; ``clusterer``, ``combine``:
    :func:`~odcl.server_step`; ``refit``: :func:`~odcl.local.receive.refit_users`.
    """
    loss = as_loss(loss, federation.y)
    if curvature == "auto" and not _uses_curvature(clusterer, combine, refit):
        curvature = "none"
    local = fit_users(
        federation,
        loss,
        l2=l2,
        fit_intercept=fit_intercept,
        solver=solver,
        curvature=curvature,
        strict=strict,
        seed=seed,
        n_jobs=n_jobs,
        progress=progress,
    )  # step 1
    others = _others_for(refit)
    step = server_step(local.uploads(), clusterer, combine, seed=seed, others=others)  # step 2
    final = refit_users(
        federation, loss, local, step, refit, fit_intercept=fit_intercept, seed=seed, n_jobs=n_jobs
    )
    settings = {
        "version": __version__,
        "loss": repr(loss) if not isinstance(loss, str) else loss,
        "l2": l2,
        "fit_intercept": fit_intercept,
        "solver": str(solver),
        "clusterer": str(clusterer),
        "combine": combine,
        "refit": refit,
        "seed": seed,
    }
    return ODCLResult(local, step, final, loss, settings, getattr(federation, "optima", None))


def _others_for(refit: Any) -> Others:
    """When the refit looks at the clusters' models without the user itself."""
    if refit == "cv":
        return "always"
    return "without tau2" if refit == "evidence" else "never"


def _uses_curvature(clusterer: Any, combine: str, refit: Any) -> bool:
    """Does anything on the server read the users' curvature? If not, it does not leave them."""
    named = clusterer == "auto" if isinstance(clusterer, str) else False
    mixture = named or type(clusterer).__name__ == "NoiseMixture"
    return mixture or combine in ("precision", "shrink") or refit == "evidence"
