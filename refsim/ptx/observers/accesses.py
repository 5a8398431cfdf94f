"""Who writes and who reads some bytes: every access to a stretch of one state space, as it happens."""

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
    """Bytes [start, stop) of a state space, counted from the start of the region `region`, or from its first byte ("").

    "shared", 1024, 1028: the four bytes at 0x400 of every CTA's shared memory. "global" with region "argument 1", 256,
    260: bytes of that buffer, wherever it lies.
    """

    space: str
    start: int
    stop: int
    region: str = ""


@dataclass(frozen=True)
class Touched:
    """One executed access (read, write, update, or copy): thread i of the launch touched `width` bytes at addresses[i].

    `bits[i]` is what it read, wrote, or left behind; a compare-and-swap that wrote nothing has `wrote` False.
    """

    kind: str
    statement: Statement
    threads: tuple[int, ...]
    addresses: tuple[int, ...]
    width: int
    bits: tuple[int, ...]
    wrote: tuple[bool, ...]


@dataclass(repr=False)
class AddressWatch(FieldsCard):
    """Collects the accesses to a stretch; at most `most` of them, the others are counted."""

    stretch: Stretch
    most: int = MOST
    touched: list[Touched] = field(default_factory=list)
    left_out: int = 0

    def restart(self) -> None:
        """The launch begins again: what was seen of the attempt before counts for nothing."""
        self.touched.clear()
        self.left_out = 0

    def before(self, access: Access) -> None:
        """An access is noted once it is made: a refused one is reported as what it is."""

    def after(self, access: Access) -> None:
        """Note the lanes that touch the stretch."""
        span = self._span(access)
        if span is None or not isinstance(access.threads, Lanes):
            return
        items = access.held() if access.kind == READ or access.items is None else access.items
        self._note(access.kind, access.threads, access.at, access.width, items, span, access.space.base, access.wrote)

    def moved(self, lanes: Lanes, at: Array, width: int, items: Array) -> None:
        """Note the bytes that an asynchronous copy of these lanes brings to shared memory."""
        if self.stretch.space == "shared":
            self._note(COPY, lanes, at, width, items, range(self.stretch.start, self.stretch.stop), 0, None)

    def _note(
        self, kind: str, lanes: Lanes, at: Array, width: int, items: Array, span: range, base: int, wrote: Array | None
    ) -> None:
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
        """The byte positions that are meant; None while their region does not exist."""
        start, stop = self.stretch.start, self.stretch.stop
        if not self.stretch.region:
            return range(start, stop)
        region = next((each for each in access.space.regions if each.name == self.stretch.region), None)
        return None if region is None else range(region.start + start, min(region.start + stop, region.end))


def _whole(items: Array) -> list[int]:
    """Items as integers."""
    if items.dtype.itemsize > 8:
        return [int.from_bytes(item.tobytes(), "little") for item in items]
    return [int(item) for item in items]
