"""Mixed groups in one round: a pure last step, statsmodels' answers, groups from few rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import odcl
from odcl import Method, Risk, linear_federation
from odcl.data.federation import Federation
from odcl.exchange.upload import TERM_FIELDS, Uploads
from odcl.local.fit import fit_users
from odcl.local.receive import receive
from odcl.mixed.mixture import Quadratics
from odcl.mixed.search import search
from odcl.risk.losses import Logistic, Multinomial, Poisson, Squared
from odcl.server.assign import assign_mixed
from odcl.server.mixed import _looked_at, user_quadratics
from odcl.server.step import server_step
from tests.helpers import logistic_labels, offsets_of, poisson_counts, squared_error

MIXED = Method(clusterer="auto")
LOSSES = [Squared(), Logistic(), Poisson(), Multinomial(3)]


def people_of(loss, *, m=20, dim=4, differ=0.4, unequal=False, seed=0, centers=None):
    """Users with 1 to 20 rows in two groups, targets of the kind of the loss."""
    rng = np.random.default_rng(seed)
    n = rng.integers(1, 21, m)
    users = np.repeat(np.arange(m), n)
    X = rng.standard_normal((len(users), dim))
    outputs = 3 if loss.name == "multinomial" else 1
    if centers is None:  # features' coefficients, the intercept last
        centers = 1.5 * rng.standard_normal((2, dim + 1, outputs))
    theta = centers[np.arange(m) % len(centers)]
    theta = theta + differ * rng.standard_normal(theta.shape)
    z = (np.column_stack([X, np.ones(len(X))])[..., None] * theta[users]).sum(axis=1)
    y = {
        "squared": lambda: z[:, 0] + noise * rng.standard_normal(len(z)),
        "logistic": lambda: logistic_labels(z[:, 0], rng),
        "poisson": lambda: poisson_counts(z[:, 0], rng).astype(float),
        "multinomial": lambda: (z + rng.gumbel(size=z.shape)).argmax(axis=1).astype(float),
    }
    noise = np.exp(rng.standard_normal(m))[users] if unequal else 1.0
    return Federation(X, y[loss.name](), offsets_of(n), np.arange(m))


def least_squares(X, y):
    """Coefficients, intercept last."""
    D = np.column_stack([X, np.ones(len(X))])
    return np.linalg.lstsq(D, y, rcond=None)[0]


# -- what was weighed ------------------------------------------------------------------------------


def test_of_several_searches_the_best_fit_of_every_number_of_groups_is_kept():
    """Classes are searched under priors of several widths; a reader is shown the best of each."""
    federation, risk = people_of(Logistic(), m=30, differ=0.3, seed=1), Risk("logistic", 0.01, True)
    uploads = fit_users(federation, risk, terms=True).uploads

    def everybody_counts(fit):  # no group is without users
        r = fit.responsibilities
        return np.bincount(r.argmax(axis=1), minlength=fit.n_groups).min() >= 1

    terms = user_quadratics(uploads)[0]
    fits = [search(q, admissible=everybody_counts) for q in terms]
    assert len(fits) > 1
    best = {}
    for one in (one for fit in fits for one in fit.weighed):
        best.setdefault((one.n_groups, one.shape), []).append(one.evidence)
    assert max(map(len, best.values())) > 1
    step = server_step(uploads, MIXED)
    chosen = step.weighed.chosen
    for i, one in enumerate(step.weighed.options):
        if i != chosen:
            assert one.score == pytest.approx(min(best[one.n_groups, one.shape]), rel=1e-12)
    assert step.weighed.options[chosen].n_groups == step.n_clusters


# -- one round, nothing but the upload and the download ------------------------------------------


@pytest.mark.parametrize("unequal", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_user_alone_takes_the_step_that_it_takes_among_others(loss, unequal):
    """Bit for bit: its term, model, covariance and noise, from its own rows and its download."""
    federation, risk = people_of(loss, unequal=unequal), Risk(loss, 0.01, True)
    result = odcl.fit(federation, risk, MIXED)
    for i in range(0, federation.n_users, 3):
        alone = federation.take(np.array([i]))
        upload = fit_users(alone, risk, terms=True).uploads
        for name in TERM_FIELDS:
            values = getattr(upload, name)
            if values is not None:
                assert_array_equal(values[0], getattr(result.uploads, name)[i])
        mine = receive(alone, risk, result.uploads[i], result.step.downloads[i])
        for name in ("models", "covariance", "noise", "dof"):
            if getattr(mine, name) is not None:
                assert_array_equal(getattr(mine, name)[0], getattr(result.received, name)[i])


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_the_server_does_not_care_who_comes_first(loss):
    risk = Risk(loss, 0.01, True)
    uploads = fit_users(people_of(loss), risk, terms=True).uploads
    step = server_step(uploads, MIXED)
    order = np.random.default_rng(1).permutation(len(uploads))
    other = server_step(uploads.take(order), MIXED)
    assert_array_equal(other.models, step.models[order])
    assert_array_equal(other.labels, step.labels[order])
    assert_array_equal(other.mixture.centers, step.mixture.centers)
    assert_array_equal(other.mixture.spread.matrix, step.mixture.spread.matrix)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_a_message_is_as_long_as_its_declaration_says(loss):
    """8 bytes per number; matrices go as triangles, the mixture to everybody."""
    federation, risk = people_of(loss), Risk(loss, 0.01, True)
    result = odcl.fit(federation, risk, MIXED)
    arrays = result.uploads.to_arrays()
    sent = {"n_samples", "means", "factor"}
    if loss.name != "squared":
        sent = {"n_samples", *(name for name in TERM_FIELDS if name.startswith("gaussian"))}
        sent -= {name for name in sent if "_line_" in name}  # beside curves alone
    assert arrays.keys() == sent <= set(MIXED.needs)
    assert result.bytes_up == 8 * sum(a.size for a in arrays.values())
    mixture = result.step.mixture
    dim = mixture.centers.shape[1]
    at = mixture.coordinates
    triangles = [mixture.spread.matrix, *mixture.covariances]
    for matrix in triangles:
        assert_array_equal(matrix, matrix.T)
    vectors = (mixture.weights, mixture.centers, mixture.scales, mixture.shares)
    vectors += (at.kept, at.shift, at.scale, at.reference)
    numbers = sum(v.size for v in vectors) + len(triangles) * dim * (dim + 1) // 2
    numbers += 3 + 2  # the noise, and the target's shift and scale
    assert mixture.n_numbers == numbers
    own = result.uploads.dim + 3  # its group's model, number, size and probability
    assert result.bytes_down == 8 * federation.n_users * (numbers + own)


def test_the_papers_users_send_no_terms():
    federation = people_of(Squared())
    for method in (Method.paper(2), Method("silhouette")):
        uploads = odcl.fit(federation, Risk(intercept=True), method).uploads
        assert not uploads.has_terms
        assert not set(TERM_FIELDS) & (set(method.needs) | uploads.present.keys())


def test_bare_models_have_no_terms_to_look_at():
    theta = np.random.default_rng(0).standard_normal((12, 3))
    step = server_step(Uploads.of(theta), MIXED)
    assert_array_equal(step.labels, server_step(Uploads.of(theta), Method("silhouette")).labels)
    assert step.mixture is None


# -- independent truth ---------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # of the optimizer's first tries
def test_one_group_is_the_linear_mixed_model():
    """Correlated slopes inside the cone: the models are statsmodels' BLUPs, its noise theirs."""
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(3)
    m, n = 60, 12
    users = np.repeat(np.arange(m), n)
    L = np.array([[1.0, 0, 0], [0.8, 0.5, 0], [-0.5, 0.6, 0.7]])
    theta = [1.0, -2.0, 5.0] + rng.standard_normal((m, 3)) @ L.T
    X = rng.standard_normal((m * n, 2))
    D = np.column_stack([X, np.ones(m * n)])
    y = (D * theta[users]).sum(axis=1) + rng.standard_normal(m * n)
    result = odcl.fit(
        Federation(X, y, np.arange(m + 1) * n, np.arange(m)), Risk(intercept=True), MIXED
    )
    assert result.step.mixture.spread.shape == "full"
    fitted = sm.MixedLM(y, D, users, exog_re=D).fit(
        reml=True, method="lbfgs", pgtol=1e-10, factr=10
    )
    effects = np.stack([np.asarray(fitted.random_effects[i]) for i in range(m)])
    assert_allclose(result.models, fitted.fe_params + effects, rtol=1e-4, atol=1e-4)
    assert_allclose(result.received.noise, fitted.scale, rtol=1e-4)


def test_users_who_do_not_differ_share_the_pooled_least_squares():
    federation = people_of(Squared(), centers=np.ones((1, 5, 1)), differ=0.0)
    result = odcl.fit(federation, Risk(intercept=True), MIXED)
    assert "differ only by noise" in result.step.reason
    pooled = least_squares(federation.X, federation.y)
    assert_allclose(result.models, np.tile(pooled, (federation.n_users, 1)), rtol=1e-10, atol=1e-10)


def test_far_groups_that_do_not_differ_inside_have_their_pooled_least_squares():
    """Up to the pull of the centers' own prior, a small share of a standard error."""
    centers = np.array([3.0, -3.0])[:, None, None] * np.ones((5, 1))
    federation = people_of(Squared(), differ=0.0, m=40, centers=centers)
    result = odcl.fit(federation, Risk(intercept=True), MIXED)
    assert_array_equal(result.labels, np.arange(40) % 2)
    assert not result.step.mixture.spread.matrix.any()
    for group in (0, 1):
        rows = federation.row_user % 2 == group
        error = np.sqrt(np.diagonal(result.received.covariance[group]))
        pooled = least_squares(federation.X[rows], federation.y[rows])
        assert (np.abs(result.models[group] - pooled) < 0.1 * error).all()


# -- groups by a count over seeds ----------------------------------------------------------------


def test_four_groups_of_the_paper_are_exact_from_fewer_rows_than_parameters():
    """15 rows for 20 parameters, on at least 4 of 5 seeds; local models are out of the question."""
    exact = 0
    for seed in range(100, 105):
        federation = linear_federation(100, 15, n_clusters=4, dim=20, seed=seed)
        result = odcl.fit(federation, Risk(), MIXED)
        pairs = set(zip(result.labels.tolist(), federation.groups.tolist(), strict=True))
        exact += len(pairs) == 4 == result.n_clusters
        assert squared_error(result.models, federation.optima) < 0.5 * squared_error(
            result.local.theta, federation.optima
        )
    assert exact >= 4


@pytest.mark.parametrize("seed", range(5))
def test_random_intercepts_are_no_groups(seed):
    rng = np.random.default_rng(seed)
    users = np.repeat(np.arange(60), 30)
    X = rng.standard_normal((1800, 6))
    y = X @ rng.standard_normal(6) + 2 * rng.standard_normal(60)[users] + rng.standard_normal(1800)
    federation = Federation(X, y, np.arange(61) * 30, np.arange(60))
    result = odcl.fit(federation, Risk(intercept=True), MIXED)
    assert result.n_clusters == 1
    assert result.step.reason == "No groups: users differ gradually."


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_any_level_of_a_declared_factor_may_be_the_reference(loss):
    """The same predictions and groups, for a newcomer as well.

    As many numbers are sent; beside Gaussian terms the reference's moments come on top.
    """
    people = people_of(loss, m=12)
    level = np.random.default_rng(0).integers(0, 3, len(people.y))
    new = slice(*people.offsets[:2])

    def fitted(reference):
        own = [j for j in range(3) if j != reference]
        X = np.column_stack([people.X, (level[:, None] == own).astype(float)])
        risk = Risk(loss, 1e-2, intercept=True, factors=[(4, 5)])
        result = odcl.fit(people.with_X(X), risk, MIXED)
        D = np.column_stack([X, np.ones(len(X))])
        models = result.models.reshape(people.n_users, 7, -1)
        z = (D[..., None] * models[people.row_user]).sum(axis=1)
        found = assign_mixed(X[new], people.y[new], risk, result.step.mixture, MIXED)
        plain = fit_users(people.with_X(X), Risk(loss, 1e-2, True), terms=True)
        more = 0 if result.uploads.gaussian_means is None else 16
        assert_array_equal(result.uploads.n_bytes, plain.uploads.n_bytes + more)
        return z, found.probability, D[new] @ found.theta.reshape(7, -1)

    for one, other in zip(fitted(0), fitted(2), strict=True):
        assert_allclose(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("smallest", [1, 5])
def test_groups_that_are_too_small_are_not_told_but_that_they_were_seen_is(smallest):
    f = linear_federation(34, 40, n_clusters=4, dim=3, n_active=3, sizes=(10, 10, 10, 4), seed=2)
    result = odcl.fit(f, Risk(), Method(smallest_group=smallest))
    assert result.n_clusters == 4 if smallest == 1 else result.n_clusters < 4
    said = "More groups were seen, and were not allowed: each needs at least 5 users."
    assert (said in result.step.reason) == (smallest == 5)


def test_groups_that_nobody_would_be_in_are_said_to_be_missing():
    rng = np.random.default_rng(2)
    X, users = rng.standard_normal((360, 3)), np.repeat(np.arange(6), 60)
    rows = Federation.from_arrays(X, X.sum(axis=1) + rng.standard_normal(360), users)
    step = server_step(fit_users(rows, Risk("squared"), terms=True).uploads, Method(5))
    assert step.n_clusters < 5
    assert "5 were asked for; the others would be empty." in step.reason


@pytest.mark.parametrize(("known", "searches"), [(0.0, 3), (0.8, 3), (0.95, 1), (1.0, 1)])
def test_widths_under_which_nearly_all_users_have_one_term_are_searched_once(known, searches):
    nothing = np.zeros(40)
    q = Quadratics(np.tile(np.eye(2), (40, 1, 1)), np.ones((40, 2)), *[nothing] * 4, False)
    moved = q.A * (1 + 0.1 * (np.arange(40) >= 40 * known))[:, None, None]
    looked = []

    def look(q):
        looked.append(q)
        return len(looked)

    fits = _looked_at([replace(q, A=moved), q, replace(q, A=moved)], look)
    assert len(looked) == searches
    assert any(one is q for one in looked)
    assert sum(fit is not None for fit in fits) == searches
    assert fits[1] is not None
