"""One bad upload hurts its sender: whatever it holds, the others' models stay, and it is named."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

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
def rows_of(loss: str, m: int = 16, n: int = 50, seed: int = 0) -> tuple[Any, Any, Any, Risk]:
    """X (m, n, d), y, the groups' models and the risk: two groups that lie apart."""
    rng, d = np.random.default_rng(seed), LOSSES[loss]
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


def hostile(told: Uploads, rng: Any) -> Uploads:
    """The first user's upload with some fields that no honest fit gives; it passes the checks."""
    changed: dict[str, Any] = {}
    fields = [name for name in told.present if name != "scatter_class"]
    for name in rng.choice(fields, rng.integers(1, len(fields) + 1), replace=False):
        values = told.present[name].copy()
        most = 1e37 if values.dtype == np.float32 else 1e300
        size, how = float(rng.choice(SIZES)), rng.integers(5)
        with np.errstate(over="ignore"):
            if name == "class_rows":
                continue
            if values.ndim == 1 or how == 0:
                values[0] = values[0] * size
            elif how == 1:
                values[0] = size
            elif how == 2:
                values[0] = size * rng.standard_normal(values[0].shape)
            elif how == 3 and values.ndim > 2:  # rank one
                row = size * rng.standard_normal(values.shape[-1])
                square = values.shape[-2] == values.shape[-1]
                values[0] = row[:, None] * row if square else row
            else:
                values[0].flat[rng.integers(values[0].size)] = size
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


def spoilt_rounds(loss: str, seeds: range) -> None:
    told = honest_uploads(loss)
    rest = told.take(np.arange(1, len(told)))
    want = honest_models(loss)
    size = np.abs(want).max()
    for seed in seeds:
        sent = hostile(told, np.random.default_rng(seed))
        sent.check()
        step = server_step(sent, ROBUST)
        assert step.mixture is not None
        assert np.isfinite(step.models).all(), seed
        models = models_by_terms(rest, step.mixture).models
        # One plausible user more can move a choice between one group and two, and no more.
        assert np.abs(models - want).mean() < 0.25 * size, (seed, step.outliers)


@pytest.mark.parametrize("loss", LOSSES)
def test_no_upload_stops_a_round_or_moves_the_others_models(loss: str) -> None:
    few = {"poisson": 12, "wide": 12, "wide classes": 12}
    spoilt_rounds(loss, range(few.get(loss, 40)))


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_thousands_of_uploads_stop_no_round(loss: str) -> None:
    spoilt_rounds(loss, range(1000, 2000 if loss in ("squared", "huber") else 1200))


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


def test_forged_weight_counts_as_two_median_users_and_is_told() -> None:
    told = honest_uploads("squared", 24)
    share = np.ones(24)
    share[3] = 1e6
    capped, odd, _ = screened(weighed(told, share), None)
    assert capped.n_samples[3] == 2 * told.n_samples[0]
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
