"""torch.cuda on the simulated GPU: its device, streams, events and memory figures; all has happened when a call returns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from refsim.ptx.machine.limits import MAX_THREADS, REGISTERS
from refsim.ptx.text.constants import WARP_SIZE
from refsim.standins.properties import MEMORY_BYTES, device_name
from refsim.standins.session import current


class TorchEvent:
    """A moment; times between two are the simulator's own, not a GPU's."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **more: Any) -> None:
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        self._at = perf_counter()

    def wait(self, stream: Any = None) -> None:
        """It has happened."""

    def synchronize(self) -> None:
        """It has happened."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: "TorchEvent") -> float:
        """Milliseconds from this one to another."""
        if self._at is None or end._at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._at - self._at) * 1e3


class TorchStream:
    """A stream: what it is given has happened."""

    cuda_stream = stream_id = device_index = 0

    def __init__(self, device: Any = None, priority: int = 0, **more: Any) -> None:
        self.priority = priority

    def synchronize(self) -> None:
        """Everything has happened."""

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def wait_stream(self, stream: "TorchStream") -> None:
        """It has happened."""

    def wait_event(self, event: TorchEvent) -> None:
        """It has happened."""

    def record_event(self, event: TorchEvent | None = None) -> TorchEvent:
        made = event or TorchEvent()
        made.record(self)
        return made

    def __enter__(self) -> "TorchStream":
        return self

    def __exit__(self, *what: object) -> None:
        """The usual stream again: there is no difference."""


_USUAL = TorchStream()


class device:  # noqa: N801 - torch's own name
    """`with torch.cuda.device(0)`."""

    def __init__(self, number: Any) -> None:
        self.idx = 0

    def __enter__(self) -> None:
        """There is one."""

    def __exit__(self, *what: object) -> None:
        """There is one."""


class device_of(device):  # noqa: N801 - torch's own name
    """`with torch.cuda.device_of(tensor)`."""


def properties(number: Any = None) -> Any:
    session = current()
    major, minor = session.capability
    return SimpleNamespace(
        name=device_name(session),
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


def _always(value: Any = None) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


ANSWERS: dict[str, Any] = {
    "Event": TorchEvent,
    "Stream": TorchStream,
    "current_device": _always(0),
    "current_stream": _always(_USUAL),
    "default_stream": _always(_USUAL),
    "device": device,
    "device_count": _always(1),
    "device_of": device_of,
    "empty_cache": _always(),
    "get_device_capability": lambda device=None: current().capability,
    "get_device_name": lambda device=None: device_name(current()),
    "get_device_properties": properties,
    "init": _always(),
    "is_available": _always(True),
    "is_bf16_supported": _always(True),
    "is_current_stream_capturing": _always(False),
    "is_initialized": _always(True),
    "manual_seed": _always(),
    "manual_seed_all": _always(),
    "mem_get_info": lambda device=None: (MEMORY_BYTES - current().memory.live_bytes, MEMORY_BYTES),
    "reset_max_memory_allocated": _always(),
    "reset_peak_memory_stats": _always(),
    "set_device": _always(),
    "set_stream": _always(),
    "stream": _stream,
    "synchronize": _always(),
}
"""Names of torch.cuda; tensors are the host's, so that a seed is that of the host's numbers."""
ACCELERATOR: dict[str, Any] = {
    "current_device_index": _always(0),
    "current_device_idx": _always(0),
    "current_stream": _always(_USUAL),
    "device_count": _always(1),
    "is_available": _always(True),
    "set_device_index": _always(),
    "set_stream": _always(),
    "synchronize": _always(),
}
"""Names of torch.accelerator."""
WITHOUT_ANSWER = (
    "CUDAGraph",
    "get_rng_state",
    "get_rng_state_all",
    "graph",
    "graphs",
    "make_graphed_callables",
    "max_memory_allocated",
    "max_memory_reserved",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "seed",
    "seed_all",
    "set_rng_state",
    "set_rng_state_all",
)
"""Names of torch.cuda to which there is no true answer: no allocator of a GPU has these tensors, and no generator of one."""
