"""NVRTC as a library of this machine: the calls that a compilation needs."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

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
        self._call(
            "nvrtcCreateProgram",
            byref(program),
            source.encode(),
            name.encode(),
            len(headers),
            _texts(headers.values()),
            _texts(headers),
        )
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
