"""Arrays as Flower's records, and back: types, shapes and sizes are checked before memory is taken.

Records are plain: any Flower tool can look into them.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from odcl._typing import Array
from odcl.artifact.arrays import ArraySpec, check_contents, check_finite, expect

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
_NUMPY = "numpy.ndarray"


def array_record(arrays: Mapping[str, Array]) -> ArrayRecord:
    """Arrays under their names."""
    return ArrayRecord({name: FlowerArray(np.asarray(array)) for name, array in arrays.items()})


def content(
    arrays: Mapping[str, Array] | None = None,
    config: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float] | None = None,
) -> RecordDict:
    """The records of a message."""
    found = RecordDict()
    if arrays is not None:
        found[ARRAYS] = array_record(arrays)
    if config is not None:
        found[CONFIG] = ConfigRecord(dict(config))
    if metrics is not None:
        found[METRICS] = MetricRecord(dict(metrics))
    return found


def config_of(message: Message) -> Mapping[str, Any]:
    """The words of a message."""
    found = message.content.config_records.get(CONFIG)
    expect(found is not None, f"it has no ConfigRecord {CONFIG!r}")
    return found


def metrics_of(message: Message) -> Mapping[str, Any]:
    """The metrics of a message; none where there are none."""
    return message.content.metric_records.get(METRICS, {})


def arrays_of(message: Message, specs: Mapping[str, ArraySpec], **sizes: int) -> dict[str, Array]:
    """The arrays of a message, which are just those declared."""
    record = message.content.array_records.get(ARRAYS)
    expect(record is not None, f"it has no ArrayRecord {ARRAYS!r}")
    contents = {str(name): (str(one.dtype), tuple(one.shape)) for name, one in record.items()}
    check_contents(contents, specs, sizes)
    arrays = {name: _decoded(name, record[name]) for name in contents}
    check_finite(arrays, specs)
    return arrays


def _decoded(name: str, one: FlowerArray) -> Array:
    """The numbers of an array, whose bytes must be those of its type and shape."""
    expect(one.stype == _NUMPY, f"{name} is serialized as {one.stype!r}")
    stream = io.BytesIO(one.data)
    version = np.lib.format.read_magic(stream)
    expect(version == (1, 0), f"{name} is no plain array")
    shape, by_columns, dtype = np.lib.format.read_array_header_1_0(stream)
    same = shape == tuple(one.shape) and dtype.name == one.dtype and not dtype.hasobject
    expect(same, f"{name} holds another array than it says")
    numbers = one.data[stream.tell() :]
    expect(
        len(numbers) == math.prod(shape) * dtype.itemsize, f"{name} has other bytes than it says"
    )
    flat = np.frombuffer(numbers, dtype=dtype)
    array = flat.reshape(shape[::-1]).T if by_columns else flat.reshape(shape)
    return np.require(array, dtype=dtype.newbyteorder("="), requirements=["C", "A"])
