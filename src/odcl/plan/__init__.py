"""How many rows per user: uploads simulated from the law of local models, no data needed.

import odcl
made = odcl.plan.plan(odcl.plan.scenario(n_users=60, n_clusters=3, dim=8, separation=1.5))
print(made)
"""

from __future__ import annotations

from odcl.plan.crossing import Crossing, crossing
from odcl.plan.curve import METHODS, Plan, plan
from odcl.plan.default import Batch
from odcl.plan.picture import draw_plan
from odcl.plan.pilot import from_pilot
from odcl.plan.point import Point, evaluate
from odcl.plan.scenario import Scenario, scenario
from odcl.plan.thresholds import paper_thresholds

__all__ = [
    "METHODS",
    "Batch",
    "Crossing",
    "Plan",
    "Point",
    "Scenario",
    "crossing",
    "draw_plan",
    "evaluate",
    "from_pilot",
    "paper_thresholds",
    "plan",
    "scenario",
]
