"""The page of `refsim explore`: one HTML file with its style, its script and the tables of the model."""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from refsim import __version__
from refsim.cli.answers.explorer.holdings import fragment_rows
from refsim.cli.answers.explorer.memory import memory_rows
from refsim.cli.answers.explorer.numbers import element_rows
from refsim.cli.answers.explorer.scales import scale_rows
from refsim.cli.answers.explorer.words import descriptor_rows, remark_words
from refsim.render import palette

SCRIPTS = (
    "model.js",
    "dump.js",
    "grid.js",
    "panel.js",
    "fragment.js",
    "format.js",
    "swizzle.js",
    "scales.js",
    "descriptor.js",
    "dump_view.js",
    "address.js",
    "page.js",
)


def tables() -> dict[str, Any]:
    """Return all data of the page: element types, fragments, swizzles, scale layouts, descriptors and colors."""
    return {
        "version": __version__,
        "palette": {
            mode: [palette.fill(colour, mode) for colour in range(palette.HUES * palette.SHADES)]
            for mode in (palette.LIGHT, palette.DARK)
        },
        "elements": element_rows(),
        "fragments": fragment_rows(),
        "memory": memory_rows(),
        "scales": scale_rows(),
        "descriptors": descriptor_rows(),
        "remarks": remark_words(),
    }


@cache
def page() -> str:
    """Return the complete page. It fetches nothing, and its policy forbids it; it is built once."""
    facts = json.dumps(tables(), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    filled = {
        "/* style */": _asset("page.css"),
        "/* script */": "\n".join(_asset(name) for name in SCRIPTS),
        "/* tables */": facts,
    }
    text = _asset("page.html")
    for mark, content in filled.items():
        text = text.replace(mark, content)
    return text


def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")
