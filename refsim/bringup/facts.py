"""What a bring-up ran on: device, driver, compilers, and the hash of the model itself."""

import hashlib
import platform
from functools import lru_cache

import numpy as np

import refsim
from refsim.bundled import PACKAGE
from refsim.device import Device
from refsim.device.assembling import required_assembler
from refsim.device.toolchain import find_toolchain
from refsim.errors import RefsimError


def facts_of(device: Device) -> dict[str, str]:
    """Facts by name in reading order: "device" and "target" first, then what a real GPU says of itself, then tools."""
    described = device.describe()
    found: dict[str, str] = {name: described[name] for name in ("device", "target") if name in described}
    found |= device.hardware()
    found |= {
        "NVRTC": _compiler(),
        "ptxas": _assembler(),
        "refsim": f"{refsim.__version__}, source {source_hash()[:16]}",
        "python": f"{platform.python_version()}, numpy {np.__version__}",
    }
    return found


def _compiler() -> str:
    """ "13.0.88", or what else brought it; without one, what runs instead."""
    found = find_toolchain()
    if found is None:
        return "none that works: the bundled PTX runs (refsim doctor says why)"
    return found.origin.removeprefix("nvidia-cuda-nvrtc ").partition("; headers: nvidia-cuda-runtime ")[0]


def _assembler() -> str:
    try:
        found = required_assembler("")
    except RefsimError:
        return "none: the driver assembles"
    release = str(found).removeprefix("ptxas ")
    return release if found.origin.startswith("nvidia-cuda-nvcc") else f"{release} ({found.origin})"


@lru_cache(maxsize=1)
def source_hash() -> str:
    """SHA-256 over every Python file of refsim: another model is another bring-up."""
    state = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        state.update(f"{file.relative_to(PACKAGE).as_posix()} {file.stat().st_size}\n".encode())
        state.update(file.read_bytes())
    return state.hexdigest()
