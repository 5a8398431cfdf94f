"""Published results of real tensor cores: one dot product a word, bundled as samples of the published sets.

`conformance/vectors/published` holds the samples and the licences. `conformance.published_dot_products` draws them from
the whole sets, and compares the whole sets with the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import element_named
from refsim.numerics.calls import arguments_of, fitted
from refsim.numerics.multiply import call_asked_for
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
        a_format, b_format, d_format = self.types
        kind = element_named(d_format).array_dtype
        assert kind is not None
        given: dict[str, Any] = {"a_format": a_format, "b_format": b_format}
        if self.a_scale is not None and self.b_scale is not None:
            given |= {"a_scale": self.a_scale[:, None], "b_scale": self.b_scale[:, None]}
            given["scale_format"] = self.scale_format
        a, b, c = self.a[:, None], self.b[:, None], np.ascontiguousarray(self.c).view(kind)[:, None, None]
        if row is None:
            unit: dict[str, Any] = {"unit": self.unit, "target": self.target, "k": self.k, "d_format": d_format}
            found = call_asked_for(a, b, c, **unit, **given).result()
        else:
            found = fitted(arguments_of(a, b, c, **given), row, self.k).result()
        return np.ascontiguousarray(found).reshape(-1).view(self.d.dtype)


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
