"""The one decision over what a run of a kernel showed: `verify`, `replay`, campaigns, laws and pytest all take it here.

In this order: a fault of the device is raised before anything is compared, and outranks all. Elements that differ beyond
the promise fail, whatever arithmetic made them, in a second run over the same module as in the first.
Bank conflicts fail where none were promised. Only then, and only where
bits decide: elements that agree although arithmetic on their way has no fixed bits agree on this machine alone, and that is
inconclusive; so is, a level below, that they agree by bits that nobody saw on the target's chip: those of another chip, or
sums of which nothing is published. Where a bound decides, such arithmetic is a note.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refsim.compare import Mismatch
from refsim.errors import Kind, RefsimError, counted
from refsim.kernels import Kernel, Outputs
from refsim.render.cards import FieldsCard
from refsim.testing.oracle_checks import NO_SLACK, Slack
from refsim.testing.verdicts import ASSUMED, FAIL, INEXACT, TIMEOUT, UNSUPPORTED

LISTED = 6
PTX_LINE = re.compile(r"PTX line (\d+)")
_STATUS_OF = {Kind.FAULT: FAIL, Kind.INCONCLUSIVE: UNSUPPORTED}


@dataclass(frozen=True, repr=False)
class Observation(FieldsCard):
    """One run of a kernel: what it wrote, what differs beyond its promise, and what the device says about the run.

    `counts` are the elements of each output, and how many of them differ beyond the promise.
    `inexact`, `assumed` and `notes` are the launcher's findings; `conflicts` are those of its findings that the kernel
    promises not to have. `elements` are those of the outputs; `reached` says what open bits decided, None where nobody
    followed them; `slack` what bounds left open; `again` what a second run over the same module did otherwise, in words;
    `opcodes` what ran.
    """

    outputs: Outputs
    mismatches: tuple[Mismatch, ...]
    elements: int
    inexact: tuple[str, ...]
    notes: tuple[str, ...]
    conflicts: tuple[str, ...] = ()
    reached: tuple[str, ...] | None = None
    slack: Slack = NO_SLACK
    counts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    again: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    opcodes: frozenset[str] = frozenset()

    @property
    def is_open(self) -> bool:
        """Whether a chip of the target may have written other bits, as far as anybody knows."""
        return bool(self.inexact or self.assumed)


@dataclass(frozen=True)
class Finding:
    """What one problem showed: a status other than pass, in words and, where bits differ, as a Mismatch.

    That is the worst of `mismatches`, of which each output that differs has one. `is_open`: arithmetic without fixed bits had
    a part in it.
    """

    status: str
    text: str
    problem: Any
    mismatch: Mismatch | None = None
    is_open: bool = False
    mismatches: tuple[Mismatch, ...] = ()


@dataclass
class DecisionBits:
    """What is known of the bits that arithmetic left open, over all runs so far; `assumed` are statements whose bits are
    those of another target's chip, or inferred."""

    statements: dict[str, None] = field(default_factory=dict)
    assumed: dict[str, None] = field(default_factory=dict)
    reached: dict[str, None] = field(default_factory=dict)
    followed: int = 0

    def note(self, seen: Observation) -> None:
        """One more run was seen."""
        self.statements |= dict.fromkeys(seen.inexact)
        self.assumed |= dict.fromkeys(seen.assumed)
        self.reached |= dict.fromkeys(seen.reached or ())
        self.followed += seen.reached is not None and seen.elements > 0

    def lines(self, kernel: Kernel) -> list[str]:
        """The statements, what their results decided, and what may be promised of such a kernel."""
        lines = [f"bits are open after {listed(self.statements)}"] if self.statements else []
        lines += [f"bits are assumed after {listed(self.assumed)}"] if self.assumed else []
        if not lines:
            return []
        if self.reached:
            lines += [f"they decide more than values: {listed(self.reached)}"]
        elif self.followed:
            lines += [f"they reached no branch and no address ({counted(self.followed, 'case')} followed)"]
        if kernel.promise.is_bitwise:
            bounds = "Promise.WITHIN(ulps, because=...) or Promise.BOUNDED(because=...) can hold for such arithmetic"
            seen = "--device cuda on a GPU of this target, or a target whose chip was recorded, decides"
            lines += [f"help: {bounds if self.statements else seen}"]
        return lines


def decide(kernel: Kernel, seen: Observation, problem: Any) -> Finding | None:
    """What a run says of the kernel's promise: None where it is kept."""
    is_open = seen.is_open
    if seen.mismatches:
        worst = max(seen.mismatches, key=badness)
        return Finding(FAIL, "\n".join(map(str, seen.mismatches)), problem, worst, is_open, seen.mismatches)
    if seen.again:
        return Finding(FAIL, "\n".join(seen.again), problem)
    if seen.conflicts:
        text = "\n".join(["[bank-conflicts] promised are none", *seen.conflicts])
        return Finding(FAIL, text, problem, is_open=is_open)
    if seen.inexact and kernel.promise.is_bitwise:
        text = "bits agree on this device; another may return others, which the promise does not allow"
        return Finding(INEXACT, text, problem, is_open=True)
    if seen.assumed and kernel.promise.is_bitwise:
        text = "bits agree if this target's chip returns what another's does, which is unverified"
        return Finding(ASSUMED, text, problem, is_open=True)
    return None


def with_open_bits(kernel: Kernel, finding: Finding | None, bits: DecisionBits) -> tuple[str, tuple[str, ...]]:
    """The text of a finding, and notes, with what is known of open bits: part of the one or, where a bound decided, a note."""
    lines = bits.lines(kernel)
    if finding is None:
        return "", tuple(f"{line} (judged by the bound)" if not at else line for at, line in enumerate(lines))
    return "\n".join([finding.text, *(lines if finding.is_open else [])]), ()


def graver(found: Finding | None, other: Finding) -> Finding:
    """Of what two cases of a campaign leave open, the graver; the first of two that are alike."""
    return other if found is None or (found.status == ASSUMED and other.status != ASSUMED) else found


def blamed(error: RefsimError, problem: Any) -> Finding:
    """The finding of a run that ended in an error; raises the error again where the kernel is not to blame."""
    timed_out = (
        error.code == "timeout" and error.kind is not Kind.USAGE
    )  # one in the kernel's own Python code is no verdict
    status = TIMEOUT if timed_out else _STATUS_OF.get(error.kind)
    if status is None:
        raise error
    return Finding(status, str(error), problem)


def badness(mismatch: Mismatch) -> float:
    """How far off the worst element is, to compare mismatches of one kernel."""
    return mismatch.worst.distance if mismatch.worst is not None else 0.0


def listed(texts: Iterable[str]) -> str:
    """The first few, and how many more; texts that name the same of several PTX lines, as an unrolled loop has them, once."""
    alike: dict[str, list[str]] = {}
    for text in texts:
        lines = alike.setdefault(PTX_LINE.sub("PTX line", text, count=1), [])
        lines += [found[1]] if (found := PTX_LINE.search(text)) else []
    known = [_of_lines(text, lines) for text, lines in alike.items()]
    more = len(known) - LISTED
    return "; ".join(known[:LISTED]) + (f"; and {more} more" if more > 0 else "")


def _of_lines(text: str, lines: list[str]) -> str:
    """A text with the PTX lines that it was said of: 7, 9, 12, 15 and 8 more."""
    if not lines:
        return text
    more = f" and {len(lines) - LISTED} more" if len(lines) > LISTED else ""
    return text.replace("PTX line", f"PTX line{'s' if len(lines) > 1 else ''} {', '.join(lines[:LISTED])}{more}", 1)
