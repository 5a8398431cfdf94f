"""Exact dot products of whole matrices: arrays of Python integers on one grid, rounded once."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.numerics.dot.arrays import Codes, Fields, fields, specials, with_specials
from refsim.numerics.dot.terms import rounded
from refsim.numerics.roundings import Rounding
from refsim.numerics.rows import Profile

Integers = NDArray[Any]  # dtype object


def on_grid(operand: Fields) -> tuple[Integers, int]:
    """Return the terms as integers of units 2^quantum, and that quantum: the smallest that all of them need."""
    present = operand.magnitude != 0
    lowest = int(operand.exponent[present].min()) if present.any() else 0
    places = np.where(present, operand.exponent - lowest, 0).astype(object)
    integers: Integers = (operand.sign * operand.magnitude).astype(object) << places
    return integers, lowest - operand.fraction_bits


def exact_sums(a: Fields, b: Fields, c: Fields) -> tuple[Integers, int]:
    """Return c + A B^T exactly, as integers of units 2^quantum, shape (batch, M, N); special operands count as zero."""
    (x, x_quantum), (y, y_quantum), (z, z_quantum) = on_grid(a), on_grid(b), on_grid(c)
    quantum = min(x_quantum + y_quantum, z_quantum)
    products: Integers = np.matmul(x, y.swapaxes(-1, -2)) << (x_quantum + y_quantum - quantum)
    return products + (z << (z_quantum - quantum)), quantum


def rounded_sums(totals: Integers, quantum: int, rounding: Rounding) -> Codes:
    """Return the code of every total x 2^quantum."""
    codes: Codes = np.frompyfunc(lambda total: rounded(total, quantum, rounding), 1, 1)(totals).astype(
        rounding.format.code_dtype
    )
    return codes


def exact_step(a: Fields, b: Fields, c: Codes, profile: Profile) -> Codes:
    """Return the exact sum of products and C, rounded once, for every (m, n); an exact zero is +0."""
    rounding = profile.rounding
    accumulator = fields(c, rounding.format)
    codes = rounded_sums(*exact_sums(a, b, accumulator), rounding)
    return with_specials(codes, specials(a, b, accumulator, rounding))
