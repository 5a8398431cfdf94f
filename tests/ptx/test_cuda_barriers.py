"""What `cuda::barrier`, `cuda::pipeline` and their copies compile to: right kernels are right and silent in every order, the
same less one edge are found in every order."""

from pathlib import Path

import numpy as np
import pytest

from refsim import ptx
from refsim.device.compile import compile_ptx
from refsim.errors import RefsimError
from refsim.testing.kernel_files import load_kernel_file

kernels = load_kernel_file(Path(__file__).with_name("cuda_barriers.py"))
RIGHT, WRONG = kernels.RIGHT, kernels.WRONG
TARGETS = (pytest.param("sm_80", marks=pytest.mark.ci("the code for Hopper runs in every run")), "sm_90a")
ARRIVALS, MORE = "init(&ready, blockDim.x)", "init(&ready, blockDim.x + 1)"


def bodies(target: str) -> dict[str, str]:
    """The kernels whose code for a target has nothing that comes later."""
    found = {f"right_{at}": kernel.body for at, kernel in enumerate(RIGHT) if kernel.only in ("", target)}
    return (
        found
        | {
            f"wrong_{at}": wrong.body
            for at, wrong in enumerate(WRONG)
            if kernels.RIGHT_BY_NAME[wrong.less_of].only in ("", target)
        }
        | {"never": kernels.NEVER.replace(ARRIVALS, MORE)}
    )


@pytest.fixture(scope="module", params=TARGETS)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ptx.Program:
    path: Path = tmp_path_factory.mktemp("barriers") / "barriers.cu"
    path.write_text(kernels.source(bodies(request.param)), "utf-8")
    return ptx.load(compile_ptx(path, request.param).text, request.param)


def schedules(profile: str) -> list[tuple[str, int]]:
    """Policies and seeds of a profile."""
    return [("eager", 1), ("lazy", 1), *(("random", seed) for seed in range(1, 2 if profile == "quick" else 11))]


def some_schedules(profile: str) -> list[tuple[str, int]]:
    """Those in which a missing edge is looked for: the quick profile leaves out late copies, for which the checks do not ask."""
    return [each for each in schedules(profile) if profile != "quick" or each[0] != "lazy"]


def run(program: ptx.Program, name: str, policy: str, seed: int) -> tuple[np.ndarray, ptx.Trace]:
    x, y = np.arange(2048, dtype=np.int32), np.zeros(128, np.int32)
    return y, program.launch(name, 1, 128, [x, y], policy=policy, seed=seed)


@pytest.mark.ci("compiles libcu++ for seconds; barriers written in PTX are tried in every run")
def test_right_kernels_are_right_and_nothing_is_said(program: ptx.Program, refsim_profile: str) -> None:
    for at, kernel in enumerate(RIGHT):
        if f"right_{at}" not in program.entries:
            continue
        for schedule in schedules(refsim_profile):
            y, trace = run(program, f"right_{at}", *schedule)
            np.testing.assert_array_equal(y, kernel.expected(np.arange(2048)), f"{kernel} {schedule}")
            assert (trace.findings, trace.warnings, trace.notes) == ((), (), ()), (kernel, schedule)


@pytest.mark.ci("compiles libcu++ for seconds; barriers written in PTX are tried in every run")
def test_missing_edges_are_found_in_every_order(program: ptx.Program, refsim_profile: str) -> None:
    for at, wrong in enumerate(WRONG):
        if f"wrong_{at}" not in program.entries:
            continue
        for schedule in some_schedules(refsim_profile):
            with pytest.raises(RefsimError) as caught:
                run(program, f"wrong_{at}", *schedule)
            assert caught.value.code in wrong.codes, (str(wrong), schedule, str(caught.value))


def test_each_target_has_kernels_of_each_kind(program: ptx.Program) -> None:
    """Copies of 16 bytes are bulk copies from sm_90 on; the rest runs on both."""
    kinds = {"barrier": "mbarrier.arrive", "wait": "_wait", "copies": "cp.async.mbarrier.arrive"}
    opcodes = {item.opcode for function in program.module.functions.values() for item in function.statements}
    assert all(any(word in opcode for opcode in opcodes) for word in kinds.values())


def test_a_missing_arrival_says_who_waits_for_what(program: ptx.Program) -> None:
    (at,) = (at for at, wrong in enumerate(WRONG) if wrong.new == MORE and wrong.less_of == "token")
    with pytest.raises(RefsimError, match="deadlock") as caught:
        run(program, f"wrong_{at}", "eager", 1)
    said = caught.value.what
    assert "128 threads (first thread (0, 0, 0) of block (0, 0, 0), warps 0, 1, 2, 3) wait at mbarrier.t" in said
    assert " at barriers.cu:" in said
    assert "for phase 0 of the mbarrier at shared address 0x" in said
    assert ") of block (0, 0, 0): 1 of 129 arrivals are missing" in said, "the variable's name stands there"


def test_time_passes_for_those_that_wait_for_a_while(program: ptx.Program) -> None:
    y, _ = run(program, "never", "eager", 1)
    assert (y == 2).all()
