"""diff, show, explain-diff and simulate read integers and float64 by their dtype."""

import json

import numpy as np
import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


SOURCE = """
extern "C" __global__ void k(const long long* x, float* y, float s) { y[threadIdx.x] = x[threadIdx.x] + s; }
"""


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint64, np.float64])
def test_diff_and_show_and_explain_diff(refsim, here, dtype) -> None:
    x = np.arange(64).reshape(8, 8).astype(dtype)
    np.save("a.npy", x)
    assert refsim("diff", "a.npy", "a.npy").code == 0
    x[3, 4] += 1
    np.save("b.npy", x)
    found = refsim("diff", "a.npy", "b.npy", "--as", "json")
    assert (found.code, json.loads(found.out)["count"]) == (1, 1), found.err
    shown = refsim("show", "b.npy", "--rows", "3:4", "--cols", "4:5")
    assert "29" in shown.out, shown.err
    told = refsim("explain-diff", "a.npy", "b.npy")
    assert told.code == 5, told.err
    assert "1 of 64 elements differ" in told.out


def test_unsigned_elements_are_named(refsim, here) -> None:
    np.save("u.npy", np.arange(8, dtype=np.uint8))
    assert "[format-needed]" in refsim("show", "u.npy").err
    assert "7" in refsim("show", "u.npy", "-t", "u8").out
    assert "[unknown-format]" in refsim("decode", "-t", "u8", "1").err


def test_a_launch_takes_arrays_as_their_dtype_says(refsim, here) -> None:
    (here / "k.cu").write_text(SOURCE)
    np.save("x.npy", np.array([-3, 1 << 40], np.int64))
    np.save("f.npy", np.array([1.5, -2.0], np.float64))
    found = refsim(
        "simulate", "k.cu", "k", "--block", "2", "--arg", "x.npy", "--arg", "zeros:f32:2", "--arg", "f32:0.5"
    )
    assert found.code == 0, found.err
    assert "argument 0: -3 1099511627776" in found.err
    assert "argument 1: -2.5 1.0995116e+12" in found.err or "argument 1: -2.5 1.0995116e+12" in found.err
    as_double = refsim(
        "simulate", "k.cu", "k", "--block", "2", "--arg", "s64:f.npy", "--arg", "zeros:f32:2", "--arg", "f32:0"
    )
    assert "argument 0: 4609434218613702656" in as_double.err
