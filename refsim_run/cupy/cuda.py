"""cupy.cuda on the simulated GPU: the names of the module."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from refsim_run.cupy import compiler, device, driver, pool, runtime
from refsim_run.cupy.pool import PinnedMemoryPointer
from refsim_run.memory import poison_host
from refsim_run.seams import always, gathered, names_in, refusing
from refsim_run.session import DRIVER_VERSION

__getattr__ = refusing("cupy.cuda")
_HOMES = {
    "device": "ExternalStream get_current_stream get_device_id get_elapsed_time",
    "pool": "BaseMemory Memory MemoryPointer MemoryPool PinnedMemoryPointer PinnedMemoryPool UnownedMemory alloc",
}
"""The names that other modules define, by their module."""
_FOUND = gathered("refsim_run.cupy", _HOMES)
_FOUND |= {"Device": device.CupyDevice, "Event": device.CupyEvent, "Stream": device.CupyStream}
_FOUND |= {
    "compiler": compiler,
    "device": device,
    "driver": driver,
    "memory": pool,
    "runtime": runtime,
    "stream": device,
}
globals().update(_FOUND)
_OWN = names_in("""
    alloc_pinned_memory get_allocator get_local_runtime_version is_available set_allocator set_pinned_memory_allocator
    using_allocator
""")
__all__ = sorted([*_FOUND, *_OWN])  # noqa: PLE0605


def is_available() -> bool:
    return True


get_local_runtime_version, get_allocator = always(DRIVER_VERSION), always(pool.alloc)
set_allocator = set_pinned_memory_allocator = always()


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """Return host memory without contents, which is never paged out here."""
    made = np.empty(int(size), np.uint8)
    poison_host(made)
    return made.view(PinnedMemoryPointer)


@contextlib.contextmanager
def using_allocator(allocator: Any = None) -> Iterator[None]:
    """Do nothing, as in set_allocator."""
    yield
