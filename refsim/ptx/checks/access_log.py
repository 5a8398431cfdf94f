"""The accesses to shared memory of late: a race is found by marks, and its other side is looked up here."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Geometry, Ids
from refsim.ptx.text.syntax import Statement

Array = NDArray[Any]

_AT_LEAST = 64
_LANES = 1 << 22  # of all accesses that are remembered together: some 100 MB


@dataclass(frozen=True)
class Access:
    """One executed access: which lanes, at which items of `width` bytes, in which epochs."""

    kind: str
    statement: Statement
    ids: Ids
    index: Array
    width: int
    codes: Array


class Log:
    """The newest accesses since all warps met last."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self.accesses: deque[Access] = deque(maxlen=max(_AT_LEAST, _LANES // geometry.lanes))

    def append(self, access: Access) -> None:
        self.accesses.append(access)

    def clear(self) -> None:
        self.accesses.clear()

    def last(
        self, kind: str, positions: range, warp: int, other: int | None, newer: Iterable[Access]
    ) -> tuple[int, Statement] | None:
        """The last access of a kind to any of the byte positions by another warp than `warp`, as lane and statement.

        other: the place in its CTA of the warp that is looked for, where it is known. newer: accesses not listed here yet.
        """
        for access in reversed([*self.accesses, *newer]):
            if access.kind != kind:
                continue
            first, warps = access.index * access.width, self.geometry.warp[access.ids]
            there = (first < positions.stop) & (first + access.width > positions.start) & (warps != warp)
            if other is not None:
                there &= warps % self.geometry.warps == other
            if there.any():
                return int(access.ids[np.argmax(there)]), access.statement
        return None
