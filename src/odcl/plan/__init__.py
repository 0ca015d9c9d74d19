"""How many rows per user: uploads simulated from the law of local models, no data needed.

import odcl
made = odcl.plan.plan(odcl.plan.scenario(n_users=60, n_clusters=3, dim=8, separation=1.5))
print(made)
"""

from __future__ import annotations

from pathlib import Path

from odcl.plan.scenario import Scenario, from_pilot, scenario
from odcl.plan.search import Plan, plan

__all__ = ["Plan", "Scenario", "draw_plan", "from_pilot", "plan", "scenario"]


def draw_plan(plan: Plan, path: Path) -> bool:
    """Save the curve as a PNG file; False where matplotlib is not installed."""
    from odcl.report.plan import draw_plan

    return draw_plan(plan, path)
