"""The parameters of tensor-core arithmetic: the type `Profile`. Nothing here computes."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from refsim.evidence import Evidence, Level
from refsim.formats import ElementType, Format
from refsim.numerics import methods
from refsim.render.cards import Card, Facts
from refsim.sources import Source

Unit = Literal[
    "mma.sync",
    "wgmma",
    "tcgen05.f16",
    "tcgen05.tf32",
    "tcgen05.f8f6f4",
    "tcgen05.i8",
    "tcgen05.mxf8f6f4",
    "tcgen05.mxf4",
    "tcgen05.mxf4nvf4",
    "mma.sync.mxf8f6f4",
    "mma.sync.mxf4",
    "mma.sync.mxf4nvf4",
    "mfma",
    "mfma.1k",
    "mfma.scale",
]
"""The units whose arithmetic is known. mfma.1k has the bf16_1k instructions of gfx90a, mfma.scale the block-scaled
instructions of gfx950."""


@dataclass(frozen=True, repr=False, kw_only=True)
class Profile(Card):
    """Describe the arithmetic of one instruction family of one chip.

    `a_formats` and `b_formats` may be mixed freely. `k` lists the K of the instructions, elements; a step takes
    `length` products and C at once, keeps `fraction` bits below the largest exponent and rounds the sum by `rounding`.
    A zero takes part in the alignment with `zero_exponent`. `order` decides the products of a step. `c_enters` is early
    where C is added with the products, late where it is added after them: at the end of an instruction by one IEEE
    addition (`method.adds_c`), else at the end of each step. `operands` is the format that operands are converted to
    first. `scales` pairs the scale types of a block-scaled kind with its block sizes, elements. `negates`: the
    instruction can turn the sign of an operand. `keeps_nan`: a multiply-add returns the first NaN of B, C, A, made
    quiet; elsewhere every NaN is canonical. Hopper's FP8 wgmma: 32 products, 13 bits, rz-e8m13.
    """

    target: str
    unit: Unit
    a_formats: tuple[ElementType, ...]
    b_formats: tuple[ElementType, ...]
    d_format: ElementType
    k: tuple[int, ...]
    method: methods.Method
    length: int
    rounding: methods.Rounding
    fraction: int | None = None
    zero_exponent: int | None = None
    order: methods.Order = methods.ASCENDING
    c_enters: methods.CEnters = methods.EARLY
    operands: Format | None = None
    scales: tuple[tuple[Format, int], ...] = ()
    negates: bool = False
    keeps_nan: bool = False
    source: Source
    evidence: Evidence

    @property
    def name(self) -> str:
        """Return chip, unit and types: "sm_90 wgmma e4m3|e5m2 -> f32"."""
        a, b = ("|".join(map(str, formats)) for formats in (self.a_formats, self.b_formats))
        return f"{self.target} {self.unit} {a if a == b else f'{a} x {b}'} -> {self.d_format}"

    @property
    def d_dtype(self) -> np.dtype[Any]:
        """Return NumPy's type of C and D: float32, float16, float64 or int32."""
        assert self.d_format.array_dtype is not None
        return self.d_format.array_dtype

    @property
    def adds_c_last(self) -> bool:
        """Return whether C is added after the steps of an instruction, by one IEEE addition."""
        return self.method.adds_c and self.c_enters is methods.LATE

    @property
    def arithmetic(self) -> tuple[object, ...]:
        """Return the facts that decide the bits: two profiles with equal arithmetic are one function of their operands.

        Chip, unit, source, evidence and `negates` are left out. Chips share functions.
        """
        types, steps = (self.a_formats, self.b_formats, self.d_format, self.k), (self.method, self.length, self.order)
        cuts = (self.fraction, self.zero_exponent, self.rounding, self.c_enters)
        return (*types, *steps, *cuts, self.operands, self.scales, self.keeps_nan)

    def steps(self, k: int) -> list[list[int]]:
        """Return the products of each step of one instruction, in order.

        Byte pairs: of each four consecutive k the first two belong to the first step, the others to the second;
        steps(8) is [[0, 1, 4, 5], [2, 3, 6, 7]].
        """
        if self.order is methods.BYTE_PAIRS:
            return [[i for i in range(k) if i % 4 // 2 == half] for half in (0, 1)]
        length = min(self.length, k)
        return [list(range(start, start + length)) for start in range(0, k, length)]

    def __str__(self) -> str:
        return f"{self.name} [{self.evidence}]"

    def _repr_summary(self) -> str:
        return f"{self.name}: {self.method}"

    def _facts(self) -> Facts:
        yield "K of one instruction", ", ".join(map(str, self.k))
        yield "terms of one step", self.length
        yield "rounding", self.rounding
        yield "evidence", self.evidence
        yield "source", self.source


NOT_KNOWN = "not known"


def kept_bits(row: Profile) -> str:
    """Return the bits of the sum that a step keeps, from its largest term down: "14" for Hopper's FP8 wgmma."""
    if row.evidence.level is Level.UNVERIFIED:
        return NOT_KNOWN
    own = "" if row.d_format.is_integer else str(row.rounding.fraction_bits + 1)
    return row.method.kept.format(result=own) or str((row.fraction or 0) + 1)


def result_bits(row: Profile) -> str:
    """Return the bits of the result's significand and their rounding: "14, cut", "11, nearest", "32, wrapped"."""
    if row.evidence.level is Level.UNVERIFIED:
        return NOT_KNOWN
    if row.d_format.is_integer:
        return f"{row.d_format.bits}, wrapped"
    rounding = row.rounding
    return f"{rounding.fraction_bits + 1}, {'nearest' if rounding.nearest else 'cut'}"


def where_c_enters(row: Profile) -> str:
    """Return where C enters: with the products, after the products, or in the sum."""
    if row.evidence.level is Level.UNVERIFIED:
        return NOT_KNOWN
    return row.method.c_enters or (methods.WITH if row.c_enters is methods.EARLY else methods.AFTER)


def arithmetic(row: Profile) -> str:
    """Return one sentence on how a step of a profile works."""
    sentence = row.method.late_sentence if row.adds_c_last else row.method.sentence
    order = "the first two of each four k, then the other two" if row.order is methods.BYTE_PAIRS else "ascending k"
    sizes = {"length": row.length, "fraction": row.fraction, "operands": row.operands, "group": methods.GROUP}
    return sentence.format(order=order, rounded=row.rounding.sentence, **sizes)
