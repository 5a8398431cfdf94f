"""Each repair undoes its mistake: one of its edits makes wrong PTX write what right PTX writes, and none is made in vain."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from refsim import ptx
from refsim.errors import RefsimError
from refsim.testing.suspects import arithmetic, orders, places, scales
from refsim.testing.suspects.listing import PtxListing, split
from refsim.testing.suspects.repairs import REPAIRS

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
        yield from (listing.edited(changes) for changes in rule(listing, line))


def agreeing(rule: Callable, wrong: str, right: str) -> list[str]:
    """The edits of one text that make it write what another does."""
    wanted, found = written(text_of(right)), []
    for text in edits(rule, text_of(wrong)):
        try:
            found += [text] if written(text) == wanted else []
        except RefsimError:  # an opcode that there is not
            continue
    return found


BF16 = "cvt.rn.bf16.f32 %h1, {0};\n cvt.f32.bf16 %f1, %h1;\n"
F16 = "cvt.rn.f16.f32 %h2, {0};\n cvt.f32.f16 %y, %h2;"
E8M0 = "mov.b32 %r1, %x;\n {} shr.u32 %r3, {}, 23;\n cvt.rn.f32.u32 %y, %r3;"
PAIR = "cvt.rn.satfinite.{}.f32 %h1, %x, %z;\n cvt.u32.u16 %r1, %h1;\n cvt.rn.f32.u32 %y, %r1;"
CHAIN = "add.rn.f32 %f1, {}, {};\n add.rn.f32 %f2, %f1, {};\n add.rn.f32 %y, %f2, {};"
TENTH = "0f3DCCCCCD"
FMAS = "fma.rn.f32 %f1, %x, %z, 0f3DCCCCCD;\n fma.rn.f32 %y, %w, %w, %f1;"
SAMF = "fma.rn.f32 %f1, %w, %w, 0f3DCCCCCD;\n fma.rn.f32 %y, %x, %z, %f1;"
SHUFFLES = """mov.b32 %r1, %x;
 shfl.sync.bfly.b32 %r2, %r1, {0}, 31, -1;
 mov.b32 %f1, %r2;
 add.f32 %f2, %x, %f1;
 mov.b32 %r3, %f2;
 shfl.sync.bfly.b32 %r4, %r3, {1}, 31, -1;
 mov.b32 %f3, %r4;
 add.f32 %y, %f2, %f3;"""
IN_BOUND = "setp.{}.u32 %p1, %t, {};\n selp.f32 %y, %x, %z, %p1;"
TAIL = "mov.u32 %r9, %n;\n {} setp.lt.u32 %p1, %t, %r9;\n selp.f32 %y, %x, %z, %p1;"
AND = "and.b32 %r9, %n, -8;\n"
XOR = "shr.u32 %r1, %t, 3;\n and.b32 %r2, %r1, 3;\n {}\n shfl.sync.idx.b32 %r4, %t, %r3, 31, -1;\n cvt.rn.f32.u32 %y, %r4;"
TABLE = {
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
    "a sum of products": (orders.summed_otherwise, FMAS, SAMF),
    "lanes the other way": (orders.exchanged_otherwise, SHUFFLES.format(16, 1), SHUFFLES.format(1, 16)),
    "a quotient": (scales.divided_otherwise, "div.rn.f32 %y, %x, %z;", "rcp.rn.f32 %f1, %z;\n mul.rn.f32 %y, %x, %f1;"),
    "a quotient without a rounding": (scales.divided_otherwise, "div.approx.f32 %y, %x, %w;", "div.rn.f32 %y, %x, %w;"),
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
    "the other format": (scales.coded_otherwise, PAIR.format("e4m3x2"), PAIR.format("e5m2x2")),
    "bound left out": (places.bound_moved, IN_BOUND.format("lt", "%n"), IN_BOUND.format("le", "%n")),
    "bound taken in": (places.bound_moved, IN_BOUND.format("hs", "9"), IN_BOUND.format("hi", "9")),
    "one too many": (
        places.bound_moved,
        f"add.u32 %r1, %n, -1;\n {IN_BOUND.format('lt', '%r1')}",
        IN_BOUND.format("lt", "%n"),
    ),
    "tail": (places.tail_kept, TAIL.format(AND), TAIL.format("")),
    "swizzled": (places.not_swizzled, XOR.format("xor.b32 %r3, %t, %r2;"), XOR.format("mov.b32 %r3, %t;")),
}


@pytest.mark.parametrize("name", TABLE)
def test_some_edit_computes_what_is_right(name: str) -> None:
    rule, wrong, right = TABLE[name]
    assert written(text_of(wrong)) != written(text_of(right))
    assert agreeing(rule, wrong, right)


def test_every_repair_is_tried_here() -> None:
    """But for those of ldmatrix, which a test of its own has."""
    assert {row.rule for row in REPAIRS} - {rule for rule, _, _ in TABLE.values()} == {places.transposed}


MOVED = "mul.rn.f32 %f1, %x, %z;\n mov.f32 %x, 0f00000000;\n add.rn.f32 %y, %f1, %w;"
HAZARDS = {
    "a factor is overwritten": (arithmetic.mul_and_add_as_fma, MOVED),
    "the product is guarded": (
        arithmetic.mul_and_add_as_fma,
        "mov.f32 %f1, %w;\n setp.lt.u32 %p1, %t, 9;\n @%p1 mul.rn.f32 %f1, %x, %z;\n add.rn.f32 %y, %f1, %w;",
    ),
    "the product is of another block": (
        arithmetic.mul_and_add_as_fma,
        "mul.rn.f32 %f1, %x, %z;\n bra L;\n L:\n add.rn.f32 %y, %f1, %w;",
    ),
    "the product is of another type": (
        arithmetic.mul_and_add_as_fma,
        "mul.rn.f16x2 %r1, %t, %t;\n add.rn.f32 %y, %r1, %w;",
    ),
    "a partial sum is of use elsewhere": (
        orders.summed_otherwise,
        "add.rn.f32 %f1, %x, %z;\n add.rn.f32 %f2, %f1, %w;\n mul.rn.f32 %y, %f2, %f1;",
    ),
    "a term is overwritten": (
        orders.summed_otherwise,
        "add.rn.f32 %f1, %x, %z;\n mov.f32 %z, 0f00000000;\n add.rn.f32 %y, %f1, %w;",
    ),
    "one shuffle has no order": (
        orders.exchanged_otherwise,
        "mov.b32 %r1, %x;\n shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;\n mov.b32 %y, %r2;",
    ),
    "a clamp to a number that is no format's limit": (arithmetic.infinity_other, "min.f32 %y, %x, 0f3F800000;"),
    "a comparison of two computed numbers": (
        places.bound_moved,
        "mul.lo.u32 %r1, %t, 3;\n mul.lo.u32 %r2, %t, %t;\n setp.lt.u32 %p1, %r1, %r2;\n selp.f32 %y, %x, %z, %p1;",
    ),
    "a mask that is no power of two": (
        places.tail_kept,
        "and.b32 %r1, %n, -6;\n cvt.rn.f32.u32 %y, %r1;",
    ),
    "minus one": (places.not_swizzled, "xor.b32 %r1, %t, -1;\n cvt.rn.f32.u32 %y, %r1;"),
    "a division by no format's limit": (scales.limit_other, "div.rn.f32 %y, %x, 0f40400000;"),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_no_edit_where_it_would_change_more(name: str) -> None:
    rule, code = HAZARDS[name]
    assert list(edits(rule, text_of(code))) == []


def test_a_bound_may_be_computed_from_parameters() -> None:
    code = "shl.b32 %r1, %n, 1;\n sub.u32 %r2, %r1, 40;\n setp.lt.u32 %p1, %t, %r2;\n selp.f32 %y, %x, %z, %p1;"
    assert any("setp.le.u32" in text for text in edits(places.bound_moved, text_of(code)))


@pytest.mark.parametrize(
    "opcode", ["ldmatrix.sync.aligned.m8n8.x2.shared.b16", "stmatrix.sync.aligned.m8n8.x4.shared.b16"]
)
def test_a_matrix_is_transposed_and_back(opcode: str) -> None:
    registers = "{" + ", ".join(f"%r{each}" for each in range(int(opcode[opcode.index(".x") + 2]))) + "}"
    both = [registers, "[%n]"] if opcode.startswith("ld") else ["[%n]", registers]
    text = text_of(f"mov.f32 %y, %x;\n {opcode} {', '.join(both)};")
    (turned,) = edits(places.transposed, text)
    assert turned.count(".trans.") == 1
    assert listed(turned).program.code("k")
    (back,) = edits(places.transposed, turned)
    assert back.split() == text.split()


def test_a_line_is_edited_where_it_stands_under_its_guard() -> None:
    listing = listed(text_of("mov.f32 %y, %x;\n setp.lt.u32 %p1, %t, 9;\n @!%p1 add.f32 %y, %x, %z;"))
    (line,) = (line for line in listing.lines if line.name == "add")
    text = listing.edited({line.at: line.reading(".reg .f32 %v", "neg.f32 %v, %z", "add.f32 %y, %x, %v")})
    right = "setp.lt.u32 %p1, %t, 9;\n sub.f32 %f1, %x, %z;\n selp.f32 %y, %x, %f1, %p1;"
    assert written(text) == written(text_of(right))
    assert [number for number, line in enumerate(text.split("\n")) if line != listing.text.split("\n")[number]] == [
        line.at
    ]


@pytest.mark.parametrize(
    ("operands", "parts"),
    [
        ("%f1, {%r1, %r2}, [%rd1+4]", ("%f1", "{%r1, %r2}", "[%rd1+4]")),
        ("(%r1, %r2), f, (%r3)", ("(%r1, %r2)", "f", "(%r3)")),
        ("%r1", ("%r1",)),
        ("", ()),
    ],
)
def test_operands_end_at_commas_outside_brackets(operands: str, parts: tuple[str, ...]) -> None:
    assert split(operands) == parts
