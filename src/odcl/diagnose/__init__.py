"""Is one shot enough for this federation? An answer from its own uploads, with the reason."""

from __future__ import annotations

from odcl.diagnose.diagnosis import Diagnosis, diagnose, diagnose_fitted, diagnose_step
from odcl.diagnose.verdict import Verdict

__all__ = ["Diagnosis", "Verdict", "diagnose", "diagnose_fitted", "diagnose_step"]
