"""Groups found among few users are those of a search among all."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl.clustering.labels import same_partition
from odcl.mixed import few as module
from odcl.mixed.candidates import candidates
from odcl.mixed.few import FIRST, found_among_few, sample_by_id
from odcl.mixed.mixture import pure_noise
from odcl.mixed.search import search
from odcl.mixed.select import choose

from .worlds import rows_of, seen

# Sizes of groups, rows per user, coefficients, standard deviations inside groups, distance.
WORLDS = {
    "even": ((125, 125, 125, 125), 12, 5, 0.0, 1.5),
    "one in a hundred": ((594, 6), 30, 5, 0.0, 1.0),
    "of unlike sizes": ((200, 150, 100, 100, 50), 8, 4, 0.0, 1.0),
    "rarer and rarer": ((400, 250, 150, 100, 50, 30, 15, 5), 15, 6, 0.0, 1.0),
    "one group": ((500,), 12, 5, 0.0, 1.5),
    "levels differ": ((500,), 12, 5, np.array([1.0, 0, 0, 0, 0]), 1.5),
    "all differ": ((500,), 8, 5, 0.4, 1.5),
    "tails": ((500,), 12, 5, 1.0, 1.5),
    "groups that differ inside": ((200, 200, 200), 20, 5, 0.4, 1.5),
    "differ hardly in one": ((600, 600), 20, 4, np.array([0.15, 0, 0, 0]), 1.0),
    "differ hardly": ((400, 400), 20, 4, 0.1, 1.0),
    "one in a hundred, levels differ": ((594, 6), 20, 4, np.array([1.0, 0, 0, 0]), 3.0),
}
KINDS = [
    *((kind, 0) for kind in WORLDS),
    *(("of unlike sizes", seed) for seed in (1, 6)),
    ("rarer and rarer", 7),
    *(("differ hardly in one", seed) for seed in (1, 2)),
]


def world(kind: str, seed: int = 0):
    """Quadratics of some hundreds of users, and their groups."""
    rng = np.random.default_rng(seed)
    sizes, rows, dim, inside, apart = WORLDS[kind]
    groups = np.repeat(np.arange(len(sizes)), sizes)
    theta = apart * rng.standard_normal((len(sizes), dim))[groups]
    if np.any(inside):
        tail = np.sqrt(rng.chisquare(3, (len(theta), 1)) / 3) if kind == "tails" else 1.0
        theta = theta + inside * rng.standard_normal(theta.shape) / tail
    return seen(*rows_of(theta, rows, seed=seed))[2], groups


@pytest.mark.parametrize(("kind", "seed"), KINDS)
def test_few_users_lead_to_what_a_search_among_all_finds(kind, seed, monkeypatch):
    q, groups = world(kind, seed)
    found = search(q)
    monkeypatch.setattr(module, "FIRST", len(q))  # nobody is few
    full = search(q)
    assert found.n_groups == full.n_groups
    assert found.spread.shape == full.spread.shape
    assert_array_equal(found.spread.open, full.spread.open)
    assert found.evidence <= full.evidence + 6  # B is read off another fit
    labels = found.responsibilities.argmax(axis=1)
    assert same_partition(labels, full.responsibilities.argmax(axis=1))
    if kind in ("one in a hundred", "one group"):
        assert same_partition(labels, groups)
    assert_allclose(
        np.sort(found.centers, axis=0), np.sort(full.centers, axis=0), rtol=0, atol=0.02
    )


def test_all_are_asked_where_users_are_few():
    q, _ = world("even")
    some = q[: 3 * FIRST - 1]
    assert found_among_few(some, np.arange(len(some)), *pure_noise(some), 50, None) is None


def test_who_is_few_depends_on_ids_alone():
    q, _ = world("rarer and rarer")
    ids = np.array([f"user {i}" for i in range(len(q))])
    order = np.random.default_rng(3).permutation(len(q))
    plain, shuffled = search(q, ids), search(q[order], ids[order])
    assert_allclose(shuffled.evidence, plain.evidence, rtol=1e-10)
    assert same_partition(
        shuffled.responsibilities.argmax(axis=1), plain.responsibilities.argmax(axis=1)[order]
    )


@pytest.mark.parametrize("size", [0.1, 0.15])
def test_differences_too_small_for_few_users_are_found_among_all(size):
    rng = np.random.default_rng(0)
    theta = np.ones((1200, 4)) + size * rng.standard_normal((1200, 4)) * [1, 0, 0, 0]
    q = seen(*rows_of(theta, 20, seed=1))[2]
    few = sample_by_id(np.arange(len(q)), FIRST)
    noise, s2 = pure_noise(q)
    among_few = choose(q[few], candidates(q[few], noise, s2[few], 50, None))
    found = search(q)
    assert found.spread.open.tolist() == [True, False, False, False]
    assert not among_few.spread.matrix.any() or size > 0.1


def test_a_rare_group_beside_users_who_differ_is_looked_for_among_all():
    """Few users see differences and none of its eight members, or one."""
    rng = np.random.default_rng(1)
    groups = np.repeat([0, 1], (1192, 8))
    theta = 2 * rng.standard_normal((2, 4))[groups]
    theta += rng.standard_normal(theta.shape) * [0.5, 0, 0, 0]
    q = seen(*rows_of(theta, 20, seed=1))[2]
    found = search(q)
    assert found.spread.shape != "full"  # which one center alone may have
    assert same_partition(found.responsibilities.argmax(axis=1), groups)


def test_the_evidence_to_expect_of_all_is_on_average_what_all_users_give():
    """E(N) for the difference of two fits of many and of few numbers, over seeds."""
    gaps = []
    for seed in range(10):
        q, _ = world("levels differ", seed)
        q, few = replace(q, many=True), sample_by_id(np.arange(len(q)), 125)
        noise, s2 = pure_noise(q)
        of_few, of_all = (
            {module._kind(f)[1]: f for f in candidates(some, noise, s2[users], 1, None)}
            for some, users in ((replace(q[few], many=True), few), (q, slice(None)))
        )
        full, diag = (module._expected(of_few[shape], len(q)) for shape in ("full", "diag"))
        gaps.append(full - diag - (of_all["full"].evidence - of_all["diag"].evidence))
    assert abs(np.mean(gaps)) < 8  # 22 if numbers of T counted whole; 2.5 by chance


def test_what_few_users_gave_up_is_told_with_their_labels():
    q, _ = world("even")
    found = search(q, np.arange(len(q)))
    others = [w for w in found.weighed if (w.labels < 0).any()]
    assert others
    few = sample_by_id(np.arange(len(q)), FIRST)
    for one in others:
        assert set(np.flatnonzero(one.labels >= 0)) <= set(
            sample_by_id(np.arange(len(q)), 2 * FIRST)
        )
        assert (one.labels[few] >= 0).all()
        assert one.evidence >= found.evidence - 0.1
    kinds = [(w.n_groups, w.shape) for w in found.weighed]
    assert len(kinds) == len(set(kinds))
