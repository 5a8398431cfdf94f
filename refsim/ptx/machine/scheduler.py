"""The machine: groups of lanes at program counters, the lowest first; lanes that meet at one counter become one group.

Results never depend on where lanes reconverge: an instruction that needs its warp together (`.sync`, `.aligned`) parks
arriving lanes until the others are there. If only parked lanes are left, the deadlock is reported.

Lanes that poll memory rest between two reads; `Polling` decides when they resume or are deadlocked. Special registers
hold the position of a thread in its launch, and clocks that no program may rely on.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.async_ops.engine import CopyEngine
from refsim.ptx.async_ops.queue import HELD_POLICY
from refsim.ptx.async_ops.tensor_products import TensorCore
from refsim.ptx.async_ops.transfers import Copies
from refsim.ptx.async_ops.warpgroup_products import TensorCores
from refsim.ptx.checks.in_flight import InFlight
from refsim.ptx.checks.proxies import Proxies
from refsim.ptx.checks.races import Races
from refsim.ptx.events import CONVERGE, END, EXIT, LaunchEvent, heard_by
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Geometry, Ids, Shape, union
from refsim.ptx.execution.lanes import Lanes, groups
from refsim.ptx.execution.register_file import Registers, Unwritten, UnwrittenReadError
from refsim.ptx.execution.registers import check_written, get, mark_written, put
from refsim.ptx.execution.types import UNSIGNED
from refsim.ptx.findings.record import DoubtError, fault, open_bits
from refsim.ptx.findings.table import OPEN_BITS
from refsim.ptx.isa.definedness.tracking import undefined
from refsim.ptx.isa.products import KNOWN
from refsim.ptx.lowering.blocks import BasicBlock
from refsim.ptx.lowering.codegen import operands_function, terminator_function, translate
from refsim.ptx.lowering.steps import Step
from refsim.ptx.lowering.tracked import demand_guard, demand_members, follow_terminator, lanes_met, translate_tracked
from refsim.ptx.machine.deferred import Deferred
from refsim.ptx.machine.launch_rules import limits_of
from refsim.ptx.machine.placed import Attempt, PlacedLaunch
from refsim.ptx.machine.schedules import HeldLanes, LowestFirst, Random, Schedule
from refsim.ptx.machine.watchers import MemoryWatchers
from refsim.ptx.memory.access import WEAK, Access, Port, Semantics
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import POISON, AccessError, Space
from refsim.ptx.sync.barriers import Barriers, ClusterBarrier, LaunchOrder
from refsim.ptx.sync.commits import TransferCounts
from refsim.ptx.sync.mbarriers import Mbarriers
from refsim.ptx.sync.register_pool import RegisterPool, TensorColumns
from refsim.ptx.sync.warp_sync import Meetings, merged
from refsim.ptx.text.syntax import NO_STATEMENT, Statement, place

_BITS = 2.0 ** np.arange(32)
_APART = 0x9E3779B97F4A7C15  # between the first clocks of two random schedules: a kernel that uses the time differs between them
PATIENCE = 50_000  # rounds of polling without a write until they are a deadlock
FORBEARANCE = 1_000  # such rounds until a part of a warp arrives at an aligned barrier, where that need not be an error
QUIET = 100  # of them in which no other lane runs either, until the states of the waiting lanes are compared
LONG = 1 << 41  # the advance of clocks then, 37 minutes of %globaltimer
AXES = "xyz"
_LOW = 0xFFFFFFFF


class Polling:
    """The rounds of polling of one machine, and the writes between them."""

    def __init__(self, machine: "Machine") -> None:
        self.machine = machine
        self.idle = self.quiet = self.seen_writes = 0
        self.before: list[bytes] = []

    def resume(self) -> bool:
        """Resume the resting lanes; return whether there are any. After many rounds without a write the lanes are
        deadlocked, unless some wait for the previous launch."""
        machine = self.machine
        machine.mbarriers.fire()
        machine.engine.fire()
        machine.tensor_pipe.fire()
        if not machine.resting:
            return False
        changed = machine.port.writes != self.seen_writes or bool(machine.launches.waiting)
        self.idle = 0 if changed else self.idle + 1
        self.quiet = 0 if changed else self.quiet + (not machine.groups)
        self.seen_writes = machine.port.writes
        if self.idle == FORBEARANCE and machine.checks.divergence != "error":
            machine.meetings.arrive_apart()
        if self.idle > PATIENCE or self._is_stuck():
            raise machine.meetings.report_deadlock()
        for pc, ids in machine.resting.items():
            machine.go(pc, ids)
        machine.resting = {}
        return True

    def _is_stuck(self) -> bool:
        """Return whether resting lanes have come back to equal counters, registers and memory while no other lane ran.
        Everything that they do then repeats. Time is advanced before the decision, as a lane may wait for a clock."""
        machine = self.machine
        quiet = QUIET if machine.code.has_mbarriers else FORBEARANCE
        if (
            machine.groups
            or self.quiet <= quiet
            or machine.mbarriers.delayed
            or machine.engine.is_pending
            or machine.tensor_pipe.is_pending
        ):
            return False
        if self.quiet == quiet + 1:
            machine.clock, self.before = machine.clock + LONG, []
            return False
        now = [machine.local.bytes.tobytes()]
        for pc, ids in sorted(machine.resting.items()):
            lanes = Lanes(machine, ids)
            now += [ids.tobytes(), *(get(lanes, index).tobytes() for index in machine.code.live_at(pc))]
        before, self.before = self.before, now
        return now == before


class Machine:
    """The CTAs of one launch that run at the same time.

    `__init__` makes the parts in this order: first the launch's arguments, which every part may read, then the
    registers with their masks of uninitialized lanes. `choice` comes before the schedule, which draws the late warps
    first: another order of draws would change all random schedules. `tensor_cores`, `tensor_pipe`, `mbarriers` and the
    checks come before `port`, which collects them as observers of memory. `lanes` and `go` come last: they start a
    complete machine.
    """

    copies: Copies
    tensor_cores: TensorCores
    tensor_pipe: TensorCore
    mbarriers: Mbarriers
    barriers: Barriers
    cluster_barrier: ClusterBarrier
    register_pool: RegisterPool
    tensor_columns: TensorColumns
    launches: LaunchOrder
    races: Races | None
    in_flight: InFlight | None
    proxies: Proxies | None
    port: Port

    def __init__(self, launch: PlacedLaunch, attempt: Attempt, geometry: Geometry, shared: Space, local: Space) -> None:
        """Set up the CTAs of `geometry` with all lanes at the first statement; the class says why in this order."""
        self.code, self.geometry, self.memory = launch.code, geometry, launch.memory
        self.shared, self.local, self.parameters = shared, local, launch.parameters
        self.symbols, self.in_shared = launch.variables.symbols, launch.variables.in_shared
        code, options, tracking = launch.code, launch.options, attempt.tracking
        self.checks, self.findings, self.pending = options.checks, attempt.findings, attempt.pending
        self.target, self.asked = launch.target, options.arithmetic
        self.observer, self.watching, self.log = options.observer, options.watching, options.events
        self.deadline, self.tracking, self.is_on_trial = attempt.deadline, tracking, False
        seed, self.is_held = options.seed + geometry.first, options.policy == HELD_POLICY
        policy = "eager" if self.is_held else options.policy
        self.choice = np.random.Generator(np.random.Philox(seed)) if policy == "random" else None
        poison = bytes([(POISON + seed) & 0xFF])
        arrays: list[Array] = [
            np.array([False]) if bits == 1 else np.frombuffer(poison * (bits // 8), UNSIGNED[bits])
            for bits in code.slot_bits
        ]
        self.registers = Registers(code.slots, arrays, [False] * len(arrays))
        self.begin_unwritten()
        self.alive, self.exit_pc = np.ones(geometry.lanes, np.bool_), np.zeros(geometry.lanes, np.int32)
        self.groups, self.resting, self.specials = dict[int, Ids](), dict[int, Ids](), dict[str, NDArray[np.uint32]]()
        self.polling = Polling(self)
        self.schedule = self._schedule(seed)
        self.copies, self.engine = Copies(self, policy, self.choice), CopyEngine(self, policy, self.choice)
        self.tensor_cores = TensorCores(self, policy, self.choice)
        self.tensor_pipe = TensorCore(self, policy, self.choice, POISON + seed)
        watchers = MemoryWatchers.of(self, attempt.history, launch.earlier)
        self.races, self.in_flight, self.proxies = watchers.races, watchers.in_flight, watchers.proxies
        self.heard = heard_by(watchers.subscribers(self))
        self.mbarriers, self.register_pool = Mbarriers(self), RegisterPool(self)
        self.counter = TransferCounts(self.mbarriers)
        looks = not (tracking or self.checks.initialised == "off")
        self.port = Port(watchers.observers(self), self._read_unwritten if looks else None)
        self.barriers, self.cluster_barrier = Barriers(self), ClusterBarrier(self)
        self.meetings, self.launches, self.tensor_columns = Meetings(self), LaunchOrder(self), TensorColumns(self)
        self.deferred = None if self.observer or tracking else Deferred(self, code)
        self.clock, self.clock_began = 0, 0 if self.choice is None else (seed + 1) * _APART % (1 << 62)
        everyone = np.arange(geometry.lanes, dtype=np.int64)
        self.lanes = Lanes(self, everyone)
        self.go(0, everyone)

    def begin_unwritten(self) -> None:
        """Mark the registers that a lane may read before it writes them, or track their undefined bits."""
        registers, doubtful = self.registers, self.code.doubtful
        if self.tracking is not None:
            for index in doubtful:
                registers.masks[registers.slots[index]] = undefined(self.tracking, self, index)
        elif self.checks.initialised != "off":
            registers.unwritten = Unwritten(doubtful, self.geometry.lanes)

    def saw_unwritten(self) -> None:
        """Restart the launch with tracking, as a lane is about to read uninitialized bits."""
        if self.tracking is None and self.checks.initialised != "off":
            raise UnwrittenReadError

    # ---- requests of instruction implementations
    @property
    def first_thread(self) -> int:
        """Return the number, in the whole grid, of the thread in lane 0."""
        return self.geometry.first * self.geometry.threads

    def symbol(self, name: str, offset: int) -> NDArray[np.uint64]:
        """Return the address of a variable within its state space, shape (1,)."""
        if name not in self.symbols:
            raise RefsimError("unknown-symbol", f"the kernel refers to {name!r}, which the module does not define")
        return np.array([(self.symbols[name] + offset) % (1 << 64)], np.uint64)

    def special(self, lanes: Lanes, name: str) -> Array:
        """Return a special register for a set of lanes."""
        if name not in self.specials:
            self.specials[name] = special_register(self, name)
        if name.startswith(("%clock", "%globaltimer")):
            return special_register(self, name)
        return lanes.of(self.specials[name])

    def _schedule(self, seed: int) -> Schedule:
        """Return the schedule; random schedules of even seeds have late warps."""
        if self.is_held:
            return HeldLanes(self, self.polling.resume, seed)
        if self.choice is None:
            return LowestFirst(self, self.polling.resume)
        return Random(self, self.polling.resume, self.choice, late=seed % 2 == 0)

    def _read_unwritten(self, access: Access, error: AccessError) -> None:
        """Restart the launch with tracking after a read of uninitialized bytes."""
        self.saw_unwritten()

    def report(self, error: RefsimError, statement: Statement) -> None:
        """Raise a finding, or note it and go on, as its check's level says; raise DoubtError for accesses on trial."""
        level, error = self.checks.said_of(error, statement.opcode)
        if self.is_on_trial and level != "off":
            raise DoubtError(error)
        if level == "off" or self.findings.is_waived(error):
            return
        if level == "error":
            raise error
        if level == "record":
            self.findings.record(error, statement)
        else:
            self.findings.warn(error, statement)
        if level == OPEN_BITS:
            self.mark_inexact(statement)

    @property
    def arithmetic(self) -> str:
        """Return the arithmetic of matrix products; "known" computes as "silicon"."""
        return "silicon" if self.asked == KNOWN else self.asked

    def emit(
        self,
        verb: str,
        lanes: Ids,
        statement: Statement = NO_STATEMENT,
        meaning: Semantics = WEAK,
        payload: Any = None,
    ) -> None:
        """Tell those who hear a verb what lanes did; no event is made if nobody does."""
        if hearers := self.heard.get(verb):
            event = LaunchEvent(verb, lanes, statement, meaning, payload)
            for hear in hearers:
                hear(event)

    def mark_inexact(self, statement: Statement) -> None:
        """Record that bits of a result are unspecified; raise RefsimError under arithmetic "known"."""
        if self.asked == KNOWN:
            raise open_bits(place(statement), self.target)
        self.findings.inexact.setdefault(statement.line, statement)

    def mark_assumed(self, statement: Statement, recorded: str) -> None:
        """Record that bits of a result are those of another chip; raise RefsimError under arithmetic "known"."""
        if self.asked == KNOWN:
            raise open_bits(place(statement), self.target, recorded)
        self.findings.assumed.setdefault(statement.line, (statement, f"as on {recorded}, unverified on {self.target}"))

    def record(self, error: RefsimError, statement: Statement) -> None:
        """Record a finding and go on; one of each code and statement is kept."""
        self.findings.record(error, statement)

    def go(self, pc: int, ids: Ids) -> None:
        """Let lanes go on at a statement; lanes past the last one exit."""
        if pc >= len(self.code.steps):
            self.retire(ids)
        elif len(ids):
            self.groups[pc] = union(self.groups[pc], ids) if pc in self.groups else ids

    def retire(self, ids: Ids, pc: int = -1) -> None:
        """Let lanes exit, by the statement at `pc` or after the last statement (-1)."""
        self.alive[ids] = False
        self.exit_pc[ids] = pc
        self.emit(EXIT, ids, NO_STATEMENT if pc < 0 else self.code.steps[pc].statement)

    def branch(self, lanes: Lanes, target: int) -> None:
        """Let lanes go to a statement. Lanes that go back to poll memory again rest until no other lane can run, since
        they wait for other lanes."""
        if target <= lanes.pc and lanes.pc in self.code.polls:
            self.resting[target] = union(self.resting[target], lanes.ids) if target in self.resting else lanes.ids
        else:
            self.go(target, lanes.ids)

    # ---- scheduling
    def run(self) -> None:
        """Run until every lane has exited; a deadlock, a fault or the time limit of the launch is RefsimError."""
        self.advance()
        self.finish()

    def advance(self, turns: int | None = None) -> bool:
        """Run until no lane can go on, or for `turns` turns; return whether lanes can go on after that."""
        pick, resume = self.schedule.pick, self.polling.resume
        last = None if turns is None else self.clock + turns
        with np.errstate(all="ignore"):
            while self.groups or self.wake() or resume():
                if self.clock == last:
                    return True
                self.clock += 1
                pc, ids = pick()
                block = self.code.blocks[pc]
                if monotonic() > self.deadline:
                    raise fault(
                        "timeout",
                        f"the launch ran longer than {self.checks.seconds:g} s",
                        self.code.steps[pc].statement,
                    )
                self.run_block(block, ids)
                if self.choice is not None:
                    for unit in (self.copies, self.tensor_cores, self.engine, self.tensor_pipe):
                        unit.drift()
        return False

    def finish(self) -> None:
        """Complete the asynchronous work after the last lane exits; raise a deadlock if lanes are left."""
        if self.alive.any():
            raise self.meetings.report_deadlock()
        self.register_pool.finish()
        self.engine.finish()
        self.tensor_pipe.finish()
        self.emit(END, self.lanes.ids)

    def run_block(self, block: BasicBlock, ids: Ids) -> None:
        """Run a block for lanes, with its observers, and let the lanes go on after it."""
        lanes = self.lanes
        if lanes.ids is not ids:  # else the set that ran last goes on
            lanes = self.lanes = Lanes(self, ids)
        if self.deferred is not None and self.deferred.waiting:
            self.deferred.before(block, lanes)
        if self.registers.doubts:
            lanes_met(lanes, block.pc)
        if self.code.has_products:
            self.tensor_cores.before(block, lanes)
        if self.tensor_pipe.loading:
            self.tensor_pipe.before(block, lanes)
        if self.observer is not None and block.steps:
            self.observer.before(lanes, block.steps[0])
        self.block_function(block)(lanes)
        if self.observer is not None and block.steps:
            self.observer.after(lanes, block.steps[0])
        self.findings.ran(block.pc, (len(block.steps) + (block.terminator is not None)) * lanes.count)
        if block.terminator is None:
            self.go(block.next_pc, ids)
        else:
            self.terminate(block, block.terminator, lanes)

    def block_function(self, block: BasicBlock) -> Callable[[Lanes], None]:
        """Return a block's steps as one function, made once for all launches."""
        if self.tracking is not None:
            key = ~block.pc if self.tracking.watches else block.pc
            if key not in self.code.tracked:
                self.code.tracked[key] = translate_tracked(block, self.code, watches=self.tracking.watches)
            return self.code.tracked[key]
        if block.run is None:
            block.run = translate(block, self.code)
        run: Callable[[Lanes], None] = block.run
        return run

    def terminate(self, block: BasicBlock, step: Step, lanes: Lanes) -> None:
        """Run a block's last statement: apply its guard, then branch, defer, meet or execute."""
        lanes.statement = step.statement
        if self.registers.unwritten:
            check_written(lanes, *step.fetches())
        if self.tracking is not None:
            demand_guard(lanes, block, step, self.code)
        if step.guard:
            guard = get(lanes, step.guard.register.index)
            guard = ~guard if step.guard.negated else guard
            chosen = lanes.select(guard)
            if chosen is not lanes:
                self.go(block.next_pc, lanes.ids if chosen is None else lanes.ids[~guard])
            if chosen is None:
                return
            lanes = chosen
        if self.tracking is not None:
            demand_members(lanes, step)
        pc = block.next_pc - 1
        if self.observer is None and (target := self.code.jumps.get(pc)) is not None:
            lanes.pc = pc
            self.branch(lanes, target)
            return
        if step.bound.clause.stacks and pc not in self.meetings.parked and self.deferred is not None:
            waits = self.deferred.takes(lanes, pc, step)
            if waits:
                self.go(block.next_pc, lanes.ids)
                return
        if step.bound.clause.rendezvous:
            ready = self.meetings.meet(pc, step, lanes)
            if ready is None:
                return
            lanes = ready
        self.execute([(pc, lanes)], lanes)

    def execute(self, places: list[tuple[int, Lanes]], lanes: Lanes) -> None:
        """Run a terminator for lanes that have all arrived, perhaps at several instructions of one opcode."""
        step = self.code.steps[places[0][0]]
        step.mark_open(self)
        lanes.pc = places[0][0]
        fetched = [(part, operands_function(self.code, pc)(part)) for pc, part in places]
        arguments = fetched[0][1] if len(places) == 1 else merged(fetched, lanes)
        if step.bound.clause.converges and CONVERGE in self.heard:
            met = None if step.mask_at is None else groups(lanes, arguments[step.mask_at])
            self.emit(CONVERGE, lanes.ids, step.statement, payload=met)
        put_masks = None if self.tracking is None else follow_terminator(places, lanes, arguments, self.code)
        values = terminator_function(self.code, lanes.pc)(lanes, *arguments)
        if step.bound.clause.flow:
            self.show(places)
            return
        found = [values] if len(step.results) == 1 else values or []
        for pc, part in places if not step.bound.clause.keeps_registers else ():
            chosen = None if part is lanes else np.isin(lanes.ids, part.ids)
            for (result, _), value in zip(self.code.steps[pc].results, found, strict=True):
                elements = zip(result, value, strict=True) if isinstance(result, tuple) else [(result, value)]
                for index, bits in elements:
                    if index is not None:
                        put(part, index, bits if chosen is None or len(bits) == 1 else bits[chosen])
                        mark_written(part, index)
        if put_masks is not None:
            put_masks()
        for pc, part in places:
            self.go(pc + 1, part.ids)
        self.show(places)

    def show(self, places: list[tuple[int, Lanes]]) -> None:
        """Show the observer a terminator that ran."""
        if self.observer is not None:
            self.tensor_cores.settle()
            for pc, lanes in places:
                self.observer.after(lanes, self.code.steps[pc])

    def warp_bits(self, ids: Ids) -> NDArray[np.int64]:
        """Return for each warp the set of its lanes among `ids` as a bit mask."""
        geometry = self.geometry
        bits = _BITS[geometry.laneid[ids]]  # a sum of different powers of two below 2^53 is exact
        return np.bincount(geometry.warp[ids], bits, geometry.count * geometry.warps).astype(np.int64)

    def wake(self) -> bool:
        """Check again the lanes that wait, as no lane can run; return whether one of them goes on."""
        self.meetings.wake()
        if not self.groups:
            self.barriers.release()
            self.cluster_barrier.release()
        return bool(self.groups)


def special_register(machine: Context, name: str) -> Array:
    """Return a special register over all lanes, or (1,) if it is equal for all. Source: PTX ISA, special registers.
    Timers count scheduler steps from a start time of each schedule; no program may rely on either."""
    geometry = machine.geometry
    stem, _, axis = name[1:].partition(".")
    if axis and axis not in AXES:
        raise _unmodelled(name)
    at, sms = AXES.find(axis) if axis else 0, limits_of(machine.target).sms
    time = machine.clock_began + machine.clock
    uniform: dict[str, int] = {
        "nctaid": geometry.grid[at],
        "ntid": geometry.block[at],
        "nwarpid": geometry.warps,
        "nsmid": sms,
        "gridid": 0,
        "clock": time & _LOW,
        "clock_hi": time >> 32,
        "clock64": time,
        "globaltimer": time,
        "globaltimer_lo": time & _LOW,
        "globaltimer_hi": time >> 32,
        "cluster_nctaid": geometry.cluster[at],
        "cluster_nctarank": geometry.cluster_ctas,
        "nclusterid": geometry.grid[at] // geometry.cluster[at],
        "dynamic_smem_size": machine.symbols.get("%dynamic_smem_size", 0),
        "total_smem_size": machine.symbols.get("%total_smem_size", 0),
        "reserved_smem_offset_begin": 0,
    }
    if stem.startswith("envreg") and stem[6:].isdigit() and int(stem[6:]) < 32:
        return np.array([machine.symbols.get(name, 0)], np.uint32)
    if stem == "is_explicit_cluster":
        return np.array([geometry.is_explicit_cluster])
    if stem in uniform:
        wide = stem in ("gridid", "clock64", "globaltimer")
        return np.array([uniform[stem]], np.uint64 if wide else np.uint32)
    if stem == "tid":
        threads = axis_of(geometry.thread, geometry.block, at)
        return threads[:1] if geometry.block[at] == 1 else threads
    if (ctas := _of_ctas(geometry, stem, at, sms)) is not None:
        return ctas if len(ctas) == 1 else ctas[geometry.cta]
    if stem == "laneid":
        return geometry.laneid.astype(np.uint32)
    if stem == "warpid":
        return (geometry.thread // 32).astype(np.uint32)
    if stem.startswith("lanemask_"):
        lane = np.uint64(1) << geometry.laneid.astype(np.uint64)
        masks = {"eq": lane, "lt": lane - 1, "le": 2 * lane - 1, "gt": ~(2 * lane - 1), "ge": ~(lane - 1)}
        if stem[9:] in masks:
            return (masks[stem[9:]] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    raise _unmodelled(name)


def _of_ctas(geometry: Geometry, stem: str, at: int, sms: int) -> NDArray[np.uint32] | None:
    """Return a register that all threads of a CTA share, one element per CTA or (1,); None for any other."""
    numbers = geometry.numbers
    match stem:
        case "ctaid":
            values = axis_of(numbers, geometry.grid, at)
        case "clusterid":
            values = axis_of(numbers, geometry.grid, at) // geometry.cluster[at]
        case "cluster_ctaid":
            values = axis_of(numbers, geometry.grid, at) % geometry.cluster[at]
        case "cluster_ctarank":
            values = geometry.ranks
        case "smid":
            values = numbers % sms
        case _:
            return None
    found = values.astype(np.uint32)
    return found[:1] if (found == found[0]).all() else found


def axis_of(numbers: Ids, shape: Shape, at: int) -> Ids:
    """Return the index along axis `at` of items numbered with x fastest."""
    return numbers // (1, shape[0], shape[0] * shape[1])[at] % shape[at]


def _unmodelled(name: str) -> RefsimError:
    return RefsimError("unsupported-feature", f"the simulator does not model {name}", rule="PTX ISA, special registers")
