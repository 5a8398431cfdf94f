"""Fences between the proxies, which are the paths of threads, copy engines and tensor cores to memory.

Other fences here make the initialization of an mbarrier visible to its cluster. Memory is sequentially consistent in
the simulator: a fence orders accesses for the checks only.
"""

from functools import partial

import numpy as np

from refsim.layouts.tma import MAP_BYTES
from refsim.ptx import events
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.definedness.memory import asked
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.access import ASYNC, SCOPES, Semantics
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

_SECTION = PTX["membar, fence"]
_fence = partial(instruction, since="sm_90", source=_SECTION)


@instruction("fence.proxy.alias", since="sm_70", source=_SECTION)
def fence_alias() -> tuple[()]:
    """Change nothing: two addresses of one place are one place in the simulator at any time."""
    return ()


@_fence("fence.proxy.async{.space:global|shared::cta|shared::cluster}")
def fence_async(lanes: Lanes, *, space: str | None) -> None:
    """Order the accesses of threads and asynchronous units, to memory or to one state space of it."""
    lanes.emit(events.PROXY_FENCE, payload=(ASYNC, space))


for _form, _window in (
    ("acquire.sync_restrict::shared::cluster", "shared::cluster"),
    ("release.sync_restrict::shared::cta", "shared::cta"),
):

    @_fence(f"fence.proxy.async::generic.{_form}.cluster")
    def fence_one_way(lanes: Lanes, *, window: str = _window) -> None:
        """Order accesses in one direction, in shared memory only; the simulator orders both directions."""
        lanes.emit(events.PROXY_FENCE, payload=(ASYNC, window))

    @_fence(f"fence.{_form}.cluster")
    def fence_restricted(lanes: Lanes) -> None:
        """Order accesses to the cluster's shared memory; the simulator orders all memory."""
        lanes.emit(events.FENCE, lanes.semantics)


@_fence("fence.proxy.tensormap::generic.release.{scope:cta|cluster|gpu|sys}")
def fence_map_released(lanes: Lanes, *, scope: str) -> None:
    """Release the known changes of tensor maps to threads of the scope that acquire them afterwards."""
    release_maps(lanes, scope)


def release_maps(lanes: Lanes, scope: str) -> None:
    """Release tensor maps, which is a fence of threads as well."""
    lanes.emit(events.FENCE, Semantics(True, releases=True, scope=SCOPES[scope]))
    lanes.emit(events.RELEASE_MAP, payload=(SCOPES[scope], None))


@_fence("fence.proxy.tensormap::generic.acquire.{scope:cta|cluster|gpu|sys} [a], size:b32", undefined=asked)
def fence_map_acquired(lanes: Lanes, address: Array, size: Array, *, scope: str) -> None:
    """Acquire the tensor map at an address as released; copies may use it from here on, but no other changed map."""
    if (stray := lanes.full(size) != MAP_BYTES).any():
        raise lanes.fault("invalid-operand", int(np.argmax(stray)), f"a fence of a tensor map of {int(size[0])} bytes")
    places = lanes.full(address)
    for part, name, at, _ in lanes.parts("generic", places):
        if name != "global":
            what = f"a fence of the tensor map at {name} address {int(at[0]):#x}"
            raise part.fault("invalid-operand", 0, what, f"{_SECTION}: the address is one of global memory")
    lanes.emit(events.FENCE, Semantics(True, acquires=True, scope=SCOPES[scope]))
    lanes.emit(events.ACQUIRE_MAP, payload=(SCOPES[scope], places))


@_fence("fence.mbarrier_init.release.cluster")
def fence_mbarrier_init(lanes: Lanes) -> None:
    """Release the mbarriers that these threads initialized to the cluster, which may use them after its next cluster
    barrier, even a relaxed one."""
    lanes.emit(events.FENCE_INITS)
