"""Boxes that several threads request with one instruction, checked as one access where no check has anything to report.

Each thread's copy begins after the copy of the thread before it. Boxes that do not overlap cannot change what the
checks find for one another, and equal stores leave what the first of them leaves. All of them are therefore shown to
the observers at once, on trial. If an observer would report something, or if different boxes overlap, nothing has
started yet, and the copies are started one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from refsim.errors import RefsimError
from refsim.layouts.tma import TensorMap
from refsim.ptx.async_ops.ends import BULK_BYTES, Box, Ends, changed, fill_of
from refsim.ptx.async_ops.torn_products import on_trial, others_watching, watching
from refsim.ptx.async_ops.transfers import End, Transfer, UnitHost
from refsim.ptx.checks.marks import AccessPart, Repeats
from refsim.ptx.events import COPY_BEGIN
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.lowering.blocks import granule
from refsim.ptx.memory.access import READ, WRITE, Access
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS

Begin = Callable[[Transfer, Lanes, int | None], None]
"""Starts a shown transfer: the transfer, the lane with the target memory, and the address of its mbarrier."""


@dataclass(frozen=True)
class BoxBatch:
    """Boxes of one tensor map, each requested by another lane; all items have one width."""

    lanes: Lanes
    boxes: tuple[Box, ...]
    addresses: Array
    made: TensorMap

    @property
    def width(self) -> int:
        """Return the width of an item in bytes."""
        return self.boxes[0].width


def batch_of(
    ends: Ends, lanes: Lanes, map_address: Array, coordinates: list[Array], shared: Array, *, stores: bool
) -> BoxBatch | None:
    """Return the boxes that several lanes request, or None where they must be checked one by one."""
    machine = ends.machine
    address = int(map_address[0])
    if address >= WINDOWS["param"] and address - WINDOWS["param"] < WINDOW_SIZE:
        ends.tensor_map(Lanes(machine, lanes.ids[:1], lanes.statement), address)
    made = ends.maps.get(address)
    if made is None or machine.tracking is not None or machine.watching is not None:
        return None
    if len(map_address) > 1 and not (map_address == map_address[0]).all():
        return None
    corners = zip(*(lanes.full(each).view(np.int32).tolist() for each in coordinates), strict=True)
    addresses, boxes = lanes.full(shared).astype(np.int64), []
    try:
        for corner, address in zip(corners, addresses.tolist(), strict=True):
            boxes.append(ends.box(lanes, made, corner, address, None, stores=stores))
    except RefsimError:
        return None
    widths = {box.width for box in boxes}
    if len(widths) > 1 or min(widths) < max(granule(machine.code, space) for space in ("shared", "global")):
        return None
    return BoxBatch(lanes, tuple(boxes), addresses, made)


# ---- into shared memory
def loaded(ends: Ends, batch: BoxBatch, barriers: Array, masks: Array | None, begin: Begin) -> bool:
    """Start the copies of boxes to shared memory; False where they have to be started one by one."""
    lanes, machine, boxes, width = batch.lanes, ends.machine, batch.boxes, batch.width
    fill = fill_of(batch.made, width)
    try:
        targets = _targets(ends, batch, masks)
        if fill is None or targets is None:
            return False
        which, owner, position = targets
        counts = np.array([len(box.source) for box in boxes])
        source = np.concatenate([box.source for box in boxes]) - machine.memory.space.base
        read = ends.checked_many(lanes, counts, None, "global", source, width, READ) if len(source) else None
        sizes = np.array([len(boxes[one].touched) for one in which])
        at = np.concatenate([boxes[one].touched for one in which]) + np.repeat(position, sizes)
        there = Lanes(lanes.machine, lanes.ids[which], lanes.statement)
        write = ends.checked_many(there, sizes, owner, "shared", at, BULK_BYTES, WRITE)
    except RefsimError:
        return False
    if (read is not None and read.region is None) or not _are_apart(write.index, sizes):
        return False
    if not on_trial(machine, lambda: _look_at_loads(machine, lanes, read, write)):
        return False
    if read is not None:
        for observer in watching(machine, "global"):
            observer.after(read)
    lanes.emit(COPY_BEGIN, payload=(write.index, BULK_BYTES, ""))
    write.space.mark_written(write.index, BULK_BYTES)
    starts, ends_at = np.cumsum(counts) - counts, np.cumsum(sizes)
    for number, one in enumerate(which.tolist()):
        box, lane = boxes[one], Lanes(lanes.machine, lanes.ids[one : one + 1], lanes.statement)
        flat = int(position[number] + owner[number] * machine.shared.stride)
        part = slice(int(ends_at[number] - sizes[number]), int(ends_at[number]))
        flight = Transfer(machine, lane, width, None, None, box.amount, rounded=batch.made.data_type.rounded)
        if read is not None and counts[one]:
            some = slice(int(starts[one]), int(starts[one] + counts[one]))
            flight.source = End("global", read.space, read.index[some], read.region)
            flight.target = End("shared", write.space, (box.shared + flat) // width, write.region)
        if box.filled is not None:
            flight.filled = End("shared", write.space, (box.filled + flat) // width, write.region)
            flight.fill = fill
        flight.writes = _part(write, lane, part)
        whose = Lanes(lanes.machine, lane.ids, lane.statement, owner[number : number + 1])
        begin(flight, lane if masks is None and whose.owner == lane.cta else whose, int(barriers[one]))
    return True


def _targets(ends: Ends, batch: BoxBatch, masks: Array | None) -> tuple[Array, Array, Array] | None:
    """Return for each copy the number of its lane, the receiving CTA and the position there. Return None where a mask
    names anything but running blocks of the cluster."""
    lanes, geometry = batch.lanes, ends.machine.geometry
    ((part, _, position, _),) = lanes.parts("shared", batch.addresses)
    if masks is None:
        return np.arange(lanes.count), part.cta if part.owner is None else part.owner, position
    bits = masks.astype(np.int64)[:, None] >> np.arange(geometry.cluster_ctas) & 1 == 1
    if not masks.all() or (masks.astype(np.int64) >> geometry.cluster_ctas).any():
        return None
    which, rank = np.nonzero(bits)
    owner = (lanes.cta - geometry.lane_ranks[lanes.ids])[which] + rank
    alive = np.asarray(ends.machine.alive.reshape(geometry.count, -1).any(axis=1))
    return (which, owner, position[which]) if alive[owner].all() else None


def _look_at_loads(machine: UnitHost, lanes: Lanes, read: Access | None, write: Access) -> None:
    """Show the reads and writes of several loads to the observers, which may raise DoubtError or RefsimError."""
    if read is not None:
        for observer in watching(machine, "global"):
            observer.before(read)
    for observer in others_watching(machine, "shared"):
        observer.before(write)
    if machine.races is not None:
        machine.races.transfers_issued(write, lanes.ids.tolist())
    if machine.proxies is not None:  # last, as it forgets the older accesses
        machine.proxies.before(write)


# ---- out of shared memory
def stored(ends: Ends, batch: BoxBatch, begin: Begin, repeats: Callable[[Transfer], Repeats]) -> bool:
    """Start the copies of boxes to global memory; False where they have to be started one by one.

    `repeats` returns the test for items that hold the bytes of a copy already, or get them from another copy.
    """
    within = np.array(
        [len(box.source) > 0 for box in batch.boxes]
    )  # a box outside the tensor leaves nothing to be done
    lanes = batch.lanes.select(within)
    if lanes is None:
        return True
    machine, width = ends.machine, batch.width
    boxes = [box for box in batch.boxes if len(box.source)]
    counts = np.array([len(box.source) for box in boxes])
    try:
        ((part, _, position, _),) = lanes.parts("shared", batch.addresses[within])
        owner = part.cta if part.owner is None else part.owner
        items = np.concatenate([box.shared for box in boxes]) + np.repeat(position, counts)
        target = np.concatenate([box.source for box in boxes]) - machine.memory.space.base
        read = ends.checked_many(lanes, counts, owner, "shared", items, width, READ)
        write = ends.checked_many(lanes, counts, None, "global", target, width, WRITE)
    except RefsimError:
        return False
    places = zip(boxes, position.tolist(), owner.tolist(), strict=True)
    distinct = {(*box.source[[0, -1]].tolist(), *place): len(box.source) for box, *place in places}
    if write.region is None or len(np.unique(write.index)) < sum(distinct.values()):
        return False
    write.items = changed(write)
    stops = np.cumsum(counts).tolist()
    flights = []
    for one, stop in enumerate(stops):
        some, lane = slice(stop - counts[one], stop), Lanes(machine, lanes.ids[one : one + 1], lanes.statement)
        source = End("shared", read.space, read.index[some], read.region)
        target_end = End("global", write.space, write.index[some], write.region)
        flights.append((Transfer(machine, lane, width, source, target_end, boxes[one].amount), lane, some))
    known = repeats(flights[0][0]) if len(distinct) == 1 else None
    seen: list[AccessPart] = []
    if not on_trial(machine, lambda: seen.extend(_look_at_stores(machine, read, write, known))):
        return False
    for observer in watching(machine, "shared"):
        observer.after(read)
    for observer in others_watching(machine, "global"):
        observer.after(write)
    stamp = 0 if machine.races is None else machine.races.transfer_sent(write, seen=seen)
    if machine.races is not None and len(distinct) < len(boxes):
        machine.races.note_equal(seen[0], lanes.ids, stamp)
    for flight, lane, some in flights:
        flight.stamp = stamp
        if machine.in_flight is not None:
            flight.reads = _part(read, lane, some)
            machine.in_flight.is_read(flight.reads.index, width)
        begin(flight, lane, None)
    return True


def _look_at_stores(machine: UnitHost, read: Access, write: Access, repeats: Repeats | None) -> list[AccessPart]:
    """Show the reads and writes of several stores to the observers; return what the race check saw at the target."""
    for observer in watching(machine, "shared"):
        observer.before(read)
    for observer in others_watching(machine, "global"):
        observer.before(write)
    seen = [] if machine.races is None else machine.races.look_at(write, repeats)
    if machine.proxies is not None:
        machine.proxies.before(write)
    return seen


# ---- both
def _are_apart(index: Array, sizes: Array) -> bool:
    """Return whether runs of rising items are disjoint, judged by their first and last items."""
    stops = np.cumsum(sizes)
    first, last = index[stops - sizes], index[stops - 1]
    order = np.argsort(first, kind="stable")
    return bool((first[order][1:] > last[order][:-1]).all())


def _part(access: Access, lane: Lanes, some: slice) -> Access:
    """Return the access to the items of one lane."""
    several = Lanes(lane.machine, np.repeat(lane.ids, some.stop - some.start), lane.statement)
    return replace(access, threads=several, at=access.at[some], index=access.index[some], items=None, wrote=None)
