"""From a function to blocks of steps, and facts about them that are known before anything runs.

A block is a straight-line run: it starts at a label or after a terminator and ends before the next start. After a
terminator the scheduler decides which lanes go on (branches, exits, barriers, meetings of a warp).

Between blocks, registers that are never live at once share one array of all lanes. Compilers name a new register for
every value. A block reads before it writes back, so two registers conflict only if both are live at one border between
blocks: 732 registers of a matrix kernel fit 70 arrays.

The grain of the checks' marks: the narrowest access that a kernel makes to shared and to global memory."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from refsim.errors import RefsimError
from refsim.ptx.checks.in_flight import Touch
from refsim.ptx.execution.types import TYPES
from refsim.ptx.lowering.liveness import Contraction, Flow, contractions, live_registers, mask_of, registers_in
from refsim.ptx.lowering.steps import BranchTarget, BranchTargets, Constant, Source, Step, bind_statement
from refsim.ptx.memory.access import semantics
from refsim.ptx.text.syntax import Function, Statement, location_of
from refsim.sources import PTX

TAKES_OVER = "clusterlaunchcontrol.try_cancel"
_IN_FLIGHT = ("cp.async.", "cp.reduce.", "st.async.", "red.async.", TAKES_OVER)
_ASYNC_PROXY = ("cp.async.bulk", "cp.reduce.async.bulk", "wgmma.", "tcgen05.mma.", "tcgen05.cp.", TAKES_OVER)
ENDS = ("ret", "exit", "trap", "brkpt")
LEAVING = ("bra", "brx", "ret", "exit", "trap")
_ACCUMULATOR = 32  # bits of a register of D
MAX_PAIRS = 1 << 27  # bits of conflict sets; beyond, every register has a slot of its own


def shared_slots(register_bits: list[int], borders: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return the slot of each register (-1: it never crosses a border) and the width of each slot, in bits. `borders`
    are the sets of registers that are live at once, as bit masks. Registers of different widths never share."""
    masks = set(borders)
    everything = 0
    for mask in masks:
        everything |= mask
    crossing = registers_in(everything)
    slots, widths, members = [-1] * len(register_bits), list[int](), list[int]()
    if sum(mask.bit_count() for mask in masks) * everything.bit_length() > MAX_PAIRS:
        for slot, index in enumerate(crossing):
            slots[index] = slot
        return slots, [register_bits[index] for index in crossing]
    neighbours = dict.fromkeys(crossing, 0)
    for mask in masks:
        for index in registers_in(mask):
            neighbours[index] |= mask
    for index in crossing:
        slot = next(
            (
                slot
                for slot, width in enumerate(widths)
                if width == register_bits[index] and not members[slot] & neighbours[index]
            ),
            len(widths),
        )
        if slot == len(widths):
            widths.append(register_bits[index])
            members.append(0)
        members[slot] |= 1 << index
        slots[index] = slot
    return slots, widths


@dataclass(frozen=True)
class Arms:
    """The ways from a branch to the statement `end`, where its lanes are again; see `refsim.ptx.lowering.tracked`. They
    write `registers` that are read after it, and perhaps local memory. `turns` decide how often their loops turn."""

    end: int
    registers: tuple[int, ...]
    turns: tuple[int, ...]
    is_local: bool


@dataclass
class BasicBlock:
    """Steps of a straight-line run, the terminator after them, and the registers that later blocks read."""

    pc: int
    steps: list[Step]
    terminator: Step | None
    next_pc: int
    live_out: set[int] = field(default_factory=set)
    run: Any = None

    @cached_property
    def opcodes(self) -> frozenset[str]:
        """Return the opcodes of its statements."""
        return frozenset(step.statement.opcode for step in self.everything())

    def everything(self) -> Iterator[Step]:
        """Yield its steps, the terminator last."""
        yield from self.steps
        if self.terminator:
            yield self.terminator


@dataclass
class Code:
    """A lowered entry: blocks by first statement, the register table (carry flag last), and the places of registers.

    `doubtful` are the registers that some path may read before any statement has written them. `entering` are sets of
    live registers at the start of each block. `touching` are the registers of warpgroups' products that a block
    touches.
    """

    function: Function
    blocks: dict[int, BasicBlock]
    register_bits: list[int]
    steps: list[Step]
    carry: int
    slots: list[int] = field(default_factory=list)
    slot_bits: list[int] = field(default_factory=list)
    doubtful: frozenset[int] = frozenset()
    functions: dict[int, Callable[..., Any]] = field(default_factory=dict)
    fetchers: dict[int, Callable[..., list[Any]]] = field(default_factory=dict)
    tracked: dict[int, Callable[..., Any]] = field(default_factory=dict)
    grains: dict[str, int] = field(default_factory=dict)
    led: dict[tuple[int, int], bool] = field(default_factory=dict)
    arms: dict[int, Arms | None] = field(default_factory=dict)
    entering: dict[int, int] = field(default_factory=dict)
    touching: dict[int, tuple[frozenset[int], tuple[Touch, ...]]] = field(default_factory=dict)

    @cached_property
    def contractions(self) -> tuple[Contraction, ...]:
        """Return the products that ptxas may fuse with a sum."""
        return contractions(self.function)

    @cached_property
    def jumps(self) -> dict[int, int]:
        """Return the target of each branch to one statement."""
        return {
            pc: source.pc
            for pc, step in enumerate(self.steps)
            for source, _ in step.sources
            if step.bound.clause.mnemonic == "bra" and isinstance(source, BranchTarget)
        }

    @cached_property
    def is_asynchronous(self) -> bool:
        """Return whether it starts copies that go on while threads compute."""
        return any(step.statement.opcode.startswith(_IN_FLIGHT) for step in self.steps)

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """Return the registers that products of warpgroups use after their instructions."""
        return tuple(sorted({index for step in self.steps for index in step.kept()}))

    @cached_property
    def watched(self) -> tuple[int, ...]:
        """Return the registers of products, those that may hold copies of accumulators in flight, and sources of A."""
        found, before = {*self.kept, *self.feeding}, 0
        blocks = self._beside_products()
        while before < len(found):
            before = len(found)
            moves = [move for block in blocks for step in block.steps for move in self.moves(step)]
            found |= {target for target, sources in moves if found & set(sources)}
        return tuple(sorted(found))

    @cached_property
    def feeding(self) -> frozenset[int]:
        """Return the registers of no product whose bits a mov that ptxas can remove puts into a register of A."""
        moves = [each for step in self.steps for each in self.moves(step) if len(each[1]) == 1]
        into = set(self.kept).difference(*(step.writes() for step in self.steps if step.bound.clause.keeps_registers))
        found, before = set[int](), -1
        while moves and before < len(found):
            before = len(found)
            found |= {source for target, (source,) in moves if target in into | found}.difference(self.kept)
        return frozenset(found)

    def _beside_products(self) -> list[BasicBlock]:
        """Return the blocks that lanes may run between a product and a wait for all of its groups."""
        waiting = [block.next_pc for block in self.blocks.values() if _opens(block.terminator)]
        found: dict[int, BasicBlock] = {}
        while waiting:
            block = self.blocks.get(waiting.pop())
            if block is not None and block.pc not in found:
                found[block.pc] = block
                waiting += [] if _waits_for_all(block.terminator) else successors(block)
        return [*found.values()]

    def moves(self, step: Step) -> list[tuple[int, tuple[int, ...]]]:
        """Return the targets of an unguarded mov that ptxas can remove, with the registers whose bits each one gets. It
        removes the mov of a pair of registers if only other moves read the pair."""
        targets, sources = [*step.writes()], [*step.reads()]
        narrow = any(self.register_bits[index] < _ACCUMULATOR for index in (*targets, *sources))  # as is a guard
        if step.bound.clause.mnemonic != "mov" or narrow:
            return []
        if len(targets) == len(sources):
            return [(target, (source,)) for target, source in zip(targets, sources, strict=True)]
        if len(sources) > 1 and not self._used.isdisjoint(targets):
            return []
        return [(target, tuple(sources)) for target in targets if sources]

    @cached_property
    def _used(self) -> frozenset[int]:
        """Return the registers that other statements than moves read."""
        return frozenset(index for step in self.steps if step.bound.clause.mnemonic != "mov" for index in step.reads())

    @cached_property
    def has_products(self) -> bool:
        """Return whether warpgroups start products that go on while they compute."""
        return any(step.bound.clause.keeps_registers for step in self.steps)

    @cached_property
    def has_tensor_memory(self) -> bool:
        """Return whether it uses the tensor cores of the fifth generation."""
        return any(step.bound.clause.mnemonic == "tcgen05" for step in self.steps)

    @cached_property
    def fences_tensor_memory(self) -> bool:
        """Return whether its tcgen05.fence may be the only order: with relaxed operations, or across CTAs."""
        opcodes = {step.statement.opcode for step in self.steps}
        return any(each.startswith("tcgen05.fence") for each in opcodes) and any(map(_is_relaxed, opcodes))

    @cached_property
    def has_async_proxy(self) -> bool:
        """Return whether it uses copy engines or tensor cores that access memory."""
        return any(step.statement.opcode.startswith(_ASYNC_PROXY) for step in self.steps)

    @cached_property
    def lets_others_begin(self) -> bool:
        """Return whether the next launch may start before this one ends."""
        return any(step.statement.opcode == "griddepcontrol.launch_dependents" for step in self.steps)

    @cached_property
    def has_mbarriers(self) -> bool:
        """Return whether it has barriers in shared memory."""
        return any(step.bound.clause.mnemonic == "mbarrier" for step in self.steps)

    def live_at(self, pc: int) -> list[int]:
        """Return the registers whose values decide what lanes do from the start of a block on."""
        return registers_in(self.entering[pc])

    def leads_to(self, pc: int, end: int) -> bool:
        """Return whether lanes at `pc` may reach the block that ends with statement `end`, and run a step in it."""
        if (pc, end) not in self.led:
            blocks = self.blocks.values()
            last = next(
                (block for block in blocks if block.next_pc == (end + 1 if end >= 0 else len(self.steps))), None
            )
            self.led[pc, end] = last is not None and len(last.steps) > 0 and last.pc in self._behind(pc)
        return self.led[pc, end]

    def _behind(self, pc: int) -> set[int]:
        """Return the blocks that lanes may reach after a statement that ends its block."""
        found: set[int] = set()
        waiting = [pc + 1]
        while waiting:
            start = waiting.pop()
            if start in found or start not in self.blocks:
                continue
            found.add(start)
            waiting += successors(self.blocks[start])
        return found

    @cached_property
    def avoided(self) -> dict[int, int]:
        """Return for each block a set of blocks (bits by `pc`): some path from the block to the exit avoids them. Bit
        `len(steps)` says that the exit can be reached."""
        everything = mask_of({*self.blocks, len(self.steps)})
        flows = {}
        for pc, block in self.blocks.items():
            targets = [target for target in successors(block) if target in self.blocks]
            ends = block.terminator is not None and block.terminator.bound.clause.mnemonic in ENDS
            leaves = ends or len(targets) < len(successors(block))
            flows[pc] = Flow(everything & ~(1 << pc) if leaves else 0, 1 << pc, targets)
        return live_registers(flows)[0]

    @cached_property
    def polls(self) -> frozenset[int]:
        """Return the branches back to a loop with a strong read: a lane that takes one may wait for another thread."""
        return frozenset(pc for pc, _ in self._polling)

    @cached_property
    def volatile(self) -> frozenset[int]:
        """Return the identities of volatile accesses that do not poll."""
        chosen = (step for pc, step in enumerate(self.steps) if pc not in self.waiting)
        return frozenset(id(step.statement) for step in chosen if "volatile" in step.statement.opcode.split("."))

    @cached_property
    def waiting(self) -> frozenset[int]:
        """Return the strong reads that poll: their value lets a lane leave a loop, or go past it."""
        waiting = set[int]()
        for end, start in self._polling:
            leave = [pc for pc, to in self.jumps.items() if pc == end or (start <= pc < end and not start <= to <= end)]
            if found := self._decide(leave, range(start, end + 1)):
                around = [pc for pc, to in self.jumps.items() if pc < start and (to == start or to > end)]
                waiting |= found | self._decide(around, range(start))
        return frozenset(waiting)

    @cached_property
    def strong(self) -> tuple[int, ...]:
        """Return the strong accesses to memory, if a schedule may come between two of them: at least two, and a read."""
        named = [
            (pc, semantics(step.statement.opcode), step.bound.clause.mnemonic) for pc, step in enumerate(self.steps)
        ]
        found = [pc for pc, meaning, mnemonic in named if meaning.strong and mnemonic in ("ld", "st", "atom", "red")]
        return tuple(found) if len(found) > 1 and any(map(_polls, (self.steps[pc] for pc in found))) else ()

    @cached_property
    def held(self) -> "Code":
        """Return the entry with a block that begins at each strong access, so that a schedule may hold lanes there."""
        blocks = _cut(self.steps, {*self.function.labels.values(), *self.strong})
        made = Code(self.function, blocks, self.register_bits, self.steps, self.carry)
        _keep_registers(made)
        return made

    def leading_to(self, pc: int) -> frozenset[int]:
        """Return the blocks from which lanes may come to the block at `pc`."""
        before: dict[int, list[int]] = {}
        for start, block in self.blocks.items():
            for target in successors(block):
                before.setdefault(target, []).append(start)
        found, waiting = {pc}, [pc]
        while waiting:
            new = [start for start in before.get(waiting.pop(), ()) if start not in found]
            found.update(new)
            waiting += new
        return frozenset(found)

    def _decide(self, branches: list[int], among: range) -> set[int]:
        """Return the strong reads among some statements whose results decide these branches."""
        guards = (self.steps[pc].guard for pc in branches)
        needed, known = {guard.register.index for guard in guards if guard}, -1
        while len(needed) > known:
            known = len(needed)
            for pc in reversed(among):
                if not needed.isdisjoint(self.steps[pc].writes()):
                    needed |= set(self.steps[pc].reads())
        return {pc for pc in among if _polls(self.steps[pc]) and not needed.isdisjoint(self.steps[pc].writes())}

    @cached_property
    def _polling(self) -> tuple[tuple[int, int], ...]:
        """Return (branch, first statement) of each loop with a strong read."""
        reads = np.cumsum([0, *(_polls(step) for step in self.steps)])
        return tuple(
            (pc, source.pc)
            for pc, step in enumerate(self.steps)
            for source, _ in step.sources
            if step.bound.clause.mnemonic == "bra"
            and isinstance(source, BranchTarget)
            and source.pc <= pc
            and reads[pc] > reads[source.pc]
        )

    @cached_property
    def unread(self) -> frozenset[int]:
        """Return the identities of atomics whose results are never read; the assembler turns them into red."""
        found = set()
        for block in self.blocks.values():
            needed = set(block.live_out)
            for step in reversed([*block.everything()]):
                written = set(step.writes())
                if step.bound.clause.mnemonic == "atom" and not written & needed:
                    found.add(id(step.statement))
                if step.guard is None:
                    needed -= written
                needed.update(step.reads())
        return frozenset(found)

    @cached_property
    def read_only(self) -> frozenset[str]:
        """Return the opcodes of loads through the read-only cache, which see no write of the launch."""
        loads = {step.statement.opcode for step in self.steps if step.bound.clause.mnemonic in ("ld", "ldu")}
        return frozenset(each for each in loads if each.startswith("ldu.") or "nc" in each.split("."))

    @cached_property
    def converges(self) -> bool:
        """Return whether lanes of a warp meet anywhere without ordering memory."""
        return any(step.bound.clause.converges for step in self.steps)


def _opens(terminator: Step | None) -> bool:
    """Return whether a terminator starts a product of warpgroups."""
    return terminator is not None and terminator.bound.clause.keeps_registers


def _waits_for_all(terminator: Step | None) -> bool:
    """Return whether a terminator waits for all products of its warpgroup."""
    if terminator is None or not terminator.statement.opcode.startswith("wgmma.wait_group"):
        return False
    source, _ = terminator.sources[0]
    return terminator.guard is None and isinstance(source, Constant) and not source.bits.any()


def _is_relaxed(opcode: str) -> bool:
    kind, *words = opcode.split(".")
    return kind in ("atom", "red") or "relaxed" in words or "volatile" in words


def _polls(step: Step) -> bool:
    """Return whether a step reads memory that other threads may write, by a strong read or a wait at an mbarrier."""
    if step.bound.clause.mnemonic == "mbarrier":
        return "_wait" in step.statement.opcode
    meaning = semantics(step.statement.opcode)
    return step.bound.clause.mnemonic in ("ld", "atom") and meaning.strong


def lower(function: Function, target: str) -> Code:
    """Bind every statement of a function and cut it into blocks; unknown or ill-formed instructions are RefsimError."""
    carry = len(function.register_bits)
    steps = [bind_statement(statement, function, target, carry) for statement in function.statements]
    _check_groups(steps)
    code = Code(function, _cut(steps, set(function.labels.values())), [*function.register_bits, 1], steps, carry)
    _keep_registers(code)
    return code


def _check_groups(steps: list[Step]) -> None:
    """Raise RefsimError for an entry that uses tensor memory for single CTAs and for pairs, as ptxas does."""
    groups: dict[str, Statement] = {}
    for step in steps:
        words = step.statement.opcode.split(".")
        if words[0] == "tcgen05":
            groups |= {word: step.statement for word in words if word.startswith("cta_group") and word not in groups}
    if len(groups) > 1:
        first, other = groups.values()
        what = f"{other.opcode} in an entry with {first.opcode} (PTX line {first.line})"
        rule = f"{PTX['tcgen05, CTA pair']}: all tcgen05 instructions of a kernel have the same .cta_group"
        raise RefsimError("malformed-ptx", what, f"PTX line {other.line}{location_of(other)}", rule)


def _cut(steps: list[Step], labels: set[int]) -> dict[int, BasicBlock]:
    """Return the blocks by their first statement."""
    if not steps:
        return {}
    starts = {0} | labels | {pc + 1 for pc, step in enumerate(steps) if step.is_terminator}
    bounds = sorted(start for start in starts if start < len(steps))
    blocks = {}
    for start, end in zip(bounds, [*bounds[1:], len(steps)], strict=True):
        last = steps[end - 1]
        inner = end - 1 if last.is_terminator else end
        blocks[start] = BasicBlock(start, steps[start:inner], last if last.is_terminator else None, end)
    return blocks


def _keep_registers(code: Code) -> None:
    """Find the registers that each block must leave for later blocks, and a place for each of them."""
    entering, leaving = live_registers({pc: _flow(block, code.blocks) for pc, block in code.blocks.items()})
    for pc, block in code.blocks.items():
        if block.terminator:
            leaving[pc] |= mask_of({*block.terminator.reads(), *block.terminator.writes()})
        written = mask_of({index for step in block.everything() for index in step.writes()})
        block.live_out = set(registers_in(leaving[pc] & written))
    code.entering = entering
    code.doubtful = frozenset(registers_in(entering[0])) if entering else frozenset()
    kept = mask_of(set(code.kept))  # written at any completion of a product: no other register may share their places
    borders = [live | kept for live in (*entering.values(), *leaving.values())]
    code.slots, code.slot_bits = shared_slots(code.register_bits, borders)


def _flow(block: BasicBlock, blocks: dict[int, BasicBlock]) -> Flow:
    """Return what a block reads before writing, what it surely writes, and its successors."""
    reads: set[int] = set()
    writes: set[int] = set()
    for step in block.everything():
        reads |= set(step.reads()) - writes
        if step.guard:
            reads |= set(step.writes()) - writes
        else:
            writes |= set(step.writes())
    return Flow(mask_of(reads), mask_of(writes), [target for target in successors(block) if target in blocks])


def successors(block: BasicBlock) -> list[int]:
    """Return the statements that may follow a block; one past the last statement of the function is its end."""
    targets = [] if _never_goes_on(block.terminator) else [block.next_pc]
    if block.terminator:
        targets += [pc for source, _ in block.terminator.sources for pc in _targets(source)]
    return targets


def _never_goes_on(terminator: Step | None) -> bool:
    """Return whether no lane goes on from a terminator to the next statement: an unguarded branch or exit."""
    return terminator is not None and terminator.guard is None and terminator.bound.clause.mnemonic in LEAVING


def _targets(source: Source) -> Iterator[int]:
    if isinstance(source, BranchTarget):
        yield source.pc
    elif isinstance(source, BranchTargets):
        yield from source.pcs


def single_stepped(code: Code) -> Code:
    """Return the entry in blocks of one statement, with a place of its own for every register. A normal block writes
    back only what later blocks read, and registers share places. Here each statement writes back all of its results,
    and only statements of the kernel overwrite a place."""
    blocks = {pc: _block(pc, step) for pc, step in enumerate(code.steps)}
    places = list(range(len(code.register_bits)))
    return replace(
        code, blocks=blocks, slots=places, slot_bits=list(code.register_bits), functions={}, tracked={}, arms={}
    )


def _block(pc: int, step: Step) -> BasicBlock:
    ends = step.is_terminator
    return BasicBlock(pc, [] if ends else [step], step if ends else None, pc + 1, set(step.writes()))


WIDEST_GRANULE = 16


def granule(code: Code, space: str) -> int:
    """Return the bytes of the narrowest access to "shared" or "global" memory by any step, 16 without one. An access to
    a generic address counts for both."""
    if space not in code.grains:
        widths = [width for step in code.steps for width in _widths(step, space) if width]
        code.grains[space] = min([WIDEST_GRANULE, *widths])
    return code.grains[space]


def _widths(step: Step, space: str) -> list[int]:
    """Return the widths in bytes of a step's accesses to a space."""
    modifiers, mnemonic = step.bound.modifiers, step.bound.clause.mnemonic
    if mnemonic == "cp":
        return [_copied(step), _source_size(step)] if space == "global" else [_copied(step)]
    if mnemonic == "mbarrier":
        return [8] if space == "shared" else []
    if mnemonic == "tcgen05":  # an allocation writes the address of its columns, a commit arrives at an mbarrier
        return [4] if space == "shared" else []
    named = modifiers.get("space")
    if mnemonic not in ("ld", "ldu", "st", "atom", "red", "wmma") or not (named is None or named.startswith(space)):
        return []
    if mnemonic == "wmma":
        words = step.bound.opcode.split(".")
        return [TYPES[word].bits // 8 for word in words if word in TYPES] if {"load", "store"} & {*words} else []
    vector = modifiers.get("vec") if mnemonic in ("ld", "ldu", "st") else None
    type = TYPES.get(str(modifiers.get("type")))
    return [min(WIDEST_GRANULE, type.bits // 8 * int((vector or "v1")[1:]))] if type else []


def _copied(step: Step) -> int:
    """Return the bytes that a cp.async writes, or 0 if the text does not tell."""
    sizes = [
        source for (form, _), (source, _) in zip(step.bound.sources, step.sources, strict=True) if form.name == "bytes"
    ]
    return max((int(size.bits[0]) & 0b11100 for size in sizes if isinstance(size, Constant)), default=0)


def _source_size(step: Step) -> int:
    """Return 1 for a copy with a source size, which may read single bytes, else 0."""
    given = [
        source
        for (form, _), (source, _) in zip(step.bound.sources, step.sources, strict=True)
        if form.name in ("given", "ignore")
    ]
    return 0 if all(source is None for source in given) else 1
