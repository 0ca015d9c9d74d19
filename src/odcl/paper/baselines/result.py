"""What a baseline gives back: :class:`~odcl.ODCLResult`, with its rounds and what it was told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from odcl import __version__
from odcl._typing import Floats, Ints
from odcl.clustering.labels import number_by_first_user
from odcl.data.federation import Federation
from odcl.engines.in_process import ODCLResult, nmse, whole_optima
from odcl.local.fit import fit_users
from odcl.local.receive import Refit
from odcl.paper.baselines.problem import Problem, problem_of
from odcl.paper.baselines.rounds import History
from odcl.risk.loss import Loss
from odcl.server.step import ServerStep


@dataclass(frozen=True, eq=False, repr=False)
class BaselineResult(ODCLResult):
    """Groups, one model a group, one model a user; rounds and bytes as the method really sent.

    ``local`` holds the users' own models in every result, for comparison; methods that do not
    build on them send nothing of them.
    """

    method: str = ""
    told: tuple[str, ...] = ()  # what an oracle was told of the truth
    history: History | None = None
    shift: Floats | None = None  # (n_features,), taken off the features before anything else

    @property
    def n_rounds(self) -> int:
        return super().n_rounds if self.history is None else self.history.n_rounds

    @property
    def bytes_up(self) -> int:
        return super().bytes_up if self.history is None else self.history.total_up

    @property
    def bytes_down(self) -> int:
        return super().bytes_down if self.history is None else self.history.total_down

    @property
    def diverged(self) -> bool:
        """Did the models of an iterative method run away? Then its step was too long."""
        return self.history is not None and self.history.diverged

    @property
    def unfinished(self) -> bool:
        """Was the risk of an iterative method still falling when its rounds were over?"""
        return self.history is not None and self.history.unfinished

    def nmse(self, optima: Any = None) -> float:
        """NMSE of the users' models (Section 5), against the truth known or given."""
        known = self.optima if optima is None else optima
        if known is None:
            raise ValueError(
                "The users' optima are not known, and the NMSE measures the distance to them. "
                "Give optima=, (n_users, dim)."
            )
        return nmse(self.models, whole_optima(known, self.loss, self.models.shape[1]))

    def scores(self, X: Any) -> Floats:
        """Linear predictor of rows under every user's model, (n_users, n_rows, n_outputs)."""
        rows = np.asarray(X, dtype=np.float64)
        rows = rows if self.shift is None else rows - self.shift
        if self.settings.get("fit_intercept"):
            rows = np.column_stack([rows, np.ones(len(rows))])
        models = self.models.reshape(len(self.models), rows.shape[1], self.loss.n_outputs)
        return np.matmul(rows, models)

    def summary(self) -> str:
        text = super().summary().replace("1 round", _rounds(self.n_rounds), 1)
        text = f"{self.method}: {text}" if self.method else text
        if self.told:
            text += f", told {' and '.join(self.told)}"
        if self.unfinished and not (self.history and self.history.reached):
            text += ", risk still falling after the last round"
        return text + ", models ran away (step too long)" * self.diverged


def _rounds(n: int) -> str:
    return f"{n} round{'s' * (n != 1)}"


def settings_of(problem: Problem, **more: Any) -> dict[str, Any]:
    """The call as it can be read back, in the words of :func:`odcl.odcl`."""
    return {
        "version": __version__,
        "loss": repr(problem.loss),
        "l2": problem.l2,
        "fit_intercept": problem.fit_intercept,
        "seed": problem.seed,
        **more,
    }


def from_odcl(
    result: ODCLResult, method: str, *, told: tuple[str, ...] = (), **changes: Any
) -> BaselineResult:
    """An ODCLResult as a baseline's, with some fields changed."""
    own = {f.name: getattr(result, f.name) for f in fields(result)}
    return BaselineResult(**{**own, "method": method, "told": told, **changes})


def from_models(
    problem: Problem,
    method: str,
    labels: Ints,
    models: Floats,
    history: History,
    *,
    combined: str,
    told: tuple[str, ...] = (),
    settings: Mapping[str, Any],
    n_jobs: int | None = None,
) -> BaselineResult:
    """The result of a method that ends with one model a user.

    A cluster's model is that of its first user. Clusters that nobody is in are not reported; the
    others are numbered by their first user.
    """
    labels = number_by_first_user(labels)
    centers = models[np.unique(labels, return_index=True)[1]]
    local = fit_users(
        problem.federation,
        problem.loss,
        l2=problem.l2,
        fit_intercept=problem.fit_intercept,
        curvature="none",
        n_jobs=n_jobs,
    )
    used = len(centers)
    reason = f"{used} cluster{'s' * (used > 1)} in use after {_rounds(history.n_rounds)}."
    step = ServerStep(local.users, labels, centers, models, method, reason, combined)
    refit = Refit(models, np.full(len(models), np.inf), "none")
    return BaselineResult(
        local,
        step,
        refit,
        problem.loss,
        settings_of(problem, **settings),
        problem.optima,
        method,
        told,
        history,
    )


def make_result(
    federation: Federation,
    labels: Any,
    models: Any,
    *,
    rounds: int,
    bytes_up: Any,
    bytes_down: Any,
    loss: str | Loss = "squared",
    l2: float = 0.0,
    fit_intercept: bool = False,
    seed: int = 0,
    told: tuple[str, ...] = (),
    errors: Any = None,
    settings: Mapping[str, Any] = MappingProxyType({}),
) -> BaselineResult:
    """The result of a method of your own, from its users' groups and models.

    ``labels`` (n_users,), ``models`` (n_users, dim), both in the federation's order of users. The
    bytes are those that all users together sent and received, in all rounds together or, as
    (rounds,), in each; ``errors`` (rounds + 1,), if given, the NMSE from the start on. ``settings``
    are kept to be read back. See :func:`~odcl.baselines.register`.
    """
    problem = problem_of(federation, loss, l2, fit_intercept, seed)
    m, dim = problem.n_users, problem.dim
    groups, own = np.asarray(labels), np.asarray(models, dtype=np.float64)
    if not np.isfinite(own).all():
        raise ValueError("models has NaN or infinite numbers, and a user cannot work with those.")
    if groups.shape != (m,) or own.shape != (m, dim):
        raise ValueError(
            f"labels has shape {groups.shape} and models {own.shape}: give one label a user, "
            f"({m},), and one model of finite numbers a user, {(m, dim)}."
        )
    codes = np.unique(groups, return_inverse=True)[1].astype(np.intp)
    error = None if problem.optima is None else nmse(own, problem.optima)
    history = one_shot_history(0, 0, error, n_rounds=rounds)
    up, down = _by_round(bytes_up, rounds), _by_round(bytes_down, rounds)
    history = replace(history, bytes_up=up, bytes_down=down)
    if errors is not None:
        history = replace(history, error=_each(errors, rounds + 1, "errors", np.float64))
    return from_models(
        problem, "", codes, own, history, combined="own method", told=told, settings=settings
    )


def _by_round(total: Any, rounds: int) -> Ints:
    """Bytes of each round; a total is shared out evenly, what is left over to the last."""
    if np.ndim(total) > 0 or not rounds:
        return _each(total if np.ndim(total) else [], rounds, "bytes", np.intp)
    each = np.full(rounds, int(total) // rounds, dtype=np.intp)
    each[-1] += int(total) - each.sum()
    return each


def _each(values: Any, count: int, name: str, kind: Any) -> Any:
    given = np.asarray(values, dtype=kind)
    if given.shape != (count,):
        raise ValueError(f"{name} has shape {given.shape}: give ({count},), one number for each.")
    return given


def one_shot_history(up: int, down: int, error: float | None, *, n_rounds: int = 1) -> History:
    """History of a method without iterations: users have models after its last round only."""
    unknown = np.full(n_rounds + 1, np.nan)
    errors = None if error is None else np.append(unknown[1:], error)
    sent = np.zeros((2, n_rounds), dtype=np.intp)
    sent[:, -1:] = [[up], [down]]
    return History(unknown, errors, sent[0], sent[1])
