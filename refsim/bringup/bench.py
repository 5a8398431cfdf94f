"""A tensor core as a function: dot products of chosen numbers in, exact numbers out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.conversions import decode, encode
from refsim.errors import RefsimError
from refsim.formats import Format

Codes = NDArray[np.unsignedinteger[Any]]
Dots = Callable[[Codes, Codes, Codes], Codes]
"""A tensor core: a (batch, K), b (batch, K), c (batch,) codes to d (batch,) codes; K is one instruction's."""
WIDEST = 60
"""The largest magnitude of a probe's exponents, except in probes of the least numbers."""


@dataclass(frozen=True)
class Probe:
    """Products by place of K, and C; all other products are zero."""

    products: Mapping[int, Fraction]
    c: Fraction = Fraction(0)


@cache
def power(exponent: int) -> Fraction:
    """Return 2^exponent."""
    return Fraction(2) ** exponent


@lru_cache(maxsize=1 << 14)
def _code(number: Fraction, format: Format) -> int | None:
    """Return the code of a number, or None where the format does not hold it; results are cached."""
    code = encode(np.array(float(number)), format, overflow="saturate")
    return int(code) if Fraction(float(decode(code, format))) == number else None


@dataclass(frozen=True)
class Bench:
    """A tensor core with its formats, called with numbers: the possible products and the results. `floor` is the least
    exponent of a product that the core is known to keep."""

    dots: Dots
    a_format: Format
    b_format: Format
    d_format: Format
    k: int
    floor: int = -WIDEST

    @property
    def top(self) -> int:
        """Return the largest exponent of a product that probes use; the result holds it."""
        return min(reach(self.a_format) + reach(self.b_format), reach(self.d_format) - 1, WIDEST)

    @property
    def bottom(self) -> int:
        """Return the least exponent of a power-of-two product that is exact as the only term of a result."""
        return max(self.least, self.last_unit, self.floor)

    @property
    def last_unit(self) -> int:
        """Return the exponent of the least result: -149 for f32."""
        return exponent_of(Fraction(self.d_format.quantum))

    @property
    def least(self) -> int:
        """Return the exponent of the least product, of two subnormal numbers."""
        return sum(exponent_of(Fraction(format.quantum)) for format in (self.a_format, self.b_format))

    @property
    def normal_bottom(self) -> int:
        """Return the least exponent of a product of normal operands."""
        return sum(1 - format.bias for format in (self.a_format, self.b_format))

    def factors(self, value: Fraction) -> tuple[int, int]:
        """Return codes of A and B whose product is +-2^e or +-1.5 x 2^e, normal operands where possible. Raises
        RefsimError `unreachable-product` where the formats have no such operands."""
        exponent = exponent_of(abs(value))
        a_least, b_least = 1 - self.a_format.bias, 1 - self.b_format.bias
        low, high = max(b_least, exponent - reach(self.a_format)), min(reach(self.b_format), exponent - a_least)
        b_exponent = min(max(exponent // 2, low), high)
        if low > high:  # one operand must be subnormal: first A, then both
            b_exponent = min(b_least, exponent - exponent_of(Fraction(self.a_format.quantum)))
        rest = value / power(exponent)
        for a_value, b_value in ((rest, 1), (rest / abs(rest), abs(rest))):
            numbers = (a_value * power(exponent - b_exponent), b_value * power(b_exponent))
            codes = [
                _code(number, format) for number, format in zip(numbers, (self.a_format, self.b_format), strict=True)
            ]
            if None not in codes:
                return codes[0] or 0, codes[1] or 0
        what = f"no {self.a_format.name} times {self.b_format.name} is {float(value):g}"
        raise RefsimError("unreachable-product", what)

    def ask(self, probes: Sequence[Probe]) -> list[Fraction]:
        """Return the result of each probe; a result that is not finite counts as 2^999, which no probe expects."""
        a = np.zeros((len(probes), self.k), self.a_format.code_dtype)
        b = np.zeros((len(probes), self.k), self.b_format.code_dtype)
        c = encode(np.array([float(probe.c) for probe in probes]), self.d_format)
        known: dict[Fraction, tuple[int, int]] = {}
        for row, probe in enumerate(probes):
            for place, value in probe.products.items():
                if value not in known:
                    known[value] = self.factors(value)
                a[row, place], b[row, place] = known[value]
        values = decode(self.dots(a, b, c), self.d_format)
        return [Fraction(float(value)) if np.isfinite(value) else power(999) for value in values]


@dataclass(frozen=True)
class Sums:
    """Sums of 2^j V and `pieces` times a bit `depth` places below the leading bit, all in one step. `fraction` is F,
    the number of bits that the step keeps below the largest exponent. `early`: the bit is in C."""

    bench: Bench
    group: tuple[int, ...]
    early: bool
    fraction: int

    @property
    def base(self) -> int:
        """Return the exponent of V: 64 V stay in the range of the result."""
        return min(self.bench.top, reach(self.bench.d_format) - 7)

    @property
    def doublings(self) -> int:
        """Return the largest j: the step has room for 2^j products V."""
        room = len(self.group) if self.early else len(self.group) - 2
        return max(room, 1).bit_length() - 1

    @property
    def max_probe_depth(self) -> int:
        """Return the number of bits below the leading bit at which a probe can place a bit."""
        lowest = self.fraction if self.early else min(self.fraction, self.base - self.bench.bottom)
        return lowest + self.doublings

    def _copies(self, depth: int) -> int:
        """Return j: the least number of doublings that bring the bit within the fraction."""
        return max(0, depth - (self.max_probe_depth - self.doublings))

    def leading(self, depth: int) -> Fraction:
        """Return the leading sum of a probe of that depth."""
        return power(self.base + self._copies(depth))

    def growth(self, depth: int, got: Fraction, kept: int) -> int:
        """Return by how many units of a result with `kept` bits the result's magnitude exceeds the leading sum."""
        return round((abs(got) / self.leading(depth) - 1) / power(-kept))

    def exact(self, depth: int, pieces: int) -> Fraction:
        """Return the exact sum of a probe."""
        return self.leading(depth) * (1 + pieces * power(-depth))

    def probe(self, depth: int, pieces: int, sign: int = 1) -> Probe:
        """Return the probe of a bit at a depth; `sign` negates all terms."""
        copies = 1 << self._copies(depth)
        products = {place: sign * power(self.base) for place in self.group[:copies]}
        added = sign * self.leading(depth) * power(-depth)
        if self.early:
            return Probe(products, pieces * added)
        products[self.group[copies]] = added
        if pieces == 3:
            products[self.group[copies + 1]] = 2 * added
        return Probe(products)


def exponent_of(value: Fraction) -> int:
    """Return floor(log2(value)) of a positive value."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if power(guess) <= value else guess - 1


def reach(format: Format) -> int:
    """Return the exponent of the largest number: 8 for E4M3."""
    return exponent_of(Fraction(format.max_value))
