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

from __future__ import annotations

from odcl.theory.bounds import *  # noqa: F403
from odcl.theory.conditions import *  # noqa: F403
from odcl.theory.constants import *  # noqa: F403

# What the modules above define: `help(odcl.theory)` shows it.
__all__ = [
    name for name, value in globals().items() if "odcl.theory." in getattr(value, "__module__", "")
]
