"""Algorithm 1 end to end, on the paper's set-ups and beyond."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import odcl
from odcl import (
    GradientClustering,
    KMeansPP,
    Logistic,
    Method,
    ProjectedSGD,
    Risk,
    SpectralKMeans,
    linear_federation,
    logistic_federation,
    server_step,
)
from odcl.clustering.labels import same_partition
from odcl.data.curves import with_bends
from odcl.local.fit import fit_users
from odcl.local.receive import receive
from odcl.server.models import average_by_cluster
from tests.helpers import equal_users, logistic_labels, squared_error


@pytest.mark.parametrize("seed", range(10))
def test_kmeans_gives_the_oracle_average_on_the_papers_linear_federation(seed):
    """Section 5, K = 10, n = 100: the clusters are exact, so the models are the oracle's."""
    federation = linear_federation(100, 100, n_clusters=10, seed=seed)
    result = odcl.fit(federation, method=Method.paper(10), seed=seed)
    assert same_partition(result.labels, federation.groups)
    oracle = average_by_cluster(result.local.theta, federation.groups)[federation.groups]
    # Both sides average the same ten models.
    assert_allclose(result.models, oracle, rtol=1e-12, atol=1e-12)


SETUPS = {
    "K=10": (10, None),
    "K=4": (4, None),
    "K=1": (1, None),
    "70/20/7/3": (4, (70, 20, 7, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize(("n", "tau"), [(50, 0.0), (100, 0.1), (400, 0.03), (400, 0.3)])
def test_the_default_finds_groups_and_their_number(setup, n, tau):
    """True K and partition; error at most 1.1x the better of staying local and oracle averaging
    (1.15x at n = 50)."""
    n_clusters, sizes = SETUPS[setup]
    federation = linear_federation(100, n, n_clusters=n_clusters, sizes=sizes, tau=tau, seed=7)
    result = odcl.fit(federation)
    assert result.n_clusters == n_clusters
    assert same_partition(result.labels, federation.groups)
    local = result.local.theta
    oracle = average_by_cluster(local, federation.groups)[federation.groups]
    best = min(squared_error(t, federation.optima) for t in (local, oracle))
    limit = 1.15 if n == 50 else 1.1
    assert squared_error(result.models, federation.optima) <= limit * best


def hidden_logistic(n_clusters, n, seed, *, m=60, d=10):
    rng = np.random.default_rng([seed, n_clusters, n])
    groups = np.arange(m) * n_clusters // m
    optima = rng.standard_normal((n_clusters, d))[groups]
    X = rng.standard_normal((m * n, d))
    z = (X * np.repeat(optima, n, axis=0)).sum(axis=1)
    y = logistic_labels(z, rng)
    return equal_users(X, y, m), groups, optima


@pytest.mark.slow
@pytest.mark.parametrize("l2", [1e-4, 1e-2])
@pytest.mark.parametrize(("n", "n_clusters", "seeds"), [(100, 1, 3), (100, 3, 10), (200, 3, 3)])
def test_logistic_users_find_their_groups_too(l2, n, n_clusters, seeds):
    """True K on 9 of 10 seeds, and the error at most 1.1x the better of local and averaged."""
    right = 0
    for seed in range(31, 31 + seeds):
        federation, groups, optima = hidden_logistic(n_clusters, n, seed)
        result = odcl.fit(federation, Risk("logistic", l2))
        right += result.n_clusters == n_clusters
        local = result.local.theta
        oracle = average_by_cluster(local, groups)[groups]
        best = min(squared_error(t, optima) for t in (local, oracle))
        assert squared_error(result.models, optima) <= 1.1 * best
    assert right >= 0.9 * seeds


@pytest.mark.parametrize("clusterer", [KMeansPP(4), SpectralKMeans(4), GradientClustering(4), 4])
def test_every_admissible_method_recovers_the_logistic_federation(clusterer):
    """Appendix D.1 with enough rows: four clusters of two features."""
    federation = logistic_federation(40, 3000, seed=3)
    risk = Risk("logistic", l2=1e-5, intercept=True)
    result = odcl.fit(federation, risk, Method.paper(clusterer))
    assert same_partition(result.labels, federation.groups)


def test_users_with_few_rows_find_their_groups_by_their_data_terms():
    """n_i <= dim: they have no model of their own."""
    counts = np.where(np.arange(100) % 5 == 0, 12, 100)
    federation = linear_federation(100, counts, n_clusters=4, seed=11)
    assert same_partition(odcl.fit(federation).labels, federation.groups)


def test_models_go_from_the_groups_to_the_local_one():
    """tau = 0 gives the group's model itself; users who differ a lot stay with their own."""
    same = odcl.fit(linear_federation(40, 60, n_clusters=4, seed=1))
    assert same.step.tau2 == 0
    assert_array_equal(same.models, same.centers[same.labels])
    apart = odcl.fit(linear_federation(40, 400, n_clusters=1, tau=30.0, seed=1), method=Method(1))
    assert_allclose(apart.models, apart.local.theta, rtol=1e-3, atol=1e-3)


def test_the_paper_uploads_models_only():
    """The bytes say what leaves a user."""
    federation = linear_federation(30, 50, n_clusters=4, seed=0)
    paper = odcl.fit(federation, method=Method.paper(4))
    assert set(paper.uploads.present) == {"theta", "n_samples"}
    assert paper.bytes_up == 30 * 8 * (20 + 1)
    # Data terms: means and a triangle of 20 features and the target.
    assert odcl.fit(federation).bytes_up == 30 * 8 * (1 + 21 + 21 * 22 // 2)
    assert paper.bytes_down == 30 * 8 * (20 + 2)  # and the group's number and size


def test_the_summary_tells_users_clusters_rounds_and_error():
    text = odcl.fit(linear_federation(100, 100, n_clusters=10, seed=0)).summary()
    assert text.startswith("100 users, 10 clusters, 1 round, NMSE ")


def test_results_do_not_depend_on_the_order_of_users():
    federation = linear_federation(60, 60, n_clusters=4, seed=2)
    result = odcl.fit(federation)
    order = np.random.default_rng(0).permutation(60)
    step = server_step(result.uploads.take(order))
    assert_array_equal(step.labels, result.labels[order])
    assert_array_equal(step.models, result.step.models[order])


def test_a_loss_object_and_its_name_are_the_same():
    federation = logistic_federation(20, 200, seed=0)
    by_name = odcl.fit(federation, Risk("logistic", 0.1), Method(2))
    by_object = odcl.fit(federation, Risk(Logistic(), 0.1), Method(2))
    assert_array_equal(by_name.models, by_object.models)


def test_users_are_placed_by_their_whole_data_term():
    """With 20 rows and 10 parameters a user's noise is long in some directions; one noise level
    per user misplaces some whom their data terms place right."""
    rng = np.random.default_rng(3)
    m, n, d, k = 500, 20, 10, 5
    groups = np.arange(m) % k
    optima = 0.6 * rng.standard_normal((k, d))[groups]
    X = rng.standard_normal((m * n, d))
    y = (X * np.repeat(optima, n, axis=0)).sum(axis=1) + rng.standard_normal(m * n)
    federation = equal_users(X, y, m)

    def misplaced(clusterer):
        labels = odcl.fit(federation, method=Method(clusterer)).labels
        table = np.zeros((labels.max() + 1, k), dtype=int)
        np.add.at(table, (labels, groups), 1)
        return m - table.max(axis=1).sum()

    assert misplaced("auto") < 0.5 * misplaced("kmeans:5")


@pytest.mark.parametrize("seed", [0, 4])
def test_a_fit_is_its_three_steps_with_one_seed(seed):
    """One group of users cut into five by chance, so that draws matter in every step."""
    federation, risk = linear_federation(40, 9, n_clusters=1, dim=3, n_active=3, seed=0), Risk()
    method = Method(KMeansPP(5, n_init=1))
    result = odcl.fit(federation, risk, method, seed=seed)
    uploads = fit_users(federation, risk, seed=seed).uploads
    step = server_step(uploads, method, seed=seed)
    assert_array_equal(result.labels, step.labels)
    received = receive(federation, risk, uploads, step.downloads)
    assert_array_equal(result.models, received.models)
    assert result.seed == seed
    other = server_step(uploads, method, seed=seed + 1)
    assert not same_partition(other.labels, step.labels)


def test_solver_and_progress_reach_the_local_fits():
    federation = linear_federation(20, 30, n_clusters=4, dim=3, n_active=3, seed=0)
    risk, solver = Risk(l2=0.1), ProjectedSGD(50)
    one, other = (odcl.fit(federation, risk, solver=solver, seed=s) for s in (1, 2))
    local = fit_users(federation, risk, solver=solver, seed=1)
    assert_array_equal(one.local.theta, local.theta)
    assert (other.local.theta != local.theta).any()
    seen = []
    odcl.fit(federation, risk, progress=seen.append)
    assert sum(seen) == 20
    separable = federation.with_y(np.where(federation.X[:, 0] > 0, 1.0, -1.0))
    assert odcl.fit(separable, Risk("logistic")).local.prior.all()


def bent_federation(*, m=30, n=25, seed=0):
    """Two groups by the slope of the first column; all bend in the second; the third is 0/1."""
    rng = np.random.default_rng(seed)
    X = np.column_stack(
        [rng.normal(50, 20, m * n), rng.normal(-3, 0.1, m * n), rng.integers(0, 2, m * n)]
    )
    users = np.repeat(np.arange(m), n)
    z = (X - [50, -3, 0]) / [20, 0.1, 1]
    y = np.where(users % 2, 2, -2) * z[:, 0] + 2 * z[:, 1] ** 2 + z[:, 2] + rng.normal(size=m * n)
    return odcl.Federation.from_arrays(X, y, users), z, users


def test_curves_of_arrays_are_made_from_all_rows_on_demand():
    """Bends in the unit of all rows; the models predict rows with these bends beside them."""
    rows, z, users = bent_federation()
    risk = Risk("squared", intercept=True)
    lines, found = (odcl.fit(rows, risk, Method(curves=c)) for c in (False, True))
    assert lines.risk == risk
    assert [curve.of for curve in found.risk.curves] == [0, 1]
    units = [(curve.center, curve.unit) for curve in found.risk.curves]
    assert_allclose(units, np.column_stack([rows.X.mean(0), rows.X.std(0)])[:2], rtol=1e-8)
    assert found.n_clusters == 2
    assert found.models.shape == (30, 3 + 8 + 1)
    bent = with_bends(rows.X, found.risk.curves)
    truth = np.where(users % 2, 2, -2) * z[:, 0] + 2 * z[:, 1] ** 2 + z[:, 2]
    predicted = (found.risk.design(bent) * found.models[users]).sum(axis=1)
    assert np.sqrt(np.mean((predicted - truth) ** 2)) < 0.35  # of lines 2.8
    again = odcl.fit(rows, found.risk)  # curves of a risk need no method that asks for them
    assert_array_equal(again.models, found.models)
    assert_array_equal(odcl.fit(rows.with_X(bent), found.risk).models, found.models)
    some = odcl.fit(rows, risk, Method(curves=[1]))
    assert [curve.of for curve in some.risk.curves] == [1]
    assert some.diagnose(rows).verdict == some.diagnose().verdict


def test_curves_that_nobody_can_have_are_refused():
    rows = bent_federation(m=4)[0]
    for risk, method in (("squared", Method(curves=True)), ("squared", Method(3, curves=[0]))):
        with pytest.raises(
            ValueError, match="in curves or periods here, because there is no intercept"
        ):
            odcl.fit(rows, risk, method)
    with pytest.raises(ValueError, match="clusters models, which have lines only"):
        odcl.fit(rows, Risk("squared", intercept=True), Method("kmeans:3", curves=[0]))
    with pytest.raises(ValueError, match="7 is to act in a curve, and is none of the columns"):
        odcl.fit(rows, Risk("squared", intercept=True), Method(curves=[7]))
    with pytest.raises(ValueError, match=r"curves=\[-1\] is not True, False or a list"):
        Method(curves=[-1])
    with pytest.raises(ValueError, match="say curves=True or"):
        odcl.ODCLRegressor(method=Method(curves=True)).fit(rows.X, rows.y, users=rows.row_user)
