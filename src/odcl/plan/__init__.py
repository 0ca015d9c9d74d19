"""How many rows per user: uploads simulated from the law of local models, no data needed."""

from __future__ import annotations

from odcl.plan.curve import METHODS, Plan, Point, evaluate, paper_thresholds, plan, smallest_for
from odcl.plan.scenario import Scenario, from_pilot, scenario

__all__ = [
    "METHODS",
    "Plan",
    "Point",
    "Scenario",
    "evaluate",
    "from_pilot",
    "paper_thresholds",
    "plan",
    "scenario",
    "smallest_for",
]
