"""The last step at a site: its download is verified, and its own rows make its users' models."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import chdtrc, fdtrc

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation
from odcl.data.source import read_table
from odcl.data.tables import as_table
from odcl.engines.files.collect import ReadUpload, read_upload
from odcl.engines.files.round import SiteDownload, read_download
from odcl.engines.files.site import Released, SiteTable, read_site, release
from odcl.engines.files.task import Task
from odcl.engines.wire import difference
from odcl.errors import InputError, Setting, listing
from odcl.exchange.upload import Uploads
from odcl.fitted.curves import without_closed_curves
from odcl.fitted.tails import tails_of
from odcl.fitted.value import Fitted, InputColumns, Newcomers, UserColumns, settings_of
from odcl.local.fit import LocalModels, fit_users, solve_users
from odcl.local.predict import linear_predictors, one_for_all
from odcl.mixed.layout import model_spread
from odcl.risk.risk import Risk
from odcl.server.assign import STRANGE, GroupStatistics, Placed, groups_of, last_step
from odcl.server.result import ServerStep
from odcl.server.robust import outlier_lines
from odcl.wide.moments import mixed_only, models_without_rows


@dataclass(frozen=True, eq=False)
class SiteModels:
    """The models of a site's users, in the units of the card's scaling."""

    task: Task
    site: str
    table: SiteTable
    download: SiteDownload
    placed: Placed  # users without a model are not here
    local: LocalModels  # of the same users, as they would be without limits: they stay here
    rows: Federation  # of these users
    left_out: Array  # ids of users for whom there is no model
    outliers: tuple[str, ...]  # users who took no part in others' models, or less, and why

    @property
    def users(self) -> Array:
        return self.rows.users

    @property
    def labels(self) -> Ints:
        return self.placed.labels

    @property
    def probability(self) -> Floats:
        return self.placed.probability

    @property
    def models(self) -> Floats:
        """(n_users, dim)."""
        return self.placed.received.models

    @property
    def worse_than_own(self) -> list[Any]:
        """Users whose own rows speak against the model that came of the download.

        That of a member lies where its rows could have put it: an F test of its coefficients, or
        for other losses a likelihood ratio, would say more in one case of ten thousand.
        """
        rows, risk = self.rows, self.task.risk
        own = solve_users(rows, risk).theta
        lost, best = (_lost(rows, risk, theta) for theta in (self.models, own))
        n, dim = rows.n_rows.astype(np.float64), float(own.shape[1])
        free = np.maximum(n - dim, 1.0)
        if risk.loss.has_data_terms:
            ratio = (lost - best) / dim / np.maximum(best / free, 1e-300)
            strange = fdtrc(dim, free, np.maximum(ratio, 0.0)) < STRANGE
        else:
            strange = chdtrc(dim, np.maximum(2 * (lost - best), 0.0)) < STRANGE
        return list(self.users[strange & (n > dim)].tolist())

    def estimator(self) -> Any:
        """The models as an estimator, which predicts, assigns new users and is saved."""
        from odcl.estimators.public import estimator_with

        return estimator_with(self.fitted())

    def fitted(self) -> Fitted:
        """The fit of the site's own users."""
        task, groups = self.task, self.download.groups
        risk, mixture, labels = task.risk, groups.mixture, self.labels
        if mixture is not None:  # every site knows all groups, and nothing of others' features
            models = models_without_rows(mixture, risk)[0]
            centers, mixed = models[:-1], mixed_only(mixture)
            tau2 = None if mixed is None else float(np.diag(model_spread(mixed, risk)).mean())
            members = np.maximum(groups.sizes, 1)
            statistics = GroupStatistics(centers, members, members.astype(np.float64))
            newcomers = Newcomers.of(statistics, models[-1])
            if not self.local.uploads.private:  # of the site's own rows
                tails = partial(tails_of, self.rows, risk, self.placed.received, mixture)
                newcomers = replace(newcomers, find_tails=tails)
        else:
            centers, labels, newcomers = self._own_groups()
            tau2 = None
        own = self.placed.received, labels, self.probability
        fitted = Fitted(
            InputColumns.of_schema(self.table.schema),
            task.scaling,
            risk,
            task.resolved,
            groups.rule,
            f"{groups.reason} {groups.diagnosis}",
            centers,
            mixture,
            tau2,
            newcomers,
            UserColumns.of(self.users, self.rows.n_rows, *own),
            self.local.uploads,
            has_users=self.table.has_users,
            whole=False,
            settings=settings_of(risk, task.method),
        )
        return without_closed_curves(fitted)

    def _own_groups(self) -> tuple[Floats, Ints, Newcomers]:
        """Of other methods a site knows its own users' groups: models, labels and more."""
        task, given, groups = self.task, self.download.downloads, self.download.groups
        numbers, labels = np.unique(self.labels, return_inverse=True)
        first = [int(np.flatnonzero(self.labels == k)[0]) for k in numbers]
        centers = given.model[first]
        step = ServerStep(
            *(self.users, labels, centers, given.model, groups.rule, groups.reason, "")
        )
        newcomers = Newcomers(
            partial(groups_of, self.rows, task.risk, step),
            partial(one_for_all, self.rows, task.risk),
        )
        return centers, labels, newcomers


def _lost(rows: Federation, risk: Risk, theta: Floats) -> Floats:
    """What each user's model loses on its rows in all, (n_users,)."""
    z = linear_predictors(rows.X, theta, rows.row_user, risk)
    lost = risk.loss.value(z, risk.loss.encode(rows.y))
    return np.bincount(rows.row_user, lost, rows.n_users).astype(np.float64)


def receive(
    task: Task | str | os.PathLike[str],
    upload: str | os.PathLike[str],
    download: str | os.PathLike[str],
    data: Any,
    *,
    user: str | None = None,
) -> SiteModels:
    """Verify a download, and take the last step of the site's users on their own rows.

    ``data`` is the table that the upload was made from, ``user`` the column of its users; where
    only one column can be that, it need not be named. With mixed groups, users who sent nothing get
    their models too: they are placed at the site itself.
    """
    task = Task.of(task)
    sent = read_upload(task, upload)
    given = read_download(task, download, sent.site, sent.file.sha256)
    table = read_site(task, data, user or _users_column(task, sent, data))
    released = release(table)
    if given.late and not len(sent.uploads):  # it sent nothing of its rows
        released = replace(released, users=released.users[:0])
    # With other methods than mixed groups, users who sent nothing get no model.
    mixed = given.groups.mixture is not None
    rows = table.rows if mixed else _senders(table, released, given)
    if task.method.privacy is None:
        local = task.agreed.fit(rows)
        again = local.uploads.take(released.users) if mixed else local.uploads
        _check_same(sent, table, released, again, upload)
    else:  # noise cannot be drawn again; exact terms stay here
        _check_number(sent, released, f"The table is not the one that {upload} was made from")
        local = fit_users(rows, task.risk, terms=True)
    if len(given.downloads) != len(sent.uploads):
        raise ValueError(
            f"{download} is for {len(given.downloads)} users, and the upload for others."
        )
    members = None
    if mixed:
        members = np.zeros(rows.n_users, dtype=bool)
        members[[] if given.late else released.users] = True
    about = (rows, task.risk, task.resolved, local.uploads, given.downloads)
    placed = last_step(*about, members=members)
    left_out = np.setdiff1d(table.rows.users, rows.users)
    odd = _outlier_lines(task, sent.site, table, released, given)
    return SiteModels(task, sent.site, table, given, placed, local, rows, left_out, odd)


def _outlier_lines(
    task: Task, site: str, table: SiteTable, released: Released, given: SiteDownload
) -> tuple[str, ...]:
    """Who of the site's users took no part in others' models, by name, and why."""
    names = table.rows.users[released.users].tolist() if table.has_users else [(site, 0)]
    odd = [replace(one, user=names[one.user]) for one in given.outliers]
    goal = "" if task.risk.loss.classification else task.target
    return tuple(outlier_lines(odd, task.columns, goal, "user" if table.has_users else "site"))


def _senders(table: SiteTable, released: Released, given: SiteDownload) -> Federation:
    """The rows of users who sent something."""
    if given.late:
        raise ValueError(
            "Late sites are placed with mixed groups, and the card has another method."
        )
    if len(released.users) == 0:
        raise ValueError(
            "No user of this site sent anything, and with this method none gets a model."
        )
    return table.rows.take(released.users)


def _users_column(task: Task, sent: ReadUpload, data: Any) -> str | None:
    """The column with as many values as the upload has users; None where the site is one user.

    Whether it gives that upload, number by number, is checked before anything is made of it.
    """
    n = sent.words.users + sent.words.withheld.users
    if n == 1:
        return None
    table = read_table(data) if isinstance(data, str | os.PathLike) else as_table(data)
    used = {task.target, *(one.name for one in task.features)}
    free = [name for name in table.column_names if name not in used]
    fits = [name for name in free if len(table[name].unique()) == n]
    if len(fits) == 1:
        return fits[0]
    seen = f"{listing(fits)} could each name them" if fits else f"no column has {n} values"
    raise InputError(
        f"The upload has {n} users, and in this table {seen}. Say which column named them when the "
        "upload was made: ",
        *(Setting("user", "COLUMN"), "."),
    )


def _check_number(sent: ReadUpload, released: Released, why: str) -> None:
    if len(released.users) != len(sent.uploads):
        raise ValueError(
            f"{why}: {len(released.users)} of its users may send something, and the upload has "
            f"{len(sent.uploads)}. Use the same table and users' column, or make a new upload."
        )


def _check_same(
    sent: ReadUpload,
    table: SiteTable,
    released: Released,
    uploads: Uploads,
    path: str | os.PathLike[str],
) -> None:
    """Refuse a table that the upload was not made from: its models would be others.

    ``uploads`` are the senders', of all their rows; where some rows were withheld, the user is
    fitted again on the others.
    """
    why = f"The table is not the one that {path} was made from"
    _check_number(sent, released, why)
    fewer = released.rows.n_rows < table.rows.n_rows[released.users]
    pairs = [(uploads.take(~fewer), sent.uploads.take(~fewer))]
    if fewer.any():
        rows = released.rows.take(np.flatnonzero(fewer))
        pairs.append((table.task.agreed.fit(rows).uploads, sent.uploads.take(fewer)))
    for again, there in pairs:
        name = difference(again, there)
        if name:
            raise ValueError(f"{why}: {name} differs. Use the same table, or make a new upload.")
