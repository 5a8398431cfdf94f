"""The decision about a run of a kernel, shared by `verify`, `replay`, campaigns, laws and pytest.

The rules apply in this order. A fault of the device outranks everything and is raised before outputs are compared.
Elements that differ beyond the accuracy contract fail, in the first run and in a second run over the same module.
Accesses that only convergence of a warp orders fail if bits decide, unless the launch is `warp_synchronous`. Bank
conflicts fail if the kernel excludes them. If bits decide, elements that agree through inexact arithmetic are
inconclusive (`inexact`). Elements that agree through bits unverified on this target (another chip's bits, or
unpublished sums) are inconclusive too (`assumed`, which ranks lower). If a bound decides, such arithmetic is a note.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from refsim.compare import Mismatch
from refsim.errors import Kind, RefsimError, UnfitTargetError, counted, printed_details
from refsim.kernels import Kernel, Outputs
from refsim.render.cards import FieldsCard
from refsim.testing.oracle_checks import NO_SLACK, Slack
from refsim.testing.samples import Sample
from refsim.testing.verdicts import ASSUMED, FAIL, GRAVITY, INEXACT, TIMEOUT, UNSUPPORTED

LISTED = 6
PTX_LINE = re.compile(r"PTX line (\d+)")
_STATUS_OF = {Kind.FAULT: FAIL, Kind.INCONCLUSIVE: UNSUPPORTED}


@dataclass(frozen=True, repr=False)
class Observation(FieldsCard):
    """One run of a kernel: its outputs, the elements that break its accuracy contract, and the device's findings.

    `counts` holds, for each output, the number of elements and how many of them differ. `inexact`, `assumed` and
    `notes` are the launcher's findings; `conflicts` are the bank conflicts that the kernel excludes. `elements` is the
    number of output elements. `reached` says what unspecified bits decided, None if they were not followed. `slack` is
    what bounds leave open; `again` describes what a second run over the same module did differently; `opcodes` are the
    instructions that ran. `waived`, `unordered` and `printed` are the launcher's findings. `samples` are parts of what
    refsim's own oracles returned to the kernel's oracle.
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
    waived: Mapping[str, str] = field(default_factory=dict)
    unordered: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def is_open(self) -> bool:
        """Return whether a chip of the target may write other bits."""
        return bool(self.inexact or self.assumed)


@dataclass(frozen=True)
class Finding:
    """The result of a test case that does not pass: a status, a text and, if bits differ, a Mismatch.

    `mismatch` is the worst of `mismatches`, which has one entry for each differing output. `is_open` says whether
    arithmetic without fixed bits took part. `unfit` is the entry that the target cannot launch, if that is the finding.
    """

    status: str
    text: str
    problem: Any
    mismatch: Mismatch | None = None
    is_open: bool = False
    mismatches: tuple[Mismatch, ...] = ()
    unfit: str = ""


@dataclass
class DecisionBits:
    """The facts about unspecified bits after all runs so far; `assumed` statements are unverified on this target."""

    statements: dict[str, None] = field(default_factory=dict)
    assumed: dict[str, None] = field(default_factory=dict)
    reached: dict[str, None] = field(default_factory=dict)
    followed: int = 0

    def note(self, seen: Observation) -> None:
        """Add the observation of one run."""
        self.statements |= dict.fromkeys(seen.inexact)
        self.assumed |= dict.fromkeys(seen.assumed)
        self.reached |= dict.fromkeys(seen.reached or ())
        self.followed += seen.reached is not None and seen.elements > 0

    def lines(self, kernel: Kernel) -> list[str]:
        """Return lines of text: the statements, what they decided, and which accuracy contract is possible."""
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
    """Return the finding about a run, with what threads printed if it fails; None if the kernel keeps its accuracy
    contract."""
    found = _decided(kernel, seen, problem)
    if found is None or found.status != FAIL or not seen.printed:
        return found
    lines = (f"  {label}: {line}" for label, line in printed_details(seen.printed))
    return replace(found, text="\n".join([found.text, *lines]))


def _decided(kernel: Kernel, seen: Observation, problem: Any) -> Finding | None:
    """Return the finding by the rules of this module, the gravest first."""
    is_open = seen.is_open
    if seen.mismatches:
        worst = max(seen.mismatches, key=badness)
        return Finding(FAIL, "\n".join(map(str, seen.mismatches)), problem, worst, is_open, seen.mismatches)
    if seen.again:
        return Finding(FAIL, "\n".join(seen.again), problem)
    if seen.unordered and kernel.promise.is_bitwise:
        way = "help: __syncwarp() between the two accesses, or launch(..., warp_synchronous=True)"
        return Finding(FAIL, "\n".join([*seen.unordered, way]), problem, is_open=is_open)
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
    """Return (text of a finding with the facts about unspecified bits, notes if a bound decided)."""
    lines = bits.lines(kernel)
    if finding is None:
        return "", tuple(f"{line} (judged by the bound)" if not at else line for at, line in enumerate(lines))
    return "\n".join([finding.text, *(lines if finding.is_open else [])]), ()


def graver(found: Finding | None, other: Finding) -> Finding:
    """Return the graver of two findings that are no failures; the first if both are equally grave."""
    return other if found is None or GRAVITY.index(other.status) > GRAVITY.index(found.status) else found


def blamed(error: RefsimError, problem: Any) -> Finding:
    """Return the finding of a run that ended in an error; raise the error again if the kernel is not to blame."""
    if isinstance(error, UnfitTargetError):
        return Finding(UNSUPPORTED, str(error), problem, unfit=error.entry)
    timed_out = (
        error.code == "timeout" and error.kind is not Kind.USAGE
    )  # a TimeoutError in the user's Python code is not a verdict
    status = TIMEOUT if timed_out else _STATUS_OF.get(error.kind)
    if status is None:
        raise error
    return Finding(status, str(error), problem)


def badness(mismatch: Mismatch) -> float:
    """Return the distance of the worst element, to compare mismatches of one kernel."""
    return mismatch.worst.distance if mismatch.worst is not None else 0.0


def listed(texts: Iterable[str]) -> str:
    """Return the first few texts and the number of the rest; texts that differ only in the PTX line are merged."""
    alike: dict[str, list[str]] = {}
    for text in texts:
        lines = alike.setdefault(PTX_LINE.sub("PTX line", text, count=1), [])
        lines += [found[1]] if (found := PTX_LINE.search(text)) else []
    known = [_of_lines(text, lines) for text, lines in alike.items()]
    more = len(known) - LISTED
    return "; ".join(known[:LISTED]) + (f"; and {more} more" if more > 0 else "")


def _of_lines(text: str, lines: list[str]) -> str:
    """Return a text with all its PTX lines: 7, 9, 12, 15 and 8 more."""
    if not lines:
        return text
    more = f" and {len(lines) - LISTED} more" if len(lines) > LISTED else ""
    return text.replace("PTX line", f"PTX line{'s' if len(lines) > 1 else ''} {', '.join(lines[:LISTED])}{more}", 1)
