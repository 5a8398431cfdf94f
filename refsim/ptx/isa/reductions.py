"""The results that a copy engine leaves in memory when it reduces: element by element, as an atomic without a
result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.numerics import ieee
from refsim.ptx.execution.types import TYPES, PtxType
from refsim.ptx.isa.atomic import INTEGER_UPDATES, add_double

Array = NDArray[Any]

# The PTX type of each element type of a tensor map that can be reduced.
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
    """One operation on elements of `width` bytes: combine(memory's contents, copied data) as items of this width.
    `is_rounded`: the sum depends on the order in which copies arrive."""

    combine: Callable[[Array, Array], Array]
    width: int
    is_rounded: bool


def reduction(operation: str, type: str) -> ElementUpdate | None:
    """Return an operation on a PTX type, or on the element type of a tensor map; None if the operation does not
    exist."""
    row = TYPES.get(MAP_TYPES.get(type, type))
    if row is None or row.lanes > 1:
        return None
    if "f" in row.name:  # a float, also if its dtype holds bit patterns
        update = _real(operation, row, ftz=type == "float32_ftz")
        return None if update is None else ElementUpdate(update, row.bits // 8, operation == "add")
    if operation not in INTEGER_UPDATES or (operation in ("inc", "dec") and row.name != "u32"):
        return None
    seen = TYPES[f"b{row.bits}"] if operation in _BITWISE else row
    return ElementUpdate(
        _on(seen, lambda old, new: INTEGER_UPDATES[operation][2](old, new, None)), row.bits // 8, False
    )


def _real(operation: str, row: PtxType, ftz: bool) -> Callable[[Array, Array], Array] | None:
    """Return a float operation; None if it does not exist.

    Sums keep subnormal numbers, unlike an atomic add of f32 in global memory; a map type that flushes them is the
    exception. Through a map of tf32 sums are those of float32. Both were measured on an H200.
    """
    elsewhere = np.array([False])
    if operation == "add":
        if row.bits == 64:
            return _on(row, lambda old, new: add_double(old, new, elsewhere))
        return _on(row, lambda old, new: ieee.add(old, new, ftz=ftz))
    if row.bits == 16 and operation in ("min", "max"):
        return _on(row, ieee.minimum if operation == "min" else ieee.maximum)
    return None


def _on(row: PtxType, update: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Return an update of values of a type as an update of raw items."""

    def combine(held: Array, given: Array) -> Array:
        left = np.ascontiguousarray(update(held.view(row.dtype), given.view(row.dtype)), row.dtype)
        return left.view(held.dtype)

    return combine
