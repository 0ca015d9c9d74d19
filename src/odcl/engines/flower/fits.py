"""A node's rows and users, and what it computes: uploads, and models from the downloads.

:class:`Fit` serves odcl's own risks, :class:`EstimatorFit` linear estimators of scikit-learn,
:class:`~odcl.engines.flower.networks.ModuleFit` networks. Another model is another
subclass of :class:`Fit`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.curves import bent_rows
from odcl.data.federation import Federation, as_ids, positions
from odcl.engines.files.envelope import Refused
from odcl.engines.flower.request import Request, expect_bare
from odcl.engines.wire import Agreed
from odcl.exchange.message import Downloads
from odcl.exchange.upload import Uploads
from odcl.local.predict import linear_predictors
from odcl.local.receive import Received
from odcl.local.solvers import fit_with_estimator
from odcl.local.terms import n_classes
from odcl.risk.losses import Multinomial
from odcl.risk.risk import Curve, Risk
from odcl.server.assign import Placed, last_step

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator

NAMES = ("user", "site", "partition-id")  # of node_config, in this order


@dataclass(frozen=True, eq=False)
class NodeData:
    """A node's rows, and rows held out of them where it has some. One node may hold many users."""

    train: Federation
    test: Federation | None = None

    def bent(self, curves: Sequence[Curve]) -> NodeData:
        """The rows with the bends of these curves."""
        test = None if self.test is None else bent_rows(self.test, curves)
        return NodeData(bent_rows(self.train, curves), test)

    @classmethod
    def of(cls, loaded: Any, node_config: Mapping[str, Any]) -> NodeData:
        """What ``load`` gave: a Federation, (X, y), (X, y, X_test, y_test), or such by user."""
        if isinstance(loaded, NodeData):
            return loaded
        if isinstance(loaded, Federation):
            return cls(loaded)
        if isinstance(loaded, Mapping):
            return cls._of_users(loaded)
        if isinstance(loaded, tuple) and len(loaded) in (2, 4):
            return cls._of_users({own_name(node_config): loaded})
        raise Refused(
            f"load(context) gave {type(loaded).__name__}: it gives (X, y), (X, y, X_test, y_test), "
            "{user: (X, y)}, a Federation, or NodeData(train, test)."
        )

    @classmethod
    def _of_users(cls, rows: Mapping[Any, Any]) -> NodeData:
        if not rows or not all(isinstance(r, tuple) and len(r) in (2, 4) for r in rows.values()):
            raise Refused(
                "load(context) gave rows of users that are neither (X, y) nor (X, y, X_test, "
                "y_test), or of no user at all."
            )
        train = _stacked({user: r[:2] for user, r in rows.items()})
        held = {user: r[2:] for user, r in rows.items() if len(r) == 4 and len(r[3])}
        return cls(train, _stacked(held) if held else None)


def own_name(node_config: Mapping[str, Any]) -> Any:
    """The id of a node's only user."""
    for name in NAMES:
        if name in node_config:
            return node_config[name]
    raise Refused(
        "Nothing says who the user of this node is: give rows by user, {user: (X, y)}, or start "
        "the node with --node-config 'user=\"north\"'."
    )


def _stacked(rows: Mapping[Any, tuple[Any, Any]]) -> Federation:
    """Rows of users as one federation."""
    parts = [(np.asarray(X, dtype=np.float64), np.asarray(y)) for X, y in rows.values()]
    for X, y in parts:
        if X.ndim != 2 or len(X) != len(y) or len(y) == 0:
            raise Refused(
                f"A user has features of shape {X.shape} and targets of shape {y.shape}: "
                "they are a matrix and as many targets as it has rows, at least one."
            )
    owner = np.empty(sum(len(y) for _, y in parts), dtype=object)
    owner[:] = [user for user, (_, y) in zip(rows, parts, strict=True) for _ in range(len(y))]
    X, y = np.vstack([X for X, _ in parts]), np.concatenate([y for _, y in parts])
    return Federation.from_arrays(X, y, owner)


@dataclass(frozen=True, eq=False)
class NodeModels:
    """The models of a node's users, after their last step."""

    request: Request
    users: Array  # (n_users,), ids
    models: Floats  # (n_users, dim)
    labels: Ints  # (n_users,), groups; -1: none of them
    probability: Floats  # (n_users,), how surely they belong there
    reason: str  # how the groups came about
    received: Received  # with how sure each model is, where the method tells
    uploads: Uploads  # what the users sent; of those who sent nothing, what they would have
    late: Bools  # (n_users,), who came after the round

    def model(self, user: Any) -> Floats:
        """The model of one user, (dim,): its coefficients, bends, and the intercept last."""
        at = int(positions(self.users, np.array([user]))[0])
        if at < 0:
            raise ValueError(f"User {user!r} is not one of this node.")
        return self.models[at]


# -- users of several nodes ------------------------------------------------------------------------


def within_nodes(named: Mapping[int, Array]) -> dict[int, Array]:
    """Users by node as the server calls them: (node, id) where several nodes use an id.

    Wards W0 of two nodes are two users. An id that is a tuple always gets its node, so that no node
    can name another's user.
    """
    used = Counter(user for users in named.values() for user in users.tolist())
    return {
        node: as_ids(
            [(node, u) if used[u] > 1 or isinstance(u, tuple) else u for u in users.tolist()]
        )
        for node, users in named.items()
    }


def own_ids(users: Array) -> Array:
    """Ids as the users' own node sent them: :func:`within_nodes` backwards."""
    return as_ids([user[1] if isinstance(user, tuple) else user for user in users.tolist()])


def same_tables(tables: Mapping[int, Any]) -> dict[int, str]:
    """Nodes whose tables, told apart by a digest, are the same: why each is set aside."""
    nodes_of: dict[Any, list[int]] = {}
    for node, table in tables.items():
        nodes_of.setdefault(table, []).append(node)
    found = {}
    for node, table in tables.items():
        if others := [f"node {other}" for other in nodes_of[table] if other != node]:
            found[node] = (
                f"it sends the same numbers as {' and '.join(others)}: one table on two nodes "
                "would count twice. Give each its own, and run it again"
            )
    return found


# -- fits ------------------------------------------------------------------------------------------


class Fit:
    """What users fit on their own rows: odcl's own, exact minimisers of the risk.

    A subclass may send other models; :meth:`last_step` and :meth:`loss` serve all that the agreed
    risk describes.
    """

    def uploads(self, rows: Federation, agreed: Agreed, *, seed: int) -> Uploads:
        """Step 1 of Algorithm 1: what each user sends."""
        return agreed.fit(rows).uploads

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
    """Refuse what cannot be an estimator; whether it has ``coef_`` shows at the first fit."""
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
