"""Each reading is recognised where it was made, on shapes that tell it from others, and nothing else is."""

import numpy as np
import pytest

from refsim.compare.readings import readings
from refsim.conversions import decode, encode
from refsim.formats import FORMATS, Format, format_named
from refsim.layouts import swizzle

RNG = np.random.default_rng(7)
CODES = RNG.permutation(np.arange(32 * 128) % 251).astype(np.uint8).reshape(32, 128)
F16 = format_named("f16")


def fitting(got: np.ndarray, want: np.ndarray, row: Format | None = None) -> list[str]:
    found = [each for each in readings() if np.count_nonzero(got != want) >= each.least and each.fits(got, want, row)]
    return [each.suspect for each in found]


def test_a_transpose_is_named_for_squares_and_for_other_shapes() -> None:
    square = CODES[:, :32]
    assert fitting(square.T.copy(), square) == ["transposed"]
    assert fitting(CODES.T.reshape(CODES.shape), CODES) == ["transposed"]


@pytest.mark.parametrize(("axis", "name"), [(0, "off-by-one row"), (1, "off-by-one column")])
@pytest.mark.parametrize("step", [1, -1])
def test_a_shift_is_named_whatever_its_edge_holds(axis: int, name: str, step: int) -> None:
    got = np.roll(CODES, step, axis)
    edge: list[slice | int] = [slice(None)] * 2
    edge[axis] = 0 if step > 0 else -1
    got[tuple(edge)] = 255
    assert fitting(got, CODES) == [name]


@pytest.mark.parametrize("mode", ["32B", "64B", "128B"])
def test_a_swizzle_is_named(mode: str) -> None:
    got = CODES.reshape(-1)[swizzle(mode)(np.arange(CODES.size))].reshape(CODES.shape)
    assert fitting(got, CODES) == ["swizzle not undone"]


@pytest.mark.parametrize(
    ("name", "wanted", "written"),
    [
        ("flushed subnormals", [0x0001, 0x8003, 0x3C00], [0x0000, 0x8000, 0x3C00]),
        ("sign of zero lost", [0x8000, 0x8000, 0x3C00], [0x0000, 0x0000, 0x3C00]),
        ("infinity saturated", [0x7C00, 0xFC00, 0x3C00], [0x7BFF, 0xFBFF, 0x3C00]),
        ("infinity propagated", [0x7BFF, 0xFBFF, 0x3C00], [0x7C00, 0xFC00, 0x3C00]),
        ("NaN dropped", [0x7E00, 0x7FFF, 0x3C00], [0x0000, 0x4000, 0x3C00]),
    ],
)
def test_what_became_of_special_values_is_named(name: str, wanted: list[int], written: list[int]) -> None:
    want, got = np.uint16(wanted), np.uint16(written)
    assert fitting(got, want, F16) == [name]
    spoilt = got.copy()
    spoilt[2] ^= 1
    assert fitting(spoilt, want, F16) == []


@pytest.mark.parametrize(("format", "other", "name"), [("e4m3", "e4m3fnuz", "FN / FNUZ"), ("e4m3", "e5m2", "format")])
def test_codes_of_another_format_are_named(format: str, other: str, name: str) -> None:
    own, theirs = format_named(format), format_named(other)
    values = RNG.standard_normal(500) * 20
    assert fitting(encode(values, theirs), encode(values, own), own) == [name]


def test_a_nan_where_no_nan_belongs_is_not_another_format() -> None:
    own, theirs = format_named("e4m3"), format_named("e5m2")
    values = RNG.standard_normal(500) * 20
    got, want = encode(values, theirs), encode(values, own)
    for places, wanted in ((slice(0, 1), []), (slice(0, 0), ["format"])):
        spoilt = got.copy()
        spoilt[places] = 0x7F
        assert fitting(spoilt, want, own) == wanted
    spoilt[0], spoilt_want = 0x7F, want.copy()
    spoilt_want[0] = 0x7F
    assert fitting(spoilt, spoilt_want, own) == ["format"]


def test_codes_read_as_fnuz_are_told_from_a_factor_of_two() -> None:
    """Half of everything may be a wrong factor; NaN where -0 belongs, and numbers for NaN, may not."""
    codes = np.arange(256, dtype=np.uint8)
    want = np.float32(decode(codes, "e4m3")).view(np.uint32)
    halved = np.float32(decode(codes, "e4m3") / 2).view(np.uint32)
    read = np.float32(decode(codes, "e4m3fnuz")).view(np.uint32)
    row = format_named("f32")
    assert fitting(read, want, row) == ["FN / FNUZ"]
    assert fitting(halved, want, row) == []


def test_zeros_below_the_smallest_normal_of_a_narrower_format_are_named() -> None:
    """A decoder that drops the subnormals of e4m3 writes bf16 zeros for them."""
    values = np.float64(decode(np.arange(256, dtype=np.uint8), "e4m3"))
    values = values[np.isfinite(values)]
    want, row = encode(values, "bf16"), format_named("bf16")
    got = encode(np.where(np.abs(values) < 2.0**-6, 0.0, values), "bf16")
    assert fitting(got, want, row) == ["flushed subnormals"]
    assert fitting(encode(np.where(np.abs(values) < 2.0**-5, 0.0, values), "bf16"), want, row) == []


def test_a_flush_takes_what_rounds_up_to_the_smallest_normal_along() -> None:
    values = np.array([2.0**-6, 2.0**-8, 2.0**-9, 0.5, 3.0])
    want, row = encode(values, "bf16"), format_named("bf16")
    assert fitting(encode(np.where(values <= 2.0**-6, 0.0, values), "bf16"), want, row) == ["flushed subnormals"]


def test_zeros_for_ordinary_numbers_and_other_numbers_for_subnormals_are_no_flush() -> None:
    """Below the smallest normal number of FP4 lies 0.5."""
    values = np.array([0.5, -0.5, 1.5, 2.0, 3.0])
    want, row = encode(values, "bf16"), format_named("bf16")
    assert fitting(encode(np.where(np.abs(values) < 1, 0.0, values), "bf16"), want, row) == []
    assert fitting(np.uint16([0x0002, 0x8001, 0x3C00]), np.uint16([0x0001, 0x8003, 0x3C00]), F16) == []


def test_an_overflow_that_is_clamped_where_nan_stands_for_infinity_is_no_nan_that_was_dropped() -> None:
    want, got = np.uint8([0x7F, 0xFF, 0x38]), np.uint8([0x7E, 0xFE, 0x38])
    assert fitting(got, want, format_named("e4m3")) == ["infinity saturated"]


def test_a_sign_of_zero_that_is_not_lost_everywhere_has_no_name() -> None:
    assert fitting(np.uint16([0x0000, 0x8000]), np.uint16([0x8000, 0x8000]), F16) == []
    assert fitting(np.uint16([0x8000, 0x3C00]), np.uint16([0x0000, 0x3C00]), F16) == []


@pytest.mark.parametrize(
    ("wanted", "written"),
    [
        ([0x7C00, 0x3C00], [0xFBFF, 0x3C00]),  # the largest value, with the other sign
        ([0x7BFF, 0x3C00], [0xFC00, 0x3C00]),
        ([0x7E00, 0x3C00], [0x7E01, 0x3C00]),  # another NaN
        ([0x7E00, 0x7E00], [0x7E01, 0x0000]),
    ],
)
def test_another_sign_or_another_nan_is_not_named(wanted: list[int], written: list[int]) -> None:
    assert fitting(np.uint16(written), np.uint16(wanted), F16) == []


def test_an_output_that_a_mistake_leaves_as_it_is_fits_it() -> None:
    zeros = np.zeros((2, 4), np.uint32)
    fits = {each.suspect for each in readings() if each.fits(zeros, zeros, format_named("f32"))}
    assert {
        "transposed",
        "off-by-one row",
        "off-by-one column",
        "FN / FNUZ",
        "NaN dropped",
        "flushed subnormals",
    } <= fits


def test_codes_of_narrow_formats_beyond_both_are_of_neither() -> None:
    e2m3 = format_named("e2m3")
    want = encode(RNG.standard_normal(64) * 2, "e2m3")
    written = encode(decode(want, "e2m3"), "e3m2")
    assert "format" in fitting(written, want, e2m3)
    assert fitting(np.append(written, np.uint8(0xF0)), np.append(want, np.uint8(0)), e2m3) == []
    assert fitting(np.append(written, np.uint8(0)), np.append(want, np.uint8(0xF0)), e2m3) == []


def test_a_nan_of_another_format_is_one_whatever_its_code() -> None:
    want = np.append(encode(RNG.standard_normal(64) * 20, "e4m3"), np.uint8([0x7F, 0xFF]))
    got = np.append(encode(decode(want[:-2], "e4m3"), "e5m2"), np.uint8([0x7F, 0xFE]))
    assert fitting(got, want, format_named("e4m3")) == ["format"]


def test_wrong_elements_without_a_cause_stay_unnamed() -> None:
    for row in FORMATS:
        if row.code_bits != 8 or row.code_limit != 256:
            continue
        want = encode(RNG.standard_normal((16, 64)), row)
        for got in (want ^ 1, np.where(RNG.random(want.shape) < 0.1, want + 1, want).astype(np.uint8), 0 * want):
            assert fitting(got, want, row) == [] or np.isnan(decode(want, row)).any()


def test_a_float32_an_ulp_off_is_no_tf32() -> None:
    """decode ignores the padding of tf32, so that every float32 would be one; and one that is cut to it was rounded."""
    want = RNG.standard_normal((16, 64)).astype(np.float32).view(np.uint32)
    f32 = format_named("f32")
    assert fitting(want + 1, want, f32) == []
    assert fitting(encode(decode(want, f32), "tf32"), want, f32) == []
