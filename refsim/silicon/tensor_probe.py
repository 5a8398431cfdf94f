"""The operands of recorded tensor cores: fixed functions of class, number and place, so that only results are stored.

A cell is 16,384 results of D under one class of operands and one class of C. A pass has every cell once, and a chunk of
the digest holds four. Code (row, k) of A is independent of M, N and K, and so is B's: forms that differ only in shape
get equal products. All classes of C of one operand class share A and B.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import encode
from refsim.errors import check_named
from refsim.formats import F64, ElementType, Format, Integer, Specials, element_named, float_named
from refsim.numerics.dot.chains import floats as values_of
from refsim.numerics.multiply import ProductSpec
from refsim.numerics.rows import Profile
from refsim.reference.operands import composed, special_codes
from refsim.silicon.vectors import Recording, digest, splitmix64

Codes = NDArray[np.unsignedinteger[Any]]
Words = NDArray[np.uint64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class BitField:
    """`count` bits of a 64-bit word from `first` on, as a number."""

    first: int
    count: int

    def of(self, words: Words) -> Words:
        """Return the field of each word."""
        above = words >> np.uint64(self.first)
        return above if self.first + self.count == 64 else above & np.uint64((1 << self.count) - 1)

    def numbers(self, words: Words) -> Numbers:
        """Return the field of each word as int64."""
        return self.of(words).astype(np.int64)


# Fields of a word. A mantissa is the low bits, so a wide mantissa overlaps the fields above; that does no harm.
SIGN = BitField(63, 1)
CHOICE = BitField(44, 19)  # the exponent and other random choices of a class
PADDING_FROM = 30  # padding bits of a tf32 word, which no product reads
ENTRY = BitField(20, 44)  # an entry of a table
ONE_ULP = BitField(40, 2)  # 0 in a quarter of all words
PROBED = (
    *("zero", "least", "below normal", "normal", "one", "above one", "top", "largest"),
    *("infinity", "signalling", "quiet"),
)
"""The landmarks among operands, in the order of their numbers in words."""


def build(format: Format, words: Words, fields: NDArray[Any], mantissas: Words) -> Codes:
    """Return codes with these exponent fields and mantissas; sign and padding are from the words."""
    low = (mantissas & np.uint64((1 << format.mantissa_bits) - 1)) << np.uint64(format.padding_bits)
    low |= BitField(PADDING_FROM, format.padding_bits).of(words)
    return composed(format, SIGN.of(words), fields, low).astype(format.code_dtype)


@dataclass(frozen=True)
class Draw:
    """Random words (.., K) of one operand, and the format of its codes. `lowered`: the exponents are lower by so many
    binades, where a result in f16 would be infinite too often."""

    words: Words
    format: Format
    is_b: bool = False
    lowered: int = 0

    @cached_property
    def choice(self) -> Numbers:
        """Return a number of 19 bits for every element (.., K)."""
        return CHOICE.numbers(self.words)

    @property
    def of_row(self) -> Numbers:
        """Return the number of a row's first element (.., 1), for properties that its elements share."""
        return self.choice[..., :1]

    @property
    def last(self) -> int:
        """Return the largest exponent field without any special code."""
        specials = (Specials.IEEE, Specials.NAN_ALL_ONES)
        return (1 << self.format.exponent_bits) - 1 - (self.format.specials in specials)

    @property
    def reach(self) -> int:
        """Return the number of binades of "spread" below 1, and from 1 on: 14, fewer in narrow formats."""
        return max(min(self.format.bias - 1, 14), 1)

    @property
    def is_modest(self) -> bool:
        """Return whether the operand stays near or below 1: B of a wide format, where most results would be
        infinite."""
        return self.is_b and self.format.exponent_bits > 4

    @property
    def spread_fields(self) -> Numbers:
        """Return exponent fields that are uniform over the reach."""
        return np.maximum(self.format.bias - self.reach + self.choice % (2 * self.reach) - self.lowered, 0)

    def with_fields(self, fields: NDArray[Any]) -> Codes:
        """Return codes with these exponent fields."""
        return build(self.format, self.words, fields, self.words)


def class_codes(name: str, draw: Draw) -> Codes:
    """Return the codes of a class of PROBE_CLASSES, in the low bits of their integers."""
    codes = PROBE_CLASSES[name](draw)
    return codes & codes.dtype.type(draw.format.code_limit - 1)


# ---------------------------------------------------------------------------------------------------------------------
# Classes of floats


def _bits(draw: Draw) -> Codes:
    """Return random codes."""
    return draw.words.astype(draw.format.code_dtype)


def _finite(draw: Draw) -> Codes:
    """Return codes with uniform exponents."""
    return draw.with_fields(draw.choice % (draw.format.bias if draw.is_modest else draw.last + 1))


def _narrow(draw: Draw) -> Codes:
    """Return codes with four neighboring exponents in a row. They lie anywhere in small formats, and around 1 in
    formats of eight or more exponent bits."""
    bias, row = draw.format.bias, draw.of_row
    low = 1 + row % max(draw.last - 3, 1) if draw.format.exponent_bits < 8 else bias - 8 + row % 16
    return draw.with_fields(np.clip(low - draw.lowered + (draw.choice >> 4) % 4, 1, draw.last))


def _geometric(draw: Draw) -> Codes:
    """Return codes half of which are in the binade of 1, a quarter in the binade below, and so on."""
    return draw.with_fields(np.maximum(draw.format.bias - _trailing_zeros(draw.choice), 0))


def _spread(draw: Draw) -> Codes:
    return draw.with_fields(draw.spread_fields)


def _swamping(draw: Draw) -> Codes:
    """Return codes one in eight of which is large; the others lie 12 to 27 binades lower, equally far in a row."""
    high, far = draw.format.bias + draw.reach // 2 - draw.lowered, 12 + (draw.of_row >> 4) % 16
    return draw.with_fields(np.maximum(np.where(draw.choice % 8 == 0, high, high - far), 0))


def _subnormal(draw: Draw) -> Codes:
    """Return subnormals and the two binades above them; every fourth row has any exponent."""
    number = draw.choice >> 5
    return draw.with_fields(np.where(draw.of_row % 4 == 3, number % (draw.last + 1), number % 3))


def _sparse(draw: Draw) -> Codes:
    """Return signed zeros except for one in 8, 16 or 32, or for very few in a quarter of the rows."""
    codes, one_in = _spread(draw), np.array([1 << 20, 8, 32, 16])[draw.of_row % 4]
    return np.where((draw.choice >> 6) % one_in == 1, codes, codes & codes.dtype.type(draw.format.sign_mask))


def _special(draw: Draw) -> Codes:
    """Return random codes with special codes among them: one in 2, 16, 64 or 256, by row."""
    codes, table = _spread(draw), np.array(special_codes(draw.format, PROBED), np.uint64)
    one_in = np.array([16, 64, 256, 2])[(draw.of_row >> 7) % 4]
    return np.where(draw.choice % one_in == 0, table[(draw.choice >> 8) % len(table)].astype(codes.dtype), codes)


def _large(draw: Draw) -> Codes:
    """Return codes in the three largest binades."""
    return draw.with_fields(draw.format.bias - 4 + draw.choice % 6 if draw.is_modest else draw.last - draw.choice % 3)


def _powers(draw: Draw) -> Codes:
    """Return codes as "spread", without a mantissa."""
    return build(draw.format, draw.words, draw.spread_fields, np.zeros_like(draw.words))


PROBE_CLASSES: dict[str, Callable[[Draw], Codes]] = {
    "bits": _bits,
    "finite": _finite,
    "narrow": _narrow,
    "geometric": _geometric,
    "spread": _spread,
    "swamping": _swamping,
    "cancelling": _spread,  # tensor_probe negates every second product
    "subnormal": _subnormal,
    "sparse": _sparse,
    "special": _special,
    "large": _large,
    "powers": _powers,
}
"""The classes in the order of their numbers, which are part of the seeds: a new class comes last."""


def _trailing_zeros(numbers: Numbers) -> Numbers:
    """Return the number of low zero bits, 19 for zero: geometric in random numbers of 19 bits."""
    lowest = (numbers & -numbers) | np.int64(1) << 19
    return (np.frexp((lowest & -lowest).astype(np.float64))[1] - 1).astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Classes of 8-bit integers


_EXTREMES = np.array([0x80, 0x7F, 0xFF, 0x00, 0x01, 0x81], np.uint8)
INTEGER_CLASSES: dict[str, Callable[[Words], Codes]] = {
    "bits": lambda words: words.astype(np.uint8),
    "extreme": lambda words: _EXTREMES[_integer_choice(words) % 6],
    "small": lambda words: (_integer_choice(words) % 7 - 3).astype(np.int8).view(np.uint8),  # from -3 to 3
    "sparse": lambda words: np.where(_integer_choice(words) % 8 == 0, words.astype(np.uint8), np.uint8(0)),
}


def _integer_choice(words: Words) -> Numbers:
    return BitField(CHOICE.first, CHOICE.count + 1).numbers(words)


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


def classes_of(shape: ProductSpec) -> tuple[str, ...]:
    """Return the classes of operands."""
    return tuple(INTEGER_CLASSES if shape.d_format.is_integer else PROBE_CLASSES)


def c_classes_of(shape: ProductSpec) -> tuple[str, ...]:
    """Return the classes of C."""
    return INTEGER_C if shape.d_format.is_integer else FLOAT_C


def batch_of(shape: ProductSpec) -> int:
    """Return the number of products in a cell: 128 for m16n8, 1 for m64n256."""
    return CELL_WORDS // (shape.m * shape.n)


def cells(shape: ProductSpec) -> list[tuple[str, str]]:
    """Return the class of operands and the class of C of every cell, in the order of the chunks."""
    return [(name, c_name) for name in classes_of(shape) for c_name in c_classes_of(shape)]


def chunks_of(shape: ProductSpec) -> int:
    """Return the number of chunks of 65,536 results in a pass: 21 for floats, 3 for integers."""
    return len(cells(shape)) // CELLS_A_CHUNK


def cell_operands(
    shape: ProductSpec,
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


def _seed(shape: ProductSpec, name: str, number: int, operand: int, c_name: str = "none") -> int:
    """Return the key of an operand's random words. It has the operand in bits 0 and 1, the pass from bit 2 on, the
    class from 10 on, and the class of C from 24 on."""
    return c_classes_of(shape).index(c_name) << 24 | classes_of(shape).index(name) << 10 | number << 2 | operand


def lowered(shape: ProductSpec) -> int:
    """Return the binades by which B of wide formats is lower, so that f16 sums are not infinite too often."""
    wide = float_named(shape.b_format).exponent_bits > 4
    return 10 if wide and float_named(shape.d_format).exponent_bits == 5 else 0


def cell_c(shape: ProductSpec, name: str, c_name: str, number: int, a: Codes, b: Codes) -> Codes | None:
    """Return C (batch, M, N) of one class for the operands of a cell, as codes of D's format; None for "none"."""
    check_named("class of C", c_name, c_classes_of(shape))
    if c_name == "none":
        return None
    drawn = words(_seed(shape, name, number, _C, c_name), len(a), a.shape[1], b.shape[1])
    format, dtype = shape.d_format, shape.d_format.code_dtype
    if isinstance(format, Integer):
        limit = np.uint32(0x7FFFFFFF) + _AROUND.of(drawn).astype(np.uint32) - np.uint32(1 << 15)
        return limit if c_name == "limit" else drawn.astype(dtype)
    match c_name:
        case "zero":
            return build(format, drawn, np.zeros_like(drawn), np.zeros_like(drawn))
        case "any":
            return drawn.astype(dtype)
        case "near":
            return _near(shape, format, drawn, a, b)
        case "subnormal":
            return build(format, drawn, _IS_NORMAL.of(drawn), drawn)
        case "special":
            table = np.array(special_codes(format, PROBED), np.uint64)
            return np.asarray(table[ENTRY.of(drawn) % np.uint64(len(table))].astype(dtype))
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


def _near(shape: ProductSpec, format: Format, drawn: Words, a: Codes, b: Codes) -> Codes:
    """Return C whose exponent is near the first product's: half within 3 binades, the others within 30."""
    exponents = []
    for codes, row in ((a[..., 0], float_named(shape.a_format)), (b[..., 0], float_named(shape.b_format))):
        magnitude = codes.astype(np.uint64) >> np.uint64(row.padding_bits) & np.uint64(row.magnitude_limit - 1)
        exponents.append((magnitude >> np.uint64(row.mantissa_bits)).astype(np.int64) - row.bias)
    choice = _OFFSET.numbers(drawn)
    offset = np.where(choice % 2 == 0, (choice >> 1) % 7 - 3, (choice >> 1) % 61 - 30)
    field = exponents[0][:, :, None] + exponents[1][:, None, :] + offset + format.bias
    return build(format, drawn, np.clip(field, 0, (1 << format.exponent_bits) - 2), drawn)


def _opposite(shape: ProductSpec, drawn: Words, a: Codes, b: Codes) -> Codes:
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


def shape_of(recording: Recording) -> ProductSpec:
    """Return the product that a recorded instruction computes."""
    facts = recording.facts
    m, n, k = facts["shape"]
    a, b, d = (element_named(facts[name]) for name in ("a_format", "b_format", "d_format"))
    return ProductSpec(a, b, d, m, n, k, facts["unit"])


def negation(shape: ProductSpec, number: int) -> dict[str, Any]:
    """Return which of A and B are negated in a pass: none, A, B or both in turn for wgmma on floats, else none."""
    return {f"negate_{side}": shape.negates and bool(number >> at & 1) for at, side in enumerate("ab")}


def cell_words(shape: ProductSpec, cell: tuple[str, str], number: int, *, row: Profile | None = None) -> Codes:
    """Return the 16,384 results of a cell in pass `number`."""
    a, b = cell_operands(shape, cell[0], number)
    c = cell_c(shape, *cell, number, a, b)
    return shape.codes(a, b, c, row=row, **negation(shape, number)).reshape(CELL_WORDS)


def chunk_digest(shape: ProductSpec, number: int, chunk: int) -> int:
    """Return the digest of one chunk of pass `number`: four cells in order."""
    some = cells(shape)[CELLS_A_CHUNK * chunk : CELLS_A_CHUNK * (chunk + 1)]
    return int(digest(np.concatenate([cell_words(shape, cell, number) for cell in some])))


def sample_words(shape: ProductSpec, chosen: Sequence[tuple[str, str]], *, row: Profile | None = None) -> Codes:
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
def power(shape: ProductSpec, exponent: int, factor: float = 1.0) -> tuple[float, float] | None:
    """Return two operands whose product is factor x 2^exponent, or None out of range; the factor is in A's operand."""
    a, b = float_named(shape.a_format), float_named(shape.b_format)
    lowest = [1 - row.bias - row.mantissa_bits for row in (a, b)]
    highest = [math.frexp(largest(row))[1] - 1 for row in (a, b)]
    first = min(max(exponent - exponent // 2, lowest[0]), highest[0])
    second = min(max(exponent - first, lowest[1]), highest[1])
    first = exponent - second
    x, y = math.ldexp(factor, first), math.ldexp(1.0, second)
    return (x, y) if holds(a, x) and holds(b, y) else None


def terms(shape: ProductSpec, *parts: tuple[float, int]) -> Vector | None:
    """Return products factor x 2^exponent at k = 0, 1, ..; None if one of them is out of range."""
    vector: Vector = {}
    for k, (factor, exponent) in enumerate(parts):
        pair = power(shape, exponent, factor)
        if pair is None:
            return None
        vector[k] = pair
    return vector
