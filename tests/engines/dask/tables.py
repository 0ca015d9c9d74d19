"""Tables to cut into files, and the two fits that must agree: in memory, and in pieces."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.testing import assert_allclose

from odcl import ODCLClassifier, ODCLRegressor
from odcl.data.address import Address
from odcl.data.roles import Roles
from odcl.data.schema import TableSchema
from odcl.data.source import task_of
from odcl.engines.dask import round as stages
from odcl.engines.dask.cluster import Cluster
from odcl.engines.dask.table import table_files
from odcl.estimators.public import estimator_with
from odcl.runs.pieces import fit_pieces

SENT = {  # how the rows of a piece go: whichever is smaller, or all in one way
    "auto": stages.sums_pay,
    "rows": lambda rows, plan: np.zeros(rows.num_rows, bool),
    "sums": lambda rows, plan: np.ones(rows.num_rows, bool),
}
NAMED = ("--user", "store", "--target", "sales", "--categorical", "kind")  # of the command line


def sales(m=60, n=8, *, loss="squared", seed=0, text=False, bend=0.0):
    """Users of three groups, two numbers and a category; rows in no order; a bend of the price."""
    rng = np.random.default_rng(seed)
    user = rng.permutation(np.repeat(np.arange(m), n))
    X = rng.normal(size=(m * n, 2))
    group = user % 3
    slopes = np.array([[3.0, 0.0], [-3.0, 1.0], [0.0, -3.0]])[group]
    z = (X * slopes).sum(axis=1) + group
    y = z + bend * X[:, 0] ** 2 + 0.3 * rng.normal(size=len(z))
    if loss == "poisson":
        y = rng.poisson(np.exp(0.3 * z))
    if loss == "logistic":
        y = np.where(rng.random(len(z)) < 1 / (1 + np.exp(-z)), "yes", "no")
    store = np.array([f"store {u}" for u in user]) if text else user
    kind = np.array(["big", "small", "tiny"])[rng.integers(0, 3, len(z))]
    price, ads = 10 + 4 * X[:, 0], 1e3 * X[:, 1]
    return pa.table({"store": store, "price": price, "ads": ads, "kind": kind, "sales": y})


def cut(table, folder, cuts):
    """The table as Parquet files, cut at these rows."""
    folder.mkdir(exist_ok=True)
    ends = [0, *sorted(cuts), table.num_rows]
    for i, (start, end) in enumerate(itertools.pairwise(ends)):
        pq.write_table(table.slice(start, end - start), folder / f"part-{i:03d}.parquet")
    return folder


def estimator(loss="squared", user="store", categorical=("kind",), method="default"):
    kind = ODCLClassifier if task_of(loss) == "classification" else ODCLRegressor
    return kind(loss=loss, users=user, categorical=list(categorical) or None, method=method)


def in_memory(
    table,
    loss="squared",
    *,
    user="store",
    target="sales",
    categorical=("kind",),
    method="default",
    **options,
):
    task = task_of(loss)
    named = {"user": user, "target": target, "categorical": categorical, "task": task, **options}
    schema = TableSchema.fit(table, **named)
    federation = schema.encode(table).federation()
    if schema.classes is not None:
        federation = federation.with_y(schema.labels(federation.y.astype(int)))
    model = estimator(loss, user, categorical, method)
    return model.fit_federation(federation, schema=schema)


def in_pieces(*given, **options):
    """The estimator of a fit in pieces."""
    return fitted_pieces(*given, **options)[0].model


def fitted_pieces(
    place,
    work,
    loss="squared",
    *,
    user="store",
    target="sales",
    categorical=("kind",),
    cluster=None,
    buckets=3,
    piece_bytes=2**26,
    method="default",
    **options,
):
    cluster = cluster or Cluster()
    table = table_files(place, cluster).table(cluster, piece_bytes=piece_bytes)
    roles = Roles.of(
        table.schema.names,
        user=user,
        target=target,
        categorical=categorical,
        task=task_of(loss),
        **options,
    )
    folders = [(Address.of(work) / name).make() for name in ("work", "users")]
    model = estimator(loss, user, categorical, method)
    return fit_pieces(model, table, roles, cluster, *folders, buckets=buckets), table


def assert_same_fit(pieces, whole, rows, *, tolerance=1e-8):
    """The same groups and shape; predictions of all rows to 1e-8 of their size."""
    assert pieces.n_clusters_ == whole.n_clusters_
    assert (pieces.mixture_ is None) == (whole.mixture_ is None)
    if whole.mixture_ is not None:
        assert pieces.mixture_.spread.shape == whole.mixture_.spread.shape
    every = estimator_with(pieces.fitted_.holding(whole.users_))
    order = np.argsort(every.users_)
    assert every.users_[order].tolist() == whole.users_.tolist()
    assert every.labels_[order].tolist() == whole.labels_.tolist()
    assert every.n_rows_[order].tolist() == whole.n_rows_.tolist()
    assert_allclose(every.probability_[order], whole.probability_, atol=1e-6)
    if pieces.uploads_ is not None:  # of the users that it holds itself
        assert pieces.uploads_.users.tolist() == pieces.users_.tolist()
        assert pieces.uploads_.n_samples.tolist() == pieces.n_rows_.tolist()
    ask = "predict_proba" if hasattr(whole, "classes_") else "predict"
    mine, theirs = (getattr(model, ask)(rows) for model in (every, whole))
    assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max())
