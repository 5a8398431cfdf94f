"""Launches by programmatic serialization: what a thread may touch before griddepcontrol.wait, and what it may not."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

HEAD = """.version 8.5
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<5>; .shared .align 4 .b32 s[64];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r3, %r2, 64, %r1;
    mul.wide.u32 %d2, %r3, 4; add.s64 %d2, %d1, %d2; setp.eq.u32 %p1, %r1, 0; setp.ge.u32 %p2, %r1, 32;
"""
EARLY, WAIT = "griddepcontrol.launch_dependents;", "griddepcontrol.wait;"
WRITE, READ = "st.global.u32 [%d2], %r3;", "ld.global.u32 %r4, [%d2]; st.global.u32 [%d2+4096], %r4;"


def pair(first: str, second: str, *, programmatic: bool = True, policy: str = "eager", seed: int = 0) -> str:
    """The code of what is found when two launches of 4 blocks follow one another; "" for nothing."""
    memory = ptx.GlobalMemory()
    out = np.uint64(memory.allocate(8192, "out", initial=bytes(8192)))
    how = {"memory": memory, "policy": policy, "seed": seed}
    ptx.load(f"{HEAD}{first} ret; }}").launch("k", 4, 64, [out], **how)
    try:
        ptx.load(f"{HEAD}{second} ret; }}").launch("k", 4, 64, [out], programmatic=programmatic, **how)
    except RefsimError as error:
        return error.code
    return ""


@pytest.mark.parametrize("policy", ["eager", "random"])
@pytest.mark.parametrize(
    ("first", "second", "code"),
    [
        (EARLY + WRITE, WAIT + READ, ""),
        (EARLY + WRITE, "@%p1 griddepcontrol.wait; bar.sync 0;" + READ, ""),
        (EARLY + WRITE, "bar.sync 0; @%p1 griddepcontrol.wait;" + READ, "missing-grid-wait"),
        (EARLY + WRITE, READ + WAIT, "missing-grid-wait"),
        (EARLY + WRITE, READ, "missing-grid-wait"),
        (WRITE + EARLY, READ, "missing-grid-wait"),
        (WRITE, READ, ""),
        (EARLY + WRITE, "ld.global.u32 %r4, [%d2+2048]; st.global.u32 [%d2+4096], %r4;", ""),
        (EARLY + READ, WRITE, "missing-grid-wait"),
        (EARLY + READ, "ld.global.u32 %r4, [%d2]; st.global.u32 [%d2+2048], %r4;", ""),
        (EARLY + WRITE, "@%p2 griddepcontrol.wait;" + READ, "missing-grid-wait"),
        (EARLY + WRITE, "atom.global.add.u32 %r4, [%d2], 1;", "missing-grid-wait"),
    ],
)
def test_what_the_launch_before_touched_needs_a_wait(first: str, second: str, code: str, policy: str) -> None:
    assert pair(first, second, policy=policy, seed=1) == code


def test_launches_in_order_need_none() -> None:
    assert pair(EARLY + WRITE, READ, programmatic=False) == ""


def test_the_finding_names_the_place_and_goes_when_it_is_turned_off() -> None:
    memory = ptx.GlobalMemory()
    out = np.uint64(memory.allocate(8192, "out", initial=bytes(8192)))
    first, second = (ptx.load(f"{HEAD}{body} ret; }}") for body in (EARLY + WRITE, READ))
    first.launch("k", 4, 64, [out], memory=memory)
    record = ptx.Checks("record", "record", "record", "record")
    (found,) = second.launch("k", 4, 64, [out], memory=memory, programmatic=True, checks=record).findings
    assert found.what.startswith("reads 4 B at global address 0x")
    assert "(byte 0 of out), which the launch before it wrote and which may still run" in found.what
    first.launch("k", 4, 64, [out], memory=memory)
    off = ptx.Checks(off=("missing-grid-wait",))
    assert not second.launch("k", 4, 64, [out], memory=memory, programmatic=True, checks=off).findings
