"""cuda.core: device, streams, buffers, views of memory and launches, which replace the package's own after import."""

import functools
import importlib
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from refsim.errors import Kind, RefsimError
from refsim.ptx import is_fault
from refsim.ptx.machine.arguments import PointerTo
from refsim.ptx.machine.launch_rules import LaunchRequest
from refsim_run.cuda import images
from refsim_run.cuda.bindings import CONTEXT, taken
from refsim_run.seams import always, refusing
from refsim_run.session import current


class ComputeCapability(NamedTuple):
    """The compute capability: (9, 0) for sm_90a."""

    major: int
    minor: int


class CoreStream:
    """A stream, in which every call has completed when it returns."""

    def __init__(self, handle: int = 0) -> None:
        self.handle = handle

    @staticmethod
    def from_handle(handle: Any) -> "CoreStream":
        return CoreStream(int(handle))

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    sync = wait = close = always()

    def record(self, event: "CoreEvent | None" = None, options: Any = None) -> "CoreEvent":
        """Record the host's time in an event, by default a new one, and return the event."""
        made = event or CoreEvent()
        made.at = perf_counter()
        return made

    __getattr__ = refusing("cuda.core.Stream")


class CoreEvent:
    """A moment in time; differences are times of the simulator, not of a GPU."""

    is_done = True

    def __init__(self) -> None:
        self.handle, self.at = id(self), 0.0

    sync = close = always()

    def __sub__(self, other: "CoreEvent") -> float:
        """Return the milliseconds from the other event to this one."""
        return (self.at - other.at) * 1e3

    __getattr__ = refusing("cuda.core.Event")


class CoreBuffer:
    """Device memory: a view of memory that something else owns, or an allocation that is freed with the object."""

    def __init__(self, address: int, size: int, is_own: bool = False) -> None:
        self.handle, self.size, self._memory = address, size, current().memory if is_own else None

    @staticmethod
    def from_handle(ptr: Any, size: int, mr: Any = None, owner: Any = None) -> "CoreBuffer":
        return CoreBuffer(int(ptr), int(size))

    def close(self, stream: Any = None) -> None:
        """Free the memory if the buffer owns it."""
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.free(self.handle)

    __del__ = close

    def copy_to(self, dst: "CoreBuffer | None" = None, *, stream: Any = None) -> "CoreBuffer":
        """Copy the bytes to another buffer of the device, by default a new one, and return that buffer."""
        made = (
            CoreBuffer(current().memory.allocate(self.size, images.CUDA_CORE), self.size, True) if dst is None else dst
        )
        if made.size != self.size:
            raise ValueError(f"buffer sizes mismatch between src and dst (sizes are: src={self.size}, dst={made.size})")
        current().memory.copy(int(made.handle), int(self.handle), self.size)
        return made

    def copy_from(self, src: "CoreBuffer", *, stream: Any = None) -> None:
        src.copy_to(self)

    __getattr__ = refusing("cuda.core.Buffer")


class CoreMemory:
    """The memory resource of the device."""

    device_id, is_device_accessible, is_host_accessible = 0, True, False

    def allocate(self, size: int, stream: Any = None) -> CoreBuffer:
        return CoreBuffer(current().memory.allocate(int(size), images.CUDA_CORE), int(size), is_own=True)

    __getattr__ = refusing("cuda.core.MemoryResource")


class CoreProperties:
    """The attributes of the device, by their lower-case names in the driver."""

    def __getattr__(self, name: str) -> int:
        if name.startswith("_"):
            raise AttributeError(name)
        return current().attribute_named(name, "cuda.core.Device.properties")


class CoreDevice:
    """The simulated GPU."""

    memory_resource = CoreMemory()
    properties = CoreProperties()
    uuid = "00000000-0000-0000-0000-000000000000"

    def __init__(self, device_id: int | None = None) -> None:
        if device_id:
            raise RuntimeError(f"device {device_id}: one GPU is simulated")
        self.device_id = 0

    @property
    def context(self) -> Any:
        from cuda.bindings import driver

        return SimpleNamespace(handle=driver.CUcontext(CONTEXT))

    @property
    def compute_capability(self) -> ComputeCapability:
        return ComputeCapability(*current().capability)

    @property
    def arch(self) -> str:
        return "".join(map(str, current().capability))

    @property
    def name(self) -> str:
        return current().device_name

    def set_current(self, context: Any = None) -> None:
        """Make the one context current unless a context is current."""
        from cuda.bindings import driver

        if not int(driver.cuCtxGetCurrent()[1]):
            driver.cuCtxPushCurrent(driver.CUcontext(CONTEXT))

    def allocate(self, size: int, stream: Any = None) -> CoreBuffer:
        return self.memory_resource.allocate(size, stream)

    @property
    def default_stream(self) -> CoreStream:
        return CoreStream()

    def create_stream(self, obj: Any = None, options: Any = None) -> CoreStream:
        return CoreStream(next(_STREAMS) if obj is None else int(obj.__cuda_stream__()[1]))

    def create_event(self, options: Any = None) -> CoreEvent:
        return CoreEvent()

    sync = always()

    __getattr__ = refusing("cuda.core.Device")


_STREAMS = itertools.count(0x1001)


@dataclass(frozen=True)
class StridedLayout:
    """Shape and strides of an array, and whether its elements are contiguous."""

    shape: tuple[int, ...]
    strides_in_bytes: tuple[int, ...]
    itemsize: int

    @property
    def is_contiguous_c(self) -> bool:
        return self._is_dense(range(len(self.shape)))

    @property
    def is_contiguous_f(self) -> bool:
        return self._is_dense(range(len(self.shape))[::-1])

    @property
    def is_contiguous_any(self) -> bool:
        return self.is_contiguous_c or self.is_contiguous_f

    def _is_dense(self, axes: Sequence[int]) -> bool:
        wanted = self.itemsize
        for axis in reversed(axes):
            if self.shape[axis] != 1 and self.strides_in_bytes[axis] != wanted:
                return prod(self.shape) == 0
            wanted *= self.shape[axis]
        return True


class MemoryView:
    """A StridedMemoryView: an address with shape, strides and type, of the host or the device."""

    def __init__(self, ptr: int, shape: Any, strides: Any, dtype: Any, owner: Any, *, is_device: bool) -> None:
        self.ptr, self.shape, self.dtype = int(ptr), tuple(map(int, shape)), np.dtype(dtype)
        size = self.dtype.itemsize
        dense = tuple(size * prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))
        self._layout = StridedLayout(self.shape, dense if strides is None else tuple(map(int, strides)), size)
        self.exporting_obj, self.is_device_accessible, self.device_id = owner, is_device, 0 if is_device else -1
        self.readonly = False

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def strides(self) -> tuple[int, ...] | None:
        """Return the strides in elements; None for a contiguous array."""
        steps = self._layout.strides_in_bytes
        return None if self._layout.is_contiguous_c else tuple(step // self.dtype.itemsize for step in steps)

    @classmethod
    def from_array_interface(cls, obj: Any) -> "MemoryView":
        """Return a view of an array of the host."""
        found = np.asarray(obj)
        return cls(found.ctypes.data, found.shape, found.strides, found.dtype, found, is_device=False)

    @classmethod
    def from_cuda_array_interface(cls, obj: Any, stream_ptr: Any = None) -> "MemoryView":
        """Return a view of device memory that an object's __cuda_array_interface__ describes."""
        said = obj.__cuda_array_interface__
        kind = np.dtype(said.get("descr", said["typestr"]) if said["typestr"][1] == "V" else said["typestr"])
        return cls(said["data"][0], said["shape"], said.get("strides"), kind, obj, is_device=True)

    @classmethod
    def from_dlpack(cls, obj: Any, stream_ptr: Any = None) -> "MemoryView":
        """Return a view of a NumPy array; other objects are refused."""
        if isinstance(obj, np.ndarray):
            return cls.from_array_interface(obj)
        raise current().unsupported("cuda.core.utils.StridedMemoryView.from_dlpack", f"of {type(obj).__name__}")

    @classmethod
    def from_any_interface(cls, obj: Any, stream_ptr: Any = None) -> "MemoryView":
        """Return a view of device memory, or of a NumPy array."""
        if hasattr(obj, "__cuda_array_interface__"):
            return cls.from_cuda_array_interface(obj, stream_ptr)
        return cls.from_dlpack(obj, stream_ptr)

    @classmethod
    def from_buffer(cls, buffer: CoreBuffer, shape: Any, strides: Any = None, *, dtype: Any = None) -> "MemoryView":
        steps = None if strides is None else tuple(int(step) * np.dtype(dtype).itemsize for step in strides)
        return cls(buffer.handle, shape, steps, dtype, buffer, is_device=True)


@dataclass
class CoreLaunchConfig:
    """The shape of a launch."""

    grid: Any
    block: Any
    cluster: Any = None
    shmem_size: int = 0
    is_cooperative: bool = False


def core_launch(stream: Any, config: CoreLaunchConfig, kernel: images.CoreKernel, *args: Any) -> None:
    """Run a kernel with arguments as cuda.core takes them; print what its threads printed."""
    given = [PointerTo(int(each.handle)) if isinstance(each, CoreBuffer) else taken(each) for each in args]
    shape, is_cooperative = (config.grid, config.block), bool(config.is_cooperative)
    request = LaunchRequest(kernel.entry, *shape, given, config.shmem_size, config.cluster, is_cooperative)
    try:
        printed = kernel.module.launch(request)
    except RefsimError as error:
        if error.kind is Kind.USAGE:
            raise _cuda_error()(f"CUDA_ERROR_INVALID_VALUE: {error}") from error
        if not is_fault(error):
            raise
        raise _cuda_error()(f"CUDA_ERROR_LAUNCH_FAILED: {error}") from error
    sys.stdout.write("".join(printed))


@functools.cache
def _cuda_error() -> type[Exception]:
    """Return the error class of cuda.core, which is also a RuntimeError; RuntimeError where this version has none."""
    try:
        theirs = importlib.import_module("cuda.core._utils.cuda_utils").CUDAError
    except (ImportError, AttributeError):
        return RuntimeError
    return type("CUDAError", (theirs, RuntimeError), {})


REPLACED = {
    "Buffer": CoreBuffer,
    "Device": CoreDevice,
    "Event": CoreEvent,
    "LaunchConfig": CoreLaunchConfig,
    "Linker": images.Linker,
    "LinkerOptions": images.LinkerOptions,
    "ObjectCode": images.Image,
    "Kernel": images.CoreKernel,
    "Program": images.CoreProgram,
    "ProgramOptions": images.ProgramOptions,
    "Stream": CoreStream,
    "launch": core_launch,
}


def take_place(module: ModuleType) -> None:
    """Replace the names of cuda.core, just imported; refuse by name whatever would call the driver."""
    for name in getattr(module, "__all__", ()):
        if name in REPLACED:
            setattr(module, name, REPLACED[name])
        elif hasattr(module, name) and not name.endswith("Options"):
            setattr(module, name, _refused(name))


def take_place_of_views(module: ModuleType) -> None:
    """Replace the views of cuda.core.utils, just imported."""
    module.StridedMemoryView = MemoryView  # type: ignore[attr-defined]


def _refused(name: str) -> type:
    def refuse(cls: type, *args: Any, **more: Any) -> Any:
        raise current().unsupported(f"cuda.core.{name}")

    return type(name, (), {"__new__": refuse})
