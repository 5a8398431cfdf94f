"""The device, streams and events of CuPy: one simulated GPU. A call that returns has completed."""

from time import perf_counter
from typing import Any

from refsim.device.attributes import ATTRIBUTES
from refsim_run.seams import always, refuse, refusing
from refsim_run.session import current

_SPELT = {
    "MULTIPROCESSOR_COUNT": "MultiProcessorCount",
    "MAX_THREADS_PER_MULTIPROCESSOR": "MaxThreadsPerMultiProcessor",
}


class CupyDevice:
    """GPU 0, the simulated GPU; `with Device(0)` changes nothing."""

    def __init__(self, device: Any = None) -> None:
        self.id = int(getattr(device, "id", device) or 0)
        if self.id:
            from refsim_run.cupy.runtime import CUDARuntimeError

            raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal: one GPU is simulated")

    @property
    def compute_capability(self) -> str:
        return "".join(map(str, current().capability))

    @property
    def attributes(self) -> dict[str, int]:
        """Return all attributes that the simulated GPU knows, by CuPy's names: MaxThreadsPerBlock."""
        return {_SPELT.get(row.name, row.name.title().replace("_", "")): current().value_of(row) for row in ATTRIBUTES}

    @property
    def mem_info(self) -> tuple[int, int]:
        return current().free_and_total

    pci_bus_id = "0000:00:00.0"

    synchronize = use = __exit__ = always()

    def __enter__(self) -> "CupyDevice":
        return self

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CupyDevice)

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    __getattr__ = refusing("cupy.cuda.Device")


class CupyEvent:
    """A moment in time; differences are times of the simulator, not of a GPU."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.ptr, self.at = id(self), None if disable_timing else 0.0

    done = True

    def record(self, stream: Any = None) -> None:
        self.at = perf_counter()

    synchronize = always()


def get_elapsed_time(start_event: CupyEvent, end_event: CupyEvent) -> float:
    """Return the milliseconds from one event to another."""
    if start_event.at is None or end_event.at is None:
        from refsim_run.cupy.runtime import CUDARuntimeError

        raise CUDARuntimeError(400, "cudaErrorInvalidResourceHandle: invalid resource handle")
    return (end_event.at - start_event.at) * 1e3


class CupyStream:
    """A stream, in which every call has completed when it returns."""

    null: "CupyStream"
    ptds: "CupyStream"

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: Any = None
    ) -> None:
        self.ptr = 0 if null else 2 if ptds else id(self)
        self.is_non_blocking, self.priority, self.device_id = non_blocking, int(priority or 0), 0

    done = True

    synchronize = wait_event = always()

    def use(self) -> "CupyStream":
        _STREAMS[-1] = self
        return self

    def record(self, event: CupyEvent | None = None) -> CupyEvent:
        made = CupyEvent() if event is None else event
        made.record(self)
        return made

    def launch_host_func(self, callback: Any, arg: Any) -> None:
        callback(arg)

    def add_callback(self, callback: Any, arg: Any) -> None:
        callback(self, 0, arg)

    def __enter__(self) -> "CupyStream":
        _STREAMS.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        _STREAMS.pop()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CupyStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return hash(self.ptr)

    __getattr__ = refusing("cupy.cuda.Stream")


CupyStream.null, CupyStream.ptds = CupyStream(null=True), CupyStream(ptds=True)
_STREAMS = [CupyStream.null]


class ExternalStream(CupyStream):
    """A stream of another package."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        super().__init__()
        self.ptr = int(ptr)


def get_current_stream(device_id: int = -1) -> CupyStream:
    return _STREAMS[-1]


get_device_id = always(0)


_OWN_NAMES = {"Device": CupyDevice, "Event": CupyEvent, "Stream": CupyStream}


def __getattr__(name: str) -> Any:
    """Return a class by its name in cupy.cuda.device or cupy.cuda.stream."""
    if name in _OWN_NAMES:
        return _OWN_NAMES[name]
    raise refuse("cupy.cuda.device", name)
