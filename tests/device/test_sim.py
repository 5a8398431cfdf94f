"""The simulated GPU as a device: what it tries, and what it can say about a kernel that went wrong."""

from pathlib import Path

import numpy as np
import pytest

from refsim import device
from refsim.errors import RefsimError
from refsim.kernels import Struct

SOURCE = """
__device__ unsigned offset = 5;
extern "C" __global__ void stride(const unsigned* x, unsigned* y) {
    __shared__ unsigned tile[32 * 32];
    tile[threadIdx.x * 32] = x[threadIdx.x];
    __syncwarp();
    y[threadIdx.x] = tile[threadIdx.x * 32] + offset;
}
extern "C" __global__ void arrivals(unsigned* counter, unsigned* order) {
    for (unsigned turn = 0; turn < 3; ++turn) order[turn * blockDim.x + threadIdx.x] = atomicAdd(counter, 1u);
}
extern "C" __global__ void other_warps_first(unsigned* flag, unsigned* y, unsigned index) {
    if (threadIdx.x == 0) atomicExch(flag, 1u);
    if (threadIdx.x > 32 && threadIdx.x % 32 == 0 && atomicAdd(flag, 0u) == 0) y[index] = 1;
    if (threadIdx.x == 1) y[0] = 1;
}
extern "C" __global__ void other_warps_first_inexact(unsigned* flag, float* y, unsigned index) {
    if (threadIdx.x == 0) atomicExch(flag, 1u);
    if (threadIdx.x > 32 && threadIdx.x % 32 == 0 && atomicAdd(flag, 0u) == 0) y[index] = 1;
    if (threadIdx.x == 1) atomicAdd(y, 1.0f);
}
extern "C" __global__ void meets_at_a_shuffle(unsigned* y) {
    __shared__ unsigned tile[32];
    tile[threadIdx.x] = threadIdx.x;
    unsigned turn = __shfl_sync(0xffffffffu, 1u, 0);
    y[threadIdx.x] = tile[threadIdx.x ^ turn];
}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.cu"
    path.write_text(SOURCE, "utf-8")
    return path


def test_owner_names_the_statement_that_wrote(file):
    with device.open("sim").launcher(file) as launcher:
        x, y = launcher.upload(np.arange(32, dtype=np.uint32), name="x"), launcher.output(33, np.uint32, name="y")
        launcher.launch("stride", (1,), (32,), [x, y])
        owner_of = launcher.findings().owner_of
        owner = owner_of(y, 7)
        assert (owner["block"], owner["thread"], owner["address"]) == (0, 7, y.address + 28)
        assert str(owner["by"]).startswith("st.global.")
        assert str(owner["by"]).endswith("(kernels.cu:7)")
        assert owner_of(y, 32) == {"address": y.address + 128, "written": "never"}


def test_a_warning_says_that_it_is_one_and_by_which_rule(file):
    with device.open("sim").launcher(file) as launcher:
        launcher.launch("meets_at_a_shuffle", 1, 32, [launcher.output(32, np.uint32, name="y")])
        (note,) = launcher.findings().notes
    assert note.startswith("meets_at_a_shuffle: warning [ordered-by-convergence] reads 4 B")
    assert note.endswith("only bar.warp.sync (__syncwarp) does)")


def test_conflicts_are_counted_where_that_was_asked_for(file):
    for asked in (False, True):
        with device.open("sim").launcher(file, count_banks=asked) as launcher:
            x, y = launcher.upload(np.arange(32, dtype=np.uint32), name="x"), launcher.output(32, np.uint32, name="y")
            launcher.launch("stride", (1,), (32,), [x, y])
            found = [(line.split()[0], line.split("(")[1]) for line in launcher.findings().conflicts]
            want = [
                ("st.shared.u32", "kernels.cu:5): 32 wavefronts for each one needed"),
                ("ld.shared.u32", "kernels.cu:7): 32 wavefronts for each one needed"),
            ]
            assert found == (want if asked else [])


def test_module_variables_are_there_under_every_schedule(file):
    with device.open("sim").launcher(file) as launcher:
        x, y = launcher.upload(np.arange(32, dtype=np.uint32), name="x"), launcher.output(32, np.uint32, name="y")
        launcher.launch("stride", (1,), (32,), [x, y])
        np.testing.assert_array_equal(launcher.read(y), np.arange(32) + 5)


@pytest.mark.parametrize("seed", [2, 4, 6])
def test_one_warp_comes_last_under_an_even_seed(seed, file):
    program = device.open("sim").program(file)
    counter, order = np.zeros(1, np.uint32), np.zeros(3 * 128, np.uint32)
    program.launch("arrivals", (1,), (128,), [counter, order], policy="random", seed=seed)
    last = order.reshape(3, 4, 32).min(axis=(0, 2))  # the first arrival of each warp
    assert (last >= 3 * 96).sum() == 1


def test_results_that_depend_on_the_order_are_refused(file):
    with device.open("sim").launcher(file) as launcher:
        counter = launcher.upload(np.zeros(1, np.uint32), name="counter", writable=True)
        order = launcher.output(3 * 128, np.uint32, name="order")
        with pytest.raises(RefsimError, match="schedule-dependent"):
            launcher.launch("arrivals", (1,), (128,), [counter, order])


def test_a_byte_that_is_written_under_some_orders_only_is_refused(file):
    """The first order leaves y[1] alone; what was there before is no result."""
    with device.open("sim").launcher(file) as launcher:
        flag = launcher.upload(np.zeros(1, np.uint32), name="flag", writable=True)
        y = launcher.output(2, np.uint32, name="y")
        with pytest.raises(RefsimError, match="byte 4 of y") as caught:
            launcher.launch("other_warps_first", (1,), (512,), [flag, y, np.uint32(1)])
        assert caught.value.code == "schedule-dependent"


def test_inexact_kernels_are_tried_under_every_order_for_faults(file):
    """Their bytes are not compared, and those of the first order stay: a float sum depends on the order of arrival."""
    with device.open("sim").launcher(file) as launcher:
        flag = launcher.upload(np.zeros(1, np.uint32), name="flag", writable=True)
        y = launcher.upload(np.zeros(2, np.float32), name="y", writable=True)
        launcher.launch("other_warps_first_inexact", (1,), (512,), [flag, y, np.uint32(1)])
        np.testing.assert_array_equal(launcher.read(y), [1, 0])
        flag = launcher.upload(np.zeros(1, np.uint32), name="another flag", writable=True)
        with pytest.raises(RefsimError, match="out-of-bounds"):
            launcher.launch("other_warps_first_inexact", (1,), (512,), [flag, y, np.uint32(100)])


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (lambda gpu: gpu.output(1, np.uint8, name="z", misalign_bytes=1.5), "out-of-range"),
        (lambda gpu: gpu.output(1, np.uint8, name="z", misalign_bytes=None), "out-of-range"),
        (lambda gpu: gpu.launch("stride", 1, 1, 5), "bad-launch"),
        (lambda gpu: gpu.launch("stride", 1, 1, "xy"), "bad-launch"),
        (lambda gpu: gpu.launch(5, 1, 1, []), "bad-launch"),
        (lambda gpu: gpu.launch("stride", 1, 1, np.array(5)), "bad-launch"),
        (lambda gpu: gpu.launch("stride", 1, 1, [], programmatic=1), "bad-launch"),
        (lambda gpu: gpu.launch("stride", 1, 1, [], cooperative="no"), "bad-launch"),
        (lambda gpu: gpu.output(1, "no type", name="z"), "bad-dtype"),
        (lambda gpu: gpu.output(1, 5, name="z"), "bad-dtype"),
        (lambda gpu: gpu.output(1, np.uint8, name=["z"]), "bad-buffer"),
        (lambda gpu: gpu.upload(np.zeros(1), name=5), "bad-buffer"),
        (lambda gpu: gpu.upload([[1], [2, 3]], name="z"), "not-an-array"),
        (lambda gpu: gpu.read("z"), "bad-buffer"),
        (lambda gpu: gpu.encode(b"a map"), "bad-argument"),
        (lambda gpu: Struct("text", 1), "bad-argument"),
        (lambda gpu: Struct(b"text", 1.0), "bad-argument"),
        (lambda gpu: device.open(5), "unknown-device"),
        (lambda gpu: device.open("sim", ["sm_90"]), "unknown-target"),
        (lambda gpu: gpu.launch("meets_at_a_shuffle", 1, 1, [gpu.output(1, np.uint8, name="z")], 2.5), "bad-launch"),
        (lambda gpu: gpu.launch("meets_at_a_shuffle", 1, 1, [gpu.output(1, np.uint8, name="z")], None), "bad-launch"),
    ],
)
def test_a_launch_of_other_types_is_an_error_and_leaves_the_launcher_as_it_was(file, wrong, code):
    with device.open("sim").launcher(file) as launcher:
        with pytest.raises(RefsimError) as caught:
            wrong(launcher)
        assert (caught.value.code, caught.value.exit_code) == (code, 2)
        y = launcher.output(32, np.uint32, name="y")
        assert launcher.upload(np.arange(32, dtype=np.uint32), name="x").address > y.address
