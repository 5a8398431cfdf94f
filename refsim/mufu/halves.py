"""The unit's functions on f16 and bf16: the float32 result of the number, cut off at the format's last place.

A subnormal f16 is an ordinary number, as operand and as result; results beyond the largest become infinite. bf16 is the
upper half of a float32. Every NaN is 0x7fff. MUFU.EX2.F16, EX2.BF16, TANH.F16 and TANH.BF16; an instruction on pairs
applies them to each half. All 65,536 results of each were recorded on an H200 and an H100.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

from refsim.mufu import unit

Halves = NDArray[np.uint16]


def approximate(name: str, codes: Halves, *, bf16: bool) -> Halves:
    """Return NAME.approx of f16 or bf16 codes: approximate("ex2", [0x3801], bf16=False), 2^0.50049, is [0x3da8]."""
    return _results(name, bf16)[codes]


@cache
def _results(name: str, bf16: bool) -> Halves:
    """Return the result of every code."""
    codes = np.arange(1 << 16, dtype=np.uint32)
    with np.errstate(all="ignore"):
        words = codes << np.uint32(16) if bf16 else _words(codes.astype(np.uint16).view(np.float16))
        found = unit.FUNCTIONS[name](words)
        results = (found >> np.uint32(16)).astype(np.uint16) if bf16 else _cut_off(found)
    results.setflags(write=False)
    return results


def _words(values: NDArray[np.float16]) -> unit.Words:
    return values.astype(np.float32).view(np.uint32)


def _cut_off(words: unit.Words) -> Halves:
    """Return the f16 of float32 patterns without the bits below its last place, 2^-24 at least."""
    values = (words & np.uint32(0xFFFFE000)).view(np.float32)
    small = np.abs(values) < np.float32(2.0**-14)
    last = np.float32(2.0**-24)
    exact = np.where(small, np.trunc(np.where(small, values, 0) / last) * last, values)
    return np.where(np.isnan(values), np.uint16(0x7FFF), exact.astype(np.float16).view(np.uint16))
