"""torch.cuda on the simulated GPU: device, streams, events, memory figures. A call that returns has completed.

A program that asks for data_ptr() may put the address into a table for a kernel: such tensors get a device address.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.machine.launch_rules import MAX_THREADS, REGISTERS
from refsim.ptx.text.declarations import WARP_SIZE
from refsim_run.memory import host_bytes
from refsim_run.seams import always, names_in
from refsim_run.session import MEMORY_BYTES, GpuSession, current


class TorchEvent:
    """A moment in time; differences are times of the simulator, not of a GPU."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **more: Any) -> None:
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        self._at = perf_counter()

    wait = synchronize = always()

    query = always(True)

    def elapsed_time(self, end: "TorchEvent") -> float:
        """Return the milliseconds from this event to another; RuntimeError unless both are recorded."""
        if self._at is None or end._at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._at - self._at) * 1e3


class TorchStream:
    """A stream, in which every call has completed when it returns."""

    cuda_stream = stream_id = device_index = 0

    def __init__(self, device: Any = None, priority: int = 0, **more: Any) -> None:
        self.priority = priority

    synchronize = wait_stream = wait_event = __exit__ = always()

    query = always(True)

    is_capturing = always(False)

    def record_event(self, event: TorchEvent | None = None) -> TorchEvent:
        """Record an event, by default a new one, and return it."""
        made = event or TorchEvent()
        made.record(self)
        return made

    def __enter__(self) -> "TorchStream":
        return self


_USUAL = TorchStream()


class device:  # noqa: N801 - torch's own name
    """The context manager `with torch.cuda.device(0)`."""

    def __init__(self, number: Any) -> None:
        self.idx = 0

    __enter__ = __exit__ = always()


class device_of(device):  # noqa: N801 - torch's own name
    """The context manager `with torch.cuda.device_of(tensor)`."""


def properties(number: Any = None) -> Any:
    """Return the properties of the simulated GPU, as torch.cuda.get_device_properties does."""
    session = current()
    major, minor = session.capability
    return SimpleNamespace(
        name=session.device_name,
        major=major,
        minor=minor,
        total_memory=MEMORY_BYTES,
        multi_processor_count=session.limits.sms,
        warp_size=WARP_SIZE,
        regs_per_multiprocessor=REGISTERS,
        max_threads_per_block=MAX_THREADS,
        max_threads_per_multi_processor=session.limits.warps * WARP_SIZE,
        shared_memory_per_multiprocessor=session.limits.shared,
        shared_memory_per_block_optin=session.limits.opt_in,
        is_integrated=0,
        is_multi_gpu_board=0,
    )


@contextmanager
def _stream(stream: Any) -> Iterator[None]:
    yield


ANSWERS: dict[str, Any] = {
    **dict.fromkeys(
        names_in("empty_cache init manual_seed manual_seed_all set_device set_stream synchronize"), always()
    ),
    **dict.fromkeys(names_in("reset_max_memory_allocated reset_peak_memory_stats"), always()),
    "Event": TorchEvent,
    "Stream": TorchStream,
    "current_device": always(0),
    "current_stream": always(_USUAL),
    "default_stream": always(_USUAL),
    "device": device,
    "device_count": always(1),
    "device_of": device_of,
    "get_device_capability": lambda device=None: current().capability,
    "get_device_name": lambda device=None: current().device_name,
    "get_device_properties": properties,
    "is_available": always(True),
    "is_bf16_supported": always(True),
    "is_current_stream_capturing": always(False),
    "is_initialized": always(True),
    "mem_get_info": lambda device=None: current().free_and_total,
    "stream": _stream,
}
"""Names of torch.cuda. The host draws random numbers, so that a seed is the host's seed."""
ACCELERATOR: dict[str, Any] = {
    **dict.fromkeys(names_in("set_device_index set_stream synchronize"), always()),
    "current_device_index": always(0),
    "current_device_idx": always(0),
    "current_stream": always(_USUAL),
    "device_count": always(1),
    "is_available": always(True),
}
"""Names of torch.accelerator."""
WITHOUT_ANSWER = names_in("""
    CUDAGraph get_rng_state get_rng_state_all graph graphs make_graphed_callables max_memory_allocated
    max_memory_reserved memory_allocated memory_reserved memory_stats memory_summary seed seed_all set_rng_state
    set_rng_state_all
""")
"""Names of torch.cuda without a true answer here: no GPU allocator or generator serves these tensors."""


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
