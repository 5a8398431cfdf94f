"""Device memory of a program: allocations of the simulated GPU with their owners, and host arrays that kernels use."""

import ctypes
import functools
import os
import sys
import sysconfig
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

import refsim
from refsim.errors import RefsimError
from refsim.ptx import GlobalMemory
from refsim.ptx.memory.space import LARGE_BYTES
from refsim_run.records import HeldMemory

Bytes = NDArray[np.uint8]
Tell = Callable[..., None]
Given = ParamSpec("Given")
Found = TypeVar("Found")
_OURS = tuple(str(Path(each).parent) + os.sep for each in (refsim.__file__, __file__))
_OF_OTHERS = tuple({sysconfig.get_path(each) + os.sep for each in ("stdlib", "platstdlib", "purelib", "platlib")})
_ALIGN = 256
MOST_POISONED = 1 << 28
"""Larger memory of the host is left as it is."""
HOST_POISON = np.array([0x7FFC7FE5], np.uint32)
"""Fills uninitialized memory, in words at multiples of 4 bytes: a quiet NaN in float64, float32, bfloat16, float16,
whose bits arithmetic of the host keeps. Each run has its own, so that no program holds it by accident."""


@dataclass(frozen=True)
class Allocation:
    """An allocation of device memory: address, bytes, package, line of the program, and a running number."""

    address: int
    size: int
    package: str
    place: str
    number: int


def _in_turn(
    method: "Callable[Concatenate[DeviceMemory, Given], Found]",
) -> "Callable[Concatenate[DeviceMemory, Given], Found]":
    """Return a method that runs while no other thread runs such a method of the object."""

    @functools.wraps(method)
    def call(self: "DeviceMemory", /, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        with self.alone():
            return method(self, *args, **kwargs)

    return call


@dataclass
class DeviceMemory:
    """The device memory of one process. Kernels see its addresses; every copy is checked.

    `tell` is called with each error; `is_wrong=False` marks an access that may be intended. `begun` is called when
    memory is first used. Threads take turns (`alone`). Allocations up to number `forgotten` belong to the parent
    process and are not reported. `marks` holds, by address, whether host memory ended, and which of its bytes no one wrote.
    `inputs` are the numbers of allocations that the host filled in part: back from a launch that stored nothing there,
    the rest is no output.
    """

    tell: Tell = lambda error, is_wrong=True: None
    begun: Callable[[], None] = lambda: None
    memory: GlobalMemory = field(default_factory=GlobalMemory)
    live: dict[int, Allocation] = field(default_factory=dict)
    count: int = 0
    mappings: int = 0
    total_bytes: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0
    forgotten: int = 0
    marks: dict[int, tuple[Callable[[], bool], NDArray[np.bool_]]] = field(default_factory=dict)
    inputs: set[int] = field(default_factory=set)
    _turn: Any = field(default_factory=RLock)
    _depth: int = 0
    _later: list[int] = field(default_factory=list)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other threads away from device memory; memory that is freed meanwhile is freed at the end."""
        with self._turn:
            self._depth += 1
            try:
                yield
            finally:
                while self._later and self._depth == 1:
                    self.memory.free(self._later.pop(), idle=True)
                self._depth -= 1

    def forget(self) -> None:
        """Report no allocation made up to now: this process is a child by fork, and no other thread runs in it."""
        self._turn, self._depth = RLock(), 0
        self.forgotten, self.total_bytes, self.peak_bytes = self.count, 0, 0

    @_in_turn
    def allocate(self, size: int, package: str, initial: Bytes | None = None) -> int:
        """Return the address of `size` new bytes, uninitialized or holding `initial`; RefsimError `out-of-memory`."""
        self.begun()
        self.count += 1
        name = f"allocation {self.count} of {package}"
        address = self.memory.allocate(max(int(size), 1), name, initial=initial, align=_ALIGN)
        if initial is not None and initial.flags.c_contiguous:
            self._leave_open(address, left_poison(initial))
        elif initial is None and size < LARGE_BYTES:
            poison_host(self.memory.space.bytes[address - self.memory.space.base :][: int(size)])
        self.live[address] = Allocation(address, int(size), package, caller(), self.count)
        self.total_bytes += size
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return address

    def held_since(self, count: int) -> int:
        """Return how many bytes are still allocated, of allocations made after the first `count`."""
        return sum(each.size for each in self.live.values() if each.number > count)

    def scratch(self, size: int, package: str) -> int:
        """Return the address of `size` zero bytes for one launch; 0 where `size` is 0."""
        return self.allocate(size, package, np.zeros(size, np.uint8)) if size else 0

    @_in_turn
    def free(self, address: int) -> None:
        """Give an allocation back; RefsimError `bad-address` for an address where none begins."""
        if address not in self.live:
            raise self.not_free(address)
        self.live_bytes -= self.live.pop(address).size
        self._later.append(address)

    def not_free(self, address: int) -> RefsimError:
        """Return and report the error for a free of an address where no live allocation begins."""
        lies = self.memory.space.describe(address - self.memory.space.base, 1)
        what = f"{address:#x} is not an allocation: {lies}"
        return self._told(RefsimError("bad-address", what, caller(), "free takes what allocate returned, once"))

    @_in_turn
    def read(self, address: int, size: int) -> Bytes:
        """Return a copy of some bytes for the host; report the bytes that are uninitialized."""
        self._check(address, size)
        given = self.allocation_of(address)
        if given is None or given.number not in self.inputs or self.memory.was_stored_to(address):
            self.reads(address, (size,), np.dtype(np.uint8), (1,), "the host reads")
        return self.memory.read(address, size)

    def reads(self, address: int, shape: Sequence[int], kind: np.dtype[Any], strides: Sequence[int], who: str) -> None:
        """Report a host read of an array with uninitialized bytes, as a warning: the read may be intended."""
        unwritten = self.open_bytes(address, shape, kind, strides)
        if unwritten is not None:
            region = self.memory.space.region_at(address - self.memory.space.base)
            count, lies = int(np.count_nonzero(unwritten)), region.name if region else self.memory.space.name
            what = f"{who} {unwritten.size} B of {lies}, of which {count} were never written"
            self.tell(RefsimError("uninitialised", what, caller()), is_wrong=False)

    def _told(self, error: RefsimError) -> RefsimError:
        self.tell(error)
        return error

    @_in_turn
    def write(self, address: int, content: Bytes) -> None:
        """Copy bytes of the host to an address; those that nobody wrote stay uninitialized. RefsimError `bad-address`
        outside an allocation."""
        self._check(address, content.nbytes)
        self.memory.write(address, content)
        unwritten, given = self.open_on_host(content), self.allocation_of(address)
        self._leave_open(address, unwritten)
        if given is not None and unwritten is not None and not unwritten.all():
            self.inputs.add(given.number)

    def _leave_open(self, address: int, unwritten: NDArray[np.bool_] | None) -> None:
        """Mark bytes from an address on as uninitialized where `unwritten` is set."""
        if unwritten is not None and unwritten.any():
            space, start = self.memory.space, address - self.memory.space.base
            space.unwritten[start : start + len(unwritten)] = unwritten
            region = space.region_at(start)
            if region is not None:
                space.initialised.discard(region.name)

    def fill(self, address: int, pattern: bytes, count: int) -> None:
        """Write the bytes of `pattern` `count` times, one copy after another."""
        self.write(address, np.tile(np.frombuffer(pattern, np.uint8), count))

    @_in_turn
    def copy(self, to: int, source: int, size: int) -> None:
        """Copy bytes from one place of the device to another; uninitialized bytes stay uninitialized."""
        self._check(source, size)
        written = self.memory.written(source, size)
        content = self.memory.read(source, size)
        self._check(to, size)
        self.memory.write(to, content)
        self._leave_open(to, ~written)

    def holds(self, address: int) -> bool:
        """Return whether an address lies in device memory."""
        return self.memory.space.region_at(address - self.memory.space.base) is not None

    def allocation_of(self, address: int) -> Allocation | None:
        """Return the allocation that holds an address; None where there is none."""
        region = self.memory.space.region_at(address - self.memory.space.base)
        return None if region is None else self.live.get(region.start + self.memory.space.base)

    def array(self, address: int, shape: Sequence[int], kind: Any, strides: Sequence[int]) -> NDArray[Any]:
        """Return device memory itself as a NumPy array, valid until the next allocation; a writer calls `wrote`."""
        return self._seen(self.memory.space.bytes, address, shape, np.dtype(kind), strides)

    def wrote(
        self,
        address: int,
        shape: Sequence[int],
        kind: Any,
        strides: Sequence[int],
        index: Any = ...,
        *,
        is_open: bool = False,
    ) -> None:
        """Mark elements of an array of device memory as written by the host, or as uninitialized if `is_open`: elements
        at `index`, by default all."""
        element = np.dtype((np.void, np.dtype(kind).itemsize))
        marks = self._seen(self.memory.space.unwritten, address, shape, element, strides)
        marks[index] = np.frombuffer(bytes([is_open]) * element.itemsize, element)[0]
        if is_open and (region := self.memory.space.region_at(address - self.memory.space.base)) is not None:
            self.memory.space.initialised.discard(region.name)

    def open_bytes(
        self, address: int, shape: Sequence[int], kind: Any, strides: Sequence[int]
    ) -> NDArray[np.bool_] | None:
        """Return which bytes of an array of device memory are uninitialized, with an axis of its bytes; None for none."""
        space = self.memory.space
        if 0 in shape or ((region := space.region_at(address - space.base)) and region.name in space.initialised):
            return None
        size = np.dtype(kind).itemsize
        marks = self._seen(space.unwritten, address, (*shape, size), np.dtype(np.bool_), (*strides, 1))
        return marks if marks.any() else None

    def _seen(self, flat: Bytes, address: int, shape: Sequence[int], kind: Any, strides: Sequence[int]) -> NDArray[Any]:
        reach = [(count - 1) * stride for count, stride in zip(shape, strides, strict=True)]
        if 0 in shape:
            return np.empty(shape, kind)
        low, high = (sum(each for each in reach if (each > 0) is way) for way in (False, True))
        self._check(address + low, high - low + kind.itemsize)
        begin = address + low - self.memory.space.base
        self.memory.space.touch_all(begin, begin + high - low + kind.itemsize)
        return np.ndarray(tuple(shape), kind, flat, address - self.memory.space.base, tuple(strides))

    def _check(self, address: int, size: int) -> None:
        position = int(address) - self.memory.space.base
        region = self.memory.space.region_at(position)
        if size and (region is None or position + size > region.end):
            what = f"{size} B at {address:#x}: {self.memory.space.describe(position, size)}"
            rule = "a copy lies within one allocation of the device"
            raise self._told(RefsimError("bad-address", what, caller(), rule))

    @contextmanager
    def mapped(self, arrays: Sequence[tuple[int, Bytes]], package: str) -> Iterator[list[int]]:
        """Map host memory to the device while a kernel runs; yield the device address of each (host address, bytes).

        What the kernel wrote is copied back. A device address and its host address have equal offsets from a
        multiple of 256.
        """
        made: list[int] = []
        try:
            for host, content in arrays:
                made.append(self._mapped(host, content, package))
            yield made
        finally:
            with self.alone():
                for (_, content), address in zip(arrays, made, strict=False):
                    self.bring_back(address, content)
                    self.memory.free(address)

    def bring_back(self, address: int, content: Bytes) -> None:
        """Copy to host memory what kernels wrote at an address."""
        if self.memory.was_stored_to(address):
            content[:] = self.memory.read(address, content.nbytes)
            if (marks := self.marks_of(content.ctypes.data, content.nbytes)) is not None:
                marks &= ~self.memory.written(address, content.nbytes)

    def marks_of(self, host: int, size: int) -> NDArray[np.bool_] | None:
        """Return which bytes of marked host memory no one wrote, by its address and size; None for other memory."""
        is_over, marks = self.marks.get(host, (bool, None))
        return marks if marks is not None and len(marks) == size and not is_over() else None

    def open_on_host(self, content: Bytes) -> NDArray[np.bool_] | None:
        """Return which bytes of host memory were never written, None for none: marked ones, and words of poison."""
        found, marks = left_poison(content), self.marks_of(content.ctypes.data, content.nbytes)
        if marks is not None and marks.any():
            if (content[marks] != np.resize(HOST_POISON.view(np.uint8), content.nbytes)[marks]).any():
                marks[:] = False  # something wrote here unseen: words decide
            found = marks if found is None else marks | found
        return found

    @_in_turn
    def _mapped(self, host: int, content: Bytes, package: str) -> int:
        self.mappings += 1
        name, size = f"host memory {self.mappings} of {package} ({content.nbytes} B)", max(content.nbytes, 1)
        address = self.memory.allocate(size, name, initial=content, align=_ALIGN, offset=host % _ALIGN)
        self._leave_open(address, self.open_on_host(content))
        return address

    def read_by_host(self, content: Bytes, what: str) -> None:
        """Report bytes that the host reads and that nobody wrote, as a warning: the read may be intended."""
        unwritten = self.open_on_host(content)
        if unwritten is not None and unwritten.any():
            said = f"the host reads {content.nbytes} B of {what}, of which {np.count_nonzero(unwritten)} were never written"
            self.tell(RefsimError("uninitialised", said, caller()), is_wrong=False)

    def held(self) -> list[HeldMemory]:
        """Return the allocations that were never freed, grouped by package and line, the most bytes first."""
        found: dict[tuple[str, str], HeldMemory] = {}
        for each in (each for each in self.live.values() if each.number > self.forgotten):
            row = found.setdefault((each.package, each.place), HeldMemory(each.package, each.place, 0, 0))
            row.count += 1
            row.bytes += each.size
        return sorted(found.values(), key=lambda row: (-row.bytes, row.place))


def host_bytes(address: int, size: int) -> Bytes:
    """Return host memory at an address as a NumPy array of bytes; the caller keeps the memory alive."""
    room: Any = (ctypes.c_uint8 * int(size)).from_address(int(address)) if size else bytearray()
    return np.frombuffer(room, np.uint8)


def vary_poison(name: str) -> None:
    """Choose the poison by the name of a run."""
    chosen = zlib.crc32(name.encode())
    HOST_POISON[0] = 0x7FF87FC1 + (chosen % 8 << 16) + chosen // 8 % 62


def poison_host(content: Bytes) -> None:
    """Fill memory of the host that nobody has written yet, so that a launch finds what is left of it."""
    words, _ = _words(content)
    words[:] = HOST_POISON


def poison_empty() -> None:
    """Poison what numpy.empty and empty_like return to code outside installed packages, up to 256 MiB."""
    for name in ("empty", "empty_like"):
        setattr(np, name, _poisoned(getattr(np, name)))


def is_of_program(frame: FrameType) -> bool:
    """Return whether a frame runs the program's own code, neither refsim's nor that of an installed package."""
    return not frame.f_code.co_filename.startswith((*_OURS, *_OF_OTHERS, "<"))


def _poisoned(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return numpy.empty or empty_like with the poison in what the program's own code gets."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = function(*args, **kwargs)
        is_plain = type(found) is np.ndarray and found.flags.forc and found.dtype.kind in "iufcV"
        if is_plain and found.nbytes <= MOST_POISONED and is_of_program(sys._getframe(1)):
            poison_host(found.reshape(-1, order="A").view(np.uint8))
        return found

    return call


def left_poison(content: Bytes) -> NDArray[np.bool_] | None:
    """Return which bytes of host memory hold the poison, None for none. Words count as a whole: up to three unwritten
    bytes beside a written one are missed."""
    words, first = _words(content)
    found = words == HOST_POISON
    if not found.any():
        return None
    unwritten = np.zeros(content.nbytes, np.bool_)
    unwritten[first : first + 4 * len(words)] = np.repeat(found, 4)
    return unwritten


def _words(content: Bytes) -> tuple[NDArray[np.uint32], int]:
    """Return the aligned words of host memory, and the byte where they begin."""
    first = -content.ctypes.data % 4
    return content[first : first + (content.nbytes - first) // 4 * 4].view(np.uint32), first


def caller() -> str:
    """Return file and line of the program's nearest frame outside refsim and installed packages, else of any frame."""
    frame: FrameType | None = sys._getframe(1)
    nearest = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OURS):
            nearest = nearest or f"{Path(name).name}:{frame.f_lineno}"
            if is_of_program(frame):
                return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return nearest
