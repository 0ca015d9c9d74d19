"""The coordinator: all uploads of a round -> groups, and one download per site; late sites.

It carries: the mathematics is :func:`odcl.server.step.server_step`, the same as in one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Array, Ints
from odcl.engines.files.collect import Collected, ReadUpload, collect, read_upload, upload_files
from odcl.engines.files.envelope import write_envelope
from odcl.engines.files.keys import COORDINATOR, SigningKey, check_site
from odcl.engines.files.round import (
    RoundGroups,
    RoundState,
    SiteDownload,
    download_bytes,
    read_round,
    read_state,
    write_round,
)
from odcl.engines.files.task import Task
from odcl.engines.wire import LateUsers, SetAside, naming_set_aside
from odcl.errors import NotAdmissible, count
from odcl.exchange.message import Ledger, iterated_ledgers
from odcl.exchange.upload import Uploads
from odcl.files import locked
from odcl.server.chunks import parties_behind
from odcl.server.columns import unusual_sites, unusual_uploads
from odcl.server.result import ServerStep
from odcl.server.robust import Outlier, outlier_lines
from odcl.server.step import server_step

FEWEST_SITES = 2


@dataclass(frozen=True, eq=False)
class CombinedRound:
    """What the coordinator sees of a round."""

    task: Task
    taken: Mapping[str, ReadUpload]  # by site
    set_aside: tuple[SetAside, ...]
    notices: tuple[str, ...]
    step: ServerStep
    groups: RoundGroups
    told_where: bool  # does the diagnosis say in which coefficients users differ?
    bytes_down: Mapping[str, int] = field(default_factory=dict)  # by site

    @property
    def sites(self) -> list[str]:
        return list(self.taken)

    @property
    def n_groups(self) -> int:
        return self.step.n_clusters

    @cached_property
    def bytes_up(self) -> dict[str, int]:
        """Bytes of each site's upload, as the file has them."""
        return {site: one.file.n_bytes for site, one in self.taken.items()}

    @property
    def ledger(self) -> Ledger:
        """Bytes of the files, up and down."""
        up, down = sum(self.bytes_up.values()), sum(self.bytes_down.values())
        return Ledger(np.array([up], dtype=np.intp), np.array([down], dtype=np.intp))

    @property
    def others(self) -> dict[str, Ledger]:
        """What methods of many rounds would send."""
        return iterated_ledgers(len(self.step.users), self.task.dim, self.n_groups)

    @cached_property
    def site_groups(self) -> dict[str, Ints]:
        """The groups of each site's users."""
        ends = np.cumsum([len(one.uploads) for one in self.taken.values()])
        return dict(zip(self.taken, np.split(self.step.labels, ends[:-1]), strict=True))

    def downloads(self) -> Iterator[tuple[str, SiteDownload]]:
        """What each site receives, one after the other."""
        everybody, at = self.step.downloads, 0
        odd: dict[str, list[Outlier]] = {}
        for out in self.step.outliers:
            site, position = out.user
            odd.setdefault(site, []).append(replace(out, user=position))
        for site, one in self.taken.items():
            mine = everybody.take(np.arange(at, at + len(one.uploads)))
            own = tuple(odd.get(site, ()))
            yield site, SiteDownload(self.groups, mine, one.file.sha256, late=False, outliers=own)
            at += len(one.uploads)

    def __str__(self) -> str:
        from odcl.report.by_file import round_text

        return round_text(self)


def combine_uploads(
    task: Task | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    key: SigningKey | str | os.PathLike[str] | None = None,
    min_sites: int | None = None,
    without: Iterable[str] = (),
    progress: Any = None,
) -> CombinedRound:
    """Combine the uploads of a folder (Algorithm 1, step 2) and write the round to ``out``.

    What cannot be taken is named and set aside; the rest goes on if ``min_sites`` are left. A round
    that is there already is replaced as a whole: it keeps in mind which uploads it took, so that no
    older one comes back, and which sites have withdrawn (``without``).
    """
    task = Task.of(task)
    key = task.own_key(COORDINATOR, key)
    leaving = [check_site(site) for site in without]
    with locked(out):
        old = read_state(Path(out), task)
        if progress is not None:
            progress.stage("reading uploads", len(upload_files(folder)), "files")
        advance = None if progress is None else progress.advance
        found = collect(task, folder, earlier=old.known, withdrawn=old.withdrawn, progress=advance)
        found, withdrawn = _without(found, leaving, old)
        state = old.followed_by(found.uploads, withdrawn)
        with naming_set_aside(found.set_aside):
            n, least = len(found.uploads), max(min_sites or FEWEST_SITES, FEWEST_SITES)
            if n < least:
                raise ValueError(
                    f"{count(n, 'upload')} can be taken, and at least {least} sites are needed: "
                    "wait for more, or see why others were set aside."
                )
            if progress is not None:
                progress.stage("finding groups")
            combined = _combined(task, found)
        notices = (*combined.notices, *_what_rounds_tell(old, state))
        return write_round(Path(out), state, replace(combined, notices=notices), key)


def _without(
    found: Collected, leaving: list[str], old: RoundState
) -> tuple[Collected, dict[str, str]]:
    """The uploads of sites that stay, and all that have withdrawn until now."""
    withdrawn = {site: at for site, at in old.withdrawn.items() if site not in found.uploads}
    for site in leaving:
        if site not in found.uploads and site not in {**old.known, **old.withdrawn}:
            raise ValueError(f"There is no upload of {site!r} to leave out: check the name.")
        if site in found.uploads:
            withdrawn[site] = str(found.uploads[site].file.created)
        elif site in old.known:
            withdrawn[site] = old.known[site].created
    kept = {site: one for site, one in found.uploads.items() if site not in leaving}
    gone = [SetAside(f"{s}.upload", f"{s} has withdrawn") for s in leaving if s in found.uploads]
    aside = tuple(sorted([*found.set_aside, *gone], key=lambda a: a.name))
    return replace(found, uploads=kept, set_aside=aside), withdrawn


def _what_rounds_tell(old: RoundState, new: RoundState) -> list[str]:
    """A warning where the difference of two rounds gives away few sites' terms."""
    before, now = set(old.taken), set(new.taken)
    changed = {
        "joined": sorted(now - before),
        "left": sorted(before - now),
        "sent anew": sorted(s for s in now & before if new.taken[s] != old.taken[s]),
    }
    few = sum(map(len, changed.values()))
    if not before or not few:
        return []
    words = [f"{', '.join(sites)} {how}" for how, sites in changed.items() if sites]
    reveals = "tells of the sum of their terms"
    if few == 1:
        reveals = f"reveals {'what is new in ' if changed['sent anew'] else ''}its term"
    return [
        f"the round has changed by {few} site{'s' * (few > 1)} ({' and '.join(words)}): a "
        f"site with downloads of both rounds can subtract them, which {reveals}. Let several sites "
        "change at a time"
    ]


def _combined(task: Task, found: Collected) -> CombinedRound:
    """The server's step, and what all sites learn from it."""
    parts = [one.uploads for one in found.uploads.values() if len(one.uploads)]
    if not parts:
        raise ValueError("No site's users may send anything: see what the card's limits withhold.")
    uploads = parts[0].joined(*parts[1:])
    sites = np.array([site for site, _ in uploads.users.tolist()])
    step = _server_step(task, uploads, sites)
    private = task.method.privacy is not None
    diagnosis, tells_where = "Not diagnosed: the uploads are private.", False
    if not private:
        diagnosis, tells_where = _diagnosed(task, uploads, step)
    groups = RoundGroups(
        np.bincount(step.labels, minlength=step.n_clusters),
        _sites_per_group(step, uploads, sites),
        *(step.rule, step.reason, diagnosis, step.mixture),
    )
    goal = task.target if private or not task.risk.loss.classification else ""
    odd = outlier_lines(step.outliers, task.columns, goal, "site")
    if not (task.resolved.robust or private):
        odd = unusual_uploads(uploads, task.scaling, task.columns, goal, sites)
    if not private:
        told = unusual_sites(uploads, task.scaling, task.columns, goal, sites)
        odd += [line for line in told if line not in odd]
    notices = (*found.notices, *odd)
    return CombinedRound(task, found.uploads, found.set_aside, notices, step, groups, tells_where)


def _diagnosed(task: Task, uploads: Uploads, step: ServerStep) -> tuple[str, bool]:
    """What the uploads say of the groups, and whether it names where users differ."""
    from odcl.diagnose import diagnose_step

    features = dict(zip(task.columns, task.scaling.scale.tolist(), strict=True))
    aside = {one.user for one in step.outliers if one.set_aside}
    some = np.array([user not in aside for user in uploads.users.tolist()])
    told = (uploads.take(some), step.take(np.flatnonzero(some))) if aside else (uploads, step)
    try:
        verdict = diagnose_step(*told, task.resolved, features=features).verdict
    except np.linalg.LinAlgError:  # a round does not end by what is said about it
        return "Not diagnosed: some numbers of the uploads are too large beside the others.", False
    diagnosis = str(verdict)
    if step.groups_forbidden:
        diagnosis = f"Judged without the groups that were not allowed. {verdict}"
    elif verdict.advice == "mixed" and step.mixture is not None:
        diagnosis = verdict.reason  # that users differ gradually is the step's reason already
    return diagnosis, verdict.tells_where


def _server_step(task: Task, uploads: Uploads, sites: Array) -> ServerStep:
    """Groups in which enough sites stand behind each center."""
    least, n = task.method.smallest_group, len(np.unique(sites))
    if n < least:
        raise ValueError(
            f"{n} site{'s' * (n != 1)} sent terms, and a group needs {least} by the card: wait for "
            "more sites."
        )
    try:
        return server_step(uploads, task.resolved, parties=None if least == 1 else sites)
    except NotAdmissible:
        raise ValueError(
            f"Not even one group of all {n} sites is admissible: it needs {least} sites, none of "
            "them with more than half of what is known of its model. Wait for more sites."
        ) from None


def _sites_per_group(step: ServerStep, uploads: Uploads, sites: Array) -> Ints:
    """Sites behind each group, (n_groups,)."""
    _, party = np.unique(sites, return_inverse=True)
    r = np.zeros((len(uploads), step.n_clusters))
    sure = 1.0 if step.probabilities is None else step.probabilities
    r[np.arange(len(r)), step.labels] = sure
    return parties_behind(r, party, uploads.n_samples)


# -- late sites ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LateSite:
    """Where the users of a late site belong."""

    site: str
    content: bytes  # of its download
    users: LateUsers

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

    The round stays as it is, and no other site has to do anything. ``key`` is the coordinator's,
    where the card asks for signatures; ``task`` is a card that lists more keys than that of the
    round, such as the late site's.
    """
    own, groups, state = read_round(Path(round))
    task = own if task is None else Task.of(task)
    if task.digest != own.digest:
        raise ValueError(f"{round} is a round of another task than that of the card given.")
    key = task.own_key(COORDINATOR, key)
    late = read_upload(task, upload)
    if late.site in state.taken:
        raise ValueError(
            f"{late.site} is in the round already: its download lies there. For a newer upload, "
            "combine anew."
        )
    if task.method.privacy is not None and len(late.uploads):
        raise ValueError(
            "Private uploads are not placed one by one: combine a new round with it, or have the "
            "site place its users itself (odcl site fit --late), which spends nothing."
        )
    if groups.mixture is None:
        raise ValueError(
            "Late sites are placed with mixed groups, and the card has another method."
        )
    users = LateUsers.placed(late.uploads, groups.mixture, groups.sizes)
    far = users.distance, users.none_of_these
    given = SiteDownload(groups, users.downloads, late.file.sha256, True, *far)
    return LateSite(late.site, download_bytes(task, late.site, given, key), users)
