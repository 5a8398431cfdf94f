"""Shared bytes that a copy in flight still writes or reads: a read comes too early, a write races with the copy.

Shared bytes that a tensor core still reads as operands: a write comes too early.

Registers that warpgroup products (wgmma) use asynchronously: touched while in flight, or used without a fence.

A register is in use as an accumulator or as a part of A from the instruction until a wait covers its group. Meanwhile
its value is undefined for readers and writers. A wgmma.fence must stand between another access of a register and the
product that uses it next, but not between products that accumulate with one shape. Blocks end where a product begins,
is committed or waited for, so none of this changes within a block.

NVCC writes a mov of accumulators in flight for an empty asm with "+f" operands, and ptxas removes it. So an unguarded
mov is no use: its target is in flight as the accumulator is, and gets the value that the products leave. Such a mov of
other bits to a part of A is no access either: what counts is when its source was written."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.checks.race_reports import EQUAL_RULE, EQUAL_STORES
from refsim.ptx.events import COPY_BEGIN, COPY_END, SOURCE_FREE, Hear, LaunchEvent
from refsim.ptx.execution.geometry import WARPGROUP, Ids
from refsim.ptx.execution.lanes import Lanes, Machine
from refsim.ptx.execution.matrix_operands import CORE_ROW
from refsim.ptx.execution.matrix_product import MatrixProduct, Registers
from refsim.ptx.execution.registers import get
from refsim.ptx.memory.access import READ, UPDATE, Access
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM, SHARED_BASE
from refsim.ptx.text.syntax import Guard, Statement, place

_FLYING = {width: np.frombuffer(b"\xff" * width, item)[0] for width, item in ITEM.items()}
COPY_RULE = (
    "PTX ISA, cp.async: its bytes are there once the thread has waited for the group, and for others after a barrier"
)

SENT_RULE = (
    "PTX ISA, st.async and red.async: their bytes are there for a thread that has seen the phase of the mbarrier complete "
    "that counted them"
)
BULK_RULE = (
    "PTX ISA, cp.async.bulk: its bytes are there for a thread that has seen the phase of the mbarrier complete that counted "
    "them, and its source is free once its thread has waited for its bulk group"
)
_RULES = {"cp.async.bulk": BULK_RULE, "cp.reduce": BULK_RULE, "st.async": SENT_RULE, "red.async": SENT_RULE}


class InFlight:
    """The granules of shared memory that copies in flight write (`flying`) or read (`sources`), from issue to wait.
    `updates` counts reductions in flight by proxy; `granule`: bytes of one entry."""

    def __init__(self, machine: Machine, granule: int) -> None:
        self.machine, self.granule = machine, granule
        self.flying = np.zeros(len(machine.shared.bytes) // granule // 16 * 16 + 16, np.uint8)
        self.sources = np.zeros_like(self.flying)
        self.updates: dict[str, Array] = {}
        self.count = self.reading = 0

    def hears(self) -> dict[str, Hear]:
        """Return what hears the events of each verb."""
        return {COPY_BEGIN: self.issued, COPY_END: self.landed, SOURCE_FREE: self.was_read}

    def issued(self, event: LaunchEvent) -> None:
        """Record that a copy in flight writes items; others of the proxy of a reduction may overlap it."""
        index, width, updates = event.payload
        self.again(index, width)
        self.count += len(index)
        if updates:
            counts = self.updates.setdefault(updates, np.zeros(len(self.flying), np.uint16))
            self._rows(width, counts)[index] += 1

    def again(self, index: Array, width: int) -> None:
        """Record that one more copy still writes these items."""
        self._items(width)[index] = _FLYING[width // self.granule]

    def met_by(self, access: Access) -> Bools:
        """Return which items of an access a copy in flight writes."""
        return np.asarray(self._items(access.width).take(access.index) != 0)

    def landed(self, event: LaunchEvent) -> None:
        """Record that a copy to items is complete."""
        index, width, updates = event.payload
        self.count -= len(index)
        if updates:
            rows = self._rows(width, self.updates[updates])
            rows[index] -= 1
            index = index[~rows[index].any(axis=1)]
        self._items(width)[index] = 0

    def is_read(self, index: Array, width: int) -> None:
        """Record that a copy reads these items, which do not overlap, until its thread has waited for it."""
        self.reading += 1
        self._rows(width)[index] += 1

    def was_read(self, event: LaunchEvent) -> None:
        """Record that a copy has read its source."""
        index, width = event.payload.index, event.payload.width
        self.reading -= 1
        self._rows(width)[index] -= 1

    def before(self, access: Access) -> None:
        """Report an access to bytes that a copy in flight writes, or a write to bytes that it reads."""
        if self.count and (hit := self._meets(access, self.met_by(access))).any():
            self.report(access, int(np.argmax(hit)))
        if self.reading and access.kind != READ:
            busy = self._rows(access.width)[access.index].any(axis=1)
            if busy.any():
                self.report(access, int(np.argmax(busy)))

    def _meets(self, access: Access, flying: Array) -> Array:
        """Return which items of an access meet a copy in flight; atomics may meet reductions of their proxy."""
        counts = self.updates.get(access.proxy) if access.kind == UPDATE else None
        if counts is None or not access.semantics.strong:
            return flying
        return flying & ~self._rows(access.width, counts)[access.index].any(axis=1)

    def after(self, access: Access) -> None:
        """Do nothing: an access does not change what is in flight."""

    def _items(self, width: int) -> Array:
        """Return the granules in flight as items of `width` bytes."""
        return self.flying.view(ITEM[width // self.granule])

    def _rows(self, width: int, counts: Array | None = None) -> Array:
        """Return how many copies read each granule (or the given counts), in rows of one item of `width` bytes."""
        count, counted = width // self.granule, self.sources if counts is None else counts
        return counted[: len(counted) // count * count].reshape(-1, count)

    def report(self, access: Access, lane: int, *, equal: bool = False) -> None:
        """Report the access of a lane to bytes in flight; a note if it stores `equal` bytes."""
        at, width = int(access.at[lane]), access.width
        start = int(access.index[lane]) * width
        copy = self.machine.engine.describe(start, width)
        copy = copy or self.machine.copies.describe(start, width, int(access.threads.ids[lane]))
        code, verb = ("read-before-wait", "reads") if access.kind == READ else ("race", "writes")
        rule = next((rule for name, rule in _RULES.items() if name in copy), COPY_RULE)
        where = f"{width} B at shared address {at:#x} (byte {at - SHARED_BASE} of shared memory)"
        what = f"{verb} {where} while {copy}"
        error = access.threads.fault(code, lane, what, rule)
        if not equal:
            return self.machine.report(error, access.statement)
        error = replace(error, code=EQUAL_STORES, what=f"{what}; the bytes are the same", rule=EQUAL_RULE)
        self.machine.findings.note(error, access.statement)


OPERAND_RULE = "PTX ISA, wgmma.mma_async: its operands stay as they are until a wgmma.wait_group that covers it"


class Readers(Protocol):
    """The unit that reads operands in flight, numbered from 1 on."""

    @property
    def oldest(self) -> int | None: ...
    def reader_of(self, item: int) -> str | None: ...
    def tear(self, items: Array, error: RefsimError, statement: Statement) -> None: ...


class OperandReads:
    """The number of the newest product that reads each item of shared memory (a core row). An item is in use only if
    that product began no earlier than the oldest product in flight."""

    def __init__(self, machine: Machine, unit: Readers, rule: str = OPERAND_RULE) -> None:
        self.machine, self.unit, self.rule = machine, unit, rule
        self.last = np.zeros(len(machine.shared.bytes) // CORE_ROW + 1, np.int64)

    def begun(self, items: Array, number: int) -> None:
        """Record that product `number` reads these items from now on."""
        self.last[items] = number

    def before(self, access: Access) -> None:
        """Report a write to an item that a product in flight reads."""
        oldest = None if access.kind == READ else self.unit.oldest
        if oldest is None:
            return
        item = access.index * access.width // CORE_ROW
        busy = np.flatnonzero(self.last.take(item) >= oldest)
        for lane in busy.tolist():
            why = self.unit.reader_of(int(item[lane]))
            if why is not None:
                what = f"writes {access.width} B at shared address {int(access.at[lane]):#x}, which are read by {why}"
                error = access.threads.fault("race", lane, what, self.rule)
                self.unit.tear(np.unique(item[busy]), error, access.statement)
                return

    def after(self, access: Access) -> None:
        """Do nothing: an access does not change what is in flight."""


IN_FLIGHT, UNFENCED = "register-in-flight", "unfenced-register"
CODES = (IN_FLIGHT, UNFENCED)
REGISTER_RULE = "PTX ISA, wgmma.mma_async: no thread touches its registers before a wgmma.wait_group that covers it"
FENCE_RULE = "PTX ISA, wgmma.fence: before the first wgmma, and between other accesses of its registers and a wgmma"
_FENCED, _AS = -1, -2  # _AS - column: as the register of that column was touched


@dataclass(frozen=True, eq=False)
class Touch:
    """A statement that reads or writes registers that products use. `guard` is the guard of the statement if the block
    does not change its value before. Otherwise it is None and counts as true. `moves`: see `Code.moves`; `fed`: the
    sources of those that only put bits into parts of A."""

    statement: Statement
    registers: Registers
    written: frozenset[int]
    guard: Guard | None
    moves: tuple[tuple[int, Registers], ...] = ()
    fed: Mapping[int, int] = field(default_factory=dict)

    def happens(self, lanes: Lanes) -> bool:
        """Return whether some lane executes the statement."""
        if self.guard is None:
            return True
        return bool((get(lanes, self.guard.register.index) != self.guard.negated).any())


class RegisterWatch:
    """The state of each register that products use, by (warpgroup, column of the register). `accumulating` and
    `feeding`: the number of the product in flight that uses it as accumulator or as A, 0 if none. `touched`: the number
    in `touches` of the last access since the last fence. `shape`: the shape of the products that used it since.
    `origin`: the accumulator, as column + 1, whose value in flight a register holds; negative for a pair of them."""

    def __init__(self, machine: Machine, kept: Registers) -> None:
        """Set up the tables of registers `kept`, of which no product uses one yet."""
        self.machine = machine
        self.column = np.full(max(kept, default=0) + 1, -1, np.int64)
        self.column[list(kept)] = np.arange(len(kept))
        self.names = kept
        groups = machine.geometry.count * machine.geometry.warpgroups
        self.accumulating = np.zeros((groups, len(kept)), np.int64)
        self.feeding = np.zeros((groups, len(kept)), np.int64)
        self.touched = np.zeros((groups, len(kept)), np.int64)
        self.origin = np.zeros((groups, len(kept)), np.int64)
        self.ever_fenced = np.zeros(groups, np.bool_)
        self.shape = np.zeros((groups, len(kept)), np.int64)
        self.shapes: dict[str, int] = {}
        self.touches: list[Touch] = []
        self.columns: dict[tuple[Touch, ...], tuple[Ids, Ids]] = {}
        self.flying = 0

    # ---- other statements
    def before(self, touches: tuple[Touch, ...], lanes: Lanes) -> None:
        """Check the statements of a block that is about to run and that touch registers of products."""
        groups = groups_of(lanes)
        if any(touch.guard is not None for touch in touches):
            touches = tuple(touch for touch in touches if touch.happens(lanes))
        if touches not in self.columns:
            self.columns[touches] = self._together(touches)
        columns, numbers = self.columns[touches]
        at = np.ix_(groups, columns)
        if (copied := numbers <= _AS).any():
            numbers = np.where(copied, self.touched[np.ix_(groups, np.where(copied, _AS - numbers, 0))], numbers)
        if self.flying and (self.accumulating[at].any() or self.feeding[at].any()):
            for touch in touches:
                if not self._moved(touch, groups):
                    self._report_if_in_flight(touch, lanes, groups)
            kept = (self.accumulating[at] > 0) & (self.origin[at] == columns + 1)  # moved away, or back
            numbers = np.where(kept, self.touched[at], numbers)
        self.touched[at] = numbers

    def _moved(self, touch: Touch, groups: Ids) -> bool:
        """Follow a mov of accumulators in flight; return False for other statements, and for a mov that overwrites a
        register in flight with another value."""
        for target, sources in touch.moves:
            to, held = self.column[target], np.ix_(groups, self.column[list(sources)])
            number, value = (
                self.accumulating[held].max(axis=1),
                self.origin[held][:, 0] if len(sources) == 1 else -1 - to,
            )
            value = np.where(number > 0, value, 0)
            busy = (self.accumulating[groups, to] | self.feeding[groups, to]) != 0
            if self.feeding[held].any() or (busy & ((value == 0) | (self.origin[groups, to] != value))).any():
                return False
            self.accumulating[groups, to], self.origin[groups, to] = number, value
        return bool(touch.moves)

    def _together(self, touches: tuple[Touch, ...]) -> tuple[Ids, Ids]:
        """Return the columns of the registers that statements touch, and the number of the last touch of each."""
        last: dict[int, int] = {}
        for number, touch in enumerate(touches, len(self.touches)):
            for register, column in zip(touch.registers, self.column[list(touch.registers)].tolist(), strict=True):
                source = int(self.column[touch.fed[register]]) if register in touch.fed else -1
                last[column] = number if source < 0 else last.get(source, _AS - source)
        self.touches += touches
        return np.array([*last], np.int64), np.array([*last.values()], np.int64)

    def _report_if_in_flight(self, touch: Touch, lanes: Lanes, groups: Ids) -> None:
        """Report the first register of `touch` that an unfinished product (wgmma) of these warpgroups still uses."""
        at = np.ix_(groups, self.column[list(touch.registers)])
        flying = np.maximum(self.accumulating[at], self.feeding[at])
        if not flying.any():
            return
        group, which = (int(each[0]) for each in np.nonzero(flying))
        register = touch.registers[which]
        verb = "writes" if register in touch.written else "reads"
        part = Lanes(self.machine, lanes.ids, touch.statement)
        who = int(np.argmax(self.machine.geometry.warpgroup[lanes.ids] == groups[group]))
        self._report_in_flight(part, who, verb, register, int(flying[group, which]), int(groups[group]))

    def _report_in_flight(self, lanes: Lanes, who: int, verb: str, register: int, number: int, group: int) -> None:
        """Report `register`, which product `number` of warpgroup `group` uses in flight, at lane index `who`; `verb`:
        what is done to it."""
        column = self.column[register]
        role = "an accumulator" if self.accumulating[group, column] == number else "a part of A"
        if role == "an accumulator" and self.origin[group, column] != column + 1:
            role = "a copy of an accumulator"
        why = self.machine.tensor_cores.describe(number, group)
        what = f"{verb} {self._name(register)}, {role} of {why}"
        self.machine.report(lanes.fault(IN_FLIGHT, who, what, REGISTER_RULE), lanes.statement)

    def _name(self, register: int) -> str:
        return self.machine.code.function.register_names[register]

    # ---- products
    def fenced(self, groups: Ids) -> None:
        """Record a wgmma.fence of these warpgroups: their accesses so far are ordered before their products to come."""
        self.touched[groups] = _FENCED
        self.ever_fenced[groups] = True
        self.shape[groups] = 0

    def begun(self, lanes: Lanes, groups: Ids, product: MatrixProduct, number: int) -> None:
        """Check the registers of a product that begins, and record that product `number` uses them from now on."""
        shape = self.shapes.setdefault(product.form.shape, len(self.shapes) + 1)
        results, fragment = self.column[list(product.d)], self.column[list(product.fragment)]
        self._demand_free(lanes, groups, product, (results, fragment))
        self._demand_fenced(lanes, groups, (*product.d, *product.fragment))
        other = self.shape[np.ix_(groups, results)]
        if (mixed := (other != 0) & (other != shape)).any():
            group, which = (int(each[0]) for each in np.nonzero(mixed))
            before = [*self.shapes][int(other[group, which]) - 1]
            what = (
                f"{self._name(product.d[which])} was accumulated as {before} and is accumulated as {product.form.shape}"
            )
            error = lanes.fault(UNFENCED, group * WARPGROUP, f"{what} without a wgmma.fence between them", FENCE_RULE)
            self.machine.report(error, lanes.statement)
        self.accumulating[np.ix_(groups, results)] = number
        self.origin[np.ix_(groups, results)] = results + 1
        self.feeding[np.ix_(groups, fragment)] = number
        self.shape[np.ix_(groups, results)] = shape
        self.flying += len(groups)

    def _demand_free(self, lanes: Lanes, groups: Ids, product: MatrixProduct, columns: tuple[Array, Array]) -> None:
        """Report an accumulator that another product in flight uses as A, or a part of A that one accumulates in."""
        for verb, registers, at, held in (
            ("accumulates in", product.d, columns[0], self.feeding),
            ("takes a part of A from", product.fragment, columns[1], self.accumulating),
        ):
            flying = held[np.ix_(groups, at)]
            if flying.any():
                group, which = (int(each[0]) for each in np.nonzero(flying))
                number = int(flying[group, which])
                self._report_in_flight(lanes, group * WARPGROUP, verb, registers[which], number, int(groups[group]))

    def _demand_fenced(self, lanes: Lanes, groups: Ids, registers: Registers) -> None:
        """Report a register of a product that was touched since the last wgmma.fence of its warpgroup."""
        touched = self.touched[np.ix_(groups, self.column[list(registers)])]
        if (touched == _FENCED).all():
            return
        group, which = (int(each[0]) for each in np.nonzero(touched != _FENCED))
        if not self.ever_fenced[groups[group]]:
            what = "no wgmma.fence stands before the first wgmma of this warpgroup"
        else:
            touch, register = self.touches[int(touched[group, which])], registers[which]
            verb = "read" if register in set(touch.registers) - touch.written else "wrote"
            what = (
                f"uses {self._name(register)}, which {place(touch.statement)} {verb}, and no wgmma.fence stands between"
            )
        self.machine.report(lanes.fault(UNFENCED, group * WARPGROUP, what, FENCE_RULE), lanes.statement)

    def finished(self, groups: Ids, number: int) -> None:
        """Record that a thread has waited for a product: its registers are free unless a later product uses them."""
        for held in (self.accumulating, self.feeding):
            rows = held[groups]
            held[groups] = np.where(rows == number, 0, rows)
        self.flying -= len(groups)


def groups_of(lanes: Lanes) -> Ids:
    """Return the warpgroups of a set of lanes, in rising order."""
    group = lanes.machine.geometry.warpgroup
    if lanes.in_whole_warpgroups:
        return np.asarray(group[lanes.ids[::WARPGROUP]])
    return np.unique(group[lanes.ids])
