"""A run: a fitted table, what it was worth, and what is made of it: text, page, files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from odcl import __version__
from odcl._typing import Floats, Ints
from odcl.artifact.arrays import json_bytes
from odcl.artifact.folder import check_artifact_place as check_place
from odcl.errors import count
from odcl.estimators.evidence import Evidence, evidence_files
from odcl.evaluate.scores import Comparison
from odcl.fitted.persist import save_fitted
from odcl.fitted.value import Fitted
from odcl.report.text import comparison_table, groups_text, in_bytes, verdict
from odcl.runs.tables import run_tables

if TYPE_CHECKING:
    from odcl.estimators.base import ODCLEstimator

__all__ = ["PAGE", "REPORT", "GroupSizes", "Run", "RunReport", "check_place", "finite"]
REPORT, PAGE = "report.json", "report.html"


@dataclass(frozen=True, eq=False)
class GroupSizes:
    """Users and rows of each group, (n_clusters,), over all users of the fit."""

    users: Ints
    rows: Floats


@dataclass(frozen=True, eq=False)
class Run:
    """A fitted table: the model of all rows, and what it was worth on rows held out."""

    model: ODCLEstimator  # ODCLRegressor or ODCLClassifier
    evidence: Evidence  # where it comes from, and what speaks for it
    groups: GroupSizes
    engine: str  # "memory" or "dask"
    combined: str  # how models of a group became one
    last_step: str | None = None  # in memory: how users made their last step
    passes: int | None = None  # in pieces: how often the uploads were read
    rows: Any = None  # the Federation as the models see it, where it was kept

    @property
    def fitted(self) -> Fitted:
        """The fit, with the settings of the estimator."""
        return self.model._to_save()

    @property
    def comparison(self) -> Comparison | None:
        """Scores of odcl and of other methods on rows held out; None: no rows were."""
        return self.evidence.comparison

    @property
    def notices(self) -> Sequence[str]:
        """What is odd about the table, one line each."""
        return self.evidence.notices

    @property
    def n_users(self) -> int:
        """All users of the fit."""
        return int(self.model.n_users_)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        users, rows = count(self.n_users, "user"), count(self.evidence.table["rows"], "row")
        groups = count(self.model.n_clusters_, "group")
        return f"<{type(self).__name__}: {users}, {rows}, {groups}>"

    def text(self, *, shell: bool = False) -> str:
        """What was found and what it is worth, with advice for the ``shell`` or for Python."""
        model, found, m = self.model, self.evidence, self.n_users
        size = f"{count(m, 'user')}, {count(found.table['rows'], 'row')}"
        size += f", {count(len(model.schema_.columns), 'feature')}"
        parts = [f"{size}, {model.risk_.loss.name} loss, 1 round. {model.reason_}"]
        if model.n_clusters_ > 1:
            sizes = self.groups
            parts.append(groups_text(sizes.users, sizes.rows, model.labels_, model.users_))
        if found.comparison is not None:
            score = comparison_table(found.comparison)
            parts.append(f"{score}\n{verdict(found.comparison, shell=shell)}")
        up, down = (in_bytes((n or 0) / m) for n in (found.bytes_up, found.bytes_down))
        parts.append(f"In a federation each user would send {up} and receive {down}.")
        return "\n\n".join(parts)

    def report(
        self, path: str | os.PathLike[str] | None = None, *, anonymous: bool = False
    ) -> bytes:
        """The page of the run, HTML for a browser; with a ``path`` it is written there as well.

        ``anonymous`` gives users numbers in place of their names, and names neither the table nor
        the command.
        """
        from odcl.runs.page import fit_page_of, write_page

        content = fit_page_of(self.fitted, self.evidence, anonymous=anonymous)
        if path is not None:
            write_page(path, content)
        return content

    def save(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write what ``odcl fit`` writes: model, tables, report and page, whole or not at all.

        ``force`` replaces a run that is there already, and nothing else.
        """
        extras = {
            REPORT: self.summary().to_bytes(),
            **run_tables(self.fitted, self.groups.users),
            **evidence_files(self.evidence),
            PAGE: self.report(),
        }
        save_fitted(self.model.fitted_, folder, force=force, extras=extras)

    def summary(self) -> RunReport:
        """The run in numbers, as ``report.json`` has it."""
        found = self.evidence
        return RunReport.of(
            self.fitted,
            engine=self.engine,
            users=self.n_users,
            rows=found.table["rows"],
            sizes=self.groups.users.tolist(),
            combined=self.combined,
            bytes_up=found.bytes_up,
            bytes_down=found.bytes_down,
            table={"name": found.table["name"], "sha256": found.table.get("sha256")},
            holdout=found.holdout,
            notices=list(found.notices),
            comparison=None if found.comparison is None else found.comparison.to_json(),
            last_step=self.last_step,
            passes=self.passes,
        )


@dataclass(frozen=True)
class RunReport:
    """``report.json``: one schema, whichever engine fitted the run."""

    version: str
    engine: str  # "memory", "dask" or "flower"
    table: Mapping[str, Any] | None  # name and sha256
    risk: Mapping[str, Any]
    method: Mapping[str, Any]
    seed: Any
    holdout: str | None
    users: int
    rows: int
    groups: int
    sizes: Sequence[int]  # users of each group
    rule: str
    reason: str
    combined: str
    last_step: str | None  # memory: how users made their last step
    passes: int | None  # dask: how often the uploads were read
    nodes: int | None  # flower
    rounds: int
    bytes_up: int | None
    bytes_down: int | None
    notices: Sequence[str]
    comparison: Mapping[str, Any] | None

    @classmethod
    def of(cls, fitted: Fitted, **more: Any) -> RunReport:
        """The report of a fit; parts that an engine does not know are None."""
        told: dict[str, Any] = {
            "version": __version__,
            "table": None,
            "risk": fitted.risk.to_json(),
            "method": fitted.method.to_json(described=True),
            "seed": fitted.settings.get("random_state"),
            "holdout": None,
            "groups": fitted.n_clusters,
            "rule": fitted.rule,
            "reason": fitted.reason,
            "last_step": None,
            "passes": None,
            "nodes": None,
            "rounds": 1,
            "notices": [],
            "comparison": None,
        }
        return cls(**{**told, **more})

    def to_bytes(self) -> bytes:
        return json_bytes(finite(asdict(self)))


def finite(value: Any) -> Any:
    """``value`` with None for NaN and infinity, which JSON does not know."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
