"""A mov of accumulators in flight, which ptxas removes: its target is in flight too and gets what the products leave.

ptxas 13.0 and 13.4 remove the moves of most cases in KEPT without a message. Where a copy or its source goes on, they
inject a wait (C7517) and the bits are these too. They inject one for most cases in USED.
"""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.ptx.async_ops.queue import POLICIES
from tests.ptx.test_wgmma_mistakes import KIND, RIGHT, run
from tests.ptx.wgmma_kernels import FENCED, WAIT

BEGUN, (COMMIT, WAITED) = RIGHT[:2], WAIT
PAIRS = ".reg .b64 %pair<4>;"


def moves(to: int, source: int) -> str:
    """Eight accumulators from %d{source} on, to %d{to} and those behind it."""
    return " ".join(f"mov.f32 %d{to + n}, %d{source + n};" for n in range(8))


PACKED = " ".join(f"mov.b64 %pair{n}, {{%d{2 * n}, %d{2 * n + 1}}};" for n in range(4))
UNPACKED = " ".join(f"mov.b64 {{%d{8 + 2 * n}, %d{9 + 2 * n}}}, %pair{n};" for n in range(4))
AGAIN = [KIND.issue(), COMMIT]
# What is in front of the wait, what is behind it, and what D (0 to 7) and the copy (8 to 15) hold: one product is 32.
KEPT = {
    "a copy": ([*BEGUN, COMMIT, moves(8, 0)], [], (32, 32)),
    "a copy before the commit": ([*BEGUN, moves(8, 0), COMMIT], [], (32, 32)),
    "a chain": ([*BEGUN, COMMIT, moves(16, 0), moves(24, 16), moves(8, 24)], [], (32, 32)),
    "both are used": (
        [*BEGUN, COMMIT, moves(8, 0)],
        ["add.f32 %d0, %d0, %d0;", "mul.f32 %d8, %d8, %d0;"],
        (None, None),
    ),
    "there and back": ([*BEGUN, COMMIT, moves(8, 0), moves(0, 8), *AGAIN], [], (64, 32)),
    "pairs": ([PAIRS, *BEGUN, COMMIT, PACKED, UNPACKED], [], (32, 32)),
    "pairs unpacked after the wait": ([PAIRS, *BEGUN, COMMIT, PACKED], [UNPACKED], (32, 32)),
    "a pair of one in flight and one that is not": (
        [
            *[PAIRS, *BEGUN, COMMIT, "mov.b64 %pair0, {%d0, %d16}; mov.b64 {%d8, %d17}, %pair0;"],
            " ".join(f"mov.f32 %d{8 + n}, %d{n};" for n in range(1, 8)),
        ],
        [FENCED, KIND.issue(first=16), COMMIT, WAITED],
        (32, 32),
    ),
    "a source that goes on": ([*BEGUN, COMMIT, moves(8, 0), FENCED, *AGAIN], [], (64, 32)),
    "copies of two groups": (
        [
            *[*BEGUN, COMMIT, moves(16, 0), KIND.issue(first=8), COMMIT, "wgmma.wait_group.sync.aligned 1;"],
            *[moves(24, 8), "add.f32 %d0, %d16, %d0;", *(f"mov.f32 %d{n}, %d0;" for n in range(1, 8))],
        ],
        [moves(8, 24)],
        (64, 32),
    ),
    "both arms": (
        ["setp.lt.u32 %no, %r0, 64;", *BEGUN, COMMIT, "@%no bra LOW;", moves(8, 0), "bra ON; LOW:", moves(8, 0), "ON:"],
        [],
        (32, 32),
    ),
    "a loop": (
        [
            *["mov.u32 %r9, 0;", *BEGUN, COMMIT, "LOOP:", moves(8, 0), "wgmma.wait_group.sync.aligned 1;", moves(0, 8)],
            *[FENCED, *AGAIN, "add.u32 %r9, %r9, 1; setp.lt.u32 %no, %r9, 3; @%no bra LOOP;"],
        ],
        [],
        (128, 96),
    ),
}
USED = {
    "the copy is added": (
        [*BEGUN, COMMIT, moves(8, 0), "add.f32 %d9, %d9, %d9;"],
        "%d9, a copy of an accumulator",
    ),
    "the copy of a copy is converted": (
        [*BEGUN, COMMIT, moves(8, 0), moves(16, 8), "cvt.rn.f16x2.f32 %r9, %d16, %d17;"],
        "reads %d16, a copy",
    ),
    "the copy is stored": ([*BEGUN, COMMIT, moves(8, 0), "st.global.f32 [%p3], %d15;"], "reads %d15, a copy"),
    "the copy is overwritten": ([*BEGUN, COMMIT, moves(8, 0), "mov.f32 %d8, 0f00000000;"], "writes %d8, a copy"),
    "an accumulator is overwritten by another": ([*BEGUN, COMMIT, "mov.f32 %d1, %d0;"], "reads %d0, an accumulator"),
    "under a guard": ([*BEGUN, COMMIT, "setp.lt.u32 %yes, %r0, 64; @%yes mov.f32 %d8, %d0;"], "reads %d0"),
    "an addition of zero": ([*BEGUN, COMMIT, "add.f32 %d8, %d0, 0f80000000;"], "reads %d0"),
    "a pair that is stored": (
        [PAIRS, *BEGUN, COMMIT, "mov.b64 %pair0, {%d0, %d1};", WAITED, "st.global.b64 [%p3], %pair0;"],
        "reads %d0",
    ),
    "a pair of one in flight and one that is not": (
        [
            *[PAIRS, *BEGUN, COMMIT, "mov.b64 %pair0, {%d0, %d8}; mov.b64 {%d16, %d17}, %pair0;"],
            *["st.global.f32 [%p3], %d16;", FENCED, KIND.issue(first=8), COMMIT],
        ],
        "reads %d16, a copy",
    ),
    "a pair with a part of A": (
        [
            *[
                PAIRS,
                FENCED,
                KIND.issue("registers"),
                COMMIT,
                "mov.b64 %pair0, {%d0, %a0}; mov.b64 {%d8, %a1}, %pair0;",
            ],
            *[WAITED, FENCED, KIND.issue(first=8), COMMIT],
        ],
        "reads %a0, a part of A",
    ),
    "halves": ([".reg .b16 %half<2>;", *BEGUN, COMMIT, "mov.b32 {%half0, %half1}, %d0;"], "reads %d0"),
    "the copy is a part of A": (
        [*BEGUN, COMMIT, "mov.b32 %a0, %d0;", FENCED, KIND.issue("registers", first=8), COMMIT],
        "takes a part of A from %a0",
    ),
    "the wait leaves its group": (
        [*BEGUN, COMMIT, moves(8, 0), "wgmma.wait_group.sync.aligned 1; st.global.f32 [%p3], %d8;"],
        "N = 0 would wait",
    ),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", KEPT)
def test_a_copy_has_what_the_products_left(case: str, policy: str) -> None:
    body, behind, (d, copy) = KEPT[case]
    out = run([*body, WAITED, *behind], sets=4, fill=0x38, policy=policy)
    if d is None:
        assert (out[:, [0, 1, 8, 9]] == [64, 32, 2048, 32]).all()
    else:
        assert (out[:, :16] == np.repeat([d, copy], 8)).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_without_the_check_a_copy_has_it_too(policy: str) -> None:
    out = run([*BEGUN, COMMIT, moves(8, 0), WAITED], sets=4, fill=0x38, policy=policy, checks=ptx.Checks(copies="off"))
    assert (out[:, :16] == 32).all()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("case", USED)
def test_a_use_before_the_wait_stays_a_finding(case: str, policy: str) -> None:
    body, said = USED[case]
    with pytest.raises(RefsimError, match=said) as found:
        run([*body, WAITED], sets=4, fill=0x38, policy=policy)
    assert found.value.code == "register-in-flight"


def test_a_copy_that_accumulates_needs_a_fence_and_gets_the_first_product() -> None:
    """ptxas injects an arrive without the fence (C7519)."""
    more = [KIND.issue(first=8), COMMIT, WAITED]
    with pytest.raises(RefsimError, match=r"uses %d8, which mov\.f32") as found:
        run([*BEGUN, COMMIT, moves(8, 0), *more], sets=4, fill=0x38)
    assert found.value.code == "unfenced-register"
    out = run([*BEGUN, COMMIT, moves(8, 0), FENCED, *more], sets=4, fill=0x38, policy="lazy")
    assert np.array_equal(out[:, [0, 8]], np.tile([32, 64], (128, 1)))


def test_a_mov_is_no_copy_for_the_warpgroup_whose_product_is_in_flight() -> None:
    """Both warpgroups overwrite an accumulator, and only the first has begun a product."""
    body = ["setp.lt.u32 %no, %r0, 128; @!%no bra ON;", *BEGUN, COMMIT, "ON: mov.f32 %d1, %d0;", WAITED]
    with pytest.raises(RefsimError, match="reads %d0, an accumulator") as found:
        run(body, threads=256)
    assert found.value.code == "register-in-flight"


# ---- moves to parts of A
MADE, PART = "mov.u32 %r9, 0x38383838;", "mov.b32 %a0, %r9;"
FROM_PARTS = [KIND.issue("registers"), *WAIT]
ORDERED = {
    "behind the fence": [MADE, FENCED, PART, *FROM_PARTS],
    "a chain": [MADE, FENCED, "mov.b32 %r10, %r9; mov.b32 %a0, %r10;", *FROM_PARTS],
    "two parts of one source, read elsewhere": [
        *[MADE, FENCED, PART, "mov.b32 %a1, %r9; add.u32 %r11, %r9, 1;", *FROM_PARTS]
    ],
    "in front of the fence": [MADE, PART, FENCED, *FROM_PARTS],
    "another round": [MADE, FENCED, PART, *FROM_PARTS, "add.u32 %r9, %r9, 0;", FENCED, PART, *FROM_PARTS],
}
UNORDERED = {
    "the source is written": ([MADE, FENCED, "add.u32 %r9, %r9, 0;", PART, *FROM_PARTS], "add.u32"),
    "the source of a chain": (
        [MADE, FENCED, "add.u32 %r9, %r9, 0; mov.b32 %r10, %r9; mov.b32 %a0, %r10;", *FROM_PARTS],
        "add.u32",
    ),
    "the source in a block before": (
        [MADE, FENCED, "add.u32 %r9, %r9, 0; bra ON; ON:", PART, *FROM_PARTS],
        "add.u32",
    ),
    "under a guard": ([MADE, "setp.lt.u32 %no, %r0, 64;", FENCED, f"@%no {PART}", *FROM_PARTS], "mov.b32"),
    "a number": ([FENCED, "mov.b32 %a0, 0;", *FROM_PARTS], "mov.b32"),
}


@pytest.mark.parametrize("case", ORDERED)
def test_a_mov_to_a_part_of_a_counts_when_its_source_was_written(case: str) -> None:
    run(ORDERED[case])


def test_a_block_may_move_to_a_part_of_a_and_write_an_accumulator_of_a_later_product() -> None:
    later = [FENCED, KIND.issue(first=8), *WAIT]
    run([MADE, FENCED, PART, "mov.f32 %d8, 0f00000000;", *FROM_PARTS, *later], sets=2)
    with pytest.raises(RefsimError, match=r"uses %d8, which mov\.f32") as found:
        run([MADE, FENCED, PART, "mov.f32 %d8, 0f00000000;", *FROM_PARTS, *later[1:]], sets=2)
    assert found.value.code == "unfenced-register"


@pytest.mark.parametrize("case", UNORDERED)
def test_a_part_of_a_whose_source_changed_needs_a_fence(case: str) -> None:
    body, said = UNORDERED[case]
    with pytest.raises(RefsimError, match=f"uses %a0, which {said} .* wrote") as found:
        run(body)
    assert found.value.code == "unfenced-register"


def test_a_part_of_a_in_flight_must_not_get_other_bits() -> None:
    with pytest.raises(RefsimError, match="writes %a0, a part of A") as found:
        run([MADE, FENCED, KIND.issue("registers"), PART, *WAIT])
    assert found.value.code == "register-in-flight"
