"""Reports of the tutorials' fits, made by the build: ``{report} homes`` links to one of them."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from odcl.cli.main import run_command
from odcl.data.synthetic import store_tables
from odcl.data.tables import write_table

DOCS = Path(__file__).parents[1]
FOLDER = "reports"
FITS = {  # the same commands as on the pages
    "homes": ("county", "log_radon"),
    "stores": ("store", "sales"),
}


class Report(SphinxDirective):
    """A link to the page of a fit, with the text of the block."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in FITS:
            raise self.error(f"There is no fit {name!r}: {', '.join(FITS)}.")
        up = "../" * self.env.docname.count("/")
        link = nodes.reference("", " ".join(self.content), refuri=f"{up}{FOLDER}/{name}.html")
        return [nodes.paragraph("", "", link)]


def _write(app: Any) -> None:
    if app.builder.name != "html":
        return
    place = Path(app.outdir) / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    # The report holds its own command: it is given in a folder, as a reader would give it.
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        shutil.copy(DOCS / "tables" / "homes.csv", folder)
        write_table(Path("stores.csv"), store_tables(0)[0])
        for name, (user, target) in FITS.items():
            words = ["fit", f"{name}.csv", "--user", user, "--target", target, "--out", name]
            with redirect_stdout(StringIO()):
                if run_command([*words, "--quiet"]):
                    raise ExtensionError(f"The fit of {name} failed.")
            shutil.copy(Path(name) / "report.html", place / f"{name}.html")


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("report", Report)
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
