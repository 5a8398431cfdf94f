"""Barriers of a CTA and of a warp, and fences."""

from typing import Any

from numpy.typing import NDArray

from refsim.ptx.isa.forms import instruction
from refsim.ptx.lanes import Lanes
from refsim.sources import PTX

Array = NDArray[Any]

_SECTION = PTX["bar, barrier"]


@instruction("bar{.cta}.sync a:u32, b:u32?", rendezvous="warp", flow=True, ignores=("cta",), source=_SECTION)
def bar_sync(lanes: Lanes, number: Array, count: Array | None) -> None:
    """Wait until all threads of the CTA, or `count` of them, are at barrier `number`; the warp arrives together."""
    lanes.machine.barriers.arrive(lanes, number, count, wait=True)


@instruction("bar{.cta}.arrive a:u32, b:u32", rendezvous="warp", flow=True, ignores=("cta",), source=_SECTION)
def bar_arrive(lanes: Lanes, number: Array, count: Array) -> None:
    """Arrive without waiting."""
    lanes.machine.barriers.arrive(lanes, number, count, wait=False)


@instruction(
    "bar{.cta}.red.{reduction:popc}.u32 d:u32, a:u32, b:u32?, c:pred",
    rendezvous="warp", flow=True, ignores=("cta", "reduction"), source=_SECTION,
)  # fmt: skip
def bar_popc(lanes: Lanes, number: Array, count: Array | None, value: Array) -> None:
    """Wait, then return how many threads had a true predicate."""
    lanes.machine.barriers.arrive(lanes, number, count, wait=True, value=lanes.full(value))


@instruction(
    "bar{.cta}.red.{reduction:and|or}.pred d:pred, a:u32, b:u32?, c:pred",
    rendezvous="warp", flow=True, ignores=("cta", "reduction"), source=_SECTION,
)  # fmt: skip
def bar_vote(lanes: Lanes, number: Array, count: Array | None, value: Array) -> None:
    """Wait, then return whether all or any of the threads had a true predicate."""
    lanes.machine.barriers.arrive(lanes, number, count, wait=True, value=lanes.full(value))


@instruction("barrier{.cta}.sync.aligned a:u32, b:u32?", rendezvous="warp", flow=True, ignores=("cta",), source=_SECTION)
def barrier_sync_aligned(lanes: Lanes, number: Array, count: Array | None) -> None:
    """The same instruction as bar.sync under its newer name."""
    lanes.machine.barriers.arrive(lanes, number, count, wait=True)


@instruction("barrier{.cta}.sync a:u32, b:u32?", flow=True, ignores=("cta",), source=_SECTION)
def barrier_sync(lanes: Lanes, number: Array, count: Array | None) -> None:
    """Threads of a warp may arrive one by one."""
    lanes.machine.barriers.arrive(lanes, number, count, wait=True)


@instruction("barrier{.cta}.arrive{.aligned} a:u32, b:u32", flow=True, ignores=("cta", "aligned"), source=_SECTION)
def barrier_arrive(lanes: Lanes, number: Array, count: Array) -> None:
    """Arrive without waiting."""
    lanes.machine.barriers.arrive(lanes, number, count, wait=False)


@instruction("bar.warp.sync mask:b32", rendezvous="mask", since="sm_30", source=PTX["bar.warp.sync"])
def bar_warp_sync(lanes: Lanes, mask: Array) -> None:
    """The lanes of the mask meet here."""


@instruction("membar.{level:cta|gl|sys}", ignores=("level",), source=PTX["membar, fence"])
def membar() -> tuple[()]:
    """Memory is sequentially consistent in the simulator: a fence has nothing to order."""
    return ()


@instruction(
    "fence{.sem:sc|acq_rel|acquire|release}.{scope:cta|cluster|gpu|sys}",
    ignores=("sem", "scope"), since="sm_70", source=PTX["membar, fence"],
)  # fmt: skip
def fence() -> tuple[()]:
    """Memory is sequentially consistent in the simulator: a fence has nothing to order."""
    return ()
