"""diff, show, explain-diff and simulate read integers and float64 by their dtype."""

import json

import numpy as np
import pytest

from tests.checkpoints.handmade import save


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


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint64])
def test_an_integer_is_shown_in_all_digits(refsim, here, dtype) -> None:
    ends = [int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), 123456789]
    np.save("i.npy", np.array(ends, dtype))
    assert refsim("show", "i.npy").out.split()[-3:] == [str(each) for each in ends]
    cells = json.loads(refsim("show", "i.npy", "--as", "json").out)["cells"]
    assert [cell["number"] for cell in cells] == ends


def test_a_number_of_float64_is_marked_where_it_is_rounded(refsim, here) -> None:
    np.save("d.npy", np.array([0.1, 0.5, 5e-324]))
    assert refsim("show", "d.npy").out.split()[-3:] == ["~0.1", "0.5", "~4.941e-324"]


ADD_ONE = """
extern "C" __global__ void k(const int* x, int* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x] + 1; }
"""


def test_a_launch_takes_tensors_of_checkpoints(refsim, here) -> None:
    """Names of files and folders do not hide values of arguments."""
    (here / "k.cu").write_text(ADD_ONE)
    (here / "2").mkdir()
    (here / "m").mkdir()
    weight = np.array([[1, -2], [3, 4]], np.int8)
    made = {"p.weight": weight, "p.weight_scale": np.array(0.5, np.float32), "p.count": np.array([5, -6], np.int32)}
    save(here / "m" / "a.safetensors", made)
    for word, first, told in (
        ("m:p.count", "5 -6", ""),
        ("m/a.safetensors:p.count", "5 -6", ""),
        ("u32:m:p.count", "5 4294967290", ""),
        ("m", "0.5 -1.0 1.5 2.0", "p.weight: values by layout ct-int8"),
        ("m/a.safetensors:p.weight", "0.5 -1.0 1.5 2.0", "p.weight: values by layout ct-int8"),
    ):
        found = refsim("simulate", "k.cu", "k", "--arg", word, "--arg", "zeros:s32:2", "--arg", "s32:2")
        assert (found.code, f"argument 0: {first}" in found.err) == (0, True), found
        assert told in found.out + found.err
    wrong = refsim("simulate", "k.cu", "k", "--arg", "m:p.nothing", "--arg", "zeros:s32:2", "--arg", "s32:2")
    assert (wrong.code, "[unknown-key]" in wrong.err) == (2, True)
