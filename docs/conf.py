"""The site: `make docs` builds these pages, the API reference, pages of codes and reports."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import refsim  # noqa: E402

project = "refsim"
author = "the authors of refsim"
copyright = "the authors of refsim, Apache-2.0"
release = refsim.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_pages"]
exclude_patterns = ["_build", "_extra", "ci"]
html_theme = "furo"
html_extra_path = ["_extra"]
html_static_path = ["_static"]
html_css_files = ["tables.css"]
html_title = f"refsim {release}"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4

autodoc_default_options = {"members": True, "show-inheritance": False, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
suppress_warnings = ["misc.highlighting_failure"]  # PTX and CUDA that a lexer does not know
