"""PTX around a few statements of a test: what it writes, and what becomes of it by the edits of a repair."""

from collections.abc import Callable, Iterator

import numpy as np

from refsim import ptx
from refsim.errors import RefsimError
from refsim.testing.suspects.listing import PtxListing

FRAME = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 out, .param .u32 n)
{
  .reg .f32 %%x, %%z, %%w, %%y, %%f<12>;
  .reg .b16 %%h<12>;
  .reg .b32 %%n, %%t, %%r<12>;
  .reg .b64 %%a, %%b, %%c, %%o, %%rd<12>;
  .reg .pred %%p<4>;
  ld.param.u64 %%a, [a];
  ld.param.u64 %%b, [b];
  ld.param.u64 %%c, [c];
  ld.param.u64 %%o, [out];
  ld.param.u32 %%n, [n];
  mov.u32 %%t, %%tid.x;
  mad.wide.u32 %%a, %%t, 4, %%a;
  mad.wide.u32 %%b, %%t, 4, %%b;
  mad.wide.u32 %%c, %%t, 4, %%c;
  mad.wide.u32 %%o, %%t, 4, %%o;
  ld.global.f32 %%x, [%%a];
  ld.global.f32 %%z, [%%b];
  ld.global.f32 %%w, [%%c];
%s
  st.global.f32 [%%o], %%y;
  ret;
}
"""
LANES, N = 32, 27
EXCHANGED = """
.shared .align 4 .b8 kept[128];
mov.u32 %r6, kept;
shl.b32 %r7, %t, 2;
add.s32 %r7, %r6, %r7;
st.shared.u32 [%r7], %t;
bar.sync 0;
shl.b32 %r8, %r3, 2;
add.s32 %r8, %r6, %r8;
ld.shared.u32 %r4, [%r8];
cvt.rn.f32.u32 %y, %r4;
"""
"""Each lane takes from shared memory what lane %r3 put there."""


def operands() -> list[np.ndarray]:
    """Numbers of all sizes, so that every path is walked: subnormals, overflow, infinities, NaN."""
    draw = np.random.default_rng(3)
    x, z, w = draw.standard_normal((3, LANES)).astype(np.float32) * np.float32(100)
    x[::7], z[1::9], x[2], w[5] = np.float32(3e-39), np.float32(1e-30), np.float32(-np.inf), np.float32(3e38)
    x[3::11], z[4::13] = np.float32(np.inf), np.float32(np.nan)
    return [x, z, w]


def text_of(code: str) -> str:
    return FRAME % "\n".join(f"  {line.strip()}" for line in code.strip().splitlines())


def written(text: str) -> bytes:
    """The bits that a text writes, a NaN being one code."""
    out = np.zeros(LANES, np.float32)
    ptx.load(text, "sm_90a").launch("k", 1, LANES, [*operands(), out, np.uint32(N)])
    return np.where(np.isnan(out), np.float32(np.nan), out).tobytes()


def listed(text: str) -> PtxListing:
    return PtxListing(text, ptx.load(text, "sm_90a"), ["k"])


def edits(rule: Callable, text: str) -> Iterator[str]:
    listing = listed(text)
    for line in listing.lines:
        for edit in rule(listing, line):
            yield listing.edited({line.at: edit} if isinstance(edit, str) else edit)


def agreeing(rule: Callable, wrong: str, right: str) -> list[str]:
    """The edits of one text that make it write what another does."""
    wanted, found = written(text_of(right)), []
    for text in edits(rule, text_of(wrong)):
        try:
            found += [text] if written(text) == wanted else []
        except RefsimError:  # an opcode that there is not
            continue
    return found


SHUFFLES = """mov.b32 %r1, %x;
 shfl.sync.bfly.b32 %r2, %r1, {0}, 31, -1;
 mov.b32 %f1, %r2;
 add.f32 %f2, %x, %f1;
 mov.b32 %r3, %f2;
 shfl.sync.bfly.b32 %r4, %r3, {1}, 31, -1;
 mov.b32 %f3, %r4;
 add.f32 %y, %f2, %f3;"""
IN_BOUND = "setp.{}.u32 %p1, %t, {};\n selp.f32 %y, %x, %z, %p1;"
TENTH = "0f3DCCCCCD"
