"""The users' uploads in a run's folder, so that the run can be diagnosed without its table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from odcl._typing import Array, Floats, Ints
from odcl.exchange.upload import Uploads
from odcl.server.step import ServerStep

FILE = "uploads.safetensors"
MOST_BYTES = 2**28  # larger uploads are not kept: a run should stay easy to copy
_OPTIONAL = ("curvature", "dispersion", "noise", "l2")


@dataclass(frozen=True, eq=False)
class Kept:
    """What a run keeps of its one round: the uploads, and what the server made of them."""

    uploads: Uploads
    step: ServerStep
    combine: str


def write_uploads(folder: Path, result: Any) -> bool:
    """Write the uploads of a fit into an existing folder. False: they are too large to keep."""
    from safetensors.numpy import save_file

    given, step = result.local.uploads(), result.step
    arrays: dict[str, Array] = {
        "theta": given.theta,
        "n_samples": given.n_samples,
        "labels": np.asarray(step.labels, dtype=np.int64),
        "centers": step.centers,
        "models": step.models,
    }
    for name in _OPTIONAL:
        value = getattr(given, name)
        if value is not None:
            arrays[name] = value
    if given.full:
        arrays["curvature"] = _triangle(arrays["curvature"])
    if sum(a.nbytes for a in arrays.values()) > MOST_BYTES:
        return False
    words = {
        "has_dispersion": given.has_dispersion,
        "curvature_varies": given.curvature_varies,
        "full": given.full,
        "rule": step.rule,
        "tau2": None if step.tau2 is None else float(step.tau2),
        "combine": str(result.settings["combine"]),
    }
    kept = {name: np.ascontiguousarray(a) for name, a in arrays.items()}
    path = folder / FILE
    path.touch()  # the mode that a new file has here
    mode = path.stat().st_mode
    # One entry: several would stand in the file in an order that changes from run to run.
    save_file(kept, path, metadata={"words": json.dumps(words)})
    path.chmod(mode)
    return True


def read_uploads(folder: Path, users: Array) -> Kept:
    """The uploads of a run whose users, those added later included, are ``users``."""
    from safetensors import SafetensorError, safe_open

    path = folder / FILE
    if not path.is_file():
        raise ValueError(
            f"{folder} keeps no uploads ({FILE}): an older odcl wrote it, or they were larger than "
            f"{MOST_BYTES >> 20} MB. Say `odcl diagnose {folder} TABLE` with the table it was "
            "fitted on, or fit it again."
        )
    try:
        with safe_open(path, framework="numpy") as stored:
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            words = json.loads((stored.metadata() or {})["words"])
        return _kept(arrays, words, users)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(
            f"{path} is damaged or was changed ({error}): say `odcl diagnose {folder} TABLE`, or "
            "fit or copy the run again."
        ) from None


def _kept(arrays: dict[str, Array], words: dict[str, Any], users: Array) -> Kept:
    theta, labels, centers = arrays["theta"], arrays["labels"].astype(np.intp), arrays["centers"]
    (m, dim), k = theta.shape, len(centers)
    full = bool(words["full"])
    wanted: dict[str, tuple[tuple[int, ...], ...]] = {
        "n_samples": ((m,),),
        "labels": ((m,),),
        "centers": ((k, dim),),
        "models": ((m, dim),),
        "dispersion": ((m,),),
        "noise": ((m,),),
        "l2": ((dim,),),
        "curvature": ((m, dim * (dim + 1) // 2),) if full else ((m, dim),),
    }
    for name, shapes in wanted.items():
        if name in arrays and arrays[name].shape not in shapes:
            raise ValueError(f"{name} has shape {arrays[name].shape}")
    if len(users) < m or not np.array_equal(np.unique(labels), np.arange(k)):
        raise ValueError("users, groups and models do not fit together")
    more: dict[str, Any] = {name: arrays.get(name) for name in _OPTIONAL}
    if full:
        more["curvature"] = _square(more["curvature"], dim)
    uploads = Uploads(
        users[:m],
        theta,
        arrays["n_samples"],
        **more,
        has_dispersion=bool(words["has_dispersion"]),
        curvature_varies=bool(words["curvature_varies"]),
    )
    uploads.check()
    tau2 = None if words["tau2"] is None else float(words["tau2"])
    rule, combine = str(words["rule"]), str(words["combine"])
    step = ServerStep(uploads.users, labels, centers, arrays["models"], rule, "", "", tau2=tau2)
    return Kept(uploads, step, combine)


def _triangle(square: Floats) -> Floats:
    """Symmetric matrices (b, dim, dim) as their upper triangles, as they are sent."""
    rows, columns = np.triu_indices(square.shape[1])
    return np.asarray(square[:, rows, columns])


def _square(triangle: Floats, dim: int) -> Floats:
    rows, columns = np.triu_indices(dim)
    out = np.empty((len(triangle), dim, dim))
    out[:, rows, columns] = triangle
    out[:, columns, rows] = triangle
    return out


def n_added(labels: Ints, kept: Kept) -> int:
    """Users that came to the run after its fit, of whom it keeps no upload."""
    return len(labels) - kept.uploads.n_users
