"""The shape of a launch: grid, CTAs, warps and lanes; arithmetic only.

lane = CTA x threads of a CTA + thread, CTAs and threads numbered with x fastest. A warp is 32 consecutive threads of one
CTA. A set of lanes is a sorted array.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Geometry:
    """The shape of a launch and of the part of it that runs at once: CTAs [first, first + count)."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    first: int
    count: int

    @property
    def threads(self) -> int:
        """Threads of one CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def grid_threads(self) -> int:
        """Threads of the whole launch."""
        return self.grid[0] * self.grid[1] * self.grid[2] * self.threads

    @property
    def lanes(self) -> int:
        return self.count * self.threads

    @property
    def warps(self) -> int:
        """Warps of one CTA."""
        return -(-self.threads // 32)

    @cached_property
    def cta(self) -> Ids:
        """CTA of each lane, counted from the first that runs now."""
        return np.repeat(np.arange(self.count, dtype=np.int64), self.threads)

    @cached_property
    def thread(self) -> Ids:
        """Thread of each lane within its CTA."""
        return np.tile(np.arange(self.threads, dtype=np.int64), self.count)

    @cached_property
    def laneid(self) -> Ids:
        return self.thread % 32

    @cached_property
    def warp(self) -> Ids:
        """Warp of each lane, unique over all CTAs that run."""
        return self.cta * self.warps + self.thread // 32

    def describe(self, lane: int) -> str:
        """`thread (5, 0, 0) of block (2, 0, 0)`."""
        cta, thread = self.first + lane // self.threads, lane % self.threads
        return f"thread {_unflatten(thread, self.block)} of block {_unflatten(cta, self.grid)}"


def _unflatten(index: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    return index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1])


def union(first: Ids, second: Ids) -> Ids:
    """Two disjoint sorted sets of lanes as one."""
    if first[-1] < second[0]:
        return np.concatenate([first, second])
    if second[-1] < first[0]:
        return np.concatenate([second, first])
    return np.sort(np.concatenate([first, second]), kind="stable")
