"""The sections of a fit's report (worth, diagnosis, plan, privacy, provenance), and pictures."""

from __future__ import annotations

import base64
import math
import re
import shlex
import struct
import zlib
from collections.abc import Sequence

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.diagnose import diagnose_fitted
from odcl.errors import number
from odcl.exchange.upload import Uploads
from odcl.fitted.predict import GROUPS, USERS, importance
from odcl.fitted.value import Fitted
from odcl.report.diagnosis import diagnosis_parts
from odcl.report.page.facts import MoreRows, PixelImages, Section, Table
from odcl.report.text import comparison_cells, count, in_bytes, scored_by
from odcl.runs.evidence import Evidence
from odcl.runs.run import group_sizes

MOST_DIAGNOSED = 2_000_000  # users times parameters squared: beyond, it would take a minute


def sections(
    fitted: Fitted,
    evidence: Evidence,
    more: MoreRows | None,
    images: PixelImages | None,
    *,
    anonymous: bool,
) -> list[Section]:
    """All of them, in the order of the page."""
    found = [
        _worth(evidence),
        _diagnosis(fitted, evidence),
        _plan(fitted, evidence, more, anonymous),
        _privacy(fitted, evidence, images, anonymous),
        _provenance(fitted, evidence, anonymous),
    ]
    return [one for one in found if one is not None]


def _worth(evidence: Evidence) -> Section | None:
    """The methods side by side."""
    c = evidence.comparison
    if c is None:
        return None
    header, rows = comparison_cells(c)
    held = f"a share of {evidence.holdout}" if evidence.holdout else "a share"
    if evidence.holdout.startswith("last"):
        held = f"the last rows ({evidence.holdout})"
    words = (
        f"Every method was fitted on the same rows of {count(c.n_users, 'user')} and scored on "
        f"{count(c.n_rows, 'row')} that none of them had seen: {held} of each user's rows. The "
        f"models in the run are fitted on all rows. Scores: {scored_by(c)}."
    )
    table = Table(("", *header), rows, strong=[*c.scores].index(c.ours))
    return Section("worth", "What it is worth", (words,), (table,))


def _diagnosis(fitted: Fitted, evidence: Evidence) -> Section:
    title = "Diagnosis: is one shot enough?"
    matrices = fitted.mixed is not None  # one per user
    size = len(fitted.users.users) * fitted.users.model.shape[1] ** (2 if matrices else 1)
    if size > MOST_DIAGNOSED:
        why = "With this many users it takes longer than a report should: say odcl diagnose RUN."
        return Section("diagnosis", title, (why,))
    try:
        found = diagnose_fitted(fitted, comparison=evidence.comparison)
    except ValueError as error:
        return Section("diagnosis", title, (str(error),))
    parts = diagnosis_parts(found)
    tables = [Table(parts.measures_header, parts.measures, left=(1, 2))]
    if parts.border:
        tables.append(Table(parts.border_header, parts.border))
    users = [*parts.users]
    if parts.more_at_border:
        users.insert(0, f"{count(parts.more_at_border, 'more user')} near a border")
    words = (found.verdict.sentence, found.verdict.reason)
    return Section("diagnosis", title, words, tables, users)


def _plan(
    fitted: Fitted, evidence: Evidence, more: MoreRows | None, anonymous: bool
) -> Section | None:
    """What more rows would bring, and how to ask for a whole plan."""
    title = "Plan: what more rows would change"
    name = "TABLE" if anonymous else str(evidence.table.get("name", "TABLE"))
    schema = fitted.schema
    code = ""
    if schema is not None and schema.user and schema.target and fitted.n_clusters > 1:
        words = ["odcl", "plan", "--pilot", name, "--user", schema.user, "--target", schema.target]
        words += ["--categorical", ",".join(schema.levels)] * bool(schema.levels)
        words += ["--missing", schema.missing] * (schema.missing != "error")
        asked = [*evidence.command]
        words += ["--no-curves"] * ("--no-curves" in asked)
        for option in ("--features", "--drop", "--loss", "--curves", "--periodic"):  # as asked
            words += asked[asked.index(option) :][:2] if option in asked else []
        code = shlex.join(words)
    if more is None or fitted.mixed is None:
        why = "This method keeps no account of how users' rows enter, so nothing is computed."
        if fitted.mixture is not None:
            why, code = str(fitted.without_mixture("Plans")), ""
        return Section("plan", title, (why,), code=code)
    differ, several = bool(fitted.mixed.inside.any()), fitted.n_clusters > 1
    if not (differ or several):
        return Section("plan", title, [_only_noise(1)])
    wide, wrong, weight = (
        f(values, axis=0)
        for f, values in ((np.median, more.width), (np.mean, more.wrong), (np.median, more.weight))
    )
    width = (
        "intervals of a user's coefficients",
        "intervals (of the median user, now 100 %) if groups and how users differ stay as found",
        [f"{100 * share:.0f} %" for share in wide],
    )
    chance = (
        "chance of a wrong group",
        "the chance that such rows put a user in a wrong group (mean user)",
        [f"{number(round(100 * share, 4), 2)} %" for share in wrong],
    )
    own = (
        "weight of own rows",
        "how much a user's own rows count in its model beside its group",
        [f"{100 * share:.0f} %" for share in weight],
    )
    header, parts, cells = zip(
        *([width] * differ + [chance] * several + [own] * differ), strict=True
    )
    label = {0.5: "half", 1.0: "as now"}
    times = [label.get(n, f"{n:g} times as many") for n in more.times]
    told = ", ".join(parts[:-1]) + ", and " * (len(parts) > 1) + parts[-1]
    about = f"Computed from the run, not simulated: {told}."
    about += " For a simulation of the whole round:" * bool(code)
    shown = [about] if differ else [_only_noise(fitted.n_clusters), about]
    rows = list(zip(times, *cells, strict=True))
    return Section("plan", title, shown, (Table(("rows per user", *header), rows),), code=code)


def _only_noise(n_groups: int) -> str:
    """Why intervals of a user's coefficients are in no column: T = 0 leaves the center's alone."""
    if n_groups == 1:
        return (
            "Users differ only by noise, so all of them have one model: one user's further rows "
            "change it little, while more rows of all users would narrow its intervals."
        )
    return (
        "Users of a group differ only by noise, so a user's model is its group's (a mean of "
        "several where its group is in doubt): one user's further rows tell its group more surely "
        "and change little else, while more rows of all users would narrow the intervals of the "
        "groups' coefficients."
    )


def _privacy(
    fitted: Fitted, evidence: Evidence, images: PixelImages | None, anonymous: bool
) -> Section:
    """What left each user, field by field, in bytes."""
    title = "Privacy: what leaves a user"
    m, added, pieces = fitted.n_users, fitted.added, fitted.files is not None
    saw = "was of a table in pieces" if pieces else "saw the whole table on one machine"
    saw = saw if fitted.whole else "saw the rows of one site"
    words = [
        f"This fit {saw}. In a federation a user's rows stay where they are, and this, and nothing "
        "else, would leave it:"
    ]
    tables, private = [], fitted.method.privacy
    if private is not None:
        words = [*private.sentences]
    if fitted.uploads is not None and (private is None or fitted.uploads.private):
        sent: Uploads = fitted.uploads
        n, together, every = sent.n_bytes[: len(sent) - added], evidence.bytes_up or 0, "per user"
        sizes = {name: f"{each:,}" for name, each in sent.field_bytes.items()}
        total = f"{int(n.mean()):,}" if n.min() == n.max() else f"{n.min():,} - {n.max():,}"
        if int(n.max()) * (m - added) < together:  # with bends that nobody has, and are not kept
            every += ", with bends of every column that may act in a curve"
            sizes, total = dict.fromkeys(sizes, ""), f"{together // (m - added):,}"
        elif not together and fitted.settings.get("curves"):  # of a model that was read
            every += ", bends of columns that act in lines not counted"
        rows = [(k.replace("_", " "), Uploads.parts()[k].tells, v) for k, v in sizes.items()]
        rows.append(("in all", every, total))
        tables.append(Table(("sent", "what it tells", "bytes"), rows, (1,), len(rows) - 1))
    if evidence.bytes_up is not None and evidence.bytes_down is not None:
        up, down = (in_bytes(n / (m - added)) for n in (evidence.bytes_up, evidence.bytes_down))
        words.append(
            f"One round: on average each user would send {up} and receive {down}. What it receives "
            f"names no other user.{_came_later(fitted)}"
        )
    held = evidence.comparison is not None and evidence.comparison.held is not None
    everybody = m == len(fitted.users.users)
    whose = "every user's" if everybody else f"{len(fitted.users.users):,} users'"
    one, several = ("model", "group") if everybody else ("models", "groups")
    what = f"{one}, {several} and held-out targets" if held else f"{one} and {several}"
    whole = f"This page holds {whose} {what}"
    if anonymous:
        whole = f"Users have numbers in place of their names; {whose} {what} are still here"
    words.append(f"{whole}: show it to those who may see these.")
    if images is not None and images.users and fitted.risk.loss.classification:
        words[-1] += " A user's pictures are its class means: of a class with one row, that row."
    if not anonymous:
        words[-1] += " odcl report RUN --anonymous makes one without names."
    return Section("privacy", title, words, tables)


def _came_later(fitted: Fitted) -> str:
    """What users cost who were added after the round, such as by ``odcl assign --add``."""
    if not fitted.added:
        return ""
    who, sent = f" {count(fitted.added, 'user')} came after the round", ""
    if fitted.uploads is not None:
        own = in_bytes(float(fitted.uploads.n_bytes[-fitted.added :].mean()))
        sent = f" and would send {own} on average"
    return f"{who}{sent}; nobody else sends anything again."


def _provenance(fitted: Fitted, evidence: Evidence, anonymous: bool) -> Section:
    method = fitted.method.to_json(described=True)
    clusterer = method.pop("clusterer")
    settings = ", ".join(f"{k}={v}" for k, v in clusterer.items() if k != "name")
    table = evidence.table
    rows = [("odcl", evidence.version)]
    if not anonymous and table.get("name"):
        rows.append(("table", str(table["name"])))
    if not anonymous and table.get("sha256"):
        rows.append(("SHA-256 of the table", str(table["sha256"])))
    n_rows = int(group_sizes(fitted)[1].sum() if fitted.files else fitted.users.rows.sum())
    size = f"{count(fitted.n_users, 'user')}, {count(n_rows, 'row')}"
    rows.append(("size", f"{size}, {count(len(fitted.feature_names), 'feature')}"))
    if fitted.added or evidence.later:
        then = f"{count(fitted.n_users - fitted.added, 'user')}"
        then += f", {count(table['rows'], 'row')}" if "rows" in table else ""
        rows.append(("... at the fit", then))
    rows += [
        ("loss", f"{fitted.risk.loss.name}, l2 {fitted.risk.l2:g}"),
        ("method", f"{clusterer.get('name')}" + (f" ({settings})" if settings else "")),
        *((name.replace("_", " "), str(value)) for name, value in method.items()),
        *((k, str(v)) for k in ("curves", "periodic") if (v := fitted.settings.get(k)) is not None),
        ("seed", str(fitted.settings.get("random_state"))),
    ]
    if evidence.holdout:
        rows.append(("held out", evidence.holdout))
    lists = [*evidence.notices]
    code = " && ".join(map(shlex.join, [evidence.command, *evidence.later]))
    code *= bool(evidence.command)  # nothing gives a fit of Python's again
    words = [("How the groups were found: " if fitted.n_clusters > 1 else "") + fitted.reason]
    if code:
        words.append("The same again, bit for bit on the same machine:")
    return Section(
        "provenance", "Where it comes from", words, (Table(("", ""), rows, (1,)),), lists, code
    )


# -- pixels, where columns are an image ------------------------------------------------------------


LEAST_PIXELS = 49
MOST_PIXELS = 2_000_000  # of users' pictures, all together
MOST_CLASSES, MOST_GROUPS = 10, 8  # side by side, below each other
SMOOTH = 0.8  # differences of neighbours, in units of those of any two pixels


def user_images(fitted: Fitted, who: Ints, classes: Sequence[str]) -> PixelImages | None:
    """Class means of groups and users (of numbers: weights), where columns look like an image."""
    sent, names, scaling = fitted.uploads, fitted.feature_names, fitted.scaling
    if sent is None or len({re.sub(r"\d+", "", name) for name in names}) > 1:
        return None
    if len(names) != scaling.n_features or not re.search(r"\d$", names[0]):
        return None
    if sent.class_means is not None:
        rows, means = sent.told_rows[:, :MOST_CLASSES, None], sent.class_means[:, :MOST_CLASSES]
        groups = [fitted.users.group == g for g in range(fitted.n_clusters)]
        n = np.stack([rows[own].sum(axis=0) for own in groups])
        total = np.stack([(rows[own] * means[own]).sum(axis=0) for own in groups])
        theirs = np.where(n > 0, total / np.maximum(n, 1e-300), np.nan) * scaling.scale
        mine = np.where(rows > 0, means, np.nan)[who] * scaling.scale + scaling.shift
        theirs += scaling.shift
        seen, low, high, still = (
            theirs,
            *(float(f(theirs)) for f in (np.nanmin, np.nanmax, np.nanmin)),
        )
        about = f"The mean row of each class ({', '.join(classes[:MOST_CLASSES])})"
    elif sent.thin_factor is not None and sent.means is not None:
        p = len(scaling.used)
        seen = (sent.means[:, :p].mean(axis=0) * scaling.scale + scaling.shift)[None, None]
        theirs, mine = fitted.centers[:, None, :p], fitted.users.model[who, None, :p]
        high, still = float(np.abs(theirs).max()), 0.0
        low, about = -high, "Weights of the columns, dark below zero and bright above"
    else:
        return None

    def whole(values: Floats, fill: float) -> Floats:
        """All columns, those that never vary among them."""
        every = np.full((*values.shape[:-1], scaling.n_features), fill)
        every[..., scaling.used] = values
        for column, twin in scaling.copies:  # such as channels of grey
            every[..., column] = every[..., twin]
        return every

    shape = _shape(whole(seen, float(np.nanmin(seen))))
    if shape is None:
        return None

    def drawn(values: Floats) -> list[str]:
        shade = 255 * np.clip((whole(values, still) - low) / max(high - low, 1e-300), 0, 1)
        return [_strip(one, shape) for one in np.nan_to_num(shade, nan=128).astype(np.uint8)]

    return PixelImages(
        drawn(theirs[:MOST_GROUPS]),
        drawn(mine) if mine.size <= MOST_PIXELS else [],
        f"{about}, as a picture of its columns.",
    )


def _shape(values: Floats) -> tuple[int, int, bool] | None:
    """Side, channels, and whether channels come one after the other; None: not an image."""
    n = values.shape[-1]
    channels = 1 if math.isqrt(n) ** 2 == n else 3
    side = math.isqrt(n // channels)
    if n < LEAST_PIXELS * channels or channels * side**2 != n:
        return None
    flat = values.reshape(-1, n)[np.isfinite(values).reshape(-1, n).all(axis=1)]

    def rough(images: Floats) -> float:
        steps = [np.nanmean(np.diff(images, axis=axis) ** 2) for axis in (1, 2)]
        return float(np.mean(steps) / max(2 * images.var(axis=(1, 2)).mean(), 1e-300))

    planes = rough(flat.reshape(-1, channels, side, side).reshape(-1, side, side))
    mixed = rough(flat.reshape(-1, side, side, channels))
    return (side, channels, planes <= mixed) if min(planes, mixed) < SMOOTH else None


def _strip(images: Array, shape: tuple[int, int, bool]) -> str:
    """PixelImages (n, pixels) side by side, as the address of a PNG."""
    side, channels, planes = shape
    if planes:
        images = images.reshape(len(images), channels, -1).swapaxes(1, 2)
    square = images.reshape(len(images), side, side, channels)
    room = np.pad(square, ((0, 0), (0, 0), (0, 1), (0, 0)), constant_values=255)
    row = np.concatenate(list(room), axis=1)[:, :-1]
    lines = b"".join(b"\0" + line.tobytes() for line in row)
    head = struct.pack(">2I5B", row.shape[1], side, 8, 0 if channels == 1 else 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")]
    made = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )
    return "data:image/png;base64," + base64.b64encode(b"\x89PNG\r\n\x1a\n" + made).decode()


# -- what columns do to predictions ----------------------------------------------------------------


MOST_SHARES = 12


def share_facts(fitted: Fitted) -> list[tuple[str, float]]:
    """Shares of the predictions' variance, the largest first; empty: not known."""
    words = {GROUPS: "what sets groups apart", USERS: "users' own differences"}
    found = importance(fitted) or {}
    shares = [(words.get(name, name), share) for name, share in found.items() if share]
    return sorted(shares, key=lambda one: -one[1])[:MOST_SHARES]
