"""Facts about registers before anything runs: those that are needed where blocks meet, and products that ptxas may fuse, a
bare mul whose result feeds a bare add or sub of equal type."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from refsim.ptx.text.syntax import Function, Register, Statement, place
from refsim.sources import PTX

SOURCE = PTX["mul, add: instructions without rounding modifier may be contracted"]
_BARE = re.compile(r"(mul|add|sub)(?:\.ftz)?(?:\.sat)?\.(f32|f64|f16|f16x2|bf16|bf16x2)")


@dataclass(frozen=True)
class Contraction:
    """A product and the sum it may be fused into."""

    product: Statement
    total: Statement

    def __str__(self) -> str:
        return f"{place(self.product)} feeds {place(self.total)}: ptxas may contract them into one fma; write .rn"


def contractions(function: Function) -> tuple[Contraction, ...]:
    """Return every pair in a function that ptxas may contract; a reused register can only add pairs."""
    products: dict[tuple[int, str], Statement] = {}
    for statement in function.statements:
        match = _BARE.fullmatch(statement.opcode)
        if match and match[1] == "mul" and isinstance(statement.operands[0], Register):
            products[statement.operands[0].index, match[2]] = statement
    found = []
    for statement in function.statements:
        match = _BARE.fullmatch(statement.opcode)
        if match and match[1] != "mul":
            for operand in statement.operands[1:]:
                if isinstance(operand, Register) and (product := products.get((operand.index, match[2]))):
                    found.append(Contraction(product, statement))
    return tuple(found)


@dataclass(frozen=True)
class Flow:
    """The effect of one block on registers: it reads `reads` before writing them, and surely writes `writes`. The
    blocks `successors` may follow."""

    reads: int
    writes: int
    successors: Sequence[int]


def live_registers(flows: Mapping[int, Flow]) -> tuple[dict[int, int], dict[int, int]]:
    """Return the live registers at the start and at the end of each block, as two dicts by first statement. A block
    passes its needs to its predecessors, as a return to many places has thousands of successors."""
    predecessors: dict[int, list[int]] = {pc: [] for pc in flows}
    for pc, flow in flows.items():
        for successor in flow.successors:
            predecessors[successor].append(pc)
    entering, leaving = dict.fromkeys(flows, -1), dict.fromkeys(flows, 0)
    order = _last_first(flows)
    turn = {pc: number for number, pc in enumerate(order)}
    waiting = list(range(len(order)))  # a heap of turns: successors come before their block
    is_waiting = set(waiting)
    while waiting:
        number = heappop(waiting)
        is_waiting.discard(number)
        pc = order[number]
        flow = flows[pc]
        needed = flow.reads | (leaving[pc] & ~flow.writes)
        if needed == entering[pc]:
            continue
        entering[pc] = needed
        for before in predecessors[pc]:
            if needed & ~leaving[before]:
                leaving[before] |= needed
                if turn[before] not in is_waiting:
                    is_waiting.add(turn[before])
                    heappush(waiting, turn[before])
    return entering, leaving


def _last_first(flows: Mapping[int, Flow]) -> list[int]:
    """Return the blocks, each after its successors (except around loops)."""
    order: list[int] = []
    seen: set[int] = set()
    for root in flows:
        stack = [] if root in seen else [(root, iter(flows[root].successors))]
        seen.add(root)
        while stack:
            pc, successors = stack[-1]
            following = next((successor for successor in successors if successor not in seen), None)
            if following is None:
                order.append(pc)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(flows[following].successors)))
    return order


def registers_in(mask: int) -> list[int]:
    """Return the numbers in a set of registers, rising."""
    digits = bin(mask)[:1:-1]
    found, at = [], digits.find("1")
    while at >= 0:
        found.append(at)
        at = digits.find("1", at + 1)
    return found


def mask_of(registers: set[int]) -> int:
    """Return a set of registers as an integer."""
    if not registers:
        return 0
    bits = bytearray((max(registers) >> 3) + 1)
    for register in registers:
        bits[register >> 3] |= 1 << (register & 7)
    return int.from_bytes(bits, "little")
