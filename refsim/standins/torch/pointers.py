"""Tensors with a device address: a program that asks for data_ptr() may put the address into a table for a kernel."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.standins.memory import host_bytes
from refsim.standins.session import GpuSession

OF_TORCH = "torch"
Stretch = tuple[int, NDArray[np.uint8]]
_BY_COMPILER: ContextVar[bool] = ContextVar("by_compiler", default=False)


@contextmanager
def host_addresses() -> Iterator[None]:
    """Let tensors report their addresses in host memory inside the block, as a launch needs them."""
    token = _BY_COMPILER.set(True)
    try:
        yield
    finally:
        _BY_COMPILER.reset(token)


@dataclass(frozen=True)
class Pointed:
    """A tensor's memory with its device address, valid as long as the memory lives."""

    alive: Any
    host: int
    size: int
    address: int


class PointedMemory:
    """All memory with a device address, by its host address. Around a launch it is copied to the device and back."""

    def __init__(self, session: GpuSession) -> None:
        self.session = session
        self.known: dict[int, Pointed] = {}

    @classmethod
    def of(cls, session: GpuSession) -> "PointedMemory":
        """Return the object of a session, made on the first call."""
        made: PointedMemory = session.own.setdefault("torch.pointers", cls(session))
        return made

    def address(self, tensor: Any, torch: Any) -> int:
        """Return the device address of a host tensor's first element; inside `host_addresses`, its host address."""
        host = int(tensor.data_ptr())
        storage = tensor.untyped_storage()
        if _BY_COMPILER.get() or not storage.nbytes():
            return host
        self._forget_the_dead()
        first = int(storage.data_ptr())
        if first not in self.known:
            alive = torch.multiprocessing.reductions.StorageWeakRef(storage)
            place = self.session.memory.allocate(storage.nbytes(), OF_TORCH)
            self.known[first] = Pointed(alive, first, storage.nbytes(), place)
        return self.known[first].address + host - first

    def _forget_the_dead(self) -> None:
        for each in [each for each in self.known.values() if each.alive.expired()]:
            self.session.memory.free(self.known.pop(each.host).address)

    @contextmanager
    def lent(self) -> Iterator[tuple[list[Stretch], list[int]]]:
        """Copy this memory to the device, yield (host memory, device addresses), and copy back what kernels wrote."""
        self._forget_the_dead()
        memory, lent = self.session.memory, list(self.known.values())
        for each in lent:
            memory.write(each.address, host_bytes(each.host, each.size))
        try:
            yield [(each.host, host_bytes(each.host, each.size)) for each in lent], [each.address for each in lent]
        finally:
            for each in lent:
                memory.bring_back(each.address, host_bytes(each.host, each.size))
