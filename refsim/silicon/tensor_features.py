"""Tests of a tensor core by single dot products, each after a fact that is known of other chips.

Every case is one vector of A, one of B and a C, given to all rows and columns. The recording keeps one result a case,
and that all results of D are equal. Cases that a format cannot hold are left out.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from refsim.formats import Format, float_named
from refsim.numerics.dot.chains import floats
from refsim.numerics.multiply import ProductSpec
from refsim.numerics.rows import Profile
from refsim.reference.operands import special_codes
from refsim.silicon.tensor_probe import (
    PROBED,
    Codes,
    Draw,
    Vector,
    class_codes,
    coded,
    holds,
    largest,
    lowered,
    power,
    terms,
    words,
)

_SEED_A, _SEED_B = 0x700, 0x710  # of the random vectors
_VECTORS = ("spread", "spread", "swamping", "geometric")


@dataclass(frozen=True)
class Feature:
    """The cases of one test: codes a (cases, K), b (cases, K), c (cases) or None, and the operands negated."""

    name: str
    a: Codes
    b: Codes
    c: Codes | None
    negate_a: bool = False
    negate_b: bool = False


@dataclass
class _Cases:
    """The cases collected so far; `add` drops a case that a format does not hold."""

    shape: ProductSpec
    length: int
    vectors: list[Vector] = field(default_factory=list)
    c: list[float] = field(default_factory=list)

    def add(self, vector: Vector | None, c: float = 0.0) -> None:
        """Add a case of products `vector` and C, unless `vector` is None or a format does not hold a number."""
        if vector is None:
            return
        a, b, d = self._formats
        if not holds(d, c):
            return
        if all(holds(a, x) and holds(b, y) for x, y in set(vector.values())):
            self.vectors.append(vector)
            self.c.append(c)

    @cached_property
    def _formats(self) -> tuple[Format, Format, Format]:
        shape = self.shape
        return float_named(shape.a_format), float_named(shape.b_format), float_named(shape.d_format)

    def feature(self, name: str, *, accumulate: bool = True) -> Feature | None:
        """Return the collected cases under a name, or None where there are none."""
        if not self.vectors:
            return None
        a, b = np.zeros((2, len(self.vectors), self.length))
        for number, vector in enumerate(self.vectors):
            for k, (x, y) in vector.items():
                a[number, k], b[number, k] = x, y
        c = coded(np.array(self.c), self.shape.d_format) if accumulate else None
        return Feature(name, coded(a, self.shape.a_format), coded(b, self.shape.b_format), c)


def features(shape: ProductSpec) -> dict[str, Feature]:
    """Return every test of an instruction on floats, by name; none for integers."""
    if shape.d_format.is_integer:
        return {}
    found = [make(shape) for make in _OF_FLOATS]
    found += [*_permuted(shape), _permuted_chain(shape), _c_alone(shape), _specials(shape)]
    if float_named(shape.a_format).padding_bits:
        found.append(_low_bits(shape))
    return {row.name: row for row in found if row is not None}


def negated(shape: ProductSpec) -> dict[str, Feature]:
    """Return the tests of specials and random vectors with imm-scale-a, imm-scale-b or both equal to -1."""
    found = {}
    for flags in ((True, False), (False, True), (True, True)):
        suffix = "a" * flags[0] + "b" * flags[1]
        for row in (_specials(shape), *_permuted(shape)):
            if row.c is not None:
                name = f"{row.name}.negated_{suffix}"
                found[name] = Feature(name, row.a, row.b, row.c, *flags)
    return found


def _top(shape: ProductSpec) -> int:
    """Return the exponent of a large product whose sums D's format still holds."""
    narrow = float_named(shape.d_format).exponent_bits == 5
    return 14 if narrow or any(float_named(row).exponent_bits == 4 for row in (shape.a_format, shape.b_format)) else 20


def _highest(shape: ProductSpec) -> int:
    """Return the exponent of a large product, which need not be a number of D without C."""
    ends = [math.frexp(largest(float_named(name)))[1] - 1 for name in (shape.a_format, shape.b_format)]
    return min(sum(ends), 20)


def _c_precision(shape: ProductSpec) -> Feature | None:
    """Return U - U + c: the largest f for which c = U x 2^-f survives is the number of fraction bits that C keeps."""
    cases, top = _Cases(shape, shape.k), _top(shape)
    for f, sign, low in product(range(60), (1, -1), (1.0, 1.5)):
        cases.add(terms(shape, (1, top), (-1, top)), sign * low * 2.0 ** (top - f))
    return cases.feature("c_precision")


def _product_precision(shape: ProductSpec) -> Feature | None:
    """Return C = U with products -U and U x 2^-f, for the fraction bits that products keep."""
    cases, top = _Cases(shape, shape.k), _top(shape)
    for f, sign, low in product(range(60), (1, -1), (1.0, 1.5)):
        cases.add(terms(shape, (-1, top), (sign * low, top - f)), 2.0**top)
    return cases.feature("product_precision")


def _three_products(shape: ProductSpec) -> Feature | None:
    """Return products U, -U and, at k = 2 or k = 4, U x 2^-f, without C."""
    cases, top = _Cases(shape, shape.k), _highest(shape)
    for f, sign, low, place in product(range(60), (1, -1), (1.0, 1.5), (2, 4)):
        pair, small = terms(shape, (1, top), (-1, top)), power(shape, top - f, sign * low)
        if pair is not None and small is not None and place < shape.k:
            cases.add({**pair, place: small})
    return cases.feature("three_products", accumulate=False)


def _rounding_cases(shape: ProductSpec, c: float) -> _Cases:
    cases = _Cases(shape, shape.k)
    for ones, odd, t, sign in product((0, 1, 3, 7, 15, 31), (1, 3, 5, 7), range(6, 29), (1, -1)):
        if ones < shape.k:
            cases.add(terms(shape, *[(sign, 0)] * ones, (sign * odd, -t)), sign * c)
    return cases


def _output_rounding(shape: ProductSpec) -> Feature | None:
    """Return sums of n ones and an odd multiple of 2^-t: carries push bits past the end of the result."""
    return _rounding_cases(shape, 0.0).feature("output_rounding", accumulate=False)


def _output_rounding_c(shape: ProductSpec) -> Feature | None:
    """Return the sums of `_output_rounding` with C = 1 or -1."""
    return _rounding_cases(shape, 1.0).feature("output_rounding_c")


def _renormalised(shape: ProductSpec) -> Feature | None:
    """Return products 1.5 x 1.5 = 2.25 next to 2^-f: the fraction kept shows whether the exponent is 0 or 1."""
    cases = _Cases(shape, shape.k)
    for f, sign, by_c in product(range(4, 40), (1, -1), (False, True)):
        small = power(shape, -f, sign)
        if small is not None:
            vector: Vector = {0: (1.5, 1.5), 1: small} if by_c else {0: (1.5, 1.5), 1: (-1.5, 1.5), 2: small}
            cases.add(vector, -2.25 if by_c else 0.0)
    return cases.feature("renormalised")


def _order(shape: ProductSpec) -> Feature | None:
    """Return U at i, -U at j and the smallest products elsewhere, over two instructions. The step of U and -U loses its
    small products, which shows the elements of each step."""
    length = 2 * shape.k
    large, small = power(shape, _highest(shape)), None
    for exponent in range(-40, 0):
        small = small or power(shape, exponent)
    if large is None or small is None:
        return None
    cases = _Cases(shape, length)
    for i, j in product(range(length), range(length)):
        if i == j or (length > 32 and (i % 8, j % 4) not in ((0, 0), (5, 3), (3, 1))):
            continue
        vector: Vector = dict.fromkeys(range(length), small)
        vector[i], vector[j] = large, (-large[0], large[1])
        cases.add(vector)
    return cases.feature("order")


def _tiny(shape: ProductSpec) -> Feature | None:
    """Return sums of products below the result's smallest number: the surviving bits show a zero's exponent."""
    cases = _Cases(shape, shape.k)
    row = float_named(shape.d_format)
    if row.exponent_bits == 5:
        for head, n, t, sign in product((0, 1, 3), (1, 2, 3), range(22, 50), (1, -1)):
            if n < shape.k:
                cases.add(terms(shape, (head, -25), *[(sign, -t)] * n))
        return cases.feature("tiny")
    lowest = row.bias - 1 + row.mantissa_bits
    for n, t, factor, c in product((1, 2, 3, 5, 8, 16), range(lowest - 8, lowest + 16), (1.0, 1.5), (0, 1, -1, 3)):
        if n < shape.k:
            cases.add(terms(shape, *[(factor, -t)] * n), c * 2.0**-lowest)
            cases.add(terms(shape, (1, -lowest), *[(-factor, -t)] * (n - 1)), c * 2.0**-lowest)
    return cases.feature("tiny")


def _signed_zeros(shape: ProductSpec) -> Feature | None:
    """Return zeros of all signs, exact cancellation and negative underflow, which show the sign of the result."""
    cases = _Cases(shape, shape.k)
    small = next((pair for pair in (power(shape, exponent) for exponent in range(-400, 0)) if pair), (1.0, 1.0))
    for x, y, c in product((0.0, -0.0, 1.0, -1.0), (0.0, -0.0), (0.0, -0.0)):
        cases.add(dict.fromkeys(range(shape.k), (x, y)), c)
        cases.add({0: (x, y)}, c)
    for sign, c in product((1, -1), (0.0, -0.0)):
        cases.add({0: (1.0, 1.0), 1: (-1.0, 1.0)}, c)
        cases.add({0: (sign * small[0], small[1])}, c)
        cases.add({0: (sign, 1.0)}, -sign)
        cases.add(dict.fromkeys(range(shape.k), (-0.0, 1.0)), c)
    return cases.feature("signed_zeros")


def _overflow(shape: ProductSpec) -> Feature | None:
    """Return sums at and above D's largest number; a C of the other sign brings some of them back."""
    cases, row = _Cases(shape, shape.k), float_named(shape.d_format)
    most = largest(row)
    edge = math.frexp(most)[1] - 1
    half_ulp = edge - row.mantissa_bits - 1
    for n, sign, c, extra in product((1, 2, 3), (1, -1), (0.0, 1.0, -1.0), range(-3, 3)):
        vector = terms(shape, *[(sign, edge)] * n, (sign, half_ulp + extra))
        cases.add(vector, sign * c * most)
        cases.add(terms(shape, (sign, half_ulp + extra)), sign * most)
        cases.add(terms(shape, (sign, half_ulp + extra), (sign, half_ulp - 2)), sign * most)
    return cases.feature("overflow")


def _smoke(shape: ProductSpec) -> Feature | None:
    """Return (-2^13, -1/2, -1/4, -1/8) times (2^10, 1, 1, 1) plus 2^23, over all scales that the formats hold."""
    cases = _Cases(shape, shape.k)
    for scale in range(-20, 1):
        cases.add(
            terms(shape, (-1, 23 + scale), (-1, scale - 1), (-1, scale - 2), (-1, scale - 3)), 2.0 ** (23 + scale)
        )
    return cases.feature("smoke")


def _vectors(shape: ProductSpec, length: int) -> list[tuple[Codes, Codes]]:
    """Return four random vectors of A and of B: two "spread", one "swamping", one "geometric"."""
    found = []
    for number, name in enumerate(_VECTORS):
        a_words, b_words = (words(seed + number, 1, 1, length) for seed in (_SEED_A, _SEED_B))
        a = class_codes(name, Draw(a_words, float_named(shape.a_format)))
        b = class_codes(name, Draw(b_words, float_named(shape.b_format), is_b=True, lowered=lowered(shape)))
        found.append((a[0, 0], b[0, 0]))
    return found


def _turned(vectors: list[tuple[Codes, Codes]]) -> tuple[Codes, Codes]:
    """Return every vector rotated by 0, 1, .. places, forward and reversed."""
    turned = [(np.roll(a, turn), np.roll(b, turn)) for a, b in vectors for turn in range(len(a))]
    found = [(a[::step], b[::step]) for a, b in turned for step in (1, -1)]
    return np.array([a for a, _ in found]), np.array([b for _, b in found])


def _permuted(shape: ProductSpec) -> Iterator[Feature]:
    """Yield random vectors rotated by 0 to k - 1 places and reversed: with C, with +0, and without C."""
    vectors = _vectors(shape, shape.k)
    a, b = _turned(vectors)
    kind = shape.d_format.code_dtype
    with np.errstate(all="ignore"):
        c = [
            np.array(-1.1 * float(floats(x[:1], shape.a_format)[0]) * float(floats(y[:1], shape.b_format)[0]))
            .astype(shape.d_format.array_dtype)
            .view(kind)
            for x, y in vectors
        ]
    yield Feature("permuted", a, b, np.repeat(np.array(c, kind), 2 * shape.k))
    yield Feature("permuted_zero", a, b, np.zeros(len(a), kind))
    yield Feature("permuted_scale_d", a, b, None)


def _permuted_chain(shape: ProductSpec) -> Feature:
    """Return rotated vectors over two instructions: a product that moves to the other may change the result."""
    return Feature("permuted_chain", *_turned(_vectors(shape, 2 * shape.k)), None)


def _c_alone(shape: ProductSpec) -> Feature:
    """Return products of zeros, for every exponent of C, both signs and 16 or 8 mantissas."""
    row = float_named(shape.d_format)
    m, fields = row.mantissa_bits, 1 << row.exponent_bits
    spread = (*((1 << i) for i in range(m - 8, m, 2)), *((1 << m) - (1 << i) for i in range(0, m, 3)))
    mantissas = sorted({0, 1, 3, (1 << m) - 1, 1 << (m - 1), *spread})
    step = max(fields // 256, 1)
    exponents = sorted({*range(0, fields, step), 1, 2, fields - 2, fields - 1})
    codes = [sign | e << m | x for sign in (0, row.sign_mask) for e in exponents for x in mantissas]
    zeros = [np.zeros((len(codes), shape.k), format.code_dtype) for format in (shape.a_format, shape.b_format)]
    return Feature("c_alone", zeros[0], zeros[1], np.array(codes, shape.d_format.code_dtype))


def _specials(shape: ProductSpec) -> Feature:
    """Return pairs of corners with corners as C, and infinity or one of either sign as the second product."""
    a, b, c = (corners(float_named(name)) for name in (shape.a_format, shape.b_format, shape.d_format))
    one = int(coded(np.array([1.0]), shape.a_format)[0])
    signed = [int(code) for code in coded(np.array([1.0, -1.0]), shape.b_format)]
    infinity = float_named(shape.a_format).infinity_code
    firsts = (one,) if infinity is None else (one, infinity)
    seconds = [(0, 0), *product(firsts, signed)]  # (of A, of B) at k = 1
    cases = list(product(a, b, c, seconds))
    x = np.zeros((len(cases), shape.k), shape.a_format.code_dtype)
    y = np.zeros((len(cases), shape.k), shape.b_format.code_dtype)
    for number, (of_a, of_b, _, second) in enumerate(cases):
        x[number, :2], y[number, :2] = (of_a, second[0]), (of_b, second[1])
    return Feature("specials", x, y, np.array([case[2] for case in cases], shape.d_format.code_dtype))


def corners(format: Format) -> list[int]:
    """Return zeros, one, the largest, the smallest subnormal, infinities and three NaNs, as far as the format has
    them."""
    ulp, one = 1 << format.padding_bits, format.bias << format.mantissa_bits + format.padding_bits
    chosen = [0, format.sign_mask, one, ulp, (format.magnitude_limit - 1) * ulp]
    infinity = format.infinity_code
    if infinity is not None:
        chosen += [infinity, infinity | format.sign_mask, infinity + ulp, infinity - ulp]
    known = special_codes(format, PROBED)
    return [code for code in chosen if code in known]


def _low_bits(shape: ProductSpec) -> Feature:
    """Return tf32 operands with the 13 padding bits set, which no product reads."""
    # zero, the smallest subnormal, 1 and its neighbor, the largest, infinity, the first NaN and a quiet one, -1, -infinity
    heads = (
        *(0x00000000, 0x00002000, 0x3F800000, 0x3F802000, 0x7F7FE000),
        *(0x7F800000, 0x7F802000, 0x7FC00000, 0xBF800000, 0xFF800000),
    )
    lows = (0, 1, 0x1000, 0x1FFF, 0x0FFF)  # 0x1000 is half of a tf32 ulp, 0x1FFF all 13 bits
    cases = [(head | low, other | last) for head, low, other, last in product(heads, lows, heads, (0, 0x1FFF))]
    x = np.zeros((len(cases), shape.k), np.uint32)
    y = np.zeros((len(cases), shape.k), np.uint32)
    x[:, 0], y[:, 0] = np.array(cases, np.uint32).T
    return Feature("low_bits", x, y, None)


def feature_words(shape: ProductSpec, feature: Feature, *, row: Profile | None = None) -> Codes:
    """Return the model's result for each case of a feature."""
    c = None if feature.c is None else feature.c[:, None, None]
    negated: dict[str, Any] = {"negate_a": feature.negate_a, "negate_b": feature.negate_b}
    return shape.codes(feature.a[:, None, :], feature.b[:, None, :], c, row=row, **negated).reshape(-1)


_OF_FLOATS = (
    *(_c_precision, _product_precision, _three_products, _output_rounding, _output_rounding_c, _renormalised),
    *(_order, _tiny, _signed_zeros, _overflow, _smoke),
)
