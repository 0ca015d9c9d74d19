"""The round: a folder with one download per site, the coordinator's report, and its state. It
appears whole, and is replaced as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from odcl.artifact.arrays import expect, json_bytes, parse_json
from odcl.artifact.manifest import blaming
from odcl.declared import Digest, fields_from_json, fields_to_json, from_json
from odcl.engines.files.collect import ReadUpload, Version
from odcl.engines.files.download import (
    ENDING,
    GroupsWords,
    RoundGroups,
    download_bytes,
    groups_of,
    groups_specs,
)
from odcl.engines.files.envelope import (
    Stamp,
    Time,
    envelope_bytes,
    naming_file,
    read_envelope,
    refusing,
)
from odcl.engines.files.keys import SigningKey
from odcl.engines.files.task import Task
from odcl.files import atomic_folder, interrupted, locked, naming, read_regular

if TYPE_CHECKING:
    from odcl.engines.files.combine import CombinedRound

FORMAT = 1
CARD, STATE, GROUPS = "task.toml", "round.json", "round.groups"
REPORT, TEXT, PAGE = "report.json", "report.txt", "report.html"
_MOST_BYTES = 2**26


@dataclass(frozen=True)
class RoundState:
    """What a round remembers from one combining to the next."""

    task: Stamp
    taken: Mapping[str, Version] = field(default_factory=dict)  # by site
    withdrawn: Mapping[str, Time] = field(default_factory=dict)  # site -> time of its last upload
    missing: Mapping[str, Version] = field(default_factory=dict)  # taken before, not there now
    files: Mapping[str, Digest] = field(default_factory=dict)  # that the round consists of

    @property
    def known(self) -> dict[str, Version]:
        """The newest upload of each site that was ever taken: no older one is."""
        return {**self.missing, **self.taken}

    def followed_by(
        self, uploads: Mapping[str, ReadUpload], withdrawn: Mapping[str, str]
    ) -> RoundState:
        """The state once these uploads are taken."""
        taken = {site: one.version for site, one in uploads.items()}
        gone = self.known.keys() - taken.keys() - withdrawn.keys()
        missing = {site: self.known[site] for site in gone}
        return RoundState(self.task, taken, withdrawn, missing)

    def to_bytes(self) -> bytes:
        """The file, which ends with a digest of all that stands before it."""
        own = {
            name: dict(sorted(value.items())) if name != "task" else value
            for name, value in fields_to_json(self).items()
        }
        words = {"format": FORMAT, "kind": "round", **own}
        digest = hashlib.sha256(json_bytes(words, indent=None)).hexdigest()
        return json_bytes(words | {"sha256": digest}, indent=None)


def is_round(folder: Path) -> bool:
    """Does a folder hold a round? One whose writer was killed while it changed places is back."""
    if interrupted(folder):
        with locked(folder):
            pass
    return (folder / STATE).is_file()


def read_state(folder: Path, task: Task) -> RoundState:
    """The state of the round in a folder; a new one where there is none yet."""
    if not folder.exists():
        return RoundState(task.stamp)
    if not (folder / STATE).is_file():
        raise ValueError(
            f"{folder} exists and holds no round: name a new folder, or that of a round."
        )
    state = _read(folder)
    if state.task != task.stamp:
        raise ValueError(
            f"{folder} holds round {state.task.round} of {state.task.name!r}, made with another "
            "card than this one: name another folder."
        )
    return state


def _read(folder: Path) -> RoundState:
    content = read_regular(folder / STATE, most=_MOST_BYTES)
    with blaming(folder / STATE):
        words = parse_json(content)
        expect(isinstance(words, dict) and words.get("format") == FORMAT, "it has another format")
        own = {name: words[name] for name in words.keys() - {"format", "kind", "sha256"}}
        state = fields_from_json(RoundState, own)
        expect(state.to_bytes() == content, "its digest is not that of its contents")
    return state


def read_round(folder: Path) -> tuple[Task, RoundGroups, RoundState]:
    """The card and the groups of a round, checked against its state."""
    if not is_round(folder):
        raise ValueError(f"{folder} holds no round: name the folder that `odcl combine` wrote.")
    state = _read(folder)
    for name in (CARD, GROUPS):
        content = read_regular(folder / name, most=_MOST_BYTES)
        if hashlib.sha256(content).hexdigest() != state.files.get(name):
            raise ValueError(f"{folder / name} was changed since the round was written.")
    task = Task.read(folder / CARD)
    if task.stamp != state.task:
        raise ValueError(f"{folder / CARD} is the card of another task than the round's.")
    with naming_file(folder / GROUPS), refusing():
        file = read_envelope(folder / GROUPS, "groups")
        file.check_task(task.stamp)
        words: GroupsWords = from_json(GroupsWords, file.words)
        mixed = task.resolved.clusterer.uses_terms
        groups = groups_of(task, words, file.arrays(groups_specs(mixed)))
    return task, groups, state


def write_round(
    folder: Path, state: RoundState, combined: CombinedRound, key: SigningKey | None
) -> CombinedRound:
    """Write a round, and count the bytes each site receives; the caller holds the lock.

    An old round goes with its own files and with no others: a folder that holds more is refused.
    """
    from odcl.report.by_file import round_json
    from odcl.report.page.round import round_page

    task, sizes, files = combined.task, dict[str, int](), dict[str, str]()
    own = [STATE, *_read(folder).files] if folder.exists() else None
    with atomic_folder(folder, force=own is not None, own=own) as place:

        def write(name: str, content: bytes) -> None:
            with naming(folder / name, place / name), open(place / name, "xb") as stream:
                stream.write(content)
            files[name] = hashlib.sha256(content).hexdigest()

        for site, given in combined.downloads():
            content = download_bytes(task, site, given, key)
            write(f"{site}{ENDING}", content)
            sizes[site] = len(content)
        combined = replace(combined, bytes_down=sizes)
        words, arrays = combined.groups.parts
        write(CARD, task.to_toml().encode())
        write(GROUPS, envelope_bytes("groups", task.stamp, "", arrays, words, key=key))
        report = round_json(combined)
        write(REPORT, json_bytes(report, indent=None))
        write(PAGE, round_page(report, task, combined.groups))
        write(TEXT, f"{combined}\n".encode())
        write(STATE, replace(state, files=files).to_bytes())
    return combined
