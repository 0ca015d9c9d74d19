"""A wide user's last step: its group, and how far it leaves it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from odcl.data.federation import Federation
from odcl.local.predict import predicted_rows
from odcl.wide import last_step
from odcl.wide.last_step import stratified_folds, wide_last_step
from tests.wide.worlds import World, risk_of


def log_losses(step, risk, new, their):
    """Mean loss of each user's new rows, (m,)."""
    m, n, d = new.shape
    where = np.repeat(np.arange(m), n)
    p = predicted_rows(new.reshape(-1, d), step.models, where, risk)
    own = p[np.arange(m * n), their.ravel()]
    return -np.log(np.maximum(own, 1e-300)).reshape(m, n).mean(axis=1)


def alone(federation, new, their):
    """Loss of one LogisticRegression per user."""
    found = []
    for (_, X, y), rows, labels in zip(federation, new, their, strict=True):
        p = LogisticRegression(max_iter=1000).fit(X, y).predict_log_proba(rows)
        found.append(-p[np.arange(len(labels)), labels].mean())
    return np.array(found)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_few_rows_leave_a_user_at_its_group(n_classes):
    world = World(2, n_classes, 150)
    group = np.arange(20) % 2
    federation, new, their = world.users(group, 6)
    risk, groups = risk_of(n_classes), world.groups
    step = wide_last_step(federation, risk, groups, np.eye(2)[group])
    assert_array_equal(step.group, group)
    best = -log_softmax(new @ groups.scores[0, group, :-1] + groups.scores[0, group, None, -1], -1)
    best = np.take_along_axis(best, their[:, :, None], axis=2)[:, :, 0].mean(axis=1)
    assert (log_losses(step, risk, new, their) < best + 0.02).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_many_rows_make_up_for_a_group_that_is_wrong(n_classes):
    """The group's scores are another group's: at most log(100) nats are lost to find out."""
    world = World(2, n_classes, 60, alike=False, apart=0.3)
    federation, new, their = world.users(np.zeros(6, int), 150)
    groups = world.groups
    wrong = replace(groups, scores=groups.scores[:, 1:])
    wrong = replace(wrong, weights=np.ones(1), shares=groups.shares[1:])
    risk = risk_of(n_classes)
    step = wide_last_step(federation, risk, wrong, np.ones((6, 1)))
    mine, theirs = log_losses(step, risk, new, their), alone(federation, new, their)
    assert mine.mean() < theirs.mean()
    assert (mine < theirs + 0.12).all()


def test_users_who_differ_gain_over_their_group_and_over_themselves():
    world = World(1, 4, 120, differ=0.35, apart=0.3, alike=False)
    federation, new, their = world.users(np.zeros(12, int), 60)
    risk = risk_of(4)
    step = wide_last_step(federation, risk, world.groups, np.ones((12, 1)))
    few = federation.select_rows(np.arange(len(federation.y)) % 60 < 3)
    group = wide_last_step(few, risk, world.groups, np.ones((12, 1)))
    mine = log_losses(step, risk, new, their).mean()
    assert mine < 0.9 * log_losses(group, risk, new, their).mean()
    assert mine < alone(federation, new, their).mean()


def test_own_rows_overrule_the_server_and_place_new_users():
    world = World(3, 2, 100)
    group = np.arange(12) % 3
    federation, _, _ = world.users(group, 12)
    wrong = np.eye(3)[(group + 1) % 3]
    risk, groups = risk_of(2), world.groups
    for given in (wrong, np.full((12, 3), 1 / 3)):
        step = wide_last_step(federation, risk, groups, given)
        assert_array_equal(step.group, group)
        assert (step.sure > 0.9).all()


def test_a_user_without_evidence_has_the_average_of_its_groups_scores():
    """One row far from all that tells groups apart: probabilities stay those of the server."""
    world = World(2, 3, 20)
    groups, risk = world.groups, risk_of(3)
    federation = Federation.from_arrays(np.zeros((1, 20)), np.array([1]), np.array([7]))
    same = replace(groups, scores=groups.scores.copy())
    same.scores[..., -1, :] = 0.0  # at zero all groups say the same
    step = wide_last_step(federation, risk, same, np.array([[0.7, 0.3]]))
    share = (np.array([0.7, 0.3]) + last_step.DOUBT) / (1 + 2 * last_step.DOUBT)
    counts = np.array([0.0, 1.0, 0.0])
    expected = np.tensordot(share, same.scores[0], axes=1)
    expected[-1] = np.log((counts + 50 / 3) / 51)
    assert_allclose(step.models[0], (expected @ risk.loss.basis).ravel(), atol=1e-12)
    assert_allclose(step.sure, share[:1])


@pytest.mark.parametrize(
    ("n_classes", "intercept", "alike"),
    [(2, True, False), (3, True, False), (3, False, False), (3, True, True)],
)
def test_shares_of_candidates_are_prior_times_likelihood_of_rows_held_out(
    n_classes, intercept, alike, monkeypatch
):
    """Every fit made anew in all features, fold by fold, without the machinery of spans."""
    monkeypatch.setattr(last_step, "SCORED", 1e-9)
    monkeypatch.setattr(last_step, "FINAL", 1e-12)
    monkeypatch.setattr(last_step, "NO_SHARE", 1e-9)
    world = World(1, n_classes, 12, differ=0.5, alike=alike)
    federation, _, _ = world.users(np.zeros(1, int), 24)
    weight = np.random.default_rng(1).choice([1.0, 2.0], 24)
    federation = replace(federation, weight=weight)
    groups, risk = world.groups, risk_of(n_classes, intercept=intercept)
    step = wide_last_step(federation, risk, groups, np.ones((1, 1)))

    X, y = federation.X, federation.y
    order, dealt = stratified_folds(federation, y)
    fold = dealt[np.argsort(order)]
    base = X @ groups.scores[0, 0, :-1] + groups.scores[0, 0, -1] * intercept
    pairs = [(1.0, sd) for sd in last_step.LEANING] + [(0.0, sd) for sd in last_step.ALONE]
    scales, leaning, own = (len(last_step.SCALES), len(last_step.LEANING), len(last_step.ALONE))
    losses, models = np.zeros((scales + len(pairs), 24)), []
    for f in (*range(5), None):
        kept = weight * (fold != f)
        counts = np.array([kept[y == c].sum() for c in range(n_classes)])
        log_shares = np.log((counts + 50 / n_classes) / (kept.sum() + 50)) * intercept
        center = np.average(X, axis=0, weights=weight) * intercept
        scores = [base * scale + log_shares for scale in last_step.SCALES]
        for lean, sd in pairs:
            u = np.column_stack(
                [sd[1] * (X - center) / np.sqrt(12), np.full(24, sd[0] * intercept)]
            )
            offset = base * lean + log_shares
            scores.append(offset + u @ newton(u, y, kept, offset, n_classes))
        if f is None:
            models = scores
        else:
            out = np.flatnonzero(fold == f)
            p = log_softmax(np.array(scores)[:, out], axis=2)
            losses[:, out] = -p[:, np.arange(len(out)), y[out]]
    group, total = np.split(losses @ weight, [scales])
    if min(total[1], total[2]) >= total[0]:
        total[leaning:] = np.inf
    for j in last_step.WIDER:
        total[j] = total[j] if total[j - 1] < total[j - 2] else np.inf
    narrow = [0.8 * 0.39 * part / 10.9 for part in (4, 4, 2, 0.7, 0.2)]
    prior = [0.6, 0.039, 0.039, *narrow, *[0.01 / own] * own]
    if alike:
        prior = [0.98, 0.0019, 0.0019, *(0.019 / 0.39 * np.array(narrow)), *[0.001 / own] * own]
    total, n = np.append(group, total), weight.sum()
    if alike:
        best = total.argmin()
        error = np.sqrt(weight @ (losses[0] - losses[best]) ** 2)
        total[0] -= min(2 * error, total[0] - total[best])
    share = np.exp(log_softmax(np.log(prior) - total * n / (n + 20)))
    expected = np.tensordot(share, models, axes=1)
    z = risk.design(X) @ step.models[0].reshape(12 + intercept, -1)
    if n_classes == 2:
        assert_allclose(z[:, 0], expected[:, 1] - expected[:, 0], atol=0.02)
    else:
        assert_allclose(z, expected @ risk.loss.basis, atol=0.02)


def test_a_class_that_a_user_lacks_by_chance_keeps_its_scores():
    """Where users' class shares are alike; where they are not, its absence counts."""
    world = World(1, 5, 60, differ=0.3, alike=False, apart=0.2)
    federation, new, their = world.users(np.zeros(8, int), 30)
    few, risk = federation.select_rows(federation.y < 4), risk_of(5)
    lacking = their == 4

    def loss(concentration):
        groups = replace(world.groups, concentration=concentration)
        step = wide_last_step(few, risk, groups, np.ones((8, 1)))
        where = np.repeat(np.arange(8), lacking.sum(axis=1))
        p = predicted_rows(new[lacking], step.models, where, risk)
        return -np.log(p[:, 4]).mean()

    group = world.groups.scores[0, 0]
    scores = new[lacking] @ group[:-1] + group[-1]
    assert loss(1e6) < -log_softmax(scores, axis=1)[:, 4].mean() + 0.2
    assert loss(25.0) < loss(23.0) - 0.2  # users have 24 rows


def newton(u, y, weight, offset, n_classes):
    """Coefficients (columns, C) of a penalised multinomial fit with unit variances."""
    p = u.shape[1]
    own = (y[:, None] == np.arange(n_classes)).astype(float)
    b = np.zeros((p, n_classes))
    for _ in range(200):
        prob = np.exp(log_softmax(offset + u @ b, axis=1))
        gradient = u.T @ (weight[:, None] * (prob - own)) + b
        H = np.eye(p * n_classes).reshape(p, n_classes, p, n_classes)
        for c in range(n_classes):
            for e in range(n_classes):
                bend = weight * prob[:, c] * ((c == e) - prob[:, e])
                H[:, c, :, e] += (u * bend[:, None]).T @ u
        step = np.linalg.solve(H.reshape(p * n_classes, -1), gradient.ravel())
        b = b - step.reshape(b.shape) / max(1.0, np.abs(step).max())
        if np.abs(step).max() < 1e-10:
            break
    return b


def test_the_order_of_rows_and_the_presence_of_other_users_do_not_matter():
    world = World(2, 3, 40, differ=0.3, alike=False)
    group = np.arange(6) % 2
    federation, _, _ = world.users(group, 20)
    given, risk = np.full((6, 2), 0.5), risk_of(3)
    step = wide_last_step(federation, risk, world.groups, given)
    order = np.random.default_rng(0).permutation(len(federation.y))
    mixed = Federation.from_arrays(
        federation.X[order], federation.y[order], federation.row_user[order]
    )
    again = wide_last_step(mixed, risk, world.groups, given)
    assert_array_equal(again.models, step.models)
    some = np.array([1, 4])
    part = wide_last_step(federation.take(some), risk, world.groups, given[some])
    assert_array_equal(part.models, step.models[some])


def test_folds_hold_out_every_class_evenly_in_any_order():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((83, 7)), rng.integers(3, size=83)
    federation = Federation.from_arrays(X, y, np.repeat([3, 5], [43, 40]))
    order, dealt = stratified_folds(federation, y)
    fold = dealt[np.argsort(order)]
    for i in range(2):
        part = federation.rows(i)
        for c in range(3):
            counts = np.bincount(fold[part][y[part] == c], minlength=5)
            assert counts.max() - counts.min() <= 1
        counts = np.bincount(fold[part], minlength=5)
        assert counts.max() - counts.min() <= 1
    other = np.concatenate([rng.permutation(43), 43 + rng.permutation(40)])
    mixed = Federation(X[other], y[other], federation.offsets, federation.users)
    again, same = stratified_folds(mixed, y[other])
    assert_array_equal(other[again], order)
    assert_array_equal(same, dealt)


def test_a_class_that_a_user_never_saw_stays_possible():
    world = World(1, 4, 80, alike=True)
    federation, new, their = world.users(np.zeros(4, int), 40)
    seen = federation.select_rows(federation.y != 3)
    risk = risk_of(4)
    step = wide_last_step(seen, risk, world.groups, np.ones((4, 1)))
    rows = their == 3
    where = np.nonzero(rows)[0]
    p = predicted_rows(new[rows], step.models, where, risk)
    assert (p.argmax(axis=1) == 3).mean() > 0.8


def test_a_user_of_one_class_and_a_user_of_three_rows_keep_their_group():
    world = World(1, 2, 30)
    federation, _, _ = world.users(np.zeros(2, int), 12)
    one = federation.select_rows(federation.y == 1)
    three = federation.select_rows(np.arange(24) % 12 < 3)
    for rows in (one, three):
        step = wide_last_step(rows, risk_of(2), world.groups, np.ones((2, 1)))
        slopes = world.groups.scores[0, 0, :-1]
        assert_allclose(step.models[:, :-1], np.tile(slopes[:, 1] - slopes[:, 0], (2, 1)))


def test_a_user_whose_rows_are_noisier_than_its_groups_is_less_sure():
    """Half of the labels are drawn anew: scores of the group are taken at half their size."""
    world = World(1, 2, 60, apart=0.4)
    federation, _, _ = world.users(np.zeros(8, int), 80)
    flipped = np.random.default_rng(5).random((2, len(federation.y))) < 0.5
    y = np.where(flipped[0], flipped[1], federation.y)
    risk = risk_of(2)
    step = wide_last_step(federation.with_y(y), risk, world.groups, np.ones((8, 1)))
    plain = world.groups.scores[0, 0]
    size = np.linalg.norm(step.models[:, :-1], axis=1)
    assert (size < 0.8 * np.linalg.norm(plain[:-1, 1] - plain[:-1, 0])).all()


def test_where_no_candidate_has_a_share_scores_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(last_step, "NO_SHARE", 0.5)
    world = World(1, 3, 40)
    federation, _, _ = world.users(np.zeros(3, int), 10)
    step = wide_last_step(federation, risk_of(3), world.groups, np.ones((3, 1)))
    slopes = world.groups.scores[0, 0, :-1] @ risk_of(3).loss.basis
    assert_allclose(step.models.reshape(3, 41, 2)[:, :-1], np.tile(slopes, (3, 1, 1)))


def test_own_rows_are_judged_by_groups_without_the_users_fold():
    """Only the groups without fold 2 are swapped: a user of that fold finds itself in the other."""
    world = World(2, 2, 60)
    federation, _, _ = world.users(np.zeros(3, int), 12)
    scores = world.groups.scores.copy()
    scores[3] = scores[3, ::-1]
    groups = replace(world.groups, scores=scores)
    step = wide_last_step(federation, risk_of(2), groups, np.full((3, 2), 0.5), np.array([1, 2, 4]))
    assert_array_equal(step.group, [0, 1, 0])
