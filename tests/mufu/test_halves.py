"""The unit's functions on f16 and bf16: float32 results cut off, by fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from refsim.mufu import unit
from refsim.mufu.halves import approximate

CODES = np.arange(1 << 16, dtype=np.uint16)


def cut_off(value: Fraction, digits: int, lowest: int, highest: int) -> Fraction:
    """A number of 0 or more without what is below its last place, or infinity from 2^highest on (as that number)."""
    if value >= 1 << highest:
        return Fraction(1 << highest)
    exponent = lowest
    while value >= Fraction(2) ** (exponent + 1):
        exponent += 1
    last = Fraction(2) ** (exponent - digits + 1)
    return math.floor(value / last) * last


@pytest.mark.parametrize(("first", "step"), [(0, 61), (0x8000, 61), (0x4BF0, 1), (0xCB80, 3)])
def test_f16_is_cut_off_from_float32(first: int, step: int) -> None:
    codes = CODES[first : first + 61 * step : step]
    single = unit.ex2(codes.view(np.float16).astype(np.float32).view(np.uint32)).view(np.float32)
    found = approximate("ex2", codes, bf16=False).view(np.float16)
    for exact, half in zip(single.tolist(), found.tolist(), strict=True):
        assert (Fraction(half) if math.isfinite(half) else 1 << 16) == cut_off(Fraction(exact), 11, -14, 16)


@pytest.mark.parametrize(
    ("code", "result"),
    [
        (0x3801, 0x3DA8),
        (0x0001, 0x3C00),
        (0x8001, 0x3C00),
        (0x8010, 0x3BFF),
        (0x4BFF, 0x7BF4),
        (0x4C00, 0x7C00),
        (0xCE00, 0x0001),
        (0xCE01, 0x0000),
        (0x7C00, 0x7C00),
        (0xFC00, 0x0000),
        (0x7C01, 0x7FFF),
        (0xFFFF, 0x7FFF),
    ],
)
def test_worked_numbers_of_f16(code: int, result: int) -> None:
    assert approximate("ex2", np.uint16([code]), bf16=False).tolist() == [result]


def test_bf16_is_the_upper_word_of_float32() -> None:
    found = approximate("ex2", CODES, bf16=True)
    assert np.array_equal(found, unit.ex2(CODES.astype(np.uint32) << np.uint32(16)) >> np.uint32(16))


def test_pairs_and_any_shape() -> None:
    assert approximate("ex2", np.uint16([[0x3C00, 0x4000], [0x7C00, 0xFE00]]), bf16=False).tolist() == [
        [0x4000, 0x4400],
        [0x7C00, 0x7FFF],
    ]
