"""Operands whose dtype says what they hold: the plans computed from them are those of the plain codes with their formats."""

import ml_dtypes
import numpy as np
import pytest

from refsim import RefsimError, encode
from refsim.causes import (
    AttentionOperands,
    IntegerOperands,
    ProductOperands,
    QuantizedFrom,
    RowOperands,
    WeightOperands,
    explain_diff,
)
from refsim.formats import BF16, E2M1, E4M3, F32, S4, S8, S32, U4, UE4M3, element_named
from refsim.typed_arrays import held_codes

RNG = np.random.default_rng(0)
FLOATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "bf16": ml_dtypes.bfloat16}
WIDE = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
BYTES = np.arange(256, dtype=np.uint8)


def codes(name: str, *shape: int) -> np.ndarray:
    return encode(RNG.normal(size=shape), name)


def integers(kind, *shape: int) -> np.ndarray:
    limits = ml_dtypes.iinfo(kind)
    return RNG.integers(int(limits.min), int(limits.max) + 1, shape).astype(kind)


def usual(subject) -> np.ndarray:
    return subject.codes(subject.usual)


@pytest.mark.parametrize("name", FLOATS)
def test_products_take_their_formats_from_the_arrays(name):
    a, b = codes(name, 4, 64), codes(name, 8, 64)
    typed = ProductOperands(a=a.view(FLOATS[name]), b=b.view(FLOATS[name])).product(F32)
    plain = ProductOperands(a=a, b=b, a_format=name, b_format=name).product(F32)
    assert np.array_equal(usual(typed), usual(plain))


WEIGHTS = {
    "e4m3": (BYTES & 0x77).view(ml_dtypes.float8_e4m3fn),
    "s8": BYTES.view(np.int8),
    "s4": integers(ml_dtypes.int4, 256),
    "u4": integers(ml_dtypes.uint4, 256),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_narrow_weights_are_read_by_their_bits(name):
    """Never by a cast of the library: 0x38 of E4M3 is 1.0, and 1.0 cast to uint8 the code 1."""
    a, held = codes("bf16", 4, 32), WEIGHTS[name].reshape(8, 32)
    words = held.view(np.uint8) & np.uint8(element_named(name).code_limit - 1)
    scale = RNG.uniform(0.5, 2, (8, 2)).astype(np.float16)
    zeros = np.full((8, 2), 3).astype(ml_dtypes.uint4)
    for extra in ({}, {"b_format": name}):
        typed = WeightOperands(a=a.view(ml_dtypes.bfloat16), b=held, b_scale=scale, b_zero=zeros, **extra)
        plain = WeightOperands(
            a=a, a_format="bf16", b=words, b_format=name, b_scale=scale.astype(np.float32), b_zero=np.full((8, 2), 3)
        )
        assert np.array_equal(usual(typed.explained((4, 8), BF16)), usual(plain.explained((4, 8), BF16)))
    other = "e5m2" if name != "s8" else "e4m3"
    with pytest.raises(RefsimError):
        WeightOperands(a=a, a_format="bf16", b=held, b_format=other, b_scale=scale).explained((4, 8), BF16)


def test_scales_of_weights_may_be_codes_of_powers_of_two():
    a, b, powers = codes("bf16", 4, 32), codes("e4m3", 8, 32), RNG.integers(120, 130, (8, 1)).astype(np.uint8)
    made = [
        usual(
            WeightOperands(a=a, a_format="bf16", b=b, b_format="e4m3", b_scale=scale).explained((4, 8), BF16)
        ).tolist()
        for scale in (powers, powers.view(ml_dtypes.float8_e8m0fnu), np.ldexp(1.0, powers.astype(int) - 127))
    ]
    assert made[0] == made[1] == made[2]


@pytest.mark.parametrize(("kind", "row"), [(ml_dtypes.int4, S4), (ml_dtypes.uint4, U4), (np.int8, S8)])
def test_integers_know_their_types(kind, row):
    a, b = integers(kind, 4, 32), integers(kind, 8, 32)
    typed = IntegerOperands(a=a, b=b, b_zero=np.full(8, 2).astype(ml_dtypes.uint4))
    sums = a.astype(np.int32) @ (b.astype(np.int32) - 2).T
    assert np.array_equal(usual(typed.explained((4, 8), S32)).view(np.int32).reshape(4, 8), sums)
    plain = IntegerOperands(a=a.view(np.uint8), b=b.view(np.uint8), a_format=row, b_zero=2)
    assert np.array_equal(usual(plain.explained((4, 8), S32)).view(np.int32).reshape(4, 8), sums)
    if kind is not np.int8:
        with pytest.raises(RefsimError) as caught:
            IntegerOperands(a=a, b=b, a_format="s8").explained((4, 8), S32)
        assert caught.value.code == "format-mismatch"


def test_words_that_are_no_codes_of_four_bits_are_refused():
    given = IntegerOperands(a=np.full((4, 32), 0x71, np.uint8), b=np.ones((8, 32), np.uint8), a_format="s4")
    with pytest.raises(RefsimError) as caught:
        given.explained((4, 8), S32)
    assert caught.value.code == "out-of-range"


@pytest.mark.parametrize("name", WIDE)
def test_functions_of_rows_and_attention_refuse_another_format(name):
    x, other = codes(name, 4, 32), next(each for each in WIDE if each != name)
    held = x.view(WIDE[name])
    typed = RowOperands(function="rms_norm", x=held, weight=held[0], gate=held).explained((4, 32), F32)
    plain = RowOperands(function="rms_norm", x=x, x_format=name, weight=x[0], gate=x).explained((4, 32), F32)
    assert np.array_equal(usual(typed), usual(plain))
    swapped = held.astype(held.dtype.newbyteorder(">")) if name != "bf16" else held
    assert np.array_equal(
        usual(RowOperands(function="silu", x=swapped).explained((4, 32), F32)),
        usual(RowOperands(function="silu", x=held).explained((4, 32), F32)),
    )
    with pytest.raises(RefsimError) as caught:
        RowOperands(function="softmax", x=held, x_format=other).explained((4, 32), F32)
    assert caught.value.code == "format-mismatch"
    with pytest.raises(RefsimError) as caught:
        AttentionOperands(q=held, k=held, v=held, format=other).explained((4, 32), F32)
    assert caught.value.code == "format-mismatch"


def test_attention_in_e4m3_needs_no_scales_and_takes_numbers():
    q = codes("e4m3", 2, 64, 32).view(ml_dtypes.float8_e4m3fn)
    bare = AttentionOperands(q=q, k=q, v=q).explained((2, 64, 32), BF16)
    told = AttentionOperands(q=q, k=q, v=q, q_scale=1.0, v_scale=np.float32([1, 1])).explained((2, 64, 32), BF16)
    assert np.array_equal(usual(bare), usual(told))


def test_scales_beside_codes_are_of_their_format():
    x, q = codes("f32", 4, 64).view(np.float32), (BYTES & 7).reshape(4, 64)
    scales = np.full((4, 4), 0x38, np.uint8)
    given = QuantizedFrom(x=x, to="nvfp4")
    assert given.meant(E4M3) is UE4M3
    assert QuantizedFrom(x=x, to="1x128").meant(E4M3) is E4M3
    alone = explain_diff(scales.view(ml_dtypes.float8_e4m3fn), quantized=given, seconds=0.05)
    assert alone.differing == explain_diff(scales, format="ue4m3", quantized=given, seconds=0.05).differing
    for kind in (ml_dtypes.float8_e5m2, ml_dtypes.bfloat16):
        wrong = QuantizedFrom(x=x, to="nvfp4", scales=np.ones((4, 4), kind))
        with pytest.raises(RefsimError) as caught:
            explain_diff(q, format=E2M1, quantized=wrong, seconds=0.05)
        assert caught.value.code == "format-mismatch"


@pytest.mark.parametrize("kind", [np.float16, np.float32, ml_dtypes.float8_e5m2])
def test_what_is_called_a_float_keeps_its_format(kind):
    """NumPy calls E5M2 of ml_dtypes a float, as it does float16."""
    array = np.ones((4, 8), kind)
    with pytest.raises(RefsimError) as caught:
        explain_diff(array, array, {1: "e4m3", 2: "bf16", 4: "tf32"}[array.dtype.itemsize])
    assert caught.value.code == "format-mismatch"
    words, row = held_codes(array, None)
    assert words.dtype == row.code_dtype
    swapped = array.astype(array.dtype.newbyteorder(">")) if array.dtype.itemsize > 1 else array
    assert np.array_equal(held_codes(swapped, None)[0], words)
