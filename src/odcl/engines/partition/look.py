"""The first looks at a piece: what its columns hold, and in which units they come."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from odcl._typing import Floats
from odcl.data.columns import Keys, read_target
from odcl.data.roles import Roles
from odcl.data.rows import Gaps, ownerless, read_columns
from odcl.data.scaling import Moments, Scaling
from odcl.data.schema import Encoded, TableSchema
from odcl.data.summary import Place, TableSummary
from odcl.exchange.arrow import number_lists, numbers_of
from odcl.method import Method
from odcl.mixed.terms import DataTerms, data_terms, merge
from odcl.risk.risk import Risk

ID_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "text": pa.string()}


@dataclass(frozen=True, eq=False)
class Job:
    """What every piece has to know: how a table is read, scaled and fitted."""

    schema: TableSchema
    scaling: Scaling
    risk: Risk
    method: Method  # resolved
    seed: int = 0
    unsigned: bool = False  # ids are integers that may be above 2**63

    @property
    def id_type(self) -> pa.DataType:
        """The type of ids in files."""
        return pa.uint64() if self.unsigned else ID_TYPES[self.schema.user_kind]

    @property
    def dim(self) -> int:
        """Parameters of a model."""
        return self.risk.dim(len(self.scaling.used))

    @property
    def adds_up(self) -> bool:
        """May pieces of a user's rows go separately? So it is where uploads are exact sums."""
        plain = self.risk.loss.name == "squared" and self.method.short_terms
        return plain and self.method.clusterer.uses_terms

    @property
    def needs_rows(self) -> bool:
        """Does a user's last step look at its rows again, its upload not being all of them?"""
        return not self.adds_up

    def encode(self, rows: pa.Table) -> Encoded:
        """Rows of a piece, as the schema reads them."""
        return self.schema.encode(rows, piece=True)


def look(rows: pa.Table, roles: Roles, place: Place = Place()) -> TableSummary:  # noqa: B008
    """What a piece tells of the table's columns; summaries add up to a schema."""
    return TableSummary.of(rows, roles, place)


def look_and_measure(
    rows: pa.Table,
    roles: Roles,
    place: Place = Place(),  # noqa: B008
) -> tuple[TableSummary, pa.Table | None]:
    """:func:`look` and, where a piece alone knows its design columns, :func:`measure` in one read.

    So it is where all features are numbers and no row lacks a value; else None.
    """
    summary = look(rows, roles, place)
    alone = not (roles.categorical or summary.gaps or summary.error) and summary.rows > 0
    if not alone:
        return summary, None
    columns = read_columns(rows, roles.features, {})
    return summary, _moments(np.column_stack(list(columns.values())))


def measure(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Moments of the design columns of a piece, one row; none where it has no row to use."""
    X = _design_rows(rows, schema)
    return _moments(X) if len(X) else _no_moments(len(schema.columns))


BLOCK = 4_000  # rows whose moments are taken at a time: they stay near the processor


def _moments(X: Floats) -> pa.Table:
    n = len(X)
    block = np.arange(n) // BLOCK
    found = merge(data_terms(X, np.zeros(n), block, int(block[-1]) + 1))
    columns = np.ascontiguousarray(X.T)
    return _as_table(found, columns.min(axis=1), columns.max(axis=1))


def _as_table(found: DataTerms, low: Floats, high: Floats) -> pa.Table:
    p = len(low)
    return pa.table(
        {
            "rows": pa.array(found.rows),
            "low": number_lists(low[None]),
            "high": number_lists(high[None]),
            "mean": number_lists(found.mean[:, :p]),
            "factor": number_lists(found.factor[:, :p, :p]),
        }
    )


def _design_rows(rows: pa.Table, schema: TableSchema) -> Floats:
    """The design matrix of the rows to use; whose they are does not matter."""
    if not rows.num_rows:
        return np.empty((0, len(schema.columns)))
    columns = read_columns(rows, schema.features, schema.design.kinds)
    goal = read_target(rows, schema.target, schema.task, schema.classes)
    owner = Keys([], np.where(ownerless(rows, schema.user)[0], -1, 0))
    keep = Gaps.of({schema.user: owner}, columns, {schema.target: goal}).usable(schema.missing)
    return schema.design.rows(columns, np.flatnonzero(keep))[0]


def _no_moments(p: int) -> pa.Table:
    empty = {name: number_lists(np.empty((0, p))) for name in ("low", "high", "mean")}
    factor = number_lists(np.empty((0, p, p)))
    return pa.table({"rows": pa.array(np.empty(0)), **empty, "factor": factor})


def merge_moments(moments: pa.Table) -> pa.Table:
    """One row for all of them."""
    n = moments.num_rows
    if n <= 1:
        return moments
    p = len(moments["mean"][0])
    low, high, mean = (numbers_of(moments[name], (p,)) for name in ("low", "high", "mean"))
    # The merged factor needs a column for the target, which nobody looks at.
    factor = np.zeros((n, p + 1, p + 1))
    factor[:, :p, :p] = numbers_of(moments["factor"], (p, p))
    rows = numbers_of(moments["rows"])
    found = merge(DataTerms(rows, np.column_stack([mean, np.zeros(n)]), factor))
    return _as_table(found, low.min(axis=0), high.max(axis=0))


def moments_of(moments: pa.Table) -> Moments:
    """The moments of a whole table, of which :meth:`Scaling.of_moments` makes its units."""
    one = merge_moments(moments)
    p = len(one["mean"][0])
    low, high, mean = (numbers_of(one[name], (p,))[0] for name in ("low", "high", "mean"))
    factor = numbers_of(one["factor"], (p, p))[0]
    return Moments(float(numbers_of(one["rows"])[0]), low, high, mean, factor)
