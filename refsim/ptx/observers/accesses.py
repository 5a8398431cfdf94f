"""Observer of one address range of a state space: it records every access to these bytes."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.memory.access import READ, Access
from refsim.ptx.text.syntax import Statement
from refsim.render.cards import FieldsCard

Array = NDArray[Any]
COPY = "copy"
MOST = 4096


@dataclass(frozen=True)
class Stretch:
    """A range of bytes [start, stop) of a state space, counted from the start of `region` ("": from byte 0 of the
    space). "shared", 1024, 1028: the four bytes at 0x400 of every CTA's shared memory. "global" with region "argument
    1", 256, 260: bytes 256 to 259 of that buffer, at whatever address it lies."""

    space: str
    start: int
    stop: int
    region: str = ""


@dataclass(frozen=True)
class Touched:
    """One executed access (read, write, update, or copy): thread i of the launch touched `width` bytes at addresses[i].
    `bits[i]` is the value that it read, wrote, or left in memory. `wrote[i]` is False for a compare-and-swap that wrote
    nothing."""

    kind: str
    statement: Statement
    threads: tuple[int, ...]
    addresses: tuple[int, ...]
    width: int
    bits: tuple[int, ...]
    wrote: tuple[bool, ...]


@dataclass(repr=False)
class AddressWatch(FieldsCard):
    """Collects the first `most` accesses to a stretch in `touched`; `left_out` counts the others."""

    stretch: Stretch
    most: int = MOST
    touched: list[Touched] = field(default_factory=list)
    left_out: int = 0

    def restart(self) -> None:
        """Forget all accesses, since the launch begins again."""
        self.touched.clear()
        self.left_out = 0

    def before(self, access: Access) -> None:
        """Do nothing: an access is recorded after it was made; a refused access is reported as a finding."""

    def after(self, access: Access) -> None:
        """Record the lanes of an access that touch the stretch."""
        span = self._span(access)
        if span is None or not isinstance(access.threads, Lanes):
            return
        items = access.held() if access.kind == READ or access.items is None else access.items
        self._note(access.kind, access.threads, access.at, access.width, items, span, access.space.base, access.wrote)

    def moved(self, lanes: Lanes, at: Array, width: int, items: Array) -> None:
        """Record the bytes that an asynchronous copy of these lanes writes to shared memory."""
        if self.stretch.space == "shared":
            self._note(COPY, lanes, at, width, items, range(self.stretch.start, self.stretch.stop), 0, None)

    def _note(
        self, kind: str, lanes: Lanes, at: Array, width: int, items: Array, span: range, base: int, wrote: Array | None
    ) -> None:
        """Append the lanes that touch `span` to `touched`, or count the access once `most` are kept. `at` and `items`
        hold an address and a value for each lane (or one for all). `base` is added to addresses for the report.
        `wrote`: which lanes wrote; None where the kind of access tells it."""
        assert lanes.statement is not None
        at, items = lanes.full(at), lanes.full(items)
        mine = (at < span.stop) & (at + width > span.start)
        if not mine.any():
            return
        if len(self.touched) == self.most:
            self.left_out += 1
            return
        written = np.full(lanes.count, kind != READ) if wrote is None else lanes.full(wrote)
        self.touched.append(
            Touched(
                kind,
                lanes.statement,
                tuple((lanes.ids[mine] + lanes.machine.first_thread).tolist()),
                tuple((at[mine] + base).tolist()),
                width,
                tuple(_whole(items[mine])),
                tuple(written[mine].tolist()),
            )
        )

    def _span(self, access: Access) -> range | None:
        """Return the watched byte positions within the space; None while their region does not exist."""
        start, stop = self.stretch.start, self.stretch.stop
        if not self.stretch.region:
            return range(start, stop)
        region = next((each for each in access.space.regions if each.name == self.stretch.region), None)
        return None if region is None else range(region.start + start, min(region.start + stop, region.end))


def _whole(items: Array) -> list[int]:
    """Return items as integers; items wider than 8 bytes are read as little-endian bytes."""
    if items.dtype.itemsize > 8:
        return [int.from_bytes(item.tobytes(), "little") for item in items]
    return [int(item) for item in items]
