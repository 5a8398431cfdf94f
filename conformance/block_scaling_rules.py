"""Write the tables of conformance/reports/block_scaling_rules.md: how each library quantizes to MX and NVFP4.

python -m conformance.block_scaling_rules
"""

from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

import refsim
from refsim import scaling

PAGE = Path(__file__).parent / "reports/block_scaling_rules.md"
PEAKS = {
    "0": 0.0,
    "0.75 x 2^-126": 0.75 * 2.0**-126,
    "448": 448.0,
    "450": 450.0,
    "3.39e38": 3.3895314e38,
    "infinity": np.inf,
    "NaN": np.nan,
}
"""The one element of a block that is not zero."""


def schemes() -> Iterator[str]:
    yield "| scheme | formats | rule | source |"
    yield "|---|---|---|---|"
    for recipe in scaling.RECIPES:
        yield f"| `{recipe}` | {', '.join(recipe.formats)} | {recipe.summary} | {recipe.source} |"


def special_blocks(format: str) -> Iterator[str]:
    """The scale and the code of the largest element of each block, in hexadecimal."""
    x = np.zeros((len(PEAKS), 32), np.float32)
    x[:, 0] = list(PEAKS.values())
    yield f"| {format} | {' | '.join(PEAKS)} |"
    yield "|---" * (len(PEAKS) + 1) + "|"
    for recipe in scaling.recipes_of(format):
        with np.errstate(all="ignore"):
            blocks = refsim.quantize(x, format, recipe=recipe)
        cells = [f"{scale:02x} {code:02x}" for scale, code in zip(blocks.scales[:, 0], blocks.codes[:, 0], strict=True)]
        yield f"| `{recipe}` | {' | '.join(cells)} |"


def two_levels() -> Iterator[str]:
    """Scales and codes of ordinary data that another scheme makes than `te`."""
    x = np.random.default_rng(5).standard_normal((256, 1024)).astype(ml_dtypes.bfloat16)
    te = refsim.quantize(x, "nvfp4", recipe="te")
    yield "| nvfp4 | scales that differ from `te` | codes that differ from `te` |"
    yield "|---|---|---|"
    for recipe in scaling.recipes_of("nvfp4"):
        other = refsim.quantize(x, "nvfp4", recipe=recipe)
        yield f"| `{recipe}` | {(other.scales != te.scales).sum():,} | {(other.codes != te.codes).sum():,} |"


TABLES = {
    "schemes": schemes,
    "mxfp8": lambda: special_blocks("mxfp8"),
    "mxfp4": lambda: special_blocks("mxfp4"),
    "nvfp4": two_levels,
}


def renewed(text: str) -> str:
    """The page with its tables computed again: each stands between `<!-- NAME -->` and `<!-- end of NAME -->`."""
    for name, rows in TABLES.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        after = rest.partition(end)[2]
        text = "".join((before, begin, "\n".join(rows()), "\n", end, after))
    return text


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text("utf-8")), "utf-8")
    print(PAGE)
