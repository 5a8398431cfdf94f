"""How undefined bits pass a warpgroup's product: by row of A and by column of B."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import element_named
from refsim.layouts.families import fragment as fragment_named
from refsim.layouts.families.core import Fragment
from refsim.ptx.checks import undefined_memory as memory
from refsim.ptx.checks.undefined_bits import RuleOperands
from refsim.ptx.execution.geometry import WARPGROUP
from refsim.ptx.execution.masks import Mask, flat, mask_of
from refsim.ptx.execution.matrix_operands import CORE_ROW, PRODUCT_ROWS, DescriptorError, chunk_places, events_of, turns
from refsim.ptx.execution.matrix_product import ProductForm

Array = NDArray[Any]
GIVEN = "what a wgmma is given"
FormOf = Callable[[dict[str, Any], dict[str, Any]], ProductForm]


def multiplied(form_of: FormOf) -> Callable[[RuleOperands], list[Any]]:
    """The rule for a product whose form is made of its constant operands and its modifiers."""

    def rule(operands: RuleOperands) -> list[Any]:
        named = dict(zip(operands.names, operands.values, strict=True))
        masks = dict(zip(operands.names, operands.masks, strict=True))
        form = form_of(named, operands.keywords)
        from_registers = isinstance(named["a"], tuple)
        operands.demand([masks["b"], masks["add"], None if from_registers else masks["a"]], GIVEN)
        groups = operands.lanes.count // WARPGROUP
        if from_registers:
            rows = _fragment_rows(masks["a"], fragment_named(form.fragment), groups)
        else:
            rows = _shared_rows(operands, named["a"], form, "a")
        columns = _shared_rows(operands, named["b"], form, "b")
        adds = operands.lanes.full(named["add"])
        return [_accumulator(masks["d"], adds, rows, columns, fragment_named(form.accumulator))]

    return rule


def _shared_rows(operands: RuleOperands, words: Array, form: ProductForm, side: str) -> Array:
    """The event of each row of an operand in shared memory, 0 where it is defined: (warpgroups, rows)."""
    lanes = operands.lanes
    size = max(1, element_named(form.a).code_bits // 8)
    try:
        places = chunk_places(lanes.full(words)[::WARPGROUP], form, side)
    except DescriptorError:
        return np.zeros(
            (lanes.count // WARPGROUP, PRODUCT_ROWS if side == "a" else form.n), np.int32
        )  # a fault of the product
    found = []
    for part, at in turns(lanes, places):
        read = memory.read(part, "shared", at, CORE_ROW, size)
        events = np.zeros((len(at), CORE_ROW // size), np.int32) if read is None else read[1]
        found.append(events.reshape(len(places), -1, CORE_ROW // size))
    return events_of(np.concatenate(found, axis=1), form, side)


def _fragment_rows(masks: list[Mask | None], fragment: Fragment, groups: int) -> Array:
    """The event of each row of A that registers hold."""
    found = np.zeros((groups, PRODUCT_ROWS), np.int32)
    rows, _ = fragment.elements
    for register, mask in enumerate(masks):
        if mask is not None:
            row = np.broadcast_to(rows[:, register * fragment.per_register], (groups, WARPGROUP))
            np.maximum.at(found, (np.arange(groups)[:, None], row), mask.origin.reshape(groups, -1))
    return found


def _accumulator(
    masks: list[Mask | None], adds: Array, rows: Array, columns: Array, fragment: Fragment
) -> list[Mask | None]:
    """The masks of D: an element is undefined where its row of A, its column of B or, if that is added, it itself was."""
    if not (rows.any() or columns.any() or any(True for _ in flat(masks))):
        return [None] * fragment.registers
    per, width = fragment.per_register, fragment.register_bits // fragment.per_register
    row, column = fragment.elements
    whole, found = np.uint64((1 << width) - 1), []
    for register, mask in enumerate(masks):
        bits, origin = np.zeros(len(adds), np.uint64), np.zeros(len(adds), np.int32)
        for part in range(per):
            value, shift = register * per + part, np.uint64(width * part)
            events = np.maximum(rows[:, row[:, value]], columns[:, column[:, value]]).ravel()
            if mask is not None:
                own = (mask.bits.astype(np.uint64) >> shift & whole != 0) & adds
                events = np.maximum(events, np.where(own, mask.origin, 0))
            bits |= np.where(events != 0, whole << shift, np.uint64(0))
            origin = np.maximum(origin, events)
        found.append(mask_of(bits.astype(f"u{fragment.register_bits // 8}"), origin))
    return found
