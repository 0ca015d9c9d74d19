"""The paper's theory as numbers: constants, conditions, bounds, rounds, separation. No data.

How many samples per user does the paper ask for until K-means (ODCL-KM) finds ten groups?

>>> from odcl import theory
>>> of = theory.problem_constants(
...     "squared", n_features=3, row_norm=2.0, radius=5.0, least_eigenvalue=1.0, target=11.0
... )
>>> alpha = theory.alpha_km(n_users=100, smallest=10)  # how far apart K-means needs them
>>> f"{theory.smallest_n(theory.sample_ratio(alpha, M=of.M, D=2.0)):.2g}"
'8.7e+12'

That is the worst case; ``odcl plan`` simulates the usual one.

| what | where |
| --- | --- |
| constants of a problem: L, mu, N, G, H, R, M | ``problem_constants``, ``m_constant``, ... |
| samples and steps needed (Theorems 1 - 3) | ``sample_ratio...``, ``smallest_n``, ... |
| terms of the error bounds | ``odcl_terms``, ``averaging_terms``, ``inexact_terms``, ... |
| rounds of communication, Table 1 | ``table1``, ``ifca_rounds``, ``all_for_all_rounds`` |
| separation of given models | ``separation`` |

Every function says which line of the paper it is. What lies outside its domain is refused.
"""

# ruff: noqa: I001 - every name is exported again, and stands once.
from __future__ import annotations

from odcl.theory.bounds import (
    LocalRates as LocalRates,
    MethodRow as MethodRow,
    MethodTable as MethodTable,
    Misclustered as Misclustered,
    all_for_all_rounds as all_for_all_rounds,
    averaging_terms as averaging_terms,
    error_floor as error_floor,
    ifca_accuracy as ifca_accuracy,
    ifca_rounds as ifca_rounds,
    inexact_terms as inexact_terms,
    local_rates as local_rates,
    misclustered as misclustered,
    odcl_terms as odcl_terms,
    part_one_terms as part_one_terms,
    table1 as table1,
    worst_error_floor as worst_error_floor,
)
from odcl.theory.conditions import (
    Separation as Separation,
    alpha_cc as alpha_cc,
    alpha_center as alpha_center,
    alpha_km as alpha_km,
    epsilon_that_keeps_the_rate as epsilon_that_keeps_the_rate,
    iteration_ratio as iteration_ratio,
    largest_epsilon as largest_epsilon,
    mean_iterations as mean_iterations,
    sample_ratio as sample_ratio,
    sample_ratio_cc as sample_ratio_cc,
    sample_ratio_inexact as sample_ratio_inexact,
    sample_ratio_km as sample_ratio_km,
    sample_ratio_part_one as sample_ratio_part_one,
    separation as separation,
    sgd_distance as sgd_distance,
    sgd_iterations as sgd_iterations,
    smallest_n as smallest_n,
    smallest_T as smallest_T,
)
from odcl.theory.constants import (
    ProblemConstants as ProblemConstants,
    UserConstants as UserConstants,
    c_constant as c_constant,
    erm_distance as erm_distance,
    m_constant as m_constant,
    m_over_users as m_over_users,
    problem_constants as problem_constants,
)

# What the modules above define: `help(odcl.theory)` shows it.
__all__ = [
    name for name, value in globals().items() if "odcl.theory." in getattr(value, "__module__", "")
]
