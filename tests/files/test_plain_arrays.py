"""Integers, truth values and float64: read by their dtype, compared, shown, printed and written as what they are."""

from pathlib import Path

import numpy as np
import pytest

from refsim import compare, files
from refsim.errors import RefsimError
from refsim.formats import ARRAY_TYPES, array_type

SIGNED = {"s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64, "u64": np.uint64, "f64": np.float64}
UNSIGNED = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32}


def values(dtype: type) -> np.ndarray:
    """Return the least, the largest and small values of a type."""
    if dtype is np.float64:
        return np.array([[0.0, -0.0, 1.5, np.nan], [np.inf, -1e300, 5e-324, -3.0]])
    info = np.iinfo(dtype)
    return np.array([[0, 1, info.max, info.min], [2, 3, 4, info.max - 1]], dtype)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@pytest.mark.parametrize("name", SIGNED)
def test_a_dtype_that_cannot_be_codes_says_what_it_is(name: str, suffix: str, tmp_path: Path) -> None:
    x = values(SIGNED[name])
    files.save(tmp_path / f"x{suffix}", x.view(f"u{x.itemsize}"), name)
    stored = files.load(tmp_path / f"x{suffix}")
    assert str(stored.format) == name
    assert stored.typed().dtype == x.dtype
    np.testing.assert_array_equal(stored.codes, x.view(f"u{x.itemsize}"))
    if suffix == ".npy":
        assert np.load(tmp_path / "x.npy").dtype == x.dtype
        np.save(tmp_path / "y.npy", np.asfortranarray(x).astype(x.dtype.newbyteorder(">")))
        np.testing.assert_array_equal(files.load(tmp_path / "y.npy").codes, stored.codes)


@pytest.mark.parametrize("name", UNSIGNED)
def test_unsigned_elements_may_be_codes_until_they_are_named(name: str, tmp_path: Path) -> None:
    x = values(UNSIGNED[name])
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(RefsimError) as found:
        files.load(tmp_path / "x.npy")
    assert found.value.code == "format-needed"
    assert name in found.value.rule
    stored = files.load(tmp_path / "x.npy", name)
    np.testing.assert_array_equal(stored.typed(), x)
    assert str(stored.format) == name


def test_truth_values_are_u8(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([True, False, True]))
    assert files.load(tmp_path / "x.npy").codes.tolist() == [1, 0, 1]
    assert str(files.load(tmp_path / "x.npy").format) == "u8"


@pytest.mark.parametrize("name", [*SIGNED, *UNSIGNED])
def test_a_difference_of_one_is_one_step(name: str) -> None:
    x = values({**SIGNED, **UNSIGNED}[name])
    y = x.copy()
    y[1, 3] = y[1, 3] + 1
    found = compare.bits(x.view(f"u{x.itemsize}"), y.view(f"u{x.itemsize}"), name)
    assert found.count == 1
    assert found.first is not None
    assert found.first.index == (1, 3)
    assert found == compare.bits(x, y, name)
    if x.dtype.kind in "iu":
        assert found.worst is not None
        assert abs(found.worst.ulps) == 1
    with pytest.raises(RefsimError):
        compare.bits(np.zeros(2, np.float32), np.ones(2, np.float32), name)


def test_names_are_those_of_ptx_and_numpy() -> None:
    assert [str(row) for row in ARRAY_TYPES] == ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64", "f64"]
    assert array_type("int16") == array_type("s16")
    assert str(array_type("bool")) == "u8"
    assert str(array_type("bf16")) == "bf16"
    with pytest.raises(RefsimError):
        array_type("s12")
