"""The interface to numba: packed tiles for the kernels, and the size from which a matrix product uses them."""

import math
import sys
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.numerics.fast import tiles
from refsim.numerics.fast.operands import FastOperand, GroupedOperand, narrow
from refsim.numerics.fast.reals import Values, int32_products
from refsim.numerics.rows import Profile

WIDTH, AT_ONCE = 128, 4  # columns of a tile and products that a loop takes at a time, as in kernels
FROM = 1 << 15  # products of one matrix product from which compiled loops win
COMPILED_FROM = 1 << 29  # products from which loading or compiling them first wins: half a second in NumPy
_NARROWEST = 32  # rows or columns; fewer leave most of a tile empty
_MODULE = "refsim.numerics.fast.kernels"


@lru_cache
def kernels() -> ModuleType | None:
    """Return the module of compiled loops; None if numba is not installed or has no cache directory."""
    try:
        return import_module(_MODULE)
    except (ImportError, RuntimeError):
        return None


def wins(shape: tuple[int, ...], length: int, profile: Profile) -> bool:
    """Return whether kernels compute a product of this (batch, M, N) and K faster, compilation included.

    A simulated GPU multiplies small tiles thousands of times. Kernels are compiled once such products took as long as
    compilation does; the counter is `left_to_numpy`.
    """
    _, m, n = shape
    if max(m, n) < _NARROWEST or m * n * length < FROM:
        return False
    if worth_compiling(shape, length) or left_to_numpy.products >= COMPILED_FROM:
        return kernels() is not None
    loaded = sys.modules.get(_MODULE)
    if _compiled(getattr(loaded, "grouped" if profile.method.groups else "narrow", None)):
        return True
    left_to_numpy.products += math.prod(shape) * length
    return False


def takes(profile: Profile, step: int) -> bool:
    """Return whether the loops compute a profile with steps of so many products.

    They take products four at a time, in a step and in the part of it that adds up in int32. F = 28 leaves two products
    for int32; no chip has such a profile, but discovery tries some.
    """
    return step % AT_ONCE == 0 and (profile.method.groups or int32_products(profile, step) % AT_ONCE == 0)


@dataclass
class LeftToNumpy:
    """Count the products of this process that kernels would have computed sooner, had they been compiled."""

    products: int = 0


left_to_numpy = LeftToNumpy()


def worth_compiling(shape: tuple[int, ...], length: int) -> bool:
    """Return whether a product is so large that the time of compiling the loops does not matter."""
    return math.prod(shape) * length >= COMPILED_FROM


def _compiled(kernel: Any) -> bool:
    """Return whether a kernel can be called at once; None means that its module is not loaded or is being loaded."""
    return kernel is not None and bool(kernel.signatures)


@dataclass(frozen=True)
class Packed:
    """Hold B of one batch: each of its arrays as tiles (tiles, K or K / 16, width), padded with zeros."""

    b: FastOperand | GroupedOperand
    arrays: tuple[NDArray[Any], ...]


def packed(b: FastOperand | GroupedOperand) -> Packed:
    """Pack B once for all rows of A."""
    return Packed(b, tuple(_tiles(array) for array in _arrays(b)))


def _arrays(of: FastOperand | GroupedOperand) -> tuple[NDArray[Any], ...]:
    """Return the arrays of an operand that the kernels read, C-contiguous (K or K / 16, rows)."""
    if isinstance(of, GroupedOperand):
        arrays: tuple[NDArray[Any], ...] = (of.values, of.weights, of.exponents, of.present)
    else:
        arrays = (of.values, of.exponents) if of.offsets is None else (of.values, of.exponents, of.offsets)
    return tuple(np.ascontiguousarray(array[:, 0]) for array in arrays)


def _tiles(array: NDArray[Any]) -> NDArray[Any]:
    """Return (places, columns) as (tiles, places, width)."""
    places, columns = array.shape
    count = -(-columns // WIDTH)
    result = np.zeros((count, places, WIDTH), array.dtype)
    for tile in range(count):
        some = array[:, tile * WIDTH : (tile + 1) * WIDTH]
        result[tile, :, : some.shape[1]] = some
    return result


def chain(
    a: FastOperand | GroupedOperand, b: Packed, c: Values, profile: Profile, length: int, *, may_compile: bool
) -> Values:
    """Return the rounded sums of all steps, starting with C (1, M, N), float32.

    NumPy computes wide operands if their kernels are not compiled yet and `may_compile` is false.
    """
    module = kernels()
    assert module is not None
    sums, left, rule = _tiles(c[0]), _arrays(a), module.StepNumbers(**_rule(profile, length))
    if isinstance(a, GroupedOperand):
        sums = sums.astype(np.float64)
        module.grouped(*left, *b.arrays, sums, rule)
    elif isinstance(b.b, FastOperand) and narrow(a, b.b):
        module.narrow(left[0], left[2], b.arrays[0], b.arrays[2], a.low + b.b.low, sums, rule)
    elif isinstance(b.b, FastOperand) and not may_compile and not _compiled(module.wide):
        return tiles.chain(a, b.b, c.astype(np.float64), profile, length)
    else:
        x, y = (values.astype(np.float64, copy=False) for values in (left[0], b.arrays[0]))
        sums = sums.astype(np.float64)
        module.wide(x, left[1], y, b.arrays[1], sums, rule)
    return sums.transpose(1, 0, 2).reshape(1, c.shape[1], -1)[..., : c.shape[2]]


def _rule(profile: Profile, length: int) -> dict[str, int | bool]:
    """Return a profile as the fields of `kernels.StepNumbers`."""
    rounding = profile.rounding
    assert profile.fraction is not None
    assert profile.zero_exponent is not None
    bias = rounding.format.bias
    return {
        "length": length,
        "together": length if profile.method.groups else int32_products(profile, length),
        "fraction": profile.fraction,
        "zero": profile.zero_exponent,
        "smallest": 1 - bias,
        "largest": bias,
        "kept": rounding.fraction_bits,
        "is_half": rounding.nearest,
    }
