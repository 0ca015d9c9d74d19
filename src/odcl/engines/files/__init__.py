"""Federation by file: one file out, one file back, no server, no open port.

task = Task.read("task.toml")                                            # agreed by all, once
fit_site(task, "visits.csv", site="north").write("north.upload")         # at each site
combine_uploads(task, "uploads", out="round")                            # anywhere
model = receive(task, "north.upload", "north.download", "visits.csv").estimator()  # at each site

The files carry uploads and downloads and compute nothing: the models are those of
:func:`odcl.fit`, bit for bit, with float64 and the same scales.
"""

from odcl.engines.files.combine import CombinedRound, combine_uploads
from odcl.engines.files.late import LateSite, assign
from odcl.engines.files.receive import SiteModels, receive
from odcl.engines.files.task import Feature, Task
from odcl.engines.files.upload import SiteUpload, fit_site

__all__ = [
    "CombinedRound",
    "Feature",
    "LateSite",
    "SiteModels",
    "SiteUpload",
    "Task",
    "assign",
    "combine_uploads",
    "fit_site",
    "receive",
]
