"""Users after the fit: where a new one belongs, and known ones with more rows.

Rows are scaled and targets encoded, as a user's own model sees them. Groups stay as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import owner_ids, positions
from odcl.errors import InputError, Setting, count, show
from odcl.exchange.upload import Uploads
from odcl.fitted.value import Fitted, UserColumns
from odcl.local.receive import Received
from odcl.server.assign import Assignment, assign_mixed, assign_rows, place_mixed, with_more_terms
from odcl.threads import one_thread
from odcl.wide.moments import WideGroups


def place_user(fitted: Fitted, rows: Floats, target: Floats) -> Assignment:
    """Which group a user with these rows belongs to, and its model."""
    with one_thread(rows.shape[1]):
        if fitted.mixture is not None:
            return assign_mixed(rows, target, fitted.risk, fitted.mixture, fitted.method)
        return assign_rows(rows, target, fitted.risk, fitted.newcomers.groups)


def add_users(fitted: Fitted, users: Any, found: Sequence[Assignment]) -> Fitted:
    """The fit with new users, where they were assigned."""
    if not fitted.has_users:
        raise ValueError(
            "This model was fitted without users, so there are no groups to join: fit with "
            "users=... first."
        )
    _refuse_beside_private(fitted)
    ids = owner_ids(users)
    if known := ids[fitted.knows(ids)].tolist():
        raise ValueError(
            f"{count(len(known), 'user')} of these (such as {show(known[0])}) known already: give "
            "new rows of known users to update_user (`odcl update`), or leave these users out."
        )
    columns = fitted.users.joined(_columns(fitted, ids, found))
    uploads = fitted.uploads
    if uploads is not None:
        uploads = replace(uploads.joined(*(one.upload for one in found)), users=columns.users)
    return replace(fitted, users=columns, uploads=uploads, added=fitted.added + len(ids))


def _refuse_beside_private(fitted: Fitted) -> None:
    """Refuse to keep what exact rows say in a run that holds private uploads alone."""
    if fitted.uploads is not None and fitted.uploads.private:
        raise InputError(
            "The users of this run sent private uploads, and rows given here would stand among "
            "theirs without noise: assign keeps nothing, and a new round takes rows."
        )


def _columns(fitted: Fitted, ids: Array, found: Sequence[Assignment]) -> UserColumns:
    """Assigned users as columns, one row each."""
    sure: dict[str, Floats] = {}
    if fitted.mixture is not None:
        each = [_sure(one.received) for one in found]
        sure = {name: np.concatenate([one[name] for one in each]) for name in each[0]}
    return UserColumns(
        ids,
        np.array([one.label for one in found]),
        np.array([one.probability for one in found]),
        np.array([int(one.upload.n_samples[0]) for one in found]),
        np.array([one.theta for one in found]),
        **sure,
    )


# -- more rows of known users ----------------------------------------------------------------------


def update_users(
    fitted: Fitted,
    given: Iterable[tuple[Any, Floats, Floats]],
    *,
    all_rows: bool = False,
    again: bool = False,
) -> Fitted:
    """The fit with more rows, (user, rows, target), of users that are known.

    With ``all_rows`` the rows are everything a user has. Rows that a user was given before, or has
    from the fit and no others since, would count twice: they are refused unless ``again``.
    """
    _refuse_beside_private(fitted)
    kept = {name: a.copy() for name, a in vars(fitted.users).items() if a is not None}
    new, uploads = UserColumns(**kept), dict[int, Uploads]()
    batches = set(fitted.batches)
    given = list(given)
    where = _positions(fitted, owner_ids([user for user, *_ in given]))
    for at, (user, rows, target) in zip(where.tolist(), given, strict=True):
        if all_rows:
            found = place_user(fitted, rows, target)
        elif isinstance(fitted.mixture, WideGroups):
            raise InputError(
                f"Models of {fitted.centers.shape[1]:,} parameters are fitted to rows, and the old "
                f"rows of user {show(user)} were not kept: give all its rows, old and new, and ",
                *("say ", Setting("all_rows", True), "."),
            )
        else:
            if fitted.uploads is None:
                raise InputError(
                    "The users' uploads were too large to keep, so the old rows cannot be added to "
                    "the new ones: give all rows of the user, and say ",
                    *(Setting("all_rows", True), "."),
                )
            old = uploads.get(at, fitted.uploads[at])
            digest = _digest(fitted, at, rows, target)
            if not again and (
                digest in batches or _has_just(fitted, old, int(new.rows[at]), rows, target)
            ):
                raise InputError(
                    f"User {show(user)} has had just these rows ({len(rows)}) before: they ",
                    *("would count twice. Leave them out, or say ", Setting("again", True)),
                    " if they are new and only look the same.",
                )
            found = _with_more(fitted, old, rows, target)
            batches.add(digest)
        uploads[at] = found.upload
        new.group[at], new.probability[at] = found.label, found.probability
        new.model[at] = found.theta
        new.rows[at] = len(rows) + (0 if all_rows else new.rows[at])
        for name, values in _sure(found.received).items():
            getattr(new, name)[at] = values[0]
    sent = fitted.uploads
    if sent is not None and uploads:
        first, *others = uploads.values()
        sent = sent.replaced(np.array(list(uploads)), first.joined(*others))
    return replace(fitted, users=new, uploads=sent, batches=frozenset(batches))


def _positions(fitted: Fitted, ids: Array) -> Ints:
    """Where users are that can be updated."""
    if away := ids[fitted.in_files(ids)].tolist():
        raise ValueError(
            f"{count(len(away), 'user')} of these (such as {show(away[0])}) cannot be updated: "
            "their models lie in files, as the table came in pieces, and these stay as they are. "
            "Fit again, with the new rows in the table, or in memory (--engine memory), where "
            "users can be updated."
        )
    at = positions(fitted.users.users, ids)
    if new := ids[at < 0].tolist():
        raise ValueError(
            f"{len(new)} of {count(len(ids), 'user')} not in the fit (such as {show(new[0])}): add "
            "new users with add_user (`odcl assign RUN TABLE --add`), and leave them out here."
        )
    return at


def _with_more(fitted: Fitted, old: Uploads, rows: Floats, target: Floats) -> Assignment:
    """Where a known user belongs with more rows than ``old`` stands for."""
    if fitted.mixture is None:
        raise InputError(
            f"User {show(old.users.tolist()[0])} sent a model, to which new rows cannot be added: "
            "give all its rows, old and new, and say ",
            *(Setting("all_rows", True), "."),
        )
    more = place_user(fitted, rows, target)
    return place_mixed(with_more_terms(old, more.upload), fitted.mixture)


def _sure(received: Received | None) -> dict[str, Floats]:
    """What is known of how sure models are."""
    if received is None:
        return {}
    each = {name: getattr(received, name) for name in ("covariance", "noise", "dof")}
    return {name: values for name, values in each.items() if values is not None}


def _digest(fitted: Fitted, at: int, rows: Floats, target: Floats) -> str:
    """Of a user's rows in any order; without the groups' models, its key, nobody can try any."""
    table = np.column_stack([rows, target]) + 0.0  # -0 is 0
    content = f"{at} ".encode() + table[np.lexsort(table.T)].tobytes()
    key = hashlib.sha256(fitted.centers.tobytes()).digest()  # updates leave them alone
    return hashlib.blake2b(content, key=key, digest_size=8).hexdigest()


def _has_just(fitted: Fitted, old: Uploads, n_rows: int, rows: Floats, target: Floats) -> bool:
    """Does the upload of a user stand for these rows and no others?"""
    seen = old.n_samples if old.observations is None else old.observations
    if not len(rows) == n_rows == seen[0]:
        return False
    kept, new = old.to_arrays(), place_user(fitted, rows, target).upload.to_arrays()
    names = kept.keys() & new.keys()
    if "gaussian_line_slope" in names:  # others were fitted beside bends that may be closed since
        names -= {"gaussian_curvature", "gaussian_slope", "gaussian_constant"}
    return all(np.allclose(kept[n], new[n], 1e-6, 1e-9) for n in names)
