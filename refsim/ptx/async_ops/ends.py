"""The two ends of a transfer: addresses are resolved and checked before the transfer is in flight.

One box of a tensor map as bytes: which items of global memory are which items of shared memory.

`refsim.layouts.tma` defines where the bytes of a box are, once for every map and alignment. A copy adds its coordinates
and its address, and leaves out items outside the tensor."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from refsim.errors import Kind, RefsimError
from refsim.layouts.tma import MAP_ALIGN, MAP_BYTES, NAN_FILL, NAN_REQUEST, Placement, TensorMap
from refsim.ptx.async_ops.transfers import End, UnitHost
from refsim.ptx.events import USE_MAP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.lowering.blocks import granule
from refsim.ptx.memory.access import ASYNC, MAP_PROXY, READ, Access
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import ITEM
from refsim.ptx.memory.tensor_map import REPLACE_RULE, decoded, set_in_vain
from refsim.ptx.text.syntax import place

Offsets = NDArray[np.int64]
REPEAT = 1024  # bytes of shared memory after which every swizzle pattern repeats
BULK_BYTES = 16
_EVERYWHERE = 1 << 32


@dataclass(frozen=True)
class BoxTable:
    """The items of a box that begins at coordinate 0, outermost dimension first.

    `shared` and `source` are byte offsets from the box's shared and global address. `touched` are the 16-byte chunks of
    shared memory that the box covers, rising.
    """

    shape: tuple[int, ...]
    shared: Offsets
    source: Offsets
    touched: Offsets


@dataclass(frozen=True)
class Box:
    """The items of one copy, `width` bytes each: positions in shared memory from its address, addresses in global
    memory.

    `filled` are the positions in shared memory of items outside the tensor, None if there are none. `amount` is the
    number of bytes that complete_tx counts.
    """

    width: int
    shared: Offsets
    source: Offsets
    filled: Offsets | None
    touched: Offsets
    amount: int


@lru_cache(maxsize=1 << 10)
def box_of(made: TensorMap, coordinates: tuple[int, ...], shared_address: int) -> Box:
    """Return the box that begins at these coordinates (innermost first, negative ones outside the tensor). bf16, box
    (64, 8), dims (64, 6), coordinates (0, 0): 8 chunks of each of 6 rows, and 16 chunks filled."""
    row, steps = made.data_type, (1, *made.element_strides[1:])
    ends = [at + (count - 1) * step for at, count, step in zip(coordinates, made.loaded, steps, strict=True)]
    clipped = [at < 0 or end >= extent for at, end, extent in zip(coordinates, ends, made.dims, strict=True)]
    start = coordinates[0] * row.element_bits // 8
    width = _width(made, start, made.dims[0] * row.element_bits // 8 if clipped[0] else 0)
    table = _table(replace(made, address=0, dims=(_EVERYWHERE,) * len(made.dims)), shared_address % REPEAT, width)
    outer = zip(coordinates[1:], made.strides, strict=True)
    address = made.address + start + sum(at * stride for at, stride in outer)
    amount = int(np.prod(made.loaded)) * row.element_bits // 8
    if not any(clipped):
        return Box(width, table.shared, table.source + address, None, table.touched, amount)
    inside = np.ones(table.shape, np.bool_)
    for axis, extent in enumerate(made.dims):
        count = table.shape[-1 - axis]
        step = steps[axis] if axis else made.loaded[0] / count
        index = np.floor(coordinates[axis] + np.arange(count) * step)
        inside &= ((index >= 0) & (index < extent)).reshape((-1,) + (1,) * axis)
    flat = inside.reshape(-1)
    return Box(width, table.shared[flat], table.source[flat] + address, table.shared[~flat], table.touched, amount)


@lru_cache(maxsize=4096)
def columns_of(made: TensorMap, base: tuple[int, ...], shared_address: int, offsets: tuple[int, ...]) -> Box:
    """Return the pixels of an im2col map from a filter's base on, moved by the offsets; each is one run of channels."""
    row, (first, channels) = made.data_type, (base[0], made.box[0])
    start, end = (at * row.element_bits // 8 for at in (first, made.dims[0]))
    is_clipped = first < 0 or first + channels > made.dims[0]
    width = _width(made, start, end if is_clipped else 0)
    placed = made.place(base, shared_address, offsets)
    shared, source = (_flat(each) for each in _items(placed, width))
    inside = _flat(placed.inside[..., :: _step(made, width)]) > 0
    if row.padded:
        inside = np.repeat(inside, 2 * row.element_bits // width)
    amount = int(np.prod(made.box)) * row.element_bits // 8
    touched: Offsets = np.unique(shared // BULK_BYTES) * BULK_BYTES
    filled = None if inside.all() else shared[~inside]
    return Box(width, shared[inside], source[inside] + made.address, filled, touched, amount)


def fill_of(made: TensorMap, width: int) -> bytes | None:
    """Return the bytes of an item outside the tensor, or None where they are not known (NaN of float64)."""
    if made.oob_fill != NAN_REQUEST:
        return bytes(width)
    return None if made.data_type.element_bits > 32 else NAN_FILL.to_bytes(2, "little") * (width // 2)


def _width(made: TensorMap, start: int, end: int) -> int:
    """Return the width in bytes of the widest items that cross no edge of the tensor, swizzle chunk or padding."""
    width = 4 if made.data_type.padded else 8 if made.swizzle == "128B_32B_atom_8B_flip" else BULK_BYTES
    while start % width or end % width:
        width //= 2
    return width


@lru_cache(maxsize=512)
def _table(plain: TensorMap, shared_address: int, width: int) -> BoxTable:
    shared, source = _items(plain.place((0,) * len(plain.dims), shared_address), width)
    touched: Offsets = np.unique(shared // BULK_BYTES) * BULK_BYTES
    return BoxTable(shared.shape, _flat(shared), _flat(source), touched)


def _step(made: TensorMap, width: int) -> int:
    """Return how many elements an item of `width` bytes holds, or the elements of a group for padded types."""
    return 16 if made.data_type.padded else 8 * width // made.data_type.element_bits


def _items(placed: Placement, width: int) -> tuple[Offsets, Offsets]:
    """Return byte offsets of the items of a placed box: from its shared address and from the tensor's address."""
    row, step = placed.tensor_map.data_type, _step(placed.tensor_map, width)
    shared, source = (
        bits[..., ::step] // 8 for bits in (placed.shared_bits - 8 * placed.shared_address, placed.global_bits)
    )
    if row.padded:  # groups of 16 elements with contiguous bytes on both sides
        within = np.arange(0, 2 * row.element_bits, width)
        shared, source = ((each[..., None] + within).reshape(*each.shape[:-1], -1) for each in (shared, source))
    return shared, source


def _flat(values: Array) -> Offsets:
    return np.ascontiguousarray(values, np.int64).reshape(-1)


TENSOR_RULE = "PTX ISA, cp.async.bulk.tensor"
BEYOND_RANK = "map-beyond-rank"
BOX_ALIGN, INTERLEAVED = 128, "boxes of an interleaved tensor map are not modeled"
MAP_RULE = (
    "PTX ISA, cp.async.bulk.tensor: the address of a tensor map in .param, .const or .global memory, 64-byte aligned"
)
MASK_RULE = "PTX ISA, cp.async.bulk: ctaMask names ranks of the cluster"
EXIT_RULE = "a block must not exit while copies to its shared memory are to come: meet at barrier.cluster first"


@dataclass
class Ends:
    """The memories of one machine for its copy engine; `maps` are tensor maps in parameters, which never change."""

    machine: UnitHost
    maps: dict[int, TensorMap] = field(default_factory=dict)

    # ---- tensor maps
    def tensor_map(self, one: Lanes, address: int) -> TensorMap:
        """Return the tensor map whose 128 bytes are at a generic address, or raise a fault."""
        if address in self.maps:
            return self.maps[address]
        ((part, name, at, _),) = one.parts("generic", np.array([address]))
        if address % MAP_ALIGN:
            what = f"the tensor map's address {address:#x} is not a multiple of {MAP_ALIGN} bytes"
            raise one.fault("misaligned", 0, what, MAP_RULE)
        raw = None
        if name == "global":
            raw = self._read_map(part, int(at[0]), address)
        elif name == "param":
            raw = self._parameters(part, int(at[0]))
        space, _ = part.space(name)
        where = f"{name} address {address:#x} ({space.where(int(at[0]))})"
        try:
            made = None if raw is None else decoded(raw.tobytes())
        except RefsimError as error:
            what = f"the tensor map at {where} cannot be used: {error.what}"
            raise one.fault("invalid-operand", 0, what, error.rule) from None
        if made is None:
            raise one.fault("invalid-operand", 0, f"the 128 bytes at {where} are not a tensor map", MAP_RULE)
        if name == "param":
            self.maps[address] = made
        elif raw is not None and (vain := set_in_vain(raw.tobytes())):
            self._note(one, f"the tensor map at {where} has its {vain}: no copy looks at it")
        return made

    def _note(self, one: Lanes, what: str) -> None:
        """Add a note to the findings on the instruction of a lane."""
        statement, machine = one.statement, self.machine
        if machine.checks.level(BEYOND_RANK) == "off":
            return
        where = f"{place(statement)}, {machine.geometry.describe(int(one.ids[0]))}"
        rule = f"{REPLACE_RULE}: ordinals are those of the map's dimensions"
        machine.findings.note(RefsimError(BEYOND_RANK, what, where, rule, kind=Kind.FAULT), statement)

    def _read_map(self, part: Lanes, at: int, address: int) -> Array:
        """Return the bytes of a map in global memory, read through the tensor-map proxy: threads may have changed
        it."""
        steps = at + np.arange(0, MAP_BYTES, BULK_BYTES)
        _, access = self.checked(part, "global", steps, BULK_BYTES, READ, MAP_PROXY)
        for observer in self.machine.port.observers.get("global", ()):
            observer.before(access)
            observer.after(access)
        used = access, address, at in access.space.maps
        part.emit(USE_MAP, payload=used)
        return access.held()

    def _parameters(self, part: Lanes, at: int) -> Array:
        return self.checked(part, "param", at + np.arange(0, MAP_BYTES, BULK_BYTES), BULK_BYTES, READ)[1].held()

    def box(
        self,
        one: Lanes,
        made: TensorMap,
        corner: tuple[int, ...],
        address: int,
        offsets: tuple[int, ...] | None,
        *,
        stores: bool,
    ) -> Box:
        """Return the bytes of a box, or of the pixels of an im2col map (with `offsets`), or raise a fault."""
        if (made.pixels is None) != (offsets is None):
            asked, given = ("tile", "im2col") if offsets is None else ("im2col", "tile")
            what = f"a copy in {asked} mode by a tensor map for {given} mode"
            raise one.fault("invalid-operand", 0, what, TENSOR_RULE)
        self._is_legal(one, made, corner, address, stores=stores)
        if offsets is None:
            return box_of(made, corner, address)
        try:
            return columns_of(made, corner, address, offsets or (0,) * (len(corner) - 2))
        except RefsimError as error:
            raise one.fault("invalid-operand", 0, error.what, error.rule) from None

    def _is_legal(self, one: Lanes, made: TensorMap, corner: tuple[int, ...], address: int, *, stores: bool) -> None:
        """Raise a fault if the instruction does not allow this map, these coordinates or this shared address."""
        row = made.data_type
        if len(corner) != len(made.dims):
            what = f"{len(corner)} coordinates for a tensor map of rank {len(made.dims)}"
            raise one.fault("invalid-operand", 0, what, TENSOR_RULE)
        if made.interleave != "none":
            raise one.fault("invalid-operand", 0, INTERLEAVED, TENSOR_RULE)
        if address % BOX_ALIGN:
            what = f"the shared address {address:#x} of a box is not a multiple of {BOX_ALIGN} bytes"
            raise one.fault("misaligned", 0, what, f"{TENSOR_RULE}: the address in shared memory is 128-byte aligned")
        if stores and min(corner) < 0:
            what = f"a store to coordinates {corner}"
            raise one.fault("invalid-operand", 0, what, "an H200 ends the context with an illegal instruction")
        if row.packed and corner[0] % (128 if row.padded else 2):
            what = f"first coordinate {corner[0]} of a tensor of {row.name}"
            raise one.fault("invalid-operand", 0, what, f"{TENSOR_RULE}: restrictions on sub-byte types")
        if not row.packed and corner[0] * row.element_bits // 8 % BULK_BYTES:
            what = f"first coordinate {corner[0]} of {row.name} is not a multiple of {BULK_BYTES} bytes in a row of the tensor"
            raise one.fault("misaligned", 0, what, "an H200 ends the context with an illegal instruction")

    # ---- addresses
    def own(self, one: Lanes, address: int) -> tuple[Lanes, int]:
        """Return the lane with the CTA whose shared memory an address names, and the position there."""
        ((part, _, at, _),) = one.parts("shared", np.array([address]))
        return part, int(at[0])

    def targets(self, one: Lanes, name: str, address: int, mask: int | None) -> Iterator[tuple[Lanes, int]]:
        """Yield the lane with each CTA that the copy writes to, and the address there; `mask` names several CTAs."""
        if name == "global":
            yield one, address
            return
        part, position = self.own(one, address)
        if mask is None:
            yield part, position
            return
        geometry = self.machine.geometry
        if not mask or mask >> geometry.cluster_ctas:
            what = f"a multicast to the blocks of mask {mask:#06x} in a cluster of {geometry.cluster_ctas}"
            raise one.fault("invalid-operand", 0, what, MASK_RULE)
        first = int(one.cta[0] - geometry.lane_ranks[one.ids[0]])
        alive = np.asarray(self.machine.alive.reshape(geometry.count, -1).any(axis=1))
        for rank in range(geometry.cluster_ctas):
            if not mask >> rank & 1:
                continue
            if not alive[first + rank]:
                what = f"a multicast to rank {rank} of the cluster, all of whose threads have exited"
                raise one.fault("out-of-bounds", 0, what, EXIT_RULE)
            yield Lanes(part.machine, part.ids, part.statement, np.array([first + rank])), position

    def checked(
        self, one: Lanes, name: str, at: Array, width: int, kind: str, proxy: str = ASYNC
    ) -> tuple[End, Access]:
        """Return items of a space for one lane, inside its regions and, if they are read, initialized."""
        owner = None if one.owner is None else np.repeat(one.owner, len(at))
        several = Lanes(one.machine, np.repeat(one.ids, len(at)), one.statement, owner)
        space, owners = several.space(name)
        access = self.machine.port.plan(kind, several, name, space, at, owners, width, proxy=proxy)
        return End(name, space, access.index, access.region), access

    def checked_many(
        self, lanes: Lanes, counts: Array, owner: Array | None, name: str, at: Array, width: int, kind: str
    ) -> Access:
        """Return the access of several lanes, `counts` items each, in the memory of these owners."""
        owner = None if owner is None else np.repeat(owner, counts)
        several = Lanes(lanes.machine, np.repeat(lanes.ids, counts), lanes.statement, owner)
        space, owners = several.space(name)
        return self.machine.port.plan(kind, several, name, space, at, owners, width, proxy=ASYNC)

    def in_global(self, one: Lanes, addresses: Array, width: int, kind: str) -> tuple[End, Access]:
        """Return the checked end and access at these global addresses."""
        return self.checked(one, "global", addresses - self.machine.memory.space.base, width, kind)

    def coarse(self, access: Access) -> Access | None:
        """Return an access by narrow items as one by whole grains of the checks' marks; None if it covers no grain."""
        grain = granule(self.machine.code, access.name)
        if access.width >= grain:
            return access
        first = access.index * access.width
        grains, count = np.unique(first // grain, return_counts=True)
        whole = grains[count * access.width == grain]
        if not len(whole):
            return None
        threads = access.threads
        assert isinstance(threads, Lanes)
        part = Lanes(threads.machine, np.repeat(threads.ids[:1], len(whole)), threads.statement)
        if threads.owner is not None:
            part.owner = np.repeat(threads.owner[:1], len(whole))
        at = whole * grain + (int(access.at[0]) - int(first[0]))
        return Access(
            access.kind, part, access.semantics, access.name, access.space, at, whole, grain, access.region, proxy=ASYNC
        )


def changed(access: Access) -> Array:
    """Return items that differ from the items in memory, for a write whose values are not yet known."""
    return (~access.held().view(np.uint8)).view(ITEM[access.width])
