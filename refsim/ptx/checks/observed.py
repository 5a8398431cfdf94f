"""Writes that a strong read observed: they happened before everything after the read, without any fence.

Observation is the first step of causality order. A write comes before the morally strong read that returns its value,
or the value of a chain of read-modify-writes that it began. So it comes before everything after that read. Earlier
accesses of the writer are only ordered by a release.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import By, History
from refsim.ptx.checks.marks import Link
from refsim.ptx.memory.semantics import CLUSTER, GPU

Array = NDArray[Any]


def morally_strong(clocks: Clocks, one: By, other: By) -> bool:
    """Return whether two accesses are strong, of one size, and each within the other's scope."""
    if not (one.meaning.strong and other.meaning.strong) or one.element != other.element:
        return False
    scope, threads = min(one.meaning.scope, other.meaning.scope), clocks.geometry.threads
    ctas = one.agent // threads, other.agent // threads
    return (
        scope >= GPU or ctas[0] == ctas[1] or (scope == CLUSTER and clocks.cluster(ctas[0]) == clocks.cluster(ctas[1]))
    )


def not_morally_strong(clocks: Clocks, one: By, history: History, number: int, agents: list[int]) -> list[int]:
    """Return the threads of access `number` with which an access is not morally strong: usually all or none."""
    meaning, element, _ = history.by(number, -1)
    if not (one.meaning.strong and meaning.strong) or one.element != element:
        return agents
    if min(one.meaning.scope, meaning.scope) >= GPU:
        return []
    return [agent for agent in agents if not morally_strong(clocks, one, By(meaning, element, agent))]


@dataclass
class Observers:
    """The strong reads of one granule that a lane comes after.

    Given the writes of the granule from the newest back, `unobserved` tells which of them these reads observed. A write
    that reads nothing (`end`) limits what later reads observe. A thread seen to write (`known`) has been seen to write
    there before, since the writes of one location have one order.
    """

    history: History
    clocks: Clocks
    lane: int
    reads: list[tuple[int, int, int]] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    end: int = np.iinfo(np.int32).max

    def add_reads(self, chain: Iterable[Link]) -> None:
        """Add the reads of a chain of marks."""
        for number, agents, _ in chain:
            self._add(number, agents)

    def unobserved(self, number: int, agents: Array) -> Iterator[int]:
        """Yield the threads that made write `number` and whose writes no read observed."""
        meaning = self.history.meaning(number)
        if meaning.atomic and meaning.returns:
            self._add(number, agents)
        for place, agent in enumerate(agents.tolist()):
            if agent not in self.known and not (meaning.strong and self._has_seen(number, place, agent)):
                yield agent
                continue
            self.known.add(agent)
        if not meaning.atomic:
            self.end = number

    def _has_seen(self, number: int, place: int, agent: int) -> bool:
        """Return whether a read observed the write of the lane at index `place` in access `number`."""
        write = self.history.by(number, agent)
        return any(
            (number, place) < (when, after)
            and when < self.end
            and morally_strong(self.clocks, write, self.history.by(when, reader))
            for when, after, reader in self.reads
        )

    def _add(self, number: int, agents: Array) -> None:
        """Add the strong reads of an access that happened before what the lane does now."""
        if not (meaning := self.history.meaning(number)).strong or not meaning.returns:
            return
        ordered = self.clocks.comes_after(self.lane, agents, number)
        self.reads += [(number, place, int(agents[place])) for place in np.flatnonzero(ordered).tolist()]
