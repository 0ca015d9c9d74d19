"""The unit of Huber's loss for a table in pieces: a median over all rows, exact, by counting.

What is to be ordered lies in files, one per bucket of users. Numbers are compared by their bits,
eleven at a time: a pass over the files counts how many begin with each pattern, and the next looks
only inside the pattern that holds the middle. So six passes give the median to the last digit, and
a file tells 2,048 counts at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.engines.dask.address import Address
from odcl.engines.dask.cluster import Cluster
from odcl.engines.dask.exchange import receive
from odcl.engines.partition.look import Job
from odcl.engines.partition.uploads import federation_of
from odcl.errors import InputError, Setting
from odcl.local.predict import come_to_scale, swollen_residuals

if TYPE_CHECKING:
    from odcl.data.federation import Federation
    from odcl.engines.dask.round import Sent
    from odcl.risk.loss import Loss

DIGIT = 11  # bits of a number that are looked at in a pass
_SIGN = np.uint64(1 << 63)


def huber_unit(sent: Sent, job: Job, work: Address, cluster: Cluster) -> float:
    """:func:`odcl.local.predict.residual_scale` of all rows that were sent, to the last digit."""
    targets = cluster.run(_targets, range(sent.n), sent, job, work)
    if not sum(n for _, n in targets):
        raise InputError(
            "Huber's loss takes its unit from users with more rows than parameters, and nobody has "
            f"so many ({job.dim} parameters): say loss=Huber(delta), with delta in the target's "
            "own units, or ",
            *(Setting("loss", "squared"), "."),
        )
    files = [file for file, n in targets if n]
    middle = median(files, cluster)
    size = median(files, cluster, partial(_distance, middle))
    if not size:
        size = -np.subtract(*_edges(files, cluster))

    def scale_with(loss: Loss) -> float:
        residuals = cluster.run(_residuals, range(sent.n), sent, job, work, loss)
        return median([file for file, n in residuals if n], cluster)

    return come_to_scale(scale_with, float(size))


def _able(bucket: int, sent: Sent, job: Job) -> Federation | None:
    """The users of a bucket who have more rows than parameters; None: nobody."""
    rows = receive(sent.rows, bucket)
    federation = None if rows is None else federation_of(rows, job)
    if federation is None:
        return None
    able = np.flatnonzero(federation.n_samples > job.dim)
    return federation.take(able) if len(able) else None


def _targets(bucket: int, sent: Sent, job: Job, work: Address) -> tuple[Address, int]:
    part = _able(bucket, sent, job)
    return _kept(None if part is None else part.y, work / f"targets-{bucket:05d}.npy")


def _residuals(bucket: int, sent: Sent, job: Job, work: Address, loss: Loss) -> tuple[Address, int]:
    part = _able(bucket, sent, job)
    found = None if part is None else swollen_residuals(part, job.risk.intercept, loss)
    return _kept(found, work / f"residuals-{bucket:05d}.npy")


def _kept(values: Array | None, file: Address) -> tuple[Address, int]:
    if values is None:
        return file, 0
    with file.writing() as stream:
        stream.write(np.ascontiguousarray(values, dtype="<f8").tobytes())
    return file, len(values)


def _read(file: Address) -> Floats:
    with file.open() as stream:
        return np.frombuffer(stream.read(), dtype="<f8")


def _distance(middle: float, values: Floats) -> Floats:
    return np.abs(values - middle)


def _edges(files: Sequence[Address], cluster: Cluster) -> tuple[float, float]:
    low, high = zip(*cluster.run(_edges_of, files), strict=True)
    return min(low), max(high)


def _edges_of(file: Address) -> tuple[float, float]:
    values = _read(file)
    return float(values.min()), float(values.max())


# -- the median ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Looked:
    """What is known of a number by its first bits."""

    rank: int  # among those that begin so, from 0
    prefix: int = 0
    bits: int = 0


def median(
    files: Sequence[Address], cluster: Cluster, of: Callable[[Floats], Floats] | None = None
) -> float:
    """The median of all numbers in some files, or of what a function makes of them."""
    n = sum(file.size() for file in files) // 8
    ranks = sorted({(n + 1) // 2 - 1, min(n // 2, n - 1)})
    values = [_number(_ranked(rank, files, cluster, of)) for rank in ranks]
    return 0.5 * (values[0] + values[-1])


def _ranked(
    rank: int,
    files: Sequence[Address],
    cluster: Cluster,
    of: Callable[[Floats], Floats] | None,
) -> int:
    """The number of this rank, from 0, as a key."""
    at = _Looked(rank)
    while at.bits < 64:
        width = min(DIGIT, 64 - at.bits)
        counts = np.sum(cluster.run(_counts, files, at, width, of), axis=0)
        below = np.concatenate([[0], np.cumsum(counts)])
        digit = int(np.searchsorted(below, at.rank, side="right")) - 1
        at = _Looked(at.rank - int(below[digit]), at.prefix << width | digit, at.bits + width)
    return at.prefix


def _counts(file: Address, at: _Looked, width: int, of: Callable[[Floats], Floats] | None) -> Ints:
    """How many of the numbers that begin with a prefix go on with each pattern of bits."""
    values = _read(file)
    keys = _keys(values if of is None else of(values))
    if at.bits:
        keys = keys[keys >> np.uint64(64 - at.bits) == np.uint64(at.prefix)]
    digits = keys >> np.uint64(64 - at.bits - width) & np.uint64((1 << width) - 1)
    return np.bincount(digits.astype(np.intp), minlength=1 << width)


def _keys(values: Floats) -> Array:
    """Whole numbers in the order of the values."""
    bits = (values + 0.0).view(np.uint64)  # -0 is 0
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def _number(key: int) -> float:
    bits = np.array([key], np.uint64)
    bits = np.where(bits & _SIGN, bits ^ _SIGN, ~bits)
    return float(bits.view(np.float64)[0])
