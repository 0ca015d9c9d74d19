"""The paper's theory as numbers: constants, conditions, rounds, separation. No data.

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
| constants of a problem: L, mu, N, G, R, M | ``problem_constants``, ``m_constant``, ... |
| samples needed (Theorem 1) | ``sample_ratio...``, ``smallest_n``, ... |
| rounds of communication, Table 1 | ``table1``, ``ifca_rounds``, ``all_for_all_rounds`` |
| separation of given models | ``separation`` |

Every function says which line of the paper it is. What lies outside its domain is refused.
"""

# ruff: noqa: I001 - every name is exported again, and stands once.
from __future__ import annotations

from odcl.theory.bounds import (
    MethodRow as MethodRow,
    MethodTable as MethodTable,
    all_for_all_rounds as all_for_all_rounds,
    ifca_accuracy as ifca_accuracy,
    ifca_rounds as ifca_rounds,
    table1 as table1,
)
from odcl.theory.conditions import (
    Separation as Separation,
    alpha_cc as alpha_cc,
    alpha_center as alpha_center,
    alpha_km as alpha_km,
    sample_ratio as sample_ratio,
    sample_ratio_cc as sample_ratio_cc,
    sample_ratio_km as sample_ratio_km,
    separation as separation,
    smallest_n as smallest_n,
)
from odcl.theory.constants import (
    ProblemConstants as ProblemConstants,
    m_constant as m_constant,
    problem_constants as problem_constants,
)

# What the modules above define: `help(odcl.theory)` shows it.
__all__ = [
    name for name, value in globals().items() if "odcl.theory." in getattr(value, "__module__", "")
]
