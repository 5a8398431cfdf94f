"""Operands of wgmma that begin anywhere in a swizzle atom: products of two regions of shared memory, by descriptors.

A GPU ran the text of `StartForm.ptx` once; gpu/probes/record_operand_starts.py asked it for the address of every
element. The simulator runs the identical text.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import E4M3, F16, TF32, Format
from refsim.kernel_code import KernelCode
from refsim.kernels import Launcher
from refsim.layouts.descriptors import descriptor, walk
from refsim.layouts.families import fragment
from refsim.layouts.tiles import MAJORS, MN, K, Major
from refsim.silicon.tensor_probe import coded

Words = NDArray[np.uint64]
Codes = NDArray[np.unsignedinteger[Any]]

STEM = "operand_starts"
REGION = 16384
"""Bytes of shared memory for each operand."""
_K_BYTES, _CHUNK = 32, 16
SWIZZLE_CODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
_THREADS, _VALUES = 128, 32
_HEAD = f""".version 8.0
.target sm_90a
.address_size 64
.visible .entry form(.param .u64 words, .param .u64 given_a, .param .u64 given_b, .param .u64 results) {{{{
    .reg .b32 %r<12>;
    .reg .b64 %d<12>;
    .reg .f32 %f<{_VALUES}>;
    .reg .pred %p<2>;
    .shared .align 1024 .b8 region[{2 * REGION}];
    ld.param.u64 %d1, [words];
    ld.param.u64 %d2, [given_a];
    ld.param.u64 %d3, [given_b];
    ld.param.u64 %d4, [results];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, region;
    shl.b32 %r4, %r1, 4;
$copy:
    cvt.u64.u32 %d5, %r4;
    add.s64 %d6, %d2, %d5;
    add.s64 %d7, %d3, %d5;
    add.u32 %r5, %r3, %r4;
    ld.global.v4.u32 {{{{%r6, %r7, %r8, %r9}}}}, [%d6];
    st.shared.v4.u32 [%r5], {{{{%r6, %r7, %r8, %r9}}}};
    ld.global.v4.u32 {{{{%r6, %r7, %r8, %r9}}}}, [%d7];
    st.shared.v4.u32 [%r5+{REGION}], {{{{%r6, %r7, %r8, %r9}}}};
    add.u32 %r4, %r4, {_THREADS * 16};
    setp.lt.u32 %p1, %r4, {REGION};
    @%p1 bra $copy;
    fence.proxy.async.shared::cta;
    bar.sync 0;
    mul.wide.u32 %d5, %r2, 16;
    add.s64 %d5, %d1, %d5;
    ld.global.u64 %d6, [%d5];
    ld.global.u64 %d7, [%d5+8];
    shr.u32 %r5, %r3, 4;
    cvt.u64.u32 %d8, %r5;
    add.s64 %d6, %d6, %d8;
    add.s64 %d7, %d7, %d8;
    add.s64 %d7, %d7, {REGION >> 4};
    mov.pred %p1, 0;
    wgmma.fence.sync.aligned;
    {{opcode}} {{{{{{values}}}}}}, %d6, %d7, %p1, 1, 1{{transposed}};
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 0;
    mad.lo.u32 %r5, %r2, {_THREADS}, %r1;
    mul.wide.u32 %d5, %r5, {_VALUES * 4};
    add.s64 %d5, %d4, %d5;
"""


@dataclass(frozen=True)
class StartForm:
    """One instruction, m64n64 of `type` by `type`, K 32 bytes, A and B from shared memory in some majors."""

    type: str
    holds: Format
    majors: tuple[Major, Major] = (K, K)

    @property
    def name(self) -> str:
        """Return the name of the form: "f16.K.MN"."""
        return ".".join([self.type, *self.majors])

    @property
    def bytes(self) -> int:
        """Return the bytes of an element."""
        return self.holds.code_dtype.itemsize

    @property
    def shape(self) -> str:
        """Return the shape: m64n64k16 for f16."""
        return f"m64n64k{_K_BYTES // self.bytes}"

    @property
    def code(self) -> KernelCode:
        """Return the code that a device's launcher loads."""
        return KernelCode(ptx=self.ptx)

    @property
    def ptx(self) -> str:
        """Return the module, with one entry, `form`."""
        values = [f"%f{each}" for each in range(_VALUES)]
        flags = "".join(f", {int(major == MN)}" for major in self.majors) if self.bytes == 2 else ""
        opcode = f"wgmma.mma_async.sync.aligned.{self.shape}.f32.{self.type}.{self.type}"
        stores = [
            f"    st.global.v4.f32 [%d5+{4 * at}], {{{', '.join(values[at : at + 4])}}};" for at in range(0, _VALUES, 4)
        ]
        text = _HEAD.format(opcode=opcode, values=", ".join(values), transposed=flags)
        return "\n".join([text.rstrip(), *stores, "    ret;", "}", ""])

    def products(
        self, launcher: Launcher, words: Words, held: tuple[Codes, Codes], name: str = ""
    ) -> NDArray[np.float32]:
        """Return D (cases, 64, 64) for pairs of descriptors (cases, 2) that count from the operands' regions; the regions
        are `held`, and `launcher` has loaded `ptx`. `name` tells the buffers of launches apart."""
        out = launcher.output(len(words) * _THREADS * _VALUES, np.float32, name=f"results{name}")
        sides = zip(("words", "a", "b"), (words.ravel(), *held), strict=True)
        given = [launcher.upload(each, name=f"{side}{name}") for side, each in sides]
        launcher.launch("form", len(words), _THREADS, [*given, out])
        registers = launcher.read(out).view(np.uint32)
        found = fragment(f"wgmma.{self.shape}.{self.type}.d").unpacked(registers, np.dtype(np.uint32))
        return found.view(np.float32)

    def pairs(self, launcher: Launcher, words: Words) -> NDArray[np.float32]:
        """Return the products of pairs of descriptors, of regions that hold numbers from 0 to 7."""
        a, b = (coded(each.astype(np.float64), self.holds) for each in self._numbers())
        return self.products(launcher, words, (a, b))

    def predicted(self, words: Words) -> NDArray[np.float32]:
        """Return what `pairs` must return, by the model of descriptors."""
        a, b = self._numbers()
        a, b = (held[self.elements(side, words[:, at]) // self.bytes] for at, side, held in ((0, "a", a), (1, "b", b)))
        return np.asarray(np.einsum("imk,ink->imn", a, b), np.float32)

    def elements(self, side: str, words: Words) -> NDArray[np.int64]:
        """Return the byte of the region in which each element of A or B begins, by the model: (cases, 64, k)."""
        name, major = f"wgmma.{self.shape}.{self.type}.{side}", self.majors[side == "b"]
        return np.array([walk(descriptor("wgmma-smem"), int(word), name, major=major).addresses for word in words])

    def _numbers(self) -> NDArray[np.int64]:
        draw = np.random.default_rng(zlib.crc32(self.name.encode()))
        return draw.integers(0, 8, (2, REGION // self.bytes))


START_FORMS = (
    *(StartForm("f16", F16, (a, b)) for a in MAJORS for b in MAJORS),
    StartForm("e4m3", E4M3),
    StartForm("tf32", TF32),
)
FURTHER = (128, 16, 80, 512, -4096)  # bytes; the last one makes a distance 0


def word(swizzle: str, start: int, base: int = 0, *, more: tuple[int, int] = (0, 0)) -> int:
    """Return a descriptor, bit by bit: atoms next to each other, or further apart by `more` bytes of stride and of
    leading offset."""
    span = {"none": _CHUNK, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    near = (256, 128) if swizzle == "none" else (8 * span, 16 * span)
    stride, leading = (max(0, bytes + further) >> 4 for bytes, further in zip(near, more, strict=True))
    return start >> 4 | leading << 16 | stride << 32 | base << 49 | SWIZZLE_CODES[swizzle] << 62


def paired_words(form: StartForm) -> Words:
    """Return pairs of descriptors with A and B drawn apart: swizzle, start, base_offset and distances, (256, 2)."""
    draw = np.random.default_rng(zlib.crc32(form.name.encode()))

    def drawn() -> int:
        name, more = draw.choice(list(SWIZZLE_CODES)), draw.choice((0, *FURTHER), 2)
        return word(name, int(draw.integers(64)) * _CHUNK, int(draw.integers(8)), more=(int(more[0]), int(more[1])))

    return np.array([[drawn() for _ in "ab"] for _ in range(256)], np.uint64)
