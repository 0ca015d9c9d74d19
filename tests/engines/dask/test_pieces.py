"""Summaries, moments and uploads of pieces add up to those of the table, however it is cut."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from odcl.data.address import Address
from odcl.data.federation import Federation, id_keys
from odcl.data.roles import Roles
from odcl.data.scaling import RowColumns, Scaling, TableMoments
from odcl.data.schema import TableSchema
from odcl.data.summary import Place, TableSummary
from odcl.engines.dask import round as stages
from odcl.engines.dask.cluster import Cluster
from odcl.engines.dask.round import shuffle
from odcl.engines.dask.table import SampledUsers, table_files
from odcl.engines.pieces import FitPlan, merge_uploads, upload_rows
from odcl.errors import InputError
from odcl.exchange.buckets import buckets_of, receive, send
from odcl.method import Method
from odcl.mixed.terms import data_terms, merge_by_user
from odcl.risk.risk import Risk
from tests.engines.dask.tables import SENT, cut, sales

NAMED = {"user": "store", "target": "sales", "categorical": ["kind"]}


def pieces_of(table, cuts):
    ends = [0, *sorted(cuts), table.num_rows]
    return [table.slice(a, b - a) for a, b in itertools.pairwise(ends)]


def moments_of(schema, pieces):
    """The moments of a table's design columns, piece by piece."""
    return reduce(add, (TableMoments.of(schema.encode(piece, piece=True).X) for piece in pieces))


def holes(table, *, seed=0):
    """The table with a value missing here and there."""
    rng = np.random.default_rng(seed)
    for name in ("store", "price", "kind", "sales"):
        gone = pa.array(rng.random(table.num_rows) < 0.05)
        column = pa.compute.if_else(gone, None, table[name])
        table = table.set_column(table.column_names.index(name), name, column)
    return table


@settings(max_examples=25, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 480), max_size=6),
    loss=st.sampled_from(["squared", "logistic", "poisson"]),
    missing=st.sampled_from(["drop", "mean"]),
)
def test_summaries_of_any_cut_give_the_schema_of_the_table(cuts, loss, missing):
    table = holes(sales(loss=loss))
    task = {"squared": "regression", "logistic": "classification", "poisson": "count"}[loss]
    roles = Roles.of(table.column_names, **NAMED, missing=missing, task=task)
    summary = TableSummary.merged(TableSummary.of(p, roles) for p in pieces_of(table, cuts))
    found = TableSchema.of(summary, roles)
    whole = TableSchema.fit(table, **NAMED, missing=missing, task=task)
    assert replace(found, fill={}) == replace(whole, fill={})
    assert found.fill == whole.fill


@pytest.mark.parametrize("cuts", [[200], [440], [0, 200, 440]])
def test_what_is_odd_about_a_column_is_seen_in_any_piece(cuts):
    """One target that is no whole number, the ends of a price, and ids of two kinds."""
    whole = np.append(np.full(400, 7.0), np.full(80, 2.0))
    table = sales().set_column(4, "sales", pa.array(whole))
    roles = Roles.of(table.column_names, **NAMED)

    def summed(given, roles=roles):
        return TableSummary.merged(
            TableSummary.of(piece, roles) for piece in pieces_of(given, cuts)
        )

    found = summed(table)
    assert found.whole
    assert {*found.targets} == {2.0, 7.0}
    price = table["price"].to_numpy()
    assert found.spread["price"] == price.max() - price.min()
    gap = table.set_column(1, "price", pa.array([None, *price[1:]]))
    filled = summed(gap, replace(roles, missing="mean"))
    assert filled.spread["price"] == price[1:].max() - price[1:].min()
    counts = sales(m=150).set_column(4, "sales", pa.array(np.append(1 + np.arange(1199) % 40, 0)))
    assert min(TableSummary.of(counts, roles).targets) == 0  # the last of many rows has it
    for at in (0, 479):  # in the first piece, or in the last
        sold, store = whole.copy(), table["store"].to_numpy().astype(float)
        sold[at], store[at] = 2.5, 0.5
        assert not summed(table.set_column(4, "sales", pa.array(sold))).whole
        odd = summed(table.set_column(0, "store", pa.array(store)))
        assert TableSchema.of(odd, roles).user_kind == "float"


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("with_factors", [True, False])
def test_moments_of_pieces_give_the_scales_of_the_table(center, standardize, with_factors):
    """A constant column, copies up to shift and sign, a far column; levels and their references."""
    rng = np.random.default_rng(0)
    x, level = rng.normal(size=(300, 2)), rng.integers(0, 3, 300)
    columns = [x[:, 0], 5 - 2 * x[:, 0], np.ones(300), 1e6 + x[:, 1], level == 1, level == 2]
    names = [f"x{j}" for j in range(6)]
    table = pa.table({n: np.asarray(c, float) for n, c in zip(names, columns, strict=True)})
    table = table.append_column("user", pa.array(np.arange(300) % 7))
    table = table.append_column("y", pa.array(x[:, 0]))
    schema = TableSchema.fit(table, user="user", target="y", features=names)
    moments = moments_of(schema, pieces_of(table, [9, 120]))
    asked = {
        "center": center,
        "standardize": standardize,
        "copies": False,
        "factors": {"level": (4, 5)} if with_factors and center else None,
    }
    found = Scaling.of(moments, **asked)
    whole = Scaling.of(RowColumns(schema.encode(table).X), **asked)
    assert found.used.tolist() == whole.used.tolist()
    assert found.copies == whole.copies
    assert_allclose(found.shift, whole.shift, rtol=1e-9, atol=1e-9)
    assert_allclose(found.scale, whole.scale, rtol=1e-9)
    assert len(found.factors) == len(whole.factors)
    for mine, theirs in zip(found.factors, whole.factors, strict=True):
        assert mine.columns == theirs.columns
        assert_allclose(mine.weights, theirs.weights, rtol=1e-9)
        assert mine.constant == pytest.approx(theirs.constant, abs=1e-9)


@pytest.mark.parametrize("center", [True, False])
def test_scales_are_the_same_bit_for_bit(center):
    """Rows are dealt into folds by their bits: a last digit more would deal them otherwise."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(900, 12)) * 10.0 ** rng.integers(-3, 4, 12) + rng.normal(size=12)
    names = [f"x{j:02}" for j in range(12)]
    table = pa.table({n: X[:, j] for j, n in enumerate(names)})
    table = table.append_column("user", pa.array(np.arange(900) % 7))
    table = table.append_column("y", pa.array(X[:, 0]))
    schema = TableSchema.fit(table, user="user", target="y", features=names)
    moments = moments_of(schema, pieces_of(table, [9, 420]))
    found = Scaling.of(moments, center=center, standardize=True)
    whole = Scaling.of(RowColumns(X), center=center, standardize=True)
    assert found.shift.tolist() == whole.shift.tolist()
    assert found.scale.tolist() == whole.scale.tolist()


def test_a_look_measures_numbers_and_leaves_levels_and_gaps_to_a_second_read():
    rng = np.random.default_rng(0)
    X = 1e6 + rng.normal(size=(9_001, 2))  # more than one block of rows
    columns = {"user": np.arange(9_001) % 7, "a": X[:, 0], "b": X[:, 1], "kind": ["x"] * 9_001}
    table = pa.table({**columns, "y": X[:, 0]})
    plain = table.drop_columns(["kind"])
    roles = Roles.of(plain.column_names, user="user", target="y")
    summary = TableSummary.of(plain, roles)
    moments = summary.moments(plain, roles)
    asked = {"center": True, "standardize": True, "copies": False, "factors": None}
    found = Scaling.of(moments, **asked)
    whole = Scaling.of(RowColumns(X), **asked)
    assert_allclose(found.shift, whole.shift, rtol=1e-12)
    assert_allclose(found.scale, whole.scale, rtol=1e-9)
    again = moments_of(TableSchema.of(summary, roles), [plain])
    assert again.low.tolist() == X.min(axis=0).tolist()
    assert again.high.tolist() == X.max(axis=0).tolist()
    levels = Roles.of(table.column_names, user="user", target="y", categorical=["kind"])
    gap = plain.set_column(1, "a", pa.array([None, *X[1:, 0]]))
    for rows, own in ((table, levels), (gap, roles), (plain.slice(0, 0), roles)):
        assert TableSummary.of(rows, own).moments(rows, own) is None


def test_a_numeric_table_with_gaps_has_the_units_of_memory(tmp_path):
    """A piece with a gap waits for the mean of all pieces; the others are measured at once."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(60, 2)) * [3.0, 0.1] + [5.0, 1.0]
    price = pa.array([None, *X[1:50, 0], None, *X[51:, 0]])
    table = pa.table({"user": np.arange(60) % 7, "price": price, "ads": X[:, 1], "y": X[:, 0]})
    pieced = table_files(cut(table, tmp_path / "sales", [20, 40]), Cluster()).table(Cluster())
    roles = Roles.of(table.column_names, user="user", target="y", missing="mean")
    first = stages.summarize(pieced, roles, Cluster())
    schema = TableSchema.of(first.summary, roles)
    assert [one is None for one in first.moments] == [True, False, True]
    moments = stages.measure(pieced, schema, first, Cluster())
    asked = {"center": True, "standardize": True}
    found, whole = Scaling.of(moments, **asked), RowColumns(schema.encode(table).X)
    assert_allclose(found.scale, Scaling.of(whole, **asked).scale, rtol=1e-9)
    assert_allclose(found.shift, Scaling.of(whole, **asked).shift, rtol=1e-9)


def test_terms_of_some_rows_each_merge_to_those_of_all_rows():
    """R'R is what the factor stands for; signs of its rows are free."""
    rng = np.random.default_rng(0)
    X, y, users = 1e5 + rng.normal(size=(200, 3)), rng.normal(size=200), rng.integers(0, 9, 200)
    whole = data_terms(X, y, users, 9)
    piece = rng.integers(0, 4, 200)
    parts = data_terms(X, y, users * 4 + piece, 36)
    there = np.flatnonzero(parts.rows > 0)
    found = merge_by_user(parts[there], there // 4, 9)
    assert_array_equal(found.rows, whole.rows)
    assert_allclose(found.mean, whole.mean, rtol=1e-14)
    square = [t.factor.transpose(0, 2, 1) @ t.factor for t in (found, whole)]
    assert_allclose(*square, rtol=1e-9, atol=1e-9)


def plan_of(table, loss="squared"):
    schema = TableSchema.fit(table, **NAMED, task="count" if loss == "poisson" else "regression")
    scaling = Scaling.of(RowColumns(schema.encode(table).X), center=True, standardize=True)
    return FitPlan(schema, scaling, Risk(loss, intercept=True), Method())


def test_uploads_of_pieces_merge_to_those_of_all_rows():
    table = sales()
    plan = plan_of(table)
    whole = plan.from_arrow(upload_rows(table, plan))
    parts = pa.concat_tables(upload_rows(p, plan) for p in pieces_of(table, [100, 101, 300]))
    found = plan.from_arrow(merge_uploads(parts, plan))
    assert_array_equal(found.users, whole.users)
    assert_array_equal(found.n_samples, whole.n_samples)
    assert_allclose(found.means, whole.means, atol=1e-13)


def test_merged_uploads_stand_in_canonical_order_where_nobody_is_there_twice():
    plan = plan_of(sales())
    uploads = upload_rows(sales(), plan)
    turned = uploads.take(pa.array(np.arange(60)[::-1]))
    assert merge_uploads(turned, plan).equals(uploads)


def test_uploads_that_do_not_add_up_are_not_added():
    table = sales(loss="poisson")
    plan = plan_of(table, "poisson")
    with pytest.raises(ValueError, match="do not add up"):
        merge_uploads(upload_rows(table, plan), plan)


def test_a_piece_without_rows_uploads_nothing_and_adds_nothing():
    table = sales()
    plan = plan_of(table)
    assert upload_rows(table.slice(0, 0), plan).num_rows == 0
    assert moments_of(plan.schema, [table.slice(0, 0)]).rows == 0
    assert upload_rows(table.slice(0, 0), plan).schema == upload_rows(table, plan).schema


# -- errors ----------------------------------------------------------------------------------------


def summarized(*tables, **options):
    roles = Roles.of(tables[0].column_names, **{**NAMED, **options})
    places = (Place(f"part-{i}.parquet", 1000 * i) for i in range(len(tables)))
    summary = TableSummary.merged(map(TableSummary.of, tables, [roles] * len(tables), places))
    return TableSchema.of(summary, roles)


def test_a_missing_value_is_named_with_its_file_and_row():
    good = sales()
    bad = good.set_column(0, "store", pa.array([None, *good["store"].to_pylist()[1:]]))
    with pytest.raises(InputError, match=r"'store' names no user in row 1001 of part-1\.parquet"):
        summarized(good, bad, good)
    with pytest.raises(InputError, match="incomplete rows: 1 of 1440"):
        summarized(good, bad, good)


def test_gaps_of_several_pieces_are_counted_together_and_the_first_is_named():
    good = sales()
    prices, sold = good["price"].to_pylist(), good["sales"].to_pylist()
    bad = good.set_column(1, "price", pa.array([*prices[:5], None, *prices[6:]]))
    worse = bad.set_column(4, "sales", pa.array([None, *sold[1:]]))
    found = r"'price' has no value in row 6 of part-0\.parquet \(incomplete rows: 3 of 960, 2 of"
    with pytest.raises(InputError, match=found):
        summarized(bad, worse)
    with pytest.raises(InputError, match=r"'sales' .* row 1001 of part-1\.parquet"):
        summarized(good, worse)


def test_the_first_piece_that_cannot_be_used_is_named_whichever_was_read_first():
    good = sales()
    price = good["price"].to_numpy().copy()
    price[7] = np.inf
    bad = good.set_column(1, "price", pa.array(price))
    with pytest.raises(InputError, match=r"infinite in row 1008 of part-1\.parquet"):
        summarized(good, bad, bad)


def test_a_target_beyond_computing_is_named_with_its_row():
    good = sales()
    y = good["sales"].to_numpy().copy()
    y[3] = 1e80
    with pytest.raises(InputError, match=r"reaches 1e\+80 in row 1004 of part-1\.parquet"):
        summarized(good, good.set_column(4, "sales", pa.array(y)))


# -- the exchange ----------------------------------------------------------------------------------


def test_rows_of_a_user_come_together_in_the_order_of_the_table(tmp_path):
    table = sales(text=True).append_column("at", pa.array(np.arange(480)))
    files = []
    for i, piece in enumerate(pieces_of(table, [50, 50, 333])):
        files.append(Address.of(tmp_path / f"{i}.arrow"))
        send(piece, buckets_of(piece, "store", "text", 4), 4, files[-1])
    found = [receive(files, target) for target in range(4)]
    owners = [set(part["store"].to_pylist()) for part in found]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 60
    for part in found:
        assert (np.diff(part["at"].to_numpy()) > 0).all()


def test_a_user_has_one_place_whatever_the_type_of_its_id():
    ids = [0, 7, 12, 2**40]
    columns = [pa.array(ids), pa.array(map(float, ids)), pa.array(map(str, ids))]
    found = [buckets_of(pa.table({"u": c}), "u", "int", 97).tolist() for c in columns]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) > 1
    zeros = pa.table({"u": [0.5, 0.0, -0.0]})
    first, *both = buckets_of(zeros, "u", "float", 9973).tolist()
    assert both[0] == both[1] != first


def test_what_is_sent_is_no_more_than_rows_or_sums_would_be(tmp_path, monkeypatch):
    """Some users have more rows in a piece than their sum has numbers, and others fewer."""

    many = sales(m=3, n=100)
    few = sales(m=60, n=3, seed=1)
    few = few.set_column(0, "store", pa.array(few["store"].to_numpy() + 3))
    table = pa.concat_tables([many, few])
    cut(table, tmp_path / "sales", [])
    plan, cluster = plan_of(table), Cluster()
    pieced = table_files(tmp_path / "sales", cluster).table(cluster)
    size = {}
    for name, n_rows in {"rows": 480, "sums": 0, "auto": 180}.items():
        monkeypatch.setattr(stages, "sums_pay", SENT[name])
        sent = shuffle(pieced, plan, 2, Address.of(tmp_path / name).make(), cluster)
        size[name] = sum(file.stat().st_size for file in (tmp_path / name).rglob("*.arrow"))
        assert sent.n_rows == n_rows
    assert size["auto"] < min(size["rows"], size["sums"])
    bare = table_files(cut(few, tmp_path / "few", []), cluster).table(cluster)
    sent = shuffle(bare, plan, 2, Address.of(tmp_path / "bare").make(), cluster)
    assert sent.n_rows == 180  # nobody's sum is smaller


def test_users_are_drawn_by_the_smallest_keys_of_all_buckets():
    """As in memory, where the sample of a federation is drawn."""
    users = np.array([f"store {i}" for i in range(50)])
    rows = np.arange(1.0, 51.0)
    buckets = [SampledUsers.of(users[i::3], rows[i::3], 12) for i in range(3)]
    found = SampledUsers.merged(buckets, 12)
    memory = Federation(np.zeros((50, 1)), np.zeros(50), np.arange(51), users).some_users(12)
    assert sorted(found.ids.tolist()) == sorted(users[memory].tolist())
    assert (np.diff(id_keys(found.ids).astype(float)) > 0).all()
    assert found.rows.tolist() == [1.0 + users.tolist().index(u) for u in found.ids.tolist()]
    assert found.first(3).ids.tolist() == found.ids[:3].tolist()
