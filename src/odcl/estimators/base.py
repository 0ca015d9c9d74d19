"""What regressor and classifier share: validate, standardise, delegate to ``odcl``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    validate_data,
)

from odcl._typing import Array, Floats, Ints
from odcl.data.columns import kind_of
from odcl.data.design import Design, DesignRows
from odcl.data.federation import (
    Federation,
    check_owners,
    group_rows,
    owner_ids,
    positions,
    row_order,
)
from odcl.data.frames import is_dask_frame
from odcl.data.notices import unusual_notices
from odcl.data.scaling import RowColumns, Scaling
from odcl.data.schema import TableSchema
from odcl.data.unusual import (
    ColumnMoments,
    sample_moments,
    unusual_users,
)
from odcl.data.write import beside
from odcl.engines.in_process import Result, fit
from odcl.errors import InputError, show
from odcl.estimators.for_newcomers import OnRequest, own_rows
from odcl.estimators.later_users import LaterUsers
from odcl.estimators.settings import check_n_groups, check_settings
from odcl.local.predict import in_table_units, linear_predictors, predictor_covariances
from odcl.method import Method
from odcl.mixed.differences import inside_text, named_differences
from odcl.risk.loss import Loss
from odcl.risk.losses import LOSSES
from odcl.risk.risk import Risk
from odcl.server.columns import user_columns

if TYPE_CHECKING:
    from odcl.evaluate.scores import Comparison
    from odcl.runs.dask_frames import DaskFederation


def _row_number(ids: Array, kept: Array, row: int) -> int:
    """The number, from 1, that a federation's row has in the table whose rows were ``kept``."""
    order, places = row_order(group_rows(ids)[1]), kept
    if kept.dtype == np.bool_:
        places = np.flatnonzero(kept)
    return 1 + int(places[row if order is None else order[row]])


@dataclass(eq=False, repr=False)  # an __init__ that only stores, written once for both
class ODCLEstimator(LaterUsers):
    """What regressor and classifier share. Users come as ``users=`` or as a column of X."""

    loss: str | Loss = "squared"
    _: KW_ONLY
    l2: float = 0.0
    fit_intercept: bool = True
    method: str | Method = "default"
    clusterer: Any = "auto"
    unknown: str = "pooled"
    unseen: str = "error"
    missing: str = "error"
    users: Any = None
    categorical: Any = None
    solver: Any = "exact"
    random_state: Any = 0
    n_jobs: int | None = None

    # Metadata routing: ``users`` is there for these methods and for nothing else.
    __metadata_request__fit: ClassVar = {"users": True}
    __metadata_request__predict: ClassVar = {"users": True}
    __metadata_request__score: ClassVar = {"users": True}

    # -- fit ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, users: Any = None, sample_weight: Any = None) -> Self:
        """Fit one model per user.

        ``users`` (n_rows,) names the owner of each row; without it, and without the
        constructor's ``users``, all rows belong to one user. ``sample_weight`` (n_rows,) says how
        often a row counts: 2 is the row twice, 0 is no row. ``X`` may be a Dask frame, with
        ``users`` and ``y`` columns of it, by name; then ``predict`` takes and gives Dask frames.
        """
        if is_dask_frame(X):
            if sample_weight is not None:
                raise InputError("Rows of a Dask frame count once each: leave sample_weight out.")
            from odcl.runs.dask_frames import fit_frame

            return fit_frame(self, X, y, users)
        check_settings(self)
        name = getattr(y, "name", None)
        self._target_name = name if isinstance(name, str) else ""
        X, y, users, kept = self._checked_rows(X, y, users)
        if users is None:
            warnings.warn(
                f"No users were named, so all {len(X)} rows count as one user's, and there are no "
                "groups to find: say fit(X, y, users=...), or name their column of X in the "
                "constructor, users='store'.",
                stacklevel=2,
            )
        ids = np.zeros(len(X), dtype=np.intp) if users is None else check_owners(users, len(X))
        if sample_weight is not None:
            sample_weight = _check_sample_weight(
                sample_weight, kept, dtype=np.float64, ensure_non_negative=True
            )[kept]
            some = sample_weight > 0  # before anything is counted: classes, users, scales
            X, y, ids, sample_weight = X[some], y[some], ids[some], sample_weight[some]
            kept = np.flatnonzero(kept)[some]
        federation = Federation.from_arrays(X, self._encode(y), ids, weight=sample_weight)
        number = partial(_row_number, ids, kept)
        return self._fit(federation, users is not None, row_number=number)

    def fit_federation(
        self,
        federation: Federation | DaskFederation,
        *,
        schema: TableSchema | None = None,
        design: Design | None = None,
        progress: Callable[[int], None] | None = None,
        in_place: bool = False,
    ) -> Self:
        """Fit rows that are grouped by user already; ``progress`` is told of users fitted.

        ``in_place``: the rows are the estimator's from now on, and are scaled where they are.

        Targets of a classifier are its labels, as in ``fit``. With the ``schema`` that the rows
        were encoded by, ``predict`` takes tables as they are, columns in any order; ``design``
        alone says which columns are levels of one category.
        """
        if not isinstance(federation, Federation):
            from odcl.runs.dask_frames import fit_dask_federation

            return fit_dask_federation(self, federation)
        check_settings(self)
        validate_data(self, federation.X, reset=True, skip_check_array=True)
        self.design_ = design
        if schema is not None:  # as if a frame with these columns had been fitted
            self.design_ = schema.design
            owner = () if self.users is None else (self.users,)
            self.feature_names_in_ = np.array([*owner, *schema.features], dtype=object)
            self.n_features_in_ = len(self.feature_names_in_)
        self._target_name = "" if schema is None else schema.target
        y = self._encode(self._checked_target(federation.y))
        return self._fit(
            federation.with_y(y), True, schema=schema, progress=progress, in_place=in_place
        )

    def _fit(
        self,
        federation: Federation,
        has_users: bool,
        *,
        schema: TableSchema | None = None,
        progress: Callable[[int], None] | None = None,
        in_place: bool = False,
        row_number: Callable[[int], int] | None = None,
    ) -> Self:
        method = Method.of(self.method, clusterer=self.clusterer)
        check_n_groups(method, federation.n_users, has_users)
        scaling = Scaling.of(
            RowColumns(federation.X, federation.weight),
            center=bool(self.fit_intercept),
            standardize=method.standardize,
            copies=not method.clusterer.uses_terms,
            factors=self._factors(method),
        )
        intercept = bool(self.fit_intercept)
        columns, n_users, rows = None, federation.n_users, federation
        if method.standardize and not self._server_finds_units(method, scaling, n_users):
            columns = sample_moments(federation)
            scaling = scaling.of_usual(columns, n_users, center=intercept)
        federation = own_rows(federation, scaling, in_place=in_place)
        risk = Risk(self._loss(federation), self.l2, intercept, scaling.factors)
        result = fit(
            federation,
            risk,
            method,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            solver=self.solver,
            n_jobs=self.n_jobs,
            progress=progress,
        )
        self.schema_ = schema
        self._keep_result(result, federation, scaling, has_users=has_users)
        if row_number is not None:
            for text in self._unusual(rows, row_number, columns):
                warnings.warn(text, stacklevel=3)
        return self

    def _keep_result(
        self, result: Result, federation: Federation, scaling: Scaling, *, has_users: bool = True
    ) -> Self:
        """Be fitted: by a round of these rows, which are in the units of ``scaling``."""
        self.result_, self._has_users, self.scaling_ = result, has_users, scaling
        self._whole, self.user_files_ = True, None  # all users of its groups are in it
        self._batches = frozenset()
        self.risk_, self.method_ = result.risk, result.method
        self.users_, self.labels_, self.uploads_ = result.users, result.labels, result.uploads
        self.n_rows_ = federation.n_rows
        sure = result.step.probabilities if result.received.sure is None else result.received.sure
        self.probability_ = np.full(len(self.users_), np.nan) if sure is None else sure
        self.n_clusters_ = result.n_clusters
        self.theta_, self.cluster_theta_ = result.models, result.centers
        self.rule_ = result.step.rule
        self.tau2_ = result.step.tau2
        self._for_newcomers = OnRequest(federation, result)
        self.mixture_, received = result.step.mixture, result.received
        self.covariance_, self.noise_ = received.covariance, received.noise
        self.dof_ = received.dof
        inside = inside_text(self.mixture_, self.risk_, self._units)
        self.reason_ = f"{result.step.reason} {inside}".rstrip()
        return self

    def _forget_rows(self) -> None:
        """Work out what later users need, and let the rows of the fit go."""
        self._for_newcomers = self._for_newcomers.known

    def _unusual(
        self, rows: Federation, row_number: Callable[[int], int], columns: ColumnMoments | None
    ) -> list[str]:
        """What is odd about some users: their data terms, where they sent any, tell if any is."""
        uploads = self.result_.uploads
        if uploads.factor is not None and not unusual_users(user_columns(uploads)).users.any():
            return []
        levels = {j for own in (self.design_.factors if self.design_ else {}).values() for j in own}
        names = ["" if j in levels else name for j, name in enumerate(self.feature_names_)]
        goal = "" if hasattr(self, "classes_") else self._target_name or "the target"
        return unusual_notices(rows, [*names, goal], row_number, columns)

    def _server_finds_units(self, method: Method, scaling: Scaling, n_users: int = 2) -> bool:
        """Are units and origins found at the server, from data terms, whatever the scaling?"""
        loss = self.loss if isinstance(self.loss, Loss) else LOSSES.get(self.loss)
        dim = len(scaling.used) + bool(self.fit_intercept)
        return (
            (loss is not None and loss.has_data_terms)
            and method.clusterer.uses_terms
            and not method.resolved(Risk("squared"), dim, n_users).fallback
        )

    def _factors(self, method: Method) -> dict[str, tuple[int, ...]]:
        """The design columns of each category whose levels are to be treated alike."""
        if self.design_ is None or not (method.clusterer.uses_terms and self.fit_intercept):
            return {}
        return self.design_.factors

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
        if self.design_ is not None:
            return list(self.design_.columns)
        if getattr(self, "feature_names_in_", None) is None:
            return [f"x{j}" for j in range(self.scaling_.n_features)]
        return list(map(str, self._own_names()))

    def _schema_of_names(self) -> TableSchema | None:
        """How a table is read for a model of a frame; None where columns have no names."""
        names = getattr(self, "feature_names_in_", None)
        if names is None or not isinstance(self.users, str):
            return None
        columns = tuple(self.feature_names_)
        design = self.design_ or Design(columns, {}, dict.fromkeys(columns, 0.0))
        return TableSchema(
            user=self.users,
            target=self._target_name,
            features=design.features,
            levels=design.levels,
            fill=design.fill,
            missing=self.missing,
            task="regression" if not hasattr(self, "classes_") else "classification",
            classes=tuple(self.classes_.tolist()) if hasattr(self, "classes_") else None,
            user_kind=kind_of(self.users_.tolist()),
            other=design.other,
        )

    @property
    def differences_(self) -> dict[str, float]:
        """How far users of a group differ in each coefficient: standard deviations, by name.

        In the table's units, 0 where they are the same; "(level)" is the prediction for average
        features, and a category with several levels counts as one: how far its effect on a row
        differs. Empty where the method does not tell.
        """
        check_is_fitted(self, "theta_")
        if self.mixture_ is None:
            return {}
        return named_differences(self.mixture_, self.risk_, self._units)

    @property
    def _units(self) -> dict[str, float]:
        """The columns that models have a coefficient for, and the scale each was divided by."""
        names = self.feature_names_
        used = (names[j] for j in self.scaling_.used)
        return dict(zip(used, self.scaling_.scale.tolist(), strict=True))

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
        return in_table_units(theta, self.risk_, self.scaling_)

    # -- predict -----------------------------------------------------------------------------

    def _predictors(
        self, X: Any, users: Any, *, unsure: bool
    ) -> tuple[Floats, Floats | None, tuple[Self, Ints]]:
        """Linear predictors of the rows, with ``unsure`` their covariances, and whose they are.

        Owners are positions in an estimator: this one, or, where models lie in the files of a table
        in pieces, one that holds those of these rows' users.
        """
        check_is_fitted(self, "theta_")
        given, (X, users) = X, self._owned_rows(X, users)
        by = self
        if self.user_files_ is not None and users is not None:
            from odcl.estimators.scattered import with_users_of

            by = with_users_of(self, group_rows(check_owners(users, len(X)))[0])
        theta, where = by._models_of(len(X), users)
        if len(theta) > len(by.theta_) and not isinstance(given, DesignRows):  # its owner tells
            new = owner_ids(users)[where == len(by.theta_)]
            warnings.warn(
                f"{by._about_unknown(new, len(X))} and are predicted as average users. In "
                "cross-validation, KFold(shuffle=True) leaves every user rows in the fit; "
                "add_user(id, X, y) gives a new user its own model.",
                stacklevel=3,
            )
        z, S = linear_predictors(X, theta, where, self.risk_, self.scaling_), None
        if by.covariance_ is not None and unsure:
            V = by.covariance_
            if len(theta) > len(V):
                V = np.concatenate([V, by._for_strangers()[1]])
            S = predictor_covariances(X, V, where, self.risk_, self.scaling_)
        return z, S, (by, where)

    def _for_strangers(self) -> tuple[Floats, Floats]:
        """The model of a user that is not known, and its covariance (zero: not known).

        Of a mixture the mean over its groups, sum_k pi_k c_k; else one model for all rows.
        """
        theta = self.pooled_theta_[None]
        if self.mixture_ is None:
            return theta, np.zeros((1, theta.shape[1], theta.shape[1]))
        from odcl.mixed.layout import without_rows

        models, V = without_rows(self.mixture_, self.risk_)
        return models[-1:], V[-1:]

    def _models_of(self, n_rows: int, users: Any) -> tuple[Floats, Ints]:
        """Models, users' first, and which of them each row is predicted by."""
        everybody = np.zeros(n_rows, dtype=np.intp)
        if users is None and not self._has_users:
            return self.theta_, everybody
        if users is None:
            raise ValueError(
                f"This model knows {len(self.users_)} users, and was not told whose rows these "
                "are: pass users=... (a new id, for rows of a user who is not known)."
            )
        ids = check_owners(users, n_rows)
        if not self._has_users:
            raise ValueError(
                "This model was fitted without users and has one model for all rows: leave users= "
                "out, or fit with users=..."
            )
        where = positions(self.users_, ids)
        new = where < 0
        if not new.any():
            return self.theta_, where
        if self.unknown == "error":
            raise ValueError(
                f"{self._about_unknown(ids[new], n_rows)} and have no model. Add a user with "
                "add_user(id, X, y), or set unknown='pooled' to predict it as an average user."
            )
        where[new] = len(self.theta_)
        return np.vstack([self.theta_, self._for_strangers()[0]]), where

    def _about_unknown(self, ids: Array, n_rows: int) -> str:
        """The beginning of a sentence about rows whose users, ``ids``, have no model."""
        distinct = list(dict.fromkeys(ids.tolist()))
        some = ", ".join(map(show, distinct[:3])) + ", ..." * (len(distinct) > 3)
        first = [*self.users_.tolist()[:1], distinct[0]][0]
        if type(first) is not type(distinct[0]):
            some += f"; the fit's ids look like {first!r}"
        users = "a user" if len(distinct) == 1 else f"{len(distinct):,} users"
        return f"{len(ids):,} of {n_rows:,} rows belong to {users} not in the fit ({some})"

    # -- files -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the fitted model to a folder: safetensors and JSON, no pickle, whole or not at all.

        ``force`` replaces a model that is there already, and nothing else.
        """
        from odcl.estimators.persist import save_estimator

        check_is_fitted(self, "theta_")
        save_estimator(self, path, force=force)

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        comparison: Comparison | None = None,
        anonymous: bool = False,
    ) -> None:
        """Write the page of this fit, one file for a browser: groups, users, what speaks for them.

        ``comparison``, the answer of :func:`odcl.compare`, adds what it is worth on held-out rows;
        ``anonymous`` gives users numbers in place of their names.
        """
        from odcl.runs.page import report_model

        check_is_fitted(self, "theta_")
        report_model(self, path, comparison=comparison, anonymous=anonymous)

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
