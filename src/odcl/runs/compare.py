"""What a fit is worth: the rivals that matter, each fitted on the same rows, scored on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import clone

from odcl._typing import Floats
from odcl.data.federation import Federation, check_owners, hold_out
from odcl.data.roles import is_dask_frame
from odcl.data.schema import TableSchema
from odcl.estimators.base import ODCLEstimator
from odcl.evaluate.scores import Comparison, keep_every_class, own_intercepts, own_models
from odcl.evaluate.scores import compare as score
from odcl.fitted.value import InputColumns
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
    model without groups, the paper's setting, odcl's default and, where that has curves, the same
    on lines; the first three are on lines. ``print`` the answer for the table and a sentence on who
    gained; ``.scores`` has a number per method and user. ``estimator`` is not changed, and need not
    be fitted.
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
    found = compare_users(estimator, federation, holdout, seed, columns=one._seen_columns(design))
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
    schema: TableSchema | None = None,
    columns: InputColumns | None = None,
    progress: Callable[[int], None] | None = None,
) -> Comparison | None:
    """The comparison of rows grouped by user; of many users, on some drawn by their ids.

    Classes are coded from 0 on. None where no row can be held out. ``time`` (n_rows,): a user's
    last rows are.
    """
    few, total = federation.some_users(COMPARED), federation.n_users
    if len(few) < total:
        time = None if time is None else time[federation.rows_of(few)]
        federation = federation.take(few)
    out = hold_out(federation, holdout, seed, time=time)
    if hasattr(estimator, "predict_proba"):
        out = keep_every_class(out, federation)
    if not out.any():
        return None
    kept = federation.select_rows(~out)

    def fitted(
        method: Method, progress: Callable[[int], None] | None = None, *, curves: bool = True
    ) -> Any:
        model = clone(estimator).set_params(method=method, clusterer="auto")
        if not (curves and method.clusterer.uses_terms):
            model.set_params(curves=False, periodic=None)
        return model.fit_federation(kept, schema=schema, columns=columns, progress=progress)

    asked = estimator._method
    papers = asked == Method.of("paper", clusterer=asked.clusterer)
    ours = "odcl" if asked == Method() else "paper" if papers else "asked"
    settings = {"odcl": Method(), "paper": Method.paper(), ours: asked}
    models = {name: fitted(method, progress) for name, method in settings.items()}
    plain = models["odcl"]
    alike = plain if plain.n_clusters_ == 1 else fitted(Method("auto:1"))
    lines = fitted(Method(), curves=False) if plain.risk_.curves else plain
    l2, theta = own_models(kept.with_X(lines.scaling_.apply(kept.X)), lines.risk_)
    methods = {"local": _by(lines, theta), "pooled": _by(lines, lines.pooled_theta_[None])}
    own = own_intercepts(kept, plain.risk_.loss.name) if plain.fit_intercept else None
    if own is not None:
        methods["intercepts"] = own
    methods["mixed"] = _by(alike, alike.theta_)
    if lines is not plain:
        models["lines"] = lines
    last = [name for name in ("paper", "lines", "asked", "odcl") if name in models]
    methods |= {name: _by(models[name], models[name].theta_) for name in last}
    found = replace(score(federation, out, methods, plain.risk_.loss), ours=ours, l2=l2)
    if len(few) == total or found.held is None:
        return found
    held = replace(found.held, users=few[found.held.users], owner=few[found.held.owner])
    return replace(found, held=held, of_users=total)


def _by(model: ODCLEstimator, theta: Floats) -> Callable[[Any, Any], Any]:
    """Predictions of a model whose users have these parameters; one row serves everybody."""

    def predict(rows: Any, who: Any) -> Any:
        at = who if len(theta) > 1 else np.zeros(len(rows), dtype=np.intp)
        V = model.covariance_ if theta is model.theta_ else None
        return predicted_rows(rows, theta, at, model.risk_, model.scaling_, V)

    return predict
