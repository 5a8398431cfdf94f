"""A real GPU's driver through cuda.bindings, through its library by ctypes, and through PyCUDA.

The first two make all calls themselves. PyCUDA provides context, memory and facts; modules and launches use the
library. All three use the primary context, which every other library of the process shares. They launch by
cuLaunchKernelEx with a pointer to each argument: the driver places arguments among the parameters. Each call returns
(status, *results) as in cuda.bindings. The types follow cuda.h; the tests check them with a driver library that they
compile with that header.
"""

import ctypes
import importlib
import struct
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import Kind, RefsimError, missing_extra
from refsim.kernels import Struct
from refsim.layouts.descriptors.tensormaps import driver_arguments
from refsim.layouts.tma import MAP_ALIGN, MAP_BYTES, TensorMap
from refsim.sources import CUDA_DRIVER

Bytes = NDArray[np.uint8]
Extent = tuple[int, int, int]
Attribute = tuple[int, bytes]
"""A launch attribute: its CUlaunchAttributeID and the first bytes of its value."""

LAUNCH_SOURCE = CUDA_DRIVER["CUlaunchAttributeID, CUfunction_attribute"]
STATIC_SHARED_BYTES = 1
MAX_DYNAMIC_SHARED_BYTES = 8
NON_PORTABLE_CLUSTER_ALLOWED = 14
COOPERATIVE: Attribute = (2, struct.pack("i", 1))
PROGRAMMATIC: Attribute = (6, struct.pack("i", 1))
"""The launch may begin before the previous launch in the stream has ended: programmatic stream serialization."""


LONGEST_REASON = 120  # characters of why a driver is missing
SIMULATOR = "run on the simulated GPU, device sim"


def cluster_dimension(cluster: Extent) -> Attribute:
    """Return the attribute that launches clusters of this many blocks along x, y and z."""
    return 4, struct.pack("3I", *cluster)


@dataclass
class DriverError(Exception):
    """A call that failed: its name, the name of its status if the library reports it, and the driver's text."""

    call: str
    status: str
    text: str

    def __str__(self) -> str:
        return f"{self.call}: {self.text}" + (f" ({self.status})" if self.status else "")


@dataclass(frozen=True)
class GpuFacts:
    """Facts that a GPU reports; `driver` is the CUDA version of its driver, 13000 for 13.0."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    driver: int


@dataclass(frozen=True)
class LaunchConfig:
    """The configuration for cuLaunchKernelEx; the launch goes to the default stream."""

    grid: Extent
    block: Extent
    shared_bytes: int = 0
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True)
class Launching:
    """Modules, functions and launches through `calls`, which returns (status, *results) as cuda.bindings does.

    PyCUDA exposes no function handles and launches without attributes. With PyCUDA, `calls` is `Libcuda` in the context
    that PyCUDA made current.
    """

    calls: Any

    def call(self, name: str, *arguments: Any) -> Any:
        """Return the result of a call (a tuple if it has several); raise DriverError if its status is not 0."""
        try:
            status, *results = getattr(self.calls, name)(*arguments)
        except ValueError as unlisted:  # cuda.bindings raises it for a status that it does not know
            raise DriverError(name, "", str(unlisted)) from unlisted
        if int(status):
            raise DriverError(name, *self._words(status))
        return results[0] if len(results) == 1 else tuple(results)

    def _words(self, status: Any) -> tuple[str, str]:
        """Return name and text of a status, with substitutes for a status that this driver does not know."""
        found = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            failed, words = getattr(self.calls, name)(status)
            found.append("" if int(failed) or not words else words.decode())
        return found[0] or f"status {int(status)}", found[1] or "the driver says no more"

    def load(self, image: bytes) -> Any:
        """Load an image (a cubin or PTX) and return the module's handle."""
        return self.call("cuModuleLoadData", image)

    def unload(self, module: Any) -> None:
        """Unload a module."""
        self.call("cuModuleUnload", module)

    def function(self, module: Any, entry: str) -> Any:
        """Return the handle of an entry."""
        return self.call("cuModuleGetFunction", module, entry.encode())

    def attribute(self, function: Any, attribute: int) -> int:
        """Return the value of a CUfunction_attribute."""
        return int(self.call("cuFuncGetAttribute", self.calls.CUfunction_attribute(attribute), function))

    def set_attribute(self, function: Any, attribute: int, value: int) -> None:
        """Set the value of a CUfunction_attribute."""
        self.call("cuFuncSetAttribute", function, self.calls.CUfunction_attribute(attribute), value)

    def blocks_per_multiprocessor(self, function: Any, threads: int, shared_bytes: int) -> int:
        """Return how many blocks of this size fit on one multiprocessor at once."""
        return int(self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, shared_bytes))

    def launch(self, function: Any, config: LaunchConfig, arguments: Sequence[bytes]) -> None:
        """Launch a function; the driver copies the arguments before the call returns."""
        held = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * max(len(held), 1))(*map(ctypes.addressof, held))
        self.call("cuLaunchKernelEx", self.calls.config(config), function, ctypes.addressof(pointers), 0)


def no_driver(fault: Exception) -> RefsimError:
    """Return the error of a machine without the driver's library, with the first sentence of the loader's message."""
    reason = " ".join(str(fault).split()).split(". ")[0][:LONGEST_REASON].rstrip(".")
    what = f"this machine has no CUDA driver: {reason}"
    return RefsimError("no-cuda-driver", what, help=SIMULATOR, kind=Kind.MISSING)


def no_gpu(what: str) -> RefsimError:
    """Return the error of a machine whose driver has no such GPU."""
    return RefsimError("no-cuda-device", what, help=SIMULATOR, kind=Kind.MISSING)


SOURCE = CUDA_DRIVER["CUdevice_attribute"]
NAME_BYTES = 256
_MULTIPROCESSORS, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 16, 75, 76


class DirectDriver:
    """One GPU through `calls`; `open_direct` creates it."""

    def __init__(self, calls: Any, library: str, index: int) -> None:
        self.library = library
        self.index = index
        self.launching = Launching(calls)
        self._call = self.launching.call
        self._device = self._call("cuDeviceGet", index)
        self._context: Any = None

    def facts(self) -> GpuFacts:
        """Return the facts that the GPU reports."""
        name = self._call("cuDeviceGetName", NAME_BYTES, self._device).split(b"\0")[0].decode()
        capability = self._attribute(_CAPABILITY_MAJOR), self._attribute(_CAPABILITY_MINOR)
        size, version = int(self._call("cuDeviceTotalMem", self._device)), int(self._call("cuDriverGetVersion"))
        return GpuFacts(name, capability, self._attribute(_MULTIPROCESSORS), size, version)

    def _attribute(self, number: int) -> int:
        named = self.launching.calls.CUdevice_attribute(number)
        return int(self._call("cuDeviceGetAttribute", named, self._device))

    def enter(self) -> None:
        """Make the primary context current; the first call retains it."""
        if self._context is None:
            self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxPushCurrent", self._context)

    def leave(self) -> None:
        """Remove the context from the stack of current contexts."""
        self._call("cuCtxPopCurrent")

    def forget(self) -> None:
        """Release the primary context."""
        self._context = None
        self._call("cuDevicePrimaryCtxRelease", self._device)

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes and return their address."""
        return int(self._call("cuMemAlloc", size))

    def free(self, address: int) -> None:
        """Free the allocation at `address`."""
        self._call("cuMemFree", address)

    def write(self, address: int, content: Bytes) -> None:
        """Copy `content` to the device."""
        self._call("cuMemcpyHtoD", address, content.ctypes.data, content.nbytes)

    def read(self, address: int, size: int) -> Bytes:
        """Return `size` bytes from the device, shape (size,)."""
        content = np.empty(size, np.uint8)
        self._call("cuMemcpyDtoH", content.ctypes.data, address, size)
        return content

    def synchronize(self) -> None:
        """Wait for all launched work."""
        self._call("cuCtxSynchronize")


def open_direct(calls: Any, library: str, index: int) -> DirectDriver:
    """Open GPU `index` through `calls`; raise RefsimError (exit 4) if there is none."""
    call = Launching(calls).call
    try:
        call("cuInit", 0)
        count = int(call("cuDeviceGetCount"))
    except DriverError as fault:
        raise no_gpu(f"the CUDA driver finds no usable GPU: {fault}") from fault
    if not 0 <= index < count:
        raise no_gpu(f"there is no GPU {index}; this machine has {count}")
    return DirectDriver(calls, library, index)


class _Calls:
    """The calls of cuda.bindings.driver, and the launch configuration in its types."""

    def __init__(self, driver: ModuleType) -> None:
        self.driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def config(self, config: LaunchConfig) -> Any:
        """Return a launch configuration as a CUlaunchConfig."""
        made = self.driver.CUlaunchConfig()
        made.gridDimX, made.gridDimY, made.gridDimZ = config.grid
        made.blockDimX, made.blockDimY, made.blockDimZ = config.block
        made.sharedMemBytes = config.shared_bytes
        attributes = []
        for number, content in config.attributes:
            value = self.driver.CUlaunchAttributeValue()
            value.pad = content.ljust(len(value.pad), b"\0")
            attribute = self.driver.CUlaunchAttribute()
            attribute.id, attribute.value = self.driver.CUlaunchAttributeID(number), value
            attributes.append(attribute)
        made.attrs, made.numAttrs = attributes, len(attributes)
        return made


def open_bindings(index: int) -> DirectDriver:
    """Open GPU `index` through cuda.bindings; RefsimError (exit 4) names the missing library, driver or GPU."""
    try:
        bindings = importlib.import_module("cuda.bindings.driver")
    except ImportError as fault:
        raise missing_extra(f"cuda.bindings is not installed: {fault}", "pip install 'refsim[gpu]'") from fault
    try:
        return open_direct(_Calls(bindings), f"cuda.bindings {version('cuda-bindings')}", index)
    except RuntimeError as fault:  # raised by its loader without libcuda
        raise no_driver(fault) from fault


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
    *("cuDeviceTotalMem", "cuDevicePrimaryCtxRelease", "cuCtxPushCurrent", "cuCtxPopCurrent"),
    *("cuMemAlloc", "cuMemFree", "cuMemcpyHtoD", "cuMemcpyDtoH"),
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
        what = f"the driver refuses the tensor map: status {status}"
        raise RefsimError("driver-refused", what, str(made), str(CUDA_DRIVER[name]))
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


class PyCudaDriver:
    """One GPU through PyCUDA; `open_pycuda` creates it."""

    def __init__(self, pycuda: ModuleType, library: str, index: int, calls: Any) -> None:
        self.library = library
        self.index = index
        self.launching = Launching(calls)
        self._pycuda = pycuda
        self._device = pycuda.Device(index)
        self._context: Any = None
        self._allocations: dict[int, Any] = {}

    def facts(self) -> GpuFacts:
        """Return the facts that the GPU reports."""
        device, attributes = self._device, self._pycuda.device_attribute
        count, version = device.get_attribute(attributes.MULTIPROCESSOR_COUNT), self._pycuda.get_driver_version()
        return GpuFacts(device.name(), device.compute_capability(), count, device.total_memory(), version)

    def enter(self) -> None:
        """Make the primary context current; the first call retains it."""
        with self._faults():
            if self._context is None:
                self._context = self._device.retain_primary_context()
            self._context.push()

    def leave(self) -> None:
        """Remove the context from the stack of current contexts."""
        self._pycuda.Context.pop()

    def forget(self) -> None:
        """Release the primary context with all allocations."""
        self._allocations.clear()
        context, self._context = self._context, None
        with self._faults():
            context.detach()

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes and return their address."""
        with self._faults():
            allocation = self._pycuda.mem_alloc(size)
        self._allocations[int(allocation)] = allocation
        return int(allocation)

    def free(self, address: int) -> None:
        """Free the allocation at `address`."""
        with self._faults():
            self._allocations.pop(address).free()

    def write(self, address: int, content: Bytes) -> None:
        """Copy `content` to the device."""
        with self._faults():
            self._pycuda.memcpy_htod(address, content)

    def read(self, address: int, size: int) -> Bytes:
        """Return `size` bytes from the device, shape (size,)."""
        content = np.empty(size, np.uint8)
        with self._faults():
            self._pycuda.memcpy_dtoh(content, address)
        return content

    def synchronize(self) -> None:
        """Wait for all launched work."""
        with self._faults():
            self._pycuda.Context.synchronize()

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Turn PyCUDA's errors into DriverError; their text is "cuMemAlloc failed: out of memory" without status."""
        try:
            yield
        except self._pycuda.Error as fault:
            call, _, text = str(fault).partition(" failed: ")
            is_memory = isinstance(fault, self._pycuda.MemoryError)
            raise DriverError(call, "CUDA_ERROR_OUT_OF_MEMORY" if is_memory else "", text) from fault


def open_pycuda(index: int) -> PyCudaDriver:
    """Open GPU `index` through PyCUDA; RefsimError (exit 4) names the missing library, driver or GPU."""
    try:
        library = f"PyCUDA {importlib.import_module('pycuda').VERSION_TEXT}"
    except ImportError as fault:
        raise missing_extra("PyCUDA is not installed", "pip install 'refsim[pycuda]'") from fault
    with warnings.catch_warnings():
        # Without a driver, PyCUDA warns about a mismatch of headers and driver. The warning is misleading.
        warnings.simplefilter("ignore")
        try:
            pycuda = importlib.import_module("pycuda.driver")
            calls = Libcuda()
        except (ImportError, OSError) as fault:
            raise no_driver(fault) from fault
    try:
        pycuda.init()
    except pycuda.Error as fault:
        raise no_gpu(f"the CUDA driver finds no usable GPU: {fault}") from fault
    count = pycuda.Device.count()
    if not 0 <= index < count:
        raise no_gpu(f"there is no GPU {index}; this machine has {count}")
    return PyCudaDriver(pycuda, library, index, calls)


Driver = DirectDriver | PyCudaDriver
"""One GPU through one library. Methods need a current context (except `library`, `facts`) and raise DriverError."""
