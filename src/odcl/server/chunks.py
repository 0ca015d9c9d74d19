"""Uploads that come in chunks and are never held at once: one look at everybody, and tallies.

An engine gives :class:`Chunks`, which takes a function to every chunk and adds up what it returns.
Functions and their arguments can be pickled, and results are small: the engine carries, and what
happens is decided in the server's step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from operator import add
from typing import Any, Protocol

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.data.federation import id_keys, joined_ids
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.mixed.terms import DataTerms, merge
from odcl.server.columns import all_terms

CHUNK_USERS = 4_096  # of uploads that are in memory anyway
MIXED_SAMPLE = 2_000  # users on whose data terms mixed groups are found
MODEL_SAMPLE = 5_000  # users on whose models clusters are found; the largest sample drawn


class Chunks(Protocol):
    """Uploads in pieces, each user in one of them; pieces may be empty."""

    def added(self, function: Callable[[Uploads], Any]) -> Any:
        """The :func:`sum_of` what a function says of every chunk, always in the same order."""
        ...


@dataclass(frozen=True)
class UploadSource:
    """Chunks that are read one after another, and again at every pass."""

    read: Callable[[], Iterable[Uploads]]

    def added(self, function: Callable[[Uploads], Any]) -> Any:
        return sum_of(map(function, self.read()))


def in_chunks(uploads: Uploads, size: int = CHUNK_USERS) -> UploadSource:
    """Uploads that are in memory, piece by piece."""

    def read() -> Iterable[Uploads]:
        for start in range(0, len(uploads), size):
            yield uploads.part(start, start + size)

    return UploadSource(read)


def added(chunks: Chunks, function: Callable[[Uploads], Any]) -> Any:
    """The sum of what a function says of every chunk that is not empty; None if all are."""
    return chunks.added(partial(_unless_empty, function))


def sum_of(parts: Iterable[Any]) -> Any:
    """The sum of all that is not None; None if nothing is."""
    found = (one for one in parts if one is not None)
    first = next(found, None)
    return None if first is None else reduce(add, found, first)


def _unless_empty(function: Callable[[Uploads], Any], uploads: Uploads) -> Any:
    return function(uploads) if len(uploads) else None


def most_at_once(method: Method) -> int:
    """Largest number of users clustered directly; above it, a sample of this size."""
    return MIXED_SAMPLE if method.clusterer.uses_terms else MODEL_SAMPLE


# -- the first look ------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Survey:
    """What a look at everybody gives: how many there are, their sum, and a sample."""

    n_users: int
    speaking: int  # users whose rows are told of
    total: DataTerms | None  # squared loss: one term for all rows
    keys: Array  # the smallest of all users' keys, in their order
    sample: Uploads  # of the users with the smallest keys, in the order of these
    most: int  # users in the sample

    def __add__(self, other: Survey) -> Survey:
        total = None
        if self.total is not None and other.total is not None:
            both = ((getattr(t, n) for t in (self.total, other.total)) for n in _TERM)
            total = merge(DataTerms(*map(np.concatenate, map(tuple, both))))
        keys = np.sort(np.concatenate([self.keys, other.keys]))[:MODEL_SAMPLE]
        sample = _first(self.sample.joined(other.sample), self.most)
        n = self.n_users + other.n_users, self.speaking + other.speaking
        return Survey(*n, total, keys, sample, self.most)


_TERM = ("rows", "mean", "factor")


def surveyed(chunks: Chunks, most: Callable[[Survey], int]) -> Survey | None:
    """A look at everybody, with a sample of ``most`` users; None: there are none.

    Uploads of wide users are too large to carry more of them than are needed: a first look tells
    which these are, and a second fetches them.
    """
    looked: Survey | None = added(chunks, survey)
    if looked is None or not looked.sample.wide:
        return looked
    size = most(looked)
    limit = looked.keys[:size][-1]
    found: Survey = added(chunks, partial(survey, most=size, limit=limit))
    return found


def survey(uploads: Uploads, most: int | None = None, limit: int | None = None) -> Survey:
    """A look at a chunk; what would spoil other users' models is refused here.

    ``limit`` is the largest key of the ``most`` users in the sample, if it is known.
    """
    uploads.check()
    terms = all_terms(uploads)
    total = None if terms is None else merge(terms)
    if most is None:
        most = 1 if uploads.wide else MODEL_SAMPLE
    keys = id_keys(uploads.users)
    few = uploads if limit is None else uploads.take(np.flatnonzero(keys <= limit))
    n = len(uploads), int((uploads.seen > 0).sum())
    return Survey(*n, total, np.sort(keys)[:MODEL_SAMPLE], _first(few, most), most)


def _first(uploads: Uploads, most: int) -> Uploads:
    """Users with the smallest keys, in the order of these."""
    return uploads.take(np.argsort(id_keys(uploads.users), kind="stable")[:most])


# -- parties ---------------------------------------------------------------------------------------

# From a group of two parties either can work out what the other sent. So where parties are named, a
# group needs enough of them, and none may carry more than half of what is known of its center.
HALF = 0.5 * (1 + 1e-9)


@dataclass(frozen=True, eq=False)
class Parties:
    """Who stands behind each user, such as a hospital behind its wards."""

    users: Uploads  # in canonical order
    of: Ints  # (n_users,), numbers of the parties


def parties_behind(r: Floats, party: Ints, weight: Floats) -> Ints:
    """Distinct parties behind each group, (K,), from users' shares ``r`` (n_users, K).

    A party counts where it holds a user of some ``weight`` who is there more likely than not.
    """
    inside = np.zeros((int(party.max()) + 1, r.shape[1]), np.bool_)
    np.logical_or.at(inside, party, (r >= 0.5) & (weight > 0)[:, None])
    return inside.sum(axis=0)


# -- groups by their users -----------------------------------------------------------------------


class Labels(Protocol):
    """A rule that says which group each user belongs to, by its upload alone."""

    def labels(self, uploads: Uploads) -> Ints: ...


@dataclass(frozen=True, eq=False)
class Tally:
    """Groups by their users."""

    sizes: Ints  # (K,), users
    speaking: Ints  # (K,), users whose rows are told of
    rows: Floats  # (K,)
    first: Array  # the first user of each group that has any, in canonical order
    group: Ints  # (len(first),), and the group

    def __add__(self, other: Tally) -> Tally:
        first, group = _firsts(
            joined_ids(self.first, other.first), np.concatenate([self.group, other.group])
        )
        return Tally(
            self.sizes + other.sizes,
            self.speaking + other.speaking,
            self.rows + other.rows,
            first,
            group,
        )

    @property
    def order(self) -> Ints:
        """Groups by their first user; groups without users come last."""
        return np.array([*self.group, *np.setdiff1d(np.arange(len(self.sizes)), self.group)])


def tallied(chunks: Chunks, rule: Labels, n_groups: int) -> Tally:
    """Everybody's users, group by group."""
    found: Tally = added(chunks, partial(tally, rule=rule, n_groups=n_groups))
    return found


def tally(uploads: Uploads, rule: Labels, n_groups: int) -> Tally:
    """The users of a chunk, group by group."""
    labels = rule.labels(uploads)
    spoke = np.bincount(labels[uploads.seen > 0], minlength=n_groups)
    rows = np.bincount(labels, weights=uploads.n_samples, minlength=n_groups)
    sizes = np.bincount(labels, minlength=n_groups)
    return Tally(sizes, spoke, rows.astype(np.float64), *_firsts(uploads.users, labels))


def _firsts(users: Array, groups: Ints) -> tuple[Array, Ints]:
    """The first user of each group in canonical order, and the group, in that order."""
    if users.dtype.kind in "iU" and (users[:-1] <= users[1:]).all():
        order = np.arange(len(users))
    else:
        order = Uploads(users, np.ones(len(users))).canonical_order()
    at = np.sort(np.unique(groups[order], return_index=True)[1])
    return users[order[at]], groups[order[at]].astype(np.intp)
