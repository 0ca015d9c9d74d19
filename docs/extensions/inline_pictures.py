"""Pictures drawn by the build, as SVG inside the page: they follow light and dark.

    ```{picture} stores_map
    :alt: What somebody who cannot see it needs to know.

    The caption.
    ```

The name is that of a function of ``docs/pictures.py``, which gives a matplotlib figure or an SVG.
"""

from __future__ import annotations

import html
import importlib.util
import re
import types
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).parents[1]
INK = "#010203"  # whatever is drawn in it takes the colour of the page's text


def style() -> dict[str, Any]:
    """Settings of matplotlib under which pictures are drawn."""
    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(ink, INK),
        "svg.fonttype": "none",  # text stays text: it can be searched, and takes little room
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "font.size": 10,
    }


@cache
def drawn(name: str) -> str:
    """The SVG of a picture by its name."""
    import matplotlib

    with matplotlib.rc_context({**style(), "svg.hashsalt": name}):
        figure = getattr(_functions(), name)()
        if isinstance(figure, str):
            return figure
        stream = StringIO()
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    return svg_for_a_page(stream.getvalue(), name)


@cache
def _functions() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("docs_pictures", DOCS / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def svg_for_a_page(svg: str, name: str) -> str:
    """Without its own head, in the page's ink, and with ids that no other picture has."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor").replace("#000000", "currentColor")
    ids = set(re.findall(r'\bid="([^"]+)"', svg))
    for one in sorted(ids, key=len, reverse=True):
        svg = svg.replace(f'id="{one}"', f'id="{name}-{one}"')
        svg = svg.replace(f"#{one})", f"#{name}-{one})").replace(f'#{one}"', f'#{name}-{one}"')
    # Its size is that of its box, and no more than the page has.
    return re.sub(r'width="([\d.]+)pt" height="[\d.]+pt"', r'style="max-width:\1pt"', svg, count=1)


class Picture(SphinxDirective):
    """A picture with its alternative text, and a caption."""

    required_arguments = 1
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012
    has_content = True

    def run(self) -> list[nodes.Node]:
        if not self.options.get("alt"):
            raise self.error("A picture needs :alt:, for those who cannot see it.")
        name = self.arguments[0]
        self.env.note_dependency(str(DOCS / "pictures.py"))
        alt = html.escape(self.options["alt"], quote=True)
        svg = drawn(name).replace("<svg", f'<svg role="img" aria-label="{alt}"', 1)
        figure = nodes.figure(classes=["picture"])
        figure += nodes.raw("", svg, format="html")
        if self.content:
            caption = nodes.caption()
            children, _ = self.parse_inline(" ".join(self.content))
            caption += children
            figure += caption
        return [figure]


def setup(app: Any) -> dict[str, Any]:
    app.add_directive("picture", Picture)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
