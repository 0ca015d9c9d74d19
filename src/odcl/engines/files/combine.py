"""Combine: all uploads of a round -> groups, and one download per site.

It carries: the mathematics is :func:`odcl.server.step.server_step`, the same as in one process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Ints
from odcl.data.federation import group_rows
from odcl.engines.arrivals import joined, naming_set_aside
from odcl.engines.files.collect import Collected, SetAside, collect, enough, upload_files
from odcl.engines.files.download import Groups, SiteDownload
from odcl.engines.files.keys import SigningKey
from odcl.engines.files.names import check_site
from odcl.engines.files.round import RoundState, read_state, write_round
from odcl.engines.files.task import Task
from odcl.engines.files.upload import ReadUpload, own_key
from odcl.errors import NotAdmissible
from odcl.exchange.ledger import Ledger, fedavg_exchange, ifca_exchange
from odcl.exchange.upload import Uploads
from odcl.files import locked
from odcl.server.columns import unusual_uploads
from odcl.server.result import ServerStep
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
    groups: Groups
    bytes_down: Mapping[str, int] = field(default_factory=dict)  # by site
    compared_rounds: int = 100  # of FedAvg and IFCA, beside which bytes are shown

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
        """What methods of many rounds would send for the same task: every user is a client."""
        m, dim, R = len(self.step.users), self.task.dim, self.compared_rounds
        return {
            "FedAvg": fedavg_exchange(m, dim).over(R),
            "IFCA": ifca_exchange(m, dim, self.n_groups).over(R),
        }

    @cached_property
    def site_groups(self) -> dict[str, Ints]:
        """The groups of each site's users."""
        found: dict[str, list[int]] = {site: [] for site in self.taken}
        for (site, _), label in zip(
            self.step.users.tolist(), self.step.labels.tolist(), strict=True
        ):
            found[site].append(label)
        return {site: np.array(labels, dtype=np.intp) for site, labels in found.items()}

    def downloads(self) -> Iterator[tuple[str, SiteDownload]]:
        """What each site receives, one after the other."""
        everybody, at = self.step.downloads, 0
        for site, one in self.taken.items():
            mine = everybody.take(np.arange(at, at + len(one.uploads)))
            yield site, SiteDownload(self.groups, mine, one.file.sha256, late=False)
            at += len(one.uploads)

    def __str__(self) -> str:
        from odcl.report.round import round_text

        return round_text(self)


def combine_uploads(
    task: Task | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    key: SigningKey | str | os.PathLike[str] | None = None,
    min_sites: int | None = None,
    without: Iterable[str] = (),
    compared_rounds: int = 100,
    progress: Any = None,
) -> CombinedRound:
    """Combine the uploads of a folder (Algorithm 1, step 2) and write the round to ``out``.

    What cannot be taken is named and set aside; the rest goes on if ``min_sites`` are left. A round
    that is there already is replaced as a whole: it keeps in mind which uploads it took, so that no
    older one comes back, and which sites have withdrawn (``without``).
    """
    task = task if isinstance(task, Task) else Task.read(task)
    key = own_key(task, "the coordinator", key)
    leaving = [check_site(site) for site in without]
    with locked(out):
        old = read_state(Path(out), task)
        _stage(progress, "reading uploads", folder)
        found = collect(
            task, folder, earlier=old.known, withdrawn=old.withdrawn, progress=_advance(progress)
        )
        found, withdrawn = _without(found, leaving, old)
        state = old.followed_by(task, found.uploads, withdrawn)
        with naming_set_aside(found.set_aside):
            enough(found.uploads, max(min_sites or FEWEST_SITES, FEWEST_SITES))
            _stage(progress, "finding groups")
            combined = _combined(task, found, compared_rounds)
        notices = (*combined.notices, *_what_rounds_tell(old, state))
        _stage(progress, "writing the round")
        return write_round(Path(out), state, replace(combined, notices=notices), key)


def _stage(progress: Any, text: str, folder: Any = None) -> None:
    if progress is not None and folder is not None:
        progress.stage(text, len(upload_files(folder)), "files")
    elif progress is not None:
        progress.stage(text)


def _advance(progress: Any) -> Callable[[int], None] | None:
    return None if progress is None else progress.advance


def _without(
    found: Collected, leaving: list[str], old: RoundState
) -> tuple[Collected, dict[str, str]]:
    """The uploads without those of sites that withdraw, and all that have withdrawn until now."""
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
    aside = tuple(sorted([*found.set_aside, *gone], key=lambda a: a.file))
    return replace(found, uploads=kept, set_aside=aside), withdrawn


def _what_rounds_tell(old: RoundState, new: RoundState) -> list[str]:
    """A warning where the difference of two rounds tells of few sites."""
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
        f"the round has changed by {few} site{'s' * (few > 1)} ({' and '.join(words)}): whoever "
        f"holds a download of both rounds can subtract them, which {reveals}. "
        "Let sites change several at a time"
    ]


def _combined(task: Task, found: Collected, rounds: int) -> CombinedRound:
    """The server's step, and what everybody is told of it."""
    uploads = _joined(found.uploads)
    step = _server_step(task, uploads)
    groups = Groups(
        np.bincount(step.labels, minlength=step.n_clusters),
        _sites_per_group(step, uploads),
        step.rule,
        step.reason,
        _diagnosis(task, uploads, step),
        step.mixture,
    )
    sites = np.array([site for site, _ in uploads.users.tolist()])
    goal = "" if task.risk.loss.classification else task.target
    odd = unusual_uploads(uploads, task.scaling, task.columns, goal, sites)
    told = (found.set_aside, (*found.notices, *odd), step, groups)
    return CombinedRound(task, found.uploads, *told, compared_rounds=rounds)


def _server_step(task: Task, uploads: Uploads) -> ServerStep:
    """Groups in which enough sites stand behind each center."""
    least = task.minimum_group
    parties = None if least == 1 else np.array([site for site, _ in uploads.users.tolist()])
    n = len({site for site, _ in uploads.users.tolist()})
    if n < least:
        raise ValueError(
            f"{n} site{'s' * (n != 1)} sent terms, and a group needs {least} by the card: wait for "
            "more sites."
        )
    try:
        return server_step(uploads, task.resolved, parties=parties)
    except NotAdmissible:
        raise ValueError(
            f"Not even one group of all {n} sites is admissible: it needs {least} sites, none of "
            "them with more than half of what is known of its model. Wait for more sites."
        ) from None


def _joined(uploads: Mapping[str, ReadUpload]) -> Uploads:
    """The uploads of all sites as one message, in the order of the sites."""
    parts = [one.uploads for one in uploads.values() if len(one.uploads)]
    if not parts:
        raise ValueError("No site's users may send anything: see what the card's limits withhold.")
    return joined(parts)


def _sites_per_group(step: ServerStep, uploads: Uploads) -> Ints:
    """Sites with at least half of their weight in each group, (n_groups,)."""
    _, party = group_rows([site for site, _ in uploads.users.tolist()])
    sure = 1.0 if step.probabilities is None else step.probabilities
    inside = np.zeros((int(party.max()) + 1, step.n_clusters))
    np.add.at(inside, (party, step.labels), uploads.n_samples * sure)
    whole = np.bincount(party, weights=uploads.n_samples)
    return (inside >= 0.5 * whole[:, None]).sum(axis=0)


def _diagnosis(task: Task, uploads: Uploads, step: ServerStep) -> str:
    """The verdict on the groups, in two sentences that name no site."""
    from odcl.diagnose import diagnose_step

    features = dict(zip(task.columns, task.scaling.scale.tolist(), strict=True))
    verdict = str(diagnose_step(uploads, step, task.resolved, features=features).verdict)
    if step.groups_forbidden:
        return f"Without groups that too few sites stand behind: {verdict}"
    sentences = re.split(r"(?<=\.)\s+(?=[A-Z])", verdict)  # it stands behind the reason
    return " ".join(one for one in sentences if one not in step.reason)
