"""What ptxas puts around the special-function unit."""

from fractions import Fraction

import numpy as np
import pytest

from refsim.mufu import unit
from refsim.mufu.instructions import approximate, divided, turns


def test_turns_are_the_product_toward_zero() -> None:
    """The largest of 24 digits that is not beyond the exact product, and the next one is beyond."""
    angles = (np.random.default_rng(5).normal(size=64) * 100).astype(np.float32)
    factor = Fraction(float(np.uint32(0x3E22F983).view(np.float32)))
    for angle, turn in zip(angles, turns(angles), strict=True):
        exact, beyond = abs(Fraction(float(angle)) * factor), np.nextafter(turn, np.copysign(np.float32(np.inf), turn))
        assert abs(Fraction(float(turn))) <= exact < abs(Fraction(float(beyond)))
    assert turns(np.float32([1, -np.inf])).view(np.uint32).tolist() == [0x3E22F983, 0xFF800000]


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_sin_and_cos_are_the_units_of_turns_with_ftz_and_without(name: str) -> None:
    words = np.random.default_rng(6).integers(0, 1 << 32, 300, dtype=np.uint32)
    for ftz in (False, True):
        found = approximate(name, words, ftz=ftz)
        assert np.array_equal(found, unit.FUNCTIONS[name](turns(words.view(np.float32)).view(np.uint32)))
        assert approximate(name, np.uint32([0x80000001, 0x7F800000]), ftz=ftz).tolist()[1] == 0x7FFFFFFF


def test_tanh_keeps_a_subnormal() -> None:
    assert approximate("tanh", np.uint32([0x80000001]), ftz=False).tolist() == [0x80000001]


@pytest.mark.parametrize(
    ("name", "word", "flushed", "unflushed"),
    [
        ("rcp", 0x7E800000, 0x00800000, 0x00800000),  # 2^126, whose reciprocal is the smallest that is no subnormal
        ("rcp", 0x7E800001, 0x00000000, 0x007FFFFF),
        ("rcp", 0x7F000000, 0x00000000, 0x00400000),
        ("rcp", 0xFF7FFFFF, 0x80000000, 0x80200000),
        ("rcp", 0x00400001, 0x7F800000, 0x7EFFFFFC),
        ("rcp", 0x80200000, 0xFF800000, 0xFF800000),
        ("rsqrt", 0x00000001, 0x7F800000, 0x64B504F2),
        ("rsqrt", 0x00000002, 0x7F800000, 0x64800000),  # 2^-148: 2^74
        ("rsqrt", 0x007FFFFF, 0x7F800000, 0x5F000000),
        ("sqrt", 0x00000001, 0x00000000, 0x1A3504F3),
        ("sqrt", 0x00000002, 0x00000000, 0x1A800000),
        ("sqrt", 0x007FFFFF, 0x00000000, 0x1FFFFFFF),
        ("lg2", 0x00000001, 0xFF800000, 0xC3150000),  # -149
        ("lg2", 0x007FFFFF, 0xFF800000, 0xC2FC0000),
        ("lg2", 0x00800000, 0xC2FBFFFF, 0xC2FBFFFF),
        ("ex2", 0xC2FC0001, 0x00000000, 0x007FFFD3),  # the first below -126
        ("ex2", 0xC2FD0000, 0x00000000, 0x005A8279),
        ("ex2", 0xC3150000, 0x00000000, 0x00000001),  # -149
        ("ex2", 0xC3160000, 0x00000000, 0x00000000),  # -150: a tie, to even
    ],
)
def test_what_lies_beyond_the_normal_numbers(name: str, word: int, flushed: int, unflushed: int) -> None:
    """A power of two before the unit and what mends it behind, where there is no .ftz; of powers of two the exact result."""
    found = [approximate(name, np.uint32([word]), ftz=ftz).tolist() for ftz in (True, False)]
    assert found == [[flushed], [unflushed]]


@pytest.mark.parametrize(
    ("a", "b", "approx", "approx_ftz", "full", "full_ftz"),
    [
        (0x7F000000, 0x7F000000, 0x00000000, 0x00000000, 0x3F800000, 0x3F800000),  # both 2^127
        (0xFF000000, 0xFF000000, 0x00000000, 0x00000000, 0x3F800000, 0x3F800000),
        (0x7F800000, 0x7F000000, 0x7FFFFFFF, 0x7FFFFFFF, 0x7F800000, 0x7F800000),
        (0x3F800000, 0x7F000000, 0x00000000, 0x00000000, 0x00400000, 0x00000000),
        (0xBF800000, 0x7E800001, 0x80000000, 0x80000000, 0x807FFFFF, 0x80000000),
        (0x3F800000, 0x7E800000, 0x00800000, 0x00800000, 0x00800000, 0x00800000),
        (0x00800000, 0x3F800000, 0x00800000, 0x00800000, 0x00800000, 0x00800000),
        (
            0x80FFFFFF,
            0x40000000,
            0x80800000,
            0x80000000,
            0x80800000,
            0x80000000,
        ),  # rounds up to 2^-126, and is below it
        (0x00FFFFFE, 0x40000000, 0x007FFFFF, 0x00000000, 0x007FFFFF, 0x00000000),
        (0x00000001, 0x00000003, 0x3EAAAAAB, 0x7FFFFFFF, 0x3EAAAAAB, 0x7FFFFFFF),
        (0x7F000000, 0x00400000, 0x7F800000, 0x7F800000, 0x7F800000, 0x7F800000),
    ],
)
def test_divisions_at_the_cliffs(a: int, b: int, approx: int, approx_ftz: int, full: int, full_ftz: int) -> None:
    """A divisor above 2^126 is an infinity to div.approx, and subnormals are flushed with .ftz before the quotient and behind."""
    words, ways = (np.uint32([a]), np.uint32([b])), [(False, False), (False, True), (True, False), (True, True)]
    found = [int(divided(*words, ftz=ftz, full=is_full)[0]) for is_full, ftz in ways]
    assert found == [approx, approx_ftz, full, full_ftz]
