"""Format rows: ranges and special codes from the documents, and every decoded code against ml_dtypes."""

import ml_dtypes
import numpy as np
import pytest

from refsim.conversions import decode, encode, round_bits
from refsim.errors import RefsimError
from refsim.formats import F64, FORMATS, MXINT8, UE4M3, UE5M3, Format, element_named, format_named

# name, bits, largest code and value, smallest positive value, NaN codes of all, infinity, -0
DOCUMENTED = [
    ("e4m3", 8, 0x7E, 448.0, 2.0**-9, {0x7F, 0xFF}, None, True),
    ("e5m2", 8, 0x7B, 57344.0, 2.0**-16, {0x7D, 0x7E, 0x7F, 0xFD, 0xFE, 0xFF}, 0x7C, True),
    ("e2m1", 4, 0x7, 6.0, 0.5, set(), None, True),
    ("e2m3", 6, 0x1F, 7.5, 0.125, set(), None, True),
    ("e3m2", 6, 0x1F, 28.0, 0.0625, set(), None, True),
    ("e8m0", 8, 0xFE, 2.0**127, 2.0**-127, {0xFF}, None, False),
    ("ue4m3", 7, 0x7E, 448.0, 2.0**-9, {0x7F}, None, False),
    ("ue5m3", 8, 0xFE, 114688.0, 2.0**-17, {0xFF}, None, False),
    ("e4m3fnuz", 8, 0x7F, 240.0, 2.0**-10, {0x80}, None, False),
    ("e5m2fnuz", 8, 0x7F, 57344.0, 2.0**-17, {0x80}, None, False),
    ("mxint8", 8, 0x7F, 127 / 64, 1 / 64, set(), None, False),
]
COUNTERPARTS = {
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e8m0": ml_dtypes.float8_e8m0fnu,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
}


def every_code(format: Format) -> np.ndarray:
    return np.arange(format.code_limit).astype(format.code_dtype)


@pytest.mark.parametrize("row", DOCUMENTED, ids=lambda row: row[0])
def test_row_has_the_documented_range(row: tuple) -> None:
    name, bits, max_code, max_value, smallest, nans, infinity, negative_zero = row
    format = format_named(name)
    values = decode(every_code(format), format)
    assert format.bits == bits
    assert (format.max_code, format.max_value) == (max_code, max_value)
    assert values[np.isfinite(values)].max() == max_value
    assert values[values > 0].min() == smallest
    assert set(np.flatnonzero(np.isnan(values)).tolist()) == nans
    assert format.infinity_code == infinity
    assert format.has_negative_zero == negative_zero == bool(np.any((values == 0) & np.signbit(values)))


@pytest.mark.parametrize("name", COUNTERPARTS)
def test_every_code_decodes_as_in_ml_dtypes(name: str) -> None:
    """Bits are compared, so that -0 counts; of a NaN only the sign, and that only where the format is narrow."""
    codes = every_code(format_named(name))
    with np.errstate(invalid="ignore"):
        expected = codes.view(COUNTERPARTS[name]).astype(np.float32)
    for dtype, pattern in ((np.float32, np.uint32), (np.float64, np.uint64)):
        values = decode(codes, name, dtype)
        assert values.dtype == dtype
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(values), ~number)
        if codes.dtype == np.uint8:
            np.testing.assert_array_equal(np.signbit(values), np.signbit(expected))
        np.testing.assert_array_equal(values[number].view(pattern), expected[number].astype(dtype).view(pattern))


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_min_value_and_min_normal_are_values(format: Format) -> None:
    pattern = decode(np.array([format.max_code], format.code_dtype), format)
    assert pattern[0] == format.max_value
    assert format.min_normal == format.quantum * 2.0**format.mantissa_bits or format.twos_complement
    assert format.min_value <= format.quantum


def test_the_smallest_value_of_mxint8_has_no_positive_kin() -> None:
    """OCP MX section 5.3.4: -2.0 is 0x80; +2.0 is no code."""
    assert (MXINT8.min_value, MXINT8.value(0x80), MXINT8.max_value) == (-2.0, -2.0, 127 / 64)


@pytest.mark.parametrize("name", ["f32", "tf32"])
def test_wide_formats_decode_their_pattern(name: str) -> None:
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 1 << 32, 100_000, dtype=np.uint32)
    kept = codes & np.uint32(0xFFFFE000 if name == "tf32" else 0xFFFFFFFF)
    np.testing.assert_array_equal(decode(codes, name, np.float32).view(np.uint32), kept)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("e4m3", 0x7F),
        ("e5m2", 0x7F),
        ("e8m0", 0xFF),
        ("e4m3fnuz", 0x80),
        ("bf16", 0x7FFF),
        ("f16", 0x7FFF),
        ("tf32", 0x7FFFE000),
        ("f32", 0x7FFFFFFF),
        ("e2m1", None),
    ],
)
def test_the_nan_that_hardware_writes(name: str, code: int | None) -> None:
    assert format_named(name).nan_code == code


def test_the_nans_next_to_infinity_are_nan_in_bf16() -> None:
    words = np.uint32([0x7F800001, 0xFF800001, 0x7F800000])  # rounded like numbers all would be infinite
    assert encode(words.view(np.float32), "bf16", overflow="inf").tolist() == [0x7FFF, 0x7FFF, 0x7F80]


def test_tf32_drops_its_padding_before_classification() -> None:
    """A NaN whose payload lies in the padding is an infinity."""
    assert decode(np.uint32(0x7F800001), "tf32") == np.inf


def test_unsigned_scales_equal_the_positive_half_of_their_signed_kin() -> None:
    np.testing.assert_array_equal(UE4M3.table, format_named("e4m3").table[:128])
    assert UE5M3.table[0x78] == 1.0
    assert UE5M3.table[1] == 2.0**-17


def test_aliases_and_unknown_names() -> None:
    assert format_named("float8_e4m3fn") is format_named("E4M3") is format_named("e4m3fn")
    with pytest.raises(RefsimError, match="unknown-format") as caught:
        format_named("e4m4")
    assert "e4m3" in caught.value.help


@pytest.mark.parametrize("name", ["f32", "tf32", "f64"])
def test_wide_formats_have_no_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before the first of 2^32 values is made."""
    monkeypatch.setattr(Format, "value", lambda *_: pytest.fail("a table was begun"))
    with pytest.raises(RefsimError, match="too-large"):
        _ = element_named(name).table


@pytest.mark.parametrize("name", [None, 5, np.float32, b"e4m3", ["e4m3"]])
def test_a_name_that_is_no_text_is_an_error_that_shows_it(name):
    with pytest.raises(RefsimError, match="unknown-format"):
        format_named(name)


@pytest.mark.parametrize(
    "asked", [lambda: encode(1.5, F64), lambda: decode(np.ones(1, np.uint64), F64), lambda: round_bits(1.5, F64)]
)
def test_f64_is_no_format_of_codes(asked):
    """Float64 is exact on the way for rows of 32 bits and less; of f64 it gave other values without a word."""
    with pytest.raises(RefsimError, match="unsupported-format"):
        asked()
