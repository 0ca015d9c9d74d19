"""Tables of the files' fields, read off the declarations that check them.

``{fields} Uploads`` or ``Downloads``: the messages between users and server. ``{shared-arrays}``:
what a download tells everybody. ``{artifact}``: the files and arrays of a model that the build fits
and saves. ``{card}``: a task card as the library writes it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

NUMBERS = {
    (): "1",
    ("dim",): "p",
    ("dim", "dim"): "p (p + 1) / 2",
    ("widths",): "4",
    ("widths", "dim"): "4 p",
    ("widths", "dim", "dim"): "4 p (p + 1) / 2",
    ("widths", "lines"): "4 l",
    ("widths", "lines", "lines"): "4 l (l + 1) / 2",
    ("columns",): "d",
    ("bins",): "11",
    ("width",): "d + 1",
    ("width", "width"): "(d + 1)(d + 2) / 2",
    ("classes",): "C",
    ("classes", "features"): "C d",
    ("draws", "features"): "s d",
    ("draws",): "s",
    ("rank", "width"): "r (d + 1)",
}

# What no declaration says: the arrays of a saved model. An array that is not here stops the build.
OF_A_MODEL = {
    "model": "each user's model, in standardised units",
    "group": "each user's group; -1: none of these",
    "rows": "how many rows each user has",
    "probability": "how surely each user is in its group",
    "users": "the ids, where they are whole numbers",
    "cluster_theta": "each group's model, in standardised units",
    "pooled_theta": "one model for all, for users whom nobody knows",
    "shift": "what is taken off each column",
    "scale": "by what each column is divided",
    "used": "which columns of the table are in the models",
    "members": "how many users each group has",
    "samples": "how many rows each group has",
    "covariance": "how surely each user's model is known: a triangle, row by row",
    "noise": "each user's noise",
    "dof": "how many degrees of freedom stand behind it",
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]], code: int = 1) -> nodes.table:
    """A table whose first ``code`` columns are names of things."""
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    top, body = nodes.thead(), nodes.tbody()
    top += _row(head, 0)
    body += [_row(row, code) for row in rows]
    group += [top, body]
    made = nodes.table(classes=["colwidths-auto"])
    made += group
    return made


def _row(cells: Sequence[str], code: int) -> nodes.row:
    row = nodes.row()
    for place, text in enumerate(cells):
        inside = nodes.literal("", text) if place < code and text else nodes.Text(text)
        row += nodes.entry("", nodes.paragraph("", "", inside))
    return row


class Fields(SphinxDirective):
    """The declared fields of a message."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        import odcl

        message = getattr(odcl, self.arguments[0])
        rows = [(name, NUMBERS[part.shape], part.tells) for name, part in message.parts().items()]
        return [table(("field", "numbers", "what it tells"), rows)]


class SharedArrays(SphinxDirective):
    """The arrays of mixed groups, which everybody is sent alike."""

    def run(self) -> list[nodes.Node]:
        from odcl.exchange.mixture import SPECS, TELLS

        rows = [
            (f"mixture.{name}", spec.dtypes[0], " x ".join(map(str, spec.shape)), TELLS[name])
            for name, spec in SPECS.items()
        ]
        return [table(("array", "type", "shape", "what it tells"), rows)]


@cache
def saved_model() -> tuple[tuple[str, str, str, str], ...]:
    """File, array, type and shape, as a model saved by the build has them."""
    import numpy as np
    from safetensors import safe_open

    from odcl import ODCLRegressor, linear_federation

    federation = linear_federation(12, 30, n_clusters=4, dim=2, n_active=2)
    model = ODCLRegressor().fit(federation.X, federation.y, users=federation.row_user)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        for file in sorted((Path(folder) / "model").glob("*.safetensors")):
            with safe_open(file, "np") as arrays:
                for name in arrays.keys():  # noqa: SIM118
                    array: Any = np.asarray(arrays.get_tensor(name))
                    found.append((file.name, name, array.dtype.name, _shape(array.shape)))
    return tuple(found)


def _shape(shape: tuple[int, ...]) -> str:
    words = {12: "users", 4: "groups"}  # of the federation above; others are sizes of models
    return " x ".join(words.get(n, "numbers") for n in shape) or "1"


class SavedModel(SphinxDirective):
    """The arrays of a saved model, file by file."""

    def run(self) -> list[nodes.Node]:
        from odcl.exchange.mixture import TELLS
        from odcl.exchange.upload import Uploads

        uploads = {name: part.tells for name, part in Uploads.parts().items()}
        rows = []
        for file, name, dtype, _ in saved_model():
            words = uploads if file.startswith("uploads") else {**TELLS, **OF_A_MODEL}
            if file.startswith("mixture"):
                words = {**OF_A_MODEL, **TELLS}
            if name not in words:
                raise self.error(f"Array {name} of {file} has no words in {__file__}.")
            rows.append((file, name, dtype, words[name]))
        return [table(("file", "array", "type", "what it holds"), rows, code=2)]


class Card(SphinxDirective):
    """A task card in its fixed layout."""

    def run(self) -> list[nodes.Node]:
        text = example_card()
        return [nodes.literal_block(text, text, language="toml")]


def example_card() -> str:
    from odcl import Risk
    from odcl.engines.files import Feature, Task

    features = (Feature("age", shift=50.0, scale=20.0), Feature("ward", ("a", "b", "c")))
    keys = {"coordinator": ("0" * 64,), "sites": {"north": ("1" * 64,)}}
    risk = Risk("logistic", 0.0, True)
    return Task("stay", features, "long", risk, ("no", "yes"), **keys).to_toml()


def setup(app: Any) -> dict[str, Any]:
    for name, directive in {
        "fields": Fields,
        "shared-arrays": SharedArrays,
        "saved-model": SavedModel,
        "card": Card,
    }.items():
        app.add_directive(name, directive)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
