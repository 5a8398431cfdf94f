"""Contexts, the device, streams and events of PyCUDA: one simulated GPU, and PyCUDA's errors. A call that returns has
completed."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from refsim.device.attributes import ATTRIBUTES
from refsim.errors import RefsimError
from refsim.ptx import is_fault
from refsim_run.seams import always, refuse, refusing
from refsim_run.session import DRIVER_VERSION, MEMORY_BYTES, UnsupportedError, current

device_attribute = type("device_attribute", (), {row.name: row.number for row in ATTRIBUTES})


class Error(Exception):
    """Any error of the driver."""


class MemoryError(Error):
    """Not enough device memory."""


class LogicError(Error):
    """A call with an invalid context, module or argument."""


class LaunchError(Error):
    """A kernel that failed."""


class RuntimeError(Error):
    """Any other error."""


class CompileError(Error):
    """CUDA C++ that does not compile: PyCUDA's text, with the compiler's log as `stderr`."""

    def __init__(self, msg: str, command_line: Any, stdout: str | None = None, stderr: str | None = None) -> None:
        super().__init__(msg, command_line, stdout, stderr)
        self.msg, self.command_line, self.stdout, self.stderr = msg, command_line, stdout, stderr

    def __str__(self) -> str:
        return "\n".join((self.msg, *(f"[stderr:\n{text}]" for text in (self.stderr,) if text)))


@contextmanager
def as_pycuda(call: str) -> Iterator[None]:
    """Raise the simulated GPU's errors as PyCUDA's (`cuMemAlloc failed: ...`), except what is not simulated."""
    try:
        yield
    except UnsupportedError:
        raise
    except RefsimError as error:
        kind = LaunchError if is_fault(error) else MemoryError if error.code == "out-of-memory" else LogicError
        raise kind(f"{call} failed: {error}") from error


class Device:
    """GPU 0, the simulated GPU."""

    def __init__(self, number: int = 0) -> None:
        _begun("cuDeviceGet")
        if int(number) != 0:
            raise LogicError(f"cuDeviceGet failed: invalid device ordinal {number}: one GPU is simulated")

    @staticmethod
    def count() -> int:
        _begun("cuDeviceGetCount")
        return 1

    def name(self) -> str:
        return current().device_name

    def compute_capability(self) -> tuple[int, int]:
        return current().capability

    total_memory = always(MEMORY_BYTES)
    pci_bus_id = always("0000:00:00.0")

    def get_attribute(self, number: int) -> int:
        return current().attribute(number, "pycuda.driver.Device.get_attribute")

    def get_attributes(self) -> dict[int, int]:
        """Return all attributes that the simulated GPU knows, by number."""
        return {row.number: current().value_of(row) for row in ATTRIBUTES}

    def __getattr__(self, name: str) -> int:
        number = getattr(device_attribute, name.upper(), None)
        if name.startswith("__") or number is None:
            raise refuse("pycuda.driver.Device", name)
        return self.get_attribute(number)

    def make_context(self, flags: int = 0) -> "Context":
        """Return a new context, which becomes the current one."""
        made = Context(self)
        made.push()
        return made

    def retain_primary_context(self) -> "Context":
        return Context(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device)

    def __hash__(self) -> int:
        return 0


class Context:
    """A context of the only GPU; all contexts share its memory."""

    _stack: list["Context"] = []  # noqa: RUF012 - the contexts of the process, the current one last

    def __init__(self, device: Device) -> None:
        self.device = device

    def push(self) -> None:
        Context._stack.append(self)

    @staticmethod
    def pop() -> None:
        """Remove the current context; LogicError without one, as in PyCUDA."""
        if not Context._stack:
            raise LogicError("cuCtxPopCurrent failed: invalid device context")
        Context._stack.pop()

    def detach(self) -> None:
        if self in Context._stack:
            Context._stack.remove(self)

    @staticmethod
    def get_current() -> "Context | None":
        return Context._stack[-1] if Context._stack else None

    @staticmethod
    def get_device() -> Device:
        return needed("cuCtxGetDevice").device

    @staticmethod
    def synchronize() -> None:
        needed("cuCtxSynchronize")

    __getattr__ = refusing("pycuda.driver.Context")


def needed(call: str) -> Context:
    """Return the current context; LogicError without one, as every call of the driver needs a context."""
    if not Context._stack:
        raise LogicError(f"{call} failed: invalid device context: no currently active context?")
    return Context._stack[-1]


_INIT = [False]


def init(flags: int = 0) -> None:
    _INIT[0] = True


def _begun(call: str) -> None:
    if not _INIT[0]:
        raise LogicError(f"{call} failed: initialization error: pycuda.driver.init() comes first")


get_version = always((DRIVER_VERSION // 1000, DRIVER_VERSION % 1000 // 10, 0))
get_driver_version = always(DRIVER_VERSION)


def mem_get_info() -> tuple[int, int]:
    """Return the free and the total bytes of device memory."""
    needed("cuMemGetInfo")
    return current().free_and_total


class Stream:
    """A stream, in which every call has completed when it returns."""

    def __init__(self, flags: int = 0) -> None:
        needed("cuStreamCreate")
        self.handle = id(self)

    def synchronize(self) -> None:
        needed("cuStreamSynchronize")

    is_done = always(True)

    def wait_for_event(self, event: "Event") -> None:
        needed("cuStreamWaitEvent")


class Event:
    """A moment in time; differences are times of the simulator, not of a GPU."""

    def __init__(self, flags: int = 0) -> None:
        needed("cuEventCreate")
        self._at: float | None = None

    def record(self, stream: Stream | None = None) -> "Event":
        self._at = perf_counter()
        return self

    def synchronize(self) -> "Event":
        return self

    query = always(True)

    def time_since(self, event: "Event") -> float:
        """Return the milliseconds from another event to this event."""
        if self._at is None or event._at is None:
            raise LogicError("cuEventElapsedTime failed: an event was not recorded")
        return (self._at - event._at) * 1e3

    def time_till(self, event: "Event") -> float:
        return event.time_since(self)
