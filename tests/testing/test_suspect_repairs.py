"""Each repair undoes its mistake: one of its edits makes wrong PTX write what right PTX writes."""

import pytest

from refsim.testing.suspects import arithmetic, orders, places, registers, scales, terms
from refsim.testing.suspects.trials import REPAIRS
from tests.testing.suspect_texts import EXCHANGED, IN_BOUND, SHUFFLES, TENTH, agreeing, text_of, written

BF16 = "cvt.rn.bf16.f32 %h1, {0};\n cvt.f32.bf16 %f1, %h1;\n"
F16 = "cvt.rn.f16.f32 %h2, {0};\n cvt.f32.f16 %y, %h2;"
E8M0 = "mov.b32 %r1, %x;\n {} shr.u32 %r3, {}, 23;\n cvt.rn.f32.u32 %y, %r3;"
SIZE = "abs.f32 %f9, %w;\n"
ABOVE_A_TIE = "0f3F880400"
PAIR = "cvt.rn.satfinite.{} %h1, {};\n cvt.u32.u16 %r1, %h1;\n cvt.rn.f32.u32 %y, %r1;"
CHAIN = "add.rn.f32 %f1, {}, {};\n add.rn.f32 %f2, %f1, {};\n add.rn.f32 %y, %f2, {};"
FMAS = "fma.rn.f32 %f1, %x, %z, 0f3DCCCCCD;\n fma.rn.f32 %y, %w, %w, %f1;"
SAMF = "fma.rn.f32 %f1, %w, %w, 0f3DCCCCCD;\n fma.rn.f32 %y, %x, %z, %f1;"
TAIL = "mov.u32 %r9, %n;\n {} setp.lt.u32 %p1, %t, %r9;\n selp.f32 %y, %x, %z, %p1;"
BIASED = "add.u32 %r1, %t, {};\n shl.b32 %r2, %r1, 23;\n mov.b32 %y, %r2;"
AND = "and.b32 %r9, %n, -8;\n"
XOR = "shr.u32 %r1, %t, 3;\n and.b32 %r2, %r1, 3;\n {} " + EXCHANGED
TERM = "cvt.rn.f32.u32 %f1, {};\n fma.rn.f32 %f2, %f1, 0f3DCCCCCD, 0f3F8CCCCD;\n mul.rn.f32 %f3, %f2, %x;\n"
BEGUN = "mov.u32 %r1, {};\n mov.f32 %y, 0f00000000;\n mov.f32 %f9, 0f00000000;\n $L1:\n"
UP = BEGUN.format(0) + "{} add.u32 %r1, %r1, {};\n setp.lt.u32 %p1, %r1, 6;\n @%p1 bra $L1;\n"
DOWN = BEGUN.format(5) + "{} add.s32 %r1, %r1, -1;\n setp.ge.s32 %p1, %r1, 0;\n @%p1 bra $L1;\n"
ADDED = TERM.format("%r1") + "add.rn.f32 %y, %y, %f3;\n"
AND_ONE = "add.u32 %r2, %r1, 1;\n" + TERM.format("%r2")
TWO_SUMS = UP.format(ADDED + AND_ONE + "add.rn.f32 %f9, %f9, %f3;\n", 2) + "add.rn.f32 %y, %y, %f9;"
CUT = "mov.b32 %r1, %x;\n {} shr.u32 %r3, {}, 16;\n shl.b32 %r4, %r3, 16;\n mov.b32 %y, %r4;"
TABLE = {
    "a loop from its end": (terms.summed_from_the_end, UP.format(ADDED, 1), DOWN.format(ADDED)),
    "two sums of a loop": (terms.summed_together, TWO_SUMS, UP.format(ADDED, 1)),
    "one sum of a loop": (terms.summed_apart, UP.format(ADDED, 1), TWO_SUMS),
    "bits cut off": (
        arithmetic.cut_bits,
        CUT.format("", "%r1"),
        CUT.format("add.u32 %r2, %r1, 32768;\n", "%r2"),
    ),
    "one half and cut": (
        arithmetic.half_added,
        "add.rn.f32 %f1, %x, 0f3F000000;\n cvt.rzi.s32.f32 %r1, %f1;\n cvt.rn.f32.s32 %y, %r1;",
        "cvt.rni.s32.f32 %r1, %x;\n cvt.rn.f32.s32 %y, %r1;",
    ),
    "fma": (
        arithmetic.fma_as_mul_and_add,
        "fma.rn.f32 %y, %x, %z, %w;",
        "mul.rn.f32 %f1, %x, %z;\n add.rn.f32 %y, %f1, %w;",
    ),
    "fma, guarded": (
        arithmetic.fma_as_mul_and_add,
        "mov.f32 %y, %x;\n setp.lt.u32 %p1, %t, 30;\n @%p1 fma.rz.f32 %y, %x, %z, %w;",
        "mov.f32 %y, %x;\n setp.lt.u32 %p1, %t, 30;\n mul.rz.f32 %f1, %x, %z;\n @%p1 add.rz.f32 %y, %f1, %w;",
    ),
    "fma.sat": (
        arithmetic.fma_as_mul_and_add,
        "fma.rn.sat.f32 %y, %x, 0f3A83126F, 0f3DCCCCCD;",
        "mul.rn.f32 %f1, %x, 0f3A83126F;\n add.rn.sat.f32 %y, %f1, 0f3DCCCCCD;",
    ),
    "mul and add": (
        arithmetic.mul_and_add_as_fma,
        "mul.rn.f32 %f1, %x, %z;\n add.rn.f32 %y, %w, %f1;",
        "fma.rn.f32 %y, %x, %z, %w;",
    ),
    "mul and sub": (
        arithmetic.mul_and_add_as_fma,
        "mul.rn.f32 %f1, %x, %z;\n sub.rn.f32 %y, %f1, %w;",
        "neg.f32 %f2, %w;\n fma.rn.f32 %y, %x, %z, %f2;",
    ),
    "a product overwritten by the sum": (
        arithmetic.mul_and_add_as_fma,
        "mul.rn.f32 %f1, %x, %z;\n add.rn.f32 %f1, %f1, %w;\n mov.f32 %y, %f1;",
        "fma.rn.f32 %y, %x, %z, %w;",
    ),
    "sub of a mul": (
        arithmetic.mul_and_add_as_fma,
        "mul.rn.f32 %f1, %x, %z;\n sub.rn.f32 %y, %w, %f1;",
        "neg.f32 %f2, %x;\n fma.rn.f32 %y, %f2, %z, %w;",
    ),
    "another rounding": (arithmetic.other_rounding, "add.rz.f32 %y, %x, %z;", "add.rp.f32 %y, %x, %z;"),
    "another whole number": (arithmetic.other_rounding, "cvt.rni.f32.f32 %y, %x;", "cvt.rmi.f32.f32 %y, %x;"),
    "flushed": (arithmetic.subnormals_kept, "mul.ftz.f32 %y, %x, 0f3F000000;", "mul.f32 %y, %x, 0f3F000000;"),
    "kept": (arithmetic.subnormals_flushed, "mul.f32 %y, %x, 0f3F000000;", "mul.ftz.f32 %y, %x, 0f3F000000;"),
    "saturated": (arithmetic.infinity_other, "add.sat.f32 %y, %x, %z;", "add.f32 %y, %x, %z;"),
    "a format's own limit": (
        arithmetic.infinity_other,
        "mov.f32 %f1, 0f43E00000;\n min.f32 %f2, %x, %f1;\n mov.f32 %y, %f2;",
        "mov.f32 %y, %x;",
    ),
    "a format's lower limit": (arithmetic.infinity_other, "max.f32 %y, %x, 0fC3700000;", "mov.f32 %y, %x;"),
    "satfinite": (
        arithmetic.infinity_other,
        "cvt.rn.satfinite.bf16.f32 %h1, %x;\n cvt.f32.bf16 %y, %h1;",
        "cvt.rn.bf16.f32 %h1, %x;\n cvt.f32.bf16 %y, %h1;",
    ),
    "no satfinite": (
        arithmetic.infinity_other,
        "cvt.rn.bf16.f32 %h1, %x;\n cvt.f32.bf16 %y, %h1;",
        "cvt.rn.satfinite.bf16.f32 %h1, %x;\n cvt.f32.bf16 %y, %h1;",
    ),
    "NaN dropped": (arithmetic.nan_other, "max.f32 %y, %x, %z;", "max.NaN.f32 %y, %x, %z;"),
    "NaN kept": (arithmetic.nan_other, "min.NaN.f32 %y, %x, %z;", "min.f32 %y, %x, %z;"),
    "a comparison that NaN passes": (
        arithmetic.nan_other,
        "setp.ltu.f32 %p1, %x, %z;\n selp.f32 %y, %x, %w, %p1;",
        "setp.lt.f32 %p1, %x, %z;\n selp.f32 %y, %x, %w, %p1;",
    ),
    "a comparison that NaN fails": (
        arithmetic.nan_other,
        "setp.ne.f32 %p1, %x, %z;\n selp.f32 %y, %x, %w, %p1;",
        "setp.neu.f32 %p1, %x, %z;\n selp.f32 %y, %x, %w, %p1;",
    ),
    "narrowed on the way": (arithmetic.rounded_once, BF16.format("%x") + F16.format("%f1"), F16.format("%x")),
    "narrowed at the end": (arithmetic.rounded_once, BF16.format("%x") + "mov.f32 %y, %f1;", "mov.f32 %y, %x;"),
    "of a pair the lower half": (
        arithmetic.rounded_once,
        "cvt.rn.bf16x2.f32 %r1, %x, %z;\n shl.b32 %r2, %r1, 16;\n mov.b32 %f9, %r2;\n mov.f32 %y, %f9;",
        "mov.f32 %y, %z;",
    ),
    "of a pair the upper half": (
        arithmetic.rounded_once,
        "cvt.rn.f16x2.f32 %r1, %x, %z;\n mov.b32 {%h3, %h4}, %r1;\n cvt.f32.f16 %y, %h4;",
        "mov.f32 %y, %x;",
    ),
    "of a pair the lower half by its register": (
        arithmetic.rounded_once,
        "cvt.rn.f16x2.f32 %r1, %x, %z;\n mov.b32 {%h3, %h4}, %r1;\n cvt.f32.f16 %y, %h3;",
        "mov.f32 %y, %z;",
    ),
    "of a pair the upper half by a mask": (
        arithmetic.rounded_once,
        "cvt.rn.bf16x2.f32 %r1, %x, %z;\n and.b32 %r2, %r1, -65536;\n mov.b32 %f9, %r2;\n mov.f32 %y, %f9;",
        "mov.f32 %y, %x;",
    ),
    "narrowed twice": (
        arithmetic.rounded_once,
        f"mov.f32 %f1, {ABOVE_A_TIE};\n cvt.rn.f16x2.f32 %r2, %x, %f1;\n {PAIR.format('e4m3x2.f16x2', '%r2')}",
        PAIR.format("e4m3x2.f32", f"%x, {ABOVE_A_TIE}"),
    ),
    "not narrowed on the way": (arithmetic.rounded_twice, F16.format("%x"), BF16.format("%x") + F16.format("%f1")),
    "a sum from its other end": (
        orders.summed_otherwise,
        CHAIN.format("%x", "%z", "%w", TENTH),
        CHAIN.format(TENTH, "%w", "%z", "%x"),
    ),
    "a sum in pairs": (
        orders.summed_otherwise,
        CHAIN.format("%x", "%z", "%w", TENTH),
        f"add.rn.f32 %f1, %x, %z;\n add.rn.f32 %f2, %w, {TENTH};\n add.rn.f32 %y, %f1, %f2;",
    ),
    "a sum of halves": (
        orders.summed_otherwise,
        CHAIN.format("%x", "%z", "%w", TENTH),
        f"add.rn.f32 %f1, %x, %w;\n add.rn.f32 %f2, %z, {TENTH};\n add.rn.f32 %y, %f1, %f2;",
    ),
    "a sum of five in halves": (
        orders.summed_otherwise,
        f"add.rn.f32 %f3, %x, %z;\n {CHAIN.format('%w', '%f3', TENTH, '0f3EAAAAAB')}",
        f"add.rn.f32 %f1, %x, {TENTH};\n add.rn.f32 %f2, %f1, %w;\n add.rn.f32 %f3, %z, 0f3EAAAAAB;\n"
        " add.rn.f32 %y, %f2, %f3;",
    ),
    "a sum of products": (orders.summed_otherwise, FMAS, SAMF),
    "lanes the other way": (orders.exchanged_otherwise, SHUFFLES.format(16, 1), SHUFFLES.format(1, 16)),
    "a quotient": (scales.divided_otherwise, "div.rn.f32 %y, %x, %z;", "rcp.rn.f32 %f1, %z;\n mul.rn.f32 %y, %x, %f1;"),
    "an approximate quotient": (
        arithmetic.computed_otherwise,
        "div.approx.f32 %y, %x, %w;",
        "div.rn.f32 %y, %x, %w;",
    ),
    "a rounded quotient": (arithmetic.computed_otherwise, "div.rn.f32 %y, %x, %w;", "div.full.f32 %y, %x, %w;"),
    "a quotient for a product with an approximate reciprocal": (
        arithmetic.computed_otherwise,
        "div.rn.f32 %y, %x, %w;",
        "rcp.approx.f32 %f1, %w;\n mul.rn.f32 %y, %x, %f1;",
    ),
    "a product with an approximate reciprocal": (
        arithmetic.computed_otherwise,
        "rcp.approx.ftz.f32 %f1, %w;\n mul.rn.ftz.f32 %y, %f1, %x;",
        "div.full.ftz.f32 %y, %x, %w;",
    ),
    "an approximate reciprocal": (
        arithmetic.computed_otherwise,
        "rcp.approx.f32 %y, %w;",
        "rcp.rn.f32 %y, %w;",
    ),
    "a rounded root": (
        arithmetic.computed_otherwise,
        f"{SIZE} sqrt.rn.f32 %y, %f9;",
        f"{SIZE} sqrt.approx.f32 %y, %f9;",
    ),
    "an approximate reciprocal root": (
        arithmetic.computed_otherwise,
        f"{SIZE} rsqrt.approx.f32 %y, %f9;",
        f"{SIZE} .reg .f64 %d<3>;\n cvt.f64.f32 %d0, %f9;\n sqrt.rn.f64 %d1, %d0;\n rcp.rn.f64 %d2, %d1;\n"
        "cvt.rn.f32.f64 %y, %d2;",
    ),
    "the reciprocal of a root": (
        arithmetic.computed_otherwise,
        f"{SIZE} sqrt.rn.f32 %f1, %f9;\n rcp.rn.f32 %y, %f1;",
        f"{SIZE} rsqrt.approx.f32 %y, %f9;",
    ),
    "one divided by a root": (
        arithmetic.computed_otherwise,
        f"{SIZE} sqrt.rn.f32 %f1, %f9;\n div.rn.f32 %y, 0f3F800000, %f1;",
        f"{SIZE} rsqrt.approx.f32 %y, %f9;",
    ),
    "a product with a reciprocal": (
        scales.divided_otherwise,
        "rcp.rn.f32 %f1, %z;\n mul.rn.f32 %y, %f1, %x;",
        "div.rn.f32 %y, %x, %z;",
    ),
    "a product with a quotient": (
        scales.divided_otherwise,
        "div.rn.f32 %f1, %w, %z;\n mul.rn.f32 %y, %x, %f1;",
        "mul.rn.f32 %f1, %x, %w;\n div.rn.f32 %y, %f1, %z;",
    ),
    "another limit": (scales.limit_other, "div.rn.f32 %y, %x, 0f43E00000;", "div.rn.f32 %y, %x, 0f43700000;"),
    "another limit in a register": (
        scales.limit_other,
        "mov.f32 %f1, 0f43E00000;\n div.rn.f32 %y, %f1, %x;",
        "div.rn.f32 %y, 0f42FE0000, %x;",
    ),
    "an exponent cut": (
        scales.exponent_rounded_otherwise,
        E8M0.format("", "%r1"),
        E8M0.format("add.u32 %r2, %r1, 8388607;\n", "%r2"),
    ),
    "an exponent rounded up": (
        scales.exponent_rounded_otherwise,
        E8M0.format("add.u32 %r2, %r1, 8388607;\n", "%r2"),
        E8M0.format("add.u32 %r2, %r1, 4194304;\n", "%r2"),
    ),
    "the other format": (
        scales.coded_otherwise,
        PAIR.format("e4m3x2.f32", "%x, %z"),
        PAIR.format("e5m2x2.f32", "%x, %z"),
    ),
    "bound left out": (places.bound_moved, IN_BOUND.format("lt", "%n"), IN_BOUND.format("le", "%n")),
    "bound taken in": (places.bound_moved, IN_BOUND.format("hs", "9"), IN_BOUND.format("hi", "9")),
    "bound at the least": (places.bound_moved, IN_BOUND.format("ge", "9"), IN_BOUND.format("gt", "9")),
    "bound beyond": (places.bound_moved, IN_BOUND.format("gt", "%n"), IN_BOUND.format("ge", "%n")),
    "bound in unsigned words": (places.bound_moved, IN_BOUND.format("lo", "9"), IN_BOUND.format("ls", "9")),
    "bound in unsigned words, back": (places.bound_moved, IN_BOUND.format("ls", "9"), IN_BOUND.format("lo", "9")),
    "one too few": (
        places.bound_moved,
        "add.u32 %r1, %t, -1;\n cvt.rn.f32.u32 %y, %r1;",
        "cvt.rn.f32.u32 %y, %t;",
    ),
    "one too many": (
        places.bound_moved,
        f"add.u32 %r1, %n, -1;\n {IN_BOUND.format('lt', '%r1')}",
        IN_BOUND.format("lt", "%n"),
    ),
    "rounded to float32 on its way, at a tie of float16": (
        arithmetic.rounded_as_float64,
        "fma.rn.f32 %f1, %x, 0f2F000000, 0f3F801000;\n cvt.rn.f16.f32 %h1, %f1;\n cvt.f32.f16 %y, %h1;",
        ".reg .f64 %d<3>;\n cvt.f64.f32 %d1, %x;\n mov.f64 %d2, 0d3DE0000000000000;\n"
        "fma.rn.f64 %d0, %d1, %d2, 0d3FF0020000000000;\n cvt.rn.f16.f64 %h1, %d0;\n cvt.f32.f16 %y, %h1;",
    ),
    "the upper half loaded alone": (
        arithmetic.upper_half_loaded,
        "ld.global.u16 %r1, [%a+2];\n cvt.rn.f32.u32 %y, %r1;",
        "ld.global.u32 %r1, [%a];\n shr.u32 %r2, %r1, 16;\n and.b32 %r2, %r2, 1;\n add.u32 %r1, %r1, %r2;\n"
        "add.u32 %r1, %r1, 32767;\n shr.u32 %r1, %r1, 16;\n cvt.rn.f32.u32 %y, %r1;",
    ),
    "a factor applied twice": (
        scales.applied_once,
        "mul.rn.f32 %f1, %x, %z;\n mul.rn.f32 %y, %f1, %z;",
        "mul.rn.f32 %y, %x, %z;",
    ),
    "a code for its power of two": (
        scales.decoded_as_power,
        "cvt.rn.f32.u32 %y, %t;",
        "shl.b32 %r1, %t, 23;\n mov.b32 %y, %r1;",
    ),
    "another bias": (scales.bias_moved, BIASED.format(126), BIASED.format(127)),
    "tail": (places.tail_kept, TAIL.format(AND), TAIL.format("")),
    "swizzled": (places.not_swizzled, XOR.format("xor.b32 %r3, %t, %r2;"), XOR.format("mov.b32 %r3, %t;")),
}


@pytest.mark.parametrize("name", TABLE)
def test_some_edit_computes_what_is_right(name: str) -> None:
    rule, wrong, right = TABLE[name]
    assert written(text_of(wrong)) != written(text_of(right))
    assert agreeing(rule, wrong, right)


def test_every_repair_is_tried_here() -> None:
    """But for those of descriptors, which other tests have."""
    tried = {rule for rule, _, _ in TABLE.values()}
    others = {getattr(row.rule, "func", row.rule) for row in REPAIRS if row.rule not in tried}
    assert others == {registers.swizzle_described}
