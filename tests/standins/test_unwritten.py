"""Memory that a program never wrote, in programs of every kind: found by its kernels, and silent where it was written."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from refsim.standins.memory import DeviceMemory, left_poison, poison_host

KERNEL = """SOURCE = '''extern "C" __global__ void rd(const float* s, float* o) { o[threadIdx.x] = 2.f * s[threadIdx.x]; }
'''
"""
CUPY = """import cupy as cp
k = cp.RawKernel(SOURCE, "rd")
x, o = cp.{make}(128, cp.float32), cp.empty(128, cp.float32)
x[:{to}] = 1
k((1,), (128,), (x, o))
print(float(o[0]))
"""
PYCUDA = """import numpy as np
import pycuda.autoinit
import pycuda.driver as drv
from pycuda.compiler import SourceModule
k = SourceModule(SOURCE.replace('extern "C" ', ""), no_extern_c=False).get_function("rd")
x, o = np.empty(128, np.float32), np.empty(128, np.float32)
x[:{to}] = 1
k(drv.In(x), drv.Out(o), block=(128, 1, 1), grid=(1, 1))
print(o[0])
"""
ALLOCATED = """import numpy as np
import pycuda.autoinit
import pycuda.driver as drv
from pycuda.compiler import SourceModule
k = SourceModule(SOURCE.replace('extern "C" ', ""), no_extern_c=False).get_function("rd")
x, o = drv.mem_alloc(512), drv.mem_alloc(512)
host = np.ones({to}, np.float32)
drv.memcpy_htod(x, host)
k(x, o, block=(128, 1, 1), grid=(1, 1))
"""
PROGRAMS = {
    "cupy.empty": (KERNEL + CUPY.format(make="empty", to=100), KERNEL + CUPY.format(make="empty", to=128)),
    "cupy.ndarray": (KERNEL + CUPY.format(make="ndarray", to=100), KERNEL + CUPY.format(make="ndarray", to=128)),
    "numpy.empty for PyCUDA": (KERNEL + PYCUDA.format(to=100), KERNEL + PYCUDA.format(to=128)),
    "mem_alloc": (KERNEL + ALLOCATED.format(to=100), KERNEL + ALLOCATED.format(to=128)),
}


def outcome(program: str, folder: Path) -> tuple[int, list[str], str]:
    """Run a program; return its exit code, the codes of the findings, and the status of the kernel."""
    path = folder / "program.py"
    path.write_text(program)
    command = [sys.executable, "-m", "refsim", "run", "--as", "json", "--", "python", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    report = json.loads(found.stdout[found.stdout.index("{") :])
    return found.returncode, [row["code"] for row in report.get("findings", ())], report["kernels"][0]["status"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kernel_that_reads_what_nobody_wrote(name: str, tmp_path: Path) -> None:
    wrong, right = PROGRAMS[name]
    code, codes, status = outcome(wrong, tmp_path)
    assert (code, "uninitialised" in codes, status) == (1, True, "finding")
    code, codes, status = outcome(right, tmp_path)
    assert (code, codes, status) == (0, [], "exact")


def test_poison_is_found_word_by_word() -> None:
    room = np.zeros(64, np.uint8)
    assert left_poison(room) is None
    for begin in range(4):
        part = room[begin : begin + 40]
        part[:] = 0
        poison_host(part)
        part[12:17] = 7
        first = -part.ctypes.data % 4
        found = left_poison(part)
        assert found is not None
        words = [at for at in range(first, 37, 4) if not (set(range(at, at + 4)) & set(range(12, 17)))]
        assert np.flatnonzero(found).tolist() == [at + byte for at in words for byte in range(4)]


def test_a_copy_to_the_device_keeps_what_is_unwritten() -> None:
    told = []
    memory = DeviceMemory(tell=lambda error, is_wrong=True: told.append((error.code, is_wrong)))
    content = np.zeros(64, np.uint8)
    poison_host(content)
    content[:32] = 5
    address = memory.allocate(64, "test")
    memory.write(address, content)
    assert memory.memory.written(address, 64).tolist() == [True] * 32 + [False] * 32
    memory.write(address, np.zeros(64, np.uint8))
    assert memory.memory.written(address, 64).all()
    with memory.mapped([(content.ctypes.data, content)], "test") as (mapped,):
        assert np.count_nonzero(memory.memory.written(mapped, 64)) == 32
    memory.read_by_host(content, "a tensor")
    assert told == [("uninitialised", False)]
    memory.read_by_host(content[:32], "a tensor")
    assert len(told) == 1
