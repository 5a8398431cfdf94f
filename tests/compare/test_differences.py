"""What a bit diff says: how many, how far, where, in which pattern, and who."""

import json
import tracemalloc

import ml_dtypes
import numpy as np
import pytest

from refsim.compare import Mismatch, bits
from refsim.errors import RefsimError


class Rows:
    """A layout: thread = row, value = column."""

    name, shape = "example.d", (64, 128)

    def holder(self, row, col):
        return row, col


def codes(*values, dtype=np.uint8):
    return np.array(values, dtype)


def test_equal_arrays_are_falsy():
    same = bits(codes(0x7E, 0x7F), codes(0x7E, 0x7F), "e4m3")
    assert not same
    assert str(same) == "2 elements of e4m3 agree"
    assert not bits(np.zeros(0, np.float32), np.zeros(0, np.float32))


def test_a_whole_block_of_differences_is_named_however_large():
    want = np.zeros((4, 40), np.uint16)
    got = want.copy()
    got[1:] = np.arange(1, 121, dtype=np.uint16).reshape(3, 40)
    assert "all differences have row in 1..3 (the tail, one contiguous range)" in bits(got, want, "bf16").patterns
    got[2, 7] = 0
    assert not any("row" in text for text in bits(got, want, "bf16").patterns)


def test_report_reads_like_the_example():
    want = np.full((64, 128), 0x3F80, np.uint16)
    got = want.copy()
    got[17, [42, 43, 50, 58, 66, 75, 99, 122]] += 2
    report = bits(got, want, "bf16", Rows())
    assert str(report).splitlines() == [
        "8 of 8192 elements differ (0.098 %), worst 2 ulp",
        "first   D[17, 42]   got 0x3f82 1.015625   want 0x3f80 1.0   +2 ulp",
        "held by warp 0, lane 17, value 42",
        "pattern all differences have row = 17 and col % 8 in {2, 3}",
        "pattern every wrong element is 0x3f82 1.015625",
    ]


@pytest.mark.parametrize(
    ("format", "got", "want", "ulps"),
    [
        ("e4m3", 0x39, 0x38, 1),
        ("e4m3", 0x81, 0x01, -2),  # one step to zero on each side
        ("e4m3", 0x80, 0x00, 0),  # -0 is other bits at the same place
        ("e4m3", 0x7F, 0x7E, None),
        ("e8m0", 0x80, 0x7F, 1),
        ("mxint8", 0xFF, 0x01, -2),
        ("e2m1", 0x9, 0x1, -2),
        ("e4m3fnuz", 0x80, 0x00, None),
    ],
)
def test_distance_is_in_steps_of_the_format(format, got, want, ulps):
    assert bits(codes(got), codes(want), format).worst.ulps == ulps


def test_padding_bits_of_tf32_are_no_ulp():
    assert bits(codes(0x3F802000, dtype=np.uint32), codes(0x3F800000, dtype=np.uint32), "tf32").worst.ulps == 1


@pytest.mark.parametrize(
    ("got", "want", "ulps"),
    [
        (np.float64(1.0), np.nextafter(1.0, 2.0), -1),
        (np.float64(-np.inf), np.float64(np.inf), -2 * 0x7FF0000000000000),
        (np.int64(-(2**63)), np.int64(2**63 - 1), -(2**64 - 1)),
        (np.uint64(2**64 - 1), np.uint64(0), 2**64 - 1),
        (np.int8(-1), np.int8(1), -2),
        (ml_dtypes.int4(-1), ml_dtypes.int4(1), -2),
        (ml_dtypes.int4(-8), ml_dtypes.int4(7), -15),
        (ml_dtypes.uint4(15), ml_dtypes.uint4(0), 15),
    ],
)
def test_distance_of_wide_types_does_not_overflow(got, want, ulps):
    assert bits(np.array([got]), np.array([want])).worst.ulps == ulps


def test_nan_payload_counts_unless_allowed():
    got, want = codes(0x7FC1, 0x7F80, dtype=np.uint16), codes(0xFFC0, 0x7FC0, dtype=np.uint16)
    assert bits(got, want, "bf16").count == 2
    relaxed = bits(got, want, "bf16", nan="any-payload")
    assert (relaxed.count, relaxed.first.index) == (1, (1,))
    assert "(allowed: any NaN payload)" in str(relaxed)


def test_zeros_of_two_signs_are_two_codes_unless_an_ulp_is_allowed():
    zeros = codes(0x80), codes(0x00)
    assert bits(*zeros, "e4m3", nan="any-payload").count == 1
    assert bits(*zeros, "e4m3").count == 1
    assert bits(*zeros, "e4m3", within_ulps=1).count == 0


def test_an_output_goes_by_its_own_name_and_not_by_that_of_its_layout():
    want = np.zeros((64, 128), np.uint16)
    got = want.copy()
    got[3, 4] = 1
    assert "first   y[3, 4] " in str(bits(got, want, "bf16", Rows(), name="y"))


def test_one_element_is_shown_once_though_it_is_nan():
    assert [line.split()[0] for line in bits(codes(0x7F, 0x38), codes(0x38, 0x38), "e4m3").lines()][1:2] == ["first"]
    assert not any(line.startswith("worst") for line in bits(codes(0x7F, 0x38), codes(0x38, 0x38), "e4m3").lines())


def test_bound_in_ulps_accepts_neighbours_but_no_nan():
    got, want = codes(0x39, 0x3B, 0x7F), codes(0x38, 0x38, 0x7E)
    found = bits(got, want, "e4m3", within_ulps=2)
    assert [found.count, found.first.index, found.worst.index] == [2, (1,), (2,)]
    assert bits(got, want, "e4m3", within_ulps=2**70).count == bits(got, want, "e4m3", within_ulps=2**8).count == 1


def test_bound_in_ulps_still_counts_nan_payloads():
    assert bits(codes(0x7F), codes(0xFF), "e4m3", within_ulps=5).count == 1


def test_float_views_need_no_format():
    eighth = np.array([0.125, 1.0])
    assert bits(eighth.astype(ml_dtypes.bfloat16), eighth.astype(ml_dtypes.bfloat16)).format == "bf16"
    found = bits(eighth.astype(ml_dtypes.float8_e4m3fn), codes(0x21, 0x38))
    assert (found.format, found.count, found.first.got_value) == ("e4m3", 1, 0.125)


def test_strided_and_transposed_arrays_compare_by_position():
    matrix = np.arange(12, dtype=np.uint16).reshape(3, 4)
    assert not bits(matrix.T, matrix.T.copy(), "bf16")
    assert bits(matrix[:, ::2], matrix[:, 1::2]).count == 6


@pytest.mark.parametrize(
    ("positions", "n", "pattern"),
    [
        ([2048], 2049, "only the last element"),
        ([0], 2049, "only the first element"),
        (range(2041, 2049), 2049, "all differences have index in 2041..2048 (the tail, one contiguous range)"),
        (range(64, 96), 2049, "all differences have index in 64..95 (one contiguous range)"),
        (range(7, 2049, 8), 2049, "all differences have index % 8 = 7"),
        ([i for i in range(2049) if i % 32 in (5, 9)], 2049, "all differences have index % 32 in {5, 9}"),
        # of 256 there are not two periods
        (
            [i for i in range(510) if i % 256 in (3, 30, 61, 77, 110, 141, 199, 230)],
            510,
            "all differences have index % 128 in {3, 13, 30, 61, 71, 77, 102, 110}",
        ),
        ([2000, 2010, 2021, 2048], 2049, "all differences have index >= 2000 (of 2049)"),
        ([129, 160, 170, 255, 211], 4096, "all differences have index // 128 = 1"),
        (range(12), 12, "every element differs"),
    ],
)
def test_place_pattern(positions, n, pattern):
    want = np.random.default_rng(1).integers(0, 200, n).astype(np.uint8)
    got = want.copy()
    got[list(positions)] += 1 + np.arange(len(positions), dtype=np.uint8) % 3
    assert pattern in bits(got, want).patterns


def test_random_places_have_no_pattern():
    generator = np.random.default_rng(2)
    want = generator.integers(0, 200, 10_000).astype(np.uint8)
    got = want.copy()
    got[generator.choice(10_000, 25, replace=False)] += generator.integers(1, 40, 25).astype(np.uint8)
    got[5000] -= 1
    assert bits(got, want).patterns == ()


@pytest.mark.parametrize(
    ("got", "want", "pattern"),
    [
        (codes(0, 0, 7), codes(1, 9, 7), "every wrong element is 0x00 0.0"),
        (codes(0x81, 0x92, 7), codes(1, 0x12, 7), "every difference is the bit mask 0x80"),
        (codes(3, 0x85, 7), codes(2, 0x86, 7), "every difference is +1 ulp"),
        (codes(*range(20, 36)), codes(*range(18, 26), *range(27, 35)), "got is above want in every difference"),
    ],
)
def test_value_pattern(got, want, pattern):
    assert pattern in bits(got, want, "e4m3").patterns


def test_eight_differences_of_one_sign_are_a_pattern_and_seven_are_not():
    got, want = codes(*range(20, 28)), codes(*range(18, 22), *range(23, 27))
    said = "got is above want in every difference"
    assert said in bits(got, want, "e4m3").patterns
    assert said not in bits(got[:7], want[:7], "e4m3").patterns


def test_a_mismatch_at_a_prompt_is_the_first_line_of_its_report():
    found = bits(codes(3, 5), codes(3, 4), "e4m3")
    assert repr(found) == f"<Mismatch {str(found).splitlines()[0]}>"


def test_payloads_of_nan_alone_are_told_from_values():
    got, want = np.uint32([0x7FFFFFFF, 0x3F800000]), np.uint32([0x7FC00001, 0x3F800000])
    (said,) = [text for text in bits(got, want, "f32").patterns if "payload" in text]
    assert "BITWISE_EXCEPT_NAN_PAYLOAD" in said
    assert not any("payload" in text for text in bits(got, want ^ np.uint32(1 << 23), "f32").patterns)
    assert not any("payload" in text for text in bits(got ^ np.uint32([0, 1]), want, "f32").patterns)


def test_signs_of_zeros_alone_are_told_from_values():
    told = "every difference is the sign of a zero"
    zeros = np.uint32([0x80000000, 0, 0x3F800000])
    assert told in bits(zeros, np.uint32([0, 0x80000000, 0x3F800000]), "f32").patterns
    assert told in bits(zeros[:1], np.uint32([0]), "f32").patterns
    assert told not in bits(zeros, np.uint32([0, 0x80000000, 0xBF800000]), "f32").patterns
    assert told not in bits(zeros, np.uint32([0, 1, 0x3F800000]), "f32").patterns


def test_owner_names_block_thread_and_address():
    report = bits(codes(1, 2), codes(1, 3), owner=lambda i: {"block": 3, "thread": i, "address": 0x7F00 + i})
    assert report.first.owner == "written by block 3, thread 1, address 0x7f01"
    assert bits(codes(2), codes(3), owner=lambda i: f"row {i}").first.owner == "row 0"
    assert "row 1, col 0" in str(bits(codes([1], [2]), codes([1], [3]), owner=lambda r, c: f"row {r}, col {c}"))


def test_json_is_strict_and_comes_back():
    got, want = np.array([np.nan, 1.0, -np.inf], np.float32), np.array([0.0, 1.5, np.inf], np.float32)
    found = bits(got, want, owner=lambda i: f"thread {i}", name="y")
    text = json.dumps(found.to_json(), allow_nan=False)
    assert json.loads(text)["first"]["got_bits"] == "0x7fc00000"
    again = Mismatch.from_json(json.loads(text))
    assert (str(again), again.to_json()) == (str(found), found.to_json())


def test_html_escapes():
    page = bits(codes(1), codes(2), owner=lambda i: "<b>")._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


@pytest.mark.parametrize(
    ("got", "want", "options", "code"),
    [
        (codes(1), codes(1, 2), {}, "bad-shape"),
        (codes(1), codes(1, dtype=np.uint16), {}, "bad-dtype"),
        (codes(1), codes(1), {"format": "bf16"}, "bad-dtype"),
        (codes(1), codes(1), {"format": "e4m4"}, "unknown-format"),
        (np.zeros(1, np.float16), np.zeros(1, ml_dtypes.bfloat16), {}, "format-mismatch"),
        (np.zeros(1, np.float16), np.zeros(1, np.uint16), {"format": "bf16"}, "format-mismatch"),
        (np.zeros(1), np.zeros(1), {"format": "f32"}, "bad-dtype"),
        (np.zeros(1, complex), np.zeros(1, complex), {}, "unsupported-dtype"),
        ([1], codes(1), {}, "not-an-array"),
        (codes(1), codes(1), {"nan": "ignore"}, "unknown-policy"),
        (codes(1), codes(1), {"within_ulps": -1}, "bad-bound"),
        (codes(1), codes(1), {"layout": Rows()}, "bad-shape"),
    ],
)
def test_what_cannot_be_compared_is_refused(got, want, options, code):
    with pytest.raises(RefsimError) as caught:
        bits(got, want, **options)
    assert caught.value.code == code


def test_code_beyond_the_format_is_reported_not_decoded():
    report = bits(codes(0x1F), codes(0x07), "e2m1")
    assert report.first.got_value is None
    assert "got 0x1f (no code)" in str(report)


def test_a_million_differences_are_compared_as_arrays():
    """A Python object for each element would take more than these 100 bytes."""
    want = np.random.default_rng(3).integers(0, 2**32, 10**6, dtype=np.uint32)
    tracemalloc.start()
    try:
        assert bits(~want, want, "f32").count == 10**6
        assert tracemalloc.get_traced_memory()[1] < 100 * 10**6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("got", "want", "patterns"),
    [
        (np.linspace(2.0, 9.0, 16), -np.linspace(2.0, 9.0, 16)[::-1].copy(), ["got is above want in every difference"]),
        (
            np.array([2**64 - 4, 2**64 - 3], np.uint64),
            np.array([1, 2], np.uint64),
            [f"every difference is +{2**64 - 5} ulp"],
        ),
    ],
    ids=["doubles", "integers"],
)
def test_steps_of_64_bits_do_not_wrap(got, want, patterns):
    shown = [text for text in bits(got, want).patterns if "ulp" in text or "want" in text]
    assert shown == patterns


def test_a_nan_is_no_step_away_from_a_number():
    """0x7f81 follows 0x7f80, infinity, along the codes only."""
    report = bits(codes(0x7F81, 0x7F83, dtype=np.uint16), codes(0x7F80, 0x7F82, dtype=np.uint16), "bf16")
    assert report.first.ulps is None
    assert not [text for text in report.patterns if "ulp" in text]
    many = np.arange(0x7F81, 0x7F91, dtype=np.uint16)
    got_above = bits(many, np.arange(0x3F70, 0x3F90, 2, dtype=np.uint16), "bf16")
    assert not [text for text in got_above.patterns if "above" in text]
