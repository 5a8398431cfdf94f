"""refsim.device.cuda: guards, uploads, messages; on a machine with a GPU also the real thing through each library."""

import ml_dtypes
import numpy as np
import pytest

from refsim.device import cuda
from refsim.device.arguments import with_values
from refsim.device.driver import DriverError
from refsim.device.modules import NoModule
from refsim.errors import Kind, RefsimError
from refsim.kernels import Struct
from refsim.ptx.machine.launch_rules import LaunchRequest

BASE = 0x7F0000000000


class PlainMemory:
    """A Driver over one byte array; at `limit` bytes it is full."""

    def __init__(self, limit=1 << 16):
        self.memory = np.zeros(limit, np.uint8)
        self.used = 0
        self.freed = []

    def allocate(self, size):
        address, self.used = BASE + self.used, self.used + -(-size // 256) * 256
        if self.used > self.memory.size:
            raise DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")
        return address

    def free(self, address):
        self.freed.append(address)

    def write(self, address, content):
        self.memory[address - BASE : address - BASE + content.size] = content

    def read(self, address, size):
        return self.memory[address - BASE : address - BASE + size].copy()


class PlainModule:
    """A module whose every entry is `kernel`, which may write anywhere in the memory."""

    source = "plain.cu"
    lets_others_begin = False

    def __init__(self, memory, kernel):
        self.memory, self.kernel = memory, kernel
        self.launches, self.finished = [], []
        self.broken = False

    def opcodes(self, entries):
        return frozenset()

    def run(self, launch):
        self.launches.append(tuple(vars(launch).values()))
        self.kernel(self.memory, [int(value) - BASE for value in launch.args if value.dtype == np.uint64])

    def finish(self, where):
        self.finished.append(where)


def launcher(kernel=lambda memory, args: None, limit=1 << 16):
    driver = PlainMemory(limit)
    return cuda.CudaLauncher("sm_90a", driver, PlainModule(driver.memory, kernel))


def test_upload_reads_back_and_keeps_its_type():
    gpu = launcher()
    values = np.arange(6, dtype=np.int16).reshape(2, 3)
    buffer = gpu.upload(values, name="x")
    got = gpu.read(buffer)
    assert got.dtype == np.int16
    assert got.tolist() == [0, 1, 2, 3, 4, 5]


def test_output_holds_poison_and_misalignment_is_honoured():
    gpu = launcher()
    buffer = gpu.output(3, np.uint32, name="y", misalign_bytes=12)
    assert (buffer.address - cuda.GUARD_BYTES) % 256 == 12
    assert [hex(word) for word in gpu.read(buffer)] == ["0xe50ddcba"] * 3
    assert gpu.read(gpu.output(0, np.uint32, name="empty")).size == 0


def test_launch_passes_addresses_scalars_and_how_it_was_asked_for():
    gpu = launcher()
    x = gpu.output(1, np.uint8, name="x")
    gpu.launch("entry", 4, (32, 2), [x, np.uint32(7)], 64, cluster=2, cooperative=True)
    entry, grid, block, args, *rest = gpu.module.launches[0]
    assert (entry, grid, block, rest) == ("entry", 4, (32, 2), [64, 2, True, False])
    assert args == [x.address, 7]
    assert [value.dtype for value in args] == [np.dtype(np.uint64), np.dtype(np.uint32)]


def test_struct_arguments_stay_what_they_are():
    pair = np.zeros((), np.dtype([("n", np.int8), ("x", np.float64)], align=True))[()]
    given = [Struct(bytes(128), 64), pair, ml_dtypes.bfloat16(1.5), np.bool_(True)]
    assert with_values(LaunchRequest("k", 1, 1, given), lambda buffer: False, bytes).args == given


@pytest.mark.parametrize(
    ("offset", "words"),
    [
        (10, ["1 bytes", "nearest 0 bytes past its end", "ee"]),
        (13, ["nearest 3 bytes past its end"]),
        (-1, ["nearest 1 bytes before its first byte"]),
        (-64, ["nearest 64 bytes before its first byte"]),
        (10 + cuda.GUARD_BYTES - 1, ["nearest 4095 bytes past its end"]),
        (-cuda.GUARD_BYTES - 3, ["nearest 4099 bytes before its first byte"]),  # the far ends: 3 bytes of misalignment
    ],
)
def test_guard_names_buffer_side_and_distance(offset, words):
    def overrun(memory, args):
        memory[args[0] + offset] = 0xEE if memory[args[0] + offset] != 0xEE else 0xEF

    gpu = launcher(overrun)
    gpu.upload(np.zeros(5, np.uint8), name="other")
    y = gpu.output(10, np.uint8, name="y", misalign_bytes=3)
    with pytest.raises(RefsimError) as caught:
        gpu.launch("scribble", (1,), (1,), [y])
    text = str(caught.value)
    assert caught.value.code == "guard-violated"
    assert caught.value.exit_code == 1
    assert "scribble wrote outside buffer 'y'" in text
    assert [word for word in words if word not in text] == []


def test_guard_pattern_has_no_two_equal_neighbours():
    pattern = cuda.guard_pattern(cuda.GUARD_BYTES)
    assert pattern[:3].tolist() == [77, 228, 123]
    assert np.all(pattern[1:] != pattern[:-1])


def test_changed_upload_is_an_error_unless_writable():
    def write_into(memory, args):
        memory[args[0] + 5] ^= 1

    gpu = launcher(write_into)
    gpu.launch("k", (1,), (1,), [gpu.upload(np.zeros(8, np.uint32), name="inout", writable=True)])
    fixed = gpu.upload(np.zeros(8, np.uint32), name="x")
    with pytest.raises(RefsimError, match="k changed 1 bytes of upload 'x'") as caught:
        gpu.launch("k", (1,), (1,), [fixed])
    assert "byte 5, element 1" in caught.value.where


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda gpu: gpu.launch("k", (1,), (1,), [7]), "bad-argument"),
        (lambda gpu: gpu.launch("k", (1,), (1,), [np.zeros(2, np.uint32)]), "bad-argument"),
        (lambda gpu: gpu.launch("k", (1,), (1,), [b"12345678"]), "bad-argument"),
        (lambda gpu: gpu.upload(np.zeros(1 << 20, np.uint8), name="x"), "out-of-memory"),
        (lambda gpu: gpu.output(-1, np.uint8, name="y"), "bad-buffer"),
        (lambda gpu: gpu.output(2.0, np.uint8, name="y"), "bad-buffer"),
        (lambda gpu: gpu.output(1, object, name="y"), "bad-dtype"),
        (lambda gpu: gpu.output(1, np.uint8, name="y", misalign_bytes=-4), "out-of-range"),
        (lambda gpu: gpu.read(launcher().output(1, np.uint8, name="y")), "bad-buffer"),
        (lambda gpu: gpu.launch("k", (1,), (1,), [launcher().output(1, np.uint8, name="y")]), "bad-buffer"),
    ],
)
def test_wrong_arguments_are_named(call, code):
    with pytest.raises(RefsimError) as caught:
        call(launcher())
    assert caught.value.code == code


class Calls:
    """A driver's part in a Python function: memory, and waiting for the end."""

    index = 3

    def __init__(self, fault=None):
        self.fault, self.waited = fault, 0

    def synchronize(self):
        self.waited += 1
        if self.fault:
            raise self.fault


def calling(function, fault=None):
    memory, driver = PlainMemory(), Calls(fault)
    memory.index, memory.synchronize = driver.index, driver.synchronize
    gpu = cuda.CudaLauncher("sm_90a", memory, NoModule(memory, "mine.copy"), function)
    return gpu, driver


def test_a_function_gets_device_arrays_for_buffers_and_other_arguments_as_they_are():
    given = []
    gpu, driver = calling(lambda *args: given.extend(args))
    x = gpu.upload(np.arange(6, dtype=np.float32).reshape(2, 3), name="x")
    gpu.call(x, 7, "mode")
    array = given[0]
    assert (array.address, array.shape, array.dtype, array.device) == (x.address, (6,), np.dtype("f4"), 3)
    assert given[1:] == [7, "mode"]
    assert driver.waited == 1
    with pytest.raises(RefsimError, match="unknown-entry"):
        gpu.launch("k", 1, 1, [x])
    with pytest.raises(RefsimError, match="bad-buffer"):
        gpu.call(launcher().output(1, np.uint8, name="y"))


def test_what_a_function_writes_beside_its_outputs_is_found_as_of_a_kernel():
    def overrun(y):
        gpu.driver.memory[y.address - BASE + 10] ^= 0xFF

    gpu, _ = calling(overrun)
    with pytest.raises(RefsimError, match=r"mine\.copy wrote outside buffer 'y'"):
        gpu.call(gpu.output(10, np.uint8, name="y"))


def test_a_function_that_raises_or_faults_fails_the_kernel():
    def broken(*_):
        raise ValueError("no such shape")

    gpu, driver = calling(broken)
    with pytest.raises(RefsimError, match="ValueError: no such shape") as caught:
        gpu.call()
    assert (caught.value.code, caught.value.kind, driver.waited) == ("user-code-raised", Kind.FAULT, 1)
    gpu, _ = calling(lambda: None, DriverError("cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal access"))
    with pytest.raises(RefsimError, match="launch-failed"):
        gpu.call()
    assert gpu.module.broken


def test_a_compiled_kernel_has_no_function_to_call():
    with pytest.raises(RefsimError, match="bad-kernel"):
        launcher().call()


def test_close_frees_every_buffer():
    gpu = launcher()
    bases = [gpu.output(4, np.uint8, name=name).address - cuda.GUARD_BYTES for name in "ab"]
    gpu.close()
    assert gpu.driver.freed == bases
    assert gpu.allocations == []


def test_a_lost_context_reads_nothing_and_frees_nothing(monkeypatch):
    gpu = launcher()
    buffer = gpu.output(4, np.uint8, name="y")
    gpu.module.broken = True

    def read(address, size):
        raise DriverError("cuMemcpyDtoH", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered")

    monkeypatch.setattr(gpu.driver, "read", read)
    with pytest.raises(RefsimError, match="illegal memory access") as caught:
        gpu.read(buffer)
    assert (caught.value.code, caught.value.where) == ("driver-refused", "plain.cu")
    assert "takes the context and all buffers" in caught.value.rule
    gpu.close()
    assert gpu.driver.freed == []


@pytest.mark.parametrize(
    ("capability", "target", "expected"),
    [
        ((9, 0), None, "sm_90a"),
        ((9, 0), "sm_90a", "sm_90a"),
        ((8, 6), None, "sm_86"),
        ((8, 9), None, "sm_89"),
        ((8, 9), "sm_80", "sm_80"),
        ((10, 0), None, "sm_100a"),
        ((10, 3), None, "sm_103a"),
        ((12, 1), None, "sm_121a"),
        ((9, 0), "sm_90", "sm_90"),
        ((10, 3), "sm_100f", "sm_100f"),
    ],
)
def test_target_of_a_gpu(capability, target, expected):
    assert cuda._target_for(capability, target) == expected


@pytest.mark.parametrize(
    ("capability", "target"), [((9, 0), "sm_80"), ((8, 0), "sm_89"), ((6, 0), None), ((10, 3), "sm_100a")]
)
def test_target_that_a_gpu_does_not_run(capability, target):
    with pytest.raises(RefsimError, match="does not run on compute capability") as caught:
        cuda._target_for(capability, target)
    assert caught.value.code == "wrong-target"


class Deferring(PlainModule):
    """A module whose launches let the next one begin; it writes down who waits for them."""

    lets_others_begin = True


def deferring(kernel=lambda memory, args: None):
    driver = PlainMemory(1 << 16)
    return cuda.CudaLauncher("sm_90a", driver, Deferring(driver.memory, kernel))


def test_nobody_waits_between_a_launch_and_one_that_may_begin_early():
    gpu = deferring()
    y = gpu.output(8, np.uint8, name="y")
    gpu.launch("a", 1, 1, [y])
    gpu.launch("b", 1, 1, [y], programmatic=True)
    assert gpu.module.finished == []
    assert [launch[-1] for launch in gpu.module.launches] == [False, True]
    gpu.launch("c", 1, 1, [y])
    assert gpu.module.finished == ["a, b of plain.cu"]
    gpu.read(y)
    gpu.output(8, np.uint8, name="z")
    assert gpu.module.finished == ["a, b of plain.cu", "c of plain.cu"]


def test_what_both_launches_left_is_checked_when_somebody_waits():
    def overrun(memory, args):
        memory[args[0] + 8] ^= 0xFF

    gpu = deferring(overrun)
    y = gpu.output(8, np.uint8, name="y")
    gpu.launch("a", 1, 1, [y])
    with pytest.raises(RefsimError, match="a wrote outside buffer 'y'") as caught:
        gpu.settle()
    assert caught.value.code == "guard-violated"


@pytest.mark.parametrize(("code", "version"), [(0, "580.159.04"), (9, "")])
def test_an_nvidia_smi_that_fails_tells_no_version(code, version, tmp_path, monkeypatch):
    """Without a driver it says so on stdout."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho 580.159.04\nexit {code}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert cuda.kernel_driver(0) == version
