"""What a line of PTX reads, writes and stands for, and the lines that no repair may touch."""

import pytest

from refsim.testing.suspects import arithmetic, orders, places, scales
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
