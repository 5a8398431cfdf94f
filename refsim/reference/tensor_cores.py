"""One dot product of a tensor core a second time: over fractions, with parameters of its own and no line of the model.

The parameters are those that Khattak and Mikaitis measured (arXiv:2512.07004) and that MMA-Sim 2.1.1 and the tcgen05
model 1.0.0 publish. They are stated here by generation, so that no table of the model is read.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from refsim.reference.block_scaled import (
    BLACKWELL,
    BLACKWELL_FP4,
    AlignedNumber,
    Alignment,
    Value,
    exact,
    factor,
    fused,
    multiplied,
    scaled_terms,
    term,
)
from refsim.reference.rational_float import GRIDS, add, fma, leading

WIDE_TYPES, INTEGER_TYPES, IN_HALVES = ("f16", "bf16", "tf32"), ("s8", "u8"), range(90, 111)

HALF_ZERO = 112
"""The exponent of a zero is larger by this in a step whose result is f16."""


class Factors(NamedTuple):
    """One row of A, one row of B and C, as codes, with the scales of their blocks; `types` are A's, B's and D's."""

    a: Sequence[int]
    b: Sequence[int]
    c: int
    types: tuple[str, str, str]
    scales: tuple[Sequence[int], Sequence[int]] = ((), ())
    scale_format: str = ""


def alignment(number: int, unit: str, format: str, result: str, k: int) -> Alignment:
    """Return the arithmetic of a step of a floating-point unit of sm_`number`, for operands of one format.

    alignment(120, "mma.sync", "bf16", "f32", 16) has 16 products, 25 bits below the largest exponent and -133 for a
    zero. With `k` 4, sm_75 computes as sm_70 does.
    """
    if format in WIDE_TYPES:
        volta = number < 75 or (number == 75 and k == 4)
        length, fraction, zero = (4, 23, -131) if volta else (8, 24, -132) if number < 90 else (16, 25, -133)
        step = Alignment(length // 2 if format == "tf32" else length, fraction, zero)
    elif unit.endswith(("mxf4", "mxf4nvf4")):
        step = BLACKWELL_FP4._replace(length=k)
    elif number < 90 or unit == "wgmma":
        step = Alignment(16, 13, -132, digits=13) if number < 90 else Alignment(32, 13, -133, digits=13)
    elif unit == "mma.sync" and number in IN_HALVES:
        step = Alignment(16, 25, -133)
    else:
        step = BLACKWELL
    return step._replace(zero=step.zero + HALF_ZERO, half=True) if result == "f16" else step


def dot_product(given: Factors, number: int, unit: str, k: int) -> int:
    """Return the code of D of one instruction of sm_`number`: C plus the sum of a[i] b[i].

    The operands have `k` elements, with a sparse A the stored ones and those of B that they meet. E4M3 ones (0x38) 32
    times with C = 0 give 0x42000000 on every chip.
    """
    a_format, _, result = given.types
    if a_format in INTEGER_TYPES:
        return (given.c + sum(int(each.value) for each in products(given.a, given.b, given.types))) % (1 << 32)
    grid = GRIDS[result]
    if a_format == "f64":
        total = grid.decode(given.c)
        for x, y in zip(given.a, given.b, strict=True):
            total = grid.decode(grid.encode(fma(grid.decode(x), grid.decode(y), total)))
        return grid.encode(total)
    step, c = alignment(number, unit, a_format, result, k), grid.decode(given.c)
    if unit == "mma.sync" and a_format not in WIDE_TYPES and number in IN_HALVES:
        return grid.encode(add(exact(_in_halves(given, step)), c))
    d: Value = c.signed
    for terms in _steps(given, step):
        d = fused(terms, d, step)
    return grid.encode(exact(d))


def products(a: Sequence[int], b: Sequence[int], types: Sequence[str]) -> list[AlignedNumber]:
    """Return the exact products a[i] b[i] of codes of types[0] and types[1], and their exponents in the alignment."""
    return [multiplied(_term(x, types[0]), _term(y, types[1])) for x, y in zip(a, b, strict=True)]


def _steps(given: Factors, step: Alignment) -> list[list[AlignedNumber]]:
    """Return the terms of each step: neighbors in ascending k."""
    if given.scale_format:
        kind = "e8m0" if given.scale_format == "e8m0" else "ue4m3"
        return list(scaled_terms((given.a, given.b), given.types[:2], given.scales, kind, step))
    terms = products(given.a, given.b, given.types)
    return [terms[start : start + step.length] for start in range(0, len(terms), step.length)]


def _in_halves(given: Factors, step: Alignment) -> Value:
    """Return the sum of FP8 products that two f16 instructions compute: the first two of each four k, then the others.

    A number that is subnormal in FP8 is normal in f16, which moves its exponent.
    """
    terms = []
    for x, y in zip(given.a, given.b, strict=True):
        pair = (_term(x, given.types[0]), _term(y, given.types[1]))
        terms.append(multiplied(*(_as_half(each) for each in pair)))
    d: Value = Fraction(0)
    for first in (0, 2):
        d = fused([each for i, each in enumerate(terms) if i % 4 - first in (0, 1)], d, step)
    return d


def _as_half(number: AlignedNumber) -> AlignedNumber:
    value = number.value
    return number if isinstance(value, float) or not value else AlignedNumber(value, max(leading(value), -14))


def _term(code: int, format: str) -> AlignedNumber:
    if format in ("f32", "f64"):
        return AlignedNumber(GRIDS[format].decode(code).signed, 0)
    if format == "e8m0":
        return factor(code, format)
    if format in INTEGER_TYPES or format == "mxint8":
        whole = Fraction(code - 256 if format != "u8" and code & 0x80 else code)
        return AlignedNumber(whole / 64 if format == "mxint8" else whole, 0)
    return term(code >> 13 if format == "tf32" else code, format)
