"""Observers of one warp and of one address range: the statements that the warp runs, with the registers that each statement
wrote or read, and every access to the bytes of the range."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.registers import get
from refsim.ptx.execution.types import TYPES, PtxType
from refsim.ptx.lowering.blocks import Code
from refsim.ptx.lowering.steps import AddressOperand, Step, registers_of
from refsim.ptx.memory.access import READ, Access
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.text.syntax import Statement
from refsim.render.cards import FieldsCard

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


class StepObserver(Protocol):
    """An observer that sees statements run one at a time: before a statement, with all lanes that are at it, and after
    it. A statement with which the scheduler ends a block (a branch, a barrier, an instruction of a whole warp) is shown
    only afterwards, with the lanes that ran it."""

    def before(self, lanes: Lanes, step: Step) -> None: ...
    def after(self, lanes: Lanes, step: Step) -> None: ...
    def restart(self) -> None:
        """Forget what was seen: the launch begins again from its first statement."""


@dataclass(frozen=True)
class Held:
    """The bits of a register in the lanes of a step: written by the statement, or read if it writes none."""

    register: str
    is_written: bool
    type: PtxType
    width: int
    bits: tuple[int, ...]


@dataclass(frozen=True)
class Ran:
    """One statement run by some lanes of the warp."""

    statement: Statement
    lanes: tuple[int, ...]
    registers: tuple[Held, ...]


@dataclass(repr=False)
class WarpTrace(FieldsCard):
    """Records the statements of warp `warp` (counted over the launch, block after block) at source lines `first` to
    `last`. Line numbers refer to the file that most statements of the entry come from, or to the PTX if it names no
    source file. At most `most` statements are kept; `left_out` counts the others."""

    code: Code
    warp: int
    first: int = 0
    last: int = 1 << 62
    most: int = MOST
    ran: list[Ran] = field(default_factory=list)
    left_out: int = 0
    _guard: Bools | None = None
    _file: str | None = None

    def __post_init__(self) -> None:
        places = [step.statement.location for step in self.code.steps if step.statement.location]
        files = Counter(list(place.places())[-1].file for place in places)
        self._file = files.most_common(1)[0][0] if files else None

    def before(self, lanes: Lanes, step: Step) -> None:
        """Keep the guard of the step, which the statement itself may overwrite."""
        self._guard = None
        if step.guard and self.is_wanted(step.statement):
            guard = np.array(lanes.full(get(lanes, step.guard.register.index)))
            self._guard = ~guard if step.guard.negated else guard

    def after(self, lanes: Lanes, step: Step) -> None:
        """Record the step if lanes of the warp ran it."""
        guard, self._guard = self._guard, None
        if not self.is_wanted(step.statement):
            return
        geometry = lanes.machine.geometry
        mine = lanes.warp + geometry.first * geometry.warps == self.warp
        if guard is not None:
            mine = mine & guard
        if not mine.any():
            return
        if len(self.ran) == self.most:
            self.left_out += 1
            return
        names = tuple(int(lane) for lane in lanes.laneid[mine])
        self.ran.append(Ran(step.statement, names, tuple(self._registers(lanes, step, mine))))

    def restart(self) -> None:
        """Forget the recorded steps, since the launch begins again."""
        self.ran.clear()
        self.left_out, self._guard = 0, None

    def is_wanted(self, statement: Statement) -> bool:
        """Return whether a statement comes from one of the lines, or from a function that was inlined there."""
        place = statement.location
        if self._file is None:
            return self.first <= statement.line <= self.last
        return place is not None and any(
            one.file == self._file and self.first <= one.line <= self.last for one in place.places()
        )

    def _registers(self, lanes: Lanes, step: Step, mine: Bools) -> list[Held]:
        """Return the registers that a step wrote in lanes `mine`, or the registers that it read if it wrote none."""
        written = [(index, type) for result, type in step.results for index in _elements(result)]
        if written:
            return [self._held(lanes, index, type, mine, is_written=True) for index, type in written]
        read = {
            index: TYPES["b64"] if isinstance(source, AddressOperand) else type
            for source, type in step.sources
            for index in registers_of(source)
        }
        return [self._held(lanes, index, type, mine, is_written=False) for index, type in read.items()]

    def _held(self, lanes: Lanes, index: int, type: PtxType, mine: Bools, *, is_written: bool) -> Held:
        names = self.code.function.register_names
        bits: Array = lanes.full(get(lanes, index))[mine]
        name = names[index] if index < len(names) else "carry"
        return Held(name, is_written, type, self.code.register_bits[index], tuple(int(each) for each in bits))


def _elements(result: int | tuple[int | None, ...] | None) -> list[int]:
    """Return the register indices of a result: one register, or a vector whose unused elements are None."""
    return [index for index in (result if isinstance(result, tuple) else (result,)) if index is not None]
