"""The operands of recorded tensor cores: fixed functions of class, number and place, so that only results are stored.

A cell is 16,384 results of D under one class of operands and one class of C. A pass has every cell once, and a chunk of
the digest holds four. Code (row, k) of A is independent of M, N and K, and so is B's: forms that differ only in shape
get equal products. All classes of C of one operand class share A and B.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from refsim.errors import check_named
from refsim.formats import ElementType, Format, Integer, float_named
from refsim.numerics.dot.chains import floats as values_of
from refsim.reference.operands import special_codes
from refsim.silicon.tensor_classes import (
    ENTRY,
    INTEGER_CLASSES,
    ONE_ULP,
    PROBE_CLASSES,
    PROBED,
    BitField,
    Codes,
    Draw,
    Words,
    build,
    class_codes,
)
from refsim.silicon.vectors import splitmix64

CELL_WORDS = 1 << 14
CELLS_A_CHUNK = 4
SAMPLE = 8
"""The first SAMPLE x SAMPLE results of the first product of every cell of pass 0 are stored."""
FLOAT_CLASSES = tuple(PROBE_CLASSES)
FLOAT_C = ("none", "zero", "any", "near", "subnormal", "special", "opposite")
INTEGER_C = ("none", "any", "limit")
STEPS = (1, 2, 1, 3)
"""Instructions chained in one product: STEPS[(class + pass) % 4]."""
# Bit fields of the random words of C; tensor_classes has the fields for A and B.
_AROUND = BitField(0, 16)  # distance from the largest integer
_IS_NORMAL = BitField(40, 1)
_OFFSET = BitField(52, 11)  # the first bit: within 3 binades or 30; the other bits: the distance
_A, _B, _C = range(3)
_ROW, _PRODUCT = 1 << 12, 1 << 20  # places of a word's number: columns count from bit 0


@dataclass(frozen=True)
class ProbeShape:
    """The properties of a recorded instruction that decide its operands: formats and shape."""

    a_format: ElementType
    b_format: ElementType
    d_format: ElementType
    m: int
    n: int
    k: int

    def __hash__(self) -> int:
        return self._number

    @cached_property
    def _number(self) -> int:
        """Return the hash, computed once: it is used hundreds of thousands of times."""
        return hash((self.a_format, self.b_format, self.d_format, self.m, self.n, self.k))

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the classes of operands."""
        return tuple(INTEGER_CLASSES) if self.d_format.is_integer else FLOAT_CLASSES

    @property
    def c_classes(self) -> tuple[str, ...]:
        """Return the classes of C."""
        return INTEGER_C if self.d_format.is_integer else FLOAT_C

    @property
    def batch(self) -> int:
        """Return the number of products in a cell: 128 for m16n8, 1 for m64n256."""
        return CELL_WORDS // (self.m * self.n)

    @property
    def chunks(self) -> int:
        """Return the number of chunks of 65,536 results in a pass: 21 for floats, 3 for integers."""
        return len(self.classes) * len(self.c_classes) // CELLS_A_CHUNK


def cell_operands(
    shape: ProbeShape,
    name: str,
    number: int,
    batch: int | None = None,
    rows: int | None = None,
    columns: int | None = None,
) -> tuple[Codes, Codes]:
    """Return A (batch, M, K) and B (batch, N, K) of one class in pass `number`; K holds STEPS[...] instructions.
    `batch`, `rows`, `columns` limit the result to the first products, rows of A, rows of B."""
    check_named("operand class", name, shape.classes)
    k = shape.k * STEPS[(shape.classes.index(name) + number) % len(STEPS)]
    products = batch or shape.batch
    a_words = words(_seed(shape, name, number, _A), products, rows or shape.m, k)
    b_words = words(_seed(shape, name, number, _B), products, columns or shape.n, k)
    if isinstance(shape.a_format, Integer) or isinstance(shape.b_format, Integer):
        return INTEGER_CLASSES[name](a_words), INTEGER_CLASSES[name](b_words)
    a = class_codes(name, Draw(a_words, shape.a_format))
    b = class_codes(name, Draw(b_words, shape.b_format, is_b=True, lowered=lowered(shape)))
    return _cancelled(a, b, b_words, shape.b_format) if name == "cancelling" else (a, b)


def _seed(shape: ProbeShape, name: str, number: int, operand: int, c_name: str = "none") -> int:
    """Return the key of an operand's random words. It has the operand in bits 0 and 1, the pass from bit 2 on, the
    class from 10 on, and the class of C from 24 on."""
    return shape.c_classes.index(c_name) << 24 | shape.classes.index(name) << 10 | number << 2 | operand


def lowered(shape: ProbeShape) -> int:
    """Return the binades by which B of wide formats is lower, so that f16 sums are not infinite too often."""
    wide = float_named(shape.b_format).exponent_bits > 4
    return 10 if wide and float_named(shape.d_format).exponent_bits == 5 else 0


def cell_c(shape: ProbeShape, name: str, c_name: str, number: int, a: Codes, b: Codes) -> Codes | None:
    """Return C (batch, M, N) of one class for the operands of a cell, as codes of D's format; None for "none"."""
    check_named("class of C", c_name, shape.c_classes)
    if c_name == "none":
        return None
    drawn = words(_seed(shape, name, number, _C, c_name), len(a), a.shape[1], b.shape[1])
    format, dtype = shape.d_format, shape.d_format.code_dtype
    if isinstance(format, Integer):
        limit = np.uint32(0x7FFFFFFF) + _AROUND.of(drawn).astype(np.uint32) - np.uint32(1 << 15)
        integers: Codes = limit if c_name == "limit" else drawn.astype(dtype)
        return integers
    match c_name:
        case "zero":
            return build(format, drawn, np.zeros_like(drawn), np.zeros_like(drawn))
        case "any":
            codes: Codes = drawn.astype(dtype)
            return codes
        case "near":
            return _near(shape, format, drawn, a, b)
        case "subnormal":
            return build(format, drawn, _IS_NORMAL.of(drawn), drawn)
        case "special":
            table = np.array(special_codes(format, PROBED), np.uint64)
            codes = table[ENTRY.of(drawn) % np.uint64(len(table))].astype(dtype)
            return codes
    return _opposite(shape, drawn, a, b)


def words(key: int, batch: int, rows: int, columns: int) -> Words:
    """Return 64 random bits for every (product, row, column), independent of the array's size."""
    start = splitmix64(np.array([key], np.uint64))
    place = np.arange(batch, dtype=np.uint64)[:, None, None] * np.uint64(_PRODUCT)
    place = place + np.arange(rows, dtype=np.uint64)[:, None] * np.uint64(_ROW) + np.arange(columns, dtype=np.uint64)
    return splitmix64(place ^ start)


def _cancelled(a: Codes, b: Codes, drawn: Words, format: Format) -> tuple[Codes, Codes]:
    """Return operands where every odd k has the previous product negated, one ulp off in a quarter of all rows."""
    a, b = a.copy(), b.copy()
    a[..., 1::2] = a[..., 0::2]
    ulp = ONE_ULP.of(drawn[..., 1::2]) == 0
    b[..., 1::2] = (
        b[..., 0::2] ^ b.dtype.type(format.sign_mask) ^ (ulp.astype(b.dtype) << b.dtype.type(format.padding_bits))
    )
    return a, b


def _near(shape: ProbeShape, format: Format, drawn: Words, a: Codes, b: Codes) -> Codes:
    """Return C whose exponent is near the first product's: half within 3 binades, the others within 30."""
    exponents = []
    for codes, row in ((a[..., 0], float_named(shape.a_format)), (b[..., 0], float_named(shape.b_format))):
        magnitude = codes.astype(np.uint64) >> np.uint64(row.padding_bits) & np.uint64(row.magnitude_limit - 1)
        exponents.append((magnitude >> np.uint64(row.mantissa_bits)).astype(np.int64) - row.bias)
    choice = _OFFSET.numbers(drawn)
    offset = np.where(choice % 2 == 0, (choice >> 1) % 7 - 3, (choice >> 1) % 61 - 30)
    field = exponents[0][:, :, None] + exponents[1][:, None, :] + offset + format.bias
    return build(format, drawn, np.clip(field, 0, (1 << format.exponent_bits) - 2), drawn)


def _opposite(shape: ProbeShape, drawn: Words, a: Codes, b: Codes) -> Codes:
    """Return C equal to the negated product of one k, rounded to D's format; NaN has one code."""
    k = a.shape[-1]
    place = int(ENTRY.of(drawn[:1, 0, 0])[0]) % k
    kind, format = shape.d_format.array_dtype, float_named(shape.d_format)
    assert kind is not None
    with np.errstate(all="ignore"):
        x, y = (
            values_of(np.ascontiguousarray(codes[..., place]), element).astype(np.float64)
            for codes, element in ((a, shape.a_format), (b, shape.b_format))
        )
        negated = (-x[:, :, None] * y[:, None, :]).astype(kind)
    codes: Codes = negated.view(format.code_dtype)
    return np.where(np.isnan(negated), codes.dtype.type(format.magnitude_limit - 1), codes)
