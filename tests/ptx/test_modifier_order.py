"""In which orders the modifiers of an opcode may stand: the rule of isa/opcodes.py against ptxas.

Each form's longest opcode is put to ptxas in permutations, all of a target in one listing. Profile quick takes a few of
each, ci many.
"""

import math
import random
import re
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from refsim.errors import RefsimError
from refsim.ptx.isa.forms import Bound, Instruction, clauses, find
from refsim.ptx.isa.instances import instances
from refsim.reference import assembler
from refsim.targets import SPECIFIC_UNITS

# Labels and functions need a place to go; st.param needs a call around it.
# shfl and vote without .sync are of targets before sm_70, which no ptxas here knows.
OURS = [
    clause for clause in clauses() if clause.mnemonic not in ("bra", "brx", "call") and clause.rendezvous != "converged"
]
# ptxas has no moves of eight registers, and crashes in some of its runs on loads of vectors of eight bytes.
LEFT_OUT = re.compile(r"\.param|^mov\.v8|^ld\..*\.v8\.[bus]8$")


def longest(clause: Instruction) -> Bound | None:
    """The instance of a clause with the most words."""
    own = [bound for bound in instances(clause, 64) if bound.clause is clause]
    return max(own, key=lambda bound: bound.opcode.count(".")) if own else None


def permuted(bound: Bound, most: int) -> list[Bound]:
    """The instruction with its modifiers in other orders: every move of one word among them, if `most` allows."""
    mnemonic, *words = bound.opcode.split(".")
    orders = {
        (*words[:at], *words[at + 1 : to + 1], words[at], *words[to + 1 :])
        for at in range(len(words))
        for to in range(at, len(words))
    }
    if math.factorial(len(words)) <= most:
        orders |= set(permutations(words))
    generator = random.Random(bound.opcode)
    orders |= {tuple(generator.sample(words, len(words))) for _ in range(most)}
    # With its types exchanged an opcode may be another instruction, whose operands are others: cvt.f16.bf16.
    others = [clause.opcode for clause in OURS if clause.mnemonic == mnemonic]
    mine = bound.clause.opcode
    orders = {order for order in orders if mine.match([*order]) or not any(other.match([*order]) for other in others)}
    return [replace(bound, opcode=".".join([mnemonic, *order])) for order in sorted(orders)]


def judged_for(bound: Bound) -> str:
    """The first target whose ptxas takes the form."""
    first = assembler.first_target(bound.since)
    unit = next((row for row in SPECIFIC_UNITS if row.covers(bound.opcode)), None)
    return first if unit is None or first in unit.targets else unit.targets[0]


LONGEST = [bound for clause in OURS if (bound := longest(clause)) and not LEFT_OUT.search(bound.opcode)]
TARGETS = sorted({judged_for(bound) for bound in LONGEST})


@pytest.mark.parametrize("target", TARGETS)
def test_modifiers_stand_in_the_orders_that_ptxas_takes(target: str, tmp_path: Path, refsim_profile: str) -> None:
    if target.endswith("f") and assembler.releases()[-1][0] < (13, 2):
        pytest.skip("no ptxas from 13.2 on is here to judge these forms: it comes with triton 3.9")
    most = {"quick": 4, "ci": 16}.get(refsim_profile, 60)
    tried = [other for bound in LONGEST if judged_for(bound) == target for other in permuted(bound, most)]
    refused: dict[str, str] = {}
    for is_pair in (False, True):  # no function may have both
        some = [bound for bound in tried if ("cta_group::2" in bound.opcode) == is_pair]
        refused |= assembler.refusals(some, target, tmp_path)
    taken_here = {bound.opcode for bound in tried if bound.clause.opcode.match(bound.opcode.split(".")[1:])}
    assert {opcode: refused[opcode] for opcode in taken_here & refused.keys()} == {}
    # Types in another order make another instruction, where that exists: cvt.f16.bf16 beside cvt.bf16.f16.
    others = {bound.opcode for bound in tried} - taken_here - refused.keys()
    assert {opcode for opcode in others if opcode.split(".")[0] not in ("cvt", "set")} == set()


@pytest.mark.parametrize(
    ("written", "printed"),
    [
        ("atom.global.gpu.acq_rel.add.u32", "atom.acq_rel.gpu.global.add.u32"),
        ("ld.global.acquire.gpu.b32", "ld.acquire.gpu.global.b32"),
        ("div.ftz.rn.f32", "div.rn.ftz.f32"),
        ("vote.ballot.sync.b32", "vote.sync.ballot.b32"),
        ("ldmatrix.sync.aligned.x4.m8n8.trans.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"),
        ("cvt.f16.rn.f32", "cvt.rn.f16.f32"),
        ("max.s32.relu", "max.relu.s32"),
    ],
)
def test_other_orders_are_the_printed_instruction(written: str, printed: str) -> None:
    assert find(written) == find(printed)


@pytest.mark.parametrize(
    "opcode",
    [
        "cvt.rn.f32.f16x2.e4m3x2",
        "mma.sync.aligned.m16n8k16.col.row.f32.f16.f16.f32",
        "mad.cc.lo.u32",
        "cp.ca.async.shared.global",
        "cp.async.ca.global.shared",
        "slct.f32.u32",
        "add.f32.f32",
    ],
)
def test_words_that_may_not_move_do_not(opcode: str) -> None:
    with pytest.raises(RefsimError, match="does not implement"):
        find(opcode)
