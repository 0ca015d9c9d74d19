"""What regressor and classifier share: validate, standardise, delegate to ``odcl``."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    column_or_1d,
)

from odcl._typing import Array
from odcl.data.curves import with_bends
from odcl.data.design import Design, DesignRows
from odcl.data.federation import (
    Federation,
    check_owners,
    group_rows,
    owner_ids,
    positions,
    row_order,
)
from odcl.data.frames import FrameInput
from odcl.data.notices import about_beyond, about_classes, unusual_notices
from odcl.data.roles import is_dask_frame
from odcl.data.scaling import RowColumns, Scaling, TableMoments
from odcl.data.schema import TableSchema
from odcl.data.unusual import sample_moments, unusual_users
from odcl.engines.in_process import curves_at_first_sight, fit
from odcl.errors import InputError
from odcl.estimators.attributes import (
    FittedAttributes,
    check_n_groups,
    check_settings,
    fitting_method,
)
from odcl.fitted.curves import ColumnValues, curves_of
from odcl.fitted.predict import RowPredictors, about_unknown, predict_rows, rows_beyond
from odcl.fitted.value import Fitted, InputColumns, Newcomers
from odcl.method import Method
from odcl.risk.loss import Loss
from odcl.risk.losses import LOSSES
from odcl.risk.risk import Risk, is_wide
from odcl.server.assign import Assignment
from odcl.server.columns import user_columns

if TYPE_CHECKING:
    from odcl.diagnose import Diagnosis
    from odcl.diagnose.drift import Drift
    from odcl.evaluate import Comparison
    from odcl.runs.dask_frames import DaskFederation


def _row_number(ids: Array, kept: Array, row: int) -> int:
    """The number, from 1, that a federation's row has in the table whose rows were ``kept``."""
    order, places = row_order(group_rows(ids)[1]), kept
    if kept.dtype == np.bool_:
        places = np.flatnonzero(kept)
    return 1 + int(places[row if order is None else order[row]])


def _unusual(fitted: Fitted, rows: Federation, row_number: Callable[[int], int]) -> list[str]:
    """What is odd about some users: their data terms, where they sent any, tell if any is."""
    uploads, columns = fitted.uploads, fitted.columns
    assert uploads is not None
    told = uploads.factor is not None  # Gaussian terms tell nothing of targets; classes need not
    told |= uploads.gaussian_means is not None and columns.classes is not None
    if told and not unusual_users(user_columns(uploads)).users.any():
        return []
    levels = {j for own in (columns.design.factors if columns.design else {}).values() for j in own}
    names = ["" if j in levels else name for j, name in enumerate(fitted.feature_names)]
    goal = "" if columns.classes is not None else columns.target or "the target"
    return unusual_notices(rows, [*names, goal], row_number)


def own_rows(federation: Federation, scaling: Scaling, *, in_place: bool = False) -> Federation:
    """Scaled rows that stay as they are, whatever the caller does with its arrays later.

    ``in_place``: the caller has handed them over, and they are scaled where they are.
    """
    if in_place:
        return replace(federation, X=scaling.apply(federation.X, in_place=True))
    X, weight = scaling.apply(federation.X), federation.weight
    return replace(
        federation,
        X=X.copy() if X is federation.X else X,
        y=federation.y.copy(),
        weight=None if weight is None else weight.copy(),
    )


@dataclass(eq=False, repr=False)  # an __init__ that only stores, written once for both
class ODCLEstimator(FittedAttributes, FrameInput):
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
    curves: Any = "auto"
    periodic: Any = None
    robust: bool = False
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
        often a row counts: 2 is the row twice, 0 is no row. ``X`` may be a Dask frame, with
        ``users`` and ``y`` columns of it, by name; then ``predict`` takes and gives Dask frames.
        """
        if is_dask_frame(X):
            if sample_weight is not None:
                raise InputError("Rows of a Dask frame count once each: leave sample_weight out.")
            from odcl.runs.dask_frames import fit_frame

            return fit_frame(self, X, y, users)
        check_settings(self)
        target = getattr(y, "name", None)
        X, y, users, kept, design = self._checked_rows(X, y, users)
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
        codes, classes = self._encode(y)
        columns = replace(
            self._seen_columns(design),
            target=target if isinstance(target, str) else "",
            classes=classes,
        )
        if classes is not None:
            n = np.bincount(codes.astype(np.intp)).tolist()
            told = dict(zip(classes.tolist(), n, strict=True))
            for text in about_classes(columns.target or "the target", told):
                warnings.warn(text, stacklevel=2)
        federation = Federation.from_arrays(X, codes, ids, weight=sample_weight)
        number = partial(_row_number, ids, kept)
        return self._fit(federation, columns, users is not None, row_number=number)

    def _seen_columns(self, design: Design | None) -> InputColumns:
        """The columns of X as it was given last."""
        names = getattr(self, "feature_names_in_", None)
        known = None if names is None else tuple(names.tolist())
        return InputColumns(self.n_features_in_, known, self.users, design)

    def fit_federation(
        self,
        federation: Federation | DaskFederation,
        *,
        schema: TableSchema | None = None,
        columns: InputColumns | None = None,
        progress: Callable[[int], None] | None = None,
        in_place: bool = False,
    ) -> Self:
        """Fit rows that are grouped by user already; ``progress`` is called with users fitted.

        ``in_place``: the rows are the estimator's from now on, and are scaled where they are.

        Targets of a classifier are its labels, as in ``fit``. With the ``schema`` that the rows
        were encoded by, ``predict`` takes tables as they are, columns in any order; ``columns``
        are those of X where there is none.
        """
        if not isinstance(federation, Federation):
            from odcl.runs.dask_frames import fit_dask_federation

            return fit_dask_federation(self, federation)
        check_settings(self)
        y, classes = self._encode(self._checked_target(federation.y))
        columns = columns or InputColumns(federation.n_features, user=self.users)
        if schema is not None:  # as if a frame with these columns had been fitted
            columns = InputColumns.of_schema(schema, self.users)
        columns = replace(columns, classes=classes)
        return self._fit(federation.with_y(y), columns, True, progress=progress, in_place=in_place)

    def _fit(
        self,
        federation: Federation,
        columns: InputColumns,
        has_users: bool,
        *,
        progress: Callable[[int], None] | None = None,
        in_place: bool = False,
        row_number: Callable[[int], int] | None = None,
    ) -> Self:
        method = fitting_method(self)
        check_n_groups(method, federation.n_users, has_users)
        rows, n_users = federation, federation.n_users
        measured = RowColumns(rows.X, rows.weight)
        scaling, usual = self._units(method, columns, measured, lambda: rows, n_users)
        seen = ColumnValues(measured.low, measured.high, measured.many)
        scaled = federation = own_rows(rows, scaling, in_place=in_place)
        units = scaling, usual, seen
        risk, scaling = self._risk(method, columns, *units, lambda: scaled, len(rows.X), n_users)
        if risk.curves:
            federation = federation.with_X(with_bends(federation.X, risk.curves))
        result = fit(
            federation,
            risk,
            method,
            seed=int(check_random_state(self.random_state).randint(2**31 - 1)),
            solver=self.solver,
            n_jobs=self.n_jobs,
            progress=progress,
        )
        settings = self.get_params(deep=False)
        fitted = result.fitted(federation, scaling, columns, has_users=has_users, settings=settings)
        self._hold(fitted, result)
        if row_number is not None:
            for text in _unusual(fitted, rows, row_number) + fitted.outlier_lines:
                warnings.warn(text, stacklevel=3)
        return self

    @property
    def _method(self) -> Method:
        """The method with the settings beside it."""
        return Method.of(self.method, clusterer=self.clusterer, robust=self.robust or None)

    def _units(
        self,
        method: Method,
        columns: InputColumns,
        measured: RowColumns | TableMoments,
        sample: Callable[[], Federation],
        n_users: int = 2,
    ) -> tuple[Scaling, Scaling]:
        """The scaling of the columns, and the usual units that curves are placed by.

        The rows of a ``sample`` of the users, or of all, tell which units are usual.
        """
        intercept, by_terms = bool(self.fit_intercept), method.clusterer.uses_terms
        scaling = Scaling.of(
            measured,
            center=intercept,
            standardize=method.standardize,
            copies=not by_terms,
            factors=self._factors(method, columns.design),
        )
        if self._is_wide(method, scaling, columns):
            scaling = scaling.by_range(measured) if method.standardize else scaling
            return scaling, scaling
        ours = method.standardize and not self._server_finds_units(method, scaling, n_users)
        if not ours and (self.curves is False or not by_terms):
            return scaling, scaling
        rows = sample()
        usual = scaling.of_usual(sample_moments(rows), rows.n_users, center=intercept)
        return usual if ours else scaling, usual

    def _risk(
        self,
        method: Method,
        columns: InputColumns,
        scaling: Scaling,
        usual: Scaling,
        seen: RowColumns | TableMoments | ColumnValues,
        scaled: Callable[[], Federation],
        n_rows: int,
        n_users: int | None = None,
    ) -> tuple[Risk, Scaling]:
        """What users minimise, and the scaling, with the curves that columns may act in.

        Curves that nobody asked for, and that do not show in ``scaled`` rows of few users, are not
        among them.
        """
        loss = self._loss(columns.classes, scaled)
        risk = Risk(loss, self.l2, bool(self.fit_intercept), scaling.factors)
        given = self.curves, self.periodic, method, risk, scaling, usual
        names = columns.feature_names(scaling.n_features)
        curves = curves_of(*given, names, columns=seen, n_users=n_users)
        if curves and self.curves == "auto" and not self.periodic:
            every = replace(risk, curves=curves)
            curves = curves_at_first_sight(scaled, every, n_rows, robust=method.robust)
        return replace(risk, curves=curves), replace(scaling, curves=curves)

    def _server_finds_units(self, method: Method, scaling: Scaling, n_users: int = 2) -> bool:
        """Are units and origins found at the server, from data terms, whatever the scaling?"""
        loss = self.loss if isinstance(self.loss, Loss) else LOSSES.get(self.loss)
        dim = len(scaling.used) + bool(self.fit_intercept)
        return (
            (loss is not None and loss.has_data_terms)
            and method.clusterer.uses_terms
            and not method.resolved(Risk("squared"), dim, n_users).fallback
        )

    def _is_wide(self, method: Method, scaling: Scaling, columns: InputColumns) -> bool:
        """Have the models more parameters than users can send a matrix for?"""
        loss: Any = "squared"
        if columns.classes is not None:
            loss = self._loss(columns.classes)
        elif getattr(self.loss, "name", self.loss) not in ("squared", "huber"):
            return False
        risk = Risk(loss, self.l2, bool(self.fit_intercept))
        return method.clusterer.uses_terms and is_wide(risk, len(scaling.used))

    def _factors(self, method: Method, design: Design | None) -> dict[str, tuple[int, ...]]:
        """The design columns of each category whose levels are to be treated alike."""
        if design is None or not (method.clusterer.uses_terms and self.fit_intercept):
            return {}
        return design.factors

    def _forget_rows(self) -> None:
        """Work out what later users need, and let the rows of the fit go."""
        known = self.fitted_.newcomers
        newcomers = Newcomers.of(known.groups, known.pooled, known.tails)
        self._hold(replace(self.fitted_, newcomers=newcomers), self.result_)

    # -- predict -----------------------------------------------------------------------------

    def _predictors(self, X: Any, users: Any, *, unsure: bool) -> RowPredictors:
        """Predictors of the rows by their users' models, with ``unsure`` their covariances."""
        rows, users = self._owned_rows(X, users)
        found = predict_rows(self.fitted_, rows, users, unsure=unsure, unknown=self.unknown)
        new = found.where == len(found.fitted.users)
        if new.any() and not isinstance(X, DesignRows):  # whose owner tells
            about = about_unknown(found.fitted, owner_ids(users)[new], len(rows))
            warnings.warn(
                f"{about} and are predicted as average users. In cross-validation, "
                "KFold(shuffle=True) leaves most users rows in the fit; add_user(id, X, y) gives a "
                "new user its own model.",
                stacklevel=3,
            )
        for text in about_beyond(rows_beyond(found.fitted, rows)):
            warnings.warn(f"{text}.", stacklevel=3)
        return found

    # -- users after the fit -----------------------------------------------------------------

    def assign(self, X: Any, y: Any) -> Assignment:
        """Which group a new user with these rows belongs to, and its model.

        ``X`` holds the rows of one user, with or without the users' column. Nothing is kept; see
        :meth:`add_user`.
        """
        return self._assign(X, y)

    def _assign(self, X: Any, y: Any, user: Any = None) -> Assignment:
        from odcl.fitted.users import place_user

        found = place_user(self.fitted_, *self._rows_of_one(X, y, user))
        coef, intercept = self.fitted_.in_table_units(found.theta[None])
        return replace(found, coef=coef[0], intercept=intercept[0])

    def add_user(self, user: Any, X: Any, y: Any) -> Assignment:
        """Assign a new user and remember it: ``predict`` knows it from now on.

        A user that fits no group keeps its own local model and has label -1. The other users'
        models, the groups and ``result_`` stay as they were.
        """
        found = self._assign(X, y, user)
        self._add_assigned([user], [found])
        return found

    def _add_assigned(self, users: Any, found: Sequence[Assignment]) -> None:
        """Remember new users where they were assigned."""
        from odcl.fitted.users import add_users

        with self._adding:  # one thread at a time reads, changes and writes
            self._hold(add_users(self.fitted_, users, found), vars(self).get("result_"))

    def update_user(
        self, user: Any, X: Any, y: Any, *, all_rows: bool = False, again: bool = False
    ) -> int:
        """More rows of a user that is known: its group and its model follow. Its new label.

        The rows come on top of those it had, which its upload stands for: for the squared loss the
        answer is that of a fit of all its rows, elsewhere it is second order. With ``all_rows`` the
        rows are everything the user has. Other users and the groups' models stay as they were.
        Rows that the user was given before, or has from the fit and no others since, would count
        twice and are refused unless ``again``; only a table as a whole is known again.
        Of a fit in pieces only users that were added later can be updated.
        """
        self._update_users([(user, X, y)], all_rows=all_rows, again=again)
        at = positions(self.users_, owner_ids([user]))[0]
        return int(self.labels_[at])

    def _update_users(
        self, given: Iterable[tuple[Any, Any, Any]], *, all_rows: bool, again: bool
    ) -> None:
        """More rows of several users, (user, X, y): their columns are copied once."""
        from odcl.fitted.users import update_users

        rows = [(user, *self._rows_of_one(X, y, user)) for user, X, y in given]
        with self._adding:
            fitted = update_users(self.fitted_, rows, all_rows=all_rows, again=again)
            self._hold(fitted, vars(self).get("result_"))

    def drift(self, X: Any, y: Any, users: Any = None) -> Drift:
        """Do the models still hold on new rows? A :class:`~odcl.diagnose.drift.Drift`."""
        from odcl.diagnose.drift import drift_of

        X, users = self._owned_rows(X, users)
        y = self.risk_.loss.encode(self._encode_known(self._checked_target(column_or_1d(y))))
        check_consistent_length(X, y)
        ids = np.zeros(len(X), np.intp) if users is None else check_owners(users, len(X))
        return drift_of(self.fitted_, Federation.from_arrays(X, y, ids))

    def diagnose(
        self, *, comparison: Comparison | None = None, resamples: int = 20, seed: int = 0
    ) -> Diagnosis:
        """Is one shot enough for these users? See :func:`odcl.diagnose.diagnose`.

        Of a table in pieces the model holds 2,000 users, drawn by their ids, who are diagnosed.
        ``comparison``, from :func:`odcl.compare`, decides where the uploads cannot.
        """
        from odcl.diagnose import diagnose_fitted

        return diagnose_fitted(self.fitted_, comparison=comparison, resamples=resamples, seed=seed)

    # -- files -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the fitted model to a folder: safetensors and JSON, no pickle, whole or not at all.

        ``force`` replaces a model that is there already, and nothing else.
        """
        from odcl.fitted.persist import save_fitted

        save_fitted(self._to_save(), path, force=force)

    def _to_save(self) -> Fitted:
        """The fit with the settings as they are by now."""
        return replace(self.fitted_, settings=self.get_params(deep=False))

    def report(
        self,
        path: str | os.PathLike[str],
        *,
        comparison: Comparison | None = None,
        anonymous: bool = False,
        force: bool = False,
    ) -> None:
        """Write the page of this fit, one file for a browser: groups, users, what speaks for them.

        ``comparison``, the answer of :func:`odcl.compare`, adds what it is worth on held-out rows;
        ``anonymous`` gives users numbers in place of their names; ``force`` replaces a file that
        is there already.
        """
        from odcl.runs.evidence import Evidence
        from odcl.runs.page import fit_page_of, write_page

        fitted = self._to_save()
        found = Evidence.of(fitted, comparison)
        write_page(path, fit_page_of(fitted, found, anonymous=anonymous), force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what ``save`` or ``odcl fit`` wrote; predictions are the same bit for bit.

        The loaded model predicts, assigns, adds and updates users, and is diagnosed. ``result_`` is
        not in the file, and settings that were objects (a clusterer, a solver, a RandomState) come
        back as text: set them again with ``set_params`` before a new ``fit``. A model of
        ``odcl fit`` takes tables with the columns that the command took, in any order.
        """
        from odcl.estimators.public import load_estimator

        model = load_estimator(path)
        if not isinstance(model, cls):
            name = type(model).__name__
            raise ValueError(f"{path} holds an {name!r}: load it with that class.")
        return model
