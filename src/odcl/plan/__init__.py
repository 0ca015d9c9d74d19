"""How many rows per user: uploads simulated from the law of local models, no data needed.

import odcl
made = odcl.plan.plan(odcl.plan.scenario(n_users=60, n_clusters=3, dim=8, separation=1.5))
print(made)
"""

from __future__ import annotations

from odcl.plan.scenario import Scenario, from_pilot, scenario
from odcl.plan.search import Plan, plan

__all__ = ["Plan", "Scenario", "from_pilot", "plan", "scenario"]
