"""Rules for undefined bits in products of warpgroups (wgmma), by row of A and column of B, and in tensor memory: its
elements keep the masks of stored values; new columns are uninitialized."""

from collections.abc import Callable
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.formats import element_named
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.core import Fragment
from refsim.numerics.sparse import gathered, sparsity_of
from refsim.ptx.execution.geometry import WARPGROUP
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.matrix_operands import (
    CORE_ROW,
    PRODUCT_ROWS,
    DescriptorError,
    MetadataError,
    chunk_places,
    events_of,
    positions_of,
    turns,
)
from refsim.ptx.execution.matrix_product import ProductForm
from refsim.ptx.execution.register_file import Mask, flat, mask_of
from refsim.ptx.execution.tensor_cells import Cells, CopyAsked, cells_of
from refsim.ptx.execution.tensor_product import (
    ProductAsked,
    TensorForm,
    bytes_used,
    codes_in_columns,
    codes_in_shared,
    event_matrix,
    places_of,
)
from refsim.ptx.isa.definedness import memory
from refsim.ptx.isa.definedness.bits import RuleOperands, rule_of
from refsim.ptx.isa.definedness.memory import ADDRESS, asked, read_own, write
from refsim.ptx.isa.definedness.tracking import tracking_of
from refsim.ptx.isa.definedness.warp import SPARSE_METADATA, demand_metadata
from refsim.ptx.memory.arrays import Array

GIVEN = "what a wgmma is given"
FormOf = Callable[[dict[str, Any], dict[str, Any]], ProductForm]


@rule_of
def warpgroup_multiplied(operands: RuleOperands, form_of: FormOf) -> list[Any]:
    """Return the rule for a product whose form is made of its constant operands and its modifiers."""
    named = dict(zip(operands.names, operands.values, strict=True))
    masks = dict(zip(operands.names, operands.masks, strict=True))
    form = form_of(named, operands.keywords)
    from_registers = isinstance(named["a"], tuple)
    operands.demand([masks["b"], masks["add"], None if from_registers else masks["a"]], GIVEN)
    groups = operands.lanes.count // WARPGROUP
    torn = _torn(operands, {"b": named["b"]} if from_registers else {"a": named["a"], "b": named["b"]}, form)
    if from_registers:
        rows = _fragment_rows(masks["a"], fragment_named(form.fragment), groups)
    else:
        rows = _element_events(operands, named["a"], form, "a").max(axis=2)
    columns = _element_events(operands, named["b"], form, "b")
    if form.sparse and form.selector not in form.sparse_shape.selectors:
        met = np.zeros(1, np.int32)  # a fault of the product
    elif form.sparse:
        demand_metadata(operands, masks["metadata"], form.sparse_shape.metadata(form.a, form.selector), WARPGROUP)
        met = _met(columns, operands.lanes.full(named["metadata"]), form)
    else:
        met = columns.max(axis=2)[:, None, :]
    if "a" in torn:
        rows = np.where(torn["a"] != 0, torn["a"], rows)
    if "b" in torn:
        met = np.where(torn["b"][:, None, :] != 0, torn["b"][:, None, :], met)
    adds = operands.lanes.full(named["add"])
    return [_accumulator(masks["d"], adds, np.maximum(rows[:, :, None], met), fragment_named(form.accumulator))]


def _torn(operands: RuleOperands, words: dict[str, Array], form: ProductForm) -> dict[str, Array]:
    """Return the events of rows of A and columns of B whose bytes change while the product reads them."""
    lanes = operands.lanes
    try:
        return dict(
            lanes.machine.tensor_cores.torn_events(
                lanes, {side: lanes.full(each)[::WARPGROUP] for side, each in words.items()}, form
            )
        )
    except DescriptorError:
        return {}  # a fault of the product


def _met(columns: Array, words: Array, form: ProductForm) -> Array:
    """Return the events of B that each row of a sparse A uses in each column: (warpgroups, 64, n)."""
    try:
        positions = positions_of(words, form.sparse_shape, form.a, form.selector, ordered=False)
    except MetadataError:
        return np.zeros((len(columns), PRODUCT_ROWS, form.n), np.int32)  # a fault of the product
    return np.asarray(gathered(columns, positions, sparsity_of(element_named(form.a))).max(axis=3))


def _element_events(operands: RuleOperands, words: Array, form: ProductForm, side: str) -> Array:
    """Return the event of each element of an operand in shared memory, 0 if defined: (warpgroups, rows, columns)."""
    lanes = operands.lanes
    size = max(1, element_named(form.a).code_bits // 8)
    try:
        places = chunk_places(lanes.full(words)[::WARPGROUP], form, side)
    except DescriptorError:
        shape = (lanes.count // WARPGROUP, PRODUCT_ROWS if side == "a" else form.n, form.columns(side))
        return np.zeros(shape, np.int32)  # a fault of the product
    found = []
    for part, at in turns(lanes, places):
        read = memory.read_own(part, at, CORE_ROW, size)
        events = np.zeros((len(at), CORE_ROW // size), np.int32) if read is None else read[1]
        found.append(events.reshape(len(places), -1, CORE_ROW // size))
    return events_of(np.concatenate(found, axis=1), form, side)


def _fragment_rows(masks: list[Mask | None], fragment: Fragment, groups: int) -> Array:
    """Return the event of each row of A that registers hold, (warpgroups, 64)."""
    found = np.zeros((groups, PRODUCT_ROWS), np.int32)
    rows, _ = fragment.elements
    for register, mask in enumerate(masks):
        if mask is not None:
            row = np.broadcast_to(rows[:, register * fragment.per_register], (groups, WARPGROUP))
            np.maximum.at(found, (np.arange(groups)[:, None], row), mask.origin.reshape(groups, -1))
    return found


def _accumulator(masks: list[Mask | None], adds: Array, products: Array, fragment: Fragment) -> list[Mask | None]:
    """Return the masks of D: an element is undefined if its products are, or its old value if that is added."""
    if not (products.any() or any(True for _ in flat(masks))):
        return [None] * fragment.registers
    per, width = fragment.per_register, fragment.register_bits // fragment.per_register
    row, column = fragment.elements
    whole, found = np.uint64((1 << width) - 1), []
    for register, mask in enumerate(masks):
        bits, origin = np.zeros(len(adds), np.uint64), np.zeros(len(adds), np.int32)
        for part in range(per):
            value, shift = register * per + part, np.uint64(width * part)
            events = products[:, row[:, value], column[:, value]].ravel()
            if mask is not None:
                own = (mask.bits.astype(np.uint64) >> shift & whole != 0) & adds
                events = np.maximum(events, np.where(own, mask.origin, 0))
            bits |= np.where(events != 0, whole << shift, np.uint64(0))
            origin = np.maximum(origin, events)
        found.append(mask_of(bits.astype(f"u{fragment.register_bits // 8}"), origin))
    return found


NEVER = "words of tensor memory were never written"
_CHUNK = 16
_HALF = np.uint32(0xFFFF)
_ALL = np.uint32(0xFFFFFFFF)


def _cells(operands: RuleOperands, shape: str, length: Callable[[dict[str, Any]], int]) -> Cells | None:
    """Return the elements that an instruction accesses; None if the access itself is a fault."""
    named = dict(zip(operands.names, operands.values, strict=True))
    masks = dict(zip(operands.names, operands.masks, strict=True))
    operands.demand(masks["a"], ADDRESS)
    if not operands.lanes.in_whole_warps:
        return None
    split = int(named["split"][0]) if "split" in named else 0
    packed = operands.keywords.get("pack_16b", False) or operands.keywords.get("unpack_16b", False)
    try:
        return cells_of(operands.lanes, named["a"], shape, length(operands.keywords), split=split, packed=packed)
    except RefsimError:
        return None


def known(lanes: Lanes, cta: Array, rows: Array, columns: Array) -> tuple[Array, Array]:
    """Return the masks of elements and their events; uninitialized ones get an event of the first lanes there."""
    memory = lanes.machine.tensor_pipe.memory
    assert memory.bits is not None
    assert memory.events is not None
    key = cta, rows, columns
    bits, events, never = memory.bits[key], memory.events[key], memory.unwritten[key]
    if never.any():
        fresh = never & (events == 0)
        chosen = fresh.reshape(lanes.count, -1).any(axis=1)
        numbers = tracking_of(lanes).origins.add(lanes, chosen, NEVER)
        events = np.where(fresh, numbers.reshape((lanes.count,) + (1,) * (events.ndim - 1)), events)
        bits = np.where(never, _ALL, bits)
    return bits, events


@rule_of
def loaded(operands: RuleOperands, shape: str, length: Callable[[dict[str, Any]], int]) -> list[Any]:
    """Return the rule of tcgen05.ld: registers get the masks of the elements that they load."""
    count = len(operands.results[0][0])
    cells = _cells(operands, shape, length)
    if cells is None:
        return [[None] * count]
    bits, events = known(operands.lanes, *cells.key)
    if operands.keywords.get("pack_16b"):
        more, later = known(operands.lanes, cells.cta, cells.rows, cells.columns + 1)
        bits, events = bits & _HALF | more << np.uint32(16), np.maximum(events, later)
    return [[mask_of(bits[:, register], events[:, register]) for register in range(count)]]


def reduced(shape: str, length: Callable[[dict[str, Any]], int]) -> Callable[[RuleOperands], list[Any]]:
    """Return the rule of tcgen05.ld.red: one undefined element makes the minimum or maximum undefined."""
    own = loaded(shape, length)

    def rule(operands: RuleOperands) -> list[Any]:
        (masks,) = own(operands)
        events = [np.where(mask.bits != 0, mask.origin, 0) for mask in masks if mask is not None]
        first = np.max(events, axis=0) if events else np.zeros(operands.lanes.count, np.int32)
        return [masks, mask_of(np.where(first != 0, _ALL, np.uint32(0)), first)]

    return rule


@rule_of
def stored(operands: RuleOperands, shape: str, length: Callable[[dict[str, Any]], int]) -> list[Any]:
    """Return the rule of tcgen05.st: elements get the masks of the registers."""
    cells = _cells(operands, shape, length)
    if cells is None:
        return []
    masks: list[Mask | None] = dict(zip(operands.names, operands.masks, strict=True))["b"]
    bits, events = np.zeros(cells.rows.shape, np.uint32), np.zeros(cells.rows.shape, np.int32)
    for register, mask in enumerate(masks):
        if mask is not None:
            bits[:, register], events[:, register] = mask.bits, mask.origin
    memory = operands.lanes.machine.tensor_pipe.memory
    assert memory.bits is not None
    assert memory.events is not None
    unpacked = operands.keywords.get("unpack_16b", False)
    memory.bits[cells.key], memory.events[cells.key] = bits & _HALF if unpacked else bits, events
    if unpacked:
        upper = cells.cta, cells.rows, cells.columns + 1
        memory.bits[upper], memory.events[upper] = bits >> np.uint32(16), events
    return []


def allocated(operands: RuleOperands) -> list[Any]:
    """Report undefined operands of tcgen05.alloc, and mark the address that it writes to shared memory as defined."""
    space = "generic" if operands.keywords["space"] is None else "shared"
    write(operands.lanes, space, operands.lanes.full(operands.values[0]), 4, None, None)
    return asked(operands)


def product_masks(
    one: Lanes,
    given: ProductAsked,
    peers: list[int],
    places: tuple[Array | None, Array | None],
    torn: list[dict[str, Array]],
) -> None:
    """Set the masks of D of tcgen05.mma: an undefined element or scale of a row of A makes that row undefined; of B,
    its column. `peers`: the CTAs that take part; `places`: the chunks of A and B in shared memory (None if A is in
    tensor memory); `torn`: the events of rows and columns that change meanwhile, in each CTA."""
    form, memory = given.form, one.machine.tensor_pipe.memory
    assert memory.bits is not None
    assert memory.events is not None
    assert places[1] is not None
    of_b = [
        np.maximum(_shared_events(one, places[1], form, "b", cta).max(axis=1), changes.get("b", 0))
        for cta, changes in zip(peers, torn, strict=True)
    ]
    for peer, cta in enumerate(peers):
        number, (lanes, columns) = np.array(cta), given.cells(peer)
        if form.is_sparse:
            _demand_metadata(one, given, number, np.concatenate(given.a_lanes(peer)))
        if places[0] is None:
            first = (given.a & 0xFFFF) + np.arange(form.a_columns)[None, :]
            held = [_seen(one, number, at[:, None], first) for at in given.a_lanes(peer)]
            rows = np.max(
                [codes_in_columns(bits, form).any(axis=1) * events.max(axis=1) for bits, events in held], axis=0
            )
            rows = np.concatenate([rows[:1], rows[:-1]]) if given.rows_down else rows
        else:
            rows = np.maximum(_shared_events(one, places[0], form, "a", cta).max(axis=1), torn[peer].get("a", 0))
        across = np.concatenate(of_b)
        if given.columns is not None:
            across[given.columns.zero] = 0
        for side, address in zip("ab", given.scales, strict=False):
            lane, byte = places_of(form.scales(side))
            bits, scales = _seen(one, number, lane, (address & 0xFFFF) + byte // 4)
            scales = np.where(bits >> (byte % 4 * 8).astype(np.uint32) & np.uint32(0xFF), scales, 0)
            if side == "a":
                rows = np.maximum(rows, scales.max(axis=1))
            else:
                across = np.maximum(across, scales.max(axis=0))
        columns = columns + (given.d & 0xFFFF)
        events = np.maximum(rows[:, None], across[None, :])
        if given.adds:
            events = np.maximum(events, _seen(one, number, lanes, columns)[1])
        kept = ~given.off(peer)[lanes].any(axis=1)
        key = cta, lanes[kept], columns[kept]
        memory.events[key], memory.bits[key] = events[kept], np.where(events[kept] != 0, _ALL, np.uint32(0))


def _demand_metadata(one: Lanes, given: ProductAsked, cta: Array, rows: Array) -> None:
    """Report undefined metadata of a sparse A, which decides what is multiplied."""
    first = (given.metadata & 0xFFFF) + given.form.selector
    _, events = _seen(one, cta, rows[:, None], first + np.arange(given.form.stored.columns)[None, :])
    reached = events.max(initial=0)
    tracking_of(one).reached(one, mask_of(np.array([reached != 0]), np.array([reached], np.int32)), SPARSE_METADATA)


def copied_masks(one: Lanes, given: CopyAsked, rows: Array, columns: Array, cta: int) -> None:
    """Set the masks of tcgen05.cp: they move as the bytes do. All undefined words of a chunk get one event."""
    places = given.chunks
    bits, events = _chunks(one, places.ravel(), given.used, cta)
    words = given.words(bits.reshape(*places.shape, _CHUNK))
    wide = np.where(words, events.reshape(places.shape).repeat(4, axis=1), 0)
    memory = one.machine.tensor_pipe.memory
    assert memory.bits is not None
    assert memory.events is not None
    memory.bits[cta][rows, columns], memory.events[cta][rows, columns] = words[:, None, :], wide[:, None, :]


def _seen(one: Lanes, cta: Array, rows: Array, columns: Array) -> tuple[Array, Array]:
    """Return the masks and the events of elements of tensor memory, as one lane sees them."""
    bits, events = known(one, cta, *(each[None] for each in np.broadcast_arrays(rows, columns)))
    return bits[0], np.where(bits[0] != 0, events[0], 0)


def _shared_events(one: Lanes, places: Array, form: TensorForm, side: str, cta: int) -> Array:
    """Return the event of each element of an operand in shared memory, (rows, k), 0 if it is defined."""
    bits, events = _chunks(one, places, bytes_used(form, side), cta)
    return np.where(codes_in_shared(bits, form, side), event_matrix(events, form, side), 0)


def _chunks(one: Lanes, places: Array, used: int, cta: int) -> tuple[Array, Array]:
    """Return the masks of the used bytes of each chunk in a CTA's shared memory, (chunks, 16), zeros after them, and
    an event of each chunk, (chunks,)."""
    width = used & -used  # 12 bytes are read as three 32-bit words
    pieces = (places[:, None] + np.arange(0, used, width)).ravel()
    several = Lanes(one.machine, np.repeat(one.ids, len(pieces)), one.statement)
    found = read_own(several, pieces, width, width, np.array([cta]))
    bits, events = np.zeros((len(places), _CHUNK), np.uint8), np.zeros(len(places), np.int32)
    if found is not None:
        bits[:, :used], events = found[0].reshape(len(places), used), found[1].reshape(len(places), -1).max(axis=1)
    return bits, events
