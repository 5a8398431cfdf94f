"""Barriers of a CTA, of a warp and of a cluster, fences, the order of launches, and registers that warpgroups pass on.

Memory is sequentially consistent in the simulator: a fence orders accesses for the checks only. Proxies are the paths of
threads, copy engines and tensor cores to memory."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.layouts.tma import MAP_BYTES
from refsim.ptx.checks.undefined_bits import defined
from refsim.ptx.checks.undefined_copies import asked
from refsim.ptx.checks.undefined_warp import reduced
from refsim.ptx.execution.lanes import Lanes, groups
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.access import ASYNC
from refsim.ptx.memory.address import is_shared, rank_of, with_rank
from refsim.ptx.memory.semantics import SCOPES, Semantics
from refsim.sources import PTX

Array = NDArray[Any]

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
    if lanes.machine.races is not None:
        lanes.machine.races.orders.warp_met(lanes.ids, groups(lanes, mask), lanes.statement)


@instruction("membar.{level:cta|gl|sys}", ignores=("level",), source=PTX["membar, fence"])
def membar(lanes: Lanes) -> None:
    """Order accesses for the race check only: memory is sequentially consistent in the simulator."""
    _fence(lanes)


@instruction(
    "fence{.sem:sc|acq_rel|acquire|release}.{scope:cta|cluster|gpu|sys}",
    ignores=("sem", "scope"),
    since="sm_70",
    later=dict.fromkeys(("cluster", "acquire", "release"), "sm_90"),
    source=PTX["membar, fence"],
)
def fence(lanes: Lanes) -> None:
    """Order accesses for the race check only: memory is sequentially consistent in the simulator."""
    _fence(lanes)


def _fence(lanes: Lanes) -> None:
    if lanes.machine.races is not None:
        lanes.machine.races.orders.fence(lanes.ids, lanes.semantics, lanes.statement)


@instruction("griddepcontrol.launch_dependents", flow=True, since="sm_90", source=PTX["griddepcontrol"])
def launch_dependents(lanes: Lanes) -> None:
    """Allow the next launch to begin as soon as every block has executed this or exited."""
    lanes.machine.launches.let_others_begin(lanes)


@instruction("griddepcontrol.wait", flow=True, since="sm_90", source=PTX["griddepcontrol"])
def wait_for_launches(lanes: Lanes) -> None:
    """Wait until the earlier launches are complete and their writes visible."""
    lanes.machine.launches.wait(lanes)


_FENCES = PTX["membar, fence"]
_proxy_fence = partial(instruction, since="sm_90", source=_FENCES)


@instruction("fence.proxy.alias", since="sm_70", source=_FENCES)
def fence_alias() -> tuple[()]:
    """Change nothing: two addresses of one place are one place in the simulator at any time."""
    return ()


@_proxy_fence("fence.proxy.async{.space:global|shared::cta|shared::cluster}")
def fence_async(lanes: Lanes, *, space: str | None) -> None:
    """Order the accesses of threads and asynchronous units, to memory or to one state space of it."""
    _between(lanes, ASYNC, space)


for _form, _window in (
    ("acquire.sync_restrict::shared::cluster", "shared::cluster"),
    ("release.sync_restrict::shared::cta", "shared::cta"),
):

    @_proxy_fence(f"fence.proxy.async::generic.{_form}.cluster")
    def fence_one_way(lanes: Lanes, *, window: str = _window) -> None:
        """Order accesses in one direction, in shared memory only; the simulator orders both directions."""
        _between(lanes, ASYNC, window)

    @_proxy_fence(f"fence.{_form}.cluster")
    def fence_restricted(lanes: Lanes) -> None:
        """Order accesses to the cluster's shared memory; the simulator orders all memory."""
        _ordered(lanes, lanes.semantics)


@_proxy_fence("fence.proxy.tensormap::generic.release.{scope:cta|cluster|gpu|sys}")
def fence_map_released(lanes: Lanes, *, scope: str) -> None:
    """Release the known changes of tensor maps to threads of the scope that acquire them afterwards."""
    release_maps(lanes, scope)


def release_maps(lanes: Lanes, scope: str) -> None:
    """Release tensor maps, which is a fence of threads as well."""
    _ordered(lanes, Semantics(True, releases=True, scope=SCOPES[scope]))
    if lanes.machine.proxies is not None:
        assert lanes.statement is not None
        lanes.machine.proxies.maps_released(lanes.ids, lanes.statement, SCOPES[scope])


@_proxy_fence("fence.proxy.tensormap::generic.acquire.{scope:cta|cluster|gpu|sys} [a], size:b32", undefined=asked)
def fence_map_acquired(lanes: Lanes, address: Array, size: Array, *, scope: str) -> None:
    """Acquire the tensor map at an address as released; copies may use it from here on, but no other changed map."""
    if (stray := lanes.full(size) != MAP_BYTES).any():
        raise lanes.fault("invalid-operand", int(np.argmax(stray)), f"a fence of a tensor map of {int(size[0])} bytes")
    places = lanes.full(address)
    for part, name, at, _ in lanes.parts("generic", places):
        if name != "global":
            what = f"a fence of the tensor map at {name} address {int(at[0]):#x}"
            raise part.fault("invalid-operand", 0, what, f"{_FENCES}: the address is one of global memory")
    _ordered(lanes, Semantics(True, acquires=True, scope=SCOPES[scope]))
    if lanes.machine.proxies is not None:
        assert lanes.statement is not None
        lanes.machine.proxies.map_acquired(lanes.ids, lanes.statement, SCOPES[scope], places)


def _ordered(lanes: Lanes, meaning: Semantics) -> None:
    if lanes.machine.races is not None:
        lanes.machine.races.orders.fence(lanes.ids, meaning, lanes.statement)


def _between(lanes: Lanes, proxy: str, space: str | None) -> None:
    if lanes.machine.proxies is not None:
        assert lanes.statement is not None
        lanes.machine.proxies.fence(lanes.ids, lanes.statement, proxy, space)


@_proxy_fence("fence.mbarrier_init.release.cluster")
def fence_mbarrier_init(lanes: Lanes) -> None:
    """Release the mbarriers that these threads initialized to the cluster, which may use them after its next cluster
    barrier, even a relaxed one."""
    if lanes.machine.races is not None:
        lanes.machine.races.inits_fenced(lanes.ids)


@instruction(
    "mapa{.space:shared::cluster}.{type:u32|u64} d, a, b:u32", ignores=("type",), since="sm_90", source=PTX["mapa"]
)
def mapa(lanes: Lanes, a: Array, b: Array, *, space: str | None) -> Array:
    """Return the address of a variable in the CTA of rank b; generic in and out without a state space."""
    size = lanes.machine.geometry.cluster_ctas
    if (stray := b >= size).any():
        position = int(np.argmax(lanes.full(stray)))
        raise lanes.fault("invalid-operand", position, f"rank {int(lanes.full(b)[position])} of a cluster of {size}")
    _check_shared(lanes, a, space)
    return with_rank(a, b)


@instruction(
    "getctarank{.space:shared::cluster}.{type:u32|u64} d:u32, a",
    ignores=("type",),
    since="sm_90",
    source=PTX["getctarank"],
)
def getctarank(lanes: Lanes, a: Array, *, space: str | None) -> Array:
    """Return the rank of the CTA whose shared memory holds the address."""
    _check_shared(lanes, a, space)
    return rank_of(a).astype(np.uint32)


def _check_shared(lanes: Lanes, address: Array, space: str | None) -> None:
    if space is None and not (inside := is_shared(address)).all():
        position = int(np.argmin(lanes.full(inside)))
        at = int(lanes.full(address)[position])
        raise lanes.fault("invalid-operand", position, f"generic address {at:#x} is not in shared memory")


def _barrier(suffix: str, rendezvous: str | None) -> None:
    """Register barrier.cluster with a suffix (`.aligned` or none) and the lanes that must meet first."""
    cluster = partial(instruction, rendezvous=rendezvous, flow=True, since="sm_90", source=PTX["barrier.cluster"])

    @cluster(f"barrier.cluster.arrive{{.order:release|relaxed}}{suffix}")
    def arrive(lanes: Lanes, *, order: str | None) -> None:
        """Arrive at the cluster's barrier without waiting; earlier accesses are released unless it is `.relaxed`."""
        lanes.machine.cluster_barrier.arrive(lanes, releases=order != "relaxed")

    @cluster(f"barrier.cluster.wait{{.acquire}}{suffix}", ignores=("acquire",))
    def wait(lanes: Lanes) -> None:
        """Wait until all threads of the cluster that have not exited have arrived."""
        lanes.machine.cluster_barrier.wait(lanes)


for _suffix, _rendezvous in ((".aligned", "warp"), ("", None)):
    _barrier(_suffix, _rendezvous)


@instruction(
    "setmaxnreg.{action:inc|dec}.sync.aligned.u32 registers:u32",
    rendezvous="warp",
    flow=True,
    since="sm_90a",
    source=PTX["setmaxnreg"],
)
def setmaxnreg(lanes: Lanes, registers: Array, *, action: str) -> None:
    """Set the warp's number of registers per thread: release registers, or wait until its block has enough."""
    lanes.machine.register_pool.change(lanes, int(registers[0]), grows=action == "inc")
