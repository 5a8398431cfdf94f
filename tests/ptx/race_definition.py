"""A second definition of a data race, slow and by the letter: causality order of one execution as a graph, closed by force.

It shares no code with the simulator: it gets a program of single statements and the order in which the simulator made its
accesses, works out who wrote what, builds the relations of the PTX memory model (program order, observation, release and
acquire patterns, synchronizes, causality) and lists the conflicting pairs that nothing orders.

Where the simulator departs from the letter, the rule stands here with the letter D:
D1  an atomic whose result nobody reads observes nothing: it is a red.
D2  a write of what is there already is benign: no race with what came before, nor with reads that come after; a later write
    that changes the value does race with it. A read that comes after a benign store is at peace with everything older: it
    finds that value whichever store was last. An atomic that changed nothing gives no such peace.
D3  sequentially consistent fences that include each other are ordered where the execution forces it, not by luck of the order in
    which they ran: one that happened before a strong write comes before one behind a strong read of that write.
D4  an acquire orders what follows it, not itself: that it saw the release, and not what the word held before, was luck.
D5  observing a write observes what its thread wrote to that word before: the word has one order of writes.
D6  lanes that store one value by one weak instruction store it once: a read that comes after one of them finds that value
    whichever was last.
D7  volatile accesses of two lanes of a warp race like weak ones, unless one instruction made both.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations

Thread = tuple[int, int]  # block, thread in the block
ACQUIRING, RELEASING = {"acquire", "acq_rel", "sc"}, {"release", "acq_rel", "sc"}


@dataclass(frozen=True)
class Op:
    """One statement: `kind` is ld, st, add, exch, cas, red (an add), fence, bar or warp (bar.warp.sync)."""

    kind: str
    order: str = "weak"
    scope: str = "gpu"
    space: str = "global"
    word: int = 0
    value: int = 0
    expected: int = 0
    is_used: bool = True
    is_own: bool = False

    def brings(self, thread: Thread) -> int:
        """What a thread brings: the value, or, where it is each thread's own, one that differs between neighbours."""
        return self.value ^ (thread[1] & 1) if self.is_own else self.value

    @property
    def is_atomic(self) -> bool:
        return self.kind in ("add", "exch", "cas", "red")

    @property
    def is_memory(self) -> bool:
        return self.is_atomic or self.kind in ("ld", "st")

    @property
    def is_strong(self) -> bool:
        return self.order != "weak"

    @property
    def returns(self) -> bool:
        """Whether the thread learns what was there (D1)."""
        return self.kind == "ld" or (self.is_atomic and self.kind != "red" and self.is_used)


@dataclass(frozen=True)
class Chunk:
    """One statement by several threads, in the order of the program; a barrier is met by all threads of a block."""

    threads: tuple[Thread, ...]
    op: Op


@dataclass(eq=False)
class Event:
    """One thread's part of one statement in an execution, or a barrier that several threads met."""

    number: int
    op: Op
    thread: Thread | None
    chunk: int = -1
    step: int = -1
    source: "Event | None" = None
    writes: bool = False
    changes: bool = False

    @property
    def place(self) -> tuple[str, int, int]:
        assert self.thread is not None
        return self.op.space, self.thread[0] if self.op.space == "shared" else 0, self.op.word

    def __repr__(self) -> str:
        return f"{self.chunk}:{self.thread}"


def executed(chunks: list[Chunk], order: list[tuple[int, list[Thread]]], start: int = 0) -> list[Event]:
    """The accesses of an execution, statement by statement as they were made, with what each read and wrote. Threads that
    store by one statement do it at once: each changes what was there before, or does not."""
    held: dict[tuple[str, int, int], int] = defaultdict(lambda: start)
    last: dict[tuple[str, int, int], Event] = {}
    events: list[Event] = []
    for step, (chunk, threads) in enumerate(order):
        op, there = chunks[chunk].op, dict(held)
        for thread in threads:
            event = Event(len(events), op, thread, chunk, step)
            before = there.get(event.place, start) if op.kind == "st" else held[event.place]
            event.source = last.get(event.place) if op.kind != "st" else None
            event.writes = op.kind != "ld" and not (op.kind == "cas" and before != op.expected)
            if event.writes:
                after = (before + op.brings(thread)) % (1 << 32) if op.kind in ("add", "red") else op.brings(thread)
                event.changes = after != before
                held[event.place], last[event.place] = after, event
            events.append(event)
    return events


def includes_each_other(one: Event, other: Event) -> bool:
    """Whether both are strong and each is within the other's scope; all accesses have one size here."""
    assert one.thread is not None
    assert other.thread is not None
    near = one.thread[0] == other.thread[0]
    return one.op.is_strong and other.op.is_strong and (near or "cta" not in (one.op.scope, other.op.scope))


def observed_by(read: Event) -> list[Event]:
    """The writes before a read in observation order: its source, and on through read-modify-writes, each link strong."""
    found, link = [], read
    while link.source is not None and includes_each_other(link, link.source):
        found.append(link.source)
        link = link.source
        if not link.op.is_atomic:
            break
    return [write for write in found if includes_each_other(write, read)]


@dataclass
class Execution:
    """The relations of one execution; `after[n]` are the events that come behind event n in base causality order."""

    chunks: list[Chunk]
    memory: list[Event]
    threads: dict[Thread, list[Event]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    edges: set[tuple[int, int]] = field(default_factory=set)
    after: list[set[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._program_order()
        self._synchronizes()
        self._close()
        while self._order_fences():
            self._close()

    def _program_order(self) -> None:
        made = {(event.chunk, event.thread): event for event in self.memory}
        self.events = list(self.memory)
        for number, chunk in enumerate(self.chunks):
            barrier = None
            for thread in chunk.threads:
                event = barrier or made.get((number, thread))
                if event is None:
                    event = Event(len(self.events), chunk.op, None if self._meets(chunk) else thread, number)
                    self.events.append(event)
                    barrier = event if self._meets(chunk) else None
                mine = self.threads.setdefault(thread, [])
                if mine:
                    self.edges.add((mine[-1].number, event.number))
                mine.append(event)

    @staticmethod
    def _meets(chunk: Chunk) -> bool:
        return chunk.op.kind in ("bar", "warp")

    def _synchronizes(self) -> None:
        releases: dict[Event, list[Event]] = {}
        for mine in self.threads.values():
            for place, write in enumerate(mine):
                if write.writes and write.op.is_strong:
                    releases[write] = [
                        first
                        for first in mine[: place + 1]
                        if first.op.order in RELEASING
                        and (first.op.kind == "fence" or (first.writes and first.place == write.place))
                    ]
        for mine in self.threads.values():
            for place, read in enumerate(mine):
                if not self._learns(read):
                    continue
                ends = [
                    end
                    for end in mine[place:]
                    if end.op.order in ACQUIRING
                    and (end.op.kind == "fence" or (end.op.returns and end.place == read.place))
                ]
                pairs = [(first, end) for write in observed_by(read) for first in releases[write] for end in ends]
                self.edges |= {(one.number, two.number) for one, two in pairs if includes_each_other(one, two)}

    def _close(self) -> None:
        self.after = [set() for _ in self.events]
        for one, two in self.edges:
            self.after[one].add(two)
        changed = True
        while changed:
            changed = False
            for found in self.after:
                more = set().union(*(self.after[number] for number in found)) - found
                found.update(more)
                changed |= bool(more)

    def _order_fences(self) -> bool:
        """Edges between sequentially consistent fences that what was observed forces (D3)."""
        fences = [event for event in self.events if event.op.order == "sc"]
        forced = {
            (one.number, two.number)
            for read in self.memory
            if self._learns(read)
            for write in observed_by(read)
            for one in fences
            if write.number in self.after[one.number]
            for two in fences
            if two.number in self.after[read.number] and includes_each_other(one, two)
        }
        before = len(self.edges)
        self.edges |= forced
        return len(self.edges) > before

    def is_before(self, one: Event, other: Event) -> bool:
        """Causality order: base causality, or a write observed by a read that comes before in base causality (D4)."""
        assert other.thread is not None
        mine = self.threads[other.thread]
        place = mine.index(other)
        return place > 0 and any(
            mine[place - 1].number in self.after[first.number] | {first.number}
            for first in [one, *(read for read in self.memory if self._learns(read) and self._is_seen(one, read))]
        )

    @staticmethod
    def _is_seen(one: Event, read: Event) -> bool:
        """Whether a read observed a write, or a later one of its thread to the same word (D5)."""
        return one.writes and any(
            one.thread == write.thread and one.number <= write.number and one.place == write.place
            for write in observed_by(read)
        )

    @staticmethod
    def _learns(read: Event) -> bool:
        return read.op.returns and read.op.is_strong

    def races(self) -> list[tuple[Event, Event]]:
        """The pairs of accesses, the earlier one first, that conflict and that nothing orders."""
        return [pair for pair in combinations(self.memory, 2) if self._is_race(*pair)]

    @staticmethod
    def _is_in_warp(one: Event, other: Event) -> bool:
        """Whether two lanes of a warp made these volatile accesses, at different statements (D7)."""
        assert one.thread is not None
        assert other.thread is not None
        near = one.thread[0] == other.thread[0] and one.thread[1] // 32 == other.thread[1] // 32
        return near and one.op.order == other.op.order == "volatile" and one.step != other.step

    def _is_race(self, one: Event, other: Event) -> bool:
        if one.place != other.place or one.thread == other.thread or not (one.writes or other.writes):
            return False
        if (includes_each_other(one, other) and not self._is_in_warp(one, other)) or self.is_before(one, other):
            return False
        if one.step == other.step:  # at once: neither comes after the other
            assert one.thread is not None
            assert other.thread is not None
            if one.op.kind == "st":
                return one.op.brings(one.thread) != one.op.brings(other.thread)
            return one.changes or other.changes
        if other.changes:
            return True
        reads = other.op.kind == "ld" or (other.op.is_atomic and other.op.returns)
        if not (reads and one.changes):  # D2
            return False
        if (
            one.op.kind == "st"
            and not one.op.is_strong
            and any(
                write.step == one.step and write.place == one.place and self.is_before(write, other)
                for write in self.memory
            )
        ):
            return False  # D6
        between = self.memory[one.number + 1 : other.number]
        return not any(
            write.place == one.place and write.op.kind == "st" and not write.changes and self.is_before(write, other)
            for write in between
        )
