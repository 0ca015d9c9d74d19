"""``report.html``, the page of a fit: a function of the fit and of what speaks for it."""

from __future__ import annotations

import os

from odcl.estimators.evidence import Evidence, evidence_of
from odcl.evaluate.scores import Comparison
from odcl.files import atomic_path
from odcl.fitted.value import Fitted
from odcl.report.page.sections import fit_page
from odcl.runs.page_facts import fit_facts


def fit_page_of(fitted: Fitted, evidence: Evidence, *, anonymous: bool = False) -> bytes:
    """The page of a fit."""
    return fit_page(fit_facts(fitted, evidence, anonymous=anonymous))


def report_fitted(
    fitted: Fitted,
    path: str | os.PathLike[str],
    *,
    comparison: Comparison | None = None,
    anonymous: bool = False,
) -> None:
    """Write the page of a fit."""
    write_page(path, fit_page_of(fitted, evidence_of(fitted, comparison), anonymous=anonymous))


def write_page(path: str | os.PathLike[str], content: bytes) -> None:
    """A page as a file, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)
