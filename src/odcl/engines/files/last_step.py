"""The last step at a site: its download is verified, and its own rows make its users' models."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.engines.files.download import SiteDownload, read_download
from odcl.engines.files.site import Leaving, SiteTable, may_leave, read_site
from odcl.engines.files.task import Task
from odcl.engines.files.upload import ReadUpload, read_upload
from odcl.exchange.upload import Uploads
from odcl.local import receive as local
from odcl.local.receive import Received

# How far the upload made of the rows again may be from the one that was sent: another machine
# rounds differently, and so does the card's dtype.
SAME = {"float64": 1e-6, "float32": 1e-4, "float16": 2e-2}


@dataclass(frozen=True, eq=False)
class SiteModels:
    """The models of a site's users."""

    task: Task
    site: str
    table: SiteTable
    download: SiteDownload
    users: Array  # (n_users,), ids as in the table
    labels: Ints  # (n_users,), -1: none of the groups; users without a model are not here
    probability: Floats  # (n_users,), how surely they belong there
    received: Received
    uploads: Uploads  # of all of them, as they would be without limits: they stay here
    rows: Any  # Federation of these users
    left_out: Array  # ids of users for whom there is no model

    @property
    def models(self) -> Floats:
        """(n_users, dim), in the units of the card's scaling."""
        return self.received.models

    def estimator(self) -> Any:
        """The models as an estimator, which predicts, assigns new users and is saved."""
        from odcl.estimators.federated import site_estimator

        return site_estimator(self)


def receive(
    task: Task | str | os.PathLike[str],
    upload: str | os.PathLike[str],
    download: str | os.PathLike[str],
    data: Any,
    *,
    user: str | None = None,
) -> SiteModels:
    """Verify a download, and take the last step of the site's users on their own rows.

    ``data`` is the table that the upload was made from. With mixed groups, users who sent nothing
    get their models too: they are placed at the site itself.
    """
    task = task if isinstance(task, Task) else Task.read(task)
    sent = read_upload(task, upload)
    given = read_download(task, download, sent.site, sent.file.sha256)
    table = read_site(task, data, user)
    leaving = may_leave(table)
    _check_same(task, sent, leaving, upload)
    if len(given.downloads) != len(sent.uploads):
        raise ValueError(
            f"{download} is for {len(given.downloads)} users, and the upload for others."
        )
    if given.groups.mixture is not None:
        return _mixed_models(task, sent, given, table, leaving)
    return _plain_models(task, sent, given, table, leaving)


def _check_same(
    task: Task, sent: ReadUpload, leaving: Leaving, path: str | os.PathLike[str]
) -> None:
    """Refuse a table that the upload was not made from: models would be those of other rows."""
    why = f"The table is not the one that {path} was made from"
    if len(leaving.users) != len(sent.uploads):
        raise ValueError(
            f"{why}: {len(leaving.users)} of its users may send something, and the upload has "
            f"{len(sent.uploads)}. Use the same table, or make a new upload."
        )
    if len(leaving.users) == 0:
        return
    again = task.uploads_of(leaving.rows)
    for name, values in again.present.items():
        there = sent.uploads.present[name]
        finite = np.isfinite(values) & np.isfinite(there)
        gap = np.abs(np.where(finite, values - there, 0.0))
        size = np.abs(np.where(finite, values, 0.0)).max()
        if gap.max() > SAME[task.dtype] * size or (finite != np.isfinite(values)).any():
            raise ValueError(f"{why}: {name} differs. Use the same table, or make a new upload.")


def _mixed_models(
    task: Task, sent: ReadUpload, given: SiteDownload, table: SiteTable, leaving: Leaving
) -> SiteModels:
    """Members by the mixture; late users, and those who sent nothing, are placed first."""
    from odcl.server.mixed import assign_mixed

    rows, risk, mixture = table.rows, task.risk, given.groups.mixture
    assert mixture is not None
    uploads = task.uploads_of(rows)
    members = np.zeros(rows.n_users, dtype=bool)
    if not given.late:
        members[leaving.users] = True
    labels, sure = np.full(rows.n_users, -1), np.ones(rows.n_users)
    parts: list[tuple[Ints, Received]] = []
    if members.any():
        who = np.flatnonzero(members)
        labels[who] = given.downloads.group
        if given.downloads.probability is not None:
            sure[who] = given.downloads.probability
        mine = rows if members.all() else rows.take(who)
        parts.append((who, local.receive(mine, risk, uploads.take(who), given.downloads)))
    for i in np.flatnonzero(~members).tolist():
        part = rows.rows(i)
        y = risk.loss.encode(rows.y[part])
        found = assign_mixed(rows.X[part], y, risk, mixture, task.resolved)
        labels[i], sure[i] = found.label, found.probability
        assert found.received is not None
        parts.append((np.array([i]), found.received))
    received = _in_order(parts, rows.n_users)
    return SiteModels(
        *(task, sent.site, table, given, rows.users, labels, sure, received),
        *(uploads, rows, rows.users[:0]),
    )


def _in_order(parts: list[tuple[Ints, Received]], n_users: int) -> Received:
    """The last steps of all users, put together in the order of users."""
    back = np.argsort(np.concatenate([who for who, _ in parts]))

    def stacked(name: str) -> Any:
        values = [getattr(received, name) for _, received in parts]
        return None if values[0] is None else np.concatenate(values)[back]

    names = ("covariance", "noise", "dof")
    how = parts[0][1].how
    return Received(stacked("models"), stacked("strength"), how, *(stacked(name) for name in names))


def _plain_models(
    task: Task, sent: ReadUpload, given: SiteDownload, table: SiteTable, leaving: Leaving
) -> SiteModels:
    """Other methods: users who sent something have a model; the others have none."""
    if given.late:
        raise ValueError(
            "Late sites are placed with mixed groups, and the card has another method."
        )
    rows = table.rows.take(leaving.users)
    if rows.n_users == 0:
        raise ValueError(
            "No user of this site sent anything, and with this method none gets a model."
        )
    uploads = task.uploads_of(rows)
    # A user's stream, by which its rows fall into folds, is that of its name.
    named = rows if table.has_users else replace(rows, users=np.array([sent.site]))
    received = local.receive(named, task.risk, uploads, given.downloads)
    sure = given.downloads.probability
    out = np.setdiff1d(np.arange(table.rows.n_users), leaving.users)
    return SiteModels(
        *(task, sent.site, table, given, rows.users, given.downloads.group),
        *(np.ones(rows.n_users) if sure is None else sure, received, uploads, rows),
        table.rows.users[out],
    )
