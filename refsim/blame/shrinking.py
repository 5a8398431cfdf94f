"""The smallest problem and the smallest PTX that still show a difference: delta debugging, each step tried for real.

What can go goes; of what has to stay a register becomes 0 where that shows as well, and what computed it can go then.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from refsim.blame.builds import Build
from refsim.blame.examining import FAULTS, MODEL, OTHER_WORDS, Blame, BuildRow, Examination, Report, compared_with
from refsim.blame.running import RunWords, Silicon, measured, simulated
from refsim.blame.statements import Candidate
from refsim.blame.subjects import BlameSubject
from refsim.device.assembling import Cubin
from refsim.errors import Kind, RefsimError
from refsim.ptx.text.entry_names import NAMES_MARK
from refsim.render.cards import FieldsCard

Item = TypeVar("Item")
CANDIDATE_SECONDS = 20.0  # of a candidate on the simulator: one that lost the end of a loop runs for ever
RUNS = 2


@dataclass(frozen=True, repr=False)
class Shrunk(FieldsCard):
    """The smallest that was found: the problem as it is `given` and in words, its text, the build that shows it, and what
    that wrote beside the model.

    `is_smallest`: no single statement of it can be left out; False where the time ended first, or where the machine code was
    given and the text could not be shrunk. `tried` candidates were run.
    """

    given: Any
    problem: str
    candidate: Candidate
    build: Build
    first: str
    cubin: Cubin
    is_smallest: bool
    tried: int

    @property
    def text(self) -> str:
        """The text in which the difference shows, without empty lines and remarks; names of templates are in some."""
        said = re.sub(rf"(?m)^\s*//(?!{re.escape(NAMES_MARK[2:])})[^\n]*\n", "", self.candidate.text)
        said = re.sub(r"(?m);[ \t]*//[^\n]*$", ";", said)
        return re.sub(r"\n\s*\n+", "\n", said).strip() + "\n"

    @property
    def edited(self) -> str:
        """The lines of the edited copy where it says something else."""
        edits = self.candidate.pieces.edits
        return "".join(edits[number] for number in self.candidate.kept if number in edits).strip()


def shrunk(
    found: Blame, silicon: Silicon, *, seconds: float = 120.0, on_progress: Report | None = None
) -> Shrunk | None:
    """The smallest case of a difference; None for verdicts that no smaller text would make clearer.

    A candidate counts where the simulator runs it without a finding, the build that is blamed still writes other words where
    bits are fixed, and the build that it is held to still writes the model's.
    Source: delta debugging, Zeller and Hildebrandt 2002, "Simplifying and Isolating Failure-Inducing Input".
    """
    if not found.is_shrinkable or found.pieces is None:
        return None
    trial = _Trial(found, silicon, time.monotonic() + seconds, on_progress)
    return trial.shrunk()


def left_out(items: Sequence[Item], shows: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Items that can be left out together: all, halves, quarters, at last each alone until none can.

    From the end, since what comes last uses what comes before. Of 1 to 8, where 3 and 6 must stay, the six others.
    """
    kept, gone, size = list(items), list[Item](), len(items)
    while size:
        end, went = len(kept), False
        while end > 0:
            start = max(0, end - size)
            if shows([*gone, *kept[start:end]]):
                gone += kept[start:end]
                del kept[start:end]
                went = True
            end = start
        if size == 1 and not went:
            break
        size = max(1, min(size, len(kept)) // 2) if kept else 0
    return gone


@dataclass
class _Trial:
    """What is held fixed while a case shrinks, and the smallest case so far."""

    found: Blame
    silicon: Silicon
    deadline: float
    on_progress: Report | None
    tried: int = 0
    seen: dict[tuple[int, ...], bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.subject: BlameSubject = self.found.subject
        self.row: BuildRow = min(self.found.culprits, key=lambda row: not row.build.takes_any_text)
        others = [row for row in self.found.culprits if row is not self.row and row.build.takes_any_text]
        healthy = self.found.healthy
        self.beside: BuildRow | None = others[0] if self.found.verdict == MODEL and others else healthy
        assert self.found.pieces is not None
        at = self.row.differing[0]
        self.problem: Any = self.subject.problems[at]
        self.is_fault = self.row.runs[at].words is None
        self.best: Candidate = self.found.pieces
        model = simulated(self.subject, self.best.text, self.problem)
        self.known_notes = set(map(_unnumbered, model.notes))
        self.last: tuple[RunWords, RunWords, Cubin] | None = None

    def shrunk(self) -> Shrunk | None:
        """The problem first: all that follows is as fast as that is small; a launch of its own once more at the end."""
        half = time.monotonic() + (self.deadline - time.monotonic()) / 2
        if not self._shows(self.best, self.problem):
            return None
        whole, self.deadline = self.deadline, half
        self.problem = self._smaller_problem()
        self.deadline = whole
        if self.row.build.takes_any_text:
            self._smaller_text()
            self.problem = self._smaller_problem()
        is_smallest = self.row.build.takes_any_text and time.monotonic() < self.deadline
        self.deadline = float("inf")
        if not self._shows(self.best, self.problem) or self.last is None:
            return None
        ran, model, cubin = self.last
        return Shrunk(
            self.problem,
            self.subject.spelled(self.problem),
            self.best,
            self.row.build,
            ran.first_difference(model, model.open_words),
            cubin,
            is_smallest,
            self.tried,
        )

    def _smaller_problem(self) -> Any:
        return self.subject.smaller(self.problem, lambda problem: self._shows(self.best, problem))

    def _smaller_text(self) -> None:
        pieces = self.best.pieces
        self._leave_out([(number,) for number in pieces.marks])
        self._leave_out(pieces.functions)
        self._leave_out_statements()
        for candidate in self.best.zeros:
            zero = replace(self.best, instead=(*self.best.instead, candidate.instead[-1]))
            if self._shows(zero, self.problem):
                self.best = zero
        if self.best.instead:
            self._leave_out_statements()
        self._leave_out([(number,) for number in pieces.outside])

    def _leave_out_statements(self) -> None:
        self._leave_out([(number,) for number in self.best.pieces.statements if number in self.best.kept])

    def _leave_out(self, groups: Sequence[tuple[int, ...]]) -> None:
        before = self.best

        def shows(gone: Sequence[tuple[int, ...]]) -> bool:
            candidate = before.without([number for group in gone for number in group])
            if candidate.kept not in self.seen:
                self.seen[candidate.kept] = self._shows(candidate, self.problem)
            if self.seen[candidate.kept]:
                self.best = candidate
            return self.seen[candidate.kept]

        left_out(groups, shows)
        self.seen.clear()

    def _shows(self, candidate: Candidate, problem: Any) -> bool:
        if time.monotonic() > self.deadline:
            return False
        self.tried += 1
        if self.on_progress is not None:
            size = self.best.instructions
            self.on_progress(Examination(self.subject.name, f"shrinking, {size} instructions", self.tried, self.tried))
        try:
            return self._differs(candidate, problem)
        except RefsimError as error:
            if error.kind is Kind.MISSING and error.code != "assembler-too-old":
                raise
            return False

    def _differs(self, candidate: Candidate, problem: Any) -> bool:
        """The assemblers are asked first: most texts that lost a statement are none, and they say so soonest."""
        builds = [self.row, *filter(None, (self.beside,))]
        cubins = [row.build.cubin(candidate, self.subject.target) for row in builds]
        model = simulated(self.subject, candidate.text, problem, CANDIDATE_SECONDS)
        if model.words is None or not set(map(_unnumbered, model.notes)) <= self.known_notes:
            return False
        if not any(words.size for words in model.words.values()):
            return False
        runs = measured(self.silicon, self.subject, cubins[0].image, candidate.text, problem, RUNS)
        if compared_with(model, runs)[0] not in (OTHER_WORDS, FAULTS):
            return False
        if (runs[0].words is None) != self.is_fault:
            return False
        if self.beside is not None:
            wanted = runs[0] if self.found.verdict == MODEL else model
            other = measured(self.silicon, self.subject, cubins[1].image, candidate.text, problem, 1)
            if not (other[0].agrees(wanted) or model.excuses(other[0], wanted)):
                return False
        self.last = (runs[0], model, cubins[0])
        return True


def _unnumbered(text: str) -> str:
    return re.sub(r"\d+", "#", text)
