"""Arrays of ml_dtypes: their dtype is their format, everywhere codes or values are taken, and never by the library's casts."""

import ml_dtypes
import numpy as np
import pytest

import refsim
from refsim import (
    FORMATS,
    RefsimError,
    compare,
    decode,
    encode,
    files,
    layouts,
    numerics,
    oracles,
    pack,
    scaling,
    unpack,
)
from refsim.formats import E4M3, UE4M3
from refsim.oracles import fp8_quantize
from refsim.oracles import linear as linear_oracle
from refsim.typed_arrays import dtype_of, format_held, format_of, integers, typed, words

TYPED = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "bf16": ml_dtypes.bfloat16,
}
NAMED = pytest.mark.parametrize(("name", "kind"), TYPED.items())


def every_code(name: str) -> np.ndarray:
    row = refsim.formats.format_named(name)
    return np.arange(min(row.code_limit, 1 << 16), dtype=row.code_dtype)


@NAMED
def test_codes_know_their_format(name, kind) -> None:
    codes = every_code(name)
    array = codes.view(kind)
    assert np.array_equal(decode(array), decode(codes, name), equal_nan=True)
    assert np.array_equal(np.signbit(decode(array)), np.signbit(decode(codes, name)))
    assert np.array_equal(decode(array, name), decode(codes, name), equal_nan=True)
    assert format_of(array.dtype).name == name
    assert dtype_of(format_of(array.dtype)) == kind
    if codes.itemsize == 1:
        assert np.array_equal(pack(array), pack(codes, name))
        again = unpack(pack(array), name, dtype="ml_dtypes")
        assert again.dtype == kind
        assert np.array_equal(again.view(np.uint8), codes)
    for other in TYPED:
        if other != name:
            with pytest.raises(RefsimError) as caught:
                decode(array, other)
            assert caught.value.code == "format-mismatch"


@NAMED
def test_values_are_read_by_the_row_and_come_back_as_the_dtype(name, kind) -> None:
    codes = every_code(name)
    values = decode(codes, name)
    numbers = ~np.isnan(values)
    overflow = "inf" if format_of(np.dtype(kind)).has_infinity else "saturate"
    back = encode(codes.view(kind), name, overflow=overflow, dtype="ml_dtypes")
    assert back.dtype == kind
    assert np.array_equal(back.view(codes.dtype)[numbers], codes[numbers])
    assert np.array_equal(encode(codes.view(kind), "e5m2"), encode(values, "e5m2"))
    assert encode(values, name, dtype=kind).dtype == kind
    assert encode(values, name, dtype=codes.dtype).dtype == codes.dtype
    with pytest.raises(RefsimError) as caught:
        encode(values, name, dtype=ml_dtypes.bfloat16 if name != "bf16" else ml_dtypes.float8_e5m2)
    assert caught.value.code == "format-mismatch"


def test_the_librarys_casts_decide_nothing() -> None:
    """It rounds 464 to NaN; the format's row saturates. Its E8M0 of 0 is NaN; the row has 2^-127."""
    assert encode(464.5, "e4m3", dtype="ml_dtypes").view(np.uint8) == 0x7E
    assert np.float32(464.5).astype(ml_dtypes.float8_e4m3fn).view(np.uint8) == 0x7F
    ones = np.full((1, 3), 0x7F, np.uint8).view(ml_dtypes.float8_e8m0fnu)
    shuffled = layouts.scale_layout("nvidia_128x4").shuffle(ones)
    assert shuffled.dtype == ones.dtype
    plain = layouts.scale_layout("nvidia_128x4").shuffle(ones.view(np.uint8))
    assert np.array_equal(shuffled.view(np.uint8), plain)
    assert set(np.unique(plain)) == {0, 0x7F}  # the pads hold code 0


@pytest.mark.parametrize(
    ("kind", "low"), [(ml_dtypes.int4, -8), (ml_dtypes.uint4, 0), (ml_dtypes.int2, -2), (ml_dtypes.uint2, 0)]
)
def test_narrow_integers_are_values_and_compare_as_integers(kind, low) -> None:
    count = -2 * low if low else 1 << int(kind.__name__[-1])
    whole = np.arange(low, low + count)
    array = np.array(whole.tolist(), dtype=kind)
    assert integers(array).tolist() == whole.tolist()
    raw = (array.view(np.uint8) & np.uint8(count - 1)).view(kind)  # as a library that leaves the upper bits clear
    assert integers(raw).tolist() == whole.tolist()
    assert np.array_equal(encode(array, "bf16"), encode(whole, "bf16"))
    assert not compare.bits(array, raw)
    moved = compare.bits(array, np.roll(array, 1))
    assert moved.count == count
    assert moved.first.got_value == low
    assert decode(array).tolist() == whole.tolist()
    assert decode(array[:0], dtype=np.float32).dtype == np.float32
    for refused in (lambda: decode(array, "e4m3"), lambda: compare.bits(array, array, format="e4m3")):
        with pytest.raises(RefsimError) as caught:
            refused()
        assert caught.value.code == "format-mismatch"
    with pytest.raises(RefsimError) as caught:
        compare.bits(array, np.zeros(count, ml_dtypes.float8_e5m2))
    assert caught.value.code == "format-mismatch"


@pytest.mark.parametrize(("kind", "name"), [(ml_dtypes.int4, "s4"), (ml_dtypes.uint4, "u4")])
def test_a_product_knows_narrow_integers_by_their_rows(kind, name) -> None:
    ones = np.ones((8, 64), kind)
    with pytest.raises(RefsimError, match=f"of {name}|{name}") as caught:
        numerics.mma(ones, ones, unit="mma.sync", d_format="s32")
    assert caught.value.code == "unknown-arithmetic"
    with pytest.raises(RefsimError) as caught:
        numerics.mma(ones, ones, unit="mma.sync", a_format="s8", d_format="s32")
    assert caught.value.code == "format-mismatch"


@NAMED
def test_a_quantiser_reads_no_other_format_by_its_values(name, kind) -> None:
    """NumPy calls E5M2 of ml_dtypes a float, as it does float16."""
    codes = np.ones((2, 128), kind)
    if name == "bf16":
        assert scaling.quantize(codes).codes.tolist() == scaling.quantize(np.ones((2, 128), np.float32)).codes.tolist()
        return
    for asked in (lambda: scaling.quantize(codes), lambda: fp8_quantize.amax(codes)):
        with pytest.raises(RefsimError) as caught:
            asked()
        assert caught.value.code == "unsupported-format"


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_values_in_the_other_byte_order_are_the_same_values(kind) -> None:
    values = np.linspace(-3, 500, 256).astype(kind).reshape(2, 128)
    swapped = values.astype(np.dtype(kind).newbyteorder(">"))
    assert np.array_equal(encode(swapped, "e4m3"), encode(values, "e4m3"))
    assert np.array_equal(scaling.quantize(swapped).codes, scaling.quantize(values).codes)
    assert fp8_quantize.amax(swapped) == fp8_quantize.amax(values)
    assert not compare.bits(swapped, values)
    codes = np.full((16, 16), 0x3C00, np.uint16)
    ones = {"unit": "mma.sync", "a_format": "f16", "b_format": "f16"}
    c = np.ones((16, 16), np.float32)
    assert np.array_equal(
        numerics.mma(codes.astype(">u2"), codes.astype(">u2"), c.astype(">f4"), **ones),
        numerics.mma(codes, codes, c, **ones),
    )
    pair = np.float32([1, 2, 3])
    turned = pair.astype(">f4")
    assert np.array_equal(
        refsim.convert("cvt.rn.f16x2.f32", turned, turned), refsim.convert("cvt.rn.f16x2.f32", pair, pair)
    )


def test_what_has_no_row_is_refused() -> None:
    for kind in (ml_dtypes.float8_e4m3b11fnuz, ml_dtypes.float8_e4m3):
        with pytest.raises(RefsimError) as caught:
            decode(np.zeros(2, kind))
        assert caught.value.code == "unsupported-dtype"
    with pytest.raises(RefsimError) as caught:
        decode(np.zeros(2, np.uint8))
    assert caught.value.code == "format-needed"
    for row in FORMATS:
        if row.name in ("ue4m3", "ue5m3", "tf32", "mxint8"):
            with pytest.raises(RefsimError) as caught:
                encode(1.0, row, dtype="ml_dtypes")
            assert caught.value.code == "unsupported-dtype"
    with pytest.raises(RefsimError) as caught:
        encode(1.0, "e4m3", dtype="no such thing")
    assert caught.value.code == "unsupported-dtype"
    assert encode(1.0, "f16", dtype="ml_dtypes").dtype == np.float16
    assert encode(1.0, "f32", dtype="ml_dtypes").dtype == np.float32


def test_scales_of_nvfp4_are_held_as_e4m3() -> None:
    scales = np.array([0x38, 0x7E], np.uint8).view(ml_dtypes.float8_e4m3fn)
    assert decode(scales, UE4M3).tolist() == [1.0, 448.0]
    with pytest.raises(RefsimError) as caught:
        decode(np.array([0xB8], np.uint8).view(ml_dtypes.float8_e4m3fn), "ue4m3")
    assert caught.value.code == "out-of-range"


def operands(kind, rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, 64, (rows, columns), np.uint8).view(kind)


def test_mma_and_its_bounds_take_their_formats_from_the_operands() -> None:
    a, b = operands(ml_dtypes.float8_e5m2, 4, 64), operands(ml_dtypes.float8_e4m3fn, 8, 64)
    x, y = a.view(np.uint8), b.view(np.uint8)
    named = {"a_format": "e5m2", "b_format": "e4m3"}
    assert np.array_equal(numerics.mma(a, b, None), numerics.mma(x, y, None, **named))
    assert not np.array_equal(numerics.mma(a, b, None), numerics.mma(x, y, None))
    assert np.array_equal(numerics.exact_product(a, b), numerics.exact_product(x, y, **named))
    assert np.array_equal(numerics.fma_product(a, b), numerics.fma_product(x, y, **named))
    assert np.array_equal(
        numerics.error_bound(a, b, None, unit="wgmma"), numerics.error_bound(x, y, None, unit="wgmma", **named)
    )
    for call in (numerics.mma, numerics.exact_product):
        with pytest.raises(RefsimError) as caught:
            call(a, b, None, a_format="e4m3")
        assert caught.value.code == "format-mismatch"
    with pytest.raises(RefsimError) as caught:
        numerics.exact_product(x, y)
    assert caught.value.code == "format-needed"


@pytest.mark.parametrize(
    ("scale", "name", "unit", "block"),
    [
        (ml_dtypes.float8_e8m0fnu, "e8m0", "tcgen05.mxf4", 32),
        (ml_dtypes.float8_e4m3fn, "ue4m3", "tcgen05.mxf4nvf4", 16),
    ],
)
def test_scaled_products_take_all_four_formats(scale, name, unit, block) -> None:
    a = (operands(np.uint8, 4, 128) & 15).view(ml_dtypes.float4_e2m1fn)
    b = (operands(np.uint8, 8, 128) & 15).view(ml_dtypes.float4_e2m1fn)
    factors = [np.full((rows, 128 // block), 0x3A, np.uint8) for rows in (4, 8)]
    wanted = numerics.mma(
        a.view(np.uint8),
        b.view(np.uint8),
        None,
        unit=unit,
        a_format="e2m1",
        b_format="e2m1",
        target="sm_100a",
        a_scale=factors[0],
        b_scale=factors[1],
        scale_format=name,
    )
    scales = [array.view(scale) for array in factors]
    got = numerics.mma(a, b, None, unit=unit, target="sm_100a", a_scale=scales[0], b_scale=scales[1])
    assert np.array_equal(got.view(np.uint32), wanted.view(np.uint32))
    assert wanted.any()


def test_comparing_names_the_format_and_decodes() -> None:
    got = np.array([0x7E, 0x00], np.uint8).view(ml_dtypes.float8_e4m3fn)
    want = np.array([0x7F, 0x00], np.uint8)
    for other in (want, want.view(got.dtype)):
        assert compare.bits(got, other).format == "e4m3"
    found = compare.bits(got, want.view(got.dtype))
    assert (found.count, found.first.got_value) == (1, 448.0)
    with pytest.raises(RefsimError) as caught:
        compare.bits(got, want.view(ml_dtypes.float8_e5m2))
    assert caught.value.code == "format-mismatch"
    with pytest.raises(RefsimError):
        compare.bits(got, want, "e5m2")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors"])
@NAMED
def test_files_keep_them(tmp_path, suffix, name, kind) -> None:
    codes = every_code(name)[:252].reshape(-1, 4 if name != "e2m1" else 2)
    path = tmp_path / f"w{suffix}"
    files.save(path, codes.view(kind))
    stored = files.load(path)
    assert stored.format.name == name
    assert stored.typed().dtype == kind
    assert np.array_equal(stored.codes, codes)
    assert np.array_equal(stored.typed().view(codes.dtype), codes)
    files.save_all(path, {"w": codes.view(kind)})
    assert np.array_equal(files.load(path).codes, codes)
    with pytest.raises(RefsimError) as caught:
        files.save(path, codes.view(kind), "f32")
    assert caught.value.code == "format-mismatch"
    with pytest.raises(RefsimError) as caught:
        files.save(path, codes)
    assert caught.value.code == "format-needed"


def test_files_take_what_numpy_saved_of_them_and_plain_floats(tmp_path) -> None:
    for name, kind in TYPED.items():
        codes = every_code(name)
        np.save(tmp_path / "x.npy", codes.view(kind))
        assert np.array_equal(files.load(tmp_path / "x.npy", name).codes, codes)
    half = np.array([1.5, -0.0], np.float16)
    files.save(tmp_path / "h.npy", half)
    assert files.load(tmp_path / "h.npy").typed().tobytes() == half.tobytes()
    swapped = np.array([1.5, 3.0], ">f4")
    files.save(tmp_path / "s.npz", swapped)
    assert files.load(tmp_path / "s.npz").typed().tolist() == [1.5, 3.0]
    assert format_held(np.dtype(np.float64)) is None


def test_the_quantiser_and_the_layers_take_and_return_them() -> None:
    x = encode(np.linspace(-3, 3, 24).reshape(4, 6), "bf16", dtype="ml_dtypes")
    q, scale = fp8_quantize.quantize(x, dtype="ml_dtypes")
    plain, same = fp8_quantize.quantize(x.view(np.uint16), "bf16")
    assert q.dtype == ml_dtypes.float8_e4m3fn
    assert (q.view(np.uint8) == plain).all()
    assert scale == same
    values = decode(x, dtype=np.float32)
    assert fp8_quantize.amax(values) == fp8_quantize.amax(x) == fp8_quantize.amax(x.view(np.uint16), "bf16")
    y = fp8_quantize.dequantize(q, scale, dtype="ml_dtypes")
    assert y.dtype == ml_dtypes.bfloat16
    assert np.array_equal(y.view(np.uint16), fp8_quantize.dequantize(plain, scale, "e4m3", "bf16"))
    with pytest.raises(RefsimError):
        fp8_quantize.quantize(q)
    w = encode(np.eye(6), "bf16", dtype="ml_dtypes")
    assert np.array_equal(linear_oracle(x, w), linear_oracle(x.view(np.uint16), w.view(np.uint16)))


def test_words_and_typed_share_the_memory() -> None:
    codes = np.arange(4, dtype=np.uint8)
    array = typed(codes, E4M3, "ml_dtypes")
    assert np.shares_memory(array, codes)
    assert np.shares_memory(words(array), codes)
    assert words(codes) is codes


@pytest.mark.parametrize(
    ("kind", "bits"), [(ml_dtypes.int4, 0xF), (ml_dtypes.uint4, 0xF), (ml_dtypes.int2, 3), (ml_dtypes.uint2, 3)]
)
def test_what_stands_above_a_narrow_integer_in_its_byte_does_not_count(kind, bits) -> None:
    held = np.arange(256, dtype=np.uint8)
    assert words(held.view(kind)).tolist() == (held & bits).tolist()


@pytest.mark.parametrize(
    "scalar", [ml_dtypes.bfloat16(1.5), np.float32(1.5), np.array([1.5], ml_dtypes.float8_e4m3fn)[0]]
)
def test_one_element_is_compared_and_kept_as_an_array_of_it(scalar, tmp_path) -> None:
    assert not compare.bits(scalar, np.asarray(scalar))
    assert compare.bits(scalar, -np.asarray(scalar)).count == 1
    files.save(tmp_path / "x.npy", scalar)
    kept = files.load(tmp_path / "x.npy")
    assert kept.shape == ()
    assert kept.typed() == scalar


@pytest.mark.parametrize("kind", [ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.int2])
def test_a_file_of_narrow_integers_is_refused_by_their_name(kind, tmp_path) -> None:
    with pytest.raises(RefsimError, match=f"{kind.__name__} holds integers") as caught:
        files.save(tmp_path / "x.npy", np.ones(3, kind))
    assert caught.value.code == "wrong-type"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("dtype", [np.float64, float, np.dtype("f8"), np.int64, bool, np.complex64])
def test_a_dtype_that_holds_no_codes_is_refused(dtype) -> None:
    """NumPy compares float64 and None as equal."""
    codes = np.zeros((4, 8), np.uint8)
    for call in (
        lambda: typed(codes, E4M3, dtype),
        lambda: encode(np.zeros(8), "e4m3", dtype=dtype),
        lambda: scaling.dequantize(codes, np.ones((4, 1), np.float32), "e4m3", dtype=dtype),
    ):
        with pytest.raises(RefsimError) as caught:
            call()
        assert caught.value.code == "format-mismatch"


@pytest.mark.parametrize("name", ["mxfp8", "mxfp6_e2m3", "mxfp4", "nvfp4"])
def test_blocks_go_out_as_typed_arrays_and_come_back(name) -> None:
    blocks = refsim.quantize(np.linspace(-3, 3, 128, dtype=np.float32).reshape(2, 64), name)
    codes, scales = blocks.typed()
    assert not compare.bits(
        scaling.Blocks(codes, scales, name, blocks.recipe, blocks.tensor_scale).dequantize(), blocks.dequantize()
    )


def test_oracles_take_and_return_them() -> None:
    x = encode(np.linspace(-3, 3, 64).reshape(4, 16), "bf16", dtype="ml_dtypes")
    codes, heads, ones = x.view(np.uint16), x.reshape(1, 4, 16), np.ones((4, 1), np.float32)
    narrow = encode(x, "e4m3", dtype="ml_dtypes")
    for given, plain in (
        (oracles.softmax(x, dtype="ml_dtypes"), oracles.softmax(codes)),
        (oracles.rms_norm(x, x[0], gate=x, dtype="ml_dtypes"), oracles.rms_norm(codes, codes[0], gate=codes)),
        (
            oracles.attention(heads, heads, heads, 0.25, dtype="ml_dtypes").o,
            oracles.attention(*[codes[None]] * 3, 0.25).o,
        ),
        (oracles.linear(x, x, dtype="ml_dtypes"), oracles.linear(codes, codes)),
        (
            oracles.fp8_gemm_1d2d(narrow, narrow, ones, ones[:1], dtype="ml_dtypes"),
            oracles.fp8_gemm_1d2d(narrow.view(np.uint8), narrow.view(np.uint8), ones, ones[:1]),
        ),
        (numerics.approx("tanh.approx.bf16", x), numerics.approx("tanh.approx.bf16", codes)),
    ):
        assert given.dtype == ml_dtypes.bfloat16
        assert np.array_equal(given.view(np.uint16), plain)
    half = decode(x, dtype=np.float32).astype(np.float16)
    assert np.array_equal(oracles.softmax(half), oracles.softmax(half.view(np.uint16), format="f16"))
    with pytest.raises(RefsimError, match="the format asked for is f16"):
        oracles.softmax(x, format="f16")
