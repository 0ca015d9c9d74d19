"""What runs on a piece of a table: Arrow tables in, Arrow tables out, for any engine.

    terms of rows    -> upload_rows(rows, plan)                    one row per user
    last step        -> user_models(uploads, plan, step)           one row per user
    mixed groups     -> fitted_groups(plan, step)                  for predictions of any user

Each user must be whole in one piece: rows are brought together by user first (a shuffle, or
``repartition``), or, with squared loss, pieces of uploads are added up by :func:`merge_uploads`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation, group_rows, positions
from odcl.data.scaling import Scaling
from odcl.data.schema import Encoded, TableSchema
from odcl.engines.wire import Agreed
from odcl.errors import InputError, Setting, show
from odcl.exchange.buckets import USER, numbers_of, uploads_from_arrow, uploads_to_arrow
from odcl.exchange.upload import Uploads
from odcl.fitted.curves import OpenColumns
from odcl.fitted.predict import predict_rows as fitted_predictions
from odcl.fitted.predict import rows_beyond
from odcl.fitted.value import Fitted, InputColumns, Newcomers, UserColumns, settings_of
from odcl.local.predict import named_coefficients
from odcl.local.receive import receive
from odcl.method import Method
from odcl.mixed.terms import DataTerms, merge_by_user
from odcl.risk.risk import Risk, is_wide
from odcl.server.assign import GroupStatistics
from odcl.wide.moments import mixed_only, models_without_rows

if TYPE_CHECKING:
    from odcl.server.result import StreamedStep


_ID_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.string()}
_STAND_IN = {"int": 0, "float": 0.0, "bool": False, "text": ""}  # an id of each kind
USERS_AT_ONCE = 4_096  # whose posteriors, some matrices each, stay near the processor


@dataclass(frozen=True, eq=False)
class FitPlan:
    """What every piece has to know: how a table is read, scaled and fitted."""

    schema: TableSchema
    scaling: Scaling
    risk: Risk
    method: Method  # resolved
    unsigned: bool = False  # ids are integers that may be above 2**63
    left: OpenColumns | None = None  # of those that uploads came with, once curves were closed

    def without_closed(self, step: StreamedStep) -> tuple[FitPlan, StreamedStep]:
        """Plan and step without the columns of curves that were closed."""
        left = OpenColumns.of(mixed_only(step.found.mixture), self.risk, len(self.scaling.used))
        if left is None:
            return self, step
        scaling = replace(self.scaling, curves=left.risk.curves)
        return replace(self, risk=left.risk, scaling=scaling, left=left), left.step(step)

    @property
    def columns(self) -> list[str]:
        """The columns of the table in use."""
        return [self.schema.user, *self.schema.features, self.schema.target]

    @property
    def id_type(self) -> pa.DataType:
        """The type of ids in files."""
        return pa.uint64() if self.unsigned else _ID_TYPES[self.schema.user_kind]

    @property
    def dim(self) -> int:
        """Parameters of a model."""
        return self.risk.dim(self.scaling.width)

    @property
    def adds_up(self) -> bool:
        """Uploads are exact sums over rows: pieces of a user's rows may go separately, and the
        user's last step needs nothing but its upload."""
        plain = self.risk.loss.name == "squared" and self.method.short_terms
        plain &= not is_wide(self.risk, self.scaling.width)
        return plain and self.method.clusterer.uses_terms

    def rows_by_user(self, rows: pa.Table) -> Federation:
        """The rows of a piece user by user, as the model sees them."""
        federation = self.schema.encode(rows, piece=True).federation()
        y: Array = np.asarray(federation.y, dtype=np.float64)
        return federation.with_X(self.scaling.apply(federation.X)).with_y(y)

    def fit(self, federation: Federation) -> Uploads:
        """Step 1 of Algorithm 1, as in memory."""
        return Agreed(self.risk, self.method, self.scaling.width).fit(federation).uploads

    def stand_in(self) -> Federation:
        """Two rows of a user that does not exist: they tell the columns of tables without users."""
        p, user = self.scaling.width, np.array([_STAND_IN[self.schema.user_kind]])
        return Federation(np.zeros((2, p)), np.zeros(2), np.array([0, 2]), user)

    def to_arrow(self, uploads: Uploads) -> pa.Table:
        """Uploads as a table, one row per user."""
        return uploads_to_arrow(uploads, self.id_type)

    def from_arrow(self, uploads: pa.Table) -> Uploads:
        """The way back."""
        if self.left is None:
            return uploads_from_arrow(uploads, self.risk, self.dim)
        risk = replace(self.risk, curves=self.left.at.curves)
        sent = uploads_from_arrow(uploads, risk, risk.dim(self.left.at.n_features))
        return self.left.uploads(sent)

    def no_uploads(self) -> pa.Table:
        """A table of uploads without a user."""
        return self.without_users(uploads_to_arrow(self.fit(self.stand_in())))

    def without_users(self, table: pa.Table) -> pa.Table:
        """A table of the stand-in without it."""
        return table.slice(0, 0).set_column(0, USER, pa.array([], self.id_type))


def upload_rows(rows: pa.Table, plan: FitPlan) -> pa.Table:
    """What the users of these rows upload, one row per user, in canonical order."""
    federation = plan.rows_by_user(rows)
    return plan.to_arrow(plan.fit(federation)) if federation.n_users else plan.no_uploads()


def merge_uploads(uploads: pa.Table, plan: FitPlan) -> pa.Table:
    """Uploads of some of each user's rows, added up: one row per user, in canonical order."""
    if not plan.adds_up:
        raise ValueError(
            f"Uploads of the {plan.risk.loss.name} loss are of all rows of a user, and do not add "
            "up: bring the rows of each user together first."
        )
    parts = plan.from_arrow(uploads)
    ids, codes = group_rows(parts.users)
    if len(ids) == len(parts):
        return plan.to_arrow(parts.take(np.argsort(codes, kind="stable")))
    assert parts.means is not None
    assert parts.factor is not None
    terms = DataTerms(parts.n_samples, parts.means, parts.factor)
    one = merge_by_user(terms, codes, len(ids))
    whole = replace(parts, users=ids, n_samples=one.rows, means=one.mean, factor=one.factor)
    return plan.to_arrow(whole)


def user_models(
    uploads: pa.Table, plan: FitPlan, step: StreamedStep, rows: pa.Table | None = None
) -> pa.Table:
    """The place and the model of every user, one row each, in the order of the uploads.

    ``rows`` of the same users are needed unless ``plan.adds_up``.
    """
    if not uploads.num_rows:
        rows = plan.stand_in()
        return plan.without_users(_models(plan.fit(rows), plan, step, rows))
    if rows is None and not plan.adds_up:
        raise ValueError(
            f"The last step of the {plan.risk.loss.name} loss looks at the users' rows: give them."
        )
    given = plan.from_arrow(uploads)
    federation = None if rows is None or plan.adds_up else plan.rows_by_user(rows)
    parts = []
    for at in np.split(np.arange(len(given)), range(USERS_AT_ONCE, len(given), USERS_AT_ONCE)):
        own = None if federation is None else federation.take(at)
        parts.append(_models(given.take(at), plan, step, own))
    return pa.concat_tables(parts)


def _models(
    uploads: Uploads, plan: FitPlan, step: StreamedStep, rows: Federation | None
) -> pa.Table:
    m, p = len(uploads), plan.scaling.width
    if rows is None:  # all that the last step needs is in the upload
        rows = Federation(np.empty((0, p)), np.empty(0), np.zeros(m + 1, np.intp), uploads.users)
    placed = step.place(uploads)
    received = receive(rows, plan.risk, uploads, placed)
    own = received, placed.group, placed.probability
    return UserColumns.of(uploads.users, uploads.n_samples, *own).to_arrow(plan.id_type)


def with_coefficients(models: pa.Table, plan: FitPlan) -> pa.Table:
    """The table with each user's coefficients in the table's own units, a column for each.

    Models of several classes have them in ``model`` alone.
    """
    if plan.risk.n_outputs > 1:
        return models
    model, names = numbers_of(models["model"], (plan.dim,)), plan.schema.columns
    found = named_coefficients(model, names, plan.risk, plan.scaling, plan.risk.curves)
    for name, values in found.items():
        models = models.append_column(f"coef_{name}", pa.array(np.ascontiguousarray(values)))
    return models


def fitted_groups(plan: FitPlan, step: StreamedStep) -> Fitted:
    """The fit of mixed groups, which holds no users: ``with_models`` gives it some."""
    none = np.empty(0)
    no_users = UserColumns(none, none.astype(np.intp), none, none, np.empty((0, plan.dim)))
    return Fitted.of_step(
        step.found,
        InputColumns.of_schema(plan.schema, plan.schema.user),
        plan.scaling,
        risk=plan.risk,
        method=plan.method,
        users=no_users,
        uploads=None,
        newcomers=Newcomers.of(*mixed_groups(plan, step)),
        settings=settings_of(plan.risk, plan.method, plan.schema.user),
    )


def mixed_groups(plan: FitPlan, step: StreamedStep) -> tuple[GroupStatistics, Floats]:
    """Mixed groups as newcomers are measured by them, and one model for everybody."""
    found = step.found
    if found.mixture is None:
        raise ValueError(
            f"Groups of {plan.method.clusterer} are not mixed groups, which alone say what users "
            "who come later need."
        )
    groups = counted(found.centers, step.sizes, step.rows)
    return groups, models_without_rows(found.mixture, plan.risk)[0][-1]


def counted(centers: Floats, sizes: Ints, rows: Floats) -> GroupStatistics:
    """Groups with their users and rows; an empty group counts as one of each."""
    return GroupStatistics(centers, np.maximum(sizes, 1), np.maximum(rows, 1.0))


# -- predictions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class PredictOptions:
    """How rows are to be predicted; see ``odcl predict --help``."""

    unknown: str = "error"
    unseen: str = "error"
    missing: str | None = None
    coverage: float | None = None  # of intervals; None: none are asked for
    run: str = "RUN"  # folder that errors name as the place to add users


@dataclass(frozen=True, eq=False)
class Predictions:
    """The predictions of some rows, and what these rows hold."""

    columns: dict[str, Any]  # row (its position, from 0), prediction and whatever else was asked
    encoded: Encoded
    strange: Array  # ids of users who were not in the fit
    beyond: int = 0  # rows beyond the values that curves were seen at

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
    assert groups.schema is not None
    return predicted(rows, groups.with_models(models), groups.schema, options).to_arrow()


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
    return Predictions(columns, encoded, strange, rows_beyond(fitted, encoded.X))


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
