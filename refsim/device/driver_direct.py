"""The driver through its own calls, by cuda.bindings or by ctypes, without PyCUDA: context, memory, modules, launches."""

import importlib
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np

from refsim.device.driver import Bytes, DriverError, GpuFacts, LaunchConfig, Launching, no_driver, no_gpu
from refsim.errors import missing_extra
from refsim.sources import CUDA_DRIVER

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
        return GpuFacts(
            name,
            (self._attribute(_CAPABILITY_MAJOR), self._attribute(_CAPABILITY_MINOR)),
            self._attribute(_MULTIPROCESSORS),
            int(self._call("cuDeviceTotalMem", self._device)),
            int(self._call("cuDriverGetVersion")),
        )

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
