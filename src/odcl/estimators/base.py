"""What regressor and classifier share: validate, standardise, delegate to ``odcl``."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length, check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from odcl._typing import Array, Floats, Ints
from odcl.data.columns import kind_of
from odcl.data.federation import (
    MOST_SIZE,
    Federation,
    as_ids,
    check_features,
    check_owners,
    column_position,
    has_names,
    owner_ids,
    positions,
    take_column,
)
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.data.tables import as_table, beside
from odcl.engines.in_process import fit
from odcl.errors import InputError, Setting
from odcl.exchange.upload import Uploads
from odcl.local.predict import linear_predictors, one_for_all, predictor_covariances
from odcl.local.receive import Received
from odcl.method import Method
from odcl.mixed.house import without_rows
from odcl.risk.loss import Loss
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk
from odcl.server import assign as newcomers
from odcl.server.assign import Assignment, assign_rows, groups_of
from odcl.server.mixed import assign_mixed, place_mixed, with_more_terms
from odcl.server.step import ServerStep
from odcl.server.update import place_of, with_more_rows

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis


@dataclass(eq=False, repr=False)  # an __init__ that only stores, written once for both
class ODCLEstimator(BaseEstimator):  # type: ignore[misc]
    """What regressor and classifier share. Users come as ``users=`` or as a column of X."""

    loss: str | Loss = "squared"
    _: KW_ONLY
    l2: float = 0.0
    fit_intercept: bool = True
    method: str | Method = "default"
    clusterer: Any = "auto"
    unknown: str = "error"
    users: Any = None
    solver: Any = "exact"
    random_state: Any = 0
    n_jobs: int | None = None

    _adding: ClassVar = threading.Lock()

    # Metadata routing: ``users`` is there for these methods and for nothing else.
    __metadata_request__fit: ClassVar = {"users": True}
    __metadata_request__predict: ClassVar = {"users": True}
    __metadata_request__score: ClassVar = {"users": True}

    # -- fit ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> Self:
        """Fit one model per user.

        ``users`` (n_rows,) names the owner of each row; without it, and without the
        constructor's ``users``, all rows belong to one user. ``sample_weight`` (n_rows,) says how
        often a row counts: 2 is the row twice, 0 is no row.
        """
        check_settings(self)
        name = getattr(y, "name", None)
        self.target_name_ = name if isinstance(name, str) else ""
        X, users = self._split(X, users, fitting=True)
        X, y = self._validated(X, y)
        ids = np.zeros(len(X), dtype=np.intp) if users is None else check_owners(users, len(X))
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, X, dtype=np.float64, ensure_non_negative=True
            )
            kept = sample_weight > 0  # before anything is counted: classes, users, scales
            X, y, ids, sample_weight = X[kept], y[kept], ids[kept], sample_weight[kept]
        federation = Federation.from_arrays(X, self._encode(y), ids, weight=sample_weight)
        return self._fit(federation, users is not None)

    def fit_federation(
        self,
        federation: Federation,
        *,
        schema: TableSchema | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Self:
        """Fit rows that are grouped by user already; ``progress`` is told of users fitted.

        Targets of a classifier are its labels, as in ``fit``. With the ``schema`` that the rows
        were encoded by, ``predict`` takes tables as they are, columns in any order.
        """
        check_settings(self)
        validate_data(self, federation.X, reset=True, skip_check_array=True)
        self.target_name_ = "" if schema is None else schema.target
        y = self._encode(self._checked_target(federation.y))
        return self._fit(federation.with_y(y), True, schema=schema, progress=progress)

    def _fit(
        self,
        federation: Federation,
        has_users: bool,
        *,
        schema: TableSchema | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Self:
        method = Method.of(self.method, clusterer=self.clusterer)
        check_n_groups(method, federation.n_users, has_users)
        scaling = Scaling.of(
            federation.X,
            federation.weight,
            center=bool(self.fit_intercept),
            standardize=method.standardize,
            copies=not method.clusterer.uses_terms,
        )
        federation = federation.with_X(scaling.apply(federation.X))
        risk = Risk(self._loss(federation), self.l2, bool(self.fit_intercept))
        method = method.resolved(risk, risk.dim(federation.n_features))
        result = fit(
            federation,
            risk,
            method,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            solver=self.solver,
            n_jobs=self.n_jobs,
            progress=progress,
        )
        self.result_, self.has_users_, self.scaling_ = result, has_users, scaling
        self.schema_ = schema
        self.risk_, self.method_ = risk, method
        self.users_, self.labels_, self.uploads_ = result.users, result.labels, result.uploads
        self.n_rows_ = federation.n_rows
        sure = result.step.probabilities
        self.probability_ = np.full(len(self.users_), np.nan) if sure is None else sure
        self.n_clusters_ = result.n_clusters
        self.theta_, self.cluster_theta_ = result.models, result.centers
        self.rule_, self.reason_ = result.step.rule, result.step.reason
        self.tau2_ = result.step.tau2
        self.groups_ = groups_of(federation, risk, result.local, result.step, method)
        self.cluster_means_ = newcomers.cluster_means(federation, result.labels, result.n_clusters)
        self.mixture_, received = result.step.mixture, result.received
        self.covariance_, self.noise_ = received.covariance, received.noise
        self.dof_ = received.dof
        self.pooled_theta_ = one_for_all(federation, risk)
        return self

    # -- models in the table's units -----------------------------------------------------------

    @property
    def coef_(self) -> Floats:
        """Each user's coefficients in the table's units, (n_users, n_features).

        Multinomial: (n_users, n_classes, n_features). Columns as in ``feature_names_``.
        """
        return self._in_table_units(self.theta_)[0]

    @property
    def intercept_(self) -> Floats:
        """Each user's intercept, (n_users,); multinomial: (n_users, n_classes)."""
        return self._in_table_units(self.theta_)[1]

    @property
    def group_coef_(self) -> Floats:
        """Each group's coefficients, shaped as ``coef_``."""
        return self._in_table_units(self.cluster_theta_)[0]

    @property
    def group_intercept_(self) -> Floats:
        """Each group's intercept, shaped as ``intercept_``."""
        return self._in_table_units(self.cluster_theta_)[1]

    @property
    def feature_names_(self) -> list[str]:
        """Names of the coefficients: the columns of X without the users' column."""
        names = getattr(self, "feature_names_in_", None)
        if self.schema_ is not None:
            return list(self.schema_.columns)
        if names is None:
            return [f"x{j}" for j in range(self.scaling_.n_features)]
        return list(map(str, self._own_names()))

    def _own_names(self) -> list[Any]:
        """The columns of the frame that was fitted, without the users' column."""
        names: list[Any] = self.feature_names_in_.tolist()
        if self.users is not None:
            del names[column_position(names, self.users)]
        return names

    def schema_of_names(self) -> TableSchema | None:
        """How a table is read for a model of a frame; None where columns have no names."""
        names = getattr(self, "feature_names_in_", None)
        if names is None or not isinstance(self.users, str):
            return None
        features = tuple(self.feature_names_)
        return TableSchema(
            user=self.users,
            target=self.target_name_,
            features=features,
            levels={},
            fill=dict.fromkeys(features, 0.0),
            missing="error",
            task="regression" if not hasattr(self, "classes_") else "classification",
            classes=tuple(self.classes_.tolist()) if hasattr(self, "classes_") else None,
            user_kind=kind_of(self.users_.tolist()),
        )

    def take_schema(self, schema: TableSchema) -> None:
        """From now on rows come as this schema encodes them: features, and owners beside them."""
        self.schema_, self.users, self.n_features_in_ = schema, None, len(schema.columns)
        if hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    @property
    def differences_(self) -> dict[str, float]:
        """How far users of a group differ in each coefficient: standard deviations, by name.

        In the table's units, 0 where they are the same; "(level)" is the prediction for average
        features. Empty where the method does not tell.
        """
        check_is_fitted(self, "theta_")
        if self.mixture_ is None:
            return {}
        at, D = self.mixture_.coordinates, self.risk_.n_outputs
        sd = np.sqrt(np.diag(self.mixture_.inside).reshape(D, -1).mean(axis=0))
        sd = sd * at.target_scale
        used = self.scaling_.used[at.kept]
        slopes = sd[int(at.intercept) :] / (at.scale * self.scaling_.scale[at.kept])
        names = [self.feature_names_[j] for j in used]
        level = {"(level)": float(sd[0])} if at.intercept else {}
        return level | dict(zip(names, map(float, slopes), strict=True))

    def coefficients(self) -> Any:
        """A pandas frame of every user's model in the table's units, under the columns' names.

        One row per user (multinomial: per user and class): user, group, (class,) the features,
        and "(intercept)".
        """
        import pandas as pd

        coef, intercept = self._in_table_units(self.theta_)
        key: dict[str, Any] = {"user": self.users_, "group": self.labels_}
        if coef.ndim == 3:
            _, n_classes, p = coef.shape
            key = {name: np.repeat(values, n_classes) for name, values in key.items()}
            key["class"] = np.tile(self.classes_, len(coef))
            coef, intercept = coef.reshape(-1, p), intercept.reshape(-1)
        values = dict(zip(self.feature_names_, coef.T, strict=True))
        if self.fit_intercept:
            values["(intercept)"] = intercept
        return pd.DataFrame(beside(values, key, first=True))

    def _in_table_units(self, theta: Floats) -> tuple[Floats, Floats]:
        """Coefficients and intercepts of models, (m, n_features) and (m,), by class if several."""
        inputs = self.risk_.n_inputs(len(self.scaling_.used))
        model = theta.reshape(len(theta), inputs, self.risk_.n_outputs)
        p = len(self.scaling_.used)
        coef, intercept = self.scaling_.undo(model[:, :p], model[:, p:].sum(axis=1))
        loss = self.risk_.loss
        if not isinstance(loss, Multinomial):
            return coef[:, :, 0], intercept[:, 0]
        return np.matmul(coef, loss.basis.T).swapaxes(1, 2), np.matmul(intercept, loss.basis.T)

    # -- predict -----------------------------------------------------------------------------

    def _predictors(self, X: Any, users: Any) -> tuple[Floats, Floats | None, Ints]:
        """Linear predictors of the rows, their covariances if known, and whose models they are."""
        check_is_fitted(self, "theta_")
        X, users = self._split(X, users, fitting=False)
        X = self._validated_X(X)
        theta, where = self._models_of(X, users)
        z, S = linear_predictors(X, theta, where, self.risk_, self.scaling_), None
        if self.covariance_ is not None:
            V = self.covariance_
            if len(theta) > len(V):
                V = np.concatenate([V, self._for_strangers()[1]])
            S = predictor_covariances(X, V, where, self.risk_, self.scaling_)
        return z, S, where

    def _scores(self, X: Any, users: Any) -> Floats:
        """Linear predictors of the rows, each by its user's model, (n_rows, n_outputs)."""
        return self._predictors(X, users)[0]

    def _for_strangers(self) -> tuple[Floats, Floats]:
        """Models of users that are not known, and their covariances (zero: not known)."""
        theta = self.pooled_theta_[None] if self.unknown == "pooled" else self.cluster_theta_
        if self.mixture_ is None:
            return theta, np.zeros((len(theta), theta.shape[1], theta.shape[1]))
        models, V = without_rows(self.mixture_, self.risk_)
        which = slice(-1, None) if self.unknown == "pooled" else slice(-1)
        return models[which], V[which]

    def _models_of(self, X: Floats, users: Any) -> tuple[Floats, Ints]:
        """Models, users' first, and which of them each row is predicted by."""
        everybody = np.zeros(len(X), dtype=np.intp)
        if users is None and not self.has_users_:
            return self.theta_, everybody
        if users is None:
            if self.unknown == "pooled":
                return np.vstack([self.theta_, self._for_strangers()[0]]), everybody + len(
                    self.theta_
                )
            raise ValueError(
                f"This model knows {len(self.users_)} users, and was not told whose rows these "
                "are: pass users=..., or set unknown='pooled' for one model for all."
            )
        ids = check_owners(users, len(X))
        if not self.has_users_:
            if self.unknown != "error":
                return self.theta_, everybody
            raise ValueError(
                "This model was fitted without users and has one model for all rows: leave users= "
                "out, or fit with users=..."
            )
        where = positions(self.users_, ids)
        new = where < 0
        if not new.any():
            return self.theta_, where
        if self.unknown == "pooled":
            where[new] = len(self.theta_)
            return np.vstack([self.theta_, self._for_strangers()[0]]), where
        if self.unknown == "nearest":
            nearest = newcomers.nearest_cluster(
                self.scaling_.apply(X[new]), ids[new], self.cluster_means_
            )
            where[new] = len(self.theta_) + nearest
            return np.vstack([self.theta_, self._for_strangers()[0]]), where
        raise self._unknown_users(ids[new])

    def _unknown_users(self, ids: Array) -> ValueError:
        distinct = list(dict.fromkeys(ids.tolist()))
        some = ", ".join(map(repr, distinct[:3])) + (", ..." if len(distinct) > 3 else "")
        one = len(distinct) == 1
        first = self.users_.tolist()[0]
        hint = ""
        if type(first) is not type(distinct[0]):
            hint = f" (the fit's ids look like {first!r})"
        return ValueError(
            f"User{'' if one else 's'} {some} {'was' if one else 'were'} not in the fit{hint}, so "
            "there is no model for such rows. Add a user with add_user(id, X, y), or fit with "
            "unknown='pooled' (one model for all) or unknown='nearest' (that of the group with the "
            "most similar features)."
        )

    # -- new users ---------------------------------------------------------------------------

    def assign(self, X: Any, y: Any) -> Assignment:
        """Which group a new user with these rows belongs to, and its model.

        ``X`` holds the rows of one user, with or without the users' column. Nothing is kept; see
        :meth:`add_user`.
        """
        check_is_fitted(self, "theta_")
        rows, target = self._rows_of_one(X, y)
        found = self._assigned(rows, target)
        coef, intercept = self._in_table_units(found.theta[None])
        return replace(found, coef=coef[0], intercept=intercept[0])

    def _assigned(self, rows: Floats, target: Floats) -> Assignment:
        if self.mixture_ is not None:
            return assign_mixed(rows, target, self.risk_, self.mixture_, self.method_)
        return assign_rows(rows, target, self.risk_, self.groups_, self.method_)

    def _more_rows(
        self, at: int, rows: Floats, target: Floats
    ) -> tuple[Uploads, tuple[int, Floats, float], Received | None]:
        """The upload of a known user with more rows, its place (label, model, how surely)."""
        old = self.uploads_[at]
        if self.mixture_ is not None:
            more = assign_mixed(rows, target, self.risk_, self.mixture_, self.method_)
            found = place_mixed(with_more_terms(old, more.upload), self.mixture_)
            return found.upload, (found.label, found.theta, found.probability), found.received
        upload = with_more_rows(old, rows, target, self.risk_)
        place = place_of(upload, self.groups_, self.method_.refit, self.labels_[at])
        if place[0] == self.labels_[at] and (self.labels_ == place[0]).sum() == 1:
            place = place[0], upload.theta[0], place[2]  # alone there, as in the fit
        return upload, place, None

    def add_user(self, user: Any, X: Any, y: Any) -> Assignment:
        """Assign a new user and remember it: ``predict`` knows it from now on.

        A user that fits no group keeps its own local model and has label -1. The other users'
        models, the groups and ``result_`` stay as they were.
        """
        found = self.assign(X, y)
        self.add_assigned([user], [found])
        return found

    def add_assigned(self, users: Any, found: Sequence[Assignment]) -> None:
        """Remember new users where they were assigned."""
        check_is_fitted(self, "theta_")
        if not self.has_users_:
            raise ValueError(
                "This model was fitted without users, so there are no groups to join: fit with "
                "users=... first."
            )
        ids = owner_ids(users)
        with self._adding:  # one thread at a time reads, changes and writes
            known = positions(self.users_, ids) >= 0
            if known.any():
                raise ValueError(
                    f"User {ids[known].tolist()[0]!r} is known already: give the new user another "
                    "id, or give the known one more rows with update_user."
                )
            self.labels_ = np.append(self.labels_, [one.label for one in found])
            self.probability_ = np.append(self.probability_, [one.probability for one in found])
            rows = [int(one.upload.n_samples[0]) for one in found]
            self.n_rows_ = np.append(self.n_rows_, rows)
            self.theta_ = np.vstack([self.theta_, *(one.theta for one in found)])
            for one in found if self.mixture_ is not None else ():
                for name, values in self._sure_of(one.received).items():
                    setattr(self, name, np.concatenate([getattr(self, name), values[None]]))
            everybody = as_ids([*self.users_.tolist(), *ids.tolist()])
            if self.uploads_ is not None:
                for one in found:
                    self.uploads_ = self.uploads_.joined(one.upload)
                self.uploads_ = replace(self.uploads_, users=everybody)
            self.users_ = everybody  # last: whoever predicts meanwhile finds no user without model

    @staticmethod
    def _sure_of(received: Received | None) -> dict[str, Any]:
        """The attributes that say how sure one user's model is, if anything does."""
        if received is None:
            return {}
        named = {
            "covariance_": received.covariance,
            "noise_": received.noise,
            "dof_": received.dof,
        }
        return {name: values[0] for name, values in named.items() if values is not None}

    def update_user(self, user: Any, X: Any, y: Any, *, all_rows: bool = False) -> int:
        """More rows of a user that is known: its group and its model follow. Its new label.

        The rows come on top of those it had, which its upload stands for: for the squared loss the
        answer is that of a fit of all its rows, elsewhere it is second order. With ``all_rows`` the
        rows are everything the user has. Other users and the groups' models stay as they were.
        """
        check_is_fitted(self, "theta_")
        rows, target = self._rows_of_one(X, y)
        with self._adding:
            at = int(positions(self.users_, owner_ids([user]))[0])
            if at < 0:
                raise ValueError(f"User {user!r} is not known: add it with add_user.")
            if all_rows:
                found = self._assigned(rows, target)
                place, upload = (found.label, found.theta, found.probability), found.upload
                received = found.received
            elif self.uploads_ is None:
                raise InputError(
                    "The users' uploads were too large to keep, so the old rows cannot be added to "
                    "the new ones: give all rows of the user, and say ",
                    *(Setting("all_rows", True), "."),
                )
            else:
                upload, place, received = self._more_rows(at, rows, target)
            if self.uploads_ is not None:
                self.uploads_ = self.uploads_.replaced(at, upload)
            count = len(rows) + (0 if all_rows else self.n_rows_[at])
            new = dict(zip(("labels_", "theta_", "probability_"), place, strict=True))
            new |= {"n_rows_": count, **self._sure_of(received)}
            for name, value in new.items():  # new arrays: result_ holds the old ones
                values = getattr(self, name).copy()
                values[at] = value
                setattr(self, name, values)
        return int(self.labels_[at])

    def diagnose(self, *, resamples: int = 20, seed: int = 0) -> Diagnosis:
        """Is one shot enough for these users? See :func:`odcl.diagnose.diagnose`."""
        check_is_fitted(self, "theta_")
        from odcl.diagnose import diagnose_step

        if self.uploads_ is None:
            raise ValueError(
                "This model was written without its users' uploads, which were too large to keep, "
                "and they are what is diagnosed: fit it again on its rows."
            )
        kept = np.flatnonzero(self.labels_ >= 0)  # added users that fit no group are in none
        labels = self.labels_[kept]
        step = ServerStep(
            self.users_[kept],
            labels,
            self.cluster_theta_,
            self.cluster_theta_[labels],
            self.rule_,
            self.reason_,
            "",
            tau2=self.tau2_,
        )
        return diagnose_step(
            self.uploads_.take(kept), step, self.method_, resamples=resamples, seed=seed
        )

    # -- files -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the fitted model to a folder: safetensors and JSON, no pickle, whole or not at all.

        ``force`` replaces a model that is there already, and nothing else.
        """
        from odcl.estimators.persist import save_estimator

        check_is_fitted(self, "theta_")
        save_estimator(self, path, force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what ``save`` or ``odcl fit`` wrote; predictions are the same bit for bit.

        The loaded model predicts, assigns, adds and updates users, and is diagnosed. ``result_`` is
        not in the file, and settings that were objects (a clusterer, a solver, a RandomState) come
        back as text: set them again with ``set_params`` before a new ``fit``. A model of
        ``odcl fit`` takes tables with the columns that the command took, in any order.
        """
        from odcl.estimators.persist import load_estimator

        model: Self = load_estimator(cls, path)
        return model

    # -- input -------------------------------------------------------------------------------

    def _split(self, X: Any, users: Any, *, fitting: bool) -> tuple[Any, Any]:
        """Features and owners: the owners from the argument, or from the column named."""
        if not fitting and self.schema_ is not None and has_names(X):
            return self._encoded(X, users)
        if self.users is None:
            return X, users
        if users is not None:
            raise ValueError(
                f"Users were given twice: as column {self.users!r} of X (users={self.users!r} in "
                "the constructor) and as users=. Leave one of them out."
            )
        validate_data(self, X, reset=fitting, skip_check_array=True)
        return take_column(X, self.users)

    def _encoded(self, table: Any, users: Any) -> tuple[Floats, Any]:
        """A table with the columns that the schema knows, in any order, as features and owners."""
        assert self.schema_ is not None
        table = as_table(table)
        if users is not None:  # in place of the users' column, which may be there or not
            columns = {name: table[name] for name in table.column_names}
            somebody = np.full(table.num_rows, self.users_.tolist()[0])
            table = {**columns, self.schema_.user: somebody}
        missing = "mean" if self.schema_.missing == "mean" else "error"  # no row may go missing
        encoded = self.schema_.encode(table, with_target=False, missing=missing)
        return encoded.X, encoded.users if users is None else users

    def _validated_X(self, X: Any, *, fitting: bool = False) -> Floats:
        check_features(X)
        if self.users is not None:  # names and width were checked with the users' column
            return check_array(X, dtype=np.float64, estimator=self, input_name="X")
        return validate_data(self, X, reset=fitting, dtype=np.float64)

    def _validated(self, X: Any, y: Any) -> tuple[Floats, Array]:
        if y is None:
            raise ValueError(
                f"requires y to be passed, but the target y is None: {type(self).__name__} "
                "learns to predict it."
            )
        X = self._validated_X(X, fitting=True)
        y = self._checked_target(column_or_1d(y, warn=True))
        check_consistent_length(X, y)
        return X, y

    def _rows_of_one(self, X: Any, y: Any) -> tuple[Floats, Floats]:
        """The rows of one user as its model sees them, checked: features scaled, target encoded."""
        X = self._validated_X(self._without_owner(X))
        y = self._checked_target(column_or_1d(y))
        check_consistent_length(X, y)
        rows = np.ascontiguousarray(self.scaling_.apply(X))  # frames come column by column
        size = np.abs(rows).max(axis=0, initial=0.0)
        if (size >= MOST_SIZE).any():
            name = self.feature_names_[self.scaling_.used[size.argmax()]]
            raise ValueError(
                f"Feature {name!r} reaches {size.max():.1g} times its spread in the fit, and its "
                "squares are beyond what a computer counts with: correct that value."
            )
        return rows, self.risk_.loss.encode(self._encode_known(y))

    def _without_owner(self, X: Any) -> Any:
        """The features of one user's rows; the users' column may be there or not."""
        width = np.shape(X)[1] if len(np.shape(X)) == 2 else -1
        if self.schema_ is not None and has_names(X):
            names = X.column_names if hasattr(X, "column_names") else X.columns
            X, ids = self._encoded(X, None if self.schema_.user in names else self.users_[:1])
        elif self.users is None:
            return X
        elif width == self.n_features_in_ - 1:
            names = getattr(self, "feature_names_in_", None)
            if names is not None and hasattr(X, "columns") and list(X.columns) != self._own_names():
                raise ValueError(
                    f"The columns of X are {list(X.columns)}, and those of the fit were "
                    f"{self._own_names()} beside the users' {self.users!r}: pass the same in the "
                    "same order."
                )
            return X
        else:
            X, ids = self._split(X, None, fitting=False)
        if len(set(ids.tolist())) > 1:
            raise ValueError(
                f"These are rows of {len(set(ids.tolist()))} users, and one user is assigned at a "
                "time: pass the rows of one."
            )
        return X


UNKNOWN = ("error", "pooled", "nearest")


def check_settings(model: Any) -> None:
    """Refuse settings that no data can make good."""
    if model.unknown not in UNKNOWN:
        words = ", ".join(map(repr, UNKNOWN))
        raise ValueError(f"unknown={model.unknown!r} is not one of {words}.")
    if model.fit_intercept not in (True, False):
        raise ValueError(f"fit_intercept={model.fit_intercept!r} is neither True nor False.")
    Risk(l2=model.l2)
    Method.of(model.method, clusterer=model.clusterer)


def check_n_groups(method: Method, n_users: int, has_users: bool) -> None:
    """Refuse to ask for more groups than there are users."""
    asked = method.clusterer.n_clusters
    if not isinstance(asked, Integral) or asked <= n_users:
        return
    seen = f"there are {n_users} users" if n_users > 1 else "there is 1 user"
    if not has_users:
        seen += " (without users= all rows belong to one)"
    raise ValueError(
        f"{method.clusterer} asks for {asked} groups, and {seen}: a group without users has no "
        f"model. Ask for at most {n_users}, say clusterer='auto', or name more users."
    )
