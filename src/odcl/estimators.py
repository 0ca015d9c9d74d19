"""Estimators with scikit-learn's manners: validate, standardise, delegate to ``odcl``."""

from __future__ import annotations

import os
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation, as_ids
from odcl.data.scaling import Scaling
from odcl.local.exact import Penalty, solve_users
from odcl.local.fit import fit_users
from odcl.local.losses import Huber, Logistic, Loss, Multinomial, Squared, as_loss
from odcl.method import ODCLResult, odcl
from odcl.newcomer import Assignment, assign_rows

UNKNOWN = ("error", "pooled", "nearest")


class _ODCLEstimator(BaseEstimator):  # type: ignore[misc]
    """What regressor and classifier share. Users come as ``users=`` or as a column of X."""

    # -- fit ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> Self:
        """Fit one model a user.

        ``users`` (n_rows,) names the owner of each row; without it, and without the
        constructor's ``users``, all rows belong to one user. ``sample_weight`` says how often a
        row counts.
        """
        self._check_settings()
        X, users = self._split(X, users, fitting=True)
        X, y = self._validated(X, y)
        if sample_weight is not None:
            sample_weight = _check_sample_weight(sample_weight, X, dtype=np.float64)
        if users is not None:
            check_consistent_length(X, users)
        ids = np.zeros(len(X), dtype=np.intp) if users is None else users
        self.has_users_ = users is not None
        target = self._encode(y)
        federation = Federation.from_arrays(X, target, ids, weight=sample_weight)
        self._fit(federation)
        return self

    def _fit(self, federation: Federation) -> None:
        paper = self.method == "paper"
        self.scaling_ = Scaling.none(federation.n_features)
        if self.standardize and not paper:
            self.scaling_ = Scaling.of(
                federation.X, federation.weight, center=bool(self.fit_intercept)
            )
            federation = federation.with_X(self.scaling_.apply(federation.X))
        loss = self._loss(federation)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        result = odcl(
            federation,
            loss=loss,
            l2=self.l2,
            fit_intercept=self.fit_intercept,
            solver=self.solver,
            clusterer=self._clusterer(federation, paper),
            combine="mean" if paper else self.combine,
            refit=None if paper else self.refit,
            curvature=self.curvature,
            seed=seed,
            n_jobs=self.n_jobs,
        )
        self._keep(result, federation)

    def _clusterer(self, federation: Federation, paper: bool) -> Any:
        """One user is one cluster; the paper's K comes from the silhouette (Appendix C)."""
        if isinstance(self.clusterer, str) and self.clusterer == "auto":
            if federation.n_users == 1:
                return 1
            return "silhouette" if paper and federation.n_users > 2 else 1 if paper else "auto"
        return self.clusterer

    def _keep(self, result: ODCLResult, federation: Federation) -> None:
        self.result_ = result
        self.loss_ = result.loss
        self.users_, self.labels_ = result.users, result.labels
        self.n_clusters_ = result.n_clusters
        self.theta_, self.cluster_theta_ = result.models, result.centers
        self.tau2_ = result.step.tau2
        self.cluster_means_ = _cluster_means(federation, result.labels)
        self.pooled_theta_ = self._one_for_all(federation) if self.unknown == "pooled" else None

    def _one_for_all(self, federation: Federation) -> Floats:
        """One model on everybody's rows, (dim,)."""
        n = len(federation.y)
        everybody = Federation(
            federation.X, federation.y, np.array([0, n]), np.zeros(1, int), federation.weight
        )
        y = self.loss_.encode(everybody.y)
        penalty = Penalty(np.array([float(self.l2)]))
        return solve_users(
            everybody, y, self.loss_, penalty, fit_intercept=self.fit_intercept
        ).theta[0]

    # -- models in the table's units -----------------------------------------------------------

    @property
    def models_(self) -> Floats:
        """Each user's model in the table's units: coefficients, then the intercept.

        (n_users, n_params); multinomial: (n_users, n_classes, n_params).
        """
        return self._in_table_units(self.theta_)

    @property
    def cluster_models_(self) -> Floats:
        """Each cluster's model in the table's units, shaped as ``models_``."""
        return self._in_table_units(self.cluster_theta_)

    def _in_table_units(self, theta: Floats) -> Floats:
        check_is_fitted(self, "loss_")
        q = self.loss_.n_outputs
        model = theta.reshape(len(theta), -1, q)
        coef, intercept = (model[:, :-1], model[:, -1]) if self.fit_intercept else (model, None)
        coef, intercept = self.scaling_.undo(coef, intercept)
        if intercept is not None:
            coef = np.concatenate([coef, intercept[:, None, :]], axis=1)
        if isinstance(self.loss_, Multinomial):
            return np.matmul(coef, self.loss_.basis.T).transpose(0, 2, 1)
        return coef[:, :, 0]

    # -- predict -----------------------------------------------------------------------------

    def _scores(self, X: Any, users: Any) -> Floats:
        """Linear predictors of the rows, each by its user's model, (n_rows, n_outputs)."""
        check_is_fitted(self, "loss_")
        X, users = self._split(X, users, fitting=False)
        X = self.scaling_.apply(self._validated_X(X))
        theta = self._theta_of_rows(X, users).reshape(len(X), -1, self.loss_.n_outputs)
        if self.fit_intercept:
            X = np.column_stack([X, np.ones(len(X))])
        return np.matmul(X[:, None, :], theta)[:, 0]

    def _theta_of_rows(self, X: Floats, users: Any) -> Floats:
        if users is None:
            if self.has_users_:
                if self.unknown == "pooled" and self.pooled_theta_ is not None:
                    return np.repeat(self.pooled_theta_[None], len(X), axis=0)
                raise ValueError(
                    f"This model knows {len(self.users_)} users, and predict was not told whose rows "
                    "these are: pass users=..., or fit with unknown='pooled' for one model for all."
                )
            return np.repeat(self.theta_[:1], len(X), axis=0)
        check_consistent_length(X, users)
        where = self._positions(users)
        if (where >= 0).all():
            return self.theta_[where]
        theta = np.empty((len(X), self.theta_.shape[1]))
        theta[where >= 0] = self.theta_[where[where >= 0]]
        theta[where < 0] = self._unknown_theta(X[where < 0], as_ids(users)[where < 0])
        return theta

    def _positions(self, users: Any) -> Ints:
        """Position of each row's user in ``users_``, -1 for those never seen."""
        ids = as_ids(users)
        known = {u: i for i, u in enumerate(self.users_.tolist())}
        values, codes = _distinct(ids)
        return np.array([known.get(u, -1) for u in values], dtype=np.intp)[codes]

    def _unknown_theta(self, X: Floats, ids: Array) -> Floats:
        if self.unknown == "pooled" and self.pooled_theta_ is not None:
            return np.repeat(self.pooled_theta_[None], len(X), axis=0)
        if self.unknown == "nearest":
            values, codes = _distinct(ids)
            means = np.stack([X[codes == i].mean(axis=0) for i in range(len(values))])
            gaps = ((means[:, None, :] - self.cluster_means_) ** 2).sum(axis=2)
            return self.cluster_theta_[gaps.argmin(axis=1)[codes]]
        some = ", ".join(map(repr, list(dict.fromkeys(ids.tolist()))[:3]))
        raise ValueError(
            f"User {some} was not in the fit, so there is no model for it. Add it with "
            "add_user(id, X, y), or fit with unknown='pooled' (one model for all) or "
            "unknown='nearest' (the group with the most similar features)."
        )

    # -- new users ---------------------------------------------------------------------------

    def assign(self, X: Any, y: Any) -> Assignment:
        """Which group a new user with these rows belongs to, with its probability and its model."""
        check_is_fitted(self, "loss_")
        X, _ = self._split(X, None, fitting=False, rows_of_one_user=True)
        X = self.scaling_.apply(self._validated_X(X))
        y = self.loss_.encode(self._encode_known(column_or_1d(y)))
        check_consistent_length(X, y)
        found = assign_rows(
            X,
            y,
            self.loss_,
            centers=self.cluster_theta_,
            sizes=np.bincount(self.labels_[self.labels_ >= 0], minlength=len(self.cluster_theta_)),
            tau2=self.tau2_,
            l2=float(self.l2),
            fit_intercept=bool(self.fit_intercept),
        )
        return found.in_units(self._in_table_units(found.theta[None])[0])

    def add_user(self, user: Any, X: Any, y: Any) -> Assignment:
        """Assign a new user and remember it: ``predict`` knows it from now on.

        A user that fits no group keeps its own local model and has label -1.
        """
        check_is_fitted(self, "loss_")
        ids = as_ids([user])
        if self._positions(ids)[0] >= 0:
            raise ValueError(f"User {user!r} is known already: give the new user another id.")
        found = self.assign(X, y)
        self.users_ = as_ids([*self.users_.tolist(), *ids.tolist()])
        self.labels_ = np.append(self.labels_, found.label)
        self.theta_ = np.vstack([self.theta_, found.theta])
        self.has_users_ = True
        return found

    # -- files -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the fitted model to a folder: safetensors and JSON, no pickle, whole or not."""
        from odcl.persist import save_estimator

        check_is_fitted(self, "loss_")
        save_estimator(self, path, force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what ``save`` or ``odcl fit`` wrote; predictions are the same bit for bit."""
        from odcl.persist import load_estimator

        return load_estimator(cls, path)

    # -- input -------------------------------------------------------------------------------

    def _check_settings(self) -> None:
        if self.method not in ("default", "paper"):
            raise ValueError(f"method={self.method!r} is neither 'default' nor 'paper'.")
        if self.unknown not in UNKNOWN:
            raise ValueError(f"unknown={self.unknown!r} is not one of {', '.join(UNKNOWN)}.")

    def _split(
        self, X: Any, users: Any, *, fitting: bool, rows_of_one_user: bool = False
    ) -> tuple[Any, Any]:
        """Features and owners: the owners from the argument, or from the column named."""
        if self.users is None:
            return X, users
        if users is not None:
            raise ValueError(
                "Users were given twice: as the column named in the constructor and as users=."
            )
        if rows_of_one_user and np.shape(X)[1] == getattr(self, "n_features_in_", 0) - 1:
            return X, None
        validate_data(self, X, reset=fitting, skip_check_array=True)
        return take_column(X, self.users)

    def _validated_X(self, X: Any) -> Floats:
        if self.users is not None:  # names and width were checked with the users' column
            X = check_array(X, dtype=np.float64, estimator=self)
        else:
            X = validate_data(self, X, reset=False, dtype=np.float64)
        return X

    def _validated(self, X: Any, y: Any) -> tuple[Floats, Array]:
        if y is None:
            raise ValueError(
                f"requires y to be passed, but the target y is None: {type(self).__name__} "
                "learns to predict it."
            )
        if self.users is not None:
            X = check_array(X, dtype=np.float64, estimator=self)
        else:
            X = validate_data(self, X, dtype=np.float64)
        y = self._checked_target(column_or_1d(y, warn=True))
        check_consistent_length(X, y)
        return X, y


class ODCLRegressor(RegressorMixin, _ODCLEstimator):  # type: ignore[misc]
    """The right regression for every user, from one round (Algorithm 1 and what we add to it).

    Parameters
    ----------
    loss : "squared", "huber" or "poisson", or a Loss.
    l2 : weight of the squared norm in each user's risk, in standardised units.
    standardize : bring features to a scale common to all users first.
    clusterer : "auto" (NoiseMixture finds the number of groups), a number, "elbow",
        "silhouette", or any scikit-learn clusterer.
    combine : "precision", "mean" (the paper), "samples" or "shrink".
    refit : "evidence", "cv", None (the paper) or a number; see ``odcl.local.refit``.
    method : "paper" is K-means++, plain means, no refit, no standardisation.
    curvature : "auto", "full", "diagonal" or "none": what users send of their Hessian.
    unknown : what predict does for a user it has not seen: "error", "pooled" or "nearest".
    users : name (or position) of the column of X that names the user.
    solver : "exact", "sgd", ProjectedSGD(...), or a linear scikit-learn estimator.
    """

    def __init__(
        self,
        loss: str | Loss = "squared",
        *,
        l2: float = 0.0,
        fit_intercept: bool = True,
        standardize: bool = True,
        clusterer: Any = "auto",
        combine: str = "precision",
        refit: str | float | None = "evidence",
        method: str = "default",
        curvature: str = "auto",
        unknown: str = "error",
        users: str | int | None = None,
        solver: Any = "exact",
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        self.loss = loss
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.clusterer = clusterer
        self.combine = combine
        self.refit = refit
        self.method = method
        self.curvature = curvature
        self.unknown = unknown
        self.users = users
        self.solver = solver
        self.random_state = random_state
        self.n_jobs = n_jobs

    def predict(self, X: Any, users: Any = None) -> Floats:
        """Expected target of each row by its user's model, (n_rows,)."""
        z = self._scores(X, users)
        return self.loss_.mean(z)[:, 0]

    def score(self, X: Any, y: Any, sample_weight: Any = None, users: Any = None) -> float:
        """R^2 of the predictions."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, users=users), sample_weight=sample_weight))

    def _checked_target(self, y: Array) -> Floats:
        return check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)

    def _encode(self, y: Array) -> Floats:
        return y

    def _encode_known(self, y: Array) -> Floats:
        return self._checked_target(y)

    def _loss(self, federation: Federation) -> Loss:
        loss = as_loss(self.loss, federation.y)
        if loss.classification:
            raise ValueError(f"loss={loss.name!r} is for classes: use ODCLClassifier.")
        if self.loss == "huber":
            return Huber(1.345 * _residual_scale(federation, bool(self.fit_intercept)))
        loss.encode(federation.y)
        return loss


class ODCLClassifier(ClassifierMixin, _ODCLEstimator):  # type: ignore[misc]
    """The right classifier for every user, from one round.

    ``loss="logistic"`` serves two classes, and turns to the multinomial for more. Parameters as
    in :class:`ODCLRegressor`; ``l2`` is 0.01 by default, because users with few rows are
    separable and have no finite model without it.
    """

    def __init__(
        self,
        loss: str | Loss = "logistic",
        *,
        l2: float = 1e-2,
        fit_intercept: bool = True,
        standardize: bool = True,
        clusterer: Any = "auto",
        combine: str = "precision",
        refit: str | float | None = "evidence",
        method: str = "default",
        curvature: str = "auto",
        unknown: str = "error",
        users: str | int | None = None,
        solver: Any = "exact",
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        self.loss = loss
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.clusterer = clusterer
        self.combine = combine
        self.refit = refit
        self.method = method
        self.curvature = curvature
        self.unknown = unknown
        self.users = users
        self.solver = solver
        self.random_state = random_state
        self.n_jobs = n_jobs

    def decision_function(self, X: Any, users: Any = None) -> Floats:
        """Log-odds (two classes: (n_rows,)), or one score a class, (n_rows, n_classes)."""
        z = self._scores(X, users)
        if isinstance(self.loss_, Multinomial):
            scores = np.matmul(z, self.loss_.basis.T)
            return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores
        return z[:, 0]

    def predict_proba(self, X: Any, users: Any = None) -> Floats:
        """Probability of each class, (n_rows, n_classes)."""
        p = self.loss_.mean(self._scores(X, users)) if hasattr(self, "loss_") else None
        if p is None:
            check_is_fitted(self, "loss_")
        assert p is not None
        return p if isinstance(self.loss_, Multinomial) else np.column_stack([1 - p, p])

    def predict(self, X: Any, users: Any = None) -> Array:
        """Most probable class of each row, (n_rows,)."""
        scores = self.decision_function(X, users)
        best = (scores > 0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[best]

    def score(self, X: Any, y: Any, sample_weight: Any = None, users: Any = None) -> float:
        """Accuracy of the predictions."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, users=users), sample_weight=sample_weight))

    def _checked_target(self, y: Array) -> Array:
        check_classification_targets(y)
        return y

    def _encode(self, y: Array) -> Floats:
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"A classifier needs at least two classes, and the target holds only one class: "
                f"{self.classes_[0]!r}."
            )
        return codes.reshape(-1).astype(np.float64)

    def _encode_known(self, y: Array) -> Floats:
        codes = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        if (self.classes_[codes] != y).any():
            strange = y[self.classes_[codes] != y][0]
            raise ValueError(
                f"Label {strange!r} is not one of the classes {self.classes_.tolist()}."
            )
        return codes.astype(np.float64)

    def _loss(self, federation: Federation) -> Loss:
        n_classes = len(self.classes_)
        if isinstance(self.loss, Loss):
            loss = self.loss
        elif self.loss == "logistic" and n_classes == 2:
            loss = Logistic()
        elif self.loss in ("logistic", "multinomial"):
            loss = Multinomial(n_classes)
        else:
            loss = as_loss(self.loss)
        if not loss.classification:
            raise ValueError(f"loss={loss.name!r} is not for classes: use ODCLRegressor.")
        return loss


def take_column(X: Any, column: str | int) -> tuple[Any, Array]:
    """A frame or array without one column, and that column."""
    if hasattr(X, "columns"):
        names = list(X.columns)
        if isinstance(column, int) and column not in names:
            column = names[column]
        if column not in names:
            from odcl.data.columns import nearest

            raise ValueError(
                f"X has no column {column!r} for the users{nearest(str(column), names)}"
            )
        rest = [name for name in names if name != column]
        return X[rest], as_ids(X[column])
    X = np.asarray(X)
    if not isinstance(column, int) or X.ndim != 2 or not -X.shape[1] <= column < X.shape[1]:
        raise ValueError(
            f"users={column!r} names a column of X, and X is an array of shape {X.shape}: pass a "
            "frame with that column, or the column's position."
        )
    return np.delete(X, column, axis=1), as_ids(X[:, column])


def _distinct(ids: Array) -> tuple[list[Any], Ints]:
    """Distinct ids as Python values, and the position of each row's among them."""
    seen: dict[Any, int] = {}
    codes = np.fromiter((seen.setdefault(u, len(seen)) for u in ids.tolist()), np.intp, len(ids))
    return list(seen), codes


def _cluster_means(federation: Federation, labels: Ints) -> Floats:
    """Mean feature vector of each cluster's rows, (n_clusters, n_features)."""
    sums = np.add.reduceat(federation.X, federation.offsets[:-1], axis=0)
    total = np.zeros((int(labels.max()) + 1, federation.n_features))
    np.add.at(total, labels, sums)
    rows = np.bincount(labels, weights=federation.n_rows)
    return total / rows[:, None]


def _residual_scale(federation: Federation, fit_intercept: bool) -> float:
    """Robust scale of the users' least-squares residuals: the unit of Huber's delta."""
    local = fit_users(federation, Squared(), fit_intercept=fit_intercept, curvature="none")
    X = federation.X
    if fit_intercept:
        X = np.column_stack([X, np.ones(len(X))])
    residual = np.abs(federation.y - (X * local.theta[federation.row_user]).sum(axis=1))
    scale = 1.4826 * float(np.median(residual))
    return scale if scale > 0 else float(np.std(federation.y)) or 1.0
