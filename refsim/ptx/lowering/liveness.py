"""The registers that are needed where blocks meet.

It is a backward pass with a work list, so a chain of blocks takes one visit a block in either direction. A set of
registers is an integer with a bit for each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


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
