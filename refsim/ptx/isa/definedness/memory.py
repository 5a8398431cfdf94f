"""Undefined bits in memory: a mask byte for each byte, and the rules of loads, stores, copies and atomics.

The bytes of shared and local memory begin undefined. Bytes of global memory are undefined while they are marked as
uninitialized. A rule runs just before its instruction, so an undefined address is reported as such, whatever it hits.

Rules for undefined bits that a copy engine moves from one memory to another."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.tma import MAP_BYTES
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.register_file import Mask, joined, mask_of, nonzero
from refsim.ptx.execution.types import TYPES, PtxType
from refsim.ptx.isa.definedness.bits import RuleOperands, full, rule_of
from refsim.ptx.isa.definedness.tracking import GRANULE, Events, Tracking, tracking_of
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import ITEM, Space, with_rank, zeros

UNWRITTEN = "memory was never written"
ADDRESS, SIZE = "an address", "the size of a copy"
_WIDEST = 16


@dataclass
class Shadow:
    """The masks of one state space: `bits`, the event of each granule (`origin`), and its store event (global
    memory). `granule`: bytes that share an event."""

    space: Space
    granule: int = GRANULE

    def __post_init__(self) -> None:
        size = len(self.space.bytes)
        self.bits: NDArray[np.uint8] = np.full(size, 0xFF, np.uint8) if self.is_owned else zeros(size, np.uint8)
        self.origin: NDArray[np.int32] = zeros(size // self.granule, np.int32)
        self.store: NDArray[np.int32] = zeros(0 if self.is_owned else size // self.granule, np.int32)

    @property
    def is_owned(self) -> bool:
        """Return whether the space belongs to CTAs or lanes: it lives as long as they run."""
        return self.space.stride > 0

    def grow(self) -> None:
        """Extend the masks to the present size of the space."""
        if (more := len(self.space.bytes) - len(self.bits)) > 0:
            self.bits = np.concatenate([self.bits, np.zeros(more, np.uint8)])
            self.origin, self.store = (
                np.concatenate([numbers, np.zeros(more // self.granule, np.int32)])
                for numbers in (self.origin, self.store)
            )

    def read(self, flat: Array, width: int) -> NDArray[np.uint8] | None:
        """Return the masks of `width` bytes from each flat position, (n, width); None if all bits are defined."""
        self.grow()
        rows = self._rows(self.bits, flat, width)
        if not self.is_owned:
            self.space.touch(flat, width)
            unwritten = self._rows(self.space.unwritten, flat, width) != 0
            if unwritten.any():
                rows = np.where(unwritten & self._inside(flat, width)[:, None], np.uint8(0xFF), rows)
        return rows if rows.any() else None

    def _rows(self, held: NDArray[np.uint8], flat: Array, width: int) -> Array:
        """Return `width` bytes of a table at each flat position, (n, width)."""
        return held.view(ITEM[width]).take(flat // width, mode="clip").view(np.uint8).reshape(-1, width)

    def _inside(self, flat: Array, width: int) -> Array:
        """Return which positions exist; an access elsewhere is a fault that the instruction itself reports."""
        return (flat >= 0) & (flat + width <= len(self.bits))

    def origins(self, flat: Array, width: int) -> Array:
        """Return the event of each access: of any granule that it touches, of the first one where bytes have their own."""
        found = self.origin.take(flat // self.granule, mode="clip")
        for offset in range(self.granule, width, self.granule):
            other = self.origin.take((flat + offset) // self.granule, mode="clip")
            found = np.maximum(found, other) if self.granule == GRANULE else np.where(found == 0, other, found)
        return found

    def write(self, flat: Array, width: int, rows: Array | None) -> None:
        """Set the masks of `width` bytes at each flat position; None: all are defined."""
        self.grow()
        inside = self._inside(flat, width)
        for byte in range(width) if self.granule == 1 else ():
            self.origin[flat[inside] + byte] = 0
        if rows is None:
            self.bits.view(ITEM[width])[flat[inside] // width] = 0
            return
        items: Array = np.ascontiguousarray(rows, np.uint8).view(ITEM[width]).reshape(-1)
        self.bits.view(ITEM[width])[flat[inside] // width] = items[inside]

    def blame(self, flat: Array, width: int, origin: Array, store: Array | None) -> None:
        """Record the event and the store of undefined bits that were stored (origin is not 0)."""
        some = (origin != 0) & self._inside(flat, width)
        for offset in range(0, max(width, self.granule), self.granule):
            granule = (flat[some] + offset) // self.granule
            self.origin[granule] = origin[some]
            if store is not None and not self.is_owned:
                self.store[granule] = store[some]

    @property
    def is_output(self) -> bool:
        """Return whether some undefined bits were stored where the host can read them."""
        return bool(self.store.any())

    def outputs(self) -> tuple[Array, Array, Array]:
        """Return event, store and position of each undefined byte that was stored and not overwritten. The host does
        not read a heap: its undefined bytes become uninitialized bytes for later launches."""
        positions = np.flatnonzero(self.bits)
        positions = positions[(self.space.unwritten[positions] == 0) & (self.store[positions // self.granule] != 0)]
        if self.space.blocks is not None:
            region = self.space.blocks.region
            inside = (positions >= region.start) & (positions < region.end)
            self.space.unwritten[positions[inside]] = 1
            positions = positions[~inside]
        return self.origin[positions // self.granule], self.store[positions // self.granule], positions


def shadow_of(tracking: Tracking, lanes: Lanes, name: str) -> Shadow | None:
    """Return the masks of a state space; None for parameters, which are always defined."""
    if name == "param":
        return None
    space, _ = lanes.space(name)
    found: Shadow | None = tracking.masks.get(name)
    if found is None or found.space is not space:
        found = tracking.masks[name] = Shadow(space, tracking.granule)
    return found


def renewed(lanes: Lanes, start: int, end: int) -> None:
    """Clear the masks of bytes [start, end) of global memory, which are allocated anew and uninitialized."""
    shadow = shadow_of(tracking_of(lanes), lanes, "global")
    assert shadow is not None
    shadow.grow()
    shadow.bits[start:end] = 0
    granules = slice(start // shadow.granule, -(-end // shadow.granule))
    shadow.origin[granules] = shadow.store[granules] = 0


def doubted(lanes: Lanes, events: Array) -> None:
    """Mark all local memory of lanes with an event as undefined: some arm of a branch writes there, it is unknown
    where."""
    shadow = shadow_of(tracking_of(lanes), lanes, "local")
    assert shadow is not None
    some, stride = lanes.ids[events != 0], shadow.space.stride
    shadow.bits.reshape(-1, stride)[some] = 0xFF
    shadow.origin.reshape(-1, stride // shadow.granule)[some] = events[events != 0][:, None]


def _places(lanes: Lanes, space: str, addresses: Array) -> Iterator[tuple[Lanes, Shadow, Array, Array, Any]]:
    """Yield for each state space of addresses its lanes, masks, positions, flat positions, and which lanes they are."""
    tracking = tracking_of(lanes)
    for part, name, at, chosen in lanes.parts(space, addresses):
        shadow = shadow_of(tracking, part, name)
        if shadow is not None and len(shadow.space.bytes):  # without any, the instruction reports the fault
            position = part.full(at)
            flat = position + part.space(name)[1] * shadow.space.stride
            yield part, shadow, position, flat, slice(None) if chosen is None else chosen


def read(lanes: Lanes, space: str, addresses: Array, width: int, size: int) -> tuple[Array, Array] | None:
    """Return the masks (n, width) of one access per lane and the event of each element of `size` bytes, or None."""
    found = None
    for part, shadow, at, flat, chosen in _places(lanes, space, addresses):
        rows = shadow.read(flat, width)
        if rows is None:
            continue
        if found is None:
            found = np.zeros((lanes.count, width), np.uint8), np.zeros((lanes.count, width // size), np.int32)
        elements = rows.reshape(len(rows), -1, size).any(axis=2)
        origin = np.stack([shadow.origins(flat + size * place, size) for place in range(width // size)], axis=1)
        if (fresh := elements & (origin == 0)).any():
            unwritten = rows != 0
            events = tracking_of(part).origins.add(
                part, fresh.any(axis=1), UNWRITTEN, shadow.space, at + unwritten.argmax(axis=1), unwritten.sum(axis=1)
            )
            origin = np.where(fresh, events[:, None], origin)
        found[0][chosen], found[1][chosen] = rows, np.where(elements, origin, 0)
    return found


def read_own(
    lanes: Lanes, places: Array, width: int, size: int, cta: Array | None = None
) -> tuple[Array, Array] | None:
    """Return what `read` does, for places in the shared memory of each lane's own CTA, or of `cta`: the tensor cores of
    a CTA take bits 0 to 17 of a descriptor's address, without a rank."""
    ranks = lanes.machine.geometry.ranks[lanes.cta if cta is None else cta]
    return read(lanes, "shared", with_rank(places, ranks), width, size)


def write(lanes: Lanes, space: str, addresses: Array, width: int, rows: Array | None, origin: Array | None) -> None:
    """Store the masks (n, width) of one access per lane; `origin` (n, elements) holds their events."""
    for part, shadow, at, flat, chosen in _places(lanes, space, addresses):
        shadow.write(flat, width, None if rows is None else rows[chosen])
        if rows is None or origin is None:
            continue
        events = origin[chosen]
        some = events.any(axis=1)
        if some.any():
            stores = None if shadow.is_owned else _stored(part, some, shadow.space, at, width)
            size = width // events.shape[1]
            for place in range(events.shape[1]):
                shadow.blame(flat + size * place, size, events[:, place], stores)


def _stored(lanes: Lanes, some: Array, space: Space, at: Array, width: int) -> Array:
    """Return a store event for each of `some` lanes."""
    stores: Events = tracking_of(lanes).stores
    return stores.add(lanes, some, "", space, at, np.full(len(at), width))


# ---- rules
def space_named(keywords: dict[str, Any]) -> str:
    """Return the state space of an instruction by its keywords."""
    return str(keywords.get("space") or "generic").partition("::")[0]


def loaded(operands: "RuleOperands") -> list[Any]:
    """Return the masks of ld: of the bytes; an undefined address makes the whole result undefined."""
    lanes, row = operands.lanes, TYPES[operands.keywords["type"]]
    operands.demand(operands.masks[0], ADDRESS)
    count = int((operands.keywords.get("vec") or "v1")[1:])
    size, address = row.bits // 8, operands.values[0]
    columns: list[Mask | None] = []
    width = min(size * count, _WIDEST)
    for offset in range(0, size * count, width):
        found = read(lanes, space_named(operands.keywords), address + offset, width, size)
        columns += [None] * (width // size) if found is None else _columns(*found, row)
    if (unknown := operands.masks[0]) is not None:
        columns = [mask_of(full(nonzero(unknown.bits), row), unknown.origin)] * count
    return [columns]


def _columns(rows: Array, origin: Array, row: PtxType) -> list[Mask | None]:
    """Return the masks (n, bytes) of a vector as one mask for each element."""
    bits = np.ascontiguousarray(rows).view(row.bits_dtype)
    return [mask_of(np.ascontiguousarray(bits[:, place]), origin[:, place]) for place in range(bits.shape[1])]


def stored(operands: "RuleOperands") -> list[Any]:
    """Store the masks of the operands of st to its bytes."""
    lanes, row = operands.lanes, TYPES[operands.keywords["type"]]
    operands.demand(operands.masks[0], ADDRESS)
    masks, size = operands.masks[1], row.bits // 8
    width = min(size * len(masks), _WIDEST)
    each = width // size
    for start in range(0, len(masks), each):
        rows, origin = _row(masks[start : start + each], row, lanes.count)
        write(lanes, space_named(operands.keywords), operands.values[0] + start * size, width, rows, origin)
    return []


def _row(masks: list[Mask | None], row: PtxType, count: int) -> tuple[Array | None, Array | None]:
    """Return the masks (n, bytes) of adjacent elements and their events (n, elements); None if all are defined."""
    if all(mask is None for mask in masks):
        return None, None
    bits, origin = np.zeros((count, len(masks)), row.bits_dtype), np.zeros((count, len(masks)), np.int32)
    for place, mask in enumerate(masks):
        if mask is not None:
            bits[:, place] = mask.bits.astype(row.bits_dtype)
            origin[:, place] = np.where(nonzero(bits[:, place]), mask.origin, 0)
    return bits.view(np.uint8).reshape(count, -1), origin


@dataclass(frozen=True)
class Masked:
    """A number of `width` bits; the bits of `mask` are undefined."""

    value: int
    mask: int
    width: int

    @property
    def ones(self) -> int:
        """Return a number with all bits set."""
        return (1 << self.width) - 1

    @property
    def can_be_0(self) -> int:
        """Return the bits that can be 0."""
        return (~self.value | self.mask) & self.ones

    @property
    def can_be_1(self) -> int:
        """Return the bits that can be 1."""
        return self.value | self.mask


Update = Callable[[Masked, Masked, Masked], Masked]


def _whole(old: Masked, b: Masked, c: Masked) -> Masked:
    """Return a result that any undefined bit makes undefined; its value is not used by any rule."""
    return Masked(0, old.ones if old.mask or b.mask else 0, old.width)


def _exchanged(old: Masked, b: Masked, c: Masked) -> Masked:
    """Return the result of a compare-and-swap: c if old equals b, else old; where b may equal old, all differing bits
    are undefined."""
    open_ = old.mask | b.mask
    if (old.value ^ b.value) & ~open_:
        return old
    return c if not open_ else Masked(old.value, old.mask | c.mask | (old.value ^ c.value), old.width)


def _extreme(operation: str, row: PtxType) -> Update:
    """Return the update of min or max: one of the numbers if no undefined bit changes which of them it is."""
    sign = 1 << row.bits - 1 if row.is_signed else 0

    def bounds(number: Masked) -> tuple[int, int]:
        """Return the least and the greatest number that the defined bits allow; a signed number is biased."""
        known = number.value & ~number.mask
        return (known | number.mask & sign) ^ sign, (known | number.mask & ~sign) ^ sign

    def update(old: Masked, b: Masked, c: Masked) -> Masked:
        """Return the number that is the result whatever the undefined bits are."""
        (least_old, most_old), (least_b, most_b) = bounds(old), bounds(b)
        if most_old <= least_b or most_b <= least_old:
            return old if (most_old <= least_b) == (operation == "min") else b
        return _whole(old, b, c)

    return update


# The value in memory after an update, from the old value, b and c.
UPDATES: dict[str, Update] = {
    "and": lambda old, b, c: Masked(
        old.value & b.value, old.can_be_1 & b.can_be_1 & (old.can_be_0 | b.can_be_0), old.width
    ),
    "or": lambda old, b, c: Masked(
        old.value | b.value, old.can_be_0 & b.can_be_0 & (old.can_be_1 | b.can_be_1), old.width
    ),
    "xor": lambda old, b, c: Masked(old.value ^ b.value, old.mask | b.mask, old.width),
    "exch": lambda old, b, c: b,
    "cas": _exchanged,
}


@rule_of
def updated(operands: RuleOperands, operation: str) -> list[Any]:
    """Return the rule of atom and red: each lane reads the value that the previous lanes left at its place."""
    operands.demand(operands.masks[0], ADDRESS)
    row = TYPES[operands.keywords["type"]]
    update = _extreme(operation, row) if operation in ("min", "max") else UPDATES.get(operation, _whole)
    is_vector = isinstance(operands.masks[1], list)
    given = list(zip(operands.masks[1:3], operands.values[1:3], strict=True))
    elements: list[Mask | None] = []
    for place in range(len(operands.masks[1]) if is_vector else 1):
        pairs = [(m[place], v[place]) if is_vector and isinstance(m, list) else (m, v) for m, v in given]
        address = operands.values[0] + place * (row.bits // 8)
        others = pairs[1:] if operation == "cas" else []
        elements.append(_update(operands, address, row, [pairs[0], *others], update))
    if not operands.results:
        return []
    return [elements if isinstance(operands.results[0][0], tuple) else elements[0]]


def _update(
    operands: "RuleOperands", address: Array, row: PtxType, given: list[tuple[Mask | None, Array]], update: Update
) -> Mask | None:
    """Apply an update lane after lane to values and masks; return the mask of the old values. `given`: (mask, value) of
    b and, for cas, c."""
    lanes, size, count = operands.lanes, row.bits // 8, operands.lanes.count
    found = read(lanes, space_named(operands.keywords), address, size, size)
    if found is None and all(mask is None for mask, _ in given):
        return None  # memory is defined and stays defined
    held = np.zeros((count, size), np.uint8) if found is None else found[0]
    origin = np.zeros(count, np.int32) if found is None else found[1][:, 0]
    sources = [
        [Masked(*each, row.bits) for each in zip(_numbers(value, row, count), _numbers(bits, row, count), strict=True)]
        for value, bits in ((value, None if mask is None else mask.bits) for mask, value in given)
    ]
    _, own = joined([mask for mask, _ in given if mask is not None], count)
    before, results = np.zeros(count, np.int32), np.zeros(count, np.int32)
    latest: dict[tuple[int, int], tuple[Masked, int]] = {}
    was, left = [], []
    for lane, (cell, value) in enumerate(cells_of(lanes, space_named(operands.keywords), address, size)):
        mask = int.from_bytes(held[lane].tobytes(), "little")
        old, before[lane] = latest.get(cell, (Masked(value, mask, row.bits), int(origin[lane])))
        after = update(old, sources[0][lane], sources[-1][lane])
        results[lane] = (before[lane] or own[lane]) if after.mask else 0
        latest[cell] = after, int(results[lane])
        was.append(old.mask)
        left.append(after.mask)
    write(lanes, space_named(operands.keywords), address, size, _rows(left, size), results[:, None])
    return mask_of(_rows(was, size).view(row.bits_dtype)[:, 0], before)


def _numbers(bits: Array | None, row: PtxType, count: int) -> list[int]:
    """Return bits (n,) or (1,) as a number for each lane; None: zeros."""
    if bits is None:
        return [0] * count
    items = np.broadcast_to(np.asarray(bits), (count, *np.shape(bits)[1:])).astype(row.bits_dtype, copy=False)
    return [int.from_bytes(item.tobytes(), "little") for item in items]


def _rows(numbers: list[int], size: int) -> NDArray[np.uint8]:
    """Return numbers as rows of bytes."""
    return np.frombuffer(b"".join(number.to_bytes(size, "little") for number in numbers), np.uint8).reshape(-1, size)


def cells_of(lanes: Lanes, space: str, addresses: Array, size: int) -> list[tuple[tuple[int, int], int]]:
    """Return the place that each lane accesses, and its number; shared address 0 of two CTAs is two places."""
    cells = [((-1, lane), 0) for lane in range(lanes.count)]
    for number, (_, shadow, _, flat, chosen) in enumerate(_places(lanes, space, addresses)):
        values: Array = shadow.space.bytes.view(ITEM[size]).take(flat // size, mode="clip")
        for lane, position, value in zip(np.arange(lanes.count)[chosen].tolist(), flat.tolist(), values, strict=True):
            cells[lane] = (number, position), int.from_bytes(value.tobytes(), "little")
    return cells


def copied(operands: "RuleOperands") -> list[Any]:
    """Report undefined addresses and sizes of cp.async; the masks of its bytes follow when these move, see `moved`."""
    names = operands.names
    for name, mask in zip(names, operands.masks, strict=True):
        if name in ("a", "b"):
            operands.demand(mask, ADDRESS)
        elif name in ("given", "ignore"):
            operands.demand(mask, SIZE)
    return []


def moved(lanes: Lanes, index: Array, source: Array, size: int, given: Array) -> None:
    """Store the masks of a copy that arrives at items `index` of shared memory: of the source, then zeros."""
    tracking = tracking_of(lanes)
    rows, origin = np.zeros((lanes.count, size), np.uint8), np.zeros((lanes.count, size), np.int32)
    amount = lanes.full(given).astype(np.int64)
    _fetch(lanes, source, amount == size, slice(0, size), rows, origin)
    for byte in range(size if (amount % size).any() else 0):
        _fetch(lanes, source, (amount > byte) & (amount < size), slice(byte, byte + 1), rows, origin)
    shadow = shadow_of(tracking, lanes, "shared")
    assert shadow is not None
    shadow.write(index * size, size, rows)
    for byte in range(0, size, GRANULE):
        shadow.blame(index * size + byte, GRANULE, origin[:, byte : byte + GRANULE].max(axis=1), None)


def _fetch(lanes: Lanes, source: Array, some: Array, part: slice, rows: Array, origin: Array) -> None:
    """Read the masks of some bytes of the source, for some lanes, into `rows` and `origin`."""
    chosen = lanes.select(some)
    width = part.stop - part.start
    found = None if chosen is None else read(chosen, "global", source[some] + part.start, width, min(width, GRANULE))
    if found is not None:
        rows[some, part], origin[some, part] = found[0], np.repeat(found[1], min(width, GRANULE), axis=1)


MAP = "a tensor map"
WHAT = {
    "amount": SIZE,
    "c": "coordinates",
    "mask": "which blocks get a copy",
    "size": SIZE,
    "offset": "im2col offsets",
    "ordinal": MAP,
    "value": MAP,
    "code": MAP,
}
_MAP_STEPS = range(0, MAP_BYTES, 16)


class End(Protocol):
    """One end of a transfer: its state space, and the items there."""

    @property
    def name(self) -> str: ...
    @property
    def index(self) -> Array: ...


def asked(operands: RuleOperands) -> list[Any]:
    """Report undefined bits of a copy engine's operands, except the cache hint; masks of the bytes follow later."""
    for name, mask in zip(operands.names, operands.masks, strict=True):
        if name != "policy":
            operands.demand(mask, WHAT.get(name, ADDRESS))
    return []


def map_replaced(operands: RuleOperands) -> list[Any]:
    """Report undefined bits of a tensor map that is changed: all of it must be defined."""
    asked(operands)
    space = operands.keywords["space"]
    _demand_map(operands, "generic" if space is None else space.partition("::")[0], operands.values[0])
    return []


def map_copied(operands: RuleOperands) -> list[Any]:
    """Report undefined bits of a tensor map that is copied, and mark its copy as defined."""
    asked(operands)
    to, source = operands.values[:2]
    _demand_map(operands, "shared", source)
    for step in _MAP_STEPS:
        write(operands.lanes, "global", to + step, 16, None, None)
    return []


def _demand_map(operands: RuleOperands, space: str, address: Array) -> None:
    """Report undefined bits of the tensor map at an address."""
    for step in _MAP_STEPS:
        found = read(operands.lanes, space, address + step, 16, 16)
        if found is not None:
            rows, origin = found
            operands.demand(mask_of(np.where(rows.any(axis=1), np.uint32(1), np.uint32(0)), origin[:, 0]), MAP)


def transferred(lanes: Lanes, source: End, target: End, width: int, *, is_joined: bool) -> None:
    """Move the masks of items with the items; in a reduction (`is_joined`) any undefined bit makes all undefined."""
    tracking = tracking_of(lanes)
    ours, theirs = shadow_of(tracking, lanes, source.name), shadow_of(tracking, lanes, target.name)
    assert ours is not None
    assert theirs is not None
    at, to = source.index * width, target.index * width
    rows, origin = _masks(lanes, ours, at, width)
    if is_joined:
        before, older = _masks(lanes, theirs, to, width)
        either = (rows | before).any(axis=1, keepdims=True)
        rows, origin = np.where(either, np.uint8(0xFF), np.zeros_like(rows)), np.maximum(origin, older)
    theirs.write(to, width, rows)
    if origin.any():
        several = Lanes(lanes.machine, np.repeat(lanes.ids, len(to)), lanes.statement)
        stores = None
        if not theirs.is_owned:
            stores = tracking.stores.add(several, origin != 0, "", theirs.space, to, np.full(len(to), width))
        theirs.blame(to, max(width, GRANULE), origin, stores)


def defined(lanes: Lanes, target: End, width: int) -> None:
    """Mark items that a copy engine fills with constants as defined."""
    shadow = shadow_of(tracking_of(lanes), lanes, target.name)
    assert shadow is not None
    shadow.write(target.index * width, width, None)


def _masks(lanes: Lanes, shadow: Shadow, flat: Array, width: int) -> tuple[Array, Array]:
    """Return the masks (n, width) of items and the event of each; a first undefined read makes a new event."""
    rows = shadow.read(flat, width)
    if rows is None:
        return np.zeros((len(flat), width), np.uint8), np.zeros(len(flat), np.int32)
    unknown = rows.any(axis=1)
    origin = np.where(unknown, shadow.origins(flat, width), 0)
    if (fresh := unknown & (origin == 0)).any():
        several = Lanes(lanes.machine, np.repeat(lanes.ids, len(flat)), lanes.statement)
        at = flat % shadow.space.stride if shadow.space.stride else flat
        first, count = (rows != 0).argmax(axis=1), (rows != 0).sum(axis=1)
        events = tracking_of(lanes).origins.add(several, fresh, UNWRITTEN, shadow.space, at + first, count)
        origin = np.where(fresh, events, origin)
    return rows, origin
