"""The server's step over chunks: the same whatever the chunks, and near the fit of all users."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl.clustering.labels import number_by_first_user, same_partition
from odcl.data.federation import Federation, id_keys
from odcl.errors import NotAdmissible
from odcl.local.fit import fit_users
from odcl.local.receive import receive
from odcl.method import Method
from odcl.mixed import search as mixed_search
from odcl.risk.risk import Risk
from odcl.server.chunks import Survey, UploadSource, in_chunks, sum_of, surveyed
from odcl.server.step import server_step, stream_step

FEW = 120  # users of a sample, in place of thousands


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    """What takes thousands of users to see is seen with hundreds."""
    monkeypatch.setattr("odcl.server.chunks.MIXED_SAMPLE", FEW)
    monkeypatch.setattr("odcl.server.chunks.MODEL_SAMPLE", FEW)


def world(loss="squared", n_users=400, n_rows=15, tau=0.0, seed=0, noise=1.0):
    """Three groups of users, equally many; inside them two coefficients differ by ``tau``."""
    rng = np.random.default_rng(seed)
    centers = np.array([[2.0, 0, 0, 1], [-2.0, 1, 0, 0], [0.0, -1, 2, -1]])
    groups = np.arange(n_users) % 3
    theta = centers[groups] + tau * rng.standard_normal((n_users, 4)) * [1, 1, 0, 0]
    owner = np.repeat(np.arange(n_users), n_rows)
    X = rng.standard_normal((len(owner), 3))
    z = (X * theta[owner, :3]).sum(axis=1) + theta[owner, 3]
    scale = noise * np.ones(n_users) if np.isscalar(noise) else noise
    y = {
        "squared": lambda: z + scale[owner] * rng.standard_normal(len(z)),
        "huber": lambda: z + scale[owner] * rng.standard_t(2.5, len(z)),
        "logistic": lambda: (rng.random(len(z)) < 1 / (1 + np.exp(-2 * z))).astype(float),
        "poisson": lambda: rng.poisson(np.exp(np.clip(0.5 * z, None, 3))).astype(float),
        "multinomial": lambda: np.argmax(
            np.column_stack([z, -z, 0 * z]) + rng.gumbel(size=(len(z), 3)), axis=1
        ),
    }[loss]()
    ids = np.array([f"store {i}" for i in range(n_users)])
    order = np.argsort(ids)  # canonical
    offsets = np.arange(0, len(owner) + 1, n_rows)
    return Federation(X, y, offsets, ids).take(order), groups[order]


def risk_of(loss):
    from odcl.risk.losses import Huber, Multinomial

    made = {"huber": lambda: Huber(1.5), "multinomial": lambda: Multinomial(3)}
    return Risk(made[loss]() if loss in made else loss)


def uploads_of(federation, risk, method=Method()):  # noqa: B008
    case = risk, risk.dim(federation.n_features), federation.n_users
    method = method.resolved(*case)
    return fit_users(federation, risk, terms=method.clusterer.uses_terms).uploads


def scattered(uploads, sizes, seed):
    """The users in another order, in chunks of random sizes, empty ones among them."""
    order = np.random.default_rng(seed).permutation(len(uploads))
    cuts = np.cumsum(np.resize(sizes, len(uploads)))
    parts = np.split(order, cuts[cuts < len(uploads)])
    parts.insert(1, order[:0])
    return UploadSource(lambda: (uploads.take(part) for part in parts))


LOSSES = ("squared", "huber", "logistic", "poisson", "multinomial")


@pytest.mark.parametrize("loss", LOSSES)
def test_chunks_and_order_are_not_to_be_seen(loss):
    federation, _ = world(loss)
    risk = risk_of(loss)
    uploads = uploads_of(federation, risk)
    one = stream_step(in_chunks(uploads))
    other = stream_step(scattered(uploads, (7, 64, 1, 30), seed=3))
    assert one.found.n_clusters == other.found.n_clusters == 3
    assert one.found.mixture.spread.shape == other.found.mixture.spread.shape
    assert_array_equal(one.sizes, other.sizes)
    assert_allclose(other.found.centers, one.found.centers, atol=1e-9)
    models = [
        receive(federation, risk, uploads, step.place(uploads)).models for step in (one, other)
    ]
    assert_allclose(models[1], models[0], atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_server_step_of_many_users_is_the_streamed_one(loss):
    federation, truth = world(loss)
    uploads = uploads_of(federation, risk_of(loss))
    whole, streamed = server_step(uploads), stream_step(scattered(uploads, (50,), seed=1))
    assert_array_equal(whole.labels, streamed.step(uploads).labels)
    assert_allclose(streamed.found.centers, whole.centers, atol=1e-9)
    down = streamed.place(uploads)
    assert_array_equal(down.group_size, np.bincount(whole.labels)[whole.labels])
    for user in (0, 7):  # alone in its chunk a user has a group no smaller than among others
        assert_array_equal(streamed.place(uploads[user]).group_size, down.group_size[[user]])
    assert_array_equal(np.bincount(whole.labels), streamed.sizes)
    assert_array_equal(streamed.rows, np.bincount(whole.labels, weights=uploads.n_samples))
    assert_array_equal(whole.labels, number_by_first_user(whole.labels))
    if loss == "squared":
        assert same_partition(whole.labels, truth)


@pytest.mark.parametrize("tau", [0.0, 0.6])
@pytest.mark.parametrize("unequal", [False, True])
def test_found_on_a_sample_is_found_on_everybody(tau, unequal, monkeypatch):
    """The same K and shape; centers to half of their own standard error."""
    monkeypatch.setattr("odcl.server.chunks.MIXED_SAMPLE", 450)
    monkeypatch.setattr("odcl.server.chunks.MODEL_SAMPLE", 450)
    noise = np.exp(0.7 * np.random.default_rng(5).standard_normal(600)) if unequal else 1.0
    federation, _ = world(n_users=600, tau=tau, noise=noise)
    uploads = uploads_of(federation, Risk())
    sampled = server_step(uploads)
    monkeypatch.setattr("odcl.server.chunks.MIXED_SAMPLE", 10**6)
    full = server_step(uploads)
    assert sampled.n_clusters == full.n_clusters == 3
    assert sampled.mixture.spread.shape == full.mixture.spread.shape
    assert np.mean(sampled.labels == full.labels) > 0.99
    error = np.sqrt(np.diagonal(full.mixture.covariances, axis1=1, axis2=2)).mean()
    scale = full.mixture.coordinates.target_scale
    assert np.abs(sampled.centers - full.centers).max() < 0.5 * error * scale


def test_a_pass_adds_up_over_parts_of_the_users():
    from odcl.mixed.streaming_em import parameters_of, pass_sums
    from odcl.server.mixed import user_quadratics

    federation, _ = world(noise=np.exp(0.7 * np.random.default_rng(5).standard_normal(400)))
    (q,), _ = user_quadratics(uploads_of(federation, Risk()))
    at = parameters_of(mixed_search.search_sample(q[:FEW], federation.users[:FEW]))
    assert not at.noise.common
    whole, parts = pass_sums(q, at), pass_sums(q[:150], at) + pass_sums(q[150:], at)
    assert_allclose(parts.M, whole.M, rtol=1e-12)
    assert_allclose(parts.slopes.omega, whole.slopes.omega, rtol=1e-12)
    assert_allclose(parts.noise_slope, whole.noise_slope, rtol=1e-9)
    assert_allclose(parts.level, whole.level, rtol=1e-13)


def test_a_pass_leaves_the_noise_where_pure_error_puts_it():
    """The likelihood of pure error has no slope where it is largest, in a pass as in memory."""
    from odcl.mixed.mixture import pure_noise
    from odcl.mixed.streaming_em import parameters_of, pass_sums
    from odcl.server.mixed import user_quadratics

    federation, _ = world(noise=np.exp(0.7 * np.random.default_rng(5).standard_normal(400)))
    (q,), _ = user_quadratics(uploads_of(federation, Risk()))
    noise, _ = pure_noise(q)
    assert not noise.common
    at = parameters_of(mixed_search.search_sample(q[:FEW], federation.users[:FEW]))
    found = pass_sums(q, replace(at, noise=noise))
    assert abs(found.noise_slope) < 1e-6 * found.noise_bend


def test_where_the_passes_rest_in_memory_sweeps_rest_too():
    """One more sweep of the fit of all users, from where the passes came to rest, moves nothing."""
    from odcl.mixed.em import Stopping, fit_mixture
    from odcl.mixed.streaming_em import (
        fit_everybody,
        own_noise,
        parameters_of,
        pass_sums,
        shares_of,
    )
    from odcl.server.mixed import user_quadratics

    federation, _ = world(tau=0.3)
    (q,), _ = user_quadratics(uploads_of(federation, Risk()))
    best = mixed_search.search_sample(q[:FEW], federation.users[:FEW])
    fit, _ = fit_everybody(q[:FEW], best, partial(pass_sums, q), lambda at: True)
    assert fit.converged
    at = parameters_of(fit)
    s2 = own_noise(q, at)
    again = fit_mixture(
        *(q, shares_of(q, at), at.spread, at.noise, s2, fit.prior), stop=Stopping(sweeps=30)
    )
    assert_allclose(again.centers, fit.centers, atol=1e-7)
    assert_allclose(again.spread.matrix, fit.spread.matrix, atol=1e-7)
    assert_allclose(again.s2, s2, rtol=1e-7)


METHODS = (
    Method.paper(3),
    Method("kmeans:3"),
    Method("kmeans:3", combine="samples"),
)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.clusterer}-{m.combine}")
def test_clusters_of_models_are_combined_over_everybody(method, monkeypatch):
    federation, truth = world(n_rows=25)
    uploads = uploads_of(federation, Risk(), method)
    streamed = stream_step(scattered(uploads, (11, 90), seed=2), method)
    got = streamed.step(uploads)
    assert same_partition(got.labels, truth)
    monkeypatch.setattr("odcl.server.chunks.MODEL_SAMPLE", 10**6)
    full = server_step(uploads, method)
    assert_array_equal(got.labels, full.labels)
    assert_allclose(got.centers, full.centers, rtol=1e-10)
    assert_allclose(got.models, full.models, atol=0.05)


def test_groups_that_are_too_small_are_not_given():
    federation, _ = world()
    uploads = uploads_of(federation, Risk())
    step = stream_step(in_chunks(uploads), Method(smallest_group=134))
    assert step.found.n_clusters < 3
    assert step.sizes.min() >= 134
    assert step.found.groups_forbidden
    with pytest.raises((NotAdmissible, ValueError), match="users"):
        stream_step(in_chunks(uploads), Method(smallest_group=401))
    few = uploads_of(federation, Risk(), Method.paper(3))
    paper = stream_step(in_chunks(few), Method("kmeans:3", combine="mean", smallest_group=134))
    assert paper.sizes.min() >= 134
    for method in (Method(smallest_group=133), Method("kmeans:3", smallest_group=133)):
        sent = uploads_of(federation, Risk(), method)
        just = stream_step(scattered(sent, (50,), seed=1), method)
        assert sorted(just.sizes) == [133, 133, 134]  # as many as asked for are enough


@pytest.mark.parametrize("method", [Method(), Method("kmeans:3")], ids=str)
def test_users_are_placed_the_same_in_small_chunks(method, monkeypatch):
    federation, _ = world(n_users=200)
    uploads = uploads_of(federation, Risk(), method)
    found = stream_step(in_chunks(uploads), method)
    one = found.step(uploads)
    monkeypatch.setattr("odcl.server.result.in_chunks", partial(in_chunks, size=7))
    other = found.step(uploads)
    for name in ("users", "labels", "models", "probabilities"):
        assert_array_equal(getattr(other, name), getattr(one, name))


def test_a_group_that_is_too_small_joins_the_others():
    """Two large groups and a small one, whose users go where they are most like."""
    federation, truth = world(n_users=300)
    kept = np.flatnonzero((truth != 2) | (np.cumsum(truth == 2) <= 12))
    federation, method = federation.take(kept), Method("kmeans:3", smallest_group=20)
    uploads = uploads_of(federation, Risk(), method)
    found = stream_step(scattered(uploads, (30, 7), seed=0), method)
    assert "2 groups of at least 20 users left of 3 found" in found.found.reason
    step = found.step(uploads)
    large = truth[kept] != 2
    assert same_partition(step.labels[large], truth[kept][large])
    assert_array_equal(np.bincount(step.labels), found.sizes)
    for k in (0, 1):
        assert found.rows[k] == 15 * found.sizes[k]


def test_options_are_those_of_the_users_who_were_looked_at():
    federation, _ = world()
    uploads = uploads_of(federation, Risk())
    found = stream_step(in_chunks(uploads))
    order = np.random.default_rng(0).permutation(len(uploads))[:150]
    seen = np.isin(uploads.users, found.found.users)
    assert seen.sum() == FEW
    whole = found.alternatives(uploads.users)
    some = found.alternatives(uploads.users[order])
    assert len(whole.options) > 2
    for one, other, own in zip(
        whole.options, some.options, found.found.weighed.options, strict=True
    ):
        assert (one.labels[~seen] == -1).all()
        assert_array_equal(other.labels, one.labels[order])
        mine = dict(zip(found.found.users.tolist(), own.labels.tolist(), strict=True))
        expected = [mine[user] for user in uploads.users[seen].tolist()]
        assert one.labels[seen].tolist() == expected


def test_few_users_are_known_by_name():
    federation, _ = world(n_users=60)
    uploads = uploads_of(federation, Risk())
    step, whole = stream_step(scattered(uploads, (9,), seed=4)), server_step(uploads)
    assert_array_equal(step.step(uploads).labels, whole.labels)
    assert_array_equal(step.place(uploads[5]).model, whole.downloads[5].model)


def test_what_an_engine_carries_can_be_pickled():
    federation, _ = world()
    uploads = uploads_of(federation, Risk())

    class Carrier:
        def added(self, function):
            sent = pickle.loads(pickle.dumps(function))
            parts = in_chunks(uploads, 100).read()
            return sum_of(pickle.loads(pickle.dumps(sent(part))) for part in parts)

    step = pickle.loads(pickle.dumps(stream_step(Carrier())))
    assert_allclose(step.found.centers, stream_step(in_chunks(uploads)).found.centers, atol=1e-9)


def test_no_users_are_refused():
    federation, _ = world(n_users=30)
    none = uploads_of(federation, Risk()).take(np.arange(0))
    with pytest.raises(ValueError, match="no uploads"):
        stream_step(UploadSource(lambda: [none]))


def test_keys_are_those_of_the_id_wherever_it_stands():
    ids = np.array(["a", "store 12", "", "é"])
    assert_array_equal(id_keys(ids[:1]), id_keys(ids)[:1])
    assert_array_equal(id_keys(np.array([7, 12])), id_keys(np.array(["7", "12"])))
    many = id_keys(np.arange(20_000))
    assert len(np.unique(many)) == 20_000
    share = np.histogram(many.astype(np.float64) / 2.0**64, 10)[0] / 2000
    assert np.abs(share - 1).max() < 0.1


@pytest.mark.parametrize("loss", ["logistic", "squared"])
def test_wide_users_outside_the_sample_are_placed_like_those_in_it(loss):
    """Three groups of 300 users, of whom 120 choose directions, groups and models."""
    rng = np.random.default_rng(3)
    m, n, d = 300, 25, 120
    groups, owner = np.arange(m) % 3, np.repeat(np.arange(m), n)
    slopes = 4 * rng.standard_normal((3, d)) / np.sqrt(d)
    X = rng.standard_normal((m * n, d))
    z = (X * slopes[groups[owner]]).sum(axis=1)
    y = (z > 0).astype(float) if loss == "logistic" else z
    federation = Federation.from_arrays(X, y, owner)
    uploads = uploads_of(federation, Risk(loss))
    whole = stream_step(in_chunks(uploads), Method())
    steps = [whole.step(uploads.part(i, i + 60)) for i in range(0, m, 60)]
    placed = np.concatenate([step.labels for step in steps])
    assert_array_equal(np.bincount(placed), whole.sizes)
    assert np.mean(placed == groups) > 0.98
    assert np.mean([step.probabilities for step in steps]) > 0.9
    again = stream_step(scattered(uploads, [7, 40, 1, 90], 0), Method())
    assert_allclose(again.found.centers, whole.found.centers, rtol=1e-8, atol=1e-10)


def test_no_more_wide_uploads_are_carried_than_are_in_the_sample():
    """Of 300 users each worker sends those of the 120 that it has, whatever the pieces."""
    rng = np.random.default_rng(4)
    m, n, d = 300, 6, 120
    federation = Federation.from_arrays(
        rng.standard_normal((m * n, d)),
        rng.integers(0, 2, m * n).astype(float),
        np.repeat(np.arange(m), n),
    )
    uploads, sent = uploads_of(federation, Risk("logistic")), []

    class Carrier:
        def added(self, function):
            parts = [function(part) for part in in_chunks(uploads, 50).read()]
            sent.append([len(one.sample) for one in parts if isinstance(one, Survey)])
            return sum_of(parts)

    found = surveyed(Carrier(), lambda _: 120)
    assert sent[0] == [1] * 6
    assert sum(sent[1]) == len(found.sample) == 120
    first = np.argsort(id_keys(uploads.users))[:120]
    assert_array_equal(found.sample.users, uploads.users[first])
    assert_array_equal(found.sample.class_means, uploads.class_means[first])
