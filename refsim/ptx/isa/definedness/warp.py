"""Rules for undefined bits in instructions of a warp: votes, reductions, matrices by row and column. With a sparse A, an
element of B affects the rows that store an element for it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refsim.formats import element_named
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.core import Fragment
from refsim.layouts.families.mma import Scaling
from refsim.layouts.families.sparse import SparseShape
from refsim.layouts.holders import WARP
from refsim.numerics.sparse import gathered, sparsity_of
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_operands import MetadataError, givers, positions_of
from refsim.ptx.execution.register_file import Mask, flat, mask_of
from refsim.ptx.execution.registers import put_mask
from refsim.ptx.execution.types import UNSIGNED
from refsim.ptx.isa.definedness import memory
from refsim.ptx.isa.definedness.arithmetic import below, lowest_bit, ordered
from refsim.ptx.isa.definedness.bits import RuleOperands, full, rule_of
from refsim.ptx.isa.definedness.tracking import tracking_of
from refsim.ptx.memory.arrays import Array

ROW_BYTES = 16


def _groups(lanes: Lanes, mask: Array) -> Array:
    """Return a group number for each lane: lanes of one group take part in one exchange."""
    _, group = np.unique(lanes.warp << 32 | lanes.full(mask).astype(np.int64), return_inverse=True)
    return np.asarray(group)


def members(operands: RuleOperands) -> Array:
    """Return the member masks: those that the instruction names, or the lanes that execute it together."""
    names = operands.names
    return np.asarray(operands.values[names.index("mask")] if "mask" in names else operands.lanes.members)


def _gather(operands: RuleOperands, bits: Array, combine: "np.ufunc") -> Array:
    """Return for each lane the combined bits of all lanes of its group."""
    group = _groups(operands.lanes, members(operands))
    total = np.full(int(group.max()) + 1, combine.identity or 0, bits.dtype)
    combine.at(total, group, bits)
    return np.asarray(total[group])


def _origins(operands: RuleOperands) -> Array:
    """Return for each lane the event of some undefined source of its group."""
    _, origin = operands.unknown()
    return _gather(operands, origin, np.maximum)


def _answer(operands: RuleOperands, *bits: Array) -> list[Mask | None]:
    """Return the masks of the results, with the event of some undefined source of the group."""
    origin = _origins(operands)
    return [mask_of(one, origin) for one in bits]


def ballot(operands: RuleOperands) -> list[Any]:
    """Return the mask of a ballot: bit i is undefined if the predicate of lane i is."""
    lane = np.uint32(1) << operands.lanes.laneid.astype(np.uint32)
    return _answer(operands, _gather(operands, np.where(operands.bits(0), lane, np.uint32(0)), np.bitwise_or))


def voted(operands: RuleOperands) -> list[Any]:
    """Return the mask of a vote: one defined lane can decide `all` and `any`; two that differ, or one lane alone, decide
    `uni`."""
    unknown, value = operands.bits(0), operands.lanes.full(operands.values[0])
    some_unknown = _gather(operands, unknown, np.logical_or)
    some_true = _gather(operands, value & ~unknown, np.logical_or)
    some_false = _gather(operands, ~value & ~unknown, np.logical_or)
    decided = {"all": some_false, "any": some_true, "uni": (some_false & some_true) | _is_alone(operands)}[
        operands.keywords["mode"]
    ]
    return _answer(operands, some_unknown & ~decided)


def _is_alone(operands: RuleOperands) -> Array:
    """Return which lanes are the only ones of their groups."""
    return np.asarray(_gather(operands, np.ones(operands.lanes.count, np.int64), np.add) == 1)


def matched_any(operands: RuleOperands) -> list[Any]:
    """Return the mask of match.any: bit i is undefined if the lane's value and that of lane i may be equal or not."""
    mask, value, lanes = operands.bits(0), operands.lanes.full(operands.values[0]), operands.lanes
    group = _groups(lanes, operands.values[1])
    holder = np.full((int(group.max()) + 1, WARP), -1)
    holder[group, lanes.laneid] = np.arange(lanes.count)
    bits = np.zeros(lanes.count, np.uint32)
    for other in range(WARP):
        at = holder[group, other]
        unknown = (at >= 0) & (at != np.arange(lanes.count)) & ((mask | mask[at]) != 0)
        unknown &= ((value ^ value[at]) & ~mask & ~mask[at]) == 0
        bits |= np.where(unknown, np.uint32(1 << other), np.uint32(0))
    return _answer(operands, bits)


def matched_all(operands: RuleOperands) -> list[Any]:
    """Return the masks of match.all: undefined if all lanes may hold one value, or not."""
    mask, value = operands.bits(0), operands.lanes.full(operands.values[0])
    differ = _gather(operands, value & ~mask, np.bitwise_or) & _gather(operands, ~value & ~mask, np.bitwise_or)
    unknown = (_gather(operands, mask, np.bitwise_or) != 0) & (differ == 0) & ~_is_alone(operands)
    members = _gather(operands, np.uint32(1) << operands.lanes.laneid.astype(np.uint32), np.bitwise_or)
    return _answer(operands, np.where(unknown, members, np.uint32(0)), unknown)[: len(operands.results)]


def group_number(operands: RuleOperands) -> list[Any]:
    """Return the mask of redux.add, min or max. A bit of a sum varies if a bit there or the carry into it does, and a
    carry does if those of the least and of the greatest sum differ."""
    operation = operands.keywords["operation"]
    mask, value = operands.bits(0), operands.lanes.full(operands.values[0])
    if operation != "add":
        number = ordered(operands, 0, operation)
        limit = ~_gather(operands, ~number.most, np.maximum)
        can = [_gather(operands, each, np.bitwise_or) for each in below(number, limit, np.ones(len(limit), np.bool_))]
        return _answer(operands, can[0] & can[1])
    bits = _gather(operands, mask, np.bitwise_or)
    for place in range(32):
        low = np.uint32((1 << place) - 1)
        ends = [(each & low).astype(np.uint64) for each in (value & ~mask, value | mask)]
        one, other = (_gather(operands, each, np.add) >> np.uint64(place) for each in ends)
        bits |= np.where(one != other, np.uint32(1 << place), np.uint32(0))
    return _answer(operands, bits)


def group_whole(operands: RuleOperands) -> list[Any]:
    """Return masks in which an undefined bit of one lane makes the results of its whole group undefined."""
    unknown = _gather(operands, operands.unknown()[0], np.logical_or)
    return _answer(operands, *(full(unknown, type) for _, type in operands.results))


def group_bits(operands: RuleOperands) -> list[Any]:
    """Return the mask of a bitwise redux: a defined 0 decides an `and`, a defined 1 an `or`, nothing an `xor`."""
    mask, value = operands.bits(0), operands.lanes.full(operands.values[0])
    unknown = _gather(operands, mask, np.bitwise_or)
    deciding = {"and": ~value, "or": value, "xor": value ^ value}[operands.keywords["operation"]]
    return _answer(operands, unknown & ~_gather(operands, deciding & ~mask, np.bitwise_or))


def reduced(operands: RuleOperands) -> list[Any]:
    """Report an undefined barrier number of bar.red, and keep undefined contributions until the barrier completes."""
    operands.demand(list(operands.masks[:-1]), "a barrier")
    value = operands.masks[-1]
    held = tracking_of(operands.lanes).contributed
    for lane in operands.lanes.ids.tolist():
        held.pop(lane, None)
    if value is not None:
        held.update(
            {int(lane): int(origin) for lane, origin in zip(operands.lanes.ids, value.origin, strict=True) if origin}
        )
    return []


def barrier_result(lanes: Lanes, index: int, bits: int, slots: Array, everyone: Array) -> None:
    """Set the mask of a bar.red's result: undefined if the contribution of any lane was. `slots`: the barrier of each
    lane of the machine; `everyone`: the lanes whose barriers complete now."""
    held = tracking_of(lanes).contributed
    origin = np.zeros(int(slots.max()) + 1, np.int32)
    for lane in everyone.tolist():
        origin[slots[lane]] = max(origin[slots[lane]], held.get(lane, 0))
    events = origin[slots[lanes.ids]]
    ones = np.ones(1, np.bool_) if bits == 1 else np.array([0x7FF], np.uint32).astype(UNSIGNED[bits])
    put_mask(lanes, index, mask_of(np.where(events != 0, ones, np.zeros_like(ones)), events))


# ---- matrices: an element of a fragment is (warp, lane, value)
def elements_of(masks: list[Mask | None], fragment: Fragment, count: int) -> tuple[Array, Array]:
    """Return which elements are undefined, and their events: (warps, lanes, values) from one mask for each register."""
    per = fragment.per_register
    bits = np.zeros((count // WARP, WARP, len(masks) * per), np.uint64)
    origin = np.zeros(bits.shape, np.int32)
    for register, mask in enumerate(masks):
        if mask is None:
            continue
        for place in range(per):
            width = fragment.register_bits // per
            held = mask.bits.astype(np.uint64) >> np.uint64(width * place) & np.uint64((1 << width) - 1)
            bits[..., register * per + place] = held.reshape(-1, WARP)
            origin[..., register * per + place] = np.where(held != 0, mask.origin, 0).reshape(-1, WARP)
    return bits, origin


def registers_of(bits: Array, origin: Array, fragment: Fragment, dtype: Any) -> list[Mask | None]:
    """Return the masks of the registers that hold these elements."""
    per = fragment.per_register
    width = fragment.register_bits // per
    found: list[Mask | None] = []
    for register in range(fragment.registers):
        packed = np.zeros(bits.shape[0] * WARP, np.uint64)
        source = np.zeros(len(packed), np.int32)
        for place in range(per):
            packed |= bits[..., register * per + place].reshape(-1) << np.uint64(width * place)
            source = np.maximum(source, origin[..., register * per + place].reshape(-1))
        found.append(mask_of(packed.astype(dtype), source))
    return found


def is_whole(lanes: Lanes) -> bool:
    """Return whether all warps are complete; otherwise the instruction itself is a fault."""
    return lanes.count % WARP == 0 and lanes.in_whole_warps


def matrix_of(masks: list[Mask | None], fragment: Fragment, count: int) -> Array:
    """Return the event of each element of a matrix, 0 if it is defined: (warps, rows, columns)."""
    return _placed(elements_of(masks, fragment, count)[1], fragment)


def _placed(elements: Array, fragment: Fragment) -> Array:
    """Return elements (warps, lanes, values) as matrices. Places of registers that hold no element are left out."""
    found = np.zeros((len(elements), *fragment.shape), elements.dtype)
    row, column = fragment.elements
    used = row >= 0
    np.maximum.at(found, (np.arange(len(found))[:, None], row[used], column[used]), elements[:, used])
    return found


def accumulated(operands: RuleOperands, events: Array, fragment: Fragment, changes: Array | None = None) -> list[Any]:
    """Return the masks of D: whole elements with an event, or of these only the bits `changes`."""
    row, column = fragment.elements
    held = events[:, row, column]
    whole = np.uint64((1 << fragment.slot_bits) - 1)
    bits = np.where(held != 0, whole if changes is None else changes[:, row, column] & whole, np.uint64(0))
    return [registers_of(bits, np.where(bits != 0, held, 0), fragment, operands.results[0][1].bits_dtype)]


def changes_of(operands: RuleOperands, fragments: Sequence[Fragment], meet: Callable[[Array], Array]) -> Array:
    """Return the bits of D = A B + C that undefined bits of integers may change: (warps, rows, columns). A product
    differs by multiples of an undefined bit of a factor times the lowest bit that the other factor can have set; the
    sum differs from the lowest of these bits up. `meet` gives the elements of B, (warps, columns, k), by row of A."""
    parts, count = [], operands.lanes.count
    for fragment, values, masks in zip(fragments, operands.values, operands.masks, strict=False):
        given: list[Mask | None] = [Mask(operands.lanes.full(value), np.ones(count, np.int32)) for value in values]
        open_, held = (_placed(elements_of(each, fragment, count)[0], fragment) for each in (masks, given))
        parts.append((lowest_bit(open_), lowest_bit(held | open_)))
    (a, a_able), b, (c, _) = parts
    b_open, b_able = (meet(each.swapaxes(1, 2)) for each in b)
    lowest = lowest_bit(np.bitwise_or.reduce(a[:, :, None] * b_able | a_able[:, :, None] * b_open, axis=3) | c)
    one = np.uint64(0 if operands.keywords["satfinite"] else 1)  # any change may clamp the sum
    return np.where(lowest != 0, ~(lowest * one - one), np.uint64(0))


@rule_of
def multiplied(operands: RuleOperands, names: tuple[str, ...], scaling: Scaling | None = None) -> list[Any]:
    """Return the rule for D = A B + C with the fragments of A, B, C and, if it differs from C's, D. An undefined
    element or scale of row i of A makes row i of D undefined; of column j of B, column j; an element of C, its own.
    Bytes of scales that the ids do not choose are not read. The ids themselves must be defined."""
    named, count = dict(zip(operands.names, operands.masks, strict=True)), operands.lanes.count
    operands.demand([named.get("ids_a"), named.get("ids_b")], "the selector of scales")
    if not is_whole(operands.lanes) or not any(flat(operands.masks)):
        return [[None] * len(operands.results[0][0])]
    fragments = [fragment_named(name) for name in names]
    a, b, c = (matrix_of(named[each], fragment, count) for each, fragment in zip("abc", fragments, strict=False))
    rows, columns = a.max(axis=2), b.max(axis=1)
    if scaling is not None:
        of_a, of_b = (_scale_events(operands, named[f"sf{side}"], scaling, side) for side in "ab")
        rows, columns = np.maximum(rows, of_a.max(axis=2)), np.maximum(columns, of_b.max(axis=1))
    events = np.maximum(c, np.maximum(rows[:, :, None], columns[:, None, :]))
    is_integer = "satfinite" in operands.keywords
    changes = changes_of(operands, fragments, lambda held: held[:, None]) if is_integer else None
    return accumulated(operands, events, fragments[-1], changes)


def scale_name(scaling: Scaling, operand: str, byte: int, thread: int) -> str:
    """Return the name of the fragment of scales that these ids choose."""
    suffix = f".byte{byte}.thread{thread}" if byte or thread else ""
    return f"mma.{scaling}.{operand}{suffix}"


def _scale_events(operands: RuleOperands, masks: list[Mask | None], scaling: Scaling, side: str) -> Array:
    """Return the events of the scales of a side that its ids choose."""
    byte, thread = (int(each[0]) for each in operands.values[operands.names.index(f"ids_{side}")])
    return matrix_of(masks, fragment_named(scale_name(scaling, f"sf{side}", byte, thread)), operands.lanes.count)


def _row_addresses(operands: RuleOperands, number: int) -> tuple[Lanes, Array, str]:
    """Return the lanes that give row addresses (lanes 0 to 8 * number - 1), these addresses, and the state space.
    `number`: matrices of ldmatrix or stmatrix, with 8 rows each."""
    lanes, address = operands.lanes, operands.lanes.full(operands.values[0])
    giving = lanes.laneid < 8 * number
    part = lanes.select(giving)
    assert part is not None
    mask = operands.masks[0]
    if mask is not None:
        tracking_of(lanes).reached(part, mask.part(giving), memory.ADDRESS)
    return part, address[giving], (operands.keywords.get("space") or "generic").partition("::")[0]


@rule_of
def matrix_loaded(operands: RuleOperands, name: str, number: int) -> list[Any]:
    """Return the rule of ldmatrix: masks of the rows move as their elements do."""
    nothing: list[Any] = [[None] * number]
    if not is_whole(operands.lanes):
        return nothing
    giving, address, space = _row_addresses(operands, number)
    found = memory.read(giving, space, address, ROW_BYTES, 2)
    if found is None:
        return nothing
    fragment = fragment_named(name)
    bits = np.ascontiguousarray(found[0]).view(np.uint16).reshape(-1, 8 * number, 8).astype(np.uint64)
    row, col = fragment.elements
    return [registers_of(bits[:, row, col], found[1].reshape(bits.shape)[:, row, col], fragment, np.uint32)]


@rule_of
def matrix_stored(operands: RuleOperands, name: str, number: int) -> list[Any]:
    """Return the rule of stmatrix: masks of the registers move to the rows as their elements do."""
    if not is_whole(operands.lanes):
        return []
    giving, address, space = _row_addresses(operands, number)
    if not any(operands.masks[1]):
        memory.write(giving, space, address, ROW_BYTES, None, None)
        return []
    fragment = fragment_named(name)
    elements, events = elements_of(operands.masks[1], fragment, operands.lanes.count)
    row, col = fragment.elements
    bits = np.zeros((len(elements), 8 * number, 8), np.uint16)
    origin = np.zeros(bits.shape, np.int32)
    bits[:, row, col], origin[:, row, col] = elements, events
    memory.write(giving, space, address, ROW_BYTES, bits.reshape(-1, 8).view(np.uint8), origin.reshape(-1, 8))
    return []


@rule_of
def transposed(operands: RuleOperands, name: str) -> list[Any]:
    """Return the rule of movmatrix: element (i, j) of the result is undefined if element (j, i) of the source is."""
    if not is_whole(operands.lanes) or operands.masks[0] is None:
        return [None]
    fragment = fragment_named(name)
    elements, events = elements_of([operands.masks[0]], fragment, operands.lanes.count)
    row, col = fragment.elements
    bits, origin = (np.zeros((len(elements), 8, 8), held.dtype) for held in (elements, events))
    bits[:, col, row], origin[:, col, row] = elements, events
    return registers_of(bits[:, row, col], origin[:, row, col], fragment, np.uint32)


# ---- wmma: every lane moves the elements of its own registers
Addresses = Callable[[Lanes, str, Array, Any, str], Array]


def _own_places(operands: RuleOperands, name: str, where: Addresses) -> Array | None:
    """Return the address of each value of each lane, (lanes, values); None if the warp is not whole."""
    if not is_whole(operands.lanes):
        return None
    operands.demand(operands.masks[0], memory.ADDRESS)
    stride = operands.names.index("stride") if "stride" in operands.names else None
    if stride is not None:
        operands.demand(operands.masks[stride], memory.ADDRESS)
    given = None if stride is None else operands.values[stride]
    return where(operands.lanes, name, operands.values[0], given, operands.keywords["layout"])


@rule_of
def fragment_loaded(operands: RuleOperands, name: str, where: Addresses) -> list[Any]:
    """Return the rule of wmma.load: masks of the elements move to the registers that hold them."""
    fragment = fragment_named(name)
    places = _own_places(operands, name, where)
    if places is None:
        return [[None] * fragment.registers]
    own, size = places.shape[1], fragment.element_bits // 8
    bits = np.zeros((operands.lanes.count, fragment.values), np.uint64)
    origin = np.zeros(bits.shape, np.int32)
    space = (operands.keywords.get("space") or "generic").partition("::")[0]
    for value in range(own):
        if (found := memory.read(operands.lanes, space, places[:, value], size, size)) is not None:
            bits[:, value::own] = np.ascontiguousarray(found[0]).view(f"u{size}").astype(np.uint64)
            origin[:, value::own] = found[1]
    shape = (-1, WARP, fragment.values)
    return [registers_of(bits.reshape(shape), origin.reshape(shape), fragment, operands.results[0][1].bits_dtype)]


@rule_of
def fragment_stored(operands: RuleOperands, name: str, where: Addresses) -> list[Any]:
    """Return the rule of wmma.store: masks of the registers move to the elements in memory."""
    fragment = fragment_named(name)
    places = _own_places(operands, name, where)
    if places is None:
        return []
    size, space = fragment.element_bits // 8, (operands.keywords.get("space") or "generic").partition("::")[0]
    bits, origin = (
        held.reshape(operands.lanes.count, -1)
        for held in elements_of(operands.masks[1], fragment, operands.lanes.count)
    )
    is_known = not any(mask is not None for mask in operands.masks[1])
    for value in range(places.shape[1]):
        rows = np.ascontiguousarray(bits[:, value].astype(f"u{size}")).view(np.uint8).reshape(-1, size)
        memory.write(
            operands.lanes,
            space,
            places[:, value],
            size,
            None if is_known else rows,
            None if is_known else origin[:, value : value + 1],
        )
    return []


SPARSE_METADATA = "the metadata of a sparse product"


@rule_of
def sparsely_multiplied(operands: RuleOperands, names: Sequence[str], shape: SparseShape, type: str) -> list[Any]:
    """Return the rule for D = A B + C with the fragments of A, B and C. An undefined element of a row of A makes that
    row of D undefined; an element of B, its column in the rows that store an element there. Metadata must be defined in
    the lanes that provide it."""
    nothing: list[Any] = [[None] * len(operands.results[0][0])]
    if not is_whole(operands.lanes):
        return nothing
    named = dict(zip(operands.names, operands.values, strict=True))
    masks = dict(zip(operands.names, operands.masks, strict=True))
    selector = int(named["selector"][0])
    if selector not in shape.selectors:
        return nothing  # a fault of the instruction
    demand_metadata(operands, masks["metadata"], shape.metadata(type, selector), WARP)
    if not any(mask is not None for name in "abc" for mask in masks[name]):
        return nothing
    try:
        positions = positions_of(operands.lanes.full(named["metadata"]), shape, type, selector, ordered=False)
    except MetadataError:
        return nothing  # a fault of the instruction
    a, b, c = (fragment_named(name) for name in names)
    count = operands.lanes.count
    events = np.maximum(matrix_of(masks["c"], c, count), matrix_of(masks["a"], a, count).max(axis=2)[:, :, None])

    def meet(held: Array) -> Array:
        return np.asarray(gathered(held, positions, sparsity_of(element_named(type))))

    events = np.maximum(events, meet(matrix_of(masks["b"], b, count).swapaxes(1, 2)).max(axis=3))
    changes = changes_of(operands, (a, b, c), meet) if "satfinite" in operands.keywords else None
    return accumulated(operands, events, c, changes)


def demand_metadata(operands: RuleOperands, mask: Mask | None, name: str, threads: int) -> None:
    """Report undefined metadata in the lanes that provide it; other lanes may hold anything."""
    if mask is None:
        return
    lanes = operands.lanes
    giving = np.isin(np.arange(lanes.count) % threads, givers(name))
    part = lanes.select(giving)
    assert part is not None
    tracking_of(lanes).reached(part, mask.part(giving), SPARSE_METADATA)
