"""Mutated files for the readers of cards, uploads and downloads: ``make fuzz``.

None may crash, hang, take more than 256 MB, or be accepted with changed content. Everything is
drawn from one seed, and a case that fails is named by its number.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np

from odcl.engines.files import Task, combine_uploads, receive
from odcl.engines.files.collect import collect, read_upload
from odcl.engines.files.round import read_download
from odcl.report.by_file import inspect_file
from tests.engines.files.world import file_of, frames, header_of, send, task, with_keys

MOST_MEMORY = 2**28
SECONDS = 30  # that one case may take before it counts as hanging

# -- mutations -------------------------------------------------------------------------------------


def flip(content, rng):
    bad = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
    return bytes(bad)


def cut(content, rng):
    return content[: rng.integers(len(content))]


def insert(content, rng):
    at = rng.integers(len(content) + 1)
    return content[:at] + rng.bytes(rng.integers(1, 40)) + content[at:]


def remove(content, rng):
    at = rng.integers(len(content))
    return content[:at] + content[at + rng.integers(1, 40) :]


def overwrite(content, rng):
    at, n = rng.integers(len(content)), rng.integers(1, 200)
    fill = bytes(int(n)) if rng.random() < 0.5 else b"\xff" * int(n)
    return content[:at] + fill + content[at + n :]


def repeat(content, rng):
    a, b = sorted(rng.integers(len(content), size=2))
    return content[:b] + content[a:b] + content[b:]


def digits(content, rng):
    """Numbers in the text become others: sizes, offsets, shapes."""
    places = [i for i, c in enumerate(content[:4000]) if 48 <= c <= 57]
    bad = bytearray(content)
    for at in rng.choice(places, size=min(3, len(places)), replace=False):
        bad[at] = 48 + rng.integers(10)
    return bytes(bad)


def length(content, rng):
    return int(rng.integers(2**62)).to_bytes(8, "little") + content[8:]


VALUES = (None, True, 0, -1, 2**63, 1e308, "", "../x", "\u0000", [], {}, [[]], "9" * 5000, 0.5)


def words(content, rng):
    """Somebody who knows the format: a word of header or manifest is another, digests are right."""
    try:
        header, numbers = header_of(content)
        meta = header["__metadata__"]
        said = json.loads(meta["manifest"])
    except (ValueError, KeyError, TypeError):
        return flip(content, rng)
    where = said if rng.random() < 0.8 else header
    while True:
        name = list(where)[rng.integers(len(where))]
        if isinstance(where[name], dict) and where[name] and rng.random() < 0.6:
            where = where[name]
            continue
        value = VALUES[rng.integers(len(VALUES))]
        if rng.random() < 0.2:
            del where[name]
        else:
            where[name] = value
        break
    if "__metadata__" in header and isinstance(header["__metadata__"], dict):
        text = json.dumps(said, separators=(",", ":"))
        header["__metadata__"] |= {"manifest": text}
        header["__metadata__"] |= {"sha256": hashlib.sha256(text.encode()).hexdigest()}
    return file_of(header, numbers)


def lines(content, rng):
    """Lines of a text swapped, doubled or taken out."""
    found = content.split(b"\n")
    a, b = rng.integers(len(found), size=2)
    found[a], found[b] = (found[b], found[a]) if rng.random() < 0.5 else (found[b], found[b])
    return b"\n".join(found)


MUTATIONS = (flip, cut, insert, remove, overwrite, repeat, digits, length, words, lines)

# -- the readers -----------------------------------------------------------------------------------


class Cases:
    """Good files of a signed and of an unsigned task, and what reading them gives."""

    def __init__(self, folder: Path) -> None:
        tables = frames(4)
        self.folder, self.site = folder, "north"
        self.tasks = {"unsigned": task()}
        self.tasks["signed"], keys = with_keys(task(), tables, folder / "keys")
        self.good: dict[tuple[str, str], bytes] = {}
        self.digest: dict[str, str] = {}
        for name, given in self.tasks.items():
            own = keys if name == "signed" else None
            sent = send(given, tables, folder / name, keys=own)
            back = folder / f"round-{name}"
            key = keys["coordinator"] if own else None
            combine_uploads(given, sent, out=back, key=key)
            upload = (sent / "north.upload").read_bytes()
            self.digest[name] = hashlib.sha256(upload).hexdigest()
            self.good[name, "upload"] = upload
            self.good[name, "download"] = (back / "north.download").read_bytes()
            self.good[name, "card"] = given.to_toml().encode()
            receive(given, sent / "north.upload", back / "north.download", tables["north"])

    def read(self, which: str, kind: str, content: bytes) -> None:
        """Read a file; a ValueError refuses it."""
        given = self.tasks[which]
        file = self.folder / f"north.{kind}"
        file.write_bytes(content)
        if kind == "card":
            again = Task.read(file)
            if again.digest == given.digest and again != given:  # keys are not in the digest
                raise ValueError("other keys")
            if again.digest != given.digest:
                raise ValueError("another task")
            return
        shown = inspect_file(file)
        assert shown.replace("\n", " ").isprintable()
        if kind == "upload":
            read_upload(given, file)
        else:
            read_download(given, file, self.site, self.digest[which])


def fuzz(n: int, *, seed: int = 0) -> Counter[str]:
    """So many mutated files: how many were refused, and how many were the same in other bytes."""
    rng, told = np.random.default_rng(seed), Counter[str]()
    with tempfile.TemporaryDirectory() as place:
        cases = Cases(Path(place))
        signal.signal(signal.SIGALRM, _hangs)
        tracemalloc.start()
        try:
            for number in range(n):
                signal.alarm(SECONDS)
                told[_one(cases, number, rng)] += 1
        finally:
            signal.alarm(0)
            tracemalloc.stop()
    return told


def _hangs(*_):
    raise AssertionError("a reader hangs")


def _one(cases: Cases, number: int, rng: np.random.Generator) -> str:
    which, kind = list(cases.good)[number % len(cases.good)]
    good = cases.good[which, kind]
    made = [MUTATIONS[i] for i in rng.integers(len(MUTATIONS), size=1 + (rng.random() < 0.2))]
    content = good
    for mutate in made:
        content = mutate(content or good, rng)
    if content == good:
        return "unchanged"
    tracemalloc.reset_peak()
    verdict, reason = "accepted", ""
    try:
        cases.read(which, kind, content)
    except ValueError as error:
        verdict, reason = "refused", str(error)
    except Exception as error:
        raise AssertionError(f"case {number} ({kind}, {made})") from error
    assert len(reason.splitlines()) <= 1, (number, reason)
    assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY, number
    if verdict == "accepted":
        # A card may differ in comments and blanks, and be the same task. Who can write an unsigned
        # file anew may say in it what he likes: nothing but a signature can tell.
        knowing = which == "unsigned" and words in made
        assert kind == "card" or knowing, (number, kind, made)
    return f"{kind} {verdict}"


def folders(n: int, *, seed: int = 0) -> None:
    """Folders of mutated uploads: what is good among them is taken whatever lies beside it."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as place:
        cases = Cases(Path(place))
        sent = Path(place) / "signed"
        for _ in range(n):
            for j in range(5):
                bad = MUTATIONS[rng.integers(len(MUTATIONS))](cases.good["signed", "upload"], rng)
                (sent / f"north-{j}.upload").write_bytes(bad + b"!")
            found = collect(cases.tasks["signed"], sent)
            assert sorted(found.uploads) == ["east", "north", "south", "west"]
            assert len(found.set_aside) == 5


if __name__ == "__main__":
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(dict(fuzz(count, seed=int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
