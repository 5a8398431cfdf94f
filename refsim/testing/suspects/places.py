"""Repairs of where things lie: bounds one too far or too near, tails rounded away, a swizzle, a transposition."""

import re
from collections.abc import Iterator

from refsim.testing.suspects.arithmetic import Changes
from refsim.testing.suspects.listing import ListedLine, PtxListing

_INTEGERS = frozenset({"s16", "u16", "s32", "u32", "s64", "u64", "b32", "b64"})
_ROTATED = ("3", "7", "15", "31", "63")
_NEIGHBOUR = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "lo": "ls", "ls": "lo", "hi": "hs", "hs": "hi"}


def bound_moved(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """A comparison of integers that takes its bound in or leaves it out; one added to a number or not."""
    if (
        line.name == "setp"
        and line.words[-1] in _INTEGERS
        and line.words[1] in _NEIGHBOUR
        and _has_bound(listing, line)
    ):
        opcode = ".".join((line.name, _NEIGHBOUR[line.words[1]], *line.words[2:]))
        yield {line.at: line.renamed(opcode)}
    elif line.name == "add" and line.words[-1] in _INTEGERS and line.operands[-1] in ("1", "-1"):
        yield {line.at: line.renamed(f"mov.{line.words[-1]}", *line.operands[:2])}


def _has_bound(listing: PtxListing, line: ListedLine) -> bool:
    """Whether one side is a constant or a parameter of the kernel: two numbers that were computed are no bound."""
    return any(
        not side.startswith("%") or listing.constant(side) != side or listing.is_parameter(side)
        for side in line.operands[-2:]
    )


def tail_kept(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """A number that is rounded down to a multiple of a power of two, left as it is."""
    mask = re.fullmatch(r"-(\d+)", listing.constant(line.operands[-1])) if line.name == "and" else None
    if mask and int(mask[1]) > 1 and int(mask[1]).bit_count() == 1:
        yield {line.at: line.renamed(f"mov.{line.words[-1]}", *line.operands[:2])}


def not_swizzled(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """An exclusive or of two places without either: first without the side that a mask made, the row's few bits."""
    if line.name == "and" and listing.constant(line.operands[2]) in _ROTATED:
        total = listing.definition(line.operands[1], line)
        if total is not None and total.name == "add" and all(side.startswith("%") for side in total.operands[1:]):
            for side in total.operands[1:]:  # a swizzle that rotates a row: (column + row) % 32
                yield {line.at: line.renamed(line.opcode, line.operands[0], side, line.operands[2])}
    if line.name != "xor" or line.words[-1] not in ("b32", "b64") or line.operands[2] in ("1", "-1"):
        return
    d, *sides = line.operands
    made = [listing.definition(side, line) for side in sides]
    masked = [each is not None and each.name == "and" for each in made]
    plain = [side for side, is_masked in zip(sides, masked, strict=True) if not is_masked]
    for kept in (plain[0] if len(plain) == 1 else sides[0], *sides):
        yield {line.at: line.renamed(f"mov.{line.words[-1]}", d, kept)}


def transposed(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """ldmatrix and stmatrix with .trans or without."""
    if line.name not in ("ldmatrix", "stmatrix"):
        return
    words = list(line.words)
    if "trans" in words:
        words.remove("trans")
    else:
        count = next((at for at, word in enumerate(words) if re.fullmatch(r"x[124]", word)), None)
        if count is None:
            return
        words.insert(count + 1, "trans")
    yield {line.at: line.renamed(".".join(words))}
