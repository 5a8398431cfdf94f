"""The bytes of global memory that one launch wrote and read, for the next one that may begin before it has ended."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(eq=False)
class TouchedBytes:
    """The bytes of global memory, by their position, that a launch wrote and read."""

    wrote: NDArray[np.bool_]
    read: NDArray[np.bool_]

    @staticmethod
    def nothing(size: int) -> "TouchedBytes":
        """Return a record of `size` untouched bytes."""
        return TouchedBytes(np.zeros(size, np.bool_), np.zeros(size, np.bool_))

    def joined(self, other: "TouchedBytes") -> "TouchedBytes":
        """Return the bytes that either record touched."""
        found = TouchedBytes.nothing(max(len(self.wrote), len(other.wrote)))
        for each in (self, other):
            found.wrote[: len(each.wrote)] |= each.wrote
            found.read[: len(each.read)] |= each.read
        return found

    def add(self, at: Array, *, writes: bool) -> None:
        """Record an access to these bytes."""
        (self.wrote if writes else self.read)[at[at < len(self.wrote)]] = True

    def meets(self, at: Array, *, writes: bool) -> NDArray[np.bool_]:
        """Return which items (n, bytes) conflict: written before, or read before if the access `writes`."""
        known, place = at < len(self.wrote), np.minimum(at, len(self.wrote) - 1)
        found = self.wrote[place] | self.read[place] if writes else self.wrote[place]
        return np.asarray((found & known).any(axis=1))
