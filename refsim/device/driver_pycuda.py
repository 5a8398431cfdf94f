"""The driver through PyCUDA: PyCUDA provides context, memory and facts; modules and launches use libcuda."""

import importlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from refsim.device.driver import Bytes, DriverError, GpuFacts, Launching, no_driver, no_gpu
from refsim.device.libcuda import Libcuda
from refsim.errors import missing_extra


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
        return GpuFacts(
            device.name(),
            device.compute_capability(),
            device.get_attribute(attributes.MULTIPROCESSOR_COUNT),
            device.total_memory(),
            self._pycuda.get_driver_version(),
        )

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
