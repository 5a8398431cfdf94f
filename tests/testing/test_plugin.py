"""The pytest plugin in suites of its own: its device, its report, and that it disturbs nobody."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import refsim.device
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode

SUITE = """
    import numpy as np
    from refsim.testing import assert_bits_equal

    def test_device(device):
        print("runs on", device.name)
        assert_bits_equal(np.array([1, 2], np.uint8), np.array([1, 3], np.uint8), "e4m3")
"""
CONFTEST = """
    import contextlib, dataclasses
    import refsim.device

    @dataclasses.dataclass
    class Fake:
        name: str

    refsim.device.open = Fake
"""


@pytest.fixture
def run_suite(tmp_path):
    """Runs pytest with only this plugin, in a process of its own, in an empty folder."""

    def run(*arguments, **files):
        for name, text in files.items():
            lines = text.strip("\n").splitlines()
            (tmp_path / f"{name}.py").write_text("\n".join(line[4:] for line in lines) + "\n")
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "pytest", "-p", "refsim.testing.plugin", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        ).stdout

    return run


def test_report_has_a_section_with_the_difference(run_suite):
    output = run_suite("--device", "sim", conftest=CONFTEST, test_it=SUITE)
    assert "refsim: bits that differ" in output
    assert "first   [1]   got 0x02 0.00390625   want 0x03 0.005859375   -1 ulp" in output
    assert "runs on sim" in output


@pytest.mark.parametrize(
    "option",
    [
        "--device=cuda:1",
        pytest.param("--refsim-device=cuda:1", marks=pytest.mark.ci("its short form is read in every run")),
    ],
)
def test_device_is_chosen_on_the_command_line(run_suite, option):
    assert "runs on cuda:1" in run_suite(option, conftest=CONFTEST, test_it=SUITE)


def test_suite_keeps_its_own_device_option(run_suite):
    own = (
        CONFTEST
        + """
    def pytest_addoption(parser):
        parser.addoption("--device", default="theirs")
    """
    )
    suite = (
        SUITE
        + """
    def test_theirs(pytestconfig):
        assert pytestconfig.getoption("--device") == "tpu"
    """
    )
    output = run_suite("--device", "tpu", conftest=own, test_it=suite)
    assert "runs on sim" in output
    assert "1 failed, 1 passed" in output


@pytest.mark.ci("two runs of pytest; an unused plugin imports nothing in every run")
def test_profile_is_loaded_only_on_request(run_suite):
    suite = """
    from hypothesis import settings

    def test_profile():
        print("examples", settings.default.max_examples, settings.default.print_blob)
        assert False
    """
    assert "examples 100" in run_suite(test_it=suite)
    assert "examples 25 True" in run_suite("--refsim-profile=quick", test_it=suite)


def test_unused_plugin_imports_nothing():
    script = "import sys, refsim.testing.plugin; print([m for m in ('numpy', 'hypothesis') if m in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


KERNELS = """
    from dataclasses import replace
    from pathlib import Path

    import numpy as np

    from refsim.testing import Kernel, Promise, strategies
    from refsim.testing.recipes import Tensor

    def run(launcher, problem):
        x = launcher.upload(problem.codes().view(np.float32), name="x")
        y = launcher.output(problem.n, np.float32, name="y")
        launcher.launch("exact", 1, 64, [x, y, np.uint32(problem.n)])
        return {"y": launcher.read(y)}

    def oracle(problem):
        return {"y": np.sqrt(problem.codes().view(np.float32))}

    def wrong_oracle(problem):
        return {"y": oracle(problem)["y"] * np.float32(1.00003)}

    def broken_oracle(problem):
        return {"y": {}["z"]}

    TENSORS = strategies.sizes(40).map(lambda n: Tensor(n + 1, "f32", "ones"))
    RIGHT = Kernel("right", oracle, TENSORS, run, {"y": "f32"}, Tensor, (Tensor(9, "f32", "ones"),), file=Path("@"))
    WRONG = replace(RIGHT, name="wrong", oracle=wrong_oracle)
    BROKEN = replace(RIGHT, name="broken", oracle=broken_oracle)
    OUTSIDE = replace(RIGHT, name="outside", run=lambda launcher, problem: launcher.launch("exact", 1, 64, [1]))
    KERNELS = (RIGHT, WRONG)
    """.replace("@", str(Path(__file__).parent / "open_bits.cu"))
REPORTED = """
    import time

    import numpy as np
    import pytest
    from hypothesis import HealthCheck, Phase, given, settings

    import kernels
    from refsim.testing import assert_bits_equal, kernel_named, laws, run_campaign

    settings.register_profile("of the suite", settings.get_profile("default"), deadline=200)
    settings.load_profile("of the suite")

    @given(problem=kernels.TENSORS)
    @settings(max_examples=10)
    def test_law(problem, device):
        laws.agrees_with_oracle(kernel_named("wrong", ["kernels.py"]), problem, device)

    def test_campaign(refsim_device):
        assert run_campaign(kernels.WRONG, refsim_device, cases=5, suspect_seconds=1)

    def test_arrays():
        assert_bits_equal(np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8), "e4m3")

    class TestOfAClass:
        @given(problem=kernels.TENSORS)
        @settings(max_examples=3, phases=[Phase.generate, Phase.shrink])
        def test_broken(self, problem, device):
            laws.agrees_with_oracle(kernels.BROKEN, problem, device)

    @pytest.fixture
    def of_a_function():
        return 1

    @given(problem=kernels.TENSORS)
    @settings(max_examples=3)
    def test_slow(problem, device, of_a_function):
        laws.agrees_with_oracle(kernels.RIGHT, problem, device)
        time.sleep(0.25)

    def test_slow_within(device):
        @given(problem=kernels.TENSORS)
        @settings(max_examples=3)
        def holds(problem):
            laws.agrees_with_oracle(kernels.RIGHT, problem, device)
            time.sleep(0.25)
        holds()

    def test_after_it():
        assert settings().deadline.total_seconds() == 0.2

    @given(problem=kernels.TENSORS)
    @settings(max_examples=3, deadline=100)
    def test_deadline_of_its_own(problem, device):
        time.sleep(0.15)
    """


@pytest.mark.ci("seconds; one failure is read in every run, and the text of a verdict")
def test_a_failure_can_be_read_at_once(run_suite):
    """Four ways to fail, each with its verdict, case, place and the line that repeats it, in less than a screen."""
    output = run_suite("-k", "law or campaign or arrays or broken", kernels=KERNELS, test_it=REPORTED)
    assert "4 failed" in output
    assert "refsim/testing/" not in output
    assert "SimDevice(" not in output
    law, campaign, arrays, broken = re.split(r"\n_+ [\w.]*test_\w+ _+\n", output.partition("short test summary")[0])[1:]
    assert max(len(part.splitlines()) for part in (law, campaign, arrays, broken)) < 60
    case = "Tensor(n=1, format='f32', fill='ones')"
    for part, held in {
        law: [f"wrong on {case}", f"problem={case}", "first   y[0]", "open_bits.cu:56", "repeat  pytest"],
        campaign: [
            "fail  wrong on sim sm_90a",
            "test case Tensor(n=1,",
            "first   y[0]",
            "open_bits.cu:56",
            "repeat  pytest",
        ],
        arrays: ["99 of 100 elements differ", "repeat  pytest 'test_it.py::test_arrays'"],
        broken: ["KeyError: 'z'", 'return {"y": {}["z"]}', "oracle of kernel broken raised", f"problem={case}"],
    }.items():
        assert [text for text in held if text not in part] == [], part


@pytest.mark.ci("three launches that sleep; a law with the device runs above in every run")
def test_no_deadline_but_the_tests_own_ends_a_launch(run_suite):
    output = run_suite("-k", "test_slow or test_after or test_deadline", kernels=KERNELS, test_it=REPORTED)
    assert "1 failed, 3 passed" in output
    assert "DeadlineExceeded" in output


@pytest.mark.ci("two workers of pytest-xdist, each a process that compiles")
def test_workers_report_the_same_and_junit_holds_hashes_and_seeds(run_suite, tmp_path):
    options = ["-p", "xdist", "-n", "2", "--junitxml=junit.xml", "--refsim-failures=cases", "--refsim-profile=quick"]
    output = run_suite(*options, "-k", "test_law or test_campaign", kernels=KERNELS, test_it=REPORTED)
    assert "2 failed" in output
    assert len(output.splitlines()) < 100
    (case,) = (tmp_path / "cases").iterdir()
    assert f"repeat  refsim replay cases/{case.name}" in output
    cases = {each.get("name"): each for each in ElementTree.parse(tmp_path / "junit.xml").iter("testcase")}
    held = {name: {p.get("name"): p.get("value") for p in each.iter("property")} for name, each in cases.items()}
    assert {len(found["refsim.ptx_sha256"]) for found in held.values()} == {64}
    assert held["test_campaign"]["refsim.wrong.seed"] == "derandomised"
    assert held["test_campaign"]["refsim.wrong.status"] == "fail"
    assert {found["refsim.profile"] for found in held.values()} == {"quick"}


def test_what_a_fault_passes_through_is_refsims_by_name():
    """A statement runs in a function that was generated for it, which a report passes over as over any of refsim's."""
    text = 'extern "C" __global__ void k(int* y) { y[threadIdx.x] = 1; }'
    with refsim.device.open("sim:eager").launcher(KernelCode(source=text)) as launcher:
        y = launcher.output(31, np.int32, name="y")
        with pytest.raises(RefsimError, match="out-of-bounds") as caught:
            launcher.launch("k", 1, 32, [y])
    frames = [(frame.path, frame.frame.f_globals.get("__name__", "")) for frame in caught.traceback[1:]]
    assert any(str(path).startswith("<block") for path, _ in frames)
    assert [name for _, name in frames if not name.startswith(("refsim.", "contextlib"))] == []
