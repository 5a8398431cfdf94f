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
    input, %d7 of memory that nobody has written. A read through the read-only cache may see it or not: another check's."""
    lines = [f".loc 1 {number} 1\n{line.split('//')[0]}" for number, line in enumerate(body.splitlines(), 1)]
    memory, out = ptx.GlobalMemory(), np.zeros(4 * 64, np.uint32)
    work = memory.allocate(WORK_BYTES, "work")
    trace = ptx.load("\n".join([HEAD, *lines, "ret;", "}", ""])).launch(
        "k",
        (1,),
        (threads,),
        [out, np.arange(1, 257, dtype=np.uint32), np.uint64(work)],
        memory=memory,
        policy=policy,
        seed=seed,
        checks=ptx.Checks(off=("stale-read",), **checks),
        arithmetic="exact",
    )
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
        LOW + "add.u32 %r12, %r10, 1; and.b32 %r11, %r12, 0xffff;\n" + PUT,
        ("0xffff", "0x1ffff"),
    ),
    bitwise(
        "difference_of_part", "sub", LOW, "sub.u32 %r12, %r5, %r10; and.b32 %r11, %r12, 0xffff;", ("0xffff", "0x1ffff")
    ),
    bitwise("times_zero", "mul", NONE, "mul.lo.u32 %r11, %r10, %r6;", ("%r6", "%r5")),
    bitwise("high_of_times_zero", "mul", NONE, "mul.hi.u32 %r11, %r6, %r10;", ("%r6", "%r5")),
    bitwise(
        "product_of_part", "mul", LOW, "mul.lo.u32 %r12, %r10, 4; and.b32 %r11, %r12, 0x3ffff;", ("0x3ffff", "0x7ffff")
    ),
    bitwise("times_zero_plus", "mad", NONE, "mad.lo.u32 %r11, %r10, %r6, %r1;", ("%r6", "%r5")),
    bitwise("zero_moved", "shl", NONE, "and.b32 %r12, %r10, 31; shl.b32 %r11, %r6, %r12;", ("%r6, %r12", "%r5, %r12")),
    bitwise("all_moved_out", "shr", NONE, "or.b32 %r12, %r10, 32; shr.u32 %r11, %r7, %r12;", (", 32;", ", 16;")),
    bitwise(
        "unequal_anyway",
        "setp",
        LOW,
        "or.b32 %r12, %r10, 256; setp.eq.u32 %p4, %r12, %r1; selp.b32 %r11, 1, 2, %p4;",
        (", 256;", ", 0;"),
    ),
    bitwise(
        "never_above",
        "setp",
        NONE,
        "and.b32 %r12, %r10, 255; setp.gt.u32 %p4, %r12, 256; selp.b32 %r11, 1, 2, %p4;",
        (", 256;", ", 254;"),
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
        NONE + "and.b32 %r11, %r10, 0; setp.ne.u32 %p4, %r11, 0;\n@%p4 bra END;  // B\nst.shared.u32 [%r4], 1;\nEND:",
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

CASES = (*LOGIC, *ARITHMETIC, *DECISIONS)
