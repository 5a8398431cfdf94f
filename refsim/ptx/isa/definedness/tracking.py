"""Undefined bits tracked through one launch: their origin, their places, and what they reach.

A launch runs without tracking until a lane reads uninitialized bits. Then memory is restored and the launch runs again
with a mask for every register and every byte: a set bit means that the corresponding bit is undefined. Masks follow the
rule of each instruction implementation (`undefined=` in refsim.ptx.isa). None stands for a mask without a set bit, so
that defined values cost little. Only bits that reach an output, an address or a decision are a finding. A branch that
decides only what registers hold makes these registers undefined. Uninitialized memory that was read and reached nothing
is a note.

Operands in shared memory of which some bytes change while a tensor core may read them.

Rows of A do not mix, nor do columns of B. So such bytes make rows or columns of D undefined, and the launch goes on. A
kernel with 16 rows multiplies 64 of them and drops the others, whose bytes may be a stage that a copy still fills. The
access that changes the bytes becomes a finding once undefined bits of D reach an output, an address or a decision.

A change after a product began is seen too late to follow its bits. The launch then runs again, with these rows known.

Unspecified bits of arithmetic results, tracked like uninitialized bits: whether they decide anything or only change
values.

For `.approx`, float atomics, or products that the assembler may contract, a GPU may return other bits than the
simulator. If such bits reach a branch, the guard of a store or an address, the GPU may behave differently."""

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.register_file import Mask, Origins, all_ones
from refsim.ptx.execution.types import UNSIGNED, PtxType
from refsim.ptx.findings.record import LaunchFindings, fault
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.global_memory import GlobalMemory
from refsim.ptx.memory.space import GLOBAL_BASE, Space
from refsim.ptx.text.syntax import Statement, place

Key = tuple[int, int, str]  # the PTX line of a product, the unit of the CTA that executes it, and "a" or "b"
TEARS = ("race", "read-before-wait")
CHUNK_BYTES = 16  # bytes of a chunk


class ProductReads(Protocol):
    """A product, and the chunks of shared memory that it reads."""

    def rows_at(self, items: Array) -> dict[Key, Array]:
        """Return which rows of A and columns of B chunks hold, by number in the flat shared memory."""


@dataclass
class TornRows:
    """The rows and columns found in all runs of a launch, with the first finding of each operand. `grew`: this run has
    found some that the next run must know from the start."""

    rows: dict[Key, Array] = field(default_factory=dict)
    errors: dict[Key, RefsimError] = field(default_factory=dict)
    grew: bool = False

    def add(self, found: dict[Key, Array], error: RefsimError) -> None:
        """Add rows and columns that the accesses of `error` change."""
        for key, rows in found.items():
            before = self.rows.get(key, np.zeros_like(rows))
            self.grew |= bool((rows & ~before).any())
            self.rows[key] = before | rows
            self.errors.setdefault(key, error)


def torn_of(machine: Context) -> TornRows | None:
    """Return the rows that earlier runs of the launch found; None if it follows no undefined bits or runs only once."""
    found: TornRows | None = getattr(machine.tracking, "torn", None)
    return found


def tear(machine: Context, statement: Statement, product: ProductReads, items: Array, error: RefsimError) -> None:
    """Make rows of D undefined whose operands the accesses of `error` change at chunks `items`. Without the check of
    uninitialized bits this is a note."""
    torn = torn_of(machine)
    if torn is not None:
        torn.add(product.rows_at(items), error)
    elif machine.tracking is not None:
        machine.report(error, statement)
    else:
        machine.saw_unwritten()
        note_torn(machine, statement, error)


def note_torn(machine: Context, statement: Statement, error: RefsimError) -> None:
    """Note bytes of an operand that change, in a launch that follows no undefined bits."""
    what = f"{error.what}: rows of D are undefined, which is not followed without the check uninitialised"
    machine.findings.note(replace(error, what=what), statement)


def spoken(error: RefsimError, rows: Array, side: str) -> RefsimError:
    """Return a finding that names the rows of A or columns of B whose results are undefined."""
    first, last = (int(each) for each in np.flatnonzero(rows.any(axis=0))[[0, -1]])
    what = f"{error.what}: {'rows' if side == 'a' else 'columns'} {first} to {last} of D are undefined"
    return replace(error, what=what)


RULE = "undefined bits may be moved about and dropped; no output, address or decision may depend on them"
KEPT = 1 << 22  # undefined reads kept with thread and address; of later reads only the statement is kept
LISTED = 4  # most storing statements to list in a report
GRANULE = 4  # bytes of memory that share one origin


def place_in(space: Space, position: int) -> str:
    """Return a position of a space in words: `shared address 0x400 (byte 0 of shared memory)`."""
    inside = f" ({space.where(position)})" if space.region_at(position) else ""
    return f"{space.name} address {space.address(position)}{inside}"


@dataclass(frozen=True)
class UndefinedEvent:
    """One executed statement by which lanes read or stored undefined bits; lane i has event number `first` + i. `what`:
    the event without thread and address. `at`, `widths`: the bytes of each lane, if it is a read of memory. `earlier`:
    the events of each lane's undefined guard, if it is a branch. `error`: the finding that makes the bits undefined."""

    first: int
    statement: Statement
    ids: Array
    geometry: Geometry
    what: str = ""
    space: Space | None = None
    at: Array | None = None
    widths: Array | None = None
    earlier: Array | None = None
    error: RefsimError | None = None

    def who(self, number: int) -> str:
        """Return the thread of an event number in words."""
        return self.geometry.describe(int(self.ids[number - self.first]))

    def where(self, number: int) -> str:
        """Return `ld.shared.u32 at PTX line 12 (kernel.cu:9), thread (0, 0, 0) of block (0, 0, 0)`."""
        return f"{place(self.statement)}, {self.who(number)}" if len(self.ids) else place(self.statement)

    def cause(self, number: int) -> str:
        """Return `4 B at shared address 0x400 (byte 0 of shared memory) were never written`."""
        if self.space is None or self.at is None or self.widths is None:
            return self.what
        lane = number - self.first
        return f"{int(self.widths[lane])} B at {place_in(self.space, int(self.at[lane]))} were never written"


@dataclass
class Events:
    """The events of a launch, numbered from 1 on."""

    events: list[UndefinedEvent] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    following: int = 1
    last: dict[int, int] = field(default_factory=dict)

    def add(
        self,
        lanes: Lanes,
        chosen: Array,
        what: str,
        space: Space | None = None,
        at: Array | None = None,
        widths: Array | None = None,
        earlier: Array | None = None,
        error: RefsimError | None = None,
    ) -> Origins:
        """Return an event number for each of the chosen lanes (a mask over the set); 0 for the others. The other
        arguments are the fields of `UndefinedEvent`."""
        statement = lanes.statement
        geometry = lanes.machine.geometry
        if self.following > KEPT:
            if statement.line not in self.last:
                self.last[statement.line] = self.append(
                    UndefinedEvent(self.following, statement, np.zeros(0, np.int64), geometry, what, space), 1
                )
            return np.where(chosen, self.last[statement.line], 0).astype(np.int32)
        ids = lanes.ids[chosen]
        at, widths, earlier = (None if each is None else each[chosen] for each in (at, widths, earlier))
        event = UndefinedEvent(self.following, statement, ids, geometry, what, space, at, widths, earlier, error)
        first = self.append(event, len(ids))
        numbers = np.zeros(len(chosen), np.int32)
        numbers[chosen] = np.arange(first, first + len(ids))
        return numbers

    def append(self, event: UndefinedEvent, count: int) -> int:
        """Append an event of `count` lanes, and return its first number."""
        self.events.append(event)
        self.starts.append(event.first)
        self.following = event.first + count
        return event.first

    def of(self, number: int) -> UndefinedEvent:
        """Return the event of a number."""
        return self.events[bisect_right(self.starts, number) - 1]

    def lines(self, numbers: Array) -> Array:
        """Return the PTX line of each event."""
        lines = np.array([event.statement.line for event in self.events], np.int64)
        found: Array = lines[np.searchsorted(np.array(self.starts), numbers, side="right") - 1]
        return found


@dataclass
class Tracking:
    """The undefined bits of one launch: events, the masks of memory (see `memory`), and reported statements.
    `origins`: events that read undefined bits; `stores`: events that stored them; `blamed`: PTX lines already
    reported."""

    watches: ClassVar[bool] = False  # whether it also sees the results of statements, see first_nan
    granule: ClassVar[int] = GRANULE

    level: str
    findings: LaunchFindings
    origins: Events = field(default_factory=Events)
    stores: Events = field(default_factory=Events)
    masks: dict[str, Any] = field(default_factory=dict)
    blamed: set[int] = field(default_factory=set)
    torn: TornRows | None = None
    contributed: dict[int, int] = field(default_factory=dict)  # lanes with undefined values for a bar.red, by event

    def reached(self, lanes: Lanes, mask: Mask | None, what: str) -> None:
        """Raise or record that undefined bits decide something (`what`), for the first lane with such bits."""
        if mask is None:
            return
        lane = int(np.flatnonzero(mask.origin)[0])
        who = lanes.machine.geometry.describe(int(lanes.ids[lane]))
        self.report(int(mask.origin[lane]), f"{what}: {place(lanes.statement)}, {who}")

    def report(self, number: int, reached: str) -> None:
        """Raise or record that the bits of an event reached something, perhaps through branches."""
        event = self.origins.of(number)
        while event.earlier is not None:
            reached += f", through {event.what}: {event.where(number)}"
            self.blamed.add(event.statement.line)
            number = int(event.earlier[number - event.first])
            event = self.origins.of(number)
        self.blamed.add(event.statement.line)
        what = f"{event.cause(number)}; {'they' if event.space or event.error else 'it'} reached {reached}"
        who = event.who(number) if len(event.ids) else ""
        error = fault("uninitialised", what, event.statement, who, RULE)
        if event.error is not None:
            error = replace(event.error, what=what)
        if self.level == "error" and not self.findings.is_waived(error):
            raise error
        self.findings.record(error, event.statement)

    def cause(self, error: RefsimError) -> RefsimError:
        """Return the error for a launch that ended in a fault: undefined bits that decided something before, if any."""
        decided = next((found for found in self.findings.recorded.values() if found.code == "uninitialised"), None)
        if decided is None or decided is error:
            return error
        decided.help = f"the launch then ended: [{error.code}] {error.what}, at {error.where}"
        return decided

    def conclude(self) -> None:
        """Report the undefined bytes in global memory after the launch; note reads of undefined bits without effect."""
        for shadow in self.masks.values() if self.stores.events else ():
            if shadow.is_output:
                self.report_outputs(shadow.space, *shadow.outputs())
        branches = [event.earlier for event in self.origins.events if event.earlier is not None]
        branched = set(self.origins.lines(np.concatenate(branches)).tolist()) if branches else set()
        for event in self.origins.events:
            is_read = event.space is not None or event.error is not None
            if is_read and event.statement.line not in self.blamed:
                self.blamed.add(event.statement.line)
                what = f"{event.cause(event.first)}; they reached no output, address or decision"
                what += " but branches that change only registers" if event.statement.line in branched else ""
                where = event.where(event.first) if event.error is None else event.error.where
                self.findings.note(RefsimError("uninitialised-unused", what, where=where), event.statement)

    def report_outputs(self, space: Space, origin: Origins, store: Origins, position: Array) -> None:
        """Report undefined bytes at positions of memory by the statement that read them, with the storing
        statements."""
        pairs = np.stack([self.origins.lines(origin), self.stores.lines(store)], axis=1)
        reached: dict[int, list[int]] = {}
        for first in np.sort(np.unique(pairs, axis=0, return_index=True)[1]).tolist():
            reached.setdefault(int(pairs[first, 0]), []).append(first)
        for places in reached.values():
            texts = []
            for first in places[:LISTED]:
                number = int(store[first])
                at = place_in(space, int(position[first]))
                texts.append(f"an output at {at}: {self.stores.of(number).where(number)}")
            self.report(int(origin[places[0]]), " and ".join(texts))


def tracking_of(lanes: Lanes) -> Tracking:
    """Return the tracking of the machine that these lanes run on, which must be on."""
    tracking = lanes.machine.tracking
    assert isinstance(tracking, Tracking)
    return tracking


def undefined(tracking: Tracking, machine: Context, index: int) -> Mask:
    """Return a mask with all bits set for a register that no thread has written yet."""
    code, lanes = machine.code, machine.geometry.lanes
    bits = code.register_bits[index]
    names = [*code.function.register_names, "the carry flag"]
    ids = np.arange(lanes, dtype=np.int64)
    event = UndefinedEvent(
        tracking.origins.following,
        code.steps[0].statement,
        ids,
        machine.geometry,
        f"register {names[index]} was never written",
    )
    first = tracking.origins.append(event, lanes)
    ones = all_ones(np.dtype(np.bool_) if bits == 1 else UNSIGNED[bits])
    return Mask(np.repeat(ones, lanes), np.arange(first, first + lanes, dtype=np.int32))


@dataclass
class OpenBits(Tracking):
    """The unspecified bits of the launches of one program in one memory; `reaches` lists what they decided, first found
    first. The results of the statements at `lines` of the PTX are unspecified. Uninitialized bits are tracked too, but
    reported by another check."""

    level: str = "record"
    findings: LaunchFindings = field(default_factory=LaunchFindings)
    torn: TornRows | None = field(default_factory=TornRows)
    lines: frozenset[int] = frozenset()
    reaches: dict[tuple[str, int], str] = field(default_factory=dict)

    def begin(self, memory: GlobalMemory, opcodes: Collection[str]) -> None:
        """Begin a launch of a kernel with these opcodes."""

    def reached(self, lanes: Lanes, mask: Mask | None, what: str) -> None:
        """Record that unspecified bits decide something (`what`), with the first statement that they came from."""
        if mask is None or not self.lines:
            return
        statement, numbers = lanes.statement, np.unique(mask.origin[mask.origin != 0])
        sources = np.unique(self.origins.lines(numbers)).tolist()
        source = next((line for line in sources if line in self.lines), None)
        if source is not None:
            self.reaches.setdefault((what, statement.line), f"{what}: {place(statement)}, from PTX line {source}")

    def open_in(self, memory: GlobalMemory, address: int, size: int) -> NDArray[np.uint8]:
        """Return the masks of bytes of global memory after the last launch: set bits are unspecified."""
        start, found = address - GLOBAL_BASE, np.zeros(size, np.uint8)
        shadow = self.masks.get("global")
        if shadow is not None and shadow.space is memory.space:
            held = shadow.bits[start : start + size]
            found[: len(held)] = held
        return found

    def opened(
        self, lanes: Lanes, sources: Sequence[tuple[Any, PtxType]], masks: list[Any], keep: tuple[type, ...]
    ) -> list[Any]:
        """Return the masks of a statement's sources as if all their bits were unspecified, except sources of the kinds
        `keep`. The rule of the statement then derives the masks of its results, in registers and in memory."""
        event = self.origins.add(lanes, np.ones(lanes.count, np.bool_), "its result is open")

        def whole(source: Any, type: PtxType, mask: Any) -> Any:
            if source is None or isinstance(source, keep):
                return mask
            if isinstance(source, tuple):
                return [whole(each, type, one) for each, one in zip(source, mask or [None] * len(source), strict=True)]
            return _full(lanes.count, type, event)

        return [whole(source, type, mask) for (source, type), mask in zip(sources, masks, strict=True)]

    def returned(self, lanes: Lanes, results: Sequence[tuple[Any, PtxType]]) -> list[Any]:
        """Return the masks of the results of an atomic: all unspecified, since the order of atomics is unspecified."""
        event = self.origins.add(lanes, np.ones(lanes.count, np.bool_), "what it finds is open")
        return [
            [_full(lanes.count, type, event) for _ in result]
            if isinstance(result, tuple)
            else _full(lanes.count, type, event)
            for result, type in results
        ]


def _full(count: int, type: PtxType, origin: Origins) -> Mask:
    """Return a mask of `count` lanes with every bit of a type set."""
    return Mask(np.repeat(all_ones(np.dtype(np.bool_) if type.name == "pred" else type.bits_dtype), count), origin)
