"""Find the smallest test case and PTX that still show a difference: delta debugging that runs each candidate.

Parts that can go are left out. A register that must stay is set to 0 where the difference still shows, so that the
statements that computed it can go too.
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
from refsim.ptx.text.source_names import NAMES_MARK
from refsim.render.cards import FieldsCard

Item = TypeVar("Item")
CANDIDATE_SECONDS = 20.0  # for a candidate on the simulator: without the end of a loop it would never stop
RUNS = 2


@dataclass(frozen=True, repr=False)
class Shrunk(FieldsCard):
    """The smallest case found: the problem as `given` and as text, its PTX, the build that differs, and the difference.

    `is_smallest`: no single statement can be left out; False where the time ended first, or where the machine code was
    given and the text could not be shrunk. `tried` counts the candidates that were run.
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
        """Return the text in which the difference shows, without empty lines and comments that name no templates."""
        said = re.sub(rf"(?m)^\s*//(?!{re.escape(NAMES_MARK[2:])})[^\n]*\n", "", self.candidate.text)
        said = re.sub(r"(?m);[ \t]*//[^\n]*$", ";", said)
        return re.sub(r"\n\s*\n+", "\n", said).strip() + "\n"

    @property
    def edited(self) -> str:
        """Return the lines of the edited copy that differ from the text."""
        edits = self.candidate.pieces.edits
        return "".join(edits[number] for number in self.candidate.kept if number in edits).strip()


def shrunk(
    found: Blame, silicon: Silicon, *, seconds: float = 120.0, on_progress: Report | None = None
) -> Shrunk | None:
    """Return the smallest case of a difference; None for verdicts that no smaller text would make clearer.

    A candidate counts where the simulator runs it without a finding and the blamed build still writes other elements
    than the model, unspecified bits excluded. The build that it is compared with must still write the model's elements.
    Source: delta debugging, Zeller and Hildebrandt 2002, "Simplifying and Isolating Failure-Inducing Input".
    """
    if not found.is_shrinkable or found.pieces is None:
        return None
    return _Trial(found, silicon, time.monotonic() + seconds, on_progress).shrunk()


def left_out(items: Sequence[Item], shows: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Return items that can be left out together: tried as a whole, in halves, in quarters, at last one by one.

    Later items are tried first, since they use earlier ones. For 1 to 8, where 3 and 6 must stay, it returns the six
    others.
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
    """The fixed conditions of a shrinking case, and the smallest case so far."""

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
        """Shrink the test case, then the text, then the test case again; return the smallest case or None.

        The test case comes first, since a small one makes every later step faster.
        """
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
        """Leave out marks, functions, statements and declarations, and set registers to 0 where that still shows."""
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
        """Replace the best candidate by one without as many groups of part numbers as possible."""
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
        """Return whether a candidate still shows the difference; False after the deadline."""
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
        """Return whether a candidate still shows the difference; assembling comes first, since it fails soonest."""
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
    """Return the text with every number replaced by "#"."""
    return re.sub(r"\d+", "#", text)
