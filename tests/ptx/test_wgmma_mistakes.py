"""wgmma: each mistake with registers, groups, operands and descriptors is found, under each policy, and what is right is not."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.async_ops.queue import POLICIES
from tests.ptx.wgmma_kernels import BYTES, FENCED, WAIT, Wgmma, kernel, tiled, word, words_of

B_START = 8192
KIND = Wgmma(16, 32, "f32", "e4m3", "e4m3")
RIGHT = [FENCED, KIND.issue(), *WAIT]


def run(
    body: list[str],
    *,
    sets: int = 1,
    threads: int = 128,
    blocks: int = 1,
    words: tuple[int, ...] = (),
    fill: int = 0,
    **how,
):
    """Codes of ones (0x38) in all of shared memory."""
    image = np.full(blocks * BYTES, fill, np.uint8)
    a = np.zeros((64, 32), np.uint8)
    words = words or (word(tiled(a, "K", "none"), 0), word(tiled(a[:16], "K", "none"), B_START))
    held = np.zeros((blocks * threads, KIND.registers * sets), np.uint32)
    out = np.zeros_like(held)
    fragment = np.zeros((blocks * threads, 4), np.uint32)
    ptx.load(kernel(KIND, body, sets=sets)).launch(
        "k", (blocks,), (threads,), [image, held, fragment, out, *words_of(*words)], **how
    )
    return out.view(np.float32)


ADD = "add.f32 %d0, %d0, %d0;"
MISTAKES = {
    "no wait": ("register-in-flight", [*RIGHT[:-1]], "lacks|would wait"),
    "no commit": ("register-in-flight", [*RIGHT[:-2], RIGHT[-1]], "wgmma.commit_group"),
    "a group too few": ("register-in-flight", [*RIGHT[:-1], "wgmma.wait_group.sync.aligned 1;"], "N = 0 would wait"),
    "read in flight": ("register-in-flight", [*RIGHT[:2], "mov.f32 %d1, %d0;", *WAIT], "in flight"),
    "spilled in flight": (
        "register-in-flight",
        [".local .align 4 .b8 spill[4];", *RIGHT[:2], "st.local.f32 [spill], %d0;", *WAIT],
        "reads %d0",
    ),
    "written in flight": ("register-in-flight", [*RIGHT[:2], "mov.f32 %d7, 0f00000000;", *WAIT], "writes %d7"),
    "a part of A read in flight": (
        "register-in-flight",
        [FENCED, KIND.issue("registers"), "mov.b32 %r4, %a2;", *WAIT],
        "a part of A",
    ),
    "no fence": ("unfenced-register", [KIND.issue(), *WAIT], "no wgmma.fence stands before the first"),
    "no fence behind a write": ("unfenced-register", [*RIGHT, ADD, KIND.issue(), *WAIT], "add.f32"),
    "no fence behind a read": ("unfenced-register", [*RIGHT, "mov.f32 %d1, %d0;", KIND.issue(), *WAIT], "wrote|read"),
    "no fence behind a write of A": (
        "unfenced-register",
        [*RIGHT, "mov.b32 %a0, 0;", KIND.issue("registers"), *WAIT],
        "uses %a0",
    ),
    "another shape": (
        "unfenced-register",
        [*RIGHT[:2], Wgmma(16, 16, "f32", "f16", "f16").issue(), *WAIT],
        "accumulated as m64n16k32",
    ),
    "operands overwritten": (
        "race",
        [*RIGHT[:2], "setp.eq.u32 %no, %r0, 0; @%no st.shared.b32 [s], %r0;", *WAIT],
        "read by wgmma",
    ),
    "operands overwritten by a copy": (
        "race",
        [*RIGHT[:2], "setp.eq.u32 %no, %r0, 0; @%no cp.async.ca.shared.global [s], [%p0], 16;", *WAIT],
        "read by wgmma",
    ),
    "a copy of operands on its way": (
        "read-before-wait",
        ["setp.eq.u32 %no, %r0, 0; @%no cp.async.ca.shared.global [s], [%p0], 16;", *RIGHT],
        "while cp.async",
    ),
    "descriptors that differ": (
        "invalid-operand",
        ["cvt.u64.u32 %p8, %r0; shr.u64 %p8, %p8, 5; add.u64 %word1, %word1, %p8;", *RIGHT],
        "descriptor of B",
    ),
    "half of the warps add": ("invalid-operand", ["setp.lt.u32 %yes, %r0, 64;", *RIGHT], "scale-d"),
    "a warp elsewhere": (
        "divergent-sync",
        ["setp.lt.u32 %no, %r0, 32; @%no bra AWAY;", *RIGHT, "bar.sync 1, 128;", "AWAY:"],
        "four warps|warpgroup",
    ),
}


def test_what_the_mistakes_are_made_of_is_right() -> None:
    """Products of ones: 32; and register accesses that a fence and a wait keep apart."""
    assert (run(RIGHT, fill=0x38) == 32).all()
    assert (run([*RIGHT, ADD, *RIGHT], fill=0x38)[:, 0] == 96).all()
    assert (run([FENCED, KIND.issue(), KIND.issue(), *WAIT], fill=0x38) == 64).all()
    both = [FENCED, KIND.issue(), WAIT[0], KIND.issue(first=8), WAIT[0], "wgmma.wait_group.sync.aligned 1;", ADD]
    assert (run([*both, "wgmma.wait_group.sync.aligned 0;"], sets=2, fill=0x38)[:, [0, 1, 8]] == [64, 32, 32]).all()
    guarded = [*RIGHT[:2], "@%no mov.f32 %d0, 0f00000000;", *WAIT]
    assert (run(guarded, fill=0x38) == 32).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found(mistake: str, policy: str) -> None:
    code, body, said = MISTAKES[mistake]
    with pytest.raises(RefsimError, match=said) as found:
        run(body, policy=policy)
    assert found.value.code == code


REFILL = [*RIGHT, "shl.b32 %r4, %r0, 4; mov.u32 %r5, s; add.u32 %r5, %r5, %r4; st.shared.b32 [%r5], %r0;"]


@pytest.mark.parametrize("policy", POLICIES)
def test_threads_store_behind_their_own_wait_and_not_behind_that_of_another_warpgroup(policy: str) -> None:
    """128 threads store a word into each of the 128 chunks of A; of 256 threads, both warpgroups have read them."""
    assert (run(REFILL, policy=policy, fill=0x38) == 32).all()
    with pytest.raises(RefsimError, match="wgmma") as found:
        run(REFILL, policy=policy, threads=256)
    assert found.value.code == "race"
    run([*RIGHT, "bar.sync 0;", *REFILL[len(RIGHT) :]], policy=policy, threads=256)


def test_a_warpgroup_of_three_warps_is_a_finding() -> None:
    with pytest.raises(RefsimError, match="96 of the warpgroup's 128 threads") as found:
        run(RIGHT, threads=96)
    assert found.value.code == "divergent-sync"


@pytest.mark.parametrize("blocks", [1, 4])
def test_warps_behind_the_last_whole_warpgroup_are_none(blocks: int) -> None:
    """160 threads; of four blocks there are five times 128 threads, one behind the other."""
    with pytest.raises(RefsimError, match="32 of the warpgroup's 128 threads") as found:
        run(RIGHT, threads=160, blocks=blocks)
    assert found.value.code == "divergent-sync"
    only = ["setp.ge.u32 %no, %r0, 128; @%no bra AWAY;", *RIGHT, "AWAY:"]
    assert (run(only, threads=160, blocks=blocks, fill=0x38).reshape(blocks, 160, -1)[:, :128] == 32).all()


@pytest.mark.parametrize(
    ("word_", "said"),
    [
        (1 << 14, "reserved"),
        (1 << 63 | 1 << 46, "reserved"),
        (1 << 32 | 0x3FBF, "out-of-bounds"),
    ],
)
def test_a_descriptor_that_leads_nowhere_is_a_fault(word_: int, said: str) -> None:
    with pytest.raises(RefsimError, match=said) as found:
        run(RIGHT, words=(word_, word_))
    assert found.value.code in ("invalid-operand", "out-of-bounds")


def test_rows_that_run_into_the_next_are_read() -> None:
    """K of 32 bytes from byte 112 of a row: chips read on in the next row, and with stride 0 the first rows again."""
    for each in (1 << 62 | 64 << 32 | 7, 1 << 62):
        assert (run(RIGHT, words=(each, each), fill=0x38) == 32).all()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("%d3", "%p3", "wants registers of 32 bits, %p3 has 64"),
        ("%d3", "%half", "wants registers of 32 bits, %half has 16"),
        ("%a1", "%p3", "wants registers of 32 bits, %p3 has 64"),
        ("%a1", "%half", "wants registers of 32 bits, %half has 16"),
        ("%a1", "7", "wants vectors of registers"),
        ("%a1", "%tid.x", "wants vectors of registers"),
    ],
)
def test_accumulators_and_fragments_are_registers_of_their_width(old: str, new: str, said: str) -> None:
    """What is used behind the instruction is no copy of a value: nothing is converted."""
    issue = KIND.issue("registers").replace(old + ",", new + ",")
    with pytest.raises(RefsimError, match=said) as found:
        run([".reg .b16 %half;", FENCED, issue, *WAIT])
    assert found.value.code == "malformed-ptx"


def test_constants_that_do_not_exist_are_a_fault() -> None:
    with pytest.raises(RefsimError, match="imm-scale-b is 2"):
        run([FENCED, KIND.issue(signs=(1, 2)), *WAIT])


def test_a_register_that_nobody_wrote_may_be_begun_at_zero_and_not_be_added_to() -> None:
    """A second set of accumulators that nothing has written; the kernel stores the first one."""
    kind = Wgmma(8, 32, "f32", "e4m3", "e4m3")
    fresh = "{" + ", ".join(f"%f{n}" for n in range(4)) + "}"
    declared = ".reg .f32 %f<4>;"
    for add, fails in (("%no", False), ("%yes", True)):
        issue = kind.issue(add=add).replace("{%d0, %d1, %d2, %d3}", fresh)
        body = [declared, FENCED, issue, *WAIT, "mov.f32 %d0, %f0;"]
        if fails:
            with pytest.raises(RefsimError, match="uninitialised"):
                run(body)
        else:
            assert (run(body) == 0).all()


UNWRITTEN = [
    ".shared .align 1024 .b8 t[4096];",
    "mov.u32 %r4, t; shl.b32 %r5, %r0, 4; add.u32 %r5, %r5, %r4; mov.b32 %r6, 0;",
    "setp.lt.u32 %no, %r0, WRITTEN; @%no st.shared.v4.b32 [%r5], {%r6, %r6, %r6, %r6};",
    "setp.ne.u32 %no, 0, 0;",
    "fence.proxy.async; bar.sync 0;",
    "mov.u64 %p8, t; shr.u64 %p8, %p8, 4; ld.param.u64 %word0, [word0]; add.u64 %word0, %word0, %p8;",
    *RIGHT,
]


@pytest.mark.parametrize(("written", "row", "fails"), [(128, 0, False), (127, 0, True), (64, 0, True)])
def test_an_unwritten_row_of_a_reaches_the_rows_of_d(written: int, row: int, fails: bool) -> None:
    """128 chunks of 16 bytes are A; the last one is the second half of row 63."""
    body = [line.replace("WRITTEN", str(written)) for line in UNWRITTEN]
    if fails:
        with pytest.raises(RefsimError, match="uninitialised"):
            run(body)
    else:
        assert (run(body) == 0).all()


def test_an_unwritten_row_that_is_not_stored_passes() -> None:
    """Row 63 alone is undefined, in registers 2, 3, 6 and 7 of the last quad: these are set to zero after the wait."""
    body = [line.replace("WRITTEN", "127") for line in UNWRITTEN]
    clear = [f"mov.f32 %d{number}, 0f00000000;" for number in (2, 3, 6, 7)]
    assert (run([*body, *clear]) == 0).all()
    with pytest.raises(RefsimError, match="uninitialised"):
        run([*body, *clear[1:]])


IN_AN_ATOM = [
    ".shared .align 1024 .b8 t[16384];",
    "mov.u32 %r4, t; shl.b32 %r5, %r0, 4; mov.b32 %r6, 0;",
    "STORE: setp.ne.u32 %no, %r5, HOLE; add.u32 %r7, %r4, %r5; @%no st.shared.v4.b32 [%r7], {%r6, %r6, %r6, %r6};",
    "add.u32 %r5, %r5, 2048; setp.lt.u32 %no, %r5, 16384; @%no bra STORE;",
    *UNWRITTEN[3:6],
    *RIGHT[:2],
    "setp.eq.u32 %no, %r0, 0; @%no st.shared.b32 [t+LATE], %r0;",
    *WAIT,
]


@pytest.mark.parametrize(
    ("hole", "late", "said"),
    [(288, 256, "uninitialised"), (256, 8320 + 16, "race"), (272, 256, ""), (16384, 8320 + 32, "")],
)
def test_a_start_in_an_atom_is_checked_at_the_bytes_that_are_read(hole: int, late: int, said: str) -> None:
    """128B from byte 256: row 0 lies in chunks 2 and 3 of its 128 bytes, row 63 in chunks 1 and 0, from 8320 on.

    One chunk is never written, and one word is stored during the product.
    """
    words = (1 << 62 | 1024 >> 4 << 32 | 256 >> 4, word(tiled(np.zeros((16, 32), np.uint8), "K", "none"), B_START))
    body = [line.replace("HOLE", str(hole)).replace("LATE", str(late)) for line in IN_AN_ATOM]
    if said:
        with pytest.raises(RefsimError, match=said):
            run(body, words=words)
    else:
        assert (run(body, words=words) == 0).all()
