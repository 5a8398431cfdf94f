"""Repairs of the order of a sum: chains of additions reversed or in pairs, exchanges between lanes reversed."""

import re
from collections.abc import Iterator
from itertools import zip_longest

from refsim.testing.suspects.arithmetic import FLOAT_REGISTERS
from refsim.testing.suspects.listing import REGISTER, Changes, ListedLine, PtxListing


def summed_otherwise(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """Yield a chain of additions `((a + b) + c) + d` from its other end, and in pairs; `line` is its last addition."""
    if line.name not in ("add", "fma") or line.words[-1] not in FLOAT_REGISTERS or _goes_on(listing, line):
        return
    chain, carried = [line], []
    while True:
        before = _before(listing, chain[-1])
        carried.append(before.operands[0] if before else chain[-1].operands[3 if line.name == "fma" else 1])
        if before is None:
            break
        chain.append(before)
    chain.reverse()
    carried.reverse()
    if len(chain) < 2 or not _still_hold(listing, chain):
        return
    cleared = {each.at: each.reading() for each in chain[:-1]}
    terms = [_term(each, so_far) for each, so_far in zip(chain, carried, strict=True)]
    yield cleared | {line.at: _sequence(line, carried[0], terms[::-1])}
    if line.name == "add":
        numbers = [carried[0], *(term for (term,) in terms)]
        yield cleared | {line.at: _sequence(line, numbers[-1], [(number,) for number in numbers[-2::-1]])}
        yield cleared | {line.at: _pairs(line, numbers, apart=False)}
        yield cleared | {line.at: _pairs(line, numbers, apart=True)}


def _before(listing: PtxListing, line: ListedLine) -> ListedLine | None:
    """Return the previous line of a chain: of equal opcode, in the same block, and read by this line only."""
    for operand in line.operands[3:] if line.name == "fma" else line.operands[1:]:
        made = listing.definition(operand, line)
        if made is not None and made.opcode == line.opcode and len(listing.uses(operand)) == 1:
            return made
    return None


def _term(line: ListedLine, carried: str) -> tuple[str, ...]:
    """Return what a line of a chain adds: the other operand of an addition, both factors of an fma."""
    if line.name == "fma":
        return line.operands[1:3]
    _, x, y = line.operands
    return (y,) if x == carried else (x,)


def _goes_on(listing: PtxListing, line: ListedLine) -> bool:
    """Return whether a line is not the last of its chain."""
    users = listing.uses(line.operands[0])
    return len(users) == 1 and users[0].block == line.block and _before(listing, users[0]) is line


def _still_hold(listing: PtxListing, chain: list[ListedLine]) -> bool:
    """Return whether the operands of each line of the chain are unchanged at its last line."""
    members = {each.at for each in chain}
    for each in chain:
        read = {name for operand in each.operands[1:] for name in REGISTER.findall(operand)}
        later = (line for line in listing.lines if each.at < line.at < chain[-1].at and line.at not in members)
        if any(not read.isdisjoint(line.written) for line in later):
            return False
    return True


def _sequence(line: ListedLine, first: str, terms: list[tuple[str, ...]]) -> str:
    """Return the line's replacement: `first` plus each of `terms` in order."""
    code, carried = [f".reg .{FLOAT_REGISTERS[line.words[-1]]} %refsim"], first
    for number, term in enumerate(terms):
        target = line.operands[0] if number == len(terms) - 1 else "%refsim"
        operands = (*term[:2], carried) if line.name == "fma" else (carried, *term)
        code.append(f"{line.opcode} {target}, {', '.join(operands)}")
        carried = target
    return line.reading(*code)


def _pairs(line: ListedLine, numbers: list[str], *, apart: bool) -> str:
    """Return a tree of additions: neighbors first, or with `apart` each number with the one half the row further on."""
    code, made = [], 0
    while len(numbers) > 1:
        half = (len(numbers) + 1) // 2
        first, second = (numbers[:half], numbers[half:]) if apart else (numbers[::2], numbers[1::2])
        couples = list(zip_longest(first, second, fillvalue=""))
        numbers = []
        for a, b in couples:
            if not b:
                numbers.append(a)
                continue
            target = line.operands[0] if len(couples) == 1 else f"%refsim{made}"
            made += 1
            code.append(f"{line.opcode} {target}, {a}, {b}")
            numbers.append(target)
    declared = [f".reg .{FLOAT_REGISTERS[line.words[-1]]} %refsim<{made}>"] if made > 1 else []
    return line.reading(*declared, *code)


def exchanged_otherwise(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """Yield a block's shuffles with reversed distances, 1 2 4 8 16 for 16 8 4 2 1; `line` is the last one."""
    if not _is_exchange(line):
        return
    row = [
        each for each in listing.lines if each.block == line.block and _is_exchange(each) and each.opcode == line.opcode
    ]
    if len(row) < 2 or row[-1] is not line:
        return
    distances = [_distance(listing, each) for each in row]
    if None in distances or distances == distances[::-1]:
        return
    yield {
        each.at: each.renamed(each.opcode, *each.operands[:2], str(distance), *each.operands[3:])
        for each, distance in zip(row, reversed(distances), strict=True)
    }


def _is_exchange(line: ListedLine) -> bool:
    return line.words[:2] == ("shfl", "sync") and line.words[2] in ("down", "bfly") and len(line.operands) >= 4


def _distance(listing: PtxListing, line: ListedLine) -> int | None:
    """Return the distance of a shuffle if it is a constant; else None."""
    value = listing.constant(line.operands[2])
    return int(value, 0) if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", value) else None
