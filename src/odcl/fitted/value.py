"""``Fitted``: everything that a fit leaves behind, in one frozen value.

Every engine and ``load`` make one; whatever predicts, places users, diagnoses, reports or saves
reads one. An estimator holds one and shows it through its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.columns import kind_of
from odcl.data.design import Design
from odcl.data.federation import as_ids, positions
from odcl.data.roles import column_position
from odcl.data.scaling import Scaling
from odcl.data.schema import TableSchema
from odcl.data.tables import beside
from odcl.errors import count
from odcl.exchange.message import from_triangles, triangles
from odcl.fitted.tails import Tails
from odcl.local.predict import in_table_units, named_coefficients
from odcl.method import Method
from odcl.mixed.differences import inside_text, named_differences
from odcl.risk.risk import Curve, Risk, most_parameters, too_wide
from odcl.server.assign import GroupStatistics
from odcl.wide.moments import mixed_only

if TYPE_CHECKING:
    import pyarrow as pa

    from odcl.exchange.buckets import UserFiles
    from odcl.exchange.upload import Uploads
    from odcl.local.receive import Received
    from odcl.mixed.posterior import Mixture
    from odcl.server.result import Alternatives, ServerStep
    from odcl.server.robust import Outlier
    from odcl.wide.moments import GroupModels


@dataclass(frozen=True, eq=False)
class UserColumns:
    """What a fit knows of each user: the columns of a table with one row per user.

    ``model`` is in standardised units, and so is its ``covariance``.
    """

    users: Array  # (n_users,), ids
    group: Ints  # (n_users,), -1: none of the groups
    probability: Floats  # (n_users,), NaN where the method does not know
    rows: Array  # (n_users,)
    model: Floats  # (n_users, dim)
    covariance: Floats | None = None  # (n_users, dim, dim)
    noise: Floats | None = None  # (n_users,), variance of the target around the model
    dof: Floats | None = None  # (n_users,), degrees of freedom behind it

    @classmethod
    def of(
        cls, users: Array, rows: Array, received: Received, group: Ints, sure: Floats | None
    ) -> UserColumns:
        """Users after their last step; ``group`` and ``sure`` are the server's.

        Where a user's own rows say more of its group than what it sent did, they decide.
        """
        sure = sure if received.sure is None else received.sure
        return cls(
            users,
            group if received.group is None else received.group,
            np.full(len(users), np.nan) if sure is None else sure,
            rows,
            received.models,
            received.covariance,
            received.noise,
            received.dof,
        )

    def __len__(self) -> int:
        return len(self.users)

    def take(self, order: Ints) -> UserColumns:
        """Some of the users, in this order."""
        own = {name: a for name, a in vars(self).items() if a is not None}
        return replace(self, **{name: a[order] for name, a in own.items()})

    def joined(self, more: UserColumns) -> UserColumns:
        """These users, then ``more``."""
        both = {f.name: (getattr(self, f.name), getattr(more, f.name)) for f in fields(self)}
        known = {name: np.concatenate(two) for name, two in both.items() if two[0] is not None}
        return UserColumns(
            **{**known, "users": as_ids([*self.users.tolist(), *more.users.tolist()])}
        )

    def arrays(self) -> dict[str, Array]:
        """What is known of users, beside their ids, with the triangle of each covariance."""
        own = {name: values for name, values in vars(self).items() if values is not None}
        own |= {"group": self.group.astype(np.int32), "rows": self.rows.astype(np.int64)}
        if self.covariance is not None:
            own["covariance"] = triangles(self.covariance)
        del own["users"]
        return own

    @classmethod
    def from_arrays(cls, users: Array, arrays: Mapping[str, Array]) -> UserColumns:
        """The way back."""
        own = {**arrays, "group": arrays["group"].astype(np.intp)}
        if "covariance" in own:
            own["covariance"] = from_triangles(own["covariance"])
        return cls(users, **own)

    def to_arrow(self, ids: pa.DataType) -> pa.Table:
        """The table; ``ids`` is the type of the ids in it."""
        import pyarrow as pa

        from odcl.exchange.buckets import USER, ids_to_arrow, number_lists

        columns = {name: number_lists(values) for name, values in self.arrays().items()}
        return pa.table({USER: ids_to_arrow(self.users, ids), **columns})

    @classmethod
    def from_arrow(cls, table: pa.Table, dim: int) -> UserColumns:
        """Read what :meth:`to_arrow` wrote; models have ``dim`` parameters."""
        from odcl.exchange.buckets import USER, ids_from_arrow, numbers_of

        shapes = {"model": (dim,), "covariance": (dim * (dim + 1) // 2,)}
        names = [one.name for one in fields(cls) if one.name in table.column_names]
        arrays = {name: numbers_of(table[name], shapes.get(name, ())) for name in names}
        return cls.from_arrays(ids_from_arrow(table[USER]), arrays)


@dataclass(frozen=True, eq=False)
class InputColumns:
    """The columns of X as the fit saw them, and what the target held."""

    n: int  # the users' column among them
    names: tuple[Any, ...] | None = None  # None: they go by position
    user: str | int | None = None  # the users' column, by name or position; None: not in X
    design: Design | None = None  # None: features are numbers, column by column
    schema: TableSchema | None = None  # of a table that was read by one
    target: str = ""  # name of the target, where it has one
    classes: Array | None = None  # labels, where the target holds classes

    @classmethod
    def of_schema(cls, schema: TableSchema, user: str | None = None) -> InputColumns:
        """The columns of a frame that this schema reads; ``user`` is None where X lacks it."""
        names = schema.features if user is None else (user, *schema.features)
        classes = None if schema.classes is None else np.array(schema.classes)
        return cls(len(names), names, user, schema.design, schema, schema.target, classes)

    @property
    def own_names(self) -> list[Any]:
        """Names of the features as X has them: without the users' column."""
        names = list(self.names or ())
        if self.user is not None:
            del names[column_position(names, self.user)]
        return names

    def feature_names(self, n_features: int) -> list[str]:
        """Names of the design columns, or of those of X without the users' column."""
        if self.design is not None:
            return list(self.design.columns)
        if self.names is None:
            return [f"x{j}" for j in range(n_features)]
        return list(map(str, self.own_names))

    @property
    def user_name(self) -> Any:
        """The name of the users' column (its position where columns have no names), or None."""
        if self.schema is not None:
            return self.schema.user
        if self.user is None or self.names is None:
            return self.user
        return self.names[column_position(list(self.names), self.user)]


@dataclass(frozen=True, eq=False)
class Newcomers:
    """What new users and new rows need, worked out when it is first asked for.

    Pickles and copies hold the answers, and not the rows that they come from.
    """

    find_groups: Callable[[], GroupStatistics]
    find_pooled: Callable[[], Floats]
    find_tails: Callable[[], Tails] = Tails

    @classmethod
    def of(cls, groups: GroupStatistics, pooled: Floats, tails: Tails = Tails()) -> Newcomers:  # noqa: B008
        """All at hand, as a saved model has them."""
        return cls(lambda: groups, lambda: pooled, lambda: tails)

    @cached_property
    def groups(self) -> GroupStatistics:
        """The groups as newcomers are measured by them."""
        return self.find_groups()

    @cached_property
    def pooled(self) -> Floats:
        """One model for all rows, (dim,), in standardised units."""
        return self.find_pooled()

    @cached_property
    def tails(self) -> Tails:
        """How new targets scatter around predictions, beside what the fit assumes."""
        return self.find_tails()

    def __reduce__(self) -> tuple[Any, ...]:
        return Newcomers.of, (self.groups, self.pooled, self.tails)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fit: its columns and units, its groups, and the model of every user."""

    columns: InputColumns
    scaling: Scaling
    risk: Risk
    method: Method  # resolved: what was done, where mixed groups were asked for and gave way
    rule: str  # what decided on the groups
    reason: str  # and why
    centers: Floats  # (n_clusters, dim), the groups' models in standardised units
    mixture: GroupModels | None  # of mixed groups
    tau2: float | None  # how far users of a group differ (variance per coefficient)
    newcomers: Newcomers
    users: UserColumns  # of a table in pieces: examples, then users who were added
    uploads: Uploads | None  # what these users sent; None: too large to keep
    files: UserFiles | None = None  # of a table in pieces: where all users' models are
    has_users: bool = True  # False: nobody was named, and all rows are one user's
    whole: bool = True  # all users of the groups are in it; False: those of one site
    batches: frozenset[str] = frozenset()  # digests of rows that users were given later
    added: int = 0  # users who came after the fit, the last of ``users``
    weighed: Alternatives | None = None  # what else the rule looked at, where that is known
    outliers: tuple[Outlier, ...] = ()  # users who take no part in others' models, or count less
    bytes_up: int | None = None  # sent by all users together, where that is known
    bytes_down: int | None = None  # received
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the estimator

    @classmethod
    def of_step(
        cls, step: ServerStep, columns: InputColumns, scaling: Scaling, **more: Any
    ) -> Self:
        """The fit with the groups that a server found; ``more`` are the other fields."""
        same = ("rule", "centers", "mixture", "tau2", "outliers")
        own = {name: getattr(step, name) for name in same}
        found = cls(columns, scaling, reason=step.reason, **own, **more)
        inside = inside_text(found.mixed, found.risk, found.units)
        return replace(found, reason=f"{step.reason} {inside}".rstrip())

    def __repr__(self) -> str:
        users, groups = count(self.n_users, "user"), count(self.n_clusters, "group")
        return f"<{type(self).__name__}: {users}, {groups}, {self.risk.loss.name} loss>"

    @property
    def mixed(self) -> Mixture | None:
        """Groups of few parameters, which know how surely models are known; None: other ones."""
        return mixed_only(self.mixture)

    # -- names and units -------------------------------------------------------------------------

    @property
    def n_clusters(self) -> int:
        return len(self.centers)

    @property
    def n_users(self) -> int:
        """All users, those among them whose models lie in files."""
        if self.files is None:
            return len(self.users)
        return self.files.n_users + len(self.users) - self.files.n_examples

    @property
    def feature_names(self) -> list[str]:
        """Names of the coefficients: design columns, or those of X without the users' column."""
        return self.columns.feature_names(self.scaling.n_features)

    @property
    def units(self) -> dict[str, float]:
        """The columns that models have a coefficient for, and the scale each was divided by."""
        names = self.feature_names
        used = (names[j] for j in self.scaling.used)  # curves' bends are not among them
        return dict(zip(used, self.scaling.scale.tolist(), strict=True))

    @property
    def differences(self) -> dict[str, float]:
        """How far users of a group differ, by coefficient; empty where the method does not tell."""
        if self.mixed is None:
            return {}
        return named_differences(self.mixed, self.risk, self.units)

    @property
    def curves(self) -> tuple[Curve, ...]:
        """The curves that are open."""
        return () if self.mixed is None else self.mixed.coordinates.opened

    def coefficients(self, theta: Floats) -> dict[str, Floats]:
        """Models' numbers in the table's units by name, (m,); of several classes (m * n_classes,).

        Open curves have numbers more, of their bends: "price~1", ..."""
        names = self.feature_names
        return named_coefficients(theta, names, self.risk, self.scaling, self.curves)

    def model_table(self, theta: Floats, key: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of ``key``, and models by name in the table's units; by class if several."""
        values, key = self.coefficients(theta), dict(key)
        n_classes = len(next(iter(values.values()), theta)) // max(len(theta), 1)
        if n_classes > 1:
            key = {name: np.repeat(column, n_classes) for name, column in key.items()}
            key["class"] = np.tile(np.asarray(self.columns.classes), len(theta))
        return beside(values, key, first=True)

    def in_table_units(self, theta: Floats) -> tuple[Floats, Floats]:
        """Coefficients and intercepts of models, (m, n_features) and (m,), by class if several."""
        return in_table_units(theta, self.risk, self.scaling)

    @property
    def schema(self) -> TableSchema | None:
        """How a table is read for this fit; None where columns have no names."""
        columns = self.columns
        if columns.schema is not None:
            return columns.schema
        if columns.names is None or not isinstance(columns.user, str):
            return None
        names = tuple(self.feature_names)
        design = columns.design or Design(names, {}, dict.fromkeys(names, 0.0))
        classes = columns.classes
        return TableSchema(
            user=columns.user,
            target=columns.target,
            features=design.features,
            levels=design.levels,
            fill=design.fill,
            missing=self.settings.get("missing", "error"),
            task="regression" if classes is None else "classification",
            classes=None if classes is None else tuple(classes.tolist()),
            user_kind=kind_of(self.users.users.tolist()),
            other=design.other,
        )

    @property
    def outlier_lines(self) -> list[str]:
        """Who takes no part in others' models, or counts for less, and why, a line each."""
        from odcl.server.robust import outlier_lines

        return outlier_lines(self.outliers, [*self.units], self.columns.target)

    # -- users, in memory or in files ------------------------------------------------------------

    def holding(self, ids: Array) -> Fitted:
        """The fit with the models of these users in memory, as far as they are known."""
        return self if self.files is None else self.with_models(self.files.models(ids))

    def with_models(self, models: Any) -> Fitted:
        """The fit of the users of an Arrow table of models, and of those who were added later."""
        users = UserColumns.from_arrow(models, self.centers.shape[1])
        first = len(self.users) if self.files is None else self.files.n_examples
        if len(self.users) > first:
            users = users.joined(self.users.take(np.arange(first, len(self.users))))
        return replace(self, users=users, uploads=None, files=None)

    def knows(self, ids: Array) -> Bools:
        """Which of these users have a model, in memory or in files."""
        known: Bools = positions(self.holding(ids).users.users, ids) >= 0
        return known

    def in_files(self, ids: Array) -> Bools:
        """Which of these users have their models in files.

        Predictions look for them there, whether or not they are in memory as examples too.
        """
        if self.files is None:
            return np.zeros(len(ids), np.bool_)
        at = positions(self.users.users, ids)
        found: Bools = at < self.files.n_examples  # users who were added come after the examples
        if (at < 0).any():
            found[at < 0] = self.knows(ids[at < 0])
        return found

    # -- what it cannot tell ---------------------------------------------------------------------

    def without_mixture(self, what: str) -> ValueError:
        """Why a fit lacks something that is computed from mixed groups and exact sums."""
        if self.uploads is not None and self.uploads.private:
            return ValueError(f"{what} need exact sums of rows, and these uploads are private.")
        dim = self.centers.shape[1]
        settings = {"method": "default", "clusterer": "auto", **self.settings}
        asked = Method.of(settings["method"], clusterer=settings["clusterer"])
        why = asked.resolved(self.risk, dim, self.n_users).fallback
        if dim > most_parameters(self.risk) and (why or self.mixture is not None):
            return too_wide(self.risk, dim, what)
        why = why or f"this model was fitted by {self.method.clusterer}"
        return ValueError(f"{what} need mixed groups, the default, and {why}.")


def settings_of(risk: Risk, method: Method, user: str | None = None) -> dict[str, Any]:
    """Settings of the estimator that would fit by this risk and method."""
    return {
        "loss": risk.loss,
        "l2": risk.l2,
        "fit_intercept": risk.intercept,
        "method": replace(method, curves=False),  # the risk tells
        "curves": bool(risk.curves) and "auto",
        "users": user,
    }
