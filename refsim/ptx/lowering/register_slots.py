"""Where registers are kept between blocks: registers that are never live at once share one array of all lanes.

Compilers name a new register for every value. A block reads before it writes back, so two registers conflict only if
both are live at one border between blocks: 732 registers of a matrix kernel fit 70 arrays.
"""

from collections.abc import Iterable

from refsim.ptx.lowering.liveness import registers_in

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
