"""Codes of one class, made of random words: which bits of a word decide what, and a function for every class.

A class says which exponents there are; sign and mantissa are random. What a row of K has in common is decided by the
word of its first element. Recordings keep no operands: a class that drew otherwise would be another question.
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
        above = words >> np.uint64(self.first)
        return above if self.first + self.count == 64 else above & np.uint64((1 << self.count) - 1)

    def numbers(self, words: Words) -> Numbers:
        return self.of(words).astype(np.int64)


# Fields of a word. A mantissa is its low bits, so wide ones reach into the fields above them, which hurts nobody.
SIGN = BitField(63, 1)
CHOICE = BitField(44, 19)  # the exponent, and what else a class leaves to chance
PADDING_FROM = 30  # the bits of a tf32 word that no product may see
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
"""The landmarks among operands, in the order in which words choose them."""


def build(format: Format, words: Words, fields: NDArray[Any], mantissas: Words) -> Codes:
    """Codes with these exponent fields and the low bits of `mantissas`; the sign and the padding are the words'."""
    low = (mantissas & np.uint64((1 << format.mantissa_bits) - 1)) << np.uint64(format.padding_bits)
    low |= BitField(PADDING_FROM, format.padding_bits).of(words)
    return composed(format, SIGN.of(words), fields, low).astype(format.code_dtype)


@dataclass(frozen=True)
class Draw:
    """Random words (.., K) for one operand, and the format that they become codes of.

    `lowered`: binades less, where a result in f16 would be infinite too often.
    """

    words: Words
    format: Format
    is_b: bool = False
    lowered: int = 0

    @cached_property
    def choice(self) -> Numbers:
        """(.., K): a number of 19 bits for every element."""
        return CHOICE.numbers(self.words)

    @property
    def of_row(self) -> Numbers:
        """(.., 1): the number of a row's first element, for what its elements have in common."""
        return self.choice[..., :1]

    @property
    def last(self) -> int:
        """The largest exponent field without any special code."""
        specials = (Specials.IEEE, Specials.NAN_ALL_ONES)
        return (1 << self.format.exponent_bits) - 1 - (self.format.specials in specials)

    @property
    def reach(self) -> int:
        """Binades below 1 that "spread" has, and as many from 1 on: 14, fewer in narrow formats."""
        return max(min(self.format.bias - 1, 14), 1)

    @property
    def is_modest(self) -> bool:
        """B of a wide format stays near or below 1 where most results would be infinite else."""
        return self.is_b and self.format.exponent_bits > 4

    @property
    def spread_fields(self) -> Numbers:
        """Every exponent of the reach alike."""
        return np.maximum(self.format.bias - self.reach + self.choice % (2 * self.reach) - self.lowered, 0)

    def with_fields(self, fields: NDArray[Any]) -> Codes:
        return build(self.format, self.words, fields, self.words)


def class_codes(name: str, draw: Draw) -> Codes:
    """The codes of a class of CLASSES, in the low bits of their integers."""
    codes = PROBE_CLASSES[name](draw)
    return codes & codes.dtype.type(draw.format.code_limit - 1)


# ---------------------------------------------------------------------------------------------------------------------
# Classes of floats


def _bits(draw: Draw) -> Codes:
    """Any code."""
    return draw.words.astype(draw.format.code_dtype)


def _finite(draw: Draw) -> Codes:
    """Every exponent alike."""
    return draw.with_fields(draw.choice % (draw.format.bias if draw.is_modest else draw.last + 1))


def _narrow(draw: Draw) -> Codes:
    """Four neighbouring exponents in a row: anywhere in small formats, around 1 in those of eight exponent bits and more."""
    bias, row = draw.format.bias, draw.of_row
    low = 1 + row % max(draw.last - 3, 1) if draw.format.exponent_bits < 8 else bias - 8 + row % 16
    return draw.with_fields(np.clip(low - draw.lowered + (draw.choice >> 4) % 4, 1, draw.last))


def _geometric(draw: Draw) -> Codes:
    """Half of all in the binade of 1, a quarter in the one below, and so on."""
    return draw.with_fields(np.maximum(draw.format.bias - _trailing_zeros(draw.choice), 0))


def _spread(draw: Draw) -> Codes:
    return draw.with_fields(draw.spread_fields)


def _swamping(draw: Draw) -> Codes:
    """One in eight is large, the others lie 12 to 27 binades below, as far in all of a row."""
    high, far = draw.format.bias + draw.reach // 2 - draw.lowered, 12 + (draw.of_row >> 4) % 16
    return draw.with_fields(np.maximum(np.where(draw.choice % 8 == 0, high, high - far), 0))


def _subnormal(draw: Draw) -> Codes:
    """Subnormals and the two binades above them; every fourth row has any exponent."""
    number = draw.choice >> 5
    return draw.with_fields(np.where(draw.of_row % 4 == 3, number % (draw.last + 1), number % 3))


def _sparse(draw: Draw) -> Codes:
    """Zeros of either sign but for one in 8, 16 or 32, or, in a quarter of the rows, hardly any."""
    codes, one_in = _spread(draw), np.array([1 << 20, 8, 32, 16])[draw.of_row % 4]
    return np.where((draw.choice >> 6) % one_in == 1, codes, codes & codes.dtype.type(draw.format.sign_mask))


def _special(draw: Draw) -> Codes:
    """Special codes among others: one in 2, 16, 64 or 256, as the row has it."""
    codes, table = _spread(draw), np.array(special_codes(draw.format, PROBED), np.uint64)
    one_in = np.array([16, 64, 256, 2])[(draw.of_row >> 7) % 4]
    return np.where(draw.choice % one_in == 0, table[(draw.choice >> 8) % len(table)].astype(codes.dtype), codes)


def _large(draw: Draw) -> Codes:
    """The three largest binades."""
    return draw.with_fields(draw.format.bias - 4 + draw.choice % 6 if draw.is_modest else draw.last - draw.choice % 3)


def _powers(draw: Draw) -> Codes:
    """As "spread", without a mantissa."""
    return build(draw.format, draw.words, draw.spread_fields, np.zeros_like(draw.words))


PROBE_CLASSES: dict[str, Callable[[Draw], Codes]] = {
    "bits": _bits,
    "finite": _finite,
    "narrow": _narrow,
    "geometric": _geometric,
    "spread": _spread,
    "swamping": _swamping,
    "cancelling": _spread,  # whose every second product tensor_probe turns
    "subnormal": _subnormal,
    "sparse": _sparse,
    "special": _special,
    "large": _large,
    "powers": _powers,
}
"""In the order of their numbers, which stand in the seeds: a new class comes last."""


def _trailing_zeros(numbers: Numbers) -> Numbers:
    """How many low bits are 0, 19 for none set: geometric in random numbers of 19 bits."""
    lowest = (numbers & -numbers) | np.int64(1) << 19
    return (np.frexp((lowest & -lowest).astype(np.float64))[1] - 1).astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------------
# Classes of 8-bit integers


def _extreme_integers(words: Words) -> Codes:
    return np.array([0x80, 0x7F, 0xFF, 0x00, 0x01, 0x81], np.uint8)[_integer_choice(words) % 6]


def _small_integers(words: Words) -> Codes:
    """-3 to 3."""
    return (_integer_choice(words) % 7 - 3).astype(np.int8).view(np.uint8)


def _sparse_integers(words: Words) -> Codes:
    """Zeros but for one in eight."""
    return np.where(_integer_choice(words) % 8 == 0, words.astype(np.uint8), np.uint8(0))


INTEGER_CLASSES: dict[str, Callable[[Words], Codes]] = {
    "bits": lambda words: words.astype(np.uint8),
    "extreme": _extreme_integers,
    "small": _small_integers,
    "sparse": _sparse_integers,
}


def _integer_choice(words: Words) -> Numbers:
    return BitField(CHOICE.first, CHOICE.count + 1).numbers(words)
