"""Predictions on a piece: rows and the models of their users -> a prediction for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from odcl.data.federation import positions
from odcl.data.schema import TableSchema
from odcl.errors import InputError, Setting, show


@dataclass(frozen=True)
class Wishes:
    """How rows are to be predicted; see ``odcl predict --help``."""

    unknown: str = "error"
    unseen: str = "error"
    missing: str | None = None
    coverage: float | None = None  # of intervals; None: none are asked for


def predict_rows(
    rows: pa.Table,
    models: pa.Table,
    groups: Any,
    wishes: Wishes = Wishes(),  # noqa: B008
) -> pa.Table:
    """A prediction of each usable row, by the model of its own user.

    ``models`` is what :func:`user_models` gave of these users (and maybe others), ``groups`` the
    run's estimator. The answer has a column ``row``, the position in ``rows`` from 0, and those
    of ``odcl predict``.
    """
    from odcl.estimators.scattered import with_users

    model = with_users(groups, models)
    return predicted(rows, model, model.schema_, wishes)


def predicted(rows: pa.Table, model: Any, schema: TableSchema, wishes: Wishes) -> pa.Table:
    from odcl.data.design import DesignRows

    if wishes.coverage is not None and schema.classes is not None:
        raise ValueError("An interval is for numbers, and this run predicts classes: leave it out.")
    if not rows.num_rows:
        return _empty(schema, wishes)
    encoded = schema.encode(
        rows, with_target=False, unseen=wishes.unseen, missing=wishes.missing, piece=True
    )
    if wishes.unknown == "error":
        strange = encoded.ids[positions(model.users_, encoded.ids) < 0].tolist()
        if strange:
            raise InputError(
                f"{len(strange)} or more users were not in the fit (such as {show(strange[0])}) "
                "and no model is theirs. Say ",
                *(Setting("unknown", "pooled"), " for one model for all."),
            )
    model.set_params(unknown=wishes.unknown)
    users, X = encoded.users, DesignRows(encoded.X)
    columns: dict[str, Any] = {"row": encoded.rows}
    if not len(X.X):
        return _empty(schema, wishes)
    columns["prediction"] = model.predict(X, users=users)
    if wishes.coverage is not None:
        low, high = model.predict_interval(X, wishes.coverage, users=users)
        columns |= {"low": low, "high": high}
    if schema.classes is not None:
        p = model.predict_proba(X, users=users)
        columns |= {name: p[:, j] for j, name in enumerate(probability_names(schema))}
    return pa.table({name: pa.array(values) for name, values in columns.items()})


def probability_names(schema: TableSchema) -> list[str]:
    """The columns that hold the probability of each class."""
    words = (str(c).lower() if isinstance(c, bool) else str(c) for c in schema.classes or ())
    return [f"p({word})" for word in words]


def _empty(schema: TableSchema, wishes: Wishes) -> pa.Table:
    label = pa.float64() if schema.classes is None else pa.array(np.array(schema.classes)).type
    kinds = {"row": pa.int64(), "prediction": label}
    if wishes.coverage is not None:
        kinds |= {"low": pa.float64(), "high": pa.float64()}
    kinds |= dict.fromkeys(probability_names(schema), pa.float64())
    return pa.table({name: pa.array([], kind) for name, kind in kinds.items()})
