"""What a baseline takes and gives back: :class:`~odcl.Result`, its rounds, what it was told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import number_by_first_user
from odcl.data.federation import Federation, group_rows
from odcl.engines.in_process import Result
from odcl.errors import count
from odcl.evaluate import nmse, whole_optima
from odcl.exchange.message import Ledger
from odcl.local.fit import fit_users
from odcl.local.receive import Received
from odcl.method import Method
from odcl.paper.baselines.steps import FederatedProblem
from odcl.risk.risk import Risk
from odcl.server.result import ServerStep

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis

F = TypeVar("F", bound=Callable[..., Any])
TOLD_GROUPS = ("the true groups",)
# A risk that the last tenth of the rounds still lowered by more than this share is still falling.
_FALLING = 1e-3


def problem_of(
    federation: Federation, risk: Risk, seed: int = 0, optima: Any = None
) -> FederatedProblem:
    """The problem of a call; the truth is the federation's own unless given."""
    known = getattr(federation, "optima", None) if optima is None else optima
    dim = risk.dim(federation.n_features)
    whole = None if known is None else whole_optima(known, dim, risk.n_outputs)
    return FederatedProblem(federation, risk, seed, whole)


def check_groups(groups: Any, n_users: int) -> Ints:
    """The true groups as 0..K-1 in the order of their names, whatever the order of users."""
    given: Array = np.asarray(groups)
    if given.shape != (n_users,):
        raise ValueError(
            f"groups has shape {given.shape}, and {n_users} users need one group each: this method "
            "is told the true groups."
        )
    return np.unique(given, return_inverse=True)[1].reshape(-1).astype(np.intp)


@dataclass(frozen=True, eq=False)
class History:
    """Round by round: how good the users' models were and what was sent.

    ``risk`` and ``error`` have one entry more than there were rounds: the first is the start.
    """

    risk: Floats  # (n_rounds + 1,), mean over users of f_i at their models
    error: Floats | None  # (n_rounds + 1,), NMSE; None: the optima are not known
    ledger: Ledger
    reached: bool | None = None  # the stop rule; None: there was none
    diverged: bool = False  # the models ran away

    @classmethod
    def of_one_shot(
        cls, ledger: Ledger, models: Floats, optima: Floats | None, n_outputs: int = 1
    ) -> History:
        """A method without iterations: users have models after its last round only."""
        unknown = np.full(ledger.n_rounds + 1, np.nan)
        if optima is None:
            return cls(unknown, None, ledger)
        return cls(unknown, np.append(unknown[1:], nmse(models, optima, n_outputs)), ledger)

    @property
    def unfinished(self) -> bool:
        """Did the last tenth of the rounds still lower the risk, so that more rounds would help?"""
        risk = self.risk[np.isfinite(self.risk)]
        before = risk[-1 - max(1, len(risk) // 10) :][:1]
        return not self.diverged and bool((before - risk[-1:] > _FALLING * abs(before)).any())


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BaselineResult(Result):
    """Groups, one model per group, one model per user; rounds and bytes as really sent.

    ``local`` holds the users' own models in every result, for comparison; methods that do not
    build on them send nothing of them.
    """

    name: str
    history: History
    told: tuple[str, ...] = ()  # what an oracle was told of the truth
    options: dict[str, Any] = field(default_factory=dict)  # how it was run, to be read by people

    @property
    def n_rounds(self) -> int:
        return self.history.ledger.n_rounds

    @property
    def bytes_up(self) -> int:
        return self.history.ledger.total_up

    @property
    def bytes_down(self) -> int:
        return self.history.ledger.total_down

    @property
    def diverged(self) -> bool:
        """Did the models of an iterative method run away? Then its step was too long."""
        return self.history.diverged

    @property
    def unfinished(self) -> bool:
        """Was the risk of an iterative method still falling when its rounds were over?"""
        return self.history.unfinished

    def nmse(self, optima: Any = None) -> float:
        """NMSE of the users' models (Section 5), against the truth known or given."""
        known = self.optima if optima is None else optima
        if known is None:
            raise ValueError(
                "The users' optima are not known, and the NMSE measures the distance to them. "
                "Give optima=, (n_users, dim)."
            )
        return nmse(self.models, known, self.risk.n_outputs)

    def diagnose(self, federation: Federation | None = None, **more: Any) -> Diagnosis:
        """Is one shot enough here? ``federation`` is the one given to the baseline."""
        from odcl.diagnose import diagnose

        return diagnose(self, federation, found_by=self.name or None, **more)

    def summary(self) -> str:
        text = super().summary()
        text = f"{self.name}: {text}" if self.name else text
        if self.told:
            text += f", told {' and '.join(self.told)}"
        if self.unfinished and not self.history.reached:
            text += ", risk still falling after the last round"
        return text + ", models ran away (step too long)" * self.diverged


class GivenGroups:
    """A clusterer that was told the clusters, one label per user."""

    def __init__(self, federation: Federation, labels: Ints) -> None:
        _, codes = group_rows(federation.users)
        self.labels = labels[np.argsort(codes, kind="stable")]  # the server's order of users

    def fit(self, X: Floats) -> GivenGroups:
        self.labels_ = self.labels
        return self

    def __repr__(self) -> str:
        return "GivenGroups"


def as_baseline(
    result: Result, name: str, *, ledger: Ledger | None = None, **more: Any
) -> BaselineResult:
    """The result of one round as a baseline's: with its name, its bytes and its error.

    ``ledger`` counts what was sent where that is not the uploads and downloads of the result.
    """
    ledger = Ledger.of(result.uploads, result.step.downloads) if ledger is None else ledger
    history = History.of_one_shot(ledger, result.models, result.optima, result.risk.n_outputs)
    own = {f.name: getattr(result, f.name) for f in fields(Result)}
    return BaselineResult(**own, name=name, history=history, **more)


def from_models(
    problem: FederatedProblem,
    name: str,
    labels: Ints,
    models: Floats,
    history: History,
    *,
    combined: str,
    told: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> BaselineResult:
    """The result of a method that ends with one model per user.

    A cluster's model is its first user's. Empty clusters are not reported; the others are numbered
    by their first user.
    """
    federation, risk = problem.federation, problem.risk
    labels = number_by_first_user(labels)
    centers = models[np.unique(labels, return_index=True)[1]]
    local = fit_users(federation, risk)
    used, rounds = count(len(centers), "cluster"), count(history.ledger.n_rounds, "round")
    return BaselineResult(
        risk,
        Method.paper(GivenGroups(federation, labels)),
        problem.seed,
        local,
        ServerStep(
            *(local.users, labels, centers, models, name),
            f"{used} in use after {rounds}.",
            combined,
        ),
        Received(models, "none"),
        optima=problem.optima,
        name=name,
        history=history,
        told=told,
        options=dict(options or {}),
    )


def make_result(
    federation: Federation,
    labels: Any,
    models: Any,
    *,
    rounds: int,
    bytes_up: int,
    bytes_down: int,
    risk: Risk = Risk(),
    seed: int = 0,
    told: tuple[str, ...] = (),
    options: Mapping[str, Any] | None = None,
) -> BaselineResult:
    """The result of a method of your own, from its users' groups and models.

    ``labels`` (n_users,), ``models`` (n_users, dim), both in the federation's order of users. The
    bytes are those that all users together sent and received in all rounds. ``options`` are kept
    to be read back. See :func:`~odcl.baselines.register`.
    """
    problem = problem_of(federation, risk, seed)
    m, dim = problem.n_users, problem.dim
    groups, own = np.asarray(labels), np.asarray(models, dtype=np.float64)
    if not np.isfinite(own).all():
        raise ValueError("models has NaN or infinite numbers, and a user cannot work with those.")
    if groups.shape != (m,) or own.shape != (m, dim):
        raise ValueError(
            f"labels has shape {groups.shape} and models {own.shape}: give one label per user, "
            f"({m},), and one model of finite numbers per user, {(m, dim)}."
        )
    codes = np.unique(groups, return_inverse=True)[1].astype(np.intp)
    ledger = Ledger(_by_round(bytes_up, rounds), _by_round(bytes_down, rounds))
    history = History.of_one_shot(ledger, own, problem.optima)
    return from_models(
        problem, "", codes, own, history, combined="own method", told=told, options=options
    )


def _by_round(total: int, rounds: int) -> Ints:
    """Bytes of each round: the total shared out evenly, the remainder in the last."""
    each = np.full(rounds, int(total) // max(rounds, 1), dtype=np.intp)
    each[-1:] += int(total) - each.sum()
    return each


def passes_on(to: Callable[..., Any], *but: str) -> Callable[[F], F]:
    """Say in a function's signature what its ``**call`` takes: what ``to`` does, ``but`` some."""

    def mark(function: F) -> F:
        own = signature(function).parameters
        kept = [p for p in own.values() if p.kind is not Parameter.VAR_KEYWORD]
        more = [
            p.replace(kind=Parameter.KEYWORD_ONLY)
            for p in list(signature(to).parameters.values())[1:]
            if p.name not in (*own, *but)
        ]
        whole = signature(function).replace(parameters=[*kept, *more])
        function.__signature__ = whole  # type: ignore[attr-defined]
        return function

    return mark


def check_options(name: str, call: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse an option that the method does not take, and say which it takes."""
    taken = signature(call).parameters.values()
    if any(p.kind is Parameter.VAR_KEYWORD for p in taken):
        return
    words = [p.name for p in taken if p.kind is not Parameter.POSITIONAL_ONLY][1:]
    strange = [option for option in options if option not in words]
    if strange:
        takes = ", ".join(words) or "no options: let it accept **options (seed, risk, ...)"
        raise TypeError(f"{name} takes no {strange[0]}=. It takes {takes}.")
