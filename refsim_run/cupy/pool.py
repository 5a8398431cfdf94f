"""Memory of CuPy: allocations of the simulated GPU, pointers into them, and the pool that counts freed blocks."""

import ctypes
import weakref
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim_run.cupy.device import CupyDevice
from refsim_run.memory import host_bytes
from refsim_run.seams import always, refusing, with_stream
from refsim_run.session import MEMORY_BYTES, current

CUPY = "cupy"
_UNIT = 512
"""CuPy's pool rounds every block up to a multiple of so many bytes."""


class OutOfMemoryError(MemoryError):
    """An allocation larger than the simulated GPU's free memory, or beyond the pool's limit."""


class BaseMemory:
    """Device memory: its address and its size in bytes."""

    ptr = size = device_id = 0

    @property
    def device(self) -> Any:
        return CupyDevice(0)


class Memory(BaseMemory):
    """An allocation of device memory, freed with the object."""

    def __init__(self, size: int) -> None:
        self._session, self.size = current(), int(size)
        self.ptr = self._address(None) if self.size else 0

    @classmethod
    def of(cls, content: Any) -> "Memory":
        """Return an allocation that holds the bytes of a contiguous array."""
        made = cls.__new__(cls)
        made._session, made.size = current(), content.nbytes
        made.ptr = made._address(np.frombuffer(content, np.uint8)) if content.nbytes else 0
        return made

    def _address(self, initial: Any) -> int:
        pool = default_pool()
        pool.took(self.size)
        try:
            made = self._session.memory.allocate(self.size, CUPY, initial)
        except RefsimError as error:
            pool.gave_back(self.size)
            pool.free_all_blocks()
            raise OutOfMemoryError(f"Out of memory allocating {self.size:,} bytes: {error}") from error
        self._pool = pool
        _live()[made] = self
        return made

    def __del__(self) -> None:
        if getattr(self, "ptr", 0):
            self._session.memory.free(self.ptr)
            self._pool.gave_back(self.size)
            self.ptr = 0


def _live() -> "weakref.WeakValueDictionary[int, Memory]":
    """Return the live allocations of CuPy by their addresses."""
    known: weakref.WeakValueDictionary[int, Memory] = current().own.setdefault(
        "cupy memory", weakref.WeakValueDictionary()
    )
    return known


def memory_at(address: int) -> BaseMemory:
    """Return CuPy's allocation that holds an address, or memory of another owner."""
    found = current().memory.allocation_of(address)
    if found is None:
        return UnownedMemory(address, 0, None)
    return _live().get(found.address) or UnownedMemory(found.address, found.size, None)


class UnownedMemory(BaseMemory):
    """Memory of another package, kept alive by `owner`."""

    def __init__(self, ptr: int, size: int, owner: Any, device_id: int = -1) -> None:
        self.ptr, self.size, self.owner = int(ptr), int(size), owner


class MemoryPointer:
    """An address in device memory."""

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem, self.ptr, self.device_id = mem, mem.ptr + int(offset), 0

    @property
    def device(self) -> Any:
        return self.mem.device

    def __int__(self) -> int:
        return int(self.ptr)

    def __add__(self, offset: int) -> "MemoryPointer":
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + int(offset))

    __radd__ = __add__

    def __sub__(self, offset: int) -> "MemoryPointer":
        return self + -int(offset)

    def copy_from_device(self, src: "MemoryPointer", size: int) -> None:
        current().memory.copy(self.ptr, src.ptr, int(size))

    def copy_from_host(self, mem: Any, size: int) -> None:
        current().memory.write(self.ptr, host_bytes(_host_address(mem), int(size)))

    def copy_from(self, mem: Any, size: int) -> None:
        (self.copy_from_device if isinstance(mem, MemoryPointer) else self.copy_from_host)(mem, size)

    def copy_to_host(self, mem: Any, size: int) -> None:
        host_bytes(_host_address(mem), int(size))[:] = current().memory.read(self.ptr, int(size))

    def memset(self, value: int, size: int) -> None:
        current().memory.fill(self.ptr, bytes([int(value) & 255]), int(size))

    copy_from_async = with_stream(copy_from)
    copy_from_device_async = with_stream(copy_from_device)
    copy_from_host_async = with_stream(copy_from_host)
    copy_to_host_async = with_stream(copy_to_host)
    memset_async = with_stream(memset)

    __getattr__ = refusing("cupy.cuda.MemoryPointer")


def _host_address(mem: Any) -> int:
    """Return the address of host memory: a number, a ctypes pointer, or an object with `ptr`."""
    value: Any = mem.value if isinstance(mem, ctypes.c_void_p) else getattr(mem, "ptr", mem)
    return int(value or 0)


class MemoryPool:
    """Counts bytes in use and freed blocks that a real pool would keep. Blocks are split and never joined."""

    def __init__(self, allocator: Any = None) -> None:
        self._used, self._free, self._limit = 0, list[int](), 0

    def malloc(self, size: int) -> MemoryPointer:
        return MemoryPointer(Memory(size), 0)

    def took(self, size: int) -> None:
        """Count a block as used; OutOfMemoryError beyond the pool's limit."""
        wanted = -(-size // _UNIT) * _UNIT
        fitting = min((each for each in self._free if each >= wanted), default=0)
        if self._limit and not fitting and self.total_bytes() + wanted > self._limit:
            raise OutOfMemoryError(f"Out of memory allocating {wanted:,} bytes (limit set to: {self._limit:,} bytes).")
        if fitting:
            self._free.remove(fitting)
            self._free += [fitting - wanted] if fitting > wanted else []
        self._used += wanted

    def gave_back(self, size: int) -> None:
        """Count a block as free and kept."""
        wanted = -(-size // _UNIT) * _UNIT
        self._used -= wanted
        self._free.append(wanted)

    def free_all_blocks(self, stream: Any = None) -> None:
        self._free.clear()

    free_all_free = free_all_blocks

    def used_bytes(self) -> int:
        return self._used

    def free_bytes(self) -> int:
        return sum(self._free)

    def total_bytes(self) -> int:
        return self._used + self.free_bytes()

    def n_free_blocks(self) -> int:
        return len(self._free)

    def get_limit(self) -> int:
        return self._limit

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Set the most bytes that the pool may hold, in bytes or as a fraction of device memory."""
        if size is not None and fraction is not None:
            raise ValueError("size and fraction cannot be specified at one time")
        if fraction is not None:
            if not 0 <= fraction <= 1:
                raise ValueError(f"memory limit fraction out of range: {fraction}")
            size = int(fraction * MEMORY_BYTES)
        if (size or 0) < 0:
            raise ValueError(f"memory limit size out of range: {size}")
        self._limit = int(size or 0)


class PinnedMemoryPointer(np.ndarray[Any, Any]):
    """Bytes of the host with a buffer and an address."""

    @property
    def ptr(self) -> int:
        return int(self.ctypes.data)


class PinnedMemoryPool:
    """A pool that keeps no block: page-locked memory is ordinary memory here."""

    def free_all_blocks(self) -> None:
        """Do nothing: no block is kept."""

    n_free_blocks = always(0)


def default_pool() -> MemoryPool:
    """Return the memory pool of this session."""
    pool: MemoryPool = current().own.setdefault("cupy pool", MemoryPool())
    return pool


def alloc(size: int) -> MemoryPointer:
    return MemoryPointer(Memory(size), 0)
