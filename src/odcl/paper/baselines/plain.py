"""Without clusters: every user alone (Local ERMs), or one model for all (naive averaging)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation, group_rows, user_rng
from odcl.engines.in_process import ODCLResult, odcl
from odcl.local.fit import fit_users
from odcl.local.receive import Refit
from odcl.paper.baselines.result import BaselineResult, from_odcl, one_shot_history
from odcl.risk.loss import Loss
from odcl.server.step import server_step


class GivenGroups:
    """A clusterer that was told the clusters, one label a user."""

    def __init__(self, federation: Federation, labels: Ints) -> None:
        _, codes = group_rows(federation.users)
        self.labels = labels[np.argsort(codes, kind="stable")]  # the server's order of users

    def fit(self, X: Floats) -> GivenGroups:
        self.labels_ = self.labels
        return self

    def __repr__(self) -> str:
        return "GivenGroups"


def average_given(
    federation: Federation, labels: Ints, method: str, *, told: tuple[str, ...] = (), **call: Any
) -> BaselineResult:
    """Algorithm 1 with given clusters and plain averages: one upload and one download a user."""
    clusterer = GivenGroups(federation, labels)
    result = odcl(federation, clusterer=clusterer, combine="mean", refit=None, **call)
    return with_history(from_odcl(result, method, told=told))


def with_history(result: BaselineResult) -> BaselineResult:
    """What one round sent, and the error after it."""
    error = None if result.optima is None else result.nmse()
    return replace(result, history=one_shot_history(result.bytes_up, result.bytes_down, error))


def local(federation: Federation, **call: Any) -> BaselineResult:
    """Local ERMs: every user keeps theta-hat_i (Section 5). Nothing is sent.

    ``call``: loss, l2, fit_intercept, solver, strict, seed, n_jobs, as for :func:`odcl.odcl`.
    """
    alone = average_given(federation, np.arange(federation.n_users), "local", **call)
    error = None if alone.optima is None else alone.nmse()
    return replace(alone, history=one_shot_history(0, 0, error, n_rounds=0))


def naive(
    federation: Federation,
    *,
    bias_corrected: bool = False,
    ratio: float = 0.5,
    loss: str | Loss = "squared",
    l2: float = 0.0,
    fit_intercept: bool = False,
    seed: int = 0,
    **call: Any,
) -> BaselineResult:
    """Naive averaging: the mean of all users' models for everybody (Zhang and Duchi, AVGM).

    ``bias_corrected`` is their subsampled variant (SAVGM): each user also fits ``ratio`` of its
    rows, drawn without replacement, and sends

        (theta - ratio * theta_sub) / (1 - ratio)

    which has a bias of a higher order in n. The two fits are combined at the user: one model is
    sent, as in plain averaging.
    """
    everybody = np.zeros(federation.n_users, dtype=np.intp)
    call = {**call, "loss": loss, "l2": l2, "fit_intercept": fit_intercept, "seed": seed}
    plain = average_given(federation, everybody, "naive", **call)
    if not bias_corrected:
        return plain
    if not 0 < ratio < 1:
        raise ValueError(
            f"ratio={ratio!r} is the share of rows that the second fit sees: above 0, below 1."
        )
    fits = {key: value for key, value in call.items() if key not in ("loss", "seed")}
    part = fit_users(
        subsample(federation, ratio, seed), plain.loss, curvature="none", seed=seed, **fits
    )
    corrected = (plain.local.theta - ratio * part.theta) / (1.0 - ratio)
    uploads = replace(plain.local, theta=corrected).uploads()
    step = server_step(uploads, GivenGroups(federation, everybody), "mean")
    refit = Refit(step.models, plain.refit.strength, "none")
    settings = {**plain.settings, "bias_corrected": True, "ratio": ratio}
    averaged = ODCLResult(plain.local, step, refit, plain.loss, settings, plain.optima)
    return with_history(from_odcl(averaged, "naive/bias-corrected"))


def subsample(federation: Federation, ratio: float, seed: int) -> Federation:
    """ceil(ratio * n_i) rows of each user, without replacement, from the user's own stream."""
    kept = []
    for i, user in enumerate(federation.users):
        rows = federation.rows(i)
        n = rows.stop - rows.start
        size = int(np.ceil(ratio * n - 1e-9))  # .1 * 30 is 3 and a rounding
        kept.append(rows.start + np.sort(user_rng(seed, user).permutation(n)[:size]))
    rows_kept = np.concatenate(kept)
    offsets = np.concatenate([[0], np.cumsum([len(rows) for rows in kept])]).astype(np.intp)
    weight = None if federation.weight is None else federation.weight[rows_kept]
    X, y = federation.X[rows_kept], federation.y[rows_kept]
    return Federation(X, y, offsets, federation.users, weight)
