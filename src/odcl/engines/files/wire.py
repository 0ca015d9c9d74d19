"""Uploads as arrays of a file, and back: triangles in the card's precision, everything checked.

In float64 arrays travel as they are, bit for bit. Below that a symmetric matrix A travels as R with
R'R = A, and each column of a triangle in units of a power of two of its own, so that nothing
overflows and what arrives is positive semidefinite whatever was rounded off. The few numbers beside
the matrices stay float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from odcl._typing import Array, Floats
from odcl.artifact.arrays import ArraySpec, expect, is_count
from odcl.engines.files.envelope import Envelope, refusing
from odcl.engines.files.task import Task, probe
from odcl.exchange.upload import Uploads

MOST_ROWS = 10**12  # of a user
MOST_USERS = 10**7  # of a site
MOST_SIZE = 1e60  # of a number: its fourth power is still one
_UNITS = "_units"  # of a triangle's columns: exponents of two
# Eigenvalues that rounding makes of zero, as a share of the largest.
_ROUNDING = 1e-9
_MAY_BE_INFINITE = ("dispersion", "inverse_trace")


def to_wire(uploads: Uploads, dtype: str) -> dict[str, Array]:
    """The arrays of a file."""
    if dtype == "float64":
        return uploads.to_arrays()
    square = _matrices(uploads)
    nothing: dict[str, Any] = dict.fromkeys(square)
    plain = replace(uploads, **nothing).to_arrays()
    for name, matrix in square.items():
        R = matrix if Uploads.parts()[name].triangular else _root(matrix)
        units = np.frexp(np.abs(R).max(axis=-2))[1]
        rows, columns = np.triu_indices(R.shape[-1])
        scaled = np.ldexp(R, -units[..., None, :])
        plain[name] = scaled[..., rows, columns].astype(dtype)
        plain[name + _UNITS] = units.astype(np.int16)
    return plain


def _matrices(uploads: Uploads) -> dict[str, Floats]:
    parts = Uploads.parts()
    return {
        name: values
        for name, values in uploads.present.items()
        if parts[name].matrix and values.ndim == 1 + len(parts[name].shape)
    }


def _root(A: Floats) -> Floats:
    """R, upper triangular, with R'R = A for each matrix of a stack."""
    values, vectors = np.linalg.eigh(A)
    half = np.sqrt(np.maximum(values, 0.0))[..., None] * np.swapaxes(vectors, -1, -2)
    R: Floats = np.linalg.qr(half, mode="r")  # type: ignore[assignment]
    return R


def wire_specs(task: Task) -> dict[str, ArraySpec]:
    """What the arrays of an upload have to be."""
    arrays = to_wire(task.uploads_of(probe(task)), task.dtype)
    return {
        name: ArraySpec(
            ("users", *array.shape[1:]), (array.dtype.name,), finite=name not in _MAY_BE_INFINITE
        )
        for name, array in arrays.items()
    }


def from_wire(task: Task, file: Envelope, specs: Mapping[str, ArraySpec]) -> Uploads:
    """The uploads of a site's users, whose ids are (site, 0), (site, 1), ...

    ``specs`` are those of :func:`wire_specs`. What would spoil other sites' models is refused.
    """
    with refusing():
        n = file.words["users"]
        expect(is_count(n) and n <= MOST_USERS, f"it says that it has {n!r} users")
        arrays = file.arrays(specs, users=n)
        ids = np.empty(n, dtype=object)
        ids[:] = [(file.site, i) for i in range(n)]
        uploads = replace(_unpacked(ids, arrays), risk=task.risk)
        _check(uploads, task)
    return uploads


def _unpacked(ids: Array, arrays: Mapping[str, Array]) -> Uploads:
    plain = {}
    for name, array in arrays.items():
        if name.endswith(_UNITS):
            continue
        units = arrays.get(name + _UNITS)
        if units is not None:
            array = _unscaled(name, array.astype(np.float64), units)
        plain[name] = array
    return Uploads.from_arrays(ids, plain)


def _unscaled(name: str, scaled: Floats, units: Array) -> Floats:
    """A triangle in its own units, as :meth:`Uploads.to_arrays` would have given it."""
    expect(bool((np.abs(scaled) <= 1.0).all()), f"{name} is not in units of its columns")
    expect(bool((np.abs(units.astype(int)) <= 200).all()), f"{name} has units beyond numbers")
    dim = units.shape[-1]
    rows, columns = np.triu_indices(dim)
    R = np.ldexp(scaled, units.astype(int)[..., columns])
    if Uploads.parts()[name].triangular:
        return R
    full = np.zeros((*R.shape[:-1], dim, dim))
    full[..., rows, columns] = R
    return (np.swapaxes(full, -1, -2) @ full)[..., rows, columns]


def _check(uploads: Uploads, task: Task) -> None:
    """What no honest fit can have given."""
    n = uploads.n_samples
    expect(bool(np.isfinite(n).all()), "a user has a number of rows that is not finite")
    least = task.minimum_rows
    for bad in n[(n < least) | (n > MOST_ROWS) | (n != np.floor(n))].tolist():
        raise ValueError(f"a user has {bad:g} rows, and {least} to {MOST_ROWS:.0e} are possible")
    for name, values in uploads.present.items():
        size = np.abs(values[np.isfinite(values)])
        expect(bool((size < MOST_SIZE).all()), f"{name} holds numbers beyond {MOST_SIZE:g}")
        if name in _MAY_BE_INFINITE:
            expect(bool((values >= 0).all()), f"{name} is negative or no number")
    if len(uploads):
        uploads.check()
    for name, matrix in _matrices(uploads).items():
        if not Uploads.parts()[name].triangular:
            values = np.linalg.eigvalsh(matrix)
            definite = values[..., 0] >= -_ROUNDING * np.maximum(values[..., -1], 0.0)
            expect(bool(definite.all()), f"{name} is not positive semidefinite")
