"""What every piece of a table has to know."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from odcl.data.scaling import Scaling
from odcl.data.schema import Encoded, TableSchema
from odcl.method import Method
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
