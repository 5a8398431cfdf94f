"""The machine: groups of lanes at program counters, the lowest first; lanes that meet at one counter become one group.

Results never depend on where lanes reconverge: an instruction that needs its warp together (`.sync`, `.aligned`) parks the
lanes that arrive until the others are there. Lanes parked when nothing else can run are a deadlock, and reported.
"""

from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.barriers import Barriers
from refsim.ptx.faults import fault, place
from refsim.ptx.lanes import Geometry, Ids, Lanes
from refsim.ptx.lower import Block, Code, Step
from refsim.ptx.memory import POISON, GlobalMemory, Space
from refsim.ptx.syntax import Statement
from refsim.ptx.translate import clause_function, fetch, put, translate
from refsim.ptx.types import UNSIGNED

FAIRNESS = 1024
RANDOM_SPLIT = 0.5
AXES = "xyz"


@dataclass(frozen=True)
class Checks:
    """What a launch checks beyond bounds and alignment, which are always checked.

    initialised: "error" stops at the first read of a byte that nobody wrote, "record" notes it and reads poison,
    "off" reads poison. seconds: wall-clock limit of a launch.
    """

    initialised: str = "error"
    seconds: float = 600.0

    def __post_init__(self) -> None:
        if self.initialised not in ("error", "record", "off"):
            raise RefsimError("unknown-check", f"initialised={self.initialised!r}", help="error, record or off")


@dataclass
class Registers:
    """One array per virtual register: (lanes,) or (1,); `owned` tells whether it may be written in place."""

    arrays: list[NDArray[Any]]
    owned: list[bool]


@dataclass
class Findings:
    """What a launch saw besides its results."""

    instructions: int = 0
    inexact: dict[int, Statement] = field(default_factory=dict)
    recorded: list[RefsimError] = field(default_factory=list)


class Machine:
    """The CTAs of one launch that run at the same time."""

    def __init__(
        self, code: Code, geometry: Geometry, memory: GlobalMemory, shared: Space, local: Space, parameters: Space,
        symbols: dict[str, int], *, checks: Checks, findings: Findings, policy: str, seed: int,
    ) -> None:  # fmt: skip
        self.code, self.geometry, self.memory = code, geometry, memory
        self.shared, self.local, self.parameters, self.symbols = shared, local, parameters, symbols
        self.checks, self.findings = checks, findings
        self.choice = np.random.Generator(np.random.Philox(seed)) if policy == "random" else None
        poison = int.from_bytes(bytes([(POISON + seed) & 0xFF]) * 8, "little")
        arrays: list[NDArray[Any]] = [
            np.array([False]) if bits == 1 else np.array([poison & ((1 << min(bits, 64)) - 1)], UNSIGNED[min(bits, 64)])
            for bits in code.register_bits
        ]
        self.registers = Registers(arrays, [False] * len(arrays))
        self.alive = np.ones(geometry.lanes, np.bool_)
        self.groups: dict[int, Ids] = {}
        self.parked: dict[int, Ids] = {}
        self.barriers = Barriers(self)
        self.functions: dict[int, Any] = {}
        self.specials: dict[str, NDArray[np.uint32]] = {}
        self.clock = 0
        self.go(0, np.arange(geometry.lanes, dtype=np.int64))

    # ---- what clauses ask for
    @property
    def first_thread(self) -> int:
        """The number, in the whole grid, of the thread in lane 0."""
        return self.geometry.first * self.geometry.threads

    def symbol(self, name: str, offset: int) -> NDArray[np.uint64]:
        """The address of a variable within its state space, shape (1,)."""
        if name not in self.symbols:
            raise RefsimError("unknown-symbol", f"the kernel refers to {name!r}, which the module does not define")
        return np.array([(self.symbols[name] + offset) % (1 << 64)], np.uint64)

    def special(self, lanes: Lanes, name: str) -> NDArray[Any]:
        """A special register for a set of lanes."""
        if name not in self.specials:
            self.specials[name] = special_register(self, name)
        if name.startswith(("%clock", "%globaltimer")):
            return special_register(self, name)
        return lanes.of(self.specials[name])

    def mark_inexact(self, statement: Statement) -> None:
        self.findings.inexact.setdefault(statement.line, statement)

    def record(self, error: RefsimError) -> None:
        if len(self.findings.recorded) < 100:
            self.findings.recorded.append(error)

    def go(self, pc: int, ids: Ids) -> None:
        """Let lanes go on at a statement; past the last one they have exited."""
        if pc >= len(self.code.steps):
            self.retire(ids)
        elif len(ids):
            self.groups[pc] = union(self.groups[pc], ids) if pc in self.groups else ids

    def retire(self, ids: Ids) -> None:
        """These lanes have exited."""
        self.alive[ids] = False

    # ---- scheduling
    def run(self) -> None:
        """Run until every lane has exited; a deadlock, a fault or the time limit is RefsimError."""
        deadline = monotonic() + self.checks.seconds
        with np.errstate(all="ignore"):
            while self.groups or self.wake():
                self.clock += 1
                pc, ids = self.pick()
                block = self.code.blocks[pc]
                if monotonic() > deadline:
                    raise fault(
                        "timeout",
                        f"the launch ran longer than {self.checks.seconds:g} s",
                        self.code.steps[pc].statement,
                    )
                self.run_block(block, ids)
        if self.alive.any():
            self.report_deadlock()

    def pick(self) -> tuple[int, Ids]:
        """The lowest counter; now and then the highest, so that a spinning group does not starve what it waits for."""
        if self.choice is not None:
            return self.pick_random(self.choice)
        pc = max(self.groups) if self.clock % FAIRNESS == 0 else min(self.groups)
        return pc, self.groups.pop(pc)

    def pick_random(self, choice: np.random.Generator) -> tuple[int, Ids]:
        """A random group, of which sometimes only some warps run: a schedule that hardware may well choose."""
        counters = sorted(self.groups)
        pc = counters[int(choice.integers(len(counters)))]
        ids = self.groups.pop(pc)
        warps = self.geometry.warp[ids]
        if warps[0] != warps[-1] and choice.random() < RANDOM_SPLIT:
            runs = choice.random(int(warps[-1] - warps[0]) + 1) < RANDOM_SPLIT
            chosen = runs[warps - warps[0]]
            if chosen.any() and not chosen.all():
                self.groups[pc] = ids[~chosen]
                return pc, ids[chosen]
        return pc, ids

    def run_block(self, block: Block, ids: Ids) -> None:
        if block.run is None:
            block.run = translate(block, self.code)
        lanes = Lanes(self, ids)
        block.run(lanes)
        self.findings.instructions += (len(block.steps) + (block.terminator is not None)) * lanes.count
        if block.terminator is None:
            self.go(block.next_pc, ids)
        else:
            self.terminate(block, block.terminator, lanes)

    def terminate(self, block: Block, step: Step, lanes: Lanes) -> None:
        lanes.statement = step.statement
        if step.guard:
            guard = lanes.full(self.registers_of(lanes, step.guard.register.index))
            guard = ~guard if step.guard.negated else guard
            chosen = lanes.select(guard)
            if chosen is not lanes:
                self.go(block.next_pc, lanes.ids if chosen is None else lanes.ids[~guard])
            if chosen is None:
                return
            lanes = chosen
        pc = block.next_pc - 1
        if step.bound.clause.rendezvous:
            ready = self.meet(pc, step, lanes)
            if ready is None:
                return
            lanes = ready
        self.execute(pc, step, lanes)

    def registers_of(self, lanes: Lanes, index: int) -> NDArray[Any]:
        return lanes.of(self.registers.arrays[index])

    def execute(self, pc: int, step: Step, lanes: Lanes) -> None:
        """Run a terminator for lanes that are all there."""
        if step.bound.clause.inexact:
            self.mark_inexact(step.statement)
        if pc not in self.functions:
            self.functions[pc] = clause_function(step, self.code.register_bits)
        arguments = [fetch(lanes, source, type) for source, type in step.sources]
        lanes.pc = pc
        values = self.functions[pc](lanes, *arguments)
        if step.bound.clause.flow:
            return
        for (result, _), value in zip(step.results, [values] if len(step.results) == 1 else values or [], strict=True):
            if isinstance(result, int):
                put(lanes, result, value)
        self.go(pc + 1, lanes.ids)

    # ---- meetings
    def meet(self, pc: int, step: Step, lanes: Lanes) -> Lanes | None:
        """Park the lanes that arrive; the ones whose partners are all there, or None."""
        ids = union(self.parked.pop(pc), lanes.ids) if pc in self.parked else lanes.ids
        arrived = lanes if len(ids) == lanes.count else Lanes(self, ids, step.statement)
        named = self.member_mask(step, arrived) if step.bound.clause.rendezvous == "mask" else None
        if arrived.count == np.count_nonzero(self.alive):
            return arrived
        geometry = self.geometry
        present, living = self.warp_bits(ids), self.warp_bits(np.flatnonzero(self.alive))
        warps = geometry.warp[ids]
        needed = living[warps]
        if named is not None:
            needed = needed & named
        ready = (needed & ~present[warps]) == 0
        if not ready.all():
            self.parked[pc] = ids[~ready]
        return Lanes(self, ids[ready], step.statement) if ready.any() else None

    def warp_bits(self, ids: Ids) -> NDArray[np.int64]:
        """For each warp, the set of its lanes among `ids` as a bit mask."""
        bits = np.zeros(self.geometry.count * self.geometry.warps, np.int64)
        np.bitwise_or.at(bits, self.geometry.warp[ids], np.int64(1) << self.geometry.laneid[ids])
        return bits

    def member_mask(self, step: Step, lanes: Lanes) -> NDArray[np.int64]:
        """The `mask` operand of each lane, or (1,) if it names all; it must name the lane itself."""
        position = [form.name for form, _ in step.bound.sources].index("mask")
        given = fetch(lanes, *step.sources[position]).astype(np.int64)
        if len(given) == 1 and given[0] == 0xFFFFFFFF:
            return np.asarray(given)
        mask = lanes.full(given)
        absent = (mask >> lanes.laneid) & 1 == 0
        if absent.any():
            who = int(np.flatnonzero(absent)[0])
            raise lanes.fault(
                "divergent-sync", who, f"member mask {int(mask[who]):#010x} does not name the lane itself"
            )
        return mask

    def wake(self) -> bool:
        """Nothing can run: look again at the parked lanes, whose partners may have exited since."""
        for pc, ids in list(self.parked.items()):
            step = self.code.steps[pc]
            del self.parked[pc]
            ready = self.meet(pc, step, Lanes(self, ids, step.statement))
            if ready is not None:
                self.execute(pc, step, ready)
        if not self.groups:
            self.barriers.release()
        return bool(self.groups)

    def report_deadlock(self) -> None:
        waiting = [(pc, ids) for pc, ids in self.parked.items()] + self.barriers.waiting()
        lines = []
        for pc, ids in sorted(waiting, key=lambda pair: pair[0]):
            warps = np.unique(self.geometry.warp[ids]) % self.geometry.warps
            lines.append(
                f"{len(ids)} threads (first {self.geometry.describe(int(ids[0]))}, warps "
                f"{', '.join(map(str, warps[:8]))}) wait at {place(self.code.steps[pc].statement)}"
            )
        exited = int(np.count_nonzero(~self.alive))
        statement = self.code.steps[min(pc for pc, _ in waiting)].statement
        raise fault(
            "deadlock", "no thread can go on: " + "; ".join(lines) + (f"; {exited} threads have exited" if exited else ""),
            statement, rule="PTX ISA, bar and .sync instructions: every thread that the barrier expects must arrive",
        )  # fmt: skip


def union(first: Ids, second: Ids) -> Ids:
    """Two disjoint sorted sets of lanes as one."""
    if first[-1] < second[0]:
        return np.concatenate([first, second])
    if second[-1] < first[0]:
        return np.concatenate([second, first])
    return np.sort(np.concatenate([first, second]), kind="stable")


def special_register(machine: Machine, name: str) -> NDArray[Any]:
    """A special register over all lanes, or (1,) where it is the same for all.

    Source: PTX ISA, special registers. Timers count scheduler steps, which no program may rely on.
    """
    geometry = machine.geometry
    stem, _, axis = name[1:].partition(".")
    if axis and axis not in AXES:
        raise _unmodelled(name)
    at = AXES.find(axis) if axis else 0
    uniform: dict[str, int] = {
        "nctaid": geometry.grid[at], "ntid": geometry.block[at], "nwarpid": geometry.warps, "nsmid": 132, "gridid": 0,
        "clock": machine.clock, "clock_hi": 0, "clock64": machine.clock, "globaltimer": machine.clock,
        "globaltimer_lo": machine.clock, "globaltimer_hi": 0, "cluster_ctaid": 0, "cluster_nctaid": 1,
        "cluster_ctarank": 0, "cluster_nctarank": 1, "is_explicit_cluster": 0, "nclusterid": geometry.grid[at],
        "dynamic_smem_size": machine.symbols.get("%dynamic_smem_size", 0),
        "total_smem_size": machine.symbols.get("%total_smem_size", 0), "reserved_smem_offset_begin": 0,
    }  # fmt: skip
    if stem in uniform:
        wide = stem in ("gridid", "clock64", "globaltimer")
        return np.array([uniform[stem]], np.uint64 if wide else np.uint32)
    shapes = {"tid": (geometry.thread, geometry.block), "ctaid": (geometry.cta + geometry.first, geometry.grid)}
    if stem in shapes or stem == "clusterid":
        index, shape = shapes["ctaid" if stem == "clusterid" else stem]
        divisor = (1, shape[0], shape[0] * shape[1])[at]
        values = (index // divisor % shape[at]).astype(np.uint32)
        return values[:1] if shape[at] == 1 or (stem != "tid" and geometry.count == 1) else values
    if stem == "laneid":
        return geometry.laneid.astype(np.uint32)
    if stem == "warpid":
        return (geometry.thread // 32).astype(np.uint32)
    if stem == "smid":
        return ((geometry.cta + geometry.first) % 132).astype(np.uint32)
    if stem.startswith("lanemask_"):
        lane = np.uint64(1) << geometry.laneid.astype(np.uint64)
        masks = {"eq": lane, "lt": lane - 1, "le": 2 * lane - 1, "gt": ~(2 * lane - 1), "ge": ~(lane - 1)}
        if stem[9:] in masks:
            return (masks[stem[9:]] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    raise _unmodelled(name)


def _unmodelled(name: str) -> RefsimError:
    return RefsimError(
        "unknown-special-register", f"the simulator does not model {name}", rule="PTX ISA, special registers"
    )
