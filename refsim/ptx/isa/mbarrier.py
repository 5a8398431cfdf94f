"""mbarrier objects: barriers in shared memory where threads and copies arrive, and whose phases threads wait for."""

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.definedness.bits import RuleOperands, defined
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.access import CLUSTER, CTA, Semantics
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

BARRIER = "what an mbarrier is given"
_ONE = np.ones(1, np.uint32)
_ARRIVING = ".{sem:release|relaxed}.{scope:cta|cluster}"
_LATER = {"relaxed": "sm_90", "cluster": "sm_90"}
_LOCAL = "{.space:shared::cta|shared}"
_ANY = "{.space:shared::cta|shared::cluster|shared}"


def decided(operands: RuleOperands) -> list[Any]:
    """Demand that addresses, counts, states and parities are defined; return the masks of the results. The time limit
    of a wait may be undefined."""
    for name, mask in zip(operands.names, operands.masks, strict=True):
        if name != "time":
            operands.demand(mask, BARRIER)
    return defined(operands)


def _space(space: str | None) -> str:
    return "generic" if space is None else "shared"


def _meaning(sem: str | None, scope: str | None, *, waits: bool = False) -> Semantics:
    """Return the semantics: an arrival releases and a wait acquires unless relaxed, for the CTA unless a scope is
    given."""
    orders = sem != "relaxed"
    return Semantics(True, orders and waits, orders and not waits, CLUSTER if scope == "cluster" else CTA, True)


_mbarrier = partial(instruction, since="sm_80", undefined=decided)


@_mbarrier(f"mbarrier.init{_LOCAL}.b64 [a], count:b32", source=PTX["mbarrier.init"])
def init(lanes: Lanes, address: Array, count: Array, *, space: str | None) -> None:
    """Begin phase 0, which `count` arrivals complete."""
    lanes.machine.mbarriers.init(lanes, _space(space), address, count)


@_mbarrier(f"mbarrier.inval{_LOCAL}.b64 [a]", source=PTX["mbarrier.inval"])
def inval(lanes: Lanes, address: Array, *, space: str | None) -> None:
    """End the object; its bytes may hold other data."""
    lanes.machine.mbarriers.invalidate(lanes, _space(space), address)


@instruction("mbarrier.pending_count.b64 d:b32, state:b64", since="sm_80", source=PTX["mbarrier.pending_count"])
def pending_count(state: Array) -> Array:
    """Return the number of arrivals that were pending before the arrival that returned the state."""
    return (state & np.uint64((1 << 20) - 1)).astype(np.uint32)


def _arrivals(name: str, place: str, result: str) -> None:
    """Register arrivals on objects of a place: the CTA itself, which returns the state, or any CTA of the cluster (no
    state)."""
    drop, section, here = name == "arrive_drop", PTX[f"mbarrier.{name}"], place == _LOCAL
    first = "sm_80" if here else "sm_90"

    def come(lanes: Lanes, address: Array, count: Array | None, sem: Any, scope: Any, space: Any, **how: Any) -> Array:
        """Arrive `count` times, by default once."""
        number, where = _ONE if count is None else count, _space(space) if here else "shared"
        return lanes.machine.mbarriers.arrive(lanes, where, address, number, _meaning(sem, scope), drop=drop, **how)

    for words in ("", _ARRIVING):
        told = partial(instruction, later=_LATER, undefined=decided, source=section)
        arrival = f"mbarrier.{name}{words}{place}.b64 {result}, [a]"

        @told(f"{arrival}, count:b32", since="sm_90")
        @told(arrival, since=first)
        def arrive(
            lanes: Lanes,
            address: Array,
            count: Array | None = None,
            *,
            sem: str | None = None,
            scope: str | None = None,
            space: str | None = None,
        ) -> Array:
            """Arrive `count` times or once, a release unless it is relaxed; return the state of the phase before."""
            return come(lanes, address, count, sem, scope, space)

        @told(f"mbarrier.{name}.expect_tx{words}{place}.b64 {result}, [a], transactions:b32", since="sm_90")
        def arrive_expecting(
            lanes: Lanes,
            address: Array,
            transactions: Array,
            *,
            sem: str | None = None,
            scope: str | None = None,
            space: str | None = None,
        ) -> Array:
            """Let the phase wait for `transactions` more bytes, then arrive once."""
            return come(lanes, address, None, sem, scope, space, transactions=transactions)


def _partial_arrivals(name: str) -> None:
    """Register arrivals that must not complete the phase."""
    for words in ("", ".release.cta"):

        @_mbarrier(
            f"mbarrier.{name}.noComplete{words}{_LOCAL}.b64 d:b64, [a], count:b32", source=PTX[f"mbarrier.{name}"]
        )
        def arrive_inside(lanes: Lanes, address: Array, count: Array, *, space: str | None) -> Array:
            """Arrive `count` times without completing the phase, which would be a fault."""
            drop, meaning = name == "arrive_drop", _meaning(None, None)
            return lanes.machine.mbarriers.arrive(
                lanes, _space(space), address, count, meaning, drop=drop, completes=False
            )


for _name in ("arrive", "arrive_drop"):
    _arrivals(_name, _LOCAL, "d:b64")
    _arrivals(_name, ".shared::cluster", "dsink:b64")
    _partial_arrivals(_name)

for _operation, _sign in (("expect_tx", 1), ("complete_tx", -1)):
    for _words in ("", ".relaxed.{scope:cta|cluster}"):

        @instruction(
            f"mbarrier.{_operation}{_words}{_ANY}.b64 [a], amount:b32",
            ignores=("scope",),
            since="sm_90",
            undefined=decided,
            source=PTX[f"mbarrier.{_operation}"],
        )
        def change(lanes: Lanes, address: Array, amount: Array, *, space: str | None, sign: int = _sign) -> None:
            """Change the number of bytes that the phase waits for; nothing is ordered."""
            lanes.machine.mbarriers.change_transactions(lanes, _space(space), address, amount, sign)


def _waits(name: str, since: str, hint: str) -> None:
    """Register the waits of a name for a state or a parity."""
    acquiring = ".{sem:acquire|relaxed}.{scope:cta|cluster}"
    for words, (kind, asked) in product(("", acquiring), (("", "state:b64"), (".parity", "parity:b32"))):

        @instruction(
            f"mbarrier.{name}{kind}{words}{_LOCAL}.b64 d:pred, [a], {asked}{hint}",
            since=since,
            later=_LATER,
            undefined=decided,
            source=PTX[f"mbarrier.{name}"],
        )
        def wait(
            lanes: Lanes,
            address: Array,
            asked: Array,
            time: Array | None = None,
            *,
            sem: str | None = None,
            scope: str | None = None,
            space: str | None,
            parity: bool = kind != "",
        ) -> Array:
            """Return whether the phase of a state, or of a parity, is complete; True is an acquire."""
            meaning = _meaning(sem, scope, waits=True)
            return lanes.machine.mbarriers.test(lanes, _space(space), address, asked, meaning, parity=parity)


_waits("test_wait", "sm_80", "")
_waits("try_wait", "sm_90", ", time:b32?")


@_mbarrier(f"cp.async.mbarrier.arrive{{.noinc}}{_LOCAL}.b64 [a]", source=PTX["cp.async.mbarrier.arrive"])
def arrive_after_copies(lanes: Lanes, address: Array, *, noinc: bool, space: str | None) -> None:
    """Arrive once the thread's earlier copies are complete; without .noinc the phase waits for one more arrival."""
    lanes.machine.mbarriers.arrive_after_copies(lanes, _space(space), address, increments=not noinc)
