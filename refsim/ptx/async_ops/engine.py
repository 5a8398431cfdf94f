"""The copy engine of the simulated GPU: runs of bytes and boxes of tensors, between global and shared memory.

A thread requests a copy and goes on. The request is checked at once: addresses, alignment, bounds and other accesses to
the bytes. The policy decides when bytes move. An mbarrier counts them, or a thread waits for its bulk groups. The
observers of memory see the reads and the future writes of a transfer when the transfer begins.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from refsim.layouts.tma import TensorMap
from refsim.ptx.async_ops.box_batches import BoxBatch, batch_of, loaded, stored
from refsim.ptx.async_ops.ends import BULK_BYTES, TENSOR_RULE, Box, Ends, changed, fill_of
from refsim.ptx.async_ops.queue import Queue, ThreadGroups
from refsim.ptx.async_ops.transfers import End, Transfer, UnitHost
from refsim.ptx.checks.bank_conflicts import BankCounter
from refsim.ptx.events import COPY_BEGIN, WAIT_BULK
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.atomic import ElementUpdate, reduction
from refsim.ptx.memory.access import GENERIC, READ, UPDATE, WRITE, Access
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import ITEM, AccessError, Space, rank_of
from refsim.ptx.text.syntax import place

REDUCE_RULE = "PTX ISA, cp.reduce.async.bulk.tensor: operations and types"
STORE_RULE = "PTX ISA, st.async and red.async: the mbarrier lies in the memory of the CTA that the destination is in"
GROUP_RULE = (
    "PTX ISA, cp.async.bulk.tensor: the mbarrier is in the CTA of the destination, or with .cta_group::2 in its pair"
)
CHANGE_RULE = (
    "PTX ISA, cp.async.bulk.wait_group.read: a copy reads its tensor map until then, or until its mbarrier says so"
)
_AT_ONCE = 1 << 20  # bytes of a prefetch that are looked at together
RUN_RULE = "PTX ISA, cp.async.bulk: size and addresses are multiples of 16"


@dataclass
class TransferWatchers:
    """The observers of one machine, as its copy engine calls them."""

    machine: UnitHost
    ends: Ends

    def read(self, flight: Transfer, access: Access) -> None:
        """Show the bytes that the transfer reads until its thread has waited for the read."""
        seen = self.ends.coarse(access)
        if seen is None:
            return
        for observer in self.machine.port.observers.get(access.name, ()):
            if not isinstance(observer, BankCounter):
                observer.before(seen)
                observer.after(seen)
        if access.name == "shared" and self.machine.in_flight is not None:
            self.machine.in_flight.is_read(seen.index, seen.width)
            flight.reads = seen

    def landing(self, flight: Transfer, access: Access) -> None:
        """Show the shared bytes that the transfer writes until a thread has observed its completion."""
        machine = self.machine
        for observer in machine.port.observers.get("shared", ()):
            if observer not in (machine.races, machine.proxies) and not isinstance(observer, BankCounter):
                observer.before(access)
        if machine.proxies is not None:
            machine.proxies.before(access)
        if machine.races is not None:
            machine.races.transfer_issued(access, lambda: changed(access), flight.lane)
        written = access.index, access.width, access.proxy if access.kind == UPDATE else ""
        machine.emit(COPY_BEGIN, flight.lanes.ids, access.statement, payload=written)
        access.space.mark_written(access.index, access.width)
        flight.writes = access

    def sent(self, flight: Transfer, access: Access, flying: list[Transfer]) -> None:
        """Show the global bytes that the transfer writes; threads may rely on them after a wait for the group."""
        machine, seen = self.machine, self.ends.coarse(access)
        access.items = changed(access)
        for observer in machine.port.observers.get("global", ()):
            if observer not in (machine.races, machine.proxies):
                observer.before(access)
                observer.after(access)
        if seen is None:
            return
        if machine.proxies is not None:
            machine.proxies.before(seen)
        if machine.races is not None:
            seen.items = changed(seen)
            flight.stamp = machine.races.transfer_sent(seen, partial(repeats, flight, flying, seen.space))


def repeats(flight: Transfer, flying: Iterable[Transfer], space: Space, index: Array, width: int) -> Bools:
    """Return for each item (by number) whether the copy to global memory leaves the value that would be there without it,
    because the value is there already or another copy in flight brings it. This
    assumes that the sources of copies in flight do not change; a change is a finding of its own."""
    at = (index[:, None] * width + np.arange(width)).reshape(-1)
    order = np.argsort(at, kind="stable")
    before = space.bytes[at[order]].astype(np.int16)
    for other in flying:
        if other is not flight and not other.is_performed:
            _bring(other, space, at[order], before)
    after = np.full(len(at), -1, np.int16)
    _bring(flight, space, at[order], after)
    equal = np.empty(len(at), np.bool_)
    equal[order] = (before == after) & (after >= 0)
    return np.asarray(equal.reshape(-1, width).all(axis=1))


def _bring(flight: Transfer, space: Space, at: Array, to: Array) -> None:
    """Put the bytes of a copy into `to` at rising positions `at`; put -1 where a reduction computes the value."""
    target = flight.target
    if target is None or target.space is not space or flight.source is None:
        return
    places = (target.index[:, None] * flight.width + np.arange(flight.width)).reshape(-1)
    found = np.minimum(np.searchsorted(at, places), len(at) - 1)
    here = at[found] == places
    brought = flight.brings().view(np.uint8) if flight.combine is None else np.full(len(places), -1, np.int16)
    to[found[here]] = brought[here]


@dataclass
class CopyEngine:
    """The transfers in flight of all running lanes."""

    machine: UnitHost
    policy: str
    choice: np.random.Generator | None
    issued: int = 0
    refused: set[int] = field(default_factory=set)  # CTAs that have seen a request to cancel fail

    def __post_init__(self) -> None:
        self.groups = ThreadGroups(self.machine.geometry.lanes)
        self.queue: Queue[Transfer] = Queue(self.policy, self.choice)
        self.ends = Ends(self.machine)
        self.shown = TransferWatchers(self.machine, self.ends)

    # ---- requests of instruction implementations
    def run(
        self,
        lanes: Lanes,
        to: tuple[str, Array],
        source: tuple[str, Array],
        amount: Array,
        *,
        barrier: Array | None = None,
        mask: Array | None = None,
        reduction: tuple[str, str] | None = None,
    ) -> None:
        """Start a copy of `amount` bytes for each lane; `mask` names the CTAs of the cluster that receive one."""
        combine = self._reduction(lanes, *reduction) if reduction else None
        width = combine.width if combine else BULK_BYTES
        for one, at in lanes.each():
            size, start, end = (int(lanes.full(each)[at]) for each in (amount, source[1], to[1]))
            self._check_run(one, {"size": size, "source address": start, "destination address": end})
            if not size:
                continue
            reach = min(size, self.machine.shared.stride + BULK_BYTES)  # one end is shared memory, and ends before
            steps, chunks = np.arange(0, reach, width), np.arange(0, reach, BULK_BYTES)
            read = self._run_end(one, source[0], start, steps, chunks, READ)
            counts = None if barrier is None else int(lanes.full(barrier)[at])
            for there, first in self.ends.targets(one, to[0], end, None if mask is None else int(lanes.full(mask)[at])):
                write = self._run_end(there, to[0], first, steps, chunks, UPDATE if combine else WRITE)
                self._start(
                    there, Transfer(self.machine, one, width, read[0], write[0], size, combine), read, write, counts
                )

    def box(
        self,
        lanes: Lanes,
        map_address: Array,
        coordinates: list[Array],
        shared: Array,
        *,
        barrier: Array | None = None,
        mask: Array | None = None,
        reduction: str | None = None,
        offsets: list[Array] | None = None,
        group: str | None = None,
    ) -> None:
        """Start the copy of a box for each lane: into shared memory if `barrier` counts its bytes, else to global
        memory. `offsets` are the offsets of the im2col mode, empty in a store, and None in the tile mode. `group` is the
        .cta_group."""
        in_pair = group == "cta_group::2"
        if barrier is not None and mask is None:
            self._check_barriers(lanes, shared, barrier, 2 if in_pair else 1)
        if lanes.count > 1 and reduction is None and offsets is None and not in_pair:
            batch = batch_of(self.ends, lanes, map_address, coordinates, shared, stores=barrier is None)
            if batch is not None and self._starts_together(batch, barrier, mask):
                return
        for one, at in lanes.each():
            map_at, address = int(lanes.full(map_address)[at]), int(lanes.full(shared)[at])
            made = self.ends.tensor_map(one, map_at)
            corner, moved = _place(lanes, at, coordinates, offsets)
            box = self.ends.box(one, made, corner, address, moved, stores=barrier is None)
            began = self.issued
            if barrier is None:
                self._store(one, made, box, address, reduction)
            else:
                ctas = None if mask is None else int(lanes.full(mask)[at])
                self._load(one, made, box, address, int(lanes.full(barrier)[at]), ctas, in_pair=in_pair)
            for each in self.queue.flying if map_at not in self.ends.maps else ():
                if each.number > began:
                    each.map_at = map_at

    def send(self, lanes: Lanes, to: Array, words: Array, barrier: Array, update: ElementUpdate | None = None) -> None:
        """Send each lane's elements (n, count) to the shared memory of a CTA, through the generic proxy. With `update`,
        combine them with the elements in memory. The mbarrier that counts the bytes must be in the receiving CTA."""
        width = words.shape[1] * words.dtype.itemsize
        for one, at in lanes.each():
            target, counts = (int(lanes.full(each)[at]) for each in (to, barrier))
            if rank_of(np.array([target]))[0] != rank_of(np.array([counts]))[0]:
                what = "the mbarrier is not in the block that the bytes go to"
                raise one.fault("invalid-operand", 0, what, STORE_RULE)
            part, first = self.ends.own(one, target)
            end, access = self.ends.checked(part, "shared", np.array([first]), width, UPDATE if update else WRITE)
            access.proxy, raw = GENERIC, words[at].tobytes()
            if update is None:
                flight = Transfer(self.machine, one, width, None, None, width, filled=end, fill=raw)
            else:
                flight = Transfer(
                    self.machine, one, width, None, end, width, update, held=np.frombuffer(raw, ITEM[width])
                )
            self._start(part, flight, None, (flight.target, access), counts)

    def respond(self, one: Lanes, to: int, barrier: int, response: bytes, mask: int | None, *, failed: bool) -> None:
        """Send the response to a request to cancel to the shared memory of a thread's CTA, or of all CTAs in `mask`."""
        for there, first in self.ends.targets(one, "shared", to, mask):
            size = len(response)
            end, access = self.ends.checked(there, "shared", np.array([first]), size, WRITE)
            flight = Transfer(self.machine, one, size, None, None, size, filled=end, fill=response, failed=failed)
            self._start(there, flight, None, (None, access), barrier)

    def look(
        self,
        lanes: Lanes,
        map_address: Array,
        coordinates: list[Array] | None = None,
        offsets: list[Array] | None = None,
    ) -> None:
        """Check the map of a prefetch, and its box if it has one, as for a copy; a prefetch moves nothing."""
        for one, at in lanes.each():
            made = self.ends.tensor_map(one, int(lanes.full(map_address)[at]))
            if coordinates is not None:
                corner, moved = _place(lanes, at, coordinates, offsets)
                self.ends.box(one, made, corner, 0, moved, stores=False)

    def map_changes(self, lanes: Lanes, space: str, address: int) -> None:
        """Report a copy that still reads the tensor map that a thread is about to write."""
        ((_, name, at, _),) = lanes.parts(space, np.array([address]))
        if name == "shared":
            return
        self.machine.findings.maps.add(int(at[0]))
        for each in self.queue.flying:
            if each.map_at == address:
                who = f"{place(each.lanes.statement)} of {self.machine.geometry.describe(each.lane)}"
                missing = self._missing(each, writes=each.writes is not None)
                what = f"the tensor map at {address:#x} changes while {who} still reads it: {missing}"
                self.machine.report(lanes.fault("read-before-wait", 0, what, CHANGE_RULE), lanes.statement)
                return

    def hint(self, lanes: Lanes, address: Array, amount: Array) -> None:
        """Check that the run of bytes of a prefetch exists."""
        for one, at in lanes.each():
            start, size = int(lanes.full(address)[at]), int(lanes.full(amount)[at])
            self._check_run(one, {"size": size, "source address": start})
            for first in range(0, size, _AT_ONCE):
                at_all = start + np.arange(first, min(size, first + _AT_ONCE), BULK_BYTES)
                try:
                    self.machine.memory.space.check(at_all - self.machine.memory.space.base, BULK_BYTES, store=False)
                except AccessError as error:
                    raise one.fault(error.code, 0, error.what) from None

    def commit(self, lanes: Lanes) -> None:
        """Put everything that a thread started since its last commit into one bulk group."""
        self.groups.commit(lanes.key)

    def wait(self, lanes: Lanes, pending: int, *, read: bool) -> None:
        """Complete all but the `pending` newest groups of these lanes, or with `read` only the reads of sources."""
        self.groups.note_wait(lanes.ids, lanes.statement, pending)
        if not self.queue.flying:
            return
        limit = {lane: int(self.groups.committed[lane]) - pending for lane in lanes.ids.tolist()}
        ready = [each for each in self.queue.flying if each.group < limit.get(each.lane, -1)]
        for each in ready:
            each.source_was_read()
        if read:
            for each in ready:
                each.fetch()
                each.release()
            return
        self._complete(ready)
        lanes.emit(WAIT_BULK, payload=[(each.lane, each.stamp) for each in ready])

    # ---- progress of transfers
    @property
    def is_pending(self) -> bool:
        """Return whether some bytes have not moved yet."""
        return any(not each.is_performed for each in self.queue.flying)

    def drift(self) -> None:
        """Let some transfers in flight take effect, under the random policy."""
        if self.queue.flying:
            self.queue.drift()

    def fire(self) -> None:
        """Perform the oldest transfer of every CTA that has one, as no thread can run."""
        seen = set()
        for each in list(self.queue.flying):
            cta = each.lane // self.machine.geometry.threads
            if not each.is_performed and cta not in seen:
                seen.add(cta)
                each.performed()

    def finish(self) -> None:
        """Perform all transfers in flight after the last thread exits; report transfers that no thread waited for."""
        for each in list(self.queue.flying):
            if not each.is_performed:
                each.performed()
            if each.writes is not None or each.reads is not None:
                self._report_left(each)
        self.queue.flying.clear()

    def land(self, transfers: list[Transfer]) -> dict[int, int]:
        """Complete the transfers that an observed phase counted; return the newest access of each of their agents."""
        found = dict[int, int]()
        for each in transfers:
            each.source_was_read()
        self._complete(transfers)
        for each in transfers:
            found |= each.landed()
            if each.failed:
                self.refused.add(each.barrier // self.machine.shared.stride)
        return found

    def _complete(self, ready: list[Transfer]) -> None:
        gone = {id(each) for each in ready}
        for each in ready:
            if not each.is_performed:
                each.performed()
            each.complete()
        self.queue.flying = [each for each in self.queue.flying if id(each) not in gone]

    # ---- text of findings
    def describe(self, start: int, width: int) -> str:
        """Return a sentence about the transfer at these bytes of shared memory and its missing wait, or "" for none."""
        for each in reversed(self.queue.flying):
            writes = bool(each.writes_to(start, width)[0])
            if not writes and not each.reads_from(start, width)[0]:
                continue
            who = f"{place(each.lanes.statement)} of {self.machine.geometry.describe(each.lane)}"
            return f"{who} still {'writes' if writes else 'reads'} them: {self._missing(each, writes=writes)}"
        return ""

    def _missing(self, flight: Transfer, *, writes: bool) -> str:
        if flight.barrier >= 0:
            at = flight.barrier % self.machine.shared.stride
            return f"no wait has seen phase {flight.phase} complete of the mbarrier at shared address {at:#x}"
        words = self.groups.missing_wait(flight.lane, flight.group).replace("cp.async.", "cp.async.bulk.")
        return words if writes else words.replace("wait_group", "wait_group.read")

    def _report_left(self, flight: Transfer) -> None:
        """Report a transfer that no thread waited for when its block exits."""
        statement = flight.lanes.statement
        code, act = ("unfinished-store", "reads") if flight.writes is None else ("unfinished-copy", "writes")
        what = f"a block exits whose shared memory this copy {act}, and no thread has waited for it"
        rule = "shared memory is another block's once its own has exited: wait for copies before"
        self.machine.report(flight.lanes.fault(code, 0, what, rule), statement)

    # ---- boxes and runs
    def _load(
        self, one: Lanes, made: TensorMap, box: Box, address: int, barrier: int, mask: int | None, *, in_pair: bool
    ) -> None:
        """Start the copy of a box to the shared memory of one CTA, or of each CTA in `mask`. `in_pair`: the mbarrier of
        the even or the odd CTA of each pair counts the bytes, as `barrier` is in an even or an odd CTA."""
        fill = b"" if box.filled is None else fill_of(made, box.width)
        if fill is None:
            what = f"the NaN fill of {made.data_type.name} elements is not known"
            raise one.fault("invalid-operand", 0, what, TENSOR_RULE)
        read = self.ends.in_global(one, box.source, box.width, READ) if len(box.source) else None
        for there, first in self.ends.targets(one, "shared", address, mask):
            end, _ = self.ends.checked(there, "shared", first + box.shared, box.width, WRITE) if read else (None, None)
            _, seen = self.ends.checked(there, "shared", first + box.touched, BULK_BYTES, WRITE)
            flight = Transfer(self.machine, one, box.width, None if read is None else read[0], end, box.amount)
            flight.rounded = made.data_type.rounded
            flight.in_pair = in_pair
            if box.filled is not None:
                flight.filled = self.ends.checked(there, "shared", first + box.filled, box.width, WRITE)[0]
                flight.fill = fill
            self._start(there, flight, read, (end, seen), barrier)

    def _store(self, one: Lanes, made: TensorMap, box: Box, address: int, reduction: str | None) -> None:
        """Start the copy, or the reduction, of a box to global memory."""
        combine, width, shared, source = None, box.width, box.shared, box.source
        if not len(source):
            return
        if reduction is not None:
            combine = self._reduction(one, reduction, made.data_type.name)
            within = np.arange(0, width, combine.width)
            shared, source = ((each[:, None] + within).reshape(-1) for each in (shared, source))
            width = combine.width
        part, first = self.ends.own(one, address)
        read = self.ends.checked(part, "shared", first + shared, width, READ)
        if box.filled is None:
            read = read[0], self.ends.checked(part, "shared", first + box.touched, BULK_BYTES, READ)[1]
        write = self.ends.in_global(one, source, width, UPDATE if combine else WRITE)
        self._start(one, Transfer(self.machine, one, width, read[0], write[0], box.amount, combine), read, write, None)

    def _check_barriers(self, lanes: Lanes, to: Array, barriers: Array, ctas: int) -> None:
        """Raise a fault for an mbarrier outside the CTA that the box goes to, or outside its pair (`ctas` 2)."""
        if self.machine.geometry.cluster_ctas == 1:
            return
        ranks, own = rank_of(lanes.full(to)), rank_of(lanes.full(barriers))
        if (stray := ranks // ctas != own // ctas).any():
            at = int(np.argmax(stray))
            what = f"the box goes to rank {ranks[at]} of the cluster, and its mbarrier is in rank {own[at]}"
            raise lanes.fault("invalid-operand", at, what, GROUP_RULE)

    def _reduction(self, lanes: Lanes, operation: str, type: str) -> ElementUpdate:
        found = reduction(operation, type)
        if found is None:
            raise lanes.fault("invalid-operand", 0, f"a reduction {operation} of {type} elements", REDUCE_RULE)
        if found.is_rounded:
            self.machine.mark_inexact(lanes.statement)
        return found

    @staticmethod
    def _check_run(one: Lanes, numbers: dict[str, int]) -> None:
        for what, number in numbers.items():
            if number % BULK_BYTES:
                raise one.fault("misaligned", 0, f"the {what} {number:#x} is not a multiple of 16 bytes", RUN_RULE)

    def _run_end(self, one: Lanes, name: str, start: int, steps: Array, chunks: Array, kind: str) -> tuple[End, Access]:
        width = int(steps[1] - steps[0]) if len(steps) > 1 else BULK_BYTES
        if name == "global":
            return self.ends.in_global(one, start + steps, width, kind)
        part, first = (one, start) if kind != READ else self.ends.own(one, start)
        end, seen = self.ends.checked(part, name, first + steps, width, kind)
        return end, seen if width == BULK_BYTES else self.ends.checked(part, name, first + chunks, BULK_BYTES, kind)[1]

    # ---- starting
    def _starts_together(self, batch: BoxBatch, barrier: Array | None, mask: Array | None) -> bool:
        if barrier is None:
            flying, space = self.queue.flying, self.machine.memory.space
            return stored(self.ends, batch, self._begin, lambda flight: partial(repeats, flight, flying, space))
        lanes = batch.lanes
        return loaded(self.ends, batch, lanes.full(barrier), None if mask is None else lanes.full(mask), self._begin)

    def _start(
        self,
        there: Lanes,
        flight: Transfer,
        read: tuple[End, Access] | None,
        write: tuple[End | None, Access],
        barrier: int | None,
    ) -> None:
        """Show a checked transfer to all observers and put it in flight to the memory of `there`."""
        self._number(flight, there, barrier)
        if read is not None:
            self.shown.read(flight, read[1])
        if write[1].name == "shared":
            self.shown.landing(flight, write[1])
        else:
            self.shown.sent(flight, write[1], self.queue.flying)
        self.queue.start(flight)

    def _begin(self, flight: Transfer, there: Lanes, barrier: int | None) -> None:
        """Put a transfer in flight that the observers have already seen."""
        self._number(flight, there, barrier)
        self.queue.start(flight)

    def _number(self, flight: Transfer, there: Lanes, barrier: int | None) -> None:
        """Number a transfer, and assign it to its mbarrier's phase or to its thread's group."""
        self.issued += 1
        flight.number = self.issued
        if barrier is None:
            flight.group = int(self.groups.committed[flight.lane])
            return
        part, at = self.ends.own(flight.lanes, barrier)
        if flight.in_pair:
            cta = int((there.cta if there.owner is None else there.owner)[0])
            first = cta - cta % self.machine.geometry.cluster_ctas % 2
            owner = np.array([first + int(rank_of(np.array([barrier]))[0]) % 2])
            part = Lanes(part.machine, part.ids, part.statement, owner)
        elif there.owner is not None:
            part = there
        flight.barrier, flight.phase = self.machine.counter.counted(part, at)


def _place(
    lanes: Lanes, at: int, coordinates: list[Array], offsets: list[Array] | None
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the coordinates of a lane, and its offsets or None."""
    corner = tuple(int(lanes.full(each).view(np.int32)[at]) for each in coordinates)
    return corner, None if offsets is None else tuple(int(lanes.full(each)[at]) for each in offsets)
