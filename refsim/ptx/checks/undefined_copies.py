"""Rules for undefined bits that a copy engine moves from one memory to another."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.tma import MAP_BYTES
from refsim.ptx.checks.undefined import GRANULE, tracking_of
from refsim.ptx.checks.undefined_bits import RuleOperands
from refsim.ptx.checks.undefined_memory import ADDRESS, SIZE, UNWRITTEN, Shadow, read, shadow_of, write
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.masks import mask_of
from refsim.ptx.memory.space import Space

Array = NDArray[Any]
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
    def space(self) -> Space: ...
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
