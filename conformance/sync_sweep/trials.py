"""What the default campaign makes of a kernel with one edit of its synchronisation."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from conformance.sync_sweep.edits import Edit, edits_of
from conformance.sync_sweep.subjects import Subject, subjects
from refsim import ptx
from refsim.device.compile import compiled
from refsim.device.schedules import SCHEDULES
from refsim.errors import RefsimError
from refsim.testing import verdicts
from refsim.testing.barrier_sweep import only
from refsim.testing.changed_device import ChangedDevice
from refsim.testing.runs import examine

SECONDS = 60.0  # of a launch
SURVIVED = ""
BITS = "bits"


@dataclass(frozen=True)
class Outcome:
    """What came of one edit: the code of a finding, "bits" where outputs differ, or nothing at all."""

    subject: str
    edit: Edit
    code: str
    said: str = ""

    @property
    def is_caught(self) -> bool:
        return self.code != SURVIVED


@dataclass(frozen=True)
class Whole:
    """A kernel as it is: the text of the entry alone, its edits, and what warnings its problems bring."""

    subject: Subject
    text: str
    edits: tuple[Edit, ...]
    warned: frozenset[str]


@lru_cache(maxsize=4)
def whole(name: str) -> Whole:
    """The kernel compiled and tried as it is; RefsimError where it fails."""
    subject = subjects()[name]
    text = compiled(subject.kernel.code, subject.target).text
    alone = only(text, subject.entry)
    program = ptx.load(alone, subject.target)
    warned = set[str]()
    for problem in subject.problems:
        code, said, codes = judged(subject, problem, program)
        if code:
            raise RefsimError("kernel-fails", f"{name} fails as it is, on {problem!r}: {said}")
        warned |= codes
    return Whole(subject, alone, tuple(edits_of(program, subject.entry, alone)), frozenset(warned))


def tried(name: str, number: int) -> Outcome:
    """One edit of a kernel, on each of its problems until something is seen."""
    of = whole(name)
    edit = of.edits[number]
    program = ptx.load(edit.applied(of.text), of.subject.target)
    for problem in of.subject.problems:
        code, said, warned = judged(of.subject, problem, program)
        if code or warned - of.warned:
            return Outcome(name, edit, code or f"{min(warned - of.warned)} (warning)", said)
    return Outcome(name, edit, SURVIVED)


def judged(subject: Subject, problem: Any, program: ptx.Program) -> tuple[str, str, set[str]]:
    """The code of a failure, its text, and the codes of warnings."""
    found = examine(subject.kernel, problem, ChangedDevice(program, SCHEDULES, SECONDS))
    warned = {match[1] for note in found.notes if (match := re.search(r": warning \[([\w-]+)\]", note))}
    finding = found.finding
    if finding is None or finding.status != verdicts.FAIL:
        return "", "", warned
    fault = re.match(r"\[([\w-]+)\]", finding.text)
    return fault[1] if fault else BITS, finding.text, warned


def all_tried(name: str) -> list[Outcome]:
    """Every edit of a kernel."""
    of = whole(name)
    return [tried(name, at) for at, edit in enumerate(of.edits) if edit.rule.is_removal or of.subject.weakens]
