"""Undefined bits of matrix products, judged by completions: every value of the undefined bits, or drawn ones.

A result bit that differs between two completions must be marked as undefined; otherwise the rule misses it. A marked bit that
no completion changes is a false alarm: rules of products mark whole elements, so these are counted, not refused.
"""

from dataclasses import dataclass

import numpy as np
import pytest

from refsim import encode, ptx
from refsim.formats import element_named
from refsim.ptx.isa.definedness.tracking import OpenBits

FEW = 8  # undefined bits of which every completion is tried
MANY = 256  # completions


@dataclass(frozen=True)
class Form:
    """A product of a warp, or of a warpgroup whose B are `shared` words of its threads. Types, and registers of A, B and D."""

    opcode: str
    a: str
    b: str
    d: str
    counts: tuple[int, int, int]
    tail: str = ""
    target: str = "sm_90a"
    shared: int = 0

    def __str__(self) -> str:
        return self.opcode

    @property
    def threads(self) -> int:
        return 128 if self.shared else 32

    @property
    def words(self) -> int:
        """Words of each thread: the registers of A, B and C, and one of metadata or scales."""
        return sum(self.counts) + 1

    @property
    def text(self) -> str:
        """Each block has words of its own in place of the undefined bits; block 0 of the tracked launch has none."""
        names = [f"%{name}{n}" for name, count in zip("abd", self.counts, strict=True) for n in range(count)] + ["%x"]
        loads = "".join(
            f"ld.global.b32 %v, [%given+{4 * n}]; ld.global.b32 %m, [%mask+{4 * n}]; ld.global.b32 %j, [%junk+{4 * n}];"
            f"and.b32 %j, %j, %m; not.b32 %m, %m; and.b32 %v, %v, %m; or.b32 {name}, %v, %j;\n"
            for n, name in enumerate(names)
        )
        a, b, d = (
            "{" + ", ".join(f"%{name}{n}" for n in range(count)) + "}"
            for name, count in zip("abd", self.counts, strict=True)
        )
        stores = "".join(f"st.global.b32 [%out+{4 * n}], %d{n};" for n in range(self.counts[2]))
        multiply = f"{self.opcode} {d}, {a}, {b}, {d}{self.tail};"
        if self.shared:
            multiply = (
                "shl.b32 %j, %t, 2; add.u32 %j, %j, %s; @%few st.shared.b32 [%j], %b0; fence.proxy.async; bar.sync 0;"
                f"wgmma.fence.sync.aligned; {self.opcode} {d}, {a}, %word{self.tail};"
                "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"
            )
        return f""".version 9.0
.target {self.target}
.address_size 64
.visible .entry k(.param .u64 given, .param .u64 mask, .param .u64 junk, .param .u64 out) {{
.shared .align 1024 .b8 image[2048];
.reg .b32 %t, %c, %i, %s, %v, %m, %j, %x, %a<8>, %b<8>, %d<8>; .reg .b64 %given, %mask, %junk, %out, %word; .reg .pred %few, %yes;
mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mad.lo.u32 %i, %c, {self.threads}, %t; mov.u32 %s, image;
ld.param.u64 %given, [given]; ld.param.u64 %mask, [mask]; ld.param.u64 %junk, [junk]; ld.param.u64 %out, [out];
mad.wide.u32 %given, %t, {4 * self.words}, %given; mad.wide.u32 %mask, %t, {4 * self.words}, %mask;
mad.wide.u32 %junk, %i, {4 * self.words}, %junk; mad.wide.u32 %out, %i, {4 * self.counts[2]}, %out;
setp.lt.u32 %few, %t, {self.shared}; setp.eq.u32 %yes, 0, 0; shr.u32 %v, %s, 4; cvt.u64.u32 %word, %v;
or.b64 %word, %word, {(128 >> 4) << 16 | (256 >> 4) << 32};
{loads} {multiply} {stores} ret; }}"""

    def launched(self, given: np.ndarray, mask: np.ndarray, junk: np.ndarray | None) -> np.ndarray:
        """D of each completion, (completions, threads, registers); without junk, the bits of D that are marked."""
        program, memory = ptx.load(self.text, self.target), ptx.GlobalMemory()
        if junk is not None:
            out = np.zeros((len(junk), self.threads, self.counts[2]), np.uint32)
            program.launch("k", (len(junk),), (self.threads,), [given, mask, junk, out], memory=memory)
            return out
        tracker = OpenBits()
        unwritten = np.uint64(memory.allocate(given.nbytes, "junk"))
        out = memory.allocate(4 * self.threads * self.counts[2], "out")
        arguments = [given, mask, unwritten, np.uint64(out)]
        program.launch("k", (1,), (self.threads,), arguments, memory=memory, following=tracker)
        marked = tracker.open_in(memory, out, 4 * self.threads * self.counts[2])
        return marked.view(np.uint32).reshape(self.threads, -1)


def mma(shape: str, types: str, counts: tuple[int, int, int], *, tail: str = "", saturates: bool = False) -> Form:
    d, a, b, _ = types.split(".")
    sparse = ".sp::ordered_metadata" if tail else ""
    return Form(f"mma{sparse}.sync.aligned.{shape}.row.col{'.satfinite' * saturates}.{types}", a, b, d, counts, tail)


def wgmma(types: str, k: int, tail: str, *, sparse: str = "") -> Form:
    d, a, b = types.split(".")
    words = 8 * k * element_named(b).code_bits // 32
    return Form(f"wgmma.mma_async{sparse}.sync.aligned.m64n8k{k}.{types}", a, b, d, (4, 1, 4), tail, shared=words)


def scaled(kind: str, k: int, type: str, vector: str, scale: str) -> Form:
    opcode = (
        f"mma.sync.aligned.m16n8k{k}.row.col.kind::{kind}.block_scale.scale_vec::{vector}.f32.{type}.{type}.f32.{scale}"
    )
    return Form(opcode, type, type, "f32", (4, 2, 4), ", %x, {0, 0}, {%x}, {0, 1}", "sm_120a")


META = ", %x, 0x0"
FORMS = [
    mma("m16n8k16", "f32.f16.f16.f32", (4, 2, 4)),
    mma("m16n8k16", "f16.f16.f16.f16", (4, 2, 2)),
    mma("m16n8k8", "f32.bf16.bf16.f32", (2, 1, 4)),
    mma("m16n8k8", "f32.tf32.tf32.f32", (4, 2, 4)),
    mma("m16n8k32", "f32.e4m3.e5m2.f32", (4, 2, 4)),
    mma("m16n8k32", "s32.s8.u8.s32", (4, 2, 4)),
    mma("m16n8k16", "s32.u8.s8.s32", (2, 1, 4), saturates=True),
    mma("m16n8k32", "f32.bf16.bf16.f32", (4, 4, 4), tail=META),
    mma("m16n8k16", "f16.f16.f16.f16", (2, 2, 2), tail=META),
    mma("m16n8k16", "f32.tf32.tf32.f32", (4, 4, 4), tail=META),
    mma("m16n8k64", "f32.e5m2.e4m3.f32", (4, 4, 4), tail=META),
    mma("m16n8k32", "s32.s8.s8.s32", (2, 2, 4), tail=META),
    mma("m16n8k64", "s32.u8.s8.s32", (4, 4, 4), tail=META, saturates=True),
    Form("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", "f16", "f16", "f32", (8, 8, 8)),
    Form("wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.s8.s32", "s8", "s8", "s32", (2, 2, 8)),
    Form(
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e4m3.e5m2.f32",
        "e4m3",
        "e5m2",
        "f32",
        (4, 2, 4),
        target="sm_120a",
    ),
    scaled("mxf8f6f4", 32, "e4m3", "1X", "ue8m0"),
    scaled("mxf4nvf4", 64, "e2m1", "4X", "ue4m3"),
    wgmma("f32.bf16.bf16", 16, ", %yes, 1, 1, 0"),
    wgmma("f32.e4m3.e5m2", 32, ", %yes, 1, -1"),
    wgmma("s32.s8.u8", 32, ", %yes"),
    wgmma("f32.f16.f16", 32, ", %x, 0, %yes, 1, 1, 0", sparse=".sp"),
]


def numbers(generator: np.random.Generator, type: str, count: int) -> np.ndarray:
    """Words of elements: numbers of like size, zeros and ones among them, and now and then any code."""
    row = element_named(type)
    if row.is_integer:
        codes = generator.integers(0, 1 << row.code_bits, count * 32 // row.code_bits).astype(f"u{row.code_bits // 8}")
    else:
        values = generator.normal(0, 1.5, count * 32 // max(row.code_bits, 4 if row.code_bits < 8 else 8))
        values[generator.random(len(values)) < 0.3] = 1
        codes = encode(values, type)
    codes[generator.random(len(codes)) < 0.2] = 0
    if type == "e2m1":
        return (codes[::2] | codes[1::2] << 4).astype(np.uint8).view(np.uint32)[:count]
    return np.ascontiguousarray(codes).view(np.uint32)[:count]


def drawn(form: Form, generator: np.random.Generator, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The words of each thread, and a mask of some bits of A, B, C and of scales."""
    a, b, d = form.counts
    given = np.zeros((form.threads, form.words), np.uint32)
    for type, start, count in ((form.a, 0, a), (form.b, a, b), (form.d, a + b, d)):
        given[:, start : start + count] = numbers(generator, type, form.threads * count).reshape(form.threads, count)
    if "satfinite" in form.opcode:  # a sum is clamped soon
        given[::2, a + b : a + b + d] = generator.choice([0x7FFFFFF0, 0x8000000F], (len(given[::2]), d))
    is_spread = bits > FEW and generator.random() < 0.5  # undefined bits of A meet undefined bits of B, and zeros
    if is_spread:
        given[:, : a + b] = 0
    nibbles = generator.choice([0x4, 0xE], (form.threads, 8)).astype(np.uint32)
    given[:, -1] = (nibbles << 4 * np.arange(8, dtype=np.uint32)).sum(axis=1, dtype=np.uint32)
    if "block_scale" in form.opcode:
        middle = 127 if "ue8m0" in form.opcode else 56
        given[:, -1] = (
            generator.integers(middle - 2, middle + 3, (form.threads, 4)).astype(np.uint8).view(np.uint32)[:, 0]
        )
    mask = np.zeros_like(given)
    able = form.words - (0 if "block_scale" in form.opcode else 1)
    for _ in range(40 if is_spread else generator.integers(1, 4)):
        thread, word = generator.integers(form.threads), generator.integers(able)
        if a <= word < a + b and form.shared:
            thread %= form.shared
        for bit in generator.integers(0, 32, max(1, bits // 4)):
            mask[thread, word] |= np.uint32(1 << int(bit))
    return given, mask


def completions(generator: np.random.Generator, mask: np.ndarray) -> np.ndarray:
    """Every value of the masked bits if they are few, else drawn ones: (completions, threads, words)."""
    places = [(*at, bit) for at in np.argwhere(mask) for bit in range(32) if mask[tuple(at)] >> np.uint32(bit) & 1]
    if len(places) > FEW:
        return generator.integers(0, 1 << 32, (MANY, *mask.shape), dtype=np.uint32)
    junk = np.zeros((1 << len(places), *mask.shape), np.uint32)
    for number, (thread, word, bit) in enumerate(places):
        set_ = np.arange(len(junk)) >> number & 1
        junk[:, thread, word] |= (set_ << bit).astype(np.uint32)
    return junk


def judged(form: Form, seed: int, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """The bits of D that completions change, and those that are marked."""
    generator = np.random.default_rng([seed, bits])
    given, mask = drawn(form, generator, bits)
    found = form.launched(given, mask, completions(generator, mask))
    return np.bitwise_or.reduce(found ^ found[:1], axis=0), form.launched(given, mask, None)


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_no_completion_changes_a_bit_that_is_not_marked(form: Form, refsim_profile: str) -> None:
    """The lowest bit of an element does change, and the highest of a float. No word of integers is marked that nothing
    changes, where a warp multiplies, nothing is clamped and every completion is tried."""
    seeds = {"quick": 3, "ci": 12}.get(refsim_profile, 60)
    changed, idle = np.uint32(0), 0
    for seed in range(seeds):
        for bits in (4, 64):
            varied, marked = judged(form, seed, bits)
            assert (varied & ~marked == 0).all(), (seed, bits)
            changed |= np.bitwise_or.reduce(varied, axis=None)
            idle += int(((marked != 0) & (varied == 0)).sum()) if bits == 4 else 0
    assert changed & 1
    assert changed >> 31 & 1 or form.d == "s32"
    assert idle == 0 or form.d != "s32" or form.shared or "satfinite" in form.opcode, idle
