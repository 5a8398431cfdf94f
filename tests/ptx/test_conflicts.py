"""Bank conflicts of a launch: counted for each instruction as `refsim.layouts.bank_conflicts` counts one access."""

import numpy as np
import pytest

from refsim import layouts, ptx
from refsim.ptx.memory.space import SHARED_BASE

ON = ptx.Checks(banks=True)


def uses(statement: str, addresses: np.ndarray, *, guard: str = "", checks: ptx.Checks = ON) -> tuple[ptx.BankUse, ...]:
    """The use of banks by one statement whose lanes have these byte addresses in %r2."""
    text = f""".version 9.0
.target sm_90a
.address_size 64
.file 1 "kernel.cu"
.entry k(.param .u64 table) {{
    .reg .b32 %r<20>; .reg .b16 %h<4>; .reg .b64 %d<4>; .reg .pred %p<3>; .shared .align 16 .b8 tile[8192];
    ld.param.u64 %d1, [table]; mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d1; ld.global.u32 %r2, [%d2];
    mov.u32 %r3, tile; add.u32 %r2, %r2, %r3; and.b32 %r4, %r1, 1; setp.eq.u32 %p1, %r4, 0;
    .loc 1 7 1
    {guard} {statement}
    ret;
}}
"""
    table = addresses.astype(np.uint32)
    trace = ptx.load(text).launch(
        "k", (1,), (len(table),), [table], checks=ptx.Checks("off", "off", "off", banks=checks.banks)
    )
    return trace.banks


ACCESSES = [
    ("ld.shared.u8 %r5, [%r2];", 1),
    ("ld.shared.u16 %h1, [%r2];", 2),
    ("st.shared.u32 [%r2], %r1;", 4),
    ("ld.shared.v2.u32 {%r5, %r6}, [%r2];", 8),
    ("ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r2];", 16),
    ("st.shared.v4.u32 [%r2], {%r1, %r1, %r1, %r1};", 16),
    ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r5, %r6, %r7, %r8}, [%r2];", 16),
    ("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r2], {%r1, %r1, %r1, %r1};", 16),
]


@pytest.mark.parametrize(("statement", "width"), ACCESSES)
@pytest.mark.parametrize("stride", [1, 2, 8, 9])
def test_a_warp_costs_what_the_layout_model_says(statement: str, width: int, stride: int) -> None:
    at = np.arange(64) * stride * width % 8192
    (use,) = uses(statement, at)
    want = layouts.bank_conflicts(at.reshape(2, 32), width)
    assert (use.accesses, use.wavefronts, use.ideal) == (2, want.total, want.wavefronts.size)
    assert use.ways == want.total / want.wavefronts.size
    assert str(use.statement.location) == "kernel.cu:7"


@pytest.mark.parametrize("count", [1, 2])
def test_only_the_rows_that_ldmatrix_reads_count(count: int) -> None:
    registers = ", ".join(f"%r{5 + place}" for place in range(count))
    at = np.arange(32) * 128
    (use,) = uses(f"ldmatrix.sync.aligned.m8n8.x{count}.shared.b16 {{{registers}}}, [%r2];", at)
    want = layouts.bank_conflicts(at[: 8 * count], 16)
    assert (use.wavefronts, use.ideal) == (want.total, count)
    assert use.ways == 8.0


def test_lanes_that_do_not_take_part_cost_nothing() -> None:
    at = np.where(np.arange(40) % 2 == 0, 128 * np.arange(40) // 2 % 8192, 4)
    (use,) = uses("ld.shared.u32 %r5, [%r2];", at, guard="@%p1")
    want = [layouts.bank_conflicts(part, 4).total for part in (at[:32:2], at[32::2])]
    assert (use.accesses, use.wavefronts) == (2, sum(want))


def test_lanes_are_served_with_their_own_phase() -> None:
    """Four lanes of each quarter of a warp take part, 16 bytes side by side: no phase has a conflict."""
    (use,) = uses("ld.shared.v4.u32 {%r5, %r6, %r7, %r8}, [%r2];", np.arange(40) * 16, guard="@%p1")
    assert (use.accesses, use.wavefronts, use.ideal) == (2, 5, 5), "eight lanes of the second warp are one phase"


def test_nothing_is_counted_unless_asked() -> None:
    assert uses("st.shared.u32 [%r2], %r1;", np.arange(32) * 4, checks=ptx.Checks()) == ()


@pytest.mark.parametrize(("statement", "width"), ACCESSES[:6])
@pytest.mark.parametrize("stride", [1, 2, 8, 9])
def test_the_lanes_that_collide_are_those_of_the_layout_model(statement: str, width: int, stride: int) -> None:
    at = np.arange(64) * stride * width % 8192
    (use,) = uses(statement, at)
    found = layouts.bank_conflicts(at.reshape(2, 32), width)
    collisions = [(warp, each) for warp in range(2) for each in found.collisions(warp)]
    if not collisions:
        assert use.worst is None
        return
    assert use.worst is not None
    assert len(use.worst.words) == max(len(each.words) for _, each in collisions) == found.wavefronts.max()
    base = SHARED_BASE
    assert (use.worst.warp, use.worst.bank, tuple(word - base for word in use.worst.words), use.worst.lanes) in [
        (warp, each.bank, each.words, each.lanes) for warp, each in collisions
    ]


def test_colliding_lanes_are_named_by_their_place_in_the_warp() -> None:
    """Of the second warp lanes 1, 3, 5, 7 take part and ask for four words of one bank."""
    at = np.where(np.arange(40) < 32, 0, np.arange(40) * 128)
    (use,) = uses("ld.shared.u32 %r5, [%r2];", at, guard="@!%p1")
    assert use.worst is not None
    assert (use.worst.warp, use.worst.lanes) == (1, ((1,), (3,), (5,), (7,)))
    assert np.diff(use.worst.words).tolist() == [256] * 3
