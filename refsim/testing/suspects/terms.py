"""Repairs of the order of a loop's sum: its terms are stored, and added in another order when the sum is read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from refsim.testing.suspects.arithmetic import FLOAT_REGISTERS
from refsim.testing.suspects.listing import Changes, ListedLine, PtxListing, split

MOST_TERMS = 512
MOST_REGISTERS = 4000  # the flow of larger entries is not followed
_COPIES = ("mov", "selp")


@dataclass(frozen=True)
class _Step:
    """One addition of a loop: `sum_` becomes `carried` plus the value of `terms`, each a tuple of registers."""

    line: ListedLine
    sum_: tuple[str, ...]
    carried: tuple[str, ...]
    terms: tuple[str, ...]

    @property
    def width(self) -> int:
        """Return the bits of one register; a register of tensor-core operands holds two numbers of 16 bits."""
        kind = "b32" if self.line.name == "mma" else FLOAT_REGISTERS[self.line.words[-1]]
        return int(kind[1:])


@dataclass(frozen=True)
class LoopSum:
    """A sum that a loop carries: its additions, registers, the lines that read it, each addition's innermost loop."""

    steps: tuple[_Step, ...]
    copies: tuple[tuple[str, ...], ...]
    uses: tuple[ListedLine, ...]
    loops: tuple[int, ...]

    @property
    def frame(self) -> int:
        """Return the bytes that one addition stores."""
        return len(self.steps[0].terms) * self.steps[0].width // 8

    @property
    def in_a_row(self) -> int:
        """Return the largest number of additions in one pass of a loop, whatever branches lie between them."""
        return max(self.loops.count(loop) for loop in self.loops)


def summed_from_the_end(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """Yield all loop sums of one CUDA line in reverse order, one by one or in groups of the terms of one pass.

    Then yield one pass after the other, each from its last term.
    """
    sums = _led_by(listing, line)
    if sums:
        longest = max(each.in_a_row for each in sums)
        groups = [count for count in range(1, longest + 1) if longest % count == 0]
        for order in (_from_the_end, _each_from_its_end):
            for group in groups[order is _each_from_its_end :]:
                yield _edited(listing, [(each,) for each in sums], [order(each, group) for each in sums])


def summed_apart(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """Yield one sum as two, four or eight partial sums, combined at the end in sequence, as neighbors or in halves."""
    sums = _led_by(listing, line)
    if sums and line.name != "mma":
        for count in (2, 4, 8):
            for final in ("row", "neighbours", "halves")[: 1 if count == 2 else 3]:
                yield _edited(listing, [(each,) for each in sums], [_apart(each, count, final) for each in sums])


def summed_together(listing: PtxListing, line: ListedLine) -> Iterator[Changes]:
    """Yield several sums of one loop as one, in the order of their terms: the sums of one CUDA line, or all."""
    for sums in (_led_by(listing, line), _of_one_loop(listing, line)):
        if len(sums) < 2 or line.name == "mma":
            continue
        yield _edited(listing, [tuple(sums)], [_guarded(sums[0], _walk(sums[0], 1))])


@lru_cache(maxsize=4)
def loop_sums(listing_text: str, lines: tuple[ListedLine, ...]) -> tuple[LoopSum, ...]:
    """Return every sum that some loop of a listing carries, in the order of its first addition."""
    flow: dict[str, set[str]] = {}
    possible: list[_Step] = []
    loops = _loops(listing_text, lines)
    in_loops = {at for loop in loops for at in loop}
    for line in lines:
        possible += _steps(line) if line.at in in_loops or line.name == "mma" else ()
        if line.at not in in_loops:
            continue  # lines outside loops carry no value back
        if line.name in _COPIES and line.operands[0].startswith("%"):
            for source in line.operands[1:3]:
                flow.setdefault(source, set()).add(line.operands[0])
        for step in _steps(line):
            for source, target in zip(step.carried, step.sum_, strict=True):
                flow.setdefault(source, set()).add(target)
    if len(flow) > MOST_REGISTERS:
        return ()
    rings = _chained(_rings(flow), possible)
    found: dict[tuple[int, ...], list[_Step]] = {}
    for step in possible:
        places = tuple(rings.get(register, -1) for register in step.sum_)
        is_carried = -1 not in places and places == tuple(rings.get(register, -2) for register in step.carried)
        is_chained = max(places) < -1
        if (is_carried or is_chained) and not any(rings.get(term) in places for term in step.terms):
            found.setdefault(places, []).append(step)
    members: dict[int, list[str]] = {}
    for register, ring in rings.items():
        members.setdefault(ring, []).append(register)
    return tuple(
        _sum(steps, tuple(tuple(members[ring]) for ring in places), lines, loops)
        for places, steps in found.items()
        if len({(step.line.opcode, len(step.terms)) for step in steps}) == 1 and (len(steps) > 1 or max(places) >= 0)
    )


def _loops(text: str, lines: Iterable[ListedLine]) -> list[range]:
    """Return the range of lines between a label and each branch back to it."""
    rows = (row.strip() for row in text.split("\n"))
    labels = {row.partition(":")[0].strip(): at for at, row in enumerate(rows) if row.startswith("$")}
    branches = [line for line in lines if line.name == "bra"]
    return [range(start, line.at) for line in branches if (start := labels.get(line.operands[-1], line.at)) < line.at]


def _sum(
    steps: list[_Step], copies: tuple[tuple[str, ...], ...], lines: Iterable[ListedLine], loops: list[range]
) -> LoopSum:
    """Return the loop sum of these additions, with the lines that read it and the innermost loops."""
    registers = {register for ring in copies for register in ring}
    own = {step.line.at for step in steps}
    uses = []
    for line in lines:
        is_copy = line.name in _COPIES and line.operands[0] in registers
        if line.at not in own and not is_copy and not line.read.isdisjoint(registers):
            uses.append(line)
    around = [[loop for loop in loops if step.line.at in loop] for step in steps]
    if steps[0].line.name == "mma" and (behind := _behind(lines, around[0], uses)) and behind not in uses:
        uses.append(behind)
    innermost = tuple(min(each, key=len).start if each else -1 for each in around)
    return LoopSum(tuple(steps), copies, tuple(uses), innermost)


def _behind(lines: Iterable[ListedLine], loops: Iterable[range], uses: Iterable[ListedLine]) -> ListedLine | None:
    """Return the first line after the outermost loop that does not read the sum.

    All lanes of a warp are active there, as `mma` requires.
    """
    ends = [loop.stop for loop in loops if not any(use.at in loop for use in uses)]
    behind = next((line for line in lines if ends and line.at > max(ends)), None)
    return None if behind is None or any(True for _ in _steps(behind)) else behind


def _steps(line: ListedLine) -> Iterator[_Step]:
    """Yield the ways to read a line as a step of a sum: either operand of `add` may be the carried value."""
    if line.name == "mma" and len(line.operands) == 4 and line.words[1] == "sync":
        d, a, b, c = (split(operand.strip("{} ")) for operand in line.operands)
        if len(d) == len(c) and all(name.startswith("%") for name in (*d, *a, *b, *c)):
            yield _Step(line, d, c, (*a, *b))
    elif line.words[-1] in FLOAT_REGISTERS and all(operand.startswith("%") for operand in line.operands[:1]):
        if line.name == "fma" and len(line.operands) == 4:
            total, *factors, carried = line.operands
            yield _Step(line, (total,), (carried,), tuple(factors))
        elif line.name == "add" and len(line.operands) == 3:
            total, x, y = line.operands
            yield _Step(line, (total,), (x,), (y,))
            yield _Step(line, (total,), (y,), (x,))


def _rings(flow: Mapping[str, set[str]]) -> dict[str, int]:
    """Return a number for each register whose value may flow back to it, equal for all registers of one cycle."""
    order: list[str] = []
    seen: set[str] = set()
    for start in flow:
        stack = [(start, iter(flow.get(start, ())))] if start not in seen else []
        seen.add(start)
        while stack:
            register, targets = stack[-1]
            for target in targets:
                if target not in seen:
                    seen.add(target)
                    stack.append((target, iter(flow.get(target, ()))))
                    break
            else:
                order.append(register)
                stack.pop()
    back: dict[str, set[str]] = {}
    for source, targets_of in flow.items():
        for target in targets_of:
            back.setdefault(target, set()).add(source)
    rings: dict[str, int] = {}
    taken: set[str] = set()
    for number, start in enumerate(reversed(order)):
        if start in taken:
            continue
        ring, todo = [], [start]
        taken.add(start)
        while todo:
            register = todo.pop()
            ring.append(register)
            for source in back.get(register, set()) - taken:
                taken.add(source)
                todo.append(source)
        if len(ring) > 1 or start in flow.get(start, ()):
            rings |= dict.fromkeys(ring, number)
    return rings


def _chained(rings: dict[str, int], steps: Iterable[_Step]) -> dict[str, int]:
    """Return the numbers with sums of tensor cores that no loop carries: an unrolled loop leaves a chain."""
    found = dict(rings)
    for step in steps:
        if step.line.name == "mma" and not any(register in rings for register in (*step.sum_, *step.carried)):
            for place, (carried, total) in enumerate(zip(step.carried, step.sum_, strict=True)):
                new = -2 - len(step.sum_) * (step.line.at + 1) - place
                found[total] = found.get(carried, new) if carried != total else found.setdefault(total, new)
    return found


def _led_by(listing: PtxListing, line: ListedLine) -> list[LoopSum]:
    """Return the loop sums of one CUDA line and opcode if `line` is the first of their additions; else none."""
    if line.name not in ("add", "fma", "mma"):
        return []
    sums = [
        each
        for each in loop_sums(listing.text, listing.lines)
        if _line_of(each.steps[0].line) == _line_of(line) and each.steps[0].line.opcode == line.opcode
    ]
    return sums if sums and min(step.line.at for each in sums for step in each.steps) == line.at else []


def _of_one_loop(listing: PtxListing, line: ListedLine) -> list[LoopSum]:
    """Return the loop sums of one loop and opcode on several CUDA lines, if `line` is their first addition."""
    every = loop_sums(listing.text, listing.lines)
    loops = {each.loops[0] for each in every if each.steps[0].line.at == line.at}
    sums = [each for each in every if each.loops[0] in loops and each.steps[0].line.opcode == line.opcode]
    is_spread = len({_line_of(each.steps[0].line) for each in sums}) > 1
    return sums if is_spread and min(step.line.at for each in sums for step in each.steps) == line.at else []


def _line_of(line: ListedLine) -> str:
    """Return the CUDA line of a statement; "" for all statements without one."""
    return "" if line.place.startswith("PTX") else line.place


def _edited(listing: PtxListing, groups: Sequence[Sequence[LoopSum]], code: Sequence[Sequence[str]]) -> Changes:
    """Return the changes that store the terms of each group, and run its `code` wherever one of its sums is read."""
    changes: Changes = {}
    declared: list[str] = []
    before: dict[int, list[str]] = {}
    lines: dict[int, ListedLine] = {}
    for number, (group, fold) in enumerate(zip(groups, code, strict=True)):
        top, frame = f"%refsimtop{number}", group[0].frame
        declared += [
            f".local .align 8 .b8 refsimterms{number}[{frame * MOST_TERMS}];",
            f".reg .b64 {top}, %refsimbase{number};",
            f"mov.u64 %refsimbase{number}, refsimterms{number};",
            f"mov.u64 {top}, %refsimbase{number};",
        ]
        for step in (step for each in group for step in each.steps):
            size = step.width // 8
            kept = [f"st.local.b{step.width} [{top}+{size * at}], {term}" for at, term in enumerate(step.terms)]
            kept.append(f"add.s64 {top}, {top}, {frame}")
            moves = [(d, c) for d, c in zip(step.sum_, step.carried, strict=True) if d != c]
            changes[step.line.at] = step.line.reading(
                *kept, *(f"mov.b{_carried_width(step)} {d}, {c}" for d, c in moves)
            )
        for use in (use for each in group for use in each.uses):
            lines[use.at] = use
            text = "{ " + " ".join(fold) + " }"
            before.setdefault(use.at, []).append(text.replace("#", str(number)).replace("@@", f"{number}u{use.at}"))
    start = _opening(listing, min(changes))
    if start is None or not changes.keys().isdisjoint(lines):
        return {}
    rows = listing.text.split("\n")
    for at, folds in before.items():
        changes[at] = " ".join(dict.fromkeys(folds)) + " " + rows[at]
    changes[start] = "{ " + " ".join(declared)
    return changes


def _carried_width(step: _Step) -> int:
    return 32 if step.line.name == "mma" else step.width


def _opening(listing: PtxListing, at: int) -> int | None:
    """Return the line with the brace that opens the function around a line."""
    rows = listing.text.split("\n")
    return next((number for number in range(at, -1, -1) if rows[number].strip() == "{"), None)


def _addition(each: LoopSum, sums: Sequence[str]) -> list[str]:
    """Return the code that adds the terms stored at %refsimat."""
    step = each.steps[0]
    size, names = step.width // 8, [f"%refsimterm{number}" for number in range(len(step.terms))]
    code = [f"ld.local.b{step.width} {name}, [%refsimat+{size * number}];" for number, name in enumerate(names)]
    if step.line.name == "mma":
        a = len(split(step.line.operands[1].strip("{} ")))
        tuples = [", ".join(part) for part in (sums, names[:a], names[a:], sums)]
        return [*code, f"{step.line.opcode} {', '.join('{' + part + '}' for part in tuples)};"]
    operands = (*sums, *names, *sums) if step.line.name == "fma" else (*sums, *sums, *names)
    return [*code, f"{step.line.opcode} {', '.join(operands)};"]


def _guarded(each: LoopSum, code: Sequence[str], extra: int = 0) -> list[str]:
    """Return `code` with declarations, skipped if no terms are stored.

    Before it, the sum is read from the registers of the last step. After it, the new sum is written to each of its
    registers, and the stored terms are forgotten.
    """
    step, width = each.steps[0], _carried_width(each.steps[0])
    terms = [f"%refsimterm{number}" for number in range(len(step.terms))]
    sums = [f"%refsimsum{number}" for number in range(max(extra, len(step.sum_)))]
    copies = [(register, sum_) for ring, sum_ in zip(each.copies, sums, strict=False) for register in ring]
    return [
        ".reg .pred %refsimp; .reg .b64 %refsimat, %refsimend, %refsimfirst;",
        f".reg .b{step.width} {', '.join(terms)}; .reg .b{width} {', '.join(sums)};",
        "setp.le.s64 %refsimp, %refsimtop#, %refsimbase#; @%refsimp bra $refsimdone@@;",
        *(f"mov.b{width} {sums[at]}, {register};" for at, register in enumerate(each.steps[-1].sum_)),
        *code,
        *(f"mov.b{width} {register}, {sum_};" for register, sum_ in copies),
        "mov.b64 %refsimtop#, %refsimbase#;",
        "$refsimdone@@:",
    ]


def _from_the_end(each: LoopSum, group: int) -> list[str]:
    """Return the code that adds groups of terms from the last to the first."""
    sums = [f"%refsimsum{at}" for at in range(len(each.steps[0].sum_))]
    code = [
        "$refsimnext@@: mov.b64 %refsimend, %refsimtop#;",
        f"sub.s64 %refsimtop#, %refsimtop#, {group * each.frame}; max.s64 %refsimtop#, %refsimtop#, %refsimbase#;",
        "mov.b64 %refsimat, %refsimtop#;",
        "$refsimterm@@:",
        *_addition(each, sums),
        f"add.s64 %refsimat, %refsimat, {each.frame};",
        "setp.lt.s64 %refsimp, %refsimat, %refsimend; @%refsimp bra $refsimterm@@;",
        "setp.gt.s64 %refsimp, %refsimtop#, %refsimbase#; @%refsimp bra $refsimnext@@;",
    ]
    return _guarded(each, code)


def _each_from_its_end(each: LoopSum, group: int) -> list[str]:
    """Return the code that adds groups of terms in order, each from its last term."""
    sums = [f"%refsimsum{at}" for at in range(len(each.steps[0].sum_))]
    code = [
        "mov.b64 %refsimend, %refsimbase#;",
        "$refsimnext@@: mov.b64 %refsimfirst, %refsimend;",
        f"add.s64 %refsimend, %refsimend, {group * each.frame}; min.s64 %refsimend, %refsimend, %refsimtop#;",
        "mov.b64 %refsimat, %refsimend;",
        f"$refsimterm@@: sub.s64 %refsimat, %refsimat, {each.frame};",
        *_addition(each, sums),
        "setp.gt.s64 %refsimp, %refsimat, %refsimfirst; @%refsimp bra $refsimterm@@;",
        "setp.lt.s64 %refsimp, %refsimend, %refsimtop#; @%refsimp bra $refsimnext@@;",
    ]
    return _guarded(each, code)


def _apart(each: LoopSum, count: int, final: str) -> list[str]:
    """Return the code that adds the terms to `count` partial sums, and then combines these as `final` says."""
    kind = each.steps[0].line.words[-1]
    zeros = [f"mov.b{each.steps[0].width} %refsimsum{number}, 0;" for number in range(1, count)]
    plus = ".".join(("add", *(word for word in each.steps[0].line.words[1:-1]), kind))
    numbers, added = list(range(count)), []
    while len(numbers) > 1:
        if final == "row":
            couples = [(numbers[0], numbers[1])]
        elif final == "neighbours":
            couples = list(zip(numbers[::2], numbers[1::2], strict=True))
        else:
            couples = list(zip(numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :], strict=True))
        added += [f"{plus} %refsimsum{a}, %refsimsum{a}, %refsimsum{b};" for a, b in couples]
        gone = {b for _, b in couples}
        numbers = [number for number in numbers if number not in gone]
    return _guarded(each, [*zeros, *_walk(each, count), *added], count)


def _walk(each: LoopSum, count: int) -> list[str]:
    """Return the code that adds the terms in order, in turn to each of `count` sums."""
    code = ["mov.b64 %refsimat, %refsimbase#;", "$refsimnext@@:"]
    for number in range(count):
        code += _addition(each, (f"%refsimsum{number}",))
        code += [
            f"add.s64 %refsimat, %refsimat, {each.frame};",
            "setp.ge.s64 %refsimp, %refsimat, %refsimtop#; @%refsimp bra $refsimended@@;",
        ]
    return [*code, "bra $refsimnext@@;", "$refsimended@@:"]
