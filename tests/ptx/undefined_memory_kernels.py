"""Kernels of a few lines for the rules of undefined bits in memory, in wide registers and among the lanes of a warp."""

from pathlib import Path

from refsim.testing.kernel_files import load_kernel_file

kernels = load_kernel_file(Path(__file__).parent / "undefined_kernels.py")
Case, bitwise, NONE, LOW, HIGH, PUT = (
    getattr(kernels, name) for name in ("Case", "bitwise", "NONE", "LOW", "HIGH", "PUT")
)

OTHER = "ld.shared.u32 %r10, [%r4+4];  // A\n"
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
    *(
        Case(
            name,
            "atom",
            OTHER + f"st.shared.u32 [%r4], {held}; atom.shared.{update};\nld.shared.u32 %r11, [%r4];\n" + PUT,
            change,
        )
        for name, held, update, change in (
            ("swapped_in_vain", 7, "cas.b32 %r12, [%r4], 8, %r10", ("8, %r10", "7, %r10")),
            ("swapped_for_the_same", 7, "cas.b32 %r12, [%r4], %r10, 7", ("%r10, 7", "%r10, 6")),
            ("cleared_before", 0, "and.b32 %r12, [%r4], %r10", ("[%r4], 0;", "[%r4], 1;")),
            ("set_before", -1, "or.b32 %r12, [%r4], %r10", ("[%r4], -1;", "[%r4], 1;")),
            ("greatest_before", -1, "max.u32 %r12, [%r4], %r10", ("max.u32", "max.s32")),
            ("least_before", -(1 << 31), "min.s32 %r12, [%r4], %r10", ("min.s32", "min.u32")),
        )
    ),
    *(
        Case(
            f"{operation}_{type}",
            "atom",
            f"atom.shared.{operation}.{type} %r12, [%r4], {end};  // A\nld.shared.u32 %r11, [%r4];\n" + PUT,
            (f"{end};  // A", f"{other};  // A"),
        )
        for operation, type, end, other in (
            ("max", "u32", "0xffffffff", "0xfffffffe"),
            ("max", "s32", "0x7fffffff", "0xffffffff"),
            ("min", "u32", "0", "1"),
            ("min", "s32", "0x80000000", "0"),
        )
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
        "half_of_128_bits",
        "mov",
        "st.shared.v2.b32 [%r4], {%r5, %r5};\nld.shared.b128 %q1, [%r4];  // A\n"
        "mov.b128 {%d8, %d9}, %q1;\nst.global.b64 [%d3], %d8;  // B",
        ("[%d3], %d8", "[%d3], %d9"),
    ),
    Case(
        "exchanged_128_bits",
        "atom",
        "mov.u64 %d8, 1; mov.b128 %q1, {%d8, %d8};\natom.shared.exch.b128 %q2, [%r4], %q1;  // A\n"
        "ld.shared.b128 %q3, [%r4];\nst.global.b128 [%d3], %q3;  // B",
        ("[%d3], %q3", "[%d3], %q2"),
    ),
    Case(
        "swapped_128_bits",
        "atom",
        "mov.u64 %d8, 1; mov.b128 %q1, {%d8, %d8};\natom.shared.cas.b128 %q2, [%r4], %q1, %q1;  // A\n"
        "st.shared.b128 [%r4], %q1;\nld.shared.b128 %q3, [%r4];\nst.global.b128 [%d3], %q3;  // B",
        ("st.shared.b128 [%r4], %q1;", ""),
    ),
)

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
        ("setp.lt.u32 %p4, %r10, 16;", "setp.gt.u32 %p4, %r10, 16;"),
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

CASES = (*MEMORY, *WIDE, *WARP)
