"""Which registers are needed where blocks meet: a backward pass with a work list, so that a chain of blocks takes one
visit a block, whichever way it runs. A set of registers is an integer with a bit for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Flow:
    """What one block does to registers: it reads `reads` before it writes them, writes `writes` for certain, and the
    blocks `successors` may follow."""

    reads: int
    writes: int
    successors: Sequence[int]


def live_registers(flows: Mapping[int, Flow]) -> tuple[dict[int, int], dict[int, int]]:
    """The registers that are needed where each block begins, and behind each block."""
    predecessors: dict[int, list[int]] = {pc: [] for pc in flows}
    for pc, flow in flows.items():
        for successor in flow.successors:
            predecessors[successor].append(pc)
    entering = {pc: flow.reads for pc, flow in flows.items()}
    leaving = dict.fromkeys(flows, 0)
    waiting = sorted(flows)
    is_waiting = set(waiting)
    while waiting:
        pc = waiting.pop()
        is_waiting.discard(pc)
        flow = flows[pc]
        behind = 0
        for successor in flow.successors:
            behind |= entering[successor]
        leaving[pc] = behind
        needed = flow.reads | (behind & ~flow.writes)
        if needed != entering[pc]:
            entering[pc] = needed
            for before in predecessors[pc]:
                if before not in is_waiting:
                    is_waiting.add(before)
                    waiting.append(before)
    return entering, leaving


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
