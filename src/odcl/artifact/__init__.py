"""One folder for what is fitted, written whole and checked file by file when it is read.

write_artifact("run", Artifact("model", words={"model.json": {...}}, arrays={...}))
with open_artifact("run", kind="model") as stored:
    words = stored.words("model.json")
    arrays = stored.arrays("models.safetensors", {"theta": ArraySpec(("users", "dim"))})
"""

from __future__ import annotations

from odcl.artifact.arrays import WHOLE, ArraySpec
from odcl.artifact.folder import (
    Artifact,
    StoredArtifact,
    check_artifact_place,
    open_artifact,
    update_artifact,
    write_artifact,
)
from odcl.artifact.manifest import FORMAT, MANIFEST

__all__ = [
    "FORMAT",
    "MANIFEST",
    "WHOLE",
    "ArraySpec",
    "Artifact",
    "StoredArtifact",
    "check_artifact_place",
    "open_artifact",
    "update_artifact",
    "write_artifact",
]
