"""The registers of all lanes: untyped bits, one array per slot, read and written for a set of lanes."""

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.register_file import Mask, UnwrittenReadError, merged
from refsim.ptx.memory.arrays import Array


def get(lanes: Lanes, index: int) -> Array:
    """Return the bits of a register for a set of lanes: (n,), or (1,) if all lanes hold equal bits. The result is never
    a view that `put` may change: the whole array is returned only if its ownership is given up."""
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
    """Write `bits`, (n,) or (1,), to a register for a set of lanes."""
    registers = lanes.machine.registers
    slot = registers.slots[index]
    if lanes.is_full:
        registers.arrays[slot] = bits
        registers.owned[slot] = False
        return
    array = registers.arrays[slot]
    if not registers.owned[slot]:
        array = array.repeat(lanes.machine.geometry.lanes) if len(array) == 1 else array.copy()
        registers.arrays[slot] = array
        registers.owned[slot] = True
    array[lanes.key] = bits


# ---- registers that may be read before they are written
def check_written(lanes: Lanes, *indices: int) -> None:
    """Raise UnwrittenReadError if a lane has not written one of these registers: the launch then runs again with
    masks."""
    unwritten = lanes.machine.registers.unwritten
    if unwritten and unwritten.any_unwritten(indices, lanes.key):
        raise UnwrittenReadError


def mark_written(lanes: Lanes, *indices: int) -> None:
    """Record that these lanes have written these registers."""
    unwritten = lanes.machine.registers.unwritten
    if unwritten:
        unwritten.wrote(indices, lanes.key)


# ---- masks
def get_mask(lanes: Lanes, index: int) -> Mask | None:
    """Return the undefined bits of a register for a set of lanes, or None."""
    registers = lanes.machine.registers
    held = registers.masks.get(registers.slots[index])
    return None if held is None else held.part(lanes.key)


def put_mask(lanes: Lanes, index: int, mask: Mask | None) -> None:
    """Write the mask of a register for a set of lanes; None marks all its bits as defined."""
    registers, count = lanes.machine.registers, lanes.machine.geometry.lanes
    slot = registers.slots[index]
    whole = mask if lanes.is_full else merged(registers.masks.get(slot), mask, lanes.key, count)
    registers.masks.pop(slot, None)
    if whole is not None:
        registers.masks[slot] = whole
