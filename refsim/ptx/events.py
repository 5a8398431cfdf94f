"""The events of a launch: one record for each thing that lanes do by one instruction, and who hears of which."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from refsim.ptx.memory.access import WEAK, Semantics
from refsim.ptx.memory.arrays import Array, Bools
from refsim.ptx.text.syntax import NO_STATEMENT, Statement
from refsim.ptx.text.words import words_in

FENCE, ACCESS, MEET_CTA, MEET_WARPS, CONVERGE, ARRIVE, LEAVE, PASSED = words_in(
    "fence access meet_cta meet_warps converge arrive leave passed"
)
CLUSTER_ARRIVE, CLUSTER_FINISH, CLUSTER_WAIT = words_in("cluster_arrive cluster_finish cluster_wait")
PROXY_FENCE, RELEASE_MAP, ACQUIRE_MAP, USE_MAP, FENCE_INITS = words_in(
    "proxy_fence release_map acquire_map use_map fence_inits"
)
MBARRIER_INIT, MBARRIER_END, MBARRIER_TOUCH, MBARRIER_ARRIVE, MBARRIER_ASK, MBARRIER_COME = words_in(
    "mbarrier_init mbarrier_end mbarrier_touch mbarrier_arrive mbarrier_ask mbarrier_come"
)
MBARRIER_OBSERVE, MBARRIER_PASS = "mbarrier_observe", "mbarrier_pass"
COPY_BEGIN, COPY_END, SOURCE_READ, SOURCE_FREE, WAIT_COPIES, WAIT_BULK = words_in(
    "copy_begin copy_end source_read source_free wait_copies wait_bulk"
)
EXIT, END, LAUNCH_WAIT, LAUNCH_NEXT, RENEW = words_in("exit end launch_wait launch_next renew")


@dataclass(frozen=True, slots=True, eq=False)
class LaunchEvent:
    """One action of lanes by a statement.

    `payload` depends on the verb. ACCESS: `AccessPlaces`. MEET_WARPS, CONVERGE: the group of each lane, None for
    whole warps. ARRIVE, LEAVE: a barrier (CTA * 16 + number). PASSED: `Passing`; its `lanes` are warps.
    CLUSTER_ARRIVE: the living lanes. CLUSTER_FINISH: the clusters. PROXY_FENCE: the proxy and the state space.
    RELEASE_MAP, ACQUIRE_MAP: the scope, and the addresses of maps or None. USE_MAP: the access, the address, and
    whether an earlier launch made the map. RENEW: a region of global memory, and the first and last byte that were
    allocated anew. MBARRIER_INIT, MBARRIER_ARRIVE, MBARRIER_PASS: the object's byte in the flat shared memory.
    MBARRIER_END, MBARRIER_TOUCH: the access and that byte. MBARRIER_ASK, MBARRIER_COME: that byte, and the arrival
    that waits for asynchronous work of its lanes. MBARRIER_OBSERVE: that byte, the lanes of each cp.async that
    arrived, and for each agent of copy engines its newest access. COPY_BEGIN, COPY_END: the items of shared memory
    that an asynchronous copy writes, their width, and the proxy of a reduction. SOURCE_READ: the access, and the
    lane or the mbarrier that knows of its end. SOURCE_FREE: the access. WAIT_BULK: lane and access number of each
    write.
    """

    verb: str
    lanes: Array
    statement: Statement = NO_STATEMENT
    meaning: Semantics = WEAK
    payload: Any = None


@dataclass(frozen=True, eq=False)
class AccessPlaces:
    """The byte positions of an access's lanes in a space, and which of them `wrote` (None: all). `first`: the first
    running CTA for shared memory, which every CTA has anew; 0 for global memory."""

    kind: str
    space: str
    at: Array
    wrote: Bools | None
    first: int

    @cached_property
    def keys(self) -> list[tuple[str, int]]:
        """Return a key for the location of each lane that is unique in the launch."""
        return [(self.space, at) for at in (self.at + (self.first << 32)).tolist()]


class Passing(NamedTuple):
    """Warps that pass barriers `slot` (CTA * 16 + number); those that `waited` come after all that arrived there.
    `everyone`: for each barrier, how many warps must wait for the whole CTA to take part. `at`: program counters."""

    slot: Array
    waited: Bools
    everyone: Array
    at: Array


Hear = Callable[[LaunchEvent], None]


def heard_by(subscribers: Iterable[Mapping[str, Hear]]) -> Mapping[str, tuple[Hear, ...]]:
    """Return the functions that hear the events of each verb, in the order of their subscribers."""
    found: dict[str, tuple[Hear, ...]] = {}
    for functions in subscribers:
        for verb, function in functions.items():
            found[verb] = (*found.get(verb, ()), function)
    return found
