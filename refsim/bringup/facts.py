"""What a bring-up ran on: device, driver, compilers, and the hash of the model itself."""

import hashlib
import platform
import shutil
import subprocess
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version

import numpy as np

import refsim
from refsim.bundled import PACKAGE
from refsim.device import Device
from refsim.device.compile import assembler_version
from refsim.device.cuda import CudaDevice
from refsim.errors import RefsimError


def facts_of(device: Device) -> dict[str, str]:
    """Facts by name in reading order: "device" and "target" first, then what a real GPU says of itself, then tools."""
    described = device.describe()
    found: dict[str, str] = {name: described[name] for name in ("device", "target") if name in described}
    if isinstance(device, CudaDevice):
        found |= _gpu_facts(device, described)
    found |= {
        "NVRTC": _package("nvidia-cuda-nvrtc"),
        "ptxas": _assembler(),
        "refsim": f"{refsim.__version__}, source {source_hash()[:16]}",
        "python": f"{platform.python_version()}, numpy {np.__version__}",
    }
    return found


def _gpu_facts(device: CudaDevice, described: dict[str, str]) -> dict[str, str]:
    return {
        "compute capability": described["compute_capability"],
        "multiprocessors": str(device.facts.multiprocessors),
        "memory": f"{device.facts.memory_bytes / 2**30:.1f} GiB",
        "driver": " ".join(filter(None, (_kernel_driver(device.index), f"({described['driver']})"))),
        "backend": described["backend"],
    }


def _kernel_driver(index: int) -> str:
    """The version that nvidia-smi tells, where that is installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    command = [program, f"--id={index}", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed: the bundled PTX runs"


def _assembler() -> str:
    try:
        return assembler_version().removeprefix("ptxas ")
    except RefsimError:
        return "not installed"


@lru_cache(maxsize=1)
def source_hash() -> str:
    """SHA-256 over every Python file of refsim: another model is another bring-up."""
    state = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        state.update(f"{file.relative_to(PACKAGE).as_posix()} {file.stat().st_size}\n".encode())
        state.update(file.read_bytes())
    return state.hexdigest()
