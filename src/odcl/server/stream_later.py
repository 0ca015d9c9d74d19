"""What users who come later need of clusters whose users' models came in chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Floats
from odcl.exchange.upload import Uploads
from odcl.method import Method
from odcl.server.assign import Groups, groups_of_uploads
from odcl.server.combine import ClusterSums, cluster_sums

if TYPE_CHECKING:
    from odcl.server.stream import Chunks, StreamedStep


@dataclass(frozen=True, eq=False)
class _Sums:
    """Users by cluster, and all of them as one."""

    clusters: ClusterSums
    everybody: ClusterSums

    def __add__(self, other: _Sums) -> _Sums:
        return _Sums(self.clusters + other.clusters, self.everybody + other.everybody)


def _sums(uploads: Uploads, step: StreamedStep, how: str) -> _Sums:
    labels, alike = step.places.place(uploads).labels, np.zeros(len(uploads), dtype=np.intp)
    return _Sums(
        cluster_sums(uploads, labels, how, step.n_clusters), cluster_sums(uploads, alike, how, 1)
    )


def later_groups(
    chunks: Chunks, step: StreamedStep, some: Uploads, method: Method
) -> tuple[Groups, Floats]:
    """The clusters of all users, and one model for everybody, (dim,): a pass over the uploads.

    The noise is that of ``some`` users. With ``precision`` and squared loss the one model is the
    ridge regression on all rows of users who sent their curvature.
    """
    from odcl.server.stream import added

    sums: _Sums = added(chunks, partial(_sums, step=step, how=method.combine))
    found = groups_of_uploads(some, step.step(some), method)
    pull = np.ones(step.n_clusters)
    if sums.clusters.precision is not None:
        pull = 1.0 / np.maximum(sums.clusters.precision.members, 1.0)
    members, samples = np.maximum(step.sizes, 1), np.maximum(step.rows, 1.0)
    found = replace(found, members=members, samples=samples, pull=pull)
    return found, sums.everybody.centers[0]
