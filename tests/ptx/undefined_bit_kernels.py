"""Kernels for instructions that read only some bits of an operand, or whose result some undefined bits cannot change: each
right one, and the same with one thing changed. NONE, LOW, HIGH and the registers are those of undefined_kernels.py."""

from pathlib import Path

from refsim.testing.kernel_files import load_kernel_file

kernels = load_kernel_file(Path(__file__).parent / "undefined_kernels.py")
Case, HIGH, LOW, NONE, PUT = kernels.Case, kernels.HIGH, kernels.LOW, kernels.NONE, kernels.PUT
BYTE = "prmt.b32 %r12, %r5, %r10, 0x7650; "  # 5 in the lowest byte, undefined bits above
TOPS = "prmt.b32 %r12, %r5, %r10, 0x7210; prmt.b32 %r13, %r7, %r10, 0x7210; "  # the top bytes alone are undefined
KEEP = "and.b32 %r11, %r13, 0xffff;"


def case(name: str, tests: str, source: str, middle: str, old: str, new: str) -> Case:
    """A right body, and what makes it wrong."""
    return Case(name, tests, f"{source}{middle}\n{PUT}", (old, new))


READ = (
    case("dp2a_lo", "dp2a", LOW, "dp2a.lo.u32.u32 %r11, %r7, %r10, %r1;", "2a.lo", "2a.hi"),
    case("dp2a_hi", "dp2a", HIGH, "dp2a.hi.s32.s32 %r11, %r7, %r10, %r1;", "2a.hi", "2a.lo"),
    case(
        "dp4a_of_zeros", "dp4a", LOW, "and.b32 %r12, %r7, 0xffff; dp4a.u32.u32 %r11, %r12, %r10, %r1;", "ffff", "1ffff"
    ),
    case(
        "mul24_top_bytes",
        "mul24",
        NONE,
        TOPS + "mul24.lo.u32 %r11, %r12, %r13;",
        "12, %r5, %r10, 0x7210",
        "12, %r5, %r10, 0x7610",
    ),
    case(
        "mad24_top_bytes",
        "mad24",
        NONE,
        TOPS + "mad24.hi.s32 %r11, %r12, %r13, %r1;",
        "13, %r7, %r10, 0x7210",
        "13, %r7, %r10, 0x7610",
    ),
    case("selectors", "prmt", LOW, "shr.u32 %r12, %r10, 0; prmt.b32 %r11, %r1, %r7, %r12;", ", 0; prmt", ", 1; prmt"),
    case("mode_of_prmt", "prmt", NONE, "and.b32 %r12, %r10, -4; prmt.b32.rc16 %r11, %r1, %r7, %r12;", "-4", "-3"),
    case("field_from", "bfe", NONE, BYTE + "bfe.u32 %r11, %r7, %r12, 28;", "0x7650", "0x7654"),
    case("field_length", "bfe", NONE, BYTE + "bfe.u32 %r11, %r7, 3, %r12;", "0x7650", "0x7654"),
    case("field_put_at", "bfi", NONE, BYTE + "bfi.b32 %r11, %r5, %r7, %r12, 4;", "0x7650", "0x7654"),
    case("count_of_shf", "shf", LOW, "shf.l.wrap.b32 %r11, %r7, %r5, %r10;", "wrap", "clamp"),
    case("width_of_szext", "szext", NONE, BYTE + "szext.wrap.u32 %r11, %r7, %r12;", "wrap", "clamp"),
    case("length_of_bmsk", "bmsk", NONE, BYTE + "bmsk.wrap.b32 %r11, %r5, %r12;", "wrap", "clamp"),
    case("start_of_bmsk", "bmsk", NONE, BYTE + "bmsk.wrap.b32 %r11, %r12, %r5;", "wrap", "clamp"),
    case(
        "lane_of_shfl",
        "shfl",
        NONE,
        "and.b32 %r12, %r10, -32; shfl.sync.idx.b32 %r11, %r1, %r12, 31, -1;",
        "-32",
        "-16",
    ),
    case(
        "segment_of_shfl",
        "shfl",
        NONE,
        "and.b32 %r12, %r10, 0xffffe0e0; or.b32 %r12, %r12, 31; shfl.sync.idx.b32 %r11, %r1, 0, %r12, -1;",
        "e0e0",
        "e1e0",
    ),
    case(
        "distances_without_c",
        "vabsdiff4",
        NONE,
        "vabsdiff4.u32.u32.u32 %r11, %r1, %r5, %r10;",
        "u32 %r11",
        "u32.add %r11",
    ),
    case("sign_of_copysign", "copysign", NONE, "copysign.f32 %r12, %r7, %r10; shr.u32 %r11, %r12, 31;", "31", "30"),
    case(
        "magnitude_of_copysign",
        "copysign",
        NONE,
        "copysign.f32 %r12, %r10, %r5; shl.b32 %r11, %r12, 1;",
        ", 1;",
        ", 0;",
    ),
)
ONE_REGISTER = (
    case("xor_of_itself", "xor", NONE, "mov.b32 %r12, %r10; xor.b32 %r11, %r12, %r12;", "%r12, %r12", "%r12, %r10"),
    case("less_itself", "sub", NONE, "mov.b32 %r12, %r10; sub.u32 %r11, %r12, %r12;", "%r12, %r12", "%r12, %r10"),
    case(
        "equal_to_itself",
        "setp",
        NONE,
        "mov.b32 %r12, %r10; setp.eq.u32 %p4, %r12, %r12; selp.b32 %r11, 1, 2, %p4;",
        "%r12, %r12",
        "%r12, %r10",
    ),
    case(
        "twice_is_even",
        "add",
        NONE,
        "and.b32 %r12, %r10, 1; add.u32 %r13, %r12, %r12; and.b32 %r11, %r13, 1;",
        "13, 1",
        "13, 2",
    ),
)
BOUNDED = (
    case("min_with_0", "min", NONE, "min.u32 %r11, %r10, 0;", ", 0;", ", 1;"),
    case("max_with_ones", "max", NONE, "max.u32 %r11, %r10, -1;", ", -1;", ", -2;"),
    case("min_of_part", "min", LOW, "or.b32 %r12, %r10, 0x10000; min.u32 %r11, %r12, 0x10000;", "12, 0x1", "12, 0x2"),
    case("max_of_negatives", "max", NONE, "or.b32 %r12, %r10, 0x80000000; max.relu.s32 %r11, %r12, -5;", "0x8", "0x4"),
    case("min_of_halves", "min", LOW, "min.u16x2 %r11, %r10, 0xffff;", "0xffff", "0x1ffff"),
    case("zeros_above", "clz", NONE, "or.b32 %r12, %r10, 0x80000000; clz.b32 %r11, %r12;", "0x8", "0x4"),
    case("highest_bit", "bfind", NONE, "or.b32 %r12, %r10, 0x80000000; bfind.u32 %r11, %r12;", "0x8", "0x4"),
    case("count_below_64", "popc", NONE, "popc.b32 %r12, %r10; shr.u32 %r11, %r12, 6;", ", 6;", ", 5;"),
    case("rem_of_16", "rem", LOW, "rem.u32 %r11, %r10, 16;", "16;", "0x20000;"),
    case(
        "rem_of_positive",
        "rem",
        LOW,
        "and.b32 %r12, %r10, 0x7fffffff; rem.s32 %r13, %r12, 48; and.b32 %r11, %r13, 0xffffffcf;",
        "0x7",
        "0xf",
    ),
    case("rem_of_48", "rem", LOW, "rem.u32 %r12, %r10, 48; and.b32 %r11, %r12, 15;", "15;", "31;"),
    case("quotient_0", "div", NONE, "and.b32 %r12, %r10, 4095; div.u32 %r11, %r12, 4096;", "4095", "8191"),
    case("abs_of_part", "abs", LOW, "and.b32 %r12, %r10, 0x7fffffff; abs.s32 %r13, %r12; " + KEEP, "0x7", "0xf"),
    case("neg_of_part", "neg", LOW, "neg.s32 %r13, %r10; " + KEEP, "0xffff", "0x1ffff"),
    case("sad_of_part", "sad", LOW, "sad.u32 %r13, %r5, %r1, %r10; " + KEEP, "0xffff", "0x1ffff"),
    case(
        "no_carry",
        "add",
        NONE,
        "and.b32 %r12, %r10, 0x7fffffff; add.cc.u32 %r13, %r12, %r1; addc.u32 %r11, 0, 0;",
        "0x7",
        "0xf",
    ),
    case(
        "bits_without_carry",
        "add",
        NONE,
        "and.b32 %r12, %r10, 16; add.u32 %r13, %r12, 1; and.b32 %r11, %r13, 32;",
        "13, 32",
        "13, 16",
    ),
    case(
        "sum_with_carry", "addc", LOW, "add.cc.u32 %r12, %r1, 1; addc.u32 %r13, %r10, 0; " + KEEP, "0xffff", "0x1ffff"
    ),
    case(
        "less_with_borrow", "subc", LOW, "sub.cc.u32 %r12, %r1, 1; subc.u32 %r13, %r10, 0; " + KEEP, "0xffff", "0x1ffff"
    ),
    case(
        "wide_times_zero",
        "madc",
        NONE,
        "mad.lo.cc.u32 %r12, %r10, 0, %r1; madc.hi.u32 %r11, %r10, 0, 5;",
        "0, 5",
        "-1, 5",
    ),
    case("set_above", "set", NONE, "and.b32 %r12, %r10, 65535; set.gt.u32.u32 %r11, %r12, 65536;", "65536", "65534"),
    case(
        "by_the_sign_alone",
        "slct",
        NONE,
        "or.b32 %r12, %r10, 0x80000000; slct.b32.s32 %r11, %r5, %r1, %r12;",
        "0x8",
        "0x4",
    ),
    case("saturated", "cvt", NONE, "or.b32 %r12, %r10, 256; cvt.sat.u8.u32 %r11, %r12;", "256", "128"),
    case("high_half_of_shifted", "mul", LOW, "shl.b32 %r12, %r10, 16; mul.hi.u32 %r11, %r12, %r7;", ", 16;", ", 15;"),
    case("sum_of_a_warp", "redux", LOW, "redux.sync.add.u32 %r13, %r10, -1; " + KEEP, "0xffff", "0x1ffff"),
    case(
        "least_of_a_warp",
        "redux",
        NONE,
        "selp.b32 %r12, 0, %r10, %p3; redux.sync.min.u32 %r11, %r12, -1;",
        "%p3",
        "%p2",
    ),
    case(
        "unlike_lanes",
        "match",
        LOW,
        "shr.u32 %r12, %r10, 0; match.any.sync.b32 %r11, %r12, -1;",
        ", 0; match",
        ", 16; match",
    ),
    case(
        "not_all_alike",
        "match",
        LOW,
        "shr.u32 %r12, %r10, 0; match.all.sync.b32 %r11, %r12, -1;",
        ", 0; match",
        ", 16; match",
    ),
)
VIDEO = (
    *(
        case(
            f"byte_of_v{name}",
            f"v{name}",
            LOW,
            f"v{name}.{types} %r11, %r1.b0, %r10.b1, %r5;"
            if name == "mad"
            else f"v{name}.{types} %r11, %r1.b0, %r10.b1;",
            ".b1",
            ".b2",
        )
        for name, types in (
            *((name, "u32.u32.u32") for name in ("add", "sub", "absdiff", "min", "max", "mad")),
            *((name, "u32.u32.u32.clamp") for name in ("shl", "shr")),
            ("set", "u32.u32.lt"),
        )
    ),
    *(
        case(
            f"parts_of_v{name}{count}",
            f"v{name}{count}",
            LOW,
            f"mov.b32 %r12, 0x05050505; v{name}{count}.{types} %r13, %r10, %r12, %r6; {KEEP}",
            "0xffff",
            "0x1ffff",
        )
        for name, types in (
            *((name, "u32.u32.u32") for name in ("add", "sub", "absdiff", "min", "max", "avrg")),
            ("set", "u32.u32.lt"),
        )
        for count in (2, 4)
    ),
)
CASES = (*READ, *ONE_REGISTER, *BOUNDED, *VIDEO)
