"""Exact local models (Algorithm 1, step 1), solved for all users at once.

Each user's problem is brought to coordinates in which it is well posed (``tall.py``, ``wide.py``),
then solved: in closed form for the squared loss, by damped Newton otherwise (``newton.py``). See
``stacks.py`` for why batching changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from odcl.data.federation import Federation
from odcl.local.problem import Job, Penalty, Solution, Stack, job_of, stacks
from odcl.local.tall import solve_tall
from odcl.local.wide import solve_wide
from odcl.risk.risk import Risk

__all__ = ["PRIOR", "Penalty", "Solution", "solve_users"]

# Users without a finite minimiser: a normal prior with standard deviation 10 on every coefficient,
# the intercept included, on top of the penalty. PRIOR is its precision; it is divided by the
# user's sample size.
PRIOR = 1e-2


def solve_users(
    federation: Federation,
    risk: Risk,
    penalty: Penalty | None = None,
    *,
    strict: bool = False,
    n_jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Solution:
    """Minimise every user's risk, or its mean loss with another ``penalty`` than the risk's own.

    A user whose risk has no finite minimiser (separable classes without a penalty, one class or
    no counts with a free intercept) is solved with a small prior on top of the penalty and marked
    ``prior``; ``strict=True`` makes it an error.
    """
    from joblib import Parallel, delayed

    m, dim = federation.n_users, risk.dim(federation.n_features)
    penalty = Penalty(np.full(m, risk.l2)) if penalty is None else penalty
    out = Solution(
        np.zeros((m, dim)),
        np.ones(m, dtype=bool),
        np.zeros(m),
        np.zeros(m, dtype=np.intp),
        np.zeros(m, dtype=bool),
    )
    if dim == 0:  # no feature, no intercept: the empty model is the minimiser
        return out
    y = risk.loss.encode(federation.y)

    def solve(stack: Stack) -> None:
        _solve_stack(job_of(stack, risk, penalty), out)
        if progress is not None:
            progress(len(stack.users))

    each = Parallel(n_jobs, prefer="threads")  # NumPy and LAPACK let go of the lock
    each(delayed(solve)(stack) for stack in stacks(federation, y))
    lost = np.flatnonzero(out.prior)
    if len(lost):
        if strict:
            some = ", ".join(map(repr, federation.users[lost][:3].tolist()))
            raise ValueError(
                f"{len(lost)} of {m} users (such as {some}) have no finite {risk.loss.name} "
                "model: their classes are separable, or they hold one class or no counts. Set "
                f"l2 > 0{' and fit no intercept' if risk.intercept else ''}, or strict=False, "
                "which gives these users a small prior."
            )
        prior = PRIOR / federation.n_samples
        fallback = Penalty(penalty.strength + prior, penalty.center, free=False, intercept=prior)
        again = (job_of(stack, risk, fallback) for stack in stacks(federation, y, lost))
        each(delayed(_solve_stack)(job, out) for job in again)
        out.prior[lost] = True
    return out


def _solve_stack(job: Job, out: Solution) -> None:
    """Route users by the shape of their rows."""
    wide = job.stack.present.sum(axis=1) <= job.stack.X.shape[2] + job.holds_intercept
    for mask, solve in ((wide, solve_wide), (~wide, solve_tall)):
        if mask.any():
            solve(job if mask.all() else job.take(mask), out)
