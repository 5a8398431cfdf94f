"""Fragments of wmma.load, wmma.mma and wmma.store: opaque by contract, and read off the machine code of ptxas.

The PTX ISA says only how many registers there are. From sm_80 on ptxas compiles each wmma.mma to one or two products of
m16n8 (HMMA, IMMA) or to one product of m8n8 (DMMA). Its loads fetch the elements that these products need. The 8 x 32
products are computed as their transpose. f16 operands keep the eight registers of sm_70; unneeded registers repeat the
first.
"""

import re
from collections.abc import Iterator
from functools import partial
from itertools import product

from refsim.errors import RefsimError
from refsim.formats import F16, element_named
from refsim.layouts.families.core import Fragment, Integers, Row, Shape, grammar, group, in_registers, refuse, within
from refsim.sources import PTX

_SIZES = ((16, 16), (32, 8), (8, 32))
WMMA_SHAPES = (
    *(Shape(m, n, 16, ("f16",), ("f32", "f16"), "sm_70") for m, n in _SIZES),
    *(Shape(m, n, 16, ("bf16",), ("f32",), "sm_80") for m, n in _SIZES),
    *(Shape(m, n, 16, ("s8", "u8"), ("s32",), "sm_72") for m, n in _SIZES),
    Shape(16, 16, 8, ("tf32",), ("f32",), "sm_80"),
    Shape(8, 8, 4, ("f64",), ("f64",), "sm_80"),
)
_F16_VALUES = 16


def rows() -> Iterator[Row]:
    """Yield every name of the family with the function that builds its fragment."""
    done: set[str] = set()
    for shape in WMMA_SHAPES:
        for type, operand in [*product(shape.types, "ab"), *product(shape.accumulators, "cd")]:
            name = f"wmma.{shape}.{type}.{operand}"
            if name not in done:
                done.add(name)
                yield name, partial(_fragment, name, shape, type, operand)


def side(lane: Integers, value: Integers, per: int, lines: int, deep: int, *, is_b: bool) -> tuple[Integers, Integers]:
    """Return (line, k) of an operand whose lines (rows of A, columns of B) lie in blocks of eight.

    `deep` is the number of registers along k. Sixteen rows are the A of a product of m16n8: down first, then along k.
    Sixteen columns are the B of two products: along k first. wmma.m16n16k16.f16.a: lane 5, value 3 is register 1 = row
    1 + 8, k = 2 + 1; in .b it is k = 8 + 2 + 1, column 1.
    """
    register, place = value // per % (lines // 8 * deep), value % per
    if deep == 1:
        down, along = register, 0 * register
    elif lines == 8 or (is_b and lines == 16):
        down, along = register // deep, register % deep
    else:
        down, along = (register & 1) + 2 * (register >> 2), register >> 1 & 1
    return group(lane) + 8 * down, within(lane) * per + place + 4 * per * along


def accumulator(lane: Integers, value: Integers, m: int, n: int) -> tuple[Integers, Integers]:
    """Return places of C and D: pairs of neighboring columns, blocks of eight rows down, then to the right.

    8 x 32 is the transpose. wmma.m8n32k16.f32.d: lane 5, value 3 is row 2 + 1, column 1 + 8.
    """
    pair, place = value >> 1, value & 1
    if (m, n) == (8, 32):
        return 2 * within(lane) + place, group(lane) + 8 * pair
    return group(lane) + 8 * (pair % (m // 8)), 2 * within(lane) + place + 8 * (pair // (m // 8))


def _transposed_side(lane: Integers, value: Integers, per: int, lines: int, deep: int) -> tuple[Integers, Integers]:
    line, depth = side(lane, value, per, lines, deep, is_b=True)
    return depth, line


def _fragment(name: str, shape: Shape, type: str, operand: str) -> Fragment:
    """Return the fragment of an operand of wmma."""
    if operand in "cd":
        formula = partial(accumulator, m=shape.m, n=shape.n)
        summary = "the accumulators of one or two products of m16n8, or one of m8n8"
        return in_registers(name, (shape.m, shape.n), type, formula, PTX["wmma"], shape.since, summary)
    per = max(1, 32 // element_named(type).code_bits)
    lines, deep = shape.m if operand == "a" else shape.n, shape.k // (4 * per)
    extent = (shape.m, shape.k) if operand == "a" else (shape.k, shape.n)
    whole = partial(side, is_b=False) if operand == "a" else _transposed_side
    formula = partial(whole, per=per, lines=lines, deep=deep)
    copies = _F16_VALUES * 32 // (lines * shape.k) if element_named(type) is F16 else 1
    summary = "what the products of m16n8 or m8n8 want, repeated where there are more registers"
    return in_registers(name, extent, type, formula, PTX["wmma"], shape.since, summary, copies=copies)


@grammar(r"wmma\.(m[0-9]{1,6}n[0-9]{1,6}k[0-9]{1,6})\.([a-z]+[0-9]{1,6})\.([abcd])")
def refusal(name: str, match: re.Match[str]) -> RefsimError:
    """Return the reason that no instruction has the fragment."""
    shape, type, operand = match.groups()
    of_shape = [row for row in WMMA_SHAPES if str(row) == shape]
    if not of_shape:
        have = ", ".join(dict.fromkeys(map(str, WMMA_SHAPES)))
        return refuse(name, f"wmma has no shape {shape}", f"PTX ISA, wmma: {have}; s4 and b1 are not modeled")
    have = ", ".join(
        dict.fromkeys(each for row in of_shape for each in (row.types if operand in "ab" else row.accumulators))
    )
    return refuse(name, f"{operand} of wmma {shape} is never {type}", f"PTX ISA, wmma: {operand} of {shape} is {have}")


def positions(fragment: Fragment, layout: str, leading: Integers, lane: Integers) -> Integers:
    """Return the place of each value of a lane in memory, in elements from the start of the matrix: (lanes, values).

    layout: "row" or "col"; leading: elements from one row (column) to the next, one per lane. Values that repeat others
    are left out.
    """
    rows, cols = (held[lane, : fragment.values // fragment.copies] for held in fragment.elements)
    return rows * leading[:, None] + cols if layout == "row" else cols * leading[:, None] + rows
