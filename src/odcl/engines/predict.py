"""Predictions on a piece: rows and the models of their users -> a prediction for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from odcl._typing import Array
from odcl.data.federation import positions
from odcl.data.schema import Encoded, TableSchema
from odcl.errors import InputError, Setting, show
from odcl.fitted.predict import predict_rows as fitted_predictions
from odcl.fitted.value import Fitted


@dataclass(frozen=True)
class PredictOptions:
    """How rows are to be predicted; see ``odcl predict --help``."""

    unknown: str = "error"
    unseen: str = "error"
    missing: str | None = None
    coverage: float | None = None  # of intervals; None: none are asked for
    run: str = "RUN"  # where users can be added, for whoever is told to


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of some rows, and what these rows hold."""

    columns: dict[str, Any]  # row (its position, from 0), prediction and whatever else was asked
    encoded: Encoded
    strange: Array  # ids of users who were not in the fit

    def to_arrow(self) -> pa.Table:
        """The columns as a table."""
        return pa.table({name: pa.array(values) for name, values in self.columns.items()})


def predict_rows(
    rows: pa.Table,
    models: pa.Table,
    groups: Fitted,
    options: PredictOptions = PredictOptions(),  # noqa: B008
) -> pa.Table:
    """A prediction of each usable row, by the model of its own user.

    ``models`` is what :func:`user_models` gave of these users (and maybe others), ``groups`` the
    fit (``estimator.fitted_``). The answer has a column ``row``, the position in ``rows`` from 0,
    and those of ``odcl predict``.
    """
    return by_models(rows, models, groups, options).to_arrow()


def by_models(
    rows: pa.Table, models: pa.Table, groups: Fitted, options: PredictOptions
) -> Predictions:
    """:func:`predict_rows` with what the rows hold."""
    schema = groups.schema
    assert schema is not None
    return predicted(rows, groups.with_models(models), schema, options)


def predicted(
    rows: pa.Table,
    fitted: Fitted,
    schema: TableSchema,
    options: PredictOptions,
    *,
    piece: bool = True,
) -> Predictions:
    """The predictions of a table, or of a piece of it."""
    if options.coverage is not None and schema.classes is not None:
        raise ValueError("An interval is for numbers, and this run predicts classes: leave it out.")
    encoded = schema.encode(
        rows, with_target=False, unseen=options.unseen, missing=options.missing, piece=piece
    )
    fitted = fitted.holding(encoded.ids)
    strange = encoded.ids[positions(fitted.users.users, encoded.ids) < 0]
    if len(strange) and options.unknown == "error":
        raise _unknown_users(strange, len(encoded.ids), options.run, piece=piece)
    columns = no_predictions(schema, options)
    if not len(encoded.rows):
        return Predictions(columns, encoded, strange)
    users = encoded.users if schema.user else None  # None: all rows are one user's
    unsure = options.coverage is not None or not fitted.risk.loss.has_data_terms
    found = fitted_predictions(fitted, encoded.X, users, unsure=unsure, unknown=options.unknown)
    columns |= {"row": encoded.rows, "prediction": found.targets()}
    if options.coverage is not None:
        low, high = found.interval(options.coverage)
        columns |= {"low": low, "high": high}
    if schema.classes is not None:
        p = found.probabilities
        columns |= {name: p[:, j] for j, name in enumerate(probability_names(schema))}
    return Predictions(columns, encoded, strange)


def probability_names(schema: TableSchema) -> list[str]:
    """The columns that hold the probability of each class."""
    words = (str(c).lower() if isinstance(c, bool) else str(c) for c in schema.classes or ())
    return [f"p({word})" for word in words]


def no_predictions(schema: TableSchema, options: PredictOptions) -> dict[str, Any]:
    """The columns of predictions, without a row."""
    none = np.empty(0)
    label = none if schema.classes is None else np.array(schema.classes)[:0]
    found: dict[str, Any] = {"row": np.empty(0, np.intp), "prediction": label}
    found |= {} if options.coverage is None else {"low": none, "high": none}
    return found | dict.fromkeys(probability_names(schema), none)


def _unknown_users(strange: Array, n_users: int, run: str, *, piece: bool) -> InputError:
    few = len(strange) == 1 and not piece
    seen = f"{len(strange)} or more users" if piece else f"{len(strange)} of {n_users:,} users"
    return InputError(
        f"{seen} {'was' if few else 'were'} not in the fit (such as {show(strange.tolist()[0])}) "
        "and no model is theirs. Say ",
        Setting("unknown", "pooled"),
        f" (predicted as an average user), or first add them with `odcl assign {run} TABLE --add`.",
    )
