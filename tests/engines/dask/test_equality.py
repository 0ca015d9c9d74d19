"""A table in pieces gives the result in memory: whatever the files, whoever is slow or lost."""

from __future__ import annotations

import os
import signal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from odcl import Method
from odcl.data.source import read_table
from odcl.engines import pieces
from odcl.engines.dask import round as stages
from odcl.errors import InputError
from odcl.exchange import buckets
from tests.engines.dask.tables import SENT, assert_same_fit, cut, in_memory, in_pieces, sales
from tests.helpers import SHARED_DATA

TABLE = sales()


@pytest.fixture(scope="module")
def whole():
    return in_memory(TABLE)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    cuts=st.lists(st.integers(0, TABLE.num_rows), max_size=5),
    buckets=st.integers(1, 5),
    many=st.sampled_from(sorted(SENT)),
)
def test_any_partitioning_gives_the_same_fit(tmp_path_factory, whole, cuts, buckets, many):
    """Files without a row are among them, and buckets without a user."""
    folder = tmp_path_factory.mktemp("cut")
    cut(TABLE, folder / "sales", cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "sums_pay", SENT[many])
        found = in_pieces(folder / "sales", folder, buckets=buckets)
    assert_same_fit(found, whole, TABLE)


def test_curves_open_in_pieces_as_in_memory(tmp_path):
    """The price acts in a curve and ads do not: models in files have no numbers for these."""
    table = sales(m=40, n=16, bend=2.0)
    cut(table, tmp_path / "sales", [100, 222])
    found, whole = in_pieces(tmp_path / "sales", tmp_path), in_memory(table)
    assert [curve.name for curve in whole.risk_.curves] == ["price"]
    assert [curve.name for curve in found.risk_.curves] == ["price"]
    assert_same_fit(found, whole, table)


@pytest.mark.parametrize("loss", ["logistic", "poisson"])
def test_classes_and_counts(tmp_path, loss):
    table = sales(loss=loss, text=True)
    cut(table, tmp_path / "sales", [100, 222])
    found = in_pieces(tmp_path / "sales", tmp_path, loss)
    assert_same_fit(found, in_memory(table, loss), table)


def test_how_surely_users_belong_is_what_their_rows_say_in_pieces_too(tmp_path):
    """Classes in groups: what a user sent says less of its group than its rows do."""
    table = sales(m=36, n=14, loss="logistic")
    cut(table, tmp_path / "sales", [100, 300])
    found, whole = in_pieces(tmp_path / "sales", tmp_path, "logistic"), in_memory(table, "logistic")
    assert whole.n_clusters_ > 1
    assert np.abs(whole.probability_ - whole.result_.step.probabilities).max() > 1e-4
    assert_same_fit(found, whole, table)


@pytest.mark.parametrize("text", [False, True], ids=["numbers", "text"])
def test_more_buckets_than_users(tmp_path, text):
    """Most of them are empty, and their files have the columns of the others."""
    table = sales(m=12, n=12, text=text)
    cut(table, tmp_path / "sales", [50])
    found = in_pieces(tmp_path / "sales", tmp_path, buckets=40)
    assert_same_fit(found, in_memory(table), table)


@pytest.mark.parametrize("name", ["sums", "rows"])
def test_pieces_row_groups_and_stacks_of_a_few_rows_give_the_same_fit(tmp_path, name, monkeypatch):
    """Whatever is worked on at a time, in a file of many row groups: nobody's rows are mixed up."""
    monkeypatch.setattr(pieces, "USERS_AT_ONCE", 7)
    monkeypatch.setattr(buckets, "GROUP_USERS", 9)
    table = TABLE if name == "sums" else sales(n=12)
    method = {"sums": "default", "rows": Method("kmeans:3")}[name]
    pq.write_table(table, tmp_path / "sales.parquet", row_group_size=50)
    found = in_pieces(tmp_path / "sales.parquet", tmp_path, method=method, piece_bytes=3_000)
    assert_same_fit(found, in_memory(table, method=method), table)


def test_a_row_of_a_later_row_group_is_named_by_its_place_in_the_file(tmp_path):
    price = TABLE["price"].to_numpy().copy()
    price[316] = np.inf
    bad = TABLE.set_column(1, "price", pa.array(price))
    pq.write_table(bad, tmp_path / "sales.parquet", row_group_size=50)
    for size in (3_000, 6_000, 2**26):
        with pytest.raises(InputError, match=r"infinite in row 317 of sales\.parquet"):
            in_pieces(tmp_path / "sales.parquet", tmp_path, piece_bytes=size)


def test_more_users_than_groups_are_searched_on(tmp_path, monkeypatch):
    monkeypatch.setattr("odcl.server.chunks.MIXED_SAMPLE", 200)
    table = sales(m=230, n=8)
    cut(table, tmp_path / "sales", [200, 1400])
    found = in_pieces(tmp_path / "sales", tmp_path)
    assert_same_fit(found, in_memory(table), table)


def test_one_user_with_a_third_of_all_rows_is_sent_as_sums(tmp_path, whole):
    some = sales(m=40, n=6, seed=1)
    owner = some["store"].to_numpy().copy()
    owner[:80] = 0
    table = some.set_column(0, "store", pa.array(owner))
    cut(table, tmp_path / "sales", [40, 120])
    found = in_pieces(tmp_path / "sales", tmp_path)
    assert_same_fit(found, in_memory(table), table)


def test_columns_in_another_order_and_in_other_types(tmp_path, whole):
    parts = [TABLE.slice(0, 200), TABLE.slice(200, 100), TABLE.slice(300)]
    parts[1] = parts[1].select(["sales", "kind", "store", "ads", "price"])
    parts[1] = parts[1].set_column(2, "store", parts[1]["store"].cast(pa.int32()))
    parts[2] = parts[2].set_column(0, "store", parts[2]["store"].cast(pa.float64()))
    (tmp_path / "sales").mkdir()
    for i, part in enumerate(parts):
        pq.write_table(part, tmp_path / "sales" / f"{i}.parquet")
    assert_same_fit(in_pieces(tmp_path / "sales", tmp_path), whole, TABLE)


def test_a_category_that_only_the_last_file_has(tmp_path):
    kind = TABLE["kind"].to_pylist()
    late = TABLE.set_column(3, "kind", pa.array([*kind[:-20], *["huge"] * 20]))
    cut(late, tmp_path / "sales", [200, 400])
    found = in_pieces(tmp_path / "sales", tmp_path)
    assert "huge" in found.schema_.levels["kind"]
    assert_same_fit(found, in_memory(late), late)


@pytest.mark.parametrize("missing", ["drop", "mean"])
def test_values_that_are_missing(tmp_path, missing):
    rng = np.random.default_rng(0)
    table = TABLE
    for at, name in ((0, "store"), (1, "price"), (3, "kind"), (4, "sales")):
        gone = pa.array(rng.random(table.num_rows) < 0.04)
        table = table.set_column(at, name, pa.compute.if_else(gone, None, table[name]))
    cut(table, tmp_path / "sales", [37, 300])
    found = in_pieces(tmp_path / "sales", tmp_path, missing=missing)
    assert_same_fit(found, in_memory(table, missing=missing), TABLE)


@pytest.mark.parametrize("missing", ["drop", "mean"])
def test_values_that_are_missing_in_numbers_alone(tmp_path, missing):
    """Without a category pieces are measured as they are looked at, but for those with gaps."""
    rng, table = np.random.default_rng(0), TABLE.drop_columns(["kind"])
    for at, name in ((1, "price"), (3, "sales")):
        gone = pa.array((rng.random(table.num_rows) < 0.1) & (np.arange(table.num_rows) > 300))
        table = table.set_column(at, name, pa.compute.if_else(gone, None, table[name]))
    cut(table, tmp_path / "sales", [37, 300])
    asked = {"categorical": (), "missing": missing}
    found = in_pieces(tmp_path / "sales", tmp_path, **asked)
    assert_same_fit(found, in_memory(table, **asked), TABLE)


def test_zero_is_one_user_whatever_its_sign(tmp_path):
    """Ids that are no whole numbers; half of the rows of 0.0 call it -0.0."""
    user = TABLE["store"].to_numpy() / 2
    user[(user == 0) & (np.arange(len(user)) % 2 == 0)] = -0.0
    assert len(np.unique(np.signbit(user[user == 0]))) == 2
    table = TABLE.set_column(0, "store", pa.array(user))
    cut(table, tmp_path / "sales", [100, 300])
    found = in_pieces(tmp_path / "sales", tmp_path, buckets=7)
    whole = in_memory(table)
    assert len(whole.users_) == 60
    assert_same_fit(found, whole, table)


REAL = {
    **dict.fromkeys(["cigar", "diamonds", "gasoline", "grunfeld", "nlschools"], "squared"),
    **dict.fromkeys(["produc", "sleepstudy", "sumhes"], "squared"),
    "males": "logistic",
}


@pytest.mark.parametrize("name", REAL)
def test_real_tables_in_random_files(tmp_path, name):
    file = SHARED_DATA / "tables" / f"{name}.csv"
    if not file.exists():
        pytest.skip(f"{file.name} does not lie beside the project")
    table, rng = read_table(file, text=["user"]), np.random.default_rng(0)
    if name == "males":  # a tenth of them is enough
        table = table.filter(pa.compute.less(table["user"], 1300))
    table = table.take(pa.array(rng.permutation(table.num_rows)))
    cut(table, tmp_path / "cut", rng.integers(0, table.num_rows, 4).tolist())
    asked = {"loss": REAL[name], "user": "user", "target": "target", "categorical": ()}
    found = in_pieces(tmp_path / "cut", tmp_path, **asked)
    assert_same_fit(found, in_memory(table, **asked), table)


def test_files_of_a_memory_address(tmp_path, whole):
    import fsspec

    files = fsspec.filesystem("memory")
    for i, (a, b) in enumerate([(0, 100), (100, 480)]):
        with files.open(f"/odcl-test/part-{i}.parquet", "wb") as stream:
            pq.write_table(TABLE.slice(a, b - a), stream)
    try:
        found = in_pieces("memory://odcl-test", "memory://odcl-work")
        assert_same_fit(found, whole, TABLE)
    finally:
        for folder in ("/odcl-test", "/odcl-work"):
            files.rm(folder, recursive=True)


# -- what cannot be used ---------------------------------------------------------------------------


def test_files_with_other_columns_are_named(tmp_path):
    cut(TABLE, tmp_path / "sales", [100])
    pq.write_table(TABLE.drop_columns(["ads"]), tmp_path / "sales" / "part-001.parquet")
    with pytest.raises(InputError, match=r"part-001\.parquet lacks ads"):
        in_pieces(tmp_path / "sales", tmp_path)


def test_files_with_types_that_do_not_go_together_are_named(tmp_path):
    cut(TABLE, tmp_path / "sales", [100])
    odd = TABLE.set_column(1, "price", pa.array(["x"] * TABLE.num_rows))
    pq.write_table(odd, tmp_path / "sales" / "part-001.parquet")
    with pytest.raises(InputError, match=r"'price' is double in part-000\.parquet, string in part"):
        in_pieces(tmp_path / "sales", tmp_path)


def test_csv_files_are_refused_with_the_reason(tmp_path):
    (tmp_path / "sales").mkdir()
    (tmp_path / "sales" / "a.csv").write_text("store,sales\n1,2\n")
    with pytest.raises(InputError, match="beyond memory tables are Parquet"):
        in_pieces(tmp_path / "sales", tmp_path)


# -- on a cluster ----------------------------------------------------------------------------------


def test_two_processes_give_the_result_of_one(tmp_path, whole, cluster):
    cut(TABLE, tmp_path / "sales", [100, 200, 300])
    found = in_pieces(f"file://{tmp_path / 'sales'}", tmp_path, cluster=cluster)
    assert_same_fit(found, whole, TABLE)


def gather_after_a_loss(bucket, shuffled, plan, work, few):
    """The first task that gets here takes its process down, as a lost machine would."""
    mark = f"{work.text}/killed"
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
        os.kill(os.getpid(), signal.SIGKILL)
    except FileExistsError:
        pass
    return _gather(bucket, shuffled, plan, work, few)


_gather = stages._gather


def test_a_lost_worker_costs_time_and_not_the_result(tmp_path, whole, cluster, monkeypatch):
    cut(TABLE, tmp_path / "sales", [100, 200, 300])
    monkeypatch.setattr(stages, "_gather", gather_after_a_loss)
    found = in_pieces(tmp_path / "sales", tmp_path, cluster=cluster)
    assert (tmp_path / "work" / "killed").exists()
    assert_same_fit(found, whole, TABLE)


def test_an_error_in_a_task_is_the_users_error(tmp_path, cluster):
    cut(TABLE, tmp_path / "sales", [100])
    with pytest.raises(InputError, match="'shop' is not in the table"):
        in_pieces(tmp_path / "sales", tmp_path, cluster=cluster, user="shop")
