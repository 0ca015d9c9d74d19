"""Federation by file: one file out, one file back, no server, no open port.

task = Task.read("task.toml")                                            # agreed by all, once
fit_site(task, "visits.csv", site="north").write("north.upload")         # at each site
combine_uploads(task, "uploads", out="round")                            # anywhere
model = receive(task, "north.upload", "north.download", "visits.csv").estimator()  # at each site

The files carry uploads and downloads and compute nothing: with the same scales, the models are
bit for bit what :func:`odcl.fit` gives. Names are loaded when they are first used: making keys
should not wait for numerics.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from odcl.engines.files.combine import CombinedRound as CombinedRound
    from odcl.engines.files.combine import LateSite as LateSite
    from odcl.engines.files.combine import assign as assign
    from odcl.engines.files.combine import combine_uploads as combine_uploads
    from odcl.engines.files.last_step import SiteModels as SiteModels
    from odcl.engines.files.last_step import receive as receive
    from odcl.engines.files.site import SiteUpload as SiteUpload
    from odcl.engines.files.site import fit_site as fit_site
    from odcl.engines.files.task import Feature as Feature
    from odcl.engines.files.task import Task as Task

_HOME = {
    "CombinedRound": "combine",
    "Feature": "task",
    "LateSite": "combine",
    "SiteModels": "last_step",
    "SiteUpload": "site",
    "Task": "task",
    "assign": "combine",
    "combine_uploads": "combine",
    "fit_site": "site",
    "receive": "last_step",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
