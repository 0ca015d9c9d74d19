"""``odcl demo``: the paper's linear federation in seconds, a picture, and a table to try."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Floats
from odcl.data.federation import Federation
from odcl.data.synthetic import SyntheticFederation, linear_federation
from odcl.data.tables import write_table
from odcl.engines.in_process import ODCLResult, nmse, odcl
from odcl.files import atomic_folder
from odcl.local.exact import Penalty, solve_users
from odcl.risk.losses import Squared
from odcl.server.combine import average_by_cluster

FILES = ("stores.csv", "demo.png")


def demo_result(seed: int) -> tuple[SyntheticFederation, ODCLResult]:
    """The federation of Section 5 (100 users, 10 hidden groups, n = 100), fitted in one round."""
    federation = linear_federation(100, 100, n_clusters=10, seed=seed)
    return federation, odcl(federation, seed=seed)


def write_demo(
    folder: Path, result: ODCLResult, errors: dict[str, float], *, seed: int, force: bool
) -> bool:
    """The picture and the table to try, whole or not at all. Is there a picture?"""
    with atomic_folder(folder, force=force) as place:
        write_table(place / "stores.csv", store_table(seed))
        return _draw(result, errors, place / "demo.png")


def groups_right(federation: SyntheticFederation, result: ODCLResult) -> str:
    """How the groups found compare with the true ones, in a sentence."""
    assert federation.groups is not None
    pairs = {*zip(result.labels.tolist(), federation.groups.tolist(), strict=True)}
    n_true = len(set(federation.groups.tolist()))
    if len(pairs) == result.n_clusters == n_true:
        return "They are the true ones."
    return f"The true ones are {n_true}."


def demo_errors(federation: SyntheticFederation, result: ODCLResult) -> dict[str, float]:
    """NMSE of each way to give users a model."""
    from odcl.clustering.kmeans.kmeanspp import KMeansPP

    groups, optima, local = federation.groups, federation.optima, result.local.theta
    assert groups is not None
    assert optima is not None
    paper = odcl(federation, clusterer=KMeansPP(10), combine="mean", refit=None)
    models: dict[str, Floats] = {
        "local models": local,
        "naive average": np.broadcast_to(local.mean(axis=0), local.shape),
        "paper (K-means++, K = 10 given, mean)": paper.models,
        "oracle average (groups given)": average_by_cluster(local, groups)[groups],
        "oracle pooling (groups given)": _pooled(federation)[groups],
        "odcl (K not given)": result.models,
    }
    return {name: nmse(theta, optima) for name, theta in models.items()}


def _pooled(federation: SyntheticFederation) -> Floats:
    """Cluster Oracle, Eq. (3): one model on all rows of each true group."""
    assert federation.groups is not None
    by_group = Federation.from_arrays(
        federation.X, federation.y, federation.groups[federation.row_user]
    )
    penalty = Penalty(np.zeros(by_group.n_users))
    return solve_users(by_group, by_group.y, Squared(), penalty).theta


def store_table(seed: int) -> dict[str, Any]:
    """A table to try ``odcl fit`` on: 60 stores in three hidden groups, 12 to 40 days each."""
    rng = np.random.default_rng(seed)
    effects = np.array(  # price, promotion, temperature, weekend, rain, level
        [
            [-18.0, 30.0, 0.5, -25.0, 5.0, 330.0],  # in the city
            [-9.0, 55.0, 1.0, 40.0, -10.0, 220.0],  # in the suburbs
            [-4.0, 10.0, 6.0, 30.0, -45.0, 120.0],  # at the sea
        ]
    )
    parts = []
    for store in range(60):
        n = int(rng.integers(12, 41))
        columns = {
            "store": np.repeat(f"store-{store + 1:02d}", n),
            "price": rng.normal(10, 1.5, n).round(2),
            "promotion": (rng.random(n) < 0.3).astype(int),
            "temperature": rng.normal(18, 7, n).round(1),
            "weekend": (rng.random(n) < 2 / 7).astype(int),
            "rain": (rng.random(n) < 0.35).astype(int),
        }
        features = np.column_stack([*list(columns.values())[1:], np.ones(n)]).astype(float)
        noise = rng.normal(0, 30, n)
        columns["sales"] = (features @ effects[store % 3] + noise).round(1)
        parts.append(columns)
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _draw(result: ODCLResult, errors: dict[str, float], path: Path) -> bool:
    from odcl.report import pictures

    if not pictures.available():
        return False
    fig, (left, right) = pictures.figure(width=11)
    pictures.draw_models(left, result.local.theta, result.centers, result.labels)
    pictures.draw_bars(
        right,
        list(errors),
        list(errors.values()),
        label="normalised mean squared error (lower is better)",
        log=True,
    )
    right.set_title("Error of each user's model")
    pictures.save(fig, path)
    return True
