"""The proxy check: a copy engine or a tensor core sees what a thread wrote only after a proxy fence, whatever barriers
stand between. The executed proxy fences are kept, to say whether one of them stands between two accesses."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from refsim.errors import Kind, RefsimError
from refsim.ptx.checks.happens_before import Clocks
from refsim.ptx.checks.history import History
from refsim.ptx.checks.knowledge import Rows
from refsim.ptx.checks.orders import Orders
from refsim.ptx.events import ACQUIRE_MAP, PROXY_FENCE, RELEASE_MAP, USE_MAP, Hear, LaunchEvent
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Ids
from refsim.ptx.memory.access import ASYNC, CLUSTER, CTA, DISCARD, GENERIC, MAP_PROXY, READ, Access
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.memory.space import SHARED_BASE, Region
from refsim.ptx.text.syntax import place

_KEPT = 4096
MAP_RELEASE, MAP_ACQUIRE = "fence.proxy.tensormap::generic.release", "fence.proxy.tensormap::generic.acquire"
_KEPT_OF_MAPS = 1024


@dataclass(frozen=True, eq=False)
class Fence:
    """One executed fence: its access number, its lanes, the proxy and memory it is for, and what these lanes knew."""

    number: int
    lanes: Ids
    proxy: str
    space: str | None
    knew: Rows

    def covers(self, space: str) -> bool:
        """Return whether the fence covers this state space."""
        return self.space is None or self.space.startswith(space)

    @property
    def is_of_own_cta(self) -> bool:
        """Return whether the fence only covers the memory of the CTA that executes it."""
        return self.space == "shared::cta"


class ProxyFences:
    """The newest fences of a launch; accesses up to number `forgotten` count as fenced."""

    def __init__(self, clocks: Clocks, history: History) -> None:
        self.clocks, self.history = clocks, history
        self.fences: list[Fence] = []
        self.forgotten = 0

    def add(self, event: LaunchEvent) -> None:
        """Record that lanes execute a fence."""
        number, (proxy, space) = self.history.number(event.statement, 0), event.payload
        self.fences.append(Fence(number, event.lanes, proxy, space, rows_of(self.clocks.rows, event.lanes)))
        if len(self.fences) > _KEPT:
            self.forgotten = self.fences[_KEPT // 2].number
            del self.fences[: _KEPT // 2 + 1]

    def between(self, lanes: Ids, agents: Array, numbers: Array, proxy: str, space: str, owner: Array) -> Bools:
        """Return for each lane whether a fence stands between access `number` of thread `agent` and what the lane does
        now. `owner`: the running CTA whose memory is accessed."""
        found: Bools = numbers <= self.forgotten
        since = list(self._since(int(numbers.min(initial=self.history.now)), proxy, space))
        for look in (self._by_writer, self._by_others):  # most writers execute the fence themselves
            for fence in since:
                if found.all():
                    return found
                open_ = ~found & (numbers < fence.number)
                if fence.is_of_own_cta:
                    open_ &= np.isin(owner, self.clocks.geometry.cta[fence.lanes])
                if len(some := np.flatnonzero(open_)):
                    found[some] = look(fence, lanes[some], agents[some], numbers[some])
        return found

    def _since(self, number: int, proxy: str, space: str) -> Iterator[Fence]:
        return (each for each in self.fences if each.number > number and each.proxy == proxy and each.covers(space))

    def _by_writer(self, fence: Fence, lanes: Ids, agents: Array, _: Array) -> Bools:
        """Return where the accessing thread executed a fence that happens before what the lane does now."""
        found = np.isin(agents - self.clocks.first, fence.lanes)
        if found.any():
            found[found] = self.clocks.is_ordered(lanes[found], agents[found], np.full(int(found.sum()), fence.number))
        return found

    def _by_others(self, fence: Fence, lanes: Ids, agents: Array, numbers: Array) -> Bools:
        """Return where a fence stands between that the lane executed, or another thread."""
        first, found = self.clocks.first, np.zeros(len(lanes), np.bool_)
        by_lane = np.isin(lanes, fence.lanes)
        if by_lane.any():
            found[by_lane] = self._knew(fence, lanes[by_lane], agents[by_lane], numbers[by_lane])
        for lane in fence.lanes.tolist() if not found.all() else ():
            left = np.flatnonzero(~found)
            stamps, one = np.full(len(left), fence.number), np.full(len(left), lane)
            before = self.clocks.is_ordered(lanes[left], one + first, stamps)
            some = left[before]
            if len(some):
                found[some] = self._knew(fence, one[: len(some)], agents[some], numbers[some])
            if found.all():
                break
        return found

    def _knew(self, fence: Fence, lanes: Ids, agents: Array, numbers: Array) -> Bools:
        """Return whether lanes came after these accesses when they executed a fence."""
        clocks, now = self.clocks, self.clocks.rows
        clocks.rows = as_then(now, fence.lanes, fence.knew)
        try:
            return clocks.is_ordered(lanes, agents, numbers)
        finally:
            clocks.rows = now


def rows_of(rows: Rows, lanes: Ids) -> Rows:
    """Return the rows of some lanes, copied."""
    tables = (rows.warps, rows.lanes)
    warps, others = (None if table is None else table[lanes].copy() for table in tables)
    return Rows(rows.cta[lanes].copy(), rows.warp[lanes].copy(), rows.foreign[lanes].copy(), rows.own, warps, others)


def as_then(now: Rows, lanes: Ids, knew: Rows) -> Rows:
    """Return rows of all lanes in which `lanes` know what they knew then, and the others nothing."""
    found = Rows.empty(len(now.cta))
    for name in ("cta", "warp", "foreign", "warps", "lanes"):
        held = getattr(knew, name)
        if held is None:
            continue
        table = getattr(found, name)
        if table is None:
            table = np.zeros((len(now.cta), held.shape[1]), held.dtype)
            setattr(found, name, table)
        table[lanes] = held
    return found


@dataclass(frozen=True, eq=False)
class MapFence:
    """One executed fence: its access number, lanes and scope, what the lanes knew; `address` is set for an acquire."""

    number: int
    lanes: Ids
    scope: int
    knew: Rows
    address: Array | None = None

    def of(self, address: int) -> list[int]:
        """Return the lanes that acquired the map at an address."""
        chosen: list[int] = self.lanes[self.address == address].tolist()
        return chosen


class MapFences:
    """The newest fences of a launch; accesses up to number `forgotten` count as fenced."""

    def __init__(self, clocks: Clocks, history: History) -> None:
        self.clocks, self.history = clocks, history
        self.releases: list[MapFence] = []
        self.acquires: list[MapFence] = []
        self.fine: set[tuple[int, int, int, int]] = set()
        self.forgotten = 0

    def add(self, event: LaunchEvent) -> None:
        """Record that lanes execute a release, or acquire the maps at these addresses."""
        number, (scope, address) = self.history.number(event.statement, 0), event.payload
        kept = self.releases if address is None else self.acquires
        kept.append(MapFence(number, event.lanes, scope, rows_of(self.clocks.rows, event.lanes), address))
        if len(kept) > _KEPT_OF_MAPS:
            self.forgotten = max(self.forgotten, kept[_KEPT_OF_MAPS // 2].number)
            del kept[: _KEPT_OF_MAPS // 2 + 1]

    def missing(self, lane: int, agent: int, number: int, address: int) -> str | None:
        """Return the missing fence between access `number` of thread `agent` to a map and its use by a lane, or
        None."""
        asked = lane, agent, number, address
        if number <= self.forgotten or asked in self.fine:
            return None
        found = MAP_ACQUIRE
        for fence in reversed(self.acquires):
            if fence.number <= number:
                break
            for acquiring in _first(lane, fence.of(address)):
                if acquiring == lane or self._is_ordered(lane, acquiring, fence.number):
                    if self._is_released(fence, acquiring, agent, number):
                        self.fine.add(asked)
                        return None
                    found = MAP_RELEASE
        return found

    def is_acquired(self, lane: int, address: int) -> bool:
        """Return whether an acquire of a map comes before what a lane does now."""
        return any(
            acquiring == lane or self._is_ordered(lane, acquiring, fence.number)
            for fence in reversed(self.acquires)
            for acquiring in _first(lane, fence.of(address))
        )

    def _is_released(self, acquire: MapFence, acquiring: int, agent: int, number: int) -> bool:
        """Return whether a release of that access comes before an acquire, with both in each other's scope."""
        now = self.clocks.rows
        for fence in reversed(self.releases):
            if fence.number <= number:
                break
            if fence.number > acquire.number:
                continue
            for releasing in _first(agent - self.clocks.first, fence.lanes.tolist()):
                if not self._are_near(releasing, acquiring, min(fence.scope, acquire.scope)):
                    continue
                try:
                    self.clocks.rows = as_then(now, acquire.lanes, acquire.knew)
                    came = releasing == acquiring or self._is_ordered(acquiring, releasing, fence.number)
                    self.clocks.rows = as_then(now, fence.lanes, fence.knew)
                    if came and self.clocks.is_ordered(np.array([releasing]), np.array([agent]), np.array([number]))[0]:
                        return True
                finally:
                    self.clocks.rows = now
        return False

    def _is_ordered(self, lane: int, other: int, number: int) -> bool:
        agent = np.array([other + self.clocks.first])
        return bool(self.clocks.is_ordered(np.array([lane]), agent, np.array([number]))[0])

    def _are_near(self, one: int, other: int, scope: int) -> bool:
        """Return whether two lanes lie within one scope."""
        geometry = self.clocks.geometry
        if scope > CLUSTER:
            return True
        ctas = 1 if scope == CTA else geometry.cluster_ctas
        return one // geometry.threads // ctas == other // geometry.threads // ctas


def _first(lane: int, lanes: list[int]) -> Iterator[int]:
    """Yield lanes, beginning with `lane` itself, which decides most often."""
    if lane in lanes:
        yield lane
    yield from (each for each in lanes if each != lane)


PROXY_CHECK, REFILL = "missing-proxy-fence", "unfenced-refill"
_ASKS = "clusterlaunchcontrol"  # its reader needs a fence before the next response
_IN_ORDER = "tcgen05.alloc"  # PTX ISA, tcgen05: it keeps the order of one address, whatever follows
_WAITING = 1 << 16  # most lanes of accesses that wait to be marked
_UNITS = {ASYNC: "the async proxy", MAP_PROXY: "the tensormap proxy"}
_MAP_RULE = (
    "PTX ISA, fence.proxy.tensormap: a map that threads wrote is released by them (tensormap.cp_fenceproxy does it) and "
    "acquired at its address before a copy uses it"
)
RULE = (
    "PTX ISA, proxies: an access by a thread and one by an asynchronous unit need a proxy fence between them, by the thread "
    "before it arrives or by the issuing thread after the barrier"
)
_REFILL_RULE = "PTX ISA, proxies; disputed for reads: widespread pipelines have no fence here"


@dataclass
class Newest:
    """The newest access of one kind by a thread to every granule: its number (0: none that matters) and its thread.
    Entries wait in `waiting` until they are needed, since many kernels never access asynchronously what their threads
    wrote."""

    number: Array
    agent: Array
    is_used: bool = False
    waiting: list[tuple[Array, int, int, Array]] = field(default_factory=list)
    lanes: int = 0

    @staticmethod
    def over(granules: int) -> "Newest":
        """Return an empty table for so many granules."""
        return Newest(np.zeros(granules, np.int32), np.zeros(granules, np.int32))

    def put(self, first: Array, count: int, number: int, agents: Array) -> None:
        """Record an access of `count` granules, from `first` on, by each of these threads."""
        self.is_used = True
        self.waiting.append((first, count, number, agents))
        self.lanes += len(first)
        if self.lanes > _WAITING:
            self.settle()

    def settle(self) -> None:
        """Write all waiting entries to the table."""
        for first, count, number, agents in self.waiting:
            for offset in range(count):
                self.number[first + offset] = number
                self.agent[first + offset] = agents
        self.waiting.clear()
        self.lanes = 0


@dataclass
class MarkedMemory:
    """Marks of one memory: `base` is its first byte, `granule` the bytes of one mark."""

    base: int
    granule: int
    writes: Newest
    reads: Newest

    @staticmethod
    def over(base: int, size: int, granule: int) -> "MarkedMemory":
        """Return empty marks for `size` bytes from `base` on."""
        count = -(-size // granule) + 1
        return MarkedMemory(base, granule, Newest.over(count), Newest.over(count))

    def granules(self, start: Array, width: int) -> Array:
        """Return the granules of each item, (n, count)."""
        first, count = self.firsts(start, width)
        return first[:, None] + np.arange(count)

    def firsts(self, start: Array, width: int) -> tuple[Array, int]:
        """Return the first granule of each item, and how many granules an item has."""
        return (start - self.base) // self.granule, max(width // self.granule, 1)


@dataclass
class Proxies:
    """Watches the memory of a launch that uses asynchronous units. `grain`: bytes of one mark for each state space;
    `stretches`: the marks of global buffers by their first byte."""

    machine: Context
    history: History
    orders: Orders
    grain: dict[str, int]
    stretches: dict[int, MarkedMemory] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clocks = self.orders.strict
        self.fences = ProxyFences(self.clocks, self.history)
        self.maps = MapFences(self.clocks, self.history)
        self.shared = MarkedMemory.over(0, len(self.machine.shared.bytes), self.grain["shared"])

    # ---- what threads tell
    def hears(self) -> dict[str, Hear]:
        """Return what hears the events of each verb."""
        return {
            PROXY_FENCE: self.fences.add,
            RELEASE_MAP: self.maps.add,
            ACQUIRE_MAP: self.maps.add,
            USE_MAP: self.used,
        }

    def used(self, event: LaunchEvent) -> None:
        """Report a tensor map that a copy engine uses without the fences that its writes need."""
        access, address, is_older = event.payload
        for memory, part, starts in self._parts(access):
            memory.writes.settle()
            granules, lane = memory.granules(starts, part.width), int(part.threads.ids[0])
            numbers = memory.writes.number[granules].reshape(-1)
            for number in np.unique(numbers[numbers > 0]).tolist():
                granule = int(granules.reshape(-1)[np.argmax(numbers == number)])
                agent = int(memory.writes.agent[granule])
                if not self.clocks.is_ordered(part.threads.ids[:1], np.array([agent]), np.array([number]))[0]:
                    continue  # a race, which that check reports
                fence = self.maps.missing(lane, agent, number, address)
                if fence is not None:
                    self.machine.report(
                        self._finding(memory, part, 0, granule, agent, number, fence, _MAP_RULE), part.statement
                    )
                    return
        lane = int(access.threads.ids[0])
        if is_older and not self.maps.is_acquired(lane, address):
            what = (
                f"reads the tensor map at global address {address:#x} ({access.space.where(int(access.at[0]))}), which an "
                f"earlier launch made, and no {MAP_ACQUIRE} comes before: the start of a launch does not acquire it"
            )
            self.machine.report(access.threads.fault(PROXY_CHECK, 0, what, _MAP_RULE), access.statement)

    def landed(self, index: Array, width: int, agents: Array) -> None:
        """Record that a copy through the generic proxy wrote shared memory, as writes of these threads."""
        self.shared.writes.put(*self.shared.firsts(index * width, width), self.history.now, agents)

    # ---- accesses
    def before(self, access: Access) -> None:
        """Check an asynchronous access; an asynchronous write makes earlier accesses of threads there irrelevant."""
        if access.proxy != ASYNC:
            return
        for memory, part, starts in self._parts(access):
            granules = memory.granules(starts, part.width)
            self._examine(memory, part, granules)
            for newest in (memory.writes, memory.reads) if access.kind != READ else ():
                if newest.is_used:
                    newest.settle()
                    newest.number[granules] = 0

    def after(self, access: Access) -> None:
        """Mark an access of threads."""
        if access.proxy == GENERIC and access.kind != DISCARD and not access.statement.opcode.startswith(_IN_ORDER):
            self._mark(access)

    def _parts(self, access: Access) -> list[tuple[MarkedMemory, Access, Array]]:
        """Return the parts of an access by writable memory, with the first byte of each item."""
        if access.name == "shared":
            return [(self.shared, access, access.index * access.width)]
        if access.name != "global":
            return []
        at = access.threads.full(access.at)
        if access.region is not None:
            return [(self._memory(access.region), access, at)] if access.region.writable else []
        regions = np.searchsorted(np.array(access.space.starts), at, side="right") - 1
        found = []
        for number in np.unique(regions).tolist():
            region = access.space.regions[number]
            if not region.writable:
                continue
            some = regions == number
            found.append((self._memory(region), access if some.all() else access.of(some), at[some]))
        return found

    def _memory(self, region: Region) -> MarkedMemory:
        """Return the marks of a buffer, made at its first access."""
        if region.start not in self.stretches:
            size = region.end - region.start
            self.stretches[region.start] = MarkedMemory.over(region.start, size, self.grain["global"])
        return self.stretches[region.start]

    def _mark(self, access: Access) -> None:
        """Mark the items of an access with its threads; reads are only marked in shared memory."""
        if access.kind == READ and access.name != "shared":
            return
        for memory, part, starts in self._parts(access):
            newest = memory.reads if access.kind == READ else memory.writes
            newest.put(*memory.firsts(starts, part.width), self.history.now, part.threads.ids + self.clocks.first)

    # ---- looking
    def _examine(self, memory: MarkedMemory, access: Access, granules: Array) -> None:
        """Report a write by a thread that an asynchronous access meets without a fence after it; note such a read."""
        if memory.writes.is_used:
            found = self._unfenced(memory.writes, access, granules)
            if found is not None:
                self.machine.report(self._finding(memory, access, *found), access.statement)
        findings, asks = self.machine.findings, access.statement.opcode.startswith(_ASKS)
        if access.kind != READ and memory.reads.is_used and not findings.has_noted(REFILL, access.statement):
            found = self._unfenced(memory.reads, access, granules, refill=not asks)
            if found is not None and asks:
                self.machine.report(self._finding(memory, access, *found, did="read"), access.statement)
            elif found is not None and self.machine.checks.level(REFILL) != "off":
                findings.note(self._remark(memory, access, *found), access.statement)

    def _unfenced(
        self, newest: Newest, access: Access, granules: Array, *, refill: bool = False
    ) -> tuple[int, int, int, int] | None:
        """Return the first unfenced access that these granules meet: (index of the lane, granule, thread, number); None
        if none. `refill`: the accesses are reads, for which a barrier or the warp is order enough."""
        newest.settle()
        numbers = newest.number[granules]
        who, column = np.nonzero(numbers)
        if not len(who):
            return None
        at = granules[who, column]
        lanes, agents = access.threads.ids[who], newest.agent[at].astype(np.int64)
        numbers = newest.number[at].astype(np.int64)
        owner = (
            access.index[who] * access.width // access.space.stride if access.name == "shared" else np.zeros_like(who)
        )
        rows = np.stack([lanes, agents, numbers, owner])
        _, first, back = np.unique(_keys(rows), return_index=True, return_inverse=True)
        few = rows[:, first]
        fine = self.fences.between(few[0], few[1], few[2], access.proxy, access.name, few[3])
        if refill:
            fine |= self._meet_otherwise(few[0], few[1], few[2])
        else:
            fine |= ~self.clocks.is_ordered(few[0], few[1], few[2])  # a race, which that check reports
        missing = ~fine[back.reshape(-1)]
        if not missing.any():
            return None
        one = int(np.argmax(missing))
        return int(who[one]), int(at[one]), int(agents[one]), int(numbers[one])

    def _meet_otherwise(self, lanes: Ids, agents: Array, numbers: Array) -> Bools:
        """Return whether a barrier of threads, or the warp, orders a read before what a lane does now."""
        threads, width = self.machine.geometry.threads, 32
        mine = lanes + self.clocks.first
        near = (mine // threads == agents // threads) & (mine % threads // width == agents % threads // width)
        return np.asarray(near | (numbers <= self.orders.met[lanes]))

    # ---- words
    def _finding(
        self,
        memory: MarkedMemory,
        access: Access,
        lane: int,
        granule: int,
        agent: int,
        number: int,
        fence: str = "fence.proxy.async",
        rule: str = RULE,
        did: str = "wrote",
    ) -> RefsimError:
        """Return the error for lane index `lane` that meets access `number` of thread `agent` at a granule, with no
        `fence` between."""
        verb = "reads" if access.kind == READ else "overwrites"
        what = (
            f"{verb} {self._place(memory, access, granule)} through {_UNITS[access.proxy]}; {self._who(agent)} {did} there "
            f"by {self._by(number)}, and no {fence} lies between"
        )
        return access.threads.fault(PROXY_CHECK, lane, what, rule)

    def _remark(
        self, memory: MarkedMemory, access: Access, lane: int, granule: int, agent: int, number: int
    ) -> RefsimError:
        who = self.machine.geometry.describe(int(access.threads.ids[lane]))
        what = (
            f"overwrites {self._place(memory, access, granule)} through the async proxy; {self._who(agent)} read there by "
            f"{self._by(number)}, and at most an mbarrier orders the two, no fence.proxy.async"
        )
        return RefsimError(REFILL, what, f"{place(access.statement)}, {who}", _REFILL_RULE, kind=Kind.FAULT)

    def _by(self, number: int) -> str:
        made = self.history.made[number]
        assert made is not None
        return place(made[0])

    def _who(self, agent: int) -> str:
        geometry = self.machine.geometry
        thread = agent % geometry.grid_threads
        return geometry.describe(thread - geometry.first * geometry.threads)

    def _place(self, memory: MarkedMemory, access: Access, granule: int) -> str:
        start, size = granule * memory.granule + memory.base, memory.granule
        if access.name == "shared":
            at = start % access.space.stride
            return f"{size} B at shared address {at:#x} (byte {at - SHARED_BASE} of shared memory)"
        return f"{size} B at global address {access.space.address(start)} ({access.space.where(start)})"


def _keys(rows: Array) -> Array:
    """Return one number for each column, equal for equal columns."""
    keys, bound = np.zeros(rows.shape[1], np.int64), 1
    for row in rows:
        low = int(row.min())
        span = int(row.max()) - low + 1
        if bound * span > 1 << 62:
            _, keys = np.unique(keys, return_inverse=True)
            bound = int(keys.max()) + 1
        keys, bound = keys * span + (row - low), bound * span
    return keys
