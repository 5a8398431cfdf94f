"""The library rows are the libraries: bit for bit on the complete set, and the table of differences is what they do."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from refsim.conversions import CONVERSIONS, KNOWN_DIFFERENCES, convert, decode, diff_policies, encode, policy_patterns
from refsim.conversions.coding import encode_rule
from refsim.conversions.policies import INPUT_CLASSES, classify, policy_row, tabulate_differences
from refsim.conversions.rounding import ieee_rule
from refsim.errors import RefsimError
from refsim.formats import BF16, E2M1, E4M3
from refsim.numerics import ieee

ML_DTYPES = {
    "ml_dtypes.e4m3fn": ml_dtypes.float8_e4m3fn,
    "ml_dtypes.e5m2": ml_dtypes.float8_e5m2,
    "ml_dtypes.e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "ml_dtypes.e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "ml_dtypes.e2m1fn": ml_dtypes.float4_e2m1fn,
    "ml_dtypes.e2m3fn": ml_dtypes.float6_e2m3fn,
    "ml_dtypes.e3m2fn": ml_dtypes.float6_e3m2fn,
    "ml_dtypes.e8m0fnu": ml_dtypes.float8_e8m0fnu,
}
TORCH = [name for name, row in CONVERSIONS.items() if row.policy == "torch"]
TIES_TO_EVEN = pytest.mark.skipif(
    ml_dtypes.__version__ == "0.5.0",
    reason="ml_dtypes 0.5.0 takes ties of E8M0 to even; the row is what it does from 0.5.1",
)
OF_ML_DTYPES = [pytest.param(name, marks=[TIES_TO_EVEN] if name.endswith("e8m0fnu") else []) for name in ML_DTYPES]
LIBRARIES = [*OF_ML_DTYPES, *(pytest.param(name, marks=pytest.mark.peers("torch")) for name in TORCH)]


@pytest.fixture(scope="module")
def patterns() -> np.ndarray:
    """The complete set and 65,536 patterns with other lower halves."""
    random = np.random.default_rng(7).integers(0, 1 << 32, 65536, dtype=np.uint32)
    return np.concatenate([policy_patterns(), random])


def cast(name: str, patterns: np.ndarray) -> np.ndarray:
    """What the library itself gives."""
    values = patterns.view(np.float32)
    if name.startswith("ml_dtypes"):
        with np.errstate(all="ignore"):
            return values.astype(ML_DTYPES[name]).view(np.uint8)
    import torch

    if name == "torch.float8_e4m3fn" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        pytest.skip(
            f"the row is of torch 2.13, which saturates; 2.11 makes NaN beyond 464 (installed: {torch.__version__})"
        )
    target = getattr(torch, name.removeprefix("torch."))
    return torch.from_numpy(values.copy()).to(target).view(torch.uint8).numpy()


@pytest.mark.parametrize("name", LIBRARIES)
def test_row_equals_the_library(name: str, patterns: np.ndarray) -> None:
    differ = np.flatnonzero(convert(name, patterns) != cast(name, patterns))
    assert [hex(pattern) for pattern in patterns[differ[:5]]] == []


@pytest.mark.parametrize("name", LIBRARIES)
def test_known_differences_are_what_the_library_does(name: str) -> None:
    """Derived from the library's own output and NVIDIA's policy, class by class, and compared with the stored table."""
    row = CONVERSIONS[name]
    if row.to.name.endswith("fnuz"):
        with pytest.raises(RefsimError, match="unknown-policy"):
            policy_row("cuda.satfinite", row.to)  # NVIDIA has no such format: there is nothing to differ from
        return
    against = "cuda.constructor" if row.to.name == "e8m0" else "cuda.satfinite"
    inputs = policy_patterns()
    codes = cast(name, inputs), convert(policy_row(against, row.to).name, inputs)
    measured = tabulate_differences(row.to, (row.policy, against), inputs, codes)
    stored = tuple(each for each in KNOWN_DIFFERENCES if (each.format, each.policy) == (row.to.name, row.policy))
    print(f"{name} against {against}: {sum(each.count for each in measured)} of {inputs.size} differ")
    assert measured == stored
    assert measured == diff_policies(row.to, row.policy, against)


@pytest.mark.parametrize(
    ("format", "policy", "other"),
    list(dict.fromkeys((row.format, row.policy, row.other_policy) for row in KNOWN_DIFFERENCES)),
)
def test_the_stored_table_is_what_the_rows_give(format: str, policy: str, other: str) -> None:
    """Also of libraries that are not installed here: their rows are held to them elsewhere, the table to the rows."""
    stored = tuple(
        row for row in KNOWN_DIFFERENCES if (row.format, row.policy, row.other_policy) == (format, policy, other)
    )
    assert diff_policies(format, policy, other) == stored


def test_patterns_cover_every_reduced_input() -> None:
    """Every upper half with a zero and with a nonzero lower half: all that a narrow format can tell apart."""
    inputs = policy_patterns()
    reduced = (inputs >> 16) | ((inputs & 0xFFFF) != 0)
    np.testing.assert_array_equal(np.unique(reduced), np.arange(1 << 16))
    assert inputs.size == 196_608


def test_expected_headlines() -> None:
    """The differences that people meet first."""
    assert [row.input_class for row in diff_policies("e4m3", "torch", "cuda.satfinite")] == ["negative nan"]
    classes = {row.input_class for row in diff_policies("e4m3", "ml_dtypes", "cuda.satfinite")}
    assert "beyond the largest" in classes
    assert diff_policies("e4m3", "cuda.nosat", "cuda.nosat") == ()
    (nan,) = [row for row in diff_policies("e2m1", "ml_dtypes", "cuda.satfinite") if row.input_class == "nan"]
    assert (nan.code, nan.other) == (0x8, 0x7)


def test_classes_of_inputs() -> None:
    values = np.array([0.0, np.nan, np.inf, 448, 464, 432, 2.0**-10, 2.0**-11, 416, 433], np.float32)
    names = [INPUT_CLASSES[index] for index in classify(values.view(np.uint32), E4M3)]
    below = "below the smallest"
    expected = ["zero", "nan", "infinity", "exact", "beyond the largest", "tie", below, below, "exact", "inexact"]
    assert names == expected
    assert INPUT_CLASSES[classify(np.float32([0.75]).view(np.uint32), E2M1)[0]] == "tie"


def test_unknown_policies_and_pattern_types() -> None:
    with pytest.raises(RefsimError, match="unknown-policy"):
        diff_policies("e4m3", "numpy", "torch")
    with pytest.raises(RefsimError, match="bad-dtype"):
        diff_policies("e4m3", "ml_dtypes", "torch", np.zeros(3, np.float32))


def test_encode_default_is_the_cuda_satfinite_policy(patterns: np.ndarray) -> None:
    for format in ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2"):
        expected = convert(f"cuda.satfinite.{format}.f32", patterns)
        np.testing.assert_array_equal(encode(patterns.view(np.float32), format), expected)


def test_weight_decoders_are_the_documented_bit_map() -> None:
    """238 of 256 codes are right under Mirage's six instructions: zero, the subnormals and NaN are not."""
    codes = np.arange(256, dtype=np.uint8)
    exact, marlin, mirage = (convert(f"{policy}.bf16.e4m3", codes) for policy in ("exact", "marlin", "mirage"))
    wide = codes.astype(np.uint16)
    np.testing.assert_array_equal(mirage, (wide & 0x80) << 8 | (((wide & 0x7F) << 4) + 0x3C00))
    wrong = [*range(8), 0x7F, *range(0x80, 0x88), 0xFF]
    assert np.flatnonzero(mirage != exact).tolist() == wrong
    assert np.flatnonzero(marlin != exact).tolist() == [0x7F, 0xFF]
    assert decode(mirage[[0, 0x80, 1, 7, 0x7F, 0xFF]], "bf16").tolist() == [
        2**-7,
        -(2**-7),
        2**-7 * 1.125,
        2**-7 * 1.875,
        480,
        -480,
    ]
    np.testing.assert_array_equal(exact, encode(decode(codes, "e4m3"), "bf16"))


def test_decoders_of_pairs_do_not_mix_their_lanes() -> None:
    """The instructions work on two codes in one register: all 65,536 pairs give what the two codes give alone."""
    pair = np.arange(1 << 16, dtype=np.uint32)
    word = (pair & 0xFF) << 8 | (pair & 0xFF00) << 16
    sign, magnitude = word & 0x80008000, word >> 4 & 0x07F007F0
    low, high = (pair & 0xFF).astype(np.uint8), (pair >> 8).astype(np.uint8)
    raised = sign | (magnitude + 0x3C003C00)
    for lane, codes in ((raised & 0xFFFF, low), (raised >> 16, high)):
        np.testing.assert_array_equal(lane, convert("mirage.bf16.e4m3", codes))
    scale = np.uint16(0x7B80)  # 2^120
    for lane, codes in (((sign | magnitude) & 0xFFFF, low), ((sign | magnitude) >> 16, high)):
        product = ieee.mul(lane.astype(np.uint16), np.full(lane.shape, scale))
        np.testing.assert_array_equal(product, convert("marlin.bf16.e4m3", codes))


def test_overrides_of_a_wide_format_take_the_pattern_rounded_to_odd() -> None:
    rule = replace(ieee_rule(BF16), overrides=((0x3F81, 0x3F81, 0x1234),))
    patterns = np.array([0x3F800001, 0x3F810000, 0x3F80FFFF, 0x3F800000, 0x3F820000], np.uint32)
    for values in (patterns.view(np.float32), patterns.view(np.float32).astype(np.float64)):
        assert encode_rule(values, rule).tolist() == [0x1234, 0x1234, 0x1234, 0x3F80, 0x3F82]
