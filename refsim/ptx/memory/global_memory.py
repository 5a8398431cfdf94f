"""Device memory of one simulated GPU: named buffers with red zones between them.

It is one `Space` that grows as buffers are allocated; what a kernel may do to it is checked there.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.memory.space import GLOBAL_BASE, MAX_BYTES, POISON, THREADS, Region, Space

RED_ZONE = 512
_DOUBLED = 16 << 20


class GlobalMemory:
    """Device memory of one simulated GPU: named buffers with red zones between them.

    `allocate` returns an address; buffers keep their contents from launch to launch. Reading a byte that neither the
    host nor a kernel wrote is a fault in a launch.
    """

    def __init__(self) -> None:
        self.space = Space("global", GLOBAL_BASE)
        self._by_name: dict[str, Region] = {}

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
        region = Region(name, start, start + size, writable)
        space.add(region)
        self._by_name[name] = region
        if initial is not None:
            raw = np.frombuffer(initial, np.uint8) if isinstance(initial, bytes) else _raw(initial)
            space.bytes[start : start + size] = raw
            space.shadow[start : start + size] = 1
            space.initialised.add(name)
        return start + GLOBAL_BASE

    def named(self, name: str) -> Region | None:
        """The latest buffer of a name, or None."""
        return self._by_name.get(name)

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

    def restore(self, snapshot: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
        """Back to a snapshot."""
        contents, shadow = snapshot
        self.space.bytes, self.space.shadow = contents.copy(), shadow.copy()

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
