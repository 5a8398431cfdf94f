"""Undefined bits in a cluster: every instruction that reads shared memory finds the masks of the memory that it reads."""

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError

# Block 0 and block 1 each have `tile`, of which they write the words of the lanes below %written, and a junk word that
# turns masks on. %own is `tile` of the own block, %other that of the other block, %out a word of each thread.
KERNEL = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 writer) .reqnctapercluster 2, 1, 1 {{
.shared .align 128 .b8 tile[512]; .shared .align 128 .b8 copy[512]; .shared .align 8 .b64 bar; .shared .align 4 .b32 junk;
.reg .b32 %t, %rank, %peer, %writer, %own, %other, %copy, %bar, %far, %x<8>; .reg .b64 %out, %q<4>;
.reg .pred %mine, %first, %done;
mov.u32 %t, %tid.x; mov.u32 %rank, %cluster_ctarank; xor.b32 %peer, %rank, 1; ld.param.u32 %writer, [writer];
ld.param.u64 %out, [out]; mad.lo.u32 %x0, %rank, 32, %t; mad.wide.u32 %out, %x0, 4, %out; setp.eq.u32 %first, %t, 0;
mov.u32 %own, tile; mov.u32 %copy, copy; mov.u32 %bar, bar; mapa.shared::cluster.u32 %other, %own, %peer;
mapa.shared::cluster.u32 %far, %bar, %peer;
ld.shared.b32 %x1, [junk]; and.b32 %x1, %x1, 0; setp.eq.u32 %mine, %rank, %writer;
shl.b32 %x2, %t, 4; add.u32 %x3, %x2, %own; @%mine st.shared.v4.b32 [%x3], {{%t, %t, %t, %t}};
@%first mbarrier.init.shared.b64 [%bar], 1; @%first mbarrier.arrive.expect_tx.shared.b64 _, [%bar], {bytes};
fence.mbarrier_init.release.cluster; fence.proxy.async;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
{body}
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
ret; }}"""
AWAIT = "W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %done, [%bar], 0; @!%done bra W;"
COPY = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
STORED = "{who} st.global.b32 [%out], %x4;"
PUT = "add.u32 %x4, %x2, %copy; ld.shared.b32 %x4, [%x4]; " + STORED
# name: (bytes that each mbarrier expects, body, whose word each block stores: the rank of the block that must have written)
ELSEWHERE = "add.u32 %x3, %x2, %other; "
READS = {
    "ld": (0, "ld.shared.b32 %x4, [%x3]; " + STORED, "own"),
    "ld of the other": (0, ELSEWHERE + "ld.shared::cluster.b32 %x4, [%x3]; " + STORED, "other"),
    "ldmatrix": (0, "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%x4, %x5, %x6, %x7}}, [%x3]; " + STORED, "own"),
    "atom": (0, "atom.shared::cluster.add.u32 %x4, [%x3], 0; " + STORED, "own"),
    "atom at the other": (0, ELSEWHERE + "atom.shared::cluster.add.u32 %x4, [%x3], 0; " + STORED, "other"),
    "bulk copy within": (512, f"@%first {COPY} [%copy], [%own], 512, [%bar]; {AWAIT} {PUT}", "own"),
    "bulk copy to the other": (
        512,
        f"mapa.shared::cluster.u32 %x5, %copy, %peer; @%first {COPY} [%x5], [%own], 512, [%far]; {AWAIT} {PUT}",
        "other",
    ),
    "bulk copy to memory": (
        0,
        "@!%first bra BEHIND; {who} cp.async.bulk.global.shared::cta.bulk_group [%out], [%own], 64;"
        " cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; BEHIND:",
        "own",
    ),
}


@pytest.mark.parametrize("writer", [0, 1])
@pytest.mark.parametrize("name", READS)
def test_the_masks_are_those_of_the_memory_that_is_read(name: str, writer: int) -> None:
    """The block that reads what was written stores it; it is a finding if the other block stores too."""
    count, body, whose = READS[name]
    reads_written = writer if whose == "own" else 1 - writer
    for who, fails in ((reads_written, False), (1 - reads_written, True)):
        text = KERNEL.format(body=f"setp.eq.u32 %mine, %rank, {who}; {body.format(who='@%mine')}", bytes=count)
        out = np.zeros(64, np.uint32)
        if fails:
            with pytest.raises(RefsimError) as caught:
                ptx.load(text).launch("k", (2,), (32,), [out, np.uint32(writer)])
            assert caught.value.code == "uninitialised"
        else:
            trace = ptx.load(text).launch("k", (2,), (32,), [out, np.uint32(writer)])
            assert trace.findings == ()
            assert {note.code for note in trace.notes} >= {"uninitialised-unused"}
            assert out[32 * who : 32 * who + 32].any()
