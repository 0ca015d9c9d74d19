"""At a site: its table as the card reads it, which rows may enter its upload, and that file.

A private upload is noted in a ledger that stays at the site.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Array, Bools, Floats, Ints
from odcl.data.columns import keys, kind_of
from odcl.data.federation import Federation
from odcl.data.roles import check_columns
from odcl.data.schema import Encoded, TableSchema
from odcl.data.source import read_table
from odcl.data.tables import as_table
from odcl.declared import Count, Label, to_json
from odcl.engines.files.envelope import envelope_bytes, now, write_envelope
from odcl.engines.files.keys import SigningKey, check_site
from odcl.engines.files.task import Task
from odcl.engines.ledger import SiteLedger, Spent, rows_digest
from odcl.errors import InputError, Setting, count, ended
from odcl.exchange.upload import Uploads
from odcl.files import locked

# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SiteTable:
    """A site's rows, user by user, in the units that models are fitted in."""

    task: Task
    schema: TableSchema
    rows: Federation  # of all users, scaled, targets encoded
    cells: dict[str, Ints]  # category -> position of each row's level, in the order of ``rows``
    counts: Encoded  # without rows: how many were left out, filled in, or hold an unknown level

    @property
    def has_users(self) -> bool:
        """Does a column name the users? Otherwise the site is one."""
        return bool(self.schema.user)


def read_site(task: Task, data: Any, user: str | None = None) -> SiteTable:
    """A site's table, a path or a frame; ``user`` names the column of users, if there are several.

    Whatever does not fit the card is an InputError that names column and row.
    """
    try:
        return _read(task, data, user)
    except InputError as error:
        raise _by_the_card(error) from None


def _by_the_card(error: InputError) -> InputError:
    """The error without settings to try: a site has none of its own, they are on the card."""
    settings = {part.name for part in error.args if isinstance(part, Setting)}
    if not settings:
        return error
    how = " (`other = true` at this column)" if "unseen" in settings else ""
    return InputError(
        f"{ended(error.seen)} Correct the table, or agree on a card that allows for it{how}."
    )


def _read(task: Task, data: Any, user: str | None) -> SiteTable:
    levels = {one.name: one.levels for one in task.features if one.levels is not None}
    is_path = isinstance(data, str | os.PathLike)
    text = tuple(filter(None, (user, *levels)))
    table = read_table(data, text=text) if is_path else as_table(data)
    if user is not None:
        check_columns([user], table.column_names)
    kind = "int" if user is None else kind_of(keys(table, user).values)
    schema = task.schema(user or "", kind)
    encoded = schema.encode(table)
    raw = encoded.federation()
    cells = _cells(task, raw.X)
    federation = raw.with_X(task.scaling.apply(raw.X)).with_y(raw.y.astype(np.float64))
    return SiteTable(task, schema, federation, cells, encoded.counts())


def _cells(task: Task, X: Array) -> dict[str, Ints]:
    """The level of each category in each row, from its columns of 0 and 1."""
    found, at = {}, 0
    for one in task.features:
        if one.levels is not None:
            hot = X[:, at : at + one.width]
            found[one.name] = np.where(hot.any(axis=1), hot.argmax(axis=1) + 1, 0)
        at += one.width
    return found


FAR, NARROW, WIDE = 8.0, 0.05, 20.0  # in units of the card's scales


def range_notes(site: SiteTable) -> list[str]:
    """Where rows lie far outside what the card's shifts, scales and range lead one to expect.

    A number without them can lie anywhere, unless it bends or users send models.
    """
    task, told, found = site.task, [], list[tuple[str, Floats, str]]()
    models = not task.resolved.clusterer.uses_terms
    bent = {curve.name for curve in task.risk.curves if curve.period is None}
    for one in task.features:
        if one.levels is not None or (one.is_bare and not models and one.name not in bent):
            continue
        usual = f"(shift {one.shift:g}, scale {one.scale:g} on the card)"
        found.append((one.name, site.rows.X[:, task.columns.index(one.name)], usual))
    if task.method.privacy is not None and task.method.privacy.target_range is not None:
        low, high = task.method.privacy.target_range  # in the units of a feature of this range
        shift, scale = (low + high) / 2, (high - low) / 4
        usual = f"(shift {shift:g}, scale {scale:g} by target_range on the card)"
        found.append((task.target, (site.rows.y - shift) / scale, usual))
    for name, z, usual in found:
        spread = float(z.std())
        if np.median(np.abs(z)) > FAR:
            told.append(
                f"{name}: half of the rows lie more than {FAR:g} scales from the shift "
                f"{usual}: another unit?"
            )
        elif 0 < spread < NARROW or spread > WIDE:
            told.append(f"{name}: its spread is {spread:.2g} scales {usual}: another unit?")
    return told


# -- what may leave --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Withheld:
    """What an upload says of it: which levels and classes, and how many users; no counts."""

    levels: tuple[Label, ...] = ()
    classes: tuple[Label, ...] = ()
    users: Count = 0


@dataclass(frozen=True, eq=False)
class Released:
    """The rows that a site's upload is made from, and what is withheld."""

    rows: Federation
    users: Ints  # positions of the users who send something among all of the site's
    levels: tuple[str, ...] = ()  # levels that some user saw too few times
    classes: tuple[str, ...] = ()
    withheld_rows: int = 0  # of users who do send something
    few: dict[str, int] = field(default_factory=dict)  # why users send nothing -> their number

    @property
    def withheld(self) -> Withheld:
        return Withheld(self.levels, self.classes, sum(self.few.values()))

    def sentences(self, cell: int) -> list[str]:
        """What people at the site are told."""
        told = []
        if self.levels:
            told.append(
                f"withheld: rows of {', '.join(self.levels)}, seen fewer than {cell} times at a "
                f"user ({self.withheld_rows} rows do not enter the upload)"
            )
        if self.classes:
            told.append(
                f"class {', '.join(self.classes)} is seen fewer than {cell} times at a user: such "
                "users send nothing"
            )
        for why, n in self.few.items():
            told.append(f"{'1 user sends' if n == 1 else f'{n} users send'} nothing: {why}")
        return told


def release(site: SiteTable) -> Released:
    """The rows that enter the upload, by the card's limits.

    Rows of a level that their user saw fewer than ``smallest_cell`` times are left out. Leaving out
    the rows of a rare *class* would make it look rarer still, so such a user sends nothing.
    """
    task, rows = site.task, site.rows
    kept, levels = _without_rare_levels(site)
    why = np.full(rows.n_users, "", dtype=object)
    counts = np.bincount(rows.row_user[kept], minlength=rows.n_users)
    rare_classes: list[str] = []
    if task.classes is not None:
        table = _counts(rows, rows.y.astype(np.intp), kept, len(task.classes))
        rare = (table > 0) & (table < task.smallest_cell)
        rare_classes = [str(task.classes[j]) for j in np.flatnonzero(rare.any(axis=0))]
        why[rare.any(axis=1)] = "a class with too few rows"
    why[counts < task.minimum_rows] = f"fewer than {task.minimum_rows} rows"
    why[counts == 0] = "no rows are left"
    sends = why == ""
    kept &= sends[rows.row_user]
    few = Counter(why[~sends].tolist())
    withheld = int((counts < rows.n_rows)[sends].any() and (rows.n_rows - counts)[sends].sum())
    left = rows.select_rows(kept) if kept.any() else rows.take(np.zeros(0, dtype=np.intp))
    users = np.flatnonzero(sends)
    return Released(left, users, tuple(levels), tuple(rare_classes), withheld, dict(few))


def _without_rare_levels(site: SiteTable) -> tuple[Bools, list[str]]:
    """Rows whose levels are not rare at their user; leaving some out may make others rare."""
    task, rows = site.task, site.rows
    kept, named = np.ones(len(rows.y), dtype=bool), dict[str, None]()
    levels = {one.name: one.levels for one in task.features if one.levels is not None}
    while True:
        before = int(kept.sum())
        for name, level in site.cells.items():
            table = _counts(rows, level, kept, len(levels[name]))
            rare = (table > 0) & (table < task.smallest_cell)
            kept &= ~rare[rows.row_user, level]
            named |= dict.fromkeys(
                f"{name}={levels[name][j]}" for j in np.flatnonzero(rare.any(axis=0))
            )
        if int(kept.sum()) == before:
            return kept, list(named)


def _counts(rows: Federation, codes: Ints, kept: Bools, n_codes: int) -> Ints:
    """Rows of each user in each cell, (n_users, n_codes)."""
    cells = rows.row_user[kept] * n_codes + codes[kept]
    return np.bincount(cells, minlength=rows.n_users * n_codes).reshape(rows.n_users, n_codes)


# -- the upload ------------------------------------------------------------------------------------

ENDING = ".upload"


@dataclass(frozen=True)
class UploadWords:
    """What an upload says beside its numbers."""

    users: Count
    withheld: Withheld


@dataclass(frozen=True, eq=False)
class SiteUpload:
    """What a site sends: the bytes of its file, and what they say."""

    task: Task
    site: str
    content: bytes
    uploads: Uploads
    table: SiteTable
    released: Released
    kept: bool = False  # is it the private upload that was made of these rows before?

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all."""
        write_envelope(path, self.content)


def fit_site(
    task: Task | str | os.PathLike[str],
    data: Any,
    *,
    site: str,
    user: str | None = None,
    key: SigningKey | str | os.PathLike[str] | None = None,
    created: str | None = None,
    ledger: str | os.PathLike[str] | None = None,
    again: bool = False,
    anyway: bool = False,
    late: bool = False,
) -> SiteUpload:
    """Fit a site's users on its own rows (Algorithm 1, step 1) and put their uploads into a file.

    ``task`` is the task or its card, ``data`` the site's table, a path or a frame; ``user`` names
    the column of users if the site holds several; ``key`` is the site's private key, where the
    card asks for signatures. ``created`` is the time, now unless given.

    A private upload is noted in the ``ledger``, a file that stays at the site, and kept there: the
    same card and rows give back the same file, others are refused unless they are to spend
    ``again``. Where most users have too few rows for it to pay, none is made, unless ``anyway``.
    Without a ledger, what is spent is not added up, and nothing is refused.

    A site that comes ``late``, after a private round, sends nothing of its rows: its download holds
    the groups, and its users are placed at home.
    """
    task = Task.of(task)
    key = task.own_key(check_site(site), key)
    table = read_site(task, data, user)
    released = release(table)
    if late:
        few = {"the site comes after the round": table.rows.n_users}
        none = np.zeros(0, dtype=np.intp)
        released = Released(table.rows.take(none), none, few=few)
    time = created or now()
    privacy = task.method.privacy
    if privacy is None or ledger is None or late:
        return _site_upload(table, released, site, key, time)
    place = Path(ledger)
    with locked(place):
        before = SiteLedger.read(place)
        kept = before.kept(task.digest, rows := rows_digest(table.rows))
        if kept is not None:
            from odcl.engines.files.collect import open_upload

            uploads = open_upload(task, kept.content).uploads
            return SiteUpload(task, site, kept.content, uploads, table, released, kept=True)
        if not again:
            before.refuse_again(privacy, place)
        if not anyway:
            _refuse_waste(task, released.rows.n_rows)
        sent = _site_upload(table, released, site, key, time)
        new = Spent(task.name, task.round, task.digest, rows, privacy, time)
        before.noting(new.sending(sent.content)).write(place)  # before anything leaves
    return sent


def waste_note(task: Task, rows: Ints) -> str:
    """Which users have too few ``rows`` for a private upload to pay; "": none."""
    privacy = task.method.privacy
    least = 0 if privacy is None else privacy.too_few(task.dim)
    few = int((rows < least).sum())
    if privacy is None or not few:
        return ""
    return (
        f"{count(few, 'user')} of {len(rows)} with fewer than {least:,} rows: sending them at "
        f"epsilon {privacy.epsilon:g} is likely to cost more than it gives"
    )


def _refuse_waste(task: Task, rows: Ints) -> None:
    """Refuse a private upload that is not likely to pay for most users, while nothing is spent."""
    assert task.method.privacy is not None
    if 2 * (rows < task.method.privacy.too_few(task.dim)).sum() > len(rows):
        raise InputError(
            f"{waste_note(task, rows)}. No upload was made, and nothing is spent. After the "
            "round, ",
            Setting("late", True),
            " gives these users the groups and sends nothing of their rows. To send all the same, "
            "say ",
            Setting("anyway", True),
            ".",
        )


def _site_upload(
    table: SiteTable, released: Released, site: str, key: SigningKey | None, time: str
) -> SiteUpload:
    task = table.task
    if len(released.users):
        uploads = task.agreed.fit(released.rows).uploads
    else:  # the site receives the groups all the same
        uploads = task.agreed.probe.take(np.zeros(0, dtype=np.intp))
    words = to_json(UploadWords(len(uploads), released.withheld))
    content = envelope_bytes(
        "upload", task.stamp, site, uploads.to_arrays(), words, created=time, key=key
    )
    return SiteUpload(task, site, content, uploads, table, released)
