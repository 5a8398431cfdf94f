"""Repairs of places: bounds one too far or too near, tails cut off by rounding, a swizzle, a transposition."""

import re
from collections.abc import Iterator

from refsim.testing.suspects.listing import ListedLine, PtxListing

_INTEGERS = frozenset({"s16", "u16", "s32", "u32", "s64", "u64", "b32", "b64"})
LEAST_ROWS = 3  # that many constants on one line are the rows of a loop: one or two may be neighbors
_PLACED = frozenset(
    {"add", "sub", "mul", "mad", "shl", "shr", "or", "xor", "and", "not", "neg", "cvt", "mov", "cvta", "lop3", "bfi"}
    | {"selp", "min", "max", "shf", "prmt", "bfe"}
)
"""Instructions that compute an address or an index from another one."""
_ROTATED = ("3", "7", "15", "31", "63")
_NEIGHBOUR = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "lo": "ls", "ls": "lo", "hi": "hs", "hs": "hi"}


def bound_moved(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield a comparison of integers with its bound included or excluded, and an addition of 1 removed."""
    if (
        line.name == "setp"
        and line.words[-1] in _INTEGERS
        and line.words[1] in _NEIGHBOUR
        and _has_bound(listing, line)
    ):
        opcode = ".".join((line.name, _NEIGHBOUR[line.words[1]], *line.words[2:]))
        yield line.renamed(opcode)
    elif line.name == "add" and line.words[-1] in _INTEGERS and line.operands[-1] in ("1", "-1"):
        yield line.renamed(f"mov.{line.words[-1]}", *line.operands[:2])


def _has_bound(listing: PtxListing, line: ListedLine) -> bool:
    """Return whether one side is a constant or a parameter of the kernel; two computed numbers are not a bound."""
    return any(
        not side.startswith("%") or listing.constant(side) != side or listing.is_parameter(side)
        for side in line.operands[-2:]
    )


def tail_kept(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield the number itself for a number rounded down to a multiple of a power of two."""
    mask = re.fullmatch(r"-(\d+)", listing.constant(line.operands[-1])) if line.name == "and" else None
    if mask and int(mask[1]) > 1 and int(mask[1]).bit_count() == 1:
        yield line.renamed(f"mov.{line.words[-1]}", *line.operands[:2])


def not_swizzled(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield either operand of an exclusive or that swizzles places in shared memory, without the exclusive or.

    The side made by a mask, the low bits of the row, is removed first. With a constant operand it counts as a swizzle
    only if the CUDA line has several, as an unrolled loop over rows has.
    """
    if line.name not in ("and", "xor") or not leads_to_shared(listing, line):
        return
    if line.name == "and" and listing.constant(line.operands[2]) in _ROTATED:
        total = listing.definition(line.operands[1], line)
        if total is not None and total.name == "add" and all(side.startswith("%") for side in total.operands[1:]):
            for side in total.operands[1:]:  # a swizzle by rotation: (column + row) % 32
                yield line.renamed(line.opcode, line.operands[0], side, line.operands[2])
    if line.name != "xor" or line.words[-1] not in ("b32", "b64") or not _joins_a_row(listing, line):
        return
    d, *sides = line.operands
    made = [listing.definition(side, line) for side in sides]
    masked = [each is not None and each.name == "and" for each in made]
    plain = [side for side, is_masked in zip(sides, masked, strict=True) if not is_masked]
    for kept in (plain[0] if len(plain) == 1 else sides[0], *sides):
        yield line.renamed(f"mov.{line.words[-1]}", d, kept)


def _joins_a_row(listing: PtxListing, line: ListedLine) -> bool:
    """Return whether an exclusive or may add the bits of a row.

    It does not if a condition chose a side. If a side is a constant, the CUDA line must have several constants.
    """

    def constants(other: ListedLine) -> set[str]:
        values = {operand: listing.constant(operand) for operand in other.operands[1:]}
        return {value for operand, value in values.items() if value != operand or not operand.startswith("%")}

    if not constants(line):
        made = [listing.definition(side, line) for side in line.operands[1:]]
        return not any(each is not None and each.name in ("selp", "set", "slct") for each in made)
    likes = (other for other in listing.lines if other.place == line.place and other.opcode == line.opcode)
    return len(set().union(*map(constants, likes))) >= LEAST_ROWS


def leads_to_shared(listing: PtxListing, line: ListedLine) -> bool:
    """Return whether the result of a line becomes an address of shared memory."""
    seen, todo = set(line.written), list(line.written)
    while todo:
        register = todo.pop()
        for use in listing.uses(register):
            is_address = any(register in operand for operand in use.operands if operand.startswith("["))
            if is_address and _is_shared(use):
                return True
            if use.name in _PLACED and not use.written <= seen:
                todo += use.written - seen
                seen |= use.written
    return False


def _is_shared(line: ListedLine) -> bool:
    """Return whether a line accesses shared or generic memory."""
    if line.name in ("ldmatrix", "stmatrix") or any(word.startswith("shared") for word in line.words):
        return True
    return line.name in ("ld", "st", "atom", "red") and not {"global", "local", "param", "const"} & set(line.words)


def transposed(listing: PtxListing, line: ListedLine) -> Iterator[str]:
    """Yield ldmatrix and stmatrix with .trans added or removed."""
    if line.name not in ("ldmatrix", "stmatrix"):
        return
    if "trans" in line.words:
        yield line.renamed(line.worded("trans"))
    elif (opcode := re.sub(r"(?<=\.x[124])(?=\.|$)", ".trans", line.opcode, count=1)) != line.opcode:
        yield line.renamed(opcode)
