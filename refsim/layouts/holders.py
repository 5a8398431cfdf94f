"""The place of an element, by name and in text: warp, lane, value, register and its bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.families import Fragment

WARP, WAVE = 32, 64
BY_THREAD = ("thread", "value")


def warp_lanes(fragment: object) -> int:
    """Return the lanes that run together: 64 on AMD (targets gfx...), 32 on NVIDIA."""
    return WAVE if str(getattr(fragment, "since", "")).startswith("gfx") else WARP


def places(fragment: Fragment, thread: NDArray[np.int64], value: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return the coordinates of a place by name, in display order, each an array of the arguments' shape.

    wgmma.m64n128k32.e4m3.d: thread 37, value 20 is warp 1, lane 5, value 20, thread 37. Tensor memory has a TMEM lane
    and a column. A value that shares its register has the register, too.
    """
    if fragment.units != BY_THREAD:
        return {fragment.units[0]: thread, fragment.units[1]: value}
    lanes = warp_lanes(fragment)
    found = {} if lanes == WAVE else {"warp": thread // lanes}
    found |= {"lane": thread % lanes, "value": value}
    return found | ({"register": value // fragment.per_register} if fragment.per_register > 1 else {})


def bits_of(fragment: Fragment, value: int) -> tuple[int, int]:
    """Return the lowest and the highest bit of a value in its register: (16, 31) for the second bf16 of a pair."""
    low = value % fragment.per_register * fragment.slot_bits + fragment.element_shift
    return low, low + fragment.element_bits - 1


def spoken(layout: object, thread: int, value: int) -> str:
    """Return the holder of a value as text: "warp 1, lane 5, value 20"; `layout` is any layout with a holder."""
    units: Any = getattr(layout, "units", BY_THREAD)
    if units != BY_THREAD:
        return f"{units[0]} {thread}, {units[1]} {value}"
    lanes = warp_lanes(layout)
    warp = "" if lanes == WAVE else f"warp {thread // lanes}, "
    return f"{warp}lane {thread % lanes}, value {value}"
