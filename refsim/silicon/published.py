"""Published results of real tensor cores: one dot product a word, bundled as samples of the published sets.

`conformance/vectors/published` holds the samples and the licences. `conformance.published_dot_products` draws them from
the whole sets, and compares the whole sets with the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from numpy.typing import NDArray

from refsim.formats import element_named
from refsim.numerics.multiply import MatrixProduct
from refsim.numerics.rows import Profile, Unit
from refsim.silicon.vectors import recorded_devices, shelf

Codes = NDArray[Any]
STEM, FOLDER = "dot_products", "published"


@dataclass(frozen=True, eq=False)
class DotProducts:
    """Dot products of one instruction on one chip: A and B are codes (n, K), C and D codes (n,).

    `types` are A's, B's and D's; `k` is the K of one instruction, and longer rows are chains. Where the instruction
    read no C, C holds zeros. Scales are codes (n, blocks) of `scale_format`.
    """

    chip: str
    target: str
    unit: Unit
    types: tuple[str, str, str]
    k: int
    a: Codes
    b: Codes
    c: Codes
    d: Codes
    scale_format: str = ""
    a_scale: Codes | None = None
    b_scale: Codes | None = None

    def modelled(self, row: Profile | None = None) -> Codes:
        """Return D as the model computes it, as codes; with a `row` of other arithmetic, by that."""
        a, b, d = map(element_named, self.types)
        scaled: dict[str, Any] = {}
        if self.a_scale is not None and self.b_scale is not None:
            scaled = {"a_scale": self.a_scale[:, None], "b_scale": self.b_scale[:, None]}
            scaled["scale_format"] = self.scale_format
        operands, product = (self.a[:, None], self.b[:, None]), MatrixProduct(a, b, d, 1, 1, self.k, self.unit)
        return product.codes(*operands, self.c[:, None, None], target=self.target, row=row, **scaled).reshape(-1)


def published(target: str, unit: str, types: tuple[str, str, str] | None = None) -> Iterator[DotProducts]:
    """Yield the bundled samples of a chip's unit, of some types of A, B and D or of all."""
    for sample in _samples():
        if (sample.target, sample.unit) == (target, unit) and types in (None, sample.types):
            yield sample


@cache
def _samples() -> tuple[DotProducts, ...]:
    """Return every bundled sample; none where no recordings are installed."""
    if FOLDER not in recorded_devices(STEM):
        return ()
    opened, found = shelf(STEM, FOLDER), []
    for row in opened.take(opened.rows).values():
        facts: dict[str, Any] = {key: row.facts[key] for key in ("chip", "target", "unit", "k")} | row.arrays
        scale_format = row.facts.get("scale_format", "")
        found.append(DotProducts(types=tuple(row.facts["types"]), scale_format=scale_format, **facts))
    return tuple(found)
