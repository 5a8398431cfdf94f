"""Operands for one pure PTX instruction, drawn from Hypothesis, and its results as plain Python numbers.

A property compares `refsim.ptx.isa.forms.evaluate` with a definition over integers, lane by lane. Draw
`operand_words()`, read them as the sources of one instruction with `fitted(bound, drawn)`, then `disagreements(bound,
sources, definition)` must be empty. One draw serves every instruction.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from numpy.typing import NDArray

from refsim.ptx.execution.types import PtxType
from refsim.ptx.isa.forms import Bound, evaluate

LANES = 64
Definition = Callable[..., Any]
Words = NDArray[np.uint64]

# Each width reads the low bits of these values: both ends, their neighbors, and one bit at each byte.
_ENDS = [0, 1, 2, 3, -1, -2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 1 << 23, 1 << 24, (1 << 31) - 1, 1 << 31]
_ENDS += [(1 << 31) + 1, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, 0x8000_8000, 0x7FFF_FFFF_8000]
# Zeros, subnormal and normal ends, one, infinities and NaNs of f16, bf16 (each twice, as a pair), f32 and f64.
_FLOATS = [0x0001_8001, 0x03FF_8400, 0x3C00_BC00, 0x7BFF_FC00, 0x7C00_7E01, 0x007F_0080, 0x3F80_BF80, 0x7F80_7FC0]
_FLOATS += [0x007F_FFFF, 0x0080_0000, 0x8000_0001, 0x3F80_0000, 0x7F7F_FFFF, 0x7F80_0000, 0xFF80_0000, 0x7F80_0001]
_FLOATS += [0x000F_FFFF_FFFF_FFFF, 1 << 52, 0x3FF << 52, 0x7FF << 52, 0xFFF << 52, (0x7FF << 52) + 1]
_NOTABLE = np.array([value % (1 << 64) for value in _ENDS + _FLOATS], dtype=np.uint64)


def words(lanes: int = LANES) -> SearchStrategy[Words]:
    """Return a strategy for arrays of `lanes` 64-bit patterns, whose low bits serve narrower types.

    A quarter each: any bits, notable patterns (above), 0 to 299 or 0 to 39, and the complements of these. A vector
    costs one draw of bytes; it shrinks toward zeros.
    """

    def patterns(raw: bytes) -> Words:
        payload = np.frombuffer(raw[: 8 * lanes], dtype=np.uint64)
        kind = np.frombuffer(raw[8 * lanes :], dtype=np.uint8) >> 6
        small = payload % np.where(payload >> 63, np.uint64(40), np.uint64(300))
        return np.choose(kind, [payload, _NOTABLE[payload % _NOTABLE.size], small, ~small])

    return st.binary(min_size=9 * lanes, max_size=9 * lanes).map(patterns)


@st.composite
def operand_words(draw: st.DrawFn, sources: int = 5, lanes: int = LANES) -> list[Words]:
    """Return one array of 64-bit patterns for each source of an instruction; one array in eight has a single lane. One
    lane in five repeats the operand before it, so that comparisons and differences meet equal operands."""
    found: list[Words] = []
    for _ in range(sources):
        drawn = draw(words(1 if draw(st.integers(0, 7)) == 7 else lanes))
        if found and found[-1].shape == drawn.shape:
            drawn = np.where(drawn % 5 == 0, found[-1], drawn)
        found.append(drawn)
    return found


def fitted(bound: Bound, drawn: list[Words]) -> list[NDArray[Any]]:
    """Return 64-bit patterns as the register bits of an instruction's sources: low bits, and one byte for a lookup
    table."""
    found: list[NDArray[Any]] = []
    for (operand, type), row in zip(bound.sources, drawn, strict=False):
        if operand.name == "immLut":
            found.append(row[:1].astype(np.uint32) & 0xFF)
        else:
            found.append(row % 2 == 1 if type.name == "pred" else row.astype(type.bits_dtype))
    return found


def numbers(bits: NDArray[Any], type: PtxType) -> list[Any]:
    """Return registers' bits as numbers of their type: integers, bools, or tuples (lower, upper) for a pair.
    Floating-point types stay bit patterns. 0xfffe in s16 is -2; 0x0002ffff in s16x2 is (-1, 2)."""
    if type.name == "pred":
        return list(map(bool, bits.tolist()))
    width = type.bits // type.lanes
    parts = [(bits >> (width * lane)).astype(f"u{width // 8}") for lane in range(type.lanes)]
    values = [(part.view(f"i{width // 8}") if type.is_signed else part).tolist() for part in parts]
    return list(values[0]) if type.lanes == 1 else list(zip(*values, strict=True))


def pattern(value: Any, type: PtxType) -> int:
    """Return the register bits of a definition's result: integers modulo two to the width, pairs combined."""
    if type.lanes == 1:
        return int(value) % (1 << type.bits)
    width = type.bits // type.lanes
    return sum(int(part) % (1 << width) << (width * lane) for lane, part in enumerate(value))


def disagreements(bound: Bound, sources: list[NDArray[Any]], definition: Definition) -> list[str]:
    """Return every lane in which the instruction implementation and a definition differ, as text.

    The text has operands and both results in hexadecimal. `definition` takes one number per source (see `numbers`) and
    returns one result, or a list of several.
    """
    lanes = max(source.size for source in sources)
    results = [np.broadcast_to(np.asarray(bits), lanes).tolist() for bits in evaluate(bound.opcode, *sources)]
    types = [type for _, type in bound.results]
    wide = [np.broadcast_to(source, lanes) for source in sources]
    rows = zip(*(numbers(bits, type) for bits, (_, type) in zip(wide, bound.sources, strict=True)), strict=True)
    found = []
    for lane, (row, *got) in enumerate(zip(rows, *results, strict=True)):
        values = definition(*row)
        listed = values if isinstance(values, list) else [values]
        want = [pattern(value, type) for value, type in zip(listed, types, strict=True)]
        if got != want:
            shown = ", ".join(hex(int(bits[lane])) for bits in wide)
            found.append(f"{bound.opcode} of {shown} is {list(map(hex, got))}, not {list(map(hex, want))}")
    return found
