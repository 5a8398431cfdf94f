"""Operands at which arithmetic breaks: the special codes of a format, and classes of numbers for sums.

A class names the behavior of a sum of products of such numbers. A NumPy generator draws the codes, so a test case is a
seed and a few names. Only the bit layout is used, so a format without infinities has every class too.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import check_named
from refsim.formats import Format, Specials, format_named

Codes = NDArray[Any]
Words = NDArray[np.uint64]

VANISHING = (75, 64, 11)  # binades below 1 at which products reach the smallest float32 or float16


def composed(format: Format, sign: NDArray[Any], field: NDArray[Any], low: NDArray[Any]) -> Words:
    """Return codes of a sign (0 or 1), an exponent field and the bits below: the mantissa and, in tf32, the padding."""
    below, width = _places(format)
    places = np.uint64(below), np.uint64(width - 1)
    mantissa = np.asarray(low, np.uint64) & np.uint64((1 << below) - 1)
    signs = np.asarray(sign, np.uint64) if format.signed else np.uint64(0)
    words: Words = signs << places[1] | np.asarray(field).astype(np.uint64) << places[0] | mantissa
    return words


class _Draw:
    """One array of codes in progress: `words` holds random codes, whose sign and mantissa most classes keep."""

    def __init__(self, format: Format, shape: tuple[int, ...], random: np.random.Generator) -> None:
        """Draw random codes of the format in the given shape."""
        self.format, self.shape, self.random = format, shape, random
        self.below, self.width = _places(format)
        self.words = random.integers(0, 1 << self.width, shape, np.uint64)
        self.top = (1 << format.exponent_bits) - 1
        self.largest = max(self.top - 1, 0)

    def at(self, field: Any, low: Any = None) -> Words:
        """Return the codes with another exponent field and, where `low` is given, another mantissa."""
        low = self.words if low is None else np.broadcast_to(np.asarray(low, np.uint64), self.shape)
        fields = np.broadcast_to(np.asarray(field), self.shape)
        return composed(self.format, self.words >> np.uint64(self.width - 1), fields, low)

    def some(self, chance: float, rare: Words, others: Words) -> Words:
        """Return `rare` with a probability of `chance` for each element, else `others`."""
        return np.where(self.random.random(self.shape) < chance, rare, others)

    def one_of(self, *choices: Words) -> Words:
        """Return one of the arrays, chosen at random for the whole array."""
        chosen: Words = self.random.choice(np.stack(choices), axis=0)
        return chosen


def _zeros(draw: _Draw) -> Words:
    return draw.at(0, 0)


def _subnormal(draw: _Draw) -> Words:
    """Return subnormal numbers of every magnitude."""
    shift = draw.random.integers(0, draw.below + 1, draw.shape, np.uint64)
    return draw.at(0, (draw.words & np.uint64((1 << draw.below) - 1)) >> shift)


def _moderate(draw: _Draw) -> Words:
    """Return numbers in six binades around 1."""
    low, high = max(draw.format.bias - 3, 0), min(draw.format.bias + 3, draw.top)
    return draw.at(draw.random.integers(low, high, draw.shape))


def _gaussian(draw: _Draw) -> Words:
    """Return numbers from [1, 2) down; each lower binade is half as likely."""
    return draw.at(np.maximum(draw.format.bias + 1 - draw.random.geometric(0.5, draw.shape), 0))


def _largest(draw: _Draw) -> Words:
    """Return numbers in the two largest binades."""
    return draw.at(np.maximum(draw.top - draw.random.integers(1, 3, draw.shape), 0))


def _full(draw: _Draw) -> Words:
    """Return numbers with all mantissa bits set, one exponent and no sign: every product is 4 - eps of one scale."""
    field = min(max(draw.format.bias + int(draw.random.integers(-40, 41)), 1), draw.largest)
    ones = np.full(draw.shape, ~np.uint64(0))
    return composed(draw.format, np.zeros(draw.shape), np.full(draw.shape, field), ones)


def _vanishing(draw: _Draw) -> Words:
    """Return numbers whose products are near the smallest results."""
    centre = draw.format.bias - draw.random.choice(VANISHING)
    return draw.at(np.clip(centre + draw.random.integers(-4, 4, draw.shape), 0, draw.largest))


def _specials(draw: _Draw) -> Words:
    """Return random codes with some infinities, or codes of the highest exponent field, or both."""
    infinite, highest = draw.at(draw.top, 0), draw.at(draw.top)
    return draw.some(0.08, draw.one_of(infinite, highest, draw.some(0.5, infinite, highest)), draw.words)


CLASSES: dict[str, Callable[[_Draw], Words]] = {
    "codes": lambda draw: draw.words,
    "zeros": _zeros,
    "sparse": lambda draw: draw.some(0.9, draw.at(0, 0), draw.words),
    "subnormal": _subnormal,
    "moderate": _moderate,
    "cancelling": _moderate,  # before `cancel`
    "gaussian": _gaussian,
    "largest": _largest,
    "overflowing": lambda draw: draw.some(0.04, draw.at(draw.top, 0), draw.at(draw.largest)),
    "extremes": lambda draw: draw.one_of(draw.at(0, 0), draw.at(0), draw.at(draw.largest), draw.at(draw.format.bias)),
    "full": _full,
    "vanishing": _vanishing,
    "specials": _specials,
}
"""The name tells the behavior of a sum of products of such numbers."""


def drawn(format: Format, kind: str, shape: tuple[int, ...], random: np.random.Generator) -> Codes:
    """Return codes of one of CLASSES, in the narrowest unsigned dtype that holds them; raise for an unknown name."""
    check_named("class of operands", kind, CLASSES)
    draw = _Draw(format, shape, random)
    return CLASSES[kind](draw).astype(np.min_scalar_type((1 << draw.width) - 1))


def at_exponents(format: Format, exponents: NDArray[Any], random: np.random.Generator) -> Codes:
    """Return codes of numbers with these exponents and random sign and mantissa. Exponents above the range become the
    largest, exponents below it give subnormal numbers."""
    below, width = _places(format)
    fields = np.clip(exponents + format.bias, 0, (1 << format.exponent_bits) - 2)
    sign, low = random.integers(0, 2, exponents.shape), random.integers(0, 1 << below, exponents.shape, np.uint64)
    return composed(format, sign, fields, low).astype(np.min_scalar_type((1 << width) - 1))


def cancel(a: Codes, b: Codes, a_format: Format) -> None:
    """Make the second half of K cancel the first: A's codes repeat with the other sign, B's codes repeat."""
    half = a.shape[-1] // 2
    a[..., half : 2 * half] = a[..., :half] ^ a.dtype.type(a_format.sign_mask)
    b[..., half : 2 * half] = b[..., :half]


def landmarks(format: Format) -> dict[str, int]:
    """Return the magnitudes at which arithmetic changes, without sign and padding: landmarks(E4M3)["largest"] is 0x7e.

    Only formats that have them list "infinity", "signalling" (the NaN with the smallest payload) and "quiet" (no
    payload).
    """
    mantissa, pad = format.mantissa_bits, format.padding_bits
    one = int(1 / format.quantum) if format.twos_complement else format.bias << mantissa
    half = one >> 1 if format.twos_complement or format.bias == 1 else one - (1 << mantissa)
    largest = format.max_code >> pad
    found = {
        "zero": 0,
        "least": 1,
        "below normal": (1 << mantissa) - 1,
        "normal": 1 << mantissa,
        "half": half,
        "one": one,
        "above one": one + 1,
        "below largest": largest - 1,
        "largest": largest,
        "top": format.magnitude_limit - 1,
    }
    if format.specials is Specials.IEEE:
        infinity = ((1 << format.exponent_bits) - 1) << mantissa
        found |= {"infinity": infinity, "signalling": infinity + 1, "quiet": infinity + (1 << mantissa >> 1)}
    return found


BREAKING = (
    "zero",
    "least",
    "below normal",
    "normal",
    "half",
    "one",
    "above one",
    "below largest",
    "largest",
    "infinity",
    "top",
    "signalling",
    "quiet",
)


def special_codes(format: str | Format, names: Sequence[str] = BREAKING) -> tuple[int, ...]:
    """Return the codes of the given `landmarks` that a format has, each with both signs. E4M3 has 0x00, 0x01, 0x07,
    0x08, 0x30, 0x38, 0x39, 0x7d, 0x7e, 0x7f, each with and without the sign."""
    row = format_named(format)
    known = landmarks(row)
    magnitudes = dict.fromkeys(known[name] << row.padding_bits for name in names if name in known)
    codes = (magnitude | sign for magnitude in magnitudes for sign in (0, row.sign_mask))
    return tuple(dict.fromkeys(code for code in codes if code < row.code_limit))


def _places(format: Format) -> tuple[int, int]:
    """Return the number of bits below the exponent field, and of the whole code."""
    return format.mantissa_bits + format.padding_bits, format.bits + format.padding_bits
