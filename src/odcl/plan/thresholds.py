"""The n that the paper asks for, beside the one that is needed."""

from __future__ import annotations

import math

import numpy as np

from odcl.plan.scenario import Scenario


def paper_thresholds(scene: Scenario, *, seed: int = 0) -> dict[str, int]:
    """The n that Theorem 1 asks for: "ODCL-KM" (c = 100) and "ODCL-CC"; {} where not known.

    Constants of Section 2 with bounds that hold for 999 of 1,000 rows and the radius of the
    largest of the groups' models. Worst cases multiply up: expect astronomical numbers.
    """
    from odcl.theory import problem_constants, sample_ratio_cc, sample_ratio_km, smallest_n

    bounds = scene.paper
    if bounds is None or scene.n_clusters == 1:
        return {}
    rng = np.random.default_rng(seed)
    radius = float(np.linalg.norm(scene.draw_centers(rng), axis=1).max())
    target = None
    if bounds.target is not None:
        target = radius * bounds.row_norm + (bounds.noise or 0.0)
    try:
        constants = problem_constants(
            scene.loss,
            n_features=scene.dim,
            row_norm=max(bounds.row_norm, math.sqrt(scene.dim * bounds.least_eigenvalue)),
            radius=max(radius, 1 / 6),
            least_eigenvalue=bounds.least_eigenvalue,
            target=target,
            noise=bounds.noise,
        )
    except (ValueError, OverflowError):  # Poisson rates beyond floating point
        return {}
    m, smallest, D = scene.n_users, int(scene.sizes.min()), scene.separation()
    if not math.isfinite(constants.M):
        return {}
    return {
        "ODCL-KM": smallest_n(sample_ratio_km(m, smallest, constants.M, D)),
        "ODCL-CC": smallest_n(sample_ratio_cc(m, smallest, constants.M, D)),
    }
