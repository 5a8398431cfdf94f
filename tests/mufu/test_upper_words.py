"""The unit's functions on upper words of float64: zeros, infinities and NaNs, worked numbers, and the same tables as float32."""

import numpy as np
import pytest

from refsim.mufu import unit, upper_words

SPECIALS = (0x00000000, 0x80000000, 0x000FFFFF, 0x80000001, 0x7FF00000, 0xFFF00000, 0x7FF00001, 0xFFF81234)
NAN, INF, MINUS_INF = 0x7FFFFFFF, 0x7FF00000, 0xFFF00000
OF_SPECIALS = {
    "rcp": (INF, MINUS_INF, INF, MINUS_INF, 0, 0x80000000, NAN, NAN),
    "rsqrt": (INF, MINUS_INF, INF, MINUS_INF, 0, NAN, NAN, NAN),
}


@pytest.mark.parametrize("name", upper_words.FUNCTIONS)
def test_zeros_subnormals_infinities_and_nans(name: str) -> None:
    assert upper_words.FUNCTIONS[name](np.uint32(SPECIALS)).tolist() == list(OF_SPECIALS[name])


@pytest.mark.parametrize(
    ("name", "word", "result"),
    [
        ("rcp", 0x40180000, 0x3FC55555),
        ("rcp", 0xBFF00001, 0xBFEFFFFE),
        ("rcp", 0x00100000, 0x7FD00000),
        ("rcp", 0x7FD00000, 0x00100000),
        ("rcp", 0x7FD00001, 0),
        ("rcp", 0xFFD00001, 0x80000000),
        ("rsqrt", 0x40000000, 0x3FE6A09E),
        ("rsqrt", 0x3FF00000, 0x3FF00000),
        ("rsqrt", 0x40100000, 0x3FE00000),
        ("rsqrt", 0x3FF00001, 0x3FEFFFFE),
        ("rsqrt", 0x00100000, 0x5FE00000),
        ("rsqrt", 0xBFF00000, NAN),
    ],
)
def test_worked_numbers(name: str, word: int, result: int) -> None:
    assert int(upper_words.FUNCTIONS[name](np.uint32([word]))[0]) == result


@pytest.mark.parametrize("name", upper_words.FUNCTIONS)
def test_results_are_those_of_float32_cut_off_at_20_bits(name: str) -> None:
    fractions = np.random.default_rng(3).integers(1, 1 << 20, 4000, np.uint32)
    for exponent in (-125, -1, 0, 1, 2, 124):
        upper = upper_words.FUNCTIONS[name](fractions | np.uint32(1023 + exponent << 20))
        single = unit.FUNCTIONS[name](fractions << np.uint32(3) | np.uint32(127 + exponent << 23))
        assert np.array_equal(upper, (single >> np.uint32(3)) + np.uint32(1023 - 127 << 20))


def test_the_lower_word_is_neither_read_nor_written() -> None:
    """A NaN whose payload stands in the lower word counts as an infinity."""
    words = np.array([0x40180000_00000000, 0x40180000_FFFFFFFF, 0x7FF00000_00000001], np.uint64)
    found = upper_words.approximate("rcp", words.view(np.float64))
    assert found.view(np.uint64).tolist() == [0x3FC55555_00000000, 0x3FC55555_00000000, 0]
