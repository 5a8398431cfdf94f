"""The shape of a launch: grid, CTAs, warps and lanes; arithmetic only.

lane = CTA x threads of a CTA + thread. A warp is 32 consecutive threads of one CTA. CTAs run and are counted cluster by
cluster (x fastest among clusters and within one), so that a cluster is consecutive CTAs. Without clusters, or if
clusters extend along x only, a CTA's number is its number in the grid. A set of lanes is a sorted array.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Shape = tuple[int, int, int]
WARPGROUP = 128  # threads


@dataclass(frozen=True)
class Geometry:
    """The shape of a launch and of its part that runs at once: CTAs [first, first + count), whole clusters."""

    grid: Shape
    block: Shape
    first: int
    count: int
    cluster: Shape = (1, 1, 1)
    is_explicit_cluster: bool = False

    @cached_property
    def threads(self) -> int:
        """Return the number of threads of one CTA."""
        return self.block[0] * self.block[1] * self.block[2]

    @cached_property
    def grid_threads(self) -> int:
        """Return the number of threads of the whole launch."""
        return self.grid[0] * self.grid[1] * self.grid[2] * self.threads

    @cached_property
    def lanes(self) -> int:
        """Return the number of lanes: the threads of the CTAs that run now."""
        return self.count * self.threads

    @cached_property
    def warps(self) -> int:
        """Return the number of warps of one CTA."""
        return -(-self.threads // 32)

    @cached_property
    def cluster_ctas(self) -> int:
        """Return the number of CTAs of a cluster: 1 if the launch has no clusters."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    def cluster_of(self, cta: int) -> int:
        """Return the cluster of a CTA, both counted from the first that runs now."""
        return cta // self.cluster_ctas

    @cached_property
    def ranks(self) -> Ids:
        """Return the rank in its cluster of each CTA that runs now."""
        return np.arange(self.count, dtype=np.int64) % self.cluster_ctas

    @cached_property
    def lane_ranks(self) -> Ids:
        """Return the rank of each lane's CTA in its cluster."""
        return self.ranks[self.cta]

    @cached_property
    def numbers(self) -> Ids:
        """Return the number in the grid, x fastest, of each CTA that runs now."""
        return grid_number(np.arange(self.first, self.first + self.count, dtype=np.int64), self.grid, self.cluster)

    @cached_property
    def cta(self) -> Ids:
        """Return the CTA of each lane, counted from the first that runs now."""
        return np.repeat(np.arange(self.count, dtype=np.int64), self.threads)

    @cached_property
    def thread(self) -> Ids:
        """Return the number of each lane's thread within its CTA."""
        return np.tile(np.arange(self.threads, dtype=np.int64), self.count)

    @cached_property
    def laneid(self) -> Ids:
        """Return the position of each lane in its warp, 0 to 31."""
        return self.thread % 32

    @cached_property
    def warp(self) -> Ids:
        """Return the warp of each lane, unique over all CTAs that run."""
        return self.cta * self.warps + self.thread // 32

    @cached_property
    def warpgroup(self) -> Ids:
        """Return the warpgroup of each lane, unique over all CTAs that run: four warps, the first a multiple of
        four."""
        return self.cta * self.warpgroups + self.thread // WARPGROUP

    def are_warpgroups(self, ids: Ids) -> bool:
        """Return whether a set of lanes consists of whole warpgroups."""
        if len(ids) % WARPGROUP:
            return False
        first, last = ids[::WARPGROUP], ids[WARPGROUP - 1 :: WARPGROUP]
        whole = (self.thread[last] - self.thread[first] == WARPGROUP - 1) & (last - first == WARPGROUP - 1)
        return bool((self.thread[first] % WARPGROUP == 0).all() and whole.all())

    @property
    def warpgroups(self) -> int:
        """Return the number of warpgroups of one CTA; the last one may be incomplete."""
        return -(-self.threads // WARPGROUP)

    def describe(self, lane: int) -> str:
        """Return the text for a lane: `thread (5, 0, 0) of block (2, 0, 0)`."""
        cta, thread = int(self.numbers[lane // self.threads]), lane % self.threads
        return f"thread {unflatten(thread, self.block)} of block {unflatten(cta, self.grid)}"


def grid_number(order: Ids, grid: Shape, cluster: Shape) -> Ids:
    """Return the numbers in the grid of CTAs that are numbered in the order in which they run. Grid 4 x 4 in clusters
    of 2 x 2: the first cluster is CTAs 0, 1, 4 and 5 of the grid."""
    if cluster[1] * cluster[2] == 1:
        return order
    which, rank = np.divmod(order, cluster[0] * cluster[1] * cluster[2])
    clusters = (grid[0] // cluster[0], grid[1] // cluster[1])
    corner = (which % clusters[0], which // clusters[0] % clusters[1], which // (clusters[0] * clusters[1]))
    inside = (rank % cluster[0], rank // cluster[0] % cluster[1], rank // (cluster[0] * cluster[1]))
    x, y, z = (corner[axis] * cluster[axis] + inside[axis] for axis in range(3))
    numbers: Ids = x + grid[0] * (y + grid[1] * z)
    return numbers


def unflatten(index: int, shape: Shape) -> tuple[int, int, int]:
    """Return the coordinates of an item of a shape, numbered with x fastest."""
    return index % shape[0], index // shape[0] % shape[1], index // (shape[0] * shape[1])


def key_of(ids: Ids) -> slice | Ids:
    """Return an index for a set of lanes: a slice if the set has no gaps, so that no copy is made."""
    return slice(int(ids[0]), int(ids[-1]) + 1) if int(ids[-1]) - int(ids[0]) + 1 == len(ids) else ids


def union(first: Ids, second: Ids) -> Ids:
    """Return two disjoint sorted sets of lanes as one."""
    if first[-1] < second[0]:
        return np.concatenate([first, second])
    if second[-1] < first[0]:
        return np.concatenate([second, first])
    return np.sort(np.concatenate([first, second]), kind="stable")


def runs(group: Ids) -> tuple[Ids, Ids]:
    """Return where each group starts once lanes are sorted by group, and the sorting order of the lanes."""
    steps = np.diff(group)
    order = np.arange(len(group)) if (steps >= 0).all() else np.argsort(group, kind="stable")
    return np.flatnonzero(np.diff(group[order], prepend=group[order[0]] - 1)), order
