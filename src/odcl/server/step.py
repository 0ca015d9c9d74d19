"""Step 2 of Algorithm 1, the one place where clustering and combining happen.

check -> canonical order -> cluster -> combine -> :class:`ServerStep`. Every engine calls it, with
all uploads at hand (:func:`server_step`) or with uploads that come in chunks (:func:`stream_step`).

Few users are all clustered. Of many, groups are found on a sample drawn by their ids, then passes
over everybody add up sums of size K dim^2: the cost per user is constant, and chunks may lie
anywhere. Partition and order of the users change nothing but the last digits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from odcl._typing import Array
from odcl.data.federation import group_rows
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.server.chunks import Chunks, Parties, Survey, in_chunks, most_at_once, surveyed
from odcl.server.result import ServerStep, StreamedStep
from odcl.threads import one_thread


def server_step(
    uploads: Uploads | Any,
    method: Method | None = None,
    *,
    seed: int = 0,
    parties: Array | None = None,
) -> ServerStep:
    """Cluster the uploads and combine each cluster (Algorithm 1, step 2).

    A pure function of the uploads, the method and the seed: shuffling the users changes nothing.
    ``uploads`` may be a plain matrix of models, as in the paper. ``parties`` (n_users,) names who
    stands behind each user: then the method's ``smallest_group`` counts distinct parties, and none
    may carry more than half of a group.
    """
    given = uploads if isinstance(uploads, Uploads) else Uploads.of(uploads)
    method = _resolved(method, given, given.n_users)
    order = given.canonical_order()  # each user once
    known = None
    if parties is not None:
        known = Parties(given.take(order), group_rows(parties)[1][order])
    most = most_at_once(method)
    if given.n_users > most and (parties is None or method.clusterer.uses_terms):
        chunks = in_chunks(given)
        found = surveyed(chunks, lambda _: most)
        assert found is not None
        return _step(found, method, seed, chunks, known).step(given)
    given.check()
    everyone = given.take(order) if known is None else known.users
    speaking = int((given.seen > 0).sum())
    looked = Survey(given.n_users, speaking, None, np.zeros(0), everyone, len(everyone))
    return _step(looked, method, seed, None, known).step(given)


def stream_step(chunks: Chunks, method: Method | None = None, *, seed: int = 0) -> StreamedStep:
    """:func:`server_step` for uploads that come in chunks and are never held at once.

    Up to a few thousand users it is that step itself. Above, groups are found on a sample, and all
    users take part in the passes that follow: the same whatever the chunks.
    """

    def most(seen: Survey) -> int:
        return most_at_once(_resolved(method, seen.sample, seen.n_users))

    looked = surveyed(chunks, most)
    if looked is None:
        raise ValueError("There are no uploads: a server step needs at least one user.")
    like = looked.sample
    resolved = _resolved(method, like, looked.n_users)
    if looked.n_users <= most_at_once(resolved):
        looked = replace(looked, sample=like.take(like.canonical_order()))
        return _step(looked, resolved, seed, None, None)
    return _step(looked, resolved, seed, chunks, None)


def _resolved(method: Method | None, like: Uploads, n_users: int) -> Method:
    method = Method() if method is None else method
    return method.resolved(like.risk if like.has_terms else None, like.dim, n_users)


def _step(
    looked: Survey, method: Method, seed: int, chunks: Chunks | None, parties: Parties | None
) -> StreamedStep:
    """Groups found on all users, who are then the sample, or on a sample of those in ``chunks``."""
    like, speaking, who = looked.sample, looked.speaking, "users"
    if parties is not None:
        said = parties.of[parties.users.seen > 0]
        speaking, who = len(set(said.tolist())), "parties"
    if 0 < speaking < method.smallest_group:
        raise ValueError(
            f"{speaking} {who} uploaded, and no group may have fewer than {method.smallest_group}: "
            f"wait for more {who}, or allow smaller groups (smallest_group)."
        )
    with one_thread(like.dim):
        if method.clusterer.uses_terms:
            few = like if chunks is None else like.part(0, most_at_once(method))
            if like.wide:
                from odcl.server.wide import wide_step as find
            else:
                from odcl.server.mixed import mixed_step as find
            found = find(replace(looked, sample=few), method, chunks, parties)
        else:
            from odcl.server.models import model_step

            like = like if chunks is None else like.take(like.canonical_order())
            party = None if parties is None else parties.of
            found = model_step(replace(looked, sample=like), method, seed, chunks, party)
    more, asked = "", dict(method.clusterer.params).get("n_groups", 0)
    if method.clusterer.uses_terms and found.found.n_clusters < asked:
        more = f" {asked} were asked for; the others would be empty."
    elif method.fallback and looked.n_users > 1:
        more = f" Groups are of the users' models, because {method.fallback}."
    return replace(found, found=replace(found.found, reason=found.found.reason + more))
