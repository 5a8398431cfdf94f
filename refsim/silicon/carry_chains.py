"""Chains through the carry flag: every instruction that writes it, then every reader, then every reader or writer
again.

The ISA calls the flag a carry after a sum and a borrow after a difference, and leaves chains of both unspecified. A
form is a chain of two or three instructions. The lower word of its result mixes the first two results, the upper word
the third result and the final flag, so every single wrong bit shows. A GPU ran `ptx()` once; the simulator runs the
identical text on identical operands.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from refsim.silicon.scalar_probe import ScalarForm, operand_rows, probe_module
from refsim.silicon.vectors import CHUNK

WRITERS = ("add.cc", "sub.cc", "mad.lo.cc", "mad.hi.cc", "addc.cc", "subc.cc", "madc.lo.cc", "madc.hi.cc")
READERS = ("addc", "subc", "madc.lo", "madc.hi")
LATER = (*READERS, *(f"{reader}.cc" for reader in READERS))
OPERAND_KINDS = ("u64", "u64", "u64")
STORED_ROWS = 64
"""Inputs of the first chunk whose results are stored in full; both chunks have digests."""
_ORDERS = ("abc", "cab", "bca")


def _step(opcode: str, type: str, place: int) -> str:
    """Return instruction number `place` of a chain: operands a, b and c in their own order, the result in %r<place>."""
    bits = type[1:]
    names = _ORDERS[place][: 3 if opcode.startswith("mad") else 2]
    return f"{opcode}.{type} %r{place}_{bits}, {', '.join(f'%{name}_{bits}' for name in names)};"


def chain(*steps: tuple[str, str]) -> ScalarForm:
    """Return a chain of (opcode, type); a first instruction that reads the flag finds the carry of a + a in 32 bits.
    Instructions of 32 bits take the upper or the lower half of an operand, OR-ed: 1 << 63 is 0x80000000."""
    lines = [f".reg .b{bits} %{name}_{bits};" for bits in (32, 64) for name in ("a", "b", "c", "r0", "r1", "r2")]
    for name in "abc":
        lines += [f"mov.b64 {{%x, %y}}, %{name};", f"or.b32 %{name}_32, %x, %y;", f"mov.b64 %{name}_64, %{name};"]
    if steps[0][0].split(".")[0] in ("addc", "subc", "madc"):
        lines += ["add.cc.u32 %x, %a_32, %a_32;"]
    lines += [_step(opcode, type, place) for place, (opcode, type) in enumerate(steps)]
    lines += ["addc.u32 %z, 0, 0;", "mul.lo.u32 %z, %z, 0x27d4eb2f;"]
    for place, (_, type) in enumerate(steps):
        if type[1:] == "64":
            lines += [f"mov.b64 {{%x, %y}}, %r{place}_64;", f"mad.lo.u32 %r{place}_32, %x, 0x9e3779b1, %y;"]
    lines += ["mad.lo.u32 %x, %r0_32, 0xc2b2ae35, %r1_32;", f"add.u32 %y, %z, {'%r2_32' if steps[2:] else '%z'};"]
    name = " + ".join(f"{opcode}.{type}" for opcode, type in steps)
    return ScalarForm(name, OPERAND_KINDS, 64, "\n".join([*lines, "mov.b64 %d, {%x, %y};"]))


def forms() -> list[ScalarForm]:
    """Return every chain in order; entry k of the module is `form_<k>`. Pairs are of one type or of both widths,
    triples are unsigned."""
    return [*_pairs(), *_triples()]


def _pairs() -> Iterator[ScalarForm]:
    kinds = [("u32", "u32"), ("s32", "s32"), ("u64", "u64"), ("s64", "s64"), ("u32", "u64"), ("u64", "u32")]
    for (before, after), first, second in product(kinds, WRITERS, LATER):
        yield chain((first, before), (second, after))


def _triples() -> Iterator[ScalarForm]:
    for type, first, second, third in product(("u32", "u64"), WRITERS, LATER, LATER):
        yield chain((first, type), (second, type), (third, type))


def operands(chunk: int) -> list[NDArray[np.uint64]]:
    """Return the 65,536 inputs of a chunk: pairs of special values in chunk 0, random ones in chunk 1."""
    return operand_rows(OPERAND_KINDS, chunk * CHUNK, CHUNK, specials=chunk == 0)


def ptx() -> str:
    """Return the PTX module of all chains."""
    return probe_module(forms())
