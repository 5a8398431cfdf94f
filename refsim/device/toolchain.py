"""Where the compilers come from: NVRTC and CUDA's headers from wheels, nvcc from PATH, ptxas as `assemblers.py` finds it."""

import shutil
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path

INSTALL = "pip install 'refsim[sim]'"

# Wheel, and a header by which its include directory is known.
_HEADER_WHEELS = (
    ("nvidia-cuda-runtime", "include/cuda_fp8.h"),
    ("nvidia-cuda-crt", "include/crt/host_defines.h"),
    ("nvidia-cuda-cccl", "include/cccl/cuda/std/cstdint"),
)


@dataclass(frozen=True)
class Toolchain:
    """NVRTC with CUDA's headers: the versions of both, which compiled texts depend on, and the include folders."""

    versions: tuple[str, ...]
    include: tuple[str, ...]


@lru_cache(maxsize=1)
def find_toolchain() -> Toolchain | None:
    """None if a part is not installed."""
    try:
        versions = [f"{name} {metadata.version(name)}" for name in ("cuda-bindings", "nvidia-cuda-nvrtc")]
        directories: dict[str, None] = {}
        for name, header in _HEADER_WHEELS:
            directories[str(_wheel_root(name, header) / ("include/cccl" if "cccl" in header else "include"))] = None
            versions.append(f"{name} {metadata.version(name)}")
        from cuda.bindings import nvrtc  # noqa: F401
    except ImportError:  # PackageNotFoundError is one
        return None
    return Toolchain(tuple(versions), tuple(directories))


def find_nvcc() -> str | None:
    """The nvcc on PATH."""
    return shutil.which("nvcc")


def _wheel_root(name: str, file: str) -> Path:
    """The directory inside an installed wheel that holds `file`; ModuleNotFoundError if there is none."""
    distribution = metadata.distribution(name)
    for path in distribution.files or ():
        if path.as_posix().endswith(f"/{file}"):
            located = Path(str(distribution.locate_file(path)))
            if located.is_file():
                return located.parents[file.count("/")]
    raise ModuleNotFoundError(f"{name} holds no {file}")
