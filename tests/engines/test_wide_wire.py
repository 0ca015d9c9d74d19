"""The uploads of wide users on every wire: they arrive as they were sent."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from odcl import Federation, Method, Risk, Uploads
from odcl.artifact.arrays import read_arrays, write_arrays
from odcl.data.address import Address
from odcl.engines.files import Feature, Task, fit_site
from odcl.engines.files.collect import read_upload
from odcl.engines.wire import Agreed, difference, from_wire
from odcl.exchange.buckets import (
    as_lists,
    packed,
    uploads_from_arrow,
    uploads_to_arrow,
    write_numbers,
)
from odcl.exchange.upload import upload_sizes
from odcl.risk.losses import Multinomial
from odcl.server.columns import user_columns
from tests.helpers import offsets_of, refusal

RISKS = {
    "classes": Risk(Multinomial(3), 0.01, True),
    "logistic": Risk("logistic", 0.01),
    "squared": Risk("squared", 0.01, True),
}
N = np.array([1, 4, 12, 40, 7])
every_risk = pytest.mark.parametrize("name", RISKS)


def agreed_of(name, n_features=110, **changes):
    return Agreed(RISKS[name], Method(**changes), n_features)


def people_of(name, n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n.sum(), 110)) + rng.standard_normal(110)
    kinds = 3 if name == "classes" else 2
    y = X[:, 0] if name == "squared" else rng.integers(0, kinds, n.sum()).astype(float)
    return Federation(X, y, offsets_of(n), np.array([f"u{i}" for i in range(len(n))]))


def sent_of(name, **options):
    return agreed_of(name, **options).fit(people_of(name)).uploads


def assert_same(found, expected):
    assert found.users.tolist() == expected.users.tolist()
    assert found.present.keys() == expected.present.keys()
    for name, values in expected.present.items():
        assert found.present[name].dtype == values.dtype, name
        assert_array_equal(found.present[name], values, err_msg=name)


@every_risk
@pytest.mark.parametrize("short_terms", [True, False])
def test_files_and_messages_hold_what_was_agreed_on(name, short_terms):
    agreed, sent = agreed_of(name, short_terms=short_terms), sent_of(name, short_terms=short_terms)
    assert agreed.specs.keys() == sent.present.keys() == agreed.probe.present.keys()
    stream = io.BytesIO()
    write_arrays(stream, sent.to_arrays())
    content = np.frombuffer(stream.getvalue(), np.uint8)
    assert_same(
        from_wire(agreed, sent.users, read_arrays(content, agreed.specs, {"users": 5})), sent
    )
    sizes = upload_sizes(agreed.risk, agreed.dim)  # as a saved model reads them
    arrays = read_arrays(content, Uploads.specs(sizes), {"users": 5})
    assert_same(replace(Uploads.from_arrays(sent.users, arrays), risk=agreed.risk), sent)
    stream = io.BytesIO()
    write_arrays(stream, {k: a.astype(np.float64) for k, a in sent.to_arrays().items()})
    content = np.frombuffer(stream.getvalue(), np.uint8)
    refusal(read_arrays, content, agreed.specs, {"users": 5}, match="has type float64")


@every_risk
def test_what_is_agreed_on_is_known_without_as_many_rows_as_parameters(name):
    assert agreed_of(name, 5000).probe.n_samples[0] < 10


@every_risk
def test_tables_of_uploads_lead_back_to_them(name, tmp_path):
    sent = sent_of(name)
    table, dim = uploads_to_arrow(sent), sent.dim
    assert_same(uploads_from_arrow(table, sent.risk, dim), sent)
    assert_same(uploads_from_arrow(as_lists(table), sent.risk, dim), sent)
    assert_same(uploads_from_arrow(packed(table), sent.risk, dim), sent)
    assert_same(uploads_from_arrow(packed(table).slice(1, 3), sent.risk, dim), sent.part(1, 4))
    write_numbers(table, Address.of(tmp_path / "uploads.parquet"))
    assert_same(
        uploads_from_arrow(pq.read_table(tmp_path / "uploads.parquet"), sent.risk, dim), sent
    )
    nobody = uploads_from_arrow(table.slice(0, 0), sent.risk, dim)
    assert nobody.n_users == 0
    assert nobody.dim == dim


@every_risk
def test_batches_of_users_are_put_together_whatever_their_rows(name):
    """Thin factors of few rows end in zeros beside those of many."""
    everybody = sent_of(name)
    agreed, rows = agreed_of(name), people_of(name)
    parts = [agreed.fit(rows.part(*cut)).uploads for cut in ((0, 1), (1, 4), (4, 5))]
    assert_same(parts[0].joined(*parts[1:]), everybody)
    assert_same(parts[0].joined(*parts[1:]), everybody)
    tables = [uploads_to_arrow(part) for part in parts]
    assert_same(uploads_from_arrow(pa.concat_tables(tables), agreed.risk, agreed.dim), everybody)
    few = parts[0].joined(parts[2])
    moved = few.replaced(np.array([1]), parts[1].take(np.array([2])))
    for field, values in moved.present.items():
        assert_array_equal(values[1], everybody.present[field][3], err_msg=field)
        assert_array_equal(values[0], everybody.present[field][0], err_msg=field)


@pytest.mark.parametrize("short_terms", [True, False])
@pytest.mark.parametrize("name", ["logistic", "squared"])
def test_a_sites_file_holds_the_uploads_of_its_wide_users(name, short_terms, tmp_path, monkeypatch):
    monkeypatch.setattr(Method, "_fallback", lambda *_: "", raising=False)
    rows, method = people_of(name), Method(short_terms=short_terms, smallest_group=1)
    features = tuple(Feature(f"x{j}") for j in range(110))
    classes = ("0", "1") if name == "logistic" else None
    limits = {"minimum_rows": 1, "smallest_cell": 1}
    task = Task("stay", features, "y", RISKS[name], method=method, classes=classes, **limits)
    task.write(tmp_path / "task.toml")
    table = pd.DataFrame(rows.X, columns=[one.name for one in features])
    table["y"] = rows.y.astype(int).astype(str) if classes else rows.y
    table["who"] = rows.users[rows.row_user]
    fit_site(task, table, site="north", user="who").write(tmp_path / "north.upload")
    found = read_upload(Task.read(tmp_path / "task.toml"), tmp_path / "north.upload").uploads
    sent = Agreed(RISKS[name], method, 110).fit(rows).uploads
    assert_same(replace(found, users=sent.users), sent)
    assert task.leaves.keys() == sent.present.keys()


@every_risk
def test_row_groups_of_files_stay_small(name, tmp_path, monkeypatch):
    monkeypatch.setattr("odcl.exchange.buckets.GROUP_BYTES", 10_000)
    sent = sent_of(name)
    write_numbers(uploads_to_arrow(sent), Address.of(tmp_path / "uploads.parquet"))
    assert pq.ParquetFile(tmp_path / "uploads.parquet").num_row_groups == 5


@every_risk
def test_the_same_rows_are_known_again_and_others_not(name):
    sent, rows = sent_of(name), people_of(name)
    noise = 1 + 1e-14 * np.random.default_rng(0).standard_normal(rows.X.shape)
    again = agreed_of(name).fit(rows.with_X(rows.X * noise)).uploads  # on another machine
    assert difference(again, sent) == ""
    other = agreed_of(name).fit(rows.with_X(rows.X + 0.01)).uploads
    assert difference(other, sent) in ("means", "class_means")


@pytest.mark.parametrize("name", ["classes", "squared"])
def test_uploads_tell_the_moments_of_the_users_columns(name):
    rows = people_of(name, np.array([30, 25, 12]))
    columns = user_columns(agreed_of(name).fit(rows).uploads)
    for user in range(3):
        X = rows.X[rows.rows(user)]
        assert_allclose(columns.mean[user, :-1], X.mean(axis=0), rtol=1e-5, atol=1e-6)
        assert_allclose(
            columns.sd[user, :-1], X.std(axis=0), rtol=0.15 if name == "classes" else 1e-5
        )
