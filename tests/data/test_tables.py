"""From a table to arrays: every value arrives, and what cannot is said in one line."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from odcl.data.federation import group_rows
from odcl.data.frames import check_features
from odcl.data.roles import ColumnLook, ColumnOptions, looks_at
from odcl.data.schema import TableSchema
from odcl.data.source import federation_from_table, read_column_names, read_source, read_table
from odcl.data.tables import as_table, write_table
from tests.helpers import refusal, run_python

ROLES = {"user": "store", "target": "y"}


def source_of(table, **options):
    return read_source(table, ColumnOptions(**options))


FINITE = st.floats(allow_nan=False, allow_infinity=False)
TARGETS = st.one_of(st.floats(1e-60, 1e60), st.floats(-1e60, -1e-60), st.just(0.0))
WORDS = st.sampled_from(["north", "south", "n,s", 'say "no"', "two\nlines", " padded", "é"])
unhurried = settings(deadline=None)  # a busy machine is no failure
one_folder = settings(unhurried, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def tables(draw, *, gaps=False):
    """Columns of a table with text ids, two numbers of any scale, a category and a target."""
    n = draw(st.integers(1, 12))

    def column(values):
        return draw(
            st.lists(st.one_of(values, st.none()) if gaps else values, min_size=n, max_size=n)
        )

    return {
        "store": draw(st.lists(st.sampled_from(["a", "b", "007", "7"]), min_size=n, max_size=n)),
        "price": column(FINITE),
        "region": column(WORDS),
        "count": column(st.integers(-(2**63), 2**63 - 1)),
        "y": column(TARGETS),
    }


def arrow(columns):
    kinds = {"store": pa.string(), "price": pa.float64(), "region": pa.string()}
    return pa.table({n: pa.array(v, kinds.get(n)) for n, v in columns.items()})


def small_table(**changed):
    columns = {
        "store": ["b", "a", "b", "a"],
        "price": [1.0, 2.0, 3.0, 4.5],
        "region": ["north", "south", "north", "east"],
        "sold": [3, 0, 1, 2],
        "y": [0.5, 1.5, 2.5, 3.5],
    }
    return pa.table({n: v for n, v in (columns | changed).items() if v is not None})


def write_file(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# Reading and writing


@one_folder
@given(columns=tables())
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet"])
def test_what_is_written_reads_back_exactly(tmp_path, ending, columns):
    path = tmp_path / f"table{ending}"
    write_table(path, columns)
    table = read_table(path, text=("store",))
    for name, values in columns.items():
        if name == "store":  # integers where every id is written as one
            assert list(map(str, table[name].to_pylist())) == values
        else:
            assert table[name].to_pylist() == values


FORMULAS = [
    "=1+1",
    "+x",
    "-x",
    "@x",
    "\tx",
    "\rx",
    "'=1+1",
    "''@x",
    "=",
    "-",
    "'",
    "'x",
    "-5",
    "+1e3",
]


@one_folder
@given(
    texts=st.lists(
        st.one_of(st.sampled_from(FORMULAS), st.text("'=+-@\t\r\n\",x1", min_size=1, max_size=5)),
        min_size=1,
    )
)
@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_no_text_is_a_formula_for_a_spreadsheet_and_all_read_back(tmp_path, ending, texts):
    path = tmp_path / f"t{ending}"
    texts = ["x", *texts]  # numbers alone would be read as numbers
    write_table(path, {"store": texts, "y": [-5.0] * len(texts)})
    table = read_table(path, text=("store",))
    assert table["store"].to_pylist() == texts
    assert table["y"].to_pylist() == [-5.0] * len(texts)
    with open(path, encoding="utf-8", newline="") as stream:
        cells = list(csv.reader(stream, delimiter="," if ending == ".csv" else "\t"))[1:]
    for cell, number in cells:
        is_number = re.fullmatch(r"[+-](\d+\.?\d*|\.\d+)(e\d+)?", cell) is not None
        assert len(cell) == 1 or is_number or cell[0] not in "=+-@\t\r"
        assert number in ("-5", "-7")


def test_a_strangers_file_with_formulas_is_read_as_it_is(tmp_path):
    path = write_file(tmp_path / "t.csv", "store,y\n=1,1\n'=1,2\n")
    assert read_table(path, text="store")["store"].to_pylist() == ["=1", "'=1"]


def test_every_source_gives_the_same_federation(tmp_path):
    table = small_table()
    frame = table.to_pandas()
    frame.index = [7, 3, 5, 1]  # an index is not a column
    write_table(tmp_path / "t.csv", table.to_pydict())
    write_table(tmp_path / "t.parquet", table.to_pydict())
    frame.to_parquet(tmp_path / "pandas.parquet")
    write_file(tmp_path / "t.csv.gz", gzip.compress((tmp_path / "t.csv").read_bytes()))
    write_file(tmp_path / "semicolon.csv", (tmp_path / "t.csv").read_text().replace(",", ";"))
    write_file(tmp_path / "bom.csv", b"\xef\xbb\xbf" + (tmp_path / "t.csv").read_bytes())
    (tmp_path / "parts").mkdir()
    write_file(tmp_path / "parts" / "_SUCCESS", "")
    write_file(tmp_path / "parts" / "README.md", "")
    write_table(
        tmp_path / "parts" / "2.parquet",
        table.slice(3).select(table.column_names[::-1]).to_pydict(),
    )
    write_table(tmp_path / "parts" / "1.csv", table.slice(0, 3).to_pydict())

    class Foreign:
        def __dataframe__(self, **options):
            return table.__dataframe__(**options)

    files = [
        "t.csv",
        "t.parquet",
        "pandas.parquet",
        "t.csv.gz",
        "semicolon.csv",
        "bom.csv",
        "parts",
    ]
    sources = [
        table,
        frame,
        pl.from_arrow(table),
        table.to_pydict(),
        Foreign(),
        str(tmp_path / "t.csv"),
    ]
    expected, schema = federation_from_table(table, **ROLES, categorical="region")
    for source in [*sources, *(tmp_path / name for name in files)]:
        federation, same = federation_from_table(source, **ROLES, categorical=["region"])
        assert same == schema
        assert federation.users.tolist() == ["a", "b"]
        assert_array_equal(federation.X, expected.X)
        assert_array_equal(federation.y, expected.y)
        assert_array_equal(federation.offsets, expected.offsets)


@one_folder
@given(
    ids=st.lists(
        st.one_of(
            st.integers(-(2**70), 2**70).map(str), st.from_regex(r"\A[-+]?[0-9]{1,4}(\.0)?\Z")
        ),
        min_size=1,
    )
)
def test_ids_become_integers_only_if_they_are_written_so(tmp_path, ids):
    path = write_file(tmp_path / "t.csv", "store,y\n" + "".join(f"{i},1\n" for i in ids))
    read = read_table(path, text=("store",))["store"].to_pylist()
    numbers = [int(float(i)) if "." in i else int(i) for i in ids]
    written = [list(map(str, numbers)), [f"{n}.0" for n in numbers]]
    fit = all(-(2**63) <= n < 2**63 for n in numbers)
    assert read == (numbers if ids in written and fit else ids)


def test_leading_zeros_stay_and_words_for_missing_are_missing(tmp_path):
    path = write_file(tmp_path / "t.csv", "store,x,y\n007,1,1\n7,NA,2\n,nan,3\nNA,4,4\n")
    table = read_table(path, text="store")
    assert table["store"].to_pylist() == ["007", "7", None, None]
    assert table["x"].to_pylist() == [1, None, None, 4]
    kept = read_table(path, text="store", null_values=("", "nan"))
    assert kept["store"].to_pylist() == ["007", "7", None, "NA"]


def test_column_names_are_those_of_the_table(tmp_path):
    columns = {"two\nlines": [1], 'say "no"': [2], "a;b": [3], "größe, cm": ["x"]}
    pd.DataFrame(columns, index=["i"]).to_parquet(tmp_path / "t.parquet")
    for ending in (".csv", ".tsv"):
        write_table(tmp_path / f"t{ending}", columns)
    write_file(tmp_path / "bom.csv", b"\xef\xbb\xbf" + (tmp_path / "t.csv").read_bytes())
    for name in ("t.csv", "t.tsv", "bom.csv", "t.parquet"):
        assert read_column_names(tmp_path / name) == read_table(tmp_path / name).column_names
        assert read_column_names(tmp_path / name) == list(columns)


def test_text_that_has_a_type_stays_text(tmp_path):
    write_table(tmp_path / "t.parquet", {"store": ["1", "2"], "x": [1, 2], "y": [1, 2]})
    federation, schema = federation_from_table(tmp_path / "t.parquet", **ROLES)
    assert federation.users.tolist() == ["1", "2"]
    assert schema.user_kind == "text"
    csv = write_file(tmp_path / "t.csv", "store,x\n2,1\n")  # integers here, and the same user
    encoded = schema.encode(read_table(csv, text=schema.text), with_target=False)
    assert encoded.users.tolist() == ["2"]


def test_text_in_one_file_of_a_folder_is_named_by_its_row(tmp_path):
    write_file(tmp_path / "1.csv", "store,x,y\na,1,1\nb,2,2\n")
    write_file(tmp_path / "2.csv", "store,x,y\na,3,1\nb,oops,2\n")
    assert "row 4 has 'oops'" in refusal(federation_from_table, tmp_path, **ROLES)


BROKEN = {
    "empty.csv": ("", "is empty"),
    "blank.csv": ("\n\n", "is empty"),
    "header.csv": ("a,b\n", "single line"),
    "nothing.parquet": ("", "could not be read as Parquet"),
    "csv.parquet": ("a,b\n1,2\n", "could not be read as Parquet"),
    "plain.csv.gz": ("a,b\n1,2\n", "could not be read as CSV"),
    "ragged.csv": ("a,b\n1,2\n3\n", "Row #3"),
    "twice.csv": ("a,b,a\n1,2,3\n", "two columns called 'a'"),
    "latin.csv": ("a,b\n1,café\n".encode("latin-1"), "CSV UTF-8"),
    "latin_name.csv": ("é,b\n1,2\n".encode("latin-1"), "CSV UTF-8"),
    "excel.csv": ("a,b\n1,2\n".encode("utf-16"), "CSV UTF-8"),
    "zip.csv": (b"PK\3\4rest\nof\nit", "binary data"),
    "table.xlsx": (b"PK\3\4", "'.xlsx'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_is_no_table_is_refused_by_name_and_reason(tmp_path, name):
    content, reason = BROKEN[name]
    message = refusal(read_table, write_file(tmp_path / name, content))
    if name not in ("ragged.csv", "twice.csv", "latin.csv", "latin_name.csv"):
        assert refusal(read_column_names, tmp_path / name) == message
    assert reason in message
    assert name in message


def test_a_folder_or_path_without_a_table_is_refused(tmp_path):
    assert "holds nothing" in refusal(read_table, tmp_path)
    write_file(tmp_path / "notes.md", "")
    assert "holds only 'notes.md'" in refusal(read_table, tmp_path)
    assert "did you mean 'notes.md'?" in refusal(read_table, tmp_path / "note.md")
    write_file(tmp_path / "1.csv", "a,b\n1,2\n")
    write_file(tmp_path / "2.csv", "a,c\n1,2\n")
    assert "2.csv lacks b and adds c, compared with 1.csv" in refusal(read_table, tmp_path)
    write_file(tmp_path / "2.csv", "a,b\n1,x\n")
    write_table(tmp_path / "3.parquet", {"a": [1], "b": [2]})
    assert "Column 'b' is" in refusal(read_table, tmp_path)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (3, "type int is not a table"),
        (pd.DataFrame(), "no columns"),
        (pd.DataFrame({"a": []}), "no rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns called 'a'"),
        (pa.table([[1], [2]], names=["a", "a"]), "two columns called 'a'"),
        (pd.DataFrame({"a": [1, "x"]}), "one type"),
    ],
)
def test_data_that_is_no_table_is_refused(data, reason):
    assert reason in refusal(as_table, data)


def test_a_write_that_fails_leaves_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    write_table(path, {"a": [1]})
    before = path.read_bytes()
    monkeypatch.setattr("pyarrow.csv.write_csv", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_table(path, {"a": [2]})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]
    assert ".parquet" in refusal(write_table, tmp_path / "t.xls", {"a": [1]})


def test_a_written_table_is_plain_and_takes_mixed_ids(tmp_path):
    write_table(
        tmp_path / "t.csv",
        {"store": np.array([1, "b", None], dtype=object), "p": [0.1, np.nan, 1e300]},
    )
    assert (tmp_path / "t.csv").read_text() == "store,p\n1,0.1\nb,\n,1e+300\n"


# The schema


@unhurried
@given(columns=tables())
def test_numbers_arrive_as_they_are_and_each_level_has_its_column(columns):
    table = arrow(columns)
    schema = TableSchema.fit(table, **ROLES, categorical=["region"])
    encoded = schema.encode(table)
    counts = {level: columns["region"].count(level) for level in columns["region"]}
    reference, *others = schema.levels["region"]
    assert reference == min(counts, key=lambda level: (-counts[level], level))
    assert others == sorted(set(counts) - {reference})
    assert schema.columns == ("price", *(f"region={level}" for level in others), "count")
    assert encoded.X.dtype == np.float64
    assert encoded.X.flags.c_contiguous
    assert_array_equal(encoded.X[:, 0], columns["price"])
    assert_array_equal(encoded.X[:, -1], [float(v) for v in columns["count"]])
    for level, x in zip(others, encoded.X[:, 1:-1].T, strict=True):
        assert_array_equal(x, [float(v == level) for v in columns["region"]])
    assert_array_equal(encoded.y, columns["y"])
    assert encoded.users.tolist() == columns["store"]
    assert encoded.ids.tolist() == group_rows(columns["store"])[0].tolist()
    assert_array_equal(encoded.rows, np.arange(len(columns["y"])))
    assert (encoded.n_dropped, encoded.missing, encoded.unseen) == (0, {}, {})


@unhurried
@given(columns=tables(), random=st.randoms(use_true_random=False))
def test_the_order_of_rows_and_columns_and_other_columns_do_not_matter(columns, random):
    table = arrow(columns)
    schema = TableSchema.fit(table, **ROLES, categorical=["region"])
    rows, names = list(range(table.num_rows)), list(columns)
    random.shuffle(rows)
    random.shuffle(names)
    other = table.take(rows).select(names).append_column("note", pa.nulls(len(rows)))
    again = TableSchema.fit(
        other, **ROLES, categorical=["region"], features=schema.features, drop=["note"]
    )
    assert (again.levels, again.columns, again.user_kind) == (
        schema.levels,
        schema.columns,
        schema.user_kind,
    )
    for name, mean in schema.fill.items():
        # Sums of up to 12 terms in another order, relative to their largest.
        largest = max(abs(float(v)) for v in columns[name])
        assert abs(again.fill[name] / 2 - mean / 2) <= 1e-12 * largest
    encoded = schema.encode(other)
    assert_array_equal(encoded.X, schema.encode(table).X[rows])
    assert encoded.users.tolist() == [columns["store"][r] for r in rows]


@unhurried
@given(columns=tables(gaps=True))
def test_dropping_incomplete_rows_is_as_if_they_had_never_been_there(columns):
    table = arrow(columns)
    full = [r for r in range(table.num_rows) if all(v[r] is not None for v in columns.values())]
    options = {**ROLES, "categorical": "region"}
    if not full:
        refusal(TableSchema.fit, table, **options, missing="drop")
        return
    schema = TableSchema.fit(table, **options, missing="drop")
    clean = TableSchema.fit(table.take(full), **options)
    assert schema.to_json() | {"missing": "error"} == clean.to_json()
    encoded, expected = schema.encode(table), clean.encode(table.take(full))
    assert_array_equal(encoded.X, expected.X)
    assert_array_equal(encoded.y, expected.y)
    assert_array_equal(encoded.rows, full)
    assert encoded.ids.tolist() == expected.ids.tolist()
    assert_array_equal(encoded.codes, expected.codes)
    assert encoded.n_dropped == table.num_rows - len(full)
    lacking = {n: sum(v is None for v in c) for n, c in columns.items()}
    assert encoded.missing == {n: k for n, k in lacking.items() if k}


@unhurried
@given(columns=tables(gaps=True))
def test_filling_with_means_is_as_if_they_had_stood_there(columns):
    table = arrow(columns)
    options = {**ROLES, "categorical": "region", "missing": "mean"}
    kept = [r for r, y in enumerate(columns["y"]) if y is not None]
    known = {n: [v[r] for r in kept if v[r] is not None] for n, v in columns.items()}
    if not all(known.values()):
        refusal(TableSchema.fit, table, **options)
        return
    schema = TableSchema.fit(table, **options)
    for name in ("price", "count"):
        values = [float(v) for v in known[name]]
        # math.fsum is exact; ours rounds a few times relative to the largest value.
        mean = math.fsum(v / len(values) for v in values)
        assert abs(schema.fill[name] / 2 - mean / 2) <= 1e-12 * max(map(abs, values))
    fill = {**schema.fill, "region": schema.levels["region"][0]}
    filled = {
        n: [
            float(fill[n])
            if n == "count" and v is None
            else fill[n]
            if n in fill and v is None
            else v
            for v in c
        ]
        for n, c in ((n, [c[r] for r in kept]) for n, c in columns.items())
    }
    filled["count"] = [float(v) for v in filled["count"]]
    encoded, expected = schema.encode(table), schema.encode(arrow(filled))
    assert_array_equal(encoded.X, expected.X)
    assert_array_equal(encoded.rows, kept)
    assert encoded.n_dropped == table.num_rows - len(kept)


CLASSES = [
    st.sampled_from(["yes", "no", "1", "True"]),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.sampled_from([0.5, 1.0, -2.0]),
]


@unhurried
@given(
    data=st.data(),
    kinds=st.tuples(st.sampled_from(CLASSES), st.sampled_from(CLASSES), st.sampled_from(CLASSES)),
)
def test_a_schema_survives_json_with_every_type_as_it_was(data, kinds):
    def column(values, least=1):
        return data.draw(
            st.lists(values, min_size=4, max_size=4).filter(lambda v: len(set(v)) >= least)
        )

    user, level, label = kinds
    table = pa.table(
        {"store": column(user), "code": column(level), "x": column(FINITE), "y": column(label, 2)}
    )
    schema = TableSchema.fit(table, **ROLES, categorical=["code"], task="classification")
    back = TableSchema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False)))
    assert back == schema
    assert repr(back) == repr(schema)  # True == 1 == 1.0, their texts differ
    encoded = back.encode(table)
    assert_array_equal(back.labels(encoded.y), table["y"].to_pylist())
    assert list(schema.classes) == sorted(schema.classes)
    assert_array_equal(encoded.X, schema.encode(table).X)


def deep(n):
    return "[" * n + "]" * n


DAMAGED = {
    "newer": (lambda c: c | {"format": 2}, "has format 2"),
    "no format": (lambda c: {}, "has format none"),
    "deep format": (lambda c: c | {"format": json.loads(deep(900))}, "has format none"),
    "lacks": (lambda c: {k: v for k, v in c.items() if k != "fill"}, "fill is missing"),
    "adds": (lambda c: c | {"more": 1}, "'more' is not known"),
    "no dict": (lambda c: [c], "not a table of names and values"),
    "no JSON": (lambda c: json.dumps(c)[:-1], "no JSON"),
    "too deep": (lambda c: deep(10**6), "no JSON"),
    "user": (lambda c: c | {"user": 1}, "user is 1, and not text"),
    "features": (lambda c: c | {"features": "price"}, "not a list"),
    "no features": (lambda c: c | {"features": []}, "not distinct names"),
    "deep features": (lambda c: c | {"features": json.loads(deep(900))}, "and not text"),
    "twice": (lambda c: c | {"features": [*c["features"], "store"]}, "twice"),
    "another": (lambda c: c | {"features": [*c["features"], "new"]}, "not those of the features"),
    "missing": (lambda c: c | {"missing": "all"}, "one of error, drop, mean"),
    "task": (lambda c: c | {"task": "rank"}, "one of regression"),
    "kind": (lambda c: c | {"user_kind": "date"}, "one of int, float, bool, text"),
    "levels": (lambda c: c | {"levels": ["region"]}, "levels is"),
    "both": (lambda c: c | {"fill": {**c["fill"], "region": 1.0}}, "levels and a mean"),
    "one mean less": (lambda c: c | {"fill": {"price": 1.0}}, "not those of the features"),
    "mean": (lambda c: c | {"fill": {**c["fill"], "price": "1"}}, "not a finite number"),
    "infinite mean": (
        lambda c: c | {"fill": {**c["fill"], "price": math.inf}},
        "not a finite number",
    ),
    "true mean": (lambda c: c | {"fill": {**c["fill"], "price": True}}, "not a finite number"),
    "no levels": (lambda c: c | {"levels": {"region": []}}, "levels.region is []"),
    "same levels": (lambda c: c | {"levels": {"region": ["a", "a"]}}, "not distinct keys"),
    "mixed levels": (lambda c: c | {"levels": {"region": ["a", 1]}}, "not distinct keys"),
    "huge level": (lambda c: c | {"levels": {"region": [10**99, 1]}}, "not distinct keys"),
    "list as level": (lambda c: c | {"levels": {"region": [[]]}}, "not distinct keys"),
    "levels mixed up": (
        lambda c: c | {"levels": {"region": ["a", "z", "b"]}},
        "sorted after the first",
    ),
    "many levels": (
        lambda c: c | {"levels": {"region": list(range(9999))}},
        "and not distinct keys",
    ),
    "classes": (lambda c: c | {"classes": ["a"]}, "two or more distinct keys"),
    "no classes": (lambda c: c | {"classes": None}, "do not fit its task"),
    "for a number": (lambda c: c | {"task": "count"}, "do not fit its task"),
    "classes swapped": (lambda c: c | {"classes": ["b", "a"]}, "distinct keys, sorted"),
    "names clash": (
        lambda c: c | {"features": ["region", "region=east"], "fill": {"region=east": 1.0}},
        "Two design columns",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_schema_that_no_fit_wrote_is_refused_with_the_reason(case):
    damage, told = DAMAGED[case]
    table = small_table(y=["a", "b", "a", "b"])
    schema = TableSchema.fit(table, **ROLES, categorical="region", task="classification")
    content = json.loads(json.dumps(schema.to_json()))
    assert TableSchema.from_json(json.dumps(content).encode()) == schema
    assert told in refusal(TableSchema.from_json, damage(content))


@pytest.mark.parametrize(
    ("fitted", "later", "unknown"),
    [
        ([1, 2, 3], ["1", "3", "x"], "x"),  # one new word makes the file's column text
        ([1, 2, 3], [1.0, 3.0, 9.0], 9),
        (["007", "1", "2"], [1, 2, 7], "7"),
        ([True, False, True], ["true", "False", "maybe"], "maybe"),
        ([0.5, 1.0, 2.0], ["0.5", "2", "1e3"], "1e3"),
    ],
)
def test_ids_and_levels_are_recognised_in_another_type(fitted, later, unknown):
    table = pa.table({"store": fitted, "code": fitted, "x": [1, 2, 3], "y": [1, 2, 3]})
    new = pa.table({"store": later, "code": later, "x": [1, 2, 3]})
    schema = TableSchema.fit(table, **ROLES, categorical=["code"])
    old = schema.encode(table)
    encoded = schema.encode(new, with_target=False, unseen="reference")
    assert encoded.y is None
    assert encoded.unseen == {("code", unknown): 1}
    assert encoded.users[2] == unknown
    assert set(encoded.users[:2].tolist()) <= set(old.users.tolist())
    message = refusal(schema.encode, new, with_target=False)
    assert f"level {unknown!r} in row 3" in message
    assert "Say unseen='reference' to" in message


def test_a_class_never_seen_is_named_with_its_row_where_rows_were_dropped_before_it():
    table = small_table(y=["yes", "no", "yes", "no"])
    schema = TableSchema.fit(table, **ROLES, drop="region", task="classification")
    new = small_table(y=["yes", None, "maybe", "no"])
    message = refusal(schema.encode, new, missing="drop")
    assert "'maybe' in row 3, which is none of the classes" in message


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_a_row_without_an_id_is_no_user(nothing):
    table = small_table(store=[nothing, 2.0, nothing, 1.0])
    told = refusal(federation_from_table, table, **ROLES, drop="region")
    assert "'store' names no user in row 1 (incomplete rows: 2 of 4)" in told
    assert told.endswith("Say missing='drop' (leave these rows out).")
    for missing in ("drop", "mean"):
        federation, schema = federation_from_table(table, **ROLES, drop="region", missing=missing)
        assert federation.users.tolist() == [1, 2]
        assert federation.n_rows.tolist() == [1, 1]
        assert schema.user_kind == "int"
        encoded = schema.encode(table, with_target=False)
        assert (encoded.rows.tolist(), encoded.missing) == ([1, 3], {"store": 2})
    assert "names no user" in refusal(schema.encode, table, with_target=False, missing="error")
    nobody = small_table(store=pa.nulls(4))
    assert "lacks 4. Fill them in." in refusal(
        federation_from_table, nobody, **ROLES, drop="region", missing="mean"
    )


def test_booleans_decimals_and_any_integer_are_numbers():
    wide = pa.array([2**64 - 1, 1, 0, 2**53 + 1], pa.uint64())
    exact = pa.array(["1.50", "2.25", "0.00", None]).cast(pa.decimal128(5, 2))
    table = small_table(region=[True, False, True, None], sold=wide, price=exact)
    encoded = TableSchema.fit(table, **ROLES, missing="mean").encode(table)
    assert_allclose(encoded.X[:, 0], [1.5, 2.25, 0, 1.25], rtol=1e-15)
    assert_allclose(encoded.X[:, 1], [1, 0, 1, 2 / 3], rtol=1e-12)
    assert_array_equal(encoded.X[:, 2], [2.0**64, 1, 0, 2.0**53])


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e12, 1e308, 5e-324])
def test_a_constant_column_of_any_scale_is_taken_with_its_own_mean(scale):
    schema = TableSchema.fit(small_table(price=[scale] * 4), **ROLES, drop="region")
    assert schema.fill["price"] == scale


def as_categories(table):
    return table.to_pandas().astype({"region": "category", "store": "category"})


FRAMES = {
    "Arrow": lambda table: table,
    "Arrow of pandas": lambda table: pa.Table.from_pandas(table.to_pandas()),
    "pandas": lambda table: table.to_pandas().set_index(pd.Index([9, 7, 5, 3], name="index")),
    "pandas nullable": lambda table: table.to_pandas().convert_dtypes(),
    "pandas on Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas categories": as_categories,
    "pandas objects": lambda table: table.to_pandas().astype(object),
    "polars": pl.from_arrow,
    "dict": lambda table: {name: table[name].to_numpy() for name in table.column_names},
}


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_of_every_kind_give_one_schema_and_columns_go_by_name(kind):
    table = small_table()
    schema = TableSchema.fit(table, **ROLES, categorical=["region"])
    expected = schema.encode(table)
    given = FRAMES[kind](table)
    assert TableSchema.fit(given, **ROLES, categorical=["region"]) == schema
    names = ["y", "region", "sold", "extra", "store", "price"]
    other = FRAMES[kind](table.append_column("extra", [list("wxyz")]).select(names))
    encoded = schema.encode(other)
    assert_array_equal(encoded.X, expected.X)
    assert_array_equal(encoded.y, expected.y)
    assert encoded.users.tolist() == expected.users.tolist()
    again = TableSchema.fit(other, **ROLES, categorical=["region"], features=schema.features)
    assert again == schema  # in the order of the features asked for


def test_numbers_as_names_of_a_frame_are_text():
    frame = pd.DataFrame({0: ["a", "b"], 1: [1.0, 2.0], 2: [3.0, 4.0]})
    assert TableSchema.fit(frame, user="0", target="2").columns == ("1",)


def test_polars_and_pandas_categories_are_levels():
    frame = small_table().to_pandas().astype({"region": "category"})
    expected = TableSchema.fit(small_table(), **ROLES, categorical=["region"])
    assert TableSchema.fit(frame, **ROLES, categorical=["region"]) == expected
    polars = pl.from_arrow(small_table()).with_columns(pl.col("region").cast(pl.Categorical))
    assert TableSchema.fit(polars, **ROLES, categorical=["region"]) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a type says so: no notice
        assert TableSchema.fit(frame, **ROLES) == expected
        assert TableSchema.fit(polars.lazy(), **ROLES) == expected


# -- columns that nobody named ---------------------------------------------------------------------


def unnamed_table(n=40):
    """Two columns of text, an id for nearly every row, a row number, a year and codes."""
    return pa.table(
        {
            "store": np.repeat(["a", "b"], n // 2),
            "region": np.resize(["north", "south", "east"], n),
            "name": [f"customer {i % (n - 3)}" for i in range(n)],
            "row": np.arange(1, n + 1),
            "year": np.tile(np.arange(1990, 1990 + n // 2), 2),
            "code": np.resize([3, 5, 7], n),
            "y": np.linspace(0, 1, n),
        }
    )


def test_text_is_taken_as_categories_and_ids_are_left_out_with_one_notice():
    """A year, which counts the rows of each user, stays; so does what is asked for by name."""
    table = unnamed_table()
    with pytest.warns(UserWarning, match="Left out") as said:
        schema = TableSchema.fit(table, **ROLES)
    assert [str(one.message) for one in said] == [
        "Columns of text are taken as categories: region. Left out: 'name' (37 levels in 40 rows), "
        "'row' (it counts the rows). Ask for a column by its name to keep it."
    ]
    assert schema.features == ("region", "year", "code")
    assert list(schema.levels) == ["region"]
    with pytest.warns(UserWarning, match="categories: region, name.$"):
        asked = TableSchema.fit(table, **ROLES, features=["region", "name", "row"])
    assert (asked.features, list(asked.levels)) == (("region", "name", "row"), ["region", "name"])
    with pytest.warns(UserWarning, match="categories: region. Left"):
        coded = TableSchema.fit(table, **ROLES, categorical=["code"])
    assert coded.levels["code"] == (3, 5, 7)


def test_integers_that_rise_from_row_to_row_are_named_and_stay():
    rising = np.cumsum(np.arange(40) % 7 + 1) + 1000
    table = unnamed_table().append_column("patient", [rising])
    with pytest.warns(UserWarning, match=r"patient rises from row to row: drop what is an id\.$"):
        schema = TableSchema.fit(table, **ROLES)
    assert "patient" in schema.features
    pieces = [looks_at(table.slice(a, 20), ["patient"])["patient"] for a in (0, 20)]
    assert pieces[0] + pieces[1] == looks_at(table, ["patient"])["patient"]
    assert not (pieces[1] + pieces[0]).rises


def test_numbers_and_dates_among_text_are_no_categories():
    """A slip in a column of numbers is refused, as before; all such columns are named at once."""
    slips = ["1.5", "2", "n.a.", "4"] * 10
    days = [f"2024-01-{i % 28 + 1:02d}" for i in range(40)]
    table = unnamed_table().append_column("price", [slips]).append_column("day", [days])
    with pytest.warns(UserWarning, match="categories: region"):
        said = refusal(TableSchema.fit, table, **ROLES)
    assert "Column 'price' holds text where numbers are needed: row 3 has 'n.a.'" in said
    assert "Column 'day' holds text where numbers are needed: row 1 has '2024-01-01'" in said
    assert (
        "categorical=['price', 'day'] to use them as categories, or drop=['price', 'day']" in said
    )
    said = refusal(TableSchema.fit, table, **ROLES, features=["prize", "when"])
    assert "Columns prize, when are not in the table. Columns: store" in said


@pytest.mark.parametrize("cuts", [(0,), (1, 2), (7, 7, 25), (40,), tuple(range(1, 40))])
def test_looks_at_pieces_add_up_to_the_look_at_the_table(cuts):
    table = unnamed_table()
    names = [name for name in table.column_names if name not in ("store", "y")]
    ends = zip((0, *cuts), (*cuts, 40), strict=True)
    pieces = [looks_at(table.slice(a, b - a), names) for a, b in ends]
    merged = {name: sum((one[name] for one in pieces), ColumnLook(0)) for name in names}
    assert merged == looks_at(table, names)
    assert merged["row"].left_out == "it counts the rows"
    assert merged["year"].left_out == ""
    assert merged["name"].left_out == "37 levels in 40 rows"


DATES = pa.array([0, 1, 2, 3], pa.date32())
REFUSED = {
    "user unknown": ({"user": "stroe"}, {}, "; did you mean 'store'? Columns: store, price,"),
    "target unknown": ({"target": "Y"}, {}, "did you mean 'y'?"),
    "feature unknown": ({"features": ["prize"]}, {}, "did you mean 'price'?"),
    "drop unknown": ({"drop": ["zzz"]}, {}, "Column 'zzz' is not in the table. Columns: "),
    "categorical unknown": ({"categorical": ["Region"]}, {}, "did you mean 'region'?"),
    "user is target": ({"user": "y"}, {}, "user and the target at once"),
    "target as feature": ({"features": ["y"]}, {}, "is the target"),
    "user dropped": ({"drop": ["store"]}, {}, "is the user"),
    "asked and dropped": ({"features": ["price"], "drop": ["price"]}, {}, "asked for and dropped"),
    "categorical dropped": (
        {"categorical": "region", "drop": "region"},
        {},
        "not among the features",
    ),
    "no feature": ({"drop": ["price", "region", "sold"]}, {}, "No feature is left"),
    "unknown way": ({"missing": "zero"}, {}, "missing is one of error, drop, mean, not 'zero'"),
    "unknown task": ({"task": "rank"}, {}, "task is one of"),
    "slip": ({}, {"region": ["1", "2", "x", "4"]}, "row 3 has 'x' (numbers are written 1234.5"),
    "thousands": ({}, {"region": ["1", "2.5", "1,234", "x"]}, "row 3 has '1,234'"),
    "long line": ({}, {"region": ["1", "1", "1", "two\nlines" * 99]}, "row 4 has 'two\\n"),
    "numbers as text": ({}, {"region": ["1", " 2.5", "-3e4", ".5"]}, "numbers written as text"),
    "date": ({}, {"region": DATES}, "holds dates or times (date32[day]; row 1: '1970-01-01')"),
    "list": ({}, {"region": [[1], [2], [3], [4]]}, "type list"),
    "gap": ({}, {"region": [1, None, 2, None]}, "no value in row 2 (incomplete rows: 2 of 4), and"),
    "gaps": (
        {},
        {"region": [1, None, 2, None], "sold": [None, 1, None, 1]},
        "'sold' has no value in row 1 (incomplete rows: 4 of 4, 2 of them in this column; also in "
        "region), and a model needs them all. Say missing='drop' (leave these rows out), missing="
        "'mean' (fill in the mean), or drop=['region', 'sold'] (do without the columns).",
    ),
    "gaps in one row": (
        {},
        {"region": [1, None, 2, None], "sold": [3, None, 2, 1]},
        "no value in row 2 (incomplete rows: 2 of 4",
    ),
    "no whole row": (
        {"missing": "drop"},
        {"region": [1, None, None, None], "sold": [None, 1, 2, 3]},
        "column 'region' lacks 3",
    ),
    "nan": (
        {},
        {"region": [1.0, math.nan, 2.0, 3.0]},
        "missing='mean' (fill in the mean), or drop=['region']",
    ),
    "no target": (
        {"drop": "region"},
        {"y": [1, None, 2, 3]},
        "missing='drop' (leave these rows out).",
    ),
    "infinity": ({"missing": "drop"}, {"region": [1.0, 2.0, -math.inf, 3.0]}, "infinite in row 3"),
    "empty column": ({"missing": "mean"}, {"region": pa.nulls(4)}, "no value in any row"),
    "nothing left": ({"missing": "drop"}, {"region": pa.nulls(4)}, "Not one of 4 rows"),
    "no target at all": (
        {"missing": "mean", "drop": "region"},
        {"y": pa.nulls(4)},
        "Fill them in.",
    ),
    "text target": ({"drop": "region"}, {"y": list("abab")}, "task='classification'"),
    "one class": ({"drop": "region", "task": "classification"}, {"y": ["a"] * 4}, "in every row"),
    "negative count": ({"drop": "region", "task": "count"}, {"y": [1, 2, -1, 0]}, "-1 in row 3"),
    "broken count": ({"drop": "region", "task": "count"}, {"y": [1, 0.5, 1, 0]}, "0.5 in row 2"),
    "nameless": ({"drop": "region"}, {"": [1, 2, 3, 4]}, "no name"),
    "one level": (
        {"features": "region", "categorical": "region"},
        {"region": list("nnnn")},
        "no design",
    ),
    "same name": ({"categorical": "region"}, {"region=south": [1, 2, 3, 4]}, "'region=south'"),
    "odd name": ({"drop": "region"}, {"unit\nprice": list("123x")}, "'unit\\nprice'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_fit_that_cannot_be_is_refused_with_the_reason(case):
    options, columns, reason = REFUSED[case]
    assert reason in refusal(TableSchema.fit, small_table(**columns), **{**ROLES, **options})


DECIMAL = "store;price;sold;zip;note;y\na;3,14;3;1,5;1,234;0,5\nb;-2;4,0;2;5,678;+10,25\n"


def test_decimal_commas_are_read_where_columns_are_not_separated_by_commas(tmp_path):
    path = write_file(tmp_path / "t.csv", DECIMAL)
    tabs = write_file(tmp_path / "t.tsv", DECIMAL.replace(";", "\t"))
    for file in (path, tabs):
        with pytest.warns(UserWarning, match="decimal commas in price, sold, y: 3,14 is read as"):
            table = read_table(file, text=("store", "zip"))
        assert table["price"].to_pylist() == [3.14, -2.0]
        assert table["sold"].to_pylist() == [3.0, 4.0]
        assert table["y"].to_pylist() == [0.5, 10.25]
        assert table["zip"].to_pylist() == ["1,5", "2"]  # a category, as it is written
        assert table["note"].to_pylist() == ["1,234", "5,678"]  # thousands, perhaps


def test_decimal_commas_elsewhere_are_refused_by_their_name(tmp_path):
    table = small_table(region=["3,14", "2,5", None, "7"], y=["0,5", "1,5", "2,5", "x"])
    assert "'region' looks like numbers with decimal commas (row 1: '3,14')" in refusal(
        TableSchema.fit, table, **ROLES, missing="drop"
    )
    assert "'y' looks like numbers with decimal commas" in refusal(
        source_of, table, **ROLES, drop=["region"]
    )
    write_file(tmp_path / "t.csv", 'store,x,y\na,"3,14",1\nb,"2,5",2\n')
    assert "decimal commas (row 1: '3,14')" in refusal(source_of, tmp_path / "t.csv", **ROLES)


WHEN = pd.to_datetime(["2024-02-03", "2024-02-04"])
COLUMNS = {
    "timestamps": (pd.Series(WHEN), "'c' of X holds dates or times (row 1: 2024-02-03"),
    "with a zone": (pd.Series(WHEN.tz_localize("UTC")), "holds dates or times (row 1: 2024-02-03"),
    "dates": (pd.Series(WHEN.date), "holds dates or times (row 1: 2024-02-03)"),
    "durations": (pd.Series(WHEN - WHEN[0]), "holds dates or times (row 1: 0"),
    "text": (pd.Series(["1.5", "north"]), "holds text (row 2: 'north'), and features are numbers."),
    "decimal commas": (pd.Series(["3,14", "2"]), "If these are decimal commas, put points"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_features_that_are_no_numbers_are_refused_by_their_column(case):
    column, told = COLUMNS[case]
    frame = pd.DataFrame({"a": [1.0, 2.0], "c": column})
    assert told in refusal(check_features, frame)
    assert told in refusal(check_features, pl.from_pandas(frame))
    assert "Column 1 of X" in refusal(check_features, frame.astype(object).to_numpy())


def test_all_features_that_are_no_numbers_are_named_at_once():
    frame = pd.DataFrame({"a": [1.0, 2.0], "when": WHEN, "b": ["1", "x"], "c": ["2", "y"]})
    said = refusal(check_features, frame)
    assert "Column 'when' of X holds dates or times (row 1: 2024" in said
    assert (
        "column 'b' of X holds text (row 2: 'x'); column 'c' of X holds text (row 2: 'y')" in said
    )
    assert "categorical=['b', 'c']" in said


def test_dates_alone_are_refused_where_numpy_would_count_nanoseconds():
    assert "dates or times" in refusal(check_features, pd.DataFrame({"c": WHEN}))
    assert "dates or times" in refusal(check_features, WHEN.to_numpy()[:, None])


@pytest.mark.parametrize(
    "X",
    [
        np.ones((2, 2)),
        np.array([["1", 2.5], [None, True]], dtype=object),
        pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [True, False]}),
        pl.DataFrame({"a": [1, None]}),
        [[1, 2]],
    ],
)
def test_features_that_are_numbers_pass(X):
    check_features(X)


def test_values_that_are_not_classes_or_levels_are_refused():
    values = np.linspace(0, 1, 1_200)
    table = pa.table({"store": [1] * 1_200, "x": np.arange(1_200), "y": values})
    assert "task='regression'" in refusal(TableSchema.fit, table, **ROLES, task="classification")
    assert "1200 levels" in refusal(TableSchema.fit, table, **ROLES, categorical=["x"])
    few = TableSchema.fit(table.slice(0, 100), **ROLES, task="classification")
    assert len(few.classes) == 100


def test_a_table_that_does_not_match_the_schema_is_refused():
    schema = TableSchema.fit(
        small_table(y=["a", "b", "a", "b"]), **ROLES, categorical="region", task="classification"
    )
    assert "Column 'price' is not in the table" in refusal(schema.encode, small_table(price=None))
    assert "Column 'y' is not in the table" in refusal(schema.encode, small_table(y=None))
    assert schema.encode(small_table(y=None), with_target=False).y is None
    assert "'c' in row 3" in refusal(schema.encode, small_table(y=["a", "b", "c", "b"]))
    assert "did you mean 'north'?" in refusal(schema.encode, small_table(region=["norht"] * 4))
    assert "unseen is one of" in refusal(schema.encode, small_table(), unseen="drop")
    assert "with_target=True" in refusal(
        schema.encode(small_table(y=None), with_target=False).federation
    )


def test_a_table_is_grouped_once_and_by_its_distinct_ids_only(monkeypatch):
    sizes = []

    def counted(users):
        sizes.append(len(users))
        return group_rows(users)

    for module in ("columns", "federation"):
        monkeypatch.setattr(f"odcl.data.{module}.group_rows", counted)
    n = 60
    owners = [f"u{i % 3}" for i in range(n)]
    table = pa.table({"store": owners, "x": np.arange(n) * 1.0, "y": np.arange(n) * 1.0})
    source = source_of(table, **ROLES)
    federation = source.encoded.federation()
    assert source.encoded.federation() is federation
    part = federation.select_rows(federation.y < 30).with_X(federation.X[federation.y < 30])
    assert (part.n_users, part.n_rows.tolist()) == (3, [10, 10, 10])
    assert sizes == [3]
    assert_array_equal(source.encoded.by_user(source.encoded.rows), federation.X[:, 0])


ORDERS = {
    "integers": [2**62 + 1, 5, 2**62, -3],
    "floats": [0.5, 2.0, -1e300, 3.0],
    "decimals": pa.array(["1.5", "2.25", "0.00", "9.00"]).cast(pa.decimal128(5, 2)),
    "dates": pa.array([30, 10, 20, 40], pa.date32()),
    "timestamps": pa.array([30, 10, 20, 40], pa.timestamp("ns", "Europe/Berlin")),
    "ISO dates": ["2024-03-01", "2023-12-31", "2024-02-29", "2024-12-01"],
    "ISO times": ["2024-03-01 10:00", "2024-03-01T09:59:59.5", "2024-03-01", "2024-03-02"],
    "zones": [
        "2024-03-01T10:00+02:00",
        "2024-03-01T09:30Z",
        "2024-03-01T09:59+01:00",
        "2025-01-01T00:00Z",
    ],
    "months": ["2024-03", "2023-12", "2024-02", "2024-11"],
    "weeks": pd.Categorical(["2024-W07", "2023-W51", "2024-W06", "2024-W50"]),
}
# Positions of the rows in time, and those of the zones by hand: 08:00, 09:30 and 08:59 UTC.
IN_ORDER = {"integers": [3, 1, 2, 0], "floats": [2, 0, 1, 3], "decimals": [2, 0, 1, 3]}
IN_ORDER |= {"ISO times": [2, 1, 0, 3], "zones": [0, 2, 1, 3]}


@pytest.mark.parametrize("case", ORDERS)
def test_a_time_column_orders_rows_and_is_no_feature(case):
    table = small_table(region=pa.array(ORDERS[case])).rename_columns({"region": "when"})
    source = source_of(table, **ROLES, time="when")
    assert source.schema.features == ("price", "sold")
    assert source.time.dtype.kind in "if"
    assert np.argsort(source.time).tolist() == IN_ORDER.get(case, [1, 2, 0, 3])
    assert source_of(table, **ROLES, drop="when").time is None


def test_a_time_column_is_read_of_the_rows_that_are_used_and_may_be_a_feature():
    table = small_table(region=[4, None, 2, 1], price=[1.0, None, 3.0, 4.5])
    source = source_of(table, **ROLES, time="region", features=["price", "region"], missing="drop")
    assert source.schema.features == ("price", "region")
    assert source.time.tolist() == [4, 2, 1]
    assert source.encoded.by_user(source.time).tolist() == [1, 4, 2]  # of user a, then of b
    gap = small_table(region=[4, 3, 2, None], price=[None, 2.0, 3.0, 4.5])
    told = refusal(source_of, gap, **ROLES, time="region", missing="drop")
    assert "'region' orders the rows, and has no value in row 4 (rows without one: 1 of 3)" in told


@pytest.mark.parametrize(
    ("when", "told"),
    [
        (["3.1.2024", "12.1.2024", "1.2.2024", "2.2.2024"], "not that of time (row 1: '3.1.2024')"),
        (["01/02/2024"] * 4, "write dates as 2024-12-31"),
        (["2024-03-01 10:00 +02"] * 4, "write dates as 2024-12-31"),  # zones do not sort as text
        ([True, False, True, True], "type bool"),
        ([[1], [2], [3], [4]], "type list"),
    ],
)
def test_a_time_column_that_does_not_sort_is_refused(when, told):
    assert told in refusal(source_of, small_table(region=when), **ROLES, time="region")
    assert "'y' is the target" in refusal(source_of, small_table(), **ROLES, time="y")
    assert "did you mean 'region'?" in refusal(source_of, small_table(), **ROLES, time="Regoin")


def test_a_schema_that_stops_at_gaps_can_be_told_otherwise_later():
    schema = TableSchema.fit(small_table(), **ROLES, categorical="region")
    later = small_table(price=[None, 2.0, 3.0, 4.0], region=["north", None, "north", "east"])
    assert "missing='drop'" in refusal(schema.encode, later)
    dropped = schema.encode(later, missing="drop")
    assert (dropped.rows.tolist(), dropped.n_dropped) == ([2, 3], 2)
    filled = schema.encode(later, missing="mean")
    assert filled.X[0, 0] == schema.fill["price"] == 2.625
    assert_array_equal(filled.X[1, 1:3], [0, 0])  # the reference level


def test_a_file_for_prediction_is_read_as_the_schema_asks(tmp_path):
    write_file(tmp_path / "fit.csv", "store,zip,x,y\n007,01234,1,1\n7,SW1,2,2\n7,SW1,3,3\n")
    write_file(tmp_path / "new.csv", "store,zip,x\n7,01234,1\n8,01234,2\n")
    _, schema = federation_from_table(tmp_path / "fit.csv", **ROLES, categorical=["zip"])
    encoded = schema.encode(read_table(tmp_path / "new.csv", text=schema.text), with_target=False)
    assert schema.text == ("store", "zip")
    assert encoded.users.tolist() == ["7", "8"]
    assert_array_equal(encoded.X, [[1, 1], [1, 2]])


def test_frames_are_recognised_without_importing_their_packages():
    code = (
        "import sys, odcl, odcl.data.tables, odcl.data.schema\n"
        "assert not {'pandas', 'polars'} & set(sys.modules)"
    )
    run_python(code)


NAMES = (
    '=HYPERLINK("http://x","y")',
    "@home",
    "-log(x)",
    "\tcell",
    "'=already",
    "plain",
    "+1",
    "'quoted'",
)


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_names_of_columns_are_no_formulas_and_come_back(tmp_path, ending):
    """A spreadsheet would run the header of such a column when it opens the file."""
    path = tmp_path / f"table{ending}"
    columns = {name: [str(i), f"{i}-x"] for i, name in enumerate(NAMES)}
    write_table(path, columns)
    with open(path, newline="") as stream:
        written = next(csv.reader(stream, delimiter="," if ending == ".csv" else "\t"))
    assert [name[0] for name in written[:5]] == ["'"] * 5
    assert written[5:] == [*NAMES[5:]]
    assert read_column_names(path) == [*NAMES]
    found = read_table(path, text=NAMES)
    assert found.to_pydict() == columns
    assert pa.types.is_string(read_table(path, text=["@home"])["@home"].type)


def test_a_header_with_a_bare_formula_is_not_ours(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("=a,'=b\n1,2\n")
    assert read_table(path).column_names == ["=a", "'=b"] == read_column_names(path)
