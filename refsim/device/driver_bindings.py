"""The driver through cuda.bindings alone: context, memory, modules and launches, without PyCUDA."""

import importlib
from importlib.metadata import version
from types import ModuleType
from typing import Any

import numpy as np

from refsim.device.driver import Bytes, DriverError, GpuFacts, LaunchConfig, Launching, no_driver, no_gpu
from refsim.errors import Kind, RefsimError

_NAME_BYTES = 256


class _Calls:
    """cuda.bindings.driver, and the launch configuration in its types."""

    def __init__(self, driver: ModuleType) -> None:
        self.driver = driver

    def __getattr__(self, name: str) -> Any:
        return getattr(self.driver, name)

    def config(self, config: LaunchConfig) -> Any:
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


class BindingsDriver:
    """One GPU through cuda.bindings; `open_bindings` makes it."""

    def __init__(self, bindings: ModuleType, library: str, index: int) -> None:
        self.library = library
        self.index = index
        self.launching = Launching(_Calls(bindings))
        self._call = self.launching.call
        self._attributes = bindings.CUdevice_attribute
        self._device = self._call("cuDeviceGet", index)
        self._context: Any = None

    def facts(self) -> GpuFacts:
        name = self._call("cuDeviceGetName", _NAME_BYTES, self._device).split(b"\0")[0].decode()
        return GpuFacts(
            name,
            (self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute("COMPUTE_CAPABILITY_MINOR")),
            self._attribute("MULTIPROCESSOR_COUNT"),
            int(self._call("cuDeviceTotalMem", self._device)),
            int(self._call("cuDriverGetVersion")),
        )

    def _attribute(self, name: str) -> int:
        number = getattr(self._attributes, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._call("cuDeviceGetAttribute", number, self._device))

    def enter(self) -> None:
        if self._context is None:
            self._context = self._call("cuDevicePrimaryCtxRetain", self._device)
        self._call("cuCtxPushCurrent", self._context)

    def leave(self) -> None:
        self._call("cuCtxPopCurrent")

    def forget(self) -> None:
        self._context = None
        self._call("cuDevicePrimaryCtxRelease", self._device)

    def allocate(self, size: int) -> int:
        return int(self._call("cuMemAlloc", size))

    def free(self, address: int) -> None:
        self._call("cuMemFree", address)

    def write(self, address: int, content: Bytes) -> None:
        self._call("cuMemcpyHtoD", address, content.ctypes.data, content.nbytes)

    def read(self, address: int, size: int) -> Bytes:
        content = np.empty(size, np.uint8)
        self._call("cuMemcpyDtoH", content.ctypes.data, address, size)
        return content

    def synchronize(self) -> None:
        self._call("cuCtxSynchronize")


def open_bindings(index: int) -> BindingsDriver:
    """GPU `index` through cuda.bindings; RefsimError (exit 4) says which of library, driver and GPU is missing."""
    try:
        bindings = importlib.import_module("cuda.bindings.driver")
    except ImportError as fault:
        raise RefsimError(
            "no-cuda-bindings",
            f"cuda.bindings is not installed: {fault}",
            help="pip install 'refsim[gpu]'",
            kind=Kind.MISSING,
        ) from fault
    call = Launching(bindings).call
    try:
        call("cuInit", 0)
        count = int(call("cuDeviceGetCount"))
    except DriverError as fault:
        raise no_gpu(f"the CUDA driver finds no usable GPU: {fault}") from fault
    except RuntimeError as fault:  # its loader's error where there is no libcuda
        raise no_driver(fault) from fault
    if not 0 <= index < count:
        raise no_gpu(f"there is no GPU {index}; this machine has {count}")
    return BindingsDriver(bindings, f"cuda.bindings {version('cuda-bindings')}", index)
