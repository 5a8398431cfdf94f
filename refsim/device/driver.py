"""The requests to a real GPU's driver: one protocol, implemented through PyCUDA, cuda.bindings or ctypes alone.

All implementations use the primary context, which every other library of the process shares. They launch by
cuLaunchKernelEx with a pointer to each argument: the driver places arguments among the parameters.
"""

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import Kind, RefsimError
from refsim.sources import CUDA_DRIVER

Bytes = NDArray[np.uint8]
Extent = tuple[int, int, int]
Attribute = tuple[int, bytes]
"""A launch attribute: its CUlaunchAttributeID and the first bytes of its value."""

SOURCE = CUDA_DRIVER["CUlaunchAttributeID, CUfunction_attribute"]
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

    PyCUDA exposes no function handles and launches without attributes. With PyCUDA, `calls` is libcuda (`libcuda.py`)
    in the context that PyCUDA made current.
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


class Driver(Protocol):
    """One GPU through one library. Methods need a current context (except `library`, `facts`) and raise DriverError.

    `launching` handles modules and functions.
    """

    @property
    def library(self) -> str:
        """Return the library and its version: PyCUDA 2026.1."""

    @property
    def index(self) -> int:
        """Return the number of the GPU."""

    @property
    def launching(self) -> Launching: ...

    def facts(self) -> GpuFacts: ...

    def enter(self) -> None:
        """Make the primary context current; the first call retains it."""

    def leave(self) -> None: ...

    def forget(self) -> None:
        """Release the context: a kernel's fault destroys it with all memory and every module."""

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    def write(self, address: int, content: Bytes) -> None: ...

    def read(self, address: int, size: int) -> Bytes: ...

    def synchronize(self) -> None:
        """Wait for the launched kernels and raise their errors."""


def no_driver(fault: Exception) -> RefsimError:
    """Return the error of a machine without the driver's library, with the first sentence of the loader's message."""
    reason = " ".join(str(fault).split()).split(". ")[0][:LONGEST_REASON].rstrip(".")
    return RefsimError(
        "no-cuda-driver", f"this machine has no CUDA driver: {reason}", help=SIMULATOR, kind=Kind.MISSING
    )


def no_gpu(what: str) -> RefsimError:
    """Return the error of a machine whose driver has no such GPU."""
    return RefsimError("no-cuda-device", what, help=SIMULATOR, kind=Kind.MISSING)
