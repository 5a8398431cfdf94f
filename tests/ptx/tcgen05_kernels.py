"""Kernels of one block of four warps that use tensor memory, as PTX text: it is filled, a body runs, and it is stored.

Shared memory gets an image of 32 KiB. Descriptors and words are arguments; descriptors are relative to the image. Thread 0
issues what a single thread does, and %bar is an mbarrier of one arrival.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from refsim import ptx

BYTES = 32768
CHUNK = 32
DESCRIPTORS, WORDS = 6, 8


def registers(count: int, first: int = 0, name: str = "r") -> str:
    return "{" + ", ".join(f"%{name}{number}" for number in range(first, first + count)) + "}"


COMMIT = "@%first tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];"
AWAIT = "AWAIT: mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0; @!%done bra AWAIT;"
MEET = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
BEFORE = "tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;"


@dataclass(frozen=True)
class TensorKernel:
    """A kernel around `body`: columns [0, `filled`) are stored to from `tensor`, and [0, `columns`) read behind the body,
    unless it stores to %out itself, `columns` words of each thread."""

    body: str
    columns: int = 128
    filled: int = 0
    target: str = "sm_100a"
    allocated: int = 512
    dumps: bool = True
    ctas: int = 1
    group: int = 0  # of tcgen05, where it is not that of the CTAs

    @property
    def text(self) -> str:
        fill = "".join(
            "".join(f"ld.global.b32 %r{i}, [%tensor+{4 * (start + i)}];" for i in range(CHUNK))
            + f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%own+{start}], {registers(CHUNK)};\n"
            for start in range(0, self.filled, CHUNK)
        )
        fill += "tcgen05.wait::st.sync.aligned;" if self.filled else ""
        dump = "".join(
            f"tcgen05.ld.sync.aligned.32x32b.x32.b32 {registers(CHUNK)}, [%own+{start}]; tcgen05.wait::ld.sync.aligned;\n"
            + "".join(f"st.global.b32 [%out+{4 * (start + i)}], %r{i};" for i in range(CHUNK))
            for start in range(0, self.columns if self.dumps else 0, CHUNK)
        )
        meet = BEFORE if self.ctas == 1 else BEFORE.replace("bar.sync 0;", MEET)
        words = [f".param .u64 word{n}" for n in range(DESCRIPTORS)] + [f".param .u32 value{n}" for n in range(WORDS)]
        return f"""
.version 9.0
.target {self.target}
.address_size 64
.visible .entry k(.param .u64 image, .param .u64 tensor, .param .u64 out, {", ".join(words)}) {{
.shared .align 1024 .b8 s[{BYTES}]; .shared .align 8 .b64 barrier; .shared .align 4 .b32 slot;
.reg .b32 %t, %warp, %base, %own, %at, %s, %bar, %r<{max(CHUNK, 128)}>, %v<{WORDS}>, %i, %x<8>;
.reg .b32 %cta; .reg .pred %lead;
.reg .b64 %q, %image, %tensor, %out, %word<{DESCRIPTORS}>; .reg .pred %zero, %first, %yes, %no, %done, %lane;
mov.u32 %t, %tid.x; shr.u32 %warp, %t, 5; setp.eq.u32 %zero, %warp, 0; setp.eq.u32 %first, %t, 0;
setp.eq.u32 %yes, 0, 0; setp.ne.u32 %no, 0, 0; mov.u32 %s, s; mov.u32 %bar, barrier; mov.u32 %at, slot;
ld.param.u64 %image, [image]; ld.param.u64 %tensor, [tensor]; ld.param.u64 %out, [out];
mov.u32 %cta, %ctaid.x; add.u32 %x0, %t, %cta; setp.eq.u32 %lead, %x0, 0;
mad.wide.u32 %image, %cta, {BYTES}, %image; mad.lo.u32 %x1, %cta, 128, %t;
@%zero tcgen05.alloc.cta_group::{self.group or self.ctas}.sync.aligned.shared::cta.b32 [%at], {self.allocated};
@%first mbarrier.init.shared::cta.b64 [%bar], 1;
mad.lo.u32 %i, %t, 16, 0;
FILL: cvt.u64.u32 %q, %i; add.u64 %q, %image, %q; ld.global.v4.b32 {{%r0, %r1, %r2, %r3}}, [%q];
add.u32 %x0, %s, %i; st.shared.v4.b32 [%x0], {{%r0, %r1, %r2, %r3}};
add.u32 %i, %i, 2048; setp.lt.u32 %lane, %i, {BYTES}; @%lane bra FILL;
fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta; {"bar.sync 0;" if self.ctas == 1 else MEET}
ld.shared.b32 %base, [slot]; shl.b32 %own, %warp, 21; add.u32 %own, %base, %own;
mad.wide.u32 %tensor, %x1, {4 * max(self.filled, 1)}, %tensor; mad.wide.u32 %out, %x1, {4 * self.columns}, %out;
shr.u32 %x0, %s, 4; cvt.u64.u32 %q, %x0;
{"".join(f"ld.param.u64 %word{n}, [word{n}]; add.u64 %word{n}, %word{n}, %q;" for n in range(DESCRIPTORS))}
{"".join(f"ld.param.u32 %v{n}, [value{n}];" for n in range(WORDS))}
{fill}
{meet}
{self.body}
{meet}
{dump}
{meet}
@%zero tcgen05.dealloc.cta_group::{self.group or self.ctas}.sync.aligned.b32 %base, {self.allocated};
ret; }}
"""

    def run(
        self,
        image: np.ndarray | None = None,
        tensor: np.ndarray | None = None,
        words: tuple[int, ...] = (),
        values: tuple[int, ...] = (),
        **how: Any,
    ) -> tuple[np.ndarray, ptx.Trace]:
        """The words that tensor memory holds behind the body (128, columns), CTA by CTA, and the launch."""
        rows = 128 * self.ctas
        out = np.zeros((rows, self.columns), np.uint32)
        held = np.zeros(self.ctas * BYTES, np.uint8) if image is None else image
        tensor = np.zeros((rows, max(self.filled, 1)), np.uint32) if tensor is None else tensor
        given = [*(np.uint64(word) for word in (*words, *[0] * (DESCRIPTORS - len(words))))]
        more = [*(np.uint32(value) for value in (*values, *[0] * (WORDS - len(values))))]
        cluster = {"cluster": self.ctas} if self.ctas > 1 else {}
        arguments = [held.view(np.uint32), tensor, out, *given, *more]
        trace = ptx.load(self.text).launch("k", (self.ctas,), (128,), arguments, **cluster, **how)
        return out, trace


def with_products(*statements: str) -> str:
    """Statements of the first thread, a commit, and the wait of all for it."""
    return "\n".join([*(f"@%first {each}" for each in statements), COMMIT, AWAIT, "tcgen05.fence::after_thread_sync;"])
