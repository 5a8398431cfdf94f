"""refsim order: exit codes, JSON and what it says of kernels and functions."""

import json

import pytest

UNSURE = """import numpy as np

def odd(a, b):
    d = np.add.accumulate(a[:, :, None] * b[None], axis=1)[:, -1].view(np.uint32)
    return (d + (d % 4 == 1)).view(np.float32)
"""
SIZES = ("--n", "8", "--k", "32")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("served.py:one_chain", "--m", "1,4"), 0, "batch invariant: M = 1, 4"),
        (("served.py:by_rows", "--m", "1,4"), 1, "not batch invariant: from M = 4 on (M = 3 agrees) D[0, "),
        (("served.py:by_rows", "--m", "5,9", "--against", "served.py:one_chain"), 0, "the same order; equal results"),
        (("served.py:four_parts", "--m", "1", "--against", "served.py:one_chain"), 1, "other orders; at M = 1"),
        (("unsure.py:odd", "--m", "1"), 5, "not explained: the orders found give"),
    ],
)
def test_the_exit_code_is_the_verdict(refsim, tmp_path, arguments, code, said):
    (tmp_path / "unsure.py").write_text(UNSURE)
    run = refsim("order", *arguments, *SIZES)
    assert run.code == code, run.err
    assert said in run.out


UNUSABLE = """import numpy as np

print("read")

def raises(a, b):
    print("called")
    raise ValueError("only so")

def speechless(a, b):
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError
    raise Mute

def leaves(a, b):
    raise SystemExit(0)

def misshapen(a, b):
    return (a @ b)[0]

def talks(a, b):
    print("called")
    return np.add.accumulate(a[:, :, None] * b[None], axis=1)[:, -1]
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "raises",
            "[user-code-raised] the function raised ValueError: only so\n  at: unusable.py:raises, M = 1, N = 8, K = 32, ",
        ),
        ("speechless", "[user-code-raised] the function raised Mute: (its text cannot be had)"),
        ("leaves", "[program-ended] "),
        ("misshapen", "[wrong-output] unusable.py:misshapen returned shape (8,)\n  rule: (M, N) = (1, 8)"),
    ],
)
def test_a_function_that_cannot_be_asked_is_no_batch_variance(refsim, tmp_path, monkeypatch, name, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unusable.py").write_text(UNUSABLE)
    run = refsim("order", f"unusable.py:{name}", *SIZES, "--m", "1", "-o", "answer.txt")
    assert run.code == 2
    assert run.out == ""
    assert said in run.err
    assert not (tmp_path / "answer.txt").exists()


def test_what_functions_print_is_no_part_of_the_answer(refsim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unusable.py").write_text(UNUSABLE)
    run = refsim("order", "unusable.py:talks", *SIZES, "--m", "1", "--as", "json")
    assert json.loads(run.out)["batch_invariant"] is True
    assert run.err.startswith("read\ncalled\n")


def test_sums_of_rows_are_asked_for_by_a_flag(refsim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.py").write_text(
        "import numpy as np\n\ndef added(x):\n    return np.add.accumulate(x, axis=1)[:, -1]\n"
    )
    run = refsim("order", "rows.py:added", "--row-sums", "--k", "16", "--m", "1,3")
    assert run.code == 0, run.err
    assert "a chain of 16 products from zero, k ascending" in run.out


@pytest.mark.usefixtures("kernels")
def test_json_has_the_tree_and_every_count(refsim):
    run = refsim("order", "served.py:four_parts", "--n", "4", "--k", "8", "--m", "1,2", "--seeds", "1", "--as", "json")
    found = json.loads(run.out)
    assert found["orders"][0]["tree"] == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert found["batch_invariant"] is True
    other = json.loads(refsim("order", "served.py:by_rows", *SIZES, "--m", "1,9", "--as", "json").out)["difference"]
    assert (other["m"], other["agrees"]) == (4, 3)
    assert found["explained"] == found["words"] == sum(size["words"] for size in found["sizes"]) == 24


@pytest.mark.usefixtures("kernels")
def test_types_of_a_kernel_are_its_own_and_functions_are_named_by_file_or_module(refsim):
    for option in (("-t", "f16"), ("--row-sums",)):
        assert "is of functions" in refsim("order", "linear", "--device", "sim", *option).err
    assert "no order to be asked for" in refsim("order", "fp8_amax", "--device", "sim").err
    assert "nearest: linear" in refsim("order", "linear", "--device", "sim", "--product", "linear_n64").err
    assert refsim("order", "numpy.no_such_function").code == 2
    assert refsim("order", "served.py:np").code == 2
    run = refsim("order", "numpy.matmul", "-t", "f16", "--n", "4", "--k", "8", "--m", "2")
    assert "f16 x f16 -> f16" in run.out


@pytest.mark.ci("a kernel simulated fifty times")
def test_a_bundled_kernel_on_the_simulated_gpu(refsim):
    run = refsim("order", "linear", "--device", "sim", "--k", "64", "--m", "1,16", "--seeds", "1")
    assert run.code == 0, run.out
    assert "a chain of 4 steps from zero, each adds 16 products at once" in run.out
