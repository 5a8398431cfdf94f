"""refsim doctor and the commands that need compilers, on machines with a toolkit, with nothing, and with damaged parts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from refsim import device
from refsim.bringup.suites import ALWAYS, suite_named
from refsim.bringup.tensor_cores import KERNEL_FILE, instructions
from refsim.device import trial
from refsim.device.toolchain import find_toolchain
from refsim.device.trial import TrialStep
from refsim.errors import Kind, RefsimError
from tests import bare_machine

pytestmark = pytest.mark.skipif(
    find_toolchain() is None or sys.platform != "linux",
    reason="needs the wheels on Linux, of which a toolkit is made: pip install 'refsim[gpu]'",
)

NUMERICS = ("bringup", "--device", "sim", "--target", "sm_80", "--suite", "numerics")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bare_machine.make_environment(tmp_path_factory.mktemp("bare") / "environment")


@pytest.fixture(scope="module", params=["toolkit", "none"])
def toolkit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """A folder laid out as a toolkit, or no compiler at all."""
    return bare_machine.make_toolkit(tmp_path_factory.mktemp("cuda") / "cuda") if request.param == "toolkit" else None


def run(python: Path, toolkit: Path | None, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return bare_machine.run(python, toolkit, *arguments, cache=tmp_path / "cache", cwd=tmp_path, capture_output=True)


def test_no_wheel_can_be_seen_there(python: Path) -> None:
    code = "import importlib.metadata as m; print([d.name for d in m.distributions() if 'cuda' in d.name or d.name == 'triton'])"
    seen = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, env={})
    assert seen.stdout.strip() == "[]"


def test_doctor_says_which_part_came_from_where(python: Path, toolkit: Path | None, tmp_path: Path) -> None:
    ran = run(python, toolkit, tmp_path, "doctor", "--as", "json")
    assert ran.returncode == 0, ran.stderr
    record = json.loads(ran.stdout)
    parts = {row["part"]: (row["state"], row["found"]) for row in record["parts"]}
    steps = {row["step"]: (row["state"], row["from"]) for row in record["trial"]}
    home = "toolkit of CUDA_HOME"
    if toolkit is None:
        assert {parts[name][0] for name in ("NVRTC", "CUDA headers", "ptxas")} == {"missing"}
        assert steps["compile"] == ("ok", "bundled PTX, nothing here compiles it")
        assert steps["assemble"][0] == "missing"
    else:
        assert parts["NVRTC"] == parts["CUDA headers"] == ("ok", f"{home}, 13.0")
        assert parts["ptxas"] == ("ok", f"13.0.88 of {home}")
        assert steps["compile"] == ("ok", f"{home}, 13.0")
        assert steps["assemble"] == ("ok", home)
    assert steps["run"][0] == "ok"


@pytest.mark.ci("a process of its own; which part came from where is said in every run")
def test_a_damaged_toolkit_is_passed_over_with_the_reason(python: Path, tmp_path: Path) -> None:
    for name in ("lib64/libnvrtc.so.13", "include/cuda_runtime_api.h", "bin/ptxas"):
        (tmp_path / "cuda" / name).parent.mkdir(parents=True)
        (tmp_path / "cuda" / name).write_text("")
    ran = run(python, tmp_path / "cuda", tmp_path, "doctor", "--as", "json")
    assert ran.returncode == 0
    over = {row["passed over"]: row["because"] for row in json.loads(ran.stdout)["passed_over"]}
    assert over["NVRTC"] == "does not load: file too short"
    assert over["headers"].startswith("no cuda_fp8.h, cuda_bf16.h")


def test_a_gpu_that_was_asked_for_and_is_not_here_is_exit_4(python: Path, toolkit: Path | None, tmp_path: Path) -> None:
    ran = run(python, toolkit, tmp_path, "doctor", "--device", "cuda", "--as", "json")
    assert ran.returncode == 4
    parts = {row["part"]: row for row in json.loads(ran.stdout)["parts"]}
    assert parts["GPU"]["state"] == "missing"
    assert "refsim[gpu]" in parts["cuda-bindings"]["help"]
    # a machine may have the driver and no GPU
    assert ran.stderr.startswith(("[no-cuda-driver] ", "[no-cuda-device] "))


ONE_PROBLEM = """
from dataclasses import replace
from refsim.testing.kernel_files import bundled_kernels, load_kernel_file
amax = load_kernel_file(bundled_kernels()).FP8_AMAX
KERNELS = [replace(amax, corpus=amax.corpus[:1])]
"""


WITH_NOTHING = pytest.mark.parametrize(
    "toolkit",
    [pytest.param("toolkit", marks=pytest.mark.ci("a toolkit compiles for other tests in every run")), "none"],
    indirect=True,
)
WITH_A_TOOLKIT = pytest.mark.parametrize(
    "toolkit",
    ["toolkit", pytest.param("none", marks=pytest.mark.ci("the bundled text is verified in every run"))],
    indirect=True,
)


@WITH_NOTHING
def test_verify_runs(python: Path, toolkit: Path | None, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(ONE_PROBLEM)
    command = ("verify", "--kernels", str(tmp_path / "one.py"), "--device", "sim", "--cases", "2", "--as", "json")
    ran = run(python, toolkit, tmp_path, *command)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (verdict,) = json.loads(ran.stdout)["verdicts"]
    assert (verdict["status"], verdict["cases"]) == ("pass", 3)


def assert_all_run(python: Path, toolkit: Path | None, tmp_path: Path, target: str, suites: tuple[str, ...]) -> None:
    """Every case that the suites have on this device passes, but for what the target itself does not have."""
    planned = {(name, task.name) for name in suites for task in suite_named(name).tasks(device.open("sim", target))}
    asked = [word for name in suites for word in ("--suite", name)]
    ran = run(python, toolkit, tmp_path, "bringup", "--device", "sim", "--target", target, *asked, "--as", "json")
    record = json.loads(ran.stdout)
    assert (ran.returncode, record["missing"]) == (0, [])
    assert {(case["suite"], case["name"]) for case in record["cases"]} == planned
    assert {case["status"] for case in record["cases"]} <= {"pass", "unsupported"}
    lacking = [case["note"] for case in record["cases"] if case["status"] == "unsupported"]
    assert not [note for note in lacking if "from sm_90 on" not in note and f"{target} has 101376 B" not in note]
    assert record["counts"]["pass"] >= len(planned) * 4 // 5


@pytest.mark.ci("seconds; tests/bringup runs such probes in every run")
@WITH_A_TOOLKIT
def test_every_probe_of_tensor_cores_runs(python: Path, toolkit: Path | None, tmp_path: Path) -> None:
    """Each instruction of the text that comes from there."""
    assert_all_run(python, toolkit, tmp_path, "sm_80", ("layouts",))


@pytest.mark.ci("the same text runs here for its layouts; what its sums return is no matter of a compiler")
def test_what_sums_return_is_asked_without_a_compiler(python: Path, tmp_path: Path) -> None:
    assert_all_run(python, None, tmp_path, "sm_80", ("numerics",))


@pytest.mark.night("most of a minute; layouts and sums are asked without a compiler in CI, the other suites with one")
def test_every_case_of_a_bringup_runs(python: Path, tmp_path: Path) -> None:
    """But the bundled kernels: a toolkit compiles one above, and without a compiler .ci/run runs them from the wheel.
    Where text comes from is the matter of the layouts above: here it is bundled.
    Discovery asks the same probes of tensor cores, for minutes; conformance/reports/how_sure.md has the command with it."""
    suites = tuple(name for name in ALWAYS if name != "kernels")
    assert_all_run(python, None, tmp_path, "sm_89", suites)


@pytest.mark.ci("seconds; what is missing stands first in the text of tests/bringup in every run")
def test_what_a_bringup_could_not_run_stands_first(python: Path, tmp_path: Path) -> None:
    """Neither a compiler nor bundled text of the probe's source: an installation that was edited."""
    probe = tmp_path / "probes" / "tensor_cores.cu"
    probe.parent.mkdir()
    probe.write_text(KERNEL_FILE.read_text("utf-8") + "// edited\n")
    edited = f"import refsim.bringup.tensor_cores as t; from pathlib import Path; t.KERNEL_FILE = Path({str(probe)!r})"
    ran = subprocess.run(
        [python, "-c", f"{edited}; {bare_machine.WITHOUT_FIXED}", *NUMERICS, "-o", "-", "-o", "r.json", "-o", "r.html"],
        env={"PYTHONPATH": str(bare_machine.ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    cases = len(instructions("sm_80"))
    head = f"{cases} of {cases} cases did not run: nothing is known of them"
    assert ran.returncode == 5
    assert ran.stdout.splitlines()[0] == head
    assert ran.stdout.splitlines()[1].startswith(f"{cases} x tensor_cores.cu needs NVRTC and CUDA's headers")
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["missing"][0] == head
    assert record["missing"][1].endswith("pip install 'refsim[sim]'")
    assert head in (tmp_path / "r.html").read_text().partition("<h1>")[0]


# ---- steps that fail -------------------------------------------------------------------------------------------------


def test_the_exit_code_tells_missing_from_broken_from_wrong() -> None:
    assert [
        TrialStep("run", state, "").exit_code for state in (trial.OK, trial.MISSING, trial.FAILS, trial.WRONG_BITS)
    ] == [
        0,
        0,
        5,
        1,
    ]


@pytest.mark.parametrize(("kind", "code"), [(Kind.MISSING, 0), (Kind.UNREADABLE, 5)])
def test_a_compiler_that_fails_is_not_one_that_is_missing(refsim, monkeypatch, kind, code) -> None:
    def refuse(*_: object) -> None:
        raise RefsimError("compile-error", "NVRTC refused doctor.cu", kind=kind)

    monkeypatch.setattr(trial, "compile_ptx", refuse)
    assert refsim("doctor", "--device", "sim").code == code


@pytest.mark.ci("a process of its own; bits that differ are found in tests/bringup in every run")
def test_bits_that_are_not_the_models_are_exit_1(refsim, monkeypatch) -> None:
    encode = trial.encode
    monkeypatch.setattr(trial, "encode", lambda values, name: encode(-values, name))
    run = refsim("doctor", "--device", "sim")
    assert run.code == 1
    assert "512 of 512 codes are not the model's" in run.out
