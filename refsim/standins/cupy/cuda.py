"""cupy.cuda on the simulated GPU: the names of the module."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from refsim.standins.cupy import compiler, device, driver, pool, runtime
from refsim.standins.cupy import device as stream
from refsim.standins.cupy import pool as memory
from refsim.standins.cupy.device import CupyDevice as Device
from refsim.standins.cupy.device import CupyEvent as Event
from refsim.standins.cupy.device import CupyStream as Stream
from refsim.standins.cupy.device import ExternalStream, get_current_stream, get_device_id, get_elapsed_time
from refsim.standins.cupy.pool import (
    BaseMemory,
    Memory,
    MemoryPointer,
    MemoryPool,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    UnownedMemory,
)
from refsim.standins.memory import poison_host
from refsim.standins.properties import DRIVER_VERSION
from refsim.standins.seams import refuse

__all__ = [
    "BaseMemory",
    "Device",
    "Event",
    "ExternalStream",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "PinnedMemoryPointer",
    "PinnedMemoryPool",
    "Stream",
    "UnownedMemory",
    "alloc",
    "alloc_pinned_memory",
    "compiler",
    "device",
    "driver",
    "get_allocator",
    "get_current_stream",
    "get_device_id",
    "get_elapsed_time",
    "get_local_runtime_version",
    "is_available",
    "memory",
    "runtime",
    "set_allocator",
    "set_pinned_memory_allocator",
    "stream",
    "using_allocator",
]
alloc = pool.alloc


def is_available() -> bool:
    return True


def get_local_runtime_version() -> int:
    return DRIVER_VERSION


def get_allocator() -> Callable[[int], MemoryPointer]:
    return pool.alloc


def set_allocator(allocator: Any = None) -> None:
    """Do nothing: all memory is of one kind here, and pools differ only in what they count."""


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """Return host memory without contents, which is never paged out here."""
    made = np.empty(int(size), np.uint8)
    poison_host(made)
    return made.view(PinnedMemoryPointer)


def set_pinned_memory_allocator(allocator: Any = None) -> None:
    """Do nothing, as in set_allocator."""


@contextlib.contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    """Do nothing, as in set_allocator."""
    yield


def __getattr__(name: str) -> Any:
    raise refuse("cupy.cuda", name)
