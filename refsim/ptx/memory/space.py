"""State spaces: flat bytes with a shadow byte each, regions with red zones between them, vectorised access.

Every access names byte positions for many lanes at once. It is checked (inside one region, aligned, initialised) before
a byte moves, so that a fault leaves memory as it was. Global addresses start at GLOBAL_BASE: a pointer cut to 32 bits,
or a null pointer, hits nothing. Shared memory starts at SHARED_BASE within its window, so that address 0 traps there too.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError

Addresses = NDArray[np.int64]
GLOBAL_BASE = 0x0000_0040_0000_0000
WINDOWS = {"shared": 0x0000_0020_0000_0000, "local": 0x0000_0030_0000_0000, "param": 0x0000_0038_0000_0000}
WINDOW_SIZE = 1 << 32
SHARED_BASE = 1024
RED_ZONE = 512
POISON = 0xA5
MAX_BYTES = 16 << 30
THREADS = 1 << 40  # a byte's writer is a PTX line * THREADS + the number of the thread in its grid
_DOUBLED = 16 << 20

# Items of one access, by width: one move per lane, whatever it holds. complex128 is NumPy's only 16-byte item.
ITEM = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


@dataclass(frozen=True)
class Region:
    """A piece of memory that a kernel may touch: byte positions [start, end) of its space."""

    name: str
    start: int
    end: int
    writable: bool = True


class AccessError(Exception):
    """Which lane broke which rule; the machine adds the statement and the thread."""

    def __init__(self, code: str, lane: int, what: str) -> None:
        super().__init__(what)
        self.code, self.lane, self.what = code, lane, what


@dataclass
class Space:
    """One state space. `stride` bytes belong to each owner (CTA or lane); global memory has one owner."""

    name: str
    base: int
    stride: int = 0
    bytes: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    shadow: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    writer: NDArray[np.int64] | None = None
    regions: list[Region] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    initialised: set[str] = field(default_factory=set)
    stored: set[str] = field(default_factory=set)

    def add(self, region: Region) -> None:
        """Regions are added in rising order."""
        self.regions.append(region)
        self.starts.append(region.start)

    def region_at(self, position: int) -> Region | None:
        """The region that holds a byte position, or None."""
        found = bisect_right(self.starts, position) - 1
        if found >= 0 and position < self.regions[found].end:
            return self.regions[found]
        return None

    def describe(self, position: int, width: int) -> str:
        """Where an access that left its region lies, relative to the nearest one."""
        found = bisect_right(self.starts, position + width - 1) - 1
        if found < 0:
            return f"below every {self.name} buffer" if self.regions else f"the kernel has no {self.name} memory"
        region = self.regions[found]
        size = f"{region.name} ({region.end - region.start} B)"
        if position < region.start:
            return f"it starts {region.start - position} B before {size}"
        past = position - region.end
        return f"{past} B past the end of {size}" if past >= 0 else f"it ends {past + width} B past the end of {size}"

    def check(self, at: Addresses, width: int, *, store: bool) -> Region | None:
        """Raise AccessError unless each access lies in one region and is aligned; the region if all share it."""
        low, high = int(at.min()), int(at.max())
        shared = self.region_at(low)
        if shared is None or high + width > shared.end:
            self.check_each(at, width)
            shared = None
        if width > 1 and (misaligned := at & (width - 1)).any():
            lane = int(np.flatnonzero(misaligned)[0])
            raise AccessError(
                "misaligned", lane, f"address {self.address(at[lane])} is not a multiple of {width} bytes"
            )
        if store and (shared is None or not shared.writable):
            for lane, position in enumerate(at):
                region = self.region_at(int(position))
                if region is not None and not region.writable:
                    raise AccessError("read-only", lane, f"{region.name} is read-only")
        return shared

    def check_each(self, at: Addresses, width: int) -> None:
        starts = np.array(self.starts or [0], dtype=np.int64)
        ends = np.array([region.end for region in self.regions] or [0], dtype=np.int64)
        found = np.searchsorted(starts, at, side="right") - 1
        bad = (found < 0) | (at + width > ends[np.maximum(found, 0)])
        if bad.any():
            lane = int(np.flatnonzero(bad)[0])
            position = int(at[lane])
            raise AccessError(
                "out-of-bounds", lane,
                f"{width} B at {self.name} address {self.address(position)}: {self.describe(position, width)}",
            )  # fmt: skip

    def address(self, position: Any) -> str:
        """The address of a byte position as the kernel sees it."""
        return hex(int(position) + self.base)

    def index(self, at: Addresses, owner: Addresses | int, width: int) -> Addresses:
        """Item numbers in the flat bytes for positions of each owner; the stride is a multiple of 16."""
        flat = at + owner * self.stride if self.stride else at
        return flat if width == 1 else flat >> (width.bit_length() - 1)

    def load(self, at: Addresses, owner: Addresses | int, width: int, *, checked: bool) -> NDArray[Any]:
        """One item of `width` bytes per lane; `checked` demands that every byte was written before."""
        region = self.check(at, width, store=False)
        index = self.index(at, owner, width)
        if checked and (region is None or region.name not in self.initialised):
            self.check_initialised(at, index, width)
        return self.bytes.view(ITEM[width]).take(index)

    def locate(self, at: Addresses, owner: Addresses | int, width: int, *, store: bool) -> Addresses:
        """The checked item numbers of an access."""
        self.check(at, width, store=store)
        return self.index(at, owner, width)

    def check_initialised(self, at: Addresses, index: Addresses, width: int) -> None:
        narrow = min(width, 8)
        marks: NDArray[np.unsignedinteger] = self.shadow.view(ITEM[width]).take(index).view(ITEM[narrow])
        whole = int.from_bytes(b"\1" * narrow, "little")
        if (bad := (marks != whole).reshape(len(at), -1).any(axis=1)).any():
            lane = int(np.flatnonzero(bad)[0])
            region = self.region_at(int(at[lane]))
            name = region.name if region else self.name
            inside = int(at[lane]) - (region.start if region else 0)
            raise AccessError(
                "uninitialised", lane,
                f"{width} B at {self.name} address {self.address(at[lane])} (byte {inside} of {name}) were never written",
            )  # fmt: skip

    def note_stored(self, region: Region | None) -> None:
        """Some bytes of a region were stored to; None: of several ones, so that any may have been."""
        if region is not None:
            self.stored.add(region.name)
        else:
            self.stored.update(one.name for one in self.regions if one.writable)

    def store(
        self, at: Addresses, owner: Addresses | int, items: NDArray[Any], width: int, writers: NDArray[np.int64]
    ) -> None:
        """Write one item per lane; lanes that hit the same address: the last lane stays."""
        region = self.check(at, width, store=True)
        self.note_stored(region)
        index = self.index(at, owner, width)
        self.bytes.view(ITEM[width])[index] = items
        if region is None or region.name not in self.initialised:
            self.shadow.view(ITEM[width])[index] = np.frombuffer(b"\1" * width, ITEM[width])[0]
        if self.writer is not None:
            for byte in range(width):
                self.writer[index * width + byte] = writers


class GlobalMemory:
    """Device memory of one simulated GPU: named buffers with red zones between them.

    `allocate` returns an address; buffers keep their contents from launch to launch. Reading a byte that neither the
    host nor a kernel wrote is a fault in a launch.
    """

    def __init__(self) -> None:
        self.space = Space("global", GLOBAL_BASE)

    def allocate(self, size: int, name: str, *, initial: bytes | NDArray[Any] | None = None, align: int = 256,
                 offset: int = 0, writable: bool = True) -> int:  # fmt: skip
        """Reserve `size` bytes at an address that is `offset` more than a multiple of `align`; return the address.

        With `initial` (bytes or an array of that size) the buffer counts as written, else it is poisoned and unread.
        Raises RefsimError `out-of-memory` beyond 16 GiB.
        """
        space = self.space
        start = -(-(self.end + RED_ZONE) // align) * align + offset
        if start + size > MAX_BYTES:
            raise RefsimError("out-of-memory", f"{size} B for {name}: the simulated GPU has {MAX_BYTES} B")
        self.reserve(start + size + RED_ZONE)
        space.add(Region(name, start, start + size, writable))
        if initial is not None:
            raw = np.frombuffer(initial, np.uint8) if isinstance(initial, bytes) else _raw(initial)
            space.bytes[start : start + size] = raw
            space.shadow[start : start + size] = 1
            space.initialised.add(name)
        return start + GLOBAL_BASE

    @property
    def end(self) -> int:
        """The byte position behind the last buffer."""
        return self.space.regions[-1].end if self.space.regions else 0

    def was_stored_to(self, address: int) -> bool:
        """Whether a kernel may have written the buffer at an address."""
        region = self.space.region_at(address - GLOBAL_BASE)
        return region is None or region.name in self.space.stored

    def reserve(self, size: int) -> None:
        """Make room up to a byte position; what is known to come is best reserved at once."""
        space = self.space
        if size > (used := len(space.bytes)):
            room = -(-max(size, 2 * used if used < _DOUBLED else used + _DOUBLED) // 4096) * 4096
            grown, shadow = np.empty(room, np.uint8), np.zeros(room, np.uint8)
            grown[used:] = POISON
            grown[:used], shadow[:used] = space.bytes, space.shadow
            if space.writer is not None:
                space.writer = np.concatenate([space.writer, np.full(room - len(space.bytes), -1, np.int64)])
            space.bytes, space.shadow = grown, shadow

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """A copy of the bytes at an address, whoever wrote them."""
        start = address - GLOBAL_BASE
        return self.space.bytes[start : start + size].copy()

    def written(self, address: int, size: int) -> NDArray[np.bool_]:
        """Which of the bytes at an address were ever written."""
        start = address - GLOBAL_BASE
        return self.space.shadow[start : start + size].astype(np.bool_)

    def write(self, address: int, contents: NDArray[Any]) -> None:
        """The host's copy into a buffer."""
        raw, start = _raw(contents), address - GLOBAL_BASE
        self.space.bytes[start : start + len(raw)] = raw
        self.space.shadow[start : start + len(raw)] = 1

    def snapshot(self) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Copies of all bytes and of which of them were written; `restore` puts them back."""
        return self.space.bytes.copy(), self.space.shadow.copy()

    def restore(self, snapshot: tuple[NDArray[np.uint8], NDArray[np.uint8]], poison: int = POISON) -> None:
        """Back to a snapshot; bytes that nobody wrote by then read as `poison` from now on."""
        contents, shadow = snapshot
        self.space.bytes = np.where(shadow == 0, np.uint8(poison), contents) if poison != POISON else contents.copy()
        self.space.shadow = shadow.copy()

    def track_writers(self) -> None:
        """From now on remember who wrote each byte, and where; costs eight bytes a byte, for reports after a failure."""
        self.space.writer = np.full(len(self.space.bytes), -1, np.int64)

    def writer(self, address: int) -> int:
        """The global thread number that last wrote a byte, or -1."""
        return self._written(address)[1]

    def writing_line(self, address: int) -> int:
        """The PTX line of the statement that last wrote a byte, or -1."""
        return self._written(address)[0]

    def _written(self, address: int) -> tuple[int, int]:
        found = -1 if self.space.writer is None else int(self.space.writer[address - GLOBAL_BASE])
        return (-1, -1) if found < 0 else divmod(found, THREADS)


def _raw(array: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def per_owner(
    name: str, owners: int, size: int, regions: list[Region], poison: int, *, has_shadow: bool = True
) -> Space:
    """A space that each owner (CTA, lane) has for itself: `size` bytes each, regions in byte positions of one owner.

    Without a shadow nothing is known of which bytes were written: shared memory has a `refsim.ptx.checks.races.Watch` instead.
    """
    stride = -(-(size + 16) // 16) * 16
    if owners * stride > MAX_BYTES:
        raise RefsimError("out-of-memory", f"{owners} x {stride} B of {name} memory: the limit is {MAX_BYTES} B")
    space = Space(name, 0, stride)
    space.bytes = np.full(owners * stride, poison, np.uint8)
    space.shadow = np.zeros(owners * stride if has_shadow else 0, np.uint8)
    for region in regions:
        space.add(region)
    return space
