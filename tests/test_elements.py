"""The table of element types: what each row derives, against NumPy's own types and ml_dtypes, which define none of it."""

import ml_dtypes
import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.formats import B1, E4M3, ELEMENTS, F64, FORMATS, S4, S8, S32, TF32, U4, U8, element_named, float_named

INTEGERS = [row for row in ELEMENTS if row.is_integer]


def test_names_are_one_vocabulary():
    assert [element_named(row.name) for row in ELEMENTS] == list(ELEMENTS)
    assert len({row.name for row in ELEMENTS}) == len(ELEMENTS) == len(FORMATS) + 7
    assert [element_named(row) for row in ELEMENTS] == list(ELEMENTS)
    assert element_named("float8_e4m3fn") is E4M3
    assert [float_named(name) for name in ("f64", E4M3)] == [F64, E4M3]


@pytest.mark.parametrize(("call", "code"), [(element_named, "unknown-format"), (float_named, "unknown-format")])
def test_an_unknown_name_shows_the_nearest(call, code):
    with pytest.raises(RefsimError, match="e4m3") as error:
        call("e4m4")
    assert error.value.code == code


def test_integers_are_no_floats():
    with pytest.raises(RefsimError, match="s8 is not a floating-point format"):
        float_named("s8")


@pytest.mark.parametrize("row", ELEMENTS, ids=str)
def test_a_row_names_numpy_types_of_its_own_bits(row):
    assert row.code_dtype.kind == "u"
    assert row.code_limit == 1 << row.code_bits <= 1 << 8 * row.code_dtype.itemsize
    for kind in (row.array_dtype, row.ml_dtype):
        assert kind is None or kind.itemsize == row.code_dtype.itemsize
    assert {str(row): str(row.array_dtype) for row in ELEMENTS if row.array_dtype is not None} == {
        "f64": "float64",
        "f32": "float32",
        "f16": "float16",
        "s32": "int32",
        "s8": "int8",
        "u8": "uint8",
    }


@pytest.mark.parametrize("row", [row for row in ELEMENTS if row.array_dtype is not None], ids=str)
def test_values_are_those_of_numpys_own_type(row):
    codes = np.random.default_rng(row.bits).integers(0, row.code_limit, 4096, np.uint64, endpoint=False)
    with np.errstate(invalid="ignore"):
        want = codes.astype(row.code_dtype).view(row.array_dtype).astype(np.float64)
    got = [float(row.value(int(code))) for code in codes]
    np.testing.assert_array_equal(got, want)
    assert np.array_equal(np.signbit(got), np.signbit(want))


@pytest.mark.parametrize("row", [row for row in ELEMENTS if row.ml_dtype is not None], ids=str)
def test_the_dtype_of_ml_dtypes_has_the_values_of_the_row(row):
    codes = np.arange(row.code_limit, dtype=row.code_dtype)
    assert row.ml_dtype.type.__module__ == ml_dtypes.__name__
    with np.errstate(invalid="ignore"):
        want = codes.view(row.ml_dtype).astype(np.float64)
    np.testing.assert_array_equal([float(row.value(int(code))) for code in codes], want)


def types_of_ml_dtypes() -> list[np.dtype]:
    """Its real numbers: it has complex ones beside them."""
    kinds = [kind for kind in vars(ml_dtypes).values() if isinstance(kind, type) and issubclass(kind, np.generic)]
    return [np.dtype(kind) for kind in kinds if "complex" not in kind.__name__]


@pytest.mark.parametrize("kind", types_of_ml_dtypes(), ids=str)
def test_a_row_with_the_values_of_a_type_of_ml_dtypes_names_it(kind):
    """By an alias that is the name of the dtype. b1 is left out: uint1 holds a number, b1 what logic is done with."""
    about = ml_dtypes.iinfo if "int" in kind.name else ml_dtypes.finfo
    for row in (row for row in ELEMENTS if row.code_bits == about(kind).bits and row is not B1):
        codes = np.arange(row.code_limit, dtype=row.code_dtype)
        with np.errstate(invalid="ignore"):
            want = codes.view(kind).astype(np.float64)
        is_same = np.array_equal([float(row.value(int(code))) for code in codes], want, equal_nan=True)
        assert (row.ml_dtype == kind) == is_same, row


def test_bits_of_codes_and_ends_of_integers():
    assert (TF32.bits, TF32.code_bits, F64.code_bits) == (19, 32, 64)
    assert {str(row): row.limits for row in INTEGERS} == {
        "s32": (-(1 << 31), (1 << 31) - 1),
        "s8": (-128, 127),
        "u8": (0, 255),
        "s4": (-8, 7),
        "u4": (0, 15),
        "b1": (0, 1),
    }
    assert (S8.value(0xFF), U8.value(0xFF), S4.value(0xF), U4.value(0xF), B1.value(1), S32.value(-1)) == (
        -1,
        255,
        -1,
        15,
        1,
        -1,
    )
    assert TF32.value(0x3F801FFF) == 1.0
