"""The special-function unit: worked numbers, zeros, infinities and NaNs, and how far its results are from the functions."""

import math

import numpy as np
import pytest

from refsim.mufu.instructions import divided
from refsim.mufu.unit import FUNCTIONS

SPECIALS = (0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345)
NAN, INF, MINUS_INF, ONE = 0x7FFFFFFF, 0x7F800000, 0xFF800000, 0x3F800000
OF_SPECIALS = {
    "rcp": (INF, MINUS_INF, INF, MINUS_INF, 0, 0x80000000, NAN, NAN),
    "rsqrt": (INF, MINUS_INF, INF, MINUS_INF, 0, NAN, NAN, NAN),
    "sqrt": (0, 0x80000000, 0, 0x80000000, INF, NAN, NAN, NAN),
    "ex2": (0x3F800000, 0x3F800000, 0x3F800000, 0x3F800000, INF, 0, NAN, NAN),
    "lg2": (MINUS_INF, MINUS_INF, MINUS_INF, MINUS_INF, INF, NAN, NAN, NAN),
    "sin": (0, 0x80000000, 0, 0x80000000, NAN, NAN, NAN, NAN),
    "cos": (ONE, ONE, ONE, ONE, NAN, NAN, NAN, NAN),
    "tanh": (0, 0x80000000, 1, 0x807FFFFF, ONE, 0xBF800000, NAN, NAN),
}
EXACT = {
    "rcp": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sqrt": math.sqrt,
    "ex2": lambda x: 2.0**x,
    "lg2": math.log2,
    "sin": lambda turns: math.sin(2 * math.pi * turns),
    "cos": lambda turns: math.cos(2 * math.pi * turns),
    "tanh": math.tanh,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_zeros_subnormals_infinities_and_nans(name: str) -> None:
    assert FUNCTIONS[name](np.uint32(SPECIALS)).tolist() == list(OF_SPECIALS[name])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_are_near_the_function(name: str) -> None:
    """Two last places; for a logarithm, sine or cosine 2^-22 or so, since they keep places, not digits; tanh 2^-16."""
    x = (np.random.default_rng(6).random(300) * 12 + 0.01).astype(np.float32)
    found = FUNCTIONS[name](x.view(np.uint32)).view(np.float32).astype(np.float64)
    wanted = np.array([EXACT[name](float(each)) for each in x])
    bound = np.abs(wanted) * (2.0**-16 if name == "tanh" else 2.0**-22)
    bound += {"lg2": 2.0**-22, "sin": 2.0**-21, "cos": 2.0**-21}.get(name, 0)
    assert (np.abs(found - wanted) <= bound).all()


@pytest.mark.parametrize(
    ("name", "word", "result"),
    [
        ("rcp", 0x40C00000, 0x3E2AAAAB),
        ("rcp", 0x3FECE141, 0x3F0A54EA),
        ("rcp", 0x7E800000, 0x00800000),
        ("rcp", 0xFE800001, 0x80000000),
        ("rsqrt", 0x40800000, 0x3F000000),
        ("rsqrt", 0x3F800001, 0x3F7FFFFE),
        ("sqrt", 0x40800000, 0x40000000),
        ("ex2", 0x3F000000, 0x3FB504F3),
        ("ex2", 0xBF000000, 0x3F3504F2),
        ("ex2", 0xC2FC0001, 0),
        ("ex2", 0x43000000, INF),
        ("lg2", 0x3F800001, 0x3495F600),
        ("lg2", 0x3F000000, 0xBF7FFFFE),
        ("lg2", 0x3F001FFF, 0xBF7FA3B7),  # its complement is a whole number of last places, its negative is not
        ("lg2", ONE, 0),
        ("lg2", 0x40000000, 0x3F800000),
        ("sin", 0x3E000000, 0x3F3504F2),
        ("sin", 0x3EC00000, 0x3F3504F3),
        ("sin", 0x3F200000, 0xBF3504F2),
        ("sin", 0x3E800000, ONE),
        ("sin", 0x33000000, 0x34491200),
        ("sin", 0xB2FFFFFF, 0x80000000),
        ("sin", 0xFF7FFFFF, 0x80000000),
        ("cos", 0x3E000000, 0x3F3504F3),
        ("cos", 0xBEC00000, 0xBF3504F2),
        ("cos", 0x3E800000, 0x80000000),
        ("cos", 0x3F000000, 0xBF800000),
        ("tanh", ONE, 0x3F42F848),
        ("tanh", 0xBF800007, 0xBF42F848),
        ("tanh", 0x3F800008, 0x3F42F84E),
        ("tanh", 0x3B7FFFFF, 0x3B7FFFFF),
        ("tanh", 0x3B80003F, 0x3B800000),
        ("tanh", 0xC1000000, 0xBF800000),
    ],
)
def test_worked_numbers(name: str, word: int, result: int) -> None:
    assert int(FUNCTIONS[name](np.uint32([word]))[0]) == result


@pytest.mark.parametrize("full", [False, True])
def test_a_division_with_ftz_takes_subnormals_for_zeros(full: bool) -> None:
    """0 / 1, -0 / 1, 1 / 0, 1 / -0 and 0 / 0."""
    a = np.uint32([0x00000001, 0x807FFFFF, 0x3F800000, 0x3F800000, 0x00000001])
    b = np.uint32([0x3F800000, 0x3F800000, 0x00400000, 0x80000001, 0x807FFFFF])
    assert divided(a, b, ftz=True, full=full).tolist() == [0, 0x80000000, INF, MINUS_INF, NAN]
