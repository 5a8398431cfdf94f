"""The chains through the carry flag mean what Python's integers say: an adder with one flag, differences as a + ~b."""

import numpy as np
import pytest

from refsim import ptx
from refsim.silicon import carry_chains
from refsim.silicon.scalar_probe import probe_module

CHAINS = carry_chains.forms()
ROWS = 256


def expected(name: str, values: tuple[int, ...]) -> int:
    """The result of a chain for its three operands, over Python's integers."""
    operands = {64: values, 32: tuple(value >> 32 | value % 2**32 for value in values)}
    steps = [step.split(".") for step in name.split(" + ")]
    flag = 2 * operands[32][0] >> 32
    words = [0, 0, 0]
    for place, (opcode, *modifiers) in enumerate(steps):
        bits = int(modifiers[-1][1:])
        a, b, c = (operands[bits]["abc".index(letter)] for letter in ("abc", "cab", "bca")[place])
        carried = flag if opcode in ("addc", "subc", "madc") else int(opcode == "sub")
        if opcode.startswith("mad"):
            signed = [value - (value >> bits - 1 << bits) if modifiers[-1][0] == "s" else value for value in (a, b)]
            product = signed[0] * signed[1]
            total = (product >> bits if "hi" in modifiers else product) % 2**bits + c + carried
        else:
            total = a + (2**bits - 1 - b if opcode.startswith("sub") else b) + carried
        result = total % 2**bits
        words[place] = (result * 0x9E3779B1 + (result >> 32)) % 2**32 if bits == 64 else result
        flag = total >> bits if "cc" in modifiers else flag
    marked = flag * 0x27D4EB2F
    lower, upper = words[0] * 0xC2B2AE35 + words[1], marked + (words[2] if len(steps) == 3 else marked)
    return upper % 2**32 << 32 | lower % 2**32


@pytest.mark.parametrize("part", range(4))
def test_chain_is_one_adder_with_one_flag(part: int, refsim_profile: str) -> None:
    columns = [column[:ROWS] for column in carry_chains.operands(0)]
    for form in CHAINS[part :: {"quick": 97, "ci": 13}.get(refsim_profile, 4)]:
        results = np.zeros(ROWS, np.uint64)
        arguments = [*(column.copy() for column in columns), results, np.uint32(ROWS)]
        ptx.load(probe_module([form])).launch("form_0", (1,), (ROWS,), arguments)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        assert results.tolist() == [expected(form.name, row) for row in rows], form.name


def test_every_writer_stands_before_every_reader() -> None:
    names = {form.name for form in CHAINS}
    assert len(names) == len(CHAINS) == 6 * 64 + 2 * 512
    assert {"sub.cc.u32 + addc.u32", "madc.hi.cc.s64 + subc.s64", "add.cc.u32 + subc.u64"} <= names
