"""The library rows are the libraries: bit for bit on the complete set, and the table of differences is what they do."""

import os

import ml_dtypes
import numpy as np
import pytest

from refsim.conversions import CONVERSIONS, KNOWN_DIFFERENCES, convert, diff_policies, encode, policy_patterns
from refsim.conversions.policies import INPUT_CLASSES, classify, policy_row, tabulate_differences
from refsim.errors import RefsimError
from refsim.formats import E2M1, E4M3

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
    try:
        import torch
    except ImportError:
        reason = "torch is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"needed in CI: {reason}")
        pytest.skip(reason)
    target = getattr(torch, name.removeprefix("torch."))
    return torch.from_numpy(values.copy()).to(target).view(torch.uint8).numpy()


@pytest.mark.parametrize("name", [*ML_DTYPES, *TORCH])
def test_row_equals_the_library(name: str, patterns: np.ndarray) -> None:
    differ = np.flatnonzero(convert(name, patterns) != cast(name, patterns))
    assert [hex(pattern) for pattern in patterns[differ[:5]]] == []


@pytest.mark.parametrize("name", [*ML_DTYPES, *TORCH])
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
    with pytest.raises(RefsimError, match="pattern-type"):
        diff_policies("e4m3", "ml_dtypes", "torch", np.zeros(3, np.float32))


def test_encode_default_is_the_cuda_satfinite_policy(patterns: np.ndarray) -> None:
    for format in ("e4m3", "e5m2", "e2m1", "e2m3", "e3m2"):
        expected = convert(f"cuda.satfinite.{format}.f32", patterns)
        np.testing.assert_array_equal(encode(patterns.view(np.float32), format), expected)
