"""The integer, logic and predicate families: worked numbers, legality by ptxas, and the expansion of forms."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from refsim.errors import RefsimError
from refsim.ptx.isa.forms import Bound, bind, clauses, evaluate
from refsim.ptx.isa.instances import FIRST_LINE, instances, listing, opcode_count, opcodes, refused, statement
from refsim.reference.assembler import releases
from refsim.targets import has

FAMILIES = ("integer", "logic", "predicate")
OURS = [clause for clause in clauses() if clause.function.__module__.rsplit(".", 1)[1] in FAMILIES]
INSTANCES = [bound for clause in OURS for bound in instances(clause)]
ASSEMBLED = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a")

WORKED = [
    ("add.u16x2", (0xFFFF0001, 0x00010002), 0x00000003),
    ("add.sat.s32", (0x7FFFFFFF, 1), 0x7FFFFFFF),
    ("mul.hi.u64", (1 << 63, 2), 1),
    ("mul.hi.s64", ((1 << 64) - 1, 1), (1 << 64) - 1),
    ("mul.wide.u16", (0xFFFF, 0xFFFF), 0xFFFE0001),
    ("mad.hi.sat.s32", (0x40000000, 4, 0x7FFFFFFF), 0x7FFFFFFF),
    ("mul24.lo.u32", (0x01000003, 5), 15),
    ("mad24.hi.u32", (0x10000, 0x10000, 1), 0x10001),
    ("sad.s32", (0xFFFFFFFE, 3, 10), 15),
    ("div.s32", (0x80000000, 0xFFFFFFFF), 0x80000000),
    ("div.u16", (7, 0), 0xFFFF),
    ("rem.s64", ((1 << 64) - 7, 2), (1 << 64) - 1),
    ("rem.u32", (7, 0), 0xFFFFFFFF),
    ("min.s16x2.relu", (0xFFFD0005, 0x00050007), 0x00000005),
    ("bfind.u32", (0x10,), 4),
    ("bfind.shiftamt.u32", (0x10,), 27),
    ("bfind.s32", (0xFFFFFFFF,), 0xFFFFFFFF),
    ("fns.b32", (0xAAAAAAAA, 2, 0xFFFFFFFF), 1),
    ("bfe.s32", (0x80, 4, 4), 0xFFFFFFF8),
    ("bfi.b32", (3, 0xFF00, 4, 4), 0xFF30),
    ("bmsk.wrap.b32", (1, 2), 6),
    ("szext.wrap.u32", (0xFFFFFFFF, 0), 0),
    ("dp4a.u32.u32", (0x01010101, 0x04030201, 5), 15),
    ("lop3.b32", (0xF0, 0xCC, 0xAA, 0x96), 0x96),
    ("shl.b32", (1, 32), 0),
    ("shr.s32", (0xFFFFFFFB, 40), 0xFFFFFFFF),
    ("shf.l.clamp.b32", (0x12345678, 0, 40), 0x12345678),
    ("prmt.b32", (0x80, 0, 0x0008), 0x808080FF),
    ("prmt.b32.b4e", (0x33221100, 0x77665544, 1), 0x66770011),
    ("set.lt.f32.s32", (0xFFFFFFFF, 0), 0x3F800000),
    ("set.eq.u32.f16x2", (0x3C003C00, 0x3C004000), 0xFFFF0000),
    ("slct.u32.f32", (1, 2, 0x80000000), 1),
    ("slct.u32.f32", (1, 2, 0x7FC00000), 2),
]


# Two instructions, the second with the flag of the first, as an H100 runs them: a, b, then 0 and 0.
CHAINS = [
    ("sub.cc", "addc", (5, 0x80000007), 0),
    ("sub.cc", "addc", (0x80000007, 5), 1),
    ("add.cc", "subc", (5, 7), 0xFFFFFFFF),
    ("add.cc", "subc", (0xFFFFFFFF, 7), 0),
    ("sub.cc", "subc", (5, 0x80000007), 0xFFFFFFFF),
]


@pytest.mark.parametrize(("first", "second", "sources", "result"), CHAINS, ids=str)
def test_flag_after_a_difference_is_no_borrow(first: str, second: str, sources: tuple[int, int], result: int) -> None:
    _, flag = evaluate(f"{first}.u32", *(np.array([value], np.uint32) for value in sources))
    zero = np.zeros(1, np.uint32)
    assert evaluate(f"{second}.u32", zero, zero, flag)[0][0] == result


@pytest.mark.parametrize(("opcode", "sources", "result"), WORKED, ids=str)
def test_worked_number(opcode: str, sources: tuple[int, ...], result: int) -> None:
    arrays = [
        np.array([value], dtype=np.uint64).astype(type.bits_dtype)
        for value, (_, type) in zip(sources, bind(opcode).sources, strict=True)
    ]
    assert hex(int(evaluate(opcode, *arrays)[0][0])) == hex(result)


def test_comparison_with_nan_and_its_complement() -> None:
    """A plain test is false on NaN and its second predicate true; the unordered one is true."""
    nan, one = np.array([0x7FC00000], dtype=np.uint32), np.array([0x3F800000], dtype=np.uint32)
    assert [bool(p[0]) for p in evaluate("setp.ne.f32", nan, one)] == [False, True]
    assert [bool(p[0]) for p in evaluate("setp.neu.f32", nan, one)] == [True, False]


def test_lop3_takes_one_table() -> None:
    word = np.zeros(4, dtype=np.uint32)
    with pytest.raises(RefsimError, match="lop3 has 4 tables"):
        evaluate("lop3.b32", word, word, word, word)
    with pytest.raises(RefsimError, match="the table of lop3 is 256"):
        evaluate("lop3.b32", word, word, word, np.array([256], dtype=np.uint32))


def test_results_do_not_change_their_operands() -> None:
    """Clauses read registers in place, so one that wrote into a source would change a register."""
    generator = np.random.default_rng(2)
    for bound in INSTANCES:
        sources = [
            np.array([0xCA], dtype=np.uint32)
            if operand.name == "immLut"
            else generator.integers(0, 2, 8).astype(bool)
            if type.name == "pred"
            else generator.integers(0, 1 << 63, 8, dtype=np.uint64).astype(type.bits_dtype)
            for operand, type in bound.sources
        ]
        for source in sources:
            source.setflags(write=False)
        evaluate(bound.opcode, *sources)


def test_every_opcode_finds_its_own_clause() -> None:
    assert [bound.opcode for clause in OURS for bound in instances(clause) if bound.clause is not clause] == []


def refusals(bounds: list[Bound], target: str, folder: Path) -> set[str]:
    """The opcodes that ptxas refuses for a target, with its message."""
    text = folder / f"{target}.ptx"
    text.write_text(listing(bounds, target))
    command = [releases()[-1][1], "-arch", target, str(text), "-o", str(folder / "forms.cubin")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    found = refused(ended.stdout + ended.stderr, len(bounds))
    assert bool(found) == bool(ended.returncode), ended.stderr
    return {f"{bounds[at].opcode}: {message}" for at, message in found.items()}


@pytest.mark.parametrize("target", ASSEMBLED)
def test_ptxas_takes_every_form_that_a_target_has(target: str, tmp_path: Path) -> None:
    present = [bound for bound in INSTANCES if has(target, bound.clause.first_target(bound.opcode))]
    assert refusals(present, target, tmp_path) == set()


@pytest.mark.parametrize("target", ["sm_75", "sm_89"])
def test_ptxas_refuses_every_form_that_a_target_lacks(target: str, tmp_path: Path) -> None:
    """`since` is the first target, not a later one; ptxas 13 knows none before sm_75."""
    absent = [bound for bound in INSTANCES if not has(target, bound.clause.first_target(bound.opcode))]
    assert absent
    assert len(refusals(absent, target, tmp_path)) == len(absent)


def test_form_expands_in_the_order_of_its_choices() -> None:
    (clause,) = [clause for clause in OURS if clause.form.startswith("bfind")]
    assert opcodes(clause) == [
        "bfind.u32",
        "bfind.u64",
        "bfind.s32",
        "bfind.s64",
        "bfind.shiftamt.u32",
        "bfind.shiftamt.u64",
        "bfind.shiftamt.s32",
        "bfind.shiftamt.s64",
    ]
    assert opcode_count(clause) == 8


def test_long_form_expands_to_each_choice_once() -> None:
    """Beyond `most`, one word at a time differs from the first opcode: 1 + (2 - 1) + (4 - 1) of bfind's 8."""
    (clause,) = [clause for clause in OURS if clause.form.startswith("bfind")]
    assert opcodes(clause, most=7) == ["bfind.u32", "bfind.shiftamt.u32", "bfind.u64", "bfind.s32", "bfind.s64"]


def test_statement_writes_results_joined_and_no_carry() -> None:
    assert statement(bind("setp.lt.and.s32")) == "setp.lt.and.s32 dp_pred|dq_pred, a_b32, b_b32, c_pred;"
    assert statement(bind("madc.lo.cc.u32")) == "madc.lo.cc.u32 d_b32, a_b32, b_b32, c_b32;"
    assert statement(bind("mul.wide.u16"), {"b": "7"}) == "mul.wide.u16 d_b32, a_b16, 7;"
    with pytest.raises(RefsimError, match="has an address"):
        statement(bind("ld.global.u32"))


def test_listing_puts_statements_where_refusals_look() -> None:
    text = listing([bind("popc.b64"), bind("lop3.b32")], "sm_90").splitlines()
    assert text[FIRST_LINE - 1 : FIRST_LINE + 1] == [
        "popc.b64 d_b32, a_b64;",
        "lop3.b32 d_b32, a_b32, b_b32, c_b32, 0xca;",
    ]
    assert refused(f"ptxas f.ptx, line {FIRST_LINE + 1}; error   : Wrong\n", 2) == {1: "Wrong"}
