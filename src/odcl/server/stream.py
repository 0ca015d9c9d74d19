"""Step 2 of Algorithm 1 over uploads that come in chunks and are never held at once.

Found on a sample of users drawn by their ids, then passes over everybody that add up sums of size
K dim^2: the cost per user is constant, and chunks may lie anywhere. Partition and order of the
users change nothing but the last digits.

An engine gives :class:`Chunks`, whose ``map`` takes a function to every chunk and brings back what
it returns, in a fixed order. All functions and their arguments can be pickled, and results are
small: the engine carries, and what happens is decided here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial, reduce
from operator import add
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.clustering.labels import sum_by_cluster
from odcl.data.federation import id_keys, joined_ids, positions
from odcl.exchange.download import Downloads, Refit
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.mixed.search import SAMPLE
from odcl.mixed.terms import DataTerms, merge
from odcl.server.alternatives import Alternatives
from odcl.server.columns import all_terms
from odcl.server.step import MODELS, ServerStep, most_at_once, refuse_too_few, server_step

if TYPE_CHECKING:
    from odcl.mixed.posterior import Mixture

T = TypeVar("T")
CHUNK_USERS = 4_096  # of uploads that are in memory anyway


class Chunks(Protocol):
    """Uploads in pieces, each user in one of them; pieces may be empty."""

    def added(self, function: Callable[[Uploads], Any]) -> Any:
        """The :func:`sum_of` what a function says of every chunk, always in the same order."""
        ...


@dataclass(frozen=True)
class Source:
    """Chunks that are read one after another, and again at every pass."""

    read: Callable[[], Iterable[Uploads]]

    def map(self, function: Callable[[Uploads], T]) -> Iterable[T]:
        return map(function, self.read())

    def added(self, function: Callable[[Uploads], Any]) -> Any:
        return sum_of(self.map(function))


def in_chunks(uploads: Uploads, size: int = CHUNK_USERS) -> Source:
    """Uploads that are in memory, piece by piece."""

    def read() -> Iterable[Uploads]:
        for start in range(0, len(uploads), size):
            yield uploads.part(start, start + size)

    return Source(read)


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


# -- what a user's place is read off -------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Placed:
    """Where the users of a chunk belong."""

    labels: Ints  # (n_users,)
    probabilities: Floats | None = None  # (n_users,), of the own label
    dispersion: Floats | None = None  # (n_users,), the pooled noise scales
    others: Floats | None = None  # (n_users, dim), the cluster's model without the user itself


class Places(Protocol):
    """A rule that says of every user, by its upload alone, where it belongs."""

    def place(self, uploads: Uploads) -> Placed: ...


@dataclass(frozen=True, eq=False)
class KnownPlaces:
    """Users few enough to be known by name."""

    step: ServerStep

    def place(self, uploads: Uploads) -> Placed:
        one = self.step.take(positions(self.step.users, uploads.users))
        return Placed(one.labels, one.probabilities, one.dispersion, one.others)


@dataclass(frozen=True, eq=False)
class Tally:
    """Groups by their users."""

    sizes: Ints  # (K,), users
    speaking: Ints  # (K,), of whom these said something of their rows
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
        """Groups by their first user; a group that is nobody's comes last."""
        return np.array([*self.group, *np.setdiff1d(np.arange(len(self.sizes)), self.group)])


def tally(uploads: Uploads, places: Places, n_groups: int) -> Tally:
    """The users of a chunk, group by group."""
    labels = places.place(uploads).labels
    spoke = np.bincount(labels[uploads.seen > 0], minlength=n_groups)
    rows = sum_by_cluster(uploads.n_samples, labels, n_groups)
    sizes = np.bincount(labels, minlength=n_groups)
    return Tally(sizes, spoke, rows, *_firsts(uploads.users, labels))


def _firsts(users: Array, groups: Ints) -> tuple[Array, Ints]:
    """The first user of each group in canonical order, and the group, in that order."""
    if users.dtype.kind in "iU" and (users[:-1] <= users[1:]).all():
        order = np.arange(len(users))
    else:
        order = Uploads(users, np.ones(len(users))).canonical_order()
    at = np.sort(np.unique(groups[order], return_index=True)[1])
    return users[order[at]], groups[order[at]].astype(np.intp)


# -- what the step gives -------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StreamedStep:
    """What the server found; every user's own part is read off its upload by :meth:`place`."""

    n_users: int
    sizes: Ints  # (n_clusters,), users
    rows: Floats  # (n_clusters,), and their rows
    centers: Floats  # (n_clusters, dim)
    rule: str  # which rule decided on the clusters
    reason: str  # and why, in a sentence
    combined: str  # how clusters became models, in words
    places: Places  # where a user belongs
    tau2: float | None = None
    refit: Refit = None
    mixture: Mixture | None = None
    curbed: bool = False
    passes: int = 1  # over all users
    sampled: int | None = None  # users on whom groups were found; None: all
    weighed: Alternatives | None = None  # what else was looked at, with labels of ``weighed_by``
    weighed_by: Array | None = None  # ids of the users who were looked at

    @property
    def n_clusters(self) -> int:
        return len(self.centers)

    def alternatives(self, users: Array) -> Alternatives | None:
        """What was weighed, with labels of these users; -1: not looked at."""
        if self.weighed is None or self.weighed_by is None:
            return None
        at = positions(self.weighed_by, users)
        found = self.weighed.take(np.maximum(at, 0))
        return found.where(at >= 0)

    def fallen_back(self, why: str) -> StreamedStep:
        """The step with the reason why mixed groups were not found, if they were asked for."""
        told = f"{self.reason} Mixed groups gave way to it: {why}."
        return replace(self, reason=told) if why else self

    def place(self, uploads: Uploads) -> Downloads:
        """What the users of a chunk are sent: a pure function of their own uploads."""
        step = self.step(uploads)
        return replace(step.downloads, group_size=self.sizes[step.labels])

    def step(self, uploads: Uploads) -> ServerStep:
        """The server's step as the users of ``uploads`` see it."""
        parts = list(in_chunks(uploads).map(self.places.place))
        placed = Placed(*(_in_a_row([getattr(p, f.name) for p in parts]) for f in fields(Placed)))
        return ServerStep(
            uploads.users,
            placed.labels,
            self.centers,
            self.centers[placed.labels],
            self.rule,
            self.reason,
            self.combined,
            placed.probabilities,
            self.tau2,
            placed.dispersion,
            placed.others,
            self.refit,
            self.mixture,
            self.curbed,
        )


def _in_a_row(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.concatenate(parts)


# -- the step ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Survey:
    """What a first look at everybody gives: how many there are, their sum, and a sample."""

    n_users: int
    speaking: int  # users whose rows are told of
    total: DataTerms | None  # squared loss: one term for all rows
    keys: Array  # (n_sample,), of the users in the sample: the smallest of all
    sample: Uploads

    def __add__(self, other: Survey) -> Survey:
        total = None
        if self.total is not None and other.total is not None:
            both = ((getattr(t, n) for t in (self.total, other.total)) for n in _TERM)
            total = merge(DataTerms(*map(np.concatenate, map(tuple, both))))
        keys, sample = smallest(
            np.concatenate([self.keys, other.keys]), self.sample.joined(other.sample)
        )
        n = self.n_users + other.n_users, self.speaking + other.speaking
        return Survey(*n, total, keys, sample)


_TERM = ("rows", "mean", "factor")


def survey(uploads: Uploads) -> Survey:
    """A first look at a chunk; what would spoil other users' models is refused here."""
    uploads.check()
    terms = all_terms(uploads)
    keys, sample = smallest(id_keys(uploads.users), uploads)
    return Survey(
        len(uploads),
        int((uploads.seen > 0).sum()),
        None if terms is None else merge(terms),
        keys,
        sample,
    )


def smallest(keys: Array, uploads: Uploads) -> tuple[Array, Uploads]:
    """The sample: users with the smallest keys, in the order of these."""
    some = np.argpartition(keys, MODELS)[:MODELS] if len(keys) > MODELS else np.arange(len(keys))
    some = some[np.argsort(keys[some], kind="stable")]
    return keys[some], uploads.take(some)


def stream_step(chunks: Chunks, method: Method | None = None, *, seed: int = 0) -> StreamedStep:
    """:func:`~odcl.server.step.server_step` for uploads that come in chunks.

    Up to a few thousand users it is that step itself. Above, groups are found on a sample, and all
    users take part in the passes that follow: the same whatever the chunks.
    """
    method = Method() if method is None else method
    looked: Survey | None = added(chunks, survey)
    if looked is None:
        raise ValueError("There are no uploads: a server step needs at least one user.")
    like = looked.sample
    case = like.risk if like.has_terms else None, like.dim, looked.n_users
    why, method = method.falls_back(*case), method.resolved(*case)
    if looked.n_users <= most_at_once(method):
        return _known(server_step(like, method, seed=seed).fallen_back(why), like)
    refuse_too_few(looked.speaking, "users", method.smallest_group)
    if method.clusterer.uses_terms:
        from odcl.server.stream_mixed import stream_mixed

        few = replace(looked, sample=like.part(0, SAMPLE))
        step = stream_mixed(chunks, few, method)
    else:
        from odcl.server.stream_models import stream_models

        step = stream_models(chunks, looked, method, seed)
    return step.fallen_back(why)


def _known(step: ServerStep, uploads: Uploads) -> StreamedStep:
    return StreamedStep(
        len(step.users),
        np.bincount(step.labels, minlength=step.n_clusters),
        sum_by_cluster(uploads.n_samples, step.labels),
        step.centers,
        step.rule,
        step.reason,
        step.combined,
        KnownPlaces(step),
        step.tau2,
        step.refit,
        step.mixture,
        step.curbed,
        weighed=step.weighed,
        weighed_by=step.users,
    )
