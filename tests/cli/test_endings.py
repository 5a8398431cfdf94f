"""Who ends the program: a kernel file that does, in any way, turns nothing green; and streams and folders that are gone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from refsim.cli.program import exits_held
from refsim.errors import RefsimError

KERNELS = """
import atexit, ctypes, os, sys, threading
import numpy as np
from refsim.testing import Kernel, recipes, strategies

{first}
CUDA = '''extern "C" __global__ void add(const unsigned* x, unsigned* y, unsigned long long n) {{
    unsigned long long i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 4;
}}'''

def run(launcher, problem):
    {inside}
    x, y = launcher.upload(problem.codes(), name="x"), launcher.output(problem.n, np.uint32, name="y")
    launcher.launch("add", 1, 64, [x, y, np.uint64(problem.n)])
    return {{"y": launcher.read(y)}}

KERNELS = (Kernel("add", lambda p: {{"y": p.codes() + np.uint32(3)}}, strategies.tensors("f32"), run, {{"y": ""}},
                  recipes.Tensor, corpus=(recipes.Tensor(5, "f32"),), source=CUDA),)
"""
THREAD = "ended = threading.Thread(target=os._exit, args=(0,)); ended.start(); ended.join()"


def verified(
    folder: Path, first: str = "", inside: str = "", prefix: str = "", form: str = "text"
) -> subprocess.CompletedProcess[str]:
    """`refsim verify` in a process of its own, for a kernel that is wrong."""
    (folder / "add.py").write_text(KERNELS.format(first=first, inside=inside or "pass"))
    verify = f"{prefix}exec {sys.executable} -m refsim verify --kernels {folder / 'add.py'} --cases 0 --suspects 0"
    verify += f" --as {form}"
    return subprocess.run(["bash", "-c", verify], cwd=folder, capture_output=True, text=True, timeout=300, check=False)


C_THREAD = "ended = threading.Thread(target=ctypes.CDLL(None).exit, args=(0,)); ended.start(); ended.join()"
LATER = pytest.mark.ci("other ways to end are tried in every run")


@pytest.mark.parametrize(
    ("first", "inside", "code", "says"),
    [
        pytest.param("os._exit(0)", "", 2, "called os._exit(0)", marks=LATER),
        ("", "os._exit(0)", 2, "called os._exit(0)"),
        pytest.param(THREAD, "", 1, "called os._exit(0)", marks=LATER),
        pytest.param("atexit.register(os._exit, 0)", "", 1, "called os._exit(0)", marks=LATER),
        pytest.param("if os.fork() == 0: os._exit(0)", "", 1, "", marks=LATER),
        ("", "ctypes.CDLL(None).exit(0)", 2, "called exit of the C library"),
        pytest.param("", C_THREAD, 2, "called exit of the C library", marks=LATER),
        pytest.param("atexit.register(ctypes.CDLL(None).exit, 0)", "", 2, "called exit of the C library", marks=LATER),
        ("", "os.execlp('true', 'true')", 2, "os.execv("),
        pytest.param("if os.fork() == 0: sys.exit(0)", "", 1, "", marks=LATER),
        pytest.param("if os.fork() == 0: os.execvp('true', ['true'])", "", 1, "", marks=LATER),
        pytest.param("if ctypes.CDLL(None).fork() == 0: ctypes.CDLL(None).exit(0)", "", 1, "", marks=LATER),
        ("sys.stdout.close()", "", 2, "cannot write: it was closed"),
    ],
)
def test_a_kernel_file_does_not_choose_the_exit_code(tmp_path, first, inside, code, says):
    run = verified(tmp_path, first, inside)
    assert run.returncode == code, run.stderr
    assert says in run.stderr + run.stdout


PRINTS = """print("of Python"); os.system("echo of a child"); ctypes.CDLL(None).puts(b"of C")"""


@pytest.mark.parametrize("form", ["json", "csv"])
def test_what_code_prints_is_no_part_of_an_answer_for_programs(tmp_path, form):
    printed = verified(tmp_path, PRINTS, PRINTS, form=form)
    silent = verified(tmp_path, form=form)
    assert printed.returncode == silent.returncode == 1
    for line in ("of Python", "of a child", "of C"):
        assert line in printed.stderr.splitlines()
        assert line not in printed.stdout.splitlines()
    if form == "json":
        assert [each["status"] for each in json.loads(printed.stdout)["verdicts"]] == ["fail"]
    else:
        assert len(printed.stdout.splitlines()) == len(silent.stdout.splitlines())


def test_what_code_prints_precedes_an_answer_in_text(tmp_path):
    printed = verified(tmp_path, inside='print("of Python")')
    assert printed.stdout.startswith("of Python\n")
    assert "status  kernel" in printed.stdout


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_code_takes_away_is_given_back(tmp_path, stream):
    run = verified(tmp_path, inside=f"sys.{stream} = None")
    assert (run.returncode, "again: refsim verify" in run.stderr) == (1, True)
    assert run.stdout.startswith("status  kernel")


def test_a_working_directory_that_was_removed_is_an_error_of_its_own(tmp_path):
    run = verified(
        tmp_path, prefix=f"export PYTHONPATH={Path(__file__).parents[2]}; mkdir gone; cd gone; rmdir ../gone; "
    )
    assert run.returncode == 3
    assert "[no-such-file]" in run.stderr


def test_a_closed_standard_input_is_empty(tmp_path):
    decode = ["bash", "-c", f"{sys.executable} -m refsim decode e4m3 - <&-"]
    run = subprocess.run(decode, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (0, "")


def test_exits_are_given_back():
    before = os._exit
    with exits_held(for_good=False), pytest.raises(RefsimError, match="program-ended"):
        os._exit(0)
    assert os._exit is before
