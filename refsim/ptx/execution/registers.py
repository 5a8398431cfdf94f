"""The registers of all lanes: untyped bits, one array per slot, read and written for a set of lanes."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.lanes import Lanes

Array = NDArray[Any]


@dataclass
class Registers:
    """One array per slot: (lanes,) or (1,); `owned` tells whether it may be written in place, `slots` who is kept where."""

    slots: list[int]
    arrays: list[NDArray[Any]]
    owned: list[bool]


def get(lanes: Lanes, index: int) -> Array:
    """A register's bits for a set of lanes: (n,), or (1,) when they are the same for all. Never a view that `put` may
    change: the whole array is given away only together with its ownership."""
    registers = lanes.machine.registers
    slot = registers.slots[index]
    array = registers.arrays[slot]
    if len(array) == 1:
        return array
    if lanes.is_full:
        registers.owned[slot] = False
        return array
    part = array[lanes.key]
    return part.copy() if isinstance(lanes.key, slice) else part


def put(lanes: Lanes, index: int, bits: Array) -> None:
    """Write a register for a set of lanes."""
    registers = lanes.machine.registers
    slot = registers.slots[index]
    if lanes.is_full:
        registers.arrays[slot] = bits
        registers.owned[slot] = False
        return
    array = registers.arrays[slot]
    if not registers.owned[slot]:
        array = np.broadcast_to(array, (lanes.machine.geometry.lanes,)).copy()
        registers.arrays[slot] = array
        registers.owned[slot] = True
    array[lanes.key] = bits
