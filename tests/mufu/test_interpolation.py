"""The quadratics of the special-function unit against the sum of their bits."""

import numpy as np
import pytest

from refsim.mufu import coefficients
from refsim.mufu.interpolation import Quadratics, squares

SEGMENTS = {"RCP": 128, "RSQRT": 128, "SQRT": 128, "EX2": 64, "LG2": 64, "SIN": 64, "TANH": 51}
TABLES = {name: table for name, table in vars(coefficients).items() if isinstance(table, Quadratics)}


def square_of(x: int, width: int, lowest_column: int) -> int:
    """Products of two bits, one at a time, none below the lowest column."""
    total = 0
    for i in range(width):
        for j in range(width):
            column = 2 * i if i == j else i + j + 1
            if j <= i and column >= lowest_column and x >> i & 1 and x >> j & 1:
                total += 1 << column
    return total >> lowest_column


@pytest.mark.parametrize(("width", "lowest_column"), [(16, 17), (17, 19)])
def test_a_folded_square(width: int, lowest_column: int) -> None:
    table = squares(width, lowest_column)
    for x in [0, 1, 255, (1 << width) - 1, *np.random.default_rng(3).integers(0, 1 << width, 60).tolist()]:
        assert table[x] == square_of(x, width, lowest_column)
        assert 0 <= (x * x >> lowest_column) - table[x] < width


def test_worked_numbers() -> None:
    assert square_of(255, 8, 8) == squares(8, 8)[255] == 251
    assert coefficients.RCP(np.array([0, (1 << 23) - 1]))[0] >> 16 == 1 << 24
    assert coefficients.SQRT(np.array([0]))[0] >> 17 == 1 << 23


@pytest.mark.parametrize("name", TABLES)
def test_a_table_over_python_integers(name: str) -> None:
    table = TABLES[name]
    assert table.coefficients.shape == (SEGMENTS[name], 3)
    fractions = np.random.default_rng(4).integers(0, len(table.coefficients) << table.width, 200)
    for fraction, total in zip(fractions.tolist(), table(fractions).tolist(), strict=True):
        c0, c1, c2 = table.coefficients[fraction >> table.width].tolist()
        x = fraction & (1 << table.width) - 1
        assert total == c0 + c1 * x + c2 * square_of(x, table.width, table.lowest_column)
