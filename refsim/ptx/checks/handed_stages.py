"""What arrivals at mbarriers say beyond what they release, to copies alone: who is done with the stage that a copy fills next.

Asynchronous work that has completed needs no release, and what threads loaded before products has arrived when these were
waited for. Neither orders an access of a thread: only the comparison of a copy looks at it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.holders import WARP
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.knowledge import NOTHING, Knowledge, together
from refsim.ptx.execution.geometry import WARPGROUP, Geometry, Ids
from refsim.ptx.memory.semantics import Semantics

_WARPS = WARPGROUP // WARP
Stamps = dict[int, int]


@dataclass(frozen=True)
class Done:
    """`settled`: asynchronous work, before arrivals of any kind; `loaded`: reads of threads before a release of an arrival in
    another CTA, however far either side reaches: pipelines hand stages back without a scope; `fed`: reads of threads before
    products that somebody who released had waited for."""

    settled: Knowledge = NOTHING
    loaded: Knowledge = NOTHING
    fed: Knowledge = NOTHING

    def __or__(self, other: "Done") -> "Done":
        return Done(self.settled | other.settled, self.loaded | other.loaded, self.fed | other.fed)


NOTHING_DONE = Done()


@dataclass
class HandedBack:
    """What those that arrived at one object were done with; `products` and `fed`: up to which access each warp of the grid
    takes part in products that an arrival has waited for, and came to them."""

    settled: Knowledge = NOTHING
    loaded: Knowledge = NOTHING
    products: Stamps = field(default_factory=dict)
    fed: Stamps = field(default_factory=dict)

    def add(self, known: Knowledge, meaning: Semantics) -> None:
        """Threads arrive that know this much, relaxed or from another CTA."""
        self.settled = self.settled | known
        if meaning.releases:
            self.loaded = self.loaded | known

    def done(self, known: Stamps) -> Done:
        """All of it, less what is `known` of warps anyway."""
        products, fed = (
            {warp: stamp for warp, stamp in stamps.items() if stamp > known.get(warp, 0)}
            for stamps in (self.products, self.fed)
        )
        settled = self.settled | Knowledge(warps=products) if products else self.settled
        return Done(settled, self.loaded, Knowledge(warps=fed) if fed else NOTHING)


class HandedStages:
    """Which products warpgroups have waited for, and what each lane that waited at mbarriers knows of others."""

    def __init__(self, clocks: list[Clocks], geometry: Geometry) -> None:
        self.clocks, self.geometry = clocks, geometry
        self.products, self.fed = (np.zeros(geometry.count * geometry.warpgroups, np.int64) for _ in range(2))
        self.known: list[dict[int, Done]] = [{} for _ in clocks]

    def products_waited_for(self, groups: Ids, now: int, begun: int) -> None:
        """Warpgroups waited for products, the last of which made access `now`, and before the first access `begun`."""
        self.products[groups] = now
        self.fed[groups] = np.maximum(self.fed[groups], begun)

    def arrive(self, at: HandedBack, lanes: Ids, meaning: Semantics) -> None:
        """Lanes arrive behind products that their warpgroups have waited for."""
        if self.products.any():
            at.products.update(self._of_warps(self.products, lanes))
            at.fed.update(self._of_warps(self.fed, lanes) if meaning.releases else {})

    def learn(self, order: int, lanes: Ids, done: Done, meaning: Semantics) -> None:
        """Lanes saw a phase complete, whose arrivals were done with this by one order: with loads where they acquire."""
        if not meaning.acquires:
            done = Done(done.settled)
        if done.settled is not NOTHING or done.fed is not NOTHING:
            known = self.known[order]
            known.update({lane: known.get(lane, NOTHING_DONE) | done for lane in lanes.tolist()})

    @contextmanager
    def known_to(self, lanes: list[int], *kinds: str) -> Iterator[list[int]]:
        """What a copy engine is asked for by lanes comes also after what is done by these fields of `Done`; for which lanes
        there is such. For the time of a comparison, and of the accesses that the field speaks of."""
        before = []
        tables = [{"settled": self.products, "fed": self.fed}[kind] for kind in kinds if kind in ("settled", "fed")]
        for clocks, known in zip(self.clocks, self.known, strict=True):
            for lane in lanes if known or any(stamps.any() for stamps in tables) else ():
                own = [Knowledge(warps=at) for stamps in tables if (at := self._of_warps(stamps, np.array([lane])))]
                more = together([getattr(known.get(lane, NOTHING_DONE), kind) for kind in kinds] + own)
                if more is not NOTHING:
                    before.append((clocks, lane, int(clocks.rows.foreign[lane])))
                    clocks.learn(np.array([lane]), more)
        try:
            yield [lane for _, lane, _ in before]
        finally:
            for clocks, lane, foreign in before:
                clocks.rows.foreign[lane] = foreign

    def _of_warps(self, stamps: NDArray[Any], lanes: Ids) -> Stamps:
        """Stamps of warpgroups as those of the warps of these lanes' warpgroups."""
        geometry, found = self.geometry, Stamps()
        for group in np.unique(geometry.warpgroup[lanes]).tolist():
            if stamps[group]:
                cta, rank = divmod(group, geometry.warpgroups)
                first = (cta + geometry.first) * geometry.warps + rank * _WARPS
                found.update(dict.fromkeys(range(first, first + _WARPS), int(stamps[group])))
        return found
