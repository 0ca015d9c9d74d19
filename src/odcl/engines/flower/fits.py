"""What a node computes: its users' uploads, and their models from the downloads.

:class:`RiskFit` serves odcl's own risks, :class:`EstimatorFit` linear estimators of scikit-learn,
:class:`~odcl.engines.flower.networks.ModuleFit` networks. Another model is another
subclass of :class:`Fit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Bools, Floats
from odcl.data.federation import Federation, positions
from odcl.engines.flower.node import NodeModels
from odcl.engines.flower.request import expect_bare
from odcl.engines.wire import Agreed
from odcl.exchange.download import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.predict import linear_predictors
from odcl.local.solvers import check_linear, fit_with_estimator
from odcl.local.terms import n_classes
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Risk
from odcl.server.last_step import Placed, last_step

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


class Fit(ABC):
    """A model that users fit on their own rows.

    A subclass says what users send, :meth:`uploads`; :meth:`last_step` and :meth:`loss` serve all
    models that the agreed risk describes.
    """

    @abstractmethod
    def uploads(self, rows: Federation, agreed: Agreed, *, seed: int) -> Uploads:
        """Step 1 of Algorithm 1: what each user sends."""

    def last_step(
        self,
        rows: Federation,
        agreed: Agreed,
        uploads: Uploads,
        downloads: Downloads,
        *,
        late: Bools,
    ) -> Placed:
        """Each user's model, from its own rows, upload and download.

        ``late`` (n_users,): users who came after the round, and were placed in its groups.
        """
        if downloads.mixture is None:
            return last_step(rows, agreed.risk, agreed.method, uploads, downloads)
        about = (rows, agreed.risk, agreed.method, uploads, downloads.take(~late))
        return last_step(*about, members=~late)

    def loss(self, test: Federation, train: Federation, agreed: Agreed, theta: Floats) -> float:
        """Mean loss of rows held out, each by its user's model of ``theta`` (n_users, dim).

        Users are numbered as in ``train``; NaN where there is nothing to score.
        """
        owner = positions(train.users, test.users)[test.row_user]
        known = owner >= 0
        if not known.any():
            return float("nan")
        risk = agreed.risk
        z = linear_predictors(test.X[known], theta, owner[known], risk)
        return float(risk.loss.value(z, risk.loss.encode(test.y)[known]).mean())


class RiskFit(Fit):
    """odcl's own: exact minimisers of the risk, and the last step of the method."""

    def uploads(self, rows: Federation, agreed: Agreed, *, seed: int) -> Uploads:
        return agreed.fit(rows).uploads


# -- linear estimators of scikit-learn -------------------------------------------------------------


class EstimatorFit(Fit):
    """A scikit-learn estimator with ``coef_`` and ``intercept_``, such as Ridge or LinearSVC.

    Each user fits a clone on its own rows and sends a bare model. The server's risk says how models
    are laid out (squared: one number per row; logistic: two classes, 0 and 1; ``Multinomial(K)``:
    classes 0..K-1) and what the losses that nodes report mean; what is minimised is the estimator's
    business. One that draws without a ``random_state`` of its own gets each user's stream. A class
    in place of an estimator, or one that has no ``coef_`` after a fit, is refused. A user whose
    rows it cannot fit (one class only) sends odcl's own fit of the risk, with a small prior.
    """

    def __init__(self, estimator: BaseEstimator) -> None:
        check_estimator(estimator)
        self.estimator = estimator

    def uploads(self, rows: Federation, agreed: Agreed, *, seed: int) -> Uploads:
        """Bare models: coefficients, intercept and the number of rows."""
        expect_bare(agreed.method, type(self.estimator).__name__)
        solved = fit_with_estimator(self.estimator, rows, agreed.risk, seed=seed)
        return Uploads(rows.users, rows.n_samples, solved.theta, risk=agreed.risk)

    def fitted(self, found: NodeModels, user: Any, classes: Any = None) -> Any:
        """The estimator of one user: a fitted clone with the model that the user ended up with.

        ``classes`` are the labels it predicts, in their order; 0, 1, ... unless given.
        """
        return with_model(self.estimator, found.request.risk, found.model(user), classes)


def check_estimator(estimator: BaseEstimator) -> None:
    """Refuse what has no linear model to send, before a round is begun.

    Whether an estimator has ``coef_`` shows after a fit only: a clone is fitted on a few made-up
    rows. One that does not take these is left to the users' own rows.
    """
    import warnings

    from sklearn.base import clone, is_classifier

    if isinstance(estimator, type):
        name = estimator.__name__
        raise ValueError(
            f"{name} is a class, and users fit clones of an estimator with its settings: say "
            f"EstimatorFit({name}(...))."
        )
    if not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        raise ValueError(
            f"{type(estimator).__name__} is no estimator of scikit-learn (it has no fit or no "
            "get_params): use one with coef_ and intercept_, such as Ridge."
        )
    model = clone(estimator)
    if model.get_params().get("random_state", 0) is None:  # leaves the process's stream alone
        model.set_params(random_state=0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(*_made_up(2, np.arange(2) if is_classifier(model) else None))
    except Exception:
        return
    check_linear(model)


def with_model(estimator: BaseEstimator, risk: Risk, theta: Floats, classes: Any = None) -> Any:
    """A fitted clone of ``estimator`` whose ``coef_`` and ``intercept_`` are this model's.

    The clone is first fitted on a few made-up rows, so that it has all else that it needs.
    """
    from sklearn.base import clone

    table = theta.reshape(-1, risk.n_outputs)
    if isinstance(risk.loss, Multinomial):  # from the basis that its classes share
        table = table @ risk.loss.basis.T
    coef = (table[:-1] if risk.intercept else table).T  # (n_outputs, n_features)
    intercept = table[-1] if risk.intercept else np.zeros(len(coef))
    known = np.arange(n_classes(risk)) if classes is None else np.asarray(classes)
    if risk.loss.classification and len(known) != n_classes(risk):
        raise ValueError(f"{len(known)} classes are given, and the model has {n_classes(risk)}.")
    rows = _made_up(coef.shape[1], known if risk.loss.classification else None)
    model = clone(estimator).fit(*rows)
    shape = np.shape(model.coef_)
    if len(shape) == 2 and shape[0] == 1 and len(coef) == 2:  # two classes: their difference
        coef, intercept = coef[1:] - coef[:1], intercept[1:] - intercept[:1]
    model.coef_ = coef.reshape(shape)
    one = np.ndim(getattr(model, "intercept_", 0.0)) == 0
    model.intercept_ = float(intercept[0]) if one else intercept
    return model


def _made_up(n_features: int, classes: Array | None) -> tuple[Floats, Array]:
    """A few rows that any estimator can be fitted on: ten per class, or numbers from 0 on."""
    n = 10 * max(2, 0 if classes is None else len(classes))
    X = np.random.default_rng(0).standard_normal((n, n_features))
    y: Array = np.abs(X.sum(axis=1))  # counts are not negative
    return X, y if classes is None else classes[np.arange(n) % len(classes)]
