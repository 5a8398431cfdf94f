"""The arms of a branch: the ways from it to the statement where all of its lanes are again.

An undefined guard decides which arm a lane takes. If the arms change only registers and local memory, then nothing else
depends on the guard, and a tracked launch goes on: see `refsim.ptx.lowering.tracked.demand_guard`.
"""

from refsim.ptx.lowering.blocks import Arms, BasicBlock, Code, successors
from refsim.ptx.lowering.steps import Step
from refsim.ptx.memory.semantics import semantics

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
