"""From a block to a Python function that also tracks undefined bits: a mask m3 next to every register r3.

The line of an instruction's rule stands before the line of the instruction. An undefined address is thus reported
before it is used, and the rule sees the sources even if the instruction overwrites one of them.

An undefined guard decides which arm of a branch a lane takes. If the arms change only registers and local memory, then
nothing else depends on the guard, and the launch goes on.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refsim.ptx.checks.first_nan import NonFinite
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.register_file import Mask, all_ones, either, flat, joined, mask_of, merged
from refsim.ptx.execution.registers import get, get_mask, put_mask
from refsim.ptx.execution.types import UNSIGNED, PtxType
from refsim.ptx.isa.definedness import bits as undefined_bits
from refsim.ptx.isa.definedness.bits import RuleOperands, refined
from refsim.ptx.isa.definedness.memory import cells_of, doubted, space_named
from refsim.ptx.isa.definedness.tracking import OpenBits, tracking_of
from refsim.ptx.lowering.blocks import Arms, BasicBlock, Code, successors
from refsim.ptx.lowering.codegen import Writer, part
from refsim.ptx.lowering.steps import AddressOperand, BranchTarget, BranchTargets, Source, Step
from refsim.ptx.memory.access import semantics
from refsim.ptx.memory.arrays import Array
from refsim.ptx.text.syntax import Negated, Register

Follow = Callable[[Lanes, list[Any], list[Any]], list[Any]]
GUARD, BRANCH, MEMBERS = "the guard of a store", "a branch", "a member mask"


def follower(step: Step, register_bits: list[int]) -> Follow:
    """Return the step's rule over masks of registers. The rule takes lanes, masks and fetched bits of the sources, and
    returns the masks of the results."""
    clause, keywords = step.bound.clause, step.keywords
    rule: Callable[[RuleOperands], list[Any]] = (
        undefined_bits.whole if isinstance(clause.undefined, str) else clause.undefined
    )
    names = [form.name for form, _ in step.bound.sources]
    types = [type for _, type in step.sources]
    is_pure = not clause.wants_lanes
    registers = [source if isinstance(source, Register) else None for source, _ in step.sources]
    same = [at if register is None else registers.index(register) for at, register in enumerate(registers)]
    same = [first if types[first].bits == types[at].bits else at for at, first in enumerate(same)]
    is_exact = not is_pure or clause.inexact or (getattr(rule, "is_exact", False) and same == sorted(set(same)))
    # A rule may need all modifiers of the opcode; the instruction implementation takes only its keywords.
    facts = keywords if is_pure else {**step.bound.modifiers, **keywords}

    def follow(lanes: Lanes, masks: list[Any], values: list[Any]) -> list[Any]:
        """Return the masks of the step's results."""
        tracking = lanes.machine.tracking
        opened = tracking if isinstance(tracking, OpenBits) and step.statement.line in tracking.lines else None
        if opened is not None:
            masks = opened.opened(lanes, step.sources, masks, (AddressOperand, BranchTarget, BranchTargets))
        if is_pure and not any(True for _ in flat(masks)):
            return [[None] * len(result) if isinstance(result, tuple) else None for result, _ in step.results]
        operands = RuleOperands(
            lanes,
            clause.function,
            facts,
            names,
            types,
            [_cut(value, source, type) for value, (source, type) in zip(values, step.sources, strict=True)],
            [_cut_mask(mask, source, type) for mask, (source, type) in zip(masks, step.sources, strict=True)],
            step.results,
            same,
        )
        found = rule(operands)
        if not is_exact and opened is None:
            found = refined(operands, found)
        if opened is not None and found and not is_pure:
            found = opened.returned(lanes, step.results)
        return [
            [_extended(one, type, index, register_bits) for one, index in zip(mask, result, strict=True)]
            if isinstance(result, tuple)
            else _extended(mask[0] if isinstance(mask, list) else mask, type, result, register_bits)
            for mask, (result, type) in zip(found, step.results, strict=False)
        ]

    return follow


def _cut(value: Any, source: Source, type: PtxType) -> Any:
    """Return an operand's bits as wide as its type; addresses and branch targets stay as they are."""
    if isinstance(value, tuple):
        return value  # registers that are handed over
    if isinstance(value, list):
        assert isinstance(source, tuple)
        return [_cut(one, element, type) for one, element in zip(value, source, strict=True)]
    if isinstance(source, AddressOperand | BranchTarget | BranchTargets) or source is None or type.name == "pred":
        return value
    return value if value.dtype == type.bits_dtype else value.astype(type.bits_dtype)


def _cut_mask(mask: Any, source: Source, type: PtxType) -> Any:
    """Return an operand's mask as wide as its type."""
    if isinstance(mask, list):
        assert isinstance(source, tuple)
        return [_cut_mask(one, element, type) for one, element in zip(mask, source, strict=True)]
    if mask is None or isinstance(source, AddressOperand) or type.name == "pred" or mask.bits.dtype == type.bits_dtype:
        return mask
    return mask_of(mask.bits.astype(type.bits_dtype), mask.origin)


def _extended(mask: Mask | None, type: PtxType, index: int | None, register_bits: list[int]) -> Mask | None:
    """Return a mask as wide as its register; a signed type repeats the mask of its sign bit upwards."""
    if mask is None or index is None or type.name == "pred" or register_bits[index] == type.bits:
        return mask
    dtype = UNSIGNED[register_bits[index]]
    if type.is_signed and register_bits[index] > type.bits:
        return Mask(mask.bits.view(type.dtype).astype(f"i{dtype.itemsize}").view(dtype), mask.origin)
    return mask_of(mask.bits.astype(dtype), mask.origin)


def guarded(
    lanes: Lanes,
    step: Step,
    follow: Follow,
    guard: Array,
    doubt: Mask | None,
    masks: list[Any],
    values: list[Any],
    old: list[Mask | None],
) -> list[Mask | None]:
    """Return the masks of registers that a guarded step writes: new ones where its guard holds, else the old ones. An
    undefined guard makes the results undefined, and is reported if the step writes memory."""
    if doubt is not None and _writes_memory(step):
        tracking_of(lanes).reached(lanes, doubt, GUARD)
    chosen = lanes.select(lanes.full(guard))
    if chosen is None:
        fresh: list[Mask | None] = list(old)
    else:
        some = lanes.full(guard)
        inner = [part_mask(one, some) for one in masks]
        found = follow(chosen, inner, [part(lanes, guard, value) for value in values])
        written = [
            one
            for result, (targets, _) in zip(found, step.results, strict=False)
            for one, index in zip(*_pairs(result, targets), strict=True)
            if index is not None
        ]
        fresh = [merged(before, after, some, lanes.count) for before, after in zip(old, written, strict=True)]
    return (
        fresh
        if doubt is None
        else [_doubtful(mask, doubt, lanes, index) for mask, index in zip(fresh, step.writes(), strict=True)]
    )


def _writes_memory(step: Step) -> bool:
    return step.bound.clause.wants_lanes and step.bound.clause.mnemonic not in ("ld", "ldu", "activemask")


def _pairs(result: Any, targets: Any) -> tuple[list[Any], list[Any]]:
    return (list(result), list(targets)) if isinstance(targets, tuple) else ([result], [targets])


def part_mask(mask: Any, some: Array) -> Any:
    """Return the masks of an operand for some of the lanes."""
    if isinstance(mask, list):
        return [part_mask(one, some) for one in mask]
    return None if mask is None else mask.part(some)


def _doubtful(mask: Mask | None, doubt: Mask, lanes: Lanes, index: int) -> Mask | None:
    """Return a mask that is undefined wherever the guard's mask `doubt` is."""
    bits = lanes.machine.code.register_bits[index]
    dtype = np.dtype(np.bool_) if bits == 1 else UNSIGNED[bits]
    unknown = doubt.bits
    everything = np.where(unknown, all_ones(dtype), np.zeros(1, dtype))
    _, origin = joined([doubt, *flat(mask)], lanes.count)
    return mask_of(everything if mask is None else either(everything, mask.bits), origin)


def watched(
    lanes: Lanes, step: Step, given: tuple[Any, Any, Any, Any], found: list[Array], masks: list[Mask | None]
) -> list[Mask | None]:
    """Return the masks of registers that a step wrote, after the tracking has seen their values. `given`: the values
    and masks of its sources, which lanes its guard let run, and the places that an atomic is about to change."""
    (values, before, some, cells), tracking = given, lanes.machine.tracking
    assert isinstance(tracking, NonFinite)
    chosen = lanes.select(some)
    if chosen is None:
        return masks
    tracking.ran(chosen, step)
    values = [part(lanes, some, one) for one in values]
    held = [lanes.full(each)[some] for each in found]
    inner = [part_mask(mask, some) for mask in masks]
    if cells:
        origin = tracking.updated(chosen, step, values[0], values[1], cells)
        inner = [
            mask or mask_of(all_ones(one.dtype) * (origin != 0), origin) for mask, one in zip(inner, held, strict=True)
        ]
    fresh = tracking.seen(chosen, step, values, [part_mask(one, some) for one in before], held, inner)
    return [merged(old, new, some, lanes.count) for old, new in zip(masks, fresh, strict=True)]


def watched_before(
    lanes: Lanes, step: Step, values: list[Any], masks: list[Any], guard: Array | None
) -> tuple[Any, Any, Any, Any]:
    """Return what `watched` needs of a step that is about to run."""
    some = np.ones(lanes.count, np.bool_) if guard is None else lanes.full(guard)
    cells, chosen = None, lanes.select(some)
    if chosen is not None and step.bound.clause.mnemonic in ("atom", "red") and not isinstance(values[1], list):
        space = space_named(step.bound.keywords)
        cells = cells_of(chosen, space, part(lanes, some, values[0]), step.sources[1][1].bits // 8)
    return values, masks, some, cells


class _Follower(Writer):
    """A writer of the text of a block's function, masks included; `watches`: the tracking sees each result."""

    def __init__(self, block: BasicBlock, code: Code, *, watches: bool) -> None:
        super().__init__(block, code)
        self.watches = watches
        self.names |= {"get_mask": get_mask, "put_mask": put_mask, "guarded": guarded}
        self.names |= {"watched": watched, "watched_before": watched_before}

    def register(self, index: int) -> str:
        """Return the variable of a register; fetch the register and its mask at their first use."""
        if index not in self.held:
            self.lines.append(f"m{index} = get_mask(lanes, {index})")
        return super().register(index)

    def mask(self, source: Source) -> str:
        """Return the source text of an operand's mask."""
        match source:
            case Register(index) | Negated(Register(index)):
                return f"m{index}"
            case AddressOperand(base, _):
                return self.mask(base)
            case tuple():
                return "[" + ", ".join(self.mask(element) for element in source) + "]"
        return "None"

    def write(self) -> None:
        """Write all steps of the block, one by one."""
        for step in self.block.steps:
            self.step(step)

    def step(self, step: Step) -> None:
        """Write the line of a step's rule, then the lines of the step."""
        values = "[" + ", ".join(self.expression(source) for source, _ in step.sources) + "]"
        masks = "[" + ", ".join(self.mask(source) for source, _ in step.sources) + "]"
        follow = self.constant(follower(step, self.code.register_bits))
        self.lines.append(f"lanes.statement = {self.constant(step.statement)}")
        test = None
        if step.guard is not None:
            guard = self.register(step.guard.register.index)
            test = f"~{guard}" if step.guard.negated else guard
        if self.watches:
            self.lines.append(f"given = watched_before(lanes, {self.constant(step)}, {values}, {masks}, {test})")
        if step.guard is None:
            left = self.left_side(step, "m")
            self.lines.append(f"{f'[{left}] = ' if left else ''}{follow}(lanes, {masks}, {values})")
        else:
            writes = list(step.writes())
            for index in writes:
                self.register(index)
            left = ", ".join(f"m{index}" for index in writes)
            doubt = self.mask(step.guard.register)
            self.lines.append(
                f"{f'[{left}] = ' if left else ''}guarded(lanes, {self.constant(step)}, {follow}, {test}, {doubt}, "
                f"{masks}, {values}, [{left}])"
            )
        super().step(step)
        if self.watches:
            found, left = (", ".join(f"{letter}{index}" for index in step.writes()) for letter in "rm")
            self.lines.append(f"[{left}] = watched(lanes, {self.constant(step)}, given, [{found}], [{left}])")

    def keep(self, index: int) -> None:
        """Write a register and its mask back to their places."""
        super().keep(index)
        self.lines.append(f"put_mask(lanes, {index}, m{index})")


def translate_tracked(block: BasicBlock, code: Code, *, watches: bool) -> Callable[[Lanes], None]:
    """Return the Python function that runs a block's steps and tracks undefined bits through them."""
    return _Follower(block, code, watches=watches).function()


# ---- terminators
def fetch_mask(lanes: Lanes, source: Source) -> Any:
    """Return the mask of an operand, straight from the registers."""
    match source:
        case Register(index) | Negated(Register(index)):
            return get_mask(lanes, index)
        case AddressOperand(base, _):
            return fetch_mask(lanes, base)
        case tuple():
            return [fetch_mask(lanes, element) for element in source]
    return None


def demand_guard(lanes: Lanes, block: BasicBlock, step: Step, code: Code) -> None:
    """Report a terminator whose guard is undefined. A branch around nothing but registers is in doubt instead: what it
    decides becomes undefined where its lanes meet."""
    doubt = None if step.guard is None else get_mask(lanes, step.guard.register.index)
    if doubt is None:
        return
    tracking = tracking_of(lanes)
    arms = None if isinstance(tracking, OpenBits) else arms_of(code, block)
    counts = [get_mask(lanes, index) for index in arms.turns] if arms else []
    if arms is None or any(mask is not None and mask.origin[doubt.bits].any() for mask in counts):
        tracking.reached(lanes, doubt, BRANCH)
    else:
        events = tracking.origins.add(lanes, doubt.bits, BRANCH, earlier=doubt.origin)
        lanes.machine.registers.doubts.setdefault(arms.end, []).append((lanes.spread(events), arms))


def lanes_met(lanes: Lanes, pc: int) -> None:
    """Mark what the arms of a branch write as undefined, for lanes at their end that came by an undefined guard: on
    the other way the lanes would hold other bits."""
    doubts = lanes.machine.registers.doubts
    waiting = doubts.pop(pc, [])
    for events, arms in waiting:
        own = events[lanes.ids]
        events[lanes.ids] = 0
        if (doubt := mask_of(own != 0, own)) is not None:
            for index in arms.registers:
                put_mask(lanes, index, _doubtful(get_mask(lanes, index), doubt, lanes, index))
            if arms.is_local:
                doubted(lanes, own)
    if still := [each for each in waiting if each[0].any()]:
        doubts[pc] = still


def demand_members(lanes: Lanes, step: Step) -> None:
    """Report an undefined member mask before lanes wait for its members."""
    if step.bound.clause.rendezvous == "mask":
        position = [form.name for form, _ in step.bound.sources].index("mask")
        tracking_of(lanes).reached(lanes, fetch_mask(lanes, step.sources[position][0]), MEMBERS)


def follow_terminator(
    places: list[tuple[int, Lanes]], lanes: Lanes, arguments: list[Any], code: Code
) -> Callable[[], None]:
    """Apply the rule of a terminator before it runs; return a function that then puts the masks of its results. The
    lanes may be at several instructions of one opcode, each with its own registers."""
    step = code.steps[places[0][0]]
    position = [np.searchsorted(lanes.ids, part.ids) for _, part in places]
    masks = [
        _spread([fetch_mask(part, code.steps[pc].sources[number][0]) for pc, part in places], position, lanes.count)
        for number in range(len(step.sources))
    ]
    if step.bound.clause.flow and isinstance(step.bound.clause.undefined, str):
        for mask in flat(masks):
            tracking_of(lanes).reached(lanes, mask, BRANCH)
        return lambda: None
    found = follower(step, code.register_bits)(lanes, masks, arguments)  # a barrier's results come when it completes

    def put() -> None:
        """Put the masks of the results, for each instruction's lanes."""
        for (pc, some), at in zip(places, position, strict=True):
            for (targets, _), result in zip(code.steps[pc].results, found, strict=False):
                for mask, index in zip(*_pairs(result, targets), strict=True):
                    if index is not None:
                        put_mask(some, index, None if mask is None else mask.part(at))
        if tracking_of(lanes).watches:
            lanes.machine.tensor_cores.settle()
            for (pc, some), at in zip(places, position, strict=True):
                _watch_part(some, code.steps[pc], lanes, at, arguments, masks)

    return put


def _watch_part(some: Lanes, step: Step, lanes: Lanes, at: Array, arguments: list[Any], masks: list[Any]) -> None:
    """Show the tracking the registers that a terminator wrote, for the lanes `some` at places `at` of `lanes`."""
    chosen = np.isin(np.arange(lanes.count), at)
    values = [one if step.bound.clause.keeps_registers else part(lanes, chosen, one) for one in arguments]
    written = list(step.writes())
    held = [get_mask(some, index) for index in written]
    found = [some.full(get(some, index)) for index in written]
    some.statement = step.statement
    given = values, [part_mask(one, at) for one in masks], np.ones(some.count, np.bool_), None
    for index, mask in zip(written, watched(some, step, given, found, held), strict=True):
        put_mask(some, index, mask)


def _spread(masks: list[Any], position: list[Array], count: int) -> Any:
    """Return the mask of one operand, fetched by several sets of lanes, for all of these lanes."""
    if isinstance(masks[0], list):
        return [_spread(list(each), position, count) for each in zip(*masks, strict=True)]
    if len(masks) == 1:
        return masks[0]
    some = next(flat(masks), None)
    if some is None:
        return None
    bits, origin = np.zeros(count, some.bits.dtype), np.zeros(count, np.int32)
    for mask, at in zip(masks, position, strict=True):
        if mask is not None:
            bits[at], origin[at] = mask.bits, mask.origin
    return Mask(bits, origin)


_ADDRESSES = ("getctarank", "isspacep", "mapa")  # they take lanes, to know the CTA


def arms_of(code: Code, block: BasicBlock) -> Arms | None:
    """Return the arms of the branch that ends a block. None if a lane in an arm may do more than write registers and
    local memory, may exit, or may be in a loop that a load ends. Otherwise a weak load counts as a write of a register,
    as one under an undefined guard does. The branch itself may be in a loop of its arms."""
    if block.pc not in code.arms:
        code.arms[block.pc] = _arms(code, block)
    return code.arms[block.pc]


def _arms(code: Code, block: BasicBlock) -> Arms | None:
    """Return what `arms_of` does. The lanes meet at the nearest block that no path to the exit avoids."""
    avoided, leaves = code.avoided, 1 << len(code.steps)
    if block.next_pc - 1 not in code.jumps or not avoided[block.pc] & leaves:
        return None
    behind = [pc for pc in code.blocks if pc != block.pc and not avoided[block.pc] >> pc & 1]
    end = min(behind, key=lambda pc: avoided[pc].bit_count(), default=-1)
    inside = _between(code, block, end)
    if not all(pc in code.blocks and avoided[pc] & leaves and _is_private(code, pc) for pc in inside):
        return None
    steps = [step for pc in inside for step in code.blocks[pc].steps]
    turns = _turns(code, [code.blocks[pc] for pc in inside], end)
    if any(step.bound.clause.mnemonic in ("ld", "ldu") and turns.intersection(step.writes()) for step in steps):
        return None
    entering = {index for pc in successors(block) for index in code.live_at(pc)}
    written = {index for step in steps for index in step.writes()}.intersection(code.live_at(end))
    return Arms(end, tuple(sorted(written)), tuple(sorted(turns & entering)), any(map(_stores_locally, steps)))


def _between(code: Code, block: BasicBlock, end: int) -> set[int]:
    """Return the blocks on the ways from a block to `end`."""
    found, waiting = set[int](), successors(block)
    while waiting:
        if (pc := waiting.pop()) != end and pc not in found:
            found.add(pc)
            waiting += successors(code.blocks[pc]) if pc in code.blocks else []
    return found


def _turns(code: Code, blocks: list[BasicBlock], end: int) -> set[int]:
    """Return the registers that decide how often loops of the blocks turn: guards of branches in a loop, and what they
    are computed from."""
    loops = [block for block in blocks if block.pc in _between(code, block, end)]
    found = {index for block in loops if block.terminator for index in block.terminator.reads()}
    steps = [step for block in blocks for step in block.steps]
    while more := {index for step in steps if found.intersection(step.writes()) for index in step.reads()} - found:
        found |= more
    return found


def _is_private(code: Code, pc: int) -> bool:
    """Return whether a block changes only registers and local memory, and goes on to other blocks."""
    block = code.blocks[pc]
    return (block.terminator is None or block.next_pc - 1 in code.jumps) and all(map(_is_private_step, block.steps))


def _is_private_step(step: Step) -> bool:
    clause = step.bound.clause
    if clause.mnemonic in ("ld", "ldu"):
        return not semantics(step.statement.opcode).strong
    return not clause.wants_lanes or clause.mnemonic in _ADDRESSES or _stores_locally(step)


def _stores_locally(step: Step) -> bool:
    return step.bound.clause.mnemonic == "st" and step.bound.keywords.get("space") == "local"
