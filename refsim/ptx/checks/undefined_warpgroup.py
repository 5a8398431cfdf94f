"""Rules for undefined bits in a warpgroup's product (wgmma): by row of A and column of B, partly used by a sparse A."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import element_named
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.core import Fragment
from refsim.numerics.sparse import gathered, sparsity_of
from refsim.ptx.checks import undefined_memory as memory
from refsim.ptx.checks.undefined_bits import RuleOperands
from refsim.ptx.checks.undefined_sparse import demand_metadata
from refsim.ptx.execution.geometry import WARPGROUP
from refsim.ptx.execution.masks import Mask, flat, mask_of
from refsim.ptx.execution.matrix_operands import CORE_ROW, PRODUCT_ROWS, DescriptorError, chunk_places, events_of, turns
from refsim.ptx.execution.matrix_product import ProductForm
from refsim.ptx.execution.metadata import MetadataError, positions_of

Array = NDArray[Any]
GIVEN = "what a wgmma is given"
FormOf = Callable[[dict[str, Any], dict[str, Any]], ProductForm]


def multiplied(form_of: FormOf) -> Callable[[RuleOperands], list[Any]]:
    """Return the rule for a product whose form is made of its constant operands and its modifiers."""

    def rule(operands: RuleOperands) -> list[Any]:
        """Return the masks of the registers of D."""
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
            rows = _shared_events(operands, named["a"], form, "a").max(axis=2)
        columns = _shared_events(operands, named["b"], form, "b")
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

    return rule


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


def _shared_events(operands: RuleOperands, words: Array, form: ProductForm, side: str) -> Array:
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
