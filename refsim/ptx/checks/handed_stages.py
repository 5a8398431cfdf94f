"""What arrivals at mbarriers tell a copy in addition to what they release: which threads are done with its stage.

Completed asynchronous work needs no release. Values that threads loaded before products have arrived once these
products were waited for. Neither orders an access of a thread: only the comparison of a copy uses it.
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
    """Work that is over for a copy, by the kind of evidence.

    `settled`: asynchronous work before arrivals of any kind. `loaded`: reads of threads before a releasing arrival in
    another CTA, whatever the scope of either side, as pipelines hand stages back without a scope. `fed`: reads of
    threads before products that a releasing thread had waited for.
    """

    settled: Knowledge = NOTHING
    loaded: Knowledge = NOTHING
    fed: Knowledge = NOTHING

    def __or__(self, other: "Done") -> "Done":
        return Done(self.settled | other.settled, self.loaded | other.loaded, self.fed | other.fed)


NOTHING_DONE = Done()


@dataclass
class HandedBack:
    """What the threads that arrived at one object were done with. `products`: for each warp of the grid, its newest
    access by products that an arrival has waited for; `fed`: its newest access before these products."""

    settled: Knowledge = NOTHING
    loaded: Knowledge = NOTHING
    products: Stamps = field(default_factory=dict)
    fed: Stamps = field(default_factory=dict)

    def add(self, known: Knowledge, meaning: Semantics) -> None:
        """Record an arrival of threads with this knowledge, relaxed or from another CTA."""
        self.settled = self.settled | known
        if meaning.releases:
            self.loaded = self.loaded | known

    def done(self, known: Stamps) -> Done:
        """Return all of it except what is `known` of warps anyway."""
        products, fed = (
            {warp: stamp for warp, stamp in stamps.items() if stamp > known.get(warp, 0)}
            for stamps in (self.products, self.fed)
        )
        settled = self.settled | Knowledge(warps=products) if products else self.settled
        return Done(settled, self.loaded, Knowledge(warps=fed) if fed else NOTHING)


class HandedStages:
    """The products that warpgroups have waited for, and what lanes that waited at mbarriers know of others."""

    def __init__(self, clocks: list[Clocks], geometry: Geometry) -> None:
        self.clocks, self.geometry = clocks, geometry
        self.products, self.fed = (np.zeros(geometry.count * geometry.warpgroups, np.int64) for _ in range(2))
        self.known: list[dict[int, Done]] = [{} for _ in clocks]

    def products_waited_for(self, groups: Ids, now: int, begun: int) -> None:
        """Record that warpgroups waited for products that end with access `now` and began after access `begun`."""
        self.products[groups] = now
        self.fed[groups] = np.maximum(self.fed[groups], begun)

    def arrive(self, at: HandedBack, lanes: Ids, meaning: Semantics) -> None:
        """Record that lanes arrive after products that their warpgroups have waited for."""
        if self.products.any():
            at.products.update(self._of_warps(self.products, lanes))
            at.fed.update(self._of_warps(self.fed, lanes) if meaning.releases else {})

    def learn(self, order: int, lanes: Ids, done: Done, meaning: Semantics) -> None:
        """Record that lanes saw a phase complete whose arrivals were `done` with work; loads need an acquire."""
        if not meaning.acquires:
            done = Done(done.settled)
        if done.settled is not NOTHING or done.fed is not NOTHING:
            known = self.known[order]
            known.update({lane: known.get(lane, NOTHING_DONE) | done for lane in lanes.tolist()})

    @contextmanager
    def known_to(self, lanes: list[int], *kinds: str) -> Iterator[list[int]]:
        """Let lanes know the work in these fields of `Done` during a comparison; yield the lanes that know any."""
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
        """Return the stamps of the warpgroups of these lanes as stamps of all their warps."""
        geometry, found = self.geometry, Stamps()
        for group in np.unique(geometry.warpgroup[lanes]).tolist():
            if stamps[group]:
                cta, rank = divmod(group, geometry.warpgroups)
                first = (cta + geometry.first) * geometry.warps + rank * _WARPS
                found.update(dict.fromkeys(range(first, first + _WARPS), int(stamps[group])))
        return found
