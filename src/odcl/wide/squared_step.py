"""The last step of a wide user with squared loss: ridge around its groups' model, or around zero.

One decomposition of the user's rows serves all strengths. A ridge fit is a linear smoother H, so
that residuals of rows held out follow from the fit on all rows,

    e_out = (I - H_out,out)^-1 (r - H r)_out,

without another fit. Candidates weigh prior times (squared error on these rows)^(-n/2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import log_softmax

from odcl._typing import Floats, Ints
from odcl.data.federation import Federation
from odcl.risk.risk import Risk
from odcl.wide.last_step import (
    AS_THEY_ARE,
    DOUBT,
    FEWEST_ROWS,
    ON_ITS_OWN,
    UserRows,
    WideStep,
)
from odcl.wide.moments import WideGroups
from odcl.wide.slopes import RowSpan

# Noise over the variance that a user's own slopes bring into its targets; infinite: only a level.
STRENGTHS = 10.0 ** np.linspace(-3, 2, 11)
USUAL = 20.0  # rows' worth of the group's noise in what is told of a user's own
LEVEL_ONLY = (np.inf, 0.3)  # pull on slopes, and on the level in rows' worth


def wide_last_step_squared(
    federation: Federation,
    risk: Risk,
    groups: WideGroups,
    prior: Floats,
    fold: Ints | None = None,
) -> WideStep:
    """Every user's last step; ``prior`` (n_users, K) are its probabilities of groups.

    Users who took part are scored by groups without their ``fold`` (n_users,): their own rows speak
    through the groups of everybody.
    """
    assert groups.noise is not None
    group_models = groups.scores[..., 0] if risk.intercept else groups.scores[..., :-1, 0]
    noise, alike = groups.noise, groups.alike
    m, K = federation.n_users, group_models.shape[1]
    index = np.zeros(m, dtype=np.intp) if fold is None else 1 + fold
    y = risk.loss.encode(federation.y)
    rows_of = _Rows.by_user(federation, risk, y, np.zeros(len(y), dtype=np.intp))
    models, shares = np.empty((m, group_models.shape[2])), np.empty((m, K))
    errors, unit = np.empty(m), groups.unit  # whose group is uncertain is uncertain by as much
    for i in range(m):
        rows = rows_of(i)
        share = rows.shares(group_models[index[i]], noise, prior[i])
        around = share @ group_models[index[i]]  # (F + 1, dim)
        model, s2 = share[-1] @ group_models[0], float(share[-1] @ noise)
        pull = s2 / groups.level if groups.level else np.inf
        models[i], error = rows.model(around, model, alike, pull)
        n = float(rows.weight.sum())
        told = n if len(rows.y) >= FEWEST_ROWS else 0.0
        usual = s2 + (s2 / (n + pull) if n else groups.level)
        errors[i] = (USUAL * usual + error) / (USUAL + told)
        apart = (group_models[0] - model)[:, : len(unit)] * unit
        errors[i] += share[-1] @ (apart**2).sum(axis=1)
        shares[i] = share[-1]
    return WideStep(models, shares, errors)


class _Rows(UserRows):
    """A user's rows and their numbers."""

    def shares(self, models: Floats, noise: Floats, prior: Floats) -> Floats:
        """Probabilities of the groups without each fold of rows and with all, (F + 1, K).

        Levels may be users' own: with an intercept they are taken out, here as at the server.
        """
        apart = self.y[:, None] - self.risk.design(self.X) @ models.T
        kept = self.kept
        n = kept.sum(axis=1, keepdims=True)
        if self.risk.intercept:
            apart = apart - self.weight @ apart / self.weight.sum()
        squares = kept @ apart**2
        if self.risk.intercept:
            squares -= (kept @ apart) ** 2 / np.maximum(n, 1e-300)
            n = np.maximum(n - 1, 0.0)
        nats = np.log(prior + DOUBT) - 0.5 * (squares / noise + n * np.log(noise))
        return np.asarray(np.exp(log_softmax(nats, axis=-1)))

    def model(
        self, around: Floats, model: Floats, alike: bool, pull: float
    ) -> tuple[Floats, float]:
        """The user's model, and squared errors held out.

        Candidates are scored around the groups' models without each fold of rows, (F + 1, dim), and
        fitted around ``model`` (dim,), that of everybody; the first has a level of its own at most.
        """
        if not len(self.y):
            return model, 0.0
        ridge, inputs = _Ridge.of(self), self.risk.design(self.X)
        leaning, alone = ridge.shrunk(True, pull), ridge.shrunk(False, pull)
        if len(self.y) < FEWEST_ROWS:
            return model + ridge.model(self.y - inputs @ model, leaning[0]), 0.0
        apart = self.y - around @ inputs.T
        own = np.broadcast_to(self.y, apart.shape)
        errors = [ridge.errors(apart, leaning), ridge.errors(own, alone)]
        counts = np.array([1, len(leaning) - 1, len(alone)])
        as_it_is, own_way = AS_THEY_ARE[alike], ON_ITS_OWN[alike]
        prior = np.array([as_it_is, 1 - as_it_is - own_way, own_way]) / counts
        total: Floats = np.concatenate(errors)
        total = np.maximum(total, 1e-12 * total.max() + 1e-300)
        nats = np.log(np.repeat(prior, counts)) - self.weight.sum() / 2 * np.log(total)
        share = np.exp(log_softmax(nats, axis=-1))
        lean, free = np.split(share, [len(leaning)])
        found = (1 - free.sum()) * model + ridge.model(self.y, free @ alone)
        found = found + ridge.model(self.y - inputs @ model, lean @ leaning)
        return found, float(share @ total)


@dataclass(frozen=True, eq=False)
class _Ridge:
    """Ridge fits to one user's rows: a smoother is U diag(shrunk) U^T on weighted rows."""

    span: RowSpan
    U: Floats  # (n, r + 1), orthonormal columns, the level last
    root: Floats  # (n,), of the weights
    fold: Ints  # (n,)
    intercept: bool

    @classmethod
    def of(cls, rows: _Rows) -> _Ridge:
        intercept = rows.risk.intercept
        span = RowSpan.of(rows.X, rows.weight, np.ones(rows.X.shape[1]), intercept)
        root, length = np.sqrt(rows.weight), np.sqrt(np.where(span.size > 0, span.size, 1.0))
        return cls(span, root[:, None] * span.Z / length, root, rows.fold, intercept)

    def shrunk(self, leaning: bool, pull: float) -> Floats:
        """What is left of a coordinate under each strength, (strengths, r + 1).

        A user that leans on its groups has a level of its own under the same pull as its slopes, or
        under that of all users' levels, if weaker: infinite where levels do not vary. One that
        leans on nothing has a free level.
        """
        slopes, level = STRENGTHS, np.zeros(len(STRENGTHS))
        if leaning:
            slopes = np.concatenate([[np.inf, LEVEL_ONLY[0]], STRENGTHS])
            level = np.minimum(pull, np.concatenate([[np.inf, LEVEL_ONLY[1]], STRENGTHS]))
        size, total = self.span.size[:-1], self.span.size[-1]
        unit = max(size.sum() / total, 1e-290)
        each = size / (size + unit * slopes[:, None])
        own = total / (total + level) * self.intercept
        return np.concatenate([each, own[:, None]], axis=1)

    def errors(self, target: Floats, shrunk: Floats) -> Floats:
        """Squared errors on the rows held out; targets differ by fold, (F + 1, n)."""
        total = np.zeros(len(shrunk))
        for f in np.unique(self.fold):
            out = self.fold == f
            t, U = self.root * target[f], self.U[out]
            e = t[out] - (shrunk * (t @ self.U)) @ U.T  # (strengths, out)
            if len(U) <= U.shape[1]:
                kept = np.eye(len(U)) - np.matmul(U * shrunk[:, None], U.T)
                e = np.linalg.solve(kept, e[..., None])[..., 0]
            else:
                # (I - U S U')^-1 = I + U (I - S U'U)^-1 S U'
                inner = np.eye(U.shape[1]) - shrunk[:, :, None] * (U.T @ U)
                e = e + np.linalg.solve(inner, (shrunk * (e @ U))[..., None])[..., 0] @ U.T
            total += (e**2).sum(axis=1)
        return total

    def model(self, target: Floats, shrunk: Floats) -> Floats:
        """The fit to all rows, (dim,), with these shares of the coordinates, (r + 1,)."""
        length = np.sqrt(np.where(self.span.size > 0, self.span.size, 1.0))
        b = shrunk * ((self.root * target) @ self.U) / length
        found = self.span.coefficients(b[None])[:, 0]
        return found if self.intercept else found[:-1]
