"""One bad upload hurts its sender: whatever it holds, the others' models stay, and it is named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Method, server_step
from odcl.data.federation import Federation
from odcl.exchange.upload import Uploads
from odcl.local.fit import fit_users
from odcl.risk.risk import Risk
from odcl.server.assign import models_by_terms
from odcl.server.chunks import in_chunks
from odcl.server.robust import Outlier, even_users, outlier_lines, screened, weighed
from odcl.server.step import stream_step

ROBUST = Method(robust=True)
LOSSES = {"squared": 3, "huber": 2, "logistic": 2, "poisson": 2, "wide": 110, "wide classes": 45}


@cache
def rows_of(loss: str, m: int = 16, seed: int = 0) -> tuple[Any, Any, Any, Risk]:
    """X (m, n, d), y, the groups' models and the risk: two groups that lie apart."""
    rng, d, n = np.random.default_rng(seed), LOSSES[loss], 100 if loss == "logistic" else 50
    centers = rng.choice([-1.0, 1.0], (1, d)) * np.array([[1.0], [-1.0]]) * 1.5 / np.sqrt(d)
    X = rng.standard_normal((m, n, d))
    z = (X @ centers[np.arange(m) % 2][..., None])[..., 0]
    y = z + 0.5 * rng.standard_normal(z.shape)
    if loss in ("logistic", "wide classes"):
        y = (z + rng.logistic(size=z.shape) > 0).astype(float)
    if loss == "poisson":
        y = rng.poisson(np.exp(np.clip(z / 2, -3, 3))).astype(float)
    name = {"wide": "squared", "wide classes": "logistic"}.get(loss, loss)
    return X, y, centers, Risk(name, 0.0, True)


def uploads_of(X: Any, y: Any, risk: Risk) -> Uploads:
    m, n, d = X.shape
    rows = Federation(X.reshape(-1, d), y.ravel(), np.arange(m + 1) * n, np.arange(m))
    return fit_users(rows, risk, terms=True).uploads


@cache
def honest_uploads(loss: str, m: int = 16) -> Uploads:
    X, y, _, risk = rows_of(loss, m)
    return uploads_of(X, y, risk)


@cache
def honest_models(loss: str, m: int = 16) -> Any:
    """Models of all users but the first, who is left out of the round."""
    some = honest_uploads(loss, m).take(np.arange(1, m))
    step = server_step(some, ROBUST)
    assert step.mixture is not None
    return models_by_terms(some, step.mixture).models


SIZES = (0.0, 1.0, -1.0, 1e-300, 1e-30, 1e-8, 1e3, 1e8, 1e30, 1e59, 1e150, 1e300)
WITHIN = 1.1  # of the honest users' error without the hostile upload


def hostile(told: Uploads, rng: Any, absurd: bool) -> Uploads:
    """The first user's upload with some fields that no honest fit gives; it passes the checks.

    Numbers are ``absurd`` and stand out at once, or else some times what is usual.
    """
    changed: dict[str, Any] = {}
    fields = [name for name in told.present if name not in ("scatter_class", "class_rows")]
    many = 1 if rng.random() < 0.5 else int(rng.integers(1, len(fields) + 1))
    for name in rng.choice(fields, many, replace=False):
        values = told.present[name].copy()
        most = 1e37 if values.dtype == np.float32 else 1e300
        size, how = float(rng.choice(SIZES)), rng.integers(7)
        if not absurd:
            size = float(rng.choice([-1, 1])) * 10.0 ** rng.uniform(-5, 9)
        usual = 1.0 if absurd else float(np.abs(values).max())
        with np.errstate(over="ignore"):
            if values.ndim == 1 or how == 0:
                values[0] = values[0] * size
            elif how == 1:
                values[0] = size * usual
            elif how == 2:
                values[0] = size * usual * rng.standard_normal(values[0].shape)
            elif how == 3 and values.ndim > 2:  # rank one
                row = rng.standard_normal(values.shape[-1])
                square = values.shape[-2] == values.shape[-1]
                values[0] = size * usual * (row[:, None] * row if square else row)
            elif how == 4:
                values[0] += size * usual * rng.standard_normal(values[0].shape)
            elif how == 5:
                values[0][..., rng.integers(values.shape[-1])] *= size
            else:
                values[0].flat[rng.integers(values[0].size)] = size * usual
        values[0] = np.clip(np.nan_to_num(values[0]), -most, most)
        if name == "gaussian_sds":
            values[0] = np.abs(values[0])
        if name == "n_samples":
            values[0] = max(abs(values[0]), 1e-300)
        changed[name] = values
    n = changed.get("n_samples", told.n_samples)
    if told.class_rows is not None:
        share = told.class_rows / told.class_rows.sum(axis=1, keepdims=True)
        changed["class_rows"] = share * n[:, None]
    return replace(told, **changed)


def error(loss: str, models: Any) -> float:
    """Mean distance of all but the first user's models from their groups' true ones."""
    _, _, centers, _ = rows_of(loss)
    centers = centers / 2 if loss == "poisson" else centers
    away = models - np.pad(centers, ((0, 0), (0, 1)))[np.arange(1, len(models) + 1) % 2]
    return float(np.sqrt((away**2).sum(axis=1)).mean())


def times_worse(loss: str, seeds: range, absurd: bool) -> Any:
    """Honest users' errors beside a hostile upload, over those without it, seed by seed.

    That a user more may move them a little, also an honest one, is part of what they are over.
    """
    told = honest_uploads(loss)
    rest = told.take(np.arange(1, len(told)))
    full = server_step(told, ROBUST).mixture
    assert full is not None
    both = honest_models(loss), models_by_terms(rest, full).models
    base = max(error(loss, one) for one in both)
    times = []
    for seed in seeds:
        sent = hostile(told, np.random.default_rng(seed), absurd)
        sent.check()
        step = server_step(sent, ROBUST)
        assert step.mixture is not None
        assert np.isfinite(step.models).all(), seed
        times.append(error(loss, models_by_terms(rest, step.mixture).models) / base)
    return np.array(times)


FEW = {"squared": 20, "huber": 6, "logistic": 6, "poisson": 2, "wide": 6, "wide classes": 3}


@pytest.mark.parametrize("loss", LOSSES)
def test_no_absurd_upload_stops_a_round_or_moves_the_others_models(loss: str) -> None:
    times = times_worse(loss, range(FEW[loss]), absurd=True)
    assert times.max() <= WITHIN, times.round(2)


def test_hardly_any_upload_near_what_is_usual_moves_the_others_models() -> None:
    """One that hardly stands out may make users look less alike than they are."""
    times = np.concatenate([times_worse(loss, range(n), absurd=False) for loss, n in FEW.items()])
    assert (times <= WITHIN).mean() >= 0.95, np.sort(times).round(2)


def test_few_who_pull_one_way_hardly_ever_make_groups_look_varied() -> None:
    """A hundred users in four groups; four of each agree on a shift of 3.5 standard errors."""
    shares = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        group, centers = np.arange(100) % 4, rng.standard_normal((4, 3))
        way, theta = rng.standard_normal((4, 3)), centers[group]
        theta[:16] += 0.35 * (way / np.linalg.norm(way, axis=1, keepdims=True))[group[:16]]
        X = rng.standard_normal((100, 100, 3))
        y = (X @ theta[..., None])[..., 0] + rng.standard_normal((100, 100))
        told = uploads_of(X, y, Risk("squared", 0.0, True))
        plain, robust = (server_step(told, Method(robust=on)).mixture for on in (False, True))
        assert plain is not None
        assert robust is not None
        if plain.spread.matrix.any():
            shares.append(np.trace(robust.spread.matrix) / np.trace(plain.spread.matrix))
    assert len(shares) >= 8
    assert np.mean(np.array(shares) < 0.25) >= 0.6, np.round(shares, 2)


@pytest.mark.parametrize(("m", "sd"), [(40, 0.2), (100, 0.07)])
def test_users_who_do_differ_inside_groups_keep_their_differences(m: int, sd: float) -> None:
    """Also a hundred who differ by half the variance of their own errors."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m, 100, 3))
    theta = rng.standard_normal((2, 3))[np.arange(m) % 2] + sd * rng.standard_normal((m, 3))
    y = (X @ theta[..., None])[..., 0] + rng.standard_normal((m, 100))
    found = server_step(uploads_of(X, y, Risk("squared", 0.0, True)), ROBUST).mixture
    assert found is not None
    assert found.spread.matrix.any()


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_thousands_of_uploads_stop_no_round_and_hardly_any_moves_the_others(loss: str) -> None:
    seeds = range(1000, 1500 if loss in ("squared", "huber") else 1100)
    absurd, near = (times_worse(loss, seeds, kind) for kind in (True, False))
    assert (absurd <= WITHIN).mean() >= 0.93, np.sort(absurd)[-20:].round(2)
    assert (near <= WITHIN).mean() >= 0.93, np.sort(near)[-20:].round(2)


# -- who is named, and why -------------------------------------------------------------------------


def spoilt(change: Any, users: Any = (0,), m: int = 24) -> tuple[Uploads, Any]:
    """Uploads of squared loss, some users' rows changed in place."""
    X, y, _, risk = rows_of("squared", m)
    X, y = X.copy(), y.copy()
    for i in users:
        change(X[i], y[i])
    return uploads_of(X, y, risk), server_step(uploads_of(X, y, risk), ROBUST)


def other_unit(X: Any, y: Any) -> None:
    X[:, 0] *= 300


def other_origin(X: Any, y: Any) -> None:
    X[:, 0] += 273.15


def missing_code(X: Any, y: Any) -> None:
    y[0] = 99999


@pytest.mark.parametrize(
    ("change", "kind", "column"),
    [(other_unit, "wide", 0), (other_origin, "far", 0), (missing_code, "wide", -1)],
)
def test_other_units_and_missing_codes_are_named_with_their_column(
    change: Any, kind: str, column: int
) -> None:
    _, step = spoilt(change, (0, 5, 8, 11))
    assert [one.user for one in step.outliers] == [0, 5, 8, 11]
    assert {(one.kind, one.column) for one in step.outliers} == {(kind, column)}
    (line,) = outlier_lines(step.outliers, ["x0", "x1", "x2"], "y")
    assert line.startswith("4 users (0, 5, 8, ...) take no part in others' models: ")
    assert ("x0" if column == 0 else "y") in line


def test_an_honest_federation_names_nobody_and_keeps_its_groups() -> None:
    X, y, _, risk = rows_of("squared", 24)
    step = server_step(uploads_of(X, y, risk), ROBUST)
    assert step.outliers == ()
    assert_array_equal(step.labels, np.arange(24) % 2)


def test_copies_of_one_upload_are_set_aside() -> None:
    told = honest_uploads("squared", 24)
    copies = [4, 6, 8, 10, 12]
    fields = {}
    for name in ("means", "factor"):
        fields[name] = told.present[name].copy()
        fields[name][copies] = fields[name][2]
    step = server_step(replace(told, **fields), ROBUST)
    assert [one.user for one in step.outliers] == [2, *copies]
    assert {one.kind for one in step.outliers} == {"alike"}


def test_forged_weight_counts_as_one_and_a_quarter_median_users_and_is_told() -> None:
    told = honest_uploads("squared", 24)
    share = np.ones(24)
    share[3] = 1e6
    capped, odd, _ = screened(weighed(told, share), None)
    assert_allclose(capped.n_samples[3], 1.25 * told.n_samples[0])
    assert odd == {3: Outlier(3, "weight", factor=1e6)}
    assert not odd[3].set_aside


def test_every_party_is_there_equally_often_among_those_who_tell_what_is_usual() -> None:
    party = np.array([0] * 9 + [1, 1, 2])
    found = party[even_users(12, party)]
    assert_array_equal(np.bincount(found), [9, 9, 9])


def test_the_order_of_users_changes_nothing() -> None:
    told, step = spoilt(missing_code, (0, 5))
    order = np.random.default_rng(0).permutation(len(told))
    again = server_step(told.take(order), ROBUST)
    assert again.outliers == step.outliers
    assert_array_equal(again.labels, step.labels[order])
    assert_array_equal(again.centers, step.centers)


def test_streamed_users_in_other_units_take_no_part_and_are_all_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("odcl.server.chunks.MIXED_SAMPLE", 60)
    X, y, _, risk = rows_of("squared", 200)
    X, y = X.copy(), y.copy()
    bad = np.arange(3, 200, 10)
    for i in bad:
        missing_code(X[i], y[i])
    told = uploads_of(X, y, risk)
    found = stream_step(in_chunks(told, 64), ROBUST).found
    assert sorted(one.user for one in found.outliers) == bad.tolist()
    assert {(one.kind, one.column) for one in found.outliers} == {("wide", -1)}
    rest = told.take(np.setdiff1d(np.arange(200), bad))
    clean = stream_step(in_chunks(rest, 64), Method()).found
    one, two = (models_by_terms(rest, step.mixture).models for step in (found, clean))
    assert np.abs(one - two).max() < 0.1 * np.abs(two).max()


def test_a_round_that_one_bad_party_leaves_with_too_few_names_it():
    """Three parties are needed, three sent, and one of them cannot be believed."""
    told = honest_uploads("squared", 12)
    bad = np.arange(12) % 3 == 2
    means = np.where(bad[:, None], 1e200, told.means)
    with pytest.raises(ValueError, match="too large to compute with") as caught:
        server_step(
            replace(told, means=means),
            Method(robust=True, smallest_group=3),
            parties=np.arange(12) % 3,
        )
    assert "Not even one group" in str(caught.value)
    assert "4 users (2, 5, 8, ...)" in str(caught.value)
