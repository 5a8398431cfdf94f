"""The digests of what CuPy computes: equal for equal bits, a NaN of other bits told apart, and what a comparison says."""

import json
from pathlib import Path

import numpy as np
import pytest

from conformance.cupy_bits import compare, digest, operands


def test_a_digest_tells_bits_apart_and_says_whether_it_is_by_nan() -> None:
    plain, zero = np.float32([np.nan, 1, 0]), np.float32([np.nan, 1, -0.0])
    other = plain.copy()
    other.view(np.uint32)[0] = 0x7FFFFFFF
    assert digest(plain) == digest(plain.copy())
    assert digest(plain).split()[1] == digest(other).split()[1]
    assert digest(plain).split()[0] != digest(other).split()[0]
    assert digest(plain).split()[1] != digest(zero).split()[1]
    assert digest(np.int32([1])) != digest(np.uint32([1]))
    assert digest((plain, zero)) != digest((zero, plain))


def test_a_comparison_names_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = tmp_path / "here.json", tmp_path / "there.json"
    here.write_text(json.dumps({"add": "1 2", "sqrt": "3 4", "rint": "5 6"}))
    there.write_text(json.dumps({"add": "1 2", "sqrt": "9 4", "rint": "5 7"}))
    assert compare(here, here) == 0
    assert compare(here, there) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[1:] == ["rint 5 6 5 7", "sqrt NaN alone", "3 digests: 2 differ, 1 of them by NaN alone"]


def test_operands_have_special_values_and_integers_are_small() -> None:
    x, y = operands("float32")
    assert (x.shape, sorted(x.astype(str)) == sorted(y.astype(str))) == (y.shape, False)
    assert {str(each) for each in x[:14]} >= {"nan", "inf", "-inf", "-0.0"}
    assert all(abs(each).max() <= 99 for each in operands("int32"))
