"""refsim.device.driver: both libraries against a driver that is compiled with cuda.h; what is missing, and what is said.

The fake driver writes down what it was handed. A library looks for its driver once, so processes of their own ask: one for
each library, and one for each fault.
"""

import importlib
import importlib.metadata
import json
import os
import shutil
import struct
import subprocess
import sys
import types
import warnings
from pathlib import Path

import pytest

from refsim import device
from refsim.device import cuda, driver
from refsim.device.compile import assembler_version
from refsim.errors import Kind, RefsimError

HERE = Path(__file__).parent
PTX = """.version 9.0
.target sm_90a
.address_size 64
.global .u32 counter;
.visible .entry echo_8_1_16_2_4(.param .u64 out, .param .u8 b, .param .align 16 .b8 c[16], .param .b16 d, .param .f32 e)
{ ret; }
.visible .entry echo_8(.param .u64 out) { ret; }
.visible .entry echo_8_32752_4(.param .u64 out, .param .align 8 .b8 wide[32752], .param .u32 last) { ret; }
.visible .entry echo_8_128_4(.param .u64 out, .param .align 64 .b8 map[128], .param .u32 last) { ret; }
.visible .entry refuse_701() { ret; }
.visible .entry refuse_12345() { ret; }
.visible .entry fault_700() { ret; }
"""
CASE = """
import json, struct, sys
sys.path.insert(0, sys.argv[2])
if sys.argv[1] == "pycuda":
    import pycuda_stand_in
    pycuda_stand_in.install()
import numpy as np
from refsim import device, layouts
from refsim.errors import RefsimError
from refsim.kernels import Struct

def refused(run, *arguments, **options):
    try:
        run(*arguments, **options)
    except RefsimError as error:
        return error.code, error.exit_code, error.what
    return "no error"

def echo(entry, grid, block, args, shared_bytes=0, **options):
    gpu.launch(entry, grid, block, [out, *args], shared_bytes, **options)
    return gpu.read(out).tobytes().hex()

gpu_device = device.open("cuda:" + sys.argv[1])
said = {"facts": gpu_device.describe()}
with gpu_device.loaded(PTX, "echo.ptx") as gpu:
    out = gpu.output(40000, np.uint8, name="out", misalign_bytes=3)
    said["address"] = out.address
    BODY
print(json.dumps(said))
"""


ASKED = {
    "launches": """
args = [np.uint8(7), Struct(bytes(range(16)), 16), np.float16(1), np.float32(1.5)]
said["all"] = echo("echo_8_1_16_2_4", 16, (32, 2), args, 60_000, cluster=(16,), cooperative=True)
said["plain"] = echo("echo_8", (3, 4, 5), 96, [])
said["early"] = echo("echo_8", 1, 32, [], programmatic=True)
""",
    "parameters": """
wide = np.arange(32752, dtype=np.uint32).astype(np.uint8).tobytes()
said["wide"] = echo("echo_8_32752_4", 1, 1, [Struct(wide, 8), np.uint32(0xdeadbeef)])
""",
    "tensor map": """
x = gpu.upload(np.zeros(64 * 40, np.uint16), name="x")
made = layouts.tensor_map("bfloat16", (32, 20), (16, 8), strides=(128,), address=x.address + 32,
                          element_strides=(1, 2), swizzle="64B", l2_promotion="256B", oob_fill="nan_request_zero_fma")
said["x"] = x.address
said["map"] = echo("echo_8_128_4", 1, 1, [made, np.uint32(0x01020304)])
said["bytes"] = bytes(gpu.encode(made)).hex()
beyond = layouts.tensor_map("bfloat16", (64, 41), (16, 8), address=x.address)
said["beyond"] = refused(gpu.launch, "echo_8_128_4", 1, 1, [out, beyond, np.uint32(1)])
said["nowhere"] = refused(gpu.encode, layouts.tensor_map("uint8", (64, 4), (16, 4)))
said["refused"] = refused(gpu.encode, layouts.tensor_map("uint8", (64, 4), (16, 4), address=x.address, l2_promotion="64B"))
""",
    "im2col map": """
x = gpu.upload(np.zeros(4096, np.uint16), name="x")
made = layouts.im2col_map("float16", (32, 6, 5, 2), 16, 40, lower=(-1, -2), upper=(1, -3), address=x.address,
                          element_strides=(1, 2, 3, 1), swizzle="32B", l2_promotion="128B", oob_fill="nan_request_zero_fma")
said["x"] = x.address
said["bytes"] = bytes(gpu.encode(made)).hex()
""",
    "refusals": """
said["launch"] = refused(gpu.launch, "refuse_701", 1, 1, [])
said["unnamed"] = refused(gpu.launch, "refuse_12345", 1, 1, [])
said["memory"] = refused(gpu.output, 1 << 21, np.uint8, name="huge")
said["shared"] = refused(gpu.launch, "echo_8", 1, 1, [out], 300_000)
said["resident"] = refused(gpu.launch, "echo_8", 9, 1024, [out], cooperative=True)
said["fits"] = refused(gpu.launch, "echo_8", 8, 1024, [out], cooperative=True)
""",
}
"""What one process asks of the driver, one after the other; each has answers of its own."""


@pytest.fixture(scope="session")
def libcuda(tmp_path_factory):
    """The folder of the fake driver."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        pytest.skip("the fake driver needs a C compiler on Linux")
    try:
        headers = importlib.metadata.distribution("nvidia-cuda-runtime").files or ()
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the fake driver needs cuda.h: pip install 'refsim[sim]'")
    include = next(file.locate().parent for file in headers if file.name == "cuda.h")
    try:
        assembler_version()
    except RefsimError as missing:
        pytest.skip(f"the fake driver takes cubins: {missing.what}, {missing.help}")
    folder = tmp_path_factory.mktemp("libcuda")
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-w",
            f"-I{include}",
            "-o",
            str(folder / "libcuda.so.1"),
            str(HERE / "fake_libcuda.c"),
            "-ldl",
        ],
        check=True,
    )
    return folder


@pytest.fixture(scope="module", params=["pycuda", "bindings", "libcuda"])
def backend(request):
    if request.param == "bindings":
        pytest.importorskip("cuda.bindings.driver", reason="needs cuda.bindings: pip install 'refsim[gpu]'")
    return request.param


def skip_what_is_alike(backend, profile):
    """cuda.bindings hand on what the driver says as libcuda does, whose process is shorter; PyCUDA has errors of its own."""
    if profile == "quick" and backend == "bindings":
        pytest.skip("the same through libcuda alone, and launches through all three, in every run: --refsim-profile=ci")


def case(libcuda, backend, body, **environment):
    """What a process with the fake driver says of `body`."""
    script = CASE.replace("PTX", repr(PTX)).replace("BODY", "\n    ".join(body.strip().splitlines()))
    given = {**os.environ, "LD_LIBRARY_PATH": str(libcuda), **environment}
    given["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [sys.executable, "-c", script, backend, str(HERE)], env=given, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.fixture(scope="module")
def answers(libcuda, backend):
    """What is said to each of ASKED."""
    steps = ["fresh, every = said, {}"]
    for name, body in ASKED.items():
        steps += ["said = dict(fresh)", body.strip(), f"every[{name!r}] = said"]
    return case(libcuda, backend, "\n".join([*steps, "said = every"]))


def launched(echoed):
    """Grid, block, shared bytes, {attribute: its first three numbers}, and the parameters of an echo."""
    raw = bytes.fromhex(echoed)
    *extents, shared, count = struct.unpack_from("8I", raw)
    attributes = [struct.unpack_from("4I", raw, 32 + 68 * number) for number in range(count)]
    return (
        extents[:3],
        extents[3:],
        shared,
        {number: list(value) for number, *value in attributes},
        raw[32 + 68 * count :],
    )


def test_a_launch_hands_the_driver_what_was_asked_for(answers, backend):
    said = answers["launches"]
    assert said["facts"]["device"] == "Fake GPU"
    assert said["facts"]["driver"] == "CUDA 13.0"
    assert (
        said["facts"]["backend"].split()[0]
        == {
            "pycuda": "PyCUDA",
            "bindings": "cuda.bindings",
            "libcuda": "libcuda.so.1",
        }[backend]
    )
    assert (said["facts"]["compute_capability"], said["facts"]["target"]) == ("9.0", "sm_90a")
    grid, block, shared, attributes, parameters = launched(said["all"])
    assert (grid, block, shared) == ([16, 1, 1], [32, 2, 1], 60_000)
    assert attributes == {4: [16, 1, 1], 2: [1, 0, 0]}
    packed = struct.pack("<QB16s2sf", said["address"], 7, bytes(range(16)), b"\x00\x3c", 1.5)
    assert parameters.startswith(packed)
    grid, block, shared, attributes, parameters = launched(said["plain"])
    assert (grid, block, shared, attributes) == ([3, 4, 5], [96, 1, 1], 0, {})
    assert parameters.startswith(struct.pack("<Q", said["address"]))
    assert launched(said["early"])[3] == {6: [1, 0, 0]}


def test_the_most_parameter_bytes_arrive_whole(answers):
    said = answers["parameters"]
    parameters = launched(said["wide"])[-1]
    assert parameters[8 : 8 + 32752] == bytes(n & 0xFF for n in range(32752))
    assert parameters[8 + 32752 :].startswith(b"\xef\xbe\xad\xde")


def test_a_tensor_map_is_encoded_by_the_driver(answers):
    said = answers["tensor map"]
    handed = [9, 2, said["x"] + 32, 32, 20, 128, 16, 8, 1, 2, 0, 2, 3, 1, 0, 0]
    parameters = launched(said["map"])[-1]
    assert parameters[8 : 8 + 128] == struct.pack("<16Q", *handed) == bytes.fromhex(said["bytes"])
    assert parameters[8 + 128 :].startswith(b"\x04\x03\x02\x01")
    assert said["beyond"] == ["bad-tensor-map", 2, "the tensor ends 128 B past the end of buffer 'x'"]
    assert said["nowhere"] == ["bad-tensor-map", 2, "address 0x0 lies in no buffer of this launcher"]
    assert said["refused"] == ["driver-refused", 2, "the driver refuses the tensor map: status 801"]


def test_an_im2col_map_is_encoded_by_the_driver(answers):
    said = answers["im2col map"]
    handed = [32, 6, 5, 2, 64, 384, 1920, -1, -2, 1, -3, 16, 40, 1, 2, 3, 1, 0, 1, 2, 1]
    assert bytes.fromhex(said["bytes"])[:100] == struct.pack("<2iQ21i", 6, 4, said["x"], *handed)


def test_refusals_have_a_code_and_the_drivers_words(answers):
    said = answers["refusals"]
    assert said["launch"][:2] == ["driver-refused", 2]
    assert "cuLaunchKernelEx: as the driver says (CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES)" in said["launch"][2]
    assert said["unnamed"][0] == "driver-refused"
    assert "12345" in said["unnamed"][2]
    assert said["memory"][0] == "out-of-memory"
    assert said["shared"][0] == "launch-limit"
    assert said["resident"] == ["launch-limit", 2, "a cooperative grid of 9 blocks: Fake GPU holds 8 at once"]
    assert said["fits"] == "no error"


def test_a_fault_ends_the_launch_and_what_follows(libcuda, backend, refsim_profile):
    skip_what_is_alike(backend, refsim_profile)
    said = case(
        libcuda,
        backend,
        """
said["launch"] = refused(gpu.launch, "fault_700", 1, 1, [])
said["read"] = refused(gpu.read, out)
""",
    )
    assert said["launch"][:2] == ["launch-failed", 1]
    assert "cuCtxSynchronize: an illegal memory access was encountered" in said["launch"][2]
    assert said["read"][0] == "driver-refused"


def test_a_machine_without_a_gpu(libcuda, backend, refsim_profile):
    skip_what_is_alike(backend, refsim_profile)
    script = CASE.split("gpu_device =", maxsplit=1)[0] + f"print(json.dumps(refused(device.open, 'cuda:{backend}')))"
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(libcuda),
        "FAKE_NO_GPU": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    ran = subprocess.run(
        [sys.executable, "-c", script, backend, str(HERE)], env=environment, capture_output=True, text=True, check=True
    )
    code, exit_code, what = json.loads(ran.stdout)
    assert (code, exit_code) == ("no-cuda-device", Kind.MISSING.value)
    assert "finds no usable GPU: cuInit" in what


# ---- what is missing -------------------------------------------------------------------------------------------------


def without(monkeypatch, *modules):
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def test_without_either_package_the_drivers_library_is_called(libcuda, monkeypatch):
    body = CASE.replace("PTX", repr(PTX)).replace('"cuda:" + sys.argv[1]', '"cuda"')
    body = body.replace(
        "import numpy", 'sys.modules["pycuda"] = sys.modules["cuda.bindings.driver"] = None\nimport numpy'
    )
    monkeypatch.setattr(sys.modules[__name__], "CASE", body)
    assert (
        case(libcuda, "neither", 'said["plain"] = echo("echo_8", 1, 1, [])')["facts"]["backend"]
        == "libcuda.so.1 by ctypes"
    )


def test_neither_package_nor_driver_is_a_machine_without_a_driver(monkeypatch):
    without(monkeypatch, "pycuda", "cuda.bindings.driver")
    monkeypatch.setattr(driver, "LIBRARY", "no-such-library.so")
    with pytest.raises(RefsimError, match=r"no CUDA driver: no-such-library\.so") as caught:
        cuda.open_device()
    assert (caught.value.code, caught.value.kind) == ("no-cuda-driver", Kind.MISSING)


@pytest.mark.parametrize(("backend", "code"), [("pycuda", "missing-extra"), ("bindings", "missing-extra")])
def test_a_library_that_was_named_and_is_missing(monkeypatch, backend, code):
    without(monkeypatch, "pycuda", "cuda.bindings.driver")
    with pytest.raises(RefsimError) as caught:
        cuda.open_device(backend=backend)
    assert (caught.value.code, caught.value.kind) == (code, Kind.MISSING)


def test_cuda_bindings_serve_where_pycuda_is_missing(monkeypatch):
    without(monkeypatch, "pycuda")
    opened = object()
    monkeypatch.setattr(cuda, "open_bindings", lambda index: (opened, index))
    assert cuda._first(3) == (opened, 3)


def test_pycuda_comes_first(monkeypatch):
    monkeypatch.setattr(cuda, "open_pycuda", lambda index: ("PyCUDA", index))
    assert cuda._first(1) == ("PyCUDA", 1)


def test_missing_driver_is_one_clear_sentence_without_warning(monkeypatch):
    real = importlib.import_module

    def import_module(name):
        if name == "pycuda.driver":
            warnings.warn("Failed to import the CUDA driver interface: mismatch of headers", stacklevel=1)
            raise ImportError("libcuda.so.1: cannot open shared object file")
        return types.SimpleNamespace(VERSION_TEXT="0") if name == "pycuda" else real(name)

    monkeypatch.setattr(driver.importlib, "import_module", import_module)
    with pytest.raises(RefsimError, match=r"no CUDA driver: libcuda\.so\.1") as caught:
        driver.open_pycuda(0)
    assert (caught.value.code, caught.value.kind) == ("no-cuda-driver", Kind.MISSING)


def test_missing_driver_through_cuda_bindings(monkeypatch):
    def init(flags):
        raise RuntimeError("libcuda.so.1 was not found. These were tried:\n" + "  /usr/lib/somewhere\n" * 40)

    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", types.SimpleNamespace(cuInit=init))
    with pytest.raises(RefsimError, match=r"no CUDA driver: libcuda\.so\.1") as caught:
        driver.open_bindings(0)
    assert caught.value.what == "this machine has no CUDA driver: libcuda.so.1 was not found"
    assert (caught.value.code, caught.value.kind) == ("no-cuda-driver", Kind.MISSING)


def test_an_unknown_library_is_named():
    with pytest.raises(RefsimError) as caught:
        cuda.open_device(backend="cupy")
    assert caught.value.code == "unknown-name"


def test_a_real_gpu_makes_no_checks_that_could_be_left_out(monkeypatch):
    monkeypatch.setattr(cuda, "open_device", lambda index, target, backend: ("a GPU", index))
    assert device.open("cuda:1") == ("a GPU", 1)
    with pytest.raises(RefsimError, match="no checks that could be left out"):
        device.open("cuda:1", without=("race",))
    assert device.open("sim:lazy", without=("race",)).without == ("race",)
