"""Formulas as MathML, which every browser of today draws by itself.

Sphinx's own ways need a network (MathJax from elsewhere) or LaTeX on the machine that builds.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.errors import ExtensionError


def _mathml(node: nodes.Element, display: str) -> str:
    latex = node.astext()
    try:
        return convert(latex, display=display)
    except Exception as error:  # latex2mathml has a class for each thing that it cannot read
        raise ExtensionError(f"No MathML for the formula {latex!r}: {error!r}") from error


def _inline(translator: Any, node: nodes.Element) -> None:
    translator.body.append(_mathml(node, "inline"))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.Element) -> None:
    # Wide formulas scroll by themselves on a narrow screen: a region that takes the keyboard.
    translator.body.append(
        '<div class="formula" tabindex="0" role="group" aria-label="formula">'
        f"{_mathml(node, 'block')}</div>\n"
    )
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
