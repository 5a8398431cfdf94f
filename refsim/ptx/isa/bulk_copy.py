"""Copies that go on while threads compute: runs of bytes by the copy engine, cp.async by threads, and the stores and
reductions to another CTA of the cluster, whose mbarrier counts their bytes."""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.ptx.checks.undefined_bits import RuleOperands, defined
from refsim.ptx.checks.undefined_copies import asked
from refsim.ptx.checks.undefined_memory import copied
from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.execution.types import TYPES
from refsim.ptx.isa.atomic import reduction
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.space import WINDOW_SIZE, WINDOWS
from refsim.sources import PTX

Array = NDArray[Any]
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
    {
        "and": "b32|b64",
        "or": "b32|b64",
        "xor": "b32|b64",
        "add": "u32|s32|u64|f32|f64",
        "add.noftz": "f16|bf16",
        "min": "u32|s32|u64|s64|f16|bf16",
        "max": "u32|s32|u64|s64|f16|bf16",
        "inc": "u32",
        "dec": "u32",
    },
)
_reduction(
    "shared::cluster",
    {
        "and": "b32",
        "or": "b32",
        "xor": "b32",
        "add": "u32|s32|u64",
        "min": "u32|s32",
        "max": "u32|s32",
        "inc": "u32",
        "dec": "u32",
    },
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


_SENT = "{.space:shared::cluster}.mbarrier::complete_tx::bytes"


def sent(operands: RuleOperands) -> list[Any]:
    """Demand that addresses and sent values are defined; return the masks of the results."""
    for mask in operands.masks:
        for each in mask if isinstance(mask, list) else [mask]:
            operands.demand(each, "what an asynchronous store is given")
    return defined(operands)


_async = partial(instruction, since="sm_90", undefined=sent)


def _shared(address: Array, space: str | None) -> Array:
    """Return addresses as offsets in the window of shared memory; generic addresses differ from offsets by a
    constant."""
    at, start = address.astype(np.int64), WINDOWS["shared"]
    return at if space else np.where((at >= start) & (at < start + WINDOW_SIZE), at - start, at)


for _vectors, _types in (("v2", "b32|b64|u32|u64|s32|s64|f32|f64"), ("v4", "b32|u32|s32|f32")):
    _form = f"st.async{{.weak}}{_SENT}{{.vec:v2}}" if _vectors == "v2" else f"st.async{{.weak}}{_SENT}.{{vec:v4}}"

    @_async(f"{_form}.{{type:{_types}}} [a], b*, [bar]", ignores=("weak", "vec"), source=PTX["st.async"])
    def store_counted(lanes: Lanes, to: Array, b: list[Array], barrier: Array, *, space: str | None, type: str) -> None:
        """Send the values to shared memory of a CTA, whose mbarrier counts their bytes."""
        row = TYPES[type]
        words = np.stack([lanes.full(column.view(row.bits_dtype)) for column in b], axis=1)
        lanes.machine.engine.send(lanes, _shared(to, space), words, _shared(barrier, space))


for _operations, _types in (
    ("inc|dec", "u32"),
    ("min|max", "u32|s32"),
    ("and|or|xor", "b32"),
    ("add", "u32|s32|u64|s64"),
):

    @_async(
        f"red.async.relaxed.cluster{_SENT}.{{operation:{_operations}}}.{{type:{_types}}} [a], b, [bar]",
        source=PTX["red.async"],
    )
    def reduce(
        lanes: Lanes, to: Array, b: Array, barrier: Array, *, space: str | None, operation: str, type: str
    ) -> None:
        """Send the value to be combined with the contents of a CTA's shared memory; its mbarrier counts the bytes."""
        row, update = TYPES[type], reduction(operation, type)
        assert update is not None
        words = np.ascontiguousarray(lanes.full(b)).view(row.bits_dtype)[:, None]
        lanes.machine.engine.send(lanes, _shared(to, space), words, _shared(barrier, space), update)


SIZES = {"ca": (4, 8, 16), "cg": (16,)}
_THREAD_COPY = PTX["cp.async"]
_STEM = "cp.async.{cop:ca|cg}.{space:shared::cta|shared}.global"
_PREFETCH = "{.prefetch:L2::64B|L2::128B|L2::256B}"
# Cache hints and prefetch sizes change no value.
_HINTS = ("space", "prefetch")
_copy = partial(instruction, ignores=_HINTS, since="sm_80", undefined=copied, source=_THREAD_COPY)


def _start(lanes: Lanes, to: Array, source: Array, bytes_: Array, given: Array, cop: str) -> None:
    """Start copies of `bytes_` bytes that read the first `given` bytes of the source and fill the rest with zeros."""
    count = int(bytes_[0])
    if len(bytes_) != 1 or count not in SIZES[cop]:
        allowed = " or ".join(map(str, SIZES[cop]))
        what = f"cp.async.{cop} of {count} bytes"
        raise lanes.fault("invalid-operand", 0, what, f"PTX ISA, cp.async: {allowed} bytes")
    if (given > count).any():
        lane = int(np.argmax(lanes.full(given) > count))
        what = f"a source of {int(lanes.full(given)[lane])} bytes for a copy of {count}"
        raise lanes.fault("invalid-operand", lane, what, "PTX ISA, cp.async: src-size is at most cp-size")
    lanes.machine.copies.issue(lanes, to, source, count, given)


for _hint, _policy in (("", ""), (".L2::cache_hint", ", policy:b64")):

    @_copy(f"{_STEM}{_hint}{_PREFETCH} [a], [b], bytes:b32, given:b32?{_policy}")
    def cp_async(
        lanes: Lanes, to: Array, source: Array, count: Array, given: Array | None, policy: Any = None, *, cop: str
    ) -> None:
        """Start a copy of `bytes` bytes to shared memory; with a source size, the bytes after it become zero."""
        _start(lanes, to, source, count, count if given is None else given, cop)

    @_copy(f"{_STEM}{_hint}{_PREFETCH} [a], [b], bytes:b32, ignore:pred{_policy}")
    def cp_async_ignoring(
        lanes: Lanes, to: Array, source: Array, count: Array, ignore: Array, policy: Any = None, *, cop: str
    ) -> None:
        """Start a copy of `bytes` bytes to shared memory: where `ignore` is true, zeros, and no source is read."""
        _start(lanes, to, source, count, np.where(ignore, np.uint32(0), count), cop)


@instruction("cp.async.commit_group", since="sm_80", source=PTX["cp.async.commit_group"])
def commit_copies(lanes: Lanes) -> None:
    """Make one group of the thread's copies since its last commit; the group may be empty."""
    lanes.machine.copies.commit(lanes)


@instruction("cp.async.wait_group n:b32", since="sm_80", source=PTX["cp.async.wait_group, cp.async.wait_all"])
def wait_copies(lanes: Lanes, n: Array) -> None:
    """Wait until at most the `n` newest of the thread's groups are in flight."""
    lanes.machine.copies.wait(lanes, int(n[0]))


@instruction("cp.async.wait_all", since="sm_80", source=PTX["cp.async.wait_group, cp.async.wait_all"])
def wait_all_copies(lanes: Lanes) -> None:
    """Wait until all of the thread's copies are complete, committed or not."""
    lanes.machine.copies.wait(lanes, -1)
