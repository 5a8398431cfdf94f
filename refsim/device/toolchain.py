"""The search for NVRTC and CUDA's headers: the first places whose parts work together; nvcc, if there is one.

A library must load and know the target; no header may be missing. Library and headers must belong to one release, or a
file that includes all headers must compile. The reason for each rejected part is kept for `refsim doctor`.
"""

import ctypes
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from refsim.cuda_places import HEADER_WHEELS, NVRTC_WHEELS, Place, places, wheel_version
from refsim.errors import Kind, RefsimError

_Texts = POINTER(c_char_p)
_CALLS: dict[str, tuple[Any, ...]] = {
    "nvrtcVersion": (POINTER(c_int), POINTER(c_int)),
    "nvrtcGetNumSupportedArchs": (POINTER(c_int),),
    "nvrtcGetSupportedArchs": (POINTER(c_int),),
    "nvrtcCreateProgram": (POINTER(c_void_p), c_char_p, c_char_p, c_int, _Texts, _Texts),
    "nvrtcDestroyProgram": (POINTER(c_void_p),),
    "nvrtcAddNameExpression": (c_void_p, c_char_p),
    "nvrtcGetLoweredName": (c_void_p, c_char_p, POINTER(c_char_p)),
    "nvrtcCompileProgram": (c_void_p, c_int, _Texts),
    "nvrtcGetProgramLogSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetProgramLog": (c_void_p, c_char_p),
    "nvrtcGetPTXSize": (c_void_p, POINTER(c_size_t)),
    "nvrtcGetPTX": (c_void_p, c_char_p),
}


class NvrtcError(Exception):
    """The compiler refused a program; its text is the log."""


class Nvrtc:
    """The NVRTC library at a path; the constructor raises OSError or AttributeError for any other file.

    NVRTC loads its built-in headers by a bare name, so the constructor first loads them from the library's folder.
    """

    def __init__(self, path: str) -> None:
        for beside in sorted(Path(path).resolve().parent.glob("*nvrtc-builtins*")):
            if ".alt." not in beside.name and beside.suffix != ".a":
                ctypes.CDLL(str(beside))
        self._library = ctypes.CDLL(path)
        for name, parameters in _CALLS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = c_int, list(parameters)
        self._library.nvrtcGetErrorString.restype = c_char_p

    def version(self) -> tuple[int, int]:
        """Return (major, minor): (13, 0) for NVRTC 13.0.88."""
        major, minor = c_int(), c_int()
        self._call("nvrtcVersion", byref(major), byref(minor))
        return major.value, minor.value

    def architectures(self) -> tuple[int, ...]:
        """Return the numbers of the supported architectures: 75 to 121 for NVRTC 13.0."""
        count = c_int()
        self._call("nvrtcGetNumSupportedArchs", byref(count))
        numbers = (c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return tuple(numbers)

    def compile(
        self, source: str, name: str, headers: dict[str, str], options: Sequence[str], instances: Sequence[str] = ()
    ) -> tuple[str, dict[str, str]]:
        """Return the PTX of a program, and the mangled names of `instances` ("k<4>"); raise NvrtcError with the log."""
        program = c_void_p()
        beside = len(headers), _texts(headers.values()), _texts(headers)
        self._call("nvrtcCreateProgram", byref(program), source.encode(), name.encode(), *beside)
        try:
            for instance in instances:
                self._call("nvrtcAddNameExpression", program, instance.encode())
            if self._library.nvrtcCompileProgram(program, len(options), _texts(options)):
                raise NvrtcError(self._buffer(program, "nvrtcGetProgramLog"))
            return self._buffer(program, "nvrtcGetPTX"), {each: self._lowered(program, each) for each in instances}
        finally:
            self._library.nvrtcDestroyProgram(byref(program))

    def _lowered(self, program: c_void_p, instance: str) -> str:
        name = c_char_p()
        self._call("nvrtcGetLoweredName", program, instance.encode(), byref(name))
        return (name.value or b"").decode()

    def _buffer(self, program: c_void_p, call: str) -> str:
        size = c_size_t()
        self._call(f"{call}Size", program, byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(call, program, content)
        return content.value.decode()

    def _call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self._library, name)(*arguments):
            said = self._library.nvrtcGetErrorString(status).decode()
            raise RefsimError("compile-error", f"NVRTC answered {said}", name, kind=Kind.MISSING)


def _texts(texts: Any) -> Any:
    encoded = [text.encode() for text in texts]
    return (c_char_p * max(len(encoded), 1))(*encoded)


@lru_cache(maxsize=8)
def opened(path: str) -> Nvrtc:
    """Return the library at a path; each path is loaded once."""
    return Nvrtc(path)


INSTALL = "pip install 'refsim[sim]'"
Version = tuple[int, int]
OLDEST: Version = (12, 0)
"""The oldest CUDA release whose headers and flags the kernels here support."""
HEADERS = (
    *("cuda_runtime_api.h", "cuda_fp8.h", "cuda_bf16.h", "cuda_fp16.h", "cooperative_groups.h", "mma.h"),
    *("crt/host_defines.h", "crt/mma.h", "cuda/std/cstdint", "cuda/pipeline", "nv/target"),
)
"""Headers that kernels include, directly or indirectly: folders without one of them are incomplete."""
_TRIED = "".join(f"#include <{name}>\n" for name in HEADERS if name not in ("cuda_runtime_api.h", "crt/mma.h"))


@dataclass(frozen=True)
class Part:
    """NVRTC or the headers of one place; `lacks` says why they do not work, and is empty if they do.

    `origin` is "nvidia-cuda-nvrtc 13.0.88" or "toolkit of CUDA_HOME, 12.9"; `paths` holds the library, or the folders.
    """

    kind: str
    origin: str
    release: Version
    paths: tuple[str, ...]
    lacks: str = ""


@dataclass(frozen=True)
class Toolchain:
    """NVRTC with CUDA's headers: the identity of their files (`versions`), the include folders, the library.

    `origin` is the place they come from, or both places.
    """

    versions: tuple[str, ...]
    include: tuple[str, ...]
    library: str
    origin: str


@dataclass(frozen=True)
class Search:
    """The result of a search: the toolchain or None, and every part that was examined, in order."""

    toolchain: Toolchain | None
    parts: tuple[Part, ...]


def find_toolchain(number: int = 0) -> Toolchain | None:
    """Return the first NVRTC and headers that work together and compile for an architecture (90; 0: any); or None."""
    return search(number).toolchain


@lru_cache(maxsize=8)
def search(number: int = 0) -> Search:
    """Search the places in order for a library and headers of one release; then try pairs of two releases."""
    found: list[Part] = []
    for place in places():
        new = [part for part in (_nvrtc(place, number), _headers(place)) if part is not None]
        seen = {os.path.realpath(path) for part in found for path in part.paths}
        found += [part for part in new if not seen.issuperset(map(os.path.realpath, part.paths))]
        matched = next((pair for pair in _pairs(found) if pair[0].release == pair[1].release), None)
        if matched is not None:
            return Search(_joined(*matched), tuple(found))
    failed: dict[str, str] = {}
    taken = None
    for library, headers in _pairs(found):
        failed[headers.origin] = _fails(library, headers)
        if not failed[headers.origin]:
            taken = _joined(library, headers)
            break
    parts = (
        replace(part, lacks=part.lacks or failed.get(part.origin, "")) if part.kind == "headers" else part
        for part in found
    )
    return Search(taken, tuple(parts))


def _pairs(found: Sequence[Part]) -> Iterator[tuple[Part, Part]]:
    """Return pairs of libraries and headers, each of which works alone, in the order of their places."""
    working = [[part for part in found if part.kind == kind and not part.lacks] for kind in ("NVRTC", "headers")]
    return ((library, headers) for library, headers in product(*working))


def find_nvcc() -> str | None:
    """Return the nvcc on PATH, else the nvcc of a toolkit."""
    in_places = (str(program) for place in places() for program in place.programs("nvcc"))
    return shutil.which("nvcc") or next(in_places, None)


# ---- one place -------------------------------------------------------------------------------------------------------


def _nvrtc(place: Place, number: int) -> Part | None:
    """Return the library of a place, which must compile for architecture `number` (0: any); None without one."""
    lacks, path, release = "", "", (0, 0)
    for library in place.libraries():
        path = str(library)
        try:
            release, compiled = opened(path).version(), opened(path).architectures()
        except (OSError, AttributeError, RefsimError) as problem:
            lacks = f"does not load: {_first_words(problem)}"
            continue
        if release < OLDEST:
            lacks = f"is {_dotted(release)}; {_dotted(OLDEST)} is needed"
        else:
            lacks = f"is {_dotted(release)}, which compiles no sm_{number}" if number and number not in compiled else ""
        break
    return Part("NVRTC", _origin(place, NVRTC_WHEELS, release), release, (path,), lacks) if path else None


def _headers(place: Place) -> Part | None:
    """Return the headers of a place; None if it lacks even the runtime's header."""
    folders = place.include()
    runtime = next((file for folder in folders if (file := folder / "cuda_runtime_api.h").is_file()), None)
    if runtime is None:
        return None
    number = re.search(r"#define\s+CUDART_VERSION\s+(\d{4,6})\b", runtime.read_text("utf-8", "replace"))
    release = (int(number[1]) // 1000, int(number[1]) % 1000 // 10) if number else (0, 0)
    missing = [name for name in HEADERS if not any((folder / name).is_file() for folder in folders)]
    lacks = f"no {', '.join(missing)}" if missing else "" if release >= OLDEST else f"of CUDA {_dotted(release)}"
    used = tuple(str(folder) for folder in folders if any((folder / name).is_file() for name in HEADERS))
    return Part("headers", _origin(place, HEADER_WHEELS, release), release, used, lacks)


def _origin(place: Place, wheels: tuple[str, ...], release: Version) -> str:
    if place.name == "wheels":
        return next((f"{wheel} {version}" for wheel in wheels if (version := wheel_version(wheel))), place.name)
    return f"{place.name}, {_dotted(release)}"


def _dotted(release: Version) -> str:
    return f"{release[0]}.{release[1]}"


def _first_words(problem: Exception) -> str:
    """Return the part of a loader's message after the path."""
    return str(problem).rpartition(": ")[2][:80] or type(problem).__name__


# ---- two parts together ----------------------------------------------------------------------------------------------


def _fails(library: Part, headers: Part) -> str:
    """Return why NVRTC does not compile headers of another release; empty if it does."""
    options = ["--std=c++17", "--gpu-architecture=compute_80", *(f"--include-path={path}" for path in headers.paths)]
    try:
        opened(library.paths[0]).compile(_TRIED, "headers.cu", {}, options)
    except NvrtcError as refused:
        error = next((line for line in str(refused).splitlines() if "error" in line), "")
        words = error.rpartition("error: ")[2][:80]
        return f"of {_dotted(headers.release)}, which NVRTC {_dotted(library.release)} does not compile: {words}"
    except RefsimError as problem:
        return problem.what
    return ""


def _joined(library: Part, headers: Part) -> Toolchain:
    """Return the toolchain of a library and headers. Versions identify wheels; path, size and time other files."""
    identity = [f"{library.origin} {library.release}", headers.origin]
    if not library.origin.startswith(NVRTC_WHEELS):
        identity += [f"{path} {Path(path).stat().st_size} {Path(path).stat().st_mtime_ns}" for path in library.paths]
    if headers.origin.startswith(HEADER_WHEELS):
        identity += [f"{wheel} {wheel_version(wheel)}" for wheel in HEADER_WHEELS]
    else:
        identity += [f"{path} {Path(path).stat().st_mtime_ns}" for path in headers.paths]
    origin = library.origin if library.origin == headers.origin else f"{library.origin}; headers: {headers.origin}"
    return Toolchain(tuple(identity), headers.paths, library.paths[0], origin)
