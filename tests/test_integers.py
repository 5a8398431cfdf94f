"""Whole numbers as arguments: what counts as one, and the value that an error names."""

from typing import Any

import numpy as np
import pytest

from refsim import convert, decode, encode, files, numerics, oracles, quantize
from refsim.errors import RefsimError
from refsim.integers import array_of, is_whole, whole, whole_number, whole_numbers


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


@pytest.mark.parametrize("value", [[1], [], 1.5, "1", None, True, [[1], [2, 3]], np.float32("nan")])
def test_one_number_is_no_list(value: object) -> None:
    assert whole_number("row", np.int8(-3), least=-3) == -3
    with pytest.raises(RefsimError, match="row"):
        whole_number("row", value)


@pytest.mark.parametrize("values", [1, [[1]], [1, True], (np.True_, 2), [1.5], "12", {1}, [[1], [2, 3]], object()])
def test_a_list_holds_numbers_and_no_truth_values(values: object) -> None:
    assert whole_numbers("row", (np.int8(2), 3)) == (2, 3)
    with pytest.raises(RefsimError, match="row"):
        whole_numbers("row", values)


def test_lists_of_several_lengths_are_no_array() -> None:
    assert array_of("row", [[1], [2]]).shape == (2, 1)
    with pytest.raises(RefsimError, match="different lengths") as caught:
        array_of("row", [[1], [2, 3]])
    assert caught.value.code == "not-an-array"


class OnAnotherDevice:
    """What a tensor does that NumPy cannot read: of bfloat16, on a GPU, with gradients."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __array__(self, dtype=None, copy=None):
        raise self.error


@pytest.mark.parametrize("error", [TypeError("unsupported ScalarType BFloat16"), RuntimeError("it requires grad")])
def test_what_numpy_cannot_read_is_one_error(error, tmp_path) -> None:
    tensor: Any = OnAnotherDevice(error)
    for taken in (
        lambda: encode(tensor, "e4m3"),
        lambda: decode(tensor, "e4m3"),
        lambda: convert("cvt.rn.satfinite.e4m3x2.f32", tensor, tensor),
        lambda: quantize(tensor, "mxfp8"),
        lambda: numerics.mma(tensor, tensor, None),
        lambda: numerics.approx("sqrt.approx.f32", tensor),
        lambda: oracles.linear(tensor, tensor),
        lambda: files.save(tmp_path / "x.npy", tensor, "e4m3"),
    ):
        with pytest.raises(RefsimError, match=str(error)) as caught:
            taken()
        assert caught.value.code == "not-an-array"
