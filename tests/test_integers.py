"""Whole numbers as arguments: what counts as one, and the value that an error names."""

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.integers import is_whole, whole


@pytest.mark.parametrize("value", [0, 3, np.uint8(3), np.int64(0)])
def test_numbers_of_python_and_numpy_are_whole(value: object) -> None:
    assert is_whole(value)


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float32(1), "1", None, np.array([1]), -1])
def test_what_is_no_whole_number_from_0(value: object) -> None:
    assert not is_whole(value)


def test_both_ends_belong_to_the_range() -> None:
    assert [value for value in range(-3, 9) if is_whole(value, -1, 5)] == [-1, 0, 1, 2, 3, 4, 5]


def test_the_value_that_failed_is_named() -> None:
    assert whole("row", [3, 7], limit=8).tolist() == [3, 7]
    with pytest.raises(RefsimError, match=r"row 8 is outside 0\.\.7"):
        whole("row", [3, 8], limit=8)
    with pytest.raises(RefsimError, match=r"row is 1\.5: a whole number is needed"):
        whole("row", 1.5)
