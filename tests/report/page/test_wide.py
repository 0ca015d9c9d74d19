"""Pages of models with many parameters: no matrices of them, pictures where columns are pixels."""

import base64
import resource
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from odcl import ODCLClassifier, ODCLRegressor
from odcl.report.page.facts import TableUnits
from odcl.runs.evidence import Evidence
from odcl.runs.page import fit_facts, fit_page_of
from odcl.runs.page_sections import user_images
from tests.report.page.browser import facts_of

PLAN = "Plans need at most 40 parameters; this model has 65."


def pictures(n_users=16, n=12, *, shuffled=False, seed=0):
    """Two blobs on 8 x 8 pixels, the classes of every other user swapped."""
    rng = np.random.default_rng(seed)
    at = np.stack(np.meshgrid(np.arange(8), np.arange(8)), axis=-1).reshape(64, 2)
    blobs = [np.exp(-((at - middle) ** 2).sum(axis=1) / 6) for middle in ((2, 2), (5, 5))]
    owner, kind = np.repeat(np.arange(n_users), n), np.tile(np.arange(n) % 2, n_users)
    X = 200 * np.array(blobs)[kind] + 10 * rng.standard_normal((len(kind), 64))
    X = X[:, rng.permutation(64)] if shuffled else X
    return X, (kind + owner) % 2, owner


def decoded(address):
    """The pixels of a PNG without filters."""
    data = base64.b64decode(address.split(",")[1])
    width, height = struct.unpack(">2I", data[16:24])
    start = data.index(b"IDAT")
    size = struct.unpack(">I", data[start - 4 : start])[0]
    lines = zlib.decompress(data[start + 4 : start + 4 + size])
    channels = 3 if data[25] == 2 else 1
    rows = np.frombuffer(lines, np.uint8).reshape(height, 1 + width * channels)
    return rows[:, 1:].reshape(height, width, channels)


@pytest.fixture(scope="module")
def fitted():
    X, y, users = pictures()
    return ODCLClassifier().fit(X, y, users=users).fitted_, X, y, users


def test_class_means_are_drawn_where_columns_look_like_an_image(fitted):
    one, X, y, users = fitted
    found = user_images(one, np.arange(16), ["0", "1"])
    assert len(found.groups) == one.n_clusters == 2
    group = one.users.group[users]
    for g, address in enumerate(found.groups):
        drawn = decoded(address)[..., 0].astype(float)
        assert drawn.shape == (8, 17)
        means = np.stack([X[(group == g) & (y == c)].mean(axis=0) for c in (0, 1)])
        seen = np.concatenate([drawn[:, :8].ravel(), drawn[:, 9:].ravel()])
        assert np.corrcoef(seen, means.ravel())[0, 1] > 0.999
    own = decoded(found.users[3])[:, :8, 0].ravel()
    assert np.corrcoef(own, X[(users == 3) & (y == 0)].mean(axis=0))[0, 1] > 0.99


def test_columns_in_any_order_are_no_image():
    X, y, users = pictures(shuffled=True)
    model = ODCLClassifier().fit(X, y, users=users)
    assert user_images(model.fitted_, np.arange(16), ["0", "1"]) is None


@pytest.mark.parametrize("planes", [True, False])
def test_colours_may_lie_in_planes_or_pixel_by_pixel(planes):
    X, y, users = pictures()
    noise = np.random.default_rng(1).standard_normal((2, *X.shape))
    channels = [X, 0.5 * X + noise[0], 200 - X + noise[1]]
    shades = np.stack(channels, axis=1 if planes else 2).reshape(len(X), -1)
    model = ODCLClassifier().fit(shades, y, users=users)
    drawn = decoded(user_images(model.fitted_, np.arange(16), ["0", "1"]).groups[0])
    assert drawn.shape == (8, 17, 3)
    red, blue = drawn[:, :8, 0].astype(float), drawn[:, :8, 2].astype(float)
    assert np.corrcoef(red.ravel(), blue.ravel())[0, 1] < -0.99


def test_the_page_says_nothing_that_is_not_known(fitted, tmp_path):
    one = fitted[0]
    evidence = Evidence.of(one, None)
    (tmp_path / "page.html").write_bytes(fit_page_of(one, evidence))
    text, facts = (tmp_path / "page.html").read_text(), facts_of(tmp_path / "page.html")
    assert "95 %" not in text.split("<script")[0]
    assert "how sure its place is" not in text
    assert "Users held out confirm 2 groups" in text
    assert PLAN in text
    assert len(facts["names"]) == 12
    assert len(facts["images"]) == 16
    assert "of a class with one row, that row" in text
    nobody = fit_facts(one, evidence, anonymous=True)
    assert len(nobody.images.groups) == 2
    assert nobody.images.users == []


def test_models_of_many_numbers_need_no_matrix_of_them(tmp_path):
    rng = np.random.default_rng(0)
    X, owner = rng.standard_normal((160, 1_000)), np.repeat(np.arange(8), 20)
    y = np.arange(160) % 8
    model = ODCLClassifier().fit(X + 0.2 * rng.standard_normal((8, 1_000))[y], y, users=owner)
    most = 8 * model.theta_.shape[1] ** 2  # one such matrix
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + most, before[1]))
    try:
        model.report(tmp_path / "page.html")
        model.diagnose()
        model.save(tmp_path / "model")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert len(facts_of(tmp_path / "page.html")["names"]) == 12


@pytest.mark.parametrize("make", [ODCLRegressor, ODCLClassifier])
def test_numbers_in_the_tables_units_are_those_of_the_model(make):
    rng = np.random.default_rng(1)
    X, owner = 3 + 2 * rng.standard_normal((240, 3)), np.repeat(np.arange(8), 30)
    model = make().fit(X, rng.integers(3, size=240), users=owner)
    one = model.fitted_
    units = TableUnits.of(
        *(one.risk, one.scaling, list(one.units), ["a", "b", "c"]), centered=True, mean=np.zeros(3)
    )
    theta, several = one.users.model, np.ndim(model.intercept_) == 2
    own = units.models(theta).reshape(8, 5, 3 if several else 1)
    coef, intercept = model.coef_, model.intercept_
    if not several:
        coef, intercept = coef[:, None], intercept[:, None]
    np.testing.assert_allclose(own[:, :3], coef.swapaxes(1, 2), atol=1e-9)
    np.testing.assert_allclose(own[:, 3], intercept + coef @ one.scaling.shift, atol=1e-9)
    np.testing.assert_allclose(own[:, 4], intercept, atol=1e-9)
    some = np.array([4, 0])
    np.testing.assert_allclose(units.take(some).models(theta), units.models(theta)[:, some])
