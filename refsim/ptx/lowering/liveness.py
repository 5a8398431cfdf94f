"""Which registers are needed where blocks meet: a backward pass with a work list, so that a chain of blocks takes one
visit a block, whichever way it runs. A set of registers is an integer with a bit for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True)
class Flow:
    """What one block does to registers: it reads `reads` before it writes them, writes `writes` for certain, and the
    blocks `successors` may follow."""

    reads: int
    writes: int
    successors: Sequence[int]


def live_registers(flows: Mapping[int, Flow]) -> tuple[dict[int, int], dict[int, int]]:
    """The registers that are needed where each block begins, and behind each block.

    What a block needs is handed to the blocks before it; none looks at all that follow it, of which a return to many
    places has thousands.
    """
    predecessors: dict[int, list[int]] = {pc: [] for pc in flows}
    for pc, flow in flows.items():
        for successor in flow.successors:
            predecessors[successor].append(pc)
    entering, leaving = dict.fromkeys(flows, -1), dict.fromkeys(flows, 0)
    order = _last_first(flows)
    turn = {pc: number for number, pc in enumerate(order)}
    waiting = list(range(len(order)))  # a heap of turns: what lies behind a block comes before it
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
    """The blocks, each behind those that follow it (except around loops)."""
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
    """The numbers in a set of registers, rising."""
    digits = bin(mask)[:1:-1]
    found, at = [], digits.find("1")
    while at >= 0:
        found.append(at)
        at = digits.find("1", at + 1)
    return found


def mask_of(registers: set[int]) -> int:
    """A set of registers as an integer."""
    if not registers:
        return 0
    bits = bytearray((max(registers) >> 3) + 1)
    for register in registers:
        bits[register >> 3] |= 1 << (register & 7)
    return int.from_bytes(bits, "little")
