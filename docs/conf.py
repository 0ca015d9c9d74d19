"""The documentation site: ``make docs`` builds it into ``build/docs``, to be read from disk.

Nothing in it asks the network for anything: no fonts, no scripts, no typesetter of formulas.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src")]

from odcl import __version__  # noqa: E402

project = "odcl"
author = "The odcl developers"
copyright = "the odcl developers. BSD-3-Clause"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "mathml",  # these and the following lie in docs/extensions
    "inline_pictures",
    "command_line",
    "declared",
    "public_names",
    "live_reports",
    "check_site",
]
exclude_patterns = ["extensions"]

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"odcl {__version__}"
html_static_path = ["static"]
html_css_files = ["odcl.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
templates_path: list[str] = []
pygments_style = "friendly"
pygments_dark_style = "monokai"

default_role = "code"
smartquotes = False  # --clusters has two dashes
autodoc_mock_imports = ["flwr"]  # has an environment of its own
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
_OURS = ("Array", "Floats", "Ints", "Bools", "Train", "LossOf")
autodoc_type_aliases = {name: name for name in _OURS}
python_maximum_signature_line_length = 88
