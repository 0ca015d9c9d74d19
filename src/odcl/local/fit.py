"""Step 1 of Algorithm 1: every user's local model, and what the user will upload of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.federation import Federation
from odcl.exchange.upload import Uploads
from odcl.privacy import Privacy
from odcl.risk.risk import Risk
from odcl.threads import one_thread

if TYPE_CHECKING:
    from odcl.local.problem import Penalty, Solution, Stack

# Users without a finite minimiser: a normal prior with standard deviation 10 on every coefficient,
# the intercept included, on top of the penalty. PRIOR is its precision; it is divided by the
# user's sample size.
PRIOR = 1e-2


def solve_users(
    federation: Federation,
    risk: Risk,
    penalty: Penalty | None = None,
    *,
    n_jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Solution:
    """Minimise every user's risk, or its mean loss with another ``penalty`` than the risk's own.

    A user whose risk has no finite minimiser (separable classes without a penalty, one class or
    no counts with a free intercept) is solved with a small prior on top of the penalty and marked
    ``prior``. The search ends with a Newton step that moves no log-odds by more than 1e-6; what is
    left to go is about the square of that.
    """
    from joblib import Parallel, delayed

    from odcl.local.exact import solve_stack
    from odcl.local.problem import Penalty, Solution, job_of, stacks

    m, dim = federation.n_users, risk.dim(federation.n_features)
    penalty = Penalty(np.full(m, risk.l2)) if penalty is None else penalty
    out = Solution(np.zeros((m, dim)), np.ones(m, dtype=bool), np.zeros(m, dtype=bool))
    if dim == 0:  # no feature, no intercept: the empty model is the minimiser
        return out
    y = risk.loss.encode(federation.y)

    def solve(stack: Stack) -> None:
        solve_stack(job_of(stack, risk, penalty), out)
        if progress is not None:
            progress(len(stack.users))

    each = Parallel(n_jobs, prefer="threads")  # NumPy and LAPACK let go of the lock
    with one_thread(federation.n_features):
        each(delayed(solve)(stack) for stack in stacks(federation, y))
    lost = np.flatnonzero(out.prior)
    if len(lost):
        prior = PRIOR / federation.n_samples
        fallback = Penalty(penalty.strength + prior, free=False, intercept=prior)
        again = (job_of(stack, risk, fallback) for stack in stacks(federation, y, lost))
        with one_thread(federation.n_features):
            each(delayed(solve_stack)(job, out) for job in again)
        out.prior[lost] = True
    return out


@dataclass(frozen=True, eq=False)
class LocalModels:
    """The users' uploads, and what stays at the users: how their fits went.

    Users who send data terms need no model of their own for it: it is computed on first use, from
    the terms or, where these do not tell, from the rows. Copies and pickles hold none.
    """

    uploads: Uploads
    n_rows: Ints  # (n_users,)
    solved: Solution | None  # None: computed on first use
    rows: Federation | None = None  # where the uploads alone do not tell

    @cached_property
    def solution(self) -> Solution:
        """The users' own models, and how their fits went."""
        if self.solved is not None:
            return self.solved
        if self.rows is not None:
            assert self.uploads.risk is not None
            return solve_users(self.rows, self.uploads.risk)
        from odcl.local.terms import least_squares

        return least_squares(self.uploads)

    def __reduce__(self) -> tuple[Any, ...]:
        solved = self.solved if self.rows is None else self.solution
        return LocalModels, (self.uploads, self.n_rows, solved)

    @property
    def users(self) -> Array:
        return self.uploads.users

    @property
    def theta(self) -> Floats:
        """theta-hat_i, (n_users, dim): in the upload only where the method looks at it."""
        return self.solution.theta

    @property
    def converged(self) -> Bools:
        return self.solution.converged

    @property
    def prior(self) -> Bools:
        """No finite minimiser: fitted with a small prior, (n_users,)."""
        return self.solution.prior


def fit_users(
    federation: Federation,
    risk: Risk,
    *,
    terms: bool = False,
    short_terms: bool = True,
    privacy: Privacy | None = None,
    solver: Any = "exact",
    seed: int = 0,
    n_jobs: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> LocalModels:
    """Fit every user on its own rows (Algorithm 1, step 1).

    ``solver`` is ``"exact"``, an :class:`~odcl.local.solvers.ProjectedSGD` (I-ODCL), or any
    scikit-learn estimator with ``coef_`` and ``intercept_``. With ``terms`` users send their data
    terms and not their models; without ``short_terms``, what is left of a user with fewer rows than
    parameters is the average of its rows. With ``privacy`` everything that they send has noise.
    """
    if risk.dim(federation.n_features) == 0:
        raise ValueError("There is nothing to fit: the rows have no features, and no intercept.")
    _check_rows(federation)
    users, n = federation.users, federation.n_samples
    if privacy is not None:
        from odcl.privacy.looks import private_upload

        uploads = Uploads(users, risk=risk, **private_upload(federation, risk, privacy))
        return LocalModels(uploads, federation.n_rows, None, federation)
    with one_thread(federation.n_features):
        if terms:
            from odcl.local.terms import user_terms

            sent = user_terms(federation, risk, short_terms=short_terms)
            uploads = Uploads(users, n, risk=risk, **sent)
            if isinstance(solver, str) and solver == "exact":
                if progress is not None:
                    progress(federation.n_users)
                whole = risk.loss.name == "squared" and uploads.observations is None
                whole &= uploads.factor is not None
                return LocalModels(uploads, federation.n_rows, None, None if whole else federation)
        solved = _solve(federation, risk, solver, seed, n_jobs, progress)
        if not terms:
            uploads = Uploads(users, n, risk=risk, theta=solved.theta)
        return LocalModels(uploads, federation.n_rows, solved)


def _check_rows(federation: Federation) -> None:
    """One number that is not finite would spoil its user's model, so it is named here."""
    with np.errstate(all="ignore"):
        if np.isfinite(federation.X.sum()):  # a quick look; a sum may overflow where no entry does
            return
    bad: Bools = np.asarray(~np.isfinite(federation.X).all(axis=1))
    if bad.any():
        user = federation.users[federation.row_user[bad]].tolist()[0]
        raise ValueError(
            f"{int(bad.sum())} of {len(bad)} rows (first: one of user {user!r}) hold features that "
            "are not finite numbers. Drop or fill such rows first."
        )


def _solve(
    federation: Federation,
    risk: Risk,
    solver: Any,
    seed: int,
    n_jobs: int | None,
    progress: Callable[[int], None] | None,
) -> Solution:
    if isinstance(solver, str) and solver == "exact":
        return solve_users(federation, risk, n_jobs=n_jobs, progress=progress)
    if isinstance(solver, str) and solver == "sgd":
        from odcl.local.solvers import ProjectedSGD

        solver = ProjectedSGD()
    if hasattr(solver, "solve_users"):
        return solver.solve_users(federation, risk, seed=seed)
    if hasattr(solver, "fit"):
        from odcl.local.solvers import fit_with_estimator

        return fit_with_estimator(solver, federation, risk, seed=seed, n_jobs=n_jobs)
    raise ValueError(
        f"solver={solver!r} is neither 'exact', 'sgd', a ProjectedSGD, nor an estimator with fit()."
    )
