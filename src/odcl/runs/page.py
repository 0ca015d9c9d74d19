"""``report.html`` of a fitted model: made from its artifact, by Python and the shell alike."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from odcl.artifact.folder import StoredArtifact, open_artifact
from odcl.diagnose import Diagnosis
from odcl.estimators.evidence import evidence_files, evidence_of
from odcl.estimators.persist import KIND, save_estimator
from odcl.evaluate.scores import Comparison
from odcl.files import atomic_path
from odcl.report.page.sections import fit_page
from odcl.runs.page_facts import fit_facts, read_run

PAGE = "report.html"


def page_of(
    stored: StoredArtifact, *, anonymous: bool = False, diagnosis: Diagnosis | None = None
) -> bytes:
    """The page of an artifact that is open; a ``diagnosis`` comes first where one is given."""
    return fit_page(fit_facts(read_run(stored, anonymous=anonymous), diagnosis))


def page_of_run(
    folder: str | os.PathLike[str], *, anonymous: bool = False, diagnosis: Diagnosis | None = None
) -> bytes:
    """The page of a folder that ``save`` or ``odcl fit`` wrote."""
    with open_artifact(folder, kind=KIND) as stored:
        return page_of(stored, anonymous=anonymous, diagnosis=diagnosis)


def page_of_model(
    model: Any,
    *,
    comparison: Comparison | None = None,
    anonymous: bool = False,
    diagnosis: Diagnosis | None = None,
) -> bytes:
    """The page of a fitted estimator: it is saved first, and the page read off that."""
    with TemporaryDirectory(prefix="odcl-") as place:
        folder = Path(place) / "run"
        save_estimator(model, folder, extras=evidence_files(evidence_of(model, comparison)))
        return page_of_run(folder, anonymous=anonymous, diagnosis=diagnosis)


def report_model(
    model: Any,
    path: str | os.PathLike[str],
    *,
    comparison: Comparison | None = None,
    anonymous: bool = False,
) -> None:
    """Write the page of a fitted estimator."""
    content = page_of_model(model, comparison=comparison, anonymous=anonymous)
    write_page(path, content)


def write_page(path: str | os.PathLike[str], content: bytes) -> None:
    """A page as a file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
