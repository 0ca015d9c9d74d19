"""What it was worth: methods side by side, scored on rows that none of them has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import Federation, content_order
from odcl.errors import count
from odcl.risk.loss import Loss
from odcl.risk.losses import Poisson

NAMES = {  # of the methods that are compared
    "local": "one model per user (ridge)",
    "pooled": "one model for all",
    "intercepts": "one for all, own intercepts",
    "mixed": "mixed model without groups",
    "paper": "the paper's setting",
    "asked": "odcl as asked for",
    "odcl": "odcl",
}


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The rows held out, and what each method expected of them."""

    users: Ints  # (n_users_scored,), positions of the users that scores are of
    owner: Ints  # (n_rows,), position of the row's user
    seen: Array  # (n_rows,), targets, classes coded as in the federation
    predicted: dict[str, Array]  # method -> (n_rows,)


@dataclass(frozen=True, eq=False)
class Comparison:
    """One score per user and method, on rows that no method has seen."""

    metric: str  # "accuracy", "log-loss", "RMSE" or "deviance"
    scores: dict[str, Floats]  # method -> (n_users_scored,)
    n_rows: int  # rows held out
    n_users: int  # users with rows held out
    unit: float = 1.0  # scale of the scores: differences below 1e-9 of it are rounding
    ours: str = "odcl"  # the method that was asked for
    l2: float = 0.0  # penalty of the models that users fit alone
    held: HeldOut | None = None  # the rows themselves, where they were kept
    of_users: int = 0  # users of whom those compared were drawn; 0: all were compared
    log_loss: dict[str, Floats] = field(default_factory=dict)  # of classes: method -> (n_users,)

    def __repr__(self) -> str:
        users, rows = count(self.n_users, "user"), count(self.n_rows, "held-out row")
        return (
            f"<{type(self).__name__}: {self.metric} of {len(self.scores)} methods, {users}, {rows}>"
        )

    @property
    def larger_is_better(self) -> bool:
        return self.metric == "accuracy"

    @property
    def by(self) -> list[Comparison]:
        """The same by every score that there is: of classes, by accuracy and by log-loss."""
        more = replace(self, metric="log-loss", scores=self.log_loss, log_loss={})
        return [self, more] if self.log_loss else [self]

    def rows(self) -> list[tuple[str, float, float, float]]:
        """(method, mean, median, worst user) for each method."""
        worst = np.min if self.larger_is_better else np.max
        return [
            (name, float(np.mean(s)), float(np.median(s)), float(worst(s)))
            for name, s in self.scores.items()
        ]

    def better_off(self, method: str, than: str) -> tuple[int, int]:
        """Users better off, and users worse off, with one method than with another."""
        gap = self.scores[method] - self.scores[than]
        gap, least = gap if self.larger_is_better else -gap, 1e-9 * self.unit
        return int((gap > least).sum()), int((gap < -least).sum())

    def gain(self, method: str, than: str) -> tuple[float, float]:
        """How much better the mean user is off with a method than with another, and what chance
        explains of it: two standard errors of the users' differences."""
        gap = self.scores[method] - self.scores[than]
        gap = gap if self.larger_is_better else -gap
        error = gap.std(ddof=1) / np.sqrt(len(gap)) if len(gap) > 1 else np.inf
        return float(gap.mean()), float(2 * error + 1e-9 * self.unit)

    def beaten_by(self, method: str) -> str | None:
        """The best of the methods that are better for the mean user than chance explains."""
        gains = {name: self.gain(name, method) for name in self.scores if name != method}
        sure = [name for name, (gain, chance) in gains.items() if gain > chance]
        return max(sure, key=lambda name: gains[name][0], default=None)

    def __str__(self) -> str:
        from odcl.report.text import comparison_table, verdict

        return f"{comparison_table(self)}\n{verdict(self)}"

    def to_json(self) -> dict[str, Any]:
        table = [
            {"method": m, "mean": mean, "median": median, "worst": worst}
            for m, mean, median, worst in self.rows()
        ]
        return {
            "metric": self.metric,
            "rows_held_out": self.n_rows,
            "users": self.n_users,
            "of_users": self.of_users or self.n_users,
            "table": table,
            **({"log_loss": self.by[1].to_json()["table"]} if self.log_loss else {}),
        }


def keep_every_class(out: Bools, federation: Federation) -> Bools:
    """Rows to hold out, less one row of every class that would be held out as a whole.

    Which row is given back depends on what the rows hold, not on their order.
    """
    out = out.copy()
    order = content_order(federation)
    y = federation.y[order]
    for missing in np.setdiff1d(y, y[~out[order]]):
        out[order[np.argmax(y == missing)]] = False
    return out


def metric_of(loss: Loss) -> str:
    if loss.classification:
        return "accuracy"
    return "deviance" if isinstance(loss, Poisson) else "RMSE"


def compare(
    federation: Federation, out: Bools, models: dict[str, Callable[[Floats, Any], Any]], loss: Loss
) -> Comparison:
    """Score each method on the rows held out, user by user.

    A method is a function (X, owner of each row) -> predictions; for classes, shares of the
    classes (n_rows, n_classes), in the order of their codes in ``federation.y``.
    """
    metric = metric_of(loss)
    X, y, owner = federation.X[out], federation.y[out], federation.row_user[out]
    counts = np.bincount(owner, minlength=federation.n_users)
    seen = counts > 0

    def by_user(rows: Floats) -> Floats:
        return np.bincount(owner, weights=rows, minlength=federation.n_users)[seen] / counts[seen]

    scores, sure, predicted = {}, {}, {}
    for name, predict in models.items():
        found = predicted[name] = np.asarray(predict(X, owner))
        if metric == "accuracy":
            codes = y.astype(np.intp)
            chance = np.maximum(found[np.arange(len(y)), codes], np.finfo(np.float64).eps)
            predicted[name] = found.argmax(axis=1)
            scores[name] = by_user((predicted[name] == codes).astype(np.float64))
            sure[name] = by_user(-np.log(chance))
        elif metric == "RMSE":
            scores[name] = np.sqrt(by_user((found - y) ** 2))
        else:
            scores[name] = by_user(
                2.0 * Poisson().value(np.log(np.maximum(found, 1e-300))[:, None], y)
            )
    unit = float(np.median(np.abs(y - np.median(y)))) if metric == "RMSE" else 1.0
    held = HeldOut(np.flatnonzero(seen), owner, y, predicted)
    size = int(out.sum()), int(seen.sum())
    return Comparison(metric, scores, *size, unit, held=held, log_loss=sure)


def nmse(models: Floats, optima: Any, n_outputs: int = 1) -> float:
    """Mean over users of ||model - optimum||^2 / ||optimum||^2 (Section 5).

    ``optima`` may lack the intercepts, which are then 0 (b = 0 in the paper).
    """
    known = whole_optima(optima, models.shape[1], n_outputs)
    gap = ((models - known) ** 2).sum(axis=1)
    return float(np.mean(gap / (known**2).sum(axis=1)))


def whole_optima(optima: Any, dim: int, n_outputs: int = 1) -> Floats:
    """Optima, (n_users, dim), with the intercept, one per output, 0 where they have none."""
    known = np.asarray(optima, dtype=np.float64)
    if known.ndim != 2 or known.shape[1] not in (dim, dim - n_outputs):
        raise ValueError(
            f"optima has shape {known.shape}, and the models have {dim} numbers each: give one row "
            "per user, with or without the intercept."
        )
    return np.column_stack([known, np.zeros((len(known), dim - known.shape[1]))])
