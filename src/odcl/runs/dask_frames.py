"""Estimators on Dask frames: fitted where the partitions are, predicted as a Dask frame.

Files that are needed meanwhile, and the models of all users, lie in a folder under Dask's
``temporary-directory`` (or the system's), which all workers must reach; it goes with the model.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from odcl.data.address import Address
from odcl.data.columns import as_names
from odcl.data.notices import about_strangers
from odcl.data.roles import ColumnOptions, Roles, is_dask_frame
from odcl.data.schema import TableSchema
from odcl.engines.dask.cluster import open_cluster
from odcl.engines.dask.predict import predict_pieces
from odcl.engines.dask.round import FirstPass, settled, summarize
from odcl.engines.dask.table import PiecedTable, frame_table
from odcl.engines.pieces import PredictOptions
from odcl.errors import InputError, Setting
from odcl.runs.pieces import fit_pieces

if TYPE_CHECKING:
    from odcl.estimators.base import ODCLEstimator


@dataclass(frozen=True, eq=False)
class DaskFederation:
    """The users of a Dask frame, whose rows stay where they are: for ``fit_federation``."""

    table: PiecedTable
    roles: Roles
    first: FirstPass

    def __repr__(self) -> str:
        rows, p = self.first.summary.usable, len(self.roles.features)
        pieces = self.table.n_pieces
        return f"<{type(self).__name__}: {rows:,} rows, {p:,} features, {pieces:,} partitions>"


def federation_from_dask(
    frame: Any, *, user: str, target: str, **options: Any
) -> tuple[DaskFederation, TableSchema]:
    """The federation of a Dask frame in which a column names the user, and its schema.

    The options are those of :func:`odcl.federation_from_table`. Every partition is looked at once;
    fit it with ``ODCLRegressor(users=user).fit_federation(federation)``.
    """
    if not is_dask_frame(frame):
        raise InputError(
            f"A {type(frame).__name__} is not a Dask frame: use federation_from_table."
        )
    table = frame_table(frame)
    roles = ColumnOptions(user, target, **options).roles(map(str, table.schema.names))
    roles = settled(table, roles, open_cluster())
    first = summarize(table, roles, open_cluster())
    return DaskFederation(table, roles, first), TableSchema.of(first.summary, roles)


def fit_frame(model: ODCLEstimator, X: Any, y: Any, users: Any) -> Any:
    """``fit`` on a Dask frame; ``y`` is one of its columns, by name or as a Dask series."""
    owner = model.users if users is None else users
    if not isinstance(owner, str):
        raise InputError(
            "A Dask frame has its users in a column: name it in the constructor, ",
            *(Setting("users", "store"), "."),
        )
    if isinstance(y, str):
        target = y
    elif hasattr(y, "to_delayed"):
        target = y.name if isinstance(y.name, str) else "target"
        X = X.assign(**{target: y})
    else:
        raise InputError(
            f"The target of a Dask frame is a column of it, by name, or a Dask series, and not a "
            f"{type(y).__name__}."
        )
    chosen = () if model.categorical is None else as_names(model.categorical)
    with _advice_for_frames(model):
        federation, _ = federation_from_dask(
            X,
            user=owner,
            target=target,
            categorical=chosen,
            missing=model.missing,
            task=_task(model),
        )
        model.users = owner
        return fit_dask_federation(model, federation)


@contextmanager
def _advice_for_frames(model: ODCLEstimator) -> Iterator[None]:
    """Errors advise what an estimator on a Dask frame knows: options of tables it has not."""
    numbers = "loss='squared'" if _task(model) == "count" else "ODCLRegressor"
    words = {
        ("task", "classification"): "ODCLClassifier",
        ("task", "regression"): numbers,
    }

    def write(setting: Setting) -> str:
        if setting.name == "drop":
            return f"frame.drop(columns={setting.value!r})"
        return words.get((setting.name, str(setting.value)), str(setting))

    try:
        yield
    except InputError as error:
        raise InputError(error.in_words(write)) from None


def _task(model: ODCLEstimator) -> str:
    from sklearn.base import is_classifier

    if is_classifier(model):
        return "classification"
    return "count" if getattr(model.loss, "name", model.loss) == "poisson" else "regression"


def fit_dask_federation(model: ODCLEstimator, federation: DaskFederation) -> Any:
    home = _own_folder(model)
    work, users = (home / "work").make(), (home / f"users-{secrets.token_hex(4)}").make()
    try:
        fit_pieces(
            *(model, federation.table, federation.roles, open_cluster(), work, users),
            first=federation.first,
        )
    except BaseException:
        users.remove()
        raise
    finally:
        work.remove()
    fitted = model.fitted_
    assert fitted.files is not None
    files = replace(fitted.files, kept=True)  # a saved model predicts on
    return model._hold(replace(fitted, files=files))


def predict_frame(model: ODCLEstimator, X: Any) -> Any:
    """Predictions of a Dask frame: the users' column and ``prediction``, partition by partition.

    Of classes there is a probability each. Rows are predicted now; the frame reads the answers.
    """
    import dask.dataframe as dd

    schema = model.fitted_.schema
    if schema is None:
        raise InputError(
            "This model does not know which column of a Dask frame names the user: predict frames "
            "in memory, or fit a frame with ",
            *(Setting("users", "store"), "."),
        )
    home = _own_folder(model)
    work = (home / f"work-{secrets.token_hex(4)}").make()
    out = (home / f"predictions-{secrets.token_hex(4)}").make()
    try:
        with _advice_for_frames(model):
            found = predict_pieces(
                *(
                    model.fitted_,
                    schema,
                    frame_table(X),
                    PredictOptions(model.unknown, model.unseen),
                ),
                *(open_cluster(), work, out),
            )
    except BaseException:
        out.remove()
        raise
    finally:
        work.remove()
    for text in about_strangers(found.strangers):
        warnings.warn(text, stacklevel=3)
    files = [file.text for file in found.files]
    frame = dd.from_map(_read, files, meta=_read(files[0]).iloc[:0])
    weakref.finalize(frame, lambda kept: None, model)  # the files go with the model
    return frame


def _read(file: str) -> Any:
    return pq.read_table(file).drop_columns(["file", "row"]).to_pandas()


def _own_folder(model: ODCLEstimator) -> Address:
    """A folder that goes when the model does."""
    home = getattr(model, "_home", None)
    if home is None:
        import dask

        place = dask.config.get("temporary-directory", None)
        home = model._home = tempfile.mkdtemp(prefix="odcl-", dir=place)
        weakref.finalize(model, shutil.rmtree, home, ignore_errors=True)
    return Address.of(home)
