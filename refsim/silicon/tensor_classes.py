"""Codes of one class, made of random 64-bit words: the meaning of a word's bits, and a function for every class.

A class defines the exponents; sign and mantissa are random. The word of a row's first element decides the properties
that all elements of the row share. Recordings keep no operands, so a change of a class would invalidate them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import Format, Specials
from refsim.reference.operands import composed, special_codes

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
    "zero",
    "least",
    "below normal",
    "normal",
    "one",
    "above one",
    "top",
    "largest",
    "infinity",
    "signalling",
    "quiet",
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


def _extreme_integers(words: Words) -> Codes:
    return np.array([0x80, 0x7F, 0xFF, 0x00, 0x01, 0x81], np.uint8)[_integer_choice(words) % 6]


def _small_integers(words: Words) -> Codes:
    """Return integers from -3 to 3."""
    return (_integer_choice(words) % 7 - 3).astype(np.int8).view(np.uint8)


def _sparse_integers(words: Words) -> Codes:
    """Return zeros except for one in eight."""
    return np.where(_integer_choice(words) % 8 == 0, words.astype(np.uint8), np.uint8(0))


INTEGER_CLASSES: dict[str, Callable[[Words], Codes]] = {
    "bits": lambda words: words.astype(np.uint8),
    "extreme": _extreme_integers,
    "small": _small_integers,
    "sparse": _sparse_integers,
}


def _integer_choice(words: Words) -> Numbers:
    return BitField(CHOICE.first, CHOICE.count + 1).numbers(words)
