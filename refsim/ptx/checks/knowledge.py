"""What one thread knew when it released: for CTAs, warps and threads, up to which access of theirs it comes after.

Every access of a launch has a number that rises with time, the same count for all threads. So "all that this CTA did up to
number 812" is one entry, and knowledge is the largest of the entries that cover a thread: joins are maxima, and exact.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Stamps = dict[int, int]


@dataclass(frozen=True, eq=False)
class Knowledge:
    """Stamps by CTA, by warp and by thread, each numbered over the whole grid."""

    ctas: Stamps = field(default_factory=dict)
    warps: Stamps = field(default_factory=dict)
    threads: Stamps = field(default_factory=dict)

    def __or__(self, other: "Knowledge") -> "Knowledge":
        if self is other or other is NOTHING:
            return self
        if self is NOTHING:
            return other
        return Knowledge(
            _joined(self.ctas, other.ctas), _joined(self.warps, other.warps), _joined(self.threads, other.threads)
        )

    def stamps(self, cta: Array, warp: Array, thread: Array) -> Array:
        """Up to which access each of these threads is known; 0 for one that is not."""
        found = np.zeros(len(thread), np.int64)
        for (names, stamps), numbers in zip(self._tables, (cta, warp, thread), strict=True):
            if len(names):
                at = np.minimum(np.searchsorted(names, numbers), len(names) - 1)
                found = np.maximum(found, np.where(names[at] == numbers, stamps[at], 0))
        return found

    @cached_property
    def _tables(self) -> tuple[tuple[Array, Array], ...]:
        tables = []
        for stamps in (self.ctas, self.warps, self.threads):
            names = np.fromiter(sorted(stamps), np.int64, len(stamps))
            tables.append((names, np.fromiter((stamps[name] for name in names.tolist()), np.int64, len(stamps))))
        return tuple(tables)


NOTHING = Knowledge()


def _joined(first: Stamps, second: Stamps) -> Stamps:
    """The larger stamp of each; one of the two itself where it covers the other."""
    if not second or first is second:
        return first
    if not first:
        return second
    joined = dict(first)
    for name, stamp in second.items():
        if stamp > joined.get(name, 0):
            joined[name] = stamp
    return joined


@dataclass(frozen=True, eq=False)
class Released:
    """What an acquire of one location brings, by how far the releases that stand there reach.

    `fenced` is what sequentially consistent fences before the write covered: it reaches such a fence behind a read alone.
    """

    everybody: Knowledge = NOTHING
    fenced: Knowledge = NOTHING
    clusters: "dict[int, Knowledge]" = field(default_factory=dict)
    ctas: "dict[int, Knowledge]" = field(default_factory=dict)
