"""Barriers of a CTA and of a warp, fences, and the order of launches."""

from functools import partial

from refsim.ptx import events
from refsim.ptx.execution.lanes import Lanes, groups
from refsim.ptx.isa.definedness.bits import defined
from refsim.ptx.isa.definedness.warp import reduced
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_SECTION = PTX["bar, barrier"]

# bar is barrier.aligned under its older name: the warp arrives together, all lanes at one instruction. Without .aligned
# the lanes of a warp may come from different instructions; the warp counts once all its running lanes have arrived.
_ALIGNED = (("bar{.cta}.", ".", "warp"), ("barrier{.cta}.", ".aligned.", "warp"), ("barrier{.cta}.", ".", None))


def _family(name: str, suffix: str, rendezvous: str | None) -> None:
    """Register sync, arrive and both reductions of a barrier spelling."""
    tail = suffix.removesuffix(".")
    barrier = partial(instruction, rendezvous=rendezvous, flow=True, ignores=("cta",), source=_SECTION)

    @barrier(f"{name}sync{tail} a:u32, b:u32?")
    def sync(lanes: Lanes, number: Array, count: Array | None) -> None:
        """Wait until all threads of the CTA, or `count` of them, are at barrier `number`."""
        lanes.machine.barriers.arrive(lanes, number, count, wait=True)

    @barrier(f"{name}arrive{tail} a:u32, b:u32")
    def arrive(lanes: Lanes, number: Array, count: Array) -> None:
        """Arrive without waiting for other warps."""
        lanes.machine.barriers.arrive(lanes, number, count, wait=False)

    @barrier(
        f"{name}red.{{reduction:and|or}}{suffix}pred d:pred, a:u32, b:u32?, c:pred",
        ignores=("cta", "reduction"),
        undefined=reduced,
    )
    @barrier(
        f"{name}red.{{reduction:popc}}{suffix}u32 d:u32, a:u32, b:u32?, c:pred",
        ignores=("cta", "reduction"),
        undefined=reduced,
    )
    def reduce(lanes: Lanes, number: Array, count: Array | None, value: Array) -> None:
        """Wait, then return how many threads had a true predicate (popc), or whether all or any had one (and, or)."""
        lanes.machine.barriers.arrive(lanes, number, count, wait=True, value=lanes.full(value))


for _name, _suffix, _rendezvous in _ALIGNED:
    _family(_name, _suffix, _rendezvous)


@instruction("bar.warp.sync mask:b32", rendezvous="mask", undefined=defined, source=PTX["bar.warp.sync"])
def bar_warp_sync(lanes: Lanes, mask: Array) -> None:
    """Let the lanes of the mask meet: accesses of each lane before this are ordered before accesses of any lane after
    it."""
    if events.MEET_WARPS in lanes.machine.heard:
        lanes.emit(events.MEET_WARPS, payload=groups(lanes, mask))


@instruction("membar.{level:cta|gl|sys}", ignores=("level",), source=PTX["membar, fence"])
def membar(lanes: Lanes) -> None:
    """Order accesses for the race check only: memory is sequentially consistent in the simulator."""
    lanes.emit(events.FENCE, lanes.semantics)


@instruction(
    "fence{.sem:sc|acq_rel|acquire|release}.{scope:cta|cluster|gpu|sys}",
    ignores=("sem", "scope"),
    since="sm_70",
    later=dict.fromkeys(("cluster", "acquire", "release"), "sm_90"),
    source=PTX["membar, fence"],
)
def fence(lanes: Lanes) -> None:
    """Order accesses for the race check only: memory is sequentially consistent in the simulator."""
    lanes.emit(events.FENCE, lanes.semantics)


@instruction("griddepcontrol.launch_dependents", flow=True, since="sm_90")
def launch_dependents(lanes: Lanes) -> None:
    """Allow the next launch to begin as soon as every block has executed this or exited."""
    lanes.machine.launches.let_others_begin(lanes)


@instruction("griddepcontrol.wait", flow=True, since="sm_90")
def wait_for_launches(lanes: Lanes) -> None:
    """Wait until the earlier launches are complete and their writes visible."""
    lanes.machine.launches.wait(lanes)
