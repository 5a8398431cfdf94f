"""Every opcode that a form covers, and PTX text that uses each: the grammar of a form, expanded."""

import math
import re
from itertools import product

from refsim.errors import RefsimError
from refsim.ptx.execution.types import PtxType
from refsim.ptx.isa.forms import Bound, Instruction, OperandForm, bind

CARRY = ("cc", "dcc")
FIRST_LINE = 6


def _words(clause: Instruction) -> list[list[str]]:
    """Return an opcode as a list of words, each with its spellings: `add{.sat}.s32` is [add], ["", .sat], [.s32]."""
    return [[clause.mnemonic], *(slot.spellings for slot in clause.opcode.slots)]


def opcode_count(clause: Instruction) -> int:
    """Return how many opcodes a form spells: 4 for add{.sat}.{type:u32|s32}."""
    return math.prod(map(len, _words(clause)))


def opcodes(clause: Instruction, most: int = 1024) -> list[str]:
    """Return the opcodes that a form spells, in the order of its choices.

    `add{.sat}.{type:u32|s32}` spells add.u32, add.s32, add.sat.u32 and add.sat.s32. If a form spells more than `most`,
    the result is the first opcode and each that differs from it in one word, so that every choice occurs.
    """
    words = _words(clause)
    if opcode_count(clause) <= most:
        return ["".join(chosen) for chosen in product(*words)]
    first = [spellings[0] for spellings in words]
    varied = ([*first[:at], word, *first[at + 1 :]] for at, spellings in enumerate(words) for word in spellings[1:])
    return ["".join(chosen) for chosen in (first, *varied)]


def instances(clause: Instruction, most: int = 1024) -> list[Bound]:
    """Return one bound instruction for each of `opcodes(clause)`: the opcode, its modifiers and the type of every
    operand.

    Optional operands are left out. An opcode that an earlier form covers is bound to the earlier form; `bound.clause is
    clause` tells the difference.
    """
    required = [form for form in clause.operands if not (form.is_result or form.optional or form.name in CARRY)]
    written = len(required) + any(form.is_result and form.name not in CARRY for form in clause.operands)
    written += sum(form.apart for form in clause.operands)
    vectors = sum(form.many and not form.inside for form in clause.operands) if clause.length is not None else None
    return [bind(opcode, operands=written, vectors=vectors) for opcode in opcodes(clause, most)]


def register_type(type: PtxType) -> str:
    """Return the PTX type of a register that holds a value: pred, b8, b16, b32 or b64."""
    return "pred" if type.name == "pred" else f"b{type.bits}"


def _written(bound: Bound) -> list[tuple[OperandForm, PtxType]]:
    """Return the operands in the text of an instruction without its optional ones."""
    if any(operand.address or operand.many for operand, _ in bound.operands):
        raise RefsimError("needs-machine", f"{bound.opcode} has an address or a vector of registers")
    return [(operand, type) for operand, type in bound.operands if not (operand.optional or operand.name in CARRY)]


def _register(operand: OperandForm, type: PtxType) -> str:
    return f"{operand.name}_{register_type(type)}"


def statement(bound: Bound, names: dict[str, str] | None = None) -> str:
    """Return one PTX statement with a pure instruction: `add.s32 d_b32, a_b32, b_b32;`.

    names: the register or constant to write for an operand, by its name in the form; by default its name with the width
    appended, and 0xca for a table. Optional operands and the carry are not written. Raises RefsimError `needs-machine`
    for an instruction with an address or a vector of registers.
    """
    words = {operand.name: _register(operand, type) for operand, type in _written(bound)} | {"immLut": "0xca"}
    words |= names or {}
    results = "|".join(words[operand.name] for operand, _ in _written(bound) if operand.is_result)
    sources = [words[operand.name] for operand, _ in _written(bound) if not operand.is_result]
    return f"{bound.opcode} {', '.join([results, *sources] if results else sources)};"


def listing(bounds: list[Bound], target: str, version: str = "9.0") -> str:
    """Return a PTX module with one entry that uses each bound instruction once, for an assembler to accept or refuse.

    Statement number i (from 0) is on line FIRST_LINE + i; the line before the first statement declares every register.
    """
    declared = {
        f".reg .{register_type(type)} {_register(operand, type)};"
        for bound in bounds
        for operand, type in _written(bound)
        if operand.name != "immLut"
    }
    head = [f".version {version}", f".target {target}", ".address_size 64", ".visible .entry forms() {"]
    return "\n".join([*head, " ".join(sorted(declared)), *map(statement, bounds), "ret;", "}", ""])


def refused(messages: str, count: int) -> dict[int, str]:
    """Return which statements of a listing an assembler refused, each with its first message, from its error output."""
    found: dict[int, str] = {}
    for line, message in re.findall(r"line (\d+); (?:error|fatal)\s*: (.*)", messages):
        index = int(line) - FIRST_LINE
        if 0 <= index < count:
            found.setdefault(index, message.strip())
    return found
