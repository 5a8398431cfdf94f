"""Find patterns: the positions of the differences, and what the differing values have in common, as sentences."""

import math

import numpy as np
from numpy.typing import NDArray

from refsim.compare.code_line import CodeLine, Codes, distances
from refsim.compare.mismatch import number

CHANCE = 0.005  # a pattern is reported only where random positions would show it less often than this


def place_patterns(flat: NDArray[np.intp], shape: tuple[int, ...]) -> list[str]:
    """Return sentences on the positions of the differences; `flat` are their flat indices in an array of `shape`."""
    total = math.prod(shape)
    if len(flat) == total:
        return ["every element differs"] if total > 1 else []
    if len(flat) == 1:
        ends = {0: "only the first element", total - 1: "only the last element"}
        return [ends[int(flat[0])]] if int(flat[0]) in ends else []
    names = {1: ["index"], 2: ["row", "col"]}.get(len(shape), [f"axis {axis}" for axis in range(len(shape))])
    axes = list(zip(names, np.unravel_index(flat, shape), shape, strict=True))
    distinct = [len(np.unique(coordinates)) for _, coordinates, _ in axes]
    parts = [text for axis in axes for text in _axis_patterns(*axis, whole=math.prod(distinct) == len(flat))]
    return [f"all differences have {' and '.join(parts)}"] if parts else []


def _axis_patterns(name: str, coordinates: NDArray[np.intp], extent: int, *, whole: bool) -> list[str]:
    """Return what coordinates along one axis share; `whole`: the differences fill the grid of their coordinates."""
    present = np.zeros(extent, np.bool_)
    present[coordinates] = True
    distinct = np.flatnonzero(present)
    if len(distinct) == extent:
        return []
    if len(distinct) == 1:
        return [f"{name} = {distinct[0]}"]
    span = _span_pattern(name, distinct, extent, whole=whole)
    residues = _residue_pattern(name, distinct, extent)
    return [text for text in (residues, span) if text]


def _residue_pattern(name: str, distinct: NDArray[np.intp], extent: int) -> str:
    """Return the residue that the coordinates share and that is the least likely by chance: `row % 8 = 3`."""
    best, rarest = "", math.log(CHANCE)
    for modulus in (2, 4, 8, 16, 32, 64, 128, 256):
        hit = np.flatnonzero(np.bincount(distinct % modulus, minlength=modulus))
        if modulus > extent // 2 or len(hit) > min(8, modulus // 2):
            continue
        rarity = math.log(math.comb(modulus, len(hit))) + len(distinct) * math.log(len(hit) / modulus)
        if rarity < rarest:
            listed = f"= {hit[0]}" if len(hit) == 1 else f"in {{{', '.join(map(str, hit))}}}"
            best, rarest = f"{name} % {modulus} {listed}", rarity
    return best


def _span_pattern(name: str, distinct: NDArray[np.intp], extent: int, *, whole: bool) -> str:
    """Return the range that the coordinates lie in, where chance would rarely confine them to it."""
    low, high = int(distinct[0]), int(distinct[-1])
    span = high - low + 1
    filled = span == len(distinct)
    if len(distinct) * math.log(span / extent) > math.log(CHANCE) and not (filled and (whole or span <= extent // 2)):
        return ""
    block = next((size for size in (8, 16, 32, 64, 128, 256) if low // size == high // size), 0)
    if filled:
        place = "the tail, " if high == extent - 1 else ""
        return f"{name} in {low}..{high} ({place}one contiguous range)"
    if high == extent - 1:
        return f"{name} >= {low} (of {extent})"
    return f"{name} // {block} = {low // block}" if block and block < 2 * span else f"{name} in {low}..{high}"


def value_patterns(got: Codes, want: Codes, line: CodeLine) -> list[str]:
    """Return a sentence, or none, on what the values have in common; both arrays hold differing elements only."""
    if (line.is_nan(got) & line.is_nan(want)).all():
        allowed = 'nan="any-payload" allows it, Promise.BITWISE_EXCEPT_NAN_PAYLOAD for a kernel'
        return [f"every difference is the payload of a NaN: {allowed}"]
    if not line.integer and not (line.order(got) | line.order(want)).any():
        return ["every difference is the sign of a zero"]
    if len(got) < 2:
        return []
    digits = (line.bits + 3) // 4
    if (got == got[0]).all():
        return [f"every wrong element is 0x{int(got[0]):0{digits}x} {number(line.value(int(got[0])))}".rstrip()]
    flipped = got ^ want
    if (flipped == flipped[0]).all():
        return [f"every difference is the bit mask 0x{int(flipped[0]):0{digits}x}"]
    steps, unordered = distances(got, want, line)
    if unordered.any():
        return []
    here, there = line.order(got), line.order(want)
    below = here < there
    if (steps == steps[0]).all() and (below == below[0]).all():
        return [f"every difference is {'-' if below[0] else '+'}{int(steps[0])} ulp"]
    if len(got) >= 8 and (below.all() or (here > there).all()):
        return [f"got is {'below' if below[0] else 'above'} want in every difference"]
    return []
