"""Clusters: addresses in the shared memory of another CTA, and the barrier of all threads of a cluster."""

from functools import partial

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.memory.space import is_shared, rank_of, with_rank
from refsim.sources import PTX


@instruction("mapa{.space:shared::cluster}.{type:u32|u64} d, a, b:u32", ignores=("type",), since="sm_90")
def mapa(lanes: Lanes, a: Array, b: Array, *, space: str | None) -> Array:
    """Return the address of a variable in the CTA of rank b; generic in and out without a state space."""
    size = lanes.machine.geometry.cluster_ctas
    if (stray := b >= size).any():
        position = int(np.argmax(lanes.full(stray)))
        raise lanes.fault("invalid-operand", position, f"rank {int(lanes.full(b)[position])} of a cluster of {size}")
    _check_shared(lanes, a, space)
    return with_rank(a, b)


@instruction("getctarank{.space:shared::cluster}.{type:u32|u64} d:u32, a", ignores=("type",), since="sm_90")
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
