"""The last step at a site: its download is verified, and its own rows make its users' models."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import Federation
from odcl.data.tables import as_table, read_table
from odcl.engines.arrivals import difference
from odcl.engines.deliveries import mixed_last_step, plain_last_step
from odcl.engines.files.download import SiteDownload, read_download
from odcl.engines.files.site import Leaving, SiteTable, may_leave, read_site
from odcl.engines.files.task import Task
from odcl.engines.files.upload import ReadUpload, read_upload
from odcl.errors import InputError, Setting, listing
from odcl.exchange.upload import Uploads
from odcl.local.receive import Received


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
    rows: Federation  # of these users
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

    ``data`` is the table that the upload was made from, ``user`` the column of its users; where
    only one column can be that, it need not be named. With mixed groups, users who sent nothing get
    their models too: they are placed at the site itself.
    """
    task = task if isinstance(task, Task) else Task.read(task)
    sent = read_upload(task, upload)
    given = read_download(task, download, sent.site, sent.file.sha256)
    table = read_site(task, data, user or _users_column(task, sent, data))
    leaving = may_leave(table)
    uploads = task.uploads_of(table.rows)
    _check_same(sent, _made_again(task, table, leaving, uploads), upload)
    if len(given.downloads) != len(sent.uploads):
        raise ValueError(
            f"{download} is for {len(given.downloads)} users, and the upload for others."
        )
    make = _plain_models if given.groups.mixture is None else _mixed_models
    return make(sent, given, table, leaving, uploads)


def _users_column(task: Task, sent: ReadUpload, data: Any) -> str | None:
    """The column with as many values as the upload has users; None where the site is one user.

    Whether it gives that upload, number by number, is checked before anything is made of it.
    """
    n = len(sent.uploads) + sent.file.words["withheld"]["users"]
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


def _made_again(task: Task, table: SiteTable, leaving: Leaving, uploads: Uploads) -> Uploads:
    """What the table would send; ``uploads`` are those of all its rows."""
    if len(leaving.users) and len(leaving.rows.y) < len(table.rows.y):
        return task.uploads_of(leaving.rows)
    return uploads.take(leaving.users)


def _check_same(sent: ReadUpload, again: Uploads, path: str | os.PathLike[str]) -> None:
    """Refuse a table that the upload was not made from: models would be those of other rows."""
    why = f"The table is not the one that {path} was made from"
    if len(again) != len(sent.uploads):
        raise ValueError(
            f"{why}: {len(again)} of its users may send something, and the upload has "
            f"{len(sent.uploads)}. Use the same table and users' column, or make a new upload."
        )
    name = difference(again, sent.uploads)
    if name:
        raise ValueError(f"{why}: {name} differs. Use the same table, or make a new upload.")


def _mixed_models(
    sent: ReadUpload, given: SiteDownload, table: SiteTable, leaving: Leaving, uploads: Uploads
) -> SiteModels:
    """Members by the mixture; late users, and those who sent nothing, are placed first."""
    task, rows = table.task, table.rows
    members = np.zeros(rows.n_users, dtype=bool)
    if not given.late:
        members[leaving.users] = True
    placed = mixed_last_step(task.agreed, rows, uploads, given.downloads, members)
    return SiteModels(
        *(task, sent.site, table, given, rows.users, placed.labels, placed.probability),
        *(placed.received, uploads, rows, rows.users[:0]),
    )


def _plain_models(
    sent: ReadUpload, given: SiteDownload, table: SiteTable, leaving: Leaving, uploads: Uploads
) -> SiteModels:
    """Other methods: users who sent something have a model; the others have none."""
    if given.late:
        raise ValueError(
            "Late sites are placed with mixed groups, and the card has another method."
        )
    task, rows = table.task, table.rows.take(leaving.users)
    if rows.n_users == 0:
        raise ValueError(
            "No user of this site sent anything, and with this method none gets a model."
        )
    uploads = uploads.take(leaving.users)
    # A user's stream, by which its rows fall into folds, is that of its name.
    named = rows if table.has_users else replace(rows, users=np.array([sent.site]))
    placed = plain_last_step(task.agreed, named, uploads, given.downloads)
    out = np.setdiff1d(np.arange(table.rows.n_users), leaving.users)
    return SiteModels(
        *(task, sent.site, table, given, rows.users, placed.labels, placed.probability),
        *(placed.received, uploads, rows, table.rows.users[out]),
    )
