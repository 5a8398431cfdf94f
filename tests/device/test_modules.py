"""refsim.device.modules: what is refused before the driver is asked, and when a cubin is loaded anew."""

import numpy as np
import pytest

from refsim.device import compile as compiling
from refsim.device.assembling import Cubin
from refsim.device.cuda import CudaDevice
from refsim.device.driver import DriverError, GpuFacts, Launching
from refsim.errors import Kind, RefsimError
from refsim.kernel_code import KernelCode
from refsim.kernels import Struct

# The bodies are of an instruction that does not exist: only the driver has to understand them.
PLAIN = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u32 n, .param .align 8 .b8 pair[16]) .reqntid 64, 1, 1 { frobnicate.u32 ? {%r1} = 1; ret; }
.visible .entry big() .maxntid 128, 1, 1 { }
"""
WITH_VARIABLE = (
    PLAIN
    + """
.visible .global .align 4 .u32 counter = 5;
.entry count() { red.global.add.u32 [counter], 1; ret; }
"""
)
UNUSED = PLAIN + ".global .align 1 .b8 _ZN4cuda3std5valueE = 1;"


class Calls:
    """The driver's calls, each noted; `refuse` names those that fail."""

    CUfunction_attribute = int

    def __init__(self):
        self.asked, self.refuse = [], set()

    def __getattr__(self, name):
        def call(*arguments):
            self.asked.append((name, *arguments))
            return (int(name in self.refuse), len(self.asked))

        return call

    def cuGetErrorName(self, status):  # noqa: N802
        return 0, b"CUDA_ERROR_INVALID_VALUE"

    def cuGetErrorString(self, status):  # noqa: N802
        return 0, b"invalid argument"

    def config(self, config):
        return config

    def names(self):
        return [name for name, *_ in self.asked]


class FakeDriver:
    library = "fake"

    def __init__(self):
        self.calls = Calls()
        self.launching = Launching(self.calls)
        self.fault = None
        self.forgotten = 0

    def enter(self): ...

    def leave(self): ...

    def forget(self):
        self.forgotten += 1

    def synchronize(self):
        if self.fault:
            raise DriverError(
                "cuCtxSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"
            )


def cubin_of(text, target):
    """What stands for a cubin: the text, so that a test knows which was loaded."""
    return Cubin(text.encode(), "", "", target, (), "ptxas 13.0.88", "PATH")


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(compiling, "assemble", cubin_of)
    return CudaDevice("cuda:0", "sm_90a", 0, FakeDriver(), GpuFacts("Fake GPU", (9, 0), 4, 1 << 30, 13000))


def test_a_misspelt_entry_is_refused_before_anything_is_launched(device):
    with device.launcher(KernelCode(ptx=PLAIN, entries=("k", "big"))):
        pass
    with pytest.raises(RefsimError, match="unknown-entry"), device.launcher(KernelCode(ptx=PLAIN, entries=("kk",))):
        pass


@pytest.mark.parametrize(
    ("entry", "grid", "block", "args", "options", "code"),
    [
        ("kk", 1, 64, [], {}, "unknown-entry"),
        ("k", 0, 64, [], {}, "bad-launch"),
        ("k", (1, 1, 1, 1), 64, [], {}, "bad-launch"),
        ("k", 1, 64, [], {"shared_bytes": -1}, "bad-launch"),
        ("k", 1, 32, [], {}, "bad-launch"),
        ("big", 1, 256, [], {}, "launch-limit"),
        ("big", 3, 128, [], {"cluster": 2}, "bad-launch"),
        ("k", 1, 64, [np.uint32(1)], {}, "bad-argument"),
        ("k", 1, 64, [np.uint64(1), Struct(bytes(16), 8)], {}, "bad-argument"),
        ("k", 1, 64, [np.uint32(1), Struct(bytes(24), 8)], {}, "bad-argument"),
        ("k", 1, 64, [np.uint32(1), Struct(bytes(16), 16)], {}, "bad-argument"),
        ("k", 1, 64, [1, Struct(bytes(16))], {}, "bad-argument"),
    ],
)
def test_a_launch_that_breaks_a_rule_never_reaches_the_driver(device, entry, grid, block, args, options, code):
    with device.loaded(PLAIN, "k.ptx") as gpu:
        before = len(device.driver.calls.asked)
        with pytest.raises(RefsimError) as caught:
            gpu.launch(entry, grid, block, args, **options)
        assert caught.value.code == code
        assert len(device.driver.calls.asked) == before


def test_a_right_launch_reaches_the_driver_with_its_extents(device):
    with device.loaded(PLAIN, "k.ptx") as gpu:
        gpu.launch("k", (2, 3), 64, [np.uint32(1), Struct(bytes(16), 8)])
    name, config, *_ = device.driver.calls.asked[-1]
    assert (name, config.grid, config.block, config.attributes) == ("cuLaunchKernelEx", (2, 3, 1), (64, 1, 1), ())


def test_a_module_with_variables_is_loaded_for_each_launcher(device):
    for _ in range(2):
        with device.loaded(WITH_VARIABLE, "k.ptx"):
            pass
    assert device.driver.calls.names() == ["cuModuleLoadData", "cuModuleUnload"] * 2


@pytest.mark.parametrize(
    ("text", "changed"), [(WITH_VARIABLE, ("a variable of the module",)), (PLAIN, ()), (UNUSED, ())]
)
def test_a_gpu_says_which_module_may_hold_what_a_launch_left(device, text, changed):
    with device.loaded(text, "k.ptx") as gpu:
        assert gpu.findings().changed_variables == changed


@pytest.mark.parametrize("text", [PLAIN, UNUSED])
def test_a_module_that_keeps_nothing_is_loaded_once(device, text):
    for _ in range(2):
        with device.loaded(text, "k.ptx"):
            pass
    assert device.driver.calls.names() == ["cuModuleLoadData"]


def test_a_fault_takes_every_module_with_it(device):
    with device.loaded(PLAIN, "k.ptx") as gpu:
        device.driver.fault = True
        with pytest.raises(RefsimError) as caught:
            gpu.launch("big", 1, 32, [])
    assert (caught.value.code, caught.value.exit_code) == ("launch-failed", 1)
    assert (device.driver.forgotten, device.modules) == (1, {})
    device.driver.fault = None
    with device.loaded(PLAIN, "k.ptx") as gpu:
        gpu.launch("big", 1, 32, [])
    assert device.driver.calls.names().count("cuModuleLoadData") == 2


def test_an_image_that_the_driver_does_not_load(device):
    device.driver.calls.refuse.add("cuModuleLoadData")
    with pytest.raises(RefsimError, match="invalid argument") as caught, device.loaded(PLAIN, "k.ptx"):
        pass
    assert (caught.value.code, caught.value.where) == ("driver-refused", "k.ptx")


def test_without_a_ptxas_the_driver_gets_the_text(device, monkeypatch):
    def refuse(text, target):
        raise RefsimError("assembler-missing", "ptxas is nowhere", kind=Kind.MISSING)

    monkeypatch.setattr(compiling, "assemble", refuse)
    with device.launcher(KernelCode(ptx=PLAIN)):
        pass
    assert device.driver.calls.asked[0] == ("cuModuleLoadData", PLAIN.encode() + b"\0")
    assert device.describe()["assembler"] == "the driver, CUDA 13.0; ptxas is nowhere"
    assert "cubin_sha256" not in device.describe()


def test_a_text_that_ptxas_refuses_is_not_tried_on_the_driver(device, monkeypatch):
    def refuse(text, target):
        raise RefsimError("compile-error", "ptxas refused the PTX", kind=Kind.UNREADABLE)

    monkeypatch.setattr(compiling, "assemble", refuse)
    with pytest.raises(RefsimError, match="compile-error"), device.loaded(PLAIN, "k.ptx"):
        pass
    assert device.driver.calls.names() == []


@pytest.mark.parametrize(("raw", "align"), [(bytes(12), 8), (bytes(12), 3), (b"", 1), (bytes(8), 0)])
def test_a_struct_is_whole_multiples_of_a_power_of_two(raw, align):
    with pytest.raises(RefsimError) as caught:
        Struct(raw, align)
    assert caught.value.code == "bad-argument"
