"""What a line of PTX reads, writes and stands for, and the lines that no repair may touch."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from refsim.testing.suspects import arithmetic, orders, places, registers, scales
from refsim.testing.suspects.listing import split
from tests.testing.suspect_texts import EXCHANGED, IN_BOUND, SHUFFLES, TENTH, edits, listed, text_of, written

MOVED = "mul.rn.f32 %f1, %x, %z;\n mov.f32 %x, 0f00000000;\n add.rn.f32 %y, %f1, %w;"
HAZARDS = {
    "a factor is overwritten": (arithmetic.mul_and_add_as_fma, MOVED),
    "the product is guarded": (
        arithmetic.mul_and_add_as_fma,
        "mov.f32 %f1, %w;\n setp.lt.u32 %p1, %t, 9;\n @%p1 mul.rn.f32 %f1, %x, %z;\n add.rn.f32 %y, %f1, %w;",
    ),
    "the product lies before a label": (
        arithmetic.mul_and_add_as_fma,
        "mul.rn.f32 %f1, %x, %z;\n L:\n add.rn.f32 %y, %f1, %w;",
    ),
    "the product lies before a branch": (
        arithmetic.mul_and_add_as_fma,
        "mov.f32 %y, %x;\n setp.lt.u32 %p1, %t, 9;\n mul.rn.f32 %f1, %x, %z;\n @%p1 bra L;\n add.rn.f32 %y, %f1, %w;\n L:",
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
    "a term is overwritten behind its own sum": (
        orders.summed_otherwise,
        f"add.rn.f32 %f1, %x, %z;\n add.rn.f32 %f2, %f1, %w;\n mov.f32 %z, {TENTH};\n add.rn.f32 %y, %f2, {TENTH};",
    ),
    "a product of sums is no sum": (
        orders.summed_otherwise,
        f"fma.rn.f32 %f1, %x, %z, {TENTH};\n fma.rn.f32 %y, %f1, %w, {TENTH};",
    ),
    "shuffles over one distance": (orders.exchanged_otherwise, SHUFFLES.format(4, 4)),
    "rounded to a whole number, then narrowed": (
        arithmetic.rounded_once,
        "cvt.rni.f32.f32 %f1, %x;\n cvt.rn.f16.f32 %h2, %f1;\n mov.f32 %y, %x;",
    ),
    "one limit or another": (
        scales.limit_other,
        "mov.f32 %f1, 0f43E00000;\n setp.lt.u32 %p1, %t, 9;\n @%p1 mov.f32 %f1, 0f43700000;\n div.rn.f32 %y, %x, %f1;",
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
    "minus one": (places.not_swizzled, "xor.b32 %r1, %t, -1;\n and.b32 %r3, %r1, 15;\n" + EXCHANGED),
    "a neighbour in shared memory": (places.not_swizzled, "xor.b32 %r3, %t, 1;\n" + EXCHANGED),
    "a neighbour where there is one": (
        places.not_swizzled,
        "setp.lt.u32 %p1, %t, 30;\n selp.u32 %r2, 1, 0, %p1;\n xor.b32 %r3, %t, %r2;\n" + EXCHANGED,
    ),
    "an exclusive or that is no address of shared memory": (
        places.not_swizzled,
        "shr.u32 %r1, %t, 3;\n xor.b32 %r3, %t, %r1;\n shl.b32 %r4, %r3, 2;\n cvt.u64.u32 %rd1, %r4;\n"
        "add.s64 %rd1, %a, %rd1;\n ld.global.f32 %y, [%rd1];",
    ),
    "a division by no format's limit": (scales.limit_other, "div.rn.f32 %y, %x, 0f40400000;"),
}


@pytest.mark.parametrize("name", HAZARDS)
def test_no_edit_where_it_would_change_more(name: str) -> None:
    rule, code = HAZARDS[name]
    assert list(edits(rule, text_of(code))) == []


def test_a_bound_may_be_computed_from_parameters() -> None:
    code = "mov.u32 %r3, 40;\n shl.b32 %r1, %n, 1;\n sub.u32 %r2, %r1, %r3;\n" + IN_BOUND.format("lt", "%r2")
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


SUMS, OTHER_SUMS = "{%f1, %f2, %f3, %f4}", "{%f1, %f3, %f2, %f4}"
PRODUCT = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {}, {{{}}}, {{{}}}, {};"
LOAD = "ldmatrix.sync.aligned.m8n8.{}.shared.b16 {{{}}}, [%n];"
FRAGMENTS = [
    (
        registers.of_a_exchanged,
        PRODUCT.format(SUMS, "%r1, %r2, %r3, %r4", "%r5, %r6", SUMS),
        PRODUCT.format(SUMS, "%r1, %r3, %r2, %r4", "%r5, %r6", SUMS),
    ),
    (
        registers.of_b_exchanged,
        PRODUCT.format(SUMS, "%r1, %r2, %r3, %r4", "%r5, %r6", SUMS),
        PRODUCT.format(SUMS, "%r1, %r2, %r3, %r4", "%r6, %r5", SUMS),
    ),
    (
        registers.accumulators_exchanged,
        PRODUCT.format(SUMS, "%r1, %r2, %r3, %r4", "%r5, %r6", SUMS),
        PRODUCT.format(OTHER_SUMS, "%r1, %r2, %r3, %r4", "%r5, %r6", OTHER_SUMS),
    ),
    (registers.matrices_exchanged, LOAD.format("x4", "%r1, %r2, %r3, %r4"), LOAD.format("x4", "%r1, %r3, %r2, %r4")),
    (registers.matrices_exchanged, LOAD.format("x2", "%r1, %r2"), LOAD.format("x2", "%r2, %r1")),
    (
        registers.selected_otherwise,
        "selp.b32 %r3, 4312, 5520, %p1;\n prmt.b32 %r4, %r1, %r2, %r3;",
        "selp.b32 %r3, 5520, 4312, %p1;\n prmt.b32 %r4, %r1, %r2, %r3;",
    ),
]


@pytest.mark.parametrize(("rule", "given", "made"), FRAGMENTS)
def test_registers_of_a_fragment_are_exchanged(rule: Callable[..., Iterator[str]], given: str, made: str) -> None:
    (text,) = edits(rule, text_of("mov.f32 %y, %x;\n" + given))
    assert text.split() == text_of("mov.f32 %y, %x;\n" + made).split()
    assert listed(text).program.code("k")


DESCRIPTOR = """
    or.b64 %rd1, %rd2, {};
    wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{%f1, %f2, %f3, %f4}}, %rd1, %rd1, 1, 1, 1, 0, 0;
    mov.f32 %y, %x;
"""


def test_the_swizzle_of_a_descriptor_is_changed() -> None:
    """A word without a stride, or with a bit that descriptors leave zero, is none; the same swizzle is no change."""
    plain, modes = 64 << 32 | 1 << 16, registers.MODES
    for before, after in ((1, 2), (1, 3), (2, 0), (0, 1)):
        given, made = ((plain | mode << 62) - (mode >> 1 << 64) for mode in (before, after))
        (text,) = edits(partial(registers.swizzle_described, after), text_of(DESCRIPTOR.format(given)))
        assert text.split() == text_of(DESCRIPTOR.format(made)).split()
        assert not list(edits(partial(registers.swizzle_described, before), text_of(DESCRIPTOR.format(given))))
    assert modes == {"128B": 1, "64B": 2, "32B": 3, "none": 0}
    for other in (1 << 16, plain | 1 << 47):
        assert not list(edits(partial(registers.swizzle_described, 1), text_of(DESCRIPTOR.format(other))))


def test_what_a_line_reads_and_writes_is_known() -> None:
    code = """
    mul.lo.u32 %r1, %t, 3;
    st.global.u32 [%o], %r1;
    red.global.add.u32 [%o], %r1;
    mov.u32 %r2, 7;
    setp.lt.u32 %p1, %t, %r2;
    @%p1 add.u32 %r1, %r1, %r2;
    mov.f32 %y, %x;
    """
    listing = listed(text_of(code))
    by_name = {line.name: line for line in listing.lines}
    stored, reduced, added = (by_name[name] for name in ("st", "red", "add"))
    assert listing.definition("%o", reduced).name == "mad"
    assert listing.definition("%r1", reduced).name == "mul"
    assert listing.definition("%r1", added).name == "mul"
    assert listing.definition("%r1", by_name["mov"]) is None  # nobody knows which of two it holds
    assert [line.name for line in listing.uses("%r1")] == ["st", "red", "add"]
    assert [line.name for line in listing.uses("%p1")] == ["add"]
    assert (listing.constant("%r2"), listing.constant("%r1"), listing.constant("%y")) == ("7", "%r1", "%y")
    assert (listing.is_parameter("%n"), listing.is_parameter("%t"), listing.is_parameter("%r1")) == (True, False, False)
    assert (stored.written, added.written) == (frozenset(), frozenset({"%r1"}))


def test_lines_of_other_entries_are_none_of_them() -> None:
    text = text_of("add.f32 %y, %x, %z;")
    other = text[text.index(".visible") :].replace("entry k", "entry other").replace("add.f32", "sub.f32")
    listing = listed(text + other)
    assert {"add", "sub"} & {line.name for line in listing.lines} == {"add"}


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
