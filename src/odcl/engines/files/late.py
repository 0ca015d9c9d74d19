"""Late sites: placed in the groups of a finished round; no other site has to do anything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from odcl._typing import Bools, Floats, Ints
from odcl.engines.deliveries import LateUsers
from odcl.engines.files.download import SiteDownload, download_bytes
from odcl.engines.files.envelope import write_envelope
from odcl.engines.files.keys import SigningKey
from odcl.engines.files.round import read_round, read_state
from odcl.engines.files.task import Task
from odcl.engines.files.upload import own_key, read_upload


@dataclass(frozen=True, eq=False)
class LateSite:
    """Where the users of a late site belong."""

    task: Task
    site: str
    content: bytes  # of its download
    labels: Ints  # (n_users,), -1: none of these
    probability: Floats  # (n_users,), of the likeliest group
    distance: Floats  # (n_users,), from it in noise units: about 1 for a member
    none_of_these: Bools  # (n_users,)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write its download, whole or not at all."""
        write_envelope(path, self.content)


def assign(
    round: str | os.PathLike[str],
    upload: str | os.PathLike[str],
    *,
    key: SigningKey | str | os.PathLike[str] | None = None,
    task: Task | str | os.PathLike[str] | None = None,
) -> LateSite:
    """The groups that a late site's users belong to, and its download.

    The round stays as it is. ``key`` is the coordinator's, where the card asks for signatures;
    ``task`` is a card that lists more keys than that of the round, such as the late site's.
    """
    own, groups = read_round(Path(round))
    task = own if task is None else task if isinstance(task, Task) else Task.read(task)
    if task.digest != own.digest:
        raise ValueError(f"{round} is a round of another task than that of the card given.")
    key = own_key(task, "the coordinator", key)
    late = read_upload(task, upload)
    if late.site in read_state(Path(round)).taken:
        raise ValueError(
            f"{late.site} is in the round already: its download lies there. For a newer upload, "
            "combine anew."
        )
    mixture = groups.mixture
    if mixture is None:
        raise ValueError(
            "Late sites are placed with mixed groups, and the card has another method."
        )
    users = LateUsers.placed(late.uploads, mixture, groups.sizes)
    distance, none = users.distance, users.none_of_these
    given = SiteDownload(groups, users.downloads, late.file.sha256, True, distance, none)
    content = download_bytes(task, late.site, given, key)
    sure = np.array([one.probability for one in users.found])
    return LateSite(task, late.site, content, users.downloads.group, sure, distance, none)
