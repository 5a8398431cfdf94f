"""Codes of 4 bits that a fused kernel loads, and outputs of such codes that do not fill bytes."""

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from refsim.conversions import decode
from refsim.errors import RefsimError
from refsim.testing import steps

BYTES = np.random.default_rng(0).integers(0, 256, (3, 8)).astype(np.uint8)


def values(x, *load, **more):
    own = steps.fused(steps.load("x", *load, **more), steps.store("y", "f32"))(SimpleNamespace(x=x))
    return own.apart(own.codes(own.usual))["y"].view(np.float32)


@pytest.mark.parametrize("nibbles", ["low", "high"])
def test_two_codes_of_a_byte_are_loaded_in_their_order(nibbles):
    first, second = (BYTES & 15, BYTES >> 4) if nibbles == "low" else (BYTES >> 4, BYTES & 15)
    codes = np.stack([first, second], -1).reshape(3, 16)
    assert (values(BYTES, "e2m1", nibbles=nibbles) == decode(codes, "e2m1", np.float32)).all()
    assert (values(BYTES, "int4", nibbles=nibbles) == np.where(codes > 7, codes.astype(int) - 16, codes)).all()


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.int4, np.uint8])
def test_whole_numbers_are_loaded_from_arrays_that_hold_one_in_a_byte(dtype):
    whole = np.array([[-8, 7, -1, 3]])
    given = (whole & 15).astype(np.uint8) if dtype is np.uint8 else whole.astype(dtype)
    assert values(given, "int4").tolist() == whole.tolist()
    assert values(np.int8([[-128, 127]]), "int8").tolist() == [[-128, 127]]


def test_a_kernel_that_takes_the_other_half_of_a_byte_first_is_named():
    own = steps.fused(steps.load("x", "int4", nibbles="low"), steps.store("y", "f32"))(SimpleNamespace(x=BYTES))
    (cause,) = [each for each in own.causes() if "elements of a byte" in each.says]
    got = own.apart(own.codes(cause.of(own.usual)))["y"].view(np.float32)
    assert (got == values(BYTES, "int4", nibbles="high")).all()


def quantized(rows, columns, **more):
    given = SimpleNamespace(x=np.ones((rows, columns), np.uint16))
    return lambda: steps.fused(steps.load("x"), steps.quantize("nvfp4"), steps.store("q", **more))(given)


@pytest.mark.parametrize(
    ("make", "code", "rule"),
    [
        (lambda: steps.load("x", "bf16", nibbles="low"), "bad-kernel", "e2m1, int4"),
        (lambda: steps.load("x", nibbles="low"), "bad-kernel", "e2m1, int4"),
        (lambda: values(BYTES.astype(np.uint16), "int4", nibbles="low"), "bad-dtype", "share a byte"),
        (quantized(3, 32, transposed=True), "bad-shape", "an even number of rows of x where it is transposed"),
        (quantized(2, 33), "bad-shape", "an even number of columns"),
    ],
)
def test_what_does_not_fill_bytes_is_refused_with_a_way_out(make, code, rule):
    with pytest.raises(RefsimError) as caught:
        make()
    assert caught.value.code == code
    assert rule in caught.value.rule
    assert caught.value.where
    assert caught.value.help


def test_an_even_number_of_rows_is_transposed():
    own = quantized(4, 32, transposed=True)()
    assert own.apart(own.codes(own.usual))["q"].shape == (32, 2)
