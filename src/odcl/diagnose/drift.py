"""Do the models still hold? New rows of known users against what the models promise of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation, positions
from odcl.fitted.predict import predict_rows
from odcl.fitted.users import place_user
from odcl.fitted.value import Fitted
from odcl.mixed.layout import model_map
from odcl.risk.loss import weighted_gram
from odcl.risk.risk import Risk
from odcl.server.assign import far_out

FALSE_USERS = 0.05  # share of named users who did not move; if none did, chance of naming any
FALSE_GROUPS = 0.01  # chance of naming a group where none moved
LEAST = 3  # rows of a user, or members of a group: with fewer, one odd row or user is a change
MANY = 0.2  # share of users from which it is not they who moved, but the world
WORSE, SURE = 1.05, 3.0  # times the promised error, and standard errors, from which it matters
NOISIER = 1.25  # times the noise of the fit, for the user in the middle
STEPS = 15  # of Newton's method, each of at most 2 in a log-odds or a log-rate


@dataclass(frozen=True, eq=False, repr=False)
class Drift:
    """What new rows say about fitted models: ``print(drift)`` is the report.

    Users and groups are named as moved so that hardly any are while the models hold.
    """

    users: Array  # (n_users,), known users with new rows
    labels: Ints  # (n_users,), their groups, -1: none
    rows: Ints  # (n_users,), new rows
    offset: Floats  # (n_users,), mean of target less prediction; NaN: more than two classes
    chance: Floats  # (n_users,), of being this far off without having moved; NaN: too few rows
    nearest: Ints  # (n_users,), group that the new rows of users who moved point to, -1: none
    groups: Floats  # (n_groups,), chance of members so far off together; NaN: too few members
    shifts: tuple[
        dict[str, float], ...
    ]  # (n_groups,), coefficients of groups that moved, by how much
    measures: dict[str, tuple[float, float]]  # on the new rows, and as the models promise
    worse: float  # standard errors by which the new rows' error is above the promised one
    noise: float  # of a typical user's new rows, in units of the fit's, from 1 on
    strangers: Array  # users who have rows and no model
    absent: int  # users who have a model and no rows

    @property
    def moved_groups(self) -> Ints:
        """Groups whose members moved together."""
        return np.flatnonzero(self.groups < FALSE_GROUPS / len(self.groups))

    @property
    def moved(self) -> Ints:
        """Users who moved by themselves, the surest first: positions in ``users``."""
        from scipy.stats import false_discovery_control

        told = np.flatnonzero(~np.isnan(self.chance))
        some = (
            told[false_discovery_control(self.chance[told]) <= FALSE_USERS] if len(told) else told
        )
        return some[np.argsort(self.chance[some], kind="stable")]

    @property
    def verdict(self) -> str:
        """ "holds", "update" the users who moved, or "refit"."""
        n, told = len(self.moved), int((~np.isnan(self.chance)).sum())
        now, promised = next(iter(self.measures.values()))
        broken = self.worse > SURE and now > WORSE * promised and (not n or self.noise > NOISIER)
        if len(self.moved_groups) or broken or n > max(MANY * told, 2):
            return "refit"
        return "update" if n else "holds"

    def columns(self) -> dict[str, Any]:
        """One row per user, as columns: ``pandas.DataFrame(drift.columns())``."""
        remark = np.where(np.isnan(self.chance), "too few rows to tell", "").astype(object)
        remark[self.moved] = "moved"
        names = ("group", "new_rows", "offset", "chance", "nearest")
        values = (self.labels, self.rows, self.offset, self.chance, self.nearest)
        return {"user": self.users, **dict(zip(names, values, strict=True)), "remark": remark}

    def __str__(self) -> str:
        from odcl.report.diagnosis import drift_text

        return drift_text(self)


def drift_of(fitted: Fitted, new_rows: Federation) -> Drift:
    """Compare design rows with encoded targets with the models of a fit with mixed groups."""
    fitted, n_users = fitted.holding(new_rows.users), fitted.n_users
    mixture, users = fitted.mixed, fitted.users
    if mixture is None or users.covariance is None:
        raise fitted.without_mixture("Promises about new rows")
    place = positions(users.users, new_rows.users)
    at, rows = place[place >= 0], new_rows.take(np.flatnonzero(place >= 0))
    if len(at) == 0:
        raise ValueError(
            "None of these rows' users has a model: add them first (add_user, or `odcl assign "
            "--add`), and ask again with rows that come later."
        )
    risk, user, n, labels = fitted.risk, rows.row_user, rows.n_rows, users.group[at]
    measures, excess, residual, variance = _promises(fitted, rows)
    several, noise = n >= LEAST, 1.0
    if not risk.loss.classification and several.any():
        # One outlying row is not noise; the median of chi-squared / n is about (1 - 2 / 9n)^3.
        square = np.bincount(user, np.minimum(residual**2 / variance, 16.0)) / n
        noise = max(1.0, float(np.median((square / (1 - 2 / (9 * n)) ** 3)[several])))
    times = mixture.noise.s0  # of counts: as many times more than their law as the fit saw
    phi = noise * (np.full(len(n), times) if users.noise is None else users.noise[at])
    # Sums over few rare events have heavy tails, as if few rows had told their variance; by the
    # kurtosis of negative binomial counts.
    few = np.bincount(user, 8 * variance) / (1 + 6 * times * (times - 1)) + 1e-3
    dof = few if users.dof is None else users.dof[at]
    scaled = rows.with_X(fitted.scaling.apply(rows.X))
    own = zip(scaled, users.model[at], users.covariance[at], phi, strict=True)
    each = [_evidence(X, y, risk, theta, V, s2) for (_, X, y), theta, V, s2 in own]
    h, P = np.array([one[0] for one in each]), np.array([one[1] for one in each])
    # A user moves in lines: of the shape of curves, which all share, its few rows are no witness.
    q, width = risk.n_outputs, fitted.scaling.width
    own = np.r_[: risk.n_lines(width) * q, width * q : h.shape[1]]

    def alone(i: Any, shift: Floats | float = 0.0) -> float:
        left = h[i] - P[i] @ np.broadcast_to(shift, h[i].shape)
        return float(far_out(left[own], P[i][np.ix_(own, own)], dof[i])[0])

    chance = np.array([alone(i) for i in range(len(h))])
    change = model_map(mixture, risk)[1]
    groups, shifts = np.full(len(mixture.centers), np.nan), list[dict[str, float]]()
    for k, C in enumerate(change @ mixture.covariances @ change.T):
        members = np.flatnonzero(labels == k)
        held = members[
            np.argsort(chance[members], kind="stable")[1:]
        ]  # a single user is not a group
        hk, Pk = h[held].sum(axis=0), P[held].sum(axis=0)
        shifts.append({})
        if len(held) >= LEAST:
            groups[k] = far_out(hk, Pk + Pk @ C @ Pk, dof[held].sum())[0]
        if groups[k] < FALSE_GROUPS / len(groups):
            inverse = np.linalg.pinv(Pk, rcond=1e-10, hermitian=True)
            shift, error = inverse @ hk, np.sqrt(np.diag(inverse + C))
            chance[members] = [alone(i, shift) for i in members]
            if risk.n_outputs == 1:
                bends = [f"the curve of {c.name}" for c in risk.curves for _ in c.columns]
                names = [*fitted.units, *bends, "level"]
                scale = [*fitted.units.values(), *np.ones(len(bends) + 1)]
                sure = np.abs(shift) / error
                some = [j for j in np.argsort(-sure) if sure[j] > SURE or sure[j] == sure.max()]
                moved = {names[j]: float(shift[j] / scale[j]) for j in some[2::-1]}
                shifts[k] = dict(reversed(moved.items()))  # the surest first, of a curve once
    chance[~several] = np.nan
    off = np.array([np.bincount(user, one) for one in excess])  # by user: rows are not alone
    worse = float((off.sum(axis=1) / np.sqrt((off**2).sum(axis=1) + 1e-300)).max())
    found = Drift(
        *(rows.users, labels, n, np.bincount(user, residual) / n, chance, np.full(len(n), -1)),
        *(groups, tuple(shifts), measures, worse, float(np.sqrt(noise))),
        *(new_rows.users[place < 0], n_users - len(at)),
    )
    for i in found.moved:
        found.nearest[i] = place_user(fitted, scaled.X[rows.rows(i)], rows.y[rows.rows(i)]).label
    return found


def _promises(
    fitted: Fitted, rows: Federation
) -> tuple[dict[str, Any], list[Floats], Floats, Floats]:
    """Measures; of each row error and miss beyond what is promised, residual and variance."""
    y, users = rows.y, rows.users[rows.row_user] if fitted.has_users else None
    promised = predict_rows(fitted, rows.X, users, unsure=True)
    if fitted.risk.loss.classification:
        p = np.maximum(promised.probabilities, 1e-300)
        at, best = np.maximum(y, 0).astype(np.intp), p.max(axis=1)
        loss, entropy = -np.log(p[np.arange(len(p)), at]), -(p * np.log(p)).sum(axis=1)
        hit = p.argmax(axis=1) == at
        residual = at.astype(np.float64) - p[:, 1]
        measures = {"log-loss": (loss.mean(), entropy.mean())}
        measures |= {"likeliest class is right": (hit.mean(), best.mean())}
        residual = residual if p.shape[1] == 2 else np.full(len(p), np.nan)
        return measures, [loss - entropy, best - hit], residual, best * (1 - best)
    mean, std, (low, high) = promised.means, promised.std(), promised.interval(0.9)
    square, hit = (y - mean) ** 2, (low <= y) & (y <= high)
    measures = {"RMSE": (np.sqrt(square.mean()), np.sqrt((std**2).mean()))}
    measures |= {"inside 90 % intervals": (hit.mean(), 0.9)}
    miss = 0.9 - hit.astype(np.float64)
    return measures, [square - std**2, miss], y - mean, std**2


def _evidence(
    X: Floats, y: Floats, risk: Risk, theta: Floats, V: Floats, phi: float
) -> tuple[Floats, Floats]:
    """(h, P) of a user's new rows: h ~ N(P d, P) if its model has moved by d.

    With their score u and curvature G, P = (I + G V)^-1 G and h = (I + G V)^-1 u, for the model was
    known up to V. Both are taken at the model that rows and V make likeliest: where curvature
    varies, a model that is hardly known may be far off.
    """
    loss, D, d = risk.loss, risk.design(X), np.zeros(len(theta))
    for _ in range(1 if loss.has_data_terms else STEPS):
        z = D @ (theta + d).reshape(D.shape[1], -1)
        bend = np.ones((*z.shape, 1)) if loss.has_data_terms else loss.curve(z, y)
        G = weighted_gram(D.T[None], bend[None])[0] / phi
        u = (D.T @ -loss.slope(z, y)).ravel() / phi + G @ d
        both = np.linalg.solve(np.eye(len(G)) + G @ V, np.column_stack([u, G]))
        step = V @ both[:, 0] - d
        reach = float(np.abs(D @ step.reshape(D.shape[1], -1)).max())
        d = d + step * min(1.0, 2 / max(reach, 1e-9))
    return both[:, 0], (both[:, 1:] + both[:, 1:].T) / 2
