"""Registers that share storage: never two that are live at once, and few arrays for many short-lived ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from refsim import ptx
from refsim.ptx.lowering.blocks import shared_slots
from refsim.ptx.lowering.liveness import mask_of

WIDTHS = st.sampled_from([1, 16, 32, 64])


@given(widths=st.lists(WIDTHS, min_size=1, max_size=12), data=st.data())
def test_no_two_registers_that_are_live_at_once_share(widths: list[int], data: st.DataObject) -> None:
    register = st.integers(0, len(widths) - 1)
    borders = data.draw(st.lists(st.sets(register, max_size=8), max_size=8))
    slots, slot_bits = shared_slots(widths, map(mask_of, borders))
    for live in borders:
        assert all(slots[index] >= 0 for index in live)
        assert len({slots[index] for index in live}) == len(live)
    for index, slot in enumerate(slots):
        assert slot == -1 or slot_bits[slot] == widths[index]
        assert (slot == -1) == (not any(index in live for live in borders))


def test_a_chain_of_values_takes_the_storage_of_the_longest_moment() -> None:
    """40 values, each made from the last one behind a border of its own: two arrays, not 40."""
    steps = [f"add.u32 %r{n + 1}, %r{n}, {n}; bar.sync 0;" for n in range(1, 40)]
    text = f""".version 9.0
.target sm_90a
.address_size 64
.entry k(.param .u64 out) {{
    .reg .b32 %r<50>; .reg .b64 %d<3>;
    mov.u32 %r1, %tid.x;
    {" ".join(steps)}
    ld.param.u64 %d1, [out]; mov.u32 %r41, %tid.x; mad.wide.u32 %d2, %r41, 4, %d1; st.global.u32 [%d2], %r40; ret;
}}
"""
    program = ptx.load(text)
    assert len(program.code("k").slot_bits) <= 2
    for policy, seed in (("eager", 0), ("random", 1)):
        out = np.zeros(64, np.uint32)
        program.launch("k", (1,), (64,), [out], policy=policy, seed=seed)
        assert (out == np.arange(64) + sum(range(1, 40))).all()


def test_lanes_of_two_branches_keep_values_that_share_storage() -> None:
    """%r2 lives in one arm and %r3 in the other: one array, and each lane finds its own value."""
    text = """.version 9.0
.target sm_90a
.address_size 64
.entry k(.param .u64 out) {
    .reg .b32 %r<9>; .reg .b64 %d<3>; .reg .pred %p<2>;
    mov.u32 %r1, %tid.x; ld.param.u64 %d1, [out]; mad.wide.u32 %d2, %r1, 4, %d1;
    setp.lt.u32 %p1, %r1, 10; @%p1 bra LOW;
    mul.lo.u32 %r2, %r1, 3; bar.warp.sync 0xfffffc00; st.global.u32 [%d2], %r2; ret;
    LOW: mul.lo.u32 %r3, %r1, 5; bar.warp.sync 0x000003ff; st.global.u32 [%d2], %r3; ret;
}
"""
    program = ptx.load(text)
    code = program.code("k")
    registers = [code.slots[code.function.register_names.index(name)] for name in ("%r2", "%r3")]
    assert registers[0] == registers[1] >= 0
    lane = np.arange(32)
    for policy, seed in (("eager", 0), ("random", 1), ("random", 2)):
        out = np.zeros(32, np.uint32)
        program.launch("k", (1,), (32,), [out], policy=policy, seed=seed)
        assert (out == np.where(lane < 10, 5 * lane, 3 * lane)).all()
