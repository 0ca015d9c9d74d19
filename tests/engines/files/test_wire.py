"""Uploads in fewer bytes: what arrives is definite, and close to what was sent."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from odcl.engines.files import Feature, combine_uploads, fit_site, receive
from odcl.engines.files.upload import open_upload
from odcl.exchange.upload import Uploads
from tests.engines.files.world import class_task, frames, send, task, time

CLOSE = {"float64": 0.0, "float32": 1e-6, "float16": 2e-3}


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("classes", [False, True])
def test_what_arrives_is_definite_and_close(dtype, classes, tmp_path):
    given = (class_task if classes else task)(dtype=dtype)
    sent = fit_site(given, frames(1, classes=classes)["north"], site="north", created=time())
    sent.write(tmp_path / "north.upload")
    got = open_upload(given, tmp_path / "north.upload").uploads
    for name, values in sent.uploads.present.items():
        there = got.present[name]
        size = np.abs(values).max(initial=0.0)
        assert_allclose(there, values, rtol=0, atol=2 * CLOSE[dtype] * size)
        if Uploads.parts()[name].matrix:
            gram = np.swapaxes(there, -1, -2) @ there if name == "factor" else there
            values = np.linalg.eigvalsh(gram)
            assert (values[..., 0] >= -1e-12 * values[..., -1]).all()


def test_half_precision_neither_overflows_nor_loses_small_columns(tmp_path):
    """An age squared, a share of a millionth, and a target far from zero."""
    rng = np.random.default_rng(0)
    frame = frames(1, 200)["north"]
    frame["a"], frame["b"] = 1e6 + 1e5 * rng.normal(size=200), 1e-6 * rng.normal(size=200)
    frame["y"] = 1e9 + 1e-3 * frame["a"] + 1e7 * frame["b"] + rng.normal(size=200)
    given = task(dtype="float16")
    sent = fit_site(given, frame, site="north", created=time())
    sent.write(tmp_path / "north.upload")
    got = open_upload(given, tmp_path / "north.upload").uploads
    columns = np.abs(sent.uploads.factor[0]).max(axis=0)
    assert (np.abs(got.factor[0] - sent.uploads.factor[0]) <= 5e-4 * columns).all()
    assert np.array_equal(got.means, sent.uploads.means)


def test_fewer_bytes_give_nearly_the_same_models(tmp_path):
    tables, models = frames(), {}
    for dtype in CLOSE:
        given, place = task(dtype=dtype), tmp_path / dtype
        place.mkdir()
        sent = send(given, tables, place / "uploads")
        combine_uploads(given, sent, out=place / "round")
        models[dtype] = np.vstack(
            [
                receive(
                    given, sent / f"{s}.upload", place / "round" / f"{s}.download", frame
                ).models
                for s, frame in tables.items()
            ]
        )
    assert_allclose(models["float32"], models["float64"], atol=1e-5)
    assert_allclose(models["float16"], models["float64"], atol=2e-2)


def test_half_precision_is_less_than_half_of_a_larger_file():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 31)), columns=[*map(str, range(30)), "y"])
    features = tuple(Feature(str(j)) for j in range(30))
    sizes = {
        dtype: len(fit_site(task(features=features, dtype=dtype), frame, site="north").content)
        for dtype in CLOSE
    }
    assert sizes["float16"] < 0.5 * sizes["float64"]
    assert sizes["float16"] < sizes["float32"] < sizes["float64"]
