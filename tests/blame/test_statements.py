"""A text in parts: nothing is lost, statements are found, and an edited copy hangs on the parts it changes."""

import pytest

from conformance.blamed.planted import POLYNOMIAL
from refsim.blame.statements import parts_of, pieces_of
from refsim.bundled import bundled
from refsim.ptx import load
from refsim.ptx.text.parser import parse

BUNDLED = ("fp8_quantize.sm_90a.ptx", "linear.sm_90a.ptx")


@pytest.mark.parametrize("name", BUNDLED)
def test_the_parts_are_the_text_and_every_instruction_is_one(name):
    text = (bundled("gpu/ptx") / name).read_text()
    pieces = pieces_of(text)
    assert "".join(part.text for part in pieces.parts) == pieces.all.text == text
    functions = parse(text).functions.values()
    assert pieces.all.instructions == sum(len(function.statements) for function in functions)
    assert len(pieces.functions) == len(functions)


def test_a_function_can_go_whole_and_the_rest_is_a_text():
    pieces = pieces_of(POLYNOMIAL)
    assert list(load(pieces.all.without(pieces.functions[0]).text).entries) == ["polynomial"]


def test_blocks_labels_operands_in_braces_and_remarks_are_no_statements():
    block = "{ // callseq; 1\n.reg .b32 t<2>;\nmov.b64 {t0, t1}, %rd1;\n}\n"
    text = ".func f()\n{\n" + block + "$L: /* ; */ ret;\n}\n.global .b8 x[2] = {1, 2};\n"
    parts = [part for part in parts_of(text) if part.is_statement]
    assert [part.text.split()[-1] for part in parts] == ["t<2>;", "%rd1;", "ret;"]
    pieces = pieces_of(text)
    assert pieces.marks == ()
    marked = pieces_of('.file 1 "k.cu"\n' + text.replace(".reg .b32", ".loc 1 2 3\n.reg .b32"))
    assert [marked.parts[number].text.split("\n")[-2] for number in marked.marks] == [".loc 1 2 3"]
    assert [pieces.parts[number].text.strip() for number in pieces.outside] == [".global .b8 x[2] = {1, 2};"]


def test_an_edit_goes_with_the_part_that_it_changes():
    edited = POLYNOMIAL.replace("add.rn.f32", "sub.rn.f32").replace('ret;\n}\n"', "")
    whole = pieces_of(POLYNOMIAL, edited).all
    assert whole.edited == edited
    assert whole.text == POLYNOMIAL
    (number,) = whole.pieces.edits
    less = whole.without([number])
    assert less.edited == less.text


def test_what_an_edited_copy_has_more_or_less_is_kept():
    more = POLYNOMIAL.replace("add.s64 %rd7", "mov.u32 %r7, 1;\n    add.s64 %rd7")
    assert pieces_of(POLYNOMIAL, more).all.edited.split() == more.split()
    assert pieces_of(more, POLYNOMIAL).all.edited.split() == POLYNOMIAL.split()


def test_a_register_that_a_statement_writes_can_be_zero():
    block = (
        ".reg .pred p;\n.reg .b32 %r<3>, %s;\n.reg .f64 %fd<2>;\nmov.u32 %r1, %tid.x;\n@p add.u32 %s, %r1, 3;\n"
        "mov.u32 %r2, 7;\nsetp.eq.u32 p, %r1, %s;\ncvt.rn.f64.u32 %fd1, %r1;\nst.global.u32 [%rd1], %r1;\n"
    )
    text = f".visible .entry f()\n{{\n{block}ret;\n}}\n"
    whole = pieces_of(text, text.replace("cvt.rn.f64.u32", "cvt.rn.f64.s32")).all
    assert [each.instead[0][1].strip() for each in whole.zeros] == ["mov.b32 %s, 0;", "mov.b32 %r1, 0;"]
    zero = next(pieces_of(text).all.zeros)
    assert zero.text == text.replace("cvt.rn.f64.u32 %fd1, %r1;", "    mov.b64 %fd1, 0;")
    assert zero.edited == zero.text
    assert next(zero.zeros).text == zero.text.replace("@p add.u32 %s, %r1, 3;", "    mov.b32 %s, 0;")
    assert zero.without([0]).instead == zero.instead
