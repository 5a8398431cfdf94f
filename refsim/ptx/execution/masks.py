"""Masks of undefined bits as values: a set bit says that the bit below it is undefined; None is a mask without a set bit.

What they mean for a launch is said in refsim.ptx.checks.undefined.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Origins = NDArray[np.int32]


class UnwrittenReadError(Exception):
    """A lane is about to read what nobody wrote: the launch begins again, with masks."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The undefined bits of one register of a set of lanes, (n,), and the event that each lane's came from (0: none)."""

    bits: Array
    origin: Origins

    def part(self, chosen: Any) -> "Mask | None":
        """The mask of some of the lanes."""
        return mask_of(self.bits[chosen], self.origin[chosen])


def nonzero(bits: Array) -> NDArray[np.bool_]:
    """Which items have a bit set; one of 16 bytes is a complex number only for NumPy, to which -0 is 0."""
    if bits.dtype.itemsize == 16:
        return np.asarray(np.ascontiguousarray(bits).view(np.uint64).reshape(-1, 2).any(axis=1))
    return np.asarray(bits != 0)


def all_ones(dtype: "np.dtype[Any]") -> Array:
    """An item with every bit set, shape (1,)."""
    return np.array([True]) if dtype == np.bool_ else np.frombuffer(b"\xff" * dtype.itemsize, dtype)


def either(first: Array, second: Array) -> Array:
    """The bits set in one or the other."""
    if first.dtype.itemsize < 16:
        return np.asarray(first | second)
    pair = (np.ascontiguousarray(each).view(np.uint64) for each in np.broadcast_arrays(first, second))
    return np.bitwise_or(*pair).view(first.dtype)


def mask_of(bits: Array, origin: Array) -> Mask | None:
    """A mask, or None where no bit is set."""
    set_ = nonzero(bits)
    return Mask(bits, np.where(set_, origin, 0).astype(np.int32, copy=False)) if set_.any() else None


def flat(masks: Any) -> Iterator[Mask]:
    """The masks of an operand or of several, vectors included; None left out."""
    if isinstance(masks, list | tuple):
        for mask in masks:
            yield from flat(mask)
    elif masks is not None:
        yield masks


def joined(masks: Iterable[Mask], count: int) -> tuple[NDArray[np.bool_], Origins]:
    """Which lanes have an undefined bit in any of the masks, and the first event that it came from."""
    origin = np.zeros(count, np.int32)
    for mask in masks:
        origin = np.where(origin == 0, mask.origin, origin)
    return origin != 0, origin
