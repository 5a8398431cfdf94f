"""Suspects: the mistake that explains wrong bits is named, and nothing is named by accident."""

import numpy as np
import pytest

from refsim.compare import explained
from refsim.errors import RefsimError


def matrix(rows: int = 4, columns: int = 16, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 16, (rows, columns), dtype=np.uint16)


def test_equal_arrays_have_no_suspects() -> None:
    assert explained(matrix(), matrix(), {"a mistake": matrix()}) == ()


def test_a_candidate_that_fits_is_named() -> None:
    want, got = matrix(), matrix()
    got[2] ^= 1
    almost = got.copy()
    almost[0, 0] ^= 4
    other = want ^ np.uint16(8)
    assert explained(got, want, {"almost": almost, "other": other, "the one": got.copy()}) == (
        "the one: bit for bit what that gives",
    )


def test_a_candidate_that_fits_but_for_one_bit_is_not_named() -> None:
    """Neither where it misses a wrong element nor where it makes a right one wrong."""
    want, got = matrix(), matrix()
    got[0, :10] ^= 1
    for place in ((0, 0), (3, 15)):
        candidate = got.copy()
        candidate[place] ^= 2
        assert explained(got, want, {"near": candidate}) == ()


def test_values_are_compared_as_bits() -> None:
    want, got = np.zeros(3, np.float32), np.array([0, -0.0, np.nan], np.float32)
    assert explained(got, want, {"signs": np.array([0, -0.0, np.nan], np.float32)})
    assert explained(got, want, {"signs": np.array([0, 0, np.nan], np.float32)}) == ()


@pytest.mark.parametrize(
    ("order", "text"),
    [
        ([0, 2, 2, 3], "row 1 holds row 2"),
        ([1, 0, 3, 2], "every wrong row n holds row n ^ 1"),
        ([0, 0, 1, 2], "every wrong row n holds row n -1"),
        ([0, 2, 3, 1], "row 1 holds row 2, row 2 holds row 3, row 3 holds row 1"),
    ],
)
def test_moved_rows_and_columns(order: list[int], text: str) -> None:
    assert explained(matrix()[order], matrix()) == (text,)
    assert explained(matrix()[order].T, matrix().T) == (text.replace("row", "column"),)


def test_elements_in_another_order_in_every_row() -> None:
    got = matrix()
    for row, content in enumerate(got):
        got[row] = np.roll(content, row)
    assert explained(got, matrix()) == ("every wrong row holds its own elements in another order",)


def test_many_moves_are_cut() -> None:
    order = np.random.default_rng(3).permutation(16)
    (text,) = explained(matrix(16)[order], matrix(16))
    assert text.count("holds") == 4
    assert text.endswith("more")


def test_constant_rows_and_repeated_rows_say_nothing() -> None:
    got = matrix()
    got[1] = 0
    assert explained(got, matrix()) == ()
    want = matrix()
    want[3] = 0  # a row of zeros is anybody's, though another row of zeros is the only one that belongs somewhere
    assert explained(want[[0, 3, 2, 3]], want) == ()
    assert explained(want[[0, 3, 2, 3]].T, want.T) == ()
    want = matrix()
    want[2] = want[3]
    assert explained(want[[0, 3, 2, 3]], want) == ()


def test_one_dimension_has_candidates_only() -> None:
    assert explained(matrix()[0][::-1], matrix()[0]) == ()


def test_shapes_must_agree() -> None:
    with pytest.raises(RefsimError, match="bad-shape"):
        explained(matrix(3), matrix(4))
    with pytest.raises(RefsimError, match="bad-shape"):
        explained(matrix(), matrix(), {"a mistake": matrix(3)})


def test_elements_must_have_one_size() -> None:
    for arrays in (
        (matrix().astype(np.uint32), matrix()),
        (matrix(2), matrix(2), {"a mistake": matrix(2).astype(np.uint8)}),
    ):
        with pytest.raises(RefsimError, match="bad-dtype"):
            explained(*arrays)


def test_a_column_that_is_wrong_in_one_element_is_no_moved_column():
    want = np.full((4, 3), 7, np.uint8)
    want[1] = 1, 2, 3
    got = want.copy()
    got[1, 0] = 2
    assert explained(got, want) == ()
