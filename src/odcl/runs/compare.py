"""What a fit is worth: the rivals that matter, each fitted on the same rows, scored on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from odcl._typing import Bools, Floats
from odcl.data.design import Design
from odcl.data.federation import Federation, check_owners, hold_out
from odcl.data.frames import is_dask_frame
from odcl.data.schema import TableSchema
from odcl.estimators.base import ODCLEstimator
from odcl.evaluate.rivals import own_intercepts, own_models
from odcl.evaluate.scores import Comparison, keep_every_class
from odcl.evaluate.scores import compare as score
from odcl.local.predict import predicted_rows
from odcl.method import Method


def compare(
    estimator: ODCLEstimator,
    X: Any,
    y: Any,
    users: Any = None,
    *,
    holdout: float = 0.2,
    seed: int = 0,
) -> Comparison:
    """Hold a share of each user's rows out and score an estimator's settings beside its rivals.

    Rivals: one model per user (ridge), one for all, one with an intercept per user, the mixed
    model without groups, the paper's setting and odcl's default. ``print`` the answer for the table
    and a sentence on who gained; ``.scores`` has a number per method and user. ``estimator`` is not
    changed, and need not be fitted.
    """
    if not 0 < holdout < 1:
        raise ValueError(f"holdout={holdout!r} is a share of each user's rows: above 0, below 1.")
    if is_dask_frame(X):
        raise TypeError(
            "A comparison fits each rival in memory, and a Dask frame may not fit there: give a "
            "frame of some users, such as X[X.store.isin(ids)].compute(), or `odcl fit TABLE "
            "--engine dask`, which compares on users drawn by their ids."
        )
    one = clone(estimator)
    rows, y, ids, _, design = one._checked_rows(X, y, users)
    if ids is None:
        raise ValueError("A comparison is of users: say whose rows these are, with users=...")
    federation = Federation.from_arrays(rows, one._encode(y)[0], check_owners(ids, len(rows)))
    found = compare_users(estimator, federation, holdout, seed, design=design)
    if found is None:
        raise ValueError(f"There is {NO_ROW_OUT}.")
    return found


COMPARED = 2_000  # users at most that methods are compared on
NO_ROW_OUT = "no comparison: no row can be held out, as each user and each class keeps one"


def compare_users(
    estimator: ODCLEstimator,
    federation: Federation,
    holdout: float,
    seed: int,
    *,
    time: Floats | None = None,
    **more: Any,
) -> Comparison | None:
    """The comparison of rows grouped by user; of many users, on some drawn by their ids.

    None where no row can be held out. ``time`` (n_rows,): a user's last rows are. Others:
    :func:`compare_federation`.
    """
    few, total = federation.some_users(COMPARED), federation.n_users
    if len(few) == total:
        out = hold_out(federation, holdout, seed, time=time)
        return compare_federation(estimator, federation, out, **more)
    time = None if time is None else time[federation.rows_of(few)]
    some = federation.take(few)
    found = compare_federation(estimator, some, hold_out(some, holdout, seed, time=time), **more)
    if found is None:
        return None
    held = found.held
    if held is not None:
        held = replace(held, users=few[held.users], owner=few[held.owner])
    return replace(found, held=held, of_users=total)


def compare_federation(
    estimator: ODCLEstimator,
    federation: Federation,
    out: Bools,
    *,
    schema: TableSchema | None = None,
    design: Design | None = None,
    progress: Callable[[int], None] | None = None,
) -> Comparison | None:
    """The same of rows grouped by user, classes coded from 0 on, with the rows to hold out."""
    if hasattr(estimator, "predict_proba"):
        out = keep_every_class(out, federation)
    if not out.any():
        return None
    kept = federation.select_rows(~out)

    def fitted(method: Method, progress: Callable[[int], None] | None = None) -> Any:
        model = clone(estimator).set_params(method=method, clusterer="auto")
        return model.fit_federation(kept, schema=schema, design=design, progress=progress)

    asked = Method.of(estimator.method, clusterer=estimator.clusterer)
    papers = asked == Method.of("paper", clusterer=asked.clusterer)
    ours = "odcl" if asked == Method() else "paper" if papers else "asked"
    settings = {"odcl": Method(), "paper": Method.paper(), ours: asked}
    models = {name: fitted(method, progress) for name, method in settings.items()}
    plain = models["odcl"]
    alike = plain if plain.n_clusters_ == 1 else fitted(Method("auto:1"))
    l2, theta = own_models(kept.with_X(plain.scaling_.apply(kept.X)), plain.risk_)
    methods = {"local": _by(plain, theta), "pooled": _by(plain, plain.pooled_theta_[None])}
    own = own_intercepts(kept, plain.risk_.loss.name) if plain.fit_intercept else None
    if own is not None:
        methods["intercepts"] = own
    methods["mixed"] = _by(alike, alike.theta_)
    last = [name for name in ("paper", "asked", "odcl") if name in models]
    methods |= {name: _by(models[name], models[name].theta_) for name in last}
    return replace(score(federation, out, methods, plain.risk_.loss), ours=ours, l2=l2)


def _by(model: ODCLEstimator, theta: Floats) -> Callable[[Any, Any], Any]:
    """Predictions of a model whose users have these parameters; one row serves everybody."""

    def predict(rows: Any, who: Any) -> Any:
        at = who if len(theta) > 1 else np.zeros(len(rows), dtype=np.intp)
        V = model.covariance_ if theta is model.theta_ else None
        return predicted_rows(rows, theta, at, model.risk_, model.scaling_, V)

    return predict
