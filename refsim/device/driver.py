"""What a real GPU's driver is asked for: one protocol, served through PyCUDA, cuda.bindings or ctypes alone.

All keep the primary context, which every other library of the process shares, and launch by cuLaunchKernelEx with a
pointer to each argument: where an argument lies among the parameters is the driver's work, not the caller's.
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
"""The launch may begin before the one before it in the stream has ended: programmatic stream serialisation."""


LONGEST_REASON = 120  # characters of why a driver is missing
SIMULATOR = "run on the simulated GPU, device sim"


def cluster_dimension(cluster: Extent) -> Attribute:
    """The attribute that launches clusters of so many blocks along x, y and z."""
    return 4, struct.pack("3I", *cluster)


@dataclass
class DriverError(Exception):
    """A call that failed: which one, the name of its status where the library tells it, and what the driver says."""

    call: str
    status: str
    text: str

    def __str__(self) -> str:
        return f"{self.call}: {self.text}" + (f" ({self.status})" if self.status else "")


@dataclass(frozen=True)
class GpuFacts:
    """What a GPU says of itself; `driver` is the CUDA version that its driver serves, 13000 for 13.0."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory_bytes: int
    driver: int


@dataclass(frozen=True)
class LaunchConfig:
    """What cuLaunchKernelEx takes beside the function and its arguments; it launches on the default stream."""

    grid: Extent
    block: Extent
    shared_bytes: int = 0
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True)
class Launching:
    """Modules, functions and launches over `calls`, which gives (status, *results) as cuda.bindings does.

    PyCUDA tells no handle of a function and launches without attributes: beside it the calls go to libcuda (`libcuda.py`),
    in the context that PyCUDA made current.
    """

    calls: Any

    def call(self, name: str, *arguments: Any) -> Any:
        """The result of a call (a tuple where it has several); DriverError where its status is not 0."""
        try:
            status, *results = getattr(self.calls, name)(*arguments)
        except ValueError as unlisted:  # cuda.bindings, of a status that is newer than itself
            raise DriverError(name, "", str(unlisted)) from unlisted
        if int(status):
            raise DriverError(name, *self._words(status))
        return results[0] if len(results) == 1 else tuple(results)

    def _words(self, status: Any) -> tuple[str, str]:
        """Name and text of a status; numbers that this driver does not know have neither."""
        found = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            failed, words = getattr(self.calls, name)(status)
            found.append("" if int(failed) or not words else words.decode())
        return found[0] or f"status {int(status)}", found[1] or "the driver says no more"

    def load(self, image: bytes) -> Any:
        return self.call("cuModuleLoadData", image)

    def unload(self, module: Any) -> None:
        self.call("cuModuleUnload", module)

    def function(self, module: Any, entry: str) -> Any:
        return self.call("cuModuleGetFunction", module, entry.encode())

    def attribute(self, function: Any, attribute: int) -> int:
        return int(self.call("cuFuncGetAttribute", self.calls.CUfunction_attribute(attribute), function))

    def set_attribute(self, function: Any, attribute: int, value: int) -> None:
        self.call("cuFuncSetAttribute", function, self.calls.CUfunction_attribute(attribute), value)

    def blocks_per_multiprocessor(self, function: Any, threads: int, shared_bytes: int) -> int:
        return int(self.call("cuOccupancyMaxActiveBlocksPerMultiprocessor", function, threads, shared_bytes))

    def launch(self, function: Any, config: LaunchConfig, arguments: Sequence[bytes]) -> None:
        """The driver copies the arguments before the call returns, so that they need not live longer."""
        held = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
        pointers = (ctypes.c_void_p * max(len(held), 1))(*map(ctypes.addressof, held))
        self.call("cuLaunchKernelEx", self.calls.config(config), function, ctypes.addressof(pointers), 0)


class Driver(Protocol):
    """One GPU through one library. All but `library` and `facts` need the context to be current; failures are DriverError.

    `launching` holds what is done with modules and functions.
    """

    @property
    def library(self) -> str:
        """The library and its version: PyCUDA 2026.1."""

    @property
    def index(self) -> int:
        """The number of the GPU."""

    @property
    def launching(self) -> Launching: ...

    def facts(self) -> GpuFacts: ...

    def enter(self) -> None:
        """Makes the primary context current; it is retained by the first call and kept."""

    def leave(self) -> None: ...

    def forget(self) -> None:
        """Gives the context back: after a kernel's fault it is lost, and with it all memory and every module."""

    def allocate(self, size: int) -> int: ...

    def free(self, address: int) -> None: ...

    def write(self, address: int, content: Bytes) -> None: ...

    def read(self, address: int, size: int) -> Bytes: ...

    def synchronize(self) -> None:
        """Waits for the kernels that were launched, and raises what became of them."""


def no_driver(fault: Exception) -> RefsimError:
    """The error of a machine without the driver's library; of a loader's reason the first sentence, as some list every place
    where they looked."""
    reason = " ".join(str(fault).split()).split(". ")[0][:LONGEST_REASON].rstrip(".")
    return RefsimError(
        "no-cuda-driver", f"this machine has no CUDA driver: {reason}", help=SIMULATOR, kind=Kind.MISSING
    )


def no_gpu(what: str) -> RefsimError:
    """The error of a machine whose driver has no such GPU."""
    return RefsimError("no-cuda-device", what, help=SIMULATOR, kind=Kind.MISSING)
