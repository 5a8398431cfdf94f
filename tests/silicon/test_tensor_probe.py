"""refsim.silicon.tensor_probe and tensor_features: operands are fixed, do not depend on shape, and reach their subject."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from refsim import decode
from refsim.errors import RefsimError
from refsim.formats import BF16, E4M3, F16, F32, F64, S8, S32, TF32, U8
from refsim.numerics.multiply import ProductSpec
from refsim.reference.operands import special_codes
from refsim.silicon.tensor_features import features, negated
from refsim.silicon.tensor_probe import (
    CELL_WORDS,
    PROBED,
    batch_of,
    c_classes_of,
    cell_c,
    cell_operands,
    classes_of,
    holds,
    power,
    words,
)

WGMMA = ProductSpec(E4M3, E4M3, F32, 64, 64, 32, "wgmma")
SHAPES = [
    WGMMA,
    ProductSpec(F16, F16, F16, 16, 8, 16, "mma.sync"),
    ProductSpec(BF16, BF16, F32, 16, 8, 8, "mma.sync"),
    ProductSpec(TF32, TF32, F32, 64, 8, 8, "wgmma"),
    ProductSpec(F64, F64, F64, 8, 8, 4, "mma.sync"),
    ProductSpec(S8, U8, S32, 16, 8, 32, "mma.sync"),
]


def test_bits_of_a_place_do_not_depend_on_the_array():
    assert np.array_equal(words(7, 4, 64, 96)[:2, :8, :32], words(7, 2, 8, 32))
    assert np.unique(words(7, 4, 64, 96)).size == 4 * 64 * 96


@pytest.mark.parametrize("name", ["spread", "cancelling", "special"])
def test_operands_of_a_row_do_not_depend_on_n(name):
    (a, b), (x, y) = (cell_operands(replace(WGMMA, n=n), name, 0, batch=1) for n in (64, 256))
    assert np.array_equal(a, x)
    assert np.array_equal(b, y[:, :64])
    c, z = (cell_c(replace(WGMMA, n=n), name, "near", 0, *operands) for n, operands in ((64, (a, b)), (256, (x, y))))
    assert np.array_equal(c, z[:, :, :64])


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cell_has_16384_words_of_the_right_codes(shape):
    assert batch_of(shape) * shape.m * shape.n == CELL_WORDS
    for name in classes_of(shape):
        a, b = cell_operands(shape, name, 0)
        assert (a.shape[:2], b.shape[:2]) == ((batch_of(shape), shape.m), (batch_of(shape), shape.n))
        assert a.shape[2] % shape.k == 0
        assert (a.dtype, b.dtype) == (shape.a_format.code_dtype, shape.b_format.code_dtype)
        for c_name in c_classes_of(shape):
            c = cell_c(shape, name, c_name, 0, a, b)
            assert c_name == "none" if c is None else c.shape == (batch_of(shape), shape.m, shape.n)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.a_format in (E4M3, F16, BF16, TF32)])
def test_classes_hold_what_they_are_called_after(shape):
    def values(name):
        return decode(cell_operands(shape, name, 0)[0], shape.a_format)

    assert np.isfinite(values("finite")).all()
    assert np.isnan(values("special")).any()
    smallest = shape.a_format.min_normal
    assert np.count_nonzero(np.abs(values("subnormal")) < smallest) > values("subnormal").size // 8
    assert np.count_nonzero(values("sparse") == 0) > values("sparse").size * 3 // 4


def test_neighbouring_products_of_the_cancelling_class_cancel():
    a, b = (decode(codes, "e4m3") for codes in cell_operands(WGMMA, "cancelling", 0))
    products = a[:, :, None] * b[:, None]
    sums = products[..., 0::2] + products[..., 1::2]
    assert 0.6 < np.mean(sums == 0) < 0.9  # a quarter of all pairs is one ulp off


def test_other_passes_have_other_operands():
    assert not np.array_equal(cell_operands(WGMMA, "spread", 0)[0], cell_operands(WGMMA, "spread", 4)[0])


def test_operands_are_those_that_an_h200_was_given():
    """The recording keeps no operands: another recipe would be another question."""
    hashes = hashlib.sha256()
    for name in classes_of(WGMMA):
        a, b = cell_operands(WGMMA, name, 0, batch=1)
        for codes in (a, b, *(cell_c(WGMMA, name, c_name, 0, a, b) for c_name in c_classes_of(WGMMA)[1:])):
            hashes.update(np.ascontiguousarray(codes).tobytes())
    assert hashes.hexdigest()[:16] == "c5d603fcfb156a86"


def test_special_codes_of_e4m3():
    assert special_codes(E4M3, PROBED)[::2] == (0x00, 0x01, 0x07, 0x08, 0x38, 0x39, 0x7F, 0x7E)


@pytest.mark.parametrize("name", ["swamped", "none"])
def test_an_unknown_class_is_refused(name):
    with pytest.raises(RefsimError, match=name):
        cell_operands(WGMMA, name, 0)


def test_power_spells_a_product_in_both_factors():
    for exponent in range(-18, 17):
        x, y = power(WGMMA, exponent)
        assert x * y == 2.0**exponent
        assert holds(E4M3, x)
        assert holds(E4M3, y)
    assert power(WGMMA, 17) is None
    assert power(WGMMA, -19) is None


def test_features_ask_what_they_say():
    asked = features(WGMMA)
    a, b = (decode(codes, "e4m3") for codes in (asked["c_precision"].a, asked["c_precision"].b))
    assert np.all((a * b).sum(axis=1) == 0)
    assert np.all(decode(asked["c_precision"].c, "f32") != 0)
    order = asked["order"]
    assert order.a.shape[1] == 64
    assert np.all((decode(order.a, "e4m3") == 256).sum(axis=1) == 1)
    assert all(row.c is None for name, row in asked.items() if name.endswith("scale_d"))
    assert features(SHAPES[-1]) == {}
    assert {row.negate_a for row in negated(WGMMA).values()} == {True, False}
