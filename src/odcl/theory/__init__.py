"""The paper's theory as numbers: constants, conditions, bounds, rounds, separation. No data.

Start here: 100 users in 10 groups of 10, models of 3 numbers whose groups lie D = 2 apart. How
many samples per user does the paper ask for until K-means (ODCL-KM) finds the groups?

>>> from odcl import theory
>>> of = theory.problem_constants(
...     "squared", n_features=3, row_norm=2.0, radius=5.0, least_eigenvalue=1.0, target=11.0
... )
>>> alpha = theory.alpha_km(n_users=100, smallest=10)  # how far apart K-means needs them
>>> f"{theory.smallest_n(theory.sample_ratio(alpha, M=of.M, D=2.0)):.2g}"
'8.7e+12'

That is the worst case; ``odcl plan`` simulates the usual one. Which methods need what, as orders:

>>> rows = theory.table1([10] * 10, D=2.0, n=1000)  # print(rows) shows the whole table
>>> [(row.method, round(row.rounds)) for row in rows if row.needs_k is False]
[('ALL-for-ALL', 9210), ('ODCL-CC', 1), ('I-ODCL-CC', 1)]

And of models that you have, with the groups that they were put into:

>>> import numpy as np
>>> of = theory.separation(np.array([[-1.0], [1.0], [99.0], [101.0]]), np.array([0, 0, 1, 1]))
>>> of.alpha, of.alpha_cc, of.guaranteed
(100.0, 4.0, ('ODCL-CC',))

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

from odcl.theory.bounds import (
    LocalRates,
    Misclustered,
    MSETerms,
    averaging_terms,
    error_floor,
    inexact_terms,
    local_rates,
    misclustered,
    odcl_terms,
    part_one_terms,
    worst_error_floor,
)
from odcl.theory.communication import (
    MethodRow,
    MethodTable,
    all_for_all_rounds,
    ifca_accuracy,
    ifca_rounds,
    table1,
    to_markdown,
)
from odcl.theory.conditions import (
    Separation,
    alpha_cc,
    alpha_center,
    alpha_km,
    epsilon_that_keeps_the_rate,
    iteration_ratio,
    largest_epsilon,
    mean_iterations,
    sample_ratio,
    sample_ratio_cc,
    sample_ratio_inexact,
    sample_ratio_km,
    sample_ratio_part_one,
    separation,
    sgd_distance,
    sgd_iterations,
    smallest_n,
    smallest_T,
)
from odcl.theory.constants import (
    ProblemConstants,
    UserConstants,
    c_constant,
    erm_distance,
    m_constant,
    m_over_users,
    problem_constants,
)

__all__ = [
    "LocalRates",
    "MSETerms",
    "MethodRow",
    "MethodTable",
    "Misclustered",
    "ProblemConstants",
    "Separation",
    "UserConstants",
    "all_for_all_rounds",
    "alpha_cc",
    "alpha_center",
    "alpha_km",
    "averaging_terms",
    "c_constant",
    "epsilon_that_keeps_the_rate",
    "erm_distance",
    "error_floor",
    "ifca_accuracy",
    "ifca_rounds",
    "inexact_terms",
    "iteration_ratio",
    "largest_epsilon",
    "local_rates",
    "m_constant",
    "m_over_users",
    "mean_iterations",
    "misclustered",
    "odcl_terms",
    "part_one_terms",
    "problem_constants",
    "sample_ratio",
    "sample_ratio_cc",
    "sample_ratio_inexact",
    "sample_ratio_km",
    "sample_ratio_part_one",
    "separation",
    "sgd_distance",
    "sgd_iterations",
    "smallest_T",
    "smallest_n",
    "table1",
    "to_markdown",
    "worst_error_floor",
]
