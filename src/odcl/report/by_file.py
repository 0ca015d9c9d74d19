"""Federations by file in words: a round's sites, groups and bytes, and all that a file holds."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from odcl._typing import Array
from odcl.artifact.arrays import ArraySpec
from odcl.declared import from_json, to_json
from odcl.engines.files.combine import CombinedRound
from odcl.engines.files.envelope import Envelope, naming_file, read_envelope, refusing
from odcl.engines.files.round import DownloadWords, GroupsWords, RoundGroups
from odcl.engines.files.site import UploadWords
from odcl.engines.files.task import Task
from odcl.errors import printable
from odcl.exchange.message import COMPARED_ROUNDS, Downloads
from odcl.exchange.mixture import TELLS
from odcl.exchange.upload import Uploads
from odcl.mixed.differences import DIFFER, alike, curves_text, differences_text, named_differences
from odcl.report.page.facts import Table
from odcl.report.text import count, in_bytes, table
from odcl.server.robust import outlier_lines, outliers_json
from odcl.wide.moments import mixed_only

MOST_SITES = 200  # listed one by one in the text; all are in the JSON
LEDGERS = {"files": "these files"}


def round_text(combined: CombinedRound) -> str:
    """The report for people."""
    task, words = combined.task, round_json(combined)
    sites = words["sites"].values()
    users, rows = (sum(one[what] for one in sites) for what in ("users", "rows"))
    size = f"{count(len(sites), 'site')}, {count(users, 'user')}, {count(rows, 'row')}"
    signed = "signed" if task.signed else "not signed: the card lists no keys"
    lines = [
        f"Round {task.round} of {task.name!r}: {size}, {task.risk.loss.name} loss. "
        f"Files are {signed}.",
        combined.step.reason,
        *_finding_lines(combined),
    ]
    groups, by_site, ledgers = round_tables(words)
    lines += ["", table(groups.header, groups.rows)]
    lines += ["", table(by_site.header, by_site.rows[:MOST_SITES])]
    if len(by_site.rows) > MOST_SITES:
        more = count(len(by_site.rows) - MOST_SITES, "more site")
        lines.append(f"... and {more} (all in report.json)")
    if combined.set_aside:
        lines += ["", f"Set aside: {count(len(combined.set_aside), 'file')}"]
        lines += [f"  {one.name}: {one.reason}" for one in combined.set_aside]
    told = outlier_lines(combined.step.outliers, task.columns, task.target, "site")
    lines += ["", *told] if told else []
    lines += ["", table(ledgers.header, ledgers.rows)]
    models = f"{count(combined.n_groups, 'model')} for IFCA"
    note = f"FedAvg and IFCA: numbers of 8 bytes in {COMPARED_ROUNDS} rounds, {models}, every user"
    return "\n".join([*lines, f"{note} a client."])


def round_tables(words: dict[str, Any]) -> tuple[Table, Table, Table]:
    """Groups, sites and bytes of a round's report, for a terminal or a page."""
    groups = [
        (f"group {one['group']}", f"{one['sites']:,}", f"{one['users']:,}")
        for one in words["groups"]
    ]
    sites = []
    for site, one in words["sites"].items():
        where = ", ".join(map(str, sorted(set(one["groups"])))) or "-"
        sent = in_bytes(one["bytes_up"]), in_bytes(one["bytes_down"])
        sites.append((site, f"{one['users']:,}", f"{one['rows']:,}", where, *sent))
    ledgers = [
        (LEDGERS.get(name, name), f"{one['rounds']:,}", in_bytes(one["up"]), in_bytes(one["down"]))
        for name, one in words["bytes"].items()
    ]
    return (
        Table(("", "sites", "users"), groups),
        Table(("site", "users", "rows", "groups", "sent", "receives"), sites),
        Table(("bytes", "rounds", "up", "down"), ledgers, strong=0),
    )


def group_differences(combined: CombinedRound) -> dict[str, float]:
    """How far users of a group differ in each coefficient, in the table's units; empty: unknown."""
    mixture, task = mixed_only(combined.step.mixture), combined.task
    if mixture is None:
        return {}
    features = dict(zip(task.columns, task.scaling.scale.tolist(), strict=True))
    return named_differences(mixture, task.risk, features)


def _finding_lines(combined: CombinedRound) -> list[str]:
    """How users of a group differ, and what to make of it; where users differ is said once."""
    found, diagnosis = group_differences(combined), combined.groups.diagnosis
    lines = [differences_text(found, combined.n_groups), diagnosis]
    if combined.told_where:
        same = alike(found)
        lines = [f"{diagnosis} The same for all of them: {', '.join(same)}." if same else diagnosis]
    lines.append(groups_curves(combined.groups, combined.task))
    return list(filter(None, lines))


def groups_curves(groups: RoundGroups, task: Task) -> str:
    """Which columns act in curves; empty: none."""
    mixture = mixed_only(groups.mixture)
    return "" if mixture is None else curves_text(mixture, task.risk, task.columns)


def round_json(combined: CombinedRound) -> dict[str, Any]:
    """The report for programs."""
    labels, step = combined.site_groups, combined.step
    ledgers = {"files": combined.ledger, **combined.others}
    return {
        "task": to_json(combined.task.stamp),
        "signed": combined.task.signed,
        "rule": step.rule,
        "reason": step.reason,
        "diagnosis": combined.groups.diagnosis,
        "differences": group_differences(combined),
        "groups": [
            {"group": k, "sites": int(combined.groups.sites[k]), "users": int(n)}
            for k, n in enumerate(combined.groups.sizes.tolist())
        ],
        "sites": {
            site: {
                "users": len(one.uploads),
                "rows": int(one.uploads.n_samples.sum()),
                "groups": labels[site].tolist(),
                "withheld": to_json(one.words.withheld),
                "bytes_up": combined.bytes_up[site],
                "bytes_down": combined.bytes_down[site],
            }
            for site, one in combined.taken.items()
        },
        "outliers": outliers_json(step.outliers, combined.task.columns, combined.task.target),
        "set_aside": [{"file": one.name, "reason": one.reason} for one in combined.set_aside],
        "bytes": to_json(ledgers),
    }


# -- one file --------------------------------------------------------------------------------------

FEW = 8  # numbers that are shown as they are

_MORE = {
    "sizes": "how many users each group has",
    "sites": "how many sites have users in each group",
    "distance": "how far each user is from its group, in noise units (about 1 for a member)",
    "none_of_these": "whether each user fits none of the groups",
}


def inspect_file(
    path: str | os.PathLike[str], task: Task | None = None, *, every_number: bool = False
) -> str:
    """The report on one file. ``task`` tells who owns which key; without it keys are just shown."""
    with naming_file(path), refusing():
        lines = _lines(read_envelope(path), task, every_number)
    return "\n".join(map(printable, lines))


def _lines(file: Envelope, task: Task | None, every_number: bool) -> list[str]:
    about, bent = file.task, list[str]()
    if task is not None and task.bends:
        bent = [f"Columns: {', '.join(task.columns)}, and their bends {task.bends}."]
    lines = [
        f"{_KINDS[file.kind]} {file.site}".rstrip()
        + f", task {about.name!r}, round {about.round}, {file.n_bytes:,} bytes.",
        f"Card: digest {about.sha256[:16]}" + (_card(file, task)),
        *bent,
        *([] if file.created is None else [f"Made: {file.created}"]),
        f"File: SHA-256 {file.sha256}",
        _signed(file, task),
        *_words(file),
        *_guarantee(file, task),
        "",
        "Numbers in it, and nothing else:" if file.kind == "upload" else "Numbers in it:",
    ]
    specs = {
        name: ArraySpec(shape, (dtype,), finite=False)
        for name, (dtype, shape) in file.header.contents.items()
    }
    for name, array in file.arrays(specs).items():
        noisy = name == "n_samples" and "private_slope" in specs
        lines += _array_lines(file.kind, name, array, every_number, noisy=noisy)
    return lines


_KINDS = {"upload": "Upload of", "download": "Download for", "groups": "Groups of a round"}


def _guarantee(file: Envelope, task: Task | None) -> tuple[str, ...]:
    if file.kind != "upload" or "private_curvature" not in file.header.contents:
        return ()
    if task is None or task.method.privacy is None or task.digest != file.task.sha256:
        return ("Private: give the card to see the guarantee.",)
    return task.method.privacy.sentences


def _card(file: Envelope, task: Task | None) -> str:
    if task is None:
        return ""
    return ", that of the card given" if task.digest == file.task.sha256 else ", ANOTHER CARD"


def _signed(file: Envelope, task: Task | None) -> str:
    if not file.key:
        return "Signature: none. The file could have been changed on its way."
    try:
        if not file.is_authentic:
            return f"Signature: WRONG. It is not by the key {file.key} that the file names."
    except ValueError as error:
        return f"Signature: by key {file.key}, not checked. {error}"
    whose = (
        "; give the card to see whose it is" if task is None else f" of {_owner(file.key, task)}"
    )
    return f"Signature: good, by key {file.key}{whose}."


def _owner(key: str, task: Task) -> str:
    if key in task.coordinator:
        return "the coordinator"
    owners = [site for site, keys in task.sites.items() if key in keys]
    return owners[0] if owners else "NO ONE ON THE CARD"


def _words(file: Envelope) -> list[str]:
    if file.kind == "upload":
        return _upload_words(from_json(UploadWords, file.words))
    own = from_json(DownloadWords if file.kind == "download" else GroupsWords, file.words)
    lines = [own.reason, own.diagnosis]
    if file.kind == "download":
        late = "a late upload" if own.late else "the upload"
        lines.insert(0, f"Answers {late} with SHA-256 {own.answers}.")
    return lines if own.mixture is None else [*lines, _mixture(own.mixture)]


def _upload_words(own: UploadWords) -> list[str]:
    held = own.withheld
    named = [*held.levels, *(f"class {name}" for name in held.classes)]
    lines = [f"Users: {own.users:,}, without their names, in the order of the names."]
    if named:
        lines.append(f"Withheld, seen too few times at a user: {', '.join(named)}.")
    if held.users:
        lines.append(f"Withheld: {count(held.users, 'user')}.")
    return lines if named or held.users else [*lines, "Withheld: nothing."]


def _mixture(words: Any) -> str:
    """How users differ, their noise, and the target's units."""
    if "concentration" in words:
        differ = "only by noise" if words["alike"] else "gradually"
        if level := words.get("level"):
            return f"Users of a group differ in the level (variance {level:.6g}), else {differ}."
        shares = f"as alike as {words['concentration']:.6g} rows would make them"
        return f"Users of a group differ {differ}. Their class shares are {shares}."
    nu, s0, dof = words["noise"]
    alike = "the same for all users" if nu == "inf" else f"about that, other by user (nu {nu:.6g})"
    zero, unit = words["target"]
    known = "" if dof == "inf" else f", known from {dof:.6g} degrees of freedom"
    return (
        f"Users of a group differ {DIFFER[words['shape']]}. Noise: variance {s0:.6g}, {alike}"
        f"{known}. The target is counted from {zero:.6g} in units of {unit:.6g}."
    )


def _array_lines(
    kind: str, name: str, array: Array, every_number: bool, *, noisy: bool
) -> list[str]:
    shape, tells = " x ".join(map(str, array.shape)) or "1", _tells(kind, name)
    tells += ", with noise" * noisy
    head = f"  {name}: {shape} {array.dtype.name}, {in_bytes(array.nbytes)}. {tells}."
    return [head, f"    {_numbers(array, every_number)}"]


def _tells(kind: str, name: str) -> str:
    parts = Uploads.parts() if kind == "upload" else Downloads.parts()
    if name in parts:
        text = parts[name].tells
    elif name.startswith("mixture."):
        text = TELLS.get(name.removeprefix("mixture."), "")
    else:
        text = _MORE.get(name, "")
    return text[:1].upper() + text[1:]


def _numbers(array: Array, every_number: bool) -> str:
    flat: Any = array.reshape(-1)
    if every_number or flat.size <= FEW:
        return " ".join(f"{v:.6g}" if array.dtype.kind == "f" else str(v) for v in flat.tolist())
    if array.dtype.kind == "b":
        return f"{int(flat.sum())} of {flat.size} are true"
    shown = " ".join(f"{float(v):.6g}" for v in flat[:FEW].tolist())
    finite = flat[np.isfinite(flat)].astype(np.float64)
    between = f"from {finite.min():.6g} to {finite.max():.6g}" if finite.size else "none finite"
    return f"{shown} ... {flat.size:,} numbers {between}"
