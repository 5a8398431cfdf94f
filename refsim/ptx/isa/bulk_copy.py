"""Copies of runs of bytes by the copy engine: cp.async.bulk, its reductions and prefetches, and the groups of a
thread."""

from functools import partial
from typing import Any

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.definedness.memory import asked
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.ptx.text.words import pairs_in
from refsim.sources import PTX

_SECTION, _REDUCES = PTX["cp.async.bulk"], PTX["cp.reduce.async.bulk"]
_COUNTED = ".mbarrier::complete_tx::bytes"
# Cache hints change no value.
HINTS = (("", ""), (".L2::cache_hint", ", policy:b64"))
_bulk = partial(instruction, since="sm_90", undefined=asked, source=_SECTION)


for _hint, _policy in HINTS:

    @_bulk(
        f"cp.async.bulk.{{place:shared::cluster|shared::cta}}.global{_COUNTED}{_hint} [a], [b], amount:b32, [bar]{_policy}",
        ignores=("place",),
    )
    def load(lanes: Lanes, to: Array, source: Array, amount: Array, barrier: Array, policy: Any = None) -> None:
        """Start a copy of global bytes to shared memory of a CTA, whose mbarrier counts them."""
        lanes.machine.engine.run(lanes, ("shared", to), ("global", source), amount, barrier=barrier)

    @_bulk(
        f"cp.async.bulk.shared::cluster.global{_COUNTED}.multicast::cluster{_hint} "
        f"[a], [b], amount:b32, [bar], mask:b16{_policy}"
    )
    def load_for_many(
        lanes: Lanes, to: Array, source: Array, amount: Array, barrier: Array, mask: Array, policy: Any = None
    ) -> None:
        """Start a copy of global bytes to one place in every CTA of a mask; each CTA's mbarrier counts its own
        bytes."""
        lanes.machine.engine.run(lanes, ("shared", to), ("global", source), amount, barrier=barrier, mask=mask)

    @_bulk(f"cp.async.bulk.global.shared::cta.bulk_group{_hint} [a], [b], amount:b32{_policy}")
    def store(lanes: Lanes, to: Array, source: Array, amount: Array, policy: Any = None) -> None:
        """Start a copy of shared bytes to global memory, in the thread's current bulk group."""
        lanes.machine.engine.run(lanes, ("global", to), ("shared", source), amount)

    @_bulk(f"cp.async.bulk.prefetch.L2.global{_hint} [a], amount:b32{_policy}", source=PTX["cp.async.bulk.prefetch"])
    def prefetch(lanes: Lanes, address: Array, amount: Array, policy: Any = None) -> None:
        """Check the address of a hint: nothing is read, and nothing is ordered."""
        lanes.machine.engine.hint(lanes, address, amount)


@_bulk(f"cp.async.bulk.shared::cluster.shared::cta{_COUNTED} [a], [b], amount:b32, [bar]")
def send(lanes: Lanes, to: Array, source: Array, amount: Array, barrier: Array) -> None:
    """Start a copy from the CTA's shared memory to another CTA's, whose mbarrier counts the bytes."""
    lanes.machine.engine.run(lanes, ("shared", to), ("shared", source), amount, barrier=barrier)


def _reduction(space: str, types: dict[str, str]) -> None:
    """Register the reductions to a state space: `types` lists the types of each operation."""
    completion = ".bulk_group" if space == "global" else _COUNTED
    barrier = "" if space == "global" else ", [bar]"
    for operation, type in types.items():
        for hint, policy in HINTS if space == "global" else HINTS[:1]:

            @_bulk(
                f"cp.reduce.async.bulk.{space}.shared::cta{completion}{hint}.{operation}.{{type:{type}}} "
                f"[a], [b], amount:b32{barrier}{policy}",
                source=_REDUCES,
            )
            def reduce(
                lanes: Lanes,
                to: Array,
                source: Array,
                amount: Array,
                *rest: Array,
                type: str,
                operation: str = operation.partition(".")[0],
            ) -> None:
                """Start a reduction: combine shared bytes with the contents of their destination, element by
                element."""
                where = space.partition("::")[0]
                bar = None if where == "global" else rest[0]
                engine = lanes.machine.engine
                engine.run(lanes, (where, to), ("shared", source), amount, barrier=bar, reduction=(operation, type))


_reduction(
    "global",
    pairs_in("""
    and:b32|b64 or:b32|b64 xor:b32|b64 add:u32|s32|u64|f32|f64 add.noftz:f16|bf16 min:u32|s32|u64|s64|f16|bf16
    max:u32|s32|u64|s64|f16|bf16 inc:u32 dec:u32
    """),
)
_reduction(
    "shared::cluster", pairs_in("and:b32 or:b32 xor:b32 add:u32|s32|u64 min:u32|s32 max:u32|s32 inc:u32 dec:u32")
)


@instruction("cp.async.bulk.commit_group", since="sm_90", source=PTX["cp.async.bulk.commit_group"])
def commit_group(lanes: Lanes) -> None:
    """Make one bulk group of the thread's operations since its last commit; the group may be empty."""
    lanes.machine.engine.commit(lanes)


@instruction("cp.async.bulk.wait_group{.read} n:b32", since="sm_90", source=PTX["cp.async.bulk.wait_group"])
def wait_group(lanes: Lanes, n: Array, *, read: bool) -> None:
    """Wait until at most the `n` newest of the thread's bulk groups are in flight; with .read, until the others have
    been read."""
    lanes.machine.engine.wait(lanes, int(np.asarray(n)[0]), read=read)
