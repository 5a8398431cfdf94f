"""Special registers: the position of a thread in its launch, and clocks that no program may rely on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError
from refsim.ptx.execution.context import Context
from refsim.ptx.execution.geometry import Geometry, Ids, Shape
from refsim.ptx.machine.limits import limits_of

AXES = "xyz"
_LOW = 0xFFFFFFFF


def special_register(machine: Context, name: str) -> NDArray[Any]:
    """Return a special register over all lanes, or (1,) if it is equal for all. Source: PTX ISA, special registers.
    Timers count scheduler steps from a start time of each schedule; no program may rely on either."""
    geometry = machine.geometry
    stem, _, axis = name[1:].partition(".")
    if axis and axis not in AXES:
        raise _unmodelled(name)
    at, sms = AXES.find(axis) if axis else 0, limits_of(machine.target).sms
    time = machine.clock_began + machine.clock
    uniform: dict[str, int] = {
        "nctaid": geometry.grid[at],
        "ntid": geometry.block[at],
        "nwarpid": geometry.warps,
        "nsmid": sms,
        "gridid": 0,
        "clock": time & _LOW,
        "clock_hi": time >> 32,
        "clock64": time,
        "globaltimer": time,
        "globaltimer_lo": time & _LOW,
        "globaltimer_hi": time >> 32,
        "cluster_nctaid": geometry.cluster[at],
        "cluster_nctarank": geometry.cluster_ctas,
        "nclusterid": geometry.grid[at] // geometry.cluster[at],
        "dynamic_smem_size": machine.symbols.get("%dynamic_smem_size", 0),
        "total_smem_size": machine.symbols.get("%total_smem_size", 0),
        "reserved_smem_offset_begin": 0,
    }
    if stem.startswith("envreg") and stem[6:].isdigit() and int(stem[6:]) < 32:
        return np.array([machine.symbols.get(name, 0)], np.uint32)
    if stem == "is_explicit_cluster":
        return np.array([geometry.is_explicit_cluster])
    if stem in uniform:
        wide = stem in ("gridid", "clock64", "globaltimer")
        return np.array([uniform[stem]], np.uint64 if wide else np.uint32)
    if stem == "tid":
        threads = axis_of(geometry.thread, geometry.block, at)
        return threads[:1] if geometry.block[at] == 1 else threads
    if (ctas := _of_ctas(geometry, stem, at, sms)) is not None:
        return ctas if len(ctas) == 1 else ctas[geometry.cta]
    if stem == "laneid":
        return geometry.laneid.astype(np.uint32)
    if stem == "warpid":
        return (geometry.thread // 32).astype(np.uint32)
    if stem.startswith("lanemask_"):
        lane = np.uint64(1) << geometry.laneid.astype(np.uint64)
        masks = {"eq": lane, "lt": lane - 1, "le": 2 * lane - 1, "gt": ~(2 * lane - 1), "ge": ~(lane - 1)}
        if stem[9:] in masks:
            return (masks[stem[9:]] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    raise _unmodelled(name)


def _of_ctas(geometry: Geometry, stem: str, at: int, sms: int) -> NDArray[np.uint32] | None:
    """Return a register that all threads of a CTA share, one element per CTA or (1,); None for any other."""
    numbers = geometry.numbers
    match stem:
        case "ctaid":
            values = axis_of(numbers, geometry.grid, at)
        case "clusterid":
            values = axis_of(numbers, geometry.grid, at) // geometry.cluster[at]
        case "cluster_ctaid":
            values = axis_of(numbers, geometry.grid, at) % geometry.cluster[at]
        case "cluster_ctarank":
            values = geometry.ranks
        case "smid":
            values = numbers % sms
        case _:
            return None
    found = values.astype(np.uint32)
    return found[:1] if (found == found[0]).all() else found


def axis_of(numbers: Ids, shape: Shape, at: int) -> Ids:
    """Return the index along axis `at` of items numbered with x fastest."""
    return numbers // (1, shape[0], shape[0] * shape[1])[at] % shape[at]


def _unmodelled(name: str) -> RefsimError:
    return RefsimError("unsupported-feature", f"the simulator does not model {name}", rule="PTX ISA, special registers")
