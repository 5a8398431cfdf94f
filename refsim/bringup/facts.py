"""The environment of a bring-up: device, driver, compilers, and the hash of the model."""

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
    """Return facts by name in reading order: "device" and "target", then a real GPU's own facts, then tools."""
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
    """Return the version of NVRTC, or its origin; without NVRTC, the text of the fallback."""
    found = find_toolchain()
    if found is None:
        return "none that works: the bundled PTX runs (refsim doctor says why)"
    return found.origin.removeprefix("nvidia-cuda-nvrtc ").partition("; headers: nvidia-cuda-runtime ")[0]


def _assembler() -> str:
    """Return the release of ptxas and its origin, or the text of the fallback."""
    try:
        found = required_assembler("")
    except RefsimError:
        return "none: the driver assembles"
    release = str(found).removeprefix("ptxas ")
    return release if found.origin.startswith("nvidia-cuda-nvcc") else f"{release} ({found.origin})"


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Return SHA-256 over every Python file of refsim, which identifies the model."""
    state = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        state.update(f"{file.relative_to(PACKAGE).as_posix()} {file.stat().st_size}\n".encode())
        state.update(file.read_bytes())
    return state.hexdigest()
