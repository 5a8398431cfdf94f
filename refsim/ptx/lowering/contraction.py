"""Products that ptxas may fuse: a bare mul whose result feeds a bare add or sub of equal type.

Without a rounding modifier the ISA lets the assembler contract the pair into one fma. The simulator's two roundings and
the chip's single rounding may then differ. With `.rn` (or any other mode) ptxas must not contract.
"""

import re
from dataclasses import dataclass

from refsim.ptx.text.syntax import Function, Register, Statement, place
from refsim.sources import PTX

SOURCE = PTX["mul, add: instructions without rounding modifier may be contracted"]
_BARE = re.compile(r"(mul|add|sub)(?:\.ftz)?(?:\.sat)?\.(f32|f64|f16|f16x2|bf16|bf16x2)")


@dataclass(frozen=True)
class Contraction:
    """A product and the sum it may be fused into."""

    product: Statement
    total: Statement

    def __str__(self) -> str:
        return f"{place(self.product)} feeds {place(self.total)}: ptxas may contract them into one fma; write .rn"


def contractions(function: Function) -> tuple[Contraction, ...]:
    """Return every pair in a function that ptxas may contract; a reused register can only add pairs."""
    products: dict[tuple[int, str], Statement] = {}
    for statement in function.statements:
        match = _BARE.fullmatch(statement.opcode)
        if match and match[1] == "mul" and isinstance(statement.operands[0], Register):
            products[statement.operands[0].index, match[2]] = statement
    found = []
    for statement in function.statements:
        match = _BARE.fullmatch(statement.opcode)
        if match and match[1] != "mul":
            for operand in statement.operands[1:]:
                if isinstance(operand, Register) and (product := products.get((operand.index, match[2]))):
                    found.append(Contraction(product, statement))
    return tuple(found)
