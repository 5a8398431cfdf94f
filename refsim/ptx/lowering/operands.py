"""How an operand of a step is fetched: a constant, a register, an address, a branch target."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.registers import get
from refsim.ptx.execution.types import PtxType
from refsim.ptx.text.syntax import Negated, Register, Special, Symbol

Array = NDArray[Any]
_BITS, _WIDE = np.dtype(np.uint64), np.dtype(np.int64)


@dataclass(frozen=True)
class Constant:
    """An operand known when the program is loaded: one element for all lanes."""

    bits: NDArray[Any]


@dataclass(frozen=True)
class AddressOperand:
    """An address operand: fetched base plus a byte offset."""

    base: "Source"
    offset: int


@dataclass(frozen=True)
class BranchTarget:
    """A branch target, as the number of the statement it leads to."""

    pc: int


@dataclass(frozen=True)
class BranchTargets:
    """A table of branch targets: a return from a shared function has thousands."""

    pcs: tuple[int, ...]


Source = (
    Constant
    | Register
    | Negated
    | Special
    | Symbol
    | AddressOperand
    | BranchTarget
    | BranchTargets
    | tuple[Any, ...]
    | None
)


def fetch(lanes: Lanes, source: Source, type: PtxType) -> Any:
    """Return an operand's value for a set of lanes, straight from the registers, as a terminator needs it."""
    match source:
        case Constant(bits):
            return bits
        case Register(index):
            return get(lanes, index)
        case Negated(register):
            return ~get(lanes, register.index)
        case Special(name):
            return lanes.machine.special(lanes, name)
        case Symbol(name, offset):
            return lanes.symbol(name, offset)
        case BranchTarget(pc):
            return pc
        case BranchTargets(pcs):
            return pcs
        case AddressOperand(base, offset):
            return place(fetch(lanes, base, type), offset)
        case None:
            return None
    return [fetch(lanes, element, type) for element in source]


def place(base: Array, offset: int | Array) -> Array:
    """Return byte addresses: a register, zero-extended, plus the offset, which may be an array of one."""
    wide: Array = base.view(_WIDE) if base.dtype == _BITS else base.astype(_WIDE, copy=False)
    return wide + offset if offset else wide


def registers_of(source: Source) -> Iterator[int]:
    """Yield the registers that an operand reads."""
    match source:
        case Register(index):
            yield index
        case Negated(Register(index)):
            yield index
        case AddressOperand(base, _):
            yield from registers_of(base)
        case tuple():
            for element in source:
                yield from registers_of(element)
