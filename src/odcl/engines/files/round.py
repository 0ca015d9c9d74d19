"""The round: a folder with one download per site, the coordinator's report, and what it keeps in
mind. It appears whole, and is replaced as a whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from odcl.artifact.arrays import expect, is_count, json_bytes, parse_json
from odcl.artifact.manifest import blaming
from odcl.engines.files.collect import Known
from odcl.engines.files.download import (
    ENDING,
    Groups,
    download_bytes,
    groups_from_arrays,
    groups_specs,
)
from odcl.engines.files.envelope import envelope_bytes, naming_file, read_envelope, refusing
from odcl.engines.files.keys import SigningKey
from odcl.engines.files.task import Task
from odcl.engines.files.upload import ReadUpload
from odcl.files import atomic_folder, interrupted, locked, naming, read_regular, sweep

if TYPE_CHECKING:
    from odcl.engines.files.combine import CombinedRound

FORMAT = 1
CARD, STATE, GROUPS = "task.toml", "round.json", "round.groups"
REPORT, TEXT, PAGE = "report.json", "report.txt", "report.html"
_MOST_BYTES = 2**26


@dataclass(frozen=True)
class RoundState:
    """What a round keeps in mind from one combining to the next."""

    task: Mapping[str, Any] = field(default_factory=dict)
    taken: Mapping[str, Known] = field(default_factory=dict)  # by site
    withdrawn: Mapping[str, str] = field(default_factory=dict)  # site -> time of its last upload
    missing: Mapping[str, Known] = field(default_factory=dict)  # taken before, and not there now

    @property
    def known(self) -> dict[str, Known]:
        """The newest upload of each site that was ever taken: no older one is."""
        return {**self.missing, **self.taken}

    def followed_by(
        self, task: Task, uploads: Mapping[str, ReadUpload], withdrawn: Mapping[str, str]
    ) -> RoundState:
        """What is kept in mind once these uploads are taken."""
        taken = {
            site: Known(str(one.file.created), one.file.sha256) for site, one in uploads.items()
        }
        gone = self.known.keys() - taken.keys() - withdrawn.keys()
        missing = {site: self.known[site] for site in gone}
        return RoundState(task.stamp, taken, withdrawn, missing)

    def to_bytes(self, files: Mapping[str, str]) -> bytes:
        """The file, which ends with a digest of all that stands before it."""
        words = {
            "format": FORMAT,
            "kind": "round",
            "task": dict(self.task),
            "taken": {site: asdict(self.taken[site]) for site in sorted(self.taken)},
            "withdrawn": dict(sorted(self.withdrawn.items())),
            "missing": {site: asdict(self.missing[site]) for site in sorted(self.missing)},
            "files": dict(sorted(files.items())),
        }
        digest = hashlib.sha256(json_bytes(words, indent=None)).hexdigest()
        return json_bytes(words | {"sha256": digest}, indent=None)


def is_round(folder: Path) -> bool:
    """Does a folder hold a round? One whose writer was killed while it changed places is back."""
    if interrupted(folder):
        with locked(folder):
            pass
    return (folder / STATE).is_file()


def read_state(folder: Path, task: Task | None = None) -> RoundState:
    """What the round in a folder keeps in mind; nothing, where there is none yet."""
    if not folder.exists():
        return RoundState()
    if not (folder / STATE).is_file():
        raise ValueError(
            f"{folder} exists and holds no round: name a new folder, or that of a round."
        )
    state, _ = _read(folder)
    if task is not None and state.task != task.stamp:
        name, number = state.task["name"], state.task["round"]
        raise ValueError(
            f"{folder} holds round {number} of {name!r}, made with another card than this one: "
            "name another folder."
        )
    return state


def _read(folder: Path) -> tuple[RoundState, dict[str, str]]:
    content = read_regular(folder / STATE, most=_MOST_BYTES)
    with blaming(folder / STATE):
        words = parse_json(content)
        expect(isinstance(words, dict) and words.get("format") == FORMAT, "it has another format")
        task, files = words["task"], words["files"]
        expect(tuple(task) == ("name", "round", "sha256") and is_count(task["round"]), "no task")
        taken, missing = (
            {site: Known(**one) for site, one in words[name].items()}
            for name in ("taken", "missing")
        )
        state = RoundState(task, taken, words["withdrawn"], missing)
        expect(state.to_bytes(files) == content, "its digest is not that of its contents")
    return state, files


def read_round(folder: Path) -> tuple[Task, Groups]:
    """The card and the groups of a round, checked against what the round keeps in mind."""
    if not is_round(folder):
        raise ValueError(f"{folder} holds no round: name the folder that `odcl combine` wrote.")
    state, files = _read(folder)
    for name in (CARD, GROUPS):
        content = read_regular(folder / name, most=_MOST_BYTES)
        if hashlib.sha256(content).hexdigest() != files.get(name):
            raise ValueError(f"{folder / name} was changed since the round was written.")
    task = Task.read(folder / CARD)
    if task.stamp != state.task:
        raise ValueError(f"{folder / CARD} is the card of another task than the round's.")
    with naming_file(folder / GROUPS), refusing():
        file = read_envelope(folder / GROUPS, "groups")
        file.check_task(task)
        mixed = task.resolved.clusterer.uses_terms
        groups = groups_from_arrays(task, file.words, file.arrays(groups_specs(mixed)))
    return task, groups


def write_round(
    folder: Path, state: RoundState, combined: CombinedRound, key: SigningKey | None
) -> CombinedRound:
    """Write a round, and tell how many bytes each site receives; the caller holds the lock.

    An old round goes with its own files and with no others: a folder that holds more is refused.
    """
    from odcl.report.page.round import round_page
    from odcl.report.round import round_json

    task, sizes, files = combined.task, dict[str, int](), dict[str, str]()
    own = [STATE, *_read(folder)[1]] if folder.exists() else None
    sweep(folder)
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
        write(GROUPS, envelope_bytes("groups", task, "", arrays, words, key=key))
        report = round_json(combined)
        write(REPORT, json_bytes(report, indent=None))
        write(PAGE, round_page(report, task, combined.groups))
        write(TEXT, f"{combined}\n".encode())
        write(STATE, state.to_bytes(dict(files)))
    return combined
