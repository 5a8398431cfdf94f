"""Who happened before whom: vector clocks of the warps of each CTA, small enough to mark every byte of shared memory.

A warp has an epoch that a barrier ends. Each epoch of a CTA has a code of one byte, rising with time; `seen[w, v]` is the
newest code of warp v that happened before what warp w does now. Codes below the CTA's `floor` happened before everything
that any of its warps does now; when codes run out, those become 1 and the others are numbered anew.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.execution.geometry import Geometry

Array = NDArray[Any]

NEVER, ORDERED, FIRST, LAST, IN_FLIGHT = 0, 1, 2, 254, 255
BARRIERS = 16  # of a CTA


class Order:
    """The clocks of all CTAs that run; warps are numbered over all of them, `seen` has the warps of one CTA as columns."""

    def __init__(self, geometry: Geometry) -> None:
        self.ctas, self.warps = geometry.count, geometry.warps
        everyone = np.arange(self.ctas * self.warps)
        self.cta, self.place = everyone // self.warps, everyone % self.warps
        self.code = (FIRST + self.place).astype(np.uint8)
        self.owner = np.zeros((self.ctas, 256), np.int64)
        self.owner[self.cta, self.code] = self.place
        self.seen = np.full((len(everyone), self.warps), ORDERED, np.uint8)
        self.seen[everyone, self.place] = self.code
        self.next = np.full(self.ctas, FIRST + self.warps)
        self.floor = np.full(self.ctas, FIRST)
        self.gathered = np.zeros((self.ctas * BARRIERS, self.warps), np.uint8)
        self.strong = np.zeros((self.ctas, self.warps), np.uint8)

    def room(self, warps: Array) -> Array:
        """The CTAs whose codes do not suffice for a new epoch of each of these warps."""
        wanted = np.bincount(self.cta[warps], minlength=self.ctas)
        return np.flatnonzero(self.next + wanted > LAST + 1)

    def begin(self, warps: Array) -> None:
        """These warps, in rising order, begin new epochs; there must be `room`."""
        cta = self.cta[warps]
        codes = self.next[cta] + np.arange(len(warps)) - np.searchsorted(cta, cta)
        self.next += np.bincount(cta, minlength=self.ctas)
        self.code[warps] = codes
        self.owner[cta, codes] = self.place[warps]
        self.seen[warps, self.place[warps]] = codes

    def everyone_met(self) -> None:
        """All warps of all CTAs passed one barrier."""
        newest = self.seen.reshape(self.ctas, self.warps, self.warps).max(axis=1)
        self.seen[:] = np.repeat(newest, self.warps, axis=0)
        self.floor = self.next.copy()

    def met(self, slot: Array, warps: Array, waited: Array, everyone: Array) -> None:
        """Warps pass barriers `slot` (CTA * 16 + number): those that `waited` come after all that arrived there.

        everyone: for each barrier how many warps there must wait, so that nothing of the CTA is left unordered.
        """
        np.maximum.at(self.gathered, slot, self.seen[warps])
        waiting, at = warps[waited], slot[waited]
        self.seen[waiting] = np.maximum(self.seen[waiting], self.gathered[at])
        self.gathered[np.unique(at)] = 0
        left = np.bincount(at, minlength=len(self.gathered))
        whole = np.flatnonzero((left > 0) & (left == everyone)) // BARRIERS
        self.floor[whole] = self.next[whole]

    def release(self, warps: Array) -> None:
        """An atomic or volatile write: whoever reads one in this CTA later comes after it."""
        np.maximum.at(self.strong, self.cta[warps], self.seen[warps])

    def acquire(self, warps: Array) -> None:
        """An atomic or volatile read comes after every such write of its CTA."""
        self.seen[warps] = np.maximum(self.seen[warps], self.strong[self.cta[warps]])

    def is_ordered(self, warp: Array, codes: Array) -> NDArray[np.bool_]:
        """Whether accesses with these codes happened before what a warp of the same CTA does now."""
        known = self.seen[warp, self.owner[self.cta[warp], codes]]
        ordered: NDArray[np.bool_] = (codes <= ORDERED) | (codes <= known)
        return ordered

    def renumber(self, cta: int, living: Array) -> Array:
        """New codes for all codes of a CTA (256,): 1 where every living warp comes after them.

        Of the others, two of one warp that nobody's knowledge tells apart become one. Where that frees too few (many
        warps that never meet), the older half is forgotten: a race with it goes unseen.
        """
        rows = slice(cta * self.warps, (cta + 1) * self.warps)
        knowledge = (self.seen[rows], self.strong[cta : cta + 1], self.gathered[cta * BARRIERS : (cta + 1) * BARRIERS])
        seen = knowledge[0][living] if living.any() else knowledge[0]
        codes, owner = np.arange(256), self.owner[cta]
        kept = np.flatnonzero((codes > seen.min(axis=0)[owner]) & (codes >= FIRST) & (codes < self.next[cta]))
        known = np.concatenate(knowledge)[:, owner[kept]]
        covering = np.where(known >= kept, known, IN_FLIGHT).min(axis=0)  # the oldest knowledge that includes the code
        classes, number = np.unique(owner[kept] * 256 + covering, return_inverse=True)
        if len(classes) > LAST - FIRST - 2 * self.warps:
            recent = kept >= np.median(kept)
            kept = kept[recent]
            classes, number = np.unique((owner[kept] * 256 + covering[recent]), return_inverse=True)
        table = np.where(codes == NEVER, NEVER, ORDERED).astype(np.uint8)
        table[IN_FLIGHT] = IN_FLIGHT
        table[kept] = FIRST + number
        self.owner[cta] = 0
        self.owner[cta, FIRST : FIRST + len(classes)] = classes // 256
        for array in knowledge:
            array[:] = table[array]
        self.code[rows] = table[self.code[rows]]
        self.next[cta] = FIRST + len(classes)
        self.floor[cta] = FIRST
        return table
