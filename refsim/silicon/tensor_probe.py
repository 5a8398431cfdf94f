"""The operands of recorded tensor cores: fixed functions of class, number and place, so that only results are stored.

A cell is 16,384 results of D under one class of operands and one class of C. A pass has every cell once, and a chunk of
the digest holds four. Code (row, k) of A is independent of M, N and K, and so is B's: forms that differ only in shape
get equal products. All classes of C of one operand class share A and B.
"""

import math
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import encode
from refsim.errors import check_named
from refsim.formats import F64, ElementType, Format, Integer, element_named, float_named
from refsim.numerics.dot.chains import floats as values_of
from refsim.numerics.multiply import MatrixProduct
from refsim.numerics.rows import Profile
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
from refsim.silicon.vectors import Recording, digest, splitmix64

CELL_WORDS = 1 << 14
CELLS_A_CHUNK = 4
SAMPLE = 8
"""The first SAMPLE x SAMPLE results of the first product of every cell of pass 0 are stored."""
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


def classes_of(shape: MatrixProduct) -> tuple[str, ...]:
    """Return the classes of operands."""
    return tuple(INTEGER_CLASSES if shape.d_format.is_integer else PROBE_CLASSES)


def c_classes_of(shape: MatrixProduct) -> tuple[str, ...]:
    """Return the classes of C."""
    return INTEGER_C if shape.d_format.is_integer else FLOAT_C


def batch_of(shape: MatrixProduct) -> int:
    """Return the number of products in a cell: 128 for m16n8, 1 for m64n256."""
    return CELL_WORDS // (shape.m * shape.n)


def cells(shape: MatrixProduct) -> list[tuple[str, str]]:
    """Return the class of operands and the class of C of every cell, in the order of the chunks."""
    return [(name, c_name) for name in classes_of(shape) for c_name in c_classes_of(shape)]


def chunks_of(shape: MatrixProduct) -> int:
    """Return the number of chunks of 65,536 results in a pass: 21 for floats, 3 for integers."""
    return len(cells(shape)) // CELLS_A_CHUNK


def cell_operands(
    shape: MatrixProduct,
    name: str,
    number: int,
    batch: int | None = None,
    rows: int | None = None,
    columns: int | None = None,
) -> tuple[Codes, Codes]:
    """Return A (batch, M, K) and B (batch, N, K) of one class in pass `number`; K holds STEPS[...] instructions.
    `batch`, `rows`, `columns` limit the result to the first products, rows of A, rows of B."""
    check_named("operand class", name, classes_of(shape))
    k = shape.k * STEPS[(classes_of(shape).index(name) + number) % len(STEPS)]
    products = batch or batch_of(shape)
    a_words = words(_seed(shape, name, number, _A), products, rows or shape.m, k)
    b_words = words(_seed(shape, name, number, _B), products, columns or shape.n, k)
    if isinstance(shape.a_format, Integer) or isinstance(shape.b_format, Integer):
        return INTEGER_CLASSES[name](a_words), INTEGER_CLASSES[name](b_words)
    a = class_codes(name, Draw(a_words, shape.a_format))
    b = class_codes(name, Draw(b_words, shape.b_format, is_b=True, lowered=lowered(shape)))
    return _cancelled(a, b, b_words, shape.b_format) if name == "cancelling" else (a, b)


def _seed(shape: MatrixProduct, name: str, number: int, operand: int, c_name: str = "none") -> int:
    """Return the key of an operand's random words. It has the operand in bits 0 and 1, the pass from bit 2 on, the
    class from 10 on, and the class of C from 24 on."""
    return c_classes_of(shape).index(c_name) << 24 | classes_of(shape).index(name) << 10 | number << 2 | operand


def lowered(shape: MatrixProduct) -> int:
    """Return the binades by which B of wide formats is lower, so that f16 sums are not infinite too often."""
    wide = float_named(shape.b_format).exponent_bits > 4
    return 10 if wide and float_named(shape.d_format).exponent_bits == 5 else 0


def cell_c(shape: MatrixProduct, name: str, c_name: str, number: int, a: Codes, b: Codes) -> Codes | None:
    """Return C (batch, M, N) of one class for the operands of a cell, as codes of D's format; None for "none"."""
    check_named("class of C", c_name, c_classes_of(shape))
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


def _near(shape: MatrixProduct, format: Format, drawn: Words, a: Codes, b: Codes) -> Codes:
    """Return C whose exponent is near the first product's: half within 3 binades, the others within 30."""
    exponents = []
    for codes, row in ((a[..., 0], float_named(shape.a_format)), (b[..., 0], float_named(shape.b_format))):
        magnitude = codes.astype(np.uint64) >> np.uint64(row.padding_bits) & np.uint64(row.magnitude_limit - 1)
        exponents.append((magnitude >> np.uint64(row.mantissa_bits)).astype(np.int64) - row.bias)
    choice = _OFFSET.numbers(drawn)
    offset = np.where(choice % 2 == 0, (choice >> 1) % 7 - 3, (choice >> 1) % 61 - 30)
    field = exponents[0][:, :, None] + exponents[1][:, None, :] + offset + format.bias
    return build(format, drawn, np.clip(field, 0, (1 << format.exponent_bits) - 2), drawn)


def _opposite(shape: MatrixProduct, drawn: Words, a: Codes, b: Codes) -> Codes:
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


# ---- results of the model --------------------------------------------------------------------------------------------


def shape_of(recording: Recording) -> MatrixProduct:
    """Return the product that a recorded instruction computes."""
    facts = recording.facts
    m, n, k = facts["shape"]
    a, b, d = (element_named(facts[name]) for name in ("a_format", "b_format", "d_format"))
    return MatrixProduct(a, b, d, m, n, k, facts["unit"])


def negation(shape: MatrixProduct, number: int) -> dict[str, Any]:
    """Return which of A and B are negated in a pass: none, A, B or both in turn for wgmma on floats, else none."""
    return {f"negate_{side}": shape.negates and bool(number >> at & 1) for at, side in enumerate("ab")}


def cell_words(shape: MatrixProduct, cell: tuple[str, str], number: int, *, row: Profile | None = None) -> Codes:
    """Return the 16,384 results of a cell in pass `number`."""
    a, b = cell_operands(shape, cell[0], number)
    c = cell_c(shape, *cell, number, a, b)
    return shape.codes(a, b, c, row=row, **negation(shape, number)).reshape(CELL_WORDS)


def chunk_digest(shape: MatrixProduct, number: int, chunk: int) -> int:
    """Return the digest of one chunk of pass `number`: four cells in order."""
    some = cells(shape)[CELLS_A_CHUNK * chunk : CELLS_A_CHUNK * (chunk + 1)]
    return int(digest(np.concatenate([cell_words(shape, cell, number) for cell in some])))


def sample_words(shape: MatrixProduct, chosen: Sequence[tuple[str, str]], *, row: Profile | None = None) -> Codes:
    """Return the stored results of some cells, (cells, 64): rows and columns 0 to 7 of the first product of pass 0."""
    found = []
    for name, c_name in chosen:
        a, b = cell_operands(shape, name, 0, batch=1, rows=SAMPLE, columns=SAMPLE)
        found.append(shape.codes(a, b, cell_c(shape, name, c_name, 0, a, b), row=row).reshape(-1))
    return np.array(found)


# ---- numbers that a format holds, and pairs of operands whose product is a chosen power of two ------------------------

Vector = dict[int, tuple[float, float]]
"""The factors (of A, of B) at some k; zeros elsewhere."""


@cache
def holds(format: Format, value: float) -> bool:
    """Return whether the format represents a finite value exactly."""
    if value == 0:
        return True
    fraction, exponent = math.frexp(abs(value))
    unit = max(exponent - 1, 1 - format.bias) - format.mantissa_bits
    return math.ldexp(fraction, exponent - unit).is_integer() and abs(value) <= largest(format)


def largest(format: Format) -> float:
    """Return the largest finite value of a format, as a double."""
    return sys.float_info.max if format is F64 else format.max_value


def coded(values: NDArray[np.float64], format: ElementType) -> Codes:
    """Return the codes of doubles; for f64, their own patterns."""
    row = float_named(format)
    return values.view(row.code_dtype) if row is F64 else encode(values, row)


@cache
def power(shape: MatrixProduct, exponent: int, factor: float = 1.0) -> tuple[float, float] | None:
    """Return two operands whose product is factor x 2^exponent, or None out of range; the factor is in A's operand."""
    a, b = float_named(shape.a_format), float_named(shape.b_format)
    lowest = [1 - row.bias - row.mantissa_bits for row in (a, b)]
    highest = [math.frexp(largest(row))[1] - 1 for row in (a, b)]
    first = min(max(exponent - exponent // 2, lowest[0]), highest[0])
    second = min(max(exponent - first, lowest[1]), highest[1])
    first = exponent - second
    x, y = math.ldexp(factor, first), math.ldexp(1.0, second)
    return (x, y) if holds(a, x) and holds(b, y) else None


def terms(shape: MatrixProduct, *parts: tuple[float, int]) -> Vector | None:
    """Return products factor x 2^exponent at k = 0, 1, ..; None if one of them is out of range."""
    vector: Vector = {}
    for k, (factor, exponent) in enumerate(parts):
        pair = power(shape, exponent, factor)
        if pair is None:
            return None
        vector[k] = pair
    return vector
