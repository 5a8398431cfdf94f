"""Large arrays of special functions: a piece at a time, and ex2 in fewer passes, against the definition."""

import numpy as np
import pytest

from refsim.mufu import instructions, unit
from refsim.mufu.instructions import approximate

SPECIALS = [
    0,
    1,
    0x7F800000,
    0x7F800001,
    0x7FFFFFFF,
    0x42FC0000,
    0x42FC0001,
    0x42FDFFFF,
    0x42FE0000,
    0x43000000,
    0x33800000,
]


def words(count: int) -> np.ndarray:
    """Any, ordinary exponents of ex2, and special ones of both signs at the ends of pieces."""
    draw = np.random.default_rng(11)
    found = draw.integers(0, 1 << 32, count, dtype=np.uint32)
    found[::2] = (draw.normal(size=found[::2].size) * 60).astype(np.float32).view(np.uint32)
    special = np.uint32(SPECIALS)
    found[: special.size], found[-special.size :] = special, special | np.uint32(1 << 31)
    return found


@pytest.mark.parametrize("count", [256, instructions.PIECE - 1, 2 * instructions.PIECE + 37])
def test_ex2_in_fewer_passes_is_ex2(count: int) -> None:
    operands = words(count)
    with np.errstate(all="ignore"):
        assert np.array_equal(instructions.ex2(operands), unit.ex2(operands))


def test_an_integer_is_not_complemented_and_what_is_next_to_one_is() -> None:
    integers = np.arange(-130, 130).astype(np.float32)
    around = [integers, np.nextafter(integers, np.float32(-np.inf)), np.nextafter(integers, np.float32(np.inf))]
    operands = np.concatenate(around).view(np.uint32)
    assert np.array_equal(instructions.ex2(operands), unit.ex2(operands))


@pytest.mark.parametrize("name", unit.FUNCTIONS)
def test_a_large_array_of_any_shape_is_its_pieces(name: str) -> None:
    operands = words(2 * instructions.PIECE + 2).reshape(2, -1)[:, ::-1]
    found = approximate(name, operands, ftz=False)
    assert found.shape == operands.shape
    some = slice(instructions.PIECE - 40, instructions.PIECE + 1)
    with np.errstate(all="ignore"):
        wanted = approximate(name, np.ascontiguousarray(operands[:, some]).view(Definition), ftz=False)
    assert np.array_equal(found[:, some], wanted.view(np.ndarray))


class Definition(np.ndarray):
    """An array that is not quite NumPy's own: the definition computes it."""
