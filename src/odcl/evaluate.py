"""What it was worth: methods side by side on rows none has seen, and what one would try first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import Federation, content_order, folds
from odcl.errors import count
from odcl.local.fit import solve_users
from odcl.local.predict import linear_predictors
from odcl.risk.loss import Loss
from odcl.risk.losses import Poisson
from odcl.risk.risk import Risk

NAMES = {  # of the methods that are compared
    "local": "one model per user (ridge)",
    "pooled": "one model for all",
    "intercepts": "one for all, own intercepts",
    "mixed": "mixed model without groups",
    "paper": "the paper's setting",
    "lines": "odcl, lines only",
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


# -- rivals: an intercept per user, or a ridge regression per user ---------------------------------


PENALTIES = (0.0, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)  # of own models, standardised features
FOLDS, MANY_ROWS = 5, 50_000
MOST_USERS = 5_000  # beyond, a column per user takes too long
Predict = Callable[[Floats, Ints], Array]


def own_intercepts(federation: Federation, loss: str) -> Predict | None:
    """Slopes for all and an intercept per user (dummies), as (X, positions of users) -> targets.

    Least squares in closed form for numbers, ridge-penalized fits on sparse dummies for classes
    and counts; of classes the answer is their shares. None for more users than that is good for,
    and for losses that have no such fit.
    """
    if loss == "squared":
        return _least_squares(federation)
    if loss not in ("logistic", "multinomial", "poisson") or federation.n_users > MOST_USERS:
        return None
    from scipy import sparse
    from sklearn.linear_model import LogisticRegression, PoissonRegressor

    middle, scale = federation.X.mean(axis=0), federation.X.std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    one_hot = sparse.eye_array(federation.n_users, format="csr")

    def design(X: Floats, who: Ints) -> Any:
        return sparse.hstack([sparse.csr_array((X - middle) / scale), one_hot[who]], format="csr")

    counts = loss == "poisson"
    model = PoissonRegressor(alpha=1 / len(federation.y)) if counts else LogisticRegression()
    model.set_params(max_iter=1000)
    rows = design(federation.X, federation.row_user)
    fitted = model.fit(rows, federation.y, sample_weight=federation.weight)

    def predict(X: Floats, who: Ints) -> Array:
        return np.asarray((fitted.predict if counts else fitted.predict_proba)(design(X, who)))

    return predict


def _least_squares(federation: Federation) -> Predict:
    """The within estimator: slopes from what varies inside users, levels from their means."""
    X, y, starts = federation.X, federation.y, federation.offsets[:-1]
    w = np.ones(len(y)) if federation.weight is None else federation.weight
    both = np.column_stack([X, y])
    total = np.add.reduceat(w, starts)[:, None]
    means = np.add.reduceat(w[:, None] * both, starts) / total
    inside = np.sqrt(w)[:, None] * (both - means[federation.row_user])
    slopes = np.linalg.lstsq(inside[:, :-1], inside[:, -1], rcond=1e-10)[0]
    level = means[:, -1] - means[:, :-1] @ slopes

    def predict(X: Floats, who: Ints) -> Array:
        return X @ slopes + level[who]

    return predict


def own_models(federation: Federation, risk: Risk) -> tuple[float, Floats]:
    """One model per user, each alone: (l2, models). The penalty is the one that serves them best.

    Chosen by five-fold cross-validation (one fold of large tables) among ``PENALTIES`` and the
    risk's own, one for all users: more rows tell it than any user has.
    """
    fold = folds(federation, FOLDS, 0)
    fold[federation.n_rows[federation.row_user] == 1] = -1  # a user's only row is never held out
    parts = range(FOLDS if len(fold) <= MANY_ROWS else 1)
    free = 0.0 if risk.loss.name in ("squared", "huber") else 1e-3  # classes need some penalty
    tried = [l2 for l2 in sorted({risk.l2, *PENALTIES}) if l2 >= free]

    def cost(l2: float) -> float:
        own, total = Risk(risk.loss, l2, risk.intercept), 0.0
        for part in parts:
            out = fold == part
            theta = solve_users(federation.select_rows(~out), own).theta
            z = linear_predictors(federation.X[out], theta, federation.row_user[out], own)
            loss = risk.loss.value(z, federation.y[out])
            total += float(np.where(np.isfinite(loss), loss, np.inf).sum())
        return total

    best = min(tried, key=cost) if (fold >= 0).any() else risk.l2
    return best, solve_users(federation, Risk(risk.loss, best, risk.intercept)).theta
