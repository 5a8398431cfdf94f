"""Undefined bits tracked through one launch: their origin, their places, and what they reach.

A launch runs without tracking until a lane reads uninitialized bits. Then memory is restored and the launch runs again
with a mask for every register and every byte: a set bit means that the corresponding bit is undefined. Masks follow the
rule of each instruction implementation (`undefined=` in refsim.ptx.isa). None stands for a mask without a set bit, so
that defined values cost little. Only bits that reach an output, an address or a decision are a finding. A branch that
decides only what registers hold makes these registers undefined. Uninitialized memory that was read and reached nothing
is a note.
"""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.checks.torn_operands import TornRows
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Geometry
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.masks import Array, Mask, Origins, all_ones
from refsim.ptx.execution.types import UNSIGNED
from refsim.ptx.findings.faults import fault
from refsim.ptx.findings.record import LaunchFindings
from refsim.ptx.memory.space import Space
from refsim.ptx.text.syntax import Statement, place

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
        assert statement is not None
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
    """The undefined bits of one launch: events, the masks of memory (see undefined_memory), and reported statements.
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
        assert lanes.statement is not None
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
