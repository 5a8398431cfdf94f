"""Where registers are kept between blocks: two registers that are never needed at once share one array of all lanes.

Compilers name a new register for every value. A block reads what it needs before it writes anything back, so that two
registers conflict only where both are live at one border between blocks: 732 registers of a matrix kernel fit 70 arrays.
"""

from collections.abc import Iterable


def shared_slots(register_bits: list[int], borders: Iterable[set[int]]) -> tuple[list[int], list[int]]:
    """The slot of each register (-1: it never crosses a border) and the width of each slot, in bits.

    borders: the sets of registers that are live at once. Registers of different widths never share.
    """
    neighbours: dict[int, int] = {}
    for mask in {sum(1 << index for index in live) for live in borders}:
        rest = mask
        while rest:
            lowest = rest & -rest
            index = lowest.bit_length() - 1
            neighbours[index] = neighbours.get(index, 0) | mask
            rest ^= lowest
    slots, widths, members = [-1] * len(register_bits), list[int](), list[int]()
    for index in sorted(neighbours):
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
