"""The registers of all lanes as data: an array per slot, and facts about each register in addition to its bits.

Masks of undefined bits as values: a set bit marks the bit below it as undefined; None is a mask without a set bit.
refsim.ptx.isa.definedness.tracking explains what the masks mean for a launch."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.arrays import Array, Bools

Origins = NDArray[np.int32]


class UnwrittenReadError(Exception):
    """A lane is about to read an uninitialized register: the launch is run again, with masks."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The undefined bits of one register for a set of lanes, (n,), and the event that caused each lane's (0: none)."""

    bits: Array
    origin: Origins

    def part(self, chosen: Any) -> "Mask | None":
        """Return the mask of the chosen lanes (an index or a boolean array), or None if they have no undefined bit."""
        return mask_of(self.bits[chosen], self.origin[chosen])


def nonzero(bits: Array) -> Bools:
    """Return which items have a set bit, (n,). Items of 16 bytes are complex numbers to NumPy, which takes -0 for 0."""
    if bits.dtype.itemsize == 16:
        return np.asarray(np.ascontiguousarray(bits).view(np.uint64).reshape(-1, 2).any(axis=1))
    return np.asarray(bits != 0)


def all_ones(dtype: "np.dtype[Any]") -> Array:
    """Return one item with every bit set, shape (1,)."""
    return np.array([True]) if dtype == np.bool_ else np.frombuffer(b"\xff" * dtype.itemsize, dtype)


def either(first: Array, second: Array) -> Array:
    """Return the bits that are set in the first or the second array."""
    if first.dtype.itemsize < 16:
        return np.asarray(first | second)
    pair = (np.ascontiguousarray(each).view(np.uint64) for each in np.broadcast_arrays(first, second))
    return np.bitwise_or(*pair).view(first.dtype)


def mask_of(bits: Array, origin: Array) -> Mask | None:
    """Return a mask of these bits and events, or None if no bit is set."""
    set_ = nonzero(bits)
    return Mask(bits, np.where(set_, origin, 0).astype(np.int32, copy=False)) if set_.any() else None


def flat(masks: Any) -> Iterator[Mask]:
    """Yield the masks of one operand or of several, vectors included; None is left out."""
    if isinstance(masks, list | tuple):
        for mask in masks:
            yield from flat(mask)
    elif masks is not None:
        yield masks


def joined(masks: Iterable[Mask], count: int) -> tuple[Bools, Origins]:
    """Return which of `count` lanes have an undefined bit in any mask, and for each lane the first event that caused
    one."""
    origin = np.zeros(count, np.int32)
    for mask in masks:
        origin = np.where(origin == 0, mask.origin, origin)
    return origin != 0, origin


def merged(before: Mask | None, after: Mask | None, some: Any, count: int) -> Mask | None:
    """Return a mask that is `after` in the lanes `some` and `before` in the others, or None if all bits are defined."""
    if before is None and after is None:
        return None
    dtype = (after if before is None else before).bits.dtype  # type: ignore[union-attr]
    bits = np.zeros(count, dtype) if before is None else before.bits.copy()
    origin = np.zeros(count, np.int32) if before is None else before.origin.copy()
    bits[some], origin[some] = (0, 0) if after is None else (after.bits, after.origin)
    return mask_of(bits, origin)


class Unwritten:
    """A table of the lanes that have not yet written a register which may be read before it is written. Each such
    register has a row of lanes, until all lanes have written it."""

    def __init__(self, registers: Iterable[int] = (), lanes: int = 0) -> None:
        self.row = {register: row for row, register in enumerate(registers)}
        self.table: Bools = np.ones((len(self.row), lanes), np.bool_)

    def __bool__(self) -> bool:
        return bool(self.row)

    def any_unwritten(self, registers: Iterable[int], key: slice | Ids) -> bool:
        """Return whether any of these lanes has not written any of these registers."""
        rows = [self.row[each] for each in registers if each in self.row]
        return len(rows) > 0 and bool(np.count_nonzero(self.table[rows][:, key]))

    def wrote(self, registers: Iterable[int], key: slice | Ids) -> None:
        """Record that these lanes have written these registers; drop registers that all lanes have written."""
        known = [each for each in registers if each in self.row]
        if not known:
            return
        rows = np.array([self.row[each] for each in known], np.int64)
        self.table[(rows, key) if isinstance(key, slice) else np.ix_(rows, key)] = False
        lack = np.logical_or.reduce(self.table[rows], axis=1)
        for place in np.flatnonzero(~lack).tolist():
            del self.row[known[place]]


@dataclass
class Registers:
    """One array per slot, (lanes,) or (1,). `owned`: whether a slot's array may be written in place; `slots`: the slot
    of each register. `masks` holds the undefined bits by slot, where a launch tracks them. `doubts` are lanes that took a
    branch by an undefined guard, by the statement where they meet: an event of each lane, and the arms."""

    slots: list[int]
    arrays: list[Array]
    owned: list[bool]
    unwritten: Unwritten = field(default_factory=Unwritten)
    masks: dict[int, Mask] = field(default_factory=dict)
    doubts: dict[int, list[tuple[NDArray[np.int32], Any]]] = field(default_factory=dict)
