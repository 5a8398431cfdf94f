"""refsim run: programs started with the stand-ins in place, what is reported of them, exit codes."""

import json
import shutil
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from refsim_run import programs
from refsim_run.programs import ProgramRun
from refsim_run.records import KernelRecord, RunRecord, Said, TestRecord
from tests.refsim_run.kernels import DOUBLE, RACE

PROGRAM = """
import sys
import numpy as np
import pycuda.autoinit
import pycuda.driver as cuda

kernel = cuda.module_from_file(sys.argv[1] + ".ptx").get_function(sys.argv[1])
y = cuda.to_device(np.ones(64, np.float32))
arguments = (y, y, np.uint32(32)) if sys.argv[1] == "double" else (y,)
kernel(*arguments, block=(32, 1, 1))
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def ran(refsim, tmp_path: Path):
    """Runs the program: the kernel, its own exit code, options of refsim run."""
    (tmp_path / "program.py").write_text(PROGRAM)
    for name, text in (("double", DOUBLE), ("race", RACE)):
        (tmp_path / f"{name}.ptx").write_text(text)

    def run(kernel, code, *options):
        return refsim("run", *options, "--", "python", "program.py", kernel, str(code))

    return run


def test_a_program_runs_and_is_reported(ran, tmp_path):
    done = ran("double", 0, "-o", "report.json", "--junit", "junit.xml", "--strict")
    assert done.code == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["exit_code"], report["launches"], report["kernels_exact"]) == (0, 1, 1)
    assert [(row["status"], row["kernel"], row["package"]) for row in report["kernels"]] == [
        ("exact", "double", "pycuda")
    ]
    assert report["held_bytes"] == 256
    assert report["held"][0]["place"] == "program.py:8"
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert [(case.get("classname"), case.get("name"), len(case)) for case in suite] == [
        ("program", "python program.py double 0", 0),
        ("pycuda", "double", 1),
    ]


def test_an_interrupted_program_is_reported(refsim, monkeypatch):
    run = ProgramRun(("python",), 130, RunRecord("sm_90a"), 1, 0, is_interrupted=True)
    monkeypatch.setattr(programs, "run_program", lambda command, settings: run)
    done = refsim("run", "--", "python", "-c", "pass")
    assert (done.code, "program's exit code    130" in done.out) == (130, True)


SAID = Said("race", "two threads write", "source.cu:2")


@pytest.mark.parametrize(
    ("code", "seen", "options", "wanted"),
    [
        (0, {}, ("--strict",), 0),
        (3, {}, (), 1),
        (0, {"findings": [SAID, SAID]}, (), 1),
        (0, {"warnings": [SAID]}, ("--strict",), 0),
        (0, {"inexact": ["source.cu:3"]}, (), 0),
        (0, {"inexact": ["source.cu:3"]}, ("--strict",), 5),
        (0, {"assumed": ["source.cu:3"]}, ("--strict",), 5),
        (0, {"refused": [SAID]}, ("--strict",), 5),
        (1, {"inexact": ["source.cu:3"]}, ("--strict",), 1),
    ],
)
def test_the_exit_code_says_how_it_went(refsim, monkeypatch, code, seen, options, wanted):
    record = RunRecord("sm_90a", [KernelRecord("k", "pycuda", "sm_90a", 1, 32, 0.1, ["1 of 32"], **seen)])
    monkeypatch.setattr(programs, "run_program", lambda command, settings: ProgramRun(command, code, record, 1, 0))
    done = refsim("run", *options, "--", "python", "program.py")
    assert done.code == wanted
    assert f"program's exit code    {code}" in done.out
    assert all(getattr(each, "code", each) in done.out for rows in seen.values() for each in rows)


@pytest.mark.ci("a process of its own; findings are counted in every run")
def test_a_finding_is_a_failure_of_junit(ran, tmp_path):
    done = ran("race", 0, "--junit", "junit.xml")
    assert done.code == 1
    assert "tests asked for the GPU" not in done.out  # this test is none of the program's
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()[0]
    assert suite.get("failures") == "1"
    assert "[race]" in suite.find("testcase/failure").text


@pytest.mark.parametrize(
    ("command", "code", "error"),
    [
        ((), 2, "missing-argument"),
        (("no-such-program",), 4, "missing-argument"),
        (("python", "-S", "-c", "pass"), 4, "stand-ins-did-not-start"),
    ],
)
def test_what_cannot_be_started_is_said(refsim, command, code, error):
    done = refsim("run", "--", *command)
    assert (done.code, done.out) == (code, "")
    assert f"[{error}]" in done.err


@pytest.mark.parametrize(
    "option", [("--policy", "hasty"), ("--arithmetic", "guess"), ("--target", "sm_1"), ("--seed", "x")]
)
def test_options_are_checked_before_anything_runs(refsim, option, tmp_path):
    assert refsim("run", *option, "--", "python", "-c", "open('ran', 'w')").code == 2
    assert not (tmp_path / "ran").exists()


def test_an_option_of_the_program_without_dashes_before_it_is_explained(refsim):
    run = refsim("run", "mine.py", "--foo", "3")
    assert run.code == 2
    assert "an option of the program stands after --: refsim run -- PROGRAM --foo; nearest: " in run.err
    assert "stands after --" not in refsim("verify", "--foo").err


def test_numba_without_numba_cuda_says_what_to_install():
    from refsim_run.cuda.bindings import take_place_of_numba as take_place

    for has_bindings, error in ((True, None), (False, "pip install numba-cuda")):
        driver = SimpleNamespace(is_initialized=None, initialization_error="none")
        take_place(SimpleNamespace(driver=driver, USE_NV_BINDING=has_bindings))
        assert driver.is_initialized is not has_bindings
        assert driver.initialization_error is error or error in driver.initialization_error


def test_the_file_that_python_would_have_run_is_run_too(refsim, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("open('customised', 'w').close()")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{':'.join(sys.path)}")
    assert refsim("run", "--", "python", "-c", "import pycuda; assert pycuda.VERSION >= (2024,)").code == 0
    assert (tmp_path / "customised").exists()


def test_another_refsim_on_the_path_of_the_program_is_not_the_one_that_runs_it(refsim, tmp_path, monkeypatch):
    (tmp_path / "refsim.py").write_text("raise ImportError('another refsim')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert refsim("run", "--", "python", "-c", "import pycuda; assert pycuda.VERSION >= (2024,)").code == 0


TESTS = """
import time
import numpy as np
import pycuda.driver as cuda
import pytest
from pycuda.tools import mark_cuda_test

KEPT = []

@mark_cuda_test
def test_that_keeps():
    KEPT.append(cuda.mem_alloc(100))

@mark_cuda_test
def test_that_asks():
    cuda.matrix_to_array(np.zeros((2, 2)), "C")

def test_that_takes_long():
    for _ in range(200):
        time.sleep(0.1)

def test_that_is_wrong():
    assert 1 == 2

@pytest.mark.skip
def test_that_is_skipped():
    pass
"""


def test_tests_have_a_limit_and_are_told_apart(refsim, tmp_path):
    (tmp_path / "test_gpu.py").write_text(textwrap.dedent(TESTS))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = refsim(
        "run",
        "--test-seconds",
        "2",
        "-o",
        "r.json",
        "--junit",
        "ours.xml",
        "--",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--junitxml=j.xml",
    )
    assert done.code == 1
    cases = {case.get("name"): case for case in ElementTree.parse(tmp_path / "j.xml").iter("testcase")}
    assert "test-timeout" in cases["test_that_takes_long"].find("failure").text
    assert "pycuda.driver.matrix_to_array is not simulated" in cases["test_that_asks"].find("failure").text
    assert len(cases["test_that_keeps"]) == 0
    ours = {
        case.get("name").partition("::")[2]: case for case in ElementTree.parse(tmp_path / "ours.xml").iter("testcase")
    }
    words = {name: [each.tag for each in ours[name]] for name in cases}
    assert words == {name: [each.tag for each in case] for name, case in cases.items()} | {"test_that_asks": ["error"]}
    assert ours["test_that_is_wrong"].find("failure").text.endswith("AssertionError")
    tests = json.loads((tmp_path / "r.json").read_text())["tests"]
    assert tests["test_gpu.py::test_that_keeps"]["held_bytes"] == 100  # it launched nothing
    assert tests["test_gpu.py::test_that_asks"]["refused"] == ["pycuda.driver.matrix_to_array"]


OF_TRITON = """
import numpy as np
import triton
import triton.language as tl


class HostTensor:
    dtype = tl.float32

    def __init__(self, array):
        self.base = array

    def data_ptr(self):
        return self.base.ctypes.data


@triton.autotune([triton.Config({"BLOCK": block}, num_warps=1) for block in (32, 64)], key=["n"])
@triton.jit
def scaled(x_ptr, y_ptr, factor, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


x = np.arange(100, dtype=np.float32)
y = np.zeros_like(x)
scaled[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](HostTensor(x), HostTensor(y), 2.5, 100)
assert (y == 2.5 * x).all(), y
z = np.zeros_like(x)
scaled[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, y_ptr=z, factor=2.5, n=100)
assert (z == y).all(), z
assert triton.runtime.driver.active.get_current_target().arch == 90
"""


@pytest.mark.ci("seconds; programs of PyCUDA run unchanged in every run")
def test_a_program_of_triton_runs_unchanged(refsim, tmp_path, monkeypatch):
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "program.py").write_text(textwrap.dedent(OF_TRITON))
    done = refsim("run", "-o", "report.json", "--", "python", "program.py")
    assert done.code == 0, done
    (kernel,) = json.loads((tmp_path / "report.json").read_text())["kernels"]
    assert (kernel["kernel"], kernel["package"], kernel["status"]) == ("scaled", "triton", "exact")
    assert kernel["launches"] >= 3


def test_a_program_of_cupy_prints_what_an_h200_printed(refsim, tmp_path):
    shutil.copy(Path(__file__).parents[2] / "docs/programs/gram_matrix.py", tmp_path)
    done = refsim("run", "-o", "report.json", "--", "python", "gram_matrix.py")
    assert done.code == 0, done
    assert [line.rpartition(" ")[2] for line in done.out.splitlines()] == ["1228389082373", "2321110588757857785"]
    assert done.out.count("symmetric True, largest on the diagonal True") == 2
    report = json.loads((tmp_path / "report.json").read_text())
    (kernel,) = report["kernels"]
    assert (kernel["kernel"], kernel["package"], kernel["status"], kernel["launches"]) == ("gram", "cupy", "exact", 2)
    assert [(row["bytes"], row["place"]) for row in report["held"]] == [
        (7680, "gram_matrix.py:30"),
        (4608, "gram_matrix.py:31"),
    ]


def test_what_the_program_itself_did_wrong_is_a_finding(refsim, monkeypatch, tmp_path):
    tests = {
        "test_a.py::test_leak": TestRecord(held_bytes=96),
        "test_a.py::test_free": TestRecord(findings=["[bad-address] 0x1 is no allocation, at test_a.py:3"]),
        "test_a.py::test_right": TestRecord(launches=1),
        "test_a.py::test_asks": TestRecord(refused=["pycuda.driver.Texture"]),
    }
    found = [Said("bad-address", "0x1 is no allocation", "test_a.py:3")]
    record = RunRecord("sm_90a", tests=tests, found=found, warned=[Said("uninitialised", "4 B", "test_a.py:9")])
    monkeypatch.setattr(programs, "run_program", lambda command, settings: ProgramRun(command, 0, record, 1, 0))
    done = refsim("run", "--junit", "junit.xml", "--", "pytest")
    assert done.code == 1
    assert "finding  bad-address    (host)  test_a.py:3" in done.out
    assert "warning  uninitialised  (host)  test_a.py:9" in done.out
    for line in (
        "test_a.py::test_leak          96  -",
        "test_a.py::test_free           0  [bad-address]",
        "test_asks           0  pycuda",
    ):
        assert line in done.out
    assert "test_right" not in done.out
    cases = {
        case.get("name"): [each.tag for each in case]
        for case in ElementTree.parse(tmp_path / "junit.xml").iter("testcase")
    }
    assert cases == {
        "pytest": [],
        "(host)": ["failure"],
        "test_a.py::test_leak": [],
        "test_a.py::test_free": ["failure"],
        "test_a.py::test_right": [],
        "test_a.py::test_asks": ["error"],
    }


ENDS = """
import os, signal, sys, time
import numpy as np
import pycuda.autoinit
import pycuda.driver as cuda

KEPT = cuda.to_device(np.ones(64, np.float32))


def launch():
    kernel = cuda.module_from_file("double.ptx").get_function("double")
    kernel(KEPT, KEPT, np.uint32(32), block=(32, 1, 1))


def child(act):
    number = os.fork()
    if not number:
        launch()
        act()
    print(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]), flush=True)


launch()
child(lambda: os._exit(7))
child(lambda: os.kill(os.getpid(), signal.SIGTERM))
child(lambda: os.kill(os.getpid(), signal.SIGKILL))
child(lambda: os.execv(sys.executable, [sys.executable, "-c", "import pycuda.autoinit"]))
os._exit(5)
"""


def test_every_process_is_part_of_the_report_however_it_ends(refsim, tmp_path):
    (tmp_path / "double.ptx").write_text(DOUBLE)
    (tmp_path / "program.py").write_text(ENDS)
    done = refsim("run", "--strict", "-o", "r.json", "--", "python", "program.py")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (done.code, report["exit_code"], report["silent_processes"]) == (1, 5, 1)
    (kernel,) = report["kernels"]
    assert (kernel["launches"], kernel["status"]) == (4, "exact")  # of five; what the killed one did is not known
    assert (report["allocations"], report["held_bytes"]) == (
        1,
        256,
    )  # its children have told of nothing that is their parent's
    assert [line for line in done.out.splitlines() if line.lstrip("-").isdigit()] == ["7", "-15", "-9", "0"]


def test_a_process_that_left_no_record_leaves_the_result_open(refsim, monkeypatch):
    record = RunRecord("sm_90a")
    monkeypatch.setattr(programs, "run_program", lambda command, settings: ProgramRun(command, 0, record, 2, 1))
    assert refsim("run", "--", "python", "program.py").code == 0
    assert refsim("run", "--strict", "--", "python", "program.py").code == 5
