"""The operands that tensor cores were given: fixed functions of class, number and place, so that only results are stored.

A cell is 16,384 words of D under one class of operands and one class of C; a pass has every cell once, a chunk of the
digest holds four. Code (row, k) of A is the same whatever M, N or K an instruction has, and so is that of B: forms that
differ in shape alone are given the same products. All classes of C of one operand class share A and B.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import unknown
from refsim.formats import ElementType, Format, Integer, Specials, float_named
from refsim.numerics.dot.chains import floats as values_of
from refsim.silicon.vectors import splitmix64

Codes = NDArray[np.unsignedinteger[Any]]
Words = NDArray[np.uint64]

CELL_WORDS = 1 << 14
CELLS_A_CHUNK = 4
SAMPLE = 8
"""Of every cell of pass 0 the first SAMPLE x SAMPLE words of its first product are stored."""
FLOAT_CLASSES = (
    "bits", "finite", "narrow", "geometric", "spread", "swamping", "cancelling", "subnormal", "sparse", "special", "large",
    "powers",
)  # fmt: skip
INTEGER_CLASSES = ("bits", "extreme", "small", "sparse")
FLOAT_C = ("none", "zero", "any", "near", "subnormal", "special", "opposite")
INTEGER_C = ("none", "any", "limit")
STEPS = (1, 2, 1, 3)
"""Instructions chained in one product: STEPS[(class + pass) % 4]."""
_ROW, _PRODUCT = 1 << 12, 1 << 20


@dataclass(frozen=True)
class Shape:
    """What decides the operands of a recorded instruction: its formats and shape."""

    a_format: ElementType
    b_format: ElementType
    d_format: ElementType
    m: int
    n: int
    k: int

    @property
    def classes(self) -> tuple[str, ...]:
        return INTEGER_CLASSES if self.d_format.is_integer else FLOAT_CLASSES

    @property
    def c_classes(self) -> tuple[str, ...]:
        return INTEGER_C if self.d_format.is_integer else FLOAT_C

    @property
    def batch(self) -> int:
        """Products in a cell: 128 for m16n8, 1 for m64n256."""
        return CELL_WORDS // (self.m * self.n)

    @property
    def chunks(self) -> int:
        """Chunks of 65,536 words in a pass: 21 for floats, 3 for integers."""
        return len(self.classes) * len(self.c_classes) // CELLS_A_CHUNK


def cell_operands(shape: Shape, name: str, number: int, batch: int | None = None, rows: int | None = None,
                  columns: int | None = None) -> tuple[Codes, Codes]:  # fmt: skip
    """A (batch, M, K) and B (batch, N, K) of one class in pass `number`; K holds STEPS[...] instructions.

    `batch`, `rows`, `columns`: only so many of the first products, rows of A, rows of B.
    """
    if name not in shape.classes:
        raise unknown("operand class", name, list(shape.classes))
    index = shape.classes.index(name)
    k = shape.k * STEPS[(index + number) % len(STEPS)]
    key = (index << 8 | number) << 2
    sizes = (batch or shape.batch, rows or shape.m, columns or shape.n)
    a_words, b_words = words(key, sizes[0], sizes[1], k), words(key | 1, sizes[0], sizes[2], k)
    if isinstance(shape.a_format, Integer) or isinstance(shape.b_format, Integer):
        return _integers(name, a_words), _integers(name, b_words)
    a = class_codes(name, a_words, shape.a_format)
    b = class_codes(name, b_words, shape.b_format, is_b=True, lowered=lowered(shape))
    return _cancelled(a, b, b_words, shape.b_format) if name == "cancelling" else (a, b)


def lowered(shape: Shape) -> int:
    """Binades that B of wide formats lies lower, so that sums in f16 are not infinite too often."""
    wide = float_named(shape.b_format).exponent_bits > 4
    return 10 if wide and float_named(shape.d_format).exponent_bits == 5 else 0


def cell_c(shape: Shape, name: str, c_name: str, number: int, a: Codes, b: Codes) -> Codes | None:
    """C (batch, M, N) of one class over the operands of a cell, as codes of D's format; None for "none"."""
    if c_name not in shape.c_classes:
        raise unknown("class of C", c_name, list(shape.c_classes))
    if c_name == "none":
        return None
    key = (shape.classes.index(name) << 8 | number) << 2 | 2
    drawn = words(key ^ shape.c_classes.index(c_name) << 24, len(a), a.shape[1], b.shape[1])
    format, dtype = shape.d_format, shape.d_format.code_dtype
    if isinstance(format, Integer):
        limit = np.uint32(0x7FFFFFFF) + (drawn & np.uint64(0xFFFF)).astype(np.uint32) - np.uint32(0x8000)
        integers: Codes = limit if c_name == "limit" else drawn.astype(dtype)
        return integers
    match c_name:
        case "zero":
            return _build(format, drawn, drawn & np.uint64(0), drawn & np.uint64(0))
        case "any":
            codes: Codes = drawn.astype(dtype)
            return codes
        case "near":
            return _near(shape, format, drawn, a, b)
        case "subnormal":
            return _build(format, drawn, drawn >> np.uint64(40) & np.uint64(1), drawn)
        case "special":
            table = np.array(special_codes(format), np.uint64)
            codes = table[(drawn >> np.uint64(20)) % np.uint64(len(table))].astype(dtype)
            return codes
    return _opposite(shape, drawn, a, b)


def words(key: int, batch: int, rows: int, columns: int) -> Words:
    """64 random bits for every (product, row, column): the same wherever a larger array has that place."""
    start = splitmix64(np.array([key], np.uint64))
    place = np.arange(batch, dtype=np.uint64)[:, None, None] * np.uint64(_PRODUCT)
    place = place + np.arange(rows, dtype=np.uint64)[:, None] * np.uint64(_ROW) + np.arange(columns, dtype=np.uint64)
    return splitmix64(place ^ start)


def special_codes(format: Format) -> list[int]:
    """Zeros, the ends of the subnormals and of the range, ones, and infinities and NaNs where the format has them."""
    m, one = format.mantissa_bits, format.bias << format.mantissa_bits
    largest = format.magnitude_limit - 1
    codes = [0, 1, (1 << m) - 1, 1 << m, one, one + 1, largest]
    if format.specials is Specials.IEEE:
        infinity = ((1 << format.exponent_bits) - 1) << m
        codes += [infinity - 1, infinity, infinity + 1, infinity + (1 << m >> 1)]
    elif format.specials is Specials.NAN_ALL_ONES:
        codes += [largest - 1]
    both = [code | sign for code in dict.fromkeys(codes) for sign in (0, format.sign_mask >> format.padding_bits)]
    return [code << format.padding_bits for code in both]


def _build(format: Format, drawn: Words, exponent: NDArray[Any], mantissa: Words) -> Codes:
    """Codes of a random sign, the exponent fields given and the low bits of `mantissa`; tf32 has random bits below."""
    field = np.asarray(exponent).astype(np.uint64) << np.uint64(format.mantissa_bits)
    code = field | (mantissa & np.uint64((1 << format.mantissa_bits) - 1))
    code = code << np.uint64(format.padding_bits)
    if format.padding_bits:
        code |= drawn >> np.uint64(30) & np.uint64((1 << format.padding_bits) - 1)
    sign = drawn >> np.uint64(63)
    return (code | sign * np.uint64(format.sign_mask)).astype(format.code_dtype)


def class_codes(name: str, drawn: Words, format: Format, *, is_b: bool = False, lowered: int = 0) -> Codes:
    """Operand codes of one class; `lowered` binades less where a result in f16 would be infinite too often.

    B of "finite" and "large" stays near or below 1 in wide formats, for the same reason. Bits 44 to 62 of a word
    decide, its low bits are the mantissa, its top bit is the sign. Formats of less than a byte take the low bits.
    """
    codes = _class_codes(name, drawn, format, is_b, lowered)
    return codes & codes.dtype.type(format.code_limit - 1)


def _class_codes(name: str, drawn: Words, format: Format, is_b: bool, lowered: int) -> Codes:
    top = (1 << format.exponent_bits) - 1 - (format.specials is Specials.IEEE)
    last = top - (format.specials is Specials.NAN_ALL_ONES)  # the largest field without any special code
    choice = (drawn >> np.uint64(44) & np.uint64(0x7FFFF)).astype(np.int64)
    row = choice[..., :1]
    reach = max(min(format.bias - 1, 14), 1)
    modest = is_b and format.exponent_bits > 4
    spread = np.maximum(format.bias - reach + choice % (2 * reach) - lowered, 0)
    match name:
        case "bits":
            return drawn.astype(format.code_dtype)
        case "finite":
            return _build(format, drawn, choice % (format.bias if modest else last + 1), drawn)
        case "narrow":
            low = 1 + row % max(last - 3, 1) if format.exponent_bits < 8 else format.bias - 8 + row % 16
            return _build(format, drawn, np.clip(low - lowered + (choice >> 4) % 4, 1, last), drawn)
        case "geometric":
            return _build(format, drawn, np.maximum(format.bias - _trailing_zeros(choice), 0), drawn)
        case "swamping":
            high, far = format.bias + reach // 2 - lowered, 12 + (row >> 4) % 16
            return _build(format, drawn, np.maximum(np.where(choice % 8 == 0, high, high - far), 0), drawn)
        case "subnormal":
            small = np.where(row % 4 == 3, (choice >> 5) % (last + 1), (choice >> 5) % 3)
            return _build(format, drawn, small, drawn)
        case "sparse":
            codes = _build(format, drawn, spread, drawn)
            some = (choice >> 6) % np.array([1 << 20, 8, 32, 16])[row % 4] == 1
            return np.where(some, codes, codes & codes.dtype.type(format.sign_mask))
        case "special":
            table = np.array(special_codes(format), np.uint64)
            codes = _build(format, drawn, spread, drawn)
            marked = choice % np.array([16, 64, 256, 2])[(row >> 7) % 4] == 0
            return np.where(marked, table[(choice >> 8) % len(table)].astype(codes.dtype), codes)
        case "large":
            return _build(format, drawn, format.bias - 4 + choice % 6 if modest else last - choice % 3, drawn)
        case "powers":
            return _build(format, drawn, spread, drawn & np.uint64(0))
    return _build(format, drawn, spread, drawn)  # spread, cancelling


def _trailing_zeros(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many low bits are 0, 19 for none set: geometric in random numbers of 19 bits."""
    lowest = (numbers & -numbers) | np.int64(1) << 19
    return (np.frexp((lowest & -lowest).astype(np.float64))[1] - 1).astype(np.int64)


def _cancelled(a: Codes, b: Codes, drawn: Words, format: Format) -> tuple[Codes, Codes]:
    """Every odd k takes the product before it with the sign turned, in a quarter of all rows one ulp off."""
    a, b = a.copy(), b.copy()
    a[..., 1::2] = a[..., 0::2]
    ulp = (drawn[..., 1::2] >> np.uint64(40) & np.uint64(3)) == 0
    b[..., 1::2] = (
        b[..., 0::2] ^ b.dtype.type(format.sign_mask) ^ (ulp.astype(b.dtype) << b.dtype.type(format.padding_bits))
    )
    return a, b


def _near(shape: Shape, format: Format, drawn: Words, a: Codes, b: Codes) -> Codes:
    """C whose exponent is that of the first product, more or less: by 3 binades at most in half of all, by 30 in others."""
    exponents = []
    for codes, row in ((a[..., 0], float_named(shape.a_format)), (b[..., 0], float_named(shape.b_format))):
        magnitude = codes.astype(np.uint64) >> np.uint64(row.padding_bits) & np.uint64(row.magnitude_limit - 1)
        exponents.append((magnitude >> np.uint64(row.mantissa_bits)).astype(np.int64) - row.bias)
    choice = (drawn >> np.uint64(52) & np.uint64(0x7FF)).astype(np.int64)
    offset = np.where(choice % 2 == 0, (choice >> 1) % 7 - 3, (choice >> 1) % 61 - 30)
    field = exponents[0][:, :, None] + exponents[1][:, None, :] + offset + format.bias
    return _build(format, drawn, np.clip(field, 0, (1 << format.exponent_bits) - 2), drawn)


def _opposite(shape: Shape, drawn: Words, a: Codes, b: Codes) -> Codes:
    """C is the product of some k with its sign turned, rounded to D's format; NaN has one code."""
    k = a.shape[-1]
    place = int(drawn[0, 0, 0] >> np.uint64(20)) % k
    kind, format = shape.d_format.array_dtype, float_named(shape.d_format)
    assert kind is not None
    with np.errstate(all="ignore"):
        x, y = (values_of(np.ascontiguousarray(codes[..., place]), element).astype(np.float64)
                for codes, element in ((a, shape.a_format), (b, shape.b_format)))  # fmt: skip
        negated = (-x[:, :, None] * y[:, None, :]).astype(kind)
    codes: Codes = negated.view(format.code_dtype)
    return np.where(np.isnan(negated), codes.dtype.type(format.magnitude_limit - 1), codes)


def _integers(name: str, drawn: Words) -> Codes:
    """Operand bytes of one class."""
    bytes_ = drawn.astype(np.uint8)
    choice = (drawn >> np.uint64(44)).astype(np.int64)
    match name:
        case "extreme":
            return np.array([0x80, 0x7F, 0xFF, 0x00, 0x01, 0x81], np.uint8)[choice % 6]
        case "small":
            return (choice % 7 - 3).astype(np.int8).view(np.uint8)
        case "sparse":
            return np.where(choice % 8 == 0, bytes_, np.uint8(0))
    return bytes_
