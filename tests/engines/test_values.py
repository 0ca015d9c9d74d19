"""Declared values: Method and Risk as JSON, and what one user's messages hold and cost."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import AgglomerativeClustering

import odcl
from odcl import (
    ConvexClustering,
    GradientClustering,
    KMeansPP,
    Method,
    Privacy,
    Risk,
    SpectralKMeans,
    fit,
    linear_federation,
    server_step,
)
from odcl.clustering.spec import CLUSTERERS, MixedGroups
from odcl.data.federation import Federation, folds
from odcl.declared import to_json
from odcl.local.fit import fit_users
from odcl.local.receive import receive
from odcl.risk.losses import Huber, Multinomial
from odcl.risk.risk import Factor
from tests.helpers import every_loss, logistic_labels, poisson_counts, refusal

# -- Method and Risk, written down and read back -----------------------------------------------

NOT_DEFAULT = [
    KMeansPP(3, n_init=2, greedy=False, random_state=5),
    KMeansPP("silhouette", max_clusters=7),
    SpectralKMeans(4, part_one_only=True),
    GradientClustering(2, step_size=0.3, max_iter=50),
    ConvexClustering(lam=0.25, n_neighbors=4),
    ConvexClustering(select="plateau"),
    MixedGroups(max_groups=7),
    MixedGroups(n_groups=3, spread="diag"),
]


def by_json(value):
    """To JSON text and back."""
    return type(value).from_json(json.loads(json.dumps(value.to_json(), allow_nan=False)))


def test_every_named_clusterer_is_among_those_tried():
    assert {type(c).__name__ for c in NOT_DEFAULT} == set(CLUSTERERS)


@pytest.mark.parametrize("clusterer", NOT_DEFAULT, ids=str)
@settings(deadline=None, derandomize=True, max_examples=15)
@given(
    combine=st.sampled_from(["mean", "samples"]),
    standardize=st.booleans(),
    smallest_group=st.integers(1, 50),
    short_terms=st.booleans(),
    curves=st.sampled_from([False, True, (0, 3), ()]),
)
def test_a_method_goes_to_json_and_back_unchanged(clusterer, **settings_of):
    method = Method(clusterer, **settings_of)
    again = by_json(method)
    assert again == method
    assert again.needs == method.needs
    built, given_one = again.clusterer.build(seed=8), method.clusterer.build(seed=8)
    assert type(built) is type(clusterer)
    assert repr(built) == repr(given_one)


def test_groups_and_shape_that_are_given_reach_the_server():
    """And where models are clustered, as many groups are looked for."""
    federation = linear_federation(40, 30, n_clusters=4, dim=6, seed=1)
    method = Method(MixedGroups(n_groups=2, spread="diag"))
    result = fit(federation, Risk(), method)
    assert result.n_clusters == 2
    assert result.step.mixture.spread.shape == "diag"
    assert method.resolved(None, 6).clusterer == Method("kmeans:2").clusterer


def test_a_method_that_came_back_gives_the_same_models():
    federation = linear_federation(20, 30, n_clusters=4, dim=3, n_active=3, seed=1)
    for method in (Method(), Method.paper(), Method(NOT_DEFAULT[0])):
        first, second = (odcl.fit(federation, method=m, seed=2) for m in (method, by_json(method)))
        assert_array_equal(first.models, second.models)


def test_an_object_of_another_class_works_here_and_is_not_written_down():
    method = Method(AgglomerativeClustering(4))
    federation = linear_federation(20, 30, n_clusters=4, dim=3, n_active=3, seed=1)
    assert odcl.fit(federation, method=method).n_clusters == 4
    said = refusal(method.to_json, match="AgglomerativeClustering")
    assert "KMeansPP" in said  # one that can be written down
    graph = ConvexClustering(weights=np.ones((3, 3)) - np.eye(3))  # a setting that JSON has not
    refusal(Method(graph).to_json, match="with plain settings")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({}, "clusterer is missing"),
        ({**Method().to_json(), "extra": 1}, "'extra' is not known"),
        ({**Method().to_json(), "combine": "median"}, "combine is 'median'"),
        ({**Method().to_json(), "smallest_group": 0}, "smallest_group is 0"),
        ({**Method().to_json(), "clusterer": {"name": "os.system"}}, "names no clusterer"),
        ({**Method().to_json(), "clusterer": {"name": "KMeansPP", "k": 3}}, "no setting k=3"),
    ],
)
def test_words_that_are_no_method_are_refused(words, says):
    refusal(Method.from_json, words, match=says)


def test_methods_are_equal_where_every_setting_is():
    other = {
        "clusterer": [2, KMeansPP(3), KMeansPP(3, n_init=2)],
        "combine": ["samples"],
        "standardize": [False],
        "smallest_group": [2],
        "short_terms": [False],
        "curves": [True, (0, 2)],
        "robust": [True],
        "privacy": [Privacy(target_range=(0.0, 1.0)), Privacy(3.0, target_range=(0.0, 1.0))],
    }
    assert set(other) == {f.name for f in fields(Method) if f.compare}
    methods = [
        Method(),
        *(replace(Method(), **{name: value}) for name in other for value in other[name]),
    ]
    for i, one in enumerate(methods):
        assert [one == method for method in methods] == [i == j for j in range(len(methods))]
        assert by_json(one) == one


def test_a_method_is_resolved_by_its_name_and_changes():
    assert Method.of() == Method.of("default") == Method()
    assert Method.of("paper") == Method.paper() == Method.of("paper", clusterer="auto")
    assert Method.of("paper", clusterer=4) == Method.paper(4)
    assert Method.of("default", combine="samples") == Method(combine="samples")
    with pytest.raises(ValueError, match="leave one of them out"):
        Method.of("paper", combine="samples")
    mine = Method("kmeans:3", "samples")
    assert Method.of(mine) == mine
    assert Method.of(mine, smallest_group=5) == Method("kmeans:3", "samples", smallest_group=5)
    refusal(Method.of, "paper", combine="samples", match="method='paper' means combine='mean'")
    refusal(Method.of, "papers", match="not 'default', 'paper' or a Method")
    assert Method.paper().needs == ("theta", "n_samples")
    assert {"means", "factor"} <= set(Method().needs)
    assert Method("convex").needs == ("theta", "n_samples")  # nobody would read more


@pytest.mark.parametrize(
    ("method", "risk", "dim"),
    [
        (Method(), None, 5),
        (Method(), Risk("poisson"), 101),
        (Method(combine="samples"), Risk(), 5),
    ],
)
def test_without_data_terms_the_default_is_kmeans_with_k_by_silhouette(method, risk, dim):
    assert method.resolved(risk, dim) == replace(method, clusterer="silhouette")
    assert method.resolved(risk, dim).fallback
    limited = replace(method, clusterer="auto:2").resolved(risk, dim)
    assert limited == replace(method, clusterer=KMeansPP("silhouette", max_clusters=2))
    one, four = (replace(method, clusterer=c).resolved(risk, dim) for c in ("auto:1", 4))
    assert one.clusterer == Method("kmeans:1").clusterer
    assert four.clusterer == Method("kmeans:4").clusterer


def test_with_data_terms_the_default_finds_mixed_groups():
    for loss in ("squared", "huber", "logistic", "poisson", Multinomial(3)):
        case = Risk(loss), 100 if loss == "poisson" else 5000  # of counts nothing wide is sent
        kept = {"standardize": False, "smallest_group": 3, "short_terms": False}
        for method in (Method(), Method(**kept), Method("auto:1"), Method(3)):
            assert method.resolved(*case) == method
            assert method.resolved(*case).fallback == ""
            assert method.resolved(Risk(loss), 5, 1).clusterer.uses_terms is False
    assert Method("auto:1").clusterer == Method(MixedGroups(max_groups=1)).clusterer
    refusal(Method, "auto:0", match="not one of 'auto'")


@pytest.mark.parametrize("l2", [0.0, 1e-5, 3.0])
@pytest.mark.parametrize("intercept", [False, True])
@every_loss
def test_a_risk_goes_to_json_and_back_unchanged(loss, l2, intercept):
    risk = Risk(loss, l2, intercept)
    assert by_json(risk) == risk
    assert by_json(Risk(Huber(0.3), l2)) == Risk(Huber(0.3), l2) != Risk(Huber(), l2)
    assert by_json(Risk(Multinomial(7))).dim(5) == 5 * 6
    factors = [(0, 2), Factor((4,), (0.5,), 0.0, "sex")]
    risk = Risk("poisson", l2, True, factors)
    assert by_json(risk) == risk != Risk("poisson", l2, True)
    assert risk.factors[0] == Factor((0, 2), (-1.0, -1.0), 1.0)


PAIR = to_json(Factor((0,)))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"loss": "squared"}, "names no loss"),
        ({**Risk().to_json(), "l2": -1}, "l2=-1"),
        ({**Risk().to_json(), "l2": "1"}, "l2 is '1', and not a finite number"),
        ({**Risk().to_json(), "intercept": 1}, "intercept is 1, and not true or false"),
        ({**Risk().to_json(), "loss": {"name": "hinge"}}, "hinge"),
        ({**Risk().to_json(), "factors": 3}, "factors is 3, and not a list"),
        ({**Risk().to_json(), "factors": [[0, 1]]}, r"factors\[0\] is .*, and not a table"),
        ({**Risk().to_json(), "factors": [{**PAIR, "columns": [0, 0]}]}, "distinct numbers"),
        ({**Risk().to_json(), "factors": [{**PAIR, "columns": [-1]}]}, "distinct numbers"),
        ({**Risk().to_json(), "factors": [{**PAIR, "weights": ["1"]}]}, r"weights\[0\] is '1'"),
        ({**Risk().to_json(), "factors": [{**PAIR, "constant": np.inf}]}, "constant is inf"),
        ({**Risk().to_json(), "factors": [PAIR]}, "need an intercept"),
    ],
)
def test_words_that_are_no_risk_are_refused(words, says):
    refusal(Risk.from_json, words, match=says)


# -- the messages of one user ------------------------------------------------------------------

ROWS = [1, 3, 8, 12, 40, 40, 25, 60, 2, 33]  # one row, fewer rows than parameters, and more


def users_for(loss, seed=0):
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(len(ROWS)), ROWS)
    X = rng.normal(size=(len(owner), 4))
    z = (X * rng.normal(size=(2, 4))[owner % 2]).sum(axis=1)
    y = {
        "squared": z + rng.normal(size=len(z)),
        "huber": z + rng.standard_t(2, size=len(z)),
        "logistic": logistic_labels(z, rng),
        "poisson": poisson_counts(z, rng),
        "multinomial": rng.integers(0, 3, len(z)),
    }[loss.name]
    return Federation.from_arrays(X, y.astype(float), owner)


def one_round(federation, risk, method, seed=3):
    """Uploads and downloads of one round, and what users make of them."""
    method = method.resolved(risk, risk.dim(federation.n_features))
    terms = method.clusterer.uses_terms
    uploads = fit_users(federation, risk, terms=terms, seed=seed).uploads
    downloads = server_step(uploads, method, seed=seed).downloads
    return uploads, downloads, receive(federation, risk, uploads, downloads)


@every_loss
def test_a_users_last_step_needs_its_own_rows_and_messages_alone(loss):
    """Bit for bit, whoever else is in the batch."""
    federation, risk = users_for(loss), Risk(loss, 0.05, intercept=True)
    for method in (Method(2), Method(), Method("kmeans:2")):
        uploads, downloads, together = one_round(federation, risk, method)
        for i in range(len(ROWS)):
            own = federation.take(np.array([i]))
            alone = receive(own, risk, uploads[i], downloads[i])
            assert_array_equal(alone.models[0], together.models[i])


def test_a_download_holds_one_user_and_no_more_than_its_last_step_reads():
    federation = linear_federation(20, 30, n_clusters=4, dim=3, n_active=3, tau=0.3, seed=1)
    _, downloads, _ = one_round(federation, Risk(), Method("kmeans:4"))
    assert set(downloads.present) == {"model", "group", "group_size"}
    named = {f.name for f in fields(downloads)} - set(downloads.parts()) - {"users"}
    assert named == {"mixture"}  # of mixed groups alone; it counts itself
    assert downloads.mixture is None
    for i, one in enumerate(downloads):
        assert one.users.tolist() == [federation.users[i]]
        for name, values in one.present.items():
            assert np.shape(values) == (1, *(3 for _ in one.parts()[name].shape))


def test_who_asked_for_the_default_hears_why_it_gave_way():
    federation = linear_federation(20, 30, n_clusters=4, dim=3, n_active=3, seed=1)
    for method, why in (
        (Method(combine="samples"), "combine='samples' was asked for."),
        (Method("silhouette"), ""),
        (Method(), ""),
    ):
        told = odcl.fit(federation, method=method).step.reason
        assert told.partition("Groups are of the users' models, because ")[2] == why
    theta = fit_users(federation, Risk()).theta
    assert "the uploads hold no data terms" in server_step(theta).reason


def test_mixed_groups_that_are_too_small_are_dissolved():
    """The evidence decides among what is allowed; nobody falls out."""
    sizes = (40, 30, 5, 5)
    federation = linear_federation(80, 40, n_clusters=4, sizes=sizes, dim=3, n_active=3, seed=3)
    for smallest in (1, 5, 6, 31):
        found = odcl.fit(federation, method=Method(smallest_group=smallest))
        assert found.step.mixture is not None
        counts = np.bincount(found.labels)
        assert counts.sum() == 80
        assert counts.min() >= smallest
        if smallest <= 5:
            assert sorted(counts) == [5, 5, 30, 40]
        if smallest == 6:  # the two small groups are one, whose users differ
            assert sorted(counts) == [10, 30, 40]
            assert found.step.mixture.spread.matrix.any()


@pytest.mark.parametrize("combine", ["mean", "samples"])
def test_groups_that_are_too_small_are_dissolved(combine):
    federation = linear_federation(20, 60, n_clusters=4, sizes=(9, 7, 2, 2), dim=3, n_active=3)
    found = odcl.fit(federation, method=Method("kmeans:4", combine=combine))
    assert sorted(np.bincount(found.labels)) == [2, 2, 7, 9]
    kept = odcl.fit(federation, method=Method("kmeans:4", combine=combine, smallest_group=3))
    assert kept.n_clusters == 2
    assert np.bincount(kept.labels).min() >= 7
    large = np.isin(federation.groups, np.flatnonzero(np.bincount(federation.groups) > 2))
    assert_array_equal(kept.labels[large], number_in(found.labels[large]))
    assert "2 groups of at least 3 users left of 4 found" in kept.step.reason
    everybody = odcl.fit(federation, method=Method("kmeans:4", combine=combine, smallest_group=10))
    assert everybody.n_clusters == 1


def number_in(labels):
    """0, 1, ... by first appearance."""
    seen = list(dict.fromkeys(labels.tolist()))
    return np.array([seen.index(label) for label in labels])


def test_fewer_users_than_the_smallest_group_are_refused():
    federation = linear_federation(4, 30, n_clusters=4, dim=3, n_active=3)
    said = refusal(odcl.fit, federation, method=Method(smallest_group=5))
    assert "4 users uploaded, and no group may have fewer than 5" in said
    assert odcl.fit(federation, method=Method(smallest_group=4)).n_clusters == 1


@every_loss
def test_the_order_of_rows_changes_neither_folds_nor_models(loss):
    """To 1e-10: sums over rows in another order round otherwise."""
    federation, risk = users_for(loss), Risk(loss, 0.05, intercept=True)
    order = np.concatenate(
        [
            np.random.default_rng(i).permutation(n) + o
            for i, (n, o) in enumerate(zip(ROWS, federation.offsets[:-1], strict=True))
        ]
    )
    shuffled = replace(federation, X=federation.X[order], y=federation.y[order])
    assert_array_equal(folds(shuffled, 5, 3), folds(federation, 5, 3)[order])
    _, _, first = one_round(federation, risk, Method(2))
    _, _, second = one_round(shuffled, risk, Method(2))
    assert_allclose(second.models, first.models, rtol=1e-10, atol=1e-10)


def test_a_risk_and_a_method_may_be_named():
    federation = linear_federation(8, 40, n_clusters=4, dim=3, n_active=3)
    named, given_ones = fit(federation, "squared", "paper"), fit(federation, Risk(), Method.paper())
    assert (named.risk, named.method) == (given_ones.risk, given_ones.method)
