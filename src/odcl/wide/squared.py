"""Wide users and squared loss: groups from the scores of a common model, models from exact terms.

A user sends its averages and a thin factor (X, y) of its centered rows. At one ridge model for all,
its score X'(y - X theta) / n has the mean Sigma (theta_i - theta): directions in which scores
differ are those in which users do. Once groups are seen, each group's ridge model is fitted to the
factors of its users, and users are placed again by what the models without their fold lose on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from odcl._typing import Array, Bools, Floats
from odcl.data.federation import id_keys
from odcl.wide.moments import FOLDS, ClassMoments, Folds, WideGroups, at_least_usual, user_folds

RIDGES = 10.0 ** np.linspace(-3, 2, 11)  # in average variances of a column
ASKED = 2  # folds that choose a ridge: each costs a factorization for every group and ridge
DRAWS = 16  # rows of a user's factor that tell how scores scatter
SWEEPS = 5
FEWEST_LEVELS = 5  # users who show how levels vary


@dataclass(frozen=True, eq=False)
class ThinTerms:
    """Averages and thin factors of users' rows."""

    users: Array  # (m,), ids
    rows: Floats  # (m,)
    told: Floats  # (m,), degrees of freedom that the factors hold: of a sketch its own rows
    means: Floats  # (m, d + 1), features and target
    factor: Array  # (m, rank, d + 1), of centered rows
    intercept: bool = True

    @cached_property
    def folds(self) -> Folds:
        of = user_folds(self.users)
        return Folds(of if len(np.unique(of)) > 1 else np.arange(len(of)) % 2)

    @cached_property
    def free(self) -> Floats:
        """Degrees of freedom of the users' rows around their averages, (m,)."""
        return np.maximum(self.rows - 1, 1e-9)

    @cached_property
    def unit(self) -> float:
        """The average variance of a column inside users."""
        size = sum(float((F[:, :-1].astype(np.float64) ** 2).sum()) for F in self.factor)
        return size / max(float(self.rows.sum()), 1.0) / (self.factor.shape[2] - 1) or 1.0

    def sums(self, r: Floats) -> Floats:
        """Scatter of features and target in each fold and group, (folds, K, d + 1, d + 1)."""
        width, members = self.factor.shape[2], self.folds.members
        total = np.zeros((len(members), r.shape[1], width, width))
        for f, some in enumerate(members):
            for k in range(r.shape[1]):
                own = r[some, k]
                kept = own > 1e-6
                rows = np.sqrt(own[kept])[:, None, None] * self.factor[some][kept]
                rows = rows.reshape(-1, width)
                rows = rows[rows.any(axis=1)].astype(np.float64)
                total[f, k] = rows.T @ rows
        return total

    def losses(self, some: Bools, models: Floats) -> Floats:
        """Squared errors of some users by models (K, d), (users, K), own levels taken out.

        As many of them as the factors tell of: a sketch of many rows is no surer than its own few.
        """
        found = [self._errors(F.astype(np.float64), models) for F in self.factor[some]]
        share = (self.told / self.free)[some, None]
        return share * np.array(found).reshape(-1, len(models))

    @staticmethod
    def _errors(F: Floats, models: Floats) -> Floats:
        return np.asarray(((F[:, -1:] - F[:, :-1] @ models.T) ** 2).sum(axis=0))

    def held_out(self, models: Floats) -> Floats:
        """Squared errors of each user by the models (folds, K, d) without its fold, (m, K)."""
        found = np.empty((len(self.rows), models.shape[1]))
        for some, own in zip(self.folds.members, models, strict=True):
            found[some] = self.losses(some, own)
        return found

    def shares(self, groups: WideGroups) -> Floats:
        """Shares in the groups of users who took no part, (m, K)."""
        assert groups.noise is not None
        losses = self.losses(np.ones(len(self.rows), np.bool_), groups.scores[0, :, :-1, 0])
        return shares_by_losses(losses, self.told, groups.weights, groups.noise)

    def levels(self, models: Floats) -> Floats:
        """Users' average residuals by the slopes (K, d) of groups, (m, K)."""
        return np.asarray(self.means[:, -1:] - self.means[:, :-1] @ models.T)

    def scores(self, model: Floats) -> ClassMoments:
        """Users' scores at one model, (d,), as the moments of one class."""
        m, _, width = self.factor.shape
        means, draws = np.zeros((m, 1, width - 1)), []
        for i, key in enumerate(id_keys(self.users)):
            F = self.factor[i][self.factor[i].any(axis=1)].astype(np.float64)
            X, residual = F[:, :-1], F[:, -1] - F[:, :-1] @ model
            means[i, 0] = X.T @ residual / self.free[i]
            # Rows of a triangle are not alike, and those of two users are: combinations are drawn.
            size = np.sqrt(len(F) * (residual**2).sum()) / self.free[i]
            draws.append(size * (_mixing(len(F), key) @ X if len(F) > DRAWS else X))
        owner = np.repeat(np.arange(m), [len(own) for own in draws])
        of = np.zeros(len(owner), np.intp)
        told = self.told[:, None]
        return ClassMoments(self.users, told, means, np.vstack(draws), owner, of, width - 1)


def _mixing(n: int, key: int) -> Floats:
    """A few random orthonormal combinations of n rows, (DRAWS, n)."""
    return np.linalg.qr(np.random.default_rng(key).standard_normal((n, DRAWS)))[0].T


def ridge(total: Floats, strength: float) -> Floats:
    """The ridge model of a scatter of features and target, (d,)."""
    A = total[:-1, :-1].copy()
    A.flat[:: len(A) + 1] += strength
    return np.asarray(cho_solve(cho_factor(A, overwrite_a=True), total[:-1, -1]))


def pooled_model(terms: ThinTerms) -> Floats:
    """One ridge model for all users, its strength by users held out, (d,)."""
    every = np.ones((len(terms.rows), 1))
    sums = terms.sums(every)
    return ridge(sums[:, 0].sum(axis=0), _best_strength(terms, every, sums))


def _best_strength(terms: ThinTerms, r: Floats, sums: Floats) -> float:
    """The strength whose models lose least on users held out: downhill along the path."""
    every, path = sums.sum(axis=0), RIDGES * terms.unit * terms.rows.sum() / r.shape[1]
    asked, costs = terms.folds.members[:ASKED], dict[int, float]()

    def cost(at: int) -> float:
        if at not in costs:
            models = _without(every, sums[:ASKED], path[at])
            lost = (
                r[some] * terms.losses(some, own) for some, own in zip(asked, models, strict=True)
            )
            costs[at] = sum(float(one.sum()) for one in lost)
        return costs[at]

    at = len(path) // 2
    while True:
        near = [j for j in (at - 1, at, at + 1) if 0 <= j < len(path)]
        best = min(near, key=cost)
        if best == at:
            return float(path[at])
        at = best


def _without(every: Floats, sums: Floats, strength: float) -> Floats:
    """Each group's model without each fold, (folds, K, d)."""
    return np.stack([[ridge(one, strength) for one in every - part] for part in sums])


def refine(
    terms: ThinTerms, r: Floats, admissible: Callable[[Floats], bool]
) -> tuple[Floats, float, Floats]:
    """Shares in groups by exact losses, the strength of ridges, and the groups' noise.

    Whoever is in a group speaks through its model; placed is it by the model without its fold.
    """
    sums = terms.sums(r)
    strength, s2 = _best_strength(terms, r, sums), np.ones(r.shape[1])
    for _ in range(SWEEPS):
        losses = terms.held_out(_without(sums.sum(axis=0), sums, strength))
        s2 = (r * losses).sum(axis=0) / np.maximum(r.T @ terms.told, 1e-9)
        if not s2.any():  # nobody has two rows: levels are all that is known
            s2 = np.full(len(s2), float(terms.means[:, -1].var()) or 1.0)
        if r.shape[1] == 1:
            break
        s2 = np.maximum(s2, 1e-12 * s2.max() + 1e-300)
        new = shares_by_losses(losses, terms.told, r.mean(axis=0), s2)
        moved = np.abs(new - r).max()
        if not admissible(new):
            break
        r, sums = new, terms.sums(new)
        if moved < 1e-3:
            break
    return r, strength, s2


def shares_by_losses(losses: Floats, told: Floats, weights: Floats, s2: Floats) -> Floats:
    """Users' shares in groups with these noise variances, by squared errors, (m, K)."""
    fits = -0.5 * (losses / s2 + told[:, None] * np.log(s2))
    return softmax(fits + np.log(np.maximum(weights, 1e-12)), axis=1)


def held_out_cost(terms: ThinTerms, r: Floats) -> float:
    """What groups' models lose on users held out, in nats."""
    sums = terms.sums(r)
    strength = _best_strength(terms, r, sums)
    losses = terms.held_out(_without(sums.sum(axis=0), sums, strength))
    n = max(float(terms.told.sum()), 1e-300)
    return 0.5 * n * float(np.log(max((r * losses).sum() / n, 1e-300)))


def group_regressions(
    terms: ThinTerms, r: Floats, admissible: Callable[[Floats], bool], *, alike: bool
) -> tuple[Floats, WideGroups]:
    """Users' shares in the groups, and each group's model from everybody and without each fold."""
    r, strength, s2 = refine(terms, r, admissible)
    sums = terms.sums(r)
    every = sums.sum(axis=0)
    models = np.stack([ridge(one, strength) for one in every])
    level = level_variance(terms, r, models, s2)
    scores = np.tile(_with_levels(terms, r, models, s2, level), (1 + FOLDS, 1, 1))
    own = user_folds(terms.users)
    if len(np.unique(own)) > 1:
        for some, part in zip(terms.folds.members, sums, strict=True):
            held = np.stack([ridge(one, strength) for one in every - part])
            fold = int(own[some][0])
            others = np.where(some[:, None], 0.0, r)
            scores[1 + fold] = _with_levels(terms, others, held, s2, level)
    else:
        scores[1:] = 0.0
    sd = np.sqrt(np.diagonal(every.sum(axis=0))[:-1] / terms.rows.sum())
    one, unit = np.ones((r.shape[1], 1)), at_least_usual(sd)
    return r, WideGroups(r.mean(axis=0), scores[..., None], one, 1.0, unit, alike, s2, level)


def level_variance(terms: ThinTerms, r: Floats, models: Floats, s2: Floats) -> float:
    """How users' levels vary around their group's, beyond the noise of their rows.

    A user's average residual by its group's slopes has the variance v + s2 / rows. The likeliest v
    is taken where its gain is more than BIC asks for one more number, else 0.
    """
    there = terms.rows > 0
    if not terms.intercept or there.sum() < FEWEST_LEVELS:
        return 0.0
    own, share, noise = terms.levels(models)[there], r[there], s2 / terms.rows[there, None]

    def cost(v: float) -> float:
        """Twice the negative log-likelihood, up to a constant."""
        weight = share / (v + noise)
        away = own - (weight * own).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-300)
        return float((weight * away**2 + share * np.log(v + noise)).sum())

    most = float((share * (own - own.mean(axis=0)) ** 2).sum())
    if not most > 0:
        return 0.0
    tried = most * 10.0 ** np.linspace(-8, 0, 33)
    at = int(np.argmin([cost(v) for v in tried]))
    near = np.log(tried[[max(at - 1, 0), min(at + 1, len(tried) - 1)]])
    v = float(np.exp(minimize_scalar(lambda x: cost(np.exp(x)), bounds=near, method="bounded").x))
    return v if cost(0.0) - cost(v) > np.log(there.sum()) else 0.0


def _with_levels(terms: ThinTerms, r: Floats, models: Floats, s2: Floats, level: float) -> Floats:
    """Models with the intercepts of their groups, (K, d + 1): means of users' own levels."""
    mean = np.zeros(len(models))
    if terms.intercept:
        own, n = terms.levels(models), terms.rows[:, None]
        weight = r * n / (1 + n * level / s2)
        mean = (weight * own).sum(axis=0) / np.maximum(weight.sum(axis=0), 1e-300)
    return np.column_stack([models, mean])
