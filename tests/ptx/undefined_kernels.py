"""Kernels of a few lines for the rules of undefined bits: each right one, and the same with one thing changed.

`A` stands at the line where undefined bits come from, `B` where they arrive in the wrong variant. LOW reads a word of shared
memory of which the low half was written, HIGH one of which the high half was, NONE one that nobody wrote.
"""

from dataclasses import dataclass

import numpy as np

from refsim import ptx

HEAD = """.version 9.0
.target sm_100a
.address_size 64
.file 1 "kernel.cu"
.visible .entry k(.param .u64 out, .param .u64 in, .param .u64 work) {
    .reg .b32 %r<60>; .reg .b16 %h<12>; .reg .b64 %d<20>; .reg .b128 %q<4>; .reg .pred %p<12>;
    .shared .align 16 .b8 tile[8192]; .local .align 16 .b8 own[64];
    ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 16; add.s64 %d3, %d1, %d2;
    ld.param.u64 %d4, [in]; add.s64 %d5, %d4, %d2; ld.param.u64 %d6, [work]; add.s64 %d7, %d6, %d2;
    mov.u32 %r2, tile; shl.b32 %r3, %r1, 4; add.s32 %r4, %r2, %r3; cvt.u16.u32 %h1, %r1; mov.u32 %r5, 5;
    setp.lt.u32 %p1, %r1, 16; setp.ge.u32 %p2, %r1, 64; setp.eq.u32 %p3, %r1, 0; mov.u32 %r6, 0; mov.u32 %r7, -1;
"""
NONE = "ld.shared.u32 %r10, [%r4];  // A\n"
LOW = "st.shared.u16 [%r4], %h1;\n" + NONE
HIGH = "st.shared.u16 [%r4+2], %h1;\n" + NONE
PUT = "st.global.u32 [%d3], %r11;  // B"
WORK_BYTES = 16 * 64


@dataclass(frozen=True)
class Case:
    """`change` (old, new) makes the right body wrong. `tests` is the mnemonic whose rule both variants are about, `reached`
    what the finding says of the end. A right one that reads unwritten memory leaves a note unless `is_silent`."""

    name: str
    tests: str
    body: str
    change: tuple[str, str]
    reached: str = "an output"
    is_silent: bool = False

    def __str__(self) -> str:
        return self.name

    def text(self, is_right: bool) -> str:
        """The body of a variant, of which the change must hit one place."""
        old, new = self.change
        assert self.body.count(old) == 1, (self.name, self.body.count(old))
        return self.body if is_right else self.body.replace(old, new)


def run(
    body: str, threads: int = 32, *, policy: str = "eager", seed: int = 1, **checks: str
) -> tuple[np.ndarray, ptx.Trace]:
    """The output, and what was seen. %r4 is the thread's own 16 bytes of `tile`, %d3 of the output (zeros), %d5 of the
    input, %d7 of memory that nobody has written."""
    lines = [f".loc 1 {number} 1\n{line.split('//')[0]}" for number, line in enumerate(body.splitlines(), 1)]
    memory, out = ptx.GlobalMemory(), np.zeros(4 * 64, np.uint32)
    work = memory.allocate(WORK_BYTES, "work")
    trace = ptx.load("\n".join([HEAD, *lines, "ret;", "}", ""])).launch(
        "k", (1,), (threads,), [out, np.arange(1, 257, dtype=np.uint32), np.uint64(work)], memory=memory,
        policy=policy, seed=seed, checks=ptx.Checks(**checks), arithmetic="exact",
    )  # fmt: skip
    return out, trace


def marked(body: str, letter: str) -> str:
    """`kernel.cu:3`: the line with a mark."""
    (line,) = (n for n, text in enumerate(body.splitlines(), 1) if text.partition("//")[2].split().count(letter))
    return f"kernel.cu:{line}"


def bitwise(name: str, tests: str, source: str, middle: str, change: tuple[str, str]) -> Case:
    return Case(name, tests, f"{source}{middle}\n{PUT}", change)


LOGIC = (
    bitwise("and_with_zero", "and", NONE, "and.b32 %r11, %r10, 0;", ("%r10, 0;", "%r10, 1;")),
    bitwise("and_of_two", "and", LOW, "and.b32 %r11, %r10, 0xffff;", ("0xffff", "0x1ffff")),
    bitwise("or_with_ones", "or", NONE, "or.b32 %r11, %r10, 0xffffffff;", ("0xffffffff", "0x7fffffff")),
    bitwise("xor", "xor", LOW, "xor.b32 %r11, %r10, %r1; shl.b32 %r11, %r11, 16;", (", 16;", ", 15;")),
    bitwise("not", "not", LOW, "not.b32 %r11, %r10; and.b32 %r11, %r11, 0xffff;", ("0xffff", "0x1ffff")),
    bitwise("cnot", "cnot", NONE, "cnot.b32 %r11, %r10; shr.u32 %r11, %r11, 1;", ("shr.u32 %r11, %r11, 1;", "")),
    bitwise("lop3", "lop3", LOW, "mov.u32 %r12, 0xffff; lop3.b32 %r11, %r10, %r12, %r1, 0xc0;", ("0xffff", "0x1ffff")),
    bitwise("shl", "shl", LOW, "shl.b32 %r11, %r10, 16;", (", 16;", ", 15;")),
    bitwise("shr", "shr", HIGH, "shr.u32 %r11, %r10, 16;", (", 16;", ", 15;")),
    bitwise("shr_by_sign", "shr", HIGH, "shr.s32 %r11, %r10, 16;", (", 16;", ", 15;")),
    bitwise("shf", "shf", LOW, "shf.l.wrap.b32 %r11, %r5, %r10, 16;", (", 16;", ", 15;")),
    bitwise("prmt", "prmt", LOW, "prmt.b32 %r11, %r10, %r5, 0x1410;", ("0x1410", "0x2410")),
    bitwise("prmt_signs", "prmt", LOW, "prmt.b32 %r11, %r10, %r5, 0x9410;", ("0x9410", "0xb410")),
    bitwise("bfe", "bfe", LOW, "bfe.u32 %r11, %r10, 0, 16;", (", 0, 16", ", 1, 16")),
    bitwise("bfi", "bfi", LOW, "bfi.b32 %r11, %r10, %r5, 8, 16;", (", 8, 16", ", 8, 17")),
    bitwise("brev", "brev", LOW, "brev.b32 %r11, %r10; shr.u32 %r11, %r11, 16;", (", 16;", ", 15;")),
    bitwise("szext", "szext", LOW, "szext.wrap.u32 %r11, %r10, 16;", (", 16;", ", 17;")),
    bitwise("moved", "mov", LOW, "mov.u32 %r12, %r10; and.b32 %r11, %r12, 0xffff;", ("0xffff", "0x1ffff")),
    bitwise(
        "unpacked", "mov", LOW, "mov.b32 {%h2, %h3}, %r10; cvt.u32.u16 %r11, %h2;", ("16 %r11, %h2", "16 %r11, %h3")
    ),
    bitwise("packed", "mov", HIGH, "mov.b32 {%h2, %h3}, %r10; mov.b32 %r11, {%h1, %h3};", ("%r11, {%h1", "%r11, {%h2")),
    bitwise(
        "narrowed",
        "cvt",
        LOW,
        "shr.u32 %r12, %r10, 0; cvt.u16.u32 %h2, %r12; cvt.s32.s16 %r11, %h2;",
        (", 0; cvt", ", 1; cvt"),
    ),
    bitwise("selected", "selp", NONE, "selp.b32 %r11, %r10, %r5, %p2;", ("%p2", "%p3")),
    bitwise("equal_choices", "selp", NONE, "setp.ne.u32 %p4, %r10, 0; selp.b32 %r11, %r5, 5, %p4;", (", 5,", ", 4,")),
    bitwise("chosen_by_sign", "slct", NONE, "slct.b32.s32 %r11, %r5, %r10, %r1;", ("%r5, %r10", "%r10, %r5")),
)
DEAD = "add.u32 %r12, %r10, 1; fma.rn.f32 %r12, %r12, %r12, %r12;\nst.global.u32 [%d3], %r5;  // B"
ARITHMETIC = (
    Case("dead_sum", "add", NONE + DEAD, ("[%d3], %r5", "[%d3], %r12")),
    Case(
        "sum_of_part",
        "add",
        LOW + "and.b32 %r12, %r10, 0xffff; add.u32 %r11, %r12, 1;\n" + PUT,
        ("and.b32 %r12, %r10, 0xffff; add.u32 %r11, %r12, 1;", "add.u32 %r11, %r10, 1; and.b32 %r11, %r11, 0xffff;"),
    ),
    Case(
        "halves", "add", LOW + "add.f16x2 %r12, %r10, %r10; and.b32 %r11, %r12, 0xffff;\n" + PUT, ("0xffff", "0x1ffff")
    ),
    Case(
        "packed_floats",
        "cvt",
        NONE + "cvt.rn.f16x2.f32 %r12, %r10, %r5; and.b32 %r11, %r12, 0xffff;\n" + PUT,
        ("0xffff", "0x1ffff"),
    ),
    Case(
        "unpacked_floats",
        "cvt",
        "st.shared.u8 [%r4], %h1;\nld.shared.u16 %h2, [%r4];  // A\n"
        "cvt.rn.f16x2.e4m3x2 %r12, %h2; and.b32 %r11, %r12, 0xffff;\n" + PUT,
        ("0xffff", "0x1ffff"),
    ),
    Case(
        "packed_integers",
        "cvt",
        NONE + "cvt.pack.sat.u16.s32 %r12, %r10, %r5; and.b32 %r11, %r12, 0xffff;\n" + PUT,
        ("0xffff", "0x1ffff"),
    ),
    Case(
        "compared",
        "setp",
        NONE + "setp.lt.and.u32 %p4, %r10, 9, %p2; selp.b32 %r11, 1, 2, %p4;\n" + PUT,
        (", %p2; selp", ", %p3; selp"),
    ),
    Case(
        "compared_or",
        "setp",
        NONE + "setp.ge.u32 %p5, %r1, 0; setp.lt.or.u32 %p4, %r10, 9, %p5; selp.b32 %r11, 1, 2, %p4;\n" + PUT,
        ("%p5; selp", "%p2; selp"),
    ),
)

DECISIONS = (
    Case(
        "branch",
        "bra",
        NONE + "and.b32 %r11, %r10, 0; setp.ne.u32 %p4, %r11, 0;\n@%p4 bra END;  // B\nEND:",
        (", 0; setp", ", 1; setp"),
        "a branch",
    ),
    Case(
        "exit",
        "exit",
        NONE + "and.b32 %r11, %r10, 0; setp.ne.u32 %p4, %r11, 0;\n@%p4 exit;  // B",
        (", 0; setp", ", 1; setp"),
        "a branch",
    ),
    Case(
        "table",
        "brx",
        NONE + "and.b32 %r11, %r10, 0; TS: .branchtargets L0, L1;\nbrx.idx %r11, TS;  // B\nL0: L1:",
        (", 0; TS", ", 1; TS"),
        "a branch",
    ),
    Case(
        "load_address",
        "ld",
        NONE + "and.b32 %r11, %r10, 0; add.u32 %r12, %r11, %r4;\nst.shared.u32 [%r4+4], 1;\n"
        "ld.shared.u32 %r13, [%r12+4];  // B",
        (", 0; add", ", 16; add"),
        "an address",
    ),
    Case(
        "store_address",
        "st",
        NONE + "and.b32 %r11, %r10, 0; add.u32 %r12, %r11, %r4;\nst.shared.u32 [%r12], 1;  // B",
        (", 0; add", ", 1; add"),
        "an address",
    ),
    Case(
        "atomic_address",
        "atom",
        NONE + "and.b32 %r11, %r10, 0; add.u32 %r12, %r11, %r4;\nst.shared.u32 [%r4+4], 1;\n"
        "atom.shared.add.u32 %r13, [%r12+4], 1;  // B",
        (", 0; add", ", 1; add"),
        "an address",
    ),
    Case(
        "guarded_store",
        "st",
        NONE + "and.b32 %r11, %r10, 0; setp.ne.u32 %p4, %r11, 0;\n@%p4 st.shared.u32 [%r4], 1;  // B",
        (", 0; setp", ", 1; setp"),
        "the guard of a store",
    ),
    Case(
        "guarded_move",
        "mov",
        NONE + "setp.ne.u32 %p4, %r10, 0; mov.u32 %r11, 1;\n@%p4 mov.u32 %r11, 2;\nst.global.u32 [%d3], %r5;  // B",
        ("[%d3], %r5", "[%d3], %r11"),
    ),
    Case(
        "member_mask",
        "vote",
        NONE + "or.b32 %r11, %r10, -1;\nvote.sync.any.pred %p4, %p1, %r11;  // B",
        (", -1;", ", -2;"),
        "a member mask",
    ),
    Case(
        "arrivals_of_an_mbarrier",
        "mbarrier",
        NONE + "and.b32 %r11, %r10, 0; add.u32 %r12, %r11, 1;\nmbarrier.init.shared.b64 [%r4+1024], %r12;  // B",
        ("%r10, 0;", "%r10, 1;"),
        reached="what an mbarrier is given",
    ),
    Case(
        "printed_address",
        "call",
        NONE + "and.b32 %r11, %r10, 0;\ncvt.u64.u32 %d8, %r11; add.u64 %d9, %d5, %d8;\n"
        "{ .param .b64 text; .param .b64 rest; .param .b32 count; st.param.b64 [text], %d9; st.param.b64 [rest], %d5;\n"
        "call (count), vprintf, (text, rest); }  // B",
        ("%r10, 0;", "%r10, 4;"),
        reached="an address",
    ),
    Case(
        "copy_address",
        "cp",
        NONE + "and.b32 %r11, %r10, 0; cvt.u64.u32 %d8, %r11; add.u64 %d9, %d8, %d5;\n"
        "cp.async.ca.shared.global [%r4], [%d9], 16; cp.async.wait_all;  // B",
        (", 0; cvt", ", 1; cvt"),
        "an address",
    ),
    Case(
        "copy_size",
        "cp",
        NONE + "and.b32 %r11, %r10, 0;\ncp.async.ca.shared.global [%r4], [%d5], 16, %r11; cp.async.wait_all;  // B",
        (", 0;\n", ", 16;\n"),
        "the size of a copy",
    ),
)

BACK = "ld.shared.u32 %r11, [%r4];  // A\n"
MEMORY = (
    Case(
        "one_of_two",
        "ld",
        "st.shared.u32 [%r4], 1;\nld.shared.v2.u32 {%r11, %r12}, [%r4];  // A\n" + PUT,
        ("%r11;  // B", "%r12;  // B"),
    ),
    Case(
        "stored_and_loaded",
        "st",
        NONE + "st.shared.u32 [%r4+4], %r10;\nst.shared.u32 [%r4+8], 1; ld.shared.u32 %r11, [%r4+8];\n" + PUT,
        ("%r11, [%r4+8]", "%r11, [%r4+4]"),
    ),
    Case(
        "defined_again",
        "st",
        NONE + "st.global.u32 [%d3], %r10;  // B\nst.global.u32 [%d3], 7;",
        ("st.global.u32 [%d3], 7;", ""),
    ),
    Case(
        "local",
        "ld",
        "st.local.u32 [own], 1;\nld.local.v2.u32 {%r11, %r12}, [own];  // A\n" + PUT,
        ("%r11;  // B", "%r12;  // B"),
    ),
    Case(
        "global",
        "ld",
        "st.global.u32 [%d7], 1;\nld.global.v2.u32 {%r11, %r12}, [%d7];  // A\n" + PUT,
        ("%r11;  // B", "%r12;  // B"),
    ),
    Case(
        "uniform",
        "ldu",
        "st.global.u32 [%d7], 1;\nldu.global.v2.u32 {%r11, %r12}, [%d7];  // A\n" + PUT,
        ("%r11;  // B", "%r12;  // B"),
    ),
    Case(
        "generic",
        "ld",
        "cvta.shared.u64 %d8, 0; cvt.u64.u32 %d9, %r4; add.u64 %d9, %d9, %d8; st.u32 [%d9], 1;\n"
        "ld.v2.u32 {%r11, %r12}, [%d9];  // A\n" + PUT,
        ("%r11;  // B", "%r12;  // B"),
    ),
    Case(
        "signed_byte",
        "ld",
        "st.shared.u16 [%r4], %h1;\nld.shared.s8 %r11, [%r4];  // A\n" + PUT,
        ("[%r4];  // A", "[%r4+2];  // A"),
        is_silent=True,
    ),
    Case(
        "counted",
        "atom",
        "st.shared.u32 [%r4], 0;\natom.shared.add.u32 %r11, [%r4], 1;  // A\n" + PUT,
        ("st.shared.u32 [%r4], 0;", ""),
        is_silent=True,
    ),
    Case(
        "cleared",
        "atom",
        "atom.shared.and.b32 %r12, [%r4], 0;  // A\nld.shared.u32 %r11, [%r4];\n" + PUT,
        (", 0;  // A", ", 1;  // A"),
    ),
    Case(
        "set",
        "atom",
        "atom.shared.or.b32 %r12, [%r4], 0xffffffff;  // A\nld.shared.u32 %r11, [%r4];\n" + PUT,
        ("0xffffffff", "0x7fffffff"),
    ),
    Case(
        "exchanged",
        "atom",
        "atom.shared.exch.b32 %r12, [%r4], %r1;  // A\nld.shared.u32 %r11, [%r4];\n" + PUT,
        ("ld.shared.u32 %r11, [%r4];", "mov.u32 %r11, %r12;"),
    ),
    Case(
        "swapped",
        "atom",
        "atom.shared.cas.b32 %r12, [%r4], 0, %r1;  // A\nst.shared.u32 [%r4], 1; ld.shared.u32 %r11, [%r4];\n" + PUT,
        ("st.shared.u32 [%r4], 1;", ""),
    ),
    Case(
        "chained",
        "atom",
        "st.shared.u32 [%r2], 0; bar.sync 0;\n@%p3 ld.shared.u32 %r12, [%r2+16];  // A\n"
        "@!%p3 mov.u32 %r12, 1; @%p3 and.b32 %r12, %r12, 0;\natom.shared.add.u32 %r11, [%r2], %r12;\n" + PUT,
        ("%r12, %r12, 0;", "%r12, %r12, 1;"),
    ),
    Case(
        "reduced_in_place",
        "red",
        "st.global.u32 [%d7], 0;\nred.global.add.u32 [%d7], 1;  // A\nld.global.u32 %r11, [%d7];\n" + PUT,
        ("st.global.u32 [%d7], 0;", ""),
        is_silent=True,
    ),
    Case(
        "copied",
        "cp",
        "cp.async.ca.shared.global [%r4], [%d7], 16; cp.async.wait_all;  // A\nst.shared.u32 [%r4], 1;\n"
        + BACK.replace("  // A", "")
        + PUT,
        ("st.shared.u32 [%r4], 1;", ""),
    ),
    Case(
        "copied_short",
        "cp",
        "st.global.u32 [%d7], 1;\ncp.async.ca.shared.global [%r4], [%d7], 16, 4; cp.async.wait_all;  // A\n"
        "ld.shared.u32 %r11, [%r4+4];\n" + PUT,
        ("16, 4;", "16, 8;"),
        is_silent=True,
    ),
)

HALF = "@%p1 st.shared.u32 [%r4], %r1;\nst.shared.u32 [%r4+4], 1; ld.shared.v2.u32 {%r10, %r14}, [%r4];  // A\n"
WIDE = (
    Case(
        "half_of_128_bits", "mov",
        "st.shared.v2.b32 [%r4], {%r5, %r5};\nld.shared.b128 %q1, [%r4];  // A\n"
        "mov.b128 {%d8, %d9}, %q1;\nst.global.b64 [%d3], %d8;  // B",
        ("[%d3], %d8", "[%d3], %d9"),
    ),
    Case(
        "exchanged_128_bits", "atom",
        "mov.u64 %d8, 1; mov.b128 %q1, {%d8, %d8};\natom.shared.exch.b128 %q2, [%r4], %q1;  // A\n"
        "ld.shared.b128 %q3, [%r4];\nst.global.b128 [%d3], %q3;  // B",
        ("[%d3], %q3", "[%d3], %q2"),
    ),
    Case(
        "swapped_128_bits", "atom",
        "mov.u64 %d8, 1; mov.b128 %q1, {%d8, %d8};\natom.shared.cas.b128 %q2, [%r4], %q1, %q1;  // A\n"
        "st.shared.b128 [%r4], %q1;\nld.shared.b128 %q3, [%r4];\nst.global.b128 [%d3], %q3;  // B",
        ("st.shared.b128 [%r4], %q1;", ""),
    ),
)  # fmt: skip

WARP = (
    Case(
        "half of the rows of a wmma operand were written, and of its product the lower rows are stored",
        "wmma",
        "st.shared.v4.b32 [%r4], {%r6, %r6, %r6, %r6};\nbar.sync 0;\n"
        "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}, [%r2];  // A\n"
        "wmma.load.b.sync.aligned.col.m16n16k16.shared.f16 {%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}, [%r2];\n"
        "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%r40, %r41, %r11, %r43, %r44, %r45, %r46, %r47}, "
        "{%r20, %r21, %r22, %r23, %r24, %r25, %r26, %r27}, {%r30, %r31, %r32, %r33, %r34, %r35, %r36, %r37}, "
        "{%r6, %r6, %r6, %r6, %r6, %r6, %r6, %r6};\n" + PUT,
        ("st.shared.v4", "@%p1 st.shared.v4"),
        is_silent=True,
    ),
    Case(
        "transposed",
        "movmatrix",
        HALF + "movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r10; and.b32 %r12, %r1, 3;\n"
        "setp.lt.u32 %p4, %r12, 2;\n@%p4 st.global.u32 [%d3], %r11;  // B",
        ("%r12, 2;", "%r12, 3;"),
    ),
    Case(
        "absent_lane",
        "shfl",
        "mov.u32 %r11, 0;\n@!%p1 bra END;\nshfl.sync.down.b32 %r11, %r1, 8, 31, 0xffff;  // A\n"
        "setp.lt.u32 %p4, %r1, 8;\n@%p4 st.global.u32 [%d3], %r11;  // B\nEND:",
        ("%p4, %r1, 8", "%p4, %r1, 9"),
        is_silent=True,
    ),
    Case(
        "exited_lane",
        "shfl",
        "@!%p1 exit;\nshfl.sync.down.b32 %r11, %r1, 8, 31, -1;  // A\n"
        "setp.lt.u32 %p4, %r1, 8;\n@%p4 st.global.u32 [%d3], %r11;  // B",
        ("%p4, %r1, 8", "%p4, %r1, 9"),
        is_silent=True,
    ),
    Case("shuffled", "shfl", HALF + "shfl.sync.idx.b32 %r11, %r10, 3, 31, -1;\n" + PUT, (", 3, 31", ", 30, 31")),
    Case(
        "shuffled_from",
        "shfl",
        NONE + "and.b32 %r12, %r10, 0; shfl.sync.idx.b32 %r11, %r1, %r12, 31, -1;\n" + PUT,
        ("%r10, 0; shfl", "%r10, 1; shfl"),
    ),
    Case(
        "ballot",
        "vote",
        HALF + "setp.eq.u32 %p4, %r10, 3; vote.sync.ballot.b32 %r11, %p4, -1; and.b32 %r11, %r11, 0xffff;\n" + PUT,
        ("0xffff;", "0x1ffff;"),
    ),
    Case(
        "any",
        "vote",
        HALF + "setp.lt.u32 %p4, %r10, 16; vote.sync.any.pred %p5, %p4, -1; selp.b32 %r11, 1, 2, %p5;\n" + PUT,
        ("%r10, 16;", "%r10, 0;"),
    ),
    Case(
        "all",
        "vote",
        HALF + "setp.eq.u32 %p4, %r10, 3; vote.sync.all.pred %p5, %p4, -1; selp.b32 %r11, 1, 2, %p5;\n" + PUT,
        ("setp.eq.u32 %p4, %r10, 3;", "setp.lt.u32 %p4, %r10, 16;"),
    ),
    Case(
        "redux_or",
        "redux",
        HALF + "redux.sync.or.b32 %r11, %r10, -1; and.b32 %r11, %r11, 0xf;\n" + PUT,
        (", 0xf;", ", 0x10;"),
    ),
    Case(
        "redux_add",
        "redux",
        HALF + "selp.b32 %r12, %r10, 0, %p1; redux.sync.add.u32 %r11, %r12, -1;\n" + PUT,
        ("0, %p1", "0, %p6"),
    ),
    Case(
        "matched",
        "match",
        HALF + "selp.b32 %r12, %r10, 0, %p1; match.any.sync.b32 %r11, %r12, -1;\n" + PUT,
        ("0, %p1", "0, %p6"),
    ),
    Case(
        "counted_at_barrier",
        "bar",
        HALF + "setp.lt.and.u32 %p4, %r10, 9, %p1; bar.red.popc.u32 %r11, 0, %p4;\n" + PUT,
        (", 9, %p1", ", 9, %p6"),
    ),
    Case(
        "counted_at_unaligned_barrier",
        "barrier",
        HALF + "setp.lt.and.u32 %p4, %r10, 9, %p1; barrier.red.popc.u32 %r11, 0, %p4;\n" + PUT,
        (", 9, %p1", ", 9, %p6"),
    ),
    Case(
        "matrix_row",
        "mma",
        "@%p1 st.shared.v4.u32 [%r4], {%r5, %r5, %r5, %r5};\nbar.warp.sync -1;\n"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r4];  // A\n"
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r11, %r31, %r32, %r33}, {%r20, %r22, %r21, %r23}, {%r5, %r5}, "
        "{%r6, %r6, %r6, %r6};\nst.global.u32 [%d3], %r11;  // B",
        ("[%d3], %r11", "[%d3], %r32"),
    ),
    Case(
        "matrix_column",
        "mma",
        HALF + "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r11, %r31, %r32, %r33}, "
        "{%r5, %r5, %r5, %r5}, {%r10, %r5}, {%r6, %r6, %r6, %r6};\nand.b32 %r12, %r1, 3; setp.lt.u32 %p4, %r12, 2;\n"
        "@%p4 st.global.u32 [%d3], %r11;  // B",
        ("%r12, 2;", "%r12, 3;"),
    ),
    Case(
        "matrix_element",
        "mma",
        HALF + "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r11, %r31, %r32, %r33}, "
        "{%r5, %r5, %r5, %r5}, {%r5, %r5}, {%r6, %r10, %r6, %r6};\n@%p1 st.global.u32 [%d3], %r31;\n"
        "st.global.u32 [%d3+4], %r11;  // B",
        ("[%d3+4], %r11", "[%d3+4], %r31"),
    ),
    Case(
        "matrix_loaded",
        "ldmatrix",
        "@%p1 st.shared.v4.u32 [%r4], {%r5, %r5, %r5, %r5};\nbar.warp.sync -1;\n"
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r20, %r21, %r22, %r23}, [%r4];  // A\nst.global.u32 [%d3], %r21;  // B",
        ("[%d3], %r21", "[%d3], %r22"),
    ),
    Case(
        "matrix_stored",
        "stmatrix",
        NONE + "st.shared.v4.u32 [%r4], {%r5, %r5, %r5, %r5};\nbar.warp.sync -1;\n"
        "stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r4], {%r5, %r10};\nbar.warp.sync -1;\n"
        "setp.lt.u32 %p4, %r1, 8;\n@%p4 ld.shared.u32 %r11, [%r4+4];\n@%p4 st.global.u32 [%d3], %r11;  // B",
        ("[%r4+4]", "[%r4+132]"),
    ),
)
# Where a wrong variant takes all lanes it does so by a predicate that holds for all of them.
EVERYONE = "setp.ge.u32 %p6, %r1, 0; "

REGISTERS = (
    Case("never_written", "mov", "st.global.u32 [%d3], %r5;  // A B", ("%r5;", "%r50;"), is_silent=True),
    Case(
        "written_in_one_arm",
        "mov",
        "@%p1 mov.u32 %r50, 1;\nsetp.lt.u32 %p4, %r1, 16;\n@%p4 st.global.u32 [%d3], %r50;  // A B",
        ("%r1, 16", "%r1, 17"),
        is_silent=True,
    ),
)

CASES = (*LOGIC, *ARITHMETIC, *DECISIONS, *MEMORY, *WIDE, *WARP)
