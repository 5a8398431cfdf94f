"""The trial: each repair that applies to a kernel's code, tried on the failing test case, then on all others."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from refsim import ptx
from refsim.device.compile import compiled
from refsim.device.kernel_sources import TEXT_NAME
from refsim.errors import RefsimError
from refsim.kernel_code import KernelCode
from refsim.kernels import Kernel
from refsim.testing.barrier_sweep import only
from refsim.testing.changed_device import ChangedDevice
from refsim.testing.runs import examine
from refsim.testing.suspects import arithmetic, orders, places, registers, scales, terms
from refsim.testing.suspects.budget import LINE_SECONDS, STATEMENT_SECONDS, Budget, CountedDevice, statements
from refsim.testing.suspects.listing import REGISTER, Changes, ListedLine, PtxListing, split
from refsim.testing.suspects.sources import source_edits
from refsim.testing.suspects.suspicion import FRAGMENT, UNSAID, Instead, Suspicion

SLOWER = 4.0  # a repaired kernel that takes this many times as long is stopped
LEAST_SECONDS = 2.0
LEAST_AGREEING = 2  # test cases of the entries that an edit changes
Edit = tuple[ListedLine, Changes]
"""A line, and the new texts by which one edit of it replaces lines."""
MOST_SHOWN = 60  # letters of the instructions that an edit removes or inserts


@dataclass(frozen=True)
class SuspectRepair:
    """A mistake and its fix: `rule(listing, line)` yields edits that fix it: a new text of the line, or of several lines.

    `says` describes what a kernel with this mistake does.
    """

    suspect: str
    says: str
    rule: Callable[[PtxListing, ListedLine], Iterator[str | Changes]]


def _of_descriptors(mode: str) -> SuspectRepair:
    says = f"it is not {mode}, as the data lie"
    return SuspectRepair("swizzle of a descriptor", says, partial(registers.swizzle_described, registers.MODES[mode]))


SIGNATURES = (
    SuspectRepair(FRAGMENT, "the two inner registers of A", registers.of_a_exchanged),
    SuspectRepair(FRAGMENT, "the two registers of B", registers.of_b_exchanged),
    SuspectRepair(FRAGMENT, "the two inner registers of accumulators", registers.accumulators_exchanged),
    SuspectRepair(FRAGMENT, "the two inner registers of a matrix load or store", registers.matrices_exchanged),
    SuspectRepair(FRAGMENT, "a lane selects the other bytes of two registers", registers.selected_otherwise),
    _of_descriptors("128B"),
    SuspectRepair("transposed", "a tile is transposed, or is not", places.transposed),
)
"""Repairs of how matrix instructions are fed, which few instructions show; they are tried before changed inputs."""
REPAIRS = (
    SuspectRepair("scale rule", "a factor is applied twice", scales.applied_once),
    SuspectRepair("scale rule", "a code of E8M0 is taken for a number", scales.decoded_as_power),
    SuspectRepair("scale rule", "the bias of an exponent is one off", scales.bias_moved),
    SuspectRepair("contraction", "fma rounds once where mul and add round twice", arithmetic.fma_as_mul_and_add),
    SuspectRepair("contraction", "mul and add round twice where fma rounds once", arithmetic.mul_and_add_as_fma),
    SuspectRepair("flushed subnormals", ".ftz flushes subnormals", arithmetic.subnormals_kept),
    SuspectRepair("flushed subnormals", "subnormals are kept where .ftz flushes them", arithmetic.subnormals_flushed),
    SuspectRepair("double rounding", "a value is rounded to a narrower type on its way", arithmetic.rounded_once),
    SuspectRepair("double rounding", "a result is rounded to float32 on its way", arithmetic.rounded_as_float64),
    SuspectRepair("rounding mode", "another rounding", arithmetic.other_rounding),
    SuspectRepair("rounding mode", "low bits are cut off by hand", arithmetic.cut_bits),
    SuspectRepair("rounding mode", "low bits are cut off by a load", arithmetic.upper_half_loaded),
    SuspectRepair("rounding mode", "one half is added, and the rest cut off", arithmetic.half_added),
    SuspectRepair("double rounding", "a value is not rounded to a narrower type on its way", arithmetic.rounded_twice),
    SuspectRepair(
        "infinity saturated or propagated", "a saturation or a clamp too many or too few", arithmetic.infinity_other
    ),
    SuspectRepair("NaN dropped or propagated", "a NaN takes the other way", arithmetic.nan_other),
    SuspectRepair("reduction order", "terms are added in another order", orders.summed_otherwise),
    SuspectRepair("reduction order", "lanes exchange sums in another order", orders.exchanged_otherwise),
    SuspectRepair("reduction order", "a loop adds its terms from the other end", terms.summed_from_the_end),
    SuspectRepair("reduction order", "a loop adds to several sums, or to one", terms.summed_together),
    SuspectRepair("reduction order", "a loop adds to one sum, or to several", terms.summed_apart),
    SuspectRepair(
        "scale rule", "a quotient is a product with the reciprocal, or the other way round", scales.divided_otherwise
    ),
    SuspectRepair(
        "special function", "another instruction of this function, or one more rounding", arithmetic.computed_otherwise
    ),
    SuspectRepair("scale rule", "the largest value of another format", scales.limit_other),
    SuspectRepair("scale rule", "an exponent is rounded another way", scales.exponent_rounded_otherwise),
    SuspectRepair("format", "codes of another format", scales.coded_otherwise),
    SuspectRepair("swizzle not undone", "an address is swizzled on one side alone", places.not_swizzled),
    SuspectRepair("tail", "a bound is rounded down, and the tail left out", places.tail_kept),
    SuspectRepair("off by one", "a bound is one off", places.bound_moved),
    *map(_of_descriptors, ("64B", "32B", "none")),
)


@dataclass(frozen=True)
class _Candidate:
    """A mistake, its places in the CUDA source, and the PTX without it."""

    suspect: str
    says: str
    places: tuple[str, ...]
    mended: Callable[[], ptx.Program]
    instead: Callable[[], Instead]
    halves: Callable[[], Iterable["_Candidate"]] = tuple


def repaired(
    kernel: Kernel,
    target: str,
    problems: Sequence[Any],
    *,
    budget: Budget,
    is_brief: bool | None = None,
) -> tuple[Suspicion, ...]:
    """Return the mistake whose repair makes a kernel agree on all `problems`, the first of which fails; at most one.

    Empty if no edit fixes the kernel, or if the simulator does not show the failure. Raises OutOfTimeError after the
    `budget`, so that busy and idle machines find equal causes. `is_brief`: the signatures alone, each everywhere at
    once; False: everything else, and edits of the CUDA source last; None: all of it.
    """
    text = compiled(kernel.code, target).text
    guilty = ChangedDevice(ptx.load(text, target), schedules=1)
    tried = _Trial(kernel, guilty, problems, budget)
    if examine(kernel, problems[0], CountedDevice(guilty, budget)).finding is None or not guilty.entries:
        return ()
    tried.patience = max(LEAST_SECONDS, SLOWER * tried.elapsed())
    while not guilty.entries <= tried.entries:  # too few test cases may launch these entries alone
        tried.entries = set(guilty.entries)
        budget.spend(LINE_SECONDS * text.count("\n"))
        entries = sorted(tried.entries)
        listing = PtxListing(only(text, *entries) if len(entries) == 1 else text, guilty.program, entries)
        in_cuda = () if is_brief else _in_cuda(kernel.code, target)
        if found := tried.first(chain(_in_ptx(listing, is_brief), in_cuda)):
            return (found,)
    return ()


@dataclass
class _Trial:
    """The edits that were tried on a kernel, and the time that one run may take."""

    kernel: Kernel
    guilty: ChangedDevice
    problems: Sequence[Any]
    budget: Budget
    patience: float = LEAST_SECONDS
    tried: int = 0
    started: float = field(default_factory=time.monotonic)
    entries: set[str] = field(default_factory=set)

    def elapsed(self) -> float:
        """Return the seconds since the trial began."""
        return time.monotonic() - self.started

    def first(self, candidates: Iterable[_Candidate]) -> Suspicion | None:
        """Return the first edit that makes the kernel agree on every test case, narrowed to the guilty half."""
        for each in candidates:
            self.budget.check(self.tried)
            self.tried += 1
            if count := self.agrees(each):
                guilt = each
                while half := next(filter(self.agrees, guilt.halves()), None):
                    guilt = half
                said = guilt.instead()
                return Suspicion(each.suspect, each.says, guilt.places, count, is_mended=True, instead=said)
        return None

    def agrees(self, each: _Candidate) -> int:
        """Return the number of test cases, if the repaired kernel agrees on all that launch its entries alone; else 0."""
        try:
            program = each.mended()
            for entry in self.guilty.entries:
                program.code(entry)
        except RefsimError:  # an unknown opcode, or invalid C++
            return 0
        self.budget.spend(STATEMENT_SECONDS * statements(program, self.guilty.entries))
        count, others = 0, set[str]()
        for problem in self.problems:
            edited = ChangedDevice(program, schedules=1, seconds=self.patience)
            try:
                is_right = examine(self.kernel, problem, CountedDevice(edited, self.budget)).finding is None
            except RefsimError:  # an address out of bounds
                is_right = False
            if edited.entries <= self.entries:
                if not is_right:
                    return 0
                count += 1
            others |= edited.entries
        if count >= min(LEAST_AGREEING, len(self.problems)):
            return count
        self.guilty.entries |= others
        return 0


def _in_cuda(code: KernelCode, target: str) -> Iterator[_Candidate]:
    """Yield each edit of the CUDA source; its code is compiled when it is tried."""
    if code.is_ptx:
        return
    file = code.file
    text = code.source if file is None else Path(file).read_text("utf-8", "replace")
    beside = () if file is None else (Path(file).parent,)
    for edit in source_edits(text or ""):
        edited = replace(code, file=None, source=edit.text, include=(*beside, *code.include))
        place = f"{code.label if code.file else TEXT_NAME}:{edit.line}"
        mended = partial(lambda edited: ptx.load(compiled(edited, target).text, target), edited)
        yield _Candidate(edit.suspect, edit.says, (place,), mended, partial(getattr, edit, "instead"))


def _in_ptx(listing: PtxListing, is_brief: bool | None) -> Iterator[_Candidate]:
    """Yield each repair everywhere at once; then each at every CUDA line, and at some of the lines with equal opcode."""
    later = []
    for repair in SIGNATURES if is_brief else (*SIGNATURES, *REPAIRS):
        kinds: dict[int, list[Edit]] = {}
        for line in listing.lines:
            for number, edit in enumerate(repair.rule(listing, line)):
                changes = {line.at: edit} if isinstance(edit, str) else edit
                kinds.setdefault(number, []).append((line, changes))
        for found in kinds.values():
            groups = _groups(found)
            everywhere = next(groups)
            if is_brief is not False or repair not in SIGNATURES:
                yield from _joined(listing, repair, everywhere)
            later.append((repair, groups))
    for repair, groups in later if not is_brief else ():
        for group in groups:
            yield from _joined(listing, repair, group)


def _groups(found: list[Edit]) -> Iterator[list[Edit]]:
    """Yield groups of edits: all, one CUDA line, one call, one opcode, halves of that, and every second, third or fourth.

    Unrolled loops need the last kinds. No group comes twice.
    """
    lines: dict[str, list[Edit]] = {}
    likes: dict[tuple[str, str], list[Edit]] = {}
    calls: dict[str, list[Edit]] = {}
    for line, changes in found:
        calls.setdefault(line.calls, []).append((line, changes))
        lines.setdefault(line.place, []).append((line, changes))
        likes.setdefault((line.place, line.opcode), []).append((line, changes))
    some = [
        group[first::step] for group in likes.values() for step in (2, 3, 4) for first in range(min(step, len(group)))
    ]
    halves = [part for group in likes.values() for part in (group[: len(group) // 2], group[len(group) // 2 :]) if part]
    seen = set()
    for group in (found, *lines.values(), *calls.values(), *likes.values(), *halves, *some):
        members = tuple(line.at for line, _ in group)
        if members not in seen:
            seen.add(members)
            yield group


def _joined(listing: PtxListing, repair: SuspectRepair, group: list[Edit]) -> Iterator[_Candidate]:
    """Yield all the changes as one candidate, unless two of them edit one line."""
    joined: Changes = {}
    for _, changes in group:
        if not joined.keys().isdisjoint(changes):
            return
        joined |= changes
    places = tuple(dict.fromkeys(line.place for line, _ in group))
    instead = partial(_instead, listing, *group[0])
    halves = partial(_halves, listing, repair, group)
    yield _Candidate(repair.suspect, repair.says, places, lambda: listing.repaired(joined), instead, halves)


def _halves(listing: PtxListing, repair: SuspectRepair, group: list[Edit]) -> Iterator[_Candidate]:
    """Yield a group in two halves, each with all its edits of one opcode at one CUDA line: one half alone may be guilty."""
    likes = list(dict.fromkeys((line.place, line.opcode) for line, _ in group))
    for half in (likes[: len(likes) // 2], likes[len(likes) // 2 :]) if len(likes) > 1 else ():
        yield from _joined(listing, repair, [each for each in group if (each[0].place, each[0].opcode) in half])


_STATEMENT = re.compile(r"(?:@!?%[\w$]+\s+)?(?P<opcode>[a-z][\w.:]*)\s+(?P<operands>.*)")
_ENDS = re.compile(r";|^\s*\{|\}\s*$|\{\s+(?=[.@a-z])")
_FLOAT = re.compile(r"0f([0-9A-Fa-f]{8})")


def _instead(listing: PtxListing, line: ListedLine, changes: Changes) -> Instead:
    """Return the instructions of the wrong lines and of their replacement, or the operands in which they differ."""
    here = {each.at: each for each in listing.lines}
    old = [(here[at].opcode, here[at].operands) for at in changes if at in here]
    parts = (_STATEMENT.fullmatch(part.strip()) for text in changes.values() for part in _ENDS.split(text))
    new = [(each["opcode"], split(each["operands"])) for each in parts if each]
    wrong, right = ([opcode for opcode, _ in part] for part in (old, new))
    if wrong == right:
        pairs = (
            (a, b) for (_, one), (_, other) in zip(old, new, strict=True) for a, b in zip(one, other, strict=False)
        )
        apart = next(((listing.constant(a), b) for a, b in pairs if a != b), None)
        is_said = apart is not None and not any(REGISTER.search(each) for each in apart)
        return Instead(*(f"{line.opcode} of {_number(each)}" for each in apart)) if apart and is_said else UNSAID
    shown = [" and ".join(dict.fromkeys(part)) for part in (wrong, right)]
    is_said = all(shown) and len(set(shown)) == 2 and not any(map(_MOVES.search, shown))
    return Instead(*shown) if is_said and max(map(len, shown)) <= MOST_SHOWN else UNSAID


_MOVES = re.compile(r"\bmov\.|\.b(16|32|64)\b|shr\.|\bld\.")
"""Instructions that do not describe a mistake: moves, bits and loads."""


def _number(operand: str) -> str:
    """Return an operand for a reader: a float by its value, a register unchanged."""
    found = _FLOAT.fullmatch(operand)
    return operand if found is None else f"{np.array(int(found[1], 16), np.uint32).view(np.float32)[()]:g}"
