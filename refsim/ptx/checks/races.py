"""Shared memory watched: for every byte who wrote and read it last, so that a read of nothing, of bytes in flight, or
of bytes that no barrier orders is found when it happens.

Marks are codes of refsim.ptx.checks.happens_before, one byte for each `granule` bytes of shared memory, the narrowest
access of the kernel: an access then covers whole granules, and its marks are one item as its bytes are. Reads are only
listed; they are marked when a write comes before the next barrier, so that a kernel whose warps meet between reads and
writes pays nothing.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.async_ops.copy_visibility import Landings
from refsim.ptx.checks.access_log import Access, Log
from refsim.ptx.checks.happens_before import BARRIERS, IN_FLIGHT, NEVER, ORDERED, Order
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.findings.faults import place
from refsim.ptx.memory.space import ITEM, SHARED_BASE

if TYPE_CHECKING:
    from refsim.ptx.machine.scheduler import Machine

Array = NDArray[Any]

RULE = "threads of two warps that share memory must be ordered by a barrier"
COPY_RULE = (
    "PTX ISA, cp.async: its bytes are there once the thread has waited for the group, and for others behind a barrier"
)
_STRONG = frozenset({"atom", "red", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"})
SEVERAL = IN_FLIGHT  # a mark that no epoch has: of reads by several warps
NARROWEST_COPY = 4
_LISTED = 64


@lru_cache(maxsize=1024)
def is_strong(opcode: str) -> bool:
    """Whether an access synchronises: atomics, volatile accesses, those with an order."""
    return not _STRONG.isdisjoint(opcode.split("."))


class Watch:
    """The marks of the shared memory of all CTAs that run."""

    def __init__(self, machine: "Machine", granule: int) -> None:
        geometry = machine.geometry
        self.machine, self.granule = machine, granule
        self.landings = Landings(machine, granule)
        self.order = Order(geometry)
        self.races = machine.checks.races != "off" and geometry.warps > 1
        self.size = -(-len(machine.shared.bytes) // granule // 16) * 16
        self.marks = self._views(np.zeros(self.size, np.uint8))
        self.latest = np.zeros(len(machine.shared.bytes) // NARROWEST_COPY, np.int32)
        self.forget_readers()
        self.reads: list[Access] = []
        self.log = Log(geometry)
        self.epoch()

    def forget_readers(self) -> None:
        """No read is marked: fresh zeros, which cost nothing until they are written to."""
        planes = self.machine.geometry.warps if self.races else 0
        self.last_reader = self._views(np.zeros(self.size, np.uint8))
        self.readers = self._views(np.zeros(self.size * planes, np.uint8))
        self.has_readers = self.has_new_readers = False

    def _views(self, marks: Array) -> dict[int, Array]:
        """Marks by the width of an access in bytes."""
        return {width: marks.view(ITEM[width // self.granule]) for width in ITEM if width >= self.granule}

    def epoch(self) -> None:
        """Epochs have begun: what lanes mark from now on."""
        runs = self.machine.alive.reshape(self.order.ctas, -1).any(axis=1)
        self.low_floor = int(self.order.floor[runs].min(initial=IN_FLIGHT)) if self.races else IN_FLIGHT
        code = self.order.code if self.races else np.full(len(self.order.code), ORDERED, np.uint8)
        self.lane_code = code[self.machine.geometry.warp]
        self.items: dict[int, Array] = {}

    def codes(self, lanes: Lanes, width: int) -> Array:
        """The marks that each lane's access of a width leaves, one item a lane."""
        count = width // self.granule
        if count not in self.items:
            self.items[count] = np.repeat(self.lane_code, count).view(ITEM[count])
        return self.items[count][lanes.key]

    # ---- accesses
    def read(self, lanes: Lanes, index: Array, width: int) -> None:
        """Lanes read items; a finding is raised or recorded."""
        assert lanes.statement is not None
        strong = is_strong(lanes.statement.opcode)
        if strong and self.races:
            self.order.acquire(np.unique(lanes.warp))
        marks = self.marks[width].take(index)
        found = marks.view(np.uint8)
        if len(found) and (int(found.min()) == NEVER or self._may_be_late(marks, lanes, width)):
            self._examine_read(lanes, index, width, found.reshape(len(index), -1))
        if self.landings:
            self._examine_landed(lanes, index, width)
        if self.races and not strong:
            self.reads.append(Access("read", lanes.statement, lanes.ids, index, width, self.lane_code[lanes.key]))
            if len(self.reads) >= _LISTED:
                self._mark_reads()

    def before_write(self, lanes: Lanes, index: Array, width: int, items: Array | None) -> None:
        """Lanes will write items there (None: a copy will); a finding is raised or recorded."""
        assert lanes.statement is not None
        if self.races and is_strong(lanes.statement.opcode):
            self.order.acquire(np.unique(lanes.warp))
        marks = self.marks[width].take(index)
        if self._may_be_late(marks, lanes, width):
            self._examine_write(lanes, index, width, marks.view(np.uint8).reshape(len(index), -1), items)
        if self.races:
            self._mark_reads()
            if self.has_new_readers:
                last = self.last_reader[width].take(index)
                if self._may_be_late(last, lanes, width):
                    self._examine_readers(lanes, index, width, last.view(np.uint8).reshape(len(index), -1), items)

    def _may_be_late(self, marks: Array, lanes: Lanes, width: int) -> bool:
        """Whether some mark is neither older than the last barrier of everybody nor of the lane's own epoch."""
        if len(marks) == 0 or int(marks.view(np.uint8).max()) < self.low_floor:
            return False
        return bool(_unequal(marks, self.codes(lanes, width)).any())

    def after_write(self, lanes: Lanes, index: Array, width: int, items: Array) -> None:
        """Lanes have written items there: mark them, and find two warps that wrote one place at once."""
        assert lanes.statement is not None
        lost = self._mark(lanes, index, width)
        if self.landings:
            self.landings.overwrite(index, width)
        if not self.races:
            return
        if is_strong(lanes.statement.opcode):
            self._release(np.unique(lanes.warp))
            return
        self.log.append(Access("write", lanes.statement, lanes.ids, index, width, self.lane_code[lanes.key]))
        if lost is not None:
            self._examine_collision(lanes, index, width, lost & self._changes(index, width, items))

    def copy_issued(self, lanes: Lanes, index: Array, width: int, items: Callable[[], Array]) -> None:
        """A copy of `items` is on its way to these places."""
        assert lanes.statement is not None
        self.before_write(lanes, index, width, None)
        self._examine_copies(lanes, index, width, items)
        count = width // self.granule
        self.marks[width][index] = np.full(count, IN_FLIGHT, np.uint8).view(ITEM[count])[0]
        if self.races:
            self.log.append(Access("write", lanes.statement, lanes.ids, index, width, self.lane_code[lanes.key]))

    def copy_landed(self, lanes: Lanes, index: Array, width: int) -> None:
        """The lanes have waited for their copies: from now on these are writes of theirs."""
        self.marks[width][index] = self.codes(lanes, width)
        self.landings.add(lanes, index, width)

    def _mark(self, lanes: Lanes, index: Array, width: int) -> NDArray[np.bool_] | None:
        """Mark a write; the lanes whose mark another lane overwrote, if there are any."""
        codes, marks = self.codes(lanes, width), self.marks[width]
        marks[index] = codes
        if not self.races:
            return None
        lost = _unequal(marks.take(index), codes)
        return lost if lost.any() else None

    # ---- barriers
    def everyone_met(self) -> None:
        """All warps that run passed one barrier together."""
        self.landings.forget()
        if not self.races:
            return
        self.order.everyone_met()
        self.has_new_readers = False
        self.reads.clear()
        self.log.clear()
        self._begin(np.arange(len(self.order.code)))

    def met(self, slot: Array, warps: Array, waited: Array) -> None:
        """Some warps passed barriers."""
        if self.landings:
            self.landings.forget(np.flatnonzero(np.isin(self.machine.geometry.warp, warps)))
        if not self.races or not len(warps):
            return
        self._mark_reads()
        geometry, alive = self.machine.geometry, self.machine.alive
        living = np.bincount(geometry.warp[alive], minlength=len(self.order.code)).reshape(geometry.count, -1)
        # A barrier without a count completes when a warp has arrived or exited; one with a count does not ask who exited.
        running = np.repeat(np.count_nonzero(living, axis=1), BARRIERS)
        everyone = np.where(self.machine.barriers.expected > 0, geometry.warps, running)
        self.order.met(slot, warps, waited, everyone)
        self._begin(np.unique(warps))

    def synchronise(self, lanes: Lanes) -> None:
        """The warps of these lanes have updated one place by atomics: each comes after the ones before it."""
        if self.races:
            warps = np.unique(lanes.warp)
            self._release(warps)
            self.order.acquire(warps)

    def _release(self, warps: Array) -> None:
        self._mark_reads()
        self.order.release(warps)
        self._begin(warps)

    def _begin(self, warps: Array) -> None:
        for cta in self.order.room(warps):
            self._renumber(int(cta))
        self.order.begin(warps)
        self.epoch()

    def _renumber(self, cta: int) -> None:
        geometry = self.machine.geometry
        self._mark_reads()
        first = cta * geometry.warps
        living = np.isin(np.arange(first, first + geometry.warps), geometry.warp[self.machine.alive])
        table = self.order.renumber(cta, living)
        if self.has_readers and not self.has_new_readers:
            self.forget_readers()
        size = self.machine.shared.stride // self.granule
        part = slice(cta * size, (cta + 1) * size)
        flat = [self.marks[self.granule][part]]
        if self.has_readers:
            flat += [
                self.last_reader[self.granule][part],
                *self.readers[self.granule].reshape(geometry.warps, -1)[:, part],
            ]
        for marks in flat:
            marks[:] = table[marks]

    def _mark_reads(self) -> None:
        """The reads listed so far become marks: in the plane of the reader's warp, and in `last_reader`, which says
        SEVERAL where warps of one interval between barriers of everybody read."""
        for access in self.reads:
            count = access.width // self.granule
            codes: Array = np.repeat(access.codes, count).view(ITEM[count])
            last = self.last_reader[access.width]
            before = last.take(access.index)
            self.log.append(access)
            if not _unequal(before, codes).any():
                continue
            last[access.index] = codes
            own = access.codes[:, None]
            bytes_before = before.view(np.uint8).reshape(len(own), -1)
            others = (bytes_before >= self.low_floor) & (bytes_before != own)
            lost = _unequal(last.take(access.index), codes)
            if lost.any() or others.any():
                both = np.where(others | lost[:, None], np.uint8(SEVERAL), own)
                shared = (others.any(axis=1) | lost).nonzero()[0]
                last[access.index[shared]] = np.ascontiguousarray(both[shared]).reshape(-1).view(ITEM[count])
            place = self.order.place[self.machine.geometry.warp[access.ids]]
            self.readers[access.width][access.index + place * len(last)] = codes
        if self.reads:
            self.has_readers = self.has_new_readers = True
        self.reads.clear()

    # ---- findings
    def _examine_landed(self, lanes: Lanes, index: Array, width: int) -> None:
        found = self.landings.foreign(lanes, index, width)
        if found is not None and self._is_news("read-before-wait", lanes):
            lane, owner = found
            what = f"reads {self._bytes(lanes, index, width, lane)} that {self.machine.geometry.describe(owner)} copied and "
            self._report(
                "read-before-wait", lanes, lane, what + "waited for, with no barrier of the warp between", COPY_RULE
            )

    def _examine_read(self, lanes: Lanes, index: Array, width: int, found: Array) -> None:
        never, flying = (found == NEVER).any(axis=1), (found == IN_FLIGHT).any(axis=1)
        if never.any() and self._is_news("uninitialised", lanes):
            lane = int(np.argmax(never))
            self._report(
                "uninitialised", lanes, lane, f"{self._bytes(lanes, index, width, lane)} were never written", ""
            )
        if flying.any() and self._is_news("read-before-wait", lanes):
            lane = int(np.argmax(flying))
            what = f"reads {self._bytes(lanes, index, width, lane)} while {self._copy(index, width, lane)} still writes them"
            self._report("read-before-wait", lanes, lane, what, COPY_RULE)
        if self.races and self._is_news("race", lanes):
            late = self._first_unordered(lanes, found)
            if late is not None:
                writer = self._other(lanes, index, width, late, "write")
                what = f"reads {self._bytes(lanes, index, width, late)} that {writer} wrote, with no barrier between"
                self._report("race", lanes, late, what, RULE)

    def _examine_write(self, lanes: Lanes, index: Array, width: int, found: Array, items: Array | None) -> None:
        if not self._is_news("race", lanes):
            return
        flying = (found == IN_FLIGHT).any(axis=1)
        if flying.any():
            lane = int(np.argmax(flying))
            what = f"writes {self._bytes(lanes, index, width, lane)} while {self._copy(index, width, lane)} still writes them"
            self._report("race", lanes, lane, what, COPY_RULE)
        if self.races:
            changes = self._changes(index, width, items)
            late = self._first_unordered(lanes, np.where(changes[:, None], found, ORDERED))
            if late is not None:
                writer = self._other(lanes, index, width, late, "write")
                what = f"writes {self._bytes(lanes, index, width, late)} that {writer} wrote, with no barrier between"
                self._report("race", lanes, late, what, RULE)

    def _examine_readers(self, lanes: Lanes, index: Array, width: int, last: Array, items: Array | None) -> None:
        """Other warps' reads that may come after this write as well as before it."""
        late = (last >= self.order.floor[lanes.cta][:, None]) & (last != self.lane_code[lanes.key][:, None])
        doubtful = np.flatnonzero(late.any(axis=1) & self._changes(index, width, items))
        if not len(doubtful) or not self._is_news("race", lanes):
            return
        size, warp = len(self.last_reader[width]), lanes.warp[doubtful]
        for reader in range(self.machine.geometry.warps):
            held = self.readers[width].take(index[doubtful] + reader * size)
            codes = held.view(np.uint8).reshape(len(doubtful), -1).max(axis=1)
            unordered = ~self.order.is_ordered(warp, codes) & (self.order.place[warp] != reader)
            if unordered.any():
                lane = int(doubtful[np.argmax(unordered)])
                who = self._other(lanes, index, width, lane, "read", reader)
                what = f"overwrites {self._bytes(lanes, index, width, lane)} that {who} reads, with no barrier between"
                self._report("race", lanes, lane, what, RULE)
                return

    def _examine_collision(self, lanes: Lanes, index: Array, width: int, lost: NDArray[np.bool_]) -> None:
        """Two warps wrote different bytes to one place by one instruction."""
        winner = dict(zip(index.tolist(), lanes.warp.tolist(), strict=True))
        if not self._is_news("race", lanes):
            return
        for lane in np.flatnonzero(lost).tolist():
            other = winner[int(index[lane])]
            if other != int(lanes.warp[lane]):
                self._report("race", lanes, lane, f"writes {self._bytes(lanes, index, width, lane)} that a thread of "
                             f"warp {self.order.place[other]} writes by the same instruction", RULE)  # fmt: skip
                return

    def _examine_copies(self, lanes: Lanes, index: Array, width: int, items: Callable[[], Array]) -> None:
        """Two lanes that copy to one place by one instruction: either may come last, also within a warp. There equal bytes
        are left alone; in two warps the later copy may be on its way when the earlier one has been waited for."""
        if not self._is_news("race", lanes):
            return
        numbers = np.arange(lanes.count, dtype=np.int32)
        self.latest[index] = numbers
        last = self.latest.take(index)
        if not (last != numbers).any():
            return
        copied = items()
        differ = _unequal(copied, copied[last]) | (lanes.warp != lanes.warp[last])
        if differ.any():
            lane = int(np.argmax(differ))
            other = self.machine.geometry.describe(int(lanes.ids[last[lane]]))
            what = (
                f"copies to {self._bytes(lanes, index, width, lane)}, where {other} copies to by the same instruction"
            )
            self._report("race", lanes, lane, what, COPY_RULE)

    def _changes(self, index: Array, width: int, items: Array | None) -> NDArray[np.bool_]:
        """Which writes change what memory holds: the others are no race that anybody could see."""
        if items is None:
            return np.ones(len(index), np.bool_)
        held: Array = self.machine.shared.bytes.view(ITEM[width]).take(index)
        return _unequal(held, np.broadcast_to(items, held.shape).astype(held.dtype, copy=False))

    def _first_unordered(self, lanes: Lanes, found: Array) -> int | None:
        """The first lane with a mark of another warp that its own warp does not come after."""
        late = (found >= self.order.floor[lanes.cta][:, None]) & (found != IN_FLIGHT)
        late &= found != self.lane_code[lanes.key][:, None]
        some = np.flatnonzero(late.any(axis=1))
        if len(some):
            codes = np.where(late[some], found[some], ORDERED)
            unordered = ~self.order.is_ordered(lanes.warp[some][:, None], codes)
            if unordered.any():
                return int(some[np.argmax(unordered.any(axis=1))])
        return None

    def _is_news(self, code: str, lanes: Lanes) -> bool:
        """Whether a finding of this code would be raised, or recorded for the first time."""
        level, statement = self.machine.checks.level(code), lanes.statement
        assert statement is not None
        return level == "error" or (level == "record" and not self.machine.findings.is_known(code, statement))

    def _report(self, code: str, lanes: Lanes, lane: int, what: str, rule: str) -> None:
        error = lanes.fault(code, lane, what, rule)
        if self.machine.checks.level(code) == "error":
            raise error
        self.machine.record(error, lanes.statement)

    def _bytes(self, lanes: Lanes, index: Array, width: int, lane: int) -> str:
        at = int(index[lane]) * width - int(lanes.cta[lane]) * self.machine.shared.stride
        return f"{width} B at shared address {at:#x} (byte {at - SHARED_BASE} of shared memory)"

    def _other(self, lanes: Lanes, index: Array, width: int, lane: int, kind: str, warp: int | None = None) -> str:
        """The last access of another warp to a byte of that item: `thread (3, 0, 0) of block ... by st.shared.u32 at ...`."""
        mine, first = int(lanes.warp[lane]), int(index[lane]) * width
        found = self.log.last(kind, range(first, first + width), mine, warp, self.reads)
        if found is None:
            return "a thread of another warp" if warp is None else f"a thread of warp {warp}"
        other, statement = found
        warp = int(self.order.place[self.machine.geometry.warp[other]])
        return f"{self.machine.geometry.describe(other)} (warp {warp}) by {place(statement)}"

    def _copy(self, index: Array, width: int, lane: int) -> str:
        """The copy in flight to a byte of that item."""
        return self.machine.copies.describe(int(index[lane]) * width, width)


def _unequal(first: Array, second: Array) -> NDArray[np.bool_]:
    """Which items differ in their bits; a 16-byte item is a complex number only for NumPy."""
    if first.dtype.itemsize == 16:
        words = np.ascontiguousarray(first).view(np.uint64) != np.ascontiguousarray(second).view(np.uint64)
        return np.asarray(words.reshape(-1, 2).any(axis=1))
    unequal: NDArray[np.bool_] = first != second
    return unequal
