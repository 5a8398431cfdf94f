"""NVRTC and the headers of CUDA, as wheels bring them: what is installed here, and the PTX of a source."""

import os
import re
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

from refsim.device.logs import refused
from refsim.device.sources import Unit
from refsim.errors import Kind, RefsimError

INSTALL = "pip install 'refsim[sim]'"

# Wheel, and a header by which its include directory is known.
_HEADER_WHEELS = (
    ("nvidia-cuda-runtime", "include/cuda_fp8.h"),
    ("nvidia-cuda-crt", "include/crt/host_defines.h"),
    ("nvidia-cuda-cccl", "include/cccl/cuda/std/cstdint"),
)


@lru_cache(maxsize=1)
def toolchain() -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Versions of NVRTC and of the header wheels, and the include directories; None if a part is not installed."""
    try:
        versions = [f"{name} {metadata.version(name)}" for name in ("cuda-bindings", "nvidia-cuda-nvrtc")]
        directories: dict[str, None] = {}
        for name, header in _HEADER_WHEELS:
            directories[str(_wheel_root(name, header) / ("include/cccl" if "cccl" in header else "include"))] = None
            versions.append(f"{name} {metadata.version(name)}")
        from cuda.bindings import nvrtc  # noqa: F401
    except ImportError:  # PackageNotFoundError is one
        return None
    # With --no-source-include a header in quotes is not looked for beside the header that includes it, and those of
    # cooperative groups include one another so.
    groups = [f"{directory}/cooperative_groups{part}" for part in ("", "/details") for directory in directories]
    return tuple(versions), (*directories, *filter(os.path.isdir, groups))


def _wheel_root(name: str, file: str) -> Path:
    """The directory inside an installed wheel that holds `file`; ModuleNotFoundError if there is none."""
    distribution = metadata.distribution(name)
    for path in distribution.files or ():
        if path.as_posix().endswith(f"/{file}"):
            located = Path(str(distribution.locate_file(path)))
            if located.is_file():
                return located.parents[file.count("/")]
    raise ModuleNotFoundError(f"{name} holds no {file}")


def compiled(unit: Unit, flags: tuple[str, ...], include_directories: tuple[str, ...]) -> str:
    """The PTX of a source; RefsimError `compile-error` with the log where NVRTC refuses it."""
    from cuda.bindings import nvrtc

    arguments = [flag.encode() for flag in (*flags, *(f"--include-path={path}" for path in include_directories))]
    names = [name.encode() for name, _ in unit.headers]
    contents = [content.encode() for _, content in unit.headers]
    program = _checked(
        nvrtc, nvrtc.nvrtcCreateProgram(unit.text.encode(), unit.name.encode(), len(names), contents, names)
    )
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(arguments), arguments)
        if int(status) != 0:
            log = _buffer(nvrtc, program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
            raise refused("compile-error", f"NVRTC refused {unit.name}", log, flags)
        text = _buffer(nvrtc, program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return _without_paths(text, include_directories)


def _checked(nvrtc: Any, answer: tuple[Any, ...]) -> Any:
    """The result behind an NVRTC status."""
    status, *results = answer
    if int(status) != 0:
        raise RefsimError(
            "nvrtc", f"NVRTC answered {nvrtc.nvrtcGetErrorString(status)[1].decode()}", kind=Kind.MISSING, help=INSTALL
        )
    return results[0] if results else None


def _buffer(nvrtc: Any, program: Any, measure: Any, fetch: Any) -> str:
    size: int = _checked(nvrtc, measure(program))
    content = b" " * size  # filled in place by the binding
    _checked(nvrtc, fetch(program, content))
    return content.rstrip(b"\0").decode()


def _without_paths(text: str, include_directories: tuple[str, ...]) -> str:
    """NVRTC puts the working directory before the source's name and names headers by their full paths."""

    def bare(match: re.Match[str]) -> str:
        path = Path(match[2])
        inside = [path.relative_to(root).as_posix() for root in include_directories if path.is_relative_to(root)]
        return f'{match[1]}"{min(inside, key=len, default=path.name)}"'

    return re.sub(r'^(\s*\.file\s+\d+\s+)"([^"]*)"', bare, text, flags=re.MULTILINE)
