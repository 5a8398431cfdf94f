"""Special registers: where a thread stands in its launch, and clocks that no program may rely on."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from refsim.errors import RefsimError

if TYPE_CHECKING:
    from refsim.ptx.machine.scheduler import Machine

AXES = "xyz"


def special_register(machine: "Machine", name: str) -> NDArray[Any]:
    """A special register over all lanes, or (1,) where it is the same for all.

    Source: PTX ISA, special registers. Timers count scheduler steps, which no program may rely on.
    """
    geometry = machine.geometry
    stem, _, axis = name[1:].partition(".")
    if axis and axis not in AXES:
        raise _unmodelled(name)
    at = AXES.find(axis) if axis else 0
    uniform: dict[str, int] = {
        "nctaid": geometry.grid[at], "ntid": geometry.block[at], "nwarpid": geometry.warps, "nsmid": 132, "gridid": 0,
        "clock": machine.clock, "clock_hi": 0, "clock64": machine.clock, "globaltimer": machine.clock,
        "globaltimer_lo": machine.clock, "globaltimer_hi": 0, "cluster_ctaid": 0, "cluster_nctaid": 1,
        "cluster_ctarank": 0, "cluster_nctarank": 1, "is_explicit_cluster": 0, "nclusterid": geometry.grid[at],
        "dynamic_smem_size": machine.symbols.get("%dynamic_smem_size", 0),
        "total_smem_size": machine.symbols.get("%total_smem_size", 0), "reserved_smem_offset_begin": 0,
    }  # fmt: skip
    if stem in uniform:
        wide = stem in ("gridid", "clock64", "globaltimer")
        return np.array([uniform[stem]], np.uint64 if wide else np.uint32)
    shapes = {"tid": (geometry.thread, geometry.block), "ctaid": (geometry.cta + geometry.first, geometry.grid)}
    if stem in shapes or stem == "clusterid":
        index, shape = shapes["ctaid" if stem == "clusterid" else stem]
        divisor = (1, shape[0], shape[0] * shape[1])[at]
        values = (index // divisor % shape[at]).astype(np.uint32)
        return values[:1] if shape[at] == 1 or (stem != "tid" and geometry.count == 1) else values
    if stem == "laneid":
        return geometry.laneid.astype(np.uint32)
    if stem == "warpid":
        return (geometry.thread // 32).astype(np.uint32)
    if stem == "smid":
        return ((geometry.cta + geometry.first) % 132).astype(np.uint32)
    if stem.startswith("lanemask_"):
        lane = np.uint64(1) << geometry.laneid.astype(np.uint64)
        masks = {"eq": lane, "lt": lane - 1, "le": 2 * lane - 1, "gt": ~(2 * lane - 1), "ge": ~(lane - 1)}
        if stem[9:] in masks:
            return (masks[stem[9:]] & np.uint64(0xFFFFFFFF)).astype(np.uint32)
    raise _unmodelled(name)


def _unmodelled(name: str) -> RefsimError:
    return RefsimError(
        "unknown-special-register", f"the simulator does not model {name}", rule="PTX ISA, special registers"
    )
