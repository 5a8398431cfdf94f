"""Boxes that the two CTAs of a pair load, counted by the mbarrier of one of them: `.cta_group::2`."""

from typing import Any

import numpy as np
import pytest

from refsim import device, layouts, ptx
from refsim.errors import RefsimError

POLICIES = ("sim:eager", "sim:lazy", "sim:random")
WIDE, ROWS, CTAS = 32, 8, 4
BYTES = WIDE * ROWS * 4
STEM = "shared::cluster.global.mbarrier::complete_tx::bytes"
MEET = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
# Each CTA's first thread asks for its own rows; the even CTA of a pair waits for the bytes of both.
ALONE = f"cp.async.bulk.tensor.2d.cta_group::2.{STEM} [%box], [%map, {{0, %row}}], [%even];"
# The even CTA of each pair asks for the rows of all CTAs of its own parity, by a mask.
MANY = f"cp.async.bulk.tensor.2d.{STEM}.multicast::cluster.cta_group::2 [%box], [%map, {{0, 8}}], [%even], 15;"
KERNEL = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 out) .reqnctapercluster 4, 1, 1 {
    .reg .b64 %map, %out, %at; .reg .b32 %t, %box, %bar, %even, %rank, %row, %odd, %x, %first, %bytes;
    .reg .pred %one, %lead, %done, %asks;
    .shared .align 1024 .b8 box[1024]; .shared .align 8 .b64 bar;
    mov.b64 %map, map; cvta.param.u64 %map, %map; ld.param.u64 %out, [out];
    mov.u32 %t, %tid.x; mov.u32 %box, box; mov.u32 %bar, bar; mov.u32 %rank, %cluster_ctarank;
    and.b32 %odd, %rank, 1; and.b32 %first, %bar, 0xfeffffff; mov.u32 %even, %first;
    mul.lo.u32 %row, %rank, 8; setp.eq.u32 %one, %t, 0; setp.eq.and.u32 %lead, %odd, 0, %one;
    setp.eq.and.u32 %asks, %rank, 0, %one;
    @%one mbarrier.init.shared::cta.b64 [%bar], 1;
    fence.mbarrier_init.release.cluster; MEET
    @%lead mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 2048;
    MEET
    COPY
    @!%lead bra BEHIND;
    AWAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [%bar], 0; @!%done bra AWAIT;
    BEHIND: MEET
    mul.lo.u32 %x, %t, 4; add.u32 %x, %box, %x; ld.shared.u32 %x, [%x];
    mad.lo.u32 %row, %rank, 256, %t; mad.wide.u32 %at, %row, 4, %out; st.global.u32 [%at], %x;
    ret;
}
"""


def kernel(copy: str) -> str:
    return KERNEL.replace("MEET", MEET).replace("COPY", copy)


def ran(text: str, policy: str = "sim:eager") -> tuple[np.ndarray, Any]:
    with device.open(policy, "sm_100a").loaded(text, "pairs.ptx") as gpu:
        x = gpu.upload(np.arange(WIDE * ROWS * CTAS, dtype=np.uint32), name="x")
        out = gpu.output(256 * CTAS, np.uint32, name="out")
        made = layouts.tensor_map("uint32", (WIDE, ROWS * CTAS), (WIDE, ROWS), address=x.address)
        gpu.launch("k", CTAS, 256, [made, out])
        return gpu.read(out).reshape(CTAS, 256), gpu.findings()


@pytest.mark.parametrize("policy", POLICIES)
def test_the_even_block_of_a_pair_counts_the_bytes_of_both(policy: str) -> None:
    got, findings = ran(kernel("@%one " + ALONE), policy)
    assert (got.reshape(-1) == np.arange(256 * CTAS)).all()
    assert findings.notes == ()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("parity", [0, 1])
def test_a_mask_signals_the_blocks_of_the_parity_of_the_mbarrier(policy: str, parity: int) -> None:
    """Rank 0 asks for all four; the mbarriers of ranks 0 and 2, or of 1 and 3, count 2,048 bytes each."""
    text = kernel("@%asks " + MANY)
    if parity:
        text = text.replace("mov.u32 %even, %first", "or.b32 %even, %first, 0x01000000").replace(
            "%lead, %odd, 0", "%lead, %odd, 1"
        )
    got, findings = ran(text, policy)
    assert (got == np.arange(256, 512)).all()
    assert findings.notes == ()


WRONG = {
    "the peer's mbarrier without a pair": (ALONE.replace(".cta_group::2", ""), "invalid-operand", "its mbarrier is in rank 0"),
    "the peer's mbarrier in a group of one": (ALONE.replace("group::2", "group::1"), "invalid-operand", "mbarrier is in rank 0"),
    "an mbarrier of another pair": (ALONE.replace("[%even]", "[%first]"), "invalid-operand", "goes to rank 2"),
    "each block's own mbarrier": (ALONE.replace("%even", "%bar"), "deadlock", "1024 bytes are missing"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_copy_counted_elsewhere_is_found(name: str) -> None:
    copy, code, words = WRONG[name]
    text = kernel("@%one " + copy)
    if "another" in name:
        text = text.replace("and.b32 %first, %bar, 0xfeffffff", "and.b32 %first, %bar, 0x00ffffff")
    with pytest.raises(RefsimError) as caught:
        ran(text)
    assert caught.value.code == code
    assert words in caught.value.what


def test_a_block_that_reads_before_the_pair_has_waited_is_found() -> None:
    """The odd block's bytes are counted by its peer: it may read them only behind a meeting of both."""
    text = kernel("@%one " + ALONE).replace(f"BEHIND: {MEET}", "BEHIND: bar.sync 0;")
    with pytest.raises(RefsimError) as caught:
        ran(text, "sim:lazy")
    assert caught.value.code in ("read-before-wait", "race")


@pytest.mark.parametrize("target", ["sm_100", "sm_120a"])
def test_only_the_families_of_100_and_110_have_it(target: str) -> None:
    with pytest.raises(RefsimError, match=f"{target} has no TMA with .cta_group") as caught:
        ptx.load(kernel("@%one " + ALONE).replace("sm_100a", target)).code("k")
    assert caught.value.code == "wrong-target"
