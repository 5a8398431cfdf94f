"""Host functions of the user, compiled by nvcc, that make a kernel's parameters: CUTLASS kernels need theirs.

A library runs in this process, without a GPU. refsim answers what it asks of CUDA: the attributes of the target's chip,
and cuTensorMapEncodeTiled. `gpu/host/cuda_calls.c` holds these functions; the machine's C compiler builds it once.
"""

import ctypes
import faulthandler
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from refsim.bundled import bundled
from refsim.device.attributes import BY_NUMBER
from refsim.device.cache import digest, entry
from refsim.device.toolchain import INSTALL, find_toolchain
from refsim.errors import Kind, RefsimError
from refsim.integers import is_whole
from refsim.kernel_code import KernelCode
from refsim.kernels import Buffer, Launcher, Struct
from refsim.layouts import tensor_map
from refsim.layouts.tma import DATA_TYPES, INTERLEAVES, L2_PROMOTIONS, OOB_FILLS, SWIZZLE_MODES
from refsim.ptx.machine.launch_rules import limits_of

BUILD = "build it by nvcc -shared -Xcompiler -fPIC -cudart none"
_GUARD = bytes([0xA5]) * (1 << 15)  # behind the parameters, as many bytes as a launch passes at most
_INVALID = 1  # CUDA_ERROR_INVALID_VALUE
_ATTRIBUTE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
_INT, _POINTER = ctypes.c_int, ctypes.c_void_p
_ENCODE = ctypes.CFUNCTYPE(_INT, _POINTER, _INT, ctypes.c_uint, *[_POINTER] * 5, *[_INT] * 4)


@dataclass(frozen=True)
class HostLibrary:
    """A shared library with `extern "C"` functions that fill the parameters of a kernel: Kernel(host=HostLibrary(path)).

    `run` calls `host.fill(launcher, "make_params", 320, x, np.int32(m))`, which is `int make_params(void* params, void*
    x, int m)` or the same with a result of void; the Struct that it returns is an argument of a launch. The functions run in
    this process: they must be trusted. Raises RefsimError: `bad-host-library` for a library that cannot be loaded or
    has no such function, `missing-extra` without a C compiler or CUDA's headers. Source: CUDA Runtime API.
    """

    path: Path
    _loaded: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    def facts(self) -> dict[str, str]:
        """Return the file's name and the first digits of its SHA-256, for a verdict."""
        try:
            return {"host": f"{self.path.name} {hashlib.sha256(self.path.read_bytes()).hexdigest()[:16]}"}
        except OSError:
            return {"host": f"{self.path.name}, unreadable"}

    def fill(self, launcher: Launcher, function: str, size: int, *args: Any, status: bool = True) -> Struct:
        """Return `size` bytes that a function of the library fills; they are zero before.

        Buffers are passed as pointers that the host must not follow, NumPy scalars as their own type. A result of `int`
        that is not 0 is an error; status=False is for functions of void.
        """
        where = f"{function} of {self.path.name}"
        if not is_whole(size, 1):
            raise RefsimError("bad-argument", f"{size!r:.40} bytes of parameters", where, "a whole number from 1")
        called = self._function(function)
        called.restype = ctypes.c_int if status else None
        raw = ctypes.create_string_buffer(bytes(size) + _GUARD, size + len(_GUARD))
        values = [_passed(place, each, where) for place, each in enumerate(args)]
        answers = _Answers(launcher)
        answers.install()
        if not faulthandler.is_enabled():
            faulthandler.enable(2)  # a crash of the function shows the call of `fill`
        found = called(ctypes.c_void_p(ctypes.addressof(raw)), *values)
        if raw.raw[size:] != _GUARD:
            end = max(
                at for at, (one, other) in enumerate(zip(raw.raw[size:], _GUARD, strict=True), size + 1) if one != other
            )
            what = f"it wrote {end} bytes or more, and size is {size}"
            raise RefsimError("bad-host-library", what, where, help="size is sizeof of the C++ type")
        if answers.refused is not None:
            raise answers.refused
        for refused in filter(None, (library.refsim_refused() for library in _STAND_INS.values())):
            help = "make parameters only: memory is a Buffer of the launcher, and `run` launches"
            raise RefsimError("bad-host-library", f"it called {refused.decode()}, which needs a GPU", where, help=help)
        if status and found != 0:
            help = f"a library with the static CUDA runtime asks a driver: {BUILD}"
            rule = "0 is success; status=False is for void"
            raise RefsimError("bad-host-library", f"it returned {found}", where, rule, help)
        return Struct(raw.raw[:size])

    def _function(self, name: str) -> Any:
        """Return a function of the library, loaded once."""
        if "library" not in self._loaded:
            for stand_in in ("libcudart.so.13", "libcudart.so.12", "libcuda.so.1"):
                _stand_in(stand_in)
            try:
                self._loaded["library"] = ctypes.CDLL(os.fspath(self.path.absolute()), os.RTLD_NOW)
            except OSError as error:
                help = f"refsim answers {', '.join(_answered())}" if "symbol: cu" in str(error) else BUILD
                where = str(self.path)
                raise RefsimError("bad-host-library", str(error), where, help=help, kind=Kind.UNREADABLE) from error
        try:
            return self._loaded["library"][name]
        except AttributeError as error:
            what = f"the library has no function {name!r:.60}"
            raise RefsimError("bad-host-library", what, str(self.path), help='extern "C" keeps the name') from error


def host_facts(code: KernelCode) -> dict[str, str]:
    """Return the facts of a kernel's host library, or none."""
    return code.host.facts() if isinstance(code.host, HostLibrary) else {}


class _Answers:
    """The answers of one call: attributes of the launcher's target, and tensor maps of its buffers."""

    def __init__(self, launcher: Launcher) -> None:
        self.launcher = launcher
        self.refused: RefsimError | None = None
        self.chip = limits_of(launcher.target).chip.encode()  # C keeps its address
        self.attribute, self.encode = _ATTRIBUTE(self._attribute), _ENCODE(self._encode)

    def install(self) -> None:
        """Let the stand-ins call these functions; the last call of any library does so."""
        for library in _STAND_INS.values():
            library.refsim_answers(self.attribute, self.encode, self.chip)
            library.kept = self

    def _attribute(self, number: int) -> int:
        """Return cudaDeviceAttr `number` of the target's chip, or -1 for one that is not known."""
        row = BY_NUMBER.get(number)
        return row.value(self.launcher.target) if row else -1

    def _encode(
        self, to: int, type: int, rank: int, address: int, dims: int, strides: int, box: int, steps: int, *modes: int
    ) -> int:
        """Encode a tensor map as the launcher's device does; keep the error of one that the driver refuses."""
        try:
            interleave, swizzle, promotion, fill = modes
            made = tensor_map(
                DATA_TYPES[type],
                _words(dims, ctypes.c_uint64, rank),
                _words(box, ctypes.c_uint32, rank),
                strides=_words(strides, ctypes.c_uint64, rank - 1),
                address=address or 0,
                element_strides=_words(steps, ctypes.c_uint32, rank),
                interleave=INTERLEAVES[interleave],
                swizzle=SWIZZLE_MODES[swizzle],
                l2_promotion=L2_PROMOTIONS[promotion],
                oob_fill=OOB_FILLS[fill],
            )
            raw = bytes(self.launcher.encode(made))
        except RefsimError as error:
            self.refused = self.refused or error
            return _INVALID
        except (IndexError, ValueError, TypeError) as error:
            self.refused = self.refused or RefsimError("bad-tensor-map", str(error), "cuTensorMapEncodeTiled")
            return _INVALID
        ctypes.memmove(to, raw, len(raw))
        return 0


_STAND_INS: dict[str, Any] = {}


def _answered() -> list[str]:
    """Return the calls of CUDA that the stand-ins answer without a GPU."""
    code = bundled("gpu/host/cuda_calls.c").read_text("utf-8")
    return sorted(re.findall(r"^(?:cudaError_t|const char\*|int) (cu\w+)\(", code, re.MULTILINE))


@lru_cache(maxsize=4)
def _stand_in(name: str) -> None:
    """Build and load the library that answers for CUDA under one name; later libraries find its functions."""
    code = bundled("gpu/host/cuda_calls.c").read_bytes()
    compiler, tools = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"), find_toolchain()
    if compiler is None:
        raise RefsimError("missing-extra", "no C compiler is here", help="install gcc or clang", kind=Kind.MISSING)
    if tools is None:
        raise RefsimError("missing-extra", "CUDA's headers are not here", help=INSTALL, kind=Kind.MISSING)
    folders = [f"-I{folder}" for folder in tools.include]
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", *folders, f"-Wl,-soname,{name}"]

    def make() -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder, "calls.c"), Path(folder, "calls.so")
            source.write_bytes(code)
            ran = subprocess.run([*command, "-o", made, source], capture_output=True, text=True, check=False)
            if ran.returncode:
                raise RefsimError("compile-error", ran.stderr[:2000], "gpu/host/cuda_calls.c")
            return made.read_bytes()

    content = entry("host", digest(code, *command), make)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(content)
        library = ctypes.CDLL(os.fspath(file), os.RTLD_NOW | os.RTLD_GLOBAL)
    library.refsim_answers.argtypes = [_ATTRIBUTE, _ENCODE, ctypes.c_char_p]
    library.refsim_answers.restype, library.refsim_refused.restype = None, ctypes.c_char_p
    _STAND_INS[name] = library


def _words(address: int | None, kind: Any, count: int) -> list[int]:
    """Return `count` numbers of a C array; raise ValueError for a null pointer and for more numbers than a map has."""
    if (count and not address) or count > 5:
        raise ValueError(f"{count} numbers at address {address or 0:#x}")
    return [*(kind * count).from_address(address)] if count else []


def _passed(place: int, value: Any, where: str) -> Any:
    """Return an argument as C takes it."""
    if isinstance(value, Buffer):
        return ctypes.c_void_p(value.address)
    if isinstance(value, np.generic) and value.dtype.char in "?bBhHiIlLqQfd":
        kind: Any = np.ctypeslib.as_ctypes_type(value.dtype)  # type: ignore[arg-type]
        return kind(value.item())
    what = f"argument {place} is {value!r:.60}, whose C type is unknown"
    raise RefsimError("bad-argument", what, where, "a Buffer, or a NumPy scalar such as np.int32(5)")
