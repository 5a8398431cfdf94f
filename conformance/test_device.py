"""What a device owes its host: memory, arguments, launches and errors; the simulated GPU and a real one, through each library.

`--device sim`, `--device cuda:pycuda`, `--device cuda:bindings`. A case that takes the context with it runs in a process of
its own.
"""

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode
from refsim.kernels import Findings, Struct

WILD = """
import json, sys
from pathlib import Path
import numpy as np
from refsim import device
from refsim.errors import RefsimError
with device.open(sys.argv[1]).launcher(Path(sys.argv[2])) as gpu:
    try:
        arguments = [np.uint64(64), np.uint64(64), np.uint32(1)] if sys.argv[3] == "add" else []
        gpu.launch(sys.argv[3], 1, 32, arguments)
    except RefsimError as fault:
        print(json.dumps([fault.code, fault.exit_code]))
"""
SHARED_BYTES = 60 << 10


@pytest.fixture(scope="session")
def source():
    return Path(__file__).with_name("device.cu")


@pytest.fixture
def gpu(device, source):
    with device.launcher(source) as launcher:
        yield launcher


@pytest.fixture
def clustered(gpu):
    if int("".join(filter(str.isdigit, gpu.target))) < 90:
        pytest.skip(f"{gpu.target} has no clusters: sm_90 and newer")
    return gpu


def slots(gpu, count, dtype=np.uint64):
    return gpu.output(count, dtype, name="y")


# ---- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.float64, np.complex128, ml_dtypes.float8_e4m3fn])
def test_upload_reads_back_with_its_type(gpu, dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    got = gpu.read(gpu.upload(values, name="x"))
    assert (got.dtype, got.shape) == (np.dtype(dtype), (6,))
    assert got.tobytes() == values.tobytes()


@pytest.mark.parametrize("off", [0, 1, 4, 12, 255])
def test_a_buffer_lies_where_it_was_asked_for(gpu, off):
    buffers = [gpu.upload(np.zeros(5, np.uint8), name="x", misalign_bytes=off), slots(gpu, 0)]
    assert buffers[0].address % 256 == off
    assert buffers[1].address % 256 == 0
    assert gpu.read(buffers[1]).size == 0


def test_a_kernel_writes_a_misaligned_output_and_nothing_else(gpu):
    x = gpu.upload(np.arange(1000, dtype=np.uint32), name="x", misalign_bytes=12)
    y = gpu.output(1001, np.uint32, name="y", misalign_bytes=4)
    before = gpu.read(y)[1000]
    gpu.launch("add", 4, 256, [x, y, np.uint32(1000)])
    assert gpu.read(y)[:1000].tolist() == list(range(1, 1001))
    assert gpu.read(y)[1000] == before
    assert gpu.read(x).tolist() == list(range(1000))


def test_a_writable_upload_is_read_and_written(gpu):
    x = gpu.upload(np.arange(4, dtype=np.uint32), name="x", writable=True)
    for _ in range(3):
        gpu.launch("add", 1, 4, [x, x, np.uint32(4)])
    assert gpu.read(x).tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda gpu: gpu.output(-1, np.uint8, name="y"), "bad-buffer"),
        (lambda gpu: gpu.output(2.0, np.uint8, name="y"), "bad-buffer"),
        (lambda gpu: gpu.output(1, object, name="y"), "bad-dtype"),
        (lambda gpu: gpu.upload(np.zeros(1), name="y", misalign_bytes=-4), "out-of-range"),
    ],
)
def test_a_buffer_that_cannot_be_is_refused(gpu, make, code):
    with pytest.raises(RefsimError) as caught:
        make(gpu)
    assert caught.value.code == code


def test_module_variables_last_as_long_as_the_launcher(device, source):
    seen = []
    for _ in range(2):
        with device.launcher(source) as gpu:
            y = gpu.output(1, np.uint32, name="y")
            for _ in range(2):
                gpu.launch("count", 1, 1, [y])
                seen.append(int(gpu.read(y)[0]))
    assert seen == [5, 6, 5, 6]


# ---- arguments -------------------------------------------------------------------------------------------------------


def test_scalars_of_every_size(gpu):
    y = slots(gpu, 9)
    gpu.launch(
        "scalars",
        1,
        1,
        [
            np.uint8(200),
            np.int16(-2),
            np.uint32(1 << 31),
            np.uint64(1 << 63),
            np.float32(1.5),
            np.float64(-0.1),
            np.bool_(True),
            np.int64(-7),
            ml_dtypes.bfloat16(1.0),
            y,
        ],
    )
    tenth = int(np.float64(-0.1).view(np.uint64))
    assert gpu.read(y).tolist() == [200, 2**64 - 2, 1 << 31, 1 << 63, 0x3FC00000, tenth, 1, 2**64 - 7, 0x3F80]


def test_structs_lie_as_c_aligns_them(gpu):
    y = slots(gpu, 9)
    odd = np.dtype([("a", np.uint8), ("b", np.uint16), ("c", np.uint8, 3)], align=True)
    quad = Struct(np.float32(2.5).tobytes() + bytes([77]) + bytes(11), 16)
    words = np.arange(100, 116, dtype=np.uint64)
    gpu.launch(
        "structs",
        1,
        1,
        [
            np.uint8(1),
            Struct(b"\x11\x22\x33"),
            np.uint8(2),
            np.array((9, 0xABCD, [3, 4, 5]), odd)[()],
            quad,
            np.uint8(3),
            Struct(words.tobytes(), 64),
            y,
        ],
    )
    assert gpu.read(y).tolist() == [0x332211, 9, 0xABCD, 5, 0x40200000, 77, 100, 115, 0x030201]


def test_a_struct_may_hold_an_address(gpu):
    y = gpu.output(1, np.uint32, name="y")
    gpu.launch("small", 1, 1, [Struct(y.address.to_bytes(8, "little"), 8)])
    assert gpu.read(y).tolist() == [1]


def test_the_most_parameter_bytes(gpu):
    """32,764 bytes: a struct of 32,752, a pointer, a word."""
    words = (np.arange(8188, dtype=np.uint64) * 2654435761 % 2**32).astype(np.uint32)
    y = gpu.output(64, np.uint32, name="y")
    gpu.launch("wide", 1, 64, [Struct(words.tobytes(), 4), y, np.uint32(9)])
    weighted = words.astype(np.uint64) * np.arange(1, 8189, dtype=np.uint64)
    want = [(int(weighted[thread::64].sum()) + 9) % 2**32 for thread in range(64)]
    assert gpu.read(y).tolist() == want


# ---- launches --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "block", "shape"),
    [(3, 40, (3, 40)), ((3,), (40,), (3, 40)), ((2, 3), (4, 5), (6, 20)), ((2, 1, 3), (4, 2, 2), (6, 16))],
)
def test_extents_are_a_number_or_up_to_three(gpu, grid, block, shape):
    blocks, threads = shape
    y = gpu.output(blocks * threads, np.uint32, name="y")
    gpu.launch("coordinates", grid, block, [y])
    assert gpu.read(y).tolist() == [number << 16 | thread for number in range(blocks) for thread in range(threads)]


def test_shared_memory_above_the_default(gpu):
    y = gpu.output(64, np.uint32, name="y")
    gpu.launch("shared", 2, 64, [y, np.uint32(SHARED_BYTES // 4)], SHARED_BYTES)
    assert gpu.read(y).tolist() == list(range(SHARED_BYTES // 4 - 1, SHARED_BYTES // 4 - 65, -1))


def test_a_cooperative_grid_meets_at_its_barrier(gpu):
    y = gpu.output(16, np.uint32, name="y")
    gpu.launch("over_grid", 8, 1, [y], cooperative=True)
    assert gpu.read(y).tolist() == [*range(1, 9), *[36] * 8]


def test_clusters_number_their_blocks(clustered):
    y = clustered.output(24, np.uint32, name="y")
    clustered.launch("ranks", (12, 2), 32, [y], cluster=4)
    assert clustered.read(y).tolist() == [400 + rank for rank in range(4)] * 6
    clustered.launch("ranks", (12, 2), 32, [y], cluster=(2, 2))
    rows = [[400 + 2 * row + column for column in range(2)] * 6 for row in range(2)]
    assert clustered.read(y).tolist() == rows[0] + rows[1]
    clustered.launch("ranks", (12, 2), 32, [y])
    assert clustered.read(y).tolist() == [100] * 24


def test_a_cluster_of_sixteen_blocks(clustered):
    if clustered.target.startswith("sm_12"):
        pytest.skip(f"{clustered.target} takes clusters of 8")
    y = clustered.output(16, np.uint32, name="y")
    clustered.launch("ranks", 16, 32, [y], cluster=16)
    assert clustered.read(y).tolist() == [1600 + rank for rank in range(16)]


@pytest.mark.parametrize("cooperative", [False, True])
def test_blocks_of_a_cluster_read_the_shared_memory_of_one_another(clustered, cooperative):
    y = clustered.output(8, np.uint32, name="y")
    clustered.launch("neighbours", 8, 1, [y], cluster=4, cooperative=cooperative)
    assert clustered.read(y).tolist() == [10, 20, 30, 0, 50, 60, 70, 40]


def test_a_cluster_that_the_entry_declares(clustered):
    y = clustered.output(4, np.uint32, name="y")
    clustered.launch("pairs", 4, 1, [y])
    assert clustered.read(y).tolist() == [0, 1, 0, 1]
    clustered.launch("pairs", 4, 1, [y], cluster=2)
    assert clustered.read(y).tolist() == [0, 1, 0, 1]


EARLY = """
extern "C" __global__ void first(unsigned* y) {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    y[blockIdx.x * 64 + threadIdx.x] = blockIdx.x * 64 + threadIdx.x;
}
extern "C" __global__ void second(const unsigned* y, unsigned* z) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    z[blockIdx.x * 64 + threadIdx.x] = 3 * y[blockIdx.x * 64 + threadIdx.x];
}
"""


def test_a_launch_that_may_begin_early_waits_for_what_it_reads(device, clustered):
    with device.launcher(KernelCode(source=EARLY)) as gpu:
        y, z = (gpu.output(640, np.uint32, name=name) for name in "yz")
        for _ in range(3):
            gpu.launch("first", 10, 64, [y])
            gpu.launch("second", 10, 64, [y, z], programmatic=True)
        assert gpu.read(z).tolist() == list(range(0, 1920, 3))


# ---- what is said of a device and its launches -------------------------------------------------------------------------


def test_a_launch_that_is_right_leaves_no_findings_but_who_wrote_what(device, gpu):
    assert not device.is_simulated or gpu.findings() == Findings(owner_of=gpu.findings().owner_of)
    y = gpu.output(64, np.uint32, name="y")
    gpu.launch("shared", 2, 64, [y, np.uint32(64)], 256)
    seen = gpu.findings()
    assert (seen.inexact, seen.notes, seen.conflicts) == ((), (), ())
    assert (seen.owner_of is not None) == device.is_simulated
    if seen.owner_of is not None:
        assert (seen.owner_of(y, 7)["thread"], seen.owner_of(y, 7)["address"]) == (7, y.address + 28)


def test_conflicts_are_findings_where_the_device_sees_them(device, source):
    """Thread i writes word 32 i of shared memory."""
    with device.launcher(source, count_banks=True) as launcher:
        y = launcher.output(32, np.uint32, name="y")
        launcher.launch("columns", 1, 32, [y])
        stores = [line for line in launcher.findings().conflicts if line.startswith("st.shared")]
        assert len(stores) == device.is_simulated
        assert all("32 wavefronts for each one needed" in line for line in stores)


def test_a_probing_device_runs_a_text_of_ptx(device):
    text = f""".version 8.0
.target {device.target}
.address_size 64
.visible .entry seven(.param .u64 p) {{
    .reg .b64 %p;
    ld.param.u64 %p, [p];
    st.global.u32 [%p], 7;
    ret;
}}
"""
    with device.probing().loaded(text, "seven.ptx") as launcher:
        y = launcher.output(1, np.uint32, name="y")
        launcher.launch("seven", 1, 1, [y])
        assert launcher.read(y).tolist() == [7]


def test_a_report_says_what_hardware_a_real_gpu_has(device):
    facts = device.hardware()
    assert set(facts) == (
        set() if device.is_simulated else {"compute capability", "multiprocessors", "memory", "driver", "backend"}
    )
    assert all(facts.values())


def test_a_kernel_without_a_file_runs_on_no_gpu(device):
    with pytest.raises(RefsimError) as caught, device.launcher(None):
        pass
    assert (caught.value.code, caught.value.exit_code) == ("no-kernel-file", 2)


# ---- refusals and faults ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "grid", "block", "args", "options", "code"),
    [
        ("missing", 1, 1, [], {}, "unknown-entry"),
        ("small", 0, 1, ["y"], {}, "bad-launch"),
        ("small", (1, 1, 1, 1), 1, ["y"], {}, "bad-launch"),
        ("small", 1.0, 1, ["y"], {}, "bad-launch"),
        ("small", 1, 1, ["y"], {"shared_bytes": -1}, "bad-launch"),
        ("small", (1, 65_536), 1, ["y"], {}, "launch-limit"),
        ("count", 1, 2048, ["y"], {}, "launch-limit"),
        ("small", 1, 65, ["y"], {}, "launch-limit"),
        ("small", 1, 1, ["y"], {"shared_bytes": 1 << 20}, "launch-limit"),
        ("small", 1, 1, [], {}, "bad-argument"),
        ("small", 1, 1, ["y", np.uint32(1)], {}, "bad-argument"),
        ("small", 1, 1, [np.uint32(1)], {}, "bad-argument"),
        ("small", 1, 1, [7], {}, "bad-argument"),
        ("small", 1, 1, [np.zeros(1, np.uint64)], {}, "bad-argument"),
        ("small", 100_000, 1, ["y"], {"cooperative": True}, "launch-limit"),
    ],
)
def test_a_launch_that_is_refused_has_one_code_on_every_device(gpu, entry, grid, block, args, options, code):
    y = gpu.output(1, np.uint32, name="y")
    with pytest.raises(RefsimError) as caught:
        gpu.launch(entry, grid, block, [y if each == "y" else each for each in args], **options)
    assert (caught.value.code, caught.value.exit_code) == (code, 2)


def test_a_struct_that_is_aligned_otherwise_than_the_parameter(gpu):
    y = gpu.output(64, np.uint32, name="y")
    with pytest.raises(RefsimError) as caught:
        gpu.launch("wide", 1, 64, [Struct(bytes(32752), 16), y, np.uint32(0)])
    assert caught.value.code == "bad-argument"


@pytest.mark.parametrize(("cluster", "code"), [(5, "bad-launch"), (32, "launch-limit"), (0, "bad-launch")])
def test_a_cluster_that_is_refused(clustered, cluster, code):
    y = clustered.output(32, np.uint32, name="y")
    with pytest.raises(RefsimError) as caught:
        clustered.launch("ranks", 32, 1, [y], cluster=cluster)
    assert caught.value.code == code


def test_a_foreign_buffer_is_refused(device, source, gpu):
    with device.launcher(source) as other:
        foreign = other.output(1, np.uint32, name="y")
        with pytest.raises(RefsimError) as caught:
            gpu.launch("small", 1, 1, [foreign])
        assert caught.value.code == "bad-buffer"
        with pytest.raises(RefsimError) as caught:
            gpu.read(foreign)
        assert caught.value.code == "bad-buffer"


def test_writing_past_the_end_is_a_fault(gpu):
    x = gpu.upload(np.zeros(1000, np.uint32), name="x")
    with pytest.raises(RefsimError) as caught:
        gpu.launch("add", 4, 256, [x, gpu.output(999, np.uint32, name="y"), np.uint32(1000)])
    assert caught.value.exit_code == 1


def test_writing_an_upload_is_a_fault(gpu):
    x = gpu.upload(np.zeros(4, np.uint32), name="x")
    with pytest.raises(RefsimError) as caught:
        gpu.launch("add", 1, 4, [x, x, np.uint32(4)])
    assert caught.value.exit_code == 1


@pytest.mark.parametrize("entry", ["add", "stop"])
def test_a_fault_of_the_kernel_is_named_and_ends_with_1(pytestconfig, source, entry):
    command = [sys.executable, "-c", WILD, pytestconfig.getoption("refsim_device"), str(source), entry]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.stdout, ran.stderr
    code, exit_code = json.loads(ran.stdout)
    assert code
    assert exit_code == 1
