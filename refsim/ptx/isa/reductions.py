"""What a copy engine leaves in memory when it reduces: element by element, as an atomic without a result does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.numerics import ieee
from refsim.ptx.execution.types import TYPES, PtxType
from refsim.ptx.isa.atomic import INTEGER_UPDATES, add_double

Array = NDArray[Any]

# The PTX type of each element type of a tensor map that reductions know.
MAP_TYPES = {
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "float32_ftz": "f32",
    "tfloat32": "f32",
}
_BITWISE = ("and", "or", "xor")


@dataclass(frozen=True)
class ElementUpdate:
    """One operation on elements of `width` bytes: combine(what memory holds, what comes) as items of that width.

    `is_rounded`: the sum depends on the order in which copies arrive.
    """

    combine: Callable[[Array, Array], Array]
    width: int
    is_rounded: bool


def reduction(operation: str, type: str) -> ElementUpdate | None:
    """An operation on a PTX type, or on the element type of a tensor map; None where there is none such."""
    row = TYPES.get(MAP_TYPES.get(type, type))
    if row is None or row.lanes > 1:
        return None
    if "f" in row.name:  # a float, also where its dtype holds patterns
        update = _real(operation, row, ftz=type == "float32_ftz")
        return None if update is None else ElementUpdate(update, row.bits // 8, operation == "add")
    if operation not in INTEGER_UPDATES or (operation in ("inc", "dec") and row.name != "u32"):
        return None
    seen = TYPES[f"b{row.bits}"] if operation in _BITWISE else row
    return ElementUpdate(
        _on(seen, lambda old, new: INTEGER_UPDATES[operation][2](old, new, None)), row.bits // 8, False
    )


def _real(operation: str, row: PtxType, ftz: bool) -> Callable[[Array, Array], Array] | None:
    """Sums keep subnormal numbers, unlike an atomic add of f32 in global memory, but those of a map that flushes them; through
    a map of tf32 they are those of float32: measured on an H200."""
    elsewhere = np.array([False])
    if operation == "add":
        if row.bits == 64:
            return _on(row, lambda old, new: add_double(old, new, elsewhere))
        return _on(row, lambda old, new: ieee.add(old, new, ftz=ftz))
    if row.bits == 16 and operation in ("min", "max"):
        return _on(row, ieee.minimum if operation == "min" else ieee.maximum)
    return None


def _on(row: PtxType, update: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    def combine(held: Array, given: Array) -> Array:
        left = np.ascontiguousarray(update(held.view(row.dtype), given.view(row.dtype)), row.dtype)
        return left.view(held.dtype)

    return combine
