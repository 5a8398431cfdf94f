"""cp.async: copies from global to shared memory that continue while the thread computes, in groups it can wait for."""

from functools import partial
from typing import Any

import numpy as np

from refsim.ptx.execution.lanes import Lanes
from refsim.ptx.isa.definedness.memory import copied
from refsim.ptx.isa.forms import instruction
from refsim.ptx.memory.arrays import Array
from refsim.sources import PTX

SIZES = {"ca": (4, 8, 16), "cg": (16,)}
_SECTION = PTX["cp.async"]
_STEM = "cp.async.{cop:ca|cg}.{space:shared::cta|shared}.global"
_PREFETCH = "{.prefetch:L2::64B|L2::128B|L2::256B}"
# Cache hints and prefetch sizes change no value.
_HINTS = ("space", "prefetch")
_copy = partial(instruction, ignores=_HINTS, since="sm_80", undefined=copied, source=_SECTION)


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
def commit_group(lanes: Lanes) -> None:
    """Make one group of the thread's copies since its last commit; the group may be empty."""
    lanes.machine.copies.commit(lanes)


@instruction("cp.async.wait_group n:b32", since="sm_80", source=PTX["cp.async.wait_group, cp.async.wait_all"])
def wait_group(lanes: Lanes, n: Array) -> None:
    """Wait until at most the `n` newest of the thread's groups are in flight."""
    lanes.machine.copies.wait(lanes, int(n[0]))


@instruction("cp.async.wait_all", since="sm_80", source=PTX["cp.async.wait_group, cp.async.wait_all"])
def wait_all(lanes: Lanes) -> None:
    """Wait until all of the thread's copies are complete, committed or not."""
    lanes.machine.copies.wait(lanes, -1)
