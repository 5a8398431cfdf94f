"""The tensor cores of the fifth generation: products and copies of tensor memory that run after a thread requests them.

The operations of one CTA are performed in order, so each may rely on the earlier ones. A commit is an operation too: it
arrives at an mbarrier. An operation is in flight until a thread has observed the phase that counts its commit.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.async_ops.queue import SHARE
from refsim.ptx.async_ops.transfers import UnitHost
from refsim.ptx.checks.in_flight import OperandReads
from refsim.ptx.checks.tensor_order import HandedOver, TensorOrder, are_piped, by_warps, spoken
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.tensor_cells import TensorBox
from refsim.ptx.isa.definedness.tracking import ProductReads, tear
from refsim.ptx.lowering.blocks import BasicBlock
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.tensor_map import TENSOR_LANES, TensorMemory
from refsim.ptx.text.syntax import Statement, place

LEAK, LEAK_RULE = (
    "tensor-memory-leak",
    "PTX ISA, tcgen05.alloc: all that was allocated is deallocated before the kernel exits",
)
IN_FLIGHT, TOUCHED = "tensor-memory-in-flight", "register-in-flight"
RULE = "PTX ISA, tcgen05 memory consistency: what tcgen05.mma and cp touch is theirs until a commit's mbarrier says so"
OPERAND_RULE = "PTX ISA, tcgen05.mma and cp: operands stay as they are until the mbarrier of a commit says so"
REGISTER_RULE = (
    "PTX ISA, tcgen05 memory consistency, register dependencies: a thread may read the registers of tcgen05.ld without "
    "waiting; any other write to them comes after tcgen05.wait::ld"
)
MOVE_RULE = "PTX ISA, tcgen05.wait: what tcgen05.ld and st touch is theirs until tcgen05.wait::ld or ::st"


@dataclass(eq=False)
class Operation:
    """One operation that a thread requested of a tensor core.

    `work` performs it. `reads` and `writes` are the tensor memory that it touches, `items` the chunks of shared memory
    that it reads, `product` what they hold if it multiplies. `landed` is its agent and number after a thread has
    observed its completion.
    """

    number: int
    lanes: Lanes
    work: Callable[[], None]
    reads: tuple[TensorBox, ...] = ()
    writes: tuple[TensorBox, ...] = ()
    items: Array | None = None
    product: ProductReads | None = None
    is_performed: bool = False
    handed: HandedOver = field(default_factory=HandedOver)
    landed: tuple[int, int] | None = None

    @property
    def lane(self) -> int:
        """Return the lane that requested it."""
        return int(self.lanes.ids[0])


@dataclass(eq=False)
class MoveInFlight:
    """A tcgen05.ld or st that its warp has not waited for; `registers` are those that a load has yet to write."""

    warp: int
    is_load: bool
    box: TensorBox
    registers: set[int]
    statement: Statement


@dataclass
class TensorPipe:
    """The operations in flight of all running CTAs, and the loads and stores that no warp has waited for. `done` holds
    observed operations by the lane that may rely on them: the newest access of each of their agents."""

    machine: UnitHost
    policy: str
    choice: np.random.Generator | None
    poison: int
    flying: list[Operation] = field(default_factory=list)
    moves: list[MoveInFlight] = field(default_factory=list)
    issued: int = 0
    loading: int = 0
    allocated: dict[int, Statement] = field(default_factory=dict)
    done: dict[int, dict[int, int]] = field(default_factory=dict)
    _memory: TensorMemory | None = None
    _order: TensorOrder | None = None

    def __post_init__(self) -> None:
        is_used = self.machine.code.has_tensor_memory and "race" not in self.machine.checks.off
        self.reads: OperandReads | None = OperandReads(self.machine, self, OPERAND_RULE) if is_used else None

    @property
    def memory(self) -> TensorMemory:
        """Return the tensor memory of the CTAs, created at the first use."""
        if self._memory is None:
            self._memory = TensorMemory(self.machine.geometry.count, (self.poison & 0xFF) * 0x01010101)
            if self.machine.tracking is not None:
                self._memory.follow()
        return self._memory

    @property
    def words(self) -> Array:
        """Return the cells of tensor memory, after all pending sums."""
        self.settle()
        return self.memory.words

    def holds(self, lanes: Lanes, first: int, columns: int) -> None:
        """Record that a warp has allocated columns, which no thread touches before the allocation."""
        cta = int(lanes.cta[0])
        self.allocated[cta] = lanes.statement
        if self.order is not None:
            box = TensorBox(cta, np.ones(TENSOR_LANES, np.bool_), first, first + columns)
            self.order.forget(box)
            self.order.warp_touched(lanes.ids, box, lanes.statement, writes=True)
            self.order.fence_before(lanes, ())  # it is synchronous: a relaxed barrier orders what follows it

    def settle(self) -> None:
        """Compute all pending sums."""

    # ---- operations
    def start(self, operation: Operation) -> None:
        """Check an operation against those in flight, and put it in flight."""
        for box in operation.writes:
            self.demand(operation.lanes, box, writes=True, of=operation.lane)
        for box in operation.reads:
            self.demand(operation.lanes, box, writes=False, of=operation.lane)
        if self.reads is not None and operation.items is not None:
            self.reads.begun(operation.items, operation.number)
        self.flying.append(operation)
        now = self.choice.random() < SHARE if self.policy == "random" and self.choice else self.policy == "eager"
        if now:
            self.perform(operation)

    def number(self) -> int:
        """Return the number of the next operation."""
        self.issued += 1
        return self.issued

    def perform(self, last: Operation) -> None:
        """Perform an operation, after all earlier operations of its CTA."""
        cta = self._cta(last)
        for each in [each for each in self.flying if self._cta(each) == cta and each.number <= last.number]:
            if not each.is_performed:
                each.is_performed = True
                each.work()
        self.machine.port.writes += 1

    def commit(self, lanes: Lanes, space: str, addresses: Array, mask: Array | None) -> None:
        """Count each lane's operations so far at an mbarrier, in each CTA of the cluster that `mask` names."""
        for one, at in lanes.each():
            address = lanes.full(addresses)[at : at + 1]
            lane = int(one.ids[0])
            covered = [each for each in self.flying if each.lane == lane or lane in each.handed.lanes]
            ctas = None if mask is None else int(lanes.full(mask)[at])
            arrivals = self.machine.counter.asked(one, space, address, ctas)
            batch = Committed(self, covered, arrivals[0].flat, {**self.done.get(lane, {})})
            self.start(
                Operation(self.number(), one, lambda a=arrivals, b=batch: self.machine.counter.come(a, b))  # type: ignore[misc]
            )

    def land(self, covered: list[Operation], flat: int) -> dict[int, int]:
        """Complete operations after a thread observed their phase at the mbarrier at byte `flat`. Return the newest
        access of each agent that made their accesses."""
        gone, found = {id(each) for each in covered}, dict[int, int]()
        self.flying = [each for each in self.flying if id(each) not in gone]
        for each in covered if self.order is not None else ():
            if each.landed is None and (each.reads or each.writes):
                assert self.order is not None
                boxes = [(box, False) for box in each.reads] + [(box, True) for box in each.writes]
                each.landed = self.order.landed(flat, each.lanes, boxes, each.handed)
                for lane in (each.lane, *each.handed.lanes):
                    self.done.setdefault(lane, {})[each.landed[0]] = each.landed[1]
                if not any(other.lane == each.lane and other.writes for other in self.flying):
                    self.order.races.remote.read(each.lane + self.order.races.first, *each.landed)
            if each.landed is not None:
                agent, number = each.landed
                found[agent] = max(found.get(agent, 0), number)
        return found

    def _cta(self, operation: Operation) -> int:
        return operation.lane // self.machine.geometry.threads

    # ---- time
    @property
    def is_pending(self) -> bool:
        """Return whether some operations have not been performed yet."""
        return any(not each.is_performed for each in self.flying)

    def drift(self) -> None:
        """Perform some operation in flight, under the random policy, as time passes."""
        waiting = [each for each in self.flying if not each.is_performed]
        if waiting and self.choice is not None and self.policy == "random" and self.choice.random() < SHARE:
            self.perform(waiting[int(self.choice.integers(len(waiting)))])

    def fire(self) -> None:
        """Perform every CTA's operations up to its next commit, as no thread can run."""
        seen = set[int]()
        for each in list(self.flying):
            cta = self._cta(each)
            if not each.is_performed and cta not in seen:
                self.perform(each)
                if not (each.reads or each.writes):
                    seen.add(cta)

    def finish(self) -> None:
        """Perform all operations in flight after the last thread exits; report columns that were not deallocated."""
        for each in self.flying:
            if not each.is_performed:
                self.perform(each)
        if self._memory is None:
            return
        for cta, blocks in self._memory.blocks.items():
            if blocks:
                lanes = Lanes(self.machine, np.array([cta * self.machine.geometry.threads]), self.allocated[cta])
                what = f"a block exits that holds {self._memory.spoken(cta)} of tensor memory: no tcgen05.dealloc gave them back"
                self.machine.report(lanes.fault(LEAK, 0, what, LEAK_RULE), lanes.statement)

    # ---- cells that no thread may touch
    @property
    def order(self) -> TensorOrder | None:
        """Return the check of the order of completed accesses, or None if races are not checked."""
        if self._order is None and self.machine.races is not None:
            self._order = TensorOrder(self.machine.races)
        return self._order

    def demand(self, lanes: Lanes, box: TensorBox, *, writes: bool, of: int = -1) -> None:
        """Report cells that a lane or warp touches while an operation in flight uses them. Nothing in flight may write
        the cells, and nothing may read them if the access `writes`. The access must be ordered after completed ones.
        Operations of one thread, `of`, are ordered, also after operations that were handed to the thread."""
        for each in self.flying:
            if of >= 0 and (each.lane == of or (of in each.handed.lanes and self._follows(lanes, box, each))):
                continue
            others = (*each.writes, *each.reads) if writes else each.writes
            if any(box.meets(other) for other in others):
                who = f"{place(each.lanes.statement)} of {self.machine.geometry.describe(each.lane)}"
                what = f"{spoken(box)}: {who} is in flight, and no wait has seen its commit complete"
                self.machine.report(lanes.fault(IN_FLIGHT, 0, what, RULE), lanes.statement)
                return
        for move in self.moves:
            if (writes or not move.is_load) and box.meets(move.box):
                wait = "ld" if move.is_load else "st"
                what = f"{spoken(box)}: {place(move.statement)} is in flight, its warp lacks a tcgen05.wait::{wait}"
                self.machine.report(lanes.fault(IN_FLIGHT, 0, what, MOVE_RULE), lanes.statement)
                return
        if self.order is not None:
            self.order.demand(lanes, box, writes=writes, of=of)

    @staticmethod
    def _follows(lanes: Lanes, box: TensorBox, earlier: Operation) -> bool:
        """Return whether tensor cores order a new operation after an earlier one without a wait."""
        return are_piped(
            earlier.lanes.statement, lanes.statement, is_same=any(map(box.covers_the_same, earlier.writes))
        )

    def fenced(self, lanes: Lanes, *, is_before: bool) -> None:
        """Record a fence of threads before or after the synchronization that orders their tensor core operations."""
        if self.order is not None:
            flying = [(each.lane, each.handed) for each in self.flying]
            (self.order.fence_before if is_before else self.order.fence_after)(lanes, flying)

    # ---- loads and stores of warps
    def moved(self, lanes: Lanes, boxes: list[tuple[int, TensorBox]], *, is_load: bool) -> None:
        """Record loads or stores of warps as in flight until the warps wait for them."""
        for one, (_, box) in zip(by_warps(lanes), boxes, strict=True):
            self.demand(one, box, writes=not is_load)
        written = set(self.machine.code.steps[lanes.pc].writes()) if is_load else set[int]()
        self.moves += [MoveInFlight(warp, is_load, box, {*written}, lanes.statement) for warp, box in boxes]
        self.loading += is_load

    def waited(self, lanes: Lanes, *, is_load: bool) -> None:
        """Complete the loads, or the stores, of these warps."""
        warps = {int(one.warp[0]): one.ids for one in by_warps(lanes)}
        for move in self.moves if self.order is not None else ():
            if move.is_load == is_load and move.warp in warps:
                assert self.order is not None
                self.order.warp_touched(warps[move.warp], move.box, move.statement, writes=not is_load)
        self.moves = [move for move in self.moves if move.is_load != is_load or move.warp not in warps]
        self.loading = sum(move.is_load for move in self.moves)

    def before(self, block: BasicBlock, lanes: Lanes) -> None:
        """Report a statement of the block about to run that overwrites a register that a load has yet to write. A
        thread that reads such a register gets the loaded value."""
        warps = set(np.unique(lanes.warp).tolist())
        mine = [move for move in self.moves if move.is_load and move.registers and move.warp in warps]
        for step in block.everything() if mine else ():
            read, written = {*step.reads()}, {*step.writes()}
            for move in mine:
                move.registers -= read
                if hit := written & move.registers:
                    name = self.machine.code.function.register_names[min(hit)]
                    what = f"overwrites {name}, which {place(move.statement)} loads: the warp lacks a tcgen05.wait::ld"
                    part = Lanes(self.machine, lanes.ids, step.statement)
                    self.machine.report(part.fault(TOUCHED, 0, what, REGISTER_RULE), step.statement)
                    return

    # ---- shared memory that operations read
    @property
    def oldest(self) -> int | None:
        """Return the number of the oldest operation in flight, or None."""
        return self.flying[0].number if self.flying else None

    def tear(self, items: Array, error: RefsimError, statement: Statement) -> None:
        """Make rows of D undefined where the access of `error` changes chunks that products in flight read. A copy that
        reads them is a finding."""
        for each in self.flying:
            if each.items is not None and np.isin(each.items, items).any():
                if each.product is None:
                    self.machine.report(error, statement)
                else:
                    tear(self.machine, statement, each.product, items, error)

    def reader_of(self, item: int) -> str | None:
        """Return a sentence about the operation in flight that reads a chunk of the flat shared memory, or None."""
        for each in self.flying:
            if each.items is not None and (each.items == item).any():
                return f"{place(each.lanes.statement)}, which is in flight: no wait has seen its commit complete"
        return None


@dataclass(eq=False)
class Committed:
    """The operations that a commit covers, as the mbarrier at byte position `flat` first counts them. `done` holds the
    operations that were complete at the commit."""

    pipe: TensorPipe
    covered: list[Operation]
    flat: int
    done: dict[int, int]
    is_performed: bool = True
    failed: bool = False

    def source_was_read(self) -> None:
        """Do nothing: the pipe itself checks operands in shared memory."""

    def complete(self) -> None:
        """Do nothing: a commit holds no bytes."""

    def landed(self) -> dict[int, int]:
        """Return the newest access of each agent that made accesses of the operations."""
        return self.done | self.pipe.land(self.covered, self.flat)
