"""What ptxas puts around the special-function unit."""

from fractions import Fraction

import numpy as np
import pytest

from refsim.mufu import unit
from refsim.mufu.instructions import approximate, turns


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
