"""Blocks with power-of-two scales a second time: over fractions, element by element, by the meaning of each rule.

This module uses no code of the model: it searches scales among all powers of two, elements among all values of their
format.
"""

from fractions import Fraction
from typing import NamedTuple

from refsim.reference.group_quantize import counted_values, nearest
from refsim.reference.rational_float import ONE, ExactNumber, div, leading, mul, power, rounded

LOWEST, HIGHEST = -127, 127  # exponents of E8M0 codes 0 to 254
RULE_OF_RECIPE = {
    **{f"{library}{rule}": rule for library in ("", "torchao_") for rule in ("floor", "even", "ceil")},
    **{"rceil": "product", "te": "product"},
    **dict.fromkeys(("torchao_rceil", "triton", "aiter", "deepgemm"), "quotient"),
}
"""The rules of recipes for blocks without special numbers; in mxfp4, elements of deepgemm are rounded otherwise."""


class BlockElement(NamedTuple):
    """A format of elements: the values of codes 0 to the largest, the sign bit, and its mantissa bits."""

    values: tuple[Fraction, ...]
    sign: int
    mantissa_bits: int


BLOCK_ELEMENTS = {
    "mxfp8": BlockElement(counted_values(3, 7, 0x7F), 0x80, 3),
    "mxfp8_e5m2": BlockElement(counted_values(2, 15, 0x7C), 0x80, 2),
    "mxfp6_e2m3": BlockElement(counted_values(3, 1, 0x20), 0x20, 3),
    "mxfp6_e3m2": BlockElement(counted_values(2, 3, 0x20), 0x20, 2),
    "mxfp4": BlockElement(counted_values(1, 1, 0x08), 0x08, 1),
}


def scale_exponent(peak: Fraction, rule: str, element: BlockElement) -> int:
    """Return the exponent of the scale that a rule chooses for a block whose largest magnitude is `peak`, unclamped.

    floor: the peak's binade becomes the element's last one. ceil: the peak, rounded up to a power of two, does. rceil:
    the smallest exponent for which nothing saturates. even: floor, of the peak rounded to the element's mantissa, half
    up. Kernels compute rceil on a float32: "product" uses the peak times fl(1 / MAX), "quotient" the peak over MAX.
    """
    largest = element.values[-1]
    last = leading(largest)
    if peak == 0:
        return LOWEST
    match rule:
        case "floor":
            return leading(peak) - last
        case "ceil":
            exponent = leading(peak)
            return exponent - last + (power(exponent) != peak)
        case "rceil":
            exponent = leading(peak / largest)
            return exponent + (largest * power(exponent) < peak)
        case "product" | "quotient":
            ratio = single_ratio(peak, largest, divides=rule == "quotient")
            return leading(ratio) + (power(leading(ratio)) != ratio)
        case _:
            step = power(leading(peak) - element.mantissa_bits)
            rounded = (peak / step + Fraction(1, 2)).__floor__() * step
            return leading(rounded) - last


def single_ratio(peak: Fraction, largest: Fraction, *, divides: bool) -> Fraction:
    """Return peak / largest in float32: one quotient, or the product with the rounded reciprocal."""
    x, y = ExactNumber(False, peak), ExactNumber(False, largest)
    return Fraction(rounded(div(x, y) if divides else mul(x, rounded(div(ONE, y)))).magnitude)


def nearest_code(value: Fraction, negative: bool, element: BlockElement) -> int:
    """Return the code of the nearest value: the even code in a tie, the largest code for larger values."""
    return nearest(element.values, value) | (element.sign if negative else 0)


def block_quantize(block: list[float], rule: str, format: str) -> tuple[list[int], int]:
    """Return the codes and the scale code of one block of finite numbers; scales below 2^-127 become 2^-127."""
    element = BLOCK_ELEMENTS[format]
    peak = max(abs(Fraction(value)) for value in block)
    exponent = min(max(scale_exponent(peak, rule, element), LOWEST), HIGHEST)
    codes = []
    for value in block:
        negative = str(value).startswith("-")
        codes.append(nearest_code(abs(Fraction(value)) / power(exponent), negative, element))
    return codes, exponent - LOWEST
