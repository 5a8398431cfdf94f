"""Exact masks by definition: run an instruction on all completions of few undefined bits, and see which bits vary.

A completion gives each undefined bit a value. A register that an instruction reads twice has one value in each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.masks import mask_of
from refsim.ptx.execution.types import unview, view

Array = NDArray[Any]
FEW_BITS = 10  # undefined bits of a lane whose completions are all tried
_AT_ONCE = 1 << 18  # completions of all lanes in one call


def outcomes(operands: Any, values: Sequence[Array]) -> list[Array]:
    """Return the bits of each result for these bits of the sources."""
    sources = (
        None if value is None else view(value, type) for value, type in zip(values, operands.types, strict=False)
    )
    found = operands.function(*sources, **operands.keywords)
    results = found if isinstance(found, tuple) else (found,)
    return [unview(one, type, type.bits) for one, (_, type) in zip(results, operands.results, strict=False)]


def varying(operands: Any, values: Sequence[Array]) -> list[Array]:
    """Return which bits of each result vary between trials. values: the sources' bits, (lanes, trials), or (1,)."""
    lanes = max(len(value) for value in values if value is not None)
    flat = [value if value is None or value.ndim == 1 else value.reshape(-1) for value in values]
    found = []
    for outcome in outcomes(operands, flat):
        table = np.broadcast_to(outcome, (max(len(value) for value in flat if value is not None),)).reshape(lanes, -1)
        found.append(np.bitwise_or.reduce(table ^ table[:, :1], axis=1))
    return found


def refined(operands: Any, found: list[Any]) -> list[Any]:
    """Return the masks of results without the bits that no completion changes, in lanes with few undefined bits."""
    if any(isinstance(value, list | tuple) for value in operands.values):
        return found
    counts = np.zeros(operands.lanes.count, np.int64)
    for at, mask in enumerate(operands.masks):
        if mask is not None and operands.same[at] == at:
            counts += np.bitwise_count(_words(mask.bits))
    counts[counts > FEW_BITS] = 0
    if not counts.any():
        return found
    exact = [None if mask is None else mask.bits.copy() for mask in found]
    for count in np.unique(counts[counts > 0]):
        chosen, step = np.flatnonzero(counts == count), _AT_ONCE >> int(count)
        for lanes in (chosen[at : at + step] for at in range(0, len(chosen), step)):
            for bits, varied in zip(exact, varying(operands, _completed(operands, lanes, count)), strict=False):
                if bits is not None:
                    bits[lanes] &= varied
    return [
        None if mask is None or bits is None else mask_of(bits, mask.origin)
        for mask, bits in zip(found, exact, strict=True)
    ]


def _words(bits: Array) -> Array:
    """Return bits as unsigned integers; a predicate is one bit."""
    return bits.view(np.uint8) if bits.dtype == np.bool_ else bits


def _completed(operands: Any, lanes: Array, count: int) -> list[Array]:
    """Return the sources' bits in all completions of `count` undefined bits, (lanes, completions)."""
    number, place = np.arange(1 << count), np.zeros((len(lanes), 1), np.int64)
    tried: list[Array] = []
    for at, (value, mask) in enumerate(zip(operands.values, operands.masks, strict=True)):
        if operands.same[at] != at or (value is None or (mask is None and len(value) == 1)):
            tried.append(tried[operands.same[at]] if operands.same[at] != at else value)
            continue
        given = np.broadcast_to(_words(value), (operands.lanes.count,))[lanes, None]
        left = _words(operands.bits(at)[lanes])
        while left.any():
            bit = left & (~left + left.dtype.type(1))
            given = given ^ np.where(number >> place & 1, bit[:, None], left.dtype.type(0))
            place = place + (bit != 0)[:, None]
            left = left ^ bit
        tried.append(np.ascontiguousarray(np.broadcast_to(given, (len(lanes), 1 << count))).view(value.dtype))
    return tried
