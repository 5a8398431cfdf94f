"""Every opcode that a clause covers, and the PTX text that uses one: the grammar of a form, expanded."""

import re
from itertools import product

from refsim.errors import RefsimError
from refsim.ptx.bind import Bound, bind
from refsim.ptx.isa.forms import FIELD, Instruction
from refsim.ptx.types import PtxType

CARRY = ("cc", "dcc")
FIRST_LINE = 6


def opcodes(clause: Instruction) -> list[str]:
    """The opcodes that the form of a clause spells, in the order of its choices: 9 for popc.{b32|b64} with 8 more.

    `add{.sat}.{type:u32|s32}` spells add.u32, add.s32, add.sat.u32 and add.sat.s32.
    """
    opcode = clause.form.partition(" ")[0]
    choices: list[list[str]] = []
    position = 0
    for piece in FIELD.finditer(opcode):
        choices.append([opcode[position : piece.start()]])
        position = piece.end()
        if piece["need"]:
            choices.append([f".{choice}" for choice in piece["needs"].split("|")])
        elif piece["maybe"]:
            choices.append(["", *(f".{choice}" for choice in piece["mays"].split("|"))])
        else:
            choices.append(["", f".{piece['flag']}"])
    return ["".join(words) for words in product(*choices, [opcode[position:]])]


def instances(clause: Instruction) -> list[Bound]:
    """One bound instruction for each opcode of a clause: the opcode, its modifiers and the type of every operand.

    An opcode that an earlier clause answers is bound to that one; `bound.clause is clause` tells.
    """
    return [bind(opcode) for opcode in opcodes(clause)]


def register_type(type: PtxType) -> str:
    """The PTX type of a register that holds a value: pred, or b16, b32, b64 (8 bits lie in b16)."""
    return "pred" if type.name == "pred" else f"b{max(type.bits, 16)}"


def statement(bound: Bound, names: dict[str, str] | None = None) -> str:
    """One PTX statement with a pure instruction: `add.s32 d, a, b;`.

    names: the register or constant to write for an operand, by its name in the form; without one, its own name with
    the width behind (`a_b32`), and 0xca for a table. The carry operands cc and dcc are not part of the text. Raises
    RefsimError `needs-machine` for an instruction with an address or a vector of registers.
    """
    if any(operand.address or operand.many for operand, _ in bound.operands):
        raise RefsimError("needs-machine", f"{bound.opcode} has an address or a vector of registers")
    words = {"immLut": "0xca"} | {operand.name: f"{operand.name}_{register_type(type)}" for operand, type in
                                  bound.operands if operand.name != "immLut"} | (names or {})  # fmt: skip
    results = [words[operand.name] for operand, _ in bound.results if operand.name not in CARRY]
    sources = [words[operand.name] for operand, _ in bound.sources if operand.name not in CARRY]
    return f"{bound.opcode} {', '.join(['|'.join(results), *sources])};"


def listing(bounds: list[Bound], target: str, version: str = "9.0") -> str:
    """A PTX module with one entry that uses each bound instruction once, for an assembler to accept or refuse.

    Statement number i (from 0) stands on line FIRST_LINE + i; the registers are declared behind the last statement's
    scope opening, on one line.
    """
    registers = sorted(
        {
            (f"{operand.name}_{register_type(type)}", register_type(type))
            for bound in bounds
            for operand, type in bound.operands
            if operand.name not in (*CARRY, "immLut")
        }
    )
    declared = " ".join(f".reg .{type} {name};" for name, type in registers)
    head = [f".version {version}", f".target {target}", ".address_size 64", ".visible .entry forms() {", declared]
    return "\n".join([*head, *map(statement, bounds), "ret;", "}", ""])


def refused(messages: str, count: int) -> dict[int, str]:
    """Which statements of a listing an assembler refused, with its first message for each, from its error output."""
    found: dict[int, str] = {}
    for line, message in re.findall(r"line (\d+); error\s*: (.*)", messages):
        index = int(line) - FIRST_LINE
        if 0 <= index < count:
            found.setdefault(index, message.strip())
    return found
