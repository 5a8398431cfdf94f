"""The driver's library by ctypes: enough without any other library, and the calls that PyCUDA lacks.

Each call returns (status, *results) as in cuda.bindings. The types follow cuda.h; the tests check them with a driver
library that they compile with that header.
"""

import ctypes
import sys
from collections.abc import Sequence
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import partial
from typing import Any

from refsim.device.driver import LaunchConfig, no_driver
from refsim.device.driver_direct import NAME_BYTES, DirectDriver, open_direct
from refsim.errors import RefsimError
from refsim.kernels import Struct
from refsim.layouts.descriptors.tensormaps import driver_arguments
from refsim.layouts.tma import MAP_ALIGN, MAP_BYTES, TensorMap
from refsim.sources import CUDA_DRIVER

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


class CUlaunchAttribute(Structure):
    _fields_ = (("id", c_int), ("pad", c_char * 4), ("value", c_char * 64))


class CUlaunchConfig(Structure):
    _fields_ = (
        ("grid", c_uint * 3),
        ("block", c_uint * 3),
        ("shared_bytes", c_uint),
        ("stream", c_void_p),
        ("attributes", POINTER(CUlaunchAttribute)),
        ("count", c_uint),
    )


@dataclass(frozen=True)
class _Out:
    """A parameter through which the call returns a value."""

    kind: Any


_CALLS: dict[str, tuple[Any, ...]] = {
    "cuModuleLoadData": (_Out(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (_Out(c_void_p), c_void_p, c_char_p),
    "cuFuncGetAttribute": (_Out(c_int), c_int, c_void_p),
    "cuFuncSetAttribute": (c_void_p, c_int, c_int),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_Out(c_int), c_void_p, c_int, c_size_t),
    "cuLaunchKernelEx": (POINTER(CUlaunchConfig), c_void_p, c_void_p, c_void_p),
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_Out(c_int),),
    "cuDeviceGetCount": (_Out(c_int),),
    "cuDeviceGet": (_Out(c_int), c_int),
    "cuDeviceGetName": (_Out(c_char * NAME_BYTES), c_int, c_int),
    "cuDeviceGetAttribute": (_Out(c_int), c_int, c_int),
    "cuDeviceTotalMem": (_Out(c_size_t), c_int),
    "cuDevicePrimaryCtxRetain": (_Out(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease": (c_int,),
    "cuCtxPushCurrent": (c_void_p,),
    "cuCtxPopCurrent": (_Out(c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemAlloc": (_Out(c_uint64), c_size_t),
    "cuMemFree": (c_uint64,),
    "cuMemcpyHtoD": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH": (c_void_p, c_uint64, c_size_t),
    "cuGetErrorName": (c_int, _Out(c_char_p)),
    "cuGetErrorString": (c_int, _Out(c_char_p)),
}


_SECOND = (
    "cuDeviceTotalMem",
    "cuDevicePrimaryCtxRelease",
    "cuCtxPushCurrent",
    "cuCtxPopCurrent",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
)
"""Calls whose symbol in the library ends in _v2."""


class Libcuda:
    """The driver's library in this process; the constructor raises OSError if there is none."""

    CUfunction_attribute = CUdevice_attribute = int

    def __init__(self) -> None:
        library = ctypes.CDLL(LIBRARY)
        for name, parameters in _CALLS.items():
            function = getattr(library, f"{name}_v2" if name in _SECOND else name)
            function.restype = c_int
            function.argtypes = [POINTER(each.kind) if isinstance(each, _Out) else each for each in parameters]
            setattr(self, name, partial(_called, function, parameters))

    def config(self, config: LaunchConfig) -> CUlaunchConfig:
        """Return a launch configuration as a CUlaunchConfig that keeps its attributes alive."""
        attributes = (CUlaunchAttribute * len(config.attributes))()
        for attribute, (number, value) in zip(attributes, config.attributes, strict=True):
            attribute.id = number
            ctypes.memmove(ctypes.addressof(attribute) + CUlaunchAttribute.value.offset, value, len(value))
        first = ctypes.cast(attributes, POINTER(CUlaunchAttribute))
        return CUlaunchConfig(config.grid, config.block, config.shared_bytes, None, first, len(attributes))


def _called(function: Any, parameters: tuple[Any, ...], *arguments: Any) -> tuple[Any, ...]:
    """Call a function with `arguments` and return (status, *values of the _Out parameters)."""
    given = iter(arguments)
    passed = [each.kind() if isinstance(each, _Out) else next(given) for each in parameters]
    results = [value for each, value in zip(parameters, passed, strict=True) if isinstance(each, _Out)]
    pointers = [
        byref(value) if isinstance(each, _Out) else value for each, value in zip(parameters, passed, strict=True)
    ]
    return function(*pointers), *(result.value for result in results)


_MAP_NUMBERS = {
    "globalDim": c_uint64,
    "globalStrides": c_uint64,
    "boxDim": c_uint,
    "elementStrides": c_uint,
    "pixelBoxLowerCorner": c_int,
    "pixelBoxUpperCorner": c_int,
}
_MAP_SCALARS = {"globalAddress": c_void_p, "tensorRank": c_uint, "channelsPerPixel": c_uint, "pixelsPerColumn": c_uint}


def encoded_map(made: TensorMap) -> Struct:
    """Return a tensor map as the driver encodes it; no context is needed, so it works with every library.

    Raises RefsimError `driver-refused` with the driver's status, and `no-cuda-driver` (exit 4).
    """
    name = "cuTensorMapEncodeTiled" if made.pixels is None else "cuTensorMapEncodeIm2col"
    try:
        encode = getattr(ctypes.CDLL(LIBRARY), name)
    except (OSError, AttributeError) as fault:  # no library, or a driver older than Hopper
        raise no_driver(fault) from fault
    given = driver_arguments(made)
    kinds = [c_void_p if each in _MAP_NUMBERS else _MAP_SCALARS.get(each, c_int) for each in given]
    encode.restype, encode.argtypes = c_int, [c_void_p, *kinds]
    room = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGN)
    start = -ctypes.addressof(room) % MAP_ALIGN
    arguments = [
        _numbers(_MAP_NUMBERS[each], value) if each in _MAP_NUMBERS else value for each, value in given.items()
    ]
    status = encode(ctypes.addressof(room) + start, *arguments)
    if status:
        raise RefsimError(
            "driver-refused", f"the driver refuses the tensor map: status {status}", str(made), str(CUDA_DRIVER[name])
        )
    return Struct(room.raw[start : start + MAP_BYTES], MAP_ALIGN)


def _numbers(kind: Any, values: Any) -> Any:
    """Return numbers as a ctypes array with at least one element."""
    held: Sequence[int] = values
    return (kind * max(len(held), 1))(*held)


def open_libcuda(index: int) -> DirectDriver:
    """Open GPU `index` through the driver's library; RefsimError (exit 4) names the missing driver or GPU."""
    try:
        calls = Libcuda()
    except (OSError, AttributeError) as fault:  # no library, or a driver without cuLaunchKernelEx
        raise no_driver(fault) from fault
    return open_direct(calls, f"{LIBRARY} by ctypes", index)
