"""Second definitions for `Kernel(definition=...)`: an element of a product, a row function or a quantizer.

They compute over fractions, or over Python's own floats with exact sums, and share no code with oracles. Where the
order of a sum is not known, they return a value with a bound for every order.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refsim.errors import unknown
from refsim.formats import format_named
from refsim.kernels import Bounded
from refsim.reference.block_quantize import block_quantize
from refsim.reference.tensor_cores import products
from refsim.typed_arrays import held_codes

Definition = Callable[[Any, str, tuple[int, ...]], "int | Bounded | None"]
ONE_VALUE, NARROW = 22, 13
"""Bits that a sum keeps of its largest term: in float32, and in the tensor cores that add FP8 (Hopper)."""


def product(output: str, operands: Callable[[Any], tuple[Any, Any]], a: str, b: str, d: str = "f32") -> Definition:
    """Return the definition of D[m, n] = the sum of A[m, k] B[n, k] over k, exact and with a bound for every order.

    `operands(problem)` returns the codes of A (M, K) and B (N, K) in the formats `a` and `b`; D has the format `d`.
    """

    def definition(problem: Any, name: str, at: tuple[int, ...]) -> Bounded | None:
        if name != output:
            return None
        left, right = operands(problem)
        return product_element(left[at[0]], right[at[1]], a, b, d)

    return definition


def product_element(left: Any, right: Any, a: str, b: str, d: str) -> Bounded | None:
    """Return the exact sum of the products of two rows of codes, and its bound; None for NaN and infinities."""
    (x, form), (y, other) = held_codes(left, a), held_codes(right, b)
    codes = [np.atleast_1d(each).tolist() for each in (x, y)]
    values = [each.value for each in products(codes[0], codes[1], (form.name, other.name))]
    terms = [value for value in values if not isinstance(value, float)]
    if len(terms) < len(values):  # NaN or an infinity
        return None
    kept = NARROW if form.bits <= 8 and other.bits <= 8 else ONE_VALUE
    return _near(float(sum(terms)), float(sum(map(abs, terms))) * (len(terms) + 2) * 2.0**-kept, d)


def row_function(
    function: str, output: str, operand: Callable[[Any], Any], d: str = "f32", *, eps: float = 0.0, weights: Any = None
) -> Definition:
    """Return the definition of a function of each row: "softmax", "rms_norm", "layer_norm", "sum" or "max".

    `operand(problem)` returns the values (rows, columns), `weights(problem)` factors of the columns of a norm. `d` is
    the format of the output. The bound allows every order of float32 sums and approximate functions.
    """
    if function not in ("softmax", "rms_norm", "layer_norm", "sum", "max"):
        raise unknown("row function", function, ["softmax", "rms_norm", "layer_norm", "sum", "max"])

    def definition(problem: Any, name: str, at: tuple[int, ...]) -> Bounded | None:
        row = [float(each) for each in np.asarray(operand(problem))[at[0]]] if name == output else []
        if not row or not all(map(math.isfinite, row)):
            return None
        factor = 1.0 if weights is None else float(weights(problem)[at[-1]])
        value, size = _of_row(function, row, at[-1], eps)
        return _near(value * factor, abs(size * factor) * (len(row) + 32) * 2.0**-ONE_VALUE, d)

    return definition


def _of_row(function: str, row: Sequence[float], at: int, eps: float) -> tuple[float, float]:
    """Return an element of a function of a row, and the magnitude that its rounding errors are relative to."""
    if function in ("sum", "max"):
        return (math.fsum(row), math.fsum(map(abs, row))) if function == "sum" else (max(row), 0.0)
    if function == "softmax":
        top = max(row)
        value = math.exp(row[at] - top) / math.fsum(math.exp(each - top) for each in row)
        return value, value * (1 + max(map(abs, row)))
    mean = math.fsum(row) / len(row) if function == "layer_norm" else 0.0
    deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in row) / len(row) + eps)
    if not deviation:
        return math.nan, 0.0
    value = (row[at] - mean) / deviation
    of_mean = max(map(abs, row)) / deviation if function == "layer_norm" else 0.0
    return value, abs(value) * (1 + (mean / deviation) ** 2) + of_mean


def block_quantizer(
    rule: str, format: str, operand: Callable[[Any], Any], codes: str = "q", scales: str = "scale", block: int = 32
) -> Definition:
    """Return the definition of blocks of a row with scales that are powers of two (E8M0), one code in each element.

    `rule` is "floor", "ceil", "even", "rceil", "product" or "quotient" (rceil in float32); `format` is mxfp8,
    mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2 or mxfp4. `operand(problem)` returns the values (rows, columns). Source: OCP MX
    1.0, section 6.3.
    """

    def definition(problem: Any, name: str, at: tuple[int, ...]) -> int | None:
        if name not in (codes, scales):
            return None
        start = at[1] * block if name == scales else at[1] // block * block
        part = [float(each) for each in np.asarray(operand(problem))[at[0]][start : start + block]]
        if not all(map(math.isfinite, part)):
            return None
        made, scale = block_quantize(part, rule, format)
        return scale if name == scales else made[at[1] - start]

    return definition


def _near(value: float, bound: float, d: str) -> Bounded | None:
    """Return a value with its bound and half an ulp of its format; None near overflow and for NaN."""
    form = format_named(d)
    bound += (abs(value) + bound) * 2.0 ** -(form.mantissa_bits + 1) + form.quantum
    if not abs(value) + bound < form.max_value:
        return None
    return Bounded(np.array(value), np.array(bound))
