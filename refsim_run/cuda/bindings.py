"""cuda.bindings.driver: types and constants stay; functions run on the simulated GPU or are refused by name. numba-cuda
uses them, and needs no library of the driver."""

import ctypes
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

from refsim.errors import Kind, RefsimError
from refsim.ptx import is_fault
from refsim.ptx.machine.arguments import NUMBERS, PointerTo
from refsim.ptx.machine.launch_rules import LaunchRequest, round_up
from refsim.ptx.text.syntax import Variable
from refsim_run.cuda.images import CoreKernel, Image
from refsim_run.memory import host_bytes, poison_host
from refsim_run.seams import always, with_stream
from refsim_run.session import DRIVER_VERSION, MEMORY_BYTES, UnsupportedError, current


class ModuleCalls:
    """Functions of the driver, by their names, that load code and run it."""

    types: ModuleType

    def __init__(self) -> None:
        self.numbers = itertools.count(0x2000)
        self.modules: dict[int, Image] = {}
        self.functions: dict[int, CoreKernel] = {}

    def cuModuleLoadData(self, image: Any) -> Any:  # noqa: N802 - names of the driver
        """Load an image, given as bytes or as a host address of zero-terminated PTX, and return its handle."""
        number = next(self.numbers)
        made = Image("ptx", bytes(image) if isinstance(image, bytes | bytearray) else ctypes.string_at(int(image)))
        _ = made.loaded
        self.modules[number] = made
        return self.types.CUmodule(number)

    def cuModuleLoadDataEx(self, image: Any, count: int, options: Any, values: Any) -> Any:  # noqa: N802
        return self.cuModuleLoadData(image)

    def cuModuleUnload(self, module: Any) -> None:  # noqa: N802
        del self.modules[int(module)]

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:  # noqa: N802
        """Return a handle of an entry of a module, by its name."""
        number = next(self.numbers)
        self.functions[number] = self.modules[int(module)].get_kernel(name)
        return self.types.CUfunction(number)

    def cuModuleGetGlobal(self, module: Any, name: bytes) -> tuple[Any, int]:  # noqa: N802
        address, size = self.modules[int(module)].loaded.variable(name.decode())
        return self.types.CUdeviceptr(address), size

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, function: Any, threads: int, shared_bytes: int) -> int:  # noqa: N802
        """Return how many blocks of a kernel an SM holds at once."""
        number = int(function)
        kernel = self.functions[number] if number in self.functions else CoreKernel.by_handle[number]
        return kernel.ctas_per_sm(int(threads), int(shared_bytes))

    def cuLaunchKernel(  # noqa: N802
        self,
        function: Any,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream: Any,
        arguments: Any,
        extra: Any,
    ) -> None:
        """Launch a kernel with arguments in kernelParams or in `extra`, and print what its threads printed."""
        kernel = self.functions[int(function)]
        given = packed(arguments, extra, kernel.module.program.entries[kernel.entry])
        grid, block = (grid_x, grid_y, grid_z), (block_x, block_y, block_z)
        request = LaunchRequest(kernel.entry, grid, block, given, shared_bytes)
        sys.stdout.write("".join(kernel.module.launch(request)))


def packed(arguments: Any, extra: Any, parameters: Sequence[Variable]) -> list[Any]:
    """Return a launch's arguments: from (values, types), from addresses up to a null, or from the buffer in `extra`."""
    if isinstance(arguments, tuple):
        return [taken(value, kind) for value, kind in zip(*arguments, strict=True)]
    if arguments or not extra:
        places = (ctypes.c_void_p * len(parameters)).from_address(int(arguments)) if arguments and parameters else ()
        pairs = zip(itertools.takewhile(bool, places), parameters, strict=False)
        return [ctypes.string_at(place, each.size) for place, each in pairs]
    words = itertools.takewhile(bool, (ctypes.c_void_p * 5).from_address(int(extra)))
    said = dict(zip(words, words, strict=False))  # CU_LAUNCH_PARAM_BUFFER_POINTER is 1, _SIZE is 2
    content, starts = ctypes.string_at(said[1], ctypes.c_size_t.from_address(said[2]).value), [0]
    for each in parameters:
        starts.append(round_up(starts[-1], each.align) + each.size)
    found = [content[end - each.size : end] for each, end in zip(parameters, starts[1:], strict=True)]
    return found + [content[starts[-1] :]] * (len(content) >= starts[-1] + 8)


def taken(value: Any, kind: Any = None) -> Any:
    """Return an argument as a launch takes it: `value`, made a `kind` of ctypes if there is one."""
    if kind is not None and not isinstance(value, kind):
        value = kind(value.value if isinstance(value, ctypes._SimpleCData) else value)
    if isinstance(value, ctypes.c_void_p) or hasattr(value, "getPtr"):
        return PointerTo(int(getattr(value, "value", value) or 0))
    if isinstance(value, ctypes._SimpleCData):
        return np.frombuffer(bytes(value), np.dtype(type(value)))[0]
    if isinstance(value, ctypes.Structure | ctypes.Array | NUMBERS | np.generic):
        return value if isinstance(value, NUMBERS | np.generic) else bytes(value)
    raise TypeError(f"an argument of a launch is of type {type(value).__name__}")


PACKAGE_NAME = "cuda.bindings"
CONTEXT = 0x51
"""The handle of the only context."""
_GET_ATTRIBUTE = "cuda.bindings.driver.cuDeviceGetAttribute"
_INVALID, _FAULT = "CUDA_ERROR_INVALID_VALUE", "CUDA_ERROR_LAUNCH_FAILED"
_STATUS = {
    "out-of-memory": "CUDA_ERROR_OUT_OF_MEMORY",
    "out-of-bounds": "CUDA_ERROR_ILLEGAL_ADDRESS",
    "misaligned": "CUDA_ERROR_MISALIGNED_ADDRESS",
    "unknown-entry": "CUDA_ERROR_NOT_FOUND",
    "unknown-symbol": "CUDA_ERROR_NOT_FOUND",
    "bad-file": "CUDA_ERROR_INVALID_IMAGE",
}
"""The driver's status for each error code of the simulated GPU."""
_FUNCTION = re.compile(r"cu[A-Z]\w*")


class DriverCalls(ModuleCalls):
    """Functions of the driver by their names. Each returns its results; `answered` puts the status before them."""

    def __init__(self, types: ModuleType) -> None:
        super().__init__()
        self.types = types
        self.contexts: list[int] = []
        self.handles = itertools.count(0x1000)
        self.events: dict[int, float] = {}
        self.pinned: dict[int, Any] = {}

    def cuCtxCreate(self, *flags_and_device: Any) -> Any:  # noqa: N802
        self.contexts.append(CONTEXT)
        return self.types.CUcontext(CONTEXT)

    def cuCtxSetCurrent(self, context: Any) -> None:  # noqa: N802
        self.contexts[-1:] = [int(context)]

    def cuCtxSynchronize(self) -> None:  # noqa: N802
        """Return at once: every call has completed when it returns, and there is no profile."""

    cuProfilerStart = cuProfilerStop = cuCtxSynchronize  # noqa: N815

    def cuMemHostAlloc(self, size: int, flags: int) -> int:  # noqa: N802
        """Return the address of new host memory; mapped memory is refused."""
        if flags & self.types.CU_MEMHOSTALLOC_DEVICEMAP:
            raise current().unsupported("cuda.bindings.driver.cuMemHostAlloc", "mapped memory of the host")
        room = ctypes.create_string_buffer(int(size))
        self.pinned[ctypes.addressof(room)] = room
        poison_host(host_bytes(ctypes.addressof(room), int(size)))
        return ctypes.addressof(room)

    def cuMemHostRegister(self, address: Any, size: int, flags: int) -> None:  # noqa: N802
        """Do nothing, as host memory is never paged out here; mapped memory is refused."""
        if flags & self.types.CU_MEMHOSTREGISTER_DEVICEMAP:
            raise current().unsupported("cuda.bindings.driver.cuMemHostRegister", "mapped memory of the host")

    def cuMemcpyHtoD(self, to: Any, source: Any, size: int) -> None:  # noqa: N802
        current().memory.write(int(to), host_bytes(source, size))

    def cuMemcpyDtoH(self, to: Any, source: Any, size: int) -> None:  # noqa: N802
        host_bytes(to, size)[:] = current().memory.read(int(source), int(size))

    def cuMemcpyDtoD(self, to: Any, source: Any, size: int) -> None:  # noqa: N802
        current().memory.copy(int(to), int(source), int(size))

    def cuMemsetD8(self, to: Any, value: int, count: int) -> None:  # noqa: N802
        current().memory.fill(int(to), bytes([int(value) & 0xFF]), int(count))

    def cuMemsetD32(self, to: Any, value: int, count: int) -> None:  # noqa: N802
        current().memory.fill(int(to), (int(value) & 0xFFFFFFFF).to_bytes(4, "little"), int(count))

    cuMemcpyHtoDAsync, cuMemcpyDtoHAsync = with_stream(cuMemcpyHtoD), with_stream(cuMemcpyDtoH)  # noqa: N815
    cuMemcpyDtoDAsync = with_stream(cuMemcpyDtoD)  # noqa: N815
    cuMemsetD8Async, cuMemsetD32Async = with_stream(cuMemsetD8), with_stream(cuMemsetD32)  # noqa: N815

    def cuMemGetAddressRange(self, address: Any) -> tuple[Any, int]:  # noqa: N802
        """Return address and bytes of the allocation that holds an address."""
        found = current().memory.allocation_of(int(address))
        if found is None:
            raise RefsimError("bad-address", f"{int(address):#x} lies in no allocation")
        return self.types.CUdeviceptr(found.address), found.size

    def cuPointerGetAttribute(self, number: Any, address: Any) -> Any:  # noqa: N802
        """Return an address as its own device pointer; other attributes are refused."""
        names = self.types.CUpointer_attribute
        if int(number) != int(names.CU_POINTER_ATTRIBUTE_DEVICE_POINTER):
            raise current().unsupported(f"cuda.bindings.driver.cuPointerGetAttribute({int(number)})")
        if not current().memory.holds(int(address)):
            raise RefsimError("bad-address", f"{int(address):#x} lies in no allocation")
        return self.types.CUdeviceptr(int(address))

    def cuCtxDestroy(self, context: Any) -> None:  # noqa: N802
        self.contexts.pop()

    def cuMemFreeHost(self, address: Any) -> None:  # noqa: N802
        self.pinned.pop(int(address))

    def cuStreamSynchronize(self, stream: Any) -> None:  # noqa: N802
        """Return at once: every call has completed when it returns, the context stays, and nothing is ever paged out."""

    cuInit = cuDevicePrimaryCtxRelease = cuMemHostUnregister = cuStreamSynchronize  # noqa: N815
    cuStreamDestroy = cuEventQuery = cuEventSynchronize = cuStreamSynchronize  # noqa: N815

    cuStreamWaitEvent = always()  # noqa: N815

    def cuEventDestroy(self, event: Any) -> None:  # noqa: N802
        self.events.pop(int(event), None)

    def cuEventRecord(self, event: Any, stream: Any) -> None:  # noqa: N802
        self.events[int(event)] = perf_counter()

    def cuLibraryUnload(self, library: Any) -> None:  # noqa: N802
        Image.by_handle.pop(int(library), None)

    def cuLibraryGetGlobal(self, library: Any, name: bytes) -> tuple[Any, int]:  # noqa: N802
        address, size = Image.by_handle[int(library)].loaded.variable(name.decode())
        return self.types.CUdeviceptr(address), size

    def answered(self, name: str) -> Callable[..., tuple[Any, ...]]:
        """Return a function as cuda.bindings has it: it returns the status, then the results."""
        function = getattr(self, name)
        status = self.types.CUresult

        def call(*args: Any) -> tuple[Any, ...]:
            try:
                found = function(*args)
            except UnsupportedError:
                raise
            except RefsimError as error:
                if error.kind is Kind.MISSING and error.code not in _STATUS:
                    raise  # a function that is not simulated raises instead of returning a status
                return (getattr(status, _STATUS.get(error.code, _FAULT if is_fault(error) else _INVALID)), None)
            except (KeyError, IndexError):
                return (status.CUDA_ERROR_INVALID_HANDLE, None)
            if found is None:
                return (status.CUDA_SUCCESS,)
            return (status.CUDA_SUCCESS, *(found if isinstance(found, tuple) else (found,)))

        call.__name__ = name
        return call


_ANSWERS: dict[str, Callable[..., Any]] = {
    "cuCtxGetCurrent": lambda calls: calls.types.CUcontext(calls.contexts[-1] if calls.contexts else 0),
    "cuCtxGetDevice": lambda calls: calls.types.CUdevice(0),
    "cuCtxPopCurrent": lambda calls: calls.types.CUcontext(calls.contexts.pop()),
    "cuCtxPushCurrent": lambda calls, context: calls.contexts.append(int(context)),
    "cuDeviceGet": lambda calls, ordinal: calls.types.CUdevice(int(ordinal)),
    "cuDeviceGetAttribute": lambda calls, number, device: current().attribute(int(number), _GET_ATTRIBUTE),
    "cuDeviceGetCount": lambda calls: 1,
    "cuDeviceGetName": lambda calls, length, device: current().device_name.encode()[: int(length)],
    "cuDevicePrimaryCtxReset": lambda calls, device: calls.contexts.clear(),
    "cuDevicePrimaryCtxRetain": lambda calls, device: calls.types.CUcontext(CONTEXT),
    "cuDeviceTotalMem": lambda calls, device: MEMORY_BYTES,
    "cuDriverGetVersion": lambda calls: DRIVER_VERSION,
    "cuEventCreate": lambda calls, flags: calls.types.CUevent(next(calls.handles)),
    "cuEventElapsedTime": lambda calls, start, end: (calls.events[int(end)] - calls.events[int(start)]) * 1e3,
    "cuMemAlloc": lambda calls, size: calls.types.CUdeviceptr(current().memory.allocate(int(size), PACKAGE_NAME)),
    "cuMemFree": lambda calls, address: current().memory.free(int(address)),
    "cuMemGetInfo": lambda calls: current().free_and_total,
    "cuStreamCreate": lambda calls, flags: calls.types.CUstream(next(calls.handles)),
}
"""Functions of the driver that one expression answers; they are methods of `DriverCalls`."""
for _name, _answer in _ANSWERS.items():
    setattr(DriverCalls, _name, _answer)


def take_place(module: ModuleType) -> None:
    """Replace the functions of cuda.bindings.driver, just imported."""
    calls = DriverCalls(module)
    for name in [each for each in vars(module) if _FUNCTION.fullmatch(each) and callable(vars(module)[each])]:
        known = hasattr(DriverCalls, name)
        setattr(module, name, calls.answered(name) if known else _refusal(name))


def _refusal(name: str) -> Callable[..., Any]:
    def call(*args: Any, **more: Any) -> Any:
        raise current().unsupported(f"cuda.bindings.driver.{name}")

    call.__name__ = name
    return call


def take_place_of_numba(module: ModuleType) -> None:
    """Mark the driver in numba.cuda.cudadrv.driver as available; numba's own calls a library, and says what to install."""
    own = None
    if not getattr(module, "USE_NV_BINDING", True):
        what = "this numba.cuda calls the driver's library, which is not simulated"
        own = str(RefsimError("missing-extra", what, help="pip install numba-cuda, which is simulated"))
    module.driver.is_initialized, module.driver.initialization_error = own is not None, own
