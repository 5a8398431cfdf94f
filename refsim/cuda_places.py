"""Places where parts of CUDA may lie: wheels, toolkits, the wheels of torch. Every search follows the order of the
table.

Callers check whether a part works: `device/toolchain.py` for NVRTC and headers, `ptx/machine/assemblers.py` for ptxas.
"""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path, PurePath

NVRTC_WHEELS = ("nvidia-cuda-nvrtc",)
HEADER_WHEELS = ("nvidia-cuda-runtime", "nvidia-cuda-crt", "nvidia-cuda-cccl")
PTXAS_WHEELS = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
"""The wheels that `refsim[sim]` and `refsim[gpu]` install; the last belongs to CUDA 12 and comes with other packages."""
BESIDE_NVCC = "toolkit next to nvcc"
FIXED = ("/usr/local/cuda", "/opt/cuda")
_PTXAS = ("ptxas", "ptxas.exe", "ptxas-blackwell", "ptxas-blackwell.exe")
_LIBRARIES = (
    "lib64/libnvrtc.so*",
    "lib/libnvrtc*.so*",
    "targets/*/lib/libnvrtc.so*",
    "bin/nvrtc64*.dll",
    "bin/x64/nvrtc64*.dll",
)
_INCLUDE = ("include", "include/cccl", "targets/*/include", "targets/*/include/cccl")


@dataclass(frozen=True)
class Place:
    """A kind of place with its name in verdicts; `roots` finds its folders, each laid out as a toolkit.

    The wheels are many folders that make up one toolkit.
    """

    name: str
    roots: Callable[[], Iterator[Path]]

    def libraries(self) -> tuple[Path, ...]:
        """Return the paths of NVRTC's libraries: lib64/libnvrtc.so.13."""
        found = [path for path in self._globbed(_LIBRARIES) if not _is_beside(path.name)]
        return _once(sorted(found, key=lambda path: len(path.name)))

    def include(self) -> tuple[Path, ...]:
        """Return the folders of headers; CUDA 13 keeps the headers of CCCL in a separate folder."""
        return _once(path for path in self._globbed(_INCLUDE) if path.is_dir())

    def programs(self, name: str) -> tuple[Path, ...]:
        """Return the programs called `name`: bin/nvcc."""
        return tuple(path for path in self._globbed((f"bin/{name}", f"bin/{name}.exe")) if path.is_file())

    def _globbed(self, patterns: tuple[str, ...]) -> list[Path]:
        return [path for root in self.roots() for pattern in patterns for path in sorted(root.glob(pattern))]


def places() -> tuple[Place, ...]:
    """Return every place in the order of the search; the wheels come first."""
    return (
        Place("wheels", lambda: iter(_wheel_roots())),
        Place("toolkit of CUDA_HOME", lambda: _named("CUDA_HOME")),
        Place("toolkit of CUDA_PATH", lambda: _named("CUDA_PATH")),
        Place(BESIDE_NVCC, _beside_nvcc),
        *(Place(f"toolkit in {folder}", lambda folder=folder: iter((Path(folder),))) for folder in FIXED),  # type: ignore[misc]
        Place("torch's wheels, cu13", lambda: _in_packages("nvidia/cu13")),
        Place("torch's wheels, cu12", lambda: _in_packages("nvidia/cuda_*")),
        Place("torch", lambda: _in_packages("torch")),
    )


def wheel_version(name: str) -> str | None:
    """Return the version of an installed wheel, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@lru_cache(maxsize=16)
def programs_of_wheel(wheel: str) -> tuple[tuple[str, str], ...]:
    """Return the ptxas programs in a wheel, each with "nvidia-cuda-nvcc 13.0.88"."""
    version = wheel_version(wheel)
    if version is None:
        return ()
    return tuple(
        (str(file), f"{wheel} {version}") for _, file in _files(wheel) if file.name in _PTXAS and file.is_file()
    )


@lru_cache(maxsize=1)
def _wheel_roots() -> tuple[Path, ...]:
    """Return the folders into which the wheels of `refsim[sim]` were installed: site-packages/nvidia/cu13."""
    roots: dict[Path, None] = {}
    for wheel in (*NVRTC_WHEELS, *HEADER_WHEELS):
        for path, file in _files(wheel):
            depth = next((place for place, part in enumerate(path.parts) if part in ("lib", "bin", "include")), 0)
            if depth and file.is_file():
                roots[file.parents[len(path.parts) - depth - 1]] = None
                break
    return tuple(roots)


def _files(wheel: str) -> Iterator[tuple[PurePath, Path]]:
    """Yield each file of an installed wheel as the wheel names it, and where it lies."""
    if wheel_version(wheel) is not None:
        distribution = metadata.distribution(wheel)
        for path in distribution.files or ():
            yield path, Path(str(distribution.locate_file(path)))


def _named(variable: str) -> Iterator[Path]:
    if value := os.environ.get(variable, ""):
        yield Path(value)


def _beside_nvcc() -> Iterator[Path]:
    if program := shutil.which("nvcc"):
        yield Path(program).resolve().parent.parent


def _in_packages(pattern: str) -> Iterator[Path]:
    """Yield folders of installed packages that match `pattern`, without importing the packages."""
    for entry in dict.fromkeys(filter(None, sys.path)):
        if Path(entry).is_dir():
            yield from sorted(Path(entry).glob(pattern))


def _once(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return each path once, under the first of its names."""
    found: dict[Path, Path] = {}
    for path in paths:
        found.setdefault(path.resolve(), path)
    return tuple(found.values())


def _is_beside(name: str) -> bool:
    """Return whether a file next to the library is not the library: built-in headers, another build."""
    return any(word in name for word in ("builtins", ".alt.", "_alt", "static"))
