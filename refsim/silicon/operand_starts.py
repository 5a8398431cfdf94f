"""Operands of wgmma that begin anywhere in a swizzle atom: a probe of the shared-memory address of every element.

Shared memory holds the number of each slot, one digit a launch; the other operand is an identity, so D is the operand.
A GPU ran the text of `StartForm.ptx` once. The simulator runs the identical text, and `addresses` is what the model of
descriptors says.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refsim.formats import E4M3, F16, TF32, Format
from refsim.kernel_code import KernelCode
from refsim.kernels import Launcher
from refsim.layouts.descriptors import descriptor, walk
from refsim.layouts.families import fragment
from refsim.layouts.tiles import MAJORS, MN, K, Major
from refsim.silicon.tensor_terms import coded

Words = NDArray[np.uint64]
Codes = NDArray[np.unsignedinteger[Any]]
Places = NDArray[np.uint16]

STEM = "operand_starts"
REGION = 16384
"""Bytes of shared memory for each operand."""
ROWS, K_BYTES, _CHUNK, NOWHERE = 64, 32, 16, 0xFFFF
SWIZZLE_CODES = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
_THREADS, _VALUES, _DIGIT = 128, 32, 4
_PLAIN = 128 >> 4 << 16 | 256 >> 4 << 32  # K-major without a swizzle, core matrices side by side
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
        return f"m64n64k{K_BYTES // self.bytes}"

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
        found = launcher.read(out).reshape(len(words), _THREADS, _VALUES)
        rows, columns = fragment(f"wgmma.{self.shape}.{self.type}.d").elements
        result = np.zeros((len(words), ROWS, ROWS), np.float32)
        result[:, rows, columns] = found
        return result

    def places(self, launcher: Launcher, side: str, words: Words) -> Places:
        """Return the byte in the region at which each 16-byte chunk of an operand begins: (cases, 128), row by row, or k
        by k if it is MN-major. NOWHERE for a chunk that is not read in one piece."""
        slots, plain = np.arange(REGION // self.bytes), np.full(len(words), _PLAIN, np.uint64)
        pairs = np.stack([words, plain] if side == "a" else [plain, words], 1)
        found = np.zeros((len(words), ROWS, K_BYTES // self.bytes), np.int64)
        for shift in range(0, int(slots[-1]).bit_length(), _DIGIT):
            digits = coded((slots >> shift & (1 << _DIGIT) - 1).astype(np.float64), self.holds)
            held = (digits, self._identity()) if side == "a" else (self._identity(), digits)
            d = self.products(launcher, pairs, held, f"_{side}{shift}")
            d = d if side == "a" else d.swapaxes(1, 2)
            found |= d[:, :, : found.shape[2]].astype(np.int64) << shift
        return self._chunks(found * self.bytes, self.majors[side == "b"])

    def addresses(self, side: str, words: Words) -> Places:
        """Return what `places` must return, by the model of descriptors."""
        return self._chunks(self._elements(side, words), self.majors[side == "b"])

    def _chunks(self, found: NDArray[np.int64], major: Major) -> Places:
        lines = found if major == K else found.swapaxes(1, 2)
        held = lines.reshape(len(found), -1, _CHUNK // self.bytes)
        whole = (held == held[:, :, :1] + np.arange(held.shape[2]) * self.bytes).all(axis=2)
        return np.where(whole, held[:, :, 0], NOWHERE).astype(np.uint16)

    def _identity(self) -> Codes:
        """Return the region of a plain operand whose element (i, i) is 1."""
        at = np.arange(K_BYTES // self.bytes)
        byte = at // 8 * 256 + at * self.bytes // _CHUNK * 128 + at % 8 * _CHUNK + at * self.bytes % _CHUNK
        region = np.zeros(REGION // self.bytes)
        region[byte // self.bytes] = 1
        return coded(region, self.holds)

    def pairs(self, launcher: Launcher, words: Words) -> NDArray[np.float32]:
        """Return the products of pairs of descriptors, of regions that hold numbers from 0 to 7."""
        a, b = (coded(each.astype(np.float64), self.holds) for each in self._numbers())
        return self.products(launcher, words, (a, b))

    def predicted(self, words: Words) -> NDArray[np.float32]:
        """Return what `pairs` must return, by the model of descriptors."""
        a, b = (
            held[self._elements(side, words[:, at]) // self.bytes]
            for at, (side, held) in enumerate(zip("ab", self._numbers(), strict=True))
        )
        return np.asarray(np.einsum("imk,ink->imn", a, b), np.float32)

    def _elements(self, side: str, words: Words) -> NDArray[np.int64]:
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
STARTS = range(0, 1024, _CHUNK)
_FURTHER = (128, 16, 80, 512, -4096)  # bytes; the last one makes a distance 0


def single_forms() -> Iterator[tuple[str, StartForm, str, str]]:
    """Yield (name, form, side, swizzle) of every recording of one operand; the other one is K-major."""
    for form, side, name in product(START_FORMS, "ab", SWIZZLE_CODES):
        if form.majors["ab".index(side) ^ 1] == K:
            yield f"{form.name}.{side}.{name}", form, side, name


def word(swizzle: str, start: int, base: int = 0, *, more: tuple[int, int] = (0, 0)) -> int:
    """Return a descriptor, bit by bit: atoms next to each other, or further apart by `more` bytes of stride and of
    leading offset."""
    span = {"none": _CHUNK, "32B": 32, "64B": 64, "128B": 128}[swizzle]
    near = (256, 128) if swizzle == "none" else (8 * span, 16 * span)
    stride, leading = (max(0, bytes + further) >> 4 for bytes, further in zip(near, more, strict=True))
    return start >> 4 | leading << 16 | stride << 32 | base << 49 | SWIZZLE_CODES[swizzle] << 62


def single_words(swizzle: str) -> Words:
    """Return the descriptors of one operand: every start below 1024 with every base_offset, then atoms further apart, and
    strides of 0."""
    words = [word(swizzle, start, base) for start, base in product(STARTS, range(8))]
    for further, start, base in product(_FURTHER, (0, 128, 256, 640, 16, 112, 912), (0, 3, 4)):
        words += [word(swizzle, start, base, more=more) for more in ((further, 0), (0, further))]
    return np.array(words, np.uint64)


def paired_words(form: StartForm) -> Words:
    """Return pairs of descriptors with A and B drawn apart: swizzle, start, base_offset and distances, (256, 2)."""
    draw = np.random.default_rng(zlib.crc32(form.name.encode()))

    def drawn() -> int:
        name, more = draw.choice(list(SWIZZLE_CODES)), draw.choice((0, *_FURTHER), 2)
        return word(name, int(draw.integers(64)) * _CHUNK, int(draw.integers(8)), more=(int(more[0]), int(more[1])))

    return np.array([[drawn() for _ in "ab"] for _ in range(256)], np.uint64)


def code_of(form: StartForm) -> KernelCode:
    """Return the code that a device's launcher loads for a form."""
    return KernelCode(ptx=form.ptx)


def crcs(products: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the CRC-32 of each product."""
    return np.array([zlib.crc32(np.ascontiguousarray(each).tobytes()) for each in products], np.uint32)
