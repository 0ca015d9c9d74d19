"""``odcl fit``: from a table to groups, a model for every user, and what they are worth."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.cli.option_values import MISSING, column_names
from odcl.data.federation import Federation
from odcl.data.schema import TableSchema
from odcl.data.source import Source, read_source, task_of
from odcl.data.tables import read_column_names
from odcl.evaluate.comparison import Comparison, compare, hold_out, keep_every_class
from odcl.report.notices import accepted
from odcl.report.progress import Silent


@dataclass(frozen=True, eq=False)
class Run:
    """A fitted table: the model on all rows, the comparison on rows held out."""

    source: Source
    model: Any
    comparison: Comparison | None
    notices: list[str]
    settings: dict[str, Any]

    @property
    def schema(self) -> TableSchema:
        return self.source.schema

    @property
    def users(self) -> Array:
        return self.source.encoded.ids

    @property
    def n_rows(self) -> Ints:
        """Rows of each user, (n_users,)."""
        encoded = self.source.encoded
        return np.bincount(encoded.codes, minlength=len(encoded.ids))


# -- the table -------------------------------------------------------------------------------------


def read_named(path: Path, options: Namespace) -> Source:
    """Read a table whose columns the command line names."""
    columns = read_column_names(path)
    features, drop, categorical = (
        column_names(names, columns)
        for names in (options.features, options.drop, options.categorical)
    )
    return read_source(
        path,
        user=options.user,
        target=options.target,
        features=features or None,
        drop=drop,
        categorical=categorical,
        missing=options.missing or MISSING[0],
        loss=options.loss or "auto",
    )


# -- the fit ---------------------------------------------------------------------------------------


def fit_source(
    source: Source, *, holdout: float, seed: int, settings: dict[str, Any], progress: Silent
) -> Run:
    """Fit all rows; before that, with ``holdout`` > 0, compare methods on rows held out.

    ``settings`` are arguments of the estimator, with the clusterer as ``--clusters`` has it.
    """
    federation = source.encoded.federation()
    _check_users(federation, settings["clusterer"])
    given = settings | {"clusterer": as_clusterer(settings["clusterer"]), "random_state": seed}

    def fitted(rows: Bools, **more: Any) -> Any:
        model = _estimator(source.loss, given | more)
        model._progress = progress.advance
        users = federation.users[federation.row_user[rows]]
        return model.fit(federation.X[rows], federation.y[rows], users=users)

    comparison = None
    if holdout > 0 and (federation.n_rows > 1).any():
        out = hold_out(federation, holdout, seed)
        if source.schema.classes is not None:
            out = keep_every_class(out, federation.y)
        progress.stage("comparing on held-out rows", federation.n_users)
        comparison = _compare(federation, out, fitted, is_paper=settings["method"] == "paper")
    progress.stage("fitting all rows", federation.n_users)
    model = fitted(np.ones(len(federation.y), dtype=bool), unknown="pooled")
    model.unknown = "error"
    notices = accepted(source.schema, source.encoded, federation, model)
    if source.guessed and source.loss == "squared" and _looks_like_classes(federation.y):
        notices.append(f"{source.schema.target!r} has two values: for classes say --loss logistic")
    if holdout > 0 and comparison is None:
        notices.append("no comparison: every user has a single row, and none can be held out")
    words = {"loss": model.loss_.name, **settings, "holdout": holdout, "seed": seed}
    return Run(source, model, comparison, notices, words)


def _looks_like_classes(y: Array) -> bool:
    values = np.unique(y)
    return len(values) == 2 and len(y) > 10 and bool((values == np.floor(values)).all())


def _check_users(federation: Federation, clusters: str | int) -> None:
    n, wanted = federation.n_users, str(clusters).rpartition(":")[2]
    if n == 1:
        raise ValueError(
            "The table has one user, and groups need several. Check the column that names the "
            "user, or fit an ordinary model."
        )
    if wanted.isdecimal() and int(wanted) > n:
        raise ValueError(
            f"The table has {n} users and {wanted} groups were asked for: a group needs at least "
            "one user. Ask for fewer, or check the column that names the user."
        )


def as_clusterer(clusters: str | int) -> Any:
    """What ``--clusters`` says, as the estimator takes it."""
    name, colon, count = str(clusters).rpartition(":")
    if not colon:
        return clusters
    from odcl.clustering.kmeans.gradient import GradientClustering
    from odcl.clustering.kmeans.kmeanspp import KMeansPP
    from odcl.clustering.kmeans.spectral import SpectralKMeans

    known = {"kmeans": KMeansPP, "spectral": SpectralKMeans, "gradient": GradientClustering}
    return known[name](int(count))


def _estimator(loss: str, settings: dict[str, Any]) -> Any:
    from odcl.estimators import ODCLClassifier, ODCLRegressor  # scikit-learn: a second to import

    kind = ODCLClassifier if task_of(loss) == "classification" else ODCLRegressor
    return kind(loss=loss, **settings)


def _compare(
    federation: Federation, out: Bools, fitted: Callable[..., Any], *, is_paper: bool
) -> Comparison:
    """local / one model for all / the paper's setting / ours, each fitted on the rows kept."""
    ours = fitted(~out, unknown="pooled")
    paper = ours if is_paper else fitted(~out, method="paper")
    ids = federation.users
    methods = {
        "local": _with_models(ours, ours.result_.local.theta, ids),
        "pooled": lambda rows, _: ours.predict(rows),
        "paper": lambda rows, who: paper.predict(rows, users=ids[who]),
    }
    if not is_paper:
        methods["odcl"] = lambda rows, who: ours.predict(rows, users=ids[who])
    return compare(federation, out, methods, ours.loss_)


def _with_models(model: Any, theta: Floats, ids: Array) -> Callable[[Floats, Ints], Array]:
    """The predictions of a fitted estimator with other models for its users."""
    import copy

    other = copy.copy(model)
    other.theta_ = theta
    return lambda rows, who: other.predict(rows, users=ids[who])
