"""ODCLRegressor and ODCLClassifier; what they share is in ``base``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite

from odcl._typing import Array, Floats
from odcl.artifact.arrays import expect
from odcl.artifact.folder import open_artifact
from odcl.data.federation import Federation, check_size
from odcl.data.roles import is_dask_frame
from odcl.errors import show
from odcl.estimators.attributes import check_settings
from odcl.estimators.base import ODCLEstimator
from odcl.fitted.persist import KIND, MODEL, read_fitted
from odcl.fitted.value import Fitted
from odcl.local.predict import residual_scale
from odcl.risk.loss import Loss
from odcl.risk.losses import Huber, Logistic, Multinomial, as_loss


@dataclass(eq=False, repr=False)
class ODCLRegressor(RegressorMixin, ODCLEstimator):  # type: ignore[misc]
    """The right regression for every user, from one round (Algorithm 1 and what we add to it).

    Parameters
    ----------
    loss : "squared", "huber" or "poisson", or a Loss. "huber" turns linear at 1.345 times the
        scale of the residuals; Huber(delta) at delta, in the target's own units.
    l2 : weight of the squared norm in each user's own risk, in standardised units. With
        clusterer="auto" users are drawn to their group as far as the data say, not to zero by l2.
    fit_intercept : give every model an intercept, which l2 leaves alone.
    method : "default", "paper" (K-means++, plain means, no standardisation), or a Method, which
        says how groups are found, how small they may be and what users send.
    clusterer : "auto" (that of the method: groups, and how users still differ inside them, from
        what their rows say), a number of such groups, "auto:1" (the mixed model without groups); or
        a clusterer of the users' models, whose users take their group's model: "kmeans:4",
        "elbow", "silhouette", "convex", or any of scikit-learn's.
    unknown : what predict does for a user it has not seen: "pooled" predicts it as an average user
        (the mean of the groups' models by their shares; of other methods than "auto" one model for
        all rows) and warns, "error" refuses.
    unseen : what predict does with a level of a category that it has not seen: "error", or
        "reference" (it counts as the most frequent one).
    users : name (or position) of the column of X that names the user. With it every scikit-learn
        tool works. Cross-validate in shuffled folds, KFold(shuffle=True), to score users with rows
        in the fit; folds of a table sorted by user score users the fit has not seen.
    missing : rows that lack a value: "error", "drop" (a fit leaves them out) or "mean" (the mean of
        the fit, or its most frequent level, is filled in, by predict too).
    categorical : names (or positions) of the columns of X that hold categories, such as codes. A
        frame's columns of text or of type category are taken anyhow, unless nearly every row has
        its own text: that is left out, and so are integers that count the rows (as floats they
        stay); a warning lists them. Each level but the most frequent has a coefficient.
    robust : True: a few users cannot bend the models of the others. Users who fit no group, whose
        columns are in another unit or hold a code for missing values take no part in others'
        models, and ``outliers_`` names them with the reason.
    solver : "exact", "sgd", ProjectedSGD(...), or a linear scikit-learn estimator.
    random_state, n_jobs : as everywhere in scikit-learn; a fit is the same each time by default.

    Attributes
    ----------
    users_ : (n_users,), ids; ``labels_`` their groups, -1 for an added user that fits none.
    coef_, intercept_, group_coef_, group_intercept_ : the model of each user and of each group, in
        the table's own units; ``coefficients()`` shows them under ``feature_names_``.
    n_clusters_, rule_, reason_ : how many groups, and who decided why.
    outliers_ : with ``robust``, users who take no part in others' models, each with its reason.
    differences_, covariance_, noise_ : of "auto": how far users of a group differ, by
        coefficient, and how surely each model is known, in standardised units.
    n_features_in_ : columns of X, the users' column among them.
    result_ : Result of the round, in standardised units without constant columns.
    """

    def predict(
        self, X: Any, users: Any = None, *, return_std: bool = False
    ) -> Floats | tuple[Floats, Floats]:
        """Expected target of each row by its user's model, (n_rows,).

        With ``return_std`` also the standard deviation of a new target there, of mixed groups.
        """
        if is_dask_frame(X):
            from odcl.runs.dask_frames import predict_frame

            return predict_frame(self, X)
        curved = not self.risk_.loss.has_data_terms  # its mean depends on how sure the model is
        found = self._predictors(X, users, unsure=curved or return_std)
        return (found.means, found.std()) if return_std else found.means

    def predict_interval(
        self, X: Any, coverage: float = 0.9, users: Any = None
    ) -> tuple[Floats, Floats]:
        """(low, high) between which a new target of each row lies with probability ``coverage``.

        For counts both ends are counts that may occur. Counts that scatter 1.5 times as much as
        Poisson's, or more, are negative binomial; those between the two fall outside more often.
        """
        if not (isinstance(coverage, Real) and 0 < coverage < 1):
            raise ValueError(
                f"coverage={show(coverage)} is a probability, above 0 and below 1; owners of rows "
                "are named as users=..."
            )
        return self._predictors(X, users, unsure=True).interval(coverage)

    def score(self, X: Any, y: Any, sample_weight: Any = None, users: Any = None) -> float:
        """R^2 of the predictions."""
        from sklearn.metrics import r2_score

        return float(r2_score(y, self.predict(X, users=users), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = getattr(self.loss, "name", self.loss) == "poisson"
        return tags

    def _checked_target(self, y: Array) -> Floats:
        try:
            y = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        except ValueError as error:
            if "contains NaN" in str(error):
                row = int(np.isnan(np.asarray(y, np.float64)).argmax()) + 1
                raise ValueError(
                    f"Input y contains NaN in row {row}: leave such rows out, or fit with "
                    "missing='drop'."
                ) from None
            if "could not convert string" not in str(error):
                raise
            raise ValueError(
                f"The target holds text ({error}), and a regressor needs numbers: use "
                "ODCLClassifier for classes."
            ) from None
        check_size(y)
        return y

    def _encode(self, y: Array) -> tuple[Floats, Array | None]:
        return y, None

    def _encode_known(self, y: Array) -> Floats:
        return y

    def _loss(self, classes: Array | None, rows: Callable[[], Federation] | None = None) -> Loss:
        """The loss; scaled ``rows`` tell Huber's unit."""
        loss = as_loss(self.loss, np.arange(2))
        if loss.classification:
            raise ValueError(f"loss={loss.name!r} is for classes: use ODCLClassifier.")
        if rows is not None and isinstance(self.loss, str) and self.loss == "huber":
            return Huber(1.345 * residual_scale(rows(), bool(self.fit_intercept)))
        return loss


@dataclass(eq=False, repr=False)
class ODCLClassifier(ClassifierMixin, ODCLEstimator):  # type: ignore[misc]
    """The right classifier for every user, from one round.

    ``loss="logistic"`` serves two classes, and turns to the multinomial for more. Parameters and
    attributes as in :class:`ODCLRegressor`, and ``classes_``; ``l2`` is 0.01 by default, because
    users with few rows are separable and have no finite model without it.
    """

    loss: str | Loss = "logistic"
    _: KW_ONLY
    l2: float = 1e-2

    __metadata_request__predict_proba: ClassVar = {"users": True}
    __metadata_request__decision_function: ClassVar = {"users": True}

    def decision_function(self, X: Any, users: Any = None) -> Floats:
        """Log-odds (two classes: (n_rows,)), or one score per class, (n_rows, n_classes)."""
        return self._predictors(X, users, unsure=False).scores

    def predict_proba(self, X: Any, users: Any = None) -> Floats:
        """Probability of each class, (n_rows, n_classes)."""
        return self._predictors(X, users, unsure=True).probabilities

    def predict(self, X: Any, users: Any = None) -> Array:
        """Most probable class of each row, (n_rows,)."""
        if is_dask_frame(X):
            from odcl.runs.dask_frames import predict_frame

            return predict_frame(self, X)
        return self._predictors(X, users, unsure=True).targets()

    def score(self, X: Any, y: Any, sample_weight: Any = None, users: Any = None) -> float:
        """Accuracy of the predictions."""
        from sklearn.metrics import accuracy_score

        return float(accuracy_score(y, self.predict(X, users=users), sample_weight=sample_weight))

    def _checked_target(self, y: Array) -> Array:
        assert_all_finite(y, input_name="y")
        if y.dtype == object and any(label is None for label in y.tolist()):
            raise ValueError(
                "Input y contains None in row "
                f"{y.tolist().index(None) + 1}, which is no class: drop or fill such rows first."
            )
        check_classification_targets(y)
        return y

    @property
    def classes_(self) -> Array:
        """Labels, in the order of the columns of ``predict_proba``."""
        classes = self.fitted_.columns.classes
        assert classes is not None
        return classes

    def _encode(self, y: Array) -> tuple[Floats, Array | None]:
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(
                "A classifier needs at least two classes, and the target holds only one class: "
                f"{classes.tolist()[0]!r}."
            )
        return codes.reshape(-1).astype(np.float64), classes

    def _encode_known(self, y: Array) -> Floats:
        place = {label: i for i, label in enumerate(self.classes_.tolist())}
        codes = [place.get(label, -1) for label in y.tolist()]
        if -1 in codes:
            raise ValueError(
                f"Label {y.tolist()[codes.index(-1)]!r} is not one of the classes of the fit: "
                f"{', '.join(map(repr, place))}."
            )
        return np.array(codes, dtype=np.float64)

    def _loss(self, classes: Array | None, rows: Callable[[], Federation] | None = None) -> Loss:
        n_classes = 0 if classes is None else len(classes)
        if isinstance(self.loss, str) and self.loss in ("logistic", "multinomial"):
            binary = self.loss == "logistic" and n_classes == 2
            return Logistic() if binary else Multinomial(n_classes)
        loss = as_loss(self.loss)
        if not loss.classification:
            raise ValueError(f"loss={loss.name!r} is not for classes: use ODCLRegressor.")
        given = getattr(loss, "n_classes", 2)
        if n_classes != given:
            raise ValueError(
                f"The {loss.name} loss given is for {given} classes, and the target holds "
                f"{n_classes}: say loss='multinomial', which counts them."
            )
        return loss


def estimator_with(fitted: Fitted) -> ODCLRegressor | ODCLClassifier:
    """The estimator that shows a fit, with the settings that come with it."""
    kind = ODCLRegressor if fitted.columns.classes is None else ODCLClassifier
    known = set(kind().get_params(deep=False))
    expect({*fitted.settings} <= known, f"the settings are not those of {kind.__name__}")
    check_settings(kind(**{**fitted.settings, "clusterer": "auto"}))  # which may be text by now
    model = kind(**fitted.settings)
    same = (fitted.risk.l2, fitted.risk.intercept) == (model.l2, bool(model.fit_intercept))
    expect(same, "its l2 or intercept is not that of its settings")
    return model._hold(fitted)


def load_estimator(path: str | os.PathLike[str]) -> ODCLRegressor | ODCLClassifier:
    """The estimator of a folder, of the class that was written."""
    with open_artifact(path, kind=KIND) as stored:
        fitted = read_fitted(stored)
        with stored.checking(MODEL):
            return estimator_with(fitted)
