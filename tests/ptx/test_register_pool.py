"""setmaxnreg: registers that warpgroups hand to each other, and what goes wrong with them."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.execution.tensor_cells import ColumnsAsked
from refsim.ptx.sync.register_pool import TensorColumns

HEAD = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out) {bound} {{
    .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<5>;
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; shr.u32 %r2, %r1, 7; mul.wide.u32 %d2, %r1, 4; add.s64 %d3, %d1, %d2;
    setp.eq.u32 %p1, %r2, 0;
"""
TAIL = "st.global.u32 [%d3], %r2; ret; }"


def run(body: str, threads: int = 384, bound: str = ".maxntid 384", **options: object) -> ptx.Trace:
    out = np.zeros(threads, np.uint32)
    trace = ptx.load(HEAD.format(bound=bound) + body + TAIL).launch("k", 1, threads, [out], **options)
    assert (out == np.arange(threads) // 128).all()
    return trace


def fails(body: str, code: str, **options: object) -> RefsimError:
    with pytest.raises(RefsimError) as caught:
        run(body, **options)
    assert caught.value.code == code
    return caught.value


def split(producer: str, consumers: str) -> str:
    """The first warpgroup does one thing, the others another."""
    return f"@!%p1 bra $more; {producer} bra $end; $more: {consumers} $end:"


DEC, INC = "setmaxnreg.dec.sync.aligned.u32 {};", "setmaxnreg.inc.sync.aligned.u32 {};"


@pytest.mark.parametrize("policy", ["eager", "lazy", "random"])
@pytest.mark.parametrize(("few", "many"), [(40, 232), (24, 240)])
def test_what_one_warpgroup_gives_up_others_get(policy: str, few: int, many: int) -> None:
    """168 registers x 384 threads: 40 + 2 x 232 and 24 + 2 x 240 a thread of each warpgroup are all of them."""
    trace = run(split(DEC.format(few), INC.format(many)), policy=policy, seed=2)
    assert not trace.warnings


@pytest.mark.parametrize("target", ["sm_100a", "sm_100f", "sm_103a", "sm_107a", "sm_110a", "sm_120a", "sm_121f"])
def test_blackwell_has_the_register_pool_of_hopper(target: str) -> None:
    head = HEAD.format(bound=".maxntid 384").replace("sm_90a", target)
    for many, code in ((232, ""), (248, "deadlock")):
        module = ptx.load(head + split(DEC.format(40), INC.format(many)) + TAIL)
        if code:
            with pytest.raises(RefsimError) as caught:
                module.launch("k", 1, 384, [np.zeros(384, np.uint32)])
            assert caught.value.code == code
        else:
            module.launch("k", 1, 384, [np.zeros(384, np.uint32)])


@pytest.mark.parametrize(("few", "many"), [(80, 224), (40, 240)])
def test_registers_that_never_come_free_are_a_deadlock(few: int, many: int) -> None:
    said = fails(split(DEC.format(few), INC.format(many)), "deadlock").what
    free = (168 - few) * 128 % ((many - 168) * 32)  # warp after warp got what it asked for
    assert "wait at setmaxnreg.inc.sync.aligned.u32 at PTX line" in said
    assert f"for {(many - 168) * 32:,} registers more a warp: {free:,} of the block's are free" in said
    assert "of 168 a thread at its beginning" in said


def test_a_warp_that_waits_for_registers_holds_up_its_warpgroup() -> None:
    """Some warps of the last warpgroup got theirs and wait at an instruction of all four: the registers are what lacks."""
    fence = INC.format(240) + "wgmma.fence.sync.aligned;"
    error = fails(split(DEC.format(40), fence), "deadlock")
    assert "wait at wgmma.fence" in error.what
    assert "setmaxnreg.inc: waits until its block has as many registers free" in error.rule


def test_the_bound_of_the_entry_decides() -> None:
    body = split(DEC.format(24), INC.format(240))
    run(body, bound=".maxntid 384 .maxnreg 168")
    fails(body, "deadlock", bound=".maxntid 384 .maxnreg 160")
    fails(body, "deadlock", bound=".maxntid 384 .minnctapersm 2")
    run(split(DEC.format(24), INC.format(104)), bound=".reqntid 384 .minnctapersm 2")


def test_without_a_bound_nothing_moves_and_that_is_a_warning() -> None:
    trace = run(INC.format(240), bound="")
    assert [each.code for each in trace.warnings] == ["setmaxnreg-ignored"]
    assert not run(INC.format(240), bound="", checks=ptx.Checks(off=("setmaxnreg-ignored",))).warnings


@pytest.mark.parametrize("count", [16, 20, 28, 264])
def test_counts_are_multiples_of_eight_from_24_to_256(count: int) -> None:
    assert f"{count} registers: a multiple of 8" in fails(DEC.format(count), "invalid-operand").what


def test_all_warps_of_a_warpgroup_execute_the_same_one() -> None:
    first = "setp.lt.u32 %p2, %r1, 32;"
    other = f"{first} @%p2 bra $one; {DEC.format(40)} bra $end; $one: {DEC.format(48)} $end:"
    assert (
        "asks for 48 registers, where warp 1 of its warpgroup asked for 40"
        in fails(other, "divergent-sync", threads=128).what
    )
    none = f"{first} @%p2 bra $end; {DEC.format(40)} $end:"
    assert "warp 0 of its warpgroup never executes it" in fails(none, "divergent-sync", threads=128).what


def test_of_several_requests_the_one_of_the_same_turn_is_named() -> None:
    """All ask for 48, then warp 0 for 24 and the others for 32."""
    again = f"setp.lt.u32 %p2, %r1, 32; @%p2 bra $one; {DEC.format(32)} bra $end; $one: {DEC.format(24)} $end:"
    said = fails(DEC.format(48) + again, "divergent-sync", threads=128).what
    assert "asks for 24 registers, where warp 1 of its warpgroup asked for 32" in said


def test_of_one_block_nobody_overtakes_another_for_columns() -> None:
    """Two blocks: the second of block 0 waits behind the first, though there would be columns for it; block 1 does not."""
    went: list[int] = []

    class Machine:
        def go(self, pc: int, ids: object) -> None:
            went.append(pc)

    columns = TensorColumns(Machine())  # type: ignore[arg-type]
    for pc, cta, takes in ((10, 0, False), (20, 0, True), (30, 1, True)):
        columns.ask(ColumnsAsked(pc, np.array([0]), cta, 32, lambda takes=takes: takes))
    assert (went, [each.pc for each in columns.queue]) == ([31], [10, 20])
