"""The PTX reader: scopes, operands, locations, and one clear error for text that is not PTX."""

import re

import pytest

from refsim.errors import Kind, RefsimError
from refsim.ptx.text.parser import parse
from refsim.ptx.text.syntax import Address, Dual, Immediate, Location, Register, Special, Symbol, Vector

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def statements(body: str, parameters: str = "") -> list:
    module = parse(f"{HEAD}.visible .entry k({parameters})\n{{\n{body}\n}}\n")
    return module.functions["k"].statements


def test_registers_come_from_ranges_and_names():
    function = parse(
        HEAD + ".entry k()\n{\n.reg .b32 %r<3>, %x;\n.reg .pred %p;\n@!%p add.s32 %r2, %x, -7;\n}"
    ).functions["k"]
    (add,) = function.statements
    assert function.register_bits == [32, 1, 32]
    assert function.register_names == ["%x", "%p", "%r2"]
    assert add.guard is not None
    assert add.guard.negated
    assert add.operands == (Register(2), Register(0), Immediate(-7))


def test_operand_kinds():
    body = """.reg .b32 %r<9>; .reg .b64 %d<3>; .reg .pred %p<3>; .shared .align 4 .b8 tile[64];
        mov.u32 %r1, %ctaid.x;
        ld.global.v2.u32 {%r1, _}, [%d1+-16];
        shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;
        mov.b64 %d1, tile+8;
        mov.f32 %r1, 0fBF800000;
        mov.f64 %d1, 1.5;"""
    mov, ld, shfl, address, single, double = statements(body)
    assert mov.operands[1] == Special("%ctaid.x")
    assert isinstance(ld.operands[0], Vector)
    assert ld.operands[0].elements[1] is None
    assert ld.operands[1] == Address(Register(1), -16)
    assert isinstance(shfl.operands[0], Dual)
    assert isinstance(address.operands[1], Symbol)
    assert address.operands[1].offset == 8
    assert single.operands[1] == Immediate(0xBF800000, "f32")
    assert double.operands[1] == Immediate(0x3FF8000000000000, "f64")


def test_labels_are_scoped_by_braces():
    body = ".reg .pred %p<2>;\n{\nLOOP:\n@%p1 bra LOOP;\n}\n{\nLOOP:\n@%p1 bra LOOP;\n}\nDONE:\nret;"
    function = parse(HEAD + ".entry k()\n{\n" + body + "\n}").functions["k"]
    first, second, _ = function.statements
    assert function.labels[first.operands[0].name] == 0
    assert function.labels[second.operands[0].name] == 1


INLINED = """.loc 1 7 3
ret;
.loc 2 99 1, function_name $L, inlined_at 1 8 5
ret;
.loc 3 4 1, function_name $L+8, inlined_at 2 99 1
ret;
.loc 1 9 3
ret;
}
.file 1 "dir/k.cu"
.file 2 "h.hpp"
.section .debug_str
{
$L:
.b8 95,90,49,102,80,102
.b8 0,0,103,0
}
"""


def test_a_location_names_the_inlined_function_and_the_place_of_its_call():
    found = parse(HEAD + ".entry k()\n{\n" + INLINED).functions["k"].statements
    assert [str(statement.location) for statement in found] == [
        "k.cu:7",
        "h.hpp:99 in f, called at k.cu:8",
        "file 3:4 in g, called at h.hpp:99 in f, called at k.cu:8",
        "k.cu:9",
    ]
    assert found[1].location == Location("h.hpp", 99, "f", Location("k.cu", 8))


@pytest.mark.parametrize("end", ["U", " + 0", " // remark\n + 0", "\n - 0", "|0"])
def test_a_location_is_the_same_where_an_expression_spells_its_last_number(end):
    """One that compilers write is read as one token, others number by number."""
    spelled = re.sub(r"(\.loc .*)", lambda line: line[1] + end, INLINED)
    assert spelled.count(end) >= 4
    plain, other = (parse(HEAD + ".entry k()\n{\n" + text).functions["k"].statements for text in (INLINED, spelled))
    assert [statement.location for statement in other] == [statement.location for statement in plain]


def test_calls_that_a_library_makes_of_itself_are_left_out():
    def inside(*places: tuple[str, str]) -> str:
        at = None
        for place, function in reversed(places):
            file, line = place.split(":")
            at = Location(file, int(line), function, at)
        return at.brief()

    library, user = [("c.h:1", "load"), ("b.h:2", "get"), ("a.h:3", "read")], ("k.cu:8", "")
    assert inside(user) == "k.cu:8"
    assert inside(*library[:2], user) == "c.h:1 in load, called at b.h:2 in get, called at k.cu:8"
    assert inside(*library, user) == "c.h:1 in load, called through 2 more at k.cu:8"
    assert inside(*library, ("k.cu:5", "poll"), user) == (
        "c.h:1 in load, called through 2 more at k.cu:5 in poll, called at k.cu:8"
    )


def test_parameters_with_alignment_and_pointer_attributes():
    module = parse(
        HEAD + ".entry k(.param .u64 .ptr .global .align 16 a, .param .align 64 .b8 map[128], .param .f32 s)\n{ret;}"
    )
    sizes = [(variable.name, variable.size, variable.align) for variable in module.functions["k"].parameters]
    assert sizes == [("a", 8, 8), ("map", 128, 64), ("s", 4, 4)]


def test_initialised_variables():
    module = parse(HEAD + ".global .align 4 .u32 table[3] = {1, 2, 0xFFFFFFFF};\n.const .b8 text[4] = {65, 66};")
    assert module.variables["table"].initial == bytes.fromhex("0100000002000000ffffffff")
    assert module.variables["text"].size == 4


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, ".version"),
        *(
            (f"// first\n.version {word}\n.target sm_90\n", 2, "version such as 8.4")
            for word in ("abc", "8", "8.0e0", "", "8.", ".8", '"8.0"', "9" * 5000)
        ),
        ("hello", 1, "directive"),
        (HEAD + ".entry k()\n{\nadd.s32 %r1, %r2, 3;\n}", 6, "%r1"),
        (HEAD + ".entry k()\n{\n.reg .b32 %r<4>;\nadd.s32 %r1, %r2\n}", 8, "';'"),
        (HEAD + ".entry k()\n{\nret;", 6, "ends"),
        (HEAD + ".entry k()\n{\n.reg .q32 %r<4>;\n}", 6, "type"),
        (HEAD + ".entry k()\n{ /* never closed", 5, "closed"),
        (HEAD + ".entry k()\n" + "{" * 100, 5, "nested"),
        (HEAD + ".const .align 4 table[2] = {5, 6};", 4, "without a type"),
        (HEAD + ".shared .b8 big[9999999999999];", 4, "limit"),
        (HEAD + ".entry k()\n{\n\x00\n}", 6, "character"),
    ],
)
def test_malformed_text_is_one_error_with_its_line(text, line, says):
    with pytest.raises(RefsimError) as caught:
        parse(text)
    assert caught.value.code == "malformed-ptx"
    assert caught.value.kind == Kind.UNREADABLE
    assert caught.value.where == f"PTX line {line}"
    assert says in caught.value.what
